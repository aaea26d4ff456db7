"""The HTTP interface for administrators, orchestrators and monitoring.

operations/       The operations of the admin API.
api               `/admin/*`: authentication, routing and auditing of admin requests, and their OpenAPI description.
activity          The live event feed, and statistics of the last hour's calls.
caller_pages      The page on which callers see their tools, their calls and their sign-ins.
call_history      Call statistics, and their history of seven days on disk.
policy_explained  Explain why a caller may or may not use a tool, prompt or resource.
metrics           `/metrics` in the Prometheus text format.
routes            Declare admin routes, check query parameters, and merge responses from several processes.
rows              The state of a running gateway as JSON rows for the admin API and the command line.
pages             Script-free pages that a browser shows during and after a sign-in.
public_routes     Paths that need no admin token: probes, metrics, and sign-in pages.
"""
