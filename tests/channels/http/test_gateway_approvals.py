"""Approvals over HTTP: listed, shown, decided; the tests write what a worker would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.config.settings import Limits
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Json,
    ModelCompleted,
    Resume,
    RunCancelled,
    RunCompleted,
    RunPaused,
    ToolCompleted,
)
from core.thread import approvals
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.people import ADA, BOB, WithAccounts, place
from tests.channels.http.story import ai, answer, call, started

pytestmark = pytest.mark.anyio

PAST, FUTURE = "2020-01-01T00:00:00.000000+00:00", "2099-01-01T00:00:00.000000+00:00"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
A = "a" * 32
B = "b" * 32


def asked(identity: str = A, call_id: str = "c1", **more: Any) -> ApprovalRequested:
    more = {"allowed": ["approve", "edit", "reject"], "text": "Sure?", **more}
    return ApprovalRequested(approval=identity, call_id=call_id, tool="bash", args={"x": 1}, digest="d", **more)


def paused(*questions: ApprovalRequested) -> RunPaused:
    return RunPaused(next=["tools"], interrupts=[approvals.question(one) for one in questions])


async def park(api: Api, worker: Worker, *questions: ApprovalRequested, **body: Any) -> tuple[str, str, str]:
    """A thread that waits for these: its id, its run's, and the path of its approvals."""
    thread = await api.thread()
    run = await api.run(thread, **body)
    calls = [call(one.call_id, "bash", x=1) for one in questions]
    said = ModelCompleted(message=ai(f"m-{run}", "", *calls))
    await worker.write(thread, run, started(), said, *questions, paused(*questions))
    return thread, run, f"/threads/{thread}/approvals"


def resolved(decision: Any = "approve", **more: Any) -> ApprovalResolved:
    return ApprovalResolved(approval=A, call_id="c1", decision=decision, by="default", **more)


async def test_an_approval(api: Api, worker: Worker) -> None:
    thread, run, path = await park(api, worker, asked(deadline=FUTURE))
    [listed] = await api.ask("GET", path)
    assert listed == await api.ask("GET", f"{path}/{A}")
    assert listed.pop("requested_at").endswith("+00:00")
    assert listed == {
        "approval_id": A,
        "thread_id": thread,
        "run_id": run,
        "tool_call_id": "c1",
        "tool": "bash",
        "args": {"x": 1},
        "text": "Sure?",
        "allowed_decisions": ["approve", "edit", "reject"],
        "form": None,
        "deadline": FUTURE,
        "status": "pending",
        "decided_by": None,
        "decided_at": None,
        "edited_args": None,
        "message": "",
    }


async def test_the_list(api: Api, worker: Worker) -> None:
    thread, _, path = await park(api, worker, asked(), asked(B, "c2"))
    assert [one["approval_id"] for one in await api.ask("GET", path)] == [B, A]
    run = (await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=202))["run_id"]
    await worker.write(thread, run, started(), resolved(), paused(asked(B, "c2")))
    for status, expected in (("pending", [B]), ("resolved", [A])):
        assert [one["approval_id"] for one in await api.ask("GET", f"{path}?status={status}")] == expected
    assert "status" in (await api.ask("GET", f"{path}?status=open", status=422))["detail"]
    assert await api.ask("GET", f"/threads/{await api.thread()}/approvals") == []


DECISIONS: dict[str, tuple[dict[str, Any], dict[str, Any], ApprovalResolved, str]] = {
    # what is sent, what the run is told, what comes of it
    "approve": ({"decision": "approve"}, {"decision": "approve"}, resolved(), "approved"),
    "edit": (
        {"decision": "edit", "args": {"x": 2}},
        {"decision": "edit", "args": {"x": 2}},
        resolved("edit", args={"x": 2}),
        "edited",
    ),
    "reject": (
        {"decision": "reject", "message": "no", "future": 1},
        {"decision": "reject", "message": "no"},
        resolved("reject", message="no"),
        "rejected",
    ),
}


