"""Finds actors, tools and sandbox providers: those in this repository, and those of installed packages."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any

import actors
import adapters.tools
from adapters import toolbox
from core import plugins
from core.actor import Actor
from core.chat import platforms
from core.config.load import reveal
from core.config.redaction import redactor
from core.config.settings import Config, ToolEntry
from core.errors import Invalid, place_of
from core.plugins import Plugin
from core.ports.sandbox import MakeProvider
from core.tools import Tool

_NOT_ACTORS = ("agent", "cli", "contracts", "debugging", "delivery", "wiring", "__main__")
BUILT_IN_SANDBOXES = ("aio", "auto", "bubblewrap", "docker", "host", "provisioner")


def load_tools(entries: Sequence[ToolEntry] = (), exclusive: bool | None = None) -> list[Tool]:
    """Returns the tools in `adapters/tools/`, as `tools:` in the configuration selects and changes them, and those of
    installed packages. Raises an error for a file that cannot be imported.
    """
    installed = [plugin.value for plugin in installed_tools(entries) if not plugin.problem]
    return toolbox.declared([*_own_tools(), *map(_grouped, installed)], entries, exclusive)


def _own_tools() -> list[Tool]:
    values = [value for module in _modules(adapters.tools) for value in vars(module).values()]
    return list({id(value): value for value in values if isinstance(value, Tool)}.values())


def _grouped(tool: Tool) -> Tool:
    """Returns a tool of a package. One of no group has the group `installed`: only tools of the server are there
    whatever a list or an agent says.
    """
    return replace(tool, group=tool.group or "installed")


def installed_tools(entries: Sequence[ToolEntry] = ()) -> list[Plugin]:
    """Returns the tools of installed packages; the names of those in this repository and in `tools:` are taken."""
    holders = {entry.name: entry.use.partition(":")[0] for entry in entries}
    holders |= {tool.name: toolbox.home(tool) for tool in _own_tools()}

    def describe(plugin: Plugin) -> str:
        tool = plugin.value
        if not isinstance(tool, Tool):
            raise Invalid("not a sika.Tool; declare it with @tool()")
        holder = holders.setdefault(tool.name, toolbox.home(tool))
        if holder != toolbox.home(tool):
            raise Invalid(f"the name {tool.name} is taken by {holder}")
        return f"{tool.name} ({tool.effect})"

    return plugins.examined(plugins.TOOLS, describe)


def actor_classes(
    configured: Sequence[str], parts: Collection[str], settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[str, type[Actor[Any]]]:
    """Returns the actors by name. Raises `Invalid` if two of this repository and the configuration have the same name,
    which is the address of wake-ups.
    """
    classes = _own_actors(configured, parts)
    return classes | {p.value.name: p.value for p in installed_actors(configured, parts, settings) if not p.problem}


def _own_actors(configured: Sequence[str], parts: Collection[str]) -> dict[str, type[Actor[Any]]]:
    classes: dict[str, type[Actor[Any]]] = {}
    for cls in find_actors(configured):
        if classes.setdefault(cls.name, cls) is not cls:
            both = " and ".join(f"{each.__module__}:{each.__qualname__}" for each in (classes[cls.name], cls))
            raise Invalid(f"actors: {both} are both called {cls.name!r}; set `name` in one of them")
        _check_parts(cls, parts)
    return classes


def _check_parts(cls: type[Actor[Any]], parts: Collection[str]) -> None:
    if missing := [name for name in _dependencies(cls) if name not in parts]:
        raise Invalid(f"actor {cls.name}: cannot be given {', '.join(missing)}; there is: {', '.join(parts)}")


def installed_actors(
    configured: Sequence[str], parts: Collection[str], settings: Mapping[str, Mapping[str, Any]]
) -> list[Plugin]:
    """Returns the actors of installed packages. One that needs no more than settings is built to see
    whether that works; `settings` are those of `installed:` in the configuration.
    """
    classes = _own_actors(configured, parts)

    def describe(plugin: Plugin) -> str:
        cls = _actor(plugin.value)
        if classes.setdefault(cls.name, cls) is not cls:
            holder = classes[cls.name]
            raise Invalid(f"the name {cls.name} is taken by {holder.__module__}:{holder.__qualname__}")
        _check_parts(cls, parts)
        if set(_dependencies(cls)) <= {"settings"}:
            _build(cls, {"settings": reveal(settings.get(cls.name, {}))})
        consumed = ", ".join(str(event.__struct_config__.tag) for event in cls.subscription)
        return f"{cls.name}: {consumed or 'answers questions'}"

    return plugins.examined(plugins.ACTORS, describe)


def _build(cls: type[Actor[Any]], parts: Mapping[str, Any]) -> None:
    try:
        construct(cls, parts)
    except Exception as error:
        raise Invalid(not_built(cls.name, error)) from None


def not_built(name: str, error: Exception) -> str:
    """Returns the problem of an actor of a package whose `__init__` fails; its text may quote a secret."""
    reason = f"{type(error).__name__}: {redactor.text(str(error))}{place_of(error)}"
    return f"cannot be built with the settings installed.{name}: {reason}"


def find_actors(configured: Sequence[str]) -> Iterator[type[Actor[Any]]]:
    """Yields actor classes: those in `actors/`, and those that the configuration names."""
    for module in _modules(actors):
        if module.__name__.rpartition(".")[2] in _NOT_ACTORS:
            continue
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{module.__name__}.actor")
        yield from _declared_in(module)
    for number, path in enumerate(configured):
        place = f"actors[{number}]: {path}"
        try:
            yield _actor(plugins.load(path, place))
        except NotAnActor as error:
            raise Invalid(f"{place}: {error}") from None


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
    for a name that nobody has, and for a provider that cannot be imported.
    """
    name = config.sandbox.provider
    if name in BUILT_IN_SANDBOXES:
        return None
    make: MakeProvider | None = plugins.configured_object(plugins.SANDBOXES, name)
    if make is None:
        there = ", ".join((*BUILT_IN_SANDBOXES, *plugins.names(plugins.SANDBOXES)))
        raise Invalid(f"sandbox.provider: {name}: there is no such provider; there are: {there}")
    return make


