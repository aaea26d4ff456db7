"""Every schema in a document, compiled: all of them at once, or each when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    import jsonschema_rs

# Never fetched; documents refer to themselves by it.
_NAME: Final = "urn:typegate:schema"
# What a pointer may hold in a fragment (RFC 3986, section 3.5).
_IN_FRAGMENTS: Final = "/~!$&'()*+,;=:@"


class CompiledParts:
    """Validators of the schemas in a document, by their pointers.

    A schema with references is compiled with all that they lead to, each in its own copy. Of 100 types that refer to
    each other that is 3 s and half a gigabyte, and of the few that a value is looked at with some tens of milliseconds.
    """

    def __init__(self, schema: Any, dialect: str, options: dict[str, Any], *, one_by_one: bool) -> None:
        """Compile all schemas, or prepare to.

        Args:
            schema: The document, which compiles.
            dialect: The class that compiles it.
            options: For the compiler.
            one_by_one: Compile each schema when it is asked for.
        """
        self._schema = schema
        self._dialect = dialect
        self._options = options
        self._registry: jsonschema_rs.Registry | None = None
        self._all: jsonschema_rs.ValidatorMap | None = None
        if not one_by_one:
            self._compile_all()

    def at(self, pointer: str) -> jsonschema_rs.Validator | None:
        """Return the schema at a pointer; None if there is none.

        Those that are compiled one by one tell the whole path of the schema of an error, others the path from theirs.
        """
        import jsonschema_rs  # here, so that importing the registry stays quick

        if self._all is not None:
            return self._all.get(pointer)
        try:
            if self._registry is None:
                draft = getattr(jsonschema_rs, self._dialect.removesuffix("Validator"))
                self._registry = jsonschema_rs.Registry([(_NAME, self._schema)], draft=draft)
            make = getattr(jsonschema_rs, self._dialect)
            reference = {"$ref": f"{_NAME}#{quote(pointer[1:], safe=_IN_FRAGMENTS)}"}
            validator: jsonschema_rs.Validator = make(reference, registry=self._registry, **self._options)
            return validator
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
            # An identifier that the whole document gets along with, perhaps.
            self._compile_all()
            return self.at(pointer)

    def _compile_all(self) -> None:
        import jsonschema_rs

        options = self._options
        self._all = jsonschema_rs.validator_map_for(self._schema, **options)
