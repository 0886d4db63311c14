"""Custom agents as files: Sika's bundle (one JSON file), and DeerFlow's folder (`config.yaml` and `SOUL.md`).

What comes from a file is checked as what comes from anybody: its size, its fields, their lengths.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import structlog
import yaml

from core.errors import Invalid
from core.user.agents import Definition, Effort, valid_name

log = structlog.get_logger("sika.agents")

MOST_BYTES = 1 << 20
"""Limit of a bundle, and of a file of a folder."""
CONFIG, SOUL = "config.yaml", "SOUL.md"
SHARED = "agents"
"""DeerFlow's folder of agents for everybody, in the data directory. It is not written to."""
MOST_SHARED = 100
"""Limit of agents of the shared folder that are listed."""

Text = Annotated[str, msgspec.Meta(max_length=2000)]
Soul = Annotated[str, msgspec.Meta(max_length=100_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Names = Annotated[list[Name], msgspec.Meta(max_length=200)]


class Bundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A custom agent as one file. Its conversations and its memory are not in it."""

    format: Literal["sika.agent"] = "sika.agent"
    version: Literal[1] = 1
    name: Name
    description: Text = ""
    model: Name | None = None
    tool_groups: Names | None = None
    skills: Names | None = None
    """Names: the skills themselves are not in it."""
    soul: Soul | None = None
    mcp_servers: Names | None = None
    """Names: the servers themselves are not in it."""
    thinking_enabled: bool | None = None
    reasoning_effort: Effort | None = None
    is_plan_mode: bool | None = None
    subagent_enabled: bool | None = None

    def definition(self) -> Definition:
        """Raises `Invalid` for a bad name."""
        fields = {name: getattr(self, name) for name in Definition.__struct_fields__}
        return Definition(**{**fields, "name": valid_name(self.name)})


class _Folder(msgspec.Struct, frozen=True):
    """DeerFlow's `config.yaml`; other fields are of newer releases, and ignored."""

    name: Name | None = None
    description: Text | None = None
    model: Name | None = None
    tool_groups: Names | None = None
    skills: Names | None = None
    thinking_enabled: bool | None = None
    reasoning_effort: Effort | None = None


def bundle(agent: Definition) -> Bundle:
    return Bundle(**{**msgspec.structs.asdict(agent)})


def read(path: Path) -> Definition:
    """Returns the agent of a bundle, or of DeerFlow's folder. Blocks. Raises `Invalid`, naming the place."""
    if path.is_dir():
        return _of_folder(path)
    try:
        definition = msgspec.json.decode(_content(path), type=Bundle).definition()
    except (msgspec.DecodeError, UnicodeDecodeError, Invalid) as error:
        raise Invalid(f"{path}: {error}") from None
    return definition


def shared(home: Path, name: str) -> Definition | None:
    """Returns an agent of the shared folder by its `checked` name; None if there is none. Blocks. Raises `Invalid`."""
    folder = home / SHARED / name
    if not (folder / CONFIG).is_file():
        return None
    return msgspec.structs.replace(read(folder), name=name)


def all_shared(home: Path) -> list[Definition]:
    """Returns the agents of the shared folder that can be read, by name. Blocks."""
    try:
        names = sorted(entry.name for entry in os.scandir(home / SHARED))
    except OSError:
        return []
    agents = list[Definition]()
    for name in names[:MOST_SHARED]:
        try:
            if name == valid_name(name) and (agent := shared(home, name)) is not None:
                agents.append(agent)
        except Invalid as error:
            log.warning("shared agent left out", agent=name, reason=str(error))
    return agents


def _of_folder(folder: Path) -> Definition:
    place = folder / CONFIG
    try:
        raw = yaml.safe_load(_content(place)) or {}
        config = msgspec.convert(raw, _Folder)
        name = valid_name(config.name or folder.name)
    except (msgspec.ValidationError, yaml.YAMLError, RecursionError, Invalid) as error:
        raise Invalid(f"{place}: {error}") from None
    soul = (folder / SOUL) if (folder / SOUL).exists() else None
    try:
        text = _content(soul).decode() if soul is not None else None
        return Bundle(
            name=name,
            description=config.description or "",
            model=config.model,
            tool_groups=config.tool_groups,
            skills=config.skills,
            thinking_enabled=config.thinking_enabled,
            reasoning_effort=config.reasoning_effort,
            soul=msgspec.convert(text, Soul | None),
        ).definition()
    except (UnicodeDecodeError, msgspec.ValidationError) as error:
        raise Invalid(f"{soul}: {error}") from None


def _content(path: Path) -> bytes:
    """Returns the content of a small regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Invalid(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    if len(content) > MOST_BYTES:
        raise Invalid(f"{path}: larger than {MOST_BYTES >> 20} MB")
    return content
