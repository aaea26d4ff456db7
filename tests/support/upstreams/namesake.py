"""A server of the handshake era that names its URIs wherever the protocol lets it, and says in each answer who it is.

Its only argument is a JSON object: `name`, `listed` and `templates` (URIs), and `named`: the URIs of which each tool,
prompt and result speaks. Tools: one for each named URI, whose result names it; `touch(uri)`, which says that a resource
has changed; `list(uris)`, after which these are listed too; `large(uri)`, whose result is long and begins with a link.
"""

import json
import sys

SPEC = json.loads(sys.argv[1])
ME, NAMED = SPEC["name"], SPEC["named"]
LISTED = list(SPEC["listed"])


def say(message):
    """Send one message."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def meta(uri):
    """Return every form in which hosts look for the app of a tool."""
    return {"ui": {"resourceUri": uri}, "ui/resourceUri": uri, "openai/outputTemplate": uri, "other": [uri, "x"]}


def embedded(uri):
    """Return a content item with an embedded resource."""
    return {"type": "resource", "resource": {"uri": uri, "text": f"{uri} of {ME}", "_meta": meta(uri)}}


def link(uri):
    """Return a content item that links to a resource."""
    return {"type": "resource_link", "uri": uri, "name": ME}


def tools():
    """Return the tools."""
    plain = {"description": "x", "inputSchema": {"type": "object"}}
    own = [{"name": f"name{at}", **plain, "_meta": meta(uri)} for at, uri in enumerate(NAMED)]
    return own + [{"name": one, **plain} for one in ("touch", "list", "large")]


def called(name, given):
    """Return the result of a tool."""
    if name == "touch":
        say({"method": "notifications/resources/updated", "params": {"uri": given["uri"]}})
    elif name == "list":
        LISTED.extend(given["uris"])
        say({"method": "notifications/resources/list_changed"})
    elif name == "large":
        return {"content": [link(given["uri"]), {"type": "text", "text": "x" * 300_000}, embedded(given["uri"])]}
    elif name.startswith("name"):
        uri = NAMED[int(name[4:])]
        return {
            "content": [link(uri), embedded(uri), {"type": "text", "text": uri, "_meta": meta(uri)}],
            "_meta": meta(uri),
        }
    return {"content": [{"type": "text", "text": "done"}]}


def answer(method, params):
    """Return the result of a request; None if the method has none."""
    if method == "initialize":
        capabilities = {
            "tools": {}, "prompts": {}, "completions": {}, "resources": {"subscribe": True, "listChanged": True},
        }  # fmt: skip
        info = {"name": ME, "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        return {"tools": tools()}
    if method == "tools/call":
        return called(params["name"], params.get("arguments", {}))
    if method == "resources/list":
        return {"resources": [{"uri": uri, "name": ME, "_meta": meta(uri)} for uri in LISTED]}
    if method == "resources/templates/list":
        return {"resourceTemplates": [{"uriTemplate": one, "name": ME} for one in SPEC["templates"]]}
    if method == "resources/read":
        uri = params["uri"]
        return {
            "contents": [{"uri": uri, "text": f"{uri} of {ME}", "_meta": meta(uri)}, {"uri": uri + "#2", "text": ""}]
        }
    if method == "prompts/list":
        return {"prompts": [{"name": "say"}]}
    if method == "prompts/get":
        messages = [{"role": "user", "content": one(uri)} for uri in NAMED for one in (link, embedded)]
        return {"messages": messages, "_meta": {"uris": NAMED}}
    if method == "completion/complete":
        return {"completion": {"values": [ME, params["ref"].get("uri", "")]}}
    return {} if method in ("ping", "resources/subscribe", "resources/unsubscribe") else None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        lost = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
        say({"id": request["id"], **lost})
