"""A chat platform for tests: a store that outlives the processes that talk to it, its rules, and faults by script.

The store checks the rules of its `Pace` at each call, on its own clock: what is broken is in `violations`.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import anyio

from actors import delivery
from actors.chat.access import Gate
from actors.delivery.fetcher import Admits
from core.bus.endpoint import Endpoint
from core.chat.facts import Attachment, Button, ChatReceived, Target
from core.chat.port import (
    ChatGone,
    Content,
    CredentialsDead,
    FateUnknown,
    File,
    Finding,
    Pace,
    RateLimited,
    Receive,
    Rejected,
    Report,
    Traits,
)
from core.chat.state import Conversation
from core.config.load import ConfigSource
from core.errors import Unavailable, ungrouped
from core.runtime import system
from core.runtime.system import System
from core.testing.stage import LEASE_SECONDS

ACCOUNT = "scripted"
SHORT_SECOND = 0.7
"""The second in which calls are counted: on a busy machine they arrive closer together than they were made."""
QUICK = Pace(0.0, 0.0, 0.0, 0, 0)
"""No rules."""
MINUTE = 60.0

Kind = Literal["limit", "lost", "missed", "down", "gone", "reject", "dead", "defect", "slow", "death", "held back"]


class Fault(NamedTuple):
    """What goes wrong with a call. `limit`: refused for `seconds`. `lost`: done, and no answer comes. `missed`: not
    done, and no answer comes. `defect`: done, and the platform's code raises. `slow`: done after `seconds`. `death`:
    done, and the process does not live to learn of it. `held back`: a draft is not shown, as the platform's code saves
    calls.
    """

    kind: Kind
    seconds: float = 0.0


@dataclass
class Message:
    """A message as people see it."""

    id: str
    chat: str
    topic: str
    key: str
    text: str
    status: str = ""
    buttons: tuple[Button, ...] = ()
    file: bytes | None = None
    edits: int = 0
    edited_at: float = 0.0


@dataclass
class Call:
    method: str
    chat: str
    key: str
    at: float


@dataclass
class Store:
    """What the platform has."""

    traits: Traits
    keyed: bool = False
    """A message is posted once with a key, and `find` begins a draft that is not there: as on Feishu."""
    messages: dict[str, Message] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    """By method, in the order of its calls."""
    attachments: dict[str, bytes] = field(default_factory=dict)
    working: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    called: anyio.Event = field(default_factory=anyio.Event)
    died: anyio.Event = field(default_factory=anyio.Event)
    _refused: dict[str, float] = field(default_factory=dict)
    _sent: dict[str, float] = field(default_factory=dict)
    _groups: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _times: deque[float] = field(default_factory=deque)

    def fail(self, method: str, *faults: Fault) -> None:
        self.faults[method].extend(faults)

    def texts(self, chat: str = "") -> list[str]:
        """The texts (or the names of the files) that people see, oldest first."""
        return [message.text for message in self.messages.values() if not chat or message.chat == chat]

    def made(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def arrive(self, method: str, target: Target, key: str, message: Message | None = None) -> Fault | None:
        """Takes a call in. Returns what goes wrong with it besides; raises what it is refused with."""
        now, pace, chat = time.monotonic(), self.traits.pace, target.chat
        self.calls.append(Call(method, chat, key, now))
        self.called.set()
        self._count(
            self._times, SHORT_SECOND, pace.per_second, now, f"{method}: more than {pace.per_second} in a second"
        )
        if method == "working":
            return None
        if now < self._refused.get(chat, 0.0):
            self.violations.append(f"{method} {chat}: before the pause was over")
        if method == "find":
            return self._fault(method, chat, now)
        if target.kind == "group":
            about = f"{method} {chat}: more than {pace.group_per_minute} in a minute"
            self._count(self._groups[chat], MINUTE, pace.group_per_minute, now, about)
        if method in ("post", "upload", "upload_bundle"):
            if now < self._sent.get(chat, 0.0) + pace.send_seconds:
                self.violations.append(f"{method} {chat}: too soon after the last message")
            self._sent[chat] = now
        if method == "show" and message is not None:
            interval = pace.group_edit_seconds if target.kind == "group" else pace.edit_seconds
            if now < message.edited_at + interval:
                self.violations.append(f"{method} {chat}: too soon after the last edit")
        return self._fault(method, chat, now)

    def _count(self, times: deque[float], window: float, limit: int, now: float, about: str) -> None:
        times.append(now)
        while times[0] <= now - window:
            times.popleft()
        if limit and len(times) > limit:
            self.violations.append(about)

    def _fault(self, method: str, chat: str, now: float) -> Fault | None:
        fault = self.faults[method].popleft() if self.faults[method] else None
        match fault:
            case Fault("limit", seconds):
                self._refused[chat] = now + seconds
                raise RateLimited("too many requests", seconds)
            case Fault("missed"):
                raise FateUnknown("no answer")
            case Fault("down"):
                raise Unavailable("connection refused")
            case Fault("gone"):
                raise ChatGone("the chat is gone")
            case Fault("reject"):
                raise Rejected("cannot parse")
            case Fault("dead"):
                raise CredentialsDead("invalid token")
        return fault

    async def answer(self, fault: Fault | None) -> None:
        """What happens after a call had its effect."""
        match fault:
            case Fault("lost"):
                raise FateUnknown("no answer")
            case Fault("defect"):
                raise KeyError("ts")
            case Fault("slow", seconds):
                await anyio.sleep(seconds)
            case Fault("death"):
                self.died.set()
                await anyio.sleep_forever()

    def by_key(self, target: Target, key: str) -> Message | None:
        known = self.messages.values()
        return next((message for message in known if (message.chat, message.key) == (target.chat, key)), None)

    def add(self, target: Target, key: str, text: str, *, file: bytes | None = None, status: str = "") -> Message:
        identity = f"m{len(self.messages) + 1}"
        message = Message(identity, target.chat, target.topic, key, text, status, file=file)
        message.edited_at = time.monotonic()
        self.messages[identity] = message
        return message


class ScriptedDraft:
    def __init__(self, store: Store, target: Target, key: str, message: str) -> None:
        self._store, self._target, self._key, self._message = store, target, key, message

    @property
    def message(self) -> str:
        return self._message

    async def show(self, text: str, status: str) -> None:
        known = self._store.messages.get(self._message)
        fault = self._store.arrive("show", self._target, self._key, known)
        if fault == Fault("held back"):
            return
        if known is None:
            known = self._store.add(self._target, self._key, text, status=status)
            await self._store.answer(fault)
            self._message = known.id
            return
        if (known.text, known.status) == (text, status):
            self._store.violations.append(f"show {self._target.chat}: the same again")
        known.text, known.status = text, status
        known.edits += 1
        known.edited_at = time.monotonic()
        await self._store.answer(fault)

    async def finish(self, content: Content, key: str) -> str:
        fault = self._store.arrive("finish", self._target, key)
        known = self._store.messages[self._message]
        known.text, known.status, known.buttons = content.text, "", content.buttons
        await self._store.answer(fault)
        return known.id

    async def drop(self) -> None:
        self._store.arrive("drop", self._target, self._key)
        self._store.messages.pop(self._message, None)


class ScriptedPlatform:
    """One process's connection to the store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.traits = store.traits

    async def check(self) -> Sequence[Finding]:
        return [Finding(True, "is scripted")]

    async def listen(self, receive: Receive, report: Report) -> None:
        report.connected()
        await anyio.sleep_forever()

    def parts(self, text: str) -> Sequence[str]:
        return [part for part in text.split("\n\n") if part]

    def draft(self, target: Target, key: str, message: str = "") -> ScriptedDraft:
        return ScriptedDraft(self.store, target, key, message)

    async def post(self, target: Target, content: Content, key: str) -> str:
        fault = self.store.arrive("post", target, key)
        if self.store.keyed and (posted := self.store.by_key(target, key)) is not None:
            return posted.id
        message = self.store.add(target, key, content.text)
        message.buttons = content.buttons
        await self.store.answer(fault)
        return message.id

    async def edit(self, target: Target, message: str, content: Content) -> None:
        fault = self.store.arrive("edit", target, message)
        known = self.store.messages[message]
        known.text, known.buttons = content.text, content.buttons
        await self.store.answer(fault)

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        await self.store.answer(self.store.arrive("find", target, key))
        known = self.store.by_key(target, key)
        if self.store.keyed:
            return (known or self.store.add(target, key, "")).id if key.endswith("/draft") else None
        return known.id if known else None

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        fault = self.store.arrive("upload", target, key)
        message = self.store.add(target, key, name, file=file.read_bytes())
        await self.store.answer(fault)
        return message.id

    def bundle(self, files: Sequence[File]) -> int:
        return min(len(files), 3)

    async def upload_bundle(self, target: Target, files: Sequence[File], key: str) -> Sequence[str]:
        fault = self.store.arrive("upload_bundle", target, key)
        if self.store.keyed and (posted := self.store.by_key(target, key)) is not None:
            return [posted.id] * len(files)
        names = " ".join(file.name for file in files)
        message = self.store.add(target, key, names, file=b" ".join(file.path.read_bytes() for file in files))
        await self.store.answer(fault)
        return [message.id] * len(files)

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        fault = self.store.arrive("fetch", Target(""), attachment.id)
        content = self.store.attachments[attachment.id]
        if len(content) > limit:
            raise Rejected(f"larger than {limit} bytes")
        into.write_bytes(content)
        await self.store.answer(fault)

    async def working(self, target: Target, on: bool) -> None:
        self.store.arrive("working", target, "")
        self.store.working[target.chat].append(on)

    async def close(self) -> None:
        pass


