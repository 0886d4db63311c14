"""Workers for tests: whole ones in this process, whose power may be cut, and small ones in processes of their own.

As a process: `python -m tests.support.workers --url … --token … --views … --lease 2` works through runs with `Steps`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import pytest

from actors.lead import Lead
from actors.sandbox import Sandbox
from actors.skills.actor import Skills
from actors.subagents.actor import Subagents
from actors.wiring import compose, sandboxes
from actors.wiring.parts import Toolset
from actors.wiring.parts import library as skills_of
from adapters import guardrails
from adapters.batches import LocalBatchFiles
from adapters.egress import Downloads
from adapters.images import LocalImages
from adapters.instructions import LocalInstructions
from adapters.models import factory
from adapters.models.configured import Configured
from adapters.uploads import LocalUploads
from core.actor import Actor
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.config.load import ConfigSource
from core.config.sandbox import Sandbox as Limits
from core.events import Aggregate, Event, Message, ModelCompleted, Record, RunRequested, thread
from core.ids import uuid7
from core.runs import owned
from core.runs.owned import OwnedRun
from core.runs.run import Prepared, RunActor
from core.runtime import system
from core.runtime.system import System
from core.thread.fold import fold
from core.thread.state import Run, ThreadState
from core.tools import Tool
from tests.support import logs, toolset
from tests.support.model_server import Answer, ModelServer, Script, Turn

T = TypeVar("T")
Other = Actor[Any] | Callable[[System, ConfigSource], Actor[Any]]
"""An actor, or what makes it of the parts of its process."""
DEADLINE = 120.0
"""Seconds after which something that a test waits for will not happen any more."""
LEASE = 2
STEPS = 20
"""What a run of `Steps` does."""


def configure(path: Path, models: ModelServer, *, more_models: Sequence[Any] = (), **sections: Any) -> Path:
    """A configuration with the server's scripts as models, and `more_models`. Titles and memory are off: they
    ask models, too. JSON is YAML.
    """
    entries = [{"name": name, "model": name, "base_url": models.url, "api_key": "none"} for name in models.scripts]
    settings = {
        "models": [*entries, *more_models],
        "sandbox": {"allow_host_bash": True},
        "title": {"enabled": False},
        "memory": {"enabled": False},
        **sections,
    }
    path.write_text(json.dumps(settings))
    return path


async def wait_for(
    condition: Callable[[], Coroutine[Any, Any, bool]], seconds: float = DEADLINE, *, every: float = 0.02
) -> None:
    """For what tells nobody when it happens."""
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(every)


async def reaching(probe: Callable[[], Awaitable[T]], end: Callable[[T], bool]) -> None:
    """Waits until what a probe tells is the end. However long that takes: only a standstill of `DEADLINE` fails."""
    last: T | None = None
    while not end(there := await probe()):
        if there != last:
            last, until = there, time.monotonic() + DEADLINE
        assert time.monotonic() < until, f"stands still at {there}"
        await asyncio.sleep(0.1)


logs.plain()
toolset.share()


# ── power ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Power:
    """The mains of one worker. Once it is off nothing leaves the process any more, not even a farewell.

    It goes off with the `last` append of the process: when that is stored but nobody here has learned of it
    (`unheard`), as soon as it is known (`heard`), or as late as possible: when the next thing wants to be appended, or
    the wake-up to be acked (`later`).
    """

    def __init__(self, last: int, mode: Literal["unheard", "heard", "later"]) -> None:
        self.off = asyncio.Event()
        self._last = last
        self._mode = mode
        self._appended = 0

    def wire(self, running: System) -> None:
        append, publish = running.log.append, running.bus.nc.publish
        stream = running.bus.names.stream("cmd")
        acks = tuple(f"$JS.ACK.{stream}.{actor}." for actor in ("lead", "subagents"))

        async def mortal_append(aggregate: Aggregate, events: Sequence[Event], **options: Any) -> list[Record]:
            if self._appended >= self._last:
                await self._cut()
            records = await append(aggregate, events, **options)
            self._appended += 1
            if self._appended == self._last and self._mode != "later":
                if self._mode == "unheard":
                    await self._cut()
                self.off.set()
            return records

        async def mortal_publish(subject: str, payload: bytes = b"", *rest: Any) -> None:
            if self._appended >= self._last and subject.startswith(acks) and payload == b"+ACK":
                self.off.set()
            if not self.off.is_set():
                await publish(subject, payload, *rest)

        patch = pytest.MonkeyPatch()
        patch.setattr(running.log, "append", mortal_append)
        patch.setattr(running.bus.nc, "publish", mortal_publish)

    async def _cut(self) -> None:
        self.off.set()
        await anyio.sleep_forever()


# ── a worker in this process ────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def worker(
    endpoint: Endpoint,
    home: Path,
    config: Path,
    *,
    tools: Sequence[Tool] = (),
    others: Sequence[Other] = (),
    power: Power | None = None,
    alone: bool = True,
    slots: int = 16,
    skills: bool = False,
) -> AsyncIterator[System]:
    """A process's worth of Sika without its web server: the lead and the sandbox actor, and `others`. `skills`: it has
    those of its configuration, and the actor that writes them.
    """
    ready: asyncio.Queue[System | None] = asyncio.Queue()

    async def run() -> None:
        source = ConfigSource(config)
        views = home / f"views-{uuid7()}.db"
        async with system.start(endpoint, views, lease_seconds=LEASE, slots=slots) as running:
            if power is not None:
                power.wire(running)
            provider = await sandboxes.provider_for(home, source.current(), source.project)
            models = Configured(source)
            await anyio.to_thread.run_sync(compose.problems, source.current())  # the imports
            declared = Toolset(source.current())
            shared: dict[str, Any] = {
                "config": source,
                "models": models,
                "tools": lambda config: [*declared(config), *tools],
                "call": running.call,
                "log": running.log,
                "home": home,
                "images": LocalImages(home),
                "instructions": LocalInstructions(home),
                "guardrails": guardrails.load,
            }
            library = skills_of(running.log, source, home) if skills else None
            shared["skills"] = library
            lead = Lead(**shared, uploads=LocalUploads(home, running.log))
            subagents = Subagents(
                **shared, threads=running.threads, subagents=running.subagents, batches=LocalBatchFiles(home)
            )
            more = [other if isinstance(other, Actor) else other(running, source) for other in others]
            if library is not None:
                names = ("config", "models", "tools", "log", "home")
                own = {name: shared[name] for name in names}
                own |= {"threads": running.threads, "subagents": running.subagents, "downloads": Downloads()}
                more.append(Skills(**own, skills=library))
            parts: list[Actor[Any]] = [lead, subagents, Sandbox(provider, Limits(), source, library), *more]
            async with anyio.create_task_group() as tasks:
                await tasks.start(partial(running.serve, parts, alone=alone))
                ready.put_nowait(running)

    # Not a task group: it would wrap the failures of the caller's block.
    patch = pytest.MonkeyPatch()
    if power is not None:
        patch.setattr(owned, "OUTCOME_SECONDS", 0.0)  # without power nobody waits for an outcome
    task = asyncio.create_task(run())
    task.add_done_callback(lambda _: ready.put_nowait(None))
    try:
        if (started := await ready.get()) is None:
            task.result()
        assert started is not None
        yield started
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        patch.undo()
        await factory.close()
        await asyncio.sleep(0)  # connections that were broken off come to their end


class Client:
    """What a person does, straight on a system: create threads, ask for runs, look at the log."""

    def __init__(self, running: System) -> None:
        self.system = running

    async def thread(self, thread_id: str = "t1", user: str = "ada") -> str:
        await self.system.intake.create_thread(thread_id, user=user)
        return thread_id

    async def ask(
        self,
        thread_id: str,
        text: str,
        model: str | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """Ask for a run; its id."""
        run_id = uuid7()
        message = {"type": "human", "id": f"human-{run_id}", "content": text}
        given = {**({"model_name": model} if model else {}), **(context or {})}
        request = RunRequested(input={"messages": [message]}, context=given, **more)
        await self.system.intake.request_run(thread_id, run_id, request)
        return run_id

    async def until(
        self, thread_id: str, condition: Callable[[ThreadState, Record], bool], seconds: float = DEADLINE
    ) -> ThreadState:
        """The state right after the first event for which the condition holds."""
        state = ThreadState()
        async with asyncio.timeout(seconds):
            async for record in self.system.log.follow(thread(thread_id)):
                state = fold([record], state)
                if condition(state, record):
                    return state
        raise AssertionError("follow never ends")

    async def ended(self, thread_id: str, run_id: str, seconds: float = DEADLINE) -> Run:
        def over(state: ThreadState, _: Record) -> bool:
            return run_id in state.runs and not state.runs[run_id].open

        state = await self.until(thread_id, over, seconds)
        return state.runs[run_id]

    async def said(self, thread_id: str, text: str, model: str | None = None, **more: Any) -> list[Message]:
        """Ask, wait until the run is complete; the thread's messages."""
        run = await self.ended(thread_id, await self.ask(thread_id, text, model, **more))
        assert run.status == "success", run.error
        return (await self.state(thread_id)).messages

    async def state(self, thread_id: str) -> ThreadState:
        return fold(await self.records(thread_id))

    async def records(self, thread_id: str, kind: type[Event] | None = None) -> list[Record]:
        """The thread's events, or those of one type."""
        found = [record async for record in self.system.log.read(thread(thread_id))]
        return [record for record in found if kind is None or isinstance(record.event, kind)]

    async def idle(self) -> None:
        """Return when the actors of this process have their wake-ups for all events so far, and none is left."""
        last = await self.system.log.last()

        async def dispatched() -> bool:
            return all(a.position is None or a.position >= last for a in self.system.vitals.report().actors)

        async def empty() -> bool:
            info = await self.system.bus.api(f"STREAM.INFO.{self.system.bus.names.stream('cmd')}")
            return int(info["state"]["messages"]) == 0

        await wait_for(dispatched)
        await wait_for(empty)


