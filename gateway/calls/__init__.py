"""Handle one request of a caller, from the name in the request to the result in the caller's protocol version.

advice/            Text for the caller when a call fails.
builtin_tools      The gateway's own tools and prompt: `invoke_tool`, search, `read_result`, and the manual of a tool.
call_targets       Resolve the tool that a call refers to, and decide whether the caller may use it.
caller             The client that makes a request: identity, rights, protocol version and callbacks.
tool_call          One tool call: its arguments as sent, as validated, and as forwarded.
forwarding         Send requests to upstreams for a caller, and relay an upstream's input requests to the caller.
pipeline           The steps of every tool call: resolve, prepare, authorize, send, finish.
process_choice     Choose the process for a call to a server that runs one process per session or caller.
profile_views      Cache the tools that callers see, by profile and rights.
item_requests      Requests for prompts, resources, completions, tasks and methods of extensions.
results            Adapt an upstream result to the caller's protocol version without losing information.
result_parts       Large results: return parts of them, and let later calls refer to stored results by handles.
result_shaping     Select parts of a result, cut a large result, and read parts of a stored result.
result_store       Store results for their callers, within bounds, and issue handles.
selection          Evaluate JMESPath expressions and JSON pointers within bounds.
caller_ids         Task ids as callers see them, and upstream subscriptions shared between callers.
sign_in_prompts    Ask a caller to sign in when a call requires a sign-in, and continue the call afterwards.
check_process      The program of the check processes, which run slow validations and select parts of large results.
thorough_checks    Start check processes, and run jobs in them with a deadline.
approval_store     Calls that wait for approval, and approvals that have been granted.
approval_requests  Ask a person to approve a call, through the caller's host or an administrator.
call_stats         Count the outcomes and durations of calls, and cluster similar failures.
"""
