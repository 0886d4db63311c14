"""Extensions from installed packages: the objects that their entry points name, one group for each kind.

    [project.entry-points."sika.actors"]
    praise = "my_package:Praise"

Nothing else is to be registered: a package that is installed takes part. A plug-in that cannot be used costs nothing
but itself: it is left out, and its `problem` is shown (`sika plugins`). Two kinds are an error instead: one that the
configuration names, and a policy, without which the agent would do what it is to be kept from.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from core import events
from core.errors import Invalid, line_of

T = TypeVar("T")

ACTORS = "sika.actors"
"""`sika.Actor` classes."""
CHANNELS = "sika.channels"
"""Modules of chat platforms (`core.chat.platforms`); the entry's name is the platform's."""
EVENTS = "sika.events"
"""Modules, or classes in them, that declare event types (`sika.Event`)."""
MODELS = "sika.models"
"""LangChain chat model classes; `models[].use` in the configuration chooses one by the entry's name."""
POLICIES = "sika.policies"
"""`sika.Policy` classes."""
PROTOCOLS = "sika.protocols"
"""Modules with `ROUTES` (`sika.http.Routes`)."""
SANDBOXES = "sika.sandboxes"
"""Functions that make a provider of a `sika.sandboxes.SandboxSetup`; the entry's name chooses it."""
SKILLS = "sika.skills"
"""Packages whose folder holds skills: a folder with a `SKILL.md` for each."""
TOOLS = "sika.tools"
"""Tools (`sika.tool`)."""
VERBS = "sika.verbs"
"""Modules with `arguments(parser)` (`channels.cli.verbs`); the entry's name is the word after `sika`."""
VIEWS = "sika.views"
"""Packages whose folder is a view of the page (`channels.web.views`); the entry's name is part of its address."""
GROUPS = (ACTORS, CHANNELS, EVENTS, MODELS, POLICIES, PROTOCOLS, SANDBOXES, SKILLS, TOOLS, VERBS, VIEWS)
UNIQUE = frozenset({CHANNELS, MODELS, SANDBOXES, SKILLS, VERBS, VIEWS})
"""Groups in which the name of an entry stands for its plug-in: in the configuration, a path, a command, an address."""
IMPORT_SECONDS = 60.0
"""Timeout of the import of one plug-in."""
SKILL_FILE = "SKILL.md"
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Listed(msgspec.Struct, frozen=True):
    """A plug-in, for people. `problem` says why it is not used; it is empty for those that are."""

    group: str
    name: str
    path: str
    """`module:attribute`, or a module."""
    package: str
    version: str
    gives: str
    problem: str


class Plugin(msgspec.Struct, frozen=True):
    """An entry point of an installed package. One with a `problem` is not used, and may have no `value`."""

    group: str
    name: str
    path: str
    package: str
    version: str
    value: Any = None
    gives: str = ""
    problem: str = ""

    @property
    def place(self) -> str:
        """The beginning of messages about it."""
        return f"entry point {self.name} of {self.group}: {self.path}"

    def without(self, problem: str) -> Plugin:
        """Returns the plug-in as one that is not used."""
        return msgspec.structs.replace(self, problem=problem)

    def listed(self) -> Listed:
        return Listed(self.group, self.name, self.path, self.package, self.version, self.gives, self.problem)


@functools.cache
def plugins(group: str) -> tuple[Plugin, ...]:
    """Returns the plug-ins of a group, by name, those with a problem among them. Each is imported once."""
    holders: dict[str, Plugin] = {}
    loaded = []
    for entry in _entries(group):
        plugin = _loaded(entry)
        first = holders.setdefault(plugin.name, plugin)
        if group in UNIQUE and first is not plugin:
            plugin = plugin.without(f"the name {plugin.name} is taken by the package {first.package}")
        loaded.append(plugin)
    return tuple(loaded)


def examined(group: str, describe: Callable[[Plugin], str]) -> list[Plugin]:
    """Returns the plug-ins of a group. `describe` returns what one gives, or raises `Invalid`, which is its problem."""
    return [_examined(plugin, describe) for plugin in plugins(group)]


def _examined(plugin: Plugin, describe: Callable[[Plugin], str]) -> Plugin:
    if plugin.problem:
        return plugin
    try:
        return msgspec.structs.replace(plugin, gives=describe(plugin))
    except Invalid as error:
        return plugin.without(str(error))
    except Exception as error:  # of code of strangers
        return plugin.without(line_of(error))


def usable(group: str) -> Iterator[Plugin]:
    """Yields the plug-ins of a group. Raises `Invalid` at the first with a problem, naming its entry point."""
    for plugin in plugins(group):
        if plugin.problem:
            raise Invalid(f"{plugin.place}: {plugin.problem}")
        yield plugin