@pytest.mark.parametrize(("body", "answer", "fact", "status"), DECISIONS.values(), ids=DECISIONS)
async def test_a_decision(
    api: Api, worker: Worker, body: Any, answer: Any, fact: ApprovalResolved, status: str
) -> None:
    more = {"metadata": {"k": 1}, "config": {"recursion_limit": 9}, "context": {"model_name": "demo"}}
    thread, run, path = await park(api, worker, asked(), stream_mode=["updates"], **more)
    decided = await api.ask("POST", f"{path}/{A}", body, status=202)
    assert decided["approval"]["status"] == "pending"
    state = await worker.system.threads.load(thread)
    wanted, before = state.runs[decided["run_id"]].request, state.runs[run].request
    assert wanted.resume == Resume(value={A: answer})
    same = ("assistant", "config", "context", "metadata", "webhook", "stream_modes")
    assert [getattr(wanted, name) for name in same] == [getattr(before, name) for name in same]

    await worker.write(thread, decided["run_id"], started(), fact, RunCompleted())
    found = await api.ask("GET", f"{path}/{A}")
    assert (found["status"], found["decided_by"]) == (status, "default")
    assert (found["edited_args"], found["message"]) == (fact.args, fact.message)
    assert found["decided_at"] >= found["requested_at"]


async def test_the_conversation_shows_with_what_a_changed_call_was_made(api: Api, worker: Worker) -> None:
    thread, _, path = await park(api, worker, asked(), asked(B, "c2"))
    run = (await api.ask("POST", f"{path}/{A}", {"decision": "edit", "args": {"x": 2}}, status=202))["run_id"]
    outcomes = [ToolCompleted(call_id=name, message=answer(name, "bash", "done")) for name in ("c1", "c2")]
    await worker.write(thread, run, started(), resolved("edit", args={"x": 2}), *outcomes, RunCompleted())
    rows = (await api.ask("GET", f"/threads/{thread}/messages/page"))["data"]
    assert [row["metadata"].get("edited_args") for row in rows if row["content"]["type"] == "tool"] == [{"x": 2}, None]


@pytest.mark.parametrize("header", [{}, {"traceparent": TRACEPARENT.replace("b7ad", "c8ad")}], ids=["none", "own"])
async def test_a_decision_is_part_of_a_trace(api: Api, worker: Worker, header: dict[str, str]) -> None:
    """Of the one that decided, else of the run that goes on."""
    thread = await api.thread()
    run = str((await api.ask("POST", f"/threads/{thread}/runs", {}, headers={"traceparent": TRACEPARENT}))["run_id"])
    said = ModelCompleted(message=ai("m", "", call("c1", "bash", x=1)))
    await worker.write(thread, run, started(), said, asked(), paused(asked()))
    path = f"/threads/{thread}/approvals/{A}"
    decided = await api.ask("POST", path, {"decision": "approve"}, status=202, headers=header)
    state = await worker.system.threads.load(thread)
    assert state.runs[decided["run_id"]].request.traceparent == header.get("traceparent", TRACEPARENT)


async def test_the_same_decision_again_is_fine(api: Api, worker: Worker) -> None:
    thread, _, path = await park(api, worker, asked())
    first = await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=202)
    assert await api.ask("POST", f"{path}/{A}", {"decision": "approve"}) == first
    other = await api.ask("POST", f"{path}/{A}", {"decision": "reject"}, status=409)
    assert "active run" in other["detail"]
    await worker.write(thread, first["run_id"], started(), resolved(), RunCompleted())
    again = await api.ask("POST", f"{path}/{A}", {"decision": "approve"})
    assert (again["run_id"], again["approval"]["status"]) == (first["run_id"], "approved")
    other = await api.ask("POST", f"{path}/{A}", {"decision": "approve", "message": "once more"}, status=409)
    assert other["detail"] == f"Approval {A} is decided already: approved"
    assert len((await worker.system.threads.load(thread)).runs) == 2


async def test_a_decision_that_came_to_nothing_can_be_taken_again(api: Api, worker: Worker) -> None:
    thread, _, path = await park(api, worker, asked())
    first = await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=202)
    await worker.write(thread, first["run_id"], RunCancelled())  # before it was begun
    second = await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=202)
    assert second["run_id"] != first["run_id"]


