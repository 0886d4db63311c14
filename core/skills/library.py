"""The skills of a user: those of the folders and the user's own, with what the log says about them."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import structlog

import core
from core.config.settings import Config
from core.errors import Invalid, NotFound
from core.log.store import EventLog
from core.skills import trees
from core.skills.extensions import Switches
from core.skills.facts import SHARED, Scope, scope_of, scopes, switch
from core.skills.folders import CATEGORIES, Folders, Listing, Skill, Skipped, skill_at
from core.skills.format import FILE

log = structlog.get_logger("sika.skills")

BUILT_IN = Path(core.__file__).parent.parent / "skills"
MOST_CACHED = 2000
"""Versions of users' skills whose front matter is kept in memory."""


def root_of(config: Config, project: Path) -> Path | None:
    """Returns the folder of skills: the configured one, that of the project, or the built-in one. Blocks briefly."""
    if config.skills.path:
        configured = Path(config.skills.path).expanduser()
        return configured if configured.is_dir() else None
    own = project / "skills"
    there = [own] if any((own / category).is_dir() for category in CATEGORIES) else []
    return next((root for root in (*there, BUILT_IN) if root.is_dir()), None)


class Library:
    """The skills of this installation. A change is seen at the next call, on every replica."""

    def __init__(self, log: EventLog, home: Path, root: Path | None = None, project: Path = Path()) -> None:
        self.scopes = scopes(log)
        self.home = home
        self._folders = Folders(root)
        self._switches = Switches(project)
        self._read: dict[tuple[str, str], Skill] = {}

    async def of(self, user: str) -> Listing:
        """Returns the skills of a user, enabled or not. The user's own shadow others of the same name."""
        listing = await self._folders.listing()
        shared, own = await self.scopes.load(SHARED), await self.scopes.load(scope_of(user))
        return await anyio.to_thread.run_sync(self._joined, listing, shared, own, user, abandon_on_cancel=True)

    async def get(self, user: str, name: str) -> Skill:
        """Returns a skill of a user. Raises `NotFound`."""
        if (skill := (await self.of(user)).skills.get(name)) is None:
            raise NotFound(f"Skill '{name}' not found")
        return skill

    async def switch(self, user: str, skill: Skill, enabled: bool, *, actor: str) -> Skill:
        """Turns a skill on or off: a shared one for everybody."""
        scope = scope_of(user) if skill.own else SHARED
        await self.scopes.decide(scope, lambda scope: switch(scope, skill.name, enabled), actor=actor)
        return skill._replace(enabled=enabled)

    def _joined(self, listing: Listing, shared: Scope, own: Scope, user: str) -> Listing:
        """Blocks: call it in a thread."""
        switches = {**self._switches.read(), **shared.enabled}
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
