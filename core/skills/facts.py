"""The facts about skills: which are enabled, and the versions of those that belong to users.

An aggregate is a scope: `SHARED` for everybody, and one for each user. A version of a user's skill is a tree
(`core.skills.trees`); a fact names it by its hash, so what was checked is what is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from core.errors import NotFound, Refused
from core.events import Event, Json, Record
from core.ids import safe_id
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase
from core.skills.format import FILE

KIND = "skills"
SHARED = "shared"
MOST = 100
"""Limit of the skills of a user."""
MOST_HISTORY = 20
"""Versions of a skill that are kept."""
Action = Literal["install", "create", "edit", "patch", "write_file", "remove_file", "rollback", "delete"]


class SkillEnabled(Event, frozen=True):
    """Agents may use the skill from here on. `by`: who turned it on."""

    phrase = Phrase("Skill turned on", "技能已启用", "{name}<, by {by}>", "{name}<，{by}>")
    name: str
    by: str | None = None


class SkillDisabled(Event, frozen=True):
    """Agents do not use the skill from here on. `by`: who turned it off."""

    phrase = Phrase("Skill turned off", "技能已停用", "{name}<, by {by}>", "{name}<，{by}>")
    name: str
    by: str | None = None


class SkillWritten(Event, frozen=True):
    """A user's skill has this version from here on."""

    phrase = Phrase(
        "Skill written",
        "技能已写入",
        "{name}: {action} {path}<, from {source}>",
        "{name}: {action} {path}<，来自 {source}>",
    )
    name: str
    tree: str
    """Hash of its files."""
    action: Action
    path: str = FILE
    """The file that differs from the version before, if it is one."""
    thread: str | None = None
    checked: Json = {}  # noqa: RUF012
    """The verdict on its content: `decision`, `reason`, `model`, `rules`."""
    source: str | None = None
    """The address that it was fetched from, without its query."""


class SkillRemoved(Event, frozen=True):
    """A user's skill is gone. Its history stays."""

    phrase = Phrase("Skill removed", "技能已移除", "{name}")
    name: str
    thread: str | None = None


class SkillRefused(Event, frozen=True):
    """The content of a skill was not accepted, by fixed rules or by a model."""

    phrase = Phrase("Skill not accepted", "技能未被接受", "{name}: {action}: {reason}")
    name: str
    reason: str
    action: Action
    thread: str | None = None
    checked: Json = {}  # noqa: RUF012


class Version(NamedTuple):
    """An entry of a skill's history. `tree`: None once it was removed."""

    at: str
    action: str
    actor: str
    tree: str | None
    before: str | None
    path: str
    thread: str | None
    checked: Json


class Scope(NamedTuple):
    """Decisions for everybody, or for one user: switches, and the user's skills with their versions."""

    enabled: Mapping[str, bool] = {}
    versions: Mapping[str, tuple[Version, ...]] = {}

    def tree(self, name: str) -> str | None:
        """Returns the version that a skill has; None if there is no such skill (any more)."""
        return versions[-1].tree if (versions := self.versions.get(name)) else None

    @property
    def trees(self) -> dict[str, str]:
        """The versions of the skills that there are, by name."""
        return {name: tree for name, versions in self.versions.items() if (tree := versions[-1].tree) is not None}


def fold(records: Iterable[Record], scope: Scope) -> Scope:
    """Returns the scope after these records. Pure and total."""
    enabled, versions = dict(scope.enabled), dict(scope.versions)
    for record in records:
        match record.event:
            case SkillEnabled(name=name):
                enabled[name] = True
            case SkillDisabled(name=name):
                enabled[name] = False
            case SkillWritten() as event:
                version = _version(record, versions, event, event.tree)
                versions[event.name] = (*versions.get(event.name, ()), version)[-MOST_HISTORY:]
            case SkillRemoved(name=name) as event if versions.get(name):
                versions[name] = (*versions[name], _version(record, versions, event, None))[-MOST_HISTORY:]
                enabled.pop(name, None)
    return Scope(enabled, versions)


def _version(
    record: Record, versions: Mapping[str, tuple[Version, ...]], event: SkillWritten | SkillRemoved, tree: str | None
) -> Version:
    before = versions[event.name][-1].tree if versions.get(event.name) else None
    at, actor = record.at, record.head.actor
    if isinstance(event, SkillRemoved):
        return Version(at, "delete", actor, None, before, FILE, event.thread, {})
    return Version(at, event.action, actor, tree, before, event.path, event.thread, event.checked)


def scope_of(user: str) -> str:
    """Returns the aggregate of a user."""
    return f"user-{safe_id(user, 'user')}"


def scopes(log: EventLog) -> Repository[Scope]:
    """Returns the repository of scopes."""
    return Repository(log, KIND, fold, Scope())


def switch(scope: Scope, name: str, enabled: bool, by: str | None = None) -> Sequence[Event]:
    """Returns the event that turns a skill on or off, if that is not so already."""
    if scope.enabled.get(name) is enabled:
        return []
    return [SkillEnabled(name=name, by=by) if enabled else SkillDisabled(name=name, by=by)]


def write(scope: Scope, event: SkillWritten, *, before: str | None) -> Sequence[Event]:
    """Returns the event of a new version after the version `before`; None: there is no such skill.

    Raises `Refused` if the skill has another version, or if there are too many skills.
    """
    there = scope.tree(event.name)
    if there is not None and before is None:
        raise Refused(f"Skill {event.name} already exists")
    if there != before:
        raise Refused(f"Skill {event.name} was changed meanwhile; read it again")
    if there is None and len(scope.trees) >= MOST:
        raise Refused(f"there are {MOST} custom skills already; remove one first")
    return [] if there == event.tree else [event]


def remove(scope: Scope, name: str, thread: str | None = None) -> Sequence[Event]:
    """Returns the event that removes a user's skill. Raises `NotFound`."""
    if scope.tree(name) is None:
        raise NotFound(f"Custom skill {name} not found")
    return [SkillRemoved(name=name, thread=thread)]
