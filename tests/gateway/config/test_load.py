"""Loading a configuration file into a checked Config."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.conversion import shape_of
from gateway.config.load import load, parse
from gateway.config.model import Config, json_schema
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.protocol.gateway_errors import ConfigError
from registry.catalog.shape import NameFilter, ServerShape

CALENDAR = {"command": "python", "args": ["-m", "gateway.demo.calendar"]}


def servers(**entries: object) -> str:
    return json.dumps({"mcpServers": entries})


def one(**entry: object) -> str:
    return servers(cal={**CALENDAR, **entry})


def refusal(text: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, path=Path("gw.json"), environ=environ, strict=True)
    assert str(caught.value).startswith("gw.json: ")
    assert "expected" in str(caught.value)
    return caught.value


def test_file_of_a_host_works_unchanged() -> None:
    config = parse(servers(cal=CALENDAR, web={"url": "https://example.test/mcp"}), environ={})
    assert list(config.servers) == ["cal", "web"]
    assert config.servers["cal"].type == "stdio"
    assert config.servers["cal"].args == ["-m", "gateway.demo.calendar"]
    assert config.servers["web"].type == "http"
    assert config.warnings == []
    assert config.gateway.listen.port == 8765
    assert config.gateway.names.max_length == 48


def test_servers_block_of_vs_code_is_accepted() -> None:
    text = """
    // a comment, as VS Code allows
    {"inputs": [], "servers": {"a": {"type": "http", "url": "http://h/x//y"},},}
    """
    config = parse(text, environ={})
    assert config.servers["a"].url == "http://h/x//y"
    assert config.warnings == []


def test_mcp_servers_and_servers_together_are_refused() -> None:
    assert refusal('{"mcpServers": {}, "servers": {}}').key == "servers"


def test_yaml_is_recognized_by_its_content() -> None:
    text = "# ours\nmcpServers:\n  cal:\n    command: python\n    env: {TZ: '${TZ:-UTC}'}\n    tools:\n"
    config = parse(text, environ={})
    assert config.servers["cal"].env == {"TZ": "UTC"}


@pytest.mark.parametrize("kind", ["streamable-http", "streamableHttp", "streamable_http", "HTTP"])
def test_every_spelling_of_streamable_http_is_http(kind: str) -> None:
    assert parse(servers(a={"type": kind, "url": "http://h/sse"}), environ={}).servers["a"].type == "http"


def test_url_ending_in_sse_is_http_unless_the_type_is_sse() -> None:
    entries = {"a": {"url": "http://h/sse"}, "b": {"url": "http://h/sse", "type": "sse"}}
    config = parse(servers(**entries), environ={})
    assert [server.type for server in config.servers.values()] == ["http", "sse"]


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({}, "mcpServers.cal.command"),
        ({"command": "  "}, "mcpServers.cal.command"),
        ({"command": ["python"]}, "mcpServers.cal.command"),
        ({"command": "x", "url": "http://h"}, "mcpServers.cal"),
        ({"type": "stdio", "url": "http://h"}, "mcpServers.cal.type"),
        ({"type": "http", "command": "x"}, "mcpServers.cal.type"),
        ({"type": "carrier-pigeon", "command": "x"}, "mcpServers.cal.type"),
        ({"type": "http"}, "mcpServers.cal.url"),
        ({"url": "example.test/mcp"}, "mcpServers.cal.url"),
        ({"url": "ftp://example.test/mcp"}, "mcpServers.cal.url"),
        ({"url": "http://[::1/mcp"}, "mcpServers.cal.url"),
        ({"url": "http://h:99999/mcp"}, "mcpServers.cal.url"),
        ({"url": "http://h", "headers": {"A b": "x"}}, 'mcpServers.cal.headers["A b"]'),
        ({"url": "http://h", "headers": {"A": "x\r\nB: y"}}, "mcpServers.cal.headers.A"),
        ({"command": "x", "callTimeout": 0}, "mcpServers.cal.callTimeout"),
        ({"command": "x", "callTimeout": True}, "mcpServers.cal.callTimeout"),
        ({"command": "x", "callTimeout": "soon"}, "mcpServers.cal.callTimeout"),
        ({"command": "x", "connectTimeout": -1}, "mcpServers.cal.connectTimeout"),
        ({"command": "x", "maxConcurrency": 0}, "mcpServers.cal.maxConcurrency"),
        ({"command": "x", "args": "-m"}, "mcpServers.cal.args"),
        ({"command": "x", "args": ["-m", {}]}, "mcpServers.cal.args[1]"),
        ({"command": "x", "env": {"PORT": [80]}}, "mcpServers.cal.env.PORT"),
        ({"command": "x", "envFile": "/no/such/file"}, "mcpServers.cal.envFile"),
        ({"command": "x", "envFile": 3}, "mcpServers.cal.envFile"),
        ({"command": "x", "prefix": "some"}, "mcpServers.cal.prefix"),
        ({"command": "x", "repair": "maybe"}, "mcpServers.cal.repair"),
        ({"command": "x", "tools": {"t": {"hidden": "perhaps"}}}, "mcpServers.cal.tools.t.hidden"),
        ({"command": "x", "tools": {"t": {"name": ""}}}, "mcpServers.cal.tools.t.name"),
        ({"command": "x", "deny": "*"}, "mcpServers.cal.deny"),
        ({"command": "x", "deny": {"tools": "*"}}, "mcpServers.cal.deny.tools"),
        ({"command": "x", "deny": {"tool": ["*"]}}, "mcpServers.cal.deny.tool"),
        ([], "mcpServers.cal"),
        ("python", "mcpServers.cal"),
    ],
)
def test_error_in_a_server_names_its_key(entry: object, key: str) -> None:
    assert refusal(servers(cal=entry)).key == key


@pytest.mark.parametrize(
    ("gateway", "key"),
    [
        ([], "gateway"),
        ({"names": {"maxLength": 3}}, "gateway.names.maxLength"),
        ({"listen": {"port": 70_000}}, "gateway.listen.port"),
        ({"listen": {"allowedHosts": "x"}}, "gateway.listen.allowedHosts"),
        ({"auth": {"apiKeys": [{"name": "ci", "key": ""}]}}, "gateway.auth.apiKeys[0].key"),
        ({"auth": {"apiKeys": [{"name": "ci"}]}}, "gateway.auth.apiKeys[0].key"),
        (
            {"auth": {"apiKeys": [{"name": "ci", "key": "a"}, {"name": "ci", "key": "b", "scopes": ["tools"]}]}},
            "gateway.auth.apiKeys[1].name",
        ),
        ({"admin": {"token": ""}}, "gateway.admin.token"),
        ({"profiles": {"p": {"disclosure": "never"}}}, "gateway.profiles.p.disclosure"),
    ],
)
def test_error_under_gateway_names_its_key(gateway: object, key: str) -> None:
    assert refusal(json.dumps({"mcpServers": {}, "gateway": gateway})).key == key


def test_unknown_key_under_gateway_is_an_error_with_a_suggestion() -> None:
    error = refusal('{"mcpServers": {}, "gateway": {"names": {"max_lenght": 40}}}')
    assert error.key == "gateway.names.max_lenght"
    assert "maxLength (did you mean it?)" in str(error)
    assert "prefix" in str(refusal('{"mcpServers": {}, "gateway": {"names": {"zzz": 40}}}'))


def test_unknown_key_of_a_tool_is_an_error_with_a_suggestion() -> None:
    error = refusal(one(tools={"send.it": {"hiden": True}}))
    assert error.key == 'mcpServers.cal.tools["send.it"].hiden'
    assert "hidden (did you mean it?)" in str(error)


def test_annotations_accept_the_types_hosts_accept() -> None:
    text = """
    mcpServers:
      cal:
        command: python
        annotations: {readOnlyHint: yes}
        tools: {a: {annotations: {title: "2024", destructiveHint: no}}}
    """
    config = parse(text, environ={}).servers["cal"]
    assert config.annotations.as_members == {"readOnlyHint": True}
    assert config.tools["a"].annotations.as_members == {"title": "2024", "destructiveHint": False}
    for wrong, key, expected in (
        ({"title": 2024}, "title", "text, in quotes"),
        ({"readOnlyHint": "perhaps"}, "readOnlyHint", "true or false"),
        ({"readonlyHint": True}, "readonlyHint", "readOnlyHint (did you mean it?)"),
    ):
        for entry, where in (({"annotations": wrong}, ""), ({"tools": {"a": {"annotations": wrong}}}, "tools.a.")):
            error = refusal(one(**entry))
            assert error.key == f"mcpServers.cal.{where}annotations.{key}"
            assert expected in str(error)


def test_deny_applies_to_all_kinds_or_the_named_ones() -> None:
    assert "prompts (did you mean it?)" in str(refusal(one(deny={"promts": ["*"]})))

    def shape(**entry: object) -> ServerShape:
        return shape_of(parse(one(**entry), path=Path("gw.json"), environ={}).servers["cal"], "always", {})

    everywhere = shape(deny=["x"])
    assert everywhere.tools == everywhere.prompts == everywhere.resources == NameFilter(deny=("x",))
    only = shape(deny={"prompts": ["x"]}, allow={"tools": ["a"], "resources": []})
    assert (only.tools, only.prompts) == (NameFilter(("a",)), NameFilter(deny=("x",)))
    assert only.resources == NameFilter(())
    # As before: a list of what is allowed is about tools.
    assert shape(allow=["a"]).prompts.is_open


def test_unknown_key_of_a_server_is_a_warning_with_a_suggestion() -> None:
    config = parse(one(callTimeOut=3, colour=False), path=Path("gw.json"), environ={})
    assert config.warnings == [
        "gw.json: mcpServers.cal.callTimeOut: unknown key, ignored; expected callTimeout (did you mean it?)",
        "gw.json: mcpServers.cal.colour: unknown key, ignored",
    ]


def test_unknown_top_level_keys_are_warnings_and_not_expanded() -> None:
    config = parse('{"mcpServers": {}, "mcpServer": {"x": "${NOPE}"}}', path=Path("gw.json"), environ={})
    assert config.warnings == ["gw.json: mcpServer: unknown key, ignored; expected mcpServers (did you mean it?)"]


def test_misspelled_gateway_key_is_an_error() -> None:
    error = refusal('{"mcpServers": {}, "gatway": {"auth": {}}}')
    assert error.key == "gatway"
    assert "gateway (did you mean it?)" in str(error)


def test_all_problems_are_reported_together_one_per_line() -> None:
    text = str(refusal(servers(a={}, b={"url": "nowhere"})))
    first, second = text.splitlines()
    assert first.startswith("gw.json: mcpServers.a.command: ")
    assert second.startswith("gw.json: mcpServers.b.url: ")


def tolerated(**entries: object) -> Config:
    """The configuration of these entries and of a sound one."""
    return parse(servers(sound=CALENDAR, **entries), path=Path("gw.json"), environ={"HOME_TOKEN": "t"})


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "env": {"A": "${ONE}", "B": "${TWO}"}}, ("cal.env.A: ", "ONE is", "cal.env.B: ", "TWO is")),
        ({"url": "nowhere"}, ("mcpServers.cal.url: is not an absolute",)),
        ({"command": "x", "callTimeout": "soon", "args": "x"}, ("cal.callTimeout: ", "cal.args: ")),
        ({"command": "x", "disabled": "perhaps"}, ("cal.disabled: ",)),
        ([], ("mcpServers.cal: ",)),
    ],
)
def test_invalid_entry_is_excluded_with_all_of_its_errors(entry: object, expected: tuple[str, ...]) -> None:
    config = tolerated(cal=entry)
    assert list(config.servers) == ["sound"]
    assert config.left_out["cal"].faulty
    for part in expected:
        assert part in config.left_out["cal"].reason
    assert list(expected) == sorted(expected, key=config.left_out["cal"].reason.index)


def test_configuration_without_a_valid_entry_is_an_error() -> None:
    with pytest.raises(ConfigError, match="ONE is not set"):
        parse(one(env={"A": "${ONE}"}), environ={})


@pytest.mark.parametrize(
    "key",
    ["denny", "Deny", "alow", "excludeMutation", "exclude_mutations", "hidden", "denied", "disable", "blockAll"],
)
def test_unknown_key_that_may_hide_tools_is_an_error_of_its_server(key: str) -> None:
    config = tolerated(cal={**CALENDAR, key: True})
    assert f"mcpServers.cal.{key}: unknown key that may be meant" in config.left_out["cal"].reason


def test_errors_of_gateway_and_servers_are_reported_together() -> None:
    text = json.dumps({"mcpServers": {"a": {}, "b": CALENDAR}, "gateway": {"auth": {"apiKey": []}, "admin": 3}})
    with pytest.raises(ConfigError) as caught:
        parse(text, path=Path("gw.json"), environ={})
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "gateway.auth.apiKey", "gateway.admin", "mcpServers.a.command",
    ]  # fmt: skip


def test_missing_variables_under_gateway_stop_the_start_and_are_all_reported() -> None:
    text = json.dumps({"mcpServers": {"b": CALENDAR}, "gateway": {"admin": {"token": "${A}"}, "hooks": ["${B}"]}})
    with pytest.raises(ConfigError, match=r"(?s)gateway.admin.token: .* A is not.*gateway.hooks\[0\]: .* B is not"):
        parse(text, path=Path("gw.json"), environ={})


def test_disabled_server_is_not_validated() -> None:
    config = tolerated(
        cal={"command": "x", "env": {"A": "${ONE}"}, "disabled": True}, web={"url": "", "enabled": False}
    )
    assert list(config.servers) == ["sound"]
    assert {alias: one.faulty for alias, one in config.left_out.items()} == {"cal": False, "web": False}
    assert config.warnings == []
    assert list(tolerated(cal={**CALENDAR, "disabled": False}).servers) == ["sound", "cal"]


@pytest.mark.parametrize(
    ("written", "alias"),
    [
        ("My Server", "My-Server"),
        ("@scope/server.fs", "scope-server-fs"),
        ("io.github.x/y", "io-github-x-y"),
        ("a__b", "a_b"),
        ("-a_", "a"),
        ("Übersetzer", "Ubersetzer"),
    ],
)
def test_invalid_alias_is_adapted_with_a_warning(written: str, alias: str) -> None:
    config = tolerated(**{written: CALENDAR})
    assert list(config.servers) == ["sound", alias]
    [warning] = config.warnings
    assert f"is served as '{alias}'" in warning


@pytest.mark.parametrize(("first", "second"), [("a-b", "A_b"), ("a b", "a-b"), ("x", "日本")])
def test_more_valid_of_two_colliding_aliases_is_served(first: str, second: str) -> None:
    config = tolerated(**{first: CALENDAR, second: CALENDAR})
    left = {"a-b": "A_b", "a b": "a b", "x": "日本"}[first]
    assert list(config.left_out) == [left]
    assert len(config.servers) == 2


def test_host_specific_keys_are_understood() -> None:
    config = tolerated(
        cline={**CALENDAR, "alwaysAllow": ["x"], "autoApprove": []},
        windsurf={"serverUrl": "https://h/mcp"},
        gemini={"httpUrl": "https://h/mcp", "includeTools": ["a", "b"], "excludeTools": ["b"], "trust": True},
        opencode={"type": "local", "command": ["x", "-y"], "environment": {"A": "1"}, "enabled": True},
        code={"command": "x", "env": {"T": "${input:home-token}", "F": "${workspaceFolder}"}},
        roo={**CALENDAR, "deny": ["z"], "disabledTools": ["c"]},
    )
    assert config.warnings == []
    assert config.left_out == {}
    assert config.servers["windsurf"].url == "https://h/mcp"
    assert (config.servers["opencode"].command, config.servers["opencode"].args) == ("x", ["-y"])
    assert config.servers["opencode"].env == {"A": "1"}
    assert config.servers["code"].env["T"] == "t"
    assert config.servers["code"].env["F"] == str(Path().absolute())
    assert (config.servers["gemini"].allow.tools, config.servers["gemini"].deny.tools) == (["a", "b"], ["b"])
    assert (config.servers["roo"].deny.tools, config.servers["roo"].deny.prompts) == (["z", "c"], ["z"])


def test_input_without_a_value_names_the_variable_to_set() -> None:
    config = tolerated(code={"command": "x", "env": {"T": "${input:api key}"}})
    assert "expected the environment variable API_KEY instead" in config.left_out["code"].reason


@pytest.mark.parametrize(("key", "meant"), [("comand", "command"), ("ulr", "url")])
def test_misspelled_required_key_gets_a_suggestion(key: str, meant: str) -> None:
    config = tolerated(code={key: "x"})
    assert f"command: is missing or empty; expected the program to start, or a url instead ({key} is unknown; did " \
        f"you mean {meant}?)" in config.left_out["code"].reason  # fmt: skip


def test_unknown_server_names_and_tags_are_warnings_with_a_suggestion() -> None:
    hook = {"name": "h", "use": "size_guard", "conditions": {"servers": ["snud", "cal*"], "tags": ["vsc"]}}
    gateway = {
        "groups": {"g": {"servers": ["soudn"]}, "idle": {}},
        "profiles": {"p": {"groups": ["g"]}},
        "hooks": [hook],
    }
    entries = {"sound": {**CALENDAR, "siblings": ["cla", "off"], "tags": ["vcs"]}, "cal": CALENDAR}
    off = {"off": {**CALENDAR, "disabled": True}}
    config = parse(json.dumps({"mcpServers": {**entries, **off}, "gateway": gateway}), path=Path("gw.json"), environ={})
    assert [warning.removeprefix("gw.json: ") for warning in config.warnings] == [
        "mcpServers.sound.siblings: cla matches no server; did you mean cal?",
        "gateway.groups.g.servers: soudn matches no server; did you mean sound?",
        "gateway.groups.idle: no profile uses this group",
        "gateway.hooks[0].conditions.servers: snud matches no server; did you mean sound?",
        "gateway.hooks[0].conditions.tags: vsc matches no tag; did you mean vcs?",
    ]


GRAPHQL = {"type": "graphql", "endpoint": "https://h/graphql", "operations": "ops"}


def test_graphql_server_has_its_own_keys_and_relative_paths(tmp_path: Path) -> None:
    entry = {
        **GRAPHQL, "type": "GraphQL", "schema": "${S}/s.graphql", "nullable": "union", "excludeMutations": True,
        "introspectionTools": True, "headers": {"Authorization": "Bearer ${T}"}, "tags": ["hr"],
    }  # fmt: skip
    file = tmp_path / "conf" / "gw.json"
    config = parse(servers(hr=entry), path=file, environ={"S": "/etc", "T": "hunter2"})
    one = config.servers["hr"]
    assert (one.type, one.endpoint, one.address) == ("graphql", "https://h/graphql", "https://h/graphql")
    assert one.operations == str(tmp_path / "conf" / "ops")
    assert one.schema_file == "/etc/s.graphql"
    assert (one.nullable, one.exclude_mutations, one.introspection_tools) == ("union", True, True)
    assert config.warnings == []
    assert "hunter2" not in repr(config)


def test_server_with_only_an_endpoint_is_a_graphql_server() -> None:
    entry = {"endpoint": "http://h/graphql", "introspectionTools": True}
    one = parse(servers(hr=entry), environ={}).servers["hr"]
    assert (one.type, one.operations, one.nullable) == ("graphql", None, "plain")


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        ({"endpoint": None}, "endpoint", "is missing or empty; expected an absolute URL"),
        ({"endpoint": "h/graphql"}, "endpoint", "is not an absolute http or https URL"),
        ({"operations": None}, "operations", "is missing; expected a folder of .graphql files"),
        ({"operations": " "}, "operations", "is not a path"),
        ({"operations": ["*.graphql"]}, "operations", "is a list; expected text"),
        ({"schema": "a\0b"}, "schema", "is not a path"),
        ({"nullable": "both"}, "nullable", "'plain' or 'union'"),
        ({"excludeMutations": "perhaps"}, "excludeMutations", "expected true or false"),
        ({"url": "http://h/mcp"}, "type", "is graphql, which has no url"),
        ({"command": "x"}, "type", "is graphql, which has no command"),
        ({"elicitation": True}, "type", "does not support elicitation"),
    ],
)
def test_invalid_graphql_setting_is_refused_naming_its_key(change: dict[str, object], key: str, expected: str) -> None:
    error = refusal(servers(hr={**GRAPHQL, **change}))
    assert error.key == f"mcpServers.hr.{key}"
    assert expected in str(error)


def test_graphql_keys_are_foreign_to_other_types_and_vice_versa() -> None:
    foreign = {"schema": {"version": 3}, "operations": 5, "endpoint": "x"}
    config = parse(servers(cal={**CALENDAR, **foreign}, hr={**GRAPHQL, "args": 7, "env": {}}), environ={})
    assert config.servers["cal"] == parse(servers(cal=CALENDAR), environ={}).servers["cal"]
    assert [line.split(": ", 1)[1] for line in config.warnings] == [
        *(f"mcpServers.cal.{key}: unknown key, ignored" for key in foreign),
        *(f"mcpServers.hr.{key}: unknown key, ignored" for key in ("args", "env")),
    ]


def test_null_equals_absence() -> None:
    text = '{"mcpServers": {"cal": {"command": "x", "env": null, "url": null, "type": null}}, "gateway": null}'
    assert parse(text, environ={}).servers["cal"].env == {}


def test_secrets_are_in_no_repr_and_no_message() -> None:
    text = json.dumps(
        {
            "mcpServers": {
                "a": {"url": "http://h", "headers": {"Authorization": "Bearer ${T}"}},
                "b": {"command": "x", "env": {"TOKEN": "${T}"}, "args": ["--key=${T}"]},
            },
            "gateway": {"auth": {"apiKeys": [{"name": "ci", "key": "${T}"}]}, "admin": {"token": "${T}"}},
        }
    )
    config = parse(text, environ={"T": "hunter2"})
    assert "hunter2" not in repr(config)
    assert config.servers["a"].headers == {"Authorization": "Bearer hunter2"}
    assert config.gateway.auth.api_keys[0].key.get_secret_value() == "hunter2"
    wrong = '{"mcpServers": {"a": {"command": "x", "callTimeout": "${T}", "args": "${T}", "url": "${T}"}}}'
    assert "hunter2" not in str(refusal(wrong, T="hunter2"))


def test_path_is_stored_and_secret_files_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    path = tmp_path / "gw.json"
    path.write_text(one(env={"TOKEN": "${file:token}"}))
    config = load(path, {})
    assert config.path == path
    assert config.servers["cal"].env["TOKEN"] == "s3cret"


def test_empty_configuration_can_be_built_in_code() -> None:
    assert Config().servers == {}


def test_json_schema_describes_the_file_in_camel_case() -> None:
    schema = json_schema()
    server = schema["$defs"]["ServerConfig"]["properties"]
    assert {"callTimeout", "maxConcurrency", "displayName"} <= set(server)
    assert {"endpoint", "operations", "schema", "nullable", "excludeMutations", "introspectionTools"} <= set(server)
    assert "default" not in server["type"]
    assert schema["$defs"]["NamesConfig"]["additionalProperties"] is False
    assert {"mcpServers", "servers", "gateway"} <= set(schema["properties"])


@pytest.mark.heavy
def test_loading_json_is_fast_enough_for_a_one_second_host(tmp_path: Path) -> None:
    path = tmp_path / "gw.json"
    path.write_text(servers(**{f"s{i}": CALENDAR for i in range(5)}))
    code = (
        "import sys, time\n"
        "from pathlib import Path\nfrom gateway.config.load import load\n"
        "config = load(Path(sys.argv[1]), {})\n"
        "heavy = {'rich', 'ruamel.yaml', 'mcp', 'starlette', 'jsonschema_rs'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert len(config.servers) == 5\nprint(time.process_time())\n"
    )
    root = Path(__file__).parents[3]

    def cpu_s(*arguments: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        return float(done.stdout)

    # Work of the same kind, so that a slow machine is slower at both: even there, a dozen of these fit into a second.
    usual = "import asyncio, ssl, time\nprint(time.process_time())"
    took_s, usual_s = zip(*((cpu_s(code, str(path)), cpu_s(usual)) for _ in range(3)), strict=True)
    # CPU time, the interpreter's start included: measured at five times the usual.
    assert min(took_s) < 12 * min(usual_s)


def test_unquoted_scalars_are_read_as_strings() -> None:
    config = tolerated(
        env={"command": "x", "args": ["-p", 3000, True, 1.5], "env": {"A": 3000, "B": False, "C": 2.0, "D": None}},
        http={"url": "https://h/mcp", "headers": {"X-Version": 3, "X-On": True, "X-None": None}},
    )
    assert config.left_out == {}
    assert config.servers["env"].args == ["-p", "3000", "true", "1.5"]
    assert config.servers["env"].env == {"A": "3000", "B": "false", "C": "2", "D": None}
    assert config.servers["http"].headers == {"X-Version": "3", "X-On": "true"}


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"type": "local", "command": ["x", "-y"]}, "stdio"),
        ({"type": "remote", "url": "https://h/mcp"}, "http"),
        ({"type": "streamable-http", "url": "https://h/mcp"}, "http"),
        ({"type": "streamableHttp", "url": "https://h/mcp"}, "http"),
        ({"type": "Streamable_HTTP", "url": "https://h/mcp"}, "http"),
        ({"type": "http-stream", "url": "https://h/mcp"}, "http"),
        ({"transport": "sse", "url": "https://h/sse"}, "sse"),
        ({"transportType": "stdio", "command": "x"}, "stdio"),
        ({"type": "http", "transport": "sse", "url": "https://h/mcp"}, "http"),
        ({"httpUrl": "https://h/mcp", "url": "https://h/sse"}, "http"),
    ],
)
def test_server_type_is_read_in_the_words_of_each_host(entry: dict[str, Any], kind: str) -> None:
    config = tolerated(one=entry)
    assert config.left_out == {}
    assert config.servers["one"].type == kind
    if "httpUrl" in entry:
        assert config.servers["one"].address == "https://h/mcp"


@pytest.mark.parametrize(
    ("entry", "seconds"),
    [
        ({"timeout": 30_000}, 30),  # Gemini CLI, Qwen Code, Amazon Q
        ({"timeout": 2_500}, 2.5),
        ({"timeout": 60}, 60),  # Cline, Roo Code
        ({"timeout": 1_800}, 1_800),
        ({"timeout": 3_600}, 3_600),
        ({"timeout": 30_000, "callTimeout": 5}, 5),
        ({"timeout": 999_999_999}, 86_400),
        ({"timeout": 0}, 60),
        ({"timeout": True}, 60),
        ({"type": "local", "timeout": 5_000}, 60),  # of its lists
        ({"type": "local", "timeout": 120_000}, 120),
    ],
)
def test_host_timeout_becomes_the_call_timeout(entry: dict[str, Any], seconds: float) -> None:
    config = tolerated(one={"command": ["x"] if "type" in entry else "x", **entry})
    assert config.left_out == {}
    assert config.servers["one"].call_timeout == seconds


def test_entry_values_override_its_env_file(tmp_path: Path) -> None:
    (tmp_path / "one.env").write_text("A=file\nB=file\nAPI_KEY=k9f8e7d6c5b4a3928170\n")
    entry = {"command": "x", "envFile": "${workspaceFolder}/one.env", "env": {"A": "entry", "C": "c"}}
    config = parse(json.dumps({"servers": {"one": entry}}), path=tmp_path / "mcp.json", environ={})
    assert config.servers["one"].env == {"A": "entry", "B": "file", "C": "c", "API_KEY": "k9f8e7d6c5b4a3928170"}
    assert tmp_path / "one.env" in config.files
    assert "k9f8e7d6c5b4a3928170" in config.secrets


def test_working_directory_is_relative_to_the_file(tmp_path: Path) -> None:
    def cwd(value: object, folder: str = "") -> str | None:
        text = json.dumps({"mcpServers": {"one": {"command": "x", "cwd": value}}})
        found = parse(text, path=tmp_path / folder / "mcp.json", environ={}).servers["one"]
        assert isinstance(found, StdioConfig)
        return found.cwd

    assert cwd("sub/..") == str(tmp_path)
    assert cwd("sub", ".vscode") == str(tmp_path / "sub")
    assert cwd("/abs") == "/abs"
    assert cwd("~") == str(Path.home())
    assert cwd("") is cwd(None) is None


@pytest.mark.parametrize("url", ["https://tracing.test/trace", "tracing.test/{traceId}"])
def test_trace_url_needs_the_place_of_the_id(tmp_path: Path, url: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {}, "gateway": {"telemetry": {"traceUrl": url}}}))
    with pytest.raises(ConfigError, match=r"traceUrl.*is not a URL with \{traceId\}"):
        load(path)
