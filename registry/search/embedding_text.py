"""The text of a tool that a model of sentences reads."""

from __future__ import annotations

import re
from typing import Final

from registry.schema.display_text import name_as_words
from registry.search.index import SearchableTool

# Small embedding models read some 250 tokens, and get less specific the more there are: one sentence is best.
_SENTENCE_CHARS: Final = 240
# Where the end of the first sentence is looked for, before it is cut.
_READ_CHARS: Final = _SENTENCE_CHARS * 4
# Names may have a thousand characters.
_NAME_CHARS: Final = 200
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")


def embedding_text(tool: SearchableTool) -> str:
    """Return the text to embed for a tool: server and name as words, and the first sentence of its description."""
    description = tool.definition.get("description")
    first = _SENTENCE_END.split(description[:_READ_CHARS].strip(), 1)[0] if isinstance(description, str) else ""
    names = f"{name_as_words(tool.server[:_NAME_CHARS])}: {name_as_words(tool.tool[:_NAME_CHARS])}".lower()
    text = f"{names}. {first[:_SENTENCE_CHARS]}"
    # Tokenizers refuse halves of surrogate pairs.
    return text.encode("utf-8", "replace").decode("utf-8")
