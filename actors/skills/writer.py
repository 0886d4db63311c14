"""Writes users' skills: each change is a whole new version, checked before it is used.

A version is staged, checked, and stored under its hash; then the log decides. A failure before that leaves nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread

from actors.agent.setup.plan import Models
from actors.skills.check import Rejected, verdict_on
from core.config.load import ConfigSource
from core.egress import Absent
from core.errors import Invalid, NotFound, Refused
from core.files.folder import Draft
from core.skills import address as addresses
from core.skills import archive, trees
from core.skills.facts import Action, Scope, SkillDisabled, SkillRefused, SkillWritten, remove, scope_of, write
from core.skills.format import FILE
from core.skills.library import Library

R = TypeVar("R")
Take = Callable[[Path, Path], str]
"""Puts a skill into a new folder, and returns its name. Raises `Invalid`."""
FOLDERS = ("references", "templates", "scripts", "assets")
"""Folders of a skill's files beside its `SKILL.md` (those that DeerFlow takes)."""
UNPACKED_AT_ONCE = 2
"""Archives that a process unpacks at a time: half a gigabyte each."""
MOST_FILE = 1 << 20
"""Limit of a file that is written."""
FETCH_SECONDS = 60.0
"""Time to fetch a skill from its address."""


class Downloads(Protocol):
    """Fetches files; `adapters.egress` implements it."""

    async def fetch(
        self,
        url: str,
        write: Callable[[bytes], Awaitable[object]],
        *,
        limit: int,
        seconds: float,
        private: bool,
        lifted_by: str,
    ) -> None: ...


