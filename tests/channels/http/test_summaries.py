"""What clients see of a conversation that was summarised: in streams, states, histories, and on the bill."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from channels.http.protocols.langgraph.follow import ThreadFrames
from channels.http.protocols.langgraph.frames import Cursor
from channels.http.protocols.langgraph_events.tape import Tape
from channels.http.protocols.langgraph_events.wire import WireEvent
from core.events import ContextCompacted, Message, ModelCompleted, RunCompleted, ToolCompleted, ToolRequested
from core.thread.fold import fold
from core.thread.messages import last_answers, timed
from core.thread.state import COMPACTED, ThreadState
from core.thread.usage import RunUsage, Tokens, in_context, of_run
from core.thread.values import REMOVE_ALL
from core.views.rows import SUMMARIES
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import (
    ALL,
    RUN,
    Story,
    ai,
    answer,
    call,
    data,
    human,
    requested,
    started,
    tell,
)

pytestmark = pytest.mark.anyio


def used(read: int, wrote: int) -> dict[str, int]:
    return {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}


SUMMARY: Message = {
    "type": "human",
    "id": "summary-1",
    "name": "summary",
    "content": "They looked.",
    "additional_kwargs": {"hide_from_ui": True},
    "response_metadata": {"answered_by": "small"},
    "usage_metadata": used(50, 5),
}
FACT = ContextCompacted(summary=SUMMARY, kept=["m1", "tool-c1"], model="small")
SHOWN = ["h1", "m1", "tool-c1", "m2"]


def looked() -> list[Any]:
    """A run that is summarised while it is at work; the first event is its request."""
    return [
        started(),
        ModelCompleted(message=ai("m1", "", call("c1", "ls"), usage_metadata=used(100, 10))),
        ToolRequested(call_id="c1", name="ls", effect="pure"),
        ToolCompleted(call_id="c1", message=answer("c1", "ls", "a b")),
        FACT,
        ModelCompleted(message=ai("m2", "a and b", usage_metadata=used(30, 3))),
        RunCompleted(),
    ]


def story() -> Story:
    return Story(requested(human("h1", "Look."), stream_modes=["updates"]), *looked())


def ids(messages: list[Any]) -> list[str]:
    return [message["id"] for message in messages]


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_hears_of_it() -> None:
    frames = tell(story(), ["updates", "values", "checkpoints"])
    told = [(frame.event, data(frame)) for frame in frames]
    [place] = [n for n, (event, found) in enumerate(told) if event == "updates" and COMPACTED in found]
    assert COMPACTED == "SummarizationMiddleware.before_model"
    first, *rest = told[place][1][COMPACTED]["messages"]
    assert (first["type"], first["id"]) == ("remove", REMOVE_ALL)
    assert ids(rest) == ["summary-1", "m1", "tool-c1"]
    assert (rest[0]["name"], rest[0]["additional_kwargs"]) == ("summary", {"hide_from_ui": True})
    assert told[place + 1][0] == "values"
    assert ids(told[place + 1][1]["messages"]) == ["summary-1", "m1", "tool-c1"]
    assert told[place + 2][0] == "checkpoints"
    assert told[place + 2][1]["next"] == ["model"]
    final = [found for event, found in told if event == "values"][-1]
    assert ids(final["messages"]) == ["summary-1", "m1", "tool-c1", "m2"]


def test_a_stream_goes_on_after_any_frame() -> None:
    frames = tell(story(), ALL)
    assert len({frame.id for frame in frames if frame.id}) == len([frame for frame in frames if frame.id])
    for place, frame in enumerate(frames):
        if cursor := Cursor.parse(frame.id):
            assert tell(story(), ALL, after=cursor) == frames[place + 1 :]


def test_the_summary_is_no_message_of_the_stream() -> None:
    for mode in ("messages", "messages-tuple"):
        assert b"summary-1" not in b"".join(frame.data for frame in tell(story(), [mode]))


def taped(told: Story) -> list[WireEvent]:
    tape = Tape(ThreadState(), lambda channel, namespace: True)
    return [one for record in told.records for one in tape.fact(record)]


@pytest.mark.parametrize("run", [RUN, None])
def test_the_threads_events_tell_it(run: str | None) -> None:
    told = Story(requested(human("h1", "Look.")), *looked()[:4])
    if run is None:
        told.add(RunCompleted())
    told.add(FACT, run=run)
    seq = told.records[-1].seq
    found = [one for one in taped(told) if one.seq is not None and one.seq // 512 == seq]
    assert [one.channel for one in found] == ["updates", "checkpoints", "values"]
    assert all(one.seq < other.seq for one, other in pairwise(found) if one.seq and other.seq)
    update = msgspec.json.decode(found[0].data)
    assert update["node"] == COMPACTED
    assert ids(update["values"]["messages"]) == [REMOVE_ALL, "summary-1", "m1", "tool-c1"]
    assert ids(msgspec.json.decode(found[2].data)["messages"]) == ["summary-1", "m1", "tool-c1"]


@pytest.mark.parametrize(("run", "events"), [(RUN, ["updates"]), (None, ["state_update"])])
def test_whoever_follows_a_thread_hears_of_it(run: str | None, events: list[str]) -> None:
    told = Story(requested(human("h1", "Look."), stream_modes=["updates"]), *looked()[:4])
    if run is None:
        told.add(RunCompleted())
    frames = ThreadFrames(fold(told.records), told.records[0].aggregate.id, ["run_modes", "state_update"])
    told.add(FACT, run=run)
    assert [frame.event for frame in frames.fact(told.records[-1])] == events


# ── histories ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def summarised(api: Api, worker: Worker) -> tuple[str, str]:
    thread = await api.thread()
    run = await api.run(thread, input={"messages": [human("h1", "Look.")]})
    await worker.write(thread, run, *looked())
    return thread, run


async def test_histories_are_those_of_what_was_said(api: Api, worker: Worker) -> None:
    thread, run = await summarised(api, worker)
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert ids(state["values"]["messages"]) == ["summary-1", "m1", "tool-c1", "m2"]
    rows = await api.ask("GET", f"/threads/{thread}/messages")
    assert ids([row["content"] for row in rows]) == SHOWN
    page = await api.ask("GET", f"/threads/{thread}/runs/{run}/messages")
    assert (ids([row["content"] for row in page["data"]]), page["has_more"]) == (SHOWN, False)
    events = await api.ask("GET", f"/threads/{thread}/runs/{run}/events?event_types=context.compacted")
    assert [(row["category"], row["content"]["kept"]) for row in events] == [("trace", ["m1", "tool-c1"])]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
async def test_pages_are_full(api: Api, worker: Worker, limit: int) -> None:
    thread, _ = await summarised(api, worker)
    found: list[str] = []
    query = f"limit={limit}"
    while query:
        page = await api.ask("GET", f"/threads/{thread}/messages/page?{query}")
        assert page["has_more"] is (len(page["data"]) + len(found) < len(SHOWN))
        assert len(page["data"]) == min(limit, len(SHOWN) - len(found))
        found = [*ids([row["content"] for row in page["data"]]), *found]
        query = f"limit={limit}&before_seq={page['next_before_seq']}" if page["has_more"] else ""
    assert found == SHOWN


async def test_a_copy_has_the_same_history(api: Api, worker: Worker) -> None:
    thread, _ = await summarised(api, worker)
    copied = (await api.ask("POST", f"/threads/{thread}/copy"))["thread_id"]
    rows = await api.ask("GET", f"/threads/{copied}/messages")
    assert ids([row["content"] for row in rows]) == SHOWN
    here, there = [await worker.system.threads.load(one) for one in (thread, copied)]
    run_of = last_answers(here)
    assert there.messages == [timed(message, run_of(message["id"])) for message in here.messages]
    assert (await api.ask("GET", f"/threads/{copied}/token-usage"))["total_tokens"] == 0
    assert in_context(there) == in_context(here) == 33


async def test_an_answer_is_asked_for_again_as_it_was_asked_for(api: Api, worker: Worker) -> None:
    """Not from the summary on, although it has taken the question's place."""
    thread, run = await summarised(api, worker)
    prepared = await api.ask("POST", f"/threads/{thread}/runs/regenerate/prepare", {"message_id": "m2"})
    assert ids(prepared["input"]["messages"]) == ["h1"]
    assert prepared["target_run_id"] == run
    kept = ContextCompacted(summary={**SUMMARY, "id": "summary-2"}, kept=["h2", "m3"], model="small")
    second = await api.run(thread, input={"messages": [human("h2", "And now?")]})
    await worker.write(thread, second, started(), ModelCompleted(message=ai("m3", "Still.")), kept)
    await worker.finish(thread, second)
    before = await api.ask("POST", f"/threads/{thread}/runs/regenerate/prepare", {"message_id": f"m-{second}"})
    assert ids(before["input"]["messages"]) == ["h2"]
    start = before["checkpoint"]["checkpoint_id"]
    then = await api.ask("GET", f"/threads/{thread}/state/{start}")
    assert ids(then["values"]["messages"]) == ["summary-1", "m1", "tool-c1", "m2"]


