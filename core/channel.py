"""The port of channels: outside conversations (of a chat platform, a mailbox) whose messages the agent answers.

A channel is an actor with two more jobs. `listen` runs as long as the server: it takes messages from outside and hands
them to a `Desk`, which makes runs of them. `deliver` is called with the outcome of each of these runs, until it has
been done once, by whatever process is there.

    class Bell(Channel):
        async def listen(self, desk: Desk) -> None:
            async for message in self.platform.messages():
                await desk.receive(message.room, message.text, key=message.id)

        async def deliver(self, reply: Reply) -> None:
            await self.platform.send(reply.conversation, reply.text, key=reply.key)

What is said where is in the log: which thread a conversation has, where each run came from, that its answer was
delivered. A channel keeps nothing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from core.actor import Actor, Context
from core.errors import NotFound, Refused
from core.events import Event, Json, ModelCompleted, Origin, Record, RunRequested
from core.ids import uuid7
from core.lifecycle import CHANNEL, ENDS, RunEnded
from core.log.repository import Repository
from core.runs.follow import Batch, Followers
from core.runs.intake import Intake
from core.runs.previews import Ahead, Preview, Reader, RunPreview
from core.thread.fold import Folding
from core.thread.messages import text_of
from core.thread.runs import end_of
from core.thread.state import Run, ThreadState
from core.thread.usage import steps_of
from core.thread.values import CLARIFICATION

KIND = "conversation"
USER = "default"
"""The owner of all threads where there are no accounts."""
FAILED = "Sorry, that did not work. The run failed: {text}"
_RUNS = uuid.UUID("0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e0")
"""The namespace in which the ids of runs are derived from outside messages."""


class ConversationBegun(Event, frozen=True):
    """From here on the messages of a conversation go to this thread."""

    thread: str


class ReplyDelivered(Event, frozen=True):
    """The outcome of the run was delivered to the conversation it was asked for in."""


class Reply(NamedTuple):
    """The outcome of a run, for people. `key`: the same at each try, so that a platform can drop repetitions."""

    conversation: str
    thread: str
    run: str
    status: str
    """`success`, `paused`, `error`, `interrupted` or `rolled_back`."""
    text: str
    questions: Sequence[Any]
    """The questions of tools, if the run is paused."""
    artifacts: Sequence[str]
    """Paths of files that the run presented."""
    key: str


class Receipt(NamedTuple):
    """The fate of a message. `new`: False if the same message was received before."""

    conversation: str
    thread: str
    run: str
    new: bool


class Conversation(msgspec.Struct, frozen=True):
    """The thread that a conversation has; none before its first message."""

    thread: str = ""


def fold(records: Iterable[Record], start: Conversation) -> Conversation:
    """Pure and total."""
    for record in records:
        if isinstance(record.event, ConversationBegun):
            start = Conversation(record.event.thread)
    return start


class Desk:
    """Takes in messages from outside. There is one for each channel of a process.

    Guarantees: a message of the same `key` is one run, however often it is received, by whichever process. When
    `receive` returns, the run is in the log and is done whatever happens to this process.
    """

    def __init__(self, channel: str, intake: Intake, followers: Followers) -> None:
        self._channel = channel
        self._intake = intake
        self._threads = intake.threads
        self._followers = followers
        self._conversations = Repository(intake.threads.log, KIND, fold, Conversation())

    async def receive(
        self,
        conversation: str,
        text: str,
        *,
        key: str,
        user: str = USER,
        context: Mapping[str, Any] | None = None,
        metadata: Json | None = None,
    ) -> Receipt:
        """Asks for a run on a person's message. It waits for the conversation's earlier ones.

        `key`: the platform's id of the message. `user`: whose thread it is. `context`: options of the run, as
        `model_name`. `metadata`: of a thread that is made.
        """
        run = str(uuid.uuid5(_RUNS, "\n".join((self._channel, conversation, key))))
        thread = await self._thread(conversation, user, metadata or {})
        message = {"type": "human", "id": f"human-{run}", "content": text}
        request = RunRequested(
            input={"messages": [message]},
            context=dict(context or {}),
            multitask="enqueue",
            origin=Origin(self._channel, conversation),
        )
        try:
            await self._intake.request_run(thread, run, request, user=user, actor=self._channel)
        except Refused:
            if run not in (await self._threads.load(thread)).runs:
                raise
            return Receipt(conversation, thread, run, False)
        return Receipt(conversation, thread, run, True)

    async def begin(self, conversation: str) -> str:
        """Has the next messages of a conversation go to a new thread. Returns its id."""
        fresh = uuid7()
        await self._conversations.decide(
            self._id(conversation), lambda _: [ConversationBegun(thread=fresh)], actor=self._channel
        )
        return fresh

    async def state(self, conversation: str) -> ThreadState | None:
        """Returns the thread of a conversation; None before its first message."""
        thread = (await self._conversations.load(self._id(conversation))).thread
        return await self._threads.load(thread) if thread else None

    async def stop(self, conversation: str) -> bool:
        """Asks the run that is at work in a conversation to stop. Returns whether there was one."""
        thread = (await self._conversations.load(self._id(conversation))).thread
        run = (await self._threads.load(thread)).active if thread else None
        if run is None:
            return False
        await self._intake.cancel(thread, run.id, actor=self._channel)
        return True

    async def follow(self, receipt: Receipt) -> AsyncGenerator[str]:
        """Yields the text of the answer as far as it has come, again and again, until the run has ended. The last one
        may be unfinished: `deliver` has the whole.
        """
        async with self._followers.follow(receipt.thread) as follower:
            await follower.hear(receipt.run)
            state = await self._threads.load(receipt.thread)
            answer = Growing(receipt.run, state)
            if answer.is_whole():
                return
            if answer.run.status == "running":
                follower.recall(receipt.run)  # what was said before it was heard
            async with aclosing(follower.since(state.seq, lambda: [answer.run])) as batches:
                async for batch in batches:
                    if answer.take(batch):
                        yield answer.text
                    if answer.is_whole():
                        return

    async def _thread(self, conversation: str, user: str, metadata: Json) -> str:
        """Returns the conversation's thread, made if need be; another one if it was deleted."""

        def decide(state: Conversation) -> Sequence[Event]:
            return [] if state.thread else [ConversationBegun(thread=uuid7())]

        state, _ = await self._conversations.decide(self._id(conversation), decide, actor=self._channel)
        thread = state.thread
        there = await self._threads.load(thread)
        another = there.exists and there.metadata.get("conversation") != conversation  # with the id of a deleted one
        if there.erased or another:
            thread = await self.begin(conversation)
        about = {"channel": self._channel, "conversation": conversation, **metadata}
        await self._intake.create_thread(thread, user=user, metadata=about, actor=self._channel)
        return thread

    def _id(self, conversation: str) -> str:
        """The id of the aggregate: what platforms call their conversations fits no subject."""
        digest = hashlib.blake2b(f"{self._channel}\n{conversation}".encode("utf-8", "replace"), digest_size=16)
        return digest.hexdigest()


