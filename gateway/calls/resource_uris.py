"""URIs in results: each leads back to the server that named it, also where other servers have the same URI."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from cachetools import LRUCache

from gateway import wire
from gateway.calls.context import Caller
from registry.catalog.catalog import Catalog
from registry.catalog.names import ServerName
from registry.catalog.prompts_and_resources import ItemCatalog
from registry.catalog.shared_uris import UI_PREFIX, qualified_uri, with_renamed
from registry.intake.prompts_and_resources import MAX_KEY_LENGTH
from registry.schema.json_values import edited, map_items

# Unlisted URIs that a host may still read: those of some hundred results. Each takes some hundred bytes.
_MAX_NAMED: Final = 4_096

Rename = Callable[[Any], Any]


class ResourceUris:
    """Renames shared URIs in results, and remembers which server has named a URI that no server lists."""

    def __init__(self) -> None:
        self._named: LRUCache[tuple[str, str], ServerName] = LRUCache(_MAX_NAMED)

    def owners(self, catalog: Catalog, uri: str, *who: str | None) -> tuple[tuple[ServerName, str], ...]:
        """Return the servers that may know a URI, as `ItemCatalog.owners`: first the one that has named it last.

        Args:
            catalog: The caller's.
            uri: As the caller sent it.
            who: The caller: its session, where it has one, before its principal.
        """
        items = catalog.prompts_and_resources
        owners = items.owners(uri)
        if items.is_settled(uri):
            return owners
        named = next((found for one in who if one and (found := self._named.get((one, uri))) is not None), None)
        return owners if named is None else tuple(sorted(owners, key=lambda owner: owner != (named, uri)))

    def renaming(self, server: str, caller: Caller) -> Rename:
        """Return what renames the URIs in one content item, or in the `_meta`, of a server's result."""
        items, own = caller.view.catalog.prompts_and_resources, ServerName(server)
        keys = items.keys_of.get(own, {})
        exposed = partial(self._exposed, items, own, caller)

        def rename_in_meta(text: str) -> str:
            return exposed(text) if text.startswith(UI_PREFIX) else keys.get(text, text)

        return partial(_renamed, rename=exposed, rename_in_meta=rename_in_meta)

    def _exposed(self, items: ItemCatalog, server: ServerName, caller: Caller, uri: str) -> str:
        exposed = items.exposed_uri(server, uri)
        if exposed == uri and len(uri) <= MAX_KEY_LENGTH and not items.is_settled(uri):
            principal = caller.principal.name
            if uri.startswith(UI_PREFIX) and self._named.get((principal, uri), server) != server:
                # Apps of two servers that no list has, so that nobody could foresee it.
                return qualified_uri(server, uri)
            self._named[principal, uri] = server
            if caller.session_id is not None:
                self._named[caller.session_id, uri] = server
        return exposed


def rename_in_result(result: dict[str, Any], rename: Rename) -> dict[str, Any]:
    """Return a result of any method with its URIs renamed; the same object if there is nothing to rename."""
    changes: dict[str, Any] = {}
    for member in ("content", "contents"):
        if isinstance(items := result.get(member), list):
            changes[member] = map_items(items, rename)
    if isinstance(messages := result.get("messages"), list):
        changes["messages"] = map_items(messages, lambda message: _of_message(message, rename))
    if isinstance(meta := result.get("_meta"), dict):
        changes["_meta"] = rename({"_meta": meta})["_meta"]
    return edited(result, {name: value for name, value in changes.items() if value is not result[name]})


def may_name_uris(content: wire.Unparsed) -> bool:
    """Return whether a content may name a resource, which only a reader of all of it can tell."""
    text = bytes(content.text)
    return b"resource" in text or UI_PREFIX.encode() in text


def _of_message(message: Any, rename: Rename) -> Any:
    if not isinstance(message, dict) or "content" not in message:
        return message
    content = message["content"]
    renamed = map_items(content, rename) if isinstance(content, list) else rename(content)
    return message if renamed is content else {**message, "content": renamed}


def _renamed(item: Any, rename: Callable[[str], str], rename_in_meta: Callable[[str], str]) -> Any:
    """Return a content item with its own URI, those of an embedded resource and those in `_meta` renamed."""
    if not isinstance(item, dict):
        return item
    changes: dict[str, Any] = {}
    uri, resource, meta = item.get("uri"), item.get("resource"), item.get("_meta")
    if isinstance(uri, str) and (renamed := rename(uri)) != uri:
        changes["uri"] = renamed
    if isinstance(resource, dict) and (inner := _renamed(resource, rename, rename_in_meta)) is not resource:
        changes["resource"] = inner
    if isinstance(meta, dict) and (told := with_renamed(meta, rename_in_meta)) is not meta:
        changes["_meta"] = told
    return edited(item, changes)
