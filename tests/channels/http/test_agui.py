"""AG-UI on the wire: every frame is one of the published package's events, and they come in the protocol's order."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from ag_ui.core import (
    AssistantMessage,
    MessagesSnapshotEvent,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    UserMessage,
)
from ag_ui.core import (
    Event as AgUiEvent,
)
from pydantic import TypeAdapter

from channels.http.protocols.agui import Events
from core.events import (
    Event,
    Interrupt,
    ModelCompleted,
    ModelFailed,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRolledBack,
    StatePatched,
    ThreadErased,
    ToolCompleted,
    ToolRequested,
)
from core.runs.previews import Preview, Progress, RunPreview
from core.thread.messages import text_of
from core.thread.state import ThreadState
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import RUN, THREAD, Story, ai, answer, call, human, requested, started, tools_story
from tests.channels.http.test_subgraphs import delegating

EVENTS: TypeAdapter[AgUiEvent] = TypeAdapter(AgUiEvent)
ENDS = {
    "TEXT_MESSAGE_END": "TEXT_MESSAGE_START",
    "TOOL_CALL_END": "TOOL_CALL_START",
    "REASONING_MESSAGE_END": "REASONING_MESSAGE_START",
    "REASONING_END": "REASONING_START",
}


def events_of(story: Story, previews: Sequence[Preview | Progress] = (), at: int = -1) -> list[Any]:
    """What a client sees of a run; the previews come before the fact `at`."""
    translator = Events(ThreadState(), THREAD, RUN)
    frames = []
    for index, record in enumerate(story.records):
        if index == at % len(story.records):
            frames += [frame for one in previews for frame in translator.run_preview(RunPreview(RUN, one))]
        frames += translator.fact(record)
    assert translator.ended
    return checked([frame.data for frame in frames])


def checked(frames: Sequence[bytes]) -> list[Any]:
    """The events: valid, exactly as the package would write them, and in order."""
    events = [EVENTS.validate_json(data) for data in frames]
    known = [event.model_dump(mode="json", by_alias=True) for event in events]
    assert known == [msgspec.json.decode(data) for data in frames]
    assert known[0]["type"] == "RUN_STARTED"
    opened: set[tuple[str, str]] = set()
    for event in known:
        identity = event.get("toolCallId") or event.get("messageId") or ""
        kind = event["type"]
        if kind.endswith("_START"):
            assert (kind, identity) not in opened
            opened.add((kind, identity))
        elif kind in ENDS:
            opened.remove((ENDS[kind], identity))
        elif kind.endswith("_CONTENT") or kind == "TOOL_CALL_ARGS":
            assert identity in {one for _, one in opened}
    assert not opened
    assert [event["type"] in ("RUN_FINISHED", "RUN_ERROR") for event in known] == [False] * (len(known) - 1) + [True]
    return events


def types(events: Sequence[Any]) -> list[str]:
    return [event.type.value for event in events]


def texts(events: Sequence[Any]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextMessageContentEvent))


def test_a_run_with_tools() -> None:
    events = events_of(tools_story())
    assert types(events) == [
        "RUN_STARTED",
        "MESSAGES_SNAPSHOT",
        "STATE_SNAPSHOT",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_END",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
        "TOOL_CALL_RESULT",
        "STATE_SNAPSHOT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STATE_SNAPSHOT",
        "RUN_FINISHED",
    ]
    assert events[-1].outcome.type == "success"


def answering(*ends: Event) -> Story:
    return Story(requested(human("h", "Hi")), started(), *ends)


def pieces(text: str, after: int) -> list[Preview | Progress]:
    return [Preview(message="m", after=after, offset=place, text=one) for place, one in enumerate(text)]


@pytest.mark.parametrize("keep", [range(5), range(3), [0, 2, 4], [1, 2], []])
def test_text_is_exact_whatever_becomes_of_the_previews(keep: Sequence[int]) -> None:
    story = answering(ModelCompleted(message=ai("m", "Hello")), RunCompleted())
    shown = pieces("Hello", story.records[2].seq)
    events = events_of(story, [shown[place] for place in keep], at=3)
    assert texts(events) == "Hello"


def test_previews_may_be_ahead_of_the_facts() -> None:
    story = answering(ModelCompleted(message=ai("m", "Hello")), RunCompleted())
    assert texts(events_of(story, pieces("Hello", story.records[2].seq), at=2)) == "Hello"


@pytest.mark.parametrize("failed", [ModelFailed(error="E", text="busy", attempt=1, max_attempts=2), started(2)])
def test_void_text_is_taken_back(failed: Event) -> None:
    story = answering(failed, ModelCompleted(message=ai("n", "Good")), RunCompleted())
    events = events_of(story, pieces("Bad", story.records[2].seq), at=3)
    assert texts(events) == "BadGood"
    place = types(events).index("TEXT_MESSAGE_END")
    snapshot = events[place + 1]
    assert isinstance(snapshot, MessagesSnapshotEvent)
    assert [message.id for message in snapshot.messages] == ["h"]


def test_the_progress_of_a_tool() -> None:
    story = answering(
        ModelCompleted(message=ai("m", "", call("c", "bash"))),
        ToolRequested(call_id="c", name="bash", effect="once"),
        ToolCompleted(call_id="c", message=answer("c", "bash", "done"), update={"title": "T"}),
        RunCompleted(),
    )
    events = events_of(story, [Progress(call_id="c", name="bash", text="half")], at=5)
    assert [event.value["text"] for event in events if event.type.value == "CUSTOM"] == ["half"]
    snapshots = [event.snapshot for event in events if isinstance(event, StateSnapshotEvent)]
    assert snapshots == [{}, {"title": "T"}, {"title": "T"}]


def test_subagents() -> None:
    told = [event for event in events_of(delegating()) if event.type.value == "CUSTOM"]
    assert [event.name.removeprefix("task_") + event.value["task_id"] for event in told] == [
        *("startedc1", "startedc2", "runningc1", "runningc2", "failedc2", "runningc1", "completedc1"),
    ]


@pytest.mark.parametrize("end", [RunCancelled(), RunRolledBack()])
def test_a_run_that_was_stopped(end: Event) -> None:
    [*_, last] = events_of(answering(end))
    assert isinstance(last, RunFinishedEvent)
    assert last.outcome
    assert last.outcome.type == "cancelled"


@pytest.mark.parametrize("interrupts", [[], [Interrupt(id="i", value={"question": "May I?"}, call_id="c")]])
def test_a_run_that_asks(interrupts: list[Interrupt]) -> None:
    [*_, last] = events_of(answering(RunPaused(next=["tools"], interrupts=interrupts)))
    assert last.outcome.type == ("interrupt" if interrupts else "success")
    for asked in last.outcome.interrupts if interrupts else ():
        assert (asked.id, asked.message, asked.tool_call_id) == ("i", "May I?", "c")
        assert asked.metadata == {"value": {"question": "May I?"}}


def test_a_run_that_fails() -> None:
    [*_, last] = events_of(answering(RunFailed(error="Timeout", text="too slow", message=ai("f", "Sorry"))))
    assert isinstance(last, RunErrorEvent)
    assert (last.code, last.message) == ("Timeout", "too slow")


def test_a_thread_that_is_deleted() -> None:
    story = Story(requested(human("h", "Hi")), started())
    story.add(ThreadErased(by="u"), run=None)
    assert types(events_of(story))[-1] == "RUN_ERROR"


def test_what_others_write_is_shown() -> None:
    story = Story(requested(human("h", "Hi")), started())
    story.add(StatePatched(values={"title": "T"}), run=None)
    story.add(RunCompleted())
    assert types(events_of(story)).count("STATE_SNAPSHOT") == 3


# ── on the wire ──────────────────────────────────────────────────────────────────────────────────────────────────────


def asking(thread: str, *messages: Any, **more: Any) -> dict[str, Any]:
    given = RunAgentInput(thread_id=thread, run_id=str(uuid.uuid4()), messages=list(messages), state={}, **more)
    body: dict[str, Any] = given.model_dump(mode="json", by_alias=True)
    return body


def user(text: str) -> UserMessage:
    return UserMessage(id=uuid.uuid4().hex, content=text)


async def streamed(api: Api, body: Any) -> list[Any]:
    async with api.session.post(f"{api.url}/api/agui", json=body) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return frames_of(await response.read())


def frames_of(stream: bytes) -> list[Any]:
    return checked([line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: ")])


async def performed(api: Api, worker: Worker, body: dict[str, Any], count: int = 1) -> list[Any]:
    """What the client sees of a run, the thread's `count`-th, that answers with a word."""
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(streamed(api, body))
        await worker.requested(body["threadId"], count)
        await worker.perform(body["threadId"], body["runId"])
    return watching.result()


