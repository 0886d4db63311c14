"""The secrets that a command gets: only one that does nothing but run a script of the skill that declares them."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping

from core.config.skills import Skills
from core.files.paths import SKILLS
from core.skills.folders import Skill

INTERPRETERS = frozenset(("bash", "node", "python", "python3", "sh"))
NOWHERE = "/nonexistent"
"""A home that nobody can make: the root of a sandbox is read-only."""
SAFE = {
    "PYTHONNOUSERSITE": "1",
    "HOME": NOWHERE,
    **{f"XDG_{kind}_HOME": f"{NOWHERE}/{kind.lower()}" for kind in ("CONFIG", "DATA", "STATE", "CACHE")},
    "MPLCONFIGDIR": f"{NOWHERE}/matplotlib",
}
"""Variables of a command with secrets: no program of it reads settings or code that the agent wrote."""
AWAY = "cd / && {}"
"""How such a command runs, for programs that read settings from the working directory."""
_NOT_PLAIN = re.compile(r"[;&|<>`$(){}\n\r\\]")


def script_of(command: str) -> str | None:
    """Returns the path of the script of a skill that a command runs, if it does nothing else.

    Arguments may follow. A shell's operators, variables, and options of the interpreter make it another command.
    """
    if _NOT_PLAIN.search(command) or SKILLS not in command:
        return None
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return None
    script = next(iter(words[1:] if words[:1] and words[0] in INTERPRETERS else words), "")
    return script if script.startswith(f"{SKILLS}/") and posixpath.normpath(script) == script else None


def environment(command: str, skills: Iterable[Skill], settings: Skills) -> Mapping[str, str]:
    """Returns the variables of a command, none for one that gets no secrets. Skills of users get none: whoever writes
    a skill could print them.
    """
    script = script_of(command) if settings.secrets else None
    shared = (skill for skill in skills if skill.enabled and not skill.own)
    skill = next((skill for skill in shared if script and script.startswith(f"{skill.root}/")), None)
    configured = settings.secrets.get(skill.name, {}) if skill else {}
    secrets = {name: configured[name].reveal() for name in skill.secrets if name in configured} if skill else {}
    return {**secrets, **SAFE} if secrets else {}
