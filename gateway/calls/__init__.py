"""One request, from the name that a caller knows to a result that it can read.

context                  what a call knows about its caller
profile_views            the view of each profile on the current catalog
pipeline                 the path of every tool call
prompts_and_resources    the path of prompts, resources, completions and tasks
forwarding               sends a request on the right connection, and asks the caller for input
results                  adapts a result to the caller's protocol version
builtin_tools            definitions of the gateway's own tools and prompt
builtin_arguments        repairs arguments of the search tools
search_tools             answers the search tools
thorough_checks          checks of arguments that could take long, in `check_process`es
unknown_tool             answers calls of tools that do not exist
error_hints              adds a hint to an upstream's complaint about arguments
call_stats               counters, clusters of failures, repairs
upstream_subscriptions   one upstream subscription for any number of callers
"""
