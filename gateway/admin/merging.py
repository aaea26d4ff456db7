"""Answers of several processes made one: each figure by one rule, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.admin.routes import Document

# Of a server's row these are counted in each process apart.
_SUMMED: Final = ("inFlight",)


def one_server(documents: Sequence[Document]) -> Document:
    """`/admin/servers/{name}` of every process."""
    return _server(documents)


def all_servers(documents: Sequence[Document]) -> Document:
    """`/admin/servers` of every process."""
    return {"servers": _servers([document["servers"] for document in documents])}


def all_hooks(documents: Sequence[Document]) -> Document:
    """`/admin/hooks` of every process."""
    return {**documents[0], "hooks": _hooks([document["hooks"] for document in documents])}


def all_failures(documents: Sequence[Document]) -> Document:
    """`/admin/failures` of every process; the classes of failures are known to one of them only."""
    return {**documents[0], "repaired": _repairs([document["repaired"] for document in documents])}


def all_quarantine(documents: Sequence[Document]) -> Document:
    """`/admin/quarantine` of every process: they have the same catalog, and one knows what calls sent unchecked."""
    rows = list(documents[0]["quarantine"])
    for document in documents[1:]:
        rows += [row for row in document["quarantine"] if row["status"] == "unchecked" and row not in rows]
    return {**documents[0], "quarantine": rows}


def _server(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One server at all workers: as at the one that is worst off; its calls are summed."""
    worst = max(rows, key=lambda row: (row.get("lastError") is not None, row.get("state") != "ready"))
    ready = all(row.get("state") == rows[0].get("state") for row in rows)
    shown = dict(rows[0] if ready else worst)
    shown["lastError"] = next((row["lastError"] for row in rows if row.get("lastError") is not None), None)
    for member in _SUMMED:
        shown[member] = sum(row.get(member) or 0 for row in rows)
    return shown


def _servers(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The servers of all workers, in the order of the first."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for rows in lists:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    return [_server(rows) for rows in by_name.values()]


def _repairs(lists: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The repaired calls of all workers, summed for each tool."""
    found: dict[str, dict[str, Any]] = {}
    for rows in lists:
        for row in rows:
            kept = found.setdefault(row["wrapper"], {"wrapper": row["wrapper"], "calls": 0, "repairs": {}})
            kept["calls"] += row["calls"]
            for name, count in row["repairs"].items():
                kept["repairs"][name] = kept["repairs"].get(name, 0) + count
    return [found[name] for name in sorted(found)]


def _hooks(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The hooks of all workers, in the order of the first: what was counted is summed, an open breaker shows."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for rows in lists:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    return [
        {
            **rows[0],
            "breaker": "open" if any(row["breaker"] == "open" for row in rows) else "closed",
            "lastError": next((row["lastError"] for row in rows if row["lastError"] is not None), None),
            "seconds": round(sum(row["seconds"] for row in rows), 6),
            "counts": {key: sum(row["counts"].get(key, 0) for row in rows) for key in rows[0]["counts"]},
        }
        for rows in by_name.values()
    ]
