"""Options of runs, messages and files, as programs pass them to the clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict

from channels.client.errors import Invalid
from channels.client.events import Json
from core.ids import uuid7

ASSISTANT = "lead_agent"


class Defaults(TypedDict, total=False):
    """Default options of a client's runs."""

    model_name: str | None
    thinking_enabled: bool | None
    subagent_enabled: bool
    plan_mode: bool
    agent_name: str | None
    mode: Literal["flash", "thinking", "pro", "ultra"] | None
    """Sets the other options that are not given. `thinking_enabled` has a default: None leaves it to the mode."""
    available_skills: Collection[str] | None
    environment: str | None


class Overrides(Defaults, total=False):
    """Options of a run: the client's, and those of runs only."""

    reasoning_effort: str | None
    recursion_limit: int
    metadata: Mapping[str, Any]
    """Stored with the run."""
    multitask_strategy: Literal["reject", "enqueue", "interrupt", "rollback"]
    """The strategy for a busy thread; by default the run is refused."""
    on_disconnect: Literal["cancel", "continue"]
    """The run's fate if its stream is closed before the end; by default it is cancelled."""


def check(*, checkpointer: Any, middlewares: Any, url: Any, api_key: Any, own: Any) -> None:
    """Raises `Invalid` for bad arguments and combinations. `own` are those of a server in this process."""
    if checkpointer is not None:
        raise Invalid("checkpointer: must be None; the server's log is the checkpointer")
    if middlewares:
        raise Invalid("middlewares: must be None; middlewares are part of the server's configuration")
    if url is not None and own:
        raise Invalid("url: a server elsewhere has its own config_path and home, and knows the user by the api_key")
    if url is None and api_key is not None:
        raise Invalid("api_key: goes with a url; a server in this process is told the user")


def check_names(options: Mapping[str, Any], names: frozenset[str]) -> None:
    if unknown := options.keys() - names:
        raise TypeError(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(names))}")


def body_of(options: Overrides) -> Json:
    """Returns the options of a run as fields of the request."""
    skills, environment = options.get("available_skills"), options.get("environment")
    context = {
        "model_name": options.get("model_name"),
        "thinking_enabled": options.get("thinking_enabled"),
        "subagent_enabled": options.get("subagent_enabled"),
        "is_plan_mode": options.get("plan_mode"),
        "agent_name": options.get("agent_name"),
        "mode": options.get("mode"),
        "available_skills": sorted(skills) if skills is not None else None,
        "reasoning_effort": options.get("reasoning_effort"),
    }
    return {
        "assistant_id": ASSISTANT,
        "context": {key: value for key, value in context.items() if value is not None},
        "config": {"recursion_limit": options["recursion_limit"]} if "recursion_limit" in options else {},
        "metadata": {**options.get("metadata", {}), **({"environment": environment} if environment else {})},
        "multitask_strategy": options.get("multitask_strategy", "reject"),
    }


def human_message(message: str | Mapping[str, Any]) -> Json:
    """Returns a message of the user, with an id: sent twice, it is stored once."""
    fields = {"content": message} if isinstance(message, str) else dict(message)
    return {"type": "human", "id": uuid7(), **fields}


def files_of(names: Sequence[str | PathLike[str]]) -> list[Path]:
    """Returns the paths of files to send. Raises `Invalid` for folders and the like."""
    paths = [Path(name) for name in names]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        if not path.is_file():
            raise Invalid(f"{path}: not a file")
    if not paths:
        raise Invalid("files: none are named")
    return paths
