"""Several gateways with state of their own behind a plain TCP balancer, and a store that they share."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio.abc import Process, SocketStream
from support.gateways import RunningGateway, brief_pause, serving, terminate

SECRET = "the secret that all gateways of the test have"


class Held:
    """A shared part that keeps every value that it receives."""

    prefix = "held:"

    def __init__(self, *, is_transient: bool = False) -> None:
        self.is_transient = is_transient
        self.values: dict[str, Any] = {}

    def fields(self) -> dict[str, Any]:
        return dict(self.values)

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        self.values = dict(fields)
        return self.fields()


def lasting_port() -> int:
    """Return a port that stays free while no program listens on it: below the range for outgoing connections."""
    while True:
        port = random.randint(10_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Balancer:
    """Gives each new connection to the next gateway of those that say that they are ready; knows nothing of HTTP."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.ready = set(ports)
        self._turn = 0
        self.port = 0

    async def run(self, *, task_status: Any) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(self._look)
            task_status.started()
            await listener.serve(self._pass_on)

    def _next(self) -> list[int]:
        self._turn += 1
        turned = [self.ports[(self._turn + step) % len(self.ports)] for step in range(len(self.ports))]
        return [port for port in turned if port in self.ready]

    async def _look(self) -> None:
        async with httpx2.AsyncClient(timeout=30) as client:
            while True:
                for port in self.ports:
                    try:
                        answer = await client.get(f"http://127.0.0.1:{port}/readyz", timeout=1)
                        (self.ready.add if answer.status_code == 200 else self.ready.discard)(port)
                    except httpx2.HTTPError:
                        self.ready.discard(port)
                with anyio.move_on_after(0.1):
                    await anyio.sleep_forever()

    async def _pass_on(self, caller: SocketStream) -> None:
        async with caller:
            for port in self._next():
                try:
                    backend = await anyio.connect_tcp("127.0.0.1", port)
                except OSError:
                    # As kube-proxy's next try of a client does: nothing was sent yet.
                    continue
                async with backend, anyio.create_task_group() as group:
                    group.start_soon(_copy, backend, caller, group.cancel_scope)
                    await _copy(caller, backend, group.cancel_scope)
                return


async def _copy(source: SocketStream, target: SocketStream, scope: anyio.CancelScope) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for data in source:
            await target.send(data)
    # When one side closes the connection, close the other side.
    scope.cancel()


@dataclass(slots=True)
class Cluster:
    """Gateways by name, each at its own address, and `any`: the load balancer in front of all of them."""

    names: list[str]
    gateways: list[RunningGateway]
    any: RunningGateway
    balancer: Balancer
    folder: Path

    def named(self, session_id: str) -> int:
        """Return the index of the gateway that has a session."""
        return self.names.index(session_id.partition(".")[0])


@asynccontextmanager
async def running_cluster(
    folder: Path,
    servers: Mapping[str, Any],
    *,
    count: int = 3,
    store: Mapping[str, Any] | None = None,
    gateway: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> AsyncIterator[Cluster]:
    """Start gateways that know each other, each with these files beside its configuration, behind a load balancer."""
    names = [f"typegate-{index}" for index in range(count)]
    peer_ports = {name: lasting_port() for name in names}
    addresses = {name: f"127.0.0.1:{port}" for name, port in peer_ports.items()}
    async with AsyncExitStack() as stack:
        started: dict[int, RunningGateway] = {}

        async def start(index: int) -> None:
            own = folder / names[index]
            own.mkdir()
            for name, text in (files or {}).items():
                (own / name).write_text(text)
            write_config(own, names[index], peer_ports[names[index]], addresses, servers, store, gateway)
            port = lasting_port()
            (own / "port").write_text(str(port))
            started[index] = await stacks[index].enter_async_context(start_again(own, environment=environment))

        # Each is left by the task that entered it, in order.
        stacks = [await stack.enter_async_context(AsyncExitStack()) for _ in names]
        for index in range(count):
            await start(index)
        gateways = [started[index] for index in range(count)]
        balancer = Balancer([int(one.origin.rpartition(":")[2]) for one in gateways])
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        await group.start(lambda task_status: balancer.run(task_status=task_status))
        fresh = httpx2.Limits(max_keepalive_connections=0)
        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=30, limits=fresh))
        through = replace(gateways[0], origin=f"http://127.0.0.1:{balancer.port}", client=client)
        yield Cluster(names, gateways, through, balancer, folder)


def write_config(
    own: Path,
    name: str,
    port: int,
    addresses: Mapping[str, str],
    servers: Mapping[str, Any],
    store: Mapping[str, Any] | None,
    gateway: Mapping[str, Any] | None,
) -> None:
    """Write the configuration of one gateway."""
    peers = {"listen": f"127.0.0.1:{port}", "secret": SECRET, "name": name, "discovery": {"addresses": addresses}}
    cluster = {"peers": peers, **({"store": store} if store is not None else {})}
    config = {"mcpServers": dict(servers), "gateway": {**(gateway or {}), "cluster": cluster}}
    (own / "typegate.json").write_text(json.dumps(config))


@asynccontextmanager
async def start_again(own: Path, *, environment: Mapping[str, str] | None = None) -> AsyncIterator[RunningGateway]:
    """Start the gateway of a folder, on the port that it has always had."""
    arguments = ("--port", (own / "port").read_text())
    async with serving(own / "typegate.json", own, arguments=arguments, environment=environment) as running:
        yield running


class Store:
    """A real server that can be stopped, started empty, made slow and filled."""

    def __init__(self, folder: Path, port: int, password: str | None = None) -> None:
        self.folder = folder
        self.port = port
        self.password = password
        self.process: Process | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Start it, empty."""
        command = [redis_server(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                   "--appendonly", "no", "--dir", str(self.folder), "--maxmemory-policy", "noeviction"]  # fmt: skip
        if self.password is not None:
            command += ["--requirepass", self.password]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with anyio.fail_after(25):
            while True:
                with suppress(OSError):
                    # One with a password says that it wants it.
                    if (await self.ask("PING")).startswith(("+PONG", "-NOAUTH")):
                        return
                await brief_pause()

    async def stop(self) -> None:
        """Stop it, and forget everything."""
        if self.process is not None:
            await terminate(self.process)
            self.process = None

    async def ask(self, *words: str) -> str:
        """Send one command and return the first line of the response."""
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
            await stream.send("".join(parts).encode())
            return (await stream.receive()).decode().partition("\r\n")[0]

    async def dump(self) -> str:
        """Everything that is in it, as bytes that are text or not."""
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            await stream.send(b"*2\r\n$7\r\nHGETALL\r\n$16\r\ntypegate:changes\r\n*1\r\n$4\r\nQUIT\r\n")
            return b"".join([part async for part in stream]).decode("latin-1")


def redis_server() -> str:
    """Return the path of the program; without it, skip the test, or fail it where every program is required."""
    found = shutil.which("redis-server")
    if found is None:
        assert os.environ.get("CI") != "true", "redis-server is missing"
        pytest.skip("redis-server is not installed")
    return found


@asynccontextmanager
async def running_store(folder: Path, *, password: str | None = None) -> AsyncIterator[Store]:
    """Run a store for one test."""
    own = folder / "store"
    own.mkdir()
    store = Store(own, lasting_port(), password)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()
        shutil.rmtree(own, ignore_errors=True)
