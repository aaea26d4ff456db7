"""What the README shows is what the program takes."""

import json
import re
import shlex
from argparse import Namespace
from pathlib import Path

import pytest

from gateway.cli import parser
from gateway.config.load import parse
from gateway.config.model import Config
from gateway.hooks import Call, Metadata
from gateway.hooks.loading import load_hooks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
VARIABLES = {"GITHUB_TOKEN": "a", "TYPEGATE_API_KEY": "b", "TYPEGATE_ADMIN_TOKEN": "c"}
VARIABLES |= {"HOOK_SECRET": "0123456789abcdef"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def console_lines() -> list[str]:
    return [line for block in blocks("console") for line in block.splitlines() if line.strip()]


def typegate_lines() -> list[str]:
    """The part of each console line that starts typegate."""
    parts = [part.strip() for line in console_lines() for part in line.split("&&")]
    return [part for part in parts if shlex.split(part, comments=True)[0].endswith("typegate")]


def understood(line: str) -> Namespace:
    return parser().parse_args(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("text", blocks("json") + blocks("yaml"))
def test_every_configuration_in_the_readme_is_taken_without_a_warning(text: str) -> None:
    config = parse(text, environ=VARIABLES)
    assert config.servers
    assert config.warnings == []


@pytest.mark.parametrize("text", blocks("json") + blocks("yaml"))
def test_every_configuration_starts_without_a_variable_that_only_its_author_has(text: str) -> None:
    environ = {} if "headers" not in text or "TYPEGATE_API_KEY" not in text else VARIABLES
    assert parse(text, environ=environ).servers


def test_programs_of_the_readme_are_found_in_a_fresh_checkout() -> None:
    for text in blocks("yaml"):
        for server in parse(text, environ=VARIABLES).servers.values():
            assert server.type != "stdio" or server.command == ".venv/bin/python"


def test_the_json_in_the_readme_is_json() -> None:
    assert all(json.loads(text) for text in blocks("json"))


def test_what_hosts_are_told_to_start_is_a_command_that_exists() -> None:
    for text in blocks("json"):
        for server in parse(text, environ=VARIABLES).servers.values():
            if server.type == "stdio":
                assert parser().parse_args(server.args).handler == "serve:stdio"


@pytest.mark.parametrize("line", typegate_lines())
def test_every_command_and_flag_in_the_readme_exists(line: str) -> None:
    assert understood(line).handler


def test_every_command_is_shown_in_the_readme() -> None:
    shown = {understood(line).handler for line in typegate_lines()}
    assert shown == {
        "policy:check_policy",
        "policy:explain_policy",
        "scorecard:scorecard",
        "serve:serve",
        "serve:stdio",
        "serve:demo",
        "tool:set_tool",
        "tool:unset_tool",
        "inspect:check",
        "inspect:servers",
        "inspect:tools",
        "inspect:hooks",
        "add:add",
        "hosts:import_servers",
        "hosts:install",
        "lock:lock",
        "lock:diff",
        "call:call",
        "completion:completion",
    }


def test_the_two_promised_lines_stand_alone_and_unchanged() -> None:
    lines = console_lines()
    assert "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/typegate demo" in lines
    assert "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/pytest -q" in lines


async def test_the_hooks_in_the_readme_are_loaded_and_run(tmp_path: Path) -> None:
    [code] = blocks("python")
    (tmp_path / "hooks.py").write_text(code)
    [text] = [one for one in blocks("yaml") if "hooks:" in one]
    config = parse(text, path=tmp_path / "mcp.yaml", environ=VARIABLES)
    runners = await load_hooks(config)
    metadata = Metadata(
        kind="tool", wrapper="bank__pay", server="bank", tool="pay", principal="ann", session=None, request_id=1,
        call_id="c", via="wrapper", tags=(), profile="default",
    )  # fmt: skip
    said = await runners[0].run("before_call", Call(name="pay", args={"note": "n"}, metadata=metadata))
    assert isinstance(said, Call)
    assert said.args == {"note": "seen"}
    for runner in runners:
        await runner.close()


def test_every_path_in_the_readme_exists() -> None:
    for path in re.findall(r"`((?:deploy|gateway)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path


def names_of(config: Config) -> set[str]:
    """Every name that a configuration makes up: of servers, tools, tags, groups and profiles."""
    names = {*config.servers, *config.gateway.profiles, *config.gateway.groups}
    for server in config.servers.values():
        names |= {*server.tags, *server.siblings, *server.tools}
    for profile in config.gateway.profiles.values():
        names |= {*profile.guidance, *profile.supplements}
    return names


def test_no_name_of_a_sample_configuration_is_in_the_program() -> None:
    samples = [parse(text, environ=VARIABLES) for text in blocks("json") + blocks("yaml")]
    names = set().union(*map(names_of, samples))
    # Words of our own interface, of the thesaurus, and of the demo, whose servers the program starts itself.
    names -= {"default", "gateway", "read", "readers", "graph", "calendar-mcp", "bank", "get_bank_balance"}
    assert len(names) >= 5
    sources = [path for room in ("gateway", "registry") for path in (ROOT / room).rglob("*.py")]
    found = {
        (name, path.name)
        for path in sources
        for name in names
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", path.read_text(encoding="utf-8"))
    }
    assert not found
