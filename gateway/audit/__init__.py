"""The audit log of calls, refusals and changes: one JSON line for each entry, and a hash chain over all lines.

audit_entries  Build and limit the entries.
log_reader     Search the log, latest entries first, and verify its hash chain.
log_writer     Append batches to the log from several processes; rotate and delete files.
recording      The methods with which the rest of the gateway records events, and the queue of unwritten entries.
"""
