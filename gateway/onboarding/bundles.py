"""Verify and unpack bundles, and propose an entry for the server inside.

A bundle (.mcpb) is a ZIP archive with the files of an MCP server and a manifest that says how to start the server.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gateway.config.file_edits import literal
from gateway.onboarding.packages import MAX_BUNDLE_BYTES, Input, Proposal, SourceRefused, alias_of, fetch, variable
from gateway.process.files import home_folder, make_private_folder
from registry.schema.display_text import excerpt

# Limits of an unpacked bundle. The file limit is high because Node modules consist of many small files.
_MAX_FILES: Final = 100_000
_MAX_UNPACKED_BYTES: Final = 1024 * 1024 * 1024
_MAX_MANIFEST_BYTES: Final = 1024 * 1024
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST_CHARS: Final = 12
_USER_CONFIG: Final = re.compile(r"\$\{user_config\.([A-Za-z0-9_-]+)\}")
_PLACES: Final = re.compile(r"\$\{(__dirname|HOME|DESKTOP|DOCUMENTS|DOWNLOADS|pathSeparator|/)\}")
_PROGRAMS: Final = frozenset({"node", "python", "python3", "uv", "uvx"})
_PLATFORMS: Final = {"linux": "linux", "darwin": "darwin", "win32": "win32"}


def bundle_proposal(source: str, *, sha256: object, folder: Callable[[], Path], arguments: list[str]) -> Proposal:
    """Unpack a bundle, and return the proposed configuration entry for its server.

    Args:
        source: A path or URL.
        sha256: The expected digest; required if `source` is a URL.
        folder: Returns the parent folder. The bundle is unpacked into a subfolder named after the server and the
            digest.
        arguments: Additional arguments of the program, after those of the manifest.

    Raises:
        SourceRefused: The file is not a bundle, has a different digest, or is not safe to unpack.
    """
    remote = "://" in source
    expected = str(sha256).lower().removeprefix("sha256:") if sha256 else None
    if expected is not None and not _SHA256.fullmatch(expected):
        raise SourceRefused("the digest is not a SHA-256 in hexadecimal digits")
    if remote and expected is None:
        raise SourceRefused("a bundle from the network needs a digest; expected --sha256 DIGEST")
    content = fetch(source, most_bytes=MAX_BUNDLE_BYTES) if remote else _read_bundle(Path(source))
    digest = hashlib.sha256(content).hexdigest()
    if expected is not None and digest != expected:
        raise SourceRefused(f"the bundle has the digest {digest} instead of {expected}: it is not the published file")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = _sound_files(archive)
            manifest = _manifest(archive)
            name = str(manifest.get("name") or "bundle")
            home = folder() / f"{alias_of(name)}-{digest[:_DIGEST_CHARS]}"
            proposal = _proposal(manifest, name, home)
            proposal.entry["args"] += arguments
            if not home.exists():
                _unpack(archive, files, home)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise SourceRefused(f"the bundle cannot be unpacked ({str(error) or type(error).__name__})") from None
    origin = f"bundle {excerpt(name, 80)} {excerpt(str(manifest.get('version', '')), 40)} sha256:{digest}"
    return replace(proposal, origin=origin)


def _read_bundle(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BUNDLE_BYTES + 1)
    except OSError as error:
        raise SourceRefused(f"{path} cannot be read ({error.strerror})") from None
    if len(content) > MAX_BUNDLE_BYTES:
        raise SourceRefused(f"{path} has more than {MAX_BUNDLE_BYTES // 2**20} MiB")
    return content


def _sound_files(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the entries of an archive after checking that unpacking writes only inside the target folder.

    Raises:
        SourceRefused: There are too many files, or an entry has an unsafe name, a duplicate name or a special type.
    """
    files = archive.infolist()
    if len(files) > _MAX_FILES:
        raise SourceRefused(f"the bundle has more than {_MAX_FILES:,} files")
    if sum(file.file_size for file in files) > _MAX_UNPACKED_BYTES:
        raise SourceRefused(f"the bundle unpacks to more than {_MAX_UNPACKED_BYTES // 2**20} MiB")
    seen: set[str] = set()
    for file in files:
        # Check the original name as well, because zipfile normalizes some names.
        for name in {file.orig_filename, file.filename}:
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", name) or "\0" in name:
                raise SourceRefused(f"the bundle wants to write outside of its folder: {excerpt(name, 80)!r}")
        mode = file.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise SourceRefused(f"the bundle contains a link or a device: {excerpt(file.filename, 80)!r}")
        if file.filename.casefold() in seen:
            raise SourceRefused(f"the bundle has two files with the same name: {excerpt(file.filename, 80)!r}")
        seen.add(file.filename.casefold())
    return files