def report(config: Config, parts: Collection[str]) -> list[Plugin]:
    """Returns the plug-ins of all groups, as a server of this configuration uses them. Imports all of them."""
    from actors.agent.loop import chain
    from adapters.models import factory
    from channels.cli import verbs
    from channels.http.endpoints import table
    from channels.web import views

    return [
        *installed_actors(config.actors, parts, config.installed),
        *plugins.examined(plugins.CHANNELS, platforms.describe),
        *plugins.load_events(),
        *plugins.examined(plugins.MODELS, lambda plugin: factory.describe(plugin.value)),
        *plugins.examined(plugins.POLICIES, lambda plugin: chain.describe(plugin, config)),
        *table.installed(),
        *plugins.examined(plugins.SANDBOXES, _describe_sandbox),
        *plugins.skill_roots(),
        *installed_tools(config.tools),
        *plugins.examined(plugins.VERBS, verbs.describe),
        *plugins.examined(plugins.VIEWS, views.describe),
    ]


def _describe_sandbox(plugin: Plugin) -> str:
    if not callable(plugin.value):
        raise Invalid("not a function that makes a provider")
    return f"sandbox.provider: {plugin.name}"


class NotAnActor(Invalid):
    """An object of another kind is where an actor class is expected."""


def _actor(cls: object) -> type[Actor[Any]]:
    if not (inspect.isclass(cls) and issubclass(cls, Actor)):
        raise NotAnActor("not an Actor class")
    return cls


def _modules(package: ModuleType) -> Sequence[ModuleType]:
    return _modules_in(package.__name__, tuple(package.__path__))


@functools.cache
def _modules_in(package: str, folders: tuple[str, ...]) -> Sequence[ModuleType]:
    """Returns the modules in a package's folders. These are looked into once, and again when one more is there."""
    names = [info.name for info in pkgutil.iter_modules(folders) if info.name not in _NOT_ACTORS]
    return [importlib.import_module(f"{package}.{name}") for name in names]
