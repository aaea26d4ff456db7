"""Handle one request, from the name that the caller uses to a result that the caller can read.

advice/            Text for the caller when a call fails, and statistics of failures.
builtin_tools      The gateway's own tools and prompt: `invoke_tool`, search, `read_result`, and the manual of a tool.
call_targets       Resolve the tool that a call refers to, and decide whether the caller may use it.
caller             Information about the caller that a call needs.
tool_call          One tool call: its arguments as sent, as validated, and as forwarded.
forwarding         Send requests to upstreams for a caller, and relay an upstream's questions to the caller.
pipeline           The path of every tool call: resolve, authorize, prepare, send, finish.
process_choice     Choose the process of a server with `instances`, and ask its host for the folder in which it runs.
profile_views      Cache the view of each profile for callers with the same rights.
item_requests      Requests for prompts, resources, completions and tasks.
results            Adapt an upstream result to the caller's protocol version without losing information.
result_parts       Results in parts: selections, cuts, `read_result`, and handles in the arguments of other calls.
result_shaping     Select from one result, cut it to a size, and read parts of a stored one.
result_store       Store results for their callers, within bounds, and issue handles.
selection          Evaluate JMESPath expressions and JSON pointers within bounds.
caller_ids         Task ids as callers see them, and upstream subscriptions shared between callers.
sign_in_prompts    Ask a caller to sign in when a call requires it, and continue afterwards.
check_process      The process that validates arguments whose validation may be slow, and selects from large results.
thorough_checks    Validate arguments, and select from large results, in separate processes, with a deadline.
approval_store     Calls that wait for approval, and approvals that have been granted.
approval_requests  Ask a person to approve a call, through the caller's host or an administrator.
"""
