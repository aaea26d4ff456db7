"""The configuration file.

model               the whole file as pydantic models; `section` is their base, `wording` puts errors into words
server, hooks       the entry of a server with its tools, and of a hook
upstream_types/     one file for each type of upstream, and where they are registered
auth, issuers       who may call: keys, tokens; `policy`, `quotas`, `approvals` what they may do
admin, audit, lock, telemetry, cluster
                    further sections of `gateway`
include             other files that the main one is joined with
source              text to plain JSON values: JSON with comments, or YAML
variables           `${NAME}` and `${file:…}` replaced
entries             the entries of servers, each by itself; `host_entries` are words that hosts have of their own
host_restrictions   what hides tools in the words of hosts: in an entry, and in `host_settings` beside the entries
load                all of this in order, to one checked `Config` with warnings
unmatched, unmatched_rules, named_callers
                    names in it that stand for nothing, and for nobody
leads_back          an entry that starts this program again; `per_user`: servers that ask each caller to sign in
overlay             what administrators have changed over the file
plan                what changes from one `Config` to another
conversion          parts of a `Config` as the types of `registry`; `launch_identity` what an entry starts
edit, edit_keys     change what the file says about one tool, or one key, and nothing else; `flow_text` (JSON, braces)
                    and `block_text` (YAML in lines) do it in the text
watch               notice that a file has changed
"""
