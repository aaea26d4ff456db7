"""What an entry starts or connects to, as the lock file names it: nothing of secrets, and the same on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.launch_identity import of_command, of_url


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("npx -y @scope/server@1.2.3 --token s3cret", "npm:@scope/server@1.2.3"),
        ("npx --yes --package @scope/server@1.2.3 run-it", "npm:@scope/server@1.2.3"),
        ("npx --package=@scope/server@1.2.3 run-it", "npm:@scope/server@1.2.3"),
        ("/usr/local/bin/npx -y plain", "npm:plain"),
        ("C:\\nodejs\\npx.cmd -y plain@2", "npm:plain@2"),
        ("cmd /c npx -y plain@2", "npm:plain@2"),
        ("env KEY=s3cret npx -y plain@2", "npm:plain@2"),
        ("npm exec -y plain@2", "npm:plain@2"),
        ("pnpm dlx plain@2", "npm:plain@2"),
        ("bunx plain@2", "npm:plain@2"),
        ("uvx mcp-server-time==1.0 --local-timezone UTC", "pypi:mcp-server-time==1.0"),
        ("uvx --from git+https://example.test/x@v1 serve", "pypi:git+https://example.test/x@v1"),
        ("uvx --python 3.12 mcp-server-time", "pypi:mcp-server-time"),
        ("uv tool run mcp-server-time@1.0", "pypi:mcp-server-time@1.0"),
        ("pipx run --spec mcp-server-time==1.0 mcp-server-time", "pypi:mcp-server-time==1.0"),
        ("docker run -i --rm -e TOKEN=s3cret --name x ghcr.io/a/b:1.0 stdio", "image:ghcr.io/a/b:1.0"),
        ("docker run --rm -i ghcr.io/a/b@sha256:00 stdio", "image:ghcr.io/a/b@sha256:00"),
        ("docker run -eTOKEN=s3cret -it img", "image:img"),
        ("node /work/project/dist/index.js --token s3cret", "node:dist/index.js"),
        ("node --inspect /elsewhere/index.js", "node:/elsewhere/index.js"),
        ("python3.12 -m some.server --key s3cret", "python:-m some.server"),
        ("python -S -E /work/project/x.py", "python:x.py"),
        ("deno run --allow-net mod.ts", "deno:mod.ts"),
        ("/opt/bin/server --key s3cret", "program:/opt/bin/server"),
        ("server", "program:server"),
        ("npx", "program:npx"),
        ("docker run", "program:docker"),
    ],
)
def test_a_command_line_is_named_by_package_and_version(line: str, expected: str) -> None:
    command, *args = line.split(" ")
    found = of_command(command, args, folder=Path("/work/project"))
    assert found == expected
    assert "s3cret" not in found


def test_what_a_shell_runs_is_told_apart_and_not_repeated() -> None:
    one, other = (of_command("sh", ["-c", f"KEY=s3cret {what}"]) for what in ("npx a", "npx b"))
    assert one != other
    assert "s3cret" not in one


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:s3cret@Example.test/mcp?key=s3cret", "origin:https://example.test"),
        ("https://example.test:443/mcp", "origin:https://example.test"),
        ("http://127.0.0.1:8080/mcp", "origin:http://127.0.0.1:8080"),
        ("http://[::1]:8080/mcp", "origin:http://[::1]:8080"),
    ],
)
def test_a_url_is_named_by_its_origin(url: str, expected: str) -> None:
    assert of_url(url) == expected
