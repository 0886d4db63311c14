"""The context of one attempt at a run: policies get it as `request.runtime.context`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import anyio
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, ToolCall, ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from actors.agent.messages.convert import MessageCache, dump, load
from actors.agent.run.breaker import Breaker
from actors.agent.run.breakpoints import Breakpoints
from actors.agent.run.options import Options
from core.config.load import Config
from core.config.settings import TokenBudget
from core.errors import SikaError
from core.events import Decision, Interrupt, Message, ModelCompleted
from core.files.paths import WORKSPACE
from core.ids import uuid7
from core.runs.journal import CallRef, Complete, Journal
from core.runs.ledger import Today
from core.thread.state import Intent, ThreadState
from core.thread.tokens import Tokens
from core.thread.usage import APOLOGY
from core.tools import Effect

T = TypeVar("T")
Middlewares = Sequence[AgentMiddleware[Any, "Attempt", Any]]
ModelHandler = Callable[[ModelRequest["Attempt"]], Awaitable[ModelResponse[Any]]]
ToolResult = ToolMessage | Command[Any]
ToolHandler = Callable[[ToolCallRequest], Awaitable[ToolResult]]
Call = Callable[[str, Mapping[str, Any], Callable[[str], Awaitable[None]]], Awaitable[Any]]
Count = Callable[[], Awaitable[Today]]
"""Enters the usage of a run into the ledgers of its day. Returns the usage of today."""

END_SECONDS = 10.0
"""Most time for cancelled tasks to end."""
LAST_SECONDS, LAST_SHARE = 120.0, 0.1
"""Time of a run that is reserved for its last answer: so many seconds, or a part of a short time."""


@dataclass
class Answer(ModelResponse[Any]):
    """A model's answer on its way out through the policies, with the event that records it."""

    event: ModelCompleted | None = None
    """None if a policy answered instead of the model."""
    original: BaseMessage | None = None
    """The message of the event, before policies."""


def revised(response: ModelResponse[Any], message: BaseMessage) -> ModelResponse[Any]:
    """Returns the response with another last message; the event stays with it."""
    return replace(response, result=[*response.result[:-1], message])


class Callers(NamedTuple):
    """The usage, by model, that counts beside a run's own: of its callers' runs, and of their thread."""

    run: Mapping[str, Tokens] = {}
    thread: Mapping[str, Tokens] = {}


Above = Callable[[], Awaitable[Callers]]


async def unlimited() -> Callers:
    """Counts nothing: a run of a thread has no callers."""
    return Callers()


async def uncounted() -> Today:
    """Counts nothing: a replay has no budget of the day."""
    return Today()


async def as_recorded(messages: Sequence[Message]) -> list[Message]:
    """Adds nothing: a replay has messages as they were recorded."""
    return [*messages]


class Limits(NamedTuple):
    """Limits at which the run ends with one more answer. The keys are those of the configuration, for the person."""

    calls: int | None = None
    """The most model calls."""
    calls_key: str = ""
    seconds: float = 0
    """The most seconds."""
    seconds_key: str = ""
    tokens_key: str = "token_budget"
    until: float | None = None
    """The end of the time on the monotonic clock; None in a replay."""

    def seconds_left(self) -> float | None:
        """Returns the seconds until the last answer has to begin."""
        if self.until is None:
            return None
        return self.until - min(LAST_SECONDS, LAST_SHARE * self.seconds) - time.monotonic()


UNLIMITED = Limits()


class VisibleFailure(SikaError):
    """The run fails with an `apology` in the conversation. `reason` is for programs."""

    code = "run_failed"

    def __init__(self, text: str, *, error: str, apology: str, reason: str) -> None:
        super().__init__(text)
        self.error = error
        self.apology = apology
        self.reason = reason

    def message(self) -> Message:
        """Returns the message that tells the person."""
        extra = {APOLOGY: True, "error_reason": self.reason}
        return {"type": "ai", "id": f"error-{uuid7()}", "content": self.apology, "additional_kwargs": extra}


