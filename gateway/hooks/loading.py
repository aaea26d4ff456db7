"""From the configuration to started hooks; those that it has not changed are kept as they are."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from gateway.config.hooks import HookConfig
from gateway.config.model import Config
from gateway.config.section import suggestion
from gateway.errors import ConfigError
from gateway.hooks.fault_text import where_raised, words_of
from gateway.hooks.hook import PHASES, Hook
from gateway.hooks.runner import HookRunner
from gateway.hooks.threads import DaemonThreads
from gateway.hooks.timeout import TimedOut, TimedRun

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# All hooks together. Importing a model or a large framework takes seconds; what takes longer waits for something.
LOAD_S: Final = 30.0
# `Hook.start` promises ten seconds: enough to connect to a database, and a reload waits for all hooks in turn.
START_S: Final = 10.0
ENTRY_POINT_GROUP: Final = "typegate.hooks"
BUILTIN_HOOKS: Final = {
    "audit_log": "gateway.hooks.builtin.audit_log:AuditLog",
    "cache": "gateway.hooks.builtin.cache:Cache",
    "rate_limit": "gateway.hooks.builtin.rate_limit:RateLimit",
    "redact": "gateway.hooks.builtin.redact:Redact",
    "size_guard": "gateway.hooks.builtin.size_guard:SizeGuard",
}
_CARRIERS: Final = {
    "webhook": "gateway.hooks.carriers.webhook:Webhook",
    "cpex": "gateway.hooks.carriers.cpex:CpexPlugins",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSource:
    """What a hook was made from; equal sources make equal hooks.

    Attributes:
        config: Its entry in the configuration.
        modified: The files that it reads, each with the time of its last change and its size.
    """

    config: HookConfig
    modified: tuple[tuple[str, int, int], ...]


async def load_hooks(config: Config, running: Iterable[HookRunner] = ()) -> tuple[HookRunner, ...]:
    """Return the hooks of a configuration, started; running ones that it has not changed are kept.

    Raises:
        ConfigError: A hook cannot be loaded, or does not start.
    """
    if not config.gateway.hooks:
        return ()
    known = tuple(running)
    threads = DaemonThreads("loading", limit=1)
    try:
        # Foreign modules are imported there: one that hangs stops neither the event loop nor the end of the process.
        runners = await TimedRun(threads.run(_build, config, known), LOAD_S)
    except TimedOut:
        why = f"or a later one was not loaded within {LOAD_S:g} s"
        raise _config_error(config, 0, why, "a hook that loads") from None
    finally:
        threads.close()
    started: list[HookRunner] = []
    for index, runner in enumerate(runners):
        if runner in known:
            continue
        try:
            await TimedRun(runner.hook.start(), START_S)
        except Exception as error:  # noqa: BLE001 - boundary: a hook may do anything as it starts
            for other in started:
                await other.close()
            if isinstance(error, TimedOut):
                why = f"was not ready within {START_S:g} s"
            elif isinstance(error, ValueError):
                why = f"did not start: {error}"
            else:
                why = f"did not start: {type(error).__name__}{where_raised(error)}{words_of(error)}"
            raise _config_error(config, index, why, "a hook that starts") from None
        started.append(runner)
    return runners


def hook_files(config: Config) -> tuple[Path, ...]:
    """The files that the hooks of a configuration are made from."""
    folder = config.path.parent if config.path is not None else Path()
    return tuple(file for entry in config.gateway.hooks for file in _files_of(entry, folder))


def _files_of(entry: HookConfig, folder: Path) -> list[Path]:
    files = [folder / entry.cpex] if entry.cpex is not None else []
    if entry.path is not None and _names_file(entry.path):
        files.append(folder / entry.path.rpartition(":")[0])
    return files


def _build(config: Config, known: tuple[HookRunner, ...]) -> tuple[HookRunner, ...]:
    modules: dict[Path, ModuleType] = {}
    return tuple(_runner(config, index, known, modules) for index in range(len(config.gateway.hooks)))


def _runner(
    config: Config, index: int, known: tuple[HookRunner, ...], modules: dict[Path, ModuleType]
) -> HookRunner:  # fmt: skip
    entry = config.gateway.hooks[index]
    folder = config.path.parent if config.path is not None else Path()
    files = _files_of(entry, folder)
    source = HookSource(config=entry, modified=tuple((str(file), *_state_of(file)) for file in files))
    for runner in known:
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
    except BaseException as error:  # noqa: BLE001 - boundary: a hook may raise what it likes
        why = f"cannot be made: {type(error).__name__}{where_raised(error)}{words_of(error)}"
        raise _config_error(config, index, why, "") from None
    runner = HookRunner(hook, entry)
    runner.source = source
    missing = [phase for phase in entry.phases or () if not runner.runs(PHASES[phase])]
    if missing or not runner.phases:
        has = ", ".join(spelled for spelled, phase in PHASES.items() if hook.offers(phase)) or "none at all"
        raise _config_error(config, index, f"has no {', '.join(missing) or 'phase'}", has, key="phases")
    return runner


def _hook_class(config: Config, index: int, folder: Path, modules: dict[Path, ModuleType]) -> type[Hook]:
    entry = config.gateway.hooks[index]
    key = next(key for key in ("use", "path", "webhook", "cpex") if getattr(entry, key) is not None)
    reference = _CARRIERS.get(key) or BUILTIN_HOOKS.get(entry.use or "") or entry.path or ""
    try:
        found: Any
        if not reference:
            points = _entry_points()
            if entry.use not in points:
                others = suggestion(entry.use or "", [*BUILTIN_HOOKS, *points])
                raise _config_error(config, index, f"names no hook ({entry.use})", others, key=key)
            found = points[entry.use].load()
        else:
            where, _, name = reference.rpartition(":")
            module = _import_file(folder / where, modules) if _names_file(reference) else importlib.import_module(where)
            found = getattr(module, name, None)
            if found is None:
                raise _config_error(config, index, f"has no class {name}", f"a class in {where}", key=key)
    except ConfigError:
        raise
    except FileNotFoundError:
        what, expected = "names a file that is not there", "a file beside this one"
        raise _config_error(config, index, what, expected, key=key) from None
    except ImportError as error:
        raise _config_error(config, index, f"cannot be imported ({error})", "package.module:Class", key=key) from None
    except BaseException as error:  # noqa: BLE001 - boundary: a module may do anything when it is imported
        why = f"cannot be imported: {type(error).__name__}{where_raised(error)}{words_of(error)}"
        raise _config_error(config, index, why, "a module that can be imported", key=key) from None
    if not (isinstance(found, type) and issubclass(found, Hook)):
        raise _config_error(config, index, "is no hook", "a class that derives from gateway.hooks.Hook", key=key)
    return found


class _FreshLoader(SourceFileLoader):
    """Compiles a file anew each time.

    The interpreter's cache takes an edit for none that leaves the size and the second of the file's time as they were.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"the cache is not used for {path}")


def _import_file(path: Path, modules: dict[Path, ModuleType]) -> ModuleType:
    """Import a file, anew for each configuration; hooks of one file share the module."""
    path = path.resolve()
    if path in modules:
        return modules[path]
    if not path.is_file():
        raise FileNotFoundError(path)
    # The checksum tells apart files of one name in different folders.
    name = f"typegate_hooks_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickles look their module up there
    spec.loader.exec_module(module)
    modules[path] = module
    return module


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # late: it takes milliseconds, and few configurations need it

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _names_file(reference: str) -> bool:
    where = reference.rpartition(":")[0]
    return where.endswith(".py") or "/" in where


def _state_of(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _config_error(config: Config, index: int, what: str, expected: str, *, key: str = "") -> ConfigError:
    where = f"gateway.hooks[{index}]" + (f".{key}" if key else "")
    file = str(config.path) if config.path is not None else "configuration"
    return ConfigError(f"{what}; expected {expected}" if expected else what, file=file, key=where)
