"""The shape of an actor: facts in, facts out; and answers, if it is asked questions.

An actor is one class in one file. Its type argument is its subscription:

    class Title(Actor[RunCompleted]):
        async def handle(self, event: RunCompleted, ctx: Context) -> None: ...

The runtime (`core.runtime.system`) owns everything else: subjects, redelivery, retries, concurrency, shutdown. Whatever
an actor needs it takes in `__init__`; the composition root passes it in.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, overload

import msgspec

from core.errors import Invalid, Unavailable, refuse_sync
from core.events import Aggregate, Event, Record
from core.log.repository import Decision, Repository
from core.thread.state import ThreadState

E = TypeVar("E", contravariant=True)
S = TypeVar("S")
Progress = Callable[[str], Awaitable[None]]
"""Shows text to the caller while the answer is being made. May be lost; never part of the answer."""


class Context(Protocol):
    """The event being handled, and the services of the runtime for its handler.

    Guarantees: an append takes effect once, also if the handler is run again. Non-guarantees: nothing else is
    recorded. A handler that is run again decides again, at another time and with other ids. An effect outside
    therefore needs a stable key, such as the id of the event.
    """

    @property
    def record(self) -> Record:
        """The event being handled, with its envelope."""
        ...

    async def read(
        self, aggregate: Aggregate | None = None, *, after: int = 0, upto: int | None = None
    ) -> Sequence[Record]:
        """Returns the events of an aggregate (default: the one of the event being handled), oldest first. `after` and
        `upto` bound their sequences. Takes long for a long log: prefer `load`.
        """
        ...

    @overload
    async def load(self) -> ThreadState: ...

    @overload
    async def load(self, repository: Repository[S]) -> S: ...

    async def load(self, repository: Repository[S] | None = None) -> ThreadState | S:
        """Returns the folded state of the aggregate that has the id of the one being handled (default: the thread).
        It includes the event.
        """
        ...

    @overload
    async def decide(
        self, decision: Decision[ThreadState], *, run: str | None = None, cause: str | None = None
    ) -> tuple[ThreadState, list[Record]]: ...

    @overload
    async def decide(
        self, decision: Decision[S], repository: Repository[S], *, run: str | None = None, cause: str | None = None
    ) -> tuple[S, list[Record]]: ...

    async def decide(
        self,
        decision: Decision[Any],
        repository: Repository[Any] | None = None,
        *,
        run: str | None = None,
        cause: str | None = None,
    ) -> tuple[Any, list[Record]]:
        """Appends the events that `decision` returns for the state that `load` returns; see `Repository.decide`.
        `cause` is an event's id (default: the event being handled). A handler that is run again decides on the state
        with its own events.
        """
        ...

    async def state(self) -> Any:
        """Returns the actor's own state for the aggregate of the event being handled (`Actor.initial`)."""
        ...

    async def update(self, decision: Callable[[Any], Sequence[Event]]) -> Any:
        """Appends the events that `decision` returns for the actor's own state; returns the state after them.

        Takes effect once for each event that is handled: a handler that is run again gets the present state, and
        nothing is decided. A second call in one handling raises `Invalid`. In `Actor.wake` there is no such event.
        `decision` may be called several times.
        """
        ...

    async def append(self, *events: Event, aggregate: Aggregate | None = None) -> None:
        """Appends, caused by the event being handled: once per aggregate, all events in one call. A handler that is run
        again finds the events of the first time, and appends nothing. A second call in one handling raises `Invalid`:
        after a crash between the two, the first would count as the whole. In `Actor.wake` there is no such cause, and
        each call appends.
        """
        ...

    async def wake_at(self, when: datetime, key: str, aggregate: Aggregate | None = None) -> None:
        """Schedules a call of `Actor.wake`, which survives restarts. The same key (of an aggregate) replaces."""
        ...

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        """Sends a request to an actor, in whichever process it runs. Raises the actor's errors (`core.bus.rpc.call`),
        and `Unavailable`."""
        ...

    def now(self) -> str:
        """The current time, in the format of events."""
        ...

    def new_id(self) -> str:
        """A new id, which sorts after the ids before it."""
        ...


