"""What the agent asks of the person: shown, answered, followed; also with a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from channels.terminal.chat.chat import LEFT_OPEN, WAITING
from channels.terminal.chat.questions import Question, decision, question_lines, questions_of
from tests.channels.client.stage import Line
from tests.channels.terminal.talks import Place, Talk, Typed, talking

ALL = ["approve", "edit", "reject"]


def approval(allowed: Sequence[str] = ALL, deadline: str | None = None, error: str = "", **args: Any) -> Question:
    value: dict[str, Any] = {
        "type": "approval",
        "approval_id": "a",
        "deadline": deadline,
        "action_requests": [{"name": "bash", "args": args, "description": "Sure?"}],
        "review_configs": [{"action_name": "bash", "allowed_decisions": list(allowed)}],
    }
    return Question("a", {**value, "error": error} if error else value)


SHOWN: dict[str, tuple[Question, str]] = {
    "a call": (
        approval(command="rm x", n=1),
        "▸ bash waits for your approval\n    Sure?\n    command: rm x\n    n: 1\n",
    ),
    "without arguments": (approval(), "▸ bash waits for your approval\n    Sure?\n    (no arguments)\n"),
    "several lines": (
        approval(command="a\npath: b"),
        "▸ bash waits for your approval\n    Sure?\n    command:\n        a\n        path: b\n",
    ),
    "a long line": (
        approval(command="x" * 5000),
        f"▸ bash waits for your approval\n    Sure?\n    command: {'x' * 5000}\n",
    ),
    "what cannot be seen": (
        approval(command="ls\x1b[2J\r"),
        "▸ bash waits for your approval\n    Sure?\n    command:\n        ls\n"
        "        (control characters in it are not shown)\n",
    ),
    "a name that cannot be seen": (
        approval(**{"a\x1b[2J\nb": "x"}),
        "▸ bash waits for your approval\n    Sure?\n    a b: x\n",
    ),
    "until when": (
        approval(deadline="2099-01-01T10:00:00.000000+00:00", x=[1]),
        "▸ bash waits for your approval\n    Sure?\n    x: [1]\n"
        "    until 2099-01-01 10:00:00 UTC, then it counts as rejected\n",
    ),
    "a wrong answer before": (
        approval(error="edit is not allowed"),
        "▸ bash waits for your approval\n    Sure?\n    (no arguments)\n"
        "    the last answer does not count: edit is not allowed\n",
    ),
    "text": (Question("i", "Which\none?"), "▸ the agent asks\n    Which\n    one?\n"),
    "a value": (Question("i", {"question": "Which?"}), "▸ the agent asks\n    question: Which?\n"),
    "an approval of somebody else's": (
        Question("i", {"type": "approval"}),
        "▸ the agent asks\n    type: approval\n",
    ),
}


def in_words(question: Question) -> str:
    title, lines = question_lines(question)
    return "".join(f"{line}\n" for line in (title, *lines))


@pytest.mark.parametrize(("question", "text"), SHOWN.values(), ids=SHOWN)
def test_questions_in_words(question: Question, text: str) -> None:
    assert in_words(question) == text


def test_long_values_are_shown_in_full() -> None:
    lines = in_words(approval(items=["word"] * 40)).splitlines()
    assert sum(line.strip(" ,") == '"word"' for line in lines) == 40


@pytest.mark.parametrize("given", [None, {}, "x", [1, {"value": 1}]], ids=repr)
def test_no_questions(given: Any) -> None:
    assert questions_of(given) == []


DECIDED: dict[str, tuple[Sequence[str], list[str], dict[str, Any] | None]] = {
    "yes": (ALL, ["y"], {"decision": "approve"}),
    "in full": (ALL, [" Approve "], {"decision": "approve"}),
    "no": (ALL, ["n", ""], {"decision": "reject"}),
    "no, because": (ALL, ["no", "too late"], {"decision": "reject", "message": "too late"}),
    "edit": (ALL, ["e", '{"command": "ls"}'], {"decision": "edit", "args": {"command": "ls"}}),
    "edit, but how": (ALL, ["e", "ls", "e", "[1]", "e", "", "y"], {"decision": "approve"}),
    "something else": (ALL, ["", "maybe", "yes please", "y"], {"decision": "approve"}),
    "not allowed": (["reject"], ["y", "e", "n", ""], {"decision": "reject"}),
    "nothing": (ALL, [], None),
    "no without an end": (ALL, ["n"], None),
    "edit without an end": (ALL, ["e"], None),
}


@pytest.mark.parametrize(("allowed", "typed", "body"), DECIDED.values(), ids=DECIDED)
async def test_decisions(allowed: Sequence[str], typed: list[str], body: dict[str, Any] | None) -> None:
    lines = Typed(*typed)
    assert await decision(approval(allowed), lines.line, lambda _: None) == body
    assert await lines.line("") is None


async def test_only_what_is_allowed_is_offered() -> None:
    prompts: list[str] = []

    async def read(prompt: str) -> None:
        prompts.append(prompt)

    for allowed in (ALL, ["reject"]):
        await decision(approval(allowed), read, prompts.append)
    assert prompts == ["approve? [y]es, [n]o, [e]dit: ", "approve? [n]o: "]


# ── with a server ────────────────────────────────────────────────────────────────────────────────────────────────────


MANY = 10**9
"""Bytes: a connection that does not break."""


async def approvals(talk: Talk) -> dict[str, str]:
    """How they stand, by their commands."""
    return {one["args"]["command"]: one["status"] for one in await talk.ask("GET", "/approvals")}


async def reject_oldest(talk: Talk) -> str:
    """Somebody else rejects the oldest that waits; the run that goes on."""
    *_, oldest = [one for one in await talk.ask("GET", "/approvals") if one["status"] == "pending"]
    answer = await talk.client.decide(talk.thread, oldest["approval_id"], {"decision": "reject"})
    return str(answer["run_id"])


def told(talk: Talk) -> list[str]:
    """What tools and people say in the last request to the model."""
    messages = [one for one in talk.place.models.requests if one.model == talk.model][-1].body["messages"]
    return [str(message["content"]) for message in messages if message["role"] in ("tool", "user")]


async def test_a_clarification(place: Place) -> None:
    async with talking(place, "clarifying") as talk:
        assert await talk.chat.once("Paint it.") == WAITING
        question = "🔀 Which colour?\n\n  1. red\n  2. blue\n"
        assert talk.shown.partition("\n")[2].startswith(question)  # after the news that the thread is new
        assert "  10. blue\n" in talk.shown
        shown = await talk.converse("2", "11")
    assert shown.count(question) == 2
    assert "▸" not in shown
    assert "All done.\n" in shown
    assert [text for text in told(talk) if text in ("blue", "11")] == ["blue", "11"]


async def test_approvals_one_after_the_other(place: Place) -> None:
    async with talking(place, "three") as talk:
        edit = json.dumps({"description": "d", "command": "echo D4"})
        shown = await talk.converse("Go.", "y", "n", "not that one", "e", edit)
        assert await approvals(talk) == {"echo A1": "approved", "echo B2": "rejected", "echo C3": "edited"}
    assert shown.count("It writes.") == 3
    assert [before.count("It writes.") for before in talk.forgotten] == [0, 1, 2], "dropped before each is shown"
    assert shown.count("then it counts as rejected") == 3
    assert [shown.count(where) for where in ("(1 of 3)", "(1 of 2)")] == [1, 1]
    assert "    command: echo A1\n" in shown
    assert "All done.\n" in shown
    assert "stopped" not in shown
    results = [text for text in told(talk) if text.startswith(("A1", "Error:", "D4"))]
    assert [text[:2] for text in results] == ["A1", "Er", "D4"]
    assert "not that one" in results[1]


async def test_one_message_says_what_waits_and_a_talk_asks(place: Place) -> None:
    async with talking(place, "two") as talk:
        assert await talk.chat.once("Go.") == WAITING
        assert "command: echo A1\n" in talk.shown
        assert "bash waits for your approval (2 of 2)\n" in talk.shown
        assert f"the agent waits for you: sika chat --thread {talk.thread} asks" in talk.shown
        shown = await talk.converse("y", "n", "")
        assert await approvals(talk) == {"echo A1": "approved", "echo B2": "rejected"}
    assert "command: echo A1\n" in shown
    assert "All done.\n" in shown


async def test_a_question_can_be_left_open(place: Place) -> None:
    async with talking(place, "one") as talk:
        shown = await talk.converse("Go.", talk.pressed.press, "/asked", "/help", "/asked", "y", "/asked")
    assert shown.count("command: echo A1\n") == 3
    assert shown.count(LEFT_OPEN) == 1
    assert shown.index("/new") < shown.index("All done.") < shown.index("nothing is asked")


async def test_a_message_goes_on_without_it(place: Place) -> None:
    async with talking(place, "one") as talk:
        shown = await talk.converse("Go.", talk.pressed.press, "Never mind.")
        assert await approvals(talk) == {"echo A1": "abandoned"}
    assert "All done.\n" in shown


async def test_somebody_else_was_quicker(place: Place) -> None:
    """They decided one and left the other: that is asked for next."""
    async with talking(place, "two") as talk:
        assert await talk.chat.once("Go.") == WAITING

        async def reject(prompt: str) -> None:
            talk.before = None
            await talk.ask("GET", f"/runs/{await reject_oldest(talk)}/join")

        talk.before = reject
        shown = await talk.converse("y", "n", "")
        assert await approvals(talk) == {"echo A1": "rejected", "echo B2": "rejected"}
    assert "is decided already: rejected" in shown
    assert shown.count("command: echo B2") == 1
    assert "All done.\n" in shown


async def test_somebody_elses_answer_is_at_work(place: Place) -> None:
    async with talking(place, "gated") as talk:
        assert await talk.chat.once("Go.") == WAITING

        async def reject(prompt: str) -> None:
            talk.before = None
            await reject_oldest(talk)
            await place.reached("end")

        talk.before = reject
        talk.noticed = lambda text: place.release("end") if "somebody else's answer" in text else None
        assert "All done.\n" in await talk.converse("y")


async def test_a_thread_that_is_gone_asks_nothing_any_more(place: Place) -> None:
    async with talking(place, "one") as talk:

        async def erase(prompt: str) -> None:
            if prompt.startswith("approve?"):
                await talk.ask("DELETE", "")

        talk.before = erase
        shown = await talk.converse("Go.", "y", "/help", "/asked")
    assert shown.count("waits for your approval") == 1
    assert "not found" in shown
    assert shown.index("/new") < shown.index("nothing is asked")


async def test_a_decision_over_broken_connections(place: Place) -> None:
    """The answer to the decision and the stream of its run break off."""
    line = Line(place.url)
    async with line.open(), talking(place, "one", url=line.url) as talk:
        assert await talk.chat.once("Go.") == WAITING

        async def break_off(prompt: str) -> None:
            talk.before = None
            line.cuts = [10, MANY, 300]
            await line.cut()

        talk.before = break_off
        shown = await talk.converse("y")
        runs = await talk.ask("GET", "/runs")
    assert line.cuts == []
    assert shown.count("All done.\n") == 1
    assert len(runs) == 2


async def test_ctrl_c_stops_the_run_that_goes_on(place: Place) -> None:
    async with talking(place, "stopping") as talk, asyncio.TaskGroup() as tasks:

        async def press() -> None:
            await place.reached("never")
            talk.pressed.press()

        pressing = tasks.create_task(press())
        shown = await talk.converse("Go.", "y")
        await pressing
    assert "stopping the run" in shown
    assert "stopped\n" in shown


async def test_a_tools_own_question(place: Place) -> None:
    async with talking(place, "asking") as talk:
        shown = await talk.converse("Go.", "", "/tmp", "Because.")
    assert "▸ the agent asks (1 of 2)\n    question: Which one?\n" in shown
    assert "All done.\n" in shown
    assert [text for text in told(talk) if "They" in text] == ["They said: /tmp", "They said: Because."]
