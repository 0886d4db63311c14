"""Everything that waits for a person, over all threads: calls and questions, their own, and nothing that is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.events import Interrupt, ModelCompleted, RunCancelled, RunCompleted, RunPaused, ToolCompleted
from core.runtime.system import System
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.people import ADA, BOB, WithAccounts, place
from tests.channels.http.story import ai, answer, call, started
from tests.channels.http.test_gateway_approvals import PAST, A, asked, park, resolved

pytestmark = pytest.mark.anyio


async def waiting(api: Api, query: str = "") -> list[Any]:
    found: list[Any] = (await api.ask("GET", f"/approvals{query}"))["waiting"]
    return found


async def ask_person(api: Api, worker: Worker, **card: Any) -> tuple[str, str]:
    """A thread whose last run ended with a question."""
    thread = await api.thread()
    run = await api.run(thread)
    question = {
        **answer("c1", "ask_clarification", "❓ Which colour?"),
        "id": "clarification:c1",
        "artifact": {"human_input": {"question": "Which colour?", "source": "ask_clarification", **card}},
    }
    said = ModelCompleted(message=ai("m1", "", call("c1", "ask_clarification")))
    await worker.write(thread, run, started(), said, ToolCompleted(call_id="c1", message=question), RunCompleted())
    return thread, run


async def test_an_approval_waits_until_it_is_decided(api: Api, worker: Worker) -> None:
    assert await waiting(api) == []
    thread, run, path = await park(api, worker, asked())
    [entry] = await waiting(api)
    assert (entry["kind"], entry["id"], entry["thread_id"], entry["run_id"]) == ("approval", A, thread, run)
    assert entry["approval"] == (await api.ask("GET", path))[0]
    assert entry["question"] is None
    decided = (await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=202))["run_id"]
    assert await waiting(api) == [], "the run that goes on is at work"
    await worker.write(thread, decided, started(), resolved(), RunCompleted())
    assert await waiting(api) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"question": "How many?", "more": 1}, "How many?"),
        ("How many?", "How many?"),
        ({"n": 1}, '{"n":1}'),
        (None, "null"),
    ],
)
async def test_a_question_of_a_tool(api: Api, worker: Worker, value: Any, text: str) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    said = ModelCompleted(message=ai("m1", "", call("c1", "ask")))
    pause = RunPaused(next=["tools"], interrupts=[Interrupt(id="q1", value=value, call_id="c1")])
    await worker.write(thread, run, started(), said, pause)
    [entry] = await waiting(api)
    assert (entry["kind"], entry["id"], entry["run_id"], entry["approval"]) == ("question", "q1", run, None)
    assert entry["question"]["answer"] == "resume"
    assert (entry["question"]["text"], entry["question"]["value"]) == (text, value)
    await api.ask("POST", f"/threads/{thread}/runs", {"command": {"resume": {"q1": 3}}})
    assert await waiting(api) == []


async def test_a_question_that_ended_a_run(api: Api, worker: Worker) -> None:
    options = [{"id": "option-1", "label": "Red", "value": "Red"}]
    thread, run = await ask_person(api, worker, context="For the chart", options=options)
    [entry] = await waiting(api)
    assert (entry["kind"], entry["id"], entry["thread_id"], entry["run_id"]) == (
        "question",
        "clarification:c1",
        thread,
        run,
    )
    question = entry["question"]
    assert (question["text"], question["context"], question["answer"]) == ("Which colour?", "For the chart", "message")
    assert question["options"] == options
    again = await api.run(thread)
    assert await waiting(api) == []
    await worker.perform(thread, again)
    assert await waiting(api) == []


async def test_what_is_over_does_not_wait(api: Api, worker: Worker) -> None:
    stopped = await api.thread()
    run = await api.run(stopped)
    await worker.write(stopped, run, started(), RunCancelled())
    assert (await api.ask("GET", f"/threads/{stopped}"))["status"] == "interrupted", "and it waits for nobody"
    gone, _, _ = await park(api, worker, asked())
    await api.ask("DELETE", f"/threads/{gone}", status=204)
    passed, _, _ = await park(api, worker, asked())
    await worker.perform(passed, await api.run(passed))
    assert await waiting(api) == []
    late, _, _ = await park(api, worker, asked(deadline=PAST))
    assert {entry["thread_id"] for entry in await waiting(api)} <= {late}


async def test_a_list_of_threads_says_which_wait(api: Api, worker: Worker) -> None:
    """Of each of them, and how many there are of all; as the list of what waits has it."""
    states: dict[str, bool] = {await api.thread(): False}
    states[(await park(api, worker, asked()))[0]] = True
    states[(await ask_person(api, worker))[0]] = True
    answered, _ = await ask_person(api, worker)
    states[answered] = False
    await api.run(answered)
    resumed, _, path = await park(api, worker, asked())
    states[resumed] = False
    await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=202)
    stopped = await api.thread()
    states[stopped] = False
    await worker.write(stopped, await api.run(stopped), started(), RunCancelled())
    gone, _, _ = await park(api, worker, asked())
    await api.ask("DELETE", f"/threads/{gone}", status=204)
    body = {"select": ["thread_id", "waiting"], "limit": 3}
    rows: dict[str, bool] = {}
    for offset in (0, 3):
        async with api.session.post(f"{api.url}/api/threads/search", json={**body, "offset": offset}) as response:
            assert response.headers["X-Waiting-Total"] == "2"
            rows |= {row["thread_id"]: row["waiting"] for row in await response.json()}
    assert rows == states
    page = await api.ask("GET", "/approvals")
    assert (page["threads"], {entry["thread_id"] for entry in page["waiting"]}) == (
        2,
        {thread for thread, waits in states.items() if waits},
    )
    async with api.session.post(f"{api.url}/api/threads/search", json={"limit": 1}) as response:
        assert "X-Waiting-Total" not in response.headers
        assert "waiting" not in (await response.json())[0]


async def test_pages(api: Api, worker: Worker) -> None:
    threads = [(await ask_person(api, worker))[0] for _ in range(3)]
    first = await api.ask("GET", "/approvals?limit=2")
    assert (first["threads"], first["next_offset"]) == (3, 2)
    second = await api.ask("GET", "/approvals?limit=2&offset=2")
    assert (second["threads"], second["next_offset"]) == (3, None)
    shown = [entry["thread_id"] for page in (first, second) for entry in page["waiting"]]
    assert shown == threads[::-1], "those that changed last first"


async def test_what_waits_for_others(system: System, worker: Worker, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        thread = (await ada.ask("POST", "/api/threads", {})).body["thread_id"]
        body = {"input": {"messages": [{"role": "user", "content": "x"}]}}
        run = (await ada.ask("POST", f"/api/threads/{thread}/runs", body)).body["run_id"]
        said = ModelCompleted(message=ai("m", "", call("c1", "bash", x=1)))
        pause = RunPaused(next=["tools"], interrupts=[Interrupt(id="q", value="?", call_id="c1")])
        await worker.write(thread, run, started(), said, pause)
        assert len((await ada.ask("GET", "/api/approvals")).body["waiting"]) == 1
        assert (await bob.ask("GET", "/api/approvals")).body == {"waiting": [], "threads": 0, "next_offset": None}
        assert (await here.browser().ask("GET", "/api/approvals")).status == 401
