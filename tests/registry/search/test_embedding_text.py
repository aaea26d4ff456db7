"""What a model of sentences reads of a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.search.embedding_text import embedding_text


@dataclass(frozen=True)
class Tool:
    server: str
    tool: str
    definition: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.server}__{self.tool}"


def test_the_text_to_embed_is_the_name_in_words_and_the_first_sentence() -> None:
    said = {"description": "Sends a letter. Costs a stamp.\n\nSecond paragraph."}
    assert (
        embedding_text(Tool("post-office", "sendLetter_now", said)) == "post office: send letter now. Sends a letter."
    )
    assert embedding_text(Tool("a", "b", {})) == embedding_text(Tool("a", "b", {"description": 7})) == "a: b. "


@given(st.text(max_size=3_000), st.text(max_size=3_000), st.text(st.characters(), max_size=3_000))
def test_every_tool_has_a_sense_that_is_short_and_can_be_written(server: str, tool: str, description: str) -> None:
    text = embedding_text(Tool(server, tool, {"description": description}))
    assert len(text) < 1_000
    assert text.encode()
    assert text == embedding_text(Tool(server, tool, {"description": description}))
