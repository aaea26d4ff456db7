"""The `calendar-mcp` demo: mail and calendar of two accounts, in memory.

Run it with `python -m gateway.demo.calendar`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mcp.server import Server, ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, Tool

from gateway.demo import Refusal, answer, read_day, read_required, run

_TEXT = {"type": "string"}
_DAY = {"type": "string", "format": "date", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
# With at most two months, the result fits on a page, and a request with a wrong year is rejected.
_MAX_SPAN_DAYS: Final = 62

_ACCOUNTS: tuple[dict[str, Any], ...] = (
    {"accountId": "work", "address": "robin@example.com", "displayName": "Robin (work)", "default": True},
    {"accountId": "home", "address": "robin@example.org", "displayName": "Robin (home)", "default": False},
)

# (account, weekdays with Monday as 0, start, minutes, title, place)
_ROUTINE: tuple[tuple[str, tuple[int, ...], time, int, str, str], ...] = (
    ("work", (0, 1, 2, 3, 4), time(9, 30), 15, "Stand-up", "Room 2"),
    ("work", (1,), time(14, 0), 60, "Sprint planning", "Room 5"),
    ("work", (3,), time(16, 0), 45, "Design review", "Video call"),
    ("home", (2,), time(18, 30), 90, "Choir", "Parish hall"),
    ("home", (5,), time(10, 0), 60, "Market", "Town square"),
)


def _object_schema(properties: dict[str, Any], required: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list_of(key: str, properties: dict[str, Any]) -> dict[str, Any]:
    items = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "object", "properties": {key: {"type": "array", "items": items}}, "required": [key]}


# All four hints are set: destructiveHint and openWorldHint default to true, so hosts would ask before each call.
_READ_ONLY = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
_MESSAGE = {
    "messageId": _TEXT,
    "accountId": _TEXT,
    "to": {"type": "array", "items": _TEXT},
    "subject": _TEXT,
    "body": _TEXT,
}

DEFINITIONS: tuple[dict[str, Any], ...] = (
    {
        "name": "send_email",
        "title": "Send an e-mail",
        "description": "Send a plain-text message from an account, or from the default account if none is named.",
        "inputSchema": _object_schema(
            {
                "to": {
                    "type": "array",
                    "items": {"type": "string", "format": "email"},
                    "minItems": 1,
                    "description": "Addresses of the recipients.",
                },
                "subject": {"type": "string", "description": "The subject line."},
                "body": {"type": "string", "description": "The text of the message."},
                "accountId": {
                    "type": "string",
                    "description": "The account to send from; see list_accounts.",
                },
            },
            ("to", "subject", "body"),
        ),
        "outputSchema": {"type": "object", "properties": _MESSAGE, "required": list(_MESSAGE)},
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
    },
    {
        "name": "list_accounts",
        "title": "List accounts",
        "description": "List the mail and calendar accounts with their identifiers and addresses.",
        "inputSchema": _object_schema({}, ()),
        "outputSchema": _list_of(
            "accounts",
            {"accountId": _TEXT, "address": _TEXT, "displayName": _TEXT, "default": {"type": "boolean"}},
        ),
        "annotations": _READ_ONLY,
    },
    {
        "name": "get_calendar_events",
        "title": "Get calendar events",
        "description": "List the events of all accounts between two days, with times in the given time zone.",
        "inputSchema": _object_schema(
            {
                "timeZone": {"type": "string", "description": "An IANA time zone, such as Europe/Madrid."},
                "startDate": {**_DAY, "description": "The first day, as YYYY-MM-DD."},
                "endDate": {**_DAY, "description": "The last day, as YYYY-MM-DD; the first day if left out."},
            },
            ("timeZone", "startDate"),
        ),
        "outputSchema": _list_of(
            "events",
            {
                "eventId": _TEXT,
                "accountId": _TEXT,
                "title": _TEXT,
                "place": _TEXT,
                "start": _TEXT,
                "end": _TEXT,
            },
        ),
        "annotations": _READ_ONLY,
    },
    {
        "name": "list_sent",
        "title": "List sent e-mails",
        "description": "List the messages sent since this server started, the newest last.",
        "inputSchema": _object_schema(
            {"accountId": {"type": "string", "description": "Only this account's messages."}}, ()
        ),
        "outputSchema": _list_of("messages", _MESSAGE),
        "annotations": _READ_ONLY,
    },
)


# Events are computed from the weekly routine, so that every date has events.
@dataclass(slots=True, kw_only=True)
class Calendar:
    """The tools of a server, and the messages that they have sent."""

    sent: list[dict[str, Any]] = field(default_factory=list)

    def send_email(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Store the message as sent and return it with its identifier."""
        to = read_required(arguments, "to", list)
        if not to or not all(isinstance(address, str) and "@" in address for address in to):
            raise Refusal("'to' must list at least one address")
        message = {
            "messageId": f"m-{len(self.sent) + 1}",
            "accountId": self._account(arguments.get("accountId", "work")),
            "to": to,
            "subject": read_required(arguments, "subject", str),
            "body": read_required(arguments, "body", str),
        }
        self.sent.append(message)
        return message

    def list_accounts(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return both accounts."""
        return {"accounts": list(_ACCOUNTS)}

    def get_calendar_events(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the events of the routine on the requested days."""
        name = read_required(arguments, "timeZone", str)
        try:
            zone = ZoneInfo(name)
        # ZoneInfo reads a file of that name: ValueError for a path outside its folder, OSError for a directory.
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise Refusal(f"'{name}' is not a known time zone") from None
        first = read_day(arguments, "startDate")
        last = read_day(arguments, "endDate") if arguments.get("endDate") is not None else first
        span_days = (last - first).days
        if not 0 <= span_days <= _MAX_SPAN_DAYS:
            raise Refusal(f"'endDate' must be 0 to {_MAX_SPAN_DAYS} days after 'startDate'")
        events = []
        for day in (first + timedelta(days=offset) for offset in range(span_days + 1)):
            for account, weekdays, begins, minutes, title, place in _ROUTINE:
                if day.weekday() not in weekdays:
                    continue
                start = datetime.combine(day, begins, zone)
                event_id = f"{account}-{title.lower().replace(' ', '-')}-{day.isoformat()}"
                end = start + timedelta(minutes=minutes)
                events.append(
                    {
                        "eventId": event_id,
                        "accountId": account,
                        "title": title,
                        "place": place,
                        "start": start.isoformat(),
                        "end": end.isoformat(),
                    }
                )
        return {"events": sorted(events, key=lambda event: event["start"])}

    def list_sent(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the messages sent from one account or from all accounts."""
        account = arguments.get("accountId")
        if account is not None:
            self._account(account)
        return {"messages": [message for message in self.sent if account in (None, message["accountId"])]}

    def _account(self, account: object) -> str:
        account_ids = [known_account["accountId"] for known_account in _ACCOUNTS]
        if not isinstance(account, str) or account not in account_ids:
            raise Refusal(f"unknown accountId; the accounts are {', '.join(account_ids)}")
        return account


def server() -> Server[Any]:
    """Create the server, with a new calendar."""
    calendar = Calendar()
    handlers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
        "send_email": calendar.send_email,
        "list_accounts": calendar.list_accounts,
        "get_calendar_events": calendar.get_calendar_events,
        "list_sent": calendar.list_sent,
    }
    tools = [Tool.model_validate(definition) for definition in DEFINITIONS]
    schemas = {tool.name: tool.input_schema for tool in tools}

    async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        handler = handlers.get(params.name)
        if handler is None:
            return answer(f"There is no tool called '{params.name}'.", is_error=True)
        try:
            result = handler(params.arguments or {})
        except Refusal as error:
            return answer(str(error), is_error=True)
        # Both text and structured content, since hosts with earlier protocol versions show only the text.
        return answer(json.dumps(result, ensure_ascii=False), result)

    return Server(
        "calendar-mcp",
        version="1.0.0",
        title="Calendar",
        instructions="Mail and calendar of two accounts. Nothing leaves this process.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=schemas.get,
    )


if __name__ == "__main__":
    run(server())
