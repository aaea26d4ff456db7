"""How to install an optional part of this package, which no index has under a name that could be relied on."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_ROOT = Path(__file__).parents[1]


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this installation.

    In a checkout, and where the package was installed from a folder, the command names that folder. Otherwise it names
    the packages of the extra: with our own name, pip would ask an index for a package that anybody could publish there.
    """
    if (_ROOT / "pyproject.toml").is_file():
        return _from_folder(_ROOT, extra)
    try:
        distribution = metadata.distribution("typegate")
    except metadata.PackageNotFoundError:
        return f"the packages of the extra {extra!r}"
    if folder := _source_folder(distribution):
        return _from_folder(folder, extra)
    # PEP 508: `graphql-core<3.4,>=3.3; extra == "graphql"`
    wanted = [line.partition(";") for line in distribution.requires or ()]
    of_extra = [name.strip() for name, _, marker in wanted if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    return f"pip install {' '.join(map(shlex.quote, of_extra))}"


def _from_folder(folder: Path, extra: str) -> str:
    place = "." if folder == Path.cwd() else str(folder)
    return f"pip install {shlex.quote(f'{place}[{extra}]')}"


def _source_folder(distribution: metadata.Distribution) -> Path | None:
    """Return the folder that a distribution was installed from (PEP 610), if it is still there."""
    try:
        source = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    address = urlsplit(source.get("url", ""))
    folder = Path(url2pathname(address.path))
    return folder if address.scheme == "file" and folder.is_dir() else None
