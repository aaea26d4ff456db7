"""GraphQL operations as tools: the list made from a folder of documents (rows G1 to G7, G10, G11 and G14)."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import eventually, until_server
from support.callers import handshake, hello, running_host
from support.gateways import RunningGateway, answer_of, running_gateway, text_of
from support.upstreams.graphql_running import GET_EMPLOYEE, HR_SDL, PLAIN, graphql_gateway, graphql_server

ECHO = """query Echo($id: ID, $int: Int, $float: Float, $text: String = "hi", $flag: Boolean, $role: Role = COOK,
  $list: [Int!]! = 7, $filter: Filter, $date: Date!, $deep: [[String]]) {
  echo(id: $id, int: $int, float: $float, text: $text, flag: $flag, role: $role, list: $list, filter: $filter,
       date: $date, deep: $deep)
}"""


async def listed(gateway: RunningGateway, era: str, *names: str) -> dict[str, dict[str, Any]]:
    """The tools as callers of this era see them."""
    tools = await gateway.until_listed(*names)
    if era == "modern":
        return tools
    session = await handshake(gateway)
    answer = answer_of(await session.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))
    return {tool["name"]: tool for tool in answer["result"]["tools"]}


async def quarantine(gateway: RunningGateway) -> dict[str, dict[str, Any]]:
    """The rows of what is not shown, by file."""
    rows = (await gateway.admin("quarantine")).json()["quarantine"]
    return {row["tool"]: row for row in rows if row["status"] == "quarantined"}


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.parametrize("source", ["file", "endpoint"])
async def test_g1_operation_with_directives_is_a_typed_tool(tmp_path: Path, era: str, source: str) -> None:
    async with graphql_server(tmp_path, {"a.graphql": GET_EMPLOYEE}) as server:
        more = server.schema_file if source == "file" else {}
        async with running_gateway(tmp_path, {"hr": server.config(**more)}) as gateway:
            tool = (await listed(gateway, era, "hr__get_employee"))["hr__get_employee"]
            assert tool["description"] == "Get one employee, with details if wanted."
            schema = tool["inputSchema"]
            assert schema["properties"]["id"] == {"type": "integer", "description": "The number of the employee"}
            details = schema["properties"]["includeDetails"]
            assert (details["type"], details["description"]) == ("boolean", "Whether to tell the salary")
            assert schema["required"] == ["id"]
            assert len(server.introspections()) == (0 if source == "file" else 1)


@pytest.mark.heavy
async def test_g2_gateway_directives_are_removed_and_a_plain_file_sent_unchanged(tmp_path: Path) -> None:
    documented = '"a fragment"\nfragment F on Employee { name }\n' + GET_EMPLOYEE.replace(
        "id name salary", "...F  salary"
    ).replace("$id: Int! @mcp", '"""own words""" $id: Int! @mcp')
    async with graphql_gateway(tmp_path, {"a.graphql": documented, "b.gql": PLAIN}) as (server, gateway):
        await gateway.until_listed("hr__get_employee", "hr__list_people")
        assert "isError" not in await gateway.call("hr__get_employee", {"id": 1, "includeDetails": True})
        assert "isError" not in await gateway.call("hr__list_people")
        first, second = server.sent()
    assert first["query"] == (
        "\nfragment F on Employee { name }\n\nquery GetEmployee(\n   $id: Int! \n  $includeDetails: Boolean = false \n"
        ")  {\n  employee(id: $id) { ...F  salary @include(if: $includeDetails) }\n}\n"
    )
    assert second["query"] == PLAIN
    assert (first["operationName"], first["variables"]) == ("GetEmployee", {"id": 1, "includeDetails": True})


async def test_g3_nearest_description_documents_arguments_and_tools(tmp_path: Path) -> None:
    files = {
        "a.graphql": 'query A("own" $f: Filter @mcpToolArg(description: "said")) { find(filter: $f) { id } }',
        "b.graphql": 'query B("own" $f: Filter, $i: Int!) { find(filter: $f) { id } employee(id: $i) { id } }',
        "c.graphql": "query C($f: Filter, $r: [Role!]) { find(filter: $f, roles: $r) { id } }",
        "d.graphql": "mutation D($i: Int!) { fire(id: $i) { id } }",
        "e.graphql": '"""\nSaid\nhere.\n"""\nmutation E($i: Int!) { fire(id: $i) { id } }',
    }
    async with graphql_gateway(tmp_path, files) as (_, gateway):
        tools = await gateway.until_listed("hr__a", "hr__e")
    properties = {name: one["inputSchema"]["properties"] for name, one in tools.items()}
    assert properties["hr__a"]["f"]["description"] == "said"
    assert properties["hr__b"]["f"]["description"] == "own"
    assert properties["hr__c"]["f"]["description"] == "How to look for people."
    assert properties["hr__c"]["r"]["description"] == "What somebody does."
    assert properties["hr__b"]["i"]["description"] == "The number on the badge."
    assert [tools[f"hr__{one}"]["description"] for one in "acde"] == [
        "Runs the GraphQL query A: find.",
        "Runs the GraphQL query C: find.",
        "Ends a contract.",
        "Said\nhere.",
    ]
    assert tools["hr__b"]["description"] == "Finds one employee."


async def test_g4_name_comes_from_directive_operation_or_file(tmp_path: Path) -> None:
    files = {
        "a.graphql": 'query GetAll @mcpTool(name: "everybody") { find { id } }',
        "b.graphql": "query FindHTTPNames { find { id } }",
        "deeper/nameless-one.gql": "{ find { id } }",
    }
    async with graphql_gateway(tmp_path, files) as (server, gateway):
        tools = await gateway.until_listed("hr__everybody", "hr__find_http_names", "hr__nameless-one")
        assert len(tools) == 3
        assert "isError" not in await gateway.call("hr__nameless-one")
        assert "operationName" not in server.sent()[0]


async def test_g5_every_input_type_has_its_schema(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, {"a.graphql": ECHO}, nullable="union") as (server, gateway):
        server.change(echo=["echo"])
        schema = (await gateway.until_listed("hr__echo"))["hr__echo"]["inputSchema"]
        assert schema["required"] == ["date"]
        properties = schema["properties"]
        kinds = {name: one.get("type") for name, one in properties.items()}
        assert kinds["text"] == kinds["role"] == ["string", "null"]
        assert kinds["id"] == ["string", "integer", "null"]
        assert (kinds["int"], kinds["float"]) == (["integer", "null"], ["number", "null"])
        assert (kinds["flag"], kinds["list"], kinds["date"]) == (["boolean", "null"], "array", None)
        assert properties["deep"]["items"]["items"] == {"type": ["string", "null"]}
        assert properties["role"]["enum"] == ["CLERK", "COOK", None]
        assert (properties["text"]["default"], properties["role"]["default"]) == ("hi", "COOK")
        assert properties["list"]["default"] == [7]
        assert "https://example.test/date" in properties["date"]["description"]
        assert properties["filter"]["anyOf"] == [{"$ref": "#/$defs/Filter"}, {"type": "null"}]
        nested = schema["$defs"]["Filter"]
        assert nested["properties"]["either"]["items"] == {"$ref": "#/$defs/Filter"}
        assert nested["additionalProperties"] is False
        sent = {"date": "2026-01-01", "filter": {"either": [{"role": "CLERK"}, {"name": None}]}, "int": 2**31 - 1}
        result = await gateway.call("hr__echo", sent)
        arrived = json.loads(result["structuredContent"]["echo"])
        assert arrived["filter"]["either"] == [{"name": "x", "role": "CLERK"}, {"name": None}]
        assert (arrived["list"], arrived["text"], arrived["role"]) == ([7], "hi", "COOK")
        refused = await gateway.call("hr__echo", {"date": "x", "filter": {"either": [{"rolle": "CLERK"}]}})
        assert "rolle" in text_of(refused)
        assert len(server.sent()) == 1


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.parametrize("nullable", ["plain", "union"])
@pytest.mark.heavy
async def test_g6_null_is_shown_by_configuration_and_always_accepted(tmp_path: Path, era: str, nullable: str) -> None:
    file = (
        "mutation Rename($id: Int!, $name: String, $f: Filter) { rename(id: $id, name: $name) x: fire(id: 1) { id } }"
    )
    file = file.replace(", $f: Filter", "").replace(" x: fire(id: 1) { id }", "")
    files = {"a.graphql": file, "b.graphql": ECHO}
    async with graphql_gateway(tmp_path, files, nullable=nullable) as (server, gateway):
        server.change(echo=["rename", "echo"])
        tools = await listed(gateway, era, "hr__rename", "hr__echo")
        name = tools["hr__rename"]["inputSchema"]["properties"]["name"]
        assert name["type"] == ("string" if nullable == "plain" else ["string", "null"])
        role = tools["hr__echo"]["inputSchema"]["properties"]["role"]
        assert (None in role["enum"]) == (nullable == "union")
        if nullable == "plain":
            assert "null" not in json.dumps(tools["hr__echo"]["inputSchema"])
        # Null is sent as it is, because omitting a name does not clear the name.
        result = await gateway.call("hr__rename", {"id": 1, "name": None})
        assert json.loads(result["structuredContent"]["rename"]) == {"id": 1, "name": None}
        assert server.sent()[-1]["variables"] == {"id": 1, "name": None}
        result = await gateway.call("hr__echo", {"date": "x", "filter": {"either": None}, "role": None})
        assert json.loads(result["structuredContent"]["echo"])["filter"]["either"] is None
        assert (await gateway.call("hr__rename", {"id": None}))["isError"]


BAD = {
    "two.graphql": ("query A { find { id } }\nquery B { find { id } }", "two_operations", "two.graphql:2:1"),
    "syntax.graphql": ("query C {\n  find { id }\n", "syntax", "syntax.graphql:3:1"),
    "field.graphql": ("query D {\n  find { wage }\n}", "not_in_schema", "field.graphql:2:10"),
    "after_cut.graphql": (
        'query E @mcpTool(name: "e") { find { wage } }', "not_in_schema", "after_cut.graphql:1:38",
    ),
    "live.graphql": ("subscription F { hired { id } }", "subscription", "live.graphql:1:1"),
    "zz_again.graphql": ("query GoodOne { find { id } }", "duplicate_name", "good.graphql"),
    "number.graphql": ("query G($i: Int @mcpToolArg(description: 3)) { echo(int: $i) }", "bad_directive", ":1:42"),
    "block.graphql": ("query H @mcpTool(name: NAME) { find { id } }", "bad_directive", "block.graphql:1:24"),
    "twice.graphql": ('query I @mcpTool(name: "a") @mcpTool(name: "b") { find { id } }', "bad_directive", ":1:29"),
    "other.graphql": ('query J @mcpTool(title: "a") { find { id } }', "bad_directive", "other.graphql:1:18"),
    "none.graphql": ("query K @mcpTool { find { id } }", "bad_directive", "none.graphql:1:9"),
    "misplaced.graphql": ('query L { find @mcpTool(name: "x") { id } }', "not_in_schema", ":1:16"),
    "types.graphql": ("type X { a: Int }", "not_executable", "types.graphql:1:1"),
    "empty.graphql": ("# nothing\n", "syntax", "empty.graphql:2:1"),
    "latin.graphql": (b"query M { find { id } }\n# \xe9", "not_utf8", "latin.graphql:2:3"),
    "deep.graphql": ("query N " + "{ find " * 5000, "syntax", "deep.graphql"),
    "long.graphql": ("query O { " + "a " * 20_001 + "}", "syntax", "long.graphql"),
    "huge.graphql": ("# " + "x" * 5_000_000, "unreadable", "bytes"),
    "binary.graphql": (bytes(range(256)), "not_utf8", "binary.graphql:"),
}  # fmt: skip


@pytest.mark.heavy
async def test_g7_every_invalid_file_is_omitted_alone_with_location_and_reason(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {name: text for name, (text, _, _) in BAD.items()}
    async with graphql_server(tmp_path, {"good.graphql": "query GoodOne { find { id } }", **files}) as server:
        (server.operations / "ordinary.txt").write_text("query No { find { id } }")
        server.write(".hidden.graphql", "query No { find { id } }")
        outside = tmp_path / "outside.graphql"
        outside.write_text("query Outside { find { id } }")
        (server.operations / "link.graphql").symlink_to(outside)
        (server.operations / "inside.graphql").symlink_to(server.operations / "good.graphql")
        os.mkfifo(server.operations / "pipe.graphql")
        server.write("later.graphql", "query Later { find { id } }")
        config = {"hr": server.config(**server.schema_file)}
        async with running_gateway(tmp_path, config) as gateway:
            assert set(await gateway.until_listed("hr__good_one", "hr__later")) == {"hr__good_one", "hr__later"}
            rows = await quarantine(gateway)
        for name, (_, code, place) in BAD.items():
            assert rows[name]["code"] == code, rows[name]
            assert place in rows[name]["detail"], rows[name]
        assert "outside the folder" in rows["link.graphql"]["detail"]
        assert rows["inside.graphql"]["code"] == "duplicate_name"
        assert rows["pipe.graphql"]["detail"] == "pipe.graphql: not a regular file"
        assert rows.keys() - BAD.keys() == {"link.graphql", "inside.graphql", "pipe.graphql"}
        command = [sys.executable, "-m", "gateway", "check", "--config", str(gateway.config)]
        done = await anyio.run_process(command, check=False)
        assert done.returncode == 1
        assert "field.graphql:2:10: Cannot query field 'wage'" in done.stderr.decode()


@pytest.mark.heavy
async def test_shared_fragments_are_included_and_their_errors_located(tmp_path: Path) -> None:
    files = {
        "a.graphql": "query A { find { ...Person } }",
        "b.graphql": "query B { find { ...Broken } }",
        "c.graphql": "query C { find { ...Person } } fragment Person on Employee { name }",
        "shared/person.graphql": '"who"\nfragment Person on Employee { id boss { ...Boss } }  # end\n',
        "shared/boss.graphql": "fragment Boss on Employee { name }\nfragment Broken on Employee { wage }",
        "shared/zz.graphql": "fragment Boss on Employee { id }",
    }
    async with graphql_gateway(tmp_path, files) as (server, gateway):
        assert set(await gateway.until_listed("hr__a", "hr__c")) == {"hr__a", "hr__c"}
        rows = await quarantine(gateway)
        assert rows.keys() == {"b.graphql", "shared/zz.graphql"}
        assert rows["b.graphql"]["detail"].startswith("shared/boss.graphql:2:31: Cannot query field 'wage'")
        assert rows["shared/zz.graphql"]["code"] == "duplicate_fragment"
        assert "isError" not in await gateway.call("hr__a")
        assert "isError" not in await gateway.call("hr__c")
        first, second = (one["query"] for one in server.sent())
        assert first == (
            "query A { find { ...Person } }\n\nfragment Boss on Employee { name }\n\n"
            "fragment Person on Employee { id boss { ...Boss } }"
        )
        assert second == files["c.graphql"]
        server.write("shared/person.graphql", "fragment Person on Employee { name }")
        server.write("shared/boss.graphql", "fragment Broken on Employee { name }")
        await gateway.until_listed("hr__b")
        assert "isError" not in await gateway.call("hr__a")
        assert server.sent()[-1]["query"].endswith("\n\nfragment Person on Employee { name }")


async def test_nullable_condition_is_sent_and_its_author_warned(tmp_path: Path) -> None:
    file = "query A($d: Boolean) { find { id name @include(if: $d) } }"
    async with graphql_gateway(tmp_path, {"a.graphql": file}) as (_, gateway):
        await gateway.until_listed("hr__a")
        [row] = (await gateway.admin("quarantine")).json()["quarantine"]
        assert (row["status"], row["code"], row["tool"]) == ("repaired", "nullable_condition", "a.graphql")
        assert row["detail"].startswith("a.graphql:1:9: ")


@pytest.mark.heavy
async def test_g10_queries_are_read_only_and_excluded_mutations_unavailable(tmp_path: Path) -> None:
    files = {"a.graphql": "mutation Fire($id: Int!) { fire(id: $id) { id } }", "b.graphql": PLAIN}
    async with graphql_server(tmp_path, files) as server:
        servers = {"hr": server.config(), "ro": server.config(excludeMutations=True, introspectionTools=True)}
        async with running_gateway(tmp_path, servers) as gateway:
            tools = await gateway.until_listed("hr__fire", "ro__list_people")
            assert tools["hr__list_people"]["annotations"] == {"readOnlyHint": True}
            assert tools["hr__fire"]["annotations"] == {"readOnlyHint": False, "destructiveHint": True}
            assert "ro__fire" not in tools
            assert "isError" not in await gateway.call("hr__fire", {"id": 1})
            before = len(server.sent())
            for arguments in (
                {"server": "ro", "tool": "fire", "arguments": {"id": 1}},
                {"server": "ro", "tool": "ro__fire", "arguments": {"id": 1}},
            ):
                assert (await gateway.call("invoke_tool", arguments))["isError"]
            for document in (
                "mutation { fire(id: 1) { id } }",
                "query A { find { id } } mutation B { fire(id: 1) { id } }",
                "#\n\ufeff mutation($x: Int = 1) { fire(id: $x) { id } }",
            ):
                result = await gateway.call("ro__execute_graphql", {"query": document, "operationName": "A"})
                assert "excluded" in text_of(result)
            assert len(server.sent()) == before
            assert await quarantine(gateway) == {}


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.heavy
async def test_g11_introspection_tools_are_added_on_request(tmp_path: Path, era: str) -> None:
    files = {"a.graphql": "query GetSchema { find { id } }", "b.graphql": PLAIN}
    async with graphql_server(tmp_path, files, root={"employee": {"name": "Ada"}}) as server:
        servers = {"hr": server.config(introspectionTools=True), "no": server.config()}
        del (only := server.config(introspectionTools=True))["operations"]
        async with running_gateway(tmp_path, {**servers, "only": only}) as gateway:
            tools = await listed(gateway, era, "hr__execute_graphql", "no__list_people", "only__get_schema")
            assert {name for name in tools if "__" in name} == {
                *("hr__get_schema", "hr__execute_graphql", "hr__list_people", "no__get_schema", "no__list_people"),
                *("only__get_schema", "only__execute_graphql"),
            }
            assert tools["no__get_schema"]["inputSchema"]["properties"] == {}
            assert (await quarantine(gateway))["a.graphql"]["code"] == "duplicate_name"
            whole = text_of(await gateway.call("hr__get_schema"))
            assert "type Employee {" in whole
            assert '"""How to look for people."""' in whole
            one = text_of(await gateway.call("hr__get_schema", {"type": "Role"}))
            assert one == '"""What somebody does."""\nenum Role {\n  CLERK\n  COOK\n}'
            wrong = await gateway.call("hr__get_schema", {"type": "Emploee"})
            assert "Did you mean Employee" in text_of(wrong)
            document = "query A { find { id } } query B($i: Int!) { employee(id: $i) { name } }"
            arguments: dict[str, Any] = {"query": document, "variables": {"i": 1}}
            assert "operationName" in text_of(await gateway.call("hr__execute_graphql", arguments))
            assert "line 1" in text_of(await gateway.call("hr__execute_graphql", {"query": "query {"}))
            live = await gateway.call("hr__execute_graphql", {"query": "subscription { hired { id } }"})
            assert "subscription" in text_of(live)
            assert server.sent() == []
            result = await gateway.call("hr__execute_graphql", {**arguments, "operationName": "B"})
            assert result["structuredContent"] == {"employee": {"name": "Ada"}}
            assert (server.sent()[0]["query"], server.sent()[0]["operationName"]) == (document, "B")


@pytest.mark.heavy
async def test_g11_large_schema_is_returned_as_an_outline(tmp_path: Path) -> None:
    many = "\n".join(f'"{"words " * 10}"\ntype T{n} {{ a: Int b: T{n} }}' for n in range(2_000))
    async with graphql_server(tmp_path, {"b.graphql": PLAIN}, sdl=HR_SDL + many) as server:
        config = server.config(introspectionTools=True)
        async with running_gateway(tmp_path, {"hr": config}) as gateway:
            await gateway.until_listed("hr__get_schema")
            text = text_of(await gateway.call("hr__get_schema"))
            assert len(text) <= 60_000
            assert "employee(id: Int!): Employee" in text
            assert "T1999" in text
            assert "type T7 {" in text_of(await gateway.call("hr__get_schema", {"type": "T7"}))


async def test_g14_configuration_describes_arguments_and_the_directive_wins(tmp_path: Path) -> None:
    ours = [
        {"name": "id", "description": "ours"},
        {"name": "note", "type": "integer", "description": "how many notes"},
        {"name": "wrong", "type": "string"},
    ]
    file = (
        'query A($id: Int! @mcpToolArg(description: "theirs"), $note: Int) { employee(id: $id) { notes(last: $note) } }'
    )
    async with graphql_server(tmp_path, {"a.graphql": file}) as server:
        config = server.config(
            tools={"a": {"arguments": ours, "name": "notes", "supplement": "More."}}, tags=["people"]
        )
        async with running_gateway(tmp_path, {"hr": config}) as gateway:
            tool = (await gateway.until_listed("hr__notes"))["hr__notes"]
            properties = tool["inputSchema"]["properties"]
            assert properties["id"]["description"] == "theirs"
            assert properties["note"] == {"type": "integer", "description": "how many notes"}
            assert tool["description"].endswith("\n\nMore.")
            rows = (await gateway.admin("quarantine")).json()["quarantine"]
            assert [row["status"] for row in rows] == ["warning"]
            wrappers = (await gateway.admin("wrappers?server=hr")).json()["wrappers"]
            assert [one["source"] for one in wrappers[0]["arguments"]] == ["upstream", "configuration"]


async def test_empty_folder_is_reported_and_a_missing_one_read_once_it_exists(tmp_path: Path) -> None:
    async with graphql_server(tmp_path) as server:
        config = {"hr": server.config(), "gone": {**server.config(), "operations": str(tmp_path / "gone")}}
        async with running_gateway(tmp_path, config) as gateway:
            await eventually(lambda: "quarantined" in gateway.logged())
            assert (await quarantine(gateway))["(folder)"]["code"] == "no_operations"
            row = await until_server(gateway, "gone", lambda row: row["lastError"])
            assert "No such file" in row["lastError"]
            assert str(tmp_path / "gone") in row["lastError"]
            (tmp_path / "gone").mkdir()
            (tmp_path / "gone" / "a.graphql").write_text(PLAIN)
            server.write("b.graphql", PLAIN)
            await gateway.until_listed("gone__list_people", "hr__list_people")
            assert await quarantine(gateway) == {}


async def test_manual_example_is_a_working_tool(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "deploy/guide/graphql.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```graphql\n(.*?)^```", manual, re.MULTILINE | re.DOTALL)
    [example] = [text for text in examples if "query GetEmployee" in text]
    async with graphql_gateway(tmp_path, {"example.graphql": example}) as (server, gateway):
        tool = (await gateway.until_listed("hr__get_employee"))["hr__get_employee"]
        assert tool["inputSchema"]["required"] == ["id"]
        result = await gateway.call("hr__get_employee", {"id": 1, "withBoss": True})
        assert result["structuredContent"]["employee"]["boss"] == {"name": "text"}
        assert "mcpTool" not in server.sent()[0]["query"]


@pytest.mark.heavy
async def test_stdio_host_lists_and_calls_operations(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, {"a.graphql": GET_EMPLOYEE}) as server:
        config = tmp_path / "typegate.json"
        config.write_text(json.dumps({"mcpServers": {"hr": server.config()}}))
        arguments = ("--config", str(config), "--state-dir", str(tmp_path / "state"))
        async with running_host(tmp_path, *arguments) as host:
            await host.answer(hello())
            await host.until_listed("hr__get_employee")
            params = {"name": "hr__get_employee", "arguments": {"id": 1}}
            answer = await host.answer({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
            assert answer["result"]["structuredContent"] == {"employee": {"id": 1, "name": "text"}}
            assert await host.leave() == 0
