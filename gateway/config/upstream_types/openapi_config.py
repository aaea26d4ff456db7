"""Upstreams of type openapi: an HTTP API and the document that describes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from gateway.config.launch_identity import identity_of_url
from gateway.config.section import Text, Texts, WrittenText, fault, is_http_url
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import CredentialsConfig, check_url
from gateway.config.upstream_types.sign_in_config import SignInConfig

_URL_EXAMPLE = "https://api.example.test/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The operations that become tools, and what the configuration provides for all of them.

    Attributes:
        include, exclude: Patterns: `tag:NAME`, an operation id, `METHOD`, `/path`, or `METHOD /path`.
        variables: Names and values of server variables.
        headers: Lower-case names of the configured headers. These headers do not become arguments of tools.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    headers: frozenset[str] = frozenset()

    def selects(self, method: str, path: str, operation_id: str, tags: Sequence[str]) -> bool:
        """Return whether an operation becomes a tool."""

        def matches(pattern: str) -> bool:
            if pattern.startswith("tag:"):
                return any(fnmatchcase(tag, pattern.removeprefix("tag:")) for tag in tags)
            verb, _, path_pattern = pattern.partition(" ")
            if path_pattern:
                return verb.upper() == method and fnmatchcase(path, path_pattern.strip())
            if pattern.startswith("/"):
                return fnmatchcase(path, pattern)
            return pattern.upper() == method or fnmatchcase(operation_id, pattern)

        chosen = not self.include or any(map(matches, self.include))
        return chosen and not any(map(matches, self.exclude))


class OpenapiConfig(CredentialsConfig):
    """An HTTP API whose operations become tools."""

    connector = "gateway.upstream.openapi.openapi_session:OpenapiConnector"
    inferred_from = "spec"
    tolerated_keys = frozenset()
    identity = ("spec", "base_url", "include_operations", "exclude_operations")
    connection = (*CredentialsConfig.connection, "server_variables", "private_hosts", "trusted_origins")
    in_place = ServerConfig.in_place

    type: Literal["openapi"] = "openapi"
    spec: WrittenText = Field(default="", repr=False, json_schema_extra={"default": None})
    """openapi: the document that describes the API, as a file, relative to this file, or as a URL. JSON or YAML, of
    version 3.1, 3.0 or 2.0 (Swagger)."""
    base_url: str | None = Field(default=None, repr=False)
    """openapi: URL to which the paths of the document are appended. A query is sent with every request. By default the
    first server that the document names."""
    server_variables: dict[str, Text] = Field(default_factory=dict)
    """openapi: values of variables in the URL of the document's server, as in `{region: eu}`. By default the values
    in the document."""
    include_operations: Texts = Field(default_factory=list)
    """openapi: operations that become tools: a list of patterns, each an operation id (`getPet*`), a tag
    (`tag:pets`), a method (`GET`), a path (`/pets/*`), or a method and a path (`GET /pets/*`). By default all."""
    exclude_operations: Texts = Field(default_factory=list)
    """openapi: operations to leave out, even if `includeOperations` matches: the same patterns."""
    private_hosts: Texts = Field(default_factory=list)
    """openapi: private host names, addresses or networks at which a server that the document names may be, also over
    plain http. `baseUrl` may always be private."""
    trusted_origins: Texts = Field(default_factory=list)
    """openapi: further origins that receive the credentials, such as `https://uploads.example.test`. Some documents
    name another server for single operations; by default this server receives no credentials."""

    @property
    def address(self) -> str | None:
        return self.base_url or (self.spec if is_http_url(self.spec) else None)

    @property
    def spec_file(self) -> Path | None:
        """The file of the document; None if it is at a URL."""
        return None if "://" in self.spec else Path(self.spec)

    @property
    def selection(self) -> Selection:
        """The operations that become tools, and what the configuration provides for all of them."""
        return Selection(
            include=tuple(self.include_operations),
            exclude=tuple(self.exclude_operations),
            variables=tuple(sorted(self.server_variables.items())),
            headers=frozenset(name.lower() for name in self.headers),
        )

    @property
    def sign_in(self) -> SignInConfig | None:
        # Unlike an MCP server, an API does not announce how to sign in, so only a configured sign-in can work.
        return super().sign_in if self.auth is not None else None

    @property
    def local_keys(self) -> tuple[str, ...]:
        return (*super().local_keys, *(("spec",) if self.spec_file is not None else ()))

    @field_validator("trusted_origins")
    @classmethod
    def _are_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if not is_http_url(origin) or urlsplit(origin).path.strip("/") or urlsplit(origin).query:
                raise fault("is not an origin", "a scheme and a host, such as https://uploads.example.test")
        return [origin.rstrip("/") for origin in origins]

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        for key in ("command", "url", "endpoint"):
            if entry.get(key) is not None:
                raise fault(f"is openapi, which has no {key}", "spec: the document that describes the API", key="type")
        if not self.spec.strip() or "\0" in self.spec:
            raise fault("is missing or empty", "a file or URL of an OpenAPI document", key="spec")
        if "://" in self.spec:
            check_url(self.spec, "spec", "https://api.example.test/openapi.json")
            if "@" in urlsplit(self.spec).netloc:
                raise fault("has a user or a password", "a URL without credentials", key="spec")
        if self.base_url is not None:
            check_url(self.base_url, "baseUrl", _URL_EXAMPLE)
            if urlsplit(self.base_url).fragment:
                raise fault("has a fragment", f"a URL such as {_URL_EXAMPLE}", key="baseUrl")
        self.check_credentials()
        if self.auth is not None and self.auth.type != "none" and self.base_url is None:
            # The document must not decide where the gateway signs in.
            raise fault("is missing, and auth needs it", f"a URL such as {_URL_EXAMPLE}", key="baseUrl")
        if self.elicitation:
            raise fault("is openapi, which does not support elicitation", "elicitation: false", key="type")

    def with_absolute_paths(self, folder: Path) -> ServerConfig:
        if self.spec_file is None:
            return self
        return self.model_copy(update={"spec": str(folder.absolute() / self.spec)})

    def launch_identity(self, folder: Path | None) -> str:
        """Describe the API for the lock file: its address and, for a file, the digest of the document."""
        parts = [identity_of_url(self.base_url)] if self.base_url is not None else []
        if (file := self.spec_file) is None:
            parts.append(f"document:{identity_of_url(self.spec)}")
        else:
            try:
                status = file.stat()
                parts.append(f"document:sha256:{_digest(file, status.st_mtime_ns, status.st_size)}")
            except OSError:
                parts.append("document:unreadable")
        issuer = f" issuer:{self.auth.issuer}" if self.auth is not None and self.auth.issuer else ""
        return " ".join(parts) + issuer


@lru_cache(maxsize=64)
def _digest(file: Path, changed_ns: int, size: int) -> str:
    """Return the digest of a file. The other arguments are part of the cache key: a changed file is read again."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