def configured_object(group: str, name: str) -> Any:
    """Returns the object of the plug-in that the configuration names; None if there is none. Raises `Invalid`."""
    for plugin in plugins(group):
        if plugin.name == name:
            if plugin.problem:
                raise Invalid(f"{plugin.place}: {plugin.problem}")
            return plugin.value
    return None


def names(group: str) -> list[str]:
    """Returns the names of a group; nothing is imported."""
    return sorted({entry.name for entry in _entries(group)})


def load_events() -> list[Plugin]:
    """Imports the event types of installed packages, so that logs that hold them can be read. Returns the plug-ins:
    the events of one with a problem stay opaque.
    """
    return examined(EVENTS, _describe_events)


def skill_roots() -> list[Plugin]:
    """Returns the plug-ins with skills. The `value` of one without a problem is the folder (`Path`) that holds them."""
    return [_skill_root(plugin) for plugin in examined(SKILLS, lambda plugin: ", ".join(_skills(plugin)))]


def with_settings(make: Callable[..., T], settings: Mapping[str, Any]) -> T:
    """Returns what `make` makes; of the settings, if it has a parameter of that name."""
    return make(settings=settings) if "settings" in inspect.signature(make).parameters else make()


def load(path: str, place: str) -> Any:
    """Imports `module:attribute`. Raises `Invalid`, beginning with `place`."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise Invalid(f'{place}: not of the form "module:attribute"')
    try:
        return _imported(lambda: getattr(importlib.import_module(module), name))
    except Invalid as error:
        raise Invalid(f"{place}: {error}") from error


# ── what they give ──────────────────────────────────────────────────────────────────────────────────────────────────


def _describe_events(plugin: Plugin) -> str:
    module = getattr(plugin.value, "__module__", None) or getattr(plugin.value, "__name__", "")
    return ", ".join(sorted(name for name, cls in events.catalogue().items() if cls.__module__ == module))


def _skills(plugin: Plugin) -> list[str]:
    if not _PATH.fullmatch(plugin.name):
        raise Invalid("its name is part of a path: letters, digits, dots and dashes are expected")
    places = [Path(place) for place in getattr(plugin.value, "__path__", ())]
    if not places:
        raise Invalid("not a package: a module with a folder of its own is expected")
    skills = sorted(file.parent.name for file in places[0].glob(f"*/{SKILL_FILE}"))
    if not skills:
        raise Invalid(f"there is no */{SKILL_FILE} in its folder; are the files part of the wheel?")
    return skills


def _skill_root(plugin: Plugin) -> Plugin:
    return plugin if plugin.problem else msgspec.structs.replace(plugin, value=Path(next(iter(plugin.value.__path__))))


# ── import ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _entries(group: str) -> list[importlib.metadata.EntryPoint]:
    return sorted(set(_installed(tuple(sys.path)).select(group=group)), key=lambda entry: (entry.name, entry.value))


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> importlib.metadata.EntryPoints:
    """Returns the entry points of all packages on a path: reading them takes 10 ms, for one group as for all."""
    return cast(importlib.metadata.EntryPoints, importlib.metadata.entry_points())  # on 3.11 a mapping with `select`


def _loaded(entry: importlib.metadata.EntryPoint) -> Plugin:
    package, version = (entry.dist.name, entry.dist.version) if entry.dist else ("?", "?")
    plugin = Plugin(entry.group, entry.name, entry.value, package, version)
    try:
        value = _imported(lambda: _within(IMPORT_SECONDS, entry.load))
    except Invalid as error:
        return plugin.without(str(error))
    finally:
        clashes = events.leave_out_clashes()
    return plugin.without("; ".join(clashes)) if clashes else msgspec.structs.replace(plugin, value=value)


def _within(seconds: float, load: Callable[[], Any]) -> Any:
    """Returns what `load` returns. Raises what it raises, and `Invalid` if it does not end: it is left behind."""
    outcome: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((load(), None))
        except BaseException as error:  # SystemExit, too
            outcome.put((None, error))

    threading.Thread(target=run, name="plug-in", daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise Invalid(f"its import does not end within {seconds:g} s") from None
    if error is not None:
        raise error
    return value


def _imported(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        raise Invalid(missing(error.name or str(error))) from error
    except (ImportError, AttributeError, ValueError, Invalid) as error:
        raise Invalid(str(error)) from error
    except (Exception, SystemExit) as error:
        raise Invalid(f"cannot be imported: {line_of(error)}") from error


def missing(module: str) -> str:
    """Returns why a module cannot be imported: its package is not installed, or has no such module."""
    package = module.partition(".")[0]
    if "." in module and importlib.util.find_spec(package):
        return f"there is no module {module}"
    return f"there is no module {package}; if it is a package, install it with: pip install {package.replace('_', '-')}"
