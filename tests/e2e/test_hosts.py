"""Every tool of real servers is offered by each host under a distinct name and can be called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from corpus.samples import sample
from corpus.servers import listings
from e2e.test_profiles import until_all_ready
from support.dialect_rules import remove_null_alternatives, renamed
from support.gateways import running_gateway, text_of
from support.simulated_hosts import HOSTS, servers_for, with_nulls
from support.upstreams.running import Recording, scripted_stdio_server
from support.visitors import Visitor, in_both_eras

from registry.dialects.definitions import lower_definition
from registry.intake.tool_intake import admit_tools

# Thousands of calls; `tests/registry/dialects/test_client_profiles.py` asks the same of the pure code.
pytestmark = pytest.mark.heavy

LABEL = "gateway"


@in_both_eras
async def test_every_tool_of_real_servers_is_offered_and_callable_by_each_host(era: str, tmp_path: Path) -> None:
    real = await anyio.to_thread.run_sync(listings)
    tools = {name: admit_tools(found, transport="stdio").items for name, found in real.items()}
    original = {(server, tool["name"]): tool["inputSchema"] for server, found in tools.items() for tool in found}
    upstreams, records = dict[str, Any](), dict[str, Recording]()
    for name, found in tools.items():
        upstreams[name], records[name] = scripted_stdio_server(tmp_path, name, tools=list(found))
    profiles = {
        name: {"disclosure": "eager", "dialect": name, "servers": list(servers_for(host))}
        for name, host in HOSTS.items()
    }
    async with running_gateway(tmp_path, upstreams, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, *upstreams)
        visitor = Visitor(gateway=gateway, era=era)
        rows = {row["name"]: row for row in (await gateway.admin("wrappers")).json()["wrappers"]}
        expected: dict[str, list[Any]] = {name: [] for name in tools}
        for dialect, host in HOSTS.items():
            listed = await visitor.listed(dialect)
            typed = [one for one in listed.values() if "__" in one["name"]]
            assert len(typed) == sum(len(tools[name]) for name in servers_for(host)) >= 100
            offered = host.offered(typed, LABEL)
            # Distinct, none dropped, none cut.
            assert sorted(called for called, _ in offered.values()) == sorted(one["name"] for one in typed)
            for at, (called, definition) in enumerate(offered.values()):
                assert definition["description"] == listed[called]["description"]
                # A fifth of the cases is enough for the older era, which differs only around a call.
                if not visitor.modern and at % 5:
                    continue
                server, name = rows[called]["server"], rows[called]["tool"]
                arguments = sample(original[server, name], original[server, name], True)
                lowered = lower_definition({**definition, "inputSchema": original[server, name]}, dialect)
                written = renamed(arguments, lowered.original_names)
                if dialect == "openai-strict":
                    written = with_nulls(written, definition["inputSchema"])
                result = await visitor.called(called, written, dialect)
                assert not result.get("isError"), (dialect, called, text_of(result))
                expected[server].append((name, remove_null_alternatives(arguments)))
        assert sum(map(len, expected.values())) > (1_000 if visitor.modern else 200)
        for server, record in records.items():
            calls = [(one["name"], remove_null_alternatives(one["arguments"])) for one in record.calls()]
            assert calls == expected[server]
