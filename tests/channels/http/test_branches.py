"""Threads copied and branched off; answers asked for again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from channels.http.app import Services
from channels.http.protocols.langgraph import branches
from channels.http.server.live import Live
from core.errors import Conflict
from core.events import ModelCompleted, RunRolledBack, StatePatched, ThreadCreated, ThreadErased, ToolCompleted, thread
from core.ids import uuid7
from core.log.store import EventLog
from core.runtime.system import System
from core.thread.fold import fold
from tests.channels.http.conftest import Api, Worker, unnumbered
from tests.channels.http.story import ai, answer, call, human, started
from tests.support.nats import eventually, read

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Where the files of threads are."""
    return tmp_path / "users" / "default" / "threads"


async def turn(api: Api, worker: Worker, thread: str, name: str) -> str:
    """A question and its answer, with a tool in between; the run."""
    run = await api.run(thread, input={"messages": [human(f"h{name}", f"question {name}")]})
    asked = ModelCompleted(message=ai(f"a{name}", "", call(f"c{name}", "ls")))
    outcome = ToolCompleted(
        call_id=f"c{name}", message=answer(f"c{name}", "ls", "a b"), update={"artifacts": [f"/{name}"]}
    )
    await worker.write(thread, run, started(), asked, outcome)
    await worker.finish(thread, run, f"answer {name}")
    return run


async def tree(api: Api, thread: str) -> list[Any]:
    """The history without what is of this thread alone: ids and times; parents by place."""
    history = await api.ask("POST", f"/threads/{thread}/history", {"limit": 1000})
    places = {one["checkpoint_id"]: place for place, one in enumerate(history)}
    return [
        (
            *(unnumbered(one["values"]), one["next"], places.get(one["parent_checkpoint_id"])),
            *(one["metadata"][key] for key in ("source", "step")),
        )
        for one in history
    ]


async def ids(api: Api, thread: str) -> list[str]:
    return [m["id"] for m in (await api.ask("GET", f"/threads/{thread}/state"))["values"]["messages"]]


# ── copies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_copy_has_everything_and_is_on_its_own(api: Api, worker: Worker, system: System) -> None:
    source = await api.thread()
    await api.ask("PATCH", f"/threads/{source}", {"metadata": {"a": [1]}})
    await turn(api, worker, source, "1")
    first = await api.ask("GET", f"/threads/{source}/state")
    await turn(api, worker, source, "2")
    body = {"values": {"messages": [human("x", "branch")]}, "checkpoint": first["checkpoint"], "as_node": "mine"}
    await api.ask("POST", f"/threads/{source}/state", body)
    await turn(api, worker, source, "3")
    copied = await api.ask("POST", f"/threads/{source}/copy")
    original = await api.ask("GET", f"/threads/{source}")
    assert copied["thread_id"] != source
    assert copied == await api.ask("GET", f"/threads/{copied['thread_id']}")
    assert unnumbered(copied["values"]) == unnumbered(original["values"])
    for field in ("metadata", "status", "interrupts"):
        assert copied[field] == original[field]
    assert await tree(api, copied["thread_id"]) == await tree(api, source)
    records = await read(system.log, thread(copied["thread_id"]))
    assert records[1].type == "thread.forked"
    assert len({record.seq for record in records}) == len(records)
    await api.ask("POST", f"/threads/{copied['thread_id']}/state", {"values": {"title": "Copy"}})
    await turn(api, worker, copied["thread_id"], "4")
    assert await api.ask("GET", f"/threads/{source}") == original
    assert await api.ask("GET", f"/threads/{copied['thread_id']}/runs") != []
    await api.ask("POST", "/threads/nope/copy", status=404)


