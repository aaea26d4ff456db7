"""The tools that FastMCP's OpenAPI provider makes of the document `argv[1]`, as JSON."""

import asyncio
import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
from fastmcp import FastMCP


def is_dangling(reference: str, schema: Any) -> bool:
    """Return whether a reference has no target in its schema."""
    found = schema
    for step in unquote(reference.removeprefix("#")).split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return not reference.startswith("#") or found is None


def main() -> None:
    """Print the number of tools, those with references without a target, the time, and the memory."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8-sig")
    began_s = time.process_time()
    if sys.argv[1].endswith(".json"):
        document = json.loads(text)
    else:
        import yaml

        document = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    server = FastMCP.from_openapi(document, httpx2.AsyncClient(base_url="http://127.0.0.1:1"))
    tools = [tool.to_mcp_tool() for tool in asyncio.run(server.list_tools())]
    report: dict[str, Any] = {"listed": len(tools), "dangling": 0}
    report["seconds"] = round(time.process_time() - began_s, 2)
    for tool in tools:
        shown = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        for schema in (shown["inputSchema"], shown.get("outputSchema", {})):
            references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(schema)))
            if any(is_dangling(reference, schema) for reference in references):
                report["dangling"] += 1
                break
    report["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    print(json.dumps(report))


if __name__ == "__main__":
    main()
