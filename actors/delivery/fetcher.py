"""Fetcher: downloads the files of received messages at once, as platforms' handles to them expire."""

from __future__ import annotations

import mimetypes
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import structlog

from actors.delivery.outlet import FILE_SECONDS, Outlet, person
from actors.delivery.pacing import Slots
from core.actor import Actor, Context
from core.chat.facts import KIND, Attachment, ChatFetched, ChatReceived, Fetched, key_of
from core.chat.objects import Objects
from core.chat.port import ChatGone, CredentialsDead, RateLimited, Rejected
from core.chat.state import Conversation
from core.errors import Unavailable, ungrouped
from core.events import Event

log = structlog.get_logger("sika.delivery")

LARGEST_BYTES = 50 << 20
"""Limit of a file (DeerFlow's for DingTalk, its largest)."""
PATIENCE_SECONDS = 45.0
"""Time after which a file is not tried again: a message waits 60 s for its files."""
PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds after a failure before a file is tried again."""
SLOTS = 64
"""Files of an account that are fetched at the same time. Each is on the disk until it is on the bus: that many times
`LARGEST_BYTES` at most."""
AT_ONCE = 4
"""Files of a message of these."""
NOT_ADMITTED = "it was not fetched: its sender may not talk to the agent here"

Admits = Callable[[ChatReceived, Conversation], Awaitable[bool]]
"""Tells whether a message is for the agent, and its sender may talk to it. Raises `Unavailable`."""


class Fetcher(Actor[ChatReceived]):
    """Puts the attachments of a message on the bus, and says which are there and what was wrong with the others. People
    have the slots in turn.
    """

    kind = KIND
    concurrency = 1000

    def __init__(self, outlet: Outlet, objects: Objects, passing: Path, admits: Admits) -> None:
        self.name = f"fetch-{outlet.account}"  # type: ignore[misc]  # one for each account
        self.only = (outlet.account,)  # type: ignore[misc]
        self._outlet = outlet
        self._objects = objects
        self._passing = passing
        self._admits = admits
        self._slots = Slots(SLOTS)

    async def handle(self, event: ChatReceived, ctx: Context) -> None:
        key = key_of(event)
        if not event.attachments:
            return
        state = await ctx.load(self._outlet.chats)
        known = state.heard.get(key)
        if known is not None and (known.files is not None or known.outcome):
            return  # fetched before, or decided without its files: nobody waits for them
        files: list[Fetched | None] = [None] * len(event.attachments)
        at_once, admitted = anyio.CapacityLimiter(AT_ONCE), await self._admits(event, state)

        async def one(index: int, attachment: Attachment) -> None:
            if not admitted:
                files[index] = Fetched(attachment.name, error=NOT_ADMITTED)
                return
            async with at_once, self._slots.slot(event.sender):
                files[index] = await self._fetched(event, attachment, ctx)

        with ungrouped():
            async with anyio.create_task_group() as tasks:
                for index, attachment in enumerate(event.attachments):
                    tasks.start_soon(one, index, attachment)
        fetched = ChatFetched(message=key, files=tuple(file for file in files if file is not None))

        def decide(state: Conversation) -> Sequence[Event]:
            now = state.heard.get(key)
            return [fetched] if now is None or now.files is None else []

        await ctx.decide(decide, self._outlet.chats)

    async def _fetched(self, event: ChatReceived, attachment: Attachment, ctx: Context) -> Fetched:
        """Fetches one attachment. Raises `Unavailable` if the bus does not take it."""
        with tempfile.TemporaryDirectory(dir=self._passing) as folder:
            path = Path(folder) / "file"
            if problem := await self._download(event, attachment, path):
                log.info("file not fetched", account=self._outlet.account, reason=problem)
                return Fetched(attachment.name, error=problem)
            size = path.stat().st_size
            name = await self._objects.put(ctx.record.aggregate, attachment.name, path)
        mime = attachment.mime or mimetypes.guess_type(attachment.name)[0] or ""
        return Fetched(attachment.name, name, mime, size)

    async def _download(self, event: ChatReceived, attachment: Attachment, path: Path) -> str:
        """Writes an attachment to a file. Returns what was wrong; "" if nothing."""
        until = anyio.current_time() + PATIENCE_SECONDS
        for pause in (*PAUSES, None):
            await self._outlet.turns.call(person(event.target))
            try:
                await self._outlet.call(
                    event.target,
                    lambda: self._outlet.platform.fetch(attachment, event.message, path, LARGEST_BYTES),
                    min(FILE_SECONDS, max(1.0, until - anyio.current_time())),
                )
                if not path.is_file():
                    return "the platform sent nothing"
                too_large = path.stat().st_size > LARGEST_BYTES
                return f"it is larger than {LARGEST_BYTES >> 20} MiB" if too_large else ""
            except (Rejected, ChatGone, CredentialsDead) as error:
                return str(error)
            except Unavailable as error:
                wait = error.seconds if isinstance(error, RateLimited) else pause
                if wait is None or anyio.current_time() + wait > until:
                    return str(error)
            path.unlink(missing_ok=True)
            await anyio.sleep(wait)
        return "it could not be fetched"
