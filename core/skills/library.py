"""The skills of a user: those of the folders and the user's own, with what the log says about them."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping
from pathlib import Path

import anyio.to_thread
import structlog

import core
from core.config.settings import Config
from core.errors import Invalid, NotFound
from core.log.store import EventLog
from core.plugins import skill_roots
from core.skills import trees
from core.skills.extensions import Switches
from core.skills.facts import SHARED, Scope, scope_of, scopes, switch
from core.skills.folders import Folders, Listing, Skill, Skipped, folders_in, skill_at
from core.skills.format import FILE

log = structlog.get_logger("sika.skills")

BUILT_IN = Path(core.__file__).parent.parent / "skills"
MOST_USERS = 100
"""Users whose listings are kept in memory."""
MOST_CACHED = 2000
"""Versions of users' skills whose front matter is kept in memory."""


def folders_of(config: Config, project: Path) -> Mapping[str, Path]:
    """Returns the folders of skills by name: those of installed packages, then the configured ones, or those of the
    project. If there is no `public`, it is the built-in one. Blocks briefly.
    """
    packages = {f"package-{plugin.name}": plugin.value for plugin in skill_roots() if not plugin.problem}
    root = Path(config.skills.path).expanduser() if config.skills.path else project / "skills"
    folders = folders_in(root)
    return (
        {**packages, **folders}
        if folders["public"].is_dir()
        else {**packages, **folders, "public": BUILT_IN / "public"}
    )


class Library:
    """The skills of this installation. A change is seen at the next call, on every replica."""

    def __init__(self, log: EventLog, home: Path, folders: Mapping[str, Path] = {}, project: Path = Path()) -> None:
        self.scopes = scopes(log)
        self.home = home
        self._folders = Folders(folders)
        self._switches = Switches(project)
        self._read: dict[tuple[str, str], Skill] = {}
        self._joins: dict[str, tuple[tuple[object, ...], Listing]] = {}

    async def of(self, user: str, at_least: int | None = None) -> Listing:
        """Returns the skills of a user, enabled or not. The user's own shadow others of the same name. `at_least`: see
        `Repository.load`.
        """
        listing, shared, own = await asyncio.gather(
            self._folders.listing(),
            self.scopes.load(SHARED, at_least=at_least),
            self.scopes.load(scope_of(user), at_least=at_least),
        )
        if (joined := self._unchanged(user, listing, shared, own, self._switches.unchanged())) is not None:
            return joined
        return await anyio.to_thread.run_sync(self._join, listing, shared, own, user, abandon_on_cancel=True)

    async def get(self, user: str, name: str) -> Skill:
        """Returns a skill of a user. Raises `NotFound`."""
        if (skill := (await self.of(user)).skills.get(name)) is None:
            raise NotFound(f"Skill '{name}' not found")
        return skill

    async def switch(self, user: str, skill: Skill, enabled: bool, *, actor: str, by: str | None = None) -> Skill:
        """Turns a skill on or off: a shared one for everybody. `by`: the user who does it over HTTP."""
        scope = scope_of(user) if skill.own else SHARED
        await self.scopes.decide(scope, lambda scope: switch(scope, skill.name, enabled, by), actor=actor)
        return skill._replace(enabled=enabled)

    def _unchanged(self, user: str, *parts: object) -> Listing | None:
        """Returns the joined listing of a user if it was made of the same parts."""
        known, joined = self._joins.get(user, ((), None))
        return joined if len(known) == len(parts) and all(map(operator.is_, known, parts)) else None

    def _join(self, listing: Listing, shared: Scope, own: Scope, user: str) -> Listing:
        """Returns the same object while nothing has changed. Blocks: call it in a thread."""
        parts = (listing, shared, own, self._switches.read())
        if (known := self._unchanged(user, *parts)) is not None:
            return known
        joined = self._joined(*parts, user)
        if len(self._joins) >= MOST_USERS:
            self._joins.clear()
        self._joins[user] = parts, joined
        return joined

    def _joined(self, listing: Listing, shared: Scope, own: Scope, switched: Mapping[str, bool], user: str) -> Listing:
        switches = {**switched, **shared.enabled}
        skills = {name: skill._replace(enabled=switches.get(name, True)) for name, skill in listing.skills.items()}
        skipped = list(listing.skipped)
        missing = trees.published(self.home, user, own.trees) if own.versions else []
        for name, tree in own.trees.items():
            path = f"{trees.USER}/{name}/{FILE}"
            try:
                skill = self._own(user, name, tree, missing)
            except Invalid as error:
                skipped.append(Skipped(path, str(error)))
                continue
            if (shadowed := skills.get(name)) is not None:
                skipped.append(Skipped(shadowed.path, f"shadowed by {path}"))
            skills[name] = skill._replace(enabled=own.enabled.get(name, True))
        return Listing(dict(sorted(skills.items())), skipped)

    def _own(self, user: str, name: str, tree: str, missing: list[str]) -> Skill:
        if name in missing:
            raise Invalid("its files are not in the data directory")
        if (skill := self._read.get((user, tree))) is None:
            folder = trees.tree_of(self.home, user, tree)
            skill = skill_at(folder, f"{trees.USER}/{name}/{FILE}", "custom")._replace(own=True, name=name)
            if len(self._read) >= MOST_CACHED:
                self._read.clear()
            self._read[user, tree] = skill
        return skill
