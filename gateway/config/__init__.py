"""The configuration file.

upstream_types/   The types of upstreams, one file for each.
auth_config       Configure authentication and quotas: API keys, token issuers and limits per caller.
operation_config  Configure operation: the admin API, approvals, audit log, lock and telemetry.
cluster_config    Configure a cluster of replicas.
policy_config     Configure access rules: they allow or deny requests, or ask a person for approval.
unmatched_names   Find names and patterns in the configuration that match nothing.
hooks_config      Configure a hook: its code, the calls it runs for, and its timeout.
block_text        Change one member in the block style of YAML (lines with indentation) and leave the rest as it is.
flow_text         Change one member in JSON or the flow style of YAML (braces) and leave the rest as it is.
file_edits        Edit the entry of a tool, or revoke API keys, in a configuration file.
section           The base class of every section of the file: keys, validation errors and suggestions.
conversion        Convert sections of the configuration to the types of the package `registry`.
server_entries    Read the server entries one by one; the server of an invalid entry is left out, all others are served.
host_entries      Translate keys and restrictions in server entries of other hosts, gateways and frameworks.
host_settings     Read the allow and deny lists for servers and tools in settings files of hosts.
source            Parse a JSON or YAML configuration file into plain JSON values.
variables         Replace placeholders in strings of the configuration.
load              Read, validate and watch a configuration file.
launch_identity   Describe what a server entry starts or connects to, without secrets, and detect loops.
active_config     The configuration in effect, and the interface of the objects that depend on it.
model             The pydantic model of the configuration file.
overlay           Changes by administrators: a list of edits to the configuration, stored in the state directory.
server            The keys that server entries of every type share, and the keys of their tools.
"""
