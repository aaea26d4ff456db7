"""An upstream with everything that the official conformance suite calls by name, on the SDK's server.

Over stdio as it is, over HTTP on 127.0.0.1 with `--port N` (0 prints the port as the first line).
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
from event_store import KeptEvents
from material import (
    CONTENT,
    DEFAULTS,
    ENUMS,
    IMAGE,
    PROMPTS,
    RESOURCES,
    ROUNDS,
    SCHEMAS,
    WORD,
    Answer,
    form,
    needs,
    resource,
    text,
)
from mcp import MCPError
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged
from tasks_extension import EXTENSION, TasksExtension
from tasks_extension import SCHEMAS as TASK_SCHEMAS

Context = ServerRequestContext[Any]


_STATELESS = {
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_capabilities",
    "test_streaming_elicitation",
}
_WANTS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


def _declared(context: Context) -> dict[str, Any]:
    capabilities = context.session.client_capabilities
    return capabilities.model_dump(by_alias=True, exclude_none=True) if capabilities else {}


def _missing(name: str) -> MCPError:
    data = {"requiredCapabilities": {name: {}}}
    return MCPError(code=-32021, message=f"The client did not declare {name}", data=data)


def play(name: str, context: Context, responses: dict[str, Any], state: str | None) -> Answer | None:
    """Return what a multi-round tool still has to ask, or None when it knows everything."""
    rounds = ROUNDS[name]
    at = int(state.rpartition(":")[2]) if state is not None else 0
    if all(key in responses for key in rounds[at]):
        at += 1
    if at == len(rounds):
        return None
    declared = _declared(context)
    requests = {key: one for key, one in rounds[at].items() if _WANTS[one["method"]] in declared}
    if not requests:
        raise _missing(_WANTS[next(iter(rounds[at].values()))["method"]])
    result: Answer = {"resultType": "input_required", "inputRequests": requests}
    return result if name in _STATELESS else {**result, "requestState": f"{name}:{at}"}


async def with_logging(context: Context, arguments: Answer) -> Answer:
    """Log three times at info."""
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", words, related_request_id=context.request_id)
        await anyio.sleep(0.05)
    return {"content": [text("Logged three times.")]}


async def with_progress(context: Context, arguments: Answer) -> Answer:
    """Report 0, 50 and 100 of 100."""
    for done in (0, 50, 100):
        await context.session.report_progress(done, 100)
        await anyio.sleep(0.05)
    return {"content": [text("Reported three times.")]}


async def sampling(context: Context, arguments: Answer) -> Answer:
    """Ask the client's model."""
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=arguments["prompt"]))
    reply = await context.session.create_message([message], max_tokens=100, related_request_id=context.request_id)
    return {"content": [text(f"LLM response: {getattr(reply.content, 'text', reply.content)}")]}


def asks(label: str, schema: Answer, message: str | None = None) -> Callable[[Context, Answer], Awaitable[Answer]]:
    """Return a tool that elicits a form the way of the handshake era."""

    async def tool(context: Context, arguments: Answer) -> Answer:
        words = message or arguments["message"]
        reply = await context.session.elicit_form(words, schema, related_request_id=context.request_id)
        return {"content": [text(f"{label}: action={reply.action}, content={json.dumps(reply.content)}")]}

    return tool


_COMPLETED = "Elicitation completed"


async def reconnection(context: Context, arguments: Answer) -> Answer:
    """End the stream of the answer before the answer, where the client knows how to come back for it."""
    if context.close_sse_stream is not None:
        await context.close_sse_stream()
    await anyio.sleep(0.3)
    return {"content": [text("Reconnected.")]}


DOES: dict[str, Callable[[Context, Answer], Awaitable[Answer]]] = {
    "test_tool_with_logging": with_logging,
    "test_logging_tool": with_logging,
    "test_tool_with_progress": with_progress,
    "test_reconnection": reconnection,
    "test_sampling": sampling,
    "test_elicitation": asks("User response", needs("username", "email")),
    "test_elicitation_sep1034_defaults": asks(_COMPLETED, {"type": "object", "properties": DEFAULTS}, "Check these"),
    "test_elicitation_sep1330_enums": asks(_COMPLETED, {"type": "object", "properties": ENUMS}, "Choose"),
}
SIMPLE = (
    "test_error_handling",
    "json_schema_2020_12_tool",
    "test_header_parameters",
    "test_missing_capability",
    "test_trigger_tool_change",
    "test_trigger_prompt_change",
)
TOOLS = [
    {
        "name": name,
        "description": f"Stands ready for the suite: {name.removeprefix('test_').replace('_', ' ')}.",
        "inputSchema": (SCHEMAS | TASK_SCHEMAS).get(name, {"type": "object", "properties": {}}),
    }
    for name in (*CONTENT, *DOES, *SIMPLE, *ROUNDS, *TASK_SCHEMAS)
]
BUS = InMemorySubscriptionBus()


