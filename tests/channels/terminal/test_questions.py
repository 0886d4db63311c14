"""What the agent asks of the person: shown, answered, followed; also with a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest

from channels.terminal.chat import LEFT_OPEN, OK, STOPPED, Chat
from channels.terminal.client import Client
from channels.terminal.keyboard import Interrupts
from channels.terminal.questions import Question, decision, question_text, questions_of
from channels.terminal.text import Style
from core.ids import uuid7
from tests.channels.client.stage import Line, Stage, serving, written
from tests.channels.terminal.test_chat import Typed
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import DEADLINE

pytestmark = pytest.mark.anyio

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


@pytest.mark.parametrize(("question", "text"), SHOWN.values(), ids=SHOWN)
def test_questions_in_words(question: Question, text: str) -> None:
    assert question_text(question, "", Style()) == text


def test_long_values_are_shown_in_full() -> None:
    lines = question_text(approval(items=["word"] * 40), "", Style()).splitlines()
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


def bash(*commands: str) -> Turn:
    return Turn(tool_calls=tuple(ToolCall("bash", {"description": "d", "command": one}) for one in commands))


COLOUR = {"question": "Which colour?", "clarification_type": "approach_choice", "options": ["red", "blue"] * 5}
CLARIFIES = Turn(tool_calls=(ToolCall("ask_clarification", COLOUR),))
ASKS = Turn(tool_calls=(ToolCall("ask", {"question": "Which one?"}), ToolCall("ask", {"question": "Why?"})))
DONE = Turn(text="All done.")
SCRIPTS: Mapping[str, Sequence[Turn]] = {
    "clarifying": [CLARIFIES, CLARIFIES, DONE],
    "one": [bash("echo A1"), DONE],
    "two": [bash("echo A1", "echo B2"), DONE],
    "three": [bash("echo A1", "echo B2", "echo C3"), DONE],
    "gated": [bash("echo A1"), Turn(text="All done.", gate="end")],
    "stopping": [bash("echo A1"), Turn(text="All done.", gate="never")],
    "asking": [ASKS, DONE],
}
MANY = 10**9
"""Bytes: a connection that does not break."""
RULE = {"tool": "bash", "text": "It writes.", "deadline_seconds": 3600}


class Place(NamedTuple):
    """A server of these tests, and its models."""

    stage: Stage
    models: ModelServer
    url: str

    async def reached(self, gate: str) -> None:
        await asyncio.to_thread(self.stage.call, self.models.reached, gate)

    def release(self, gate: str) -> None:
        async def release() -> None:
            self.models.release(gate)

        self.stage.call(release)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, stage = tmp_path_factory.mktemp("questions"), Stage()
    models = stage.enter(ModelServer({name: Script(tuple(turns), count="total") for name, turns in SCRIPTS.items()}))
    config = written(folder / "config", models, approvals=[RULE])
    yield Place(stage, models, stage.enter(serving(folder / "home", config)))
    stage.close()


class Choosing(Client):
    """Whose runs have a model of their own."""

    model = ""

    @asynccontextmanager
    async def open(self, method: str, path: str, **arguments: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        if path.endswith("/runs/stream"):
            arguments["json"] = {**arguments["json"], "context": {"model_name": self.model}}
        async with super().open(method, path, **arguments) as response:
            yield response


class Talk:
    """A chat, and what it wrote, in order. `before` is called with every prompt."""

    def __init__(self, place: Place, client: Client, model: str) -> None:
        self.place, self.client, self.model = place, client, model
        self.shown = ""
        self.pressed = Interrupts()
        self.noticed: Callable[[str], None] | None = None
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.thread = uuid7()
        self.chat = Chat(client, self.pressed, out=self.write, notice=self.notice, thread=self.thread)
        self._typed: Typed
        self.forgotten: list[str] = []
        """What was shown when what was typed ahead was dropped."""

    def write(self, text: str) -> None:
        self.shown += text

    def notice(self, text: str) -> None:
        self.write(text + "\n")
        if self.noticed is not None:
            self.noticed(text)

    def forget(self) -> None:
        self.forgotten.append(self.shown)

    async def line(self, prompt: str) -> str | None:
        if self.before is not None:
            await self.before(prompt)
        return await self._typed.line(prompt)

    async def converse(self, *typed: str | Callable[[], None]) -> str:
        """What is shown when these lines are typed."""
        self.shown, self._typed = "", Typed(*typed)
        async with asyncio.timeout(DEADLINE):
            assert await self.chat.converse(self) == OK
        assert await self._typed.line("") is None, "not everything was read"
        return self.shown

    async def approvals(self) -> dict[str, str]:
        """How they stand, by their commands."""
        found = await self.client.ask("GET", f"/api/threads/{self.thread}/approvals")
        return {one["args"]["command"]: one["status"] for one in found}

    async def reject(self) -> str:
        """Somebody else rejects the oldest that waits; the run that goes on."""
        *_, one = await self.client.ask("GET", f"/api/threads/{self.thread}/approvals?status=pending")
        path = f"/api/threads/{self.thread}/approvals/{one['approval_id']}"
        return str((await self.client.ask("POST", path, {"decision": "reject"}))["run_id"])

    def told(self) -> list[str]:
        """What tools and people say in the last request to the model."""
        messages = [one for one in self.place.models.requests if one.model == self.model][-1].body["messages"]
        return [str(message["content"]) for message in messages if message["role"] in ("tool", "user")]


@asynccontextmanager
async def talking(place: Place, model: str) -> AsyncIterator[Talk]:
    choosing = Choosing(place.url, notice=lambda _: None)
    choosing.model = model
    async with choosing as client:
        yield Talk(place, client, model)


async def test_a_clarification(place: Place) -> None:
    async with talking(place, "clarifying") as talk:
        assert await talk.chat.once("Paint it.") == OK
        question = "🔀 Which colour?\n\n  1. red\n  2. blue\n"
        assert talk.shown.partition("\n")[2].startswith(question)  # after the news that the thread is new
        assert "  10. blue\n" in talk.shown
        shown = await talk.converse("2", "11")
    assert shown.count(question) == 2
    assert "▸" not in shown
    assert "All done.\n" in shown
    assert [text for text in talk.told() if text in ("blue", "11")] == ["blue", "11"]


async def test_approvals_one_after_the_other(place: Place) -> None:
    async with talking(place, "three") as talk:
        edit = json.dumps({"description": "d", "command": "echo D4"})
        shown = await talk.converse("Go.", "y", "n", "not that one", "e", edit)
        assert await talk.approvals() == {"echo A1": "approved", "echo B2": "rejected", "echo C3": "edited"}
    assert shown.count("It writes.") == 3
    assert [before.count("It writes.") for before in talk.forgotten] == [0, 1, 2], "dropped before each is shown"
    assert shown.count("then it counts as rejected") == 3
    assert [shown.count(where) for where in ("(1 of 3)", "(1 of 2)")] == [1, 1]
    assert "    command: echo A1\n" in shown
    assert "All done.\n" in shown
    assert "stopped" not in shown
    results = [text for text in talk.told() if text.startswith(("A1", "Error:", "D4"))]
    assert [text[:2] for text in results] == ["A1", "Er", "D4"]
    assert "not that one" in results[1]


async def test_one_message_says_what_waits_and_a_talk_asks(place: Place) -> None:
    async with talking(place, "two") as talk:
        assert await talk.chat.once("Go.") == STOPPED
        assert "command: echo A1\n" in talk.shown
        assert "bash waits for your approval (2 of 2)\n" in talk.shown
        assert f"the agent waits for you: sika chat --thread {talk.thread} asks" in talk.shown
        shown = await talk.converse("y", "n", "")
        assert await talk.approvals() == {"echo A1": "approved", "echo B2": "rejected"}
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
        assert await talk.approvals() == {"echo A1": "abandoned"}
    assert "All done.\n" in shown


async def test_somebody_else_was_quicker(place: Place) -> None:
    """They decided one and left the other: that is asked for next."""
    async with talking(place, "two") as talk:
        assert await talk.chat.once("Go.") == STOPPED

        async def reject(prompt: str) -> None:
            talk.before = None
            await talk.client.ask("GET", f"/api/threads/{talk.thread}/runs/{await talk.reject()}/join")

        talk.before = reject
        shown = await talk.converse("y", "n", "")
        assert await talk.approvals() == {"echo A1": "rejected", "echo B2": "rejected"}
    assert "is decided already: rejected" in shown
    assert shown.count("command: echo B2") == 1
    assert "All done.\n" in shown


async def test_somebody_elses_answer_is_at_work(place: Place) -> None:
    async with talking(place, "gated") as talk:
        assert await talk.chat.once("Go.") == STOPPED

        async def reject(prompt: str) -> None:
            talk.before = None
            await talk.reject()
            await place.reached("end")

        talk.before = reject
        talk.noticed = lambda text: place.release("end") if "somebody else's answer" in text else None
        assert "All done.\n" in await talk.converse("y")


async def test_a_thread_that_is_gone_asks_nothing_any_more(place: Place) -> None:
    async with talking(place, "one") as talk:

        async def erase(prompt: str) -> None:
            if prompt.startswith("approve?"):
                await talk.client.ask("DELETE", f"/api/threads/{talk.thread}")

        talk.before = erase
        shown = await talk.converse("Go.", "y", "/help", "/asked")
    assert shown.count("waits for your approval") == 1
    assert "not found" in shown
    assert shown.index("/new") < shown.index("nothing is asked")


async def test_a_decision_over_broken_connections(place: Place) -> None:
    """The request for the thread gets through; the decision and the stream of its run break off."""
    line = Line(place.url, [MANY, 10, MANY, 300])
    async with line.open(), talking(place, "one") as talk:
        assert await talk.chat.once("Go.") == STOPPED
        talk.client.url = line.url
        shown = await talk.converse("y")
        runs = await talk.client.ask("GET", f"/api/threads/{talk.thread}/runs")
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
    assert [text for text in talk.told() if "They" in text] == ["They said: /tmp", "They said: Because."]
