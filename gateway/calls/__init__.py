"""One request, from the name that a caller knows to a result that it can read.

context                  what a call knows about its caller
profile_views            the view of each profile on the current catalog
pipeline                 the path of every tool call
call_targets             which tool a call means
tool_call                one call on its way: its arguments as sent, as checked, as they leave
permission               what rules say of a call
approvals                has a person allow a call; `approval_book` knows what waits, and what was allowed
prompts_and_resources    the path of prompts, resources, completions and tasks
task_ids                 the ids of tasks, each for one caller and one tool
forwarding               sends a request on the right connection, and asks the caller for input
sign_in_prompts          asks the caller to sign in where a call needs it
results                  adapts a result to the caller's protocol version
resource_uris            renames URIs in results that servers share, and remembers which server named one
builtin_tools            definitions of the gateway's own tools and prompt
builtin_arguments        repairs arguments of the search tools
search_tools             answers the search tools
thorough_checks          checks of arguments that could take long, in `check_process`es
unknown_tool             answers calls of tools that do not exist
near_names               names that an unknown one may be meant for
complaints               what an upstream says is wrong with arguments
error_hints              adds a hint to an upstream's complaint about arguments
call_stats               counters, clusters of failures, repairs
upstream_subscriptions   one upstream subscription for any number of callers
"""
