"""The trace a run belongs to: what names one, and that others on the bus are told. What the process knows meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from nats.aio.msg import Msg

from core import traces
from core.actor import Actor, Context
from core.bus.endpoint import Endpoint
from core.events import RunCompleted, RunRequested, ThreadAnnotated, ThreadCreated
from core.ids import uuid7
from core.log.store import EventLog
from core.runs.owned import OwnedRun
from core.runs.run import Prepared, RunActor
from core.runtime import dispatch, system
from core.runtime.system import System
from tests.support.nats import DEADLINE, Nats, fresh

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = PARENT.replace("b7", "c8")


# ── what names one ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "passed_on"),
    [
        (PARENT, PARENT),
        (PARENT[:-2] + "00", PARENT[:-2] + "00"),
        (PARENT[:-2] + "03", PARENT),
        (PARENT.replace("00-", "cc-", 1), PARENT),
        (PARENT.replace("00-", "cc-", 1) + "-what-comes-later", PARENT),
    ],
)
def test_a_parent(text: str, passed_on: str) -> None:
    found = traces.parent(text)
    assert found is not None
    assert (found.trace, found.span, found.sampled) == (TRACE, SPAN, passed_on.endswith("1"))
    assert str(found) == passed_on


@pytest.mark.parametrize(
    "text",
    [
        None, 5, "", "x", PARENT.upper(), f"{PARENT}-more", PARENT.replace("00-", "ff-", 1), PARENT[:-1],
        f"{PARENT}\n", f" {PARENT}", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
    ],
)  # fmt: skip
def test_what_is_no_parent_is_none(text: Any) -> None:
    assert traces.parent(text) is None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (RunRequested(), None),
        (RunRequested(traceparent="x", metadata={"a": 1}), None),
        (RunRequested(traceparent=PARENT), PARENT),
        (RunRequested(metadata={"traceparent": PARENT}), PARENT),
        (RunRequested(traceparent=PARENT, metadata={"traceparent": OTHER}), OTHER),
        (RunRequested(traceparent=PARENT, metadata={"traceparent": 5}), PARENT),
    ],
    ids=["none", "odd", "field", "metadata", "both", "odd metadata"],
)
def test_of_a_run(request_: RunRequested, expected: str | None) -> None:
    assert traces.header(request_) == expected


# ── on the bus ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Worker(RunActor):
    """Says what the log of the process would say."""

    name = "lead"

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        self.bound = structlog.contextvars.get_contextvars()


class Noter(Actor[RunCompleted]):
    """Leaves a note."""

    name = "noter"

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self.event_id = ""

    async def handle(self, event: RunCompleted, ctx: Context) -> None:
        self.bound, self.event_id = structlog.contextvars.get_contextvars(), ctx.record.id
        await ctx.append(ThreadAnnotated(metadata={"noted": True}))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GATHER_SECONDS", 0.05)


@asynccontextmanager
async def process(endpoint: Endpoint, home: Path, *actors: Actor[Any]) -> AsyncIterator[System]:
    async with (
        system.start(endpoint, home / "views.db", lease_seconds=2, slots=4) as running,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(lambda task_status: running.serve(actors, alone=True, task_status=task_status))
        yield running
        tasks.cancel_scope.cancel()


async def heard(running: System, request: RunRequested) -> tuple[str, str, list[tuple[str, Mapping[str, str]]]]:
    """Thread and run, and the type and headers of what others on the bus hear of it, up to the note."""
    messages = asyncio.Queue[Msg]()
    subscription = await running.bus.subscribe(running.bus.names.all_live, messages.put)
    thread, run = fresh().id, uuid7()
    await running.intake.create_thread(thread, user="ada")
    await running.intake.request_run(thread, run, request)
    found: list[tuple[str, Mapping[str, str]]] = []
    with anyio.fail_after(DEADLINE):
        while not found or found[-1][0] != "thread.annotated":
            headers = (await messages.get()).headers or {}
            found.append((headers["Sika-Type"], headers))
    await subscription.unsubscribe()
    return thread, run, found


async def test_whatever_is_said_of_a_run_names_its_trace(single: Nats, prefix: str, tmp_path: Path) -> None:
    async with process(single.endpoint(prefix), tmp_path, Worker(), Noter()) as running:
        _, _, traced = await heard(running, RunRequested(traceparent=PARENT))
        _, _, plain = await heard(running, RunRequested())
    assert [(name, headers.get("traceparent")) for name, headers in traced] == [
        ("thread.created", None),
        ("run.requested", PARENT),
        ("run.started", PARENT),
        ("run.completed", PARENT),
        ("thread.annotated", PARENT),
    ]
    assert not any("traceparent" in headers for _, headers in plain)


async def test_a_batch_names_its_trace(log: EventLog) -> None:
    thread, messages = fresh(), asyncio.Queue[Msg]()
    await log.bus.subscribe(log.bus.names.all_live, messages.put)
    both = [ThreadCreated(user="ada"), ThreadAnnotated(metadata={})]
    await log.append(thread, both, expected=0, actor="http", traceparent=PARENT)
    with anyio.fail_after(DEADLINE):
        assert [((await messages.get()).headers or {}).get("traceparent") for _ in both] == [PARENT, PARENT]


# ── in the log of the process ────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_said_meanwhile_says_what_it_is_about(single: Nats, prefix: str, tmp_path: Path) -> None:
    worker, noter = Worker(), Noter()
    async with process(single.endpoint(prefix), tmp_path, worker, noter) as running:
        thread, run, _ = await heard(running, RunRequested())
    asked_for = worker.bound.pop("event_id")
    assert worker.bound == {"actor": "lead", "thread": thread, "run": run}
    assert noter.bound == {"actor": "noter", "thread": thread, "run": run, "event_id": noter.event_id}
    assert asked_for != noter.event_id
    assert not {"actor", "run"} & structlog.contextvars.get_contextvars().keys()
