"""Set-up of the runs of a chat account: built-in, all platforms, platform, account, person, as in DeerFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from core.chat.account import platform_of
from core.config.channels import Channels, Session, SessionLayer
from core.errors import Invalid

DEFAULT_AGENT = "lead_agent"
CONTEXT: Mapping[str, Any] = {"thinking_enabled": True}
_AGENT = re.compile(r"[a-z0-9-]+")


class NoAgent(Invalid):
    """The configured agent cannot be the name of one. The person reads the reason."""


class Setup(NamedTuple):
    """`config` and `context` of a run."""

    config: dict[str, Any]
    context: dict[str, Any]


def setup_of(channels: Channels, account: str, person: str) -> Setup:
    """Returns the set-up of a person's runs. Raises `NoAgent`."""
    config: dict[str, Any] = {}
    context, agent = dict(CONTEXT), DEFAULT_AGENT
    for layer in _layers(channels, account, person):
        config |= layer.config
        context |= layer.context
        agent = layer.assistant_id or agent
    if agent != DEFAULT_AGENT:
        context["agent_name"] = agent_name(agent)
    return Setup(config, context)


def agent_name(assistant: str) -> str:
    """Returns the name of a custom agent. Raises `NoAgent`."""
    name = assistant.strip().lower().replace("_", "-")
    if not _AGENT.fullmatch(name):
        raise NoAgent(f"assistant_id: {assistant[:80]!r} is not the name of an agent: letters, digits and dashes")
    return name


def _layers(channels: Channels, account: str, person: str) -> Iterator[SessionLayer]:
    platform = platform_of(account)
    sessions: list[Session] = [channels.session]
    if platform in channels.platforms:
        sessions.append(channels.platforms[platform].session)
    settings = channels.account(account)
    if account != platform and settings is not None:
        sessions.append(settings.session)
    yield from sessions
    for session in sessions:
        if person in session.users:
            yield session.users[person]
