"""`/admin/hosts`: the gateway put into the files of hosts on its own machine, and taken out again."""

from __future__ import annotations

import ipaddress
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.changing import etag_of
from gateway.admin.documents import JsonDocument, Refusal, missing, read_body
from gateway.admin.routes import Merge, route
from gateway.calls.profile_views import ProfileViews
from gateway.config.model import Config
from gateway.config.section import Section
from gateway.errors import ConfigError
from gateway.host_files.changes import Installations, Refused
from gateway.host_files.hosts import HOSTS, HostFile, Machine, host_named
from gateway.host_files.installing import Installation, installation, text_of, uninstall, url_entry
from gateway.host_files.text import values_of
from gateway.secrets import Scrubber, secrets_in
from registry.views.profile import DEFAULT_PROFILE

# A person reads no more of a difference; files of hosts have long lines of their own.
_MAX_DIFFERENCE: Final = 60_000
# What a proxy or a tunnel adds: whoever asks through one may sit anywhere.
_OF_PROXIES: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_ELSEWHERE: Final = (
    "files of hosts are written only by a gateway that listens on this machine alone, for a browser on the same machine"
)
_NOT_SEEN: Final = "look first at what will be written, and send the entity tag of that as If-Match"
_OTHER: Final = "the file, or what is to be written, is not what was looked at; nothing was written, look again"
_CURSOR: Final = {"name": "cursor"}
_ROW: Final = {"name": "cursor", "title": "Cursor", "file": "/home/ann/.cursor/mcp.json", "exists": True}
_PLAN: Final = {
    **_ROW, "needed": True, "difference": '+    "typegate": {', "replaces": ["calendar"], "stays": [],
    "tag": '"3f2a9c01b4d70e5d3f2a9c01b4d70e5d"',
}  # fmt: skip


class HostRequest(Section):
    """The body of `POST /admin/hosts/{name}`: what the host is to have."""

    profile: str = Field(default=DEFAULT_PROFILE, examples=["default"])
    """The profile that the host is to see."""
    key: str = Field(default="", max_length=512, pattern=r"^[\x21-\x7e]*$", examples=[""])
    """What the host proves itself with; empty where nobody has to."""
    keep: bool = Field(default=False, examples=[False])
    """Whether servers that the gateway has too stay in the file beside it."""