async def test_while_another_call_is_made(api: Api, worker: Worker) -> None:
    """Two wait; the run that goes on with the first is at work, then asks for the second again."""
    thread, _, path = await park(api, worker, asked(), asked(B, "c2"))
    run = (await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=202))["run_id"]
    await worker.write(thread, run, started(), resolved())
    assert (await api.ask("GET", f"{path}/{B}"))["status"] == "pending"
    await api.ask("POST", f"{path}/{B}", {"decision": "reject"}, status=409)
    await worker.write(thread, run, paused(asked(B, "c2")))
    await api.ask("POST", f"{path}/{B}", {"decision": "reject"}, status=202)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "not allowed": ({"allowed": ["reject"]}, "approve is not allowed, but reject"),
    "too late": ({"deadline": PAST}, "deadline"),
}


@pytest.mark.parametrize(("more", "problem"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_decided(api: Api, worker: Worker, more: dict[str, Any], problem: str) -> None:
    thread, _, path = await park(api, worker, asked(**more))
    error = await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=409)
    assert problem in error["detail"]
    assert len((await worker.system.threads.load(thread)).runs) == 1


async def test_what_was_left_behind_cannot_be_decided(api: Api, worker: Worker) -> None:
    thread, _, path = await park(api, worker, asked())
    await worker.perform(thread, await api.run(thread))
    assert (await api.ask("GET", f"{path}/{A}"))["status"] == "abandoned"
    assert [one["approval_id"] for one in await api.ask("GET", f"{path}?status=resolved")] == [A]
    error = await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, status=409)
    assert error["detail"] == f"Thread {thread} does not wait for approval {A} any more"


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "decision"),
    "another word": ({"decision": "expire"}, "decision"),
    "an edit without arguments": ({"decision": "edit"}, "args"),
    "arguments without an edit": ({"decision": "approve", "args": {}}, "args"),
    "arguments that are none": ({"decision": "edit", "args": [1]}, "args"),
    "a message that is no text": ({"decision": "reject", "message": 1}, "message"),
    "a message that is too long": ({"decision": "reject", "message": "x" * 10_001}, "message"),
}


@pytest.mark.parametrize(("body", "field"), WRONG.values(), ids=WRONG)
async def test_wrong_bodies(api: Api, worker: Worker, body: Any, field: str) -> None:
    _, _, path = await park(api, worker, asked())
    assert field in (await api.ask("POST", f"{path}/{A}", body, status=422))["detail"]


async def test_what_is_not_there(api: Api, worker: Worker) -> None:
    _, _, path = await park(api, worker, asked())
    for where in (f"{path}/{B}", f"/threads/unknown/approvals/{A}"):
        await api.ask("GET", where, status=404)
        await api.ask("POST", where, {"decision": "approve"}, status=404)
    await api.ask("GET", "/threads/unknown/approvals", status=404)


async def test_other_peoples_do_not_exist_and_limits_count(worker: Worker, tmp_path: Path) -> None:
    config = WithAccounts(limits=Limits(max_concurrent_runs=1))
    async with place(worker.system, config, tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        waiting, other = [(await ada.ask("POST", "/api/threads", {})).body["thread_id"] for _ in range(2)]
        start: Json = {"input": {"messages": []}}
        run = (await ada.ask("POST", f"/api/threads/{waiting}/runs", start)).body["run_id"]
        said = ModelCompleted(message=ai("m", "", call("c1", "bash", x=1)))
        await worker.write(waiting, run, started(), said, asked(), paused(asked()))
        path, decision = f"/api/threads/{waiting}/approvals", {"decision": "approve"}
        for method, where, body in (
            ("GET", path, None),
            ("GET", f"{path}/{A}", None),
            ("POST", f"{path}/{A}", decision),
        ):
            assert (await bob.ask(method, where, body)).status == 404

        assert (await ada.ask("POST", f"/api/threads/{other}/runs", start)).status == 200
        assert (await ada.ask("POST", f"{path}/{A}", decision)).status == 429
        await worker.perform(other, (await worker.requested(other)).id)
        assert (await ada.ask("POST", f"{path}/{A}", decision)).status == 202
        request = (await worker.requested(waiting, 2)).request
        assert request.context["user_id"] == (await ada.me()).body["id"]
