"""The error of a server that does not start is the line of its output that explains it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of

# The standard error of each program, and the line that has to be reported.
SAID: dict[str, tuple[str, str]] = {
    "npm": (
        "npm warn deprecated old@1.0.6: This module leaks memory\n"
        "npm error code ETARGET\n"
        "npm error notarget No matching version found for mcp-none@9.9.9.\n"
        "npm error notarget In most cases you or one of your dependencies are requesting\n"
        "npm error A complete log of this run can be found in: /home/x/.npm/_logs/1-debug-0.log\n"
        "npm notice New major version of npm available! 10.8.2 -> 11.0.0\n",
        "npm error notarget No matching version found for mcp-none@9.9.9.",
    ),
    "npm-script": (
        "Error: Cannot find module './settings'\n"
        "Require stack:\n- /srv/server.js\n"
        "    at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15) {\n"
        "  code: 'MODULE_NOT_FOUND'\n}\n\nNode.js v20.1.0\n"
        "npm error Lifecycle script `start` failed with error:\nnpm error code 1\nnpm error path /srv\n"
        "npm error workspace server@1.0.0\nnpm error location /srv\nnpm error command failed\n",
        "Error: Cannot find module './settings'",
    ),
    "pip": (
        "DEPRECATION: x is being installed with setup.py\n"
        "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/x'\n"
        "Consider using the `--user` option or check the permissions.\n\n"
        "[notice] A new release of pip is available: 24.0 -> 25.0\n[notice] To update, run: pip install -U pip\n",
        "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/x'",
    ),
    "pip-build": (
        "error: subprocess-exited-with-error\n\n  × Building wheel did not run successfully.\n  │ exit code: 1\n"
        "  ╰─> See above for output.\n\n  note: This error originates from a subprocess.\n"
        "ERROR: Failed building wheel for spam\nerror: failed-wheel-build-for-install\n",
        "ERROR: Failed building wheel for spam",
    ),
    "uv": (
        "Using CPython 3.12.1\nwarning: `x` is yanked\n"
        "error: Failed to fetch: `https://index.example.test/x/`\n"
        "  Caused by: client error (Connect)\n  Caused by: dns error: Name not known\n",
        "error: Failed to fetch: `https://index.example.test/x/`: client error (Connect): dns error: Name not known",
    ),
    "python": (
        "/x.py:3: DeprecationWarning: pkg_resources is deprecated\n  import pkg_resources\n"
        'Traceback (most recent call last):\n  File "/x.py", line 5, in <module>\n    main()\n    ~~~~^^\n'
        "lib.ConfigurationProblem: set TOKEN\n"
        "Exception ignored in: <function Client.__del__ at 0x7f00>\n"
        'Traceback (most recent call last):\n  File "/x.py", line 9, in __del__\n    self.close()\n'
        "AttributeError: 'Client' object has no attribute 'sock'\n"
        "Unclosed client session\nclient_session: <aiohttp.client.ClientSession object at 0x7f00>\n",
        "lib.ConfigurationProblem: set TOKEN",
    ),
    "rich": (
        "Usage: server [OPTIONS]\nTry 'server --help' for help.\n╭─ Error ────────────────╮\n"
        "│ Missing option '--key'. │\n╰────────────────────────╯\n",
        "Error: Missing option '--key'.",
    ),
    "node": (
        "(node:71) [DEP0040] DeprecationWarning: The `punycode` module is deprecated.\n"
        "(Use `node --trace-deprecation ...` to show where the warning was created)\n"
        "node:internal/deps/undici/undici:14976\n      Error.captureStackTrace(err);\n            ^\n\n"
        "TypeError: fetch failed\n    at node:internal/deps/undici/undici:14976:13 {\n"
        "  [cause]: Error: connect ECONNREFUSED 127.0.0.1:5432\n      at afterConnect (node:net:1611:16) {\n"
        "    errno: -111,\n    code: 'ECONNREFUSED'\n  }\n}\n\nNode.js v20.11.0\n",
        "TypeError: fetch failed: Error: connect ECONNREFUSED 127.0.0.1:5432",
    ),
    "axios": (
        "AxiosError: Request failed with status code 401\n    at settle (/srv/core/settle.js:19:12) {\n"
        + "".join(f"    member{number}: [Object] {{ error: [Function: failed] }},\n" for number in range(200))
        + "  status: 401\n}\n\nNode.js v20.1.0\n",
        "AxiosError: Request failed with status code 401",
    ),
    "docker": (
        "Unable to find image 'mcp/none:latest' locally\nlatest: Pulling from mcp/none\n5c32499ab806: Pulling layer\n"
        "WARNING: The requested image's platform (linux/amd64) does not match the detected host platform\n"
        "docker: Error response from daemon: manifest for mcp/none:latest not found: manifest unknown.\n\n"
        "Run 'docker run --help' for more information\n",
        "docker: Error response from daemon: manifest for mcp/none:latest not found: manifest unknown.",
    ),
    "java": (
        "SLF4J: Defaulting to no-operation (NOP) logger implementation\n"
        'Exception in thread "main" java.lang.IllegalStateException: cannot start\n\tat Main.main(Main.java:5)\n'
        "Caused by: java.net.BindException: Address already in use\n\tat Main.open(Main.java:2)\n\t... 1 more\n",
        "Caused by: java.net.BindException: Address already in use",
    ),
    "go": (
        "Error: GITHUB_TOKEN not set\nUsage:\n  server stdio [flags]\n\nFlags:\n  -h, --help     help for stdio\n"
        "      --strict   fail on the first error\n",
        "Error: GITHUB_TOKEN not set",
    ),
    "rust": (
        "Error: failed to read the configuration\n\nCaused by:\n    0: could not open /x.toml\n    1: No such file\n",
        "Error: failed to read the configuration: could not open /x.toml: No such file",
    ),
    "log": (
        "2025-01-01 12:00:00 INFO starting\n2025-01-01 12:00:01 ERROR the token is rejected\n"
        "2025-01-01 12:00:01 INFO error handler stopped\n",
        "2025-01-01 12:00:01 ERROR the token is rejected",
    ),
}
# The same of their standard output.
PRINTED: dict[str, tuple[str, str]] = {
    "usage": ("Usage: server DIRECTORY\n  --verbose  report each error\n", "Usage: server DIRECTORY"),
    "banner": (
        "My server 1.0\n\nStarting...\nError: API_KEY is required\n",
        "My server 1.0 … Error: API_KEY is required",
    ),
    "message": ("Error: API_KEY is required\nBye, no key found\n", "Error: API_KEY is required"),
}


def says(folder: Path, name: str, *, error: str = "", output: str = "", then: str = "exit 3") -> dict[str, Any]:
    """Return the entry of a process that prints these texts."""
    for suffix, text in (("err", error), ("out", output)):
        (folder / f"{name}.{suffix}").write_text(text)
    return {"command": "sh", "args": ["-c", f"cat {name}.err >&2; cat {name}.out; {then}"], "cwd": str(folder)}


async def reasons(gateway: RunningGateway, *names: str, within_s: float = 30) -> dict[str, str]:
    """Wait until each of these servers has failed; returns what is reported for them."""
    found: dict[str, str] = {}
    with anyio.fail_after(within_s):
        while set(found) != set(names):
            for row in (await gateway.admin("servers")).json()["servers"]:
                if row["name"] in names and row["lastError"] and not row["lastError"].startswith("starting ("):
                    found[row["name"]] = row["lastError"]
            await brief_pause()
    return found


@pytest.mark.heavy
async def test_explaining_line_is_reported_everywhere(tmp_path: Path) -> None:
    expected = {name: f"the process exited with code 3: {reason}" for name, (_, reason) in SAID.items()}
    servers = {name: says(tmp_path, name, error=stderr) for name, (stderr, _) in SAID.items()}
    for name, (printed, reason) in PRINTED.items():
        servers[name] = says(tmp_path, name, output=printed)
        expected[name] = f"the process exited with code 3; its standard output is not JSON-RPC: {reason}"
    # It runs on, and does not answer.
    servers["hangs"] = says(tmp_path, "hangs", error="Error: no key\nnpm notice new version\n", then="sleep 60") | {
        "startTimeout": 2
    }
    expected["hangs"] = "no answer to the handshake within 2 s: Error: no key"
    profiles = {"default": {"disclosure": "lazy"}}
    async with running_gateway(tmp_path, servers, gateway={"profiles": profiles}) as gateway:
        assert await reasons(gateway, *servers) == expected
        details = await gateway.call("get_server_details", {"server": "python"})
        assert json.loads(text_of(details))["problem"] == expected["python"]
        refused = await gateway.call("invoke_tool", {"server": "python", "tool": "t", "arguments": {}})
        assert expected["python"] in text_of(refused)
    command = [sys.executable, "-m", "gateway", "check", "--json", "--config", str(gateway.config)]
    checked = await anyio.run_process(command, check=False)
    assert checked.returncode == 1
    assert {row["name"]: row["lastError"] for row in json.loads(checked.stdout)["servers"]} == expected
    # Last, where people look.
    assert f"python: {expected['python']}" in checked.stderr.decode()


@pytest.mark.heavy
async def test_server_that_fails_later_is_logged_once(tmp_path: Path) -> None:
    # The name of the temporary file and the time differ at each start.
    code = "import secrets, sys, time; sys.stderr.write(f'{time.time()}: cannot read /tmp/a1{secrets.token_hex(4)}\\n')"
    entry = {"command": sys.executable, "args": ["-c", f"{code}; time.sleep(60)"], "startTimeout": 1}
    async with running_gateway(tmp_path, {"u": entry}) as gateway:
        with anyio.fail_after(60):
            while "not connected: again (2 times)" not in gateway.logged():
                await brief_pause()
        logged = gateway.logged()
    assert logged.count("stderr: ") == 1, logged
    assert logged.count("not connected: no answer to the handshake within 1 s: ") == 1, logged


RUNNERS: dict[str, tuple[list[str], str]] = {
    "npx": (["npx", "-y", "typegate-has-no-such-package"], "404 Not Found"),
    "npx-version": (["npx", "-y", "is-odd@77.0.0"], "No matching version found for is-odd@77.0.0."),
    "npx-command": (["npx", "-y", "is-odd@3.0.1"], "npm error could not determine executable to run"),
    "npx-refused": (["npx", "-y", "--registry=http://127.0.0.1:1/", "--fetch-retries=0", "is-odd"], "ECONNREFUSED"),
    "uvx": (["uvx", "typegate-has-no-such-package"], "typegate-has-no-such-package was not found"),
    "uvx-command": (["uvx", "--from", "iniconfig", "no-such-command"], "does not provide any executables"),
    "pip": (
        [sys.executable, "-m", "pip", "install", "typegate-has-no-such-package"],
        "ERROR: No matching distribution found for typegate-has-no-such-package",
    ),
    "python": ([sys.executable, "-m", "no_such_module"], "No module named no_such_module"),
    "node": (["node", "/no/such/server.js"], "Error: Cannot find module '/no/such/server.js'"),
    "java": (["java", "-jar", "/no/such.jar"], "Error: Unable to access jarfile /no/such.jar"),
    "docker": (["docker", "run", "--no-such-flag"], "unknown flag: --no-such-flag"),
    "sh": (["sh", "-c", "no-such-server --stdio"], "not found"),
}


@pytest.mark.heavy
async def test_error_output_of_real_programs_is_understood(tmp_path: Path) -> None:
    uv = await anyio.to_thread.run_sync(uvx_folder, tmp_path)
    environment = {"PATH": f"{uv}{os.pathsep}{os.environ['PATH']}", "npm_config_cache": str(tmp_path / "npm")}
    servers = {
        name: {"command": command[0], "args": command[1:], "env": environment, "cwd": str(tmp_path)}
        for name, (command, _) in RUNNERS.items()
        if shutil.which(command[0], path=environment["PATH"])
    }
    assert {"npx", "uvx", "pip"} <= set(servers)
    async with running_gateway(tmp_path, servers) as gateway:
        for name, reason in (await reasons(gateway, *servers, within_s=180)).items():
            print(f"{name}: {reason}")
            assert RUNNERS[name][1] in reason
            assert not any(word in reason for word in ("notice", "warn", "A complete log", "Traceback", "    at "))


def uvx_folder(tmp_path: Path) -> Path:
    """Return the folder of `uvx`, which is installed if it is not there."""
    if found := shutil.which("uvx"):
        return Path(found).parent
    place = tmp_path / "uv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([place / "bin" / "pip", "install", "-q", "uv"], check=True, capture_output=True)
    return place / "bin"
