"""The limits of a subagent are named by the key of the configuration that has them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.agent.setup.delegates import role_of, setting_of
from core.config.load import Config
from core.config.sections import Off
from core.config.subagents import Subagents
from core.user.agents import Definition, Roster

POET = {"description": "verses", "system_prompt": "You are a poet."}
ROSTER = Roster(agents={"rev-1": Definition("rev-1")})


def config(section: dict[str, Any]) -> Config:
    return Config(subagents=msgspec.convert(section, Subagents), agents_api=Off(enabled=True))


def put(section: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Returns the section with another value at a key."""
    name, _, rest = key.partition(".")
    return {**section, name: put(section.get(name, {}), rest, value) if rest else value}


@pytest.mark.parametrize(
    ("name", "section", "key"),
    [
        ("general-purpose", {}, "subagents.{}"),
        ("general-purpose", {"max_turns": 9, "timeout_seconds": 9}, "subagents.{}"),
        ("general-purpose", {"agents": {"general-purpose": {"skills": []}}}, "subagents.{}"),
        (
            "general-purpose",
            {"agents": {"general-purpose": {"max_turns": 5, "timeout_seconds": 5}}},
            "subagents.agents.general-purpose.{}",
        ),
        ("bash", {"agents": {"general-purpose": {"max_turns": 5, "timeout_seconds": 5}}}, "subagents.{}"),
        ("poet", {"custom_agents": {"poet": POET}}, "subagents.custom_agents.poet.{}"),
        ("poet", {"custom_agents": {"poet": {**POET, "max_turns": 5}}}, "subagents.custom_agents.poet.{}"),
        (
            "poet",
            {"custom_agents": {"poet": POET}, "agents": {"poet": {"max_turns": 5, "timeout_seconds": 5}}},
            "subagents.agents.poet.{}",
        ),
        ("rev-1", {}, "subagents.{}"),
    ],
)
@pytest.mark.parametrize(("field", "value"), [("max_turns", 77), ("timeout_seconds", 777)])
def test_who_changes_it_changes_the_limit(name: str, section: dict[str, Any], key: str, field: str, value: int) -> None:
    before = config(section)
    named = setting_of(before, role_of(before, ROSTER, None, name), field)
    assert named == key.format(field)
    role = role_of(config(put(section, named.removeprefix("subagents."), value)), ROSTER, None, name)
    assert (role.max_turns if field == "max_turns" else role.seconds) == value