class Writer:
    """Changes the skills of users. `actor` decides in the log."""

    def __init__(self, library: Library, models: Models, config: ConfigSource, *, actor: str) -> None:
        self._library, self._models, self._config, self._actor = library, models, config, actor
        self._unpacking = anyio.Semaphore(UNPACKED_AT_ONCE)

    async def install_from(self, user: str, url: str, downloads: Downloads) -> str:
        """Installs the skill at an address, off until its user turns it on, and returns its name. Raises `Invalid`,
        `Unavailable`, and `Refused` if it exists already.
        """
        with trees.staged(self._library.home, user) as staging, closing(Draft(staging)) as draft:
            download = await self._fetched(addresses.downloads_of(url), draft, downloads)
            take = partial(addresses.take, folder=download.folder)
            return await self.install(user, staging / draft.name, take, address=addresses.without_query(url))

    async def _fetched(
        self, candidates: Sequence[addresses.Download], draft: Draft, downloads: Downloads
    ) -> addresses.Download:
        """Fetches the first of the candidates that is there. Raises `Absent` as for the first one if none is."""
        absent = list[Absent]()
        for download in candidates:
            try:
                await downloads.fetch(
                    download.url,
                    lambda chunk: _in_thread(lambda: draft.write(chunk)),
                    limit=archive.MOST_PACKED,
                    seconds=FETCH_SECONDS,
                    private=self._config.current().skills.allow_private,
                    lifted_by="skills.allow_private",
                )
            except Absent as error:
                absent.append(error)
            else:
                return download
        raise absent[0]

    async def install(
        self,
        user: str,
        source: Path,
        take: Take = archive.unpack,
        *,
        thread: str | None = None,
        address: str | None = None,
    ) -> str:
        """Installs a skill, and returns its name. Raises `Invalid`, and `Refused` if it exists already. `address`: the
        one that it was fetched from; then it is off.
        """
        home = self._library.home
        with trees.staged(home, user) as staging:
            folder = staging / "skill"
            async with self._unpacking:
                name = await _in_thread(lambda: take(source, folder))
            if (await self._scope(user)).tree(name) is not None:
                raise Refused(f"Skill {name} already exists")
            await self._keep(user, name, folder, "install", before=None, thread=thread, address=address)
        return name

    async def create(self, user: str, name: str, content: str, *, thread: str | None = None) -> None:
        """Creates a skill of one file. Raises `Invalid` and `Refused`."""
        if (await self._scope(user)).tree(name) is not None:
            raise Refused(f"Skill {name} already exists")
        await self._change(user, name, FILE, lambda _: content, "create", None, thread)

    async def edit(
        self,
        user: str,
        name: str,
        path: str,
        edit: Callable[[str | None], str | None],
        action: Action,
        *,
        thread: str | None = None,
    ) -> None:
        """Changes a file of a skill: `edit` returns its new content, None to remove it. Raises `NotFound`, `Invalid`
        and `Refused`.
        """
        if (before := (await self._scope(user)).tree(name)) is None:
            raise NotFound(f"Custom skill {name} not found")
        await self._change(user, name, path, edit, action, before, thread)

    async def rollback(self, user: str, name: str, index: int) -> None:
        """Puts a skill back to what it was before an entry of its history. Raises `NotFound` and `Invalid`."""
        scope = await self._scope(user)
        if not (history := scope.versions.get(name)):
            raise NotFound(f"Custom skill {name} not found, and has no history")
        if not -len(history) <= index < len(history):
            raise Invalid(f"history_index: there are {len(history)} entries, got {index}")
        if (target := history[index].before) is None:
            raise Invalid("history_index: there is no version before this entry")
        source = trees.tree_of(self._library.home, user, target)
        if not source.is_dir():
            raise Invalid("history_index: that version is not kept any more")
        with trees.staged(self._library.home, user) as staging:
            await _in_thread(lambda: trees.copy(source, staging / "skill"))
            before = scope.tree(name)
            await self._keep(user, name, staging / "skill", "rollback", before=before, thread=None)

    async def remove(self, user: str, name: str, *, thread: str | None = None) -> None:
        """Removes a skill. Raises `NotFound`."""
        identity = scope_of(user)
        scope, _ = await self._library.scopes.decide(
            identity, lambda scope: remove(scope, name, thread), actor=self._actor
        )
        await self._publish(user, scope)

    async def _change(
        self,
        user: str,
        name: str,
        path: str,
        edit: Callable[[str | None], str | None],
        action: Action,
        before: str | None,
        thread: str | None,
    ) -> None:
        path, home = _path(path), self._library.home
        with trees.staged(home, user) as staging:
            folder = staging / "skill"

            def prepare() -> None:
                folder.mkdir()
                if before is not None:
                    trees.copy(trees.tree_of(home, user, before), folder)
                content = edit(_text(folder / path))
                if content is not None and len(content.encode()) > MOST_FILE:
                    raise Invalid(f"{path}: longer than {MOST_FILE >> 10} KB")
                trees.replace(folder, path, content)
                archive.check(folder, name)

            await _in_thread(prepare)
            await self._keep(user, name, folder, action, before=before, thread=thread, path=path)

    async def _keep(
        self,
        user: str,
        name: str,
        folder: Path,
        action: Action,
        *,
        before: str | None,
        thread: str | None,
        path: str = FILE,
        address: str | None = None,
    ) -> None:
        """Checks a staged version, stores it, and lets the log decide. Raises `Invalid` and `Refused`."""
        scopes, identity = self._library.scopes, scope_of(user)
        try:
            record = await verdict_on(self._models, self._config.current(), folder)
        except Rejected as error:
            refusal = SkillRefused(name=name, reason=str(error), action=action, thread=thread, checked=error.checked)
            await scopes.decide(identity, lambda _: [refusal], actor=self._actor)
            raise Invalid(f"Skill {name} is refused: {error}") from None
        tree = await _in_thread(lambda: trees.keep(self._library.home, user, folder))
        event = SkillWritten(
            name=name, tree=tree, action=action, path=path, thread=thread, checked=record, source=address
        )
        off = [SkillDisabled(name=name, by=user)] if address is not None else []
        scope, _ = await scopes.decide(
            identity, lambda scope: [*off, *write(scope, event, before=before)], actor=self._actor
        )
        await self._publish(user, scope)

    async def _publish(self, user: str, scope: Scope) -> None:
        used = {tree for versions in scope.versions.values() for v in versions for tree in (v.tree, v.before) if tree}

        def publish() -> None:
            trees.published(self._library.home, user, scope.trees)
            trees.prune(self._library.home, user, used)

        await _in_thread(publish)

    async def _scope(self, user: str) -> Scope:
        return await self._library.scopes.load(scope_of(user))


def _path(path: str) -> str:
    """Returns the path of a file that may be written. Raises `Invalid`."""
    plain = archive.safe_path(path)
    if plain != FILE and plain.partition("/")[0] not in FOLDERS:
        raise Invalid(f"path: {FILE}, or a file in {', '.join(FOLDERS)} is expected, got {plain}")
    if plain != FILE and ("/" not in plain or any(part.startswith(".") for part in plain.split("/"))):
        raise Invalid(f"path: a file is expected, got {plain}")
    return plain


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        raise Invalid(f"{file.name}: is no text") from None


async def _in_thread(work: Callable[[], R]) -> R:
    """Does blocking work in a thread, and waits for its end: a cancelled one must not write into what is removed."""
    return await anyio.to_thread.run_sync(work)
