"""The rules of a sandbox permit what a server needs, and never private files or files of the gateway."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gateway.config.operation_config import SandboxConfig
from gateway.protocol.gateway_errors import ConnectionLost
from gateway.upstream.sandbox import (
    Confinement,
    Rules,
    is_below,
    propose_sandbox,
    protect_paths,
    tasks_of_machine,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox exists on Linux only")

MAX_RULES, MAX_PATH_CHARS = 3_000, 4_096
SPARE_TASKS = 4_096


class Machine:
    """A folder with the home of a user, and the rules for a program."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "home").mkdir()

    def folder(self, path: str) -> str:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        return str(self.root / path)

    def file(self, path: str, text: str = "", mode: int = 0o644) -> str:
        self.folder(os.path.dirname(path))
        (self.root / path).write_text(text)
        (self.root / path).chmod(mode)
        return str(self.root / path)

    def program(self, path: str) -> str:
        return self.file(path, mode=0o755)

    def link(self, path: str, target: str) -> str:
        self.folder(os.path.dirname(path))
        (self.root / path).symlink_to(target)
        return str(self.root / path)

    def find(self, *line: str, cwd: str | None = None, env: dict[str, str] | None = None, **config: Any) -> Confinement:
        environment = {"HOME": str(self.root / "home"), "PATH": "", **(env or {})}
        found = Rules(SandboxConfig(**config), line or ("/bin/true",), environment, cwd).find()
        Path(found.folder).rmdir()
        return found

    def read(self, *line: str, **options: Any) -> set[str]:
        """Return the readable paths in the folder, relative to it, without those that every program may read."""
        return self.own(self.find(*line, **options).read) - {"home/.config/uv", "home/.config/pip", _BROWSERS}

    def write(self, *line: str, **options: Any) -> set[str]:
        """Return the writable paths in the folder, relative to it, without those that every program may write."""
        return self.own(self.find(*line, **options).write) - {f"home/{name}" for name in _CACHES}

    def own(self, paths: frozenset[str]) -> set[str]:
        return {os.path.relpath(path, self.root) for path in paths if is_below(path, [str(self.root)])}


_BROWSERS = "home/.cache/ms-playwright"
_CACHES = {".npm", ".cache/node", ".cache/uv", ".local/share/uv", ".cache/pip", ".cache/deno", ".bun/install/cache"}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# the command line


def options_of(found: Confinement) -> dict[str, list[str]]:
    """Return the options of the confining program, and the values of each."""
    start, end = found.arguments[:6], found.arguments[-1]
    assert (start[:5], end) == ([sys.executable, "-I", "-S", "-B", "-c"], "--")
    options: dict[str, list[str]] = {}
    for name, value in zip(found.arguments[6:-1:2], found.arguments[7:-1:2], strict=True):
        options.setdefault(name, []).append(value)
    return options


def test_command_line_contains_every_rule(machine: Machine) -> None:
    found = machine.find(processes=0)
    devices = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"]
    assert options_of(found) == {
        "--read": sorted(found.read),
        "--write": sorted(found.write),
        "--devices": devices,
        "--network": ["outbound"],
    }
    assert {"/usr", "/etc", "/proc", "/sys", "/opt"} <= found.read
    assert os.path.basename(found.folder).startswith("typegate-")
    assert found.folder in found.write
    assert {os.path.relpath(path, machine.root / "home") for path in found.write - {found.folder}} == _CACHES
    assert {f"home/{name}" for name in (".config/uv", ".config/pip", ".cache/ms-playwright")} == machine.own(found.read)


def test_command_line_contains_the_limits(machine: Machine) -> None:
    options = options_of(machine.find(processes=50_000, memory=64, cpu=7, network=False))
    assert [options[name] for name in ("--memory", "--cpu", "--network")] == [["67108864"], ["7"], ["none"]]
    # The limit of the kernel counts all threads of the user.
    assert int(options["--tasks"][0]) >= 50_000 + SPARE_TASKS


def test_threads_of_the_machine_are_counted() -> None:
    def threads() -> int:
        return int(Path("/proc/loadavg").read_text().split("/")[1].split()[0])

    # Threads may start or end between two counts, but not each time.
    assert any(tasks_of_machine() == threads() for _ in range(1_000))


# programs


def test_program_may_read_its_folder(machine: Machine) -> None:
    assert machine.read(machine.program("apps/notes/server")) == {"apps/notes", "apps/notes/server"}


