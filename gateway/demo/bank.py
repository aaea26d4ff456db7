"""The `bank` demo: a ledger behind a tool whose schema says nothing about its arguments.

Run it with `python -m gateway.demo.bank`. Its input schema is `{"type": "object"}`, as on many servers. The gateway's
`arguments` setting makes such a tool usable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, Tool

from gateway.demo import answer, run

# account -> (owner, currency, entries of (day, amount, text))
_LEDGER: dict[str, tuple[str, str, tuple[tuple[str, str, str], ...]]] = {
    "1": (
        "Robin",
        "EUR",
        (
            ("2026-01-02", "1200.00", "Opening balance"),
            ("2026-01-31", "2450.00", "Salary"),
            ("2026-02-03", "-870.00", "Rent"),
            ("2026-02-11", "-64.35", "Groceries"),
        ),
    ),
    "2": (
        "Robin",
        "EUR",
        (("2026-01-02", "5000.00", "Opening balance"), ("2026-02-01", "250.00", "Monthly saving")),
    ),
    "3": ("Alex", "GBP", (("2026-01-15", "310.20", "Opening balance"), ("2026-02-14", "-42.00", "Flowers"))),
}

DEFINITION: dict[str, Any] = {
    "name": "get_bank_balance",
    "title": "Get bank balance",
    "description": "Get the balance of a bank account.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
}


def balance(arguments: Mapping[str, Any]) -> CallToolResult:
    """Return the balance of an account on a day, or a result with an error."""
    account_id = arguments.get("account_id")
    # Many servers that validate arguments themselves use this wording. The gateway recognizes it and adds a hint.
    if account_id is None:
        return answer("'account_id' was not provided", is_error=True)
    account = _LEDGER.get(str(account_id))
    if account is None:
        return answer(f"There is no account '{account_id}'. The accounts are {', '.join(_LEDGER)}.", is_error=True)
    owner, currency, entries = account
    try:
        # The day of the latest entry is the default, so that the result does not depend on the current date.
        day = date.fromisoformat(str(arguments.get("date", entries[-1][0]))).isoformat()
    except ValueError:
        return answer("'date' must be a date in the form YYYY-MM-DD", is_error=True)
    booked = [(when, amount) for when, amount, _ in entries if when <= day]
    # Use Decimal and text instead of float, to keep amounts exact.
    total = sum((Decimal(amount) for _, amount in booked), Decimal("0.00"))
    facts = {
        "account_id": str(account_id),
        "owner": owner,
        "currency": currency,
        "balance": str(total),
        "date": day,
        "entries": len(booked),
    }
    return answer(json.dumps(facts), facts)


def server() -> Server[Any]:
    """Create the server, with a fixed ledger."""
    tool = Tool.model_validate(DEFINITION)

    async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool])

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        if params.name != tool.name:
            return answer(f"There is no tool called '{params.name}'.", is_error=True)
        return balance(params.arguments or {})

    return Server(
        "bank",
        version="1.0.0",
        title="Bank",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: tool.input_schema if name == tool.name else None,
    )


if __name__ == "__main__":
    run(server())
