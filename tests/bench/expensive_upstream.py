"""A server over standard streams whose tools and results are files of a folder, for `bench_expensive`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def result_of(method: str, params: dict[str, Any], folder: Path) -> str:
    """Return the result of a request as JSON."""
    if method == "initialize":
        capabilities: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
        information = {"name": "expensive", "version": "1"}
        version = params["protocolVersion"]
        return json.dumps({"protocolVersion": version, "capabilities": capabilities, "serverInfo": information})
    if method == "tools/list":
        return f'{{"tools":{(folder / "tools.json").read_text(encoding="utf-8")}}}'
    if method == "tools/call" and params["name"] == "answer":
        return (folder / f"{params['arguments']['name']}.json").read_text(encoding="utf-8")
    if method == "tools/call":
        return '{"content":[]}'
    empty = {"resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts"}
    return json.dumps({empty[method]: []}) if method in empty else "{}"


def main() -> None:
    """Answer every request."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = result_of(message["method"], message.get("params", {}), Path(sys.argv[1]))
            sys.stdout.write(f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{result}}}\n')
            sys.stdout.flush()


if __name__ == "__main__":
    main()
