"""`tools/list` as bytes: serialised once for each catalog and era, then spliced."""

from __future__ import annotations

from typing import Final

from gateway import __version__, wire
from gateway.calls.native import NATIVE_TOOLS
from gateway.eras import SERVER_INFO_KEY
from registry.catalog import Catalog, handshake_definition

SERVER_INFO: Final = {"name": "typegate", "title": "typegate", "version": __version__}
DEFAULT_TTL_MS: Final = 60_000


class ToolViews:
    """The results of `tools/list` for the present catalog, one for each era."""

    def __init__(self) -> None:
        self._digest: object = None
        self._views: dict[bool, bytes] = {}

    def result(self, catalog: Catalog, *, modern: bool, shared: bool) -> bytes:
        """The whole result object, in one page.

        Args:
            catalog: What to list.
            modern: For 2026-07-28; otherwise for the handshake era.
            shared: No key is asked for, so that caches may share the list between callers.
        """
        # A catalog is replaced at each re-listing, also where nothing that is listed has changed.
        key = (catalog.digest, len(catalog.servers), shared)
        if key != self._digest:
            self._views = {}
            self._digest = key
        view = self._views.get(modern)
        if view is None:
            view = self._views[modern] = _serialise(catalog, modern=modern, shared=shared)
        return view


def _serialise(catalog: Catalog, *, modern: bool, shared: bool) -> bytes:
    adapt = (lambda definition: definition) if modern else handshake_definition
    tools = [*NATIVE_TOOLS, *(adapt(wrapper.definition) for wrapper in catalog.wrappers)]
    result = b'{"tools":[' + b",".join(wire.dumps(tool) for tool in tools) + b"]"
    if modern:
        listings = catalog.servers.values()
        ttl_ms = min((one.ttl_ms for one in listings if one.ttl_ms is not None), default=DEFAULT_TTL_MS)
        public = shared and all(one.scope == "public" for one in listings)
        rest = {
            "resultType": "complete",
            "ttlMs": ttl_ms,
            "cacheScope": "public" if public else "private",
            "_meta": {SERVER_INFO_KEY: SERVER_INFO},
        }
        result += b"," + wire.dumps(rest)[1:]
        return result
    return result + b"}"
