"""The store of sign-ins: private, encrypted with a key, and written by one process at a time."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail, null
from keyrings.alt.file import PlaintextKeyring

from gateway.protocol.gateway_errors import ConfigError
from gateway.upstream.oauth.token_store import (
    Conflict,
    Encryption,
    FileTokenStore,
    KeyedLocks,
    MemoryTokenStore,
    TokenStore,
    encryption_from,
)

KEY = "k" * 40
STORES = pytest.mark.parametrize("kind", ["memory", "files"])


def store_of(kind: str, folder: Path, key: str | None = None) -> TokenStore:
    return MemoryTokenStore() if kind == "memory" else FileTokenStore(folder, Encryption(key))


@STORES
async def test_document_is_replaced_only_with_its_current_version(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    assert await store.load("sign-in:a") is None
    version = await store.save("sign-in:a", {"n": 1}, expected=0)
    with pytest.raises(Conflict):
        await store.save("sign-in:a", {"n": 2}, expected=0)
    stamp = await store.stamp("sign-in:a")
    await store.save("sign-in:a", {"n": 2}, expected=version)
    assert await store.stamp("sign-in:a") != stamp
    stored = await store.load("sign-in:a")
    assert stored is not None
    assert stored.document == {"n": 2}


@STORES
async def test_concurrent_pop_returns_a_document_once(kind: str, tmp_path: Path) -> None:
    store, taken = store_of(kind, tmp_path), []
    await store.save("pending:a", {"n": 1}, expected=0)

    async def take() -> None:
        taken.append(await store.pop("pending:a"))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(take)
    assert sorted(taken, key=bool) == [None] * 4 + [{"n": 1}]


async def test_store_files_are_private(tmp_path: Path) -> None:
    store = FileTokenStore(tmp_path / "state", Encryption())
    await store.save("sign-in:a", {"n": 1}, expected=0)
    async with store.lock("sign-in:a"):
        pass
    [folder] = (tmp_path / "state").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


async def test_file_writable_by_others_is_not_trusted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileTokenStore(tmp_path, Encryption())
    await store.save("sign-in:a", {"n": 1}, expected=0)
    [path] = (tmp_path / "sign-ins").glob("*.json")
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert await store.load("sign-in:a") is None
    assert "open to other users" in caplog.text
    # A replacement of the file is trusted again.
    await store.save("sign-in:a", {"n": 2}, expected=0)
    assert (await store.load("sign-in:a")).document == {"n": 2}  # type: ignore[union-attr] # it was stored


async def test_encrypted_store_is_unreadable_without_its_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain, sealed = FileTokenStore(tmp_path, Encryption()), FileTokenStore(tmp_path, Encryption(KEY))
    await plain.save("sign-in:a", {"token": "first secret"}, expected=0)
    # A key that is configured later reads earlier plain documents, and writes encrypted ones.
    stored = await sealed.load("sign-in:a")
    assert stored is not None
    await sealed.save("sign-in:a", {"token": "second secret"}, expected=stored.version)
    [path] = (tmp_path / "sign-ins").glob("*.json")
    assert b"secret" not in path.read_bytes()
    assert (await sealed.load("sign-in:a")).document == {"token": "second secret"}  # type: ignore[union-attr] # it was stored
    with caplog.at_level(logging.WARNING):
        assert await plain.load("sign-in:a") is None
        assert await FileTokenStore(tmp_path, Encryption("x" * 40)).load("sign-in:a") is None
    assert "TYPEGATE_STATE_KEY is not set" in caplog.text
    assert "another TYPEGATE_STATE_KEY" in caplog.text
    # The content of another document is rejected, although the key is right.
    other = tmp_path / "sign-ins" / path.name.replace(path.stem, "moved")
    other.write_bytes(path.read_bytes())
    os.replace(other, sealed._path("sign-in:b"))
    sealed._path("sign-in:b").chmod(0o600)
    assert await sealed.load("sign-in:b") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b"\xff", b'{"version": "x", "document": {}}'])
async def test_damaged_file_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    store = FileTokenStore(tmp_path, Encryption())
    await store.save("sign-in:a", {"n": 1}, expected=0)
    [path] = (tmp_path / "sign-ins").glob("*.json")
    path.write_bytes(content)
    assert await store.load("sign-in:a") is None


def test_key_comes_from_the_environment_or_an_owned_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    assert not encryption_from({}).active
    assert encryption_from({"TYPEGATE_STATE_KEY": KEY}).active
    sealed = encryption_from({"TYPEGATE_STATE_KEY": KEY}).encrypt(b"text", name="n")
    assert encryption_from({"TYPEGATE_STATE_KEY_FILE": str(path)}).decrypt(sealed, name="n") == b"text"
    # A file that is readable by the group of a volume is accepted.
    path.chmod(0o640)
    assert encryption_from({"TYPEGATE_STATE_KEY_FILE": str(path)}).decrypt(sealed, name="n") == b"text"
    path.chmod(0o644)
    for environ, reason in (
        ({"TYPEGATE_STATE_KEY": "short"}, "too short"),
        ({"TYPEGATE_STATE_KEY": KEY, "TYPEGATE_STATE_KEY_FILE": str(path)}, "only one of them"),
        ({"TYPEGATE_STATE_KEY_FILE": str(path)}, "open to other users"),
        ({"TYPEGATE_STATE_KEY_FILE": str(tmp_path / "none")}, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=reason):
            encryption_from(environ)


_HOLDER = """
import asyncio, sys
from pathlib import Path
from gateway.upstream.oauth.token_store import Encryption
from gateway.upstream.oauth.token_store import FileTokenStore
async def main():
    async with FileTokenStore(Path(sys.argv[1]), Encryption()).lock("sign-in:a"):
        print("held", flush=True)
        sys.stdin.readline()