@pytest.mark.parametrize("folder", ["bin", "sbin", "Scripts", "shims"])
def test_program_of_an_installation_may_read_the_installation(machine: Machine, folder: str) -> None:
    program = machine.program(f"apps/notes/{folder}/server")
    assert machine.read(program) == {"apps/notes", f"apps/notes/{folder}", f"apps/notes/{folder}/server"}


@pytest.mark.parametrize("prefix", [".local", ".cargo"])
def test_program_may_not_read_what_else_is_in_a_shared_prefix(machine: Machine, prefix: str) -> None:
    program = machine.program(f"home/{prefix}/bin/server")
    assert machine.read(program) == {f"home/{prefix}/bin", f"home/{prefix}/bin/server"}


def test_program_in_the_home_directory_may_not_read_the_home_directory(machine: Machine) -> None:
    assert machine.read(machine.program("home/server")) == {"home/server"}
    assert machine.read(machine.program("home/bin/server")) == {"home/bin", "home/bin/server"}


def test_program_behind_links_may_read_each_folder_on_the_way(machine: Machine) -> None:
    machine.program("apps/real/bin/server")
    machine.link("apps/middle/server", "../real/bin/server")
    program = machine.link("apps/links/server", "../middle/server")
    found = machine.read(program)
    assert found == {"apps/links", "apps/middle", "apps/real", "apps/real/bin", "apps/real/bin/server"}


def test_links_that_form_a_loop_end(machine: Machine) -> None:
    machine.link("apps/one", "two")
    assert "apps" in machine.read(machine.link("apps/two", "one"))


@pytest.mark.parametrize("tool", ["node", "npm", "npx", "uv", "uvx", "python3", "python", "git", "bun", "deno"])
def test_program_may_read_tools_on_its_path(machine: Machine, tool: str) -> None:
    machine.program(f"tools/a/bin/{tool}")
    machine.program("tools/b/bin/other")
    env = {"PATH": os.pathsep.join(str(machine.root / "tools" / name / "bin") for name in "ab")}
    assert machine.read(env=env) == {"tools/a", "tools/a/bin", f"tools/a/bin/{tool}"}


def test_program_may_read_packages_in_development_mode(machine: Machine) -> None:
    program = machine.program("apps/venv/bin/python")
    package = machine.folder("code/package")
    lines = ["import something", "relative", package, f"{machine.root}/missing", machine.file("code/file")]
    machine.file("apps/venv/lib/python3.11/site-packages/package.pth", "\n".join(lines))
    machine.folder("apps/venv/lib/python3.11/site-packages/folder.pth")
    found = machine.read(program)
    assert found == {"apps/venv", "apps/venv/bin", "apps/venv/bin/python", "code/package"}


# what the entry names


def test_folders_on_the_command_line_are_readable(machine: Machine) -> None:
    one, two, three = (machine.folder(f"data/{name}") for name in ("one", "two", "three"))
    machine.folder("data/name")
    line = ["/bin/true", one, f"--root={two}", f"-r={three}", f"root={one}/x", f"{machine.root}/missing", "name", "--"]
    assert machine.read(*line, cwd=machine.folder("data/one")) == {"data/one", "data/two", "data/three"}


def test_relative_paths_begin_at_the_working_directory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("work/data.d", "work/folder/inner", "other/data.d"):
        machine.folder(name)
    line = ["/bin/true", "folder", "data.d", "folder/inner"]
    found = machine.read(*line, cwd=str(machine.root / "work"))
    assert found == {"work", "work/data.d", "work/folder/inner"}
    monkeypatch.chdir(machine.root / "other")
    assert machine.read(*line) == {"other/data.d"}


def test_paths_may_begin_with_the_home_directory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(machine.root / "home"))
    for name in ("notes", "mail", "sent"):
        machine.folder(f"home/{name}")
    found = machine.find("/bin/true", "~/notes", read=["~/mail"], write=["~/sent", "~/missing"])
    assert {"home/notes", "home/mail"} <= machine.own(found.read)
    assert {"home/sent", "home/missing"} <= machine.own(found.write)
    assert found.missing == ["~/missing"]


