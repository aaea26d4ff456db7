"""Documents of published HTTP APIs, complete and in every dialect (row F2)."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from e2e.test_openapi_calls import EAGER
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from support.gateways import TOKEN, brief_pause, running_gateway
from support.upstreams.published_apis import (
    DOCUMENTS,
    PUBLISHED,
    QUARANTINED,
    dangling_references,
    dialect_problems,
    listed_api,
    one_per_component,
    published,
)

from gateway.upstream.openapi.openapi_schemas import parse_document

pytestmark = pytest.mark.heavy
# These are listed by a whole gateway too; the others are as large, or much smaller.
SERVED = [file for files in PUBLISHED.values() for file in files] + ["stripe.com.json"]
# Tools of each document that are lowered, evenly distributed among those that differ in a component or an argument. All
# tools of all documents take five minutes: `python tests/bench/bench_openapi.py --dialects` lowers them.
LOWERED = 40


@pytest.mark.parametrize("file", DOCUMENTS)
def test_f2_a_published_document_is_listed_completely_and_fits_every_dialect(tmp_path: Path, file: str) -> None:
    found = listed_api(published(file, tmp_path))
    tools = [dict(tool) for tool in found.listing.tools]
    assert found.operations == DOCUMENTS[file]
    assert found.quarantined == QUARANTINED.get(file, {})
    assert len(tools) + sum(found.quarantined.values()) == found.operations
    assert [tool["name"] for tool in tools if any(dangling_references(tool))] == []
    print(f"{file}: {found.operations} operations, {found.took_s:.2f} s")
    different = list(one_per_component(tools))
    chosen = different[:: len(different) // LOWERED + 1]
    assert chosen
    assert [problem for tool in chosen for problem in dialect_problems(tool)] == []


@pytest.mark.parametrize("file", [file for file in DOCUMENTS if file.endswith(".yaml")])
def test_f2_yaml_documents_have_the_values_that_another_parser_reads(tmp_path: Path, file: str) -> None:
    data = published(file, tmp_path).read_bytes()

    class TextConstructor(SafeConstructor):
        """Reads dates as text, which they are in JSON."""

    TextConstructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
    parser = YAML(typ="safe", pure=True)
    parser.Constructor = TextConstructor
    parser.allow_duplicate_keys = True
    # JSON has text as keys only.
    assert parse_document(data, file) == json.loads(json.dumps(parser.load(data.decode())))


@pytest.mark.parametrize("file", SERVED, ids=lambda file: file.removesuffix(".gz"))
async def test_f2_published_documents_are_fully_listed_while_the_gateway_serves(tmp_path: Path, file: str) -> None:
    document = await anyio.to_thread.run_sync(published, file, tmp_path)
    entry = {"spec": str(document), "baseUrl": "http://127.0.0.1:1", "connectTimeout": 300}
    async with running_gateway(tmp_path, {"api": entry}, gateway=EAGER) as gateway:
        gateway.client.timeout = 180  # other tests may use both cores
        began_s, longest_s = time.monotonic(), 0.0
        while (await gateway.server("api"))["state"] != "ready":
            asked_s = time.monotonic()
            assert (await gateway.client.get(f"{gateway.origin}/healthz")).status_code == 200
            longest_s = max(longest_s, time.monotonic() - asked_s)
            assert time.monotonic() - began_s < 240, gateway.logged()[-2_000:]
            await brief_pause()
        # GitHub's takes 3 s on two cores that are busy with other tests; the loop stays free, because a thread works.
        took_s = time.monotonic() - began_s
        status = await anyio.Path(f"/proc/{gateway.process.pid}/status").read_text()
        [peak_kb] = re.findall(r"VmHWM:\s+(\d+) kB", status)
        print(f"{file}: listed after {took_s:.1f} s, {int(peak_kb) // 1000} MB, the longest wait was {longest_s:.3f} s")
        assert longest_s < 20  # a busy machine can pause it for seconds
        tools = await gateway.tools()
        assert len(tools) == DOCUMENTS[file]
        headers = {"authorization": f"Bearer {TOKEN}"}
        found = await gateway.client.get(f"{gateway.origin}/admin/quarantine", headers=headers, timeout=60)
        assert [row for row in found.json()["quarantine"] if row["status"] == "quarantined"] == []
        for tool in tools.values():
            assert list(dangling_references(tool)) == []
