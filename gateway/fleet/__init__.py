"""All upstreams in use: links, listings, discovery, snapshot, lock file and reload.

fleet           All upstreams, each with its link, its last good listing and its shape.
listings        The last good listings, shared or per caller, and their way into the catalog.
discovery       Convert an upstream's response into a listing and check each item separately.
snapshot        Store the last good listings on disk, so that a start does not have to wait for upstreams.
reload          Apply a changed configuration to a running gateway, completely or not at all.
operator_notes  Operators' notes about tools, stored on disk until they expire.
listing_lock    Compare every listing with the approved state, and hold the differences.
server_ids      Identifiers of servers that outlive a changed alias, address or program.
lock_file       Read and write the lock file, and show changes to administrators.
"""
