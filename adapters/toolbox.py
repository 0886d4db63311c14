"""The tools: those in `adapters/tools/`, and those that `tools:` in the configuration adds to them.

With `tools_exclusive: true`, only the tools of the list and those without a group exist, as in DeerFlow. That is the
default if the list names a class of DeerFlow's. An entry names (`use`) a `Tool`, or a function that makes a `Tool`
from the entry's settings.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog

from adapters.web import settings as web
from core.config.load import Secret
from core.config.settings import ToolEntry
from core.errors import Invalid, SikaError, line_of
from core.plugins import load
from core.tools import Tool, ToolContext

log = structlog.get_logger("sika.tools")

_WEB = {
    "web_search": {
        "ddg_search": "duckduckgo", "exa": "exa", "firecrawl": "firecrawl", "serper": "serper", "tavily": "tavily",
    },
    "web_fetch": {"exa": "exa", "firecrawl": "firecrawl", "jina_ai": "jina", "tavily": "tavily"},
    "image_search": {"image_search": "duckduckgo", "serper": "serper"},
}  # fmt: skip
"""DeerFlow's packages by tool, with the names of their providers here."""
COMPANIONS = {"bash_kill": "bash", "bash_output": "bash", "edit_files": "str_replace"}
"""The tools that are there, and in the same group, if another one is."""
_FILES = ("bash", "glob", "grep", "ls", "read_file", "str_replace", "write_file")
_DEER_FLOW: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    f"deerflow.community.{package}.tools:{name}_tool": (f"adapters.tools.{name}:{name}", {"provider": provider})
    for name, packages in _WEB.items()
    for package, provider in packages.items()
} | {f"deerflow.sandbox.tools:{name}_tool": (f"adapters.tools.{name}:{name}", {}) for name in _FILES}
"""DeerFlow's class paths, with the path of the same tool here and its settings."""


def is_exclusive(entries: Sequence[ToolEntry], exclusive: bool | None) -> bool:
    """True if there are only the tools of the list. `exclusive` is the configured value; None if there is none."""
    if exclusive is not None:
        return exclusive
    return any(entry.use.startswith("deerflow.") for entry in entries)


def declared(built_in: Sequence[Tool], entries: Sequence[ToolEntry], exclusive: bool | None = None) -> list[Tool]:
    """Returns the tools, sorted by name. An entry for a built-in tool replaces it, with the entry's settings.

    Raises `Invalid`, naming `tools[i].use`, for an entry that makes no tool, and for two tools of the same name. Its
    text contains no secret of the entry.
    """
    tools: dict[str, Tool] = {}
    places: dict[str, str] = {}
    for number, entry in enumerate(entries):
        tool, place = of_entry(entry, number), f"tools[{number}].use: {entry.use}"
        if tool.name != entry.name:
            log.warning("a tool keeps its own name", entry=entry.name, name=tool.name)
        if tool.name in tools:
            raise Invalid(f"{place}: the name {tool.name} is taken by {places[tool.name]}")
        tools[tool.name], places[tool.name] = tool, place
    exclusive_list = is_exclusive(entries, exclusive)
    for tool in built_in:
        leader = tools.get(COMPANIONS.get(tool.name, ""))
        leader = leader if leader is not None and home(leader) == f"adapters.tools.{leader.name}" else None
        if exclusive_list and tool.group is not None and leader is None:
            continue
        if leader is not None and tool.name not in tools:
            tool = dataclasses.replace(tool, group=leader.group)
        declared_tool = tools.setdefault(tool.name, tool)
        if declared_tool is not tool and home(declared_tool) != home(tool):
            advice = "" if tool.group is None else ", or say `tools_exclusive: true` and list all that there are to be"
            text = f"the name {tool.name} is taken by {home(tool)}; call yours otherwise{advice}"
            raise Invalid(f"{places.get(tool.name, home(declared_tool))}: {text}")
    return sorted(tools.values(), key=lambda tool: tool.name)


def home(tool: Tool) -> str:
    """Returns the module of a tool's function."""
    return str(inspect.unwrap(tool.function).__module__)


def of_entry(entry: ToolEntry, number: int) -> Tool:
    """Returns the tool that `tools[number]` declares. Raises `Invalid`, as `declared` does."""
    place = f"tools[{number}].use: {entry.use}"
    use, defaults = _DEER_FLOW.get(entry.use, (entry.use, {}))
    if use.startswith("deerflow."):
        raise Invalid(f"{place}: not one of DeerFlow's tools that there are here: {', '.join(_DEER_FLOW)}")
    settings = {**entry.extra, **defaults}
    value = load(use, place)
    if isinstance(value, Tool):
        tool = _limited(value, settings, place)
    elif callable(value):
        tool = _construct(value, settings, place)
    else:
        raise Invalid(f"{place}: neither a sika.Tool nor a function that makes one")
    return dataclasses.replace(tool, group=entry.group or tool.group, deferred=entry.deferred)


def remarks(entry: ToolEntry, number: int) -> list[str]:
    """Returns a sentence for each setting that the tool of `tools[number]` does not know, and for a package that it
    needs and that is not installed. Nothing is known of third-party tools that take settings. Raises `Invalid`.
    """
    place = f"tools[{number}]"
    use, defaults = _DEER_FLOW.get(entry.use, (entry.use, {}))
    value, settings = load(use, f"{place}.use: {entry.use}"), {**entry.extra, **defaults}
    if isinstance(value, Tool):
        limited = "max_results" in inspect.signature(value.function).parameters
        unknown, missing = [key for key in settings if key != "max_results" or not limited], ""
    elif use.partition(":")[2] in _WEB and str(value.__module__).startswith("adapters.tools."):
        unknown, missing = web.unknown(settings), web.missing_package(settings, use.partition(":")[2])
    else:
        return []
    lines = [f"{place}.{key}: the tool {entry.name} knows no such setting" for key in unknown]
    return [*lines, f"{place}: {missing}"] if missing else lines


def _construct(factory: Any, settings: Mapping[str, Any], place: str) -> Tool:
    try:
        tool = factory(settings)
    except Exception as error:
        text = str(error) if isinstance(error, SikaError) else line_of(error)
        for secret in _secrets(settings):
            text = text.replace(secret, "***")
        raise Invalid(f"{place}: {text}") from None
    if not isinstance(tool, Tool):
        raise Invalid(f"{place}: makes no sika.Tool but {type(tool).__name__}")
    return tool


def _secrets(value: Any) -> Iterator[str]:
    match value:
        case Secret():
            if value:
                yield value.reveal()
        case Mapping():
            for item in value.values():
                yield from _secrets(item)
        case list() | tuple():
            for item in value:
                yield from _secrets(item)


def _limited(tool: Tool, settings: Mapping[str, Any], place: str) -> Tool:
    """Returns a tool without settings, except `max_results` as the limit of its argument of that name."""
    limit = settings.get("max_results")
    parameter = inspect.signature(tool.function).parameters.get("max_results")
    if limit is None or parameter is None:
        return tool
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise Invalid(f"{place}: max_results: expected a number from 1")
    default, function = parameter.default, tool.function

    @functools.wraps(function)
    async def limited(context: ToolContext, **arguments: Any) -> Any:
        return await function(context, **arguments | {"max_results": min(arguments.get("max_results", default), limit)})

    return dataclasses.replace(tool, function=limited)
