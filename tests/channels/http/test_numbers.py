"""A message has one number (`seq`), whoever shows it: pages, states, streams, a share, and all of these once more."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest

from core.events import (
    ContextCompacted,
    MessageAdded,
    ModelCompleted,
    RunCompleted,
    RunFailed,
    RunSteered,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ToolCompleted,
    ToolRequested,
)
from core.runtime.system import System
from core.thread import numbers
from core.thread.numbers import PLACES
from core.thread.state import ThreadState
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import ai, answer, call, human

pytestmark = pytest.mark.anyio
MODES = ["values", "messages-tuple", "updates", "checkpoints", "events"]
Numbers = dict[str, int]


class Conversation:
    """A thread to which a worker and a person add."""

    def __init__(self, api: Api, worker: Worker, thread: str) -> None:
        self.api, self.worker, self.thread = api, worker, thread
        self.runs: list[str] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"{self.thread}-{self.count}"

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        return await self.api.ask(method, f"/threads/{self.thread}{path}", body, **more)

    async def begin(self, **body: Any) -> str:
        body.setdefault("input", {"messages": [{"role": "user", "content": "q", "id": self.name()} for _ in "ab"]})
        run = await self.api.run(self.thread, **body, stream_mode=MODES)
        self.runs.append(run)
        await self.worker.start(self.thread, run)
        return run

    async def end(self, run: str) -> None:
        await self.worker.write(self.thread, run, ModelCompleted(message=ai(self.name(), "A")), RunCompleted())

    async def messages(self) -> list[Any]:
        shown: list[Any] = (await self.ask("GET", "/state"))["values"].get("messages", [])
        return shown

    # ── what may happen ─────────────────────────────────────────────────────────────────────────────────────────────

    async def turn(self) -> None:
        await self.end(await self.begin())

    async def tools(self) -> None:
        run = await self.begin()
        one, two = self.name(), self.name()
        await self.worker.write(
            self.thread,
            run,
            ModelCompleted(message=ai(self.name(), "I look.", call(one, "ls"), call(two, "ls"))),
            ToolRequested(call_id=one, name="ls", effect="pure"),
            ToolRequested(call_id=two, name="ls", effect="pure"),
            ToolCompleted(call_id=two, message=answer(two, "ls", "b")),
            ToolCompleted(call_id=one, message=answer(one, "ls", "a")),
        )
        await self.end(run)

    async def subagent(self) -> None:
        run, task = await self.begin(), self.name()
        await self.worker.write(
            self.thread,
            run,
            ModelCompleted(message=ai(self.name(), "", call(task, "task"))),
            ToolRequested(call_id=task, name="task", effect="pure"),
            SubagentStarted(call_id=task, subagent=f"s{task}", name="bash"),
            SubagentProgressed(call_id=task, index=1, message=ai(f"inner-{task}", "inside")),
            SubagentCompleted(call_id=task, status="completed", result="done"),
            ToolCompleted(call_id=task, message=answer(task, "task", "done")),
        )
        await self.end(run)

    async def steering(self) -> None:
        run, words = await self.begin(), [human(self.name(), word) for word in ("faster", "higher")]
        await self.worker.write(self.thread, run, *(RunSteered(message=word) for word in words))
        await self.worker.write(self.thread, run, MessageAdded(messages=words))
        await self.end(run)

    async def failure(self) -> None:
        run = await self.begin()
        await self.worker.write(
            self.thread, run, RunFailed(error="E", text="It broke.", message=ai(self.name(), "No."))
        )

    async def edit(self) -> None:
        """A message of the state is replaced by another of its id, and one is added."""
        if messages := await self.messages():
            edited = {**messages[len(messages) // 2], "content": f"edited {self.name()}"}
            added = {"type": "human", "id": self.name(), "content": "note"}
            await self.ask("POST", "/state", {"values": {"messages": [edited, added]}})

    async def again(self) -> None:
        """Another branch, from an earlier checkpoint."""
        states = await self.ask("GET", "/history?limit=100")
        if earlier := [state for state in states if state["values"].get("messages")]:
            base = earlier[len(earlier) // 2]["checkpoint_id"]
            await self.end(await self.begin(checkpoint_id=base))

    async def summary(self) -> None:
        messages = await self.messages()
        if len(messages) < 4:
            return
        run = await self.begin()
        kept = [str(message["id"]) for message in (await self.messages())[-3:]]
        summary = {"type": "human", "name": "summary", "id": f"summary-{self.name()}", "content": "Long ago …"}
        shorter = [{"type": "human", "id": kept[0], "content": "shorter"}]
        await self.worker.write(self.thread, run, ContextCompacted(summary=summary, kept=kept, messages=shorter))
        await self.end(run)

    async def copy(self) -> None:
        """All goes on in a copy of the thread."""
        self.thread, self.runs = str((await self.ask("POST", "/copy"))["thread_id"]), []

    # ── who shows it ────────────────────────────────────────────────────────────────────────────────────────────────

    async def page(self) -> Numbers:
        rows, before = dict[str, int](), ""
        while True:
            page = await self.ask("GET", f"/messages/page?limit=7{before}")
            rows |= {row["content"]["id"]: row["seq"] for row in page["data"]}
            if page["next_before_seq"] is None:
                return rows
            before = f"&before_seq={page['next_before_seq']}"

    async def shared(self) -> Numbers:
        token, rows = (await self.ask("POST", "/share", {}, status=201))["token"], dict[str, int]()
        after: int | None = 0
        while after is not None:
            page = await self.api.ask("GET", f"/shared/{token}?limit=7&after_seq={after}")
            rows |= {message["id"]: message["seq"] for message in page["messages"]}
            after = page["next_after_seq"]
        return rows

    async def state(self) -> Numbers:
        return numbers_in(await self.messages())

    async def object(self) -> Numbers:
        return numbers_in((await self.ask("GET", ""))["values"].get("messages", []))

    async def newest(self) -> Numbers:
        [state] = await self.ask("GET", "/history?limit=1")
        return numbers_in(state["values"].get("messages", []))


def numbers_in(messages: list[Any]) -> Numbers:
    """Returns the numbers in whole messages. Those that stand for summarised ones have none."""
    with_one = [message for message in messages if not str(message["id"]).startswith("summary-")]
    assert all("seq" not in m["additional_kwargs"] for m in messages if m not in with_one)
    return {message["id"]: message["additional_kwargs"]["seq"] for message in with_one}


def numbers_streamed(frames: list[tuple[str, Any, str]]) -> Mapping[str, set[Numbers | Any]]:
    """Returns what each mode says: pairs of ids and numbers."""
    shown: dict[str, set[Any]] = {"values": set(), "messages": set(), "updates": set(), "checkpoints": set()}
    for event, data, _ in frames:
        if event == "values":
            shown[event] |= numbers_in(data.get("messages", [])).items()
        if event == "checkpoints":
            shown[event] |= numbers_in(data["values"].get("messages", [])).items()
        if event == "messages" and "seq" in (extra := data[0]["additional_kwargs"]):
            shown[event].add((data[0]["id"], extra["seq"]))
        if event == "updates":
            for update in data.values():
                whole = [message for message in update.get("messages", ()) if message["type"] != "remove"]
                shown[event] |= numbers_in(whole).items()
    return shown


HAPPENINGS: dict[str, Callable[[Conversation], Awaitable[None]]] = {
    name: getattr(Conversation, name)
    for name in ("turn", "tools", "subagent", "steering", "failure", "edit", "again", "summary", "copy")
}


async def check(talk: Conversation) -> None:
    page, every = await talk.page(), set[tuple[str, int]]()
    for row in await talk.ask("GET", "/messages?limit=200"):
        every.add((row["content"]["id"], row["seq"]))
    assert len(set(page.values())) == len(page), "two messages have one number"
    state = await talk.state()
    assert state.items() <= page.items()
    assert state == await talk.object() == await talk.newest()
    assert await talk.shared() == page if page else True
    for at in await talk.ask("GET", "/history?limit=100"):
        assert numbers_in(at["values"].get("messages", [])).items() <= every
        again = await talk.ask("GET", f"/state/{at['checkpoint_id']}")
        assert numbers_in(again["values"].get("messages", [])) == numbers_in(at["values"].get("messages", []))
    for run in talk.runs:
        async with talk.api.stream(
            "GET", f"/threads/{talk.thread}/runs/{run}/stream", **{"Last-Event-ID": "-1"}
        ) as told:
            shown = numbers_streamed(await told.rest())
        rows = (await talk.ask("GET", f"/runs/{run}/messages?limit=200"))["data"]
        own = {(row["content"]["id"], row["seq"]) for row in rows if row["content"]["type"] != "human"}
        assert own <= shown["messages"] & shown["updates"]
        for mode, pairs in shown.items():
            assert pairs <= every, mode


@pytest.mark.parametrize("name", HAPPENINGS)
async def test_each(api: Api, worker: Worker, name: str) -> None:
    talk = Conversation(api, worker, await api.thread())
    await talk.turn()
    await talk.tools()
    await HAPPENINGS[name](talk)
    await talk.turn()
    await check(talk)


@pytest.mark.parametrize("seed", range(4))
async def test_any(api: Api, worker: Worker, seed: int) -> None:
    talk, chance = Conversation(api, worker, await api.thread()), random.Random(seed)
    for name in chance.choices([*HAPPENINGS], k=12):
        await HAPPENINGS[name](talk)
    await check(talk)


async def test_as_it_happens(api: Api, worker: Worker, system: System) -> None:
    """A stream that follows the run says the same as one that comes later."""
    talk = Conversation(api, worker, await api.thread())
    await talk.turn()
    body = {"input": {"messages": [{"role": "user", "content": "q", "id": "q"}]}, "stream_mode": MODES}
    async with api.stream("POST", f"/threads/{talk.thread}/runs/stream", body) as stream:
        run = await worker.requested(talk.thread, 2)
        await worker.start(talk.thread, run.id)
        await talk.end(run.id)
        live = numbers_streamed(await stream.until("end"))
    async with api.stream("GET", f"/threads/{talk.thread}/runs/{run.id}/stream", **{"Last-Event-ID": "-1"}) as stream:
        assert numbers_streamed(await stream.rest()) == live
    assert live["values"] == (await talk.page()).items()


async def test_only_the_server_numbers(api: Api, worker: Worker, system: System) -> None:
    """What a client sends back is neither believed nor kept."""
    talk = Conversation(api, worker, await api.thread())
    await talk.turn()
    first, *_ = await talk.messages()
    claims = [{**first, "content": "other words"}, human("new", "x") | {"additional_kwargs": {"seq": 7, "mine": 1}}]
    await talk.ask("POST", "/state", {"values": {"messages": claims}})
    assert all("seq" not in m.get("additional_kwargs", {}) for m in (await system.threads.load(talk.thread)).messages)
    new = (await talk.messages())[-1]
    assert new["additional_kwargs"] == {"mine": 1, "seq": (await talk.page())["new"]}


async def test_more_than_there_are_places(
    api: Api, worker: Worker, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest messages of a fact have numbers, those of the page."""
    monkeypatch.setattr(numbers, "PLACES", 5)
    monkeypatch.setattr("channels.http.deerflow.journal.PLACES", 5)
    monkeypatch.setattr("channels.http.deerflow.messages.PLACES", 5)
    talk = Conversation(api, worker, await api.thread())
    await talk.end(await talk.begin(input={"messages": [human(f"many-{n}", "q") for n in range(8)]}))
    shown = {m["id"]: m["additional_kwargs"]["seq"] for m in await talk.messages() if "seq" in m["additional_kwargs"]}
    assert shown == await talk.page()
    assert [*shown][:-1] == [f"many-{n}" for n in range(4, 8)]
    await talk.copy()
    shown = {m["id"]: m["additional_kwargs"]["seq"] for m in await talk.messages() if "seq" in m["additional_kwargs"]}
    assert shown == await talk.page()
    assert [*shown][:-1] == [f"many-{n}" for n in range(3, 8)]


async def test_a_number_is_found_near_the_head(api: Api, worker: Worker, system: System) -> None:
    """Who looks for the newest messages of a long thread reads its newest steps only."""
    talk = Conversation(api, worker, await api.thread())
    values = [{"messages": [human(f"h{number}", "x")]} for number in range(400)]
    await talk.ask("POST", "/state", {"values": values})
    state = await system.threads.load(talk.thread)
    reads: list[int] = []
    chain = ThreadState.chain

    def counted(state: ThreadState, index: int) -> Iterator[int]:
        for step in chain(state, index):
            reads.append(step)
            yield step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadState, "chain", counted)
        number = numbers.number_of(state, state.messages[-1])
    assert number == max((await talk.page()).values())
    assert number // PLACES == state.commits[state.head].seq
    assert len(reads) == 1
