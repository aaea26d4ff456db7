"""All upstreams in use, which are called servers here: their connections, listings, snapshot, lock file and reload.

A listing is what a server has answered to `tools/list` and the other list requests. The catalog combines the listings
of all servers. With a lock file, changes of a listing are held, which means that callers see the approved items until
an administrator approves the changes.

fleet           All servers, each with its connection, its listing and its configuration.
listings        Put the last good listings, shared or per caller, into the catalog.
discovery       Convert a server's response into a listing, and check each item separately.
snapshot        Store the last good listings and the identifiers of servers on disk, for the next start.
reload          Apply a changed configuration to a running gateway, completely or not at all.
operator_notes  Operators' notes about tools, stored on disk until they expire.
listing_lock    Compare every listing with the approved one, and hold the differences.
lock_file       Read and write the lock file, and describe changes to administrators.
"""