async def test_a_question_that_was_summarised_is_edited(api: Api, worker: Worker) -> None:
    thread, run = await summarised(api, worker)
    path, words = f"/threads/{thread}/runs/edit-regenerate/prepare", {"replacement_text": "Listen."}
    prepared = await api.ask("POST", path, {"human_message_id": "h1", **words})
    assert [one["content"] for one in prepared["input"]["messages"] if one["type"] == "human"] == ["Listen."]
    assert (prepared["source_message_ids"], prepared["target_run_id"]) == (SHOWN, run)
    second = await api.run(thread, input={"messages": [human("h2", "And now?")]})
    await worker.perform(thread, second)
    await api.ask("POST", path, {"human_message_id": "h1", **words}, status=409)


async def test_a_branch_off_an_answer_that_was_summarised(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    for turn in ("1", "2", "3"):
        run = await api.run(thread, input={"messages": [human(f"h{turn}", turn)]})
        await worker.write(thread, run, started(), ModelCompleted(message=ai(f"a{turn}", f"answer {turn}")))
        if turn == "3":
            await worker.write(thread, run, ContextCompacted(summary=SUMMARY, kept=["h3", "a3"], model="small"))
        await worker.finish(thread, run)
    state = await worker.system.threads.load(thread)
    assert "a2" not in state.places
    made = await api.ask("POST", f"/threads/{thread}/branches", {"message_id": "a2", "message_ids": ["h2"]})
    assert made["workspace_clone_mode"] == "skipped_historical_turn"
    found = await api.ask("GET", f"/threads/{made['thread_id']}/state")
    assert [m["content"] for m in found["values"]["messages"]] == ["1", "answer 1", "Hello", "2", "answer 2", "Hello"]


async def test_what_was_summarised_is_still_found(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread, input={"messages": [human("h1", "Where are the otters?")]})
    await worker.write(thread, run, *looked())
    await worker.system.views.reached(await worker.system.log.last())
    [found], _ = await worker.system.views.search(user="default", query="otters")
    assert found.thread_id == thread


# ── the bill ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_pays_for_its_summaries() -> None:
    state = fold(story().records)
    assert of_run(state, state.runs[RUN]) == RunUsage(
        agent=Tokens(input=130, output=13, calls=2), summaries=Tokens(input=50, output=5, calls=1), messages=4
    )
    assert in_context(state) == 33


async def test_a_thread_pays_for_its_summaries(api: Api, worker: Worker) -> None:
    thread, run = await summarised(api, worker)
    found = await api.ask("GET", f"/threads/{thread}/token-usage")
    assert found["by_caller"] == {"lead_agent": 143, "subagent": 0, "middleware": 55}
    assert found["by_model"] == {"m": {"tokens": 143, "runs": 1}, "small": {"tokens": 55, "runs": 1}}
    assert found["total_tokens"] == 198
    await worker.system.views.reached(await worker.system.log.last())
    rows = await worker.system.views.query(
        "SELECT model, caller, input_tokens, output_tokens, calls FROM usage WHERE run_id = ? ORDER BY caller", (run,)
    )
    assert rows == [("m", "lead", 130, 13, 2), ("small", SUMMARIES, 50, 5, 1)]
