"""The journal of a run: what the agent's loop writes and reads, in a live run and in a replay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from core.events import (
    Event,
    Interrupt,
    Json,
    Message,
    ModelCompleted,
    ModelFailed,
    RunFailed,
    RunPaused,
    ToolCompleted,
)
from core.runs.previews import Previewer
from core.thread.state import ThreadState
from core.tools import Effect

E = TypeVar("E", bound=Event)
Complete = Callable[[Sequence[Message]], Awaitable[list[Message]]]
"""Returns messages of people with what the server adds to them."""


class CallRef(NamedTuple):
    """The identity of a tool call. Some models repeat ids of calls, so the answer that made the call is part of it."""

    run: str
    answer: int
    """Sequence of the `model.completed` that made the call."""
    id: str
    """As the model named it."""

    @classmethod
    def of(cls, journal: Journal, call_id: str) -> CallRef:
        """Returns the call of that id that the newest answer made."""
        return cls(journal.id, journal.state.answer_seq(), call_id)

    @property
    def key(self) -> str:
        """The call's name within its run: the idempotency key that actors get as `call_id`."""
        return f"{self.answer}-{self.id}"

    @property
    def message_id(self) -> str:
        """The id of the call's tool message: making the call again replaces the message, and nothing else does."""
        return f"tool-{self.key}"


class Journal(Protocol):
    """The record of a run that the agent's loop writes and reads: `OwnedRun`, or `core.runs.replay` in a replay."""

    @property
    def id(self) -> str:
        """The run's id."""
        ...

    @property
    def thread_id(self) -> str: ...

    @property
    def state(self) -> ThreadState: ...

    async def model_recorded(self, request: str) -> ModelCompleted | None:
        """The recorded answer to a request, None if there is none: then ask. Raises `Divergence` if a replay asks for
        another.
        """
        ...

    async def model_completed(self, event: ModelCompleted) -> None: ...

    async def model_failed(self, event: ModelFailed) -> None: ...

    async def fact(self, kind: type[E], key: str, make: Callable[[], Awaitable[E]]) -> E:
        """Something that a policy finds out or decides once: as recorded when replaying, else made now, and recorded.
        `key`: the tool call it is about (the `call_id` of the event), or empty.
        """
        ...

    async def confirm(self) -> None:
        """Make sure that the run is still ours before something that no guard covers. Raises `OwnershipLost`."""
        ...

    async def steered(self, complete: Complete) -> list[Message]:
        """Take in what people wrote to the agent meanwhile: record it, completed, as part of the conversation. Not
        between a tool call and its outcome: no provider takes that.
        """
        ...

    def answers(self, call_id: str) -> Sequence[Any]:
        """Returns the answers of people to a tool call's questions, in the order of the questions."""
        ...

    async def tool_requested(self, call_id: str, name: str, effect: Effect, args: Json) -> ToolCompleted | None:
        """Record the intent and return None: go ahead. Or return the outcome, if the call must not be made (again)."""
        ...

    async def tool_completed(self, event: ToolCompleted) -> None: ...

    def preview(self, message: str) -> Previewer | None:
        """Where to show a message while it is being made; None if nobody looks."""
        ...

    async def progress(self, call_id: str, name: str, text: str, *, stage: bool = False) -> None: ...

    @property
    def stopping(self) -> bool:
        """Tells whether a person asked the run to stop (and not the process)."""
        ...


class Paused(Exception):
    """Raised by `perform`: the run stops at a breakpoint, or at questions of tools; another run goes on from here."""

    def __init__(self, next: Sequence[str], interrupts: Sequence[Interrupt] = ()) -> None:
        super().__init__(f"paused before {', '.join(next)}")
        self.event = RunPaused(next=list(next), interrupts=list(interrupts))


class Failed(Exception):
    """Raised by `perform`: the run fails as `error` says, and `message` tells the person in the conversation."""

    def __init__(self, error: str, text: str, message: Message) -> None:
        super().__init__(text)
        self.event = RunFailed(error=error, text=text, message=message)


def outcome_of(state: ThreadState, call_id: str) -> ToolCompleted | None:
    """Returns the outcome of a call of the last answer, if there is one."""
    for message in reversed(state.messages):
        if message["type"] != "tool":
            break
        if message.get("tool_call_id") == call_id:
            return ToolCompleted(call_id=call_id, message=message)
    return None


def tool_message(call: CallRef, name: str, content: str, status: str = "success") -> Message:
    """Returns a tool message as it is recorded."""
    message: Message = {
        "type": "tool",
        "id": call.message_id,
        "tool_call_id": call.id,
        "name": name,
        "content": content,
    }
    if status != "success":
        message["status"] = status
    return message
