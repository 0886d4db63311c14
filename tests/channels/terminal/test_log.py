"""`sika log` and `sika dlq` on a real log."""

from __future__ import annotations

import json

import anyio
import msgspec
import pytest

from channels.cli.admin.dlq import line_of
from channels.terminal.log import views as logs
from channels.terminal.log.story import Story
from channels.terminal.text import Style
from core.bus import streams
from core.bus.connection import Bus
from core.bus.pull import Room
from core.bus.queue import Hint, WorkQueue
from core.errors import Invalid, NotFound
from core.events import (
    Aggregate,
    Decision,
    Event,
    ModelCompleted,
    RunCompleted,
    RunRequested,
    RunStarted,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ToolCompleted,
    ToolRequested,
    encode,
    thread,
    written,
)
from core.ids import now, uuid7
from core.log.store import EventLog
from core.replay.soundness import verify, verify_all
from core.replay.source import LogSource
from core.runtime import letters as dlq
from core.thread.prune import prune
from core.thread.threads import Threads

pytestmark = pytest.mark.anyio

T = "t1"
AI = {"type": "ai", "id": "m1", "content": "look", "tool_calls": [{"id": "c", "name": "ls", "args": {"path": "/mnt"}}]}
TOOL = {"type": "tool", "id": "tool-c", "tool_call_id": "c", "name": "ls", "content": "x" * 100_000}
RUN: list[Event] = [
    RunRequested(input={"messages": [{"type": "human", "id": "h", "content": "hi"}]}),
    RunStarted(attempt=1, worker="w", lease=1),
    ModelCompleted(message=AI),
    ToolRequested(call_id="c", name="ls", effect="pure"),
    ToolCompleted(call_id="c", message=TOOL, update={"todos": [{"content": "one", "status": "completed"}]}),
    ModelCompleted(message={"type": "ai", "id": "m2", "content": "done"}),
    RunCompleted(),
]


async def fill(log: EventLog, thread_id: str = T, run: str = "r1") -> int:
    """A thread with one run; its last sequence."""
    [record] = await log.append(thread(thread_id), [ThreadCreated(user="me")], expected=0, actor="http")
    for event in RUN:
        cause = None if isinstance(event, RunRequested) else record.id
        [record] = await log.append(thread(thread_id), [event], expected=record.seq, actor="lead", run=run, cause=cause)
    return record.seq


async def force(
    bus: Bus,
    event: Event,
    *,
    expected: int | None,
    aggregate: Aggregate | None = None,
    cause: str | None = None,
    run: str | None = None,
    identity: str | None = None,
    raw: bytes | None = None,
) -> None:
    """Write to the thread past the log's own care."""
    target = aggregate or thread(T)
    identity = identity or uuid7()
    fields = {"kind": target.kind, "aggregate_id": target.id, "actor": "forger", "at": now()}
    body = encode(event, written(event, id=identity, run=run, cause=cause, **fields))
    headers = {"Nats-Msg-Id": uuid7(), "Sika-Type": str(event.__struct_config__.tag)}
    if identity != "same":
        headers["Nats-Msg-Id"] = identity
    if expected is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
    reply = await bus.ask(bus.names.log(thread(T)), raw or body, headers)
    assert "error" not in msgspec.json.decode(reply.data), reply.data


async def test_show_tells_the_story(log: EventLog) -> None:
    last = await fill(log)
    lines: list[str] = []
    assert await logs.show(LogSource(log), T, lines.append, story=Story()) == last
    assert len(lines) == 9  # 8 events, 1 heading
    assert "thread.created" in lines[0]
    assert "ls [pure] /mnt" in lines[5]
    later: list[str] = []
    await logs.show(LogSource(log), T, later.append, extent=logs.Extent(after=str(last - 1)), story=Story())
    assert len(later) == 2


async def test_show_as_json_is_the_log(log: EventLog) -> None:
    await fill(log)
    lines: list[str] = []
    await logs.show(LogSource(log), T, lines.append, raw=True, story=Story())
    found = [json.loads(line) for line in lines]
    assert [event["type"] for event in found][:2] == ["thread.created", "run.requested"]
    assert [event["seq"] for event in found] == list(range(1, 9))