def test_home_directory_is_that_of_the_user_by_default(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    home = machine.folder("user")
    monkeypatch.setenv("HOME", home)
    assert "user/.npm" in machine.own(machine.find(env={"HOME": ""}).write)


@pytest.mark.parametrize("path", ["/", "/tmp", "/var/tmp", "/var", "/home", "/srv", "/mnt", "/run", "HOME", "HOME/.."])
def test_wide_folders_on_the_command_line_are_not_readable(machine: Machine, path: str) -> None:
    path = path.replace("HOME", str(machine.root / "home"))
    assert os.path.realpath(path) not in machine.find("/bin/true", path, cwd=path).read


@pytest.mark.parametrize("mark", ["package.json", "pyproject.toml", "node_modules", ".venv"])
def test_script_may_read_its_project(machine: Machine, mark: str) -> None:
    script = machine.file("code/project/src/server.py")
    machine.folder(f"code/project/{mark}")
    machine.file("code/package.json")
    assert machine.read("/bin/true", script) == {"code/project", "code/project/src/server.py"}


def test_script_without_a_project_may_read_its_folder(machine: Machine) -> None:
    assert machine.read("/bin/true", machine.file("code/src/server.py")) == {"code/src", "code/src/server.py"}
    assert machine.read("/bin/true", "server.py", cwd=str(machine.root / "code/src")) == {
        "code/src",
        "code/src/server.py",
    }
    assert machine.read("/bin/true", machine.file("home/server.py")) == {"home/server.py"}
    machine.file("home/package.json")
    assert machine.read("/bin/true", str(machine.root / "home/server.py")) == {"home/server.py"}


def test_long_arguments_are_not_paths(machine: Machine) -> None:
    folder = machine.folder("data")
    assert machine.read("/bin/true", folder.rjust(MAX_PATH_CHARS, "/")) == {"data"}
    assert machine.read("/bin/true", folder.rjust(MAX_PATH_CHARS + 1, "/")) == set()


def test_variables_name_readable_paths(machine: Machine) -> None:
    names = ["PYTHONPATH", "NODE_PATH", "VIRTUAL_ENV", "JAVA_HOME"]
    files = ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"]
    env = {name: f"{machine.root}/{name}/a{os.pathsep}relative{os.pathsep}{machine.root}/{name}/b" for name in names}
    env |= {name: f"{machine.root}/{name}" for name in files}
    env["OTHER"] = f"{machine.root}/OTHER"
    assert machine.read(env=env) == {f"{name}/{part}" for name in names for part in "ab"} | {*files}


def test_working_directory_is_readable_if_the_entry_names_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine.folder("work"))
    assert machine.read() == set()
    assert machine.read(cwd=str(machine.root / "work")) == {"work"}


# caches


def test_caches_follow_variables(machine: Machine) -> None:
    root = str(machine.root)
    env = {"XDG_CACHE_HOME": f"{root}/cache", "XDG_DATA_HOME": f"{root}/data", "NPM_CONFIG_CACHE": f"{root}/npm"}
    found = machine.own(machine.find(env=env).write)
    assert found == {"npm", "cache/node", "cache/uv", "data/uv", "cache/pip", "cache/deno", "home/.bun/install/cache"}
    env |= {"npm_config_cache": f"{root}/own npm", "UV_CACHE_DIR": f"{root}/own uv", "PIP_CACHE_DIR": f"{root}/own pip"}
    found = machine.own(machine.find(env=env).write)
    assert found == {
        "own npm", "cache/node", "own uv", "data/uv", "own pip", "cache/deno", "home/.bun/install/cache",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "created"),
    [
        *((name, {".npm", ".cache/node"}) for name in ("npx", "npm", "node", "pnpm", "yarn")),
        *((name, {".cache/uv", ".local/share/uv", ".cache/pip"}) for name in ("uvx", "uv", "python", "python3", "pip")),
        ("server", set()),
    ],
)
def test_caches_of_the_program_are_created(machine: Machine, name: str, created: set[str]) -> None:
    assert machine.write(machine.program(f"apps/{name}")) == set()
    home = machine.root / "home"
    assert {each for each in _CACHES if (home / each).exists()} == created
    assert [oct((home / each).stat().st_mode & 0o777) for each in created] == ["0o700"] * len(created)


def test_existing_cache_stays_as_it_is(machine: Machine) -> None:
    file = machine.file("home/.npm/file")
    machine.write(machine.program("apps/npx"))
    assert os.path.exists(file)


# private files


def test_permitted_folder_does_not_include_private_files(machine: Machine) -> None:
    home = machine.folder("home")
    for name in (".ssh/id", ".config/gh/hosts", ".config/app/settings", "notes/today", ".local/share/app/data"):
        machine.file(f"home/{name}")
    machine.link("home/keys", ".ssh")
    expected = {"home/.config/app", "home/notes", "home/.local/share/app"}
    assert machine.read(read=[home]) == expected
    assert machine.write(write=[home]) == expected
    assert machine.read("/bin/true", machine.folder("home/.config")) == {"home/.config/app"}