async def test_two_turns_of_a_new_thread(api: Api, worker: Worker) -> None:
    thread, first, second = str(uuid.uuid4()), user("Hi"), user("And now?")
    body = asking(thread, first)
    events = await performed(api, worker, body)
    assert texts(events) == "Hello"
    assert (events[0].thread_id, events[0].run_id, events[0].protocol_version) == (thread, body["runId"], "1.0")
    spoken = [message for event in events if isinstance(event, MessagesSnapshotEvent) for message in event.messages]
    events = await performed(api, worker, asking(thread, *spoken, second), 2)
    [snapshot] = [event for event in events if isinstance(event, MessagesSnapshotEvent)]
    assert [message.id for message in snapshot.messages][::2] == [first.id, second.id]
    assert len((await worker.system.threads.load(thread)).messages) == 4


async def test_a_question_and_its_answer(api: Api, worker: Worker) -> None:
    thread, body = str(uuid.uuid4()), asking(str(uuid.uuid4()), user("Hi"))
    body["threadId"] = thread
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(streamed(api, body))
        await worker.requested(thread)
        await worker.start(thread, body["runId"])
        asked = Interrupt(id="i", value="May I?")
        await worker.write(thread, body["runId"], RunPaused(next=["tools"], interrupts=[asked]))
    assert first.result()[-1].outcome.interrupts[0].id == "i"
    body = asking(thread, resume=[ResumeEntry(interrupt_id="i", status="resolved", payload=True)])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(streamed(api, body))
        run = await worker.requested(thread, 2)
        await worker.perform(thread, run.id)
    assert run.request.resume is not None
    assert run.request.resume.value == {"i": True}