async def test_two_moments_of_a_thread(log: EventLog) -> None:
    last = await fill(log)
    lines: list[str] = []
    assert await logs.diff(LogSource(log), f"{T}@5", T, lines.append, style=Style())
    assert lines[0] == "messages[tool-c]"
    assert lines[1].startswith('  + {"type":"tool"')
    assert lines[1].endswith("xxx…")
    assert "todos" in lines
    assert not await logs.diff(LogSource(log), T, f"{T}@{last}", print, style=Style())
    with pytest.raises(Invalid, match="THREAD#RUN"):
        await logs.diff(LogSource(log), T, "t1#", print, style=Style())
    with pytest.raises(NotFound, match="no run 2; the thread has 1"):
        await logs.diff(LogSource(log), "t1#1", "t1#2", print, style=Style())


async def test_two_threads(log: EventLog) -> None:
    await fill(log)
    await fill(log, "t2")
    lines: list[str] = []
    assert not await logs.diff(LogSource(log), T, "t2", lines.append, style=Style())
    assert lines[0] == "the same: 4 steps"
    await log.append(
        thread("t2"),
        [RunRequested(input={"messages": []})],
        expected=await log.tip(thread("t2")),
        actor="http",
        run="r2",
    )
    lines.clear()
    assert await logs.diff(LogSource(log), T, "t2", lines.append, style=Style())
    assert lines[0] == "first difference after 4 steps: only the right one has this step"
    count = len(await LogSource(log).read(thread("t2")))
    assert lines[1].split()[:3] == ["right", str(count), "request"], "the number in the thread, not in the stream"
    lines.clear()
    await logs.diff(LogSource(log), T, "t2", lines.append, style=Style(), raw=True)
    [difference] = [msgspec.json.decode(line) for line in lines]
    assert [step["difference"] for step in difference["steps"]] == ["", "", "", "", "only right"]
    assert difference["setup"] == []


async def test_an_unknown_thread_is_named(log: EventLog) -> None:
    with pytest.raises(NotFound, match="nope"):
        await logs.show(LogSource(log), "nope", print, story=Story())
    with pytest.raises(NotFound, match="nope"):
        await verify(log, "nope")
    with pytest.raises(Invalid):
        await logs.show(LogSource(log), "a.b", print, story=Story())


async def test_tail_goes_on_with_what_comes(log: EventLog) -> None:
    last = await fill(log)
    lines: list[str] = []
    came = anyio.Event()

    def write(line: str) -> None:
        lines.append(line)
        came.set()

    async with anyio.create_task_group() as tasks:

        async def tail() -> None:
            await logs.tail(log, T, write, after=last, raw=True, story=Story())

        tasks.start_soon(tail)
        await log.append(thread(T), [ThreadErased(by="me")], expected=last, actor="http")
        with anyio.fail_after(60):
            await came.wait()
        tasks.cancel_scope.cancel()
    assert "thread.erased" in lines[0]


async def test_state_for_people_and_for_programs(log: EventLog) -> None:
    await fill(log)
    lines: list[str] = []
    await logs.state(LogSource(log), T, lines.append)
    text = "\n".join(lines)
    for part in (
        "user me, idle",
        "r1  success, attempt 1",
        "☑ one",
        "human: “hi”",
        "ai: “look” → ls(/mnt)",
        "ai: “done”",
    ):
        assert part in text
    raw: list[str] = []
    await logs.state(LogSource(log), T, raw.append, raw=True)
    found = json.loads(raw[0])
    assert found["values"]["messages"][-1]["content"] == "done"
    assert found["runs"][0]["status"] == "success"


async def test_a_sound_log_is_sound(log: EventLog) -> None:
    await fill(log)
    await fill(log, "another", "r2")
    verdict = await verify(log, T)
    assert verdict.lines() == ["ok: 8 events, 1 run"]


async def test_batches_are_sound(log: EventLog) -> None:
    three = [ThreadCreated(user="me"), ThreadAnnotated(metadata={}), StatePatched(values={"title": "x"})]
    await log.append(thread(T), three, expected=0, actor="http")
    assert (await verify(log, T)).problems == []


async def test_an_erased_thread_is_sound(log: EventLog) -> None:
    last = await fill(log)
    await log.append(thread(T), [ThreadErased(by="me")], expected=last, actor="http")
    assert not await log.erase(thread(T), seconds=0)
    assert (await verify(log, T)).problems == []
    await log.erase(thread(T))
    assert (await verify(log, T)).lines() == ["ok: 1 event, 0 runs"]


