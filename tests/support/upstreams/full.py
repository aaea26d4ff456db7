"""A whole server in one era, without an SDK: every feature of the protocol, driven by arguments.

The arguments of a call select the behaviour: a tool asks the given questions, fails with the given
error, and returns the given result. `full_serve.py` provides the transport.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from full_asked import Asked, Listen, More, Peer
from full_surface import (
    CAPABILITY_FOR,
    KINDS,
    LEVELS,
    NAMES,
    TASKS,
    TOOLS,
    Answer,
    capabilities,
    extras,
    prompts,
    resources,
    templates,
)
from scripted import HANDSHAKE, META, MODERN, Failure, Record, notification


class Full:
    """The server behind every connection."""

    def __init__(
        self, name: str, *, modern: bool, record: Record, ttl_ms: int, scope: str, page: int, stumble: str
    ) -> None:
        self.name, self.modern, self.record, self.page = name, modern, record, page
        self._stumbles = [stumble] * 2
        self.cached = {"ttlMs": ttl_ms, "cacheScope": scope}
        self.peers: set[Peer] = set()
        self.listens: set[Listen] = set()
        self.extra = dict.fromkeys(KINDS, 0)
        self.states: set[str] = set()
        self.tasks: dict[str, Answer] = {}
        self._waiting: dict[tuple[Peer, str], asyncio.Future[Answer]] = {}
        self._question_count = 0
        self._present = 0
        self._arrived = asyncio.Condition()
        record.write("started")

    async def answer(self, incoming: Asked) -> Answer | None:
        """Do what a message asks for; None when nothing is to be answered."""
        message, method = incoming.message, incoming.message.get("method")
        if method is None:
            self.record.write("response", message=message)
            waiting = self._waiting.pop((incoming.peer, message.get("id")), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            return None
        if "id" not in message:
            self.record.write("notification", method=method, params=incoming.params)
            return None
        call = method == "tools/call"
        self.record.write(
            "call" if call else "request",
            id=message["id"],
            method=method,
            name=incoming.params.get("name"),
            params=incoming.params,
        )
        try:
            result = await (self._call(incoming) if call else self._serve(method, incoming))
            if self.modern:
                result = {"resultType": "complete", **result}
                about = {META + "serverInfo": {"name": self.name, "version": "1.0.0"}}
                result["_meta"] = {**about, **result.get("_meta", {})}
        except More as more:
            result = more.result
        except Failure as failure:
            return {"jsonrpc": "2.0", "id": message["id"], "error": failure.error}
        except Exception as broken:  # noqa: BLE001 - one request must not end the others
            self.record.write("broken", id=message["id"], what=repr(broken))
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32603, "message": repr(broken)}}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _serve(self, method: str, incoming: Asked) -> Answer:
        params, hints = incoming.params, self.cached if self.modern else {}
        if method in self._stumbles:
            self._stumbles.remove(method)
            raise Failure(-32603, "not yet")
        match method:
            case "initialize" if not self.modern:
                incoming.peer.declared = params.get("capabilities") or {}
                version = params.get("protocolVersion")
                about = {"serverInfo": {"name": self.name, "version": "1.0.0"}, "capabilities": capabilities(False)}
                return {**about, "protocolVersion": version if version in HANDSHAKE else HANDSHAKE[-1]}
            case "server/discover" if self.modern:
                return {"supportedVersions": [MODERN], "capabilities": capabilities(True), **hints}
            case "ping" if not self.modern:
                return {}
            case "logging/setLevel" if not self.modern:
                incoming.peer.level = params["level"]
                return {}
            case "resources/subscribe" if not self.modern:
                incoming.peer.watched.add(params["uri"])
                return {}
            case "resources/unsubscribe" if not self.modern:
                incoming.peer.watched.discard(params["uri"])
                return {}
            case "tools/list":
                return self._page("tools", TOOLS + extras("tools", self.extra["tools"]), params)
            case "prompts/list":
                return self._page("prompts", prompts() + extras("prompts", self.extra["prompts"]), params)
            case "resources/list":
                more = extras("resources", self.extra["resources"], self.name)
                return self._page("resources", resources(self.name) + more, params)
            case "resources/templates/list":
                return self._page("resourceTemplates", templates(self.name), params)
            case "prompts/get":
                return await self._prompt(incoming)
            case "resources/read":
                return {"contents": [await self._read(incoming)], **hints}
            case "completion/complete":
                return {"completion": self._complete(params)}
            case "tasks/get" | "tasks/update" | "tasks/cancel" if self.modern:
                return self._task(method, incoming)
        raise Failure(-32601, f"Method not found: {method}")

    def _page(self, kind: str, items: list[Answer], params: Answer) -> Answer:
        start = int(params.get("cursor", 0))
        end = start + (self.page or len(items))
        more = {"nextCursor": str(end)} if end < len(items) else {}
        return {kind: items[start:end], **more, **(self.cached if self.modern else {})}

    async def _call(self, incoming: Asked) -> Answer:
        given = incoming.arguments
        await self._meet(given.get("meet"))
        match incoming.params.get("name"):
            case "echo":
                return _result_of(given)
            case "received":
                return _result_of({"params": incoming.params, "headers": incoming.headers})
            case "result":
                return given["result"]
            case "error":
                raise Failure(given["code"], given["message"], given.get("data"))
            case "hang":
                await asyncio.Event().wait()
            case "progress":
                for step in range(1, given["count"] + 1):
                    await self._progress(incoming, step, given["count"])
                return _result_of({"count": given["count"]})
            case "log":
                for level in given["levels"]:
                    await self._log(incoming, level, given.get("data"))
                return _result_of({"levels": given["levels"]})
            case "ask":
                replies = await self._inputs(incoming, given["requests"])
                while given.get("endless"):
                    incoming.message["params"].pop("inputResponses", None)
                    replies = await self._inputs(incoming, given["requests"])
                if "complete" in given:
                    done = {"elicitationId": given["complete"]}
                    await incoming.emit(notification("notifications/elicitation/complete", done))
                # As servers do: who is refused an answer fails with the words of the refusal.
                refused = any("error" in one for one in replies.values())
                return _result_of({"replies": replies}) | ({"isError": True} if refused else {})
            case "talk":
                if "inputResponses" not in incoming.params:
                    await self._progress(incoming, 1, 1, given["marker"])
                    await self._log(incoming, "info", given["marker"])
                form = {"type": "object", "properties": {"is": {"type": "string"}}}
                question = {"mode": "form", "message": given["marker"], "requestedSchema": form}
                wanted = {"who": {"method": "elicitation/create", "params": question}}
                return _result_of({"replies": await self._inputs(incoming, wanted), "marker": given["marker"]})
            case "change":
                self.extra[given["list"]] += 1
                await self._tell(given["list"])
                return _result_of({"list": given["list"]})
            case "touch":
                await self._updated(given["uri"])
                return _result_of({"uri": given["uri"]})
            case "task":
                return self._begin(incoming)
        raise Failure(-32602, f"Unknown tool: {incoming.params.get('name')}")

    async def _meet(self, count: int | None) -> None:
        """Wait until this many calls are running."""
        if count is None:
            return
        async with self._arrived:
            self._present += 1
            self._arrived.notify_all()
            await self._arrived.wait_for(lambda: self._present >= count)

    async def _progress(self, incoming: Asked, step: int, total: int, words: str | None = None) -> None:
        if "progressToken" not in incoming.meta:
            return
        params = {"progressToken": incoming.meta["progressToken"], "progress": step, "total": total}
        await incoming.emit(notification("notifications/progress", params | ({"message": words} if words else {})))

    async def _log(self, incoming: Asked, level: str, data: Any) -> None:
        least = incoming.meta.get(META + "logLevel") if self.modern else incoming.peer.level or LEVELS[0]
        if least is not None and LEVELS.index(level) >= LEVELS.index(least):
            log_params = {"level": level, "logger": self.name, "data": data}
            await incoming.emit(notification("notifications/message", log_params))

    async def _inputs(self, incoming: Asked, wanted: Answer) -> Answer:
        """Have questions answered, the way of the era."""
        for one in wanted.values():
            needed = CAPABILITY_FOR[one["method"]]
            if self.modern and needed not in incoming.declared:
                raise Failure(-32021, f"You did not declare {needed}", {"requiredCapabilities": {needed: {}}})
        if self.modern:
            replies, state = incoming.params.get("inputResponses") or {}, incoming.params.get("requestState")
            if state is not None and state not in self.states:
                raise Failure(-32602, "This state is not mine", {"requestState": state})
            if state is None or not all(key in replies for key in wanted):
                state = f"état {secrets.token_hex(8)}"
                self.states.add(state)
                raise More(wanted, state)
            return replies
        replies = {}
        for key, one in wanted.items():
            self._question_count += 1
            question = {"jsonrpc": "2.0", "id": f"{self.name}-{self._question_count}", **one}
            waiting = asyncio.get_running_loop().create_future()
            self._waiting[incoming.peer, question["id"]] = waiting
            await incoming.emit(question)
            reply = await waiting
            replies[key] = reply["result"] if "result" in reply else {"error": reply["error"]}
        return replies

    async def _prompt(self, incoming: Asked) -> Answer:
        given = incoming.arguments
        match incoming.params.get("name"):
            case "greet":
                words = f"{given.get('tone', 'Good day')}, {given.get('name')}!"
                link = {"type": "resource", "resource": {"uri": f"full://{self.name}/note", "text": "noted"}}
                messages = [
                    {"role": "user", "content": {"type": "text", "text": words}},
                    {"role": "user", "content": link},
                ]
                return {"description": "A greeting", "messages": messages}
            case "show":
                return {"messages": json.loads(given["messages"])}
            case "broken":
                error = json.loads(given["error"])
                raise Failure(error["code"], error["message"], error.get("data"))
            case "interview" | "ask":
                wanted = given["requests"]
                replies = await self._inputs(incoming, json.loads(wanted) if isinstance(wanted, str) else wanted)
                return {"messages": [{"role": "user", "content": {"type": "text", "text": json.dumps(replies)}}]}
        raise Failure(-32602, "Unknown prompt", {"name": incoming.params.get("name")})

    async def _read(self, incoming: Asked) -> Answer:
        uri = incoming.params.get("uri")
        known = {one["uri"]: one for one in resources(self.name)}
        if uri == f"full://{self.name}/pixel":
            return {"uri": uri, "mimeType": "image/png", "blob": "AAECAw=="}
        if uri == f"full://{self.name}/guarded":
            question = {"method": "roots/list", "params": {}}
            return {"uri": uri, "text": json.dumps(await self._inputs(incoming, {"roots": question}))}
        if uri in known:
            return {"uri": uri, "mimeType": "text/plain", "text": f"{uri} of {self.name}", "vendor": None}
        if uri == f"full://{self.name}/item/missing":
            raise Failure(-32602 if self.modern else -32002, "No such item", {"uri": uri, "tried": [None, 2**53 + 1]})
        if str(uri).startswith(f"full://{self.name}/item/"):
            return {"uri": uri, "mimeType": "text/plain", "text": f"item {uri.rpartition('/')[2]}"}
        raise Failure(-32602 if self.modern else -32002, "No such resource", {"uri": uri})

    def _complete(self, params: Answer) -> Answer:
        ref, argument = params["ref"], params["argument"]
        known = {"greet"} | {one["uriTemplate"] for one in templates(self.name)}
        if ref.get("name", ref.get("uri")) not in known:
            raise Failure(-32602, "Unknown reference", {"ref": ref})
        if argument["name"] == "broken":
            raise Failure(-32011, "Completion is out of order", {"argument": argument})
        values = [one for one in NAMES if one.lower().startswith(argument["value"].lower())]
        values += [f"{key}={value}" for key, value in (params.get("context") or {}).get("arguments", {}).items()]
        return {"values": values, "total": len(values), "hasMore": False}

    def _begin(self, incoming: Asked) -> Answer:
        if TASKS not in incoming.declared.get("extensions", {}):
            return incoming.arguments["result"]
        task_id = f"{self.name}:{secrets.token_hex(8)}"
        at = "2026-07-28T12:00:00Z"
        status = {"taskId": task_id, "status": "working", "createdAt": at, "lastUpdatedAt": at, "ttlMs": 60_000}
        self.tasks[task_id] = {"about": status, **incoming.arguments}
        return {"resultType": "task", **status, "pollIntervalMs": 100, "vendor": {"kept": None}}

    def _task(self, method: str, incoming: Asked) -> Answer:
        task = self.tasks.get(incoming.params.get("taskId", ""))
        if task is None:
            raise Failure(-32602, "Unknown task", {"taskId": incoming.params.get("taskId")})
        if method == "tasks/cancel":
            task["about"]["status"] = "cancelled"
            return {}
        if method == "tasks/update":
            task["replies"] = incoming.params["inputResponses"]
            return {}
        if task["about"]["status"] == "cancelled" or task.get("endless"):
            return task["about"]
        if "requests" in task and "replies" not in task:
            return {**task["about"], "status": "input_required", "inputRequests": task["requests"]}
        result = _result_of({"replies": task["replies"]}) if "requests" in task else task["result"]
        return {**task["about"], "status": "completed", "result": result}

    async def _tell(self, kind: str) -> None:
        """Announce a changed list to all clients that want to know."""
        method = f"notifications/{kind}/list_changed"
        for listen in tuple(self.listens):
            if listen.wanted.get(f"{kind}ListChanged"):
                await listen.send(notification(method, {"_meta": {META + "subscriptionId": listen.message_id}}))
        for peer in tuple(self.peers):
            await peer.send(notification(method))

    async def _updated(self, uri: str) -> None:
        """Announce a changed resource to all clients that have subscribed to it."""
        method = "notifications/resources/updated"
        for listen in tuple(self.listens):
            if uri in listen.wanted.get("resourceSubscriptions", []):
                tag = {"_meta": {META + "subscriptionId": listen.message_id}}
                await listen.send(notification(method, {"uri": uri, **tag}))
        for peer in tuple(self.peers):
            if uri in peer.watched:
                await peer.send(notification(method, {"uri": uri}))


def _result_of(value: Answer) -> Answer:
    """Return a tool result that says a value both ways."""
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
