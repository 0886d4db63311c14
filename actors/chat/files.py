"""Files of messages: from the bus into the uploads of a thread, as those of HTTP."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from contextlib import aclosing, suppress
from pathlib import Path, PurePath
from typing import NamedTuple

from anyio import to_thread

from actors.chat.turns import Turn
from core.chat.facts import Fetched
from core.chat.objects import Objects
from core.chat.sizes import over
from core.config.settings import Uploads
from core.errors import Invalid, NotFound
from core.events import Event, FileUploaded, Json
from core.files.folder import Draft, Folder, Version, digest, open_plain, version
from core.files.paths import USER_DATA
from core.files.uploads import plain_name
from core.thread.state import ThreadState
from core.thread.threads import Threads

LATE = "it took too long to get it"


class FetchedFiles(NamedTuple):
    """`files`: as a message names them (`additional_kwargs.files`). `problems`: what was wrong, for people."""

    files: Sequence[Json] = ()
    problems: Sequence[str] = ()


class Files:
    """Takes the files of turns. `home`: the data directory."""

    def __init__(self, home: Path, objects: Objects, threads: Threads) -> None:
        self._home = home
        self._objects = objects
        self._threads = threads

    async def take(self, turn: Turn, user: str, thread: str, limits: Uploads) -> FetchedFiles:
        """Puts the files of a turn into the uploads of a thread. Repeating it takes nothing twice.

        Raises `Unavailable`. Whatever else is wrong with a file stands in the text.
        """
        if not turn.has_files:
            return FetchedFiles()
        folder = Folder(self._home, user, thread)
        await to_thread.run_sync(folder.make)
        files: list[Json] = []
        problems: list[str] = []
        facts: dict[FileUploaded, Version | None] = {}
        for message in turn.all:
            if message.files is None:
                problems += [f"{attachment.name}: {LATE}" for attachment in message.event.attachments]
            for fetched in message.files or ():
                try:
                    taken = {str(file["filename"]) for file in files}
                    fact, there = await self._take(folder, fetched, limits, taken)
                except (Invalid, NotFound) as error:
                    problems.append(f"{fetched.name}: {str(error).removeprefix(f'{fetched.name}: ')}")
                    continue
                facts[fact] = there
                path = f"{USER_DATA}/uploads/{fact.name}"
                files.append({"filename": fact.name, "size": fact.size, "path": path})
        if facts:

            def decide(state: ThreadState) -> Sequence[Event]:
                there = folder.versions(fact.name for fact in facts)  # a person may have replaced some meanwhile
                true = [fact for fact, version in facts.items() if version and there.get(fact.name) == version]
                return true if state.exists and state.user == user else []

            await self._threads.decide(thread, decide, actor="chat", cause=turn.first.id)
        return FetchedFiles(files, problems)

    async def forget(self, turn: Turn) -> None:
        """Removes the objects of a turn, which the thread has now."""
        for message in turn.all:
            for fetched in message.files or ():
                if fetched.object:
                    with suppress(Invalid):
                        await self._objects.remove(fetched.object)

    async def _take(
        self, folder: Folder, fetched: Fetched, limits: Uploads, taken: Container[str]
    ) -> tuple[FileUploaded, Version | None]:
        if fetched.error or not fetched.object:
            raise Invalid(fetched.error or "it was not fetched")
        if fetched.size > limits.max_file_size:
            raise Invalid(f"{over(fetched.size, limits.max_file_size)} (uploads.max_file_size)")
        name = plain_name(fetched.name)
        draft = await to_thread.run_sync(folder.draft)
        try:
            async with aclosing(self._objects.chunks(fetched.object)) as chunks:
                async for chunk in chunks:
                    await to_thread.run_sync(draft.write, chunk)
            await to_thread.run_sync(draft.seal)
            return await to_thread.run_sync(_publish, folder, draft, name, fetched.name, taken)
        finally:
            await to_thread.run_sync(draft.close)


def _publish(
    folder: Folder, draft: Draft, name: str, original: str, taken: Container[str]
) -> tuple[FileUploaded, Version | None]:
    """Gives a draft a name that is free, or that a file with the same content has: one taken before a crash. Returns
    what is to be recorded, and the version of the file.
    """
    stem, suffix, number = PurePath(name).stem, PurePath(name).suffix, 0
    with folder.exclusive(), folder.open("uploads") as directory:
        while name in taken or not (_same(directory, name, draft.sha256) or draft.publish_new(directory, name)):
            number += 1
            name = f"{stem}_{number}{suffix}"
        there = version(directory, name)
    original_name = original if original != name else None
    return FileUploaded(name=name, size=draft.size, sha256=draft.sha256, original=original_name), there


def _same(directory: int, name: str, sha256: str) -> bool:
    try:
        fd = open_plain(directory, name)
    except (NotFound, Invalid):
        return False
    try:
        return digest(fd) == sha256
    finally:
        os.close(fd)
