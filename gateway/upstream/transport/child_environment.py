"""The environment of a stdio server: what a program needs to run and to reach the network, and nothing else of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.secrets import SECRETS, secrets_in

# What a program needs to run at all; everything else a child must be given by name.
_SAFE: Final = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "TZ",
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA", "PROGRAMFILES",
    "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
# `npx` and `uvx` download the server that they start: behind a proxy they need to know of it, and whose certificates
# to trust. Programs read either form of the first three.
_PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
_NETWORK: Final = (
    *_PROXIES, "NO_PROXY", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip


def child_environment(named: Mapping[str, str | None], ours: Mapping[str, str]) -> dict[str, str]:
    """Return what a child sees: the safe part of ours, how the network is reached, and what its configuration names.

    Args:
        named: The variables of its configuration; None takes one away.
        ours: Those of this process.
    """
    said = {key.upper() for key in named}
    environment = {key: ours[key] for key in _SAFE if key in ours}
    # In the other case too: what is configured for a server must not have a rival.
    environment |= {key: ours[key] for key in _NETWORK if key in ours and key.upper() not in said}
    # The URL of a proxy may hold a password, which the child may repeat when it fails.
    SECRETS.hide(_credentials([environment[key] for key in _PROXIES if key in environment]))
    environment.update({key: value for key, value in named.items() if value is not None})
    return {key: value for key, value in environment.items() if named.get(key, "") is not None}


def _credentials(proxies: list[str]) -> set[str]:
    return secrets_in({"proxies": [url if "://" in url else f"http://{url}" for url in proxies]})
