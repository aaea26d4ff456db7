"""Where servers come from: a registry, a package, a bundle or an address becomes an entry with an exact version.

proposal      what would be written: the entry, what it asks for, what has to be known of it
mcp_registry  the entry that an MCP registry has of a server
packages      npm and PyPI, by name
bundles       .mcpb files: checked against their digest, unpacked within bounds
fetch         bounded requests to these places
"""
