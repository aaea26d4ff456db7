"""Configure operation: the admin API, approvals, audit log, lock and telemetry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, WithJsonSchema, field_validator, model_validator

from gateway.config.section import Count, Seconds, Section, Texts, default_section, fault, is_http_url, not_boolean

Role = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")
"""Roles of the admin API, from the fewest to the most rights."""
# The kernel accepts 108 bytes, or 104 on macOS, including the terminating NUL.
_MAX_SOCKET_PATH_BYTES: Final = 100
_MAX_PORT: Final = 65_535
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_OWNER: Final = "admin"


StartMode = Literal["always", "onDemand"]
# The maximum is a day, as for other durations. 0 keeps the process running.
IdleSeconds = Annotated[float, BeforeValidator(not_boolean), Field(ge=0, le=86_400, allow_inf_nan=False)]


def _network_of(value: object) -> object:
    return {True: "all", False: "none"}[value] if isinstance(value, bool) else value


# The file has true for "all" and false for "none"; the validator converts these values.
Network = Annotated[
    Literal["all", "outbound", "none"],
    BeforeValidator(_network_of),
    WithJsonSchema({"enum": [True, False, "outbound"]}),
]


class SandboxConfig(Section):
    """Access that a program has in addition to the system, its own files, and the caches of package managers."""

    read: list[str] = Field(default_factory=list)
    """Files and folders that the program may read. Paths may begin with `~`, and are relative to the folder of the
    configuration file."""
    write: list[str] = Field(default_factory=list)
    """Files and folders that the program may read and change."""
    # Servers rarely open ports, and every program and web page of the user can reach a local port.
    network: Network = Field(default="outbound", json_schema_extra={"default": "outbound"})
    """Whether the program may use the network. outbound: it may connect, but not open a TCP port. true: both. false:
    neither; it may open local sockets only."""
    memory: Count | None = Field(default=None, ge=16, le=1_048_576)
    """Maximum memory of each process in MiB: heap, stacks and other private data."""
    # Far more processes than a server usually starts, even with a browser, and few enough for any machine.
    processes: Count = Field(default=128, ge=0, le=100_000)
    """Maximum number of processes that the program runs at the same time, including itself. If it starts more, all of
    them are killed. 0: no limit."""
    cpu: Count | None = Field(default=None, ge=1, le=31_536_000)
    """Maximum processor time of each process in seconds."""
    required: bool = False
    """true: if the sandbox is not available, the program is not started. false: it is started anyway, and
    `/admin/servers` shows `unconfined` or `partial`."""


Sandboxing = bool | SandboxConfig


def sandbox_of(own: Sandboxing | None, default: Sandboxing | None) -> SandboxConfig | Literal[False] | None:
    """Return the sandbox of a program, in which the keys of `own` override those of `default`.

    Returns:
        The sandbox; None if the program is only separated from other processes; False if it is not confined at all.
    """
    chosen = default if own is None else own
    if chosen is None or chosen is False:
        return chosen
    base = default if isinstance(default, SandboxConfig) else SandboxConfig()
    if not isinstance(chosen, SandboxConfig):
        return base
    return base.model_copy(update={name: getattr(chosen, name) for name in chosen.model_fields_set})


class ContainerConfig(Section):
    """A container image to run with docker or podman, which have to be installed."""

    image: str = Field(min_length=1)
    """Image to run, such as ghcr.io/example/notes:1.4. `args` of the server follow it on the command line."""
    engine: Literal["docker", "podman"] = "docker"
    """Program that runs the image."""
    mounts: list[str] = Field(default_factory=list)
    """Files and folders of this machine that the container may use, as SOURCE:TARGET, or SOURCE:TARGET:ro to permit
    only reading. SOURCE may begin with `~`, and is relative to the folder of the configuration file."""
    network: bool | str = True
    """Network of the container: false for none, true for the default of the engine, or the name of a network."""
    memory: Count | None = Field(default=None, ge=16, le=1_048_576)
    """Maximum memory of the container in MiB."""
    options: Texts = Field(default_factory=list)
    """Further options of `docker run`."""

    @field_validator("image")
    @classmethod
    def _is_an_image(cls, image: str) -> str:
        if image.startswith("-") or any(character.isspace() or character == "\0" for character in image):
            raise fault("is not the name of an image", "NAME, NAME:TAG or NAME@DIGEST")
        return image

    @field_validator("mounts")
    @classmethod
    def _are_mounts(cls, mounts: list[str]) -> list[str]:
        for place, mount in enumerate(mounts):
            source, target, mode = (*mount.split(":"), "", "")[:3]
            is_valid = mount.count(":") in (1, 2) and source and target.startswith("/") and mode in ("", "ro")
            if not is_valid or "," in mount or "\0" in mount:
                raise fault("is not a mount", "SOURCE:TARGET or SOURCE:TARGET:ro, without commas", key=f"[{place}]")
        return mounts

    def arguments(self, names: Iterable[str], args: Sequence[str]) -> list[str]:
        """Return the arguments of the program that runs the image.

        Args:
            names: The variables of the container. Their values are not on the command line, which other users can read.
            args: The arguments of the server.
        """
        line = ["run", "--rm", "--interactive", "--init", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        if self.network is not True:
            line.append(f"--network={self.network or 'none'}")
        if self.memory is not None:
            line.append(f"--memory={self.memory}m")
        for mount in self.mounts:
            source, target, mode = (*mount.split(":"), "")[:3]
            line.append(f"--mount=type=bind,source={source},target={target}{',readonly' if mode else ''}")
        line += [f"--env={name}" for name in names]
        return [*line, *self.options, self.image, *args]


class ProcessesConfig(Section):
    """Defaults for servers that are processes. The same keys of a server override them."""

    start: StartMode = "always"
    """When the programs are started. always: with the gateway. onDemand: by the first call."""
    idle_timeout: IdleSeconds = 0.0
    """Seconds without a call after which a program is ended, until the next call. 0: never."""
    sandbox: Sandboxing | None = None
    """Restricts what the programs may use. true: the default sandbox. An object: the default sandbox with these
    changes. false: no restriction. By default, programs are only separated from other processes."""


def _admin_address(value: object) -> object:
    """Normalize the address of the admin API. A port without a host is on loopback."""
    expected = "a port, HOST:PORT, or unix:/path/of/a/socket"
    not_boolean(value)
    text = str(value) if isinstance(value, int) else value
    if not isinstance(text, str):
        return value
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or "\0" in path or len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
            raise fault("is not a valid socket path", f"an absolute path of at most {_MAX_SOCKET_PATH_BYTES} bytes")
        return text
    host, colon, port = text.rpartition(":")
    if not colon:
        host = "127.0.0.1"
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    is_valid = bare and not any(character.isspace() or character in "/@?#" for character in bare)
    if not is_valid or (":" in bare and bare == host) or not port.isascii() or not port.isdecimal():
        raise fault("is not an address", expected)
    if len(port) > len(str(_MAX_PORT)) or int(port) > _MAX_PORT:
        raise fault("is not a port", f"a number from 0 to {_MAX_PORT}")
    return f"{host}:{int(port)}"


class AdminToken(Section):
    """An additional token of the admin API, for one person or program."""

    name: str = Field(min_length=1, max_length=64)
    """Name of the person or program, as shown in the audit log."""
    token_hash: str
    """SHA-256 of the token, as `typegate key new` prints it: `sha256:` and 64 hexadecimal digits."""
    role: Role = "viewer"
    """Role of the token. viewer: read only. operator: also approve, refresh, disable and try out. admin: everything."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name.isprintable() or name == _OWNER:
            raise fault("is not a valid token name", f"letters, digits and punctuation, other than {_OWNER}")
        return name

    @field_validator("token_hash")
    @classmethod
    def _is_a_hash(cls, value: str) -> str:
        if not _HASH.fullmatch(value):
            raise fault("is not the hash of a token", "sha256: and 64 hexadecimal digits, from `typegate key new`")
        return value


