"""Measure authentication and authorization with keys, tokens and rules, compared to none in the same run.

    python tests/bench/bench_identity.py [--rounds N] [--calls N]

Calls of one wrapper over HTTP, the three gateways in turns. Then the authenticator alone: the look-up of a key, of a
token that is known, and the first look at a signed one.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
from bench_gateway import cpu_s, load, message, quantiles, upstream
from support.fake_issuer import FakeIssuer, fake_issuer
from support.gateways import RunningGateway, running_gateway

from gateway.access.credentials import ApiKeys, Credentials
from gateway.access.oauth.access_tokens import Tokens
from gateway.access.principal import Principal
from gateway.config.auth_config import AuthConfig
from gateway.http.http_client import HttpClient
from gateway.upstream.oauth.guarded_requests import IssuerFetch

_KEY = "k" * 43
_BATCH = 200


async def over_http(rounds: int, calls: int) -> None:
    """Calls through gateways that ask for different credentials."""
    async with AsyncExitStack() as stack:
        _, url = stack.enter_context(upstream(10))
        issuer = await stack.enter_async_context(fake_issuer())
        oauth = {"issuers": [issuer.config(requiredScopes=["mcp"])]}
        keys = {"apiKeys": [{"name": "ci", "key": _KEY}]}
        with_key, with_token = ({"authorization": f"Bearer {secret}"} for secret in (_KEY, issuer.token()))
        auths: dict[str, tuple[dict[str, Any], dict[str, str], list[dict[str, Any]]]] = {
            "nothing": ({}, {}, []),
            "a key": (keys, with_key, []),
            "a token": ({"oauth": oauth}, with_token, []),
            "token, 100 rules": ({"oauth": oauth}, with_token, rules(100)),
            "token, 10,000 rules": ({"oauth": oauth}, with_token, rules(10_000)),
        }
        client, running = HttpClient(), {}
        requests = {}
        for name, (auth, headers, given) in auths.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            settings = {"auth": auth, "audit": {"enabled": False}, "policy": {"rules": given}}
            started = running_gateway(folder, {"b": {"url": url}}, gateway=settings)
            gateway: RunningGateway = await stack.enter_async_context(started)
            gateway.client.headers.update(headers)
            await gateway.until_listed("b__tool_0001")
            running[name] = gateway
            head, body = message("tools/call", name="b__tool_0001", arguments={"query": "q"})
            requests[name] = ({**head, **headers}, body)
            await load(client, gateway.url, requests[name], 500, 8)
        took: dict[str, list[float]] = {name: [] for name in auths}
        cpu: dict[str, list[float]] = {name: [] for name in auths}
        for _ in range(rounds):
            for name, gateway in running.items():
                used = cpu_s(gateway.process.pid)
                took[name] += await load(client, gateway.url, requests[name], calls, 8)
                cpu[name].append((cpu_s(gateway.process.pid) - used) / calls * 1e6)
        client.close()
        print(f"{'calls with':20}{'p50 µs':>10}{'p99 µs':>10}{'CPU µs':>10}{'more CPU':>10}")
        base = statistics.median(cpu["nothing"])
        for name in auths:
            p50, p99 = quantiles(took[name])
            own = statistics.median(cpu[name])
            print(f"{name:20}{p50:10.0f}{p99:10.0f}{own:10.1f}{own - base:10.1f}")


def rules(count: int) -> list[dict[str, Any]]:
    """Rules of which one concerns the caller, and looks at the arguments of the call; the rest are about others."""
    others = [{"name": f"r{number}", "groups": [f"g{number}"], "deny": ["b__*"]} for number in range(count - 1)]
    arguments = {"query": {"pattern": "^secret"}}
    return [*others, {"name": "own", "deny": ["b__*"], "when": {"arguments": arguments}}]


def cost_us(work: Callable[[], object], rounds: int) -> float:
    """The median time of one piece of work, in microseconds."""
    taken: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(_BATCH):
            work()
        taken.append((time.perf_counter() - began) / _BATCH * 1e6)
    return statistics.median(taken)


async def alone(rounds: int) -> None:
    """The authenticator without anything around it."""
    async with fake_issuer() as issuer, anyio.create_task_group() as group:
        config = AuthConfig.model_validate(
            {"apiKeys": [{"name": "ci", "key": _KEY}], "oauth": {"issuers": [issuer.config()]}}
        )
        client = HttpClient()
        tokens = Tokens(config.oauth, IssuerFetch(client))
        known = Credentials(ApiKeys(config.api_keys), tokens)
        nobody = Credentials(ApiKeys([]), Tokens(None, IssuerFetch(client)))
        group.start_soon(known.run)
        await until_known(known, issuer)
        token = f"Bearer {issuer.token()}"
        fresh = [issuer.token(sub=f"s{number}") for number in range(1000)]
        turns = iter(fresh * 1000)

        def first_look() -> object:
            text = next(turns)
            digest = hashlib.sha256(text.encode()).digest()
            tokens._good.pop(digest, None)
            return tokens.principal(text, digest)

        print(f"\n{'look-up of':24}{'µs':>8}")
        print(f"{'nobody':24}{cost_us(lambda: nobody.principal(None), rounds):8.2f}")
        print(f"{'a key':24}{cost_us(lambda: known.principal(f'Bearer {_KEY}'), rounds):8.2f}")
        print(f"{'a token that is known':24}{cost_us(lambda: known.principal(token), rounds):8.2f}")
        print(f"{'a token at first (RS256)':24}{cost_us(first_look, max(rounds // 10, 3)):8.2f}")
        group.cancel_scope.cancel()
        client.close()


async def until_known(known: Credentials, issuer: FakeIssuer) -> None:
    """Return once the keys of the issuer were fetched."""
    found = known.principal(f"Bearer {issuer.token()}")
    if not isinstance(found, Principal):
        await found.verify()  # type: ignore[union-attr] # there is one


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    arguments = parser.parse_args()
    options = {"use_uvloop": True}
    anyio.run(over_http, arguments.rounds, arguments.calls, backend_options=options)
    anyio.run(alone, 20 * arguments.rounds, backend_options=options)


if __name__ == "__main__":
    main()
