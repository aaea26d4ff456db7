"""Add servers to the configuration, and the gateway to hosts.

host_file_edits  Edit a host's file, preserving comments and concurrent changes, and undo the edit.
host_files       The supported hosts: where their files are and how they write server entries.
installing       Add the gateway to a host's file in place of its servers, and remove it again.
bundles          Verify and unpack bundles (.mcpb).
packages         Propose an entry for an npm or PyPI package.
mcp_registry     Propose an entry for a server in an MCP registry.
"""
