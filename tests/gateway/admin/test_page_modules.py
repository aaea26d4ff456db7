"""The JavaScript modules of the admin page are consistent, which no build step checks."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "gateway" / "admin" / "page"
IMPORT = re.compile(r'import \{ ([^}]*) \} from "\./([^"]+)"')


def test_every_import_is_exported_and_used() -> None:
    texts = {path.name: path.read_text() for path in PAGE.glob("*.js")}
    for name, text in texts.items():
        for words, target in IMPORT.findall(text):
            for word in words.split(", "):
                assert re.search(rf"export (?:const|async function|function|class) {word}\b", texts[target]), (
                    name,
                    word,
                )
                assert len(re.findall(rf"\b{word}\b", text)) > 1, f"{name} imports {word} in vain"


def test_every_css_class_is_used() -> None:
    texts = "\n".join(path.read_text() for path in PAGE.iterdir() if path.suffix in (".js", ".html"))
    sheet = re.sub(r"url\([^)]*\)|/\*.*?\*/", "", (PAGE / "style.css").read_text())
    named = set(re.findall(r"\.([a-z][a-z-]+)\b", sheet))
    # Made of a word and a state, as `badge good`.
    vain = {name for name in named if not re.search(rf"(?<![\w-]){name}(?![\w-])", texts)}
    assert not vain
