"""Start the configured hooks, replace them while calls run, and close them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.hooks_config import HookConfig
from gateway.config.model import Config
from gateway.config.section import suggestion
from gateway.hooks.chain_of_hooks import HookChain, HookChains
from gateway.hooks.foreign_code import GRACE_S, DaemonThreads, TimedOut, TimedRun
from gateway.hooks.hook import PHASES, CallRoute, Hook, Kind
from gateway.hooks.hook_formats import error_text, where_raised
from gateway.hooks.invocation import PASS_THROUGH, HookCaller, HookInvocation, Invocation
from gateway.hooks.runner import CLOSE_S, HookRunner
from gateway.protocol.gateway_errors import ConfigError
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.listing import suggestion_for
from registry.catalog.registry import Registry

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# The time limit for importing the code of all hooks together. A large framework takes seconds; code that takes longer
# probably waits for something.
LOAD_S: Final = 30.0
# The time limit of `Hook.start`, stated in its docstring. It is enough to connect to a database. It has to be short,
# because a reload starts one hook after the other.
START_S: Final = 10.0
ENTRY_POINT_GROUP: Final = "typegate.hooks"
BUILTIN_HOOKS: Final = {
    "audit_log": "gateway.hooks.builtin.audit_log:AuditLog",
    "cache": "gateway.hooks.builtin.cache:Cache",
    "instruction_guard": "gateway.hooks.builtin.instruction_guard:InstructionGuard",
    "rate_limit": "gateway.hooks.builtin.rate_limit:RateLimit",
    "redact": "gateway.hooks.builtin.redact:Redact",
    "size_guard": "gateway.hooks.builtin.size_guard:SizeGuard",
}
_ADAPTERS: Final = {
    "webhook": "gateway.hooks.adapters.webhook:Webhook",
    "cpex": "gateway.hooks.adapters.cpex:CpexPlugins",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSource:
    """The inputs from which a hook is built. Equal sources produce equal hooks.

    Attributes:
        config: The hook's entry in the configuration.
        modified: The files that the hook reads, each with its modification time (in nanoseconds) and size.
    """

    config: HookConfig
    modified: tuple[tuple[str, int, int], ...]


async def load_hooks(config: Config, running: Iterable[HookRunner] = ()) -> tuple[HookRunner, ...]:
    """Start and return the hooks of a configuration. Running hooks whose source has not changed are reused.

    Raises:
        ConfigError: A hook cannot be loaded or does not start.
    """
    if not config.gateway.hooks:
        return ()
    running_hooks = tuple(running)
    threads = DaemonThreads("loading", limit=1)
    try:
        # Import third-party modules in a thread, so that a hanging import does not block the event loop or the exit.
        runners = await TimedRun(threads.run(_build, config, running_hooks), LOAD_S)
    except TimedOut:
        why = f"or a later one was not loaded within {LOAD_S:g} s"
        raise _config_error(config, 0, why, "a hook that loads") from None
    finally:
        threads.close()
    started: list[HookRunner] = []
    for index, runner in enumerate(runners):
        if runner in running_hooks:
            continue
        try:
            await TimedRun(runner.hook.start(), START_S)
        except Exception as error:  # noqa: BLE001 - boundary: a hook may raise anything while it starts
            for started_runner in started:
                await started_runner.close()
            if isinstance(error, TimedOut):
                why = f"was not ready within {START_S:g} s"
            elif isinstance(error, ValueError):
                why = f"did not start: {error}"
            else:
                why = f"did not start: {type(error).__name__}{where_raised(error)}{error_text(error)}"
            raise _config_error(config, index, why, "a hook that starts") from None
        started.append(runner)
    return runners


def hook_files(config: Config) -> tuple[Path, ...]:
    """Return the files from which the hooks of a configuration are built."""
    folder = config.path.parent if config.path is not None else Path()
    return tuple(file for entry in config.gateway.hooks for file in _files_of(entry, folder))


def _files_of(entry: HookConfig, folder: Path) -> list[Path]:
    files = [folder / entry.cpex] if entry.cpex is not None else []
    if entry.path is not None and _names_file(entry.path):
        files.append(folder / entry.path.rpartition(":")[0])
    return files


def _build(config: Config, running_hooks: tuple[HookRunner, ...]) -> tuple[HookRunner, ...]:
    modules: dict[Path, ModuleType] = {}
    return tuple(_build_runner(config, index, running_hooks, modules) for index in range(len(config.gateway.hooks)))


def _build_runner(
    config: Config, index: int, running_hooks: tuple[HookRunner, ...], modules: dict[Path, ModuleType]
) -> HookRunner:
    entry = config.gateway.hooks[index]
    folder = config.path.parent if config.path is not None else Path()
    files = _files_of(entry, folder)
    source = HookSource(config=entry, modified=tuple((str(file), *_state_of(file)) for file in files))
    for runner in running_hooks:
        if runner.source == source:
            return runner
    hook_class = _hook_class(config, index, folder, modules)
    settings: dict[str, Any] = dict(entry.config)
    if entry.webhook is not None:
        settings["url"] = entry.webhook
    elif entry.cpex is not None:
        settings["file"] = str(files[0])
    elif entry.use == "audit_log" and isinstance(settings.get("file"), str):
        settings["file"] = str(folder / settings["file"])
    try:
        hook = hook_class(settings)
    except ValueError as error:
        raise _config_error(config, index, str(error), "", key="config") from None
    except ImportError as error:
        raise _config_error(config, index, str(error), "") from None
    except BaseException as error:  # noqa: BLE001 - boundary: a hook may raise anything
        why = f"cannot be made: {type(error).__name__}{where_raised(error)}{error_text(error)}"
        raise _config_error(config, index, why, "") from None
    runner = HookRunner(hook, entry)
    runner.source = source
    missing = [phase for phase in entry.phases or () if not runner.runs(PHASES[phase])]
    if missing or not runner.phases:
        has = ", ".join(spelled for spelled, phase in PHASES.items() if hook.offers(phase)) or "at least one phase"
        raise _config_error(config, index, f"has no {', '.join(missing) or 'phase'}", has, key="phases")
    return runner


def _hook_class(config: Config, index: int, folder: Path, modules: dict[Path, ModuleType]) -> type[Hook]:
    entry = config.gateway.hooks[index]
    key = next(key for key in ("use", "path", "webhook", "cpex") if getattr(entry, key) is not None)
    reference = _ADAPTERS.get(key) or BUILTIN_HOOKS.get(entry.use or "") or entry.path or ""
    try:
        hook_class: Any
        if not reference:
            points = _entry_points()
            if entry.use not in points:
                suggested = suggestion(entry.use or "", [*BUILTIN_HOOKS, *points])
                raise _config_error(config, index, f"names an unknown hook ({entry.use})", suggested, key=key)
            hook_class = points[entry.use].load()
        else:
            where, _, name = reference.rpartition(":")
            module = _import_file(folder / where, modules) if _names_file(reference) else importlib.import_module(where)
            hook_class = getattr(module, name, None)
            if hook_class is None:
                raise _config_error(config, index, f"has no class {name}", f"a class in {where}", key=key)
    except ConfigError:
        raise
    except FileNotFoundError:
        what, expected = "names a file that does not exist", "a file beside this one"
        raise _config_error(config, index, what, expected, key=key) from None
    except ImportError as error:
        raise _config_error(config, index, f"cannot be imported ({error})", "package.module:Class", key=key) from None
    except BaseException as error:  # noqa: BLE001 - boundary: a module may raise anything while it is imported
        why = f"cannot be imported: {type(error).__name__}{where_raised(error)}{error_text(error)}"
        raise _config_error(config, index, why, "a module that can be imported", key=key) from None
    if not (isinstance(hook_class, type) and issubclass(hook_class, Hook)):
        raise _config_error(config, index, "is not a hook", "a class that derives from gateway.hooks.Hook", key=key)
    return hook_class


class _FreshLoader(SourceFileLoader):
    """Compiles a file on every import.

    The bytecode cache compares mtime (in seconds) and size, so it would miss a quick edit that keeps the size.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"the bytecode cache is disabled for {path}")