class AdminConfig(Section):
    """Access to the admin API."""

    token: SecretStr | None = Field(default=None, min_length=1)
    """Bearer token of the admin API, with the role admin. The environment variable TYPEGATE_ADMIN_TOKEN takes
    precedence. Takes effect at the start only."""
    tokens: list[AdminToken] = Field(default_factory=list)
    """Additional tokens, each with a role."""
    # Off by default, even on loopback: it lets everyone who has the token run programs as the gateway's user.
    allow_commands: bool = False
    """Let the admin API add servers that start programs or read files of this machine."""
    listen: Annotated[str, BeforeValidator(_admin_address)] | None = Field(
        default=None, json_schema_extra={"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}
    )
    """Separate address for the admin API: a port on loopback, HOST:PORT, or unix:/path/to/socket. By default the admin
    API shares the port of the callers. Takes effect at the start only."""

    @field_validator("tokens")
    @classmethod
    def _token_names_are_unique(cls, tokens: list[AdminToken]) -> list[AdminToken]:
        names = [each.name for each in tokens]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise fault(f"gives the name {name} twice", "a unique name for each token", key=f"[{place}].name")
        return tokens

    @property
    def at_start(self) -> tuple[object, ...]:
        """The settings that take effect at the start only."""
        return self.token, self.listen


class FlowConfig(Section):
    """A rule about stored results: whether results of some tools may become arguments of other tools. Callers pass a
    stored result to a tool by its handle, a short reference."""

    from_: list[str] = Field(alias="from", default_factory=lambda: ["*"])
    """The tools whose results are passed on: patterns of server aliases, or of tools, such as `drive__*`."""
    to: list[str] = Field(default_factory=lambda: ["*"])
    """The tools that receive the results: patterns of server aliases, or of tools."""
    allow: bool = True
    """Whether results of the tools in `from` may become arguments of the tools in `to`."""


class StoredResultsConfig(Section):
    """Results that callers read in parts, or pass to other tools by handle, a short reference. `results` of a server,
    tool or profile decides which results are stored."""

    # Models usually read the rest of a result within minutes, but a person may have to answer a question first.
    lifetime: Seconds = 900.0
    """Seconds after which a stored result is deleted."""
    # Enough for six results of five megabytes.
    memory: Count = Field(default=32 * 1024 * 1024, ge=64 * 1024, le=4 * 1024**3)
    """Bytes of stored results for each caller. The oldest results are deleted first. A result that is larger
    than this is not stored."""
    total_memory: Count = Field(default=256 * 1024 * 1024, ge=64 * 1024, le=64 * 1024**3)
    """Bytes of stored results for all callers together, in each worker."""
    flow: list[FlowConfig] = Field(default_factory=list)
    """Rules for results that become arguments of other tools. The first rule that matches both tools decides. If no
    rule matches, a result may be used by any tool that the caller may use in the same profile, except tools whose
    annotations say `openWorldHint: true`."""


Approver = Literal["host", "administrator"]


class ApprovalsConfig(Section):
    """How calls that need approval wait for a decision."""

    by: Approver | None = None
    """Who decides. host: the caller's host asks its user, and the answer counts for one call. This protects the user
    from a model, but not against a malicious caller, since the host is under the caller's control. administrator: the
    call waits for a decision on the admin page or with `typegate approvals`. The default is `administrator` for callers
    with an API key or a client credentials token, and `host` for all others. `ask.by` of a rule overrides it."""
    # Enough for a person who has to be notified first. Hosts give up on calls that take longer.
    timeout: Seconds = 300.0
    """Seconds to wait for a decision, after which the call is refused."""
    # A day is long enough for one piece of work, and a forgotten approval does not stay valid for long.
    expires: Seconds = 86_400.0
    """Seconds after which an approval for a session or a tool expires."""
    # A person would not review more calls, and an agent that calls in a loop must not bury requests of other callers.
    waiting: Count = Field(default=16, ge=1, le=1_000)
    """Maximum number of calls of one caller that wait for a decision. Further calls are refused."""


_SWITCH = {False: False, True: True, "off": False, "on": True}


class AuditConfig(Section):
    """The audit log: one JSON line for each call, refusal and change. `false` disables it."""

    model_config = ConfigDict(json_schema_extra={"type": ["object", "boolean"]})

    enabled: bool = True
    """Write the audit log. It is never written without a state directory."""
    file: str = Field(default="audit.jsonl", min_length=1)
    """Path of the audit log. A relative path starts at the state directory."""
    # The default is a quarter of a year, the usual minimum of company policies. The maximum is ten years.
    keep_days: Count = Field(default=90, ge=1, le=3_660)
    """Days after which a file of the audit log is deleted. A new file is started each day."""
    # Enough for about two million calls. The log is on by default, so it must not fill the disk unnoticed.
    max_mebibytes: Count = Field(default=1_024, ge=1, le=1_048_576)
    """Maximum size of all files of the audit log, in MiB. Beyond it, the oldest file is deleted early, with a
    warning."""
    arguments: bool = False
    """Include the arguments of calls in audit entries, without known secrets."""
    results: bool = False
    """Include the results of calls in audit entries, without known secrets."""
    required: bool = False
    """Refuse calls while the audit log cannot be written, which is checked before each call."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, data: Any) -> Any:
        if isinstance(data, bool | str):
            if data not in _SWITCH:
                raise fault("is not a setting of the audit log", "true, false, or an object with keys such as keepDays")
            return {"enabled": _SWITCH[data]}
        return data


Decision = Literal["accept", "warn", "hold"]
_WORDS = ("accept", "warn", "hold")


class LockPolicyConfig(Section):
    """How to handle each class of changes: accept, warn or hold. A single word applies to all classes.

    An item with a held change stays listed as approved, but cannot be used until an administrator approves the change.
    """

    model_config = ConfigDict(json_schema_extra={"type": ["object", "string"]})

    added: Decision | None = None
    """A new definition. With a lock file, the default is hold: it is not listed until it is approved."""
    removed: Decision | None = None
    """A removed definition. The default is warn."""
    renamed: Decision | None = None
    """A definition with a new name that is otherwise nearly unchanged. With a lock file, the default is hold, because
    rules and settings for the former name do not apply to the new one."""
    text: Decision | None = None
    """A change of text that models and people read, including text in schemas: a new `enum` value, `pattern` or name.
    With a lock file, the default is hold."""
    narrowing: Decision | None = None
    """A tool accepts or returns less. The default is warn."""
    widening: Decision | None = None
    """A tool accepts or returns more, as with a new optional parameter, or a hint changes. With a weaker hint, the tool
    may do more; a stronger hint may open the tool to more callers. With a lock file, the default is hold."""
    identity: Decision | None = None
    """The server runs another package or version, or has another address. With a lock file, the default is hold."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.keys() == {"policy"}:
            # The form of `gateway.lock` is accepted for a server, too.
            data = data["policy"]
        if isinstance(data, str):
            if data not in _WORDS:
                raise fault("is not a decision", "accept, warn, hold, or an object with one of them for each class")
            return dict.fromkeys(cls.model_fields, data)
        return data

    @property
    def decisions(self) -> dict[str, Decision]:
        """The configured decisions, by class of changes."""
        return {name: decision for name in type(self).model_fields if (decision := getattr(self, name)) is not None}


class LockConfig(Section):
    """The lock file, and how to handle definitions that differ from it."""

    file: str | None = Field(default=None, min_length=1)
    """Path of the lock file, relative to the folder of the configuration. `typegate lock --config FILE` writes it. If
    this key is given and the file is missing, the gateway does not start. The default is typegate.lock, if it exists;
    if that file belongs to another configuration in the folder, the default is typegate.NAME.lock, such as
    typegate.other.json.lock."""
    policy: LockPolicyConfig = default_section(LockPolicyConfig)
    """How to handle each class of changes. `lock` of a server overrides it. Without a lock file, definitions are
    compared with the server's first listing, in the state directory, to detect changes that have to be held."""


EXTRA: Final = "otel"


TRACE_ID: Final = "{traceId}"
"""The part of `traceUrl` that the id of a trace replaces."""


class TelemetryConfig(Section):
    """Export of traces and request durations over OTLP/HTTP. Requires the extra `otel`.

    Setting OTEL_EXPORTER_OTLP_ENDPOINT enables the export without this section. OTEL_SDK_DISABLED=true disables it."""

    endpoint: str | None = None
    """URL of the collector, such as http://collector:4318. The default is OTEL_EXPORTER_OTLP_ENDPOINT, or else port
    4318 of this machine."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """HTTP headers to send to the collector."""
    service_name: str = Field(default="typegate", min_length=1)
    """Service name of the gateway. The default is OTEL_SERVICE_NAME, or service.name of OTEL_RESOURCE_ATTRIBUTES."""
    sample_ratio: Annotated[float, BeforeValidator(not_boolean), Field(ge=0, le=1)] = 1.0
    """Fraction of the requests without a parent trace that are traced, from 0 to 1. Requests with a parent trace follow
    the sampling decision of that trace. The default is OTEL_TRACES_SAMPLER, or else 1."""
    metrics: bool = True
    """Export durations as metrics. /metrics serves them in any case."""
    content: bool = False
    """Include the arguments and results of tools in spans. They may contain secrets."""
    interval: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=60)] = 5.0
    """Seconds between exports of spans."""
    metrics_interval: Annotated[float, BeforeValidator(not_boolean), Field(gt=0, le=3_600)] = 60.0
    """Seconds between exports of metrics."""
    trace_url: str | None = None
    """URL of a trace in your tracing system, to which the admin page links from calls, such as
    https://tracing.example.test/trace/{traceId}."""

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not is_http_url(value):
            raise fault("is not a URL", "an http or https URL such as http://collector:4318")
        return value

    @field_validator("trace_url")
    @classmethod
    def _is_a_trace_address(cls, value: str | None) -> str | None:
        if value is not None and not (is_http_url(value) and TRACE_ID in value):
            raise fault(f"is not a URL with {TRACE_ID}", f"a URL such as https://tracing.example.test/trace/{TRACE_ID}")
        return value
