"""The registered types of upstreams, and reading an entry as its type."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.section import fault
from gateway.config.server import HostKeys, ServerConfig
from gateway.config.upstream_types.graphql_config import GraphqlConfig
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.config.upstream_types.sse_config import SseConfig
from gateway.config.upstream_types.stdio_config import StdioConfig

# The order in which the type of an entry is inferred from its keys; the first is the default.
UPSTREAM_TYPES: Final[tuple[type[ServerConfig], ...]] = (
    StdioConfig,
    HttpConfig,
    SseConfig,
    GraphqlConfig,
)
_BY_NAME: Final = {str(model.model_fields["type"].default): model for model in UPSTREAM_TYPES}
_NAMES: Final = {spelling: name for name, model in _BY_NAME.items() for spelling in (name, *model.spellings)}


def _type_of(entry: dict[str, Any]) -> str | None:
    """The name of an entry's type, stated or inferred; None where the stated one is unknown."""
    stated = entry.get("type")
    if stated is not None:
        return _NAMES.get(stated.casefold()) if isinstance(stated, str) else None
    inferred = (name for name, model in _BY_NAME.items() if model.inferred_from and entry.get(model.inferred_from))
    return next(inferred, next(iter(_BY_NAME)))


def _of_its_type(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    name = _type_of(entry)
    if name is None:
        *others, last = (f"'{name}'" for name in _BY_NAME)
        raise fault("has a wrong value", f"{', '.join(others)} or {last}", key="type")
    model = _BY_NAME[name]
    # A key that the type does not use is ignored, but not when its form is wrong: its author meant something by it.
    unused = model.tolerated_keys.difference(model.model_fields)
    HostKeys.model_validate({key: entry[key] for key in unused if key in entry})
    return model.model_validate({**entry, "type": name})


class _EntrySchema:
    """Describes an entry as one object with the keys of all types, which editors show best.

    Which of them go together is checked by the loader.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core_schema)
        entry = handler.resolve_ref_schema(reference)
        kind = {name: member for name, member in entry["properties"]["type"].items() if name != "default"}
        for model in UPSTREAM_TYPES:
            entry["properties"] |= handler.resolve_ref_schema(handler(model.__pydantic_core_schema__))["properties"]
        entry["properties"]["type"] = {**kind, "enum": list(_BY_NAME)}
        entry["description"] = entry["description"].partition("\n\n")[0]  # the rest is for authors of a type
        return reference


AnyServerConfig = Annotated[ServerConfig, BeforeValidator(_of_its_type), _EntrySchema()]
"""An entry, read as the model of its type."""


@cache
def _entry() -> TypeAdapter[ServerConfig]:
    # Late: it builds the models of every type.
    return TypeAdapter(AnyServerConfig)


def read_server(entry: object) -> ServerConfig:
    """One entry that is not in a file.

    Raises:
        ValidationError: It cannot be used.
    """
    return _entry().validate_python(entry)


def unknown_keys(entry: dict[str, Any]) -> list[str]:
    """The keys of an entry that have no meaning for its type."""
    model = _BY_NAME.get(_type_of(entry) or "", UPSTREAM_TYPES[0])
    known = {*model.keys(), *model.model_fields, *model.tolerated_keys}
    return [key for key in entry if key not in known]


def all_keys() -> list[str]:
    """Every key that an entry of some type may have."""
    return list(dict.fromkeys(chain.from_iterable(model.keys() for model in UPSTREAM_TYPES)))
