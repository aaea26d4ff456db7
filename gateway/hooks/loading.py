"""From the configuration to guarded hooks that have started; what is the same as before is kept as it is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from gateway.config.hooks import HookConfig
from gateway.config.model import Config
from gateway.errors import ConfigError
from gateway.hooks.hook import PHASES, Hook
from gateway.hooks.runner import Guard, Terms, place_of
from gateway.hooks.threads import Threads
from gateway.hooks.timeout import Driven, Late

LOAD_S: Final = 30.0
START_S: Final = 10.0
GROUP: Final = "typegate.hooks"
OURS: Final = {
    "audit_log": "gateway.hooks.builtin.audit_log:AuditLog",
    "cache": "gateway.hooks.builtin.cache:Cache",
    "rate_limit": "gateway.hooks.builtin.rate_limit:RateLimit",
    "redact": "gateway.hooks.builtin.redact:Redact",
    "size_guard": "gateway.hooks.builtin.size_guard:SizeGuard",
}
_WEBHOOK: Final = "gateway.hooks.carriers.webhook:Webhook"
_CPEX: Final = "gateway.hooks.carriers.cpex:CpexPlugins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a guard was made from; equal origins make equal guards."""

    config: HookConfig
    stamps: tuple[tuple[str, float], ...]


async def prepare(config: Config, running: Iterable[Guard] = ()) -> tuple[Guard, ...]:
    """Return the hooks of a configuration, started; of those that are running, the ones that it has not changed.

    Raises:
        ConfigError: A hook cannot be loaded, or does not start.
    """
    if not config.gateway.hooks:
        return ()
    known = tuple(running)
    loading = Threads("loading", limit=1)
    try:
        # Code of others is read there; a thread that hangs in it does not hold the end of the process.
        guards = await Driven(loading.run(_build, config, known), LOAD_S)
    except Late:
        raise _fault(config, 0, f"or a later one was not loaded within {LOAD_S:g} s", "a hook that loads") from None
    finally:
        loading.close()
    started: list[Guard] = []
    for place, guard in enumerate(guards):
        if guard in known:
            continue
        try:
            await Driven(guard.hook.start(), START_S)
        except Exception as error:  # noqa: BLE001 - boundary: a hook may do anything as it starts
            for one in started:
                await one.close()
            if isinstance(error, Late):
                why = f"was not ready within {START_S:g} s"
            elif isinstance(error, ValueError):
                why = f"did not start: {error}"
            else:
                why = f"did not start: {type(error).__name__}{place_of(error)}"
            raise _fault(config, place, why, "a hook that starts") from None
        started.append(guard)
    return guards


def _build(config: Config, known: tuple[Guard, ...]) -> tuple[Guard, ...]:
    modules: dict[Path, ModuleType] = {}
    return tuple(_guard(config, place, known, modules) for place in range(len(config.gateway.hooks)))


def _guard(config: Config, place: int, known: tuple[Guard, ...], modules: dict[Path, ModuleType]) -> Guard:
    wanted = config.gateway.hooks[place]
    folder = config.path.parent if config.path is not None else Path()
    files = [folder / wanted.cpex] if wanted.cpex is not None else []
    if wanted.path is not None and _is_file(wanted.path):
        files.append(folder / wanted.path.rpartition(":")[0])
    origin = Origin(config=wanted, stamps=tuple((str(file), _stamp(file)) for file in files))
    for guard in known:
        if guard.origin == origin:
            return guard
    made = _loaded(config, place, folder, modules)
    settings: dict[str, Any] = dict(wanted.config)
    if wanted.webhook is not None:
        settings["url"] = wanted.webhook
    elif wanted.cpex is not None:
        settings["file"] = str(files[0])
    elif wanted.use == "audit_log" and isinstance(settings.get("file"), str):
        settings["file"] = str(folder / settings["file"])
    try:
        hook = made(settings)
    except ValueError as error:
        raise _fault(config, place, str(error), "", key="config") from None
    except ImportError as error:
        raise _fault(config, place, str(error), "") from None
    except BaseException as error:  # noqa: BLE001 - boundary: a hook may raise what it likes
        raise _fault(config, place, f"cannot be made: {type(error).__name__}{place_of(error)}", "") from None
    guard = Guard(hook, _terms(wanted, hook))
    guard.origin = origin
    missing = [one for one in wanted.phases or () if not guard.runs(PHASES[one])]
    if missing or not guard.phases:
        has = ", ".join(one for one, phase in PHASES.items() if hook.offers(phase)) or "none at all"
        raise _fault(config, place, f"has no {', '.join(missing) or 'phase'}", has, key="phases")
    return guard


