"""The identity of an entry in the lock file: without secrets, and equal on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.launch_identity import identity_of_command, identity_of_url


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
def test_command_is_identified_by_package_and_version(line: str, expected: str) -> None:
    command, *args = line.split(" ")
    found = identity_of_command(command, args, folder=Path("/work/project"))
    assert found == expected
    assert "s3cret" not in found


def test_shell_commands_are_distinguished_without_being_repeated() -> None:
    one, other = (identity_of_command("sh", ["-c", f"KEY=s3cret {what}"]) for what in ("npx a", "npx b"))
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
def test_url_is_identified_by_its_origin(url: str, expected: str) -> None:
    assert identity_of_url(url) == expected


@pytest.mark.parametrize(
    "line",
    [
        "npx --registry https://evil.example.test -y plain@2",
        "npx --registry=https://evil.example.test -y plain@2",
        "npx -y --node-options=--require=/evil.js plain@2",
        "npx -y --userconfig /evil/npmrc plain@2",
        "npx -y -p plain@2 -p evil run-it",
        "npx -y --package plain@2 node evil.js",
        "npx -c evil -p plain@2",
        "npm exec -y plain@2 --registry=https://evil.example.test",
        "npm --registry https://evil.example.test exec plain@2",
        "bunx --registry https://evil.example.test plain@2",
        "env NODE_OPTIONS=--require=/evil.js npx -y plain@2",
        "env npm_config_registry=https://evil.example.test npx -y plain@2",
        "sudo npx plain@2",
        "uvx --index-url https://evil.example.test time==1.0",
        "uvx --extra-index-url https://evil.example.test time==1.0",
        "uvx --default-index=https://evil.example.test time==1.0",
        "uvx --with evil time==1.0",
        "uvx -f /evil time==1.0",
        "uvx --from time==1.0 python /evil.py",
        "uvx --python /evil/python time==1.0",
        "uvx --what-else evil time==1.0",
        "uv tool run --index-url https://evil.example.test time==1.0",
        "uv --config-file /evil tool run time==1.0",
        "uv run --with time==1.0 --index https://evil.example.test time",
        "pipx run --pip-args=-ihttps://evil.test time==1.0",
        "docker run --entrypoint /evil img",
        "docker run -v /evil:/app img",
        "docker run -eNODE_OPTIONS=-r/evil.js img",
        "docker run --env LD_PRELOAD=/evil.so img",
        "docker --context evil run img",
        "node --require /evil.js index.js",
        "node --import=/evil.mjs index.js",
        "node -r /evil.js index.js",
        "java -javaagent:/evil.jar -jar app.jar",
        "java -cp /evil -jar app.jar",
        "deno run --import-map /evil.json mod.ts",
    ],
)
def test_options_that_select_code_are_part_of_the_identity(line: str) -> None:
    plain = (
        "npx -y plain@2", "uvx time==1.0", "uv run --with time==1.0 time", "pipx run time==1.0", "docker run img",
        "node index.js", "java -jar app.jar", "deno run mod.ts",
    )  # fmt: skip
    command, *args = line.split(" ")
    found = identity_of_command(command, args)
    assert found not in {identity_of_command(one.split(" ")[0], one.split(" ")[1:]) for one in plain}
    assert found != identity_of_command(
        command, [arg.replace("evil", "other").replace("plain", "fancy") for arg in args]
    )


@pytest.mark.parametrize(
    "name",
    [
        "NODE_OPTIONS", "NODE_PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PYTHONPATH",
        "PYTHONSTARTUP", "PYTHONHOME", "npm_config_registry", "NPM_CONFIG_REGISTRY", "npm_config_@scope:registry",
        "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_PYTHON", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE",
        "PATH", "HOME", "BASH_ENV", "RUBYOPT", "PERL5OPT", "JAVA_TOOL_OPTIONS", "CLASSPATH", "GIT_SSH_COMMAND",
        "DOTNET_STARTUP_HOOKS", "DOCKER_HOST", "GOPROXY", "BUN_CONFIG_REGISTRY", "XDG_CONFIG_HOME",
    ],
)  # fmt: skip
def test_variables_that_select_code_are_part_of_the_identity(name: str) -> None:
    one, other, none = (
        identity_of_command("npx", ["plain@2"], env=env) for env in ({name: "/a"}, {name: "/b"}, {name: None})
    )
    assert len({one, other, none}) == 3
    assert none == "npm:plain@2"


def test_other_and_secret_variables_are_not_part_of_the_identity() -> None:
    env = {
        "API_KEY": "s3cret", "GITHUB_HOST": "x", "GOOGLE_PROJECT": "x", "LDAP_URL": "x", "PIPEDRIVE_ID": "x",
        "npm_config_//registry.test/:_authToken": "s3cret", "UV_INDEX_OWN_PASSWORD": "s3cret", "PYTHONUNBUFFERED": "1",
        "NODE_ENV": "production", "GIT_AUTHOR_NAME": "ann",
    }  # fmt: skip
    assert identity_of_command("npx", ["plain@2"], env=env) == "npm:plain@2"
    found = identity_of_command("uvx", ["a"], env={"UV_INDEX_URL": "https://user:s3cret@pypi.test/simple?key=s3cret"})
    assert found == "pypi:a (UV_INDEX_URL=https://pypi.test/simple)"


def test_working_directory_is_part_of_the_identity_on_every_machine() -> None:
    names = {
        identity_of_command("npx", ["a"], folder=Path(f"/home/{who}/p"), cwd=f"/home/{who}/p/sub")
        for who in ("ann", "ben")
    }
    assert names == {"npm:a (in sub)"}
    folders = {
        identity_of_command("npx", ["a"], env={"NODE_PATH": f"{place}/lib"}, folder=Path(place))
        for place in ("/p", "/q/r")
    }
    assert len(folders) == 1
