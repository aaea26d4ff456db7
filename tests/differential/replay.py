"""A server that lists recorded definitions and answers each call with the arguments that arrived.

It stands for servers whose calls need credentials, a network or rights that a test does not have. Argument: a JSON file
with `tools` (definitions as their server gave them) and `structured` (by tool, a value that fits its output schema).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer requests on standard input until it ends."""
    recorded = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"], **answered(message, recorded)}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def answered(message: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the `result` or the `error` of one request."""
    params = message.get("params") or {}
    match message.get("method"):
        case "initialize":
            server = {"name": "replay", "version": "1"}
            agreed = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            return {"result": {**agreed, "serverInfo": server}}
        case "tools/list":
            return {"result": {"tools": recorded["tools"]}}
        case "tools/call":
            arrived = json.dumps(params.get("arguments"), sort_keys=True)
            result: dict[str, Any] = {"content": [{"type": "text", "text": arrived}]}
            if params["name"] in recorded["structured"]:
                result["structuredContent"] = recorded["structured"][params["name"]]
            return {"result": result}
        case "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


if __name__ == "__main__":
    main()