def _terms(wanted: HookConfig, hook: Hook) -> Terms:
    conditions = wanted.conditions
    return Terms(
        name=wanted.name,
        mode=wanted.mode or hook.mode,
        phases=frozenset(PHASES[one] for one in wanted.phases or PHASES),
        priority=wanted.priority,
        timeout_s=wanted.timeout,
        ignores=wanted.on_error == "ignore",
        block_as=wanted.block_as,
        shape=wanted.payload_format,
        wrappers=_patterns(conditions.wrappers),
        servers=_patterns(conditions.servers),
        tags=_patterns(conditions.tags),
        principals=_patterns(conditions.principals),
    )


def _loaded(config: Config, place: int, folder: Path, modules: dict[Path, ModuleType]) -> type[Hook]:
    wanted = config.gateway.hooks[place]
    key = next(one for one in ("use", "path", "webhook", "cpex") if getattr(wanted, one) is not None)
    text = {"webhook": _WEBHOOK, "cpex": _CPEX}.get(key) or OURS.get(wanted.use or "") or wanted.path or ""
    try:
        found: Any
        if not text:
            found = _entry_point(str(wanted.use))
            if found is None:
                others = ", ".join([*OURS, *_entry_points()])
                raise _fault(config, place, f"names no hook ({wanted.use})", f"one of: {others}", key=key)
        else:
            where, _, name = text.rpartition(":")
            module = _file(folder / where, modules) if _is_file(text) else importlib.import_module(where)
            found = getattr(module, name, None)
            if found is None:
                raise _fault(config, place, f"has no class {name}", f"a class in {where}", key=key)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise _fault(config, place, "names a file that is not there", "a file beside this one", key=key) from None
    except ImportError as error:
        raise _fault(config, place, f"cannot be imported ({error})", "package.module:Class", key=key) from None
    except BaseException as error:  # noqa: BLE001 - boundary: a module may do anything when it is imported
        why = f"cannot be imported: {type(error).__name__}{place_of(error)}"
        raise _fault(config, place, why, "a module that can be imported", key=key) from None
    if not (isinstance(found, type) and issubclass(found, Hook)):
        raise _fault(config, place, "is no hook", "a class that derives from gateway.hooks.Hook", key=key)
    return found


def _file(path: Path, modules: dict[Path, ModuleType]) -> ModuleType:
    """The module in a file, read anew for each configuration; hooks of one file share it."""
    path = path.resolve()
    if path in modules:
        return modules[path]
    if not path.is_file():
        raise FileNotFoundError(path)
    name = f"typegate_hooks_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    modules[path] = module
    return module


def _entry_points() -> list[str]:
    from importlib.metadata import entry_points

    return sorted({one.name for one in entry_points(group=GROUP)})


def _entry_point(name: str) -> Any:
    from importlib.metadata import entry_points

    found = next(iter(entry_points(group=GROUP, name=name)), None)
    return found.load() if found is not None else None


def _is_file(text: str) -> bool:
    where = text.rpartition(":")[0]
    return where.endswith(".py") or "/" in where


def _stamp(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _patterns(patterns: list[str] | None) -> tuple[str, ...] | None:
    return None if patterns is None else tuple(patterns)


def _fault(config: Config, place: int, what: str, expected: str, *, key: str = "") -> ConfigError:
    where = f"gateway.hooks[{place}]" + (f".{key}" if key else "")
    file = str(config.path) if config.path is not None else "configuration"
    return ConfigError(f"{what}; expected {expected}" if expected else what, file=file, key=where)