async def call_tool(context: Context, params: types.CallToolRequestParams) -> Answer:
    """Run a tool by name."""
    name, arguments = params.name, params.arguments or {}
    if name in CONTENT:
        return {"content": CONTENT[name]}
    if name in DOES:
        return await DOES[name](context, arguments)
    if name in ROUNDS:
        question = play(name, context, dict(params.input_responses or {}), params.request_state)
        replies = {key: one.model_dump(mode="json") for key, one in (params.input_responses or {}).items()}
        return question or {"content": [text(f"state-ok, everything is known: {json.dumps(replies)}")]}
    match name:
        case "test_error_handling":
            return {
                "isError": True,
                "content": [text("This tool intentionally returns an error for testing")],
            }
        case "test_missing_capability":
            if "sampling" not in _declared(context):
                raise _missing("sampling")
        case "test_trigger_tool_change":
            await BUS.publish(ToolsListChanged())
            await context.session.send_tool_list_changed()
        case "test_trigger_prompt_change":
            await BUS.publish(PromptsListChanged())
            await context.session.send_prompt_list_changed()
        case _ if name not in SIMPLE:
            raise MCPError(code=-32602, message=f"Unknown tool: {name}")
    return {"content": [text(json.dumps(arguments))]}


async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> Answer:
    """Read a resource, or one of the template."""
    uri = str(params.uri)
    if uri in RESOURCES:
        return {"contents": [{"uri": uri, **RESOURCES[uri]}]}
    if uri.startswith("test://template/") and uri.endswith("/data"):
        key = uri.removeprefix("test://template/").removesuffix("/data")
        words = json.dumps({"id": key, "templateTest": True, "data": f"Data for ID: {key}"})
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": words}]}
    raise MCPError(code=-32602, message="Resource not found", data={"uri": uri})


async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> Answer:
    """Render a prompt."""
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            content = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            words = f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
            content = [text(words)]
        case "test_prompt_with_embedded_resource":
            uri = given.get("resourceUri", "test://example-resource")
            embedded = resource(uri, "text/plain", "Embedded resource content for testing.")
            content = [embedded, text("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            content = [IMAGE, text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            if "user_context" not in (params.input_responses or {}):
                requests = {"user_context": form("What context should the prompt use?", context=WORD)}
                return {"resultType": "input_required", "inputRequests": requests}
            content = [text("The context is known now.")]
        case _:
            raise MCPError(code=-32602, message=f"Unknown prompt: {params.name}")
    return {"messages": [{"role": "user", "content": one} for one in content]}


def server() -> Server[Any]:
    """Build the server."""

    def always(model: type[types.Result], answer: Answer) -> Callable[[Context, Any], Awaitable[Any]]:
        result = model.model_validate(answer)

        async def handler(context: Context, params: Any) -> types.Result:
            return result

        return handler

    def modelled(model: type[types.Result], handler: Any) -> Callable[[Context, Any], Awaitable[Any]]:
        async def checked(context: Context, params: Any) -> types.Result:
            answer = await handler(context, params)
            asks_more = answer.get("resultType") == "input_required"
            return (types.InputRequiredResult if asks_more else model).model_validate(answer)

        return checked

    template = {
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "mimeType": "application/json",
    }
    prompts = [
        {
            "name": name,
            "description": "Stands ready.",
            "arguments": [{"name": one, "required": True} for one in of],
        }
        for name, of in PROMPTS.items()
    ]
    resources = [
        {"uri": uri, "name": uri.rpartition("/")[2], "mimeType": one["mimeType"]} for uri, one in RESOURCES.items()
    ]
    completion = {"values": ["paris", "park"], "total": 2, "hasMore": False}
    schemas = {tool["name"]: tool["inputSchema"] for tool in TOOLS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # levels of logging are deprecated, and part of the suite
        built: Server[Any] = Server(
            "conformance-upstream",
            version="1.0.0",
            on_list_tools=always(types.ListToolsResult, {"tools": TOOLS}),
            on_call_tool=modelled(types.CallToolResult, call_tool),
            on_list_resources=always(types.ListResourcesResult, {"resources": resources}),
            on_list_resource_templates=always(types.ListResourceTemplatesResult, {"resourceTemplates": [template]}),
            on_read_resource=modelled(types.ReadResourceResult, read_resource),
            on_subscribe_resource=always(types.EmptyResult, {}),
            on_unsubscribe_resource=always(types.EmptyResult, {}),
            on_list_prompts=always(types.ListPromptsResult, {"prompts": prompts}),
            on_get_prompt=modelled(types.GetPromptResult, get_prompt),
            on_completion=always(types.CompleteResult, {"completion": completion}),
            on_set_logging_level=always(types.EmptyResult, {}),
            on_subscriptions_listen=ListenHandler(BUS),
            get_tool_input_schema=schemas.get,
        )
    boundary = RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=built.name)
    built.middleware += [TasksExtension(), boundary]
    built.extensions = {EXTENSION: {}}
    return built


async def over_stdio(built: Server[Any]) -> None:
    """Serve one peer on standard input and output."""
    options = built.create_initialization_options(NotificationOptions(tools_changed=True, prompts_changed=True))
    async with stdio_server() as (read, write):
        await built.run(read, write, options)


def over_http(built: Server[Any], port: int) -> None:
    """Serve on 127.0.0.1 and print the port."""
    import socket

    import uvicorn

    listening = socket.create_server(("127.0.0.1", port))
    print(listening.getsockname()[1], flush=True)
    app = built.streamable_http_app(event_store=KeptEvents(), retry_interval=200)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int)
    port = parser.parse_args().port
    if port is None:
        anyio.run(over_stdio, server())
    else:
        over_http(server(), port)