async def test_copies_whose_head_is_not_the_newest(api: Api, worker: Worker) -> None:
    source = await api.thread()
    assert (await api.ask("POST", f"/threads/{source}/copy"))["values"] == {}
    await turn(api, worker, source, "1")
    middle = await api.ask("GET", f"/threads/{source}/state")
    await turn(api, worker, source, "2")
    newest = await api.ask("GET", f"/threads/{source}/state")
    body = {"values": {"title": "T"}, "checkpoint": middle["checkpoint"]}
    await api.ask("POST", f"/threads/{source}/state", body)
    for checkpoint in (newest, middle):  # a leaf of the tree, then a node with two children
        run = await api.run(source, input=None, checkpoint=checkpoint["checkpoint"])
        await worker.start(source, run)
        state = await api.ask("GET", f"/threads/{source}/state")
        assert state["checkpoint"] == checkpoint["checkpoint"]
        copied = (await api.ask("POST", f"/threads/{source}/copy"))["thread_id"]
        there = await api.ask("GET", f"/threads/{copied}/state")
        assert (unnumbered(there["values"]), there["next"]) == (unnumbered(state["values"]), state["next"])
        await worker.write(source, run, RunRolledBack())
    left = await api.ask("GET", f"/threads/{source}/state")
    copied = (await api.ask("POST", f"/threads/{source}/copy"))["thread_id"]
    assert unnumbered((await api.ask("GET", f"/threads/{copied}/state"))["values"]) == unnumbered(left["values"])


async def test_what_was_rolled_back_is_not_copied(api: Api, worker: Worker) -> None:
    source = await api.thread()
    await turn(api, worker, source, "1")
    run = await api.run(source)
    await worker.write(source, run, started(), ModelCompleted(message=ai("m", "undone")))
    await api.ask("POST", f"/threads/{source}/state", {"values": {"title": "kept"}})
    await worker.write(source, run, RunRolledBack())
    copied = (await api.ask("POST", f"/threads/{source}/copy"))["thread_id"]
    original, there = [(await api.ask("GET", f"/threads/{name}"))["values"] for name in (source, copied)]
    assert unnumbered(there) == unnumbered(original)


async def test_a_big_tree_is_copied(api: Api, system: System) -> None:
    """500 commits on three branches that grow in turn, among them one that is too big for the log: three batches."""
    made = await system.log.append(thread("big"), [ThreadCreated(user="default")], expected=0, actor="t")
    state, heads = fold(made), [0, 0, 0]
    for number in range(500):
        big = "x" * (70_000 if number == 77 else 1)
        values = {"messages": [human(f"m{number}", big)], "n": number}
        base = heads[number % 3]
        [record] = await system.log.append(
            thread("big"), [StatePatched(values=values, base=base)], expected=state.seq, actor="t"
        )
        state, heads[number % 3] = system.threads.fold("big", [record], state), record.seq
    copied = (await api.ask("POST", "/threads/big/copy"))["thread_id"]
    there = await system.threads.load(copied)
    assert there.values == state.values
    assert [(c.parent, c.patch, c.step) for c in there.commits] == [(c.parent, c.patch, c.step) for c in state.commits]


async def test_files_are_copied(api: Api, worker: Worker, files: Path) -> None:
    source = await api.thread()
    folder = files / source / "user-data" / "outputs"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    copied = (await api.ask("POST", f"/threads/{source}/copy"))["thread_id"]
    there = files / copied / "user-data" / "outputs"
    assert sorted(path.name for path in there.iterdir()) == ["a.txt", "link"]
    assert (there / "a.txt").read_text() == "a"
    assert (there / "link").is_symlink()


