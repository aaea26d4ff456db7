"""The text of a tool that is embedded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.search.index import embedding_text


@dataclass(frozen=True)
class Tool:
    server: str
    tool: str
    definition: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.server}__{self.tool}"


def test_embedding_text_is_the_split_name_and_first_sentence() -> None:
    definition = {"description": "Sends a letter. Costs a stamp.\n\nSecond paragraph."}
    assert (
        embedding_text(Tool("post-office", "sendLetter_now", definition))
        == "post office: send letter now. Sends a letter."
    )
    assert embedding_text(Tool("a", "b", {})) == embedding_text(Tool("a", "b", {"description": 7})) == "a: b. "


@given(st.text(max_size=3_000), st.text(max_size=3_000), st.text(st.characters(), max_size=3_000))
def test_embedding_text_is_short_and_encodable(server: str, tool: str, description: str) -> None:
    text = embedding_text(Tool(server, tool, {"description": description}))
    assert len(text) < 1_000
    assert text.encode()
    assert text == embedding_text(Tool(server, tool, {"description": description}))
