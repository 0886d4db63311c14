"""Settings of skills: where they lie, who may write them, and the secrets of their scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from core.config.sections import Count, Seconds, Secret, Section

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Skills(Section, frozen=True, kw_only=True):
    """Skills: instructions for the agent, as folders with a `SKILL.md`."""

    path: str | None = None
    """A folder with `public/` and `custom/`. Default: the variable `DEER_FLOW_SKILLS_PATH`, or the folder `skills`
    beside `config.yaml`. Without a `public` there, the built-in skills are used."""
    container_path: Literal["/mnt/skills"] = "/mnt/skills"
    """Its path in the sandbox."""
    list_limit: Count = 40
    """Number of skills up to which the prompt lists them. With more, the agent has the tool `skill_search` instead."""
    allow_private: bool = False
    """True if skills may be installed from addresses inside your network, and from those without https."""
    secrets: Mapping[str, Mapping[str, Secret]] = {}
    """Environment variables by skill, as `{weather: {API_KEY: $WEATHER_KEY}}`. A command gets those that the skill
    declares, if it does nothing but run a script of the skill."""

    def __post_init__(self) -> None:
        for skill, variables in self.secrets.items():
            for name in variables:
                if not _VARIABLE.fullmatch(name):
                    raise ValueError(f"secrets.{skill}: {name[:40]!r} is not the name of an environment variable")


class SkillEvolution(Section, frozen=True, kw_only=True):
    """Skills that the agent writes and improves for its user, with the tool `skill_manage`."""

    enabled: bool = False
    """True if the agent may do so."""
    moderation_model_name: str | None = None
    """The model that checks the content of skills before they are installed or changed. Default: the first model."""
    timeout_seconds: Seconds = 60
    """Seconds for that check. Without an answer nothing is installed."""