class Retries(NamedTuple):
    """The rule for a handler that raises. `Unavailable` is no failure: the handler runs again until it does not raise
    it. One that ends its process is tried five times, whatever the rule says (`core.runtime.attempts`).
    """

    attempts: int = 5
    """Failures before the event, or the timer, becomes a dead letter. They are counted in each process anew."""
    pauses: Sequence[float] = (1.0, 5.0, 15.0, 60.0)
    """Seconds before the second attempt, the third, and so on; the last one is repeated."""
    final: tuple[type[Exception], ...] = ()
    """Errors after which another attempt cannot succeed: a dead letter at once. A group of errors is one if all of
    its errors are.
    """

    def problem(self) -> str:
        """Returns why this is no rule; empty if it is one."""
        if self.attempts < 1:
            return f"attempts: at least 1, got {self.attempts}"
        if not self.pauses or min(self.pauses) < 0:
            return f"pauses: seconds, at least one of them, got {self.pauses!r}"
        if any(issubclass(Unavailable, error) for error in self.final):
            return "final: Unavailable is no failure"
        return ""

    def pause(self, failures: int) -> float:
        """Returns the seconds until the next attempt."""
        return self.pauses[min(failures, len(self.pauses)) - 1]

    def is_final(self, error: Exception) -> bool:
        """Tells whether another attempt cannot succeed."""
        if isinstance(error, ExceptionGroup):
            return error.split(self.final)[1] is None
        return isinstance(error, self.final)


