"""A question whose id is known and that comes in other words is answered: whichever it is, in whatever form."""

from __future__ import annotations

import random
from typing import Any

import pytest

from core.events import ModelCompleted, RunCompleted
from core.runtime.system import System
from core.thread.values import next_nodes
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import ai

pytestmark = pytest.mark.anyio


def asks(identity: str, content: Any) -> dict[str, Any]:
    return {"role": "user", "id": identity, "content": content}


async def turn(api: Api, worker: Worker, system: System, thread: str, *messages: Any, **body: Any) -> list[str]:
    """A run on these messages, with its answer. Returns the ids of the conversation when it began."""
    run = await api.run(thread, input={"messages": list(messages)}, **body)
    await worker.start(thread, run)
    state = await system.threads.load(thread)
    begun = [str(message["id"]) for message in state.messages]
    assert next_nodes(state.messages) == ["model"], "nobody would be asked"
    await worker.write(thread, run, ModelCompleted(message=ai(f"a-{run[-6:]}", "an answer")), RunCompleted())
    return begun


@pytest.fixture
async def thread(api: Api, worker: Worker, system: System) -> str:
    """Three turns, the first with a message beside the question."""
    thread = await api.thread()
    await turn(api, worker, system, thread, asks("beside", "context"), asks("q1", "one?"))
    await turn(api, worker, system, thread, asks("q2", "two?"))
    await turn(api, worker, system, thread, asks("q3", "three?"))
    return thread


async def texts(api: Api, thread: str) -> list[str]:
    values = (await api.ask("GET", f"/threads/{thread}/state"))["values"]
    return [message["content"] for message in values["messages"] if message["type"] == "human"]


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        ([asks("q3", "3!")], ["context", "one?", "two?", "3!"]),
        ([asks("q2", "2!")], ["context", "one?", "2!"]),
        ([asks("q1", "1!")], ["context", "1!"]),
        ([asks("beside", "other")], ["other", "one?"]),
        ([asks("q1", "1!"), asks("q2", "2!")], ["context", "1!", "2!"]),
        ([asks("q2", "2!"), asks("q1", "1!")], ["context", "1!", "2!"]),
        ([asks("q1", "one?"), asks("q3", "3!")], ["context", "one?", "two?", "3!"]),
    ],
)
async def test_each_question(
    api: Api, worker: Worker, system: System, thread: str, sent: list[Any], left: list[str]
) -> None:
    before = (await api.ask("GET", f"/threads/{thread}/state"))["checkpoint_id"]
    await turn(api, worker, system, thread, *sent)
    assert await texts(api, thread) == left
    old = await api.ask("GET", f"/threads/{thread}/state/{before}")
    assert len(old["values"]["messages"]) == 7, "the old answers are another branch"


PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize("content", ["3!", [{"type": "text", "text": "3!"}], [PICTURE]])
async def test_words_in_any_form(api: Api, worker: Worker, system: System, thread: str, content: Any) -> None:
    await turn(api, worker, system, thread, asks("q3", content))
    assert (await texts(api, thread))[-1] == content


@pytest.mark.parametrize("content", ["three?", "three? ", [{"type": "text", "text": "three?"}]])
async def test_the_same_words_change_nothing(api: Api, system: System, thread: str, content: Any) -> None:
    run = await api.run(thread, input={"messages": [asks("q3", content)]})
    assert (await system.threads.load(thread)).runs[run].request.base is None


async def test_numbered_messages(api: Api, worker: Worker, system: System) -> None:
    """Clients that call every message `0`."""
    thread = await api.thread()
    for number in range(3):
        assert await turn(api, worker, system, thread, asks("0", f"words {number}")) == ["0"]
    assert await texts(api, thread) == ["words 2"]


async def test_from_a_checkpoint(api: Api, worker: Worker, system: System, thread: str) -> None:
    history = await api.ask("GET", f"/threads/{thread}/history")
    place = next(s for s in history if len(s["values"]["messages"]) == 5)["checkpoint_id"]
    await turn(api, worker, system, thread, asks("q2", "2!"), checkpoint_id=place)
    assert await texts(api, thread) == ["context", "one?", "2!"]


async def test_as_prepared(api: Api, worker: Worker, system: System, thread: str) -> None:
    """What `prepare` answers is a run that asks; also with the question's own id, and twice."""
    for words in ("3!", "3!!"):
        question = [m["id"] for m in (await api.ask("GET", f"/threads/{thread}/state"))["values"]["messages"]][-2]
        body = {"human_message_id": question, "replacement_text": words}
        prepared = await api.ask("POST", f"/threads/{thread}/runs/edit-regenerate/prepare", body)
        input = prepared["input"]
        await turn(api, worker, system, thread, *input["messages"], checkpoint=prepared["checkpoint"])
        assert (await texts(api, thread))[-1] == words
        message = next(m for m in input["messages"] if m["type"] == "human")
        await turn(api, worker, system, thread, {**message, "id": question, "content": f"{words} again"})
        assert (await texts(api, thread))[-1] == f"{words} again"


async def test_beside_a_run_that_works(api: Api, worker: Worker, system: System, thread: str) -> None:
    """The conversation goes on meanwhile: then it is a new message."""
    working = await api.run(thread, input={"messages": [asks("q4", "four?")]})
    await worker.start(thread, working)
    later = await api.run(thread, input={"messages": [asks("q1", "1!")]}, multitask_strategy="enqueue")
    await worker.finish(thread, working)
    await worker.start(thread, later)
    assert next_nodes((await system.threads.load(thread)).messages) == ["model"]
    assert await texts(api, thread) == ["context", "one?", "two?", "three?", "four?", "1!"]
    assert (await api.ask("GET", f"/threads/{thread}/state"))["values"]["messages"][-1]["id"] != "q1"


@pytest.mark.parametrize("seed", range(3))
async def test_any_inputs(api: Api, worker: Worker, system: System, seed: int) -> None:
    """Whatever questions come, in whatever words, none is left without an answer."""
    chance, thread = random.Random(seed), await api.thread()
    for number in range(8):
        identities = chance.sample(["a", "b", "c", f"new-{number}"], chance.randint(1, 3))
        await turn(api, worker, system, thread, *(asks(name, f"{name} {number}") for name in identities))
