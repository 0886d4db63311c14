"""The skills of a run: those that its agent may use, the one that its message calls, and the tools that they allow."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cachetools import LRUCache

from core.control import neutralised
from core.errors import Invalid
from core.events import Json
from core.skills.folders import Listing, Skill

COMMAND = re.compile(r"/([a-z0-9]+(?:-[a-z0-9]+)*)(?:\s+|\Z)")
"""The beginning of a message that calls a skill (DeerFlow's middleware SkillActivation)."""
RESERVED = frozenset(("bootstrap", "goal", "help", "memory", "models", "new", "status"))
"""Words after a slash that are commands of channels."""
MOST_CHARACTERS = 64_000
"""Characters of a skill's text that a message records."""
MOST_WHITELIST = 200
KEPT = 256
"""Selections that are kept in memory."""
MOST_NAMED = 30


@dataclass(frozen=True, eq=False)
class Selection:
    """The skills of a run by name. `called` is the one that the message names."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    called: Skill | None = None
    tools: frozenset[str] | None = None
    """The only tools that the run has. None: skills restrict none."""

    def record(self, limit: int) -> Json:
        """Returns what a run records of its skills: their content hashes by name, or above the limit one for all."""
        if len(self.skills) <= limit:
            return {name: skill.hash for name, skill in self.skills.items()}
        called = {self.called.name: self.called.hash} if self.called else {}
        return {"*": f"{len(self.skills)} skills, {self._digest}", **called}

    @cached_property
    def _digest(self) -> str:
        hashes = sorted((name, skill.hash) for name, skill in self.skills.items())
        return hashlib.blake2b(repr(hashes).encode(), digest_size=6).hexdigest()


class Selections:
    """Selects the skills of runs; equal selections of a listing are the same object."""

    def __init__(self) -> None:
        self._made: LRUCache[Hashable, tuple[Listing, Selection]] = LRUCache(KEPT)

    def of(self, listing: Listing, whitelists: Sequence[Iterable[str] | None], text: str) -> Selection:
        """Calls `selected`, unless its result is known."""
        limits = [names if names is None else tuple(names) for names in whitelists]
        key = (id(listing), *limits, command(text))
        if key not in self._made:
            self._made[key] = listing, selected(listing, limits, text)  # the reference reserves the listing's id
        return self._made[key][1]


def selected(listing: Listing, whitelists: Sequence[Iterable[str] | None], text: str) -> Selection:
    """Returns the skills that are enabled and in all whitelists, for a run with this message."""
    limits = [frozenset(names) for names in whitelists if names is not None]
    only = frozenset.intersection(*limits) if limits else None
    skills = {n: skill for n, skill in listing.skills.items() if skill.enabled and (only is None or n in only)}
    called = skills.get(command(text) or "")
    return Selection(skills, called, _tools(skills if only is not None else {}, called))


def command(text: str) -> str | None:
    """Returns the name of the skill that a message calls, as in `/name text`."""
    match = COMMAND.match(text)
    return match[1] if match and match[1] not in RESERVED else None


def known(listing: Listing, names: Sequence[str], where: str = "skills") -> None:
    """Raises `Invalid`, by place, for the name of a skill that there is not, enabled or not."""
    for index, name in enumerate(names):
        if name not in listing.skills:
            there = ", ".join([*listing.skills][:MOST_NAMED]) or "none"
            raise Invalid(f"{where}[{index}]: no skill {name[:80]!r}; there are: {there}")


def _tools(chosen: Mapping[str, Skill], called: Skill | None) -> frozenset[str] | None:
    """Returns the union of the declared tools: of the called skill, else of those that a whitelist chose.

    Skills that are merely there restrict nothing: one of them would take the tools from all others.
    """
    skills = [called] if called else chosen.values()
    declared = [skill.allowed_tools for skill in skills if skill.allowed_tools is not None]
    return frozenset(tool for tools in declared for tool in tools) if declared else None


def reference(skill: Skill, text: str) -> Json:
    """Returns what a message records of the skill that it calls. Its text is part of it, so a replay has the same."""
    cut = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}\n[cut here; read the rest in its file]"
    return {"name": skill.name, "path": skill.path, "hash": skill.hash, "text": cut}


def block(recorded: Json) -> str:
    """Returns the text for the model of a skill that a message calls, "" for anything else."""
    name, path, text = (recorded.get(key) for key in ("name", "path", "text"))
    if not (isinstance(name, str) and isinstance(path, str) and isinstance(text, str)):
        return ""
    lead = f"The person calls the skill {name} with the next message. Its instructions, from {path}:"
    return f'{lead}\n<skill name="{neutralised(name)}">\n{neutralised(text)}\n</skill>'