class Actor(Generic[E]):
    """Base of every actor. `name` is the module's noun; `subscription` is derived from the type argument: one event
    type, a union of them, or `Never`. Anything else raises `Invalid` where the class is declared.

    Guarantees to `handle`: every event that the subscription and `only` select, at least once, also after crashes.
    Events that this actor already answered with an append are not handled again. Non-guarantees: no order, neither
    between aggregates nor within an aggregate (but see `ordered`); no events from before the actor was first run (but
    see `proof`). A handler that raises is run again as `retries` says; after the last attempt the event goes to the
    dead letters.
    """

    name: ClassVar[str] = ""
    subscription: ClassVar[tuple[type[Event], ...]] = ()
    proof: ClassVar[type[Event] | None] = None
    """An event of this actor's that proves it has read the aggregate up to there: earlier events need no wake-up."""

    only: ClassVar[Collection[str | type[Event]]] = ()
    """Selects events of the subscription: by labels, of which an event must carry at least one, and by event types,
    which need none. Empty: all events. The ends of runs carry the labels of `core.lifecycle`: `only = {"webhook"}`
    selects the runs that have a webhook.
    """

    kind: ClassVar[str | None] = None
    """The kind of aggregate whose events it handles. None: every kind except `subagent`, whose runs only look like
    those of threads.
    """

    deadline_seconds: ClassVar[float] = 900.0
    """The timeout of `handle` and `wake`; a handler that takes longer has failed."""

    retries: ClassVar[Retries] = Retries()
    """Says when `handle` and `wake` are run again after a failure."""

    concurrency: ClassVar[int | None] = None
    """Most events and timers handled at once in a process (default: `runs.max_concurrent`)."""

    ordered: ClassVar[bool] = False
    """Events of one aggregate are handled one after another, in the order of the log, whichever process handles them.

    Guarantees: an event is handled after those before it were handled or became dead letters. It is run again only
    before the next. Non-guarantees: a process that was frozen for longer than its lease may finish a handler while
    another runs it again. An event that fails holds up its aggregate, and others of the same of 16 queues, for its
    pauses. Timers and redriven dead letters come in turn, but after newer events. Changing it strands wake-ups that
    wait (`sika actors` lists them).
    """

    prompt: ClassVar[bool] = False
    """Wake-ups are sent as soon as the event is heard, where others wait a quarter of a second for the event to be
    answered: for actors on which a person waits.
    """

    initial: ClassVar[Any] = None
    """The actor's own state before its first event, if it has one: kept for each aggregate that it handles events of,
    and folded by `apply` from the events that `Context.update` appends. It is erased when its thread is.
    """

    @staticmethod
    def apply(state: Any, event: Event) -> Any:
        """Returns the state after an event of the actor's own. Pure, and must not change `state`. Events that it does
        not know leave the state as it is."""
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_sync(cls, ("handle", "wake", "given_up", "answer"))
        cls.name = cls.__dict__.get("name") or cls.__module__.rpartition(".")[2]
        for base in types.get_original_bases(cls) if hasattr(types, "get_original_bases") else cls.__orig_bases__:  # type: ignore[attr-defined]
            for argument in typing.get_args(base):
                members = typing.get_args(argument) or (argument,)
                cls.subscription = tuple(m for m in members if isinstance(m, type) and issubclass(m, Event))
                if len(cls.subscription) < len(members) and not _open(argument):
                    raise Invalid(f"actor {cls.__qualname__}: subscribes to {argument!r}, which is not an event type")
        if isinstance(cls.only, str):
            raise Invalid(f"actor {cls.__qualname__}: only: a set of labels and event types, not {cls.only!r}")
        for selector in cls.only:
            if not isinstance(selector, str) and selector not in cls.subscription:
                raise Invalid(f"actor {cls.__qualname__}: selects {selector!r}, to which it does not subscribe")
        if cls.initial is not None and cls.apply is Actor.apply:
            raise Invalid(f"actor {cls.__qualname__}: has a state; write `apply`, which folds its events")
        if problem := cls.retries.problem():
            raise Invalid(f"actor {cls.__qualname__}: retries: {problem}")
        if cls.concurrency is not None and cls.concurrency < 1:
            raise Invalid(f"actor {cls.__qualname__}: concurrency: at least 1, got {cls.concurrency}")
        if not cls.subscription and cls.handle is not Actor.handle:
            raise Invalid(f"actor {cls.__qualname__}: handles events but subscribes to none; write Actor[EventType]")

    async def handle(self, event: E, ctx: Context) -> None:
        """Decides on an event. Actors without a subscription need not override it."""
        raise NotImplementedError

    def ignored(self) -> Collection[type[Event]]:
        """Returns the events that `handle` passes over while the server is configured as it is: nobody is woken for
        them. Called for each event before its wake-up is sent; `handle` must still pass over those sent before.
        """
        return ()

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        """Handles a timer (`Context.wake_at`) that has fired for an aggregate. It may fire more than once, late, and
        (after the clock was set back) early: read the state and decide under the guard. There is no event: `ctx.record`
        raises `Refused`.
        """
        raise NotImplementedError

    async def given_up(self, aggregate: Aggregate, ctx: Context) -> None:
        """Mends what would be left open when an event or a timer of an aggregate becomes a dead letter. Called before
        that, at least once, but for one whose handling ended processes: if this ends one, too, it is not called again.
        `ctx.record` raises `Refused`. Its failure is logged.
        """

    def parse(self, request: Mapping[str, Any], kind: Any) -> Any:
        """Converts a request to a type, or to one of a union. Raises `Invalid`, naming the actor and the place."""
        try:
            return msgspec.convert(dict(request), type=kind)
        except msgspec.ValidationError as error:
            raise Invalid(f"{self.name}: {error}") from error

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Any:
        """Returns the response to a request that changes nothing in the log (`call.<actor>`). Raises `Invalid` to
        refuse it."""
        raise NotImplementedError


def _open(argument: Any) -> bool:
    """True for a type argument that names no event type."""
    return isinstance(argument, TypeVar) or argument in (Any, typing.Never)
