"""Has uploaded documents converted to Markdown: all of them, if so configured, or the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from core.actor import Actor, Context, Progress
from core.config.load import ConfigSource
from core.errors import Invalid, NotFound
from core.events import Event, FileConverted, FileRejected, FileUploaded
from core.ports.documents import KINDS, OLD, UNCONFINED, Converted, Outcome
from core.ports.documents import Documents as Port
from core.thread.folder import KnownUploads, Upload, uploads
from core.thread.ownership import missing, owned
from core.thread.threads import Threads

log = structlog.get_logger("sika.documents")


class Convert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    op: Literal["convert"]
    thread: str
    user: str
    name: str


class Documents(Actor[FileUploaded]):
    def __init__(self, config: ConfigSource, threads: Threads, documents: Port) -> None:
        self._config, self._threads, self._documents = config, threads, documents
        self._uploads = uploads(threads.log)

    async def handle(self, event: FileUploaded, ctx: Context) -> None:
        suffix = Path(event.name).suffix.lower()
        if not self._config.current().uploads.auto_convert_documents or suffix not in (*KINDS, *OLD):
            return
        thread_id = ctx.record.aggregate.id
        known = (await ctx.load(self._uploads)).files.get(event.name)
        if known is None or known.sha256 != event.sha256:
            return  # it was removed meanwhile, or replaced: then there is another event
        try:
            await self._settle(thread_id, event.name, known, _silent, ctx.record.id)
        except (Invalid, NotFound) as error:
            log.info("document not converted", thread=thread_id, reason=str(error))

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        try:
            asked = msgspec.convert(dict(request), Convert)
        except msgspec.ValidationError as error:
            raise Invalid(f"documents: {error}") from None
        owned(await self._threads.load(asked.thread), asked.thread, asked.user)
        known = (await self._uploads.load(asked.thread)).files.get(asked.name)
        found = await self._settle(asked.thread, asked.name, known, progress)
        if found.markdown is None:
            raise Invalid(f"{asked.name} {found.reason}")
        return {"markdown": found.markdown, "pages": found.pages}

    async def _settle(
        self, thread_id: str, name: str, known: Upload | None, progress: Progress, cause: str | None = None
    ) -> Upload:
        """Convert a file unless that was done; what the log says of it then."""
        if known is not None and known.settled and known.reason != UNCONFINED:
            return known
        user = (await self._threads.existing(thread_id)).user
        own = known.markdown if known else None
        made = await self._documents.convert(user, thread_id, name, own, progress)
        now = await self._written(thread_id, name, made, cause, new=known is None)
        text = made.markdown if isinstance(made, Converted) else None
        for unused in {text, own} - {None, now.markdown if now else None}:
            await self._documents.discard(user, thread_id, str(unused))  # another one was faster, or it is outdated
        if now is None:
            raise NotFound(f"{name}: not found")
        return now

    async def _written(
        self, thread_id: str, name: str, made: Outcome, cause: str | None, *, new: bool
    ) -> Upload | None:
        """Write down what came of a file, unless somebody did; what the log says then. None: it was removed.

        `new`: the log did not know of the file before.
        """

        def decide(state: KnownUploads) -> Sequence[Event]:
            known = state.files.get(name)
            if not state.exists:
                raise missing(thread_id)
            if known is None:
                return [_fact(name, made)] if new else []
            return [] if known.of == made.sha256 and not _better(made, known) else [_fact(name, made)]

        state, _ = await self._uploads.decide(thread_id, decide, actor=self.name, cause=cause)
        return state.files.get(name)


def _better(made: Outcome, known: Upload) -> bool:
    """Whether a file that the server could not convert once can be by now."""
    return known.reason == UNCONFINED and (isinstance(made, Converted) or made.reason != UNCONFINED)


def _fact(name: str, made: Outcome) -> Event:
    if isinstance(made, Converted):
        return FileConverted(name=name, markdown=made.markdown, source_sha256=made.sha256, pages=made.pages)
    return FileRejected(name=name, reason=made.reason, source_sha256=made.sha256)


async def _silent(_: str) -> None: ...
