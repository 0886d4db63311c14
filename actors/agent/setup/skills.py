"""Shows a run the skills that it has: in its prompt, and in its tools."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import filter as matching

from actors.agent.setup.delegates import Role
from actors.agent.setup.prompt import SkillsInPrompt
from core.config.load import Config
from core.control import neutralised
from core.errors import Invalid
from core.skills.folders import Skill
from core.skills.selection import Selection
from core.tools import Tool

SEARCH, MANAGE = "skill_search", "skill_manage"
MOST_LOADED, MOST_CHARACTERS = 10, 20_000
"""Limits of the skills whose texts are in the prompt of a subagent: their number, and the characters of each."""


def permitted(tools: Sequence[Tool], skills: Selection, config: Config, role: Role | None) -> list[Tool]:
    """Returns the tools that the skills of a run leave, with those of skills where they have a use."""
    hidden = set[str]()
    if len(skills.skills) <= config.skills.list_limit:
        hidden.add(SEARCH)
    if not config.skill_evolution.enabled or role is not None:
        hidden.add(MANAGE)
    allowed = skills.tools
    return [tool for tool in tools if tool.name not in hidden and (allowed is None or tool.name in allowed)]


def skills_for_prompt(
    skills: Selection, config: Config, role: Role | None, tools: Collection[str], *, bootstrap: bool
) -> SkillsInPrompt:
    """Returns what the prompt of a run with these tools shows of its skills. Blocks: call it in a thread."""
    evolves = config.skill_evolution.enabled and role is None and not bootstrap
    if role is not None and role.skills is not None:
        texts = [(skill, _text(skill)) for skill in list(skills.skills.values())[:MOST_LOADED]]
        return SkillsInPrompt(loaded=tuple((skill.name, skill.path, text) for skill, text in texts if text))
    offered = [skill for skill in skills.skills.values() if usable(skill, tools)]
    if len(skills.skills) > config.skills.list_limit:
        return SkillsInPrompt(more=len(offered), evolves=evolves)
    return SkillsInPrompt(tuple(_entry(skill) for skill in offered), evolves=evolves)


def usable(skill: Skill, tools: Collection[str]) -> bool:
    """Tells whether a run has what the skill requires: for each entry a tool that one of its patterns matches."""
    return all(any(matching(tools, name) for name in entry.split("|")) for entry in skill.requires)


def _entry(skill: Skill) -> tuple[str, str, str, str]:
    return skill.name, skill.description, "custom, editable" if skill.own else skill.category, skill.path


def _text(skill: Skill) -> str:
    """Returns the text of a skill, "" if it is gone since it was listed."""
    try:
        return neutralised(skill.text()[:MOST_CHARACTERS])
    except Invalid:
        return ""