async def test_the_run_ends_with_its_client(api: Api, worker: Worker) -> None:
    body = asking(str(uuid.uuid4()), user("Hi"))
    async with api.session.post(f"{api.url}/api/agui", json=body) as response:
        await response.content.readline()
        await worker.requested(body["threadId"])
    assert await worker.cancelled(body["threadId"]) == "interrupt"


IMAGE = "https://example.org/a.png"


@pytest.mark.parametrize(
    ("image", "address"),
    [
        ({"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}, None),
        ({"type": "image", "source": {"type": "url", "value": IMAGE}}, IMAGE),
        ({"type": "binary", "mimeType": "image/png", "data": "aGk="}, None),
        ({"type": "binary", "mimeType": "image/png", "data": "aGk=", "filename": "a.png", "id": "1"}, None),
        ({"type": "binary", "mimeType": "image/jpeg", "url": IMAGE}, IMAGE),
    ],
)
async def test_images_are_taken_in(api: Api, worker: Worker, image: Any, address: str | None) -> None:
    body = asking(str(uuid.uuid4()), user("Hi"))
    body["messages"][0]["content"] = [{"type": "text", "text": "Look"}, image]
    events = await performed(api, worker, body)
    [snapshot] = [event for event in events if isinstance(event, MessagesSnapshotEvent)]
    [message] = snapshot.model_dump(mode="json", by_alias=True)["messages"]
    shown = {"type": "image", "source": {"type": "url", "value": address or "data:image/png;base64,aGk="}}
    assert message["content"] == [{"type": "text", "text": "Look"}, shown]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"threadId": "../x"}, 422),
        ({"runId": ""}, 422),
        ({"messages": None}, 422),
        ({"messages": [{"id": "a", "role": "user", "content": 3}]}, 400),
        ({"messages": [{"id": "a", "role": "user", "content": [{"type": "audio"}]}]}, 400),
        ({"tools": [{"name": "no name", "description": "", "parameters": {}}]}, 422),
        ({"forwardedProps": {"onDisconnect": "stay"}}, 422),
        ({"forwardedProps": {"model_name": "none such"}}, 400),
        ({"forwardedProps": {"mode": "none such"}}, 422),
        ({"forwardedProps": {"available_skills": ["none-such"]}}, 422),
        ({"resume": [{"interruptId": "i", "status": "resolved"}]}, 409),
    ],
)
async def test_refused(api: Api, change: dict[str, Any], status: int) -> None:
    body = {**asking(str(uuid.uuid4()), user("Hi")), **change}
    await api.ask("POST", "/agui", body, status=status)


