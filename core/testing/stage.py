"""A stage for actors: the runtime and a log, without models, HTTP or configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from core.actor import Actor, Context
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.bus.queue import Hint
from core.errors import Invalid, Unavailable, ungrouped
from core.events import Aggregate, Event, Opaque, Record, RunCompleted, RunRequested, RunStarted, ThreadCreated, thread
from core.ids import uuid7
from core.runs.run import RunActor
from core.runtime import system
from core.runtime.dispatch import concerns
from core.runtime.own_state import own_state
from core.runtime.system import System

Made = Actor[Any] | Callable[[System], Actor[Any]]
SECONDS = 120.0
"""Deadline of everything that a test waits for."""
LEASE_SECONDS = 2.0
TESTER = "test"
"""The author of given events, in the log."""


class Stage:
    """The stage of a test's actors. `thread`: the aggregate of given events, unless they name another. `endpoint`: the
    NATS of its log, for what else runs on it.
    """

    def __init__(self, system: System, actors: Mapping[str, Actor[Any]], user: str, endpoint: Endpoint) -> None:
        self.system = system
        self.endpoint = endpoint
        self.user = user
        self.thread = thread("t1")
        self._actors = actors
        self._settled: dict[tuple[str, str], Exception | None] = {}
        """Results of handlers, by actor and event: None or the error."""
        self._moved = asyncio.Event()
        for actor in actors.values():
            _watch(actor, "handle", partial(self._attempt, actor.name))
            _watch(actor, "wake", partial(self._attempt, actor.name))

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────────

    async def given(self, *events: Event, run: str | None = None, aggregate: Aggregate | None = None) -> list[Record]:
        """Appends events one by one, as somebody else would; a thread that does not exist is created first. Returns
        their records.
        """
        target = aggregate or self.thread
        records: list[Record] = []
        creates = isinstance(events[0], ThreadCreated)
        if target.kind == "thread" and not creates and not (await self.system.threads.load(target.id)).seq:
            await self._append(target, ThreadCreated(user=self.user), None)
        for event in events:
            records += await self._append(target, event, run)
        return records

    async def given_run(self, text: str = "hello", *more: Event, run: str | None = None) -> str:
        """Appends a run from its request to its end, with `more` of its events before the end. Returns its id."""
        run = run or uuid7()
        message = {"type": "human", "id": f"human-{run}", "content": text}
        started = RunStarted(attempt=1, worker=TESTER, lease=1)
        await self.given(RunRequested(input={"messages": [message]}), started, *more, RunCompleted(), run=run)
        return run

    async def wake(self, actor: str | None = None, aggregate: Aggregate | None = None) -> None:
        """Has an actor woken as by a timer that fires now, and waits until it is done."""
        chosen, key = self._actor(actor), uuid7()
        queue, target = self.system.queue, aggregate or self.thread
        before = self._timers(chosen.name)
        await queue.wake(chosen.name, target, Hint(), key=key)
        with anyio.fail_after(SECONDS):
            while self._timers(chosen.name) == before:
                await self._move()
        self._raise()

    async def ask(self, request: Mapping[str, Any], actor: str | None = None) -> Any:
        """Returns an actor's answer to a question (`Actor.answer`). Raises what it raises."""
        with anyio.fail_after(SECONDS):
            return await self.system.call(self._actor(actor).name, request)

    # ── what came of it ─────────────────────────────────────────────────────────────────────────────────────────────

    async def appended(self, aggregate: Aggregate | None = None) -> list[Event | Opaque]:
        """Returns what the actors have appended to an aggregate, once they have handled every event that concerns
        them, their own included. Raises the error of a handler that failed.
        """
        return [record.event for record in await self.settled(aggregate) if record.head.actor in self._actors]

    async def settled(self, aggregate: Aggregate | None = None) -> list[Record]:
        """Returns all records of an aggregate, once the actors have handled what concerns them. Raises the error of a
        handler that failed.
        """
        with anyio.fail_after(SECONDS):
            while True:
                settled = self._settled.keys() | set()  # before the log is read: what they appended is in it
                log = [record async for record in self.system.log.between(0, await self.system.log.last())]
                self._raise()
                if not self._open(log, settled):
                    return [record for record in log if record.aggregate == (aggregate or self.thread)]
                if self._settled.keys() == settled:
                    await self._move()

    async def state(self, actor: str | None = None, aggregate: Aggregate | None = None) -> Any:
        """Returns an actor's own state for an aggregate, once the actors have handled what concerns them."""
        await self.settled()
        name = self._actor(actor).name
        return await self.system.states[name].load(own_state(name, aggregate or self.thread).id)

    def _open(self, log: Sequence[Record], settled: Set[tuple[str, str]]) -> bool:
        """Tells whether an actor has yet to handle an event of the log: it is not handled if it was answered before."""
        done = settled | {(record.head.actor, record.head.cause) for record in log}
        return any(
            concerns(actor, record) and (name, record.id) not in done
            for name, actor in self._actors.items()
            for record in log
        )

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _append(self, target: Aggregate, event: Event, run: str | None) -> list[Record]:
        if target.kind == "thread":
            _, records = await self.system.threads.decide(target.id, lambda _: [event], actor=TESTER, run=run)
            return records
        tip = await self.system.log.tip(target)
        return await self.system.log.append(target, [event], expected=tip, actor=TESTER, run=run)

    def _actor(self, name: str | None) -> Actor[Any]:
        if name is None and len(self._actors) == 1:
            return next(iter(self._actors.values()))
        if name is None or name not in self._actors:
            raise Invalid(f"actor: {name!r} is none of {', '.join(self._actors)}")
        return self._actors[name]

    def _timers(self, actor: str) -> int:
        return sum(name == actor and key.startswith("timer-") for name, key in self._settled)

    async def _attempt(self, actor: str, call: Callable[..., Awaitable[None]], about: Any, ctx: Context) -> None:
        """Runs a handler, and keeps what becomes of it."""
        key = ctx.record.id if isinstance(about, Event) else f"timer-{uuid7()}"
        try:
            await call(about, ctx)
            self._settled[actor, key] = None
        except Unavailable:
            raise  # the runtime calls again
        except Exception as error:
            self._settled[actor, key] = error
            raise
        finally:
            self._moved.set()

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _raise(self) -> None:
        for error in self._settled.values():
            if error is not None:
                raise error