def _manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        with archive.open("manifest.json") as stream:
            content = stream.read(_MAX_MANIFEST_BYTES + 1)
    except KeyError:
        raise SourceRefused("the bundle has no manifest.json") from None
    try:
        manifest = json.loads(content) if len(content) <= _MAX_MANIFEST_BYTES else None
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("server"), dict):
        raise SourceRefused("the manifest of the bundle cannot be read")
    return manifest


def _unpack(archive: zipfile.ZipFile, files: list[zipfile.ZipInfo], home: Path) -> None:
    """Unpack into a temporary folder and rename it, so that `home` is complete or does not exist."""
    make_private_folder(home.parent)
    work = home.with_name(f".{home.name}-{os.getpid()}")
    bytes_left = _MAX_UNPACKED_BYTES
    try:
        for file in files:
            target = work / PurePosixPath(file.filename.replace("\\", "/"))
            if file.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(file) as source, target.open("xb") as sink:
                # The sizes stated in the archive can be wrong, so count the bytes that are actually unpacked.
                while part := source.read(1024 * 1024):
                    bytes_left -= len(part)
                    if bytes_left < 0:
                        raise SourceRefused(f"the bundle unpacks to more than {_MAX_UNPACKED_BYTES // 2**20} MiB")
                    sink.write(part)
            target.chmod(0o755 if (file.external_attr >> 16) & 0o100 else 0o644)
        work.rename(home)
    except BaseException:
        import shutil

        shutil.rmtree(work, ignore_errors=True)
        raise


def _proposal(manifest: dict[str, Any], name: str, home: Path) -> Proposal:
    server = manifest["server"]
    config = server.get("mcp_config")
    if not isinstance(config, dict):
        raise SourceRefused("the manifest of the bundle does not say how to start it")
    overrides = config.get("platform_overrides")
    own = overrides.get(_PLATFORMS.get(sys.platform, "")) if isinstance(overrides, dict) else None
    config = {**config, **own} if isinstance(own, dict) else config
    command, args, env = config.get("command"), config.get("args") or [], config.get("env") or {}
    is_valid = isinstance(command, str) and isinstance(args, list) and all(isinstance(arg, str) for arg in args)
    if not is_valid or not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise SourceRefused("the manifest of the bundle does not say how to start it")
    inputs: dict[str, Input] = {}
    user_config = manifest.get("user_config") if isinstance(manifest.get("user_config"), dict) else {}
    program = str(command)
    started = _text(program, home, user_config, inputs)
    inside = started.startswith(f"{home}{os.sep}") and ".." not in Path(started).parts
    if program not in _PROGRAMS and not inside:
        raise SourceRefused(f"the bundle starts {excerpt(program, 80)!r}, which is neither in it nor a known runtime")
    entry: dict[str, Any] = {"command": started, "args": [_text(arg, home, user_config, inputs) for arg in args]}
    if env:
        entry["env"] = {variable(key): _text(value, home, user_config, inputs) for key, value in env.items()}
    return Proposal(alias=alias_of(name), origin="", entry=entry, inputs=list(inputs.values()))


def _text(text: str, home: Path, user_config: Any, inputs: dict[str, Input]) -> str:
    """Convert a text of the manifest to the syntax of the configuration. Its inputs are added to `inputs`.

    Paths such as `${__dirname}` are replaced by their values; `${user_config.KEY}` becomes `${KEY}`.
    """
    places = {
        "__dirname": str(home),
        "HOME": str(home_folder()),
        "pathSeparator": os.sep,
        "/": os.sep,
        "DESKTOP": str(home_folder() / "Desktop"),
        "DOCUMENTS": str(home_folder() / "Documents"),
        "DOWNLOADS": str(home_folder() / "Downloads"),
    }

    def declare_input(match: re.Match[str]) -> str:
        about = user_config.get(match[1])
        about = about if isinstance(about, dict) else {}
        name = variable(re.sub(r"\W", "_", match[1]).upper())
        default = about.get("default")
        inputs[name] = Input(
            name=name,
            about=excerpt(str(about.get("title") or about.get("description") or ""), 120),
            secret=bool(about.get("sensitive")),
            required=bool(about.get("required")),
            default=str(default) if isinstance(default, str | int | float) else None,
        )
        return f"\0{name}\0"

    marked = _USER_CONFIG.sub(declare_input, text)
    placed = _PLACES.sub(lambda match: places[match[1]], marked)
    return re.sub("\0([^\0]*)\0", r"${\1}", literal(placed))