def test_cache_does_not_include_private_files(machine: Machine) -> None:
    machine.file("home/.ssh/id")
    machine.folder("home/notes")
    found = machine.own(machine.find(env={"NPM_CONFIG_CACHE": machine.folder("home")}).write)
    assert "home/notes" in found
    assert {"home", "home/.ssh"} & found == set()


@pytest.mark.parametrize("option", ["read", "write"])
def test_private_files_are_permitted_if_the_configuration_names_them(machine: Machine, option: str) -> None:
    key = machine.file("home/.ssh/id")
    machine.file("home/.ssh/other")
    paths = machine.read if option == "read" else machine.write
    assert paths(**{option: [key]}) == {"home/.ssh/id"}
    assert paths(**{option: [machine.folder("home/.ssh")]}) == {"home/.ssh"}
    assert paths("/bin/true", key, machine.folder("home/.ssh")) == set()


def test_files_of_the_gateway_are_never_permitted(machine: Machine) -> None:
    state, config = machine.folder("gateway/state"), machine.file("gateway/mcp.json")
    machine.file("gateway/other")
    machine.link("gateway/link", "state")
    protect_paths([Path(machine.link("config.json", config)), None, Path(state)])
    both = [str(machine.root / "gateway"), state, config, str(machine.root / "gateway/link")]
    found = machine.find("/bin/true", *both, read=both, write=both)
    assert machine.own(found.read) & {"gateway", "gateway/state", "gateway/mcp.json"} == set()
    assert "gateway/other" in machine.own(found.read)
    assert {each for each in machine.own(found.write) if each.startswith("gateway")} == {"gateway/other"}
    assert machine.read(machine.program("gateway/state/server")) == set()


def test_bundle_may_read_only_its_own_folder(machine: Machine) -> None:
    state = machine.folder("state")
    own = machine.file("state/bundles/own/lib/server.py")
    machine.file("state/bundles/other/server.py")
    protect_paths([Path(state)])
    assert machine.read("/bin/true", own) == {"state/bundles/own"}
    assert machine.read(machine.program("state/bundles/own/server")) == {"state/bundles/own"}
    outside = [f"{own}/../../../../admin-token", state, f"{state}/bundles", "state/bundles/own"]
    assert machine.read("/bin/true", *outside) == set()
    found = machine.find("/bin/true", own, write=[state], cwd=state)
    assert machine.own(found.write) & {"state", "state/bundles", "state/bundles/own"} == set()


# limits of the rules


def test_missing_paths_are_reported_once(machine: Machine) -> None:
    there = machine.folder("there")
    found = machine.find(read=["/missing/a", there, "/missing/b"], write=["/missing/c", "/missing/a"])
    assert found.missing == ["/missing/a", "/missing/b", "/missing/c"]


def test_folder_that_needs_too_many_rules_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    home = machine.folder("home")
    found = machine.find(write=[home])
    # The temporary folder of the process does not count.
    for number in range(MAX_RULES + 1 - len(found.read) - len(found.write)):
        machine.file(f"home/{number}")
    found = machine.find(write=[home])
    assert len(found.read) + len(found.write) == MAX_RULES + 1
    machine.file("home/one more")
    monkeypatch.setattr(tempfile, "tempdir", machine.folder("temporary"))
    with pytest.raises(ConnectionLost, match="contains a private one beside more than 3000 entries"):
        machine.find(write=[home])
    assert os.listdir(machine.folder("temporary")) == []


@pytest.mark.parametrize(
    ("path", "folders", "expected"),
    [
        ("/a", ["/a"], True),
        ("/a/", ["/a"], True),
        ("/a", ["/a/"], True),
        ("/a/b/c", ["/x", "/a"], True),
        ("/ab", ["/a"], False),
        ("/", ["/a"], False),
        ("/a", ["/"], True),
        ("/a", [], False),
        ("", ["/a"], False),
    ],
)
def test_path_in_a_folder(path: str, folders: list[str], expected: bool) -> None:
    assert is_below(path, folders) is expected


# proposals


@pytest.mark.parametrize("command", ["docker", "/usr/bin/podman", None, 5])
def test_no_sandbox_is_proposed_for_containers_and_remote_servers(command: object) -> None:
    assert propose_sandbox({"command": command}) is None
    assert propose_sandbox({"url": "https://host.test"}) is None


def test_proposed_sandbox_permits_the_folders_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    assert propose_sandbox({"command": "server"}) == {}
    assert propose_sandbox({"command": "server", "args": ["notes", 5, f"{tmp_path}/missing", "~/missing"]}) == {}
    args = ["~/notes", str(tmp_path), "--x"]
    assert propose_sandbox({"command": "server", "args": args}) == {"write": ["~/notes", str(tmp_path)]}
