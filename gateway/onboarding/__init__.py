"""Add servers to the configuration, and add the gateway to the settings of hosts.

host_file_edits  Edit a host's file, preserving comments and concurrent changes, and undo the edit.
host_files       The supported hosts: the paths of their settings files, and the format of their server entries.
installing       Replace the servers in a host's file with the gateway, and restore the file.
bundles          Verify and unpack bundles (.mcpb files), and propose an entry for the server inside.
packages         Propose a configuration entry for an npm or PyPI package.
mcp_registry     Propose a configuration entry for a server in an MCP registry.
"""
