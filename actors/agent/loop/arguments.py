"""The arguments of a declared tool: their JSON schema for models, and the reading of what a model sends.

Models differ in how exactly they follow a schema. What can be understood is taken, what is unknown is left out with a
word, and only what is missing or cannot be read fails the call, with all that a model needs to mend it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from core.errors import Invalid
from core.tools import Tool

LABEL = "description"
"""An argument that every call may have: models and recorded runs label their calls with it."""
SHOWN_VALUE = 80
"""Characters of a value in an error."""
MOST_NAMED = 8
"""Unknown arguments that a note names."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a tool."""

    name: str
    required: bool
    default: Any
    text: str
    adapter: TypeAdapter[Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a tool."""

    tool: str
    every: Sequence[Argument]

    @classmethod
    def of(cls, tool: Tool) -> Arguments:
        """Returns the arguments of a tool by its signature. Raises pydantic's errors for types without a schema."""
        signature = inspect.signature(tool.function, eval_str=True)
        parameters = [parameter for number, parameter in enumerate(signature.parameters.values()) if number > 0]
        return cls(tool.name, [_argument(parameter, tool.arguments) for parameter in parameters])

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of the arguments: without titles, and without `null` where it means the default."""
        properties, definitions = {}, {}
        for argument in self.every:
            part = _slim(argument.adapter.json_schema())
            definitions.update(part.pop("$defs", {}))
            about = {"description": argument.text} if argument.text else {}
            default = {} if argument.required or argument.default is None else {"default": argument.default}
            properties[argument.name] = {**about, **_without_null(part, argument), **default}
        required = [argument.name for argument in self.every if argument.required]
        more = {"$defs": definitions} if definitions else {}
        return {"type": "object", "properties": properties, **({"required": required} if required else {}), **more}

    def read(self, sent: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Returns the values, and a note about arguments that were ignored. Raises `Invalid`."""
        values: dict[str, Any] = {}
        problems = [problem for argument in self.every if (problem := _read(argument, sent, values)) is not None]
        unknown = [name for name in sent if name != LABEL and name not in self._names()]
        if problems:
            others = f" (Unknown: {_enumerated(unknown)}.)" if unknown else ""
            raise Invalid(f"{self.tool}: {'; '.join(problems)}.{others} {self._takes()} Correct it and call again.")
        return values, f"\n(Ignored unknown arguments: {_enumerated(unknown)}. {self._takes()})" if unknown else ""

    def _names(self) -> set[str]:
        return {argument.name for argument in self.every}

    def _takes(self) -> str:
        names = [f"{each.name} (required)" if each.required else each.name for each in self.every]
        return f"The arguments of {self.tool} are: {', '.join(names)}." if names else f"{self.tool} takes no arguments."


def schema_of(tool: Tool) -> dict[str, Any]:
    """Returns the JSON schema of a tool's arguments, as models are shown it."""
    return dict(tool.schema) if tool.schema is not None else Arguments.of(tool).schema()


def _argument(parameter: inspect.Parameter, texts: Mapping[str, str]) -> Argument:
    required = parameter.default is parameter.empty
    adapter: TypeAdapter[Any] = TypeAdapter(parameter.annotation)
    return Argument(parameter.name, required, parameter.default, texts.get(parameter.name, ""), adapter)


def _read(argument: Argument, sent: Mapping[str, Any], values: dict[str, Any]) -> str | None:
    """Puts the value of an argument among the values. Returns what is wrong with it, or None."""
    if argument.name not in sent:
        text = f" ({argument.text.rstrip('.')})" if argument.text else ""
        return f"`{argument.name}` is missing{text}" if argument.required else None
    value = sent[argument.name]
    try:
        values[argument.name] = argument.adapter.validate_python(value)
    except ValidationError as error:
        if not argument.required and value in (None, ""):
            return None  # means the default
        return f"`{argument.name}`: {_reason(error)}, got {_short(value)}"
    return None


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not str(part).endswith("]"))
    text = str(first["msg"])
    return f"{place}: {text}" if place else f"{text[:1].lower()}{text[1:]}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_VALUE else f"{text[:SHOWN_VALUE]}…"


def _enumerated(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(name[:SHOWN_VALUE] for name in names[:MOST_NAMED]) + more


def _without_null(schema: dict[str, Any], argument: Argument) -> dict[str, Any]:
    """Returns the schema of an optional argument without `null`, which says no more than leaving it out."""
    kinds = schema.get("anyOf", ())
    others = [kind for kind in kinds if kind != {"type": "null"}]
    if argument.required or argument.default is not None or len(others) == len(kinds):
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**rest, **others[0]} if len(others) == 1 else {**rest, "anyOf": others}


def _slim(schema: Any) -> Any:
    """Returns a schema without pydantic's titles, which repeat the names."""
    if isinstance(schema, list):
        return [_slim(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _slim(part) for name, part in value.items()} if key in ("properties", "$defs") else _slim(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