def _watch(
    actor: Actor[Any], method: str, attempt: Callable[[Callable[..., Awaitable[None]], Any, Context], Awaitable[None]]
) -> None:
    """Puts `attempt` around a method of this one actor."""
    setattr(actor, method, partial(attempt, getattr(actor, method)))


@asynccontextmanager
async def acting(*actors: Made, home: Path, user: str = "ada") -> AsyncIterator[Stage]:
    """Runs actors on a log of their own, for as long as the block lasts. `home`: an empty folder, as pytest's
    `tmp_path`. An actor that needs parts of the runtime is given as a function of it:
    `acting(lambda system: Approvals(system.intake), home=tmp_path)`.
    """
    with ungrouped(Exception):
        async with (
            _endpoint(home) as endpoint,
            system.start(endpoint, home / "views.db", lease_seconds=LEASE_SECONDS, slots=16) as running,
            anyio.create_task_group() as tasks,
        ):
            built = [actor if isinstance(actor, Actor) else actor(running) for actor in actors]
            for actor in built:
                if isinstance(actor, RunActor):
                    raise Invalid(f"actor {actor.name}: does runs, and has no handler to be tested by itself")
            stage = Stage(running, {actor.name: actor for actor in built}, user, endpoint)
            await tasks.start(partial(running.serve, built, alone=True))
            yield stage
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _endpoint(home: Path) -> AsyncIterator[Endpoint]:
    async with embedded.start(home) as server:
        yield Endpoint(server.url, token=server.token)