async def test_a_pruned_thread_is_sound(log: EventLog) -> None:
    await fill(log)
    assert await prune(Threads(log), T, actor="http")
    assert (await verify(log, T)).problems == []
    await log.erase(thread(T))
    assert (await verify(log, T)).lines() == ["ok: 1 event, 0 runs"]


async def test_a_call_that_a_policy_refused_is_sound(log: EventLog) -> None:
    last = await fill(log)
    asks = {"type": "ai", "id": "m3", "content": "", "tool_calls": [{"id": "z", "name": "write_file", "args": {}}]}
    refused = ToolCompleted(
        call_id="z",
        message={"type": "tool", "id": "tool-z", "tool_call_id": "z", "content": "Error: read it first"},
        decisions=[Decision("read_before_write", "blocked", "the file was not read")],
    )
    events = [RunRequested(), RunStarted(attempt=1, worker="w", lease=1), ModelCompleted(message=asks), refused]
    await log.append(thread(T), events, expected=last, actor="lead", run="r2")
    assert (await verify(log, T)).problems == []


async def forge(log: EventLog, kind: str, expected: int, identity: str, **fields: object) -> None:
    """Store an event of any type and fields, with the headers of a sound append."""
    head = {"id": identity, "kind": "thread", "aggregate": T, "actor": "new", "at": now(), "type": kind, **fields}
    headers = {"Nats-Msg-Id": identity, "Sika-Type": kind, "Nats-Expected-Last-Subject-Sequence": str(expected)}
    await log.bus.ask(log.bus.names.log(thread(T)), msgspec.json.encode(head), headers)


async def test_events_of_extensions_are_named_but_no_problem(log: EventLog) -> None:
    last = await fill(log)
    await forge(log, "moon.risen", last, "x")
    await forge(log, "moon.risen", last + 1, "y")
    verdict = await verify(log, T)
    assert verdict.problems == []
    assert verdict.notes == ["passed over, of other versions or extensions: moon.risen"]


async def test_an_event_that_does_not_decode_stops_nobody(log: EventLog) -> None:
    last = await fill(log)
    await forge(log, "run.started", last, "bad", run="r1", attempt="one", worker="w", lease=1)
    await forge(log, "thread.annotated", last + 1, "good", metadata={"after": "it"}, cause="bad")
    lines: list[str] = []
    assert await logs.show(LogSource(log), T, lines.append, story=Story()) == last + 2
    assert "does not decode: " in lines[-2]
    assert "Expected `int`, got `str`" in lines[-2]
    assert lines[-1].endswith('{"after":"it"}')
    lines.clear()
    await logs.state(LogSource(log), T, lines.append)
    assert any("not in the state" in line for line in lines)
    assert any("$.attempt" in line for line in lines)
    assert any('metadata: {"after":"it"}' in line for line in lines)
    raw: list[str] = []
    await logs.state(LogSource(log), T, raw.append, raw=True)
    [problem] = json.loads(raw[0])["undecoded"]
    assert (await verify(log, T)).problems == [problem]
    assert problem.startswith(f"{last + 1}: ")


