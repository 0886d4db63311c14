"""Extensions from installed packages: the objects that their entry points name, one group for each kind.

    [project.entry-points."sika.actors"]
    praise = "my_package:Praise"

Nothing else is to be registered: a package that is installed takes part, and one that cannot be imported is an error.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from core.errors import Invalid

T = TypeVar("T")

ACTORS = "sika.actors"
"""`Actor` classes, channels among them (`core.actor`, `core.channel`)."""
EVENTS = "sika.events"
"""Modules, or classes in them, that declare event types (`core.events`)."""
POLICIES = "sika.policies"
"""`Policy` classes (`core.policy`)."""
PROTOCOLS = "sika.protocols"
"""Modules with `ROUTES` (`channels.http.routes`)."""
SANDBOXES = "sika.sandboxes"
"""Functions that make a provider of a `SandboxSetup` (`core.ports.sandbox`); the entry's name chooses it."""
TOOLS = "sika.tools"
"""Tools (`core.tools`)."""
GROUPS = (ACTORS, EVENTS, POLICIES, PROTOCOLS, SANDBOXES, TOOLS)


class Plugin(NamedTuple):
    """An object of an installed package. `place` begins messages about it."""

    name: str
    place: str
    value: Any


@functools.cache
def plugins(group: str) -> tuple[Plugin, ...]:
    """Returns the objects of a group, by name; each is imported once. Raises `Invalid`, naming the entry point."""
    return tuple(Plugin(entry.name, _place(entry), _load(entry)) for entry in _entries(group))


def names(group: str) -> list[str]:
    """Returns the names of a group; nothing is imported."""
    return [entry.name for entry in _entries(group)]


def with_settings(make: Callable[..., T], settings: Mapping[str, Any]) -> T:
    """Returns what `make` makes; of the settings, if it has a parameter of that name."""
    return make(settings=settings) if "settings" in inspect.signature(make).parameters else make()


def load(path: str, place: str) -> Any:
    """Imports `module:attribute`. Raises `Invalid`, beginning with `place`."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise Invalid(f'{place}: not of the form "module:attribute"')
    return _imported(lambda: getattr(importlib.import_module(module), name), place)


def load_events() -> Iterator[Invalid]:
    """Imports the event types of installed packages, so that logs that hold them can be read. Yields what cannot be
    imported: its events stay opaque.
    """
    for entry in _entries(EVENTS):
        try:
            _load(entry)
        except Invalid as error:
            yield error


def _entries(group: str) -> list[importlib.metadata.EntryPoint]:
    return sorted(set(importlib.metadata.entry_points(group=group)), key=lambda entry: (entry.name, entry.value))


def _place(entry: importlib.metadata.EntryPoint) -> str:
    return f"entry point {entry.name} of {entry.group}: {entry.value}"


def _load(entry: importlib.metadata.EntryPoint) -> Any:
    return _imported(entry.load, _place(entry))


def _imported(load: Callable[[], Any], place: str) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        raise Invalid(f"{place}: {missing(error.name or str(error))}") from error
    except (ImportError, AttributeError, ValueError, Invalid) as error:
        raise Invalid(f"{place}: {error}") from error
    except Exception as error:
        raise Invalid(f"{place}: cannot be imported: {type(error).__name__}: {error}") from error


def missing(module: str) -> str:
    """Returns why a module cannot be imported: its package is not installed, or has no such module."""
    package = module.partition(".")[0]
    if "." in module and importlib.util.find_spec(package):
        return f"there is no module {module}"
    return f"there is no module {package}; if it is a package, install it with: pip install {package.replace('_', '-')}"