@asynccontextmanager
async def site(
    home: Path,
    scripts: Mapping[str, Script | Sequence[Turn] | Answer],
    *,
    tools: Sequence[Tool] = (),
    others: Sequence[Other] = (),
    slots: int = 16,
    **sections: Any,
) -> AsyncIterator[tuple[Client, ModelServer]]:
    """Everything a run needs, made for one test: models, bus, worker."""
    async with ModelServer(scripts) as models, embedded.start(home) as server:
        config = configure(home / "config.yaml", models, **sections)
        endpoint = Endpoint(server.url, token=server.token)
        async with worker(endpoint, home, config, tools=tools, others=others, slots=slots) as running:
            yield Client(running), models


# ── workers in processes ────────────────────────────────────────────────────────────────────────────────────────────


class Steps(RunActor):
    """Does runs without a model: `STEPS` messages, each naming the worker that appended it."""

    name = "lead"

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self.begun = asyncio.Event()
        """The first run was begun."""

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        self.begun.set()
        done = sum(str(message["id"]).startswith(f"{run.id}/") for message in run.state.messages)
        for step in range(done, STEPS):
            await asyncio.sleep(self._pause)
            message = {"type": "ai", "id": f"{run.id}/{step}", "name": run.worker, "content": str(step)}
            await run.append(ModelCompleted(message=message))


async def _lag(seconds: float, begun: asyncio.Event) -> None:
    """Keeps the event loop busy from the first run on, with a turn for others after each while."""
    await begun.wait()
    while seconds:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        await asyncio.sleep(0)


async def _serve(options: argparse.Namespace) -> None:
    endpoint = Endpoint(options.url, token=options.token)
    async with (
        system.start(endpoint, options.views, lease_seconds=options.lease, slots=options.slots or None) as running,
        asyncio.TaskGroup() as tasks,
    ):
        steps = Steps(options.pause)
        tasks.create_task(_lag(options.lag, steps.begun))
        await running.serve([steps], alone=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="A worker that does runs of steps, to be killed and frozen.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--views", type=Path, required=True)
    parser.add_argument("--lease", type=float, default=LEASE)
    parser.add_argument("--slots", type=int, default=8, help="0: as many as the governor lets")
    parser.add_argument(
        "--lag", type=float, default=0, help="seconds by which the event loop is late from the first run on"
    )
    parser.add_argument("--pause", type=float, default=0.03)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
