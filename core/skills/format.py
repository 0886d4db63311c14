"""The format of `SKILL.md`: front matter between `---` lines, then instructions.

Loading is lenient: it reads as much as makes a usable skill, and says why a file is none. Installing and editing are
strict (`problems`). https://agentskills.io/specification, and what DeerFlow accepts beyond it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from core.control import neutralised
from core.errors import Invalid

FILE = "SKILL.md"
MOST_BYTES = 256 * 1024
"""Limit of a `SKILL.md`."""
MOST_NAME, MOST_DESCRIPTION, MOST_COMPATIBILITY = 64, 1024, 500
FIELDS = frozenset(
    ("name", "description", "license", "allowed-tools", "metadata", "compatibility", "version", "author", "secrets")
) | {"requires-tools"}
FOREIGN = frozenset(
    ("argument-hint", "arguments", "agent", "context", "disable-model-invocation", "effort", "hooks", "model", "paths")
) | {"shell", "user-invocable", "when_to_use", "tags", "category", "keywords"}
"""Keys of other hosts. They have no effect here."""
TOOLS = {"edit": "str_replace", "multiedit": "str_replace", "read": "read_file", "write": "write_file"} | {
    "webfetch": "web_fetch",
    "websearch": "web_search",
}
"""Names of tools in other hosts, in lower case, and ours."""

_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_STRICT_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LENIENT_NAME = re.compile(r"[^\W_](?:[\w .-]*[\w])?")
_LINE = re.compile(r"^([A-Za-z][\w-]*):[ \t]+(?![\"'|>\[{&*!])(.*:(?:[ \t].*|))$", re.MULTILINE)
"""A line of the top level whose plain value has a colon that YAML takes for a mapping."""
_TOOL = re.compile(r"[^\s,()]+(?:\([^)]*\))?")
_PATTERNS = re.compile(r"[\w*?.:-]{1,64}(?:\|[\w*?.:-]{1,64}){0,9}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Front(NamedTuple):
    """Contents of a `SKILL.md`."""

    name: str
    description: str
    license: str | None
    allowed_tools: tuple[str, ...] | None
    """Names of our tools. None: any."""
    secrets: tuple[str, ...]
    """Environment variables that its scripts need."""
    requires: tuple[str, ...]
    """Tools without which it is not offered, as names or patterns (`*_search`), with `|` between alternatives."""
    values: Mapping[str, Any]
    """The front matter."""
    body: str


class _Loader(yaml.SafeLoader):
    """Reads scalars as text, and refuses aliases, which can stand for gigabytes."""

    yaml_implicit_resolvers: Mapping[str, Any] = {}  # type: ignore[assignment]

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        return super().compose_node(parent, index)


def read(text: str) -> Front:
    """Reads a `SKILL.md` leniently. Raises `Invalid` with the reason if it describes no skill."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if (match := _FRONT.match(text)) is None:
        raise Invalid("no front matter: the file must begin with a line ---, and a second one must end it")
    values = _mapping(match[1])
    name, description = (_text(values, key) for key in ("name", "description"))
    for key, value in (("name", name), ("description", description)):
        if not value:
            raise Invalid(f"{key}: is missing")
    if not _LENIENT_NAME.fullmatch(name) or len(name) > MOST_NAME:
        raise Invalid(f"name: letters, digits and hyphens are expected, at most {MOST_NAME}, got {name[:80]!r}")
    return Front(
        name,
        " ".join(description.split())[:MOST_DESCRIPTION],
        _text(values, "license") or None,
        _tools(values.get("allowed-tools")),
        _secrets(values),
        _names(values, "requires-tools", _PATTERNS, "names or patterns of tools"),
        values,
        text[match.end() :],
    )