def _import_file(path: Path, modules: dict[Path, ModuleType]) -> ModuleType:
    """Import a file, unless it was already imported for this configuration.

    Args:
        modules: The modules that were imported for this configuration, by path.
    """
    path = path.resolve()
    if path in modules:
        return modules[path]
    if not path.is_file():
        raise FileNotFoundError(path)
    # The checksum distinguishes files that have the same name in different folders.
    name = f"typegate_hooks_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution, because dataclasses and pickle look up their module there
    spec.loader.exec_module(module)
    modules[path] = module
    return module


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # imported lazily: slow, and rarely needed

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _names_file(reference: str) -> bool:
    where = reference.rpartition(":")[0]
    return where.endswith(".py") or "/" in where


def _state_of(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _config_error(config: Config, index: int, what: str, expected: str, *, key: str = "") -> ConfigError:
    where = f"gateway.hooks[{index}]" + (f".{key}" if key else "")
    file = str(config.path) if config.path is not None else "configuration"
    return ConfigError(f"{what}; expected {expected}" if expected else what, file=file, key=where)


# The time limit for closing all hooks at shutdown. They close concurrently, each within `CLOSE_S` and `GRACE_S`. The
# additional half second is for logging failures.
_CLOSE_ALL_S: Final = CLOSE_S + GRACE_S + 0.5


class ActiveHooks(Reconfigurable):
    """Creates the object that runs the hooks of a call, and starts, replaces and closes the hooks.

    Attributes:
        runners: The hooks in the order of the configuration; empty if none is configured.
    """

    def __init__(self, registry: Registry, runners: Iterable[HookRunner] = ()) -> None:
        self._registry = registry
        self._group: TaskGroup | None = None
        self._retiring: list[HookRunner] = []
        self.runners: tuple[HookRunner, ...] = tuple(runners)
        self._chains = HookChains(self.runners, registry)

    async def run(self) -> None:
        """Deliver events to audit hooks until cancelled, then close every hook."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                for runner in self.runners:
                    self._start_queue(runner)
                await anyio.sleep_forever()
        finally:
            self._group = None
            # Shielded, because this usually runs during a cancellation, but hooks still have to close their files.
            with anyio.move_on_after(_CLOSE_ALL_S, shield=True):
                async with anyio.create_task_group() as closing:
                    for runner in {*self.runners, *self._retiring}:
                        closing.start_soon(runner.close)

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self.replace, await load_hooks(change.after, self.runners))

    def replace(self, runners: Iterable[HookRunner]) -> None:
        """Use these hooks for new calls. Calls in flight finish with their old hooks."""
        before, self.runners = self.runners, tuple(runners)
        retired, self._chains = self._chains, HookChains(self.runners, self._registry)
        for runner in self.runners:
            if runner not in before:  # a reused hook's queue is already running
                self._start_queue(runner)
        removed = [runner for runner in before if runner not in self.runners]
        self._retiring += removed
        retired.retire(partial(self._close_soon, removed))

    def tool_call(self, wrapper: ToolWrapper, via: CallRoute, caller: HookCaller) -> Invocation:
        """Return the object that runs the hooks of a tool call."""
        # Fast path: most gateways have no hooks.
        if not self.runners:
            return PASS_THROUGH
        chains = self._chains
        chain = chains.for_wrapper(wrapper)
        if chain.per_principal:
            chain = chains.for_principal(chain, caller.principal.name)
        return PASS_THROUGH if chain.is_empty else HookInvocation(chain, caller, via, chains)

    def prompt_or_resource(self, kind: Kind, server: str, name: str, original: str, caller: HookCaller) -> Invocation:
        """Return the object that runs the hooks of a request for a prompt, a resource or a completion."""
        if not self.runners:
            return PASS_THROUGH
        return self._invocation(self._chains.for_prompt_or_resource(kind, server, name, original), caller)

    def task_result(self, server: str, wrapper_name: str, caller: HookCaller) -> Invocation:
        """Return the object that runs the hooks on a task's result: the hooks of the tool that started the task."""
        wrapper = self._registry.catalog.by_name.get(wrapper_name)
        if wrapper is None or wrapper.server != server:
            # The tool no longer exists, so its conditions cannot be checked. Run every hook that may apply: otherwise,
            # for example, a result might not be redacted.
            return self._invocation(self._chains.for_unknown_tool(server), caller)
        return self._invocation(self._chains.for_wrapper(wrapper), caller)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each hook, in the order in which the hooks run before a call."""
        return [runner.row() for runner in self._chains.runners]

    def wrapper_rows(self) -> list[dict[str, Any]]:
        """Return one row for each tool, prompt and resource that has hooks, with the names of its hooks."""
        return [
            {"kind": chain.target.kind, "name": chain.target.name, "server": chain.target.server, **chain.order()}
            for chain in self._all_chains()
            if not chain.is_empty
        ]

    def warnings(self) -> list[str]:
        """Return a warning for each condition that matches nothing in the catalog."""
        return list(_unmatched_conditions(self.runners, self._registry.catalog, self._all_chains()))

    def _all_chains(self) -> list[HookChain]:
        if not self.runners:
            return []
        chains, prompts_and_resources = self._chains, self._registry.catalog.prompts_and_resources
        chains_of_items = [chains.for_wrapper(wrapper) for wrapper in self._registry.catalog.wrappers]
        for prompt in prompts_and_resources.prompts:
            chains_of_items.append(chains.for_prompt_or_resource("prompt", prompt.server, prompt.key, prompt.original))
        for item in prompts_and_resources.resources:
            chains_of_items.append(chains.for_prompt_or_resource("resource", item.server, item.key, item.original))
        return chains_of_items

    def _invocation(self, chain: HookChain, caller: HookCaller) -> Invocation:
        chain = self._chains.for_principal(chain, caller.principal.name)
        return PASS_THROUGH if chain.is_empty else HookInvocation(chain, caller, "wrapper", self._chains)

    def _start_queue(self, runner: HookRunner) -> None:
        if runner.queue is not None and self._group is not None:
            self._group.start_soon(runner.queue.run)

    def _close_soon(self, runners: list[HookRunner]) -> None:
        if self._group is not None:  # otherwise `run` has ended and closes the hooks itself
            for runner in runners:
                self._group.start_soon(self._close, runner)

    async def _close(self, runner: HookRunner) -> None:
        if runner.queue is not None:
            runner.queue.close()
            await runner.queue.ended.wait()
        self._retiring.remove(runner)
        await runner.close()


def _unmatched_conditions(
    runners: Iterable[HookRunner], catalog: Catalog, chains: Iterable[HookChain]
) -> Iterator[str]:
    """Yield a warning for each name pattern that matches nothing, and for each hook that applies to nothing.

    Yields nothing while the catalog is empty. Patterns for servers and tags are checked with the configuration.

    Args:
        chains: The chains of every tool, prompt and resource in the catalog.
    """
    items = catalog.prompts_and_resources
    names: set[str] = {name for wrapper in catalog.wrappers for name in (wrapper.name, wrapper.tool)}
    names |= {name for item in (*items.prompts, *items.resources) for name in (item.key, item.original)}
    if not names:
        return
    running = {id(runner) for chain in chains for runner in (*chain.sequential, *chain.concurrent, *chain.audits)}
    for runner in runners:
        conditions, is_unmatched = runner.entry.conditions, False
        for pattern in conditions.wrappers or ():
            # With resource templates, servers may have resources that they do not list, so do not check these patterns.
            if pattern == "*" or ("://" in pattern and items.templates):
                continue
            if not any(fnmatchcase(name, pattern) for name in names):
                is_unmatched = True
                hint = suggestion_for(pattern, names)
                yield f"hook {runner.name}: conditions.wrappers: {pattern} matches nothing{hint}"
        if not is_unmatched and id(runner) not in running and not items.templates:
            yield f"hook {runner.name}: its conditions and phases together match no tool, prompt or resource"