async def test_a_state_of_the_thread_is_shown(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "T"}})
    events = await performed(api, worker, asking(thread, user("Hi")))
    assert [event.snapshot for event in events if isinstance(event, StateSnapshotEvent)] == [{"title": "T"}] * 2


# ── what the client's messages mean ─────────────────────────────────────────────────────────────────────────────────


async def conversation(api: Api, worker: Worker) -> tuple[str, list[UserMessage], list[Any]]:
    """A thread of two turns, its questions, and all messages as the client has them."""
    thread, questions = str(uuid.uuid4()), [user("one"), user("two")]
    await performed(api, worker, asking(thread, questions[0]))
    events = await performed(api, worker, asking(thread, *questions), 2)
    [snapshot] = [event for event in events if isinstance(event, MessagesSnapshotEvent)]
    return thread, questions, [*snapshot.messages, await _answer(worker, thread)]


async def _answer(worker: Worker, thread: str) -> Any:
    return AssistantMessage(id=(await worker.system.threads.load(thread)).messages[-1]["id"], content="Hello")


async def said(worker: Worker, thread: str) -> list[str]:
    return [text_of(message["content"]) for message in (await worker.system.threads.load(thread)).messages]


async def test_another_message_in_the_place_of_a_question_is_an_edit(api: Api, worker: Worker) -> None:
    thread, _, shown = await conversation(api, worker)
    await performed(api, worker, asking(thread, *shown[:2], user("two, edited")), 3)
    assert await said(worker, thread) == ["one", "Hello", "two, edited", "Hello"]
    await performed(api, worker, asking(thread, user("first, edited")), 4)
    assert (await said(worker, thread))[-2:] == ["first, edited", "Hello"], "without what came before, it goes on"


async def test_a_history_that_ends_with_its_question_is_answered_again(api: Api, worker: Worker) -> None:
    thread, _, shown = await conversation(api, worker)
    await performed(api, worker, asking(thread, *shown[:3]), 3)
    assert await said(worker, thread) == ["one", "Hello", "two", "Hello"]
    assert (await worker.system.threads.load(thread)).messages[-1]["id"] != shown[3].id


async def test_nothing_is_changed_under_a_run_at_work(api: Api, worker: Worker) -> None:
    thread, _, shown = await conversation(api, worker)
    await api.run(thread)
    await api.ask("POST", "/agui", asking(thread, *shown[:2], user("two, edited")), status=409)


async def test_who_comes_back_sees_the_run_at_work(api: Api, worker: Worker) -> None:
    """It does not end with its client if that says so, and a request without a new message joins it."""
    thread, question = str(uuid.uuid4()), user("Hi")
    body = {**asking(thread, question), "forwardedProps": {"onDisconnect": "continue", "mode": "flash"}}
    async with api.session.post(f"{api.url}/api/agui", json=body) as response:
        await response.content.readline()
        run = await worker.requested(thread)
    assert (run.request.on_disconnect, run.request.context["mode"]) == ("continue", "flash")
    await worker.start(thread, run.id)
    async with api.session.post(f"{api.url}/api/agui", json=asking(thread, question)) as response:
        first = await response.content.readline()
        await worker.finish(thread, run.id)
        joined = frames_of(first + await response.read())
    for events in (joined, await streamed(api, body)):
        assert (events[0].run_id, texts(events)) == (run.id, "Hello")
        assert isinstance(events[-1], RunFinishedEvent)
    assert len((await worker.system.threads.load(thread)).runs) == 1