def store(
    *,
    findable: bool = True,
    keyed: bool = False,
    pace: Pace = QUICK,
    topics: bool = False,
    bundles: bool = False,
    largest_file: int = 1 << 20,
) -> Store:
    return Store(
        keyed=keyed,
        traits=Traits(
            name=ACCOUNT,
            title="Scripted",
            credentials=(),
            pace=pace,
            answers_can_be_found=findable,
            replies_are_topics=topics,
            largest_file=largest_file,
            bundles=bundles,
        ),
    )


async def anybody(event: ChatReceived, state: Conversation) -> bool:
    return True


@asynccontextmanager
async def serving(
    endpoint: Endpoint,
    home: Path,
    platform_store: Store,
    *,
    wire: Callable[[System], None] | None = None,
    source: ConfigSource | None = None,
    awaits: Admits | None = None,
) -> AsyncIterator[System]:
    """Runs the process of the account for as long as the block lasts. `wire`: changes its parts before it begins.
    `source`: says who may talk; without it, everybody. `awaits`: which messages are acknowledged."""
    views = home / f"views-{time.monotonic_ns()}.db"
    with ungrouped(Exception):
        async with (
            system.start(endpoint, views, lease_seconds=LEASE_SECONDS, slots=16, name=ACCOUNT) as running,
            anyio.create_task_group() as tasks,
        ):
            if wire is not None:
                wire(running)
            admits = Gate(ACCOUNT, source, running.log, running.standing).admits if source else anybody
            built = delivery.actors(ACCOUNT, ScriptedPlatform(platform_store), running, home, admits, awaits=awaits)
            await tasks.start(partial(running.serve, built, alone=True))
            yield running
            tasks.cancel_scope.cancel()


def received(message: str, *attachments: Attachment, target: Target | None = None) -> ChatReceived:
    return ChatReceived(message=message, target=target or Target("C1"), sender="U1", attachments=attachments)
