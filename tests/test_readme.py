"""The README is short, its examples work, and every command is shown in it or the manual."""

import json
import re
import shlex
from argparse import ArgumentParser, Namespace, _SubParsersAction
from pathlib import Path

import pytest

from gateway.cli import parser
from gateway.config.load import parse
from gateway.config.model import Config
from gateway.hooks import Block, Call, Metadata, Result
from gateway.hooks.hook_loading import load_hooks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The README and every page of the manual; each topic is in one of them.
MANUAL = "\n".join([README, *(page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("deploy/guide/*.md")))])
VARIABLES = {"GITHUB_TOKEN": "a", "TYPEGATE_API_KEY": "b", "TYPEGATE_ADMIN_TOKEN": "c"}
VARIABLES |= {"HOOK_SECRET": "0123456789abcdef", "WIKI_TOKEN": "e" * 20, "WIKI_SECRET": "f" * 20}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def console_lines(text: str = README) -> list[str]:
    return [line for block in blocks("console", text) for line in block.splitlines() if line.strip()]


def typegate_lines(text: str = README) -> list[str]:
    """Return the part of each console line that starts typegate."""
    parts = [part.strip().removeprefix("$ ") for line in console_lines(text) for part in line.split("&&")]
    return [part for part in parts if shlex.split(part, comments=True)[0].endswith("typegate")]


def understood(line: str) -> Namespace:
    return parser().parse_args(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("text", blocks("json") + blocks("yaml"))
def test_every_readme_configuration_is_accepted_without_a_warning(text: str) -> None:
    config = parse(text, environ=VARIABLES)
    assert config.servers
    assert config.warnings == []


@pytest.mark.parametrize("text", blocks("json") + blocks("yaml"))
def test_every_readme_configuration_starts_without_private_variables(text: str) -> None:
    environ = {} if "headers" not in text or "TYPEGATE_API_KEY" not in text else VARIABLES
    assert parse(text, environ=environ).servers


def test_programs_in_the_readme_exist_in_a_fresh_checkout() -> None:
    for text in blocks("yaml"):
        for server in parse(text, environ=VARIABLES).servers.values():
            assert server.type != "stdio" or server.command == ".venv/bin/python"


def test_json_in_the_readme_is_valid() -> None:
    assert all(json.loads(text) for text in blocks("json"))


def test_start_command_for_hosts_exists() -> None:
    for text in blocks("json"):
        for server in parse(text, environ=VARIABLES).servers.values():
            if server.type == "stdio":
                assert parser().parse_args(server.args).handler == "serve:stdio"


def test_readme_and_its_first_configuration_are_short() -> None:
    assert README.count("\n") <= 150
    assert blocks("yaml")[0].count("\n") <= 10


def test_every_link_and_image_in_the_readme_exists() -> None:
    found = re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", README)
    assert len(found) > 15
    for path, anchor in found:
        assert (ROOT / path).exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, anchor


@pytest.mark.parametrize("text", re.findall(r"`([^`\n]*typegate [a-z][^`\n]*)`", README))
def test_every_command_within_a_sentence_exists(text: str) -> None:
    assert understood(text).handler


@pytest.mark.parametrize("line", typegate_lines())
def test_every_command_and_flag_in_the_readme_exists(line: str) -> None:
    assert understood(line).handler


def handlers(root: ArgumentParser) -> set[str]:
    """Return the handler of every command of the program."""
    actions = [action for action in root._actions if isinstance(action, _SubParsersAction)]
    if not actions:
        return {root.get_default("handler")}
    return set().union(*(handlers(command) for action in actions for command in action.choices.values()))


def test_readme_and_manual_show_every_command() -> None:
    assert {understood(line).handler for line in typegate_lines(MANUAL)} == handlers(parser())


def test_promised_one_line_commands_are_unchanged() -> None:
    lines = console_lines()
    assert "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/typegate demo" in lines
    assert "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/pytest -q" in lines


async def test_hooks_in_the_manual_are_loaded_and_run(tmp_path: Path) -> None:
    [code] = [block for block in blocks("python", MANUAL) if "class OwnAccounts" in block]
    (tmp_path / "hooks.py").write_text(code)
    [text] = [block for block in blocks("yaml", MANUAL) if "hooks.py:OwnAccounts" in block]
    config = parse(text, path=tmp_path / "mcp.yaml", environ=VARIABLES)
    runners = await load_hooks(config)
    metadata = Metadata(
        kind="tool", wrapper="bank__pay", server="bank", tool="pay", principal="ann", session=None, request_id=1,
        call_id="c", via="wrapper", tags=(), profile="default",
    )  # fmt: skip
    assert await runners[0].run("before_call", Call(name="pay", args={"account_id": "1"}, metadata=metadata)) is None
    blocked = await runners[0].run("before_call", Call(name="pay", args={"account_id": "3"}, metadata=metadata))
    assert isinstance(blocked, Block)
    result = await runners[0].run("after_call", Call(name="pay", args={}, metadata=metadata), Result({"content": []}))
    assert isinstance(result, Result)
    assert result.content == [{"type": "text", "text": "Checked for ann."}]
    for runner in runners:
        await runner.close()


def test_every_path_in_the_readme_and_the_manual_exists() -> None:
    for path in re.findall(r"`((?:deploy|gateway|tests)/[\w./-]+)`", MANUAL):
        assert (ROOT / path).exists(), path


def names_of(config: Config) -> set[str]:
    """Every name that a configuration makes up: of servers, tools, tags, groups and profiles."""
    names = {*config.servers, *config.gateway.profiles, *config.gateway.groups}
    for server in config.servers.values():
        names |= {*server.tags, *server.siblings, *server.tools}
    for profile in config.gateway.profiles.values():
        names |= {*profile.guidance, *profile.supplements}
    return names


def test_sample_configuration_names_are_not_in_the_program() -> None:
    samples = [parse(text, environ=VARIABLES) for text in blocks("json", MANUAL) + blocks("yaml", MANUAL)]
    names = set().union(*map(names_of, samples))
    # Words of the interface, of the thesaurus, of English, and of the demo, whose servers the program starts.
    names -= {"default", "gateway", "read", "readers", "graph", "everything"}
    names -= {"calendar", "calendar-mcp", "bank", "get_bank_balance"}
    names -= {"typegate"}  # the entry that `typegate install` adds to the file of a host
    assert len(names) >= 5
    sources = [path for room in ("gateway", "registry") for path in (ROOT / room).rglob("*.py")]
    # Longer names first, since an alternative that matches hides those after it.
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?![\w-])")
    found = {(match[0], path.name) for path in sources for match in pattern.finditer(path.read_text(encoding="utf-8"))}
    assert not found
