"""Check the example calls of the configuration against the schemas of their tools.

`jsonschema` explains what is wrong, because it speaks of the argument and of the rule. It has no bounds: a pattern of a
server can stop it for minutes. It therefore runs in a process of its own, which is ended after `_EXPLAINED_S`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import BrokenWorkerProcess, to_process

from registry.schema.display_text import excerpt

if TYPE_CHECKING:
    from registry.catalog.catalog import ToolWrapper
    from registry.catalog.registry import Registry

# Most schemas take milliseconds; starting the process takes less than a second.
_EXPLAINED_S: Final = 10.0
_MAX_TEXT_CHARS: Final = 300


async def warnings_of_examples(registry: Registry) -> list[str]:
    """Return a warning for each configured example that does not fit the schema of its tool."""
    warnings: list[str] = []
    for wrapper, place, example in _examples(registry):
        problem: str | None = f"could not be checked in {_EXPLAINED_S:g} s"
        with anyio.move_on_after(_EXPLAINED_S), suppress(BrokenWorkerProcess):
            problem = await to_process.run_sync(explain, wrapper.input_schema, example, cancellable=True)
        if problem is not None:
            name = f"mcpServers.{wrapper.server}.tools.{wrapper.tool}.examples[{place}]"
            warnings.append(f"{name}: {excerpt(problem, _MAX_TEXT_CHARS)}")
    return warnings


def _examples(registry: Registry) -> Iterator[tuple[ToolWrapper, int, Any]]:
    for wrapper in registry.catalog.wrappers:
        shape = registry.shape.for_server(wrapper.server)
        for place, example in enumerate(shape.examples.get(wrapper.tool, ())):
            yield wrapper, place, example


def explain(schema: Mapping[str, Any], arguments: Any) -> str | None:
    """Return what is wrong with arguments, beginning with the path of the wrong one; None if nothing is.

    References to other documents are not followed.
    """
    # Imported here, because only the process that explains needs it.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import UnknownType, best_match
    from jsonschema.validators import validator_for
    from referencing import Registry as References
    from referencing.exceptions import Unresolvable

    try:
        validator = validator_for(schema, default=Draft202012Validator)
        error = best_match(validator(schema, registry=References()).iter_errors(arguments))
    except (re.error, UnknownType, Unresolvable, LookupError, RecursionError, TypeError, ValueError) as cannot:
        # The schema is from a server; its patterns, for example, may be in the syntax of another language.
        return f"could not be checked: {type(cannot).__name__}: {cannot}"
    if error is None:
        return None
    place = error.json_path.removeprefix("$").removeprefix(".")
    return f"{place}: {error.message}" if place else error.message