class Candidate(NamedTuple):
    """A model that may answer, by its configured name."""

    name: str
    model: BaseChatModel
    breaker: Breaker
    blind: bool = False
    """The run's model sees images, and this fallback does not."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt at a run. It does not outlast a crash: read `state`, and record decisions."""

    journal: Journal
    call: Call
    config: Config
    options: Options
    candidates: Sequence[Candidate]
    """The run's model and its fallbacks, in order."""
    effects: Mapping[str, Effect]
    breakpoints: Breakpoints
    cache: MessageCache
    agent: str | None = None
    """The custom agent of the run."""
    today: Count = uncounted
    limits: Limits = UNLIMITED
    last_words: TokenBudget | None = None
    """The budget at whose end the agent answers with what it has."""
    start: str = WORKSPACE
    """Where relative paths begin."""
    of_thread: str = ""
    """The thread that a subagent works for."""
    above: Above = unlimited
    complete: Complete = as_recorded
    """Adds to messages that join the run what those that begin one get."""
    untracked: frozenset[str] = frozenset()
    """Fields of the graph's state that end with the run."""
    questions: list[Interrupt] = field(default_factory=list)
    """Open questions to a person: they pause the run."""
    shortens: bool = False
    """A refusal for a request's length is followed by a shorter request to the same model, not by another model."""
    request: str = ""
    """The key of the model call being made (see `messages.ConversationHashes`)."""
    working: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks of model and tool calls. `end` cancels those that are left, also of LangGraph's."""
    _decisions: dict[str, list[Decision]] = field(default_factory=dict)
    _loaded: tuple[list[Message] | None, list[BaseMessage]] = (None, [])

    @property
    def thread(self) -> str:
        """The thread whose files and sandbox the run works with: of a subagent, that of its caller."""
        return self.of_thread or self.journal.thread_id

    @property
    def subagent(self) -> str | None:
        """The id of the subagent that does the run."""
        return self.journal.thread_id if self.of_thread else None

    @property
    def run(self) -> str:
        return self.journal.id

    @property
    def channel_user(self) -> str:
        """The person in a chat from whom the run came. Clients cannot set it (`core.user.assistants`)."""
        person = self.state.runs[self.run].request.context.get("channel_user_id")
        return person if isinstance(person, str) else ""

    @property
    def user(self) -> str:
        return self.state.user

    @property
    def state(self) -> ThreadState:
        """The current state of the thread."""
        return self.journal.state

    def conversation(self) -> list[BaseMessage]:
        """Returns the current messages of the thread. Do not change them."""
        messages = self.state.messages
        if self._loaded[0] is not messages:
            self._loaded = (messages, self.cache.load(self.journal.thread_id, messages))
        return self._loaded[1]

    async def steered(self) -> list[Message]:
        """Takes in what people wrote to the agent meanwhile."""
        return await self.journal.steered(self.complete)

    def notes(self) -> list[BaseMessage]:
        """Returns the notes of policies for the next model call."""
        return [load(note) for note in self.state.runs[self.run].notes]

    def call_ref(self, call_id: str) -> CallRef:
        """Returns the reference of a call of the newest answer."""
        return CallRef.of(self.journal, call_id)

    def begun(self, call_id: str) -> Intent | None:
        """Returns the intent of a call that a crash left without an outcome.

        The call may have taken effect, so policies must not refuse it.
        """
        return self.state.runs[self.run].intents.get(call_id)

    # ── decisions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(
        self,
        policy: str,
        action: str,
        text: str = "",
        *,
        call_id: str = "",
        note: str = "",
        name: str = "",
        again: bool = False,
    ) -> None:
        """Notes a policy's decision about the current answer or tool call; it is recorded with it.

        The next model call gets `note` in a message with this `name`. `again` makes another call after a final answer.
        """
        message = dump(hidden(note, name=name or policy)) if note else None
        decision = Decision(policy=policy, action=action, text=text, note=message, again=again)
        self._decisions.setdefault(call_id, []).append(decision)

    def decided(self, call_id: str = "") -> list[Decision]:
        """Removes and returns the decisions about the current answer, or about a call."""
        return self._decisions.pop(call_id, [])

    # ── questions to people ─────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, question: Interrupt) -> GraphInterrupt:
        """Adds a question. Returns the exception that pauses the run, for the caller to raise."""
        self.questions.append(question)
        return GraphInterrupt(())

    # ── tasks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def at_work(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self.working.add(task)
        try:
            yield
        finally:
            self.working.discard(task)

    def task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins a task that ends with the attempt."""
        task = asyncio.create_task(work)
        self.working.add(task)
        task.add_done_callback(self.working.discard)
        return task

    async def end(self) -> None:
        """Cancels the remaining tasks and waits for them: they must not append after the run's last event."""
        tasks = set(self.working)
        for task in tasks:
            task.cancel()
        if tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks, timeout=END_SECONDS)


async def no_progress(text: str) -> None:
    """Discards the progress of a request."""


def hidden(text: str, *, name: str) -> HumanMessage:
    """Returns a message for the model that clients hide from people (DeerFlow's thread state)."""
    return HumanMessage(text, id=f"note-{uuid7()}", name=name, additional_kwargs={"hide_from_ui": True})


def error_result(call: ToolCall, text: str) -> ToolMessage:
    """Returns the result of a call that a policy refuses."""
    return ToolMessage(f"Error: {text}", tool_call_id=str(call["id"] or ""), name=call["name"], status="error")


def message_of(attempt: Attempt, call_id: str) -> Message | None:
    """Returns the newest assistant message if it made the call."""
    for message in reversed(attempt.state.messages):
        if message["type"] == "ai":
            return message if any(call["id"] == call_id for call in message.get("tool_calls", ())) else None
    return None
