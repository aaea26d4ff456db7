"""Find the command that installs an optional extra of this package."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_ROOT = Path(__file__).parents[2]


def install_command(extra: str) -> str:
    """Return the command that installs an extra into this environment.

    If this is a checkout or was installed from a folder, the command names the folder. Otherwise the command names the
    packages of the extra. It never names `typegate`, because anyone could publish a package of that name on an index.
    """
    if (_ROOT / "pyproject.toml").is_file():
        return _from_folder(_ROOT, extra)
    try:
        distribution = metadata.distribution("typegate")
    except metadata.PackageNotFoundError:
        return f"the packages of the extra {extra!r}"
    if folder := _source_folder(distribution):
        return _from_folder(folder, extra)
    # Requirements have the format of PEP 508, for example `graphql-core<3.4,>=3.3; extra == "graphql"`.
    requirements = [line.partition(";") for line in distribution.requires or ()]
    of_extra = [name.strip() for name, _, marker in requirements if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    return f"pip install {' '.join(map(shlex.quote, of_extra))}"


def _from_folder(folder: Path, extra: str) -> str:
    place = "." if folder == Path.cwd() else str(folder)
    return f"pip install {shlex.quote(f'{place}[{extra}]')}"


def _source_folder(distribution: metadata.Distribution) -> Path | None:
    """Return the folder that a distribution was installed from (PEP 610), if the folder still exists."""
    try:
        source = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    address = urlsplit(source.get("url", ""))
    folder = Path(url2pathname(address.path))
    return folder if address.scheme == "file" and folder.is_dir() else None
