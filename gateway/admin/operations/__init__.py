"""The operations of the admin API, by what they are about; each says beside itself what OpenAPI tells of it.

server_routes, tool_routes, source_routes, try_routes       servers and tools: add, disable, look up, try
config_routes, profile_routes, overlay_routes, host_routes  what is in use, what administrators changed, hosts' files
key_routes, policy_routes, approval_routes, sign_in_routes  who may do what, and what waits for a person
change_routes, note_routes, fault_routes                    what servers changed, notes about tools, what is wrong
audit_routes, event_routes                                  what has happened, and what happens now
page_routes, session_routes                                 the web page, and how a browser signs in
"""
