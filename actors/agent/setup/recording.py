"""Contents of a run's setup that are recorded: its prompt, its tools as models see them, its models' parameters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from actors.agent.setup.plan import RunSetup
from core.config.redaction import redactor
from core.runs.prompts import Part


def key_of(setup: RunSetup) -> Hashable:
    """Returns a key that is equal for setups with the same `contents`, while the objects that it names live."""
    options = setup.options
    tools = [id(tool) for tool in setup.tools]
    shown = (setup.todos, setup.vision, setup.role is None, bool(setup.deferred))
    prompt = "" if setup.personal else setup.prompt
    return (id(setup.config), prompt, setup.candidates, options.thinking, options.effort, *shown, *tools)


def contents(setup: RunSetup, tools: Sequence[BaseTool]) -> Mapping[Part, str]:
    """Returns the contents without anything of a user. `tools` are all that the agent has, with those of its policies.
    Takes up to 100 ms.
    """
    prompt: dict[Part, str] = {} if setup.personal else {"prompt": setup.prompt}
    return {**prompt, "tools": _tools(setup, tools), "model": _model(setup)}


def _tools(setup: RunSetup, tools: Sequence[BaseTool]) -> str:
    deferred = {tool.name for tool in setup.deferred}
    schemas = [_function(tool) | {"deferred": tool.name in deferred} for tool in tools]
    return _json(sorted(schemas, key=lambda schema: str(schema["name"])))


def _function(tool: BaseTool) -> dict[str, Any]:
    """Returns a tool as models see it. A record must not end the run that it is of."""
    try:
        return dict(convert_to_openai_tool(tool)["function"])
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return {"name": tool.name, "description": tool.description, "error": f"{type(error).__name__}: {error}"}


def _model(setup: RunSetup) -> str:
    entries = {entry.name: entry for entry in setup.config.models}
    options = {"thinking": setup.options.thinking is not False, "reasoning_effort": setup.options.effort}
    models = [_entry(entries[name]) if name in entries else {"name": name} for name in setup.candidates]
    return _json({"models": _clean(models), **options})


def _entry(entry: Any) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.structs.asdict(entry).items() if value is not None}
    return {**fields.pop("extra"), **fields}


def _clean(value: Any) -> Any:
    """Returns a value without secrets, also those that an address holds."""
    if isinstance(value, Mapping):
        return {name: _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return redactor.text(value) if isinstance(value, str) else value


def _json(value: Any) -> str:
    encoded = msgspec.json.encode(value, enc_hook=str, order="sorted")
    return msgspec.json.format(encoded, indent=1).decode()
