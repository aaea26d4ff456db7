"""Check the example calls of the configuration against the schemas of their tools.

The check uses `jsonschema`, whose errors name the argument and the violated rule. Since a pattern in the schema of an
upstream can take minutes to match, `jsonschema` runs in a separate process, which is terminated after
`_CHECK_TIMEOUT_S` seconds.
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

# Time limit for one example. Most checks take milliseconds, and starting the process takes less than a second.
_CHECK_TIMEOUT_S: Final = 10.0
_MAX_TEXT_CHARS: Final = 300


async def warnings_of_examples(registry: Registry) -> list[str]:
    """Return a warning for each configured example that does not fit the schema of its tool."""
    warnings: list[str] = []
    for wrapper, place, example in _examples(registry):
        problem: str | None = f"could not be checked in {_CHECK_TIMEOUT_S:g} s"
        with anyio.move_on_after(_CHECK_TIMEOUT_S), suppress(BrokenWorkerProcess):
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
    """Return why arguments are invalid, beginning with the path of the invalid argument; None if they are valid.

    References to other documents are not followed.
    """
    # Imported here, because only the separate process needs these packages.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import UnknownType, best_match
    from jsonschema.validators import validator_for
    from referencing import Registry as References
    from referencing.exceptions import Unresolvable

    try:
        validator = validator_for(schema, default=Draft202012Validator)
        error = best_match(validator(schema, registry=References()).iter_errors(arguments))
    except (re.error, UnknownType, Unresolvable, LookupError, RecursionError, TypeError, ValueError) as cannot:
        # The schema comes from an upstream. Its patterns, for example, may use the syntax of another language.
        return f"could not be checked: {type(cannot).__name__}: {cannot}"
    if error is None:
        return None
    place = error.json_path.removeprefix("$").removeprefix(".")
    return f"{place}: {error.message}" if place else error.message