def problems(text: str, folder: str | None = None) -> list[str]:
    """Returns what keeps a `SKILL.md` from being installed. `folder`: the name of its folder, if that matters."""
    if text.startswith("\ufeff"):
        return ["the file begins with a byte order mark; save it as UTF-8 without one"]
    try:
        front = read(text)
    except Invalid as error:
        return [str(error)]
    values, description = front.values, _text(front.values, "description")
    unknown = sorted(front.values.keys() - FIELDS - FOREIGN)
    checks = (
        (not _STRICT_NAME.fullmatch(front.name), f"name: a-z, 0-9 and single hyphens between, got {front.name!r}"),
        (folder not in (None, front.name), f"name: {front.name} is not the name of its folder, {folder}"),
        (len(description) > MOST_DESCRIPTION, f"description: longer than {MOST_DESCRIPTION} characters"),
        (bool(re.search("[<>]", description)), "description: contains < or >"),
        (
            len(_text(values, "compatibility")) > MOST_COMPATIBILITY,
            f"compatibility: longer than {MOST_COMPATIBILITY} characters",
        ),
        (bool(unknown), f"unknown keys: {', '.join(unknown)}; there are: {', '.join(sorted(FIELDS))}"),
        (not front.body.strip(), "there are no instructions below the front matter"),
    )
    return [text for wrong, text in checks if wrong]


def remarks(text: str) -> list[str]:
    """Returns what is accepted in a `SKILL.md` and has no effect, or may surprise."""
    front = read(text)
    foreign = [f"{key}: is of another host, and has no effect here" for key in sorted(front.values.keys() & FOREIGN)]
    body = front.body
    notes = (
        ("<!--" in body, "the instructions contain an HTML comment, which people do not see"),
        (neutralised(body) != body, "the instructions contain control tags or characters that people do not see"),
        (body.count("\n") > 500, "the instructions have more than 500 lines: move parts into files beside"),
    )
    return [*foreign, *(text for applies, text in notes if applies)]


def _mapping(front: str) -> Mapping[str, Any]:
    try:
        values = _load(front)
    except yaml.YAMLError as first:
        try:
            values = _load(_LINE.sub(lambda line: f"{line[1]}: {json.dumps(line[2], ensure_ascii=False)}", front))
        except (yaml.YAMLError, RecursionError):
            raise Invalid(f"front matter: {_of_yaml(first)}") from None
    except RecursionError:
        raise Invalid("front matter: nested too deeply") from None
    if not isinstance(values, dict):
        raise Invalid("front matter: lines `key: value` are expected")
    return {key: value for key, value in values.items() if isinstance(key, str)}


def _load(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _of_yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 2}: {problem}" if mark else problem


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value.strip() if isinstance(value, str) else ""


def _tools(value: Any) -> tuple[str, ...] | None:
    """Reads `allowed-tools`: a list, or names with blanks between. Raises `Invalid`."""
    if value is None or (isinstance(value, str) and value.strip() in ("", "~", "null")):
        return None
    names = _TOOL.findall(value) if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise Invalid("allowed-tools: a list of names, or names with blanks between, is expected")
    return tuple(dict.fromkeys(_our_tool(name.strip()) for name in names))


def _our_tool(name: str) -> str:
    """Returns our name of a tool; a pattern of arguments, as in `Bash(git:*)`, is not looked at."""
    plain = name.partition("(")[0]
    return TOOLS.get(plain.lower(), plain if plain.startswith("mcp") else plain.lower())


def _secrets(values: Mapping[str, Any]) -> tuple[str, ...]:
    return _names(values, "secrets", _VARIABLE, "names of environment variables")


def _names(values: Mapping[str, Any], key: str, form: re.Pattern[str], what: str) -> tuple[str, ...]:
    """Reads a list of names from `key`, or from `metadata`, which other validators accept, too. Raises `Invalid`."""
    metadata = values.get("metadata")
    value = values.get(key) or (metadata.get(key) if isinstance(metadata, dict) else None) or []
    names = re.split(r"[\s,]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and form.fullmatch(name) for name in names):
        raise Invalid(f"{key}: {what} are expected")
    return tuple(dict.fromkeys(names))
