"""An account's platform in the process that holds the account: nothing passes without the lease, and all is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from core.chat.facts import Attachment, ChatReceived, Target
from core.chat.lease import Lease
from core.chat.port import (
    Bundling,
    Content,
    CredentialsDead,
    Draft,
    File,
    Finding,
    Platform,
    RateLimited,
    Receive,
    Report,
    Whispering,
)
from core.chat.status import State, Status
from core.config.redaction import redactor
from core.ids import now

REASON_CHARACTERS = 500


class Meter:
    """Records the life of an account's connection: a `Report`, and counts."""

    def __init__(self, account: str, process: str) -> None:
        self._account = account
        self._process = process
        self._state: State = "starting"
        self._reason = self._since = self._heard = self._in = self._out = self._failure = self._limited = ""
        self._refused = ""
        """The reason for which the platform does not accept the credentials of calls, though the connection lives."""
        self._received = self._sent = self._failures = self._connects = 0

    def enter(self, state: State, reason: str = "") -> None:
        """Notes a state, with the reason for it."""
        self._state, self._since, self._refused = state, "", ""
        self._reason = redactor.text(reason)[:REASON_CHARACTERS]

    def connected(self) -> None:
        self.enter("connected")
        self._since = self._heard = now()
        self._connects += 1

    def heard(self) -> None:
        self._heard = now()

    def disconnected(self, reason: str) -> None:
        self.enter("disconnected", reason)

    def received(self) -> None:
        self._received += 1
        self._in = now()

    def sent(self) -> None:
        self._sent += 1
        self._refused = ""
        self._out = now()

    def failed(self, error: Exception) -> None:
        """Notes a call that failed."""
        self._failures += 1
        self._failure = redactor.text(f"{type(error).__name__}: {error}")[:REASON_CHARACTERS]
        if isinstance(error, CredentialsDead):
            self._refused = self._failure
        if isinstance(error, RateLimited):
            until = datetime.now(UTC) + timedelta(seconds=error.seconds)
            self._limited = until.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def status(self) -> Status:
        """Returns what is known, except for open deliveries."""
        limited = self._limited if self._limited > now() else ""
        refused = self._refused if self._state == "connected" else ""
        return Status(
            account=self._account,
            state="credentials dead" if refused else self._state,
            reason=refused or self._reason,
            process=self._process,
            connected_since=self._since,
            last_heard=self._heard,
            last_in=self._in,
            last_out=self._out,
            received=self._received,
            sent=self._sent,
            failures=self._failures,
            last_failure=self._failure,
            reconnects=max(0, self._connects - 1),
            rate_limited_until=limited,
        )


class LeasedPlatform:
    """A `Platform` whose calls need the lease. Without it they raise `Unavailable`: nothing was sent, or received."""

    def __init__(self, platform: Platform, lease: Lease, meter: Meter) -> None:
        self.traits = platform.traits
        self._platform = platform
        self._lease = lease
        self._meter = meter

    async def check(self) -> Sequence[Finding]:
        return await self._platform.check()

    async def listen(self, receive: Receive, report: Report) -> None:
        async def take(event: ChatReceived) -> None:
            self._lease.require()
            await receive(event)
            self._meter.received()

        self._lease.require()
        await self._platform.listen(take, report)

    def parts(self, text: str) -> Sequence[str]:
        return self._platform.parts(text)

    def draft(self, target: Target, key: str, message: str = "") -> Draft:
        return LeasedDraft(self._platform.draft(target, key, message), self)

    async def post(self, target: Target, content: Content, key: str) -> str:
        with self.calling(sends=True):
            return await self._platform.post(target, content, key)

    async def edit(self, target: Target, message: str, content: Content) -> None:
        with self.calling(sends=True):
            await self._platform.edit(target, message, content)

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        with self.calling():
            return await self._platform.find(target, key, since)

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        with self.calling(sends=True):
            return await self._platform.upload(target, file, name, key)

    def bundle(self, files: Sequence[File]) -> int:
        return cast(Bundling, self._platform).bundle(files)

    async def upload_bundle(self, target: Target, files: Sequence[File], key: str) -> Sequence[str]:
        with self.calling(sends=True):
            return await cast(Bundling, self._platform).upload_bundle(target, files, key)

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        with self.calling():
            await self._platform.fetch(attachment, message, into, limit)

    async def working(self, target: Target, on: bool) -> None:
        self._lease.require()
        await self._platform.working(target, on)

    async def whisper(self, target: Target, text: str) -> None:
        with self.calling(sends=True):
            await cast(Whispering, self._platform).whisper(target, text)

    async def close(self) -> None:
        await self._platform.close()

    @contextmanager
    def calling(self, *, sends: bool = False) -> Iterator[None]:
        """Guards and counts one call of the platform."""
        self._lease.require()
        try:
            yield
        except Exception as error:
            self._meter.failed(error)
            raise
        if sends:
            self._meter.sent()


class LeasedDraft:
    """A `Draft` whose calls need the lease."""

    def __init__(self, draft: Draft, held: LeasedPlatform) -> None:
        self._draft = draft
        self._held = held

    @property
    def message(self) -> str:
        return self._draft.message

    async def show(self, text: str, status: str) -> None:
        with self._held.calling():
            await self._draft.show(text, status)

    async def finish(self, content: Content, key: str) -> str:
        with self._held.calling(sends=True):
            return await self._draft.finish(content, key)

    async def drop(self) -> None:
        with self._held.calling():
            await self._draft.drop()
