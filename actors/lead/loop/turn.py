"""What the agent's loop knows of the run it is doing: what every policy gets as `request.runtime.context`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import anyio
from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from actors.lead.loop.breakpoints import Breakpoints
from actors.lead.messages.convert import MessageCache, dump, load
from actors.lead.model.failures import Breaker
from actors.lead.setup.options import Options
from core.config.load import Config
from core.errors import SikaError
from core.events import Decision, Interrupt, Json, Message, ModelCompleted
from core.ids import uuid7
from core.thread.ledger import Today
from core.thread.run import CallRef, Journal
from core.thread.state import Intent, ThreadState
from core.thread.usage import APOLOGY
from core.tools import Effect

ModelHandler = Callable[[ModelRequest["Turn"]], Awaitable[ModelResponse[Any]]]
ToolResult = ToolMessage | Command[Any]
ToolHandler = Callable[[ToolCallRequest], Awaitable[ToolResult]]
"""What a policy lies around."""
Call = Callable[[str, Mapping[str, Any], Callable[[str], Awaitable[None]]], Awaitable[Any]]
Count = Callable[[], Awaitable[Today]]
"""Enters what a run has used so far into the ledgers of its day. Returns what was used today."""

END_SECONDS = 10.0


@dataclass
class Answer(ModelResponse[Any]):
    """A model's answer on its way out through the policies, with what is to be recorded of it as the model gave it."""

    event: ModelCompleted | None = None
    """None if a policy answered instead of the model."""


def revised(response: ModelResponse[Any], message: BaseMessage) -> ModelResponse[Any]:
    """Returns the response with another last message; the event stays with it."""
    return replace(response, result=[*response.result[:-1], message])


async def uncounted() -> Today:
    """A replay uses nothing, and is held to the budget of no day."""
    return Today()


class VisibleFailure(SikaError):
    """The run fails, and the person is told so in the conversation: `said`. `reason` is a word for programs."""

    code = "run_failed"

    def __init__(self, text: str, *, error: str, said: str, reason: str) -> None:
        super().__init__(text)
        self.error = error
        self.said = said
        self.reason = reason

    def message(self) -> Message:
        """What the person is told."""
        extra = {APOLOGY: True, "error_reason": self.reason}
        return {"type": "ai", "id": f"error-{uuid7()}", "content": self.said, "additional_kwargs": extra}


class Candidate(NamedTuple):
    """A model that may answer, by its configured name."""

    name: str
    model: BaseChatModel
    breaker: Breaker
    blind: bool = False
    """Stands in for a model that sees images, and sees none."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One attempt at a run. What must outlast it is in the log: read `state`, and record what you decide."""

    journal: Journal
    call: Call
    config: Config
    options: Options
    candidates: Sequence[Candidate]
    """The run's model, and those that stand in for it, in order."""
    effects: Mapping[str, Effect]
    breakpoints: Breakpoints
    cache: MessageCache
    today: Count = uncounted
    untracked: frozenset[str] = frozenset()
    """Fields of the graph's state that middlewares forget with the run."""
    asked: list[Interrupt] = field(default_factory=list)
    """Questions that wait for a person: they pause the run."""
    request: str = ""
    """The key of the model call being made (see `messages.ConversationHashes`)."""
    working: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks of model and tool calls. LangGraph does not end them all when the run is cancelled: `end` does."""
    _decisions: dict[str, list[Decision]] = field(default_factory=dict)
    _heard: dict[str, int] = field(default_factory=dict)
    _known: tuple[list[Message] | None, list[BaseMessage]] = (None, [])

    @property
    def thread(self) -> str:
        return self.journal.thread_id

    @property
    def run(self) -> str:
        return self.journal.id

    @property
    def user(self) -> str:
        return self.state.user

    @property
    def state(self) -> ThreadState:
        """The thread as of now: the only truth."""
        return self.journal.state

    def conversation(self) -> list[BaseMessage]:
        """The messages of the thread, as of now. Do not change them."""
        messages = self.state.messages
        if self._known[0] is not messages:
            self._known = (messages, self.cache.load(self.thread, messages))
        return self._known[1]

    def notes(self) -> list[BaseMessage]:
        """What policies have to tell the model at its next call."""
        return [load(note) for note in self.state.runs[self.run].notes]

    def call_ref(self, call_id: str) -> CallRef:
        """Returns the call of that id that the newest answer made."""
        return CallRef.of(self.journal, call_id)

    def begun(self, call_id: str) -> Intent | None:
        """The recorded beginning of a call that has no outcome: a crash was between. What gates a call lets it pass: it
        may have happened already.
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
        """Say what a policy does about the answer, or the tool call, that is being made: recorded with it.

        `note`: what the model is told at its next call, in a message with this `name`. `again`: there is a next call,
        although the model was done.
        """
        told = dump(hidden(note, name=name or policy)) if note else None
        decision = Decision(policy=policy, action=action, text=text, note=told, again=again)
        self._decisions.setdefault(call_id, []).append(decision)

    def decided(self, call_id: str = "") -> list[Decision]:
        """What was decided about an answer, or a call; asked for once."""
        return self._decisions.pop(call_id, [])

    # ── questions to people ─────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, call_id: str) -> Json | Any | None:
        """The next answer of a person to a question about a tool call, None if there is none (yet)."""
        answers, heard = self.journal.answers(call_id), self._heard.get(call_id, 0)
        if heard >= len(answers):
            return None
        self._heard[call_id] = heard + 1
        return answers[heard]

    def heard(self, call_id: str) -> int:
        """How many answers to questions about a call have been taken."""
        return self._heard.get(call_id, 0)

    def ask(self, question: Interrupt) -> GraphInterrupt:
        """Pause the run at this question: raise what this returns."""
        self.asked.append(question)
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

    async def end(self) -> None:
        """Cancel what is still at work, and wait for it: it must not append after the run's last event."""
        tasks = set(self.working)
        for task in tasks:
            task.cancel()
        if tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks, timeout=END_SECONDS)


async def unseen(text: str) -> None:
    """For the progress of a question that nobody watches."""


def hidden(text: str, *, name: str) -> HumanMessage:
    """A message to the model that people are not shown (contract runtime §4)."""
    return HumanMessage(text, id=f"note-{uuid7()}", name=name, additional_kwargs={"hide_from_ui": True})


def message_of(turn: Turn, call_id: str) -> Message | None:
    """The assistant message that made a call."""
    for message in reversed(turn.state.messages):
        if message["type"] == "ai":
            return message if any(call["id"] == call_id for call in message.get("tool_calls", ())) else None
    return None
