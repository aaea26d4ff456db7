"""The audit log of calls, refusals and changes: one JSON line for each entry, and a hash chain over all lines.

audit_entries    Build and limit the entries.
pending_entries  Queue entries without blocking calls, and write them in a thread.
log_reader       Search the log, latest entries first, and verify its hash chain.
log_writer       Append to the log from several processes; rotate and delete files.
recording        The methods with which the rest of the gateway records events.
"""
