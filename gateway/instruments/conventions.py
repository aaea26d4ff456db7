"""Names of OpenTelemetry's conventions for MCP; they are in development, and have moved before.

Source: OpenTelemetry, Semantic Conventions, "Generative AI", "Model Context Protocol (MCP)".
"""

from __future__ import annotations

from typing import Final

METHOD: Final = "mcp.method.name"
PROTOCOL_VERSION: Final = "mcp.protocol.version"
SESSION_ID: Final = "mcp.session.id"
RESOURCE_URI: Final = "mcp.resource.uri"
TOOL: Final = "gen_ai.tool.name"
PROMPT: Final = "gen_ai.prompt.name"
OPERATION: Final = "gen_ai.operation.name"
EXECUTE_TOOL: Final = "execute_tool"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
REQUEST_ID: Final = "jsonrpc.request.id"
ERROR_TYPE: Final = "error.type"
TOOL_ERROR: Final = "tool_error"
"""The `error.type` of a result that says of itself that it is an error."""
TRANSPORT: Final = "network.transport"
PIPE: Final = "pipe"
TCP: Final = "tcp"
SERVER: Final = "typegate.server"
"""The alias of an upstream; ours, since the conventions know of one server only."""
WRAPPER: Final = "typegate.wrapper"

SERVER_DURATION: Final = "mcp.server.operation.duration"
CLIENT_DURATION: Final = "mcp.client.operation.duration"
BUCKETS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the buckets of both, in seconds."""