class Channel(Actor[RunEnded]):
    """Base of every channel. Subclasses implement `listen` and `deliver`, and have a `name`.

    Guarantees: `deliver` is called for every end of a run that this channel asked for, until it returns; then
    `ReplyDelivered` is in the log. Non-guarantees: it is called once; a process may die after the platform took the
    reply and before that is recorded. A platform that knows keys gets `Reply.key`. A channel listens in every process
    that serves it: two that read the same messages do no harm, as receiving is keyed, too.
    """

    only = (CHANNEL,)

    async def listen(self, desk: Desk) -> None:
        """Runs as long as the server; begun again, with pauses, when it raises or returns."""
        raise NotImplementedError

    async def deliver(self, reply: Reply) -> None:
        """Sends a reply. Raises `Unavailable` to be called again soon, anything else to be called a few times."""
        raise NotImplementedError

    async def handle(self, event: RunEnded, ctx: Context) -> None:
        state = await ctx.load()
        run = state.runs.get(ctx.record.run or "")
        if run is None or run.request.origin is None or run.request.origin.channel != self.name:
            return
        await self.deliver(reply_of(ctx.record, run, state))
        await ctx.append(ReplyDelivered())


def reply_of(end: Record, run: Run, state: ThreadState) -> Reply:
    """Returns the outcome of a run by the event that ended it."""
    if run.request.origin is None:
        raise NotFound(f"Run {run.id} was not asked for in a conversation")
    values = state.values_at(end_of(state, run))
    messages = values.get("messages", ())
    paused = state.paused.interrupts if state.paused is not None and state.paused == end.event else ()
    return Reply(
        conversation=run.request.origin.conversation,
        thread=end.aggregate.id,
        run=run.id,
        status=ENDS[type(end.event)].name,  # type: ignore[index]
        text=_text(messages) or (FAILED.format(text=run.error.text) if run.error else ""),
        questions=[interrupt.value for interrupt in paused],
        artifacts=_presented(state, run),
        key=run.last_id,
    )


def _text(messages: Sequence[Json]) -> str:
    """Returns the last text for the person since their message: an answer, or a question."""
    for message in reversed(messages):
        if message.get("type") == "human":
            return ""
        asks = message.get("type") == "tool" and str(message.get("id")).startswith(CLARIFICATION)
        if (asks or message.get("type") == "ai") and (text := text_of(message.get("content", "")).strip()):
            return text
    return ""


def _presented(state: ThreadState, run: Run) -> list[str]:
    """Paths of the files that a run presented."""
    patches = (commit.patch for commit in steps_of(state, run) if commit.node == "tools")
    return [path for patch in patches for path in patch.get("artifacts", ())]


class Growing:
    """The text of one run's newest answer while it is being made."""

    def __init__(self, run_id: str, state: ThreadState) -> None:
        self.text = ""
        self._id = run_id
        self._folding = Folding(state)
        self._reader = Reader()
        self._ahead: Ahead[Preview] = Ahead()

    @property
    def run(self) -> Run:
        return self._folding.state.runs[self._id]

    def is_whole(self) -> bool:
        """Tells whether the run has ended, or is not there any more."""
        run = self._folding.state.runs.get(self._id)
        return run is None or not run.open

    def take(self, batch: Batch) -> bool:
        """Returns whether there is more to show."""
        before = self.text
        for item in batch:
            if isinstance(item, Record):
                self._fact(item)
            elif isinstance(item, RunPreview) and isinstance(item.preview, Preview):
                self._preview(item.preview)
        return self.text != before

    def _fact(self, record: Record) -> None:
        self._folding.apply(record)
        if record.run == self._id and isinstance(record.event, ModelCompleted):
            self.text = text_of(record.event.message.get("content", "")) or self.text
        for preview in self._ahead.take():
            self._preview(preview)

    def _preview(self, preview: Preview) -> None:
        if preview.after > self._folding.state.seq:
            self._ahead.put(preview)
        elif not self.is_whole() and self.run.awaits(preview.after):
            begins = preview.message != self._reader.message
            piece = self._reader.take(preview)
            if piece is not None and piece.part == "text":
                self.text = piece.text if begins else self.text + piece.text