async def test_all_threads_are_checked_in_one_pass(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PAGE", 3)
    assert [verdict async for verdict in verify_all(log)] == []
    await fill(log, "sound")
    await forge(log, "run.started", await fill(log), "bad", run="r1", attempt="one", worker="w", lease=1)
    verdicts: dict[str, list[str]] = {}
    async for thread_id, verdict in verify_all(log):
        if not verdicts:  # what is appended during the pass is another pass's
            await fill(log, "late")
        verdicts[thread_id] = verdict.lines()
    assert verdicts["sound"] == ["ok: 8 events, 1 run"]
    assert verdicts[T][-1] == "1 problem in 9 events"
    assert sorted(verdicts) == ["sound", T]


async def test_a_false_cause_is_found(log: EventLog) -> None:
    await force(log.bus, ThreadCreated(user="me"), expected=await fill(log), cause="nobody")
    [problem] = (await verify(log, T)).problems
    assert problem == "9: its cause nobody is not an earlier event of this thread"


async def test_an_event_of_another_aggregate_is_found(log: EventLog) -> None:
    await force(log.bus, ThreadCreated(user="me"), expected=await fill(log), aggregate=thread("other"))
    [problem] = (await verify(log, T)).problems
    assert "9: the event belongs to thread/other" in problem


async def test_an_append_without_a_guard_is_found(log: EventLog) -> None:
    await fill(log)
    await force(log.bus, ThreadCreated(user="me"), expected=None)
    assert (await verify(log, T)).problems == ["9: appended without a guard"]


async def test_a_missing_event_is_found(log: EventLog) -> None:
    await fill(log)
    await log.bus.api(f"STREAM.MSG.DELETE.{log.bus.names.stream('log')}", {"seq": 5})
    assert (await verify(log, T)).problems[0] == "6: follows 5 by its guard, but 4 in the log"


async def test_a_body_that_is_no_event_is_found(log: EventLog) -> None:
    last = await fill(log)
    await force(log.bus, ThreadCreated(user="me"), expected=last, raw=b"not json")
    bad = b'{"id":"y","kind":"thread","aggregate":"t1","actor":"f","at":"","type":"run.started","attempt":"one"}'
    await force(log.bus, RunCompleted(), expected=last + 1, raw=bad)
    found = (await verify(log, T)).problems
    assert "9: not an event" in found[0]
    assert "10: event y (run.started)" in found[1]


async def test_an_id_that_occurs_twice_is_found(log: EventLog) -> None:
    last = await fill(log)
    await force(log.bus, ThreadCreated(user="me"), expected=last, identity="same")
    await force(log.bus, ThreadCreated(user="me"), expected=last + 1, identity="same")
    assert "10: the id same occurs a second time" in (await verify(log, T)).problems


async def test_what_runs_cannot_do_is_found(log: EventLog) -> None:
    last = await fill(log)
    stray = ToolCompleted(call_id="z", message={**TOOL, "content": ""})
    await force(log.bus, stray, expected=last, run="r1")
    await force(log.bus, RunCompleted(), expected=last + 1, run="r1")
    await force(log.bus, RunStarted(attempt=1, worker="w", lease=1), expected=last + 2, run="r9")
    assert (await verify(log, T)).problems == [
        "9: tool.completed of run r1, whose status is success",
        "9: outcome of the tool call z, which nobody asked for",
        "10: run.completed of run r1, whose status is success",
        "11: run.started of run r9, which was not requested",
    ]


async def test_problems_are_counted(log: EventLog) -> None:
    await force(log.bus, ThreadCreated(user="me"), expected=await fill(log), cause="nobody")
    assert (await verify(log, T)).lines()[-1] == "1 problem in 9 events"


# ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────────


async def bury(bus: Bus, queue: WorkQueue, thread_id: str) -> None:
    letter = {
        "actor": "lead",
        "reason": "broken\x1b[2J",
        "at": now(),
        "hint": Hint(seq=1, type="run.requested", id="e"),
    }
    await bus.ask(bus.names.dlq("lead", thread(thread_id)), msgspec.json.encode(letter))


async def test_dead_letters_are_listed_and_sent_again(log: EventLog) -> None:
    bus, queue = log.bus, WorkQueue(log.bus, 2)
    assert [letter async for letter in dlq.letters(bus)] == []
    for thread_id in ("a", "b", "c"):
        await bury(bus, queue, thread_id)
    found = [letter async for letter in dlq.letters(bus)]
    assert [(letter.seq, letter.actor, str(letter.aggregate)) for letter in found] == [
        (1, "lead", "thread/a"),
        (2, "lead", "thread/b"),
        (3, "lead", "thread/c"),
    ]
    assert line_of(found[0]).endswith("lead on thread/a (run.requested): broken")
    assert [letter.seq for letter in await dlq.redrive(log, queue, [2, 9], by="ada", actor="cli")] == [2]
    assert [letter.seq async for letter in dlq.letters(bus)] == [1, 3]
    assert len(await dlq.redrive(log, queue, by="ada", actor="cli")) == 2
    assert [letter async for letter in dlq.letters(bus)] == []

    await queue.ensure("lead")
    woken: list[str] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def work(wakeup: object) -> None:
                woken.append(str(wakeup.aggregate.id))  # type: ignore[attr-defined]
                if len(woken) == 3:
                    tasks.cancel_scope.cancel()

            await queue.serve("lead", work, Room(8))
    assert sorted(woken) == ["a", "b", "c"]
