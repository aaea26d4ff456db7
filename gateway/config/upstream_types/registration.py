"""The registered types of upstreams, and the validation of an entry as its type."""

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
from gateway.config.upstream_types.http_config import HttpConfig, SseConfig
from gateway.config.upstream_types.openapi_config import OpenapiConfig
from gateway.config.upstream_types.stdio_config import StdioConfig

# The order in which the types are tried if an entry does not state its type. The first type is the default.
UPSTREAM_TYPES: Final[tuple[type[ServerConfig], ...]] = (
    StdioConfig,
    HttpConfig,
    SseConfig,
    GraphqlConfig,
    OpenapiConfig,
)
_BY_NAME: Final = {str(model.model_fields["type"].default): model for model in UPSTREAM_TYPES}
_NAMES: Final = {spelling: name for name, model in _BY_NAME.items() for spelling in (name, *model.spellings)}


def _type_of(entry: dict[str, Any]) -> str | None:
    """Return the name of an entry's type, stated or inferred; None if the stated type is unknown."""
    stated = entry.get("type")
    if stated is not None:
        return _NAMES.get(stated.casefold()) if isinstance(stated, str) else None
    inferred = (name for name, model in _BY_NAME.items() if model.inferred_from and entry.get(model.inferred_from))
    return next(inferred, next(iter(_BY_NAME)))


def _validate_as_type(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    name = _type_of(entry)
    if name is None:
        *first_types, last = (f"'{name}'" for name in _BY_NAME)
        raise fault("has a wrong value", f"{', '.join(first_types)} or {last}", key="type")
    model = _BY_NAME[name]
    # Keys that the type does not use are ignored, but their values are validated to report mistakes.
    unused = model.tolerated_keys.difference(model.model_fields)
    HostKeys.model_validate({key: entry[key] for key in unused if key in entry})
    return model.model_validate({**entry, "type": name})


class _EntrySchema:
    """Describe an entry as one object with the keys of all types, which works best in editors.

    The loader checks which keys can be combined.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core_schema)
        entry = handler.resolve_ref_schema(reference)
        kind = {name: member for name, member in entry["properties"]["type"].items() if name != "default"}
        for model in UPSTREAM_TYPES:
            entry["properties"] |= handler.resolve_ref_schema(handler(model.__pydantic_core_schema__))["properties"]
        entry["properties"]["type"] = {**kind, "enum": list(_BY_NAME)}
        entry["description"] = entry["description"].partition("\n\n")[0]  # further paragraphs are for developers
        return reference


AnyServerConfig = Annotated[ServerConfig, BeforeValidator(_validate_as_type), _EntrySchema()]
"""A server entry, validated as the model of its type."""


@cache
def _adapter() -> TypeAdapter[ServerConfig]:
    # Created on first use, because it builds the models of every type.
    return TypeAdapter(AnyServerConfig)


def read_server(entry: object) -> ServerConfig:
    """Validate a single entry that does not come from a file.

    Raises:
        ValidationError: The entry is invalid.
    """
    return _adapter().validate_python(entry)


def unknown_keys(entry: dict[str, Any]) -> list[str]:
    """Return the keys of an entry that have no meaning for its type."""
    model = _BY_NAME.get(_type_of(entry) or "", UPSTREAM_TYPES[0])
    meaningful = {*model.keys(), *model.model_fields, *model.tolerated_keys}
    return [key for key in entry if key not in meaningful]


def all_keys() -> list[str]:
    """Return the keys of all types of entries."""
    return list(dict.fromkeys(chain.from_iterable(model.keys() for model in UPSTREAM_TYPES)))