asyncio.run(main())
"""


async def test_lock_excludes_other_processes_and_ends_with_its_holder(tmp_path: Path) -> None:
    store = FileTokenStore(tmp_path, Encryption())
    process = await anyio.open_process([sys.executable, "-c", _HOLDER, str(tmp_path)])
    try:
        assert process.stdout is not None
        assert (await process.stdout.receive()).startswith(b"held")
        with anyio.move_on_after(0.2) as waited:
            async with store.lock("sign-in:a"):
                pass
        assert waited.cancelled_caught
        async with store.lock("sign-in:b"):
            pass
    finally:
        process.kill()
        await process.wait()
        await process.aclose()
    with anyio.fail_after(25):
        async with store.lock("sign-in:a"):
            pass


@pytest.fixture
def kept_in_a_file(tmp_path: Path) -> Iterator[Path]:
    """The keyring of this process is a file."""
    before, own = keyring.get_keyring(), PlaintextKeyring()
    path = own.file_path = tmp_path / "keyring.cfg"
    keyring.set_keyring(own)
    yield path
    keyring.set_keyring(before)


def test_system_keyring_stores_a_key_at_first_start(kept_in_a_file: Path) -> None:
    environment = {"TYPEGATE_STATE_KEY": "keyring"}
    sealed = encryption_from(environment).encrypt(b"text", name="n")
    assert b"text" not in sealed
    assert encryption_from(environment).decrypt(sealed, name="n") == b"text"
    assert "typegate" in kept_in_a_file.read_text()
    keyring.set_password("typegate", "state-key", "short")
    with pytest.raises(ConfigError, match="too short for a key"):
        encryption_from(environment)


@pytest.mark.parametrize(
    ("backend", "reason"), [(fail.Keyring(), "cannot be used"), (null.Keyring(), "did not store the key")]
)
def test_unusable_keyring_stops_the_start(backend: KeyringBackend, reason: str) -> None:
    before = keyring.get_keyring()
    keyring.set_keyring(backend)
    try:
        with pytest.raises(ConfigError, match=f"{reason}.*TYPEGATE_STATE_KEY_FILE"):
            encryption_from({"TYPEGATE_STATE_KEY": "keyring"})
    finally:
        keyring.set_keyring(before)


async def test_keyed_lock_exists_while_it_is_in_use() -> None:
    locks, inside, most = KeyedLocks(), 0, 0

    async def work(key: str) -> None:
        nonlocal inside, most
        async with locks.get_lock(key):
            inside += 1
            most = max(most, inside)
            await anyio.lowlevel.checkpoint()
            inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(work, "a")
    assert most == 1
    for number in range(1_000):
        await work(f"key {number}")
    assert len(locks) == 0


def leave_in_removal(folder: Path) -> Path:
    """Rename the only pending document as a removal does, and return its new path."""
    [path] = folder.rglob("pending-*.json")
    return path.rename(path.with_name(f".{path.name}-0123456789abcdef"))


async def test_file_left_by_an_interrupted_removal_is_swept(tmp_path: Path) -> None:
    store = FileTokenStore(tmp_path, Encryption(None))
    await store.save("pending:a", {"verifier": "v"}, expected=0)
    left = leave_in_removal(tmp_path)
    await store.sweep("pending", 600.0)
    assert left.exists()
    os.utime(left, (0, 0))
    await store.sweep("pending", 600.0)
    assert not left.exists()
