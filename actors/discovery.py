"""Finds actors, tools and sandbox providers: those in this repository, and those of installed packages."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import actors
import adapters.tools
import channels
from adapters import toolbox
from core import plugins
from core.actor import Actor
from core.config.settings import Config, ToolEntry
from core.errors import Invalid
from core.plugins import plugins as installed
from core.ports.sandbox import MakeProvider
from core.tools import Tool

_NOT_ACTORS = ("cli", "compose", "discovery", "__main__")
BUILT_IN_SANDBOXES = ("auto", "bubblewrap", "host")


def load_tools(entries: Sequence[ToolEntry] = (), exclusive: bool | None = None) -> list[Tool]:
    """Returns the tools in `adapters/tools/`, as `tools:` in the configuration selects and changes them.

    Raises an error for a file that cannot be imported.
    """
    values = [value for module in _modules(adapters.tools) for value in vars(module).values()]
    tools = {id(value): value for value in values if isinstance(value, Tool)}
    return toolbox.declared([*tools.values(), *_installed_tools()], entries, exclusive)


def _installed_tools() -> Iterator[Tool]:
    """The tools of installed packages. Those of no group have the group `installed`: only tools of the server are there
    whatever a list or an agent says.
    """
    for plugin in installed(plugins.TOOLS):
        if not isinstance(plugin.value, Tool):
            raise Invalid(f"{plugin.place}: not a core.tools.Tool; declare it with @tool()")
        yield replace(plugin.value, group=plugin.value.group or "installed")


def actor_classes(configured: Sequence[str], parts: Collection[str]) -> dict[str, type[Actor[Any]]]:
    """Returns the actors by name. Raises `Invalid` if two have the same name, which is the address of wake-ups."""
    classes: dict[str, type[Actor[Any]]] = {}
    for cls in find_actors(configured):
        if classes.setdefault(cls.name, cls) is not cls:
            both = " and ".join(f"{each.__module__}:{each.__qualname__}" for each in (classes[cls.name], cls))
            raise Invalid(f"actors: {both} are both called {cls.name!r}; set `name` in one of them")
        if missing := [name for name in _dependencies(cls) if name not in parts]:
            there = ", ".join(parts)
            raise Invalid(f"actor {cls.name}: cannot be given {', '.join(missing)}; there is: {there}")
    return classes


def find_actors(configured: Sequence[str]) -> Iterator[type[Actor[Any]]]:
    """Actor classes: those in `actors/`, the channels (`channels/<platform>/channel.py`), those installed packages
    offer (`sika.actors`), those the configuration names.
    """
    for module in _modules(actors):
        if module.__name__.rpartition(".")[2] in _NOT_ACTORS:
            continue
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{module.__name__}.actor")
        yield from _declared_in(module)
    for module_file in sorted(Path(channels.__file__).parent.glob("*/channel.py")):
        yield from _declared_in(importlib.import_module(f"channels.{module_file.parent.name}.channel"))
    for plugin in installed(plugins.ACTORS):
        yield _actor(plugin.value, plugin.place)
    for number, path in enumerate(configured):
        place = f"actors[{number}]: {path}"
        yield _actor(plugins.load(path, place), place)


def _declared_in(module: ModuleType) -> Iterator[type[Actor[Any]]]:
    for value in vars(module).values():
        if inspect.isclass(value) and issubclass(value, Actor) and value.__module__ == module.__name__:
            yield value


def construct(cls: type[Actor[Any]], parts: Mapping[str, Any]) -> Actor[Any]:
    """Builds an actor with the parts that its `__init__` names."""
    return cls(**{name: parts[name] for name in _dependencies(cls)})


def _dependencies(cls: type[Actor[Any]]) -> list[str]:
    return [] if cls.__init__ is object.__init__ else list(inspect.signature(cls).parameters)


def provider_of(config: Config) -> MakeProvider | None:
    """Returns what makes the provider that an installed package brings; None for those of the server. Raises `Invalid`
    for a name that nobody has.
    """
    name = config.sandbox.provider
    if name in BUILT_IN_SANDBOXES:
        return None
    if name not in plugins.names(plugins.SANDBOXES):
        there = ", ".join((*BUILT_IN_SANDBOXES, *plugins.names(plugins.SANDBOXES)))
        raise Invalid(f"sandbox.provider: {name}: there is no such provider; there are: {there}")
    make: MakeProvider = next(plugin.value for plugin in installed(plugins.SANDBOXES) if plugin.name == name)
    return make


def _actor(cls: object, place: str) -> type[Actor[Any]]:
    if not (inspect.isclass(cls) and issubclass(cls, Actor)):
        raise Invalid(f"{place}: not an Actor class")
    return cls


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(package.__path__):
        if info.name not in _NOT_ACTORS:
            yield importlib.import_module(f"{package.__name__}.{info.name}")
