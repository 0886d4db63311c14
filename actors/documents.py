"""Converts uploaded documents to Markdown: every upload if configured, and single files on request."""

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
from core.files.folder import KnownUploads, Upload, uploads
from core.ports.documents import KINDS, UNCONFINED, Converted, Outcome
from core.ports.documents import Documents as Port
from core.thread.ownership import missing, owned
from core.thread.threads import Threads

log = structlog.get_logger("sika.documents")


class Convert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    op: Literal["convert"]
    thread: str
    user: str
    name: str


class Show(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The beginning of a document's Markdown, of at most so many characters."""

    op: Literal["show"]
    thread: str
    user: str
    path: str
    limit: int


class Documents(Actor[FileUploaded]):
    def __init__(self, config: ConfigSource, threads: Threads, documents: Port) -> None:
        self._config, self._threads, self._documents = config, threads, documents
        self._uploads = uploads(threads.log)

    async def handle(self, event: FileUploaded, ctx: Context) -> None:
        suffix = Path(event.name).suffix.lower()
        if not self._config.current().uploads.auto_convert_documents or suffix not in KINDS:
            return
        thread_id = ctx.record.aggregate.id
        upload = (await ctx.load(self._uploads)).files.get(event.name)
        if upload is None or upload.sha256 != event.sha256:
            return  # removed, or replaced, which has an event of its own
        try:
            await self._settle(thread_id, event.name, upload, _silent, ctx.record.id)
        except (Invalid, NotFound) as error:
            log.info("document not converted", thread=thread_id, reason=str(error))

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        if request.get("op") == "show":
            return await self._show(self.parse(request, Show), progress)
        convert: Convert = self.parse(request, Convert)
        owned(await self._threads.load(convert.thread), convert.thread, convert.user)
        upload = (await self._uploads.load(convert.thread)).files.get(convert.name)
        settled = await self._settle(convert.thread, convert.name, upload, progress)
        if settled.text is None:
            raise Invalid(f"{convert.name} {settled.reason}")
        return {"markdown": settled.text.name, "pages": settled.pages}

    async def _show(self, show: Show, progress: Progress) -> dict[str, Any]:
        owned(await self._threads.load(show.thread), show.thread, show.user)
        text, pages = await self._documents.read(show.user, show.thread, show.path, progress)
        return {"text": text[: show.limit], "truncated": len(text) > show.limit, "pages": pages}

    async def _settle(
        self, thread_id: str, name: str, upload: Upload | None, progress: Progress, cause: str | None = None
    ) -> Upload:
        """Converts a file unless that was done. Returns its recorded state. Raises `NotFound` if it was removed."""
        if upload is not None and upload.settled and upload.reason != UNCONFINED:
            return upload
        user = (await self._threads.existing(thread_id)).user
        before = upload.text if upload else None
        outcome = await self._documents.convert(user, thread_id, name, before, progress)
        now = await self._recorded(thread_id, name, outcome, cause, new=upload is None)
        text = outcome.text if isinstance(outcome, Converted) else None
        current = now.text.name if now and now.text else None
        for unused in {text, before}:
            if unused and unused.name != current:
                await self._documents.discard(user, thread_id, unused)  # superseded by a later or parallel conversion
        if now is None:
            raise NotFound(f"{name}: not found")
        return now

    async def _recorded(
        self, thread_id: str, name: str, outcome: Outcome, cause: str | None, *, new: bool
    ) -> Upload | None:
        """Records the outcome unless the log has one. Returns the file's recorded state, None if it was removed.

        `new` means that the log did not have the file before.
        """

        def decide(state: KnownUploads) -> Sequence[Event]:
            upload = state.files.get(name)
            if not state.exists:
                raise missing(thread_id)
            if upload is None:
                return [_fact(name, outcome)] if new else []
            return [] if upload.of == outcome.sha256 and not _better(outcome, upload) else [_fact(name, outcome)]

        state, _ = await self._uploads.decide(thread_id, decide, actor=self.name, cause=cause)
        return state.files.get(name)


def _better(outcome: Outcome, upload: Upload) -> bool:
    """Tells whether the server can now convert a file that it once could not."""
    return upload.reason == UNCONFINED and (isinstance(outcome, Converted) or outcome.reason != UNCONFINED)


def _fact(name: str, outcome: Outcome) -> Event:
    if isinstance(outcome, Converted):
        return FileConverted(
            name=name,
            markdown=outcome.text.name,
            source_sha256=outcome.sha256,
            pages=outcome.pages,
            markdown_sha256=outcome.text.sha256,
        )
    return FileRejected(name=name, reason=outcome.reason, source_sha256=outcome.sha256)


async def _silent(_: str) -> None: ...
