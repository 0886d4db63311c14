"""The port of policies: what the agent is held to before and after each model call, and each tool call.

A policy is one class. Each hook is optional; the base class does nothing. Hooks get a view of the run, and what is
about to happen or has happened; what they return or call on the view is all that they can do:

| a policy may | by | in |
|---|---|---|
| refuse a tool call | returning `Refuse` | `before_tool` |
| end the run with a last word | returning `End` | `before_model`, `after_model` |
| change what the model gets of a result | returning a text | `after_tool` |
| tell the model something, once | `view.note` | every hook |
| say in the log what it did | `view.decided` | every hook |
| record a fact of its own | `await view.record(event)` | every hook |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from core.errors import refuse_sync
from core.events import Decision, Event, Message, ModelCompleted
from core.thread.state import STOPPED, ThreadState
from core.tools import RunContext

REFUSED = "refused"
"""The action of a policy about a call that is not made, or an answer that is not given."""
ENDED = "ended"
"""The action of a policy that ends the run with a last word."""
STOPS = frozenset((STOPPED, ENDED, REFUSED))
"""Actions about an answer after which the run goes no further."""


def stop_of(event: ModelCompleted) -> Decision | None:
    """Returns the decision by which an answer became the last one of its run, though the model had not ended."""
    return next((decision for decision in event.decisions if decision.action in STOPS), None)


class ToolCall(NamedTuple):
    """A call that the model makes. `args` is a copy."""

    id: str
    name: str
    args: Mapping[str, Any]


class Refuse(NamedTuple):
    """The call is not made; `text` is the result that the model gets. `reason` and `action` are for the log: why, if
    that is another text, and a word for programs.
    """

    text: str
    reason: str = ""
    action: str = REFUSED


class End(NamedTuple):
    """The run ends here, and `text` is the last word of the answer."""

    text: str


class View(RunContext, Protocol):
    """The run as a policy sees it, and may change it.

    Guarantees: `state` is the thread as of now, with everything that was recorded. Non-guarantees: a hook runs once; a
    run that is resumed after a crash comes by again, so facts are recorded at least once.
    """

    @property
    def state(self) -> ThreadState:
        """The folded thread, or subagent. Not to be changed."""
        ...

    def note(self, text: str) -> None:
        """Tells the model, once: in `before_model` at this call, in other hooks at the next one. People do not see
        it.
        """
        ...

    def decided(self, action: str, text: str = "") -> None:
        """Says in the log, with the answer or the outcome, what the policy did: `action` is a word for programs."""
        ...

    async def record(self, event: Event) -> None:
        """Appends a fact to the thread's log, as one of the run."""
        ...


class Policy:
    """Base of every policy. `name` is shown in the log; it is the class's in small letters unless it is set.

    Guarantees: hooks of one run are called in the order of its steps; those of calls that the model makes at once, at
    once. A hook that raises, or takes longer than `deadline_seconds`, fails the run: nothing goes on unchecked. A tool
    call that was begun before a crash is not asked about again.

    One object serves many runs, so it keeps nothing of a run: that is in `view.state`. An `__init__` that
    takes `settings` gets those of `installed.<name>` in the configuration.
    """

    name: ClassVar[str] = ""
    deadline_seconds: ClassVar[float] = 10.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_sync(cls, ("before_model", "after_model", "before_tool", "after_tool"))
        cls.name = cls.__dict__.get("name") or cls.__name__.lower()

    async def before_model(self, view: View) -> End | None:
        """Called before the model is asked."""
        return None

    async def after_model(self, view: View, answer: Message) -> End | None:
        """Called with the model's answer, before anything of it is done. With `End` none of its tool calls is made."""
        return None

    async def before_tool(self, view: View, call: ToolCall) -> Refuse | None:
        """Called before a tool call is made."""
        return None

    async def after_tool(self, view: View, call: ToolCall, result: Message) -> str | None:
        """Called with the tool message. Returns the text that the model gets instead, None to leave it."""
        return None
