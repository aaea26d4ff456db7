"""The operations of the admin API.

review_routes    `/admin/changes` and `/admin/decisions`.
event_routes     Audit log, stored results, events, activity, history, and processes and trials of servers.
config_routes    `/admin/config`, `/admin/hooks`, `/admin/overlay` and `/admin/notes`.
key_routes       `/admin/keys`, `/admin/approvals`, and sign-ins to upstreams.
page_routes      `/admin/` and `/admin/session`: the admin page and its browser sessions.
override_routes  `/admin/mistakes` and `/admin/wrappers/{name}/overrides`.
policy_routes    `/admin/policy`, `/admin/profiles` and `/admin/budget`.
server_routes    `/admin/servers`, `/admin/preview` and `/admin/proposals`.
tool_routes      `/admin/wrappers`, `/admin/quarantine`, `/admin/failures` and `/admin/try`.
"""
