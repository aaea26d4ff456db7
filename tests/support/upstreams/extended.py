"""A server with extensions, of either era, that writes down every message it receives.

Its only argument is a JSON object:

    name, record    who it is, and the file of its messages
    modern          whether it speaks 2026-07-28; otherwise it knows only the handshake
    extensions      what it declares
    tools           definitions; one with `_meta.ui` is listed only to clients that declare MCP Apps
    resources       texts by URI, all of which can be read
    listed          the URIs of those that are listed; all by default
    results         results by method; a list of results is a list of pages
"""

import json
import sys

SPEC = json.loads(sys.argv[1])
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
APPS = META + "ui"
state = {"capabilities": {}}


def declares_apps(params):
    """Return whether the client of a request declares MCP Apps."""
    meta = params.get("_meta") or {}
    able = meta.get(META + "clientCapabilities") if SPEC.get("modern") else state["capabilities"]
    return APPS in ((able or {}).get("extensions") or {})


def tools(params):
    """Return the tools for the client of a request."""
    return [one for one in SPEC.get("tools", []) if "ui" not in one.get("_meta", {}) or declares_apps(params)]


def capabilities():
    """Return the capabilities of the server."""
    return {"tools": {}, "resources": {}, "extensions": SPEC.get("extensions", {})}


def paged(member, pages, cursor):
    """Return one page of a list."""
    at = int(cursor or 0)
    more = {"nextCursor": str(at + 1)} if at + 1 < len(pages) else {}
    return {**(pages[at] if isinstance(pages[at], dict) else {member: pages[at]}), **more}


def answer(method, params):
    """Return the result of a request, or None."""
    if method == "initialize":
        state["capabilities"] = params.get("capabilities") or {}
        about = {"name": SPEC["name"], "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities(), "serverInfo": about}
    if method == "server/discover" and SPEC.get("modern"):
        return {"supportedVersions": [MODERN], "capabilities": capabilities()}
    if method == "tools/list":
        return {"tools": tools(params)}
    if method == "tools/call":
        if params["name"] not in [one["name"] for one in tools(params)]:
            return None
        return {"content": [{"type": "text", "text": f"{params['name']} of {SPEC['name']}"}]}
    texts = SPEC.get("resources", {})
    if method == "resources/list":
        return {"resources": [{"uri": uri, "name": uri} for uri in SPEC.get("listed", texts)]}
    if method == "resources/templates/list":
        return {"resourceTemplates": []}
    if method == "resources/read":
        uri = params["uri"]
        kind = "text/html;profile=mcp-app" if uri.startswith("ui://") else "text/plain"
        return {"contents": [{"uri": uri, "mimeType": kind, "text": texts[uri]}]} if uri in texts else None
    if method in SPEC.get("results", {}):
        found = SPEC["results"][method]
        if isinstance(found, list):
            return paged("", found, params.get("cursor"))
        by_uri = found.get("byUri")
        return found if by_uri is None else by_uri.get(params.get("uri"))
    return None


def main():
    """Answer until the input ends."""
    with open(SPEC["record"], "a", encoding="utf-8") as record:
        for line in sys.stdin:
            message = json.loads(line)
            record.write(line)
            record.flush()
            if "id" not in message:
                continue
            method, params = message.get("method"), message.get("params") or {}
            result = answer(method, params)
            known = method in SPEC.get("results", {}) or method in ("tools/call", "resources/read")
            refused = {"code": -32602 if known else -32601, "message": f"{method} is not for {SPEC['name']}"}
            if result is not None and SPEC.get("modern"):
                result = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "public", **result}
            outcome = {"error": refused} if result is None else {"result": result}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)


main()