class HostRoutes:
    """Shows what would be written, writes it, and takes it back; nothing of it from another machine."""

    def __init__(
        self,
        *,
        state_dir: Path,
        url: str | None,
        config: Callable[[], Config],
        views: ProfileViews,
        machine: Callable[[], Machine] = Machine.this,
    ) -> None:
        """Write these.

        Args:
            state_dir: Where is kept what files were before.
            url: Where MCP is served on this machine; None where it is served to others too.
            config: What the gateway serves.
            views: The profiles.
            machine: Where the files of hosts are.
        """
        self._installations = Installations(state_dir)
        self._url = url
        self._config = config
        self._views = views
        self._machine = machine

    @route(
        "GET", "/admin/hosts", merge=Merge.HERE, role="admin", rows="hosts", filters=("q",),
        example={"offered": True, "reason": None, "machine": "desk", "hosts": [{**_ROW, "written": False,
                                                                                "changedSince": None}]},
    )  # fmt: skip
    async def hosts(self, request: Request) -> Response:
        """The hosts whose files on this machine can be written.

        Returns:
            `offered`, and `reason` if not; `machine`: its name; `hosts`: name, title, file, whether that `exists`,
            whether it was `written` here, and whether somebody has changed it since (`changedSince`).
        """
        if not self._is_here(request):
            return JsonDocument({"offered": False, "reason": _ELSEWHERE, "machine": None, "hosts": []})
        rows = await anyio.to_thread.run_sync(lambda: [self._row(host) for host in HOSTS])
        return JsonDocument({"offered": True, "reason": None, "machine": platform.node(), "hosts": rows})

    @route(
        "POST", "/admin/hosts/{name}/preview", merge=Merge.HERE, role="admin", recorded=False, body=HostRequest,
        examples=_CURSOR, example=_PLAN,
    )  # fmt: skip
    async def preview_host(self, request: Request) -> Response:
        """What would be written into the file of a host. Nothing is written.

        Returns:
            name, title and file; `difference` as `diff -u` shows it, without secrets; `needed`: whether there is any;
            `replaces`: servers that the entry takes the place of; `stays`: those beside it; `tag`: what the change
            itself wants as `If-Match`.

        Errors:
            400: The body is wrong.
            403: The gateway, or who asks, is not on this machine alone.
            404: There is no such host, or no such profile.
            409: The file cannot be used, or hides what the gateway would show.
        """
        host, planned, key = await self._planned(request)
        difference = await anyio.to_thread.run_sync(_shown, host, planned, key)
        return JsonDocument(
            {
                **self._place(host),
                "needed": planned.change.is_needed,
                "difference": difference,
                "replaces": list(planned.replaced),
                "stays": list(planned.staying),
                "tag": _tag(planned),
            },
            headers={"etag": _tag(planned)},
        )

    @route(
        "POST", "/admin/hosts/{name}", merge=Merge.HERE, role="admin", body=HostRequest, examples=_CURSOR,
        example={"name": "cursor", "file": "/home/ann/.cursor/mcp.json", "backup": "/var/lib/typegate/installed/3f2a"},
    )  # fmt: skip
    async def write_host(self, request: Request) -> Response:
        """Write the gateway into the file of a host, as the preview has shown it; how it was is kept.

        Returns:
            `name`, `file`, and `backup`: where it is kept as it was, null where there was nothing to write.

        Errors:
            400: The body is wrong.
            403: The gateway, or who asks, is not on this machine alone.
            404: There is no such host, or no such profile.
            409: The file cannot be used, cannot be written, or was written before.
            412: The file, or what is to be written, is not what the preview has shown.
            428: `If-Match` does not name a preview.
        """
        host, planned, _ = await self._planned(request)
        seen = request.headers.get("if-match", "*").strip()
        if seen == "*":
            raise Refusal(428, _NOT_SEEN)
        if seen != _tag(planned):
            raise Refusal(412, _OTHER)
        backup: Path | None = None
        if planned.change.is_needed:
            try:
                backup = await anyio.to_thread.run_sync(planned.make, self._installations)
            except (Refused, ConfigError, OSError) as error:
                raise _unusable(error) from None
        row = {"name": host.name, "file": str(planned.change.path), "backup": str(backup) if backup else None}
        return JsonDocument(row)

    @route(
        "DELETE", "/admin/hosts/{name}", merge=Merge.HERE, role="admin", examples=_CURSOR,
        example={"name": "cursor", "file": "/home/ann/.cursor/mcp.json", "done": "as it was"},
    )  # fmt: skip
    async def restore_host(self, request: Request) -> Response:
        """Give a host its file back as it was.

        Returns:
            `name`, `file`, and `done`: what was done.

        Query:
            force: true: Also where somebody has changed it since; only our entry is taken out then.

        Errors:
            403: The gateway, or who asks, is not on this machine alone.
            404: There is no such host.
            409: Nothing was written there, or somebody has changed it since.
        """
        host, _ = self._wanted(request)
        path, force = self._path(host), request.query_params.get("force") == "true"
        try:
            done = await anyio.to_thread.run_sync(partial(uninstall, host, path, self._installations, force=force))
        except (Refused, ConfigError, OSError, UnicodeDecodeError) as error:
            raise _unusable(error) from None
        return JsonDocument({"name": host.name, "file": str(path), "done": done})

    async def _planned(self, request: Request) -> tuple[HostFile, Installation, str]:
        """What a request wants written: for which host, how, and with which key.

        Raises:
            Refusal: It cannot be.
        """
        host, base = self._wanted(request)
        wanted = await read_body(request, HostRequest)
        if wanted.profile not in self._views.profiles:
            raise missing("profile", wanted.profile)
        url = base if wanted.profile == DEFAULT_PROFILE else f"{base}/{wanted.profile}"
        plan = partial(
            installation, host, self._path(host), url_entry(host, url, key=wanted.key), config=self._config(),
            keep=wanted.keep,
        )  # fmt: skip
        try:
            return host, await anyio.to_thread.run_sync(plan), wanted.key
        except (Refused, ConfigError, OSError) as error:
            raise _unusable(error) from None

    def _is_here(self, request: Request) -> bool:
        """Whether the gateway serves this machine alone, and a browser on it asks."""
        if self._url is None or any(name in request.headers for name in _OF_PROXIES):
            return False
        client = request.client.host if request.client is not None else ""
        return _is_loopback(client) and _is_loopback(request.url.hostname or "")

    def _wanted(self, request: Request) -> tuple[HostFile, str]:
        """The host of a path, and what it is to connect to.

        Raises:
            Refusal: There is no such host, or it is not for whoever asks.
        """
        name = request.path_params["name"]
        if (host := host_named(name)) is None:
            raise missing(f"host (expected one of: {', '.join(each.name for each in HOSTS)}) with the name", name)
        if self._url is None or not self._is_here(request):
            raise Refusal(403, _ELSEWHERE)
        return host, self._url

    def _path(self, host: HostFile) -> Path:
        path = host.file(self._machine())
        assert path is not None  # only projects lack one
        return path

    def _place(self, host: HostFile) -> dict[str, Any]:
        path = self._path(host)
        return {"name": host.name, "title": host.title, "file": str(path), "exists": path.exists()}

    def _row(self, host: HostFile) -> dict[str, Any]:
        path, installations = self._path(host), self._installations
        written = installations.known(path) is not None
        return {
            **self._place(host),
            "written": written,
            "changedSince": not installations.is_untouched(path) if written else None,
        }


def _shown(host: HostFile, planned: Installation, key: str) -> str:
    """The difference, without the secrets of the file and of the entry."""
    path = planned.change.path
    scrubber = Scrubber()
    scrubber.hide([key] if key else [])
    if path.is_file():
        scrubber.hide(secrets_in(values_of(text_of(path), path).get(host.block)))
    text = scrubber.scrub(planned.change.difference())
    return text if len(text) <= _MAX_DIFFERENCE else f"{text[:_MAX_DIFFERENCE]}\n…"


def _tag(planned: Installation) -> str:
    """The entity tag of a change: of the file as it is, and of what it is to be."""
    parts = (planned.change.before, planned.change.after)
    return etag_of([None if part is None else part.hex() for part in parts])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _unusable(error: Exception) -> Refusal:
    if isinstance(error, OSError):
        return Refusal(409, f"{error.filename or 'the file'}: {error.strerror or error}")
    return Refusal(409, str(error))
