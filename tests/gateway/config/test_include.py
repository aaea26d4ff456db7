"""Included files and the main file are one configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load, watched_by
from gateway.protocol.gateway_errors import ConfigError

MAIN = """
include: [supplements/*.yaml, more.json]
mcpServers:
  graph: {command: python, tools: {read: {pinned: true}}}
gateway:
  profiles: {sec: {disclosure: eager}}
"""


def written(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "supplements").mkdir(exist_ok=True)
    (tmp_path / "more.json").write_text("{}")
    for name, text in {"main": MAIN, **files}.items():
        place = tmp_path if name == "main" else tmp_path / "supplements"
        (place / f"{name}.yaml").write_text(text)
    return tmp_path / "main.yaml"


def test_included_files_extend_servers_and_profiles(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        a="mcpServers: {graph: {supplement: Filed., tools: {read: {supplement: Slow.}, list: {hidden: true}}}}",
        b="gateway: {profiles: {sec: {supplements: {graph__read: Cite.}}, other: {}}}",
    )
    (tmp_path / "more.json").write_text('{"mcpServers": {"late": {"command": "python"}}}')
    config = load(path, environ={})
    graph = config.servers["graph"]
    assert (graph.supplement, graph.tools["read"].supplement, graph.tools["read"].pinned) == ("Filed.", "Slow.", True)
    assert graph.tools["list"].hidden
    assert list(config.servers) == ["graph", "late"]
    assert config.gateway.profiles["sec"].supplements == {"graph__read": "Cite."}
    assert config.gateway.profiles["sec"].disclosure == "eager"
    assert config.warnings == []
    watched = watched_by(path)
    assert [file.name for file in watched.files] == ["a.yaml", "b.yaml", "more.json"]
    assert watched.folders == (tmp_path / "supplements", tmp_path)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"a": "mcpServers: {graph: {tools: {read: {pinned: false}}}}"},
            "supplements/a.yaml: mcpServers.graph.tools.read.pinned: is also given in {}/main.yaml; expected each",
        ),
        (
            {"a": "mcpServers: {graph: {supplement: x}}", "b": "mcpServers: {graph: {supplement: x}}"},
            "supplements/b.yaml: mcpServers.graph.supplement: is also given in {}/supplements/a.yaml; expected each",
        ),
        ({"a": "include: [x.yaml]"}, "supplements/a.yaml: include: is not allowed in an included file; expected it in"),
        ({"a": "gatway: {}"}, "supplements/a.yaml: gatway: unknown key; expected gateway (did you mean it?)"),
        ({"a": "graph: ["}, "supplements/a.yaml: is not YAML at line 1"),
        ({"a": "mcpServers: {graph: {siblings: 5}}"}, "supplements/a.yaml: mcpServers.graph.siblings: is a number"),
        ({"a": "mcpServers: {g: {command: x, tools: {a: {hiden: true}}}}"},
         "supplements/a.yaml: mcpServers.g.tools.a.hiden: unknown key; expected hidden (did you mean it?)"),
        ({"main": "include: supplements/*.yaml\nmcpServers: {}"}, "main.yaml: include: is text; expected a list of"),
        ({"main": "include: ['*/a.yaml']\nmcpServers: {}"}, "main.yaml: include[0]: has a wildcard in the name of a"),
        ({"main": "include: [none.yaml]\nmcpServers: {}"}, "none.yaml: no such file"),
        ({"main": "include: [5]\nmcpServers: {}"}, "main.yaml: include[0]: is a number; expected a path in quotes"),
    ],
)  # fmt: skip
def test_error_names_the_included_file(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, **files), environ={}, strict=True)
    assert str(caught.value).startswith(f"{tmp_path}/{expected.format(tmp_path)}")


def test_pattern_without_files_is_a_warning_and_self_inclusion_is_ignored(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert load(path, environ={}).warnings == [f"{path}: include[0]: supplements/*.yaml matches no file"]
    path.write_text("include: ['*.yaml']\nservers: {a: {command: python}}")
    (tmp_path / "b.yaml").write_text("mcpServers: {a: {supplement: x}}")
    assert load(path, environ={}).servers["a"].supplement == "x"


def test_invalid_entry_of_an_included_file_is_excluded_naming_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, a="mcpServers: {bad: {command: x, siblings: 5}}")
    config = load(path, environ={})
    assert list(config.servers) == ["graph"]
    assert config.left_out["bad"].reason.startswith(
        f"left out: {tmp_path}/supplements/a.yaml: mcpServers.bad.siblings: "
    )