async def test_a_copy_that_fails_leaves_nothing(
    api: Api, worker: Worker, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.runs.copies.BATCH", 2)
    source = await api.thread()
    await turn(api, worker, source, "1")
    append, tried = EventLog.append, []

    async def breaks(self: EventLog, aggregate: Any, events: Any, **more: Any) -> Any:
        if aggregate.id != source and not isinstance(events[0], ThreadErased):
            tried.append(aggregate.id)
            if len(tried) == 2:
                raise Conflict(str(aggregate), 0)
        return await append(self, aggregate, events, **more)

    monkeypatch.setattr(EventLog, "append", breaks)
    await api.ask("POST", f"/threads/{source}/copy", status=409)
    assert (await system.threads.load(tried[0])).erased
    assert await api.ask("POST", "/threads/count") == 1


async def test_a_copy_whose_client_leaves_leaves_nothing(
    api: Api, worker: Worker, services: Services, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the request is cancelled again while the copy is being erased."""
    source, made = await api.thread(), uuid7()
    await turn(api, worker, source, "1")
    append, erasing, go_on = EventLog.append, asyncio.Event(), asyncio.Event()

    async def slow(self: EventLog, aggregate: Any, events: Any, **more: Any) -> Any:
        if isinstance(events[0], ThreadErased):
            erasing.set()
            await go_on.wait()
        appended = await append(self, aggregate, events, **more)
        if isinstance(events[0], ThreadCreated):
            copying.cancel()
            await asyncio.sleep(0)
        return appended

    monkeypatch.setattr(EventLog, "append", slow)
    copy = services.commands.copy("default", source, made)
    copying = asyncio.create_task(branches._making(Live(services), "default", made, copy))
    await erasing.wait()
    assert not (await system.threads.load(made)).erased
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    go_on.set()

    async def erased() -> bool:
        return (await system.threads.load(made)).erased

    await eventually(erased)


# ── branches ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_branch_off_the_latest_turn(api: Api, worker: Worker, files: Path) -> None:
    source = await api.thread()
    await turn(api, worker, source, "1")
    run = await turn(api, worker, source, "2")
    await api.ask("POST", f"/threads/{source}/state", {"values": {"title": "Old title"}})
    (files / source / "user-data").mkdir(parents=True)
    (files / source / "user-data" / "a").touch()
    state = await api.ask("GET", f"/threads/{source}/state")
    body = {"message_id": f"m-{run}", "message_ids": ["a2", "tool-c2", f"m-{run}"], "title": "New title"}
    made = await api.ask("POST", f"/threads/{source}/branches", body)
    branch = made.pop("thread_id")
    assert made == {
        "parent_thread_id": source,
        "parent_checkpoint_id": state["checkpoint_id"],
        "branched_from_message_id": f"m-{run}",
        "workspace_clone_mode": "current_thread_best_effort",
        "history_seed_mode": "seeded",
    }
    there = await api.ask("GET", f"/threads/{branch}")
    assert unnumbered(there["values"]) == {**unnumbered(state["values"]), "title": "New title"}
    assert there["metadata"]["branch_parent_thread_id"] == source
    assert (files / branch / "user-data" / "a").exists()
    await turn(api, worker, branch, "3")
    assert (await api.ask("GET", f"/threads/{source}/state")) == state


async def test_branch_off_an_older_turn(api: Api, worker: Worker, files: Path) -> None:
    source = await api.thread()
    run = await turn(api, worker, source, "1")
    then = await api.ask("GET", f"/threads/{source}/state")
    await turn(api, worker, source, "2")
    await api.ask("POST", f"/threads/{source}/state", {"values": {"title": "Title"}})
    (files / source / "user-data").mkdir(parents=True)
    for message in ("a1", f"m-{run}"):
        made = await api.ask("POST", f"/threads/{source}/branches", {"message_id": message})
        assert made["parent_checkpoint_id"] == then["checkpoint_id"]
        assert made["workspace_clone_mode"] == "skipped_historical_turn"
        state = await api.ask("GET", f"/threads/{made['thread_id']}/state")
        assert unnumbered(state["values"]) == {**unnumbered(then["values"]), "title": "Title"}
        assert not (files / made["thread_id"]).exists()
        prepared = await api.ask(
            "POST", f"/threads/{made['thread_id']}/runs/regenerate/prepare", {"message_id": f"m-{run}"}
        )
        assert prepared["input"]["messages"][0]["id"] == "h1"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"message_id": "nope"}, 404),
        ({"message_id": "h1"}, 422),
        ({"message_id": "tool-c1"}, 422),
        ({"message_id": "a1", "message_ids": ["h2"]}, 422),
        ({"message_id": "a1", "message_ids": ["nope"]}, 404),
        ({"message_id": "a1", "title": "x" * 257}, 422),
        ({}, 422),
        ({"message_id": 5}, 422),
    ],
)
async def test_branches_refused(api: Api, worker: Worker, body: Any, status: int) -> None:
    source = await api.thread()
    await turn(api, worker, source, "1")
    await turn(api, worker, source, "2")
    await api.ask("POST", f"/threads/{source}/branches", body, status=status)
    await api.ask("POST", "/threads/nope/branches", {"message_id": "a1"}, status=404)
    await api.run(source)
    await api.ask("POST", f"/threads/{source}/branches", {"message_id": "a1"}, status=409)
    assert await api.ask("POST", "/threads/count") == 1


# ── again ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def started_with(api: Api, worker: Worker, thread: str, prepared: Any) -> str:
    """A run started with what was prepared, as DeerFlow's UI does it."""
    body = {
        "input": prepared["input"],
        "checkpoint": prepared["checkpoint"],
        "metadata": prepared["metadata"],
        "assistant_id": "lead_agent",
        "stream_mode": ["values"],
    }
    async with api.stream("POST", f"/threads/{thread}/runs/stream", body) as stream:
        assert stream.response.status == 200
        event = await stream.next()
        assert event is not None
        run: str = event[1]["run_id"]
        await worker.perform(thread, run, "again")
        await stream.until("end")
    return run


@pytest.mark.parametrize("turns", [["1"], ["1", "2"]])
async def test_regenerate(api: Api, worker: Worker, turns: list[str]) -> None:
    """The first turn too, before which there is no checkpoint."""
    thread = await api.thread()
    runs = [await turn(api, worker, thread, name) for name in turns]
    last, message = turns[-1], f"m-{runs[-1]}"
    before = await ids(api, thread)
    prepared = await api.ask("POST", f"/threads/{thread}/runs/regenerate/prepare", {"message_id": message})
    assert [(m["id"], m["content"]) for m in prepared["input"]["messages"]] == [(f"h{last}", f"question {last}")]
    assert prepared["target_run_id"] == runs[-1]
    start = prepared["checkpoint"]["checkpoint_id"]
    assert prepared["checkpoint"] == {
        "thread_id": thread,
        "checkpoint_id": start,
        "checkpoint_ns": "",
        "checkpoint_map": None,
    }
    assert prepared["metadata"] == {
        "regenerate_from_message_id": message,
        "regenerate_from_run_id": runs[-1],
        "regenerate_checkpoint_id": start,
    }
    assert await ids(api, thread) == before
    again = await api.ask("POST", f"/threads/{thread}/runs/regenerate/prepare", {"message_id": f"a{last}"})
    assert again["checkpoint"] == prepared["checkpoint"]
    run = await started_with(api, worker, thread, prepared)
    assert await ids(api, thread) == [*before[: before.index(f"h{last}") + 1], f"m-{run}"]
    history = await api.ask("POST", f"/threads/{thread}/history", {"limit": 100})
    assert before in [[m["id"] for m in one["values"]["messages"]] for one in history]


@pytest.mark.parametrize("turns", [["1"], ["1", "2"]])
async def test_edit_and_regenerate(api: Api, worker: Worker, turns: list[str]) -> None:
    thread = await api.thread()
    runs = [await turn(api, worker, thread, name) for name in turns]
    last, before = turns[-1], await ids(api, thread)
    body = {"human_message_id": f"h{last}", "replacement_text": " other words "}
    prepared = await api.ask("POST", f"/threads/{thread}/runs/edit-regenerate/prepare", body)
    replacement = prepared["replacement_human_message_id"]
    assert replacement not in before
    assert prepared["source_message_ids"] == [f"h{last}", f"a{last}", f"tool-c{last}", f"m-{runs[-1]}"]
    assert prepared["target_run_id"] == runs[-1]
    said = prepared["input"]["messages"][-1]
    assert (said["type"], said["id"], said["content"]) == ("human", replacement, "other words")
    run = await started_with(api, worker, thread, prepared)
    assert await ids(api, thread) == [*before[: before.index(f"h{last}")], replacement, f"m-{run}"]


@pytest.mark.parametrize("turns", [["1"], ["1", "2"]])
async def test_edit_after_regenerating(api: Api, worker: Worker, turns: list[str]) -> None:
    """However often the question was brought: the edited one takes its place."""
    thread = await api.thread()
    runs = [await turn(api, worker, thread, name) for name in turns]
    last, before = turns[-1], await ids(api, thread)
    run = runs[-1]
    for _ in range(2):
        body = {"message_id": f"m-{run}"}
        prepared = await api.ask("POST", f"/threads/{thread}/runs/regenerate/prepare", body)
        run = await started_with(api, worker, thread, prepared)
    body = {"human_message_id": f"h{last}", "replacement_text": "other words"}
    prepared = await api.ask("POST", f"/threads/{thread}/runs/edit-regenerate/prepare", body)
    replacement = prepared["replacement_human_message_id"]
    run = await started_with(api, worker, thread, prepared)
    assert await ids(api, thread) == [*before[: before.index(f"h{last}")], replacement, f"m-{run}"]


async def test_an_edit_keeps_what_is_no_text(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    content = [{"type": "text", "text": "What is this?"}, image]
    files = {"files": [{"filename": "a.pdf"}]}
    asked = [
        {"type": "system", "id": "s", "content": "Be brief."},
        {"type": "human", "id": "h", "content": content, "additional_kwargs": files},
    ]
    await worker.perform(thread, await api.run(thread, input={"messages": [human("x", "x")]}))
    await worker.perform(thread, await api.run(thread, input={"messages": asked}))
    body = {"human_message_id": "h", "replacement_text": "And this?"}
    prepared = await api.ask("POST", f"/threads/{thread}/runs/edit-regenerate/prepare", body)
    system, said = prepared["input"]["messages"]
    assert (system["id"], said["additional_kwargs"]) == ("s", files)
    assert said["content"] == [{"type": "text", "text": "And this?"}, image]


REGENERATE: list[tuple[Any, int]] = [
    ({"message_id": "nope"}, 404),
    ({"message_id": "h2"}, 422),
    ({"message_id": "a1"}, 409),
    ({}, 422),
]
EDIT: list[tuple[Any, int]] = [
    ({"human_message_id": "nope", "replacement_text": "x"}, 404),
    ({"human_message_id": "a2", "replacement_text": "x"}, 422),
    ({"human_message_id": "h1", "replacement_text": "x"}, 409),
    ({"human_message_id": "h2", "replacement_text": " "}, 422),
    ({"human_message_id": "h2"}, 422),
]


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [*(("regenerate", *case) for case in REGENERATE), *(("edit-regenerate", *case) for case in EDIT)],
)
async def test_preparing_refused(api: Api, worker: Worker, route: str, body: Any, status: int) -> None:
    thread = await api.thread()
    await turn(api, worker, thread, "1")
    await turn(api, worker, thread, "2")
    await api.ask("POST", f"/threads/{thread}/runs/{route}/prepare", body, status=status)
    good = {"message_id": "a2", "human_message_id": "h2", "replacement_text": "x"}
    await api.ask("POST", f"/threads/nope/runs/{route}/prepare", good, status=404)
    await api.ask("POST", f"/threads/{thread}/runs/{route}/prepare", good)
    await api.run(thread)
    await api.ask("POST", f"/threads/{thread}/runs/{route}/prepare", good, status=409)


async def test_an_answer_that_nobody_asked_for(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"messages": [ai("a", "Hello!")]}})
    await api.ask("POST", f"/threads/{thread}/runs/regenerate/prepare", {"message_id": "a"}, status=409)
    made = await api.ask("POST", f"/threads/{thread}/branches", {"message_id": "a"})
    assert await ids(api, made["thread_id"]) == ["a"]
