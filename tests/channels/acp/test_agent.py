"""`sika acp`, driven by the public Python SDK: sessions, prompts, questions, cancellation, history."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, text_block
from acp.helpers import embedded_text_resource, image_block, resource_block, resource_link_block
from acp.schema import McpServerStdio

from channels.acp import mapping
from channels.client.errors import RunFailed
from channels.client.events import StreamEvent
from tests.channels.acp.conftest import Models, Start

pytestmark = pytest.mark.anyio


async def test_an_answer_with_thoughts(editor: Start, models: Models) -> None:
    async with editor() as client:
        session = await client.session("hello")
        blocks = [
            text_block("Hi"),
            resource_link_block("a.py", "file:///home/ada/a.py"),
            resource_block(embedded_text_resource("file:///b.py", "print(1)")),
            image_block(base64.b64encode(b"no picture").decode(), "image/png"),
        ]
        first = await client.agent.prompt(session_id=session, prompt=blocks)
        assert first.stop_reason == "end_turn"
        assert client.texts("agent_thought_chunk") == "They greet."
        assert client.texts() == "Hello there."
        second = await client.agent.prompt(session_id=session, prompt=[text_block("More")])
        assert (second.stop_reason, client.texts()) == ("end_turn", "Hello there.Again.")
    [prompt, again] = [str(messages) for messages in models.prompts("hello")]
    for part in ("Hi", "[a.py](file:///home/ada/a.py)", "print(1)", "image-1.png", "/home/ada/project"):
        assert part in prompt
    assert again.count("<editor_context>") == 1


async def test_tools_and_plans(editor: Start) -> None:
    async with editor() as client:
        session = await client.session("noting")
        await client.agent.prompt(session_id=session, prompt=[text_block("Note it")])
        [start] = client.of("tool_call")
        assert (start.title, start.kind, start.status) == ("write_file: a note", "edit", "in_progress")
        assert [place.path for place in start.locations] == ["/mnt/user-data/workspace/n.md"]
        end = client.of("tool_call_update")[-1]
        assert (end.tool_call_id, end.status) == (start.tool_call_id, "completed")
        assert end.content[0].content.text == "OK"
        assert client.texts() == "I note it.Noted."

        session = await client.session("planning")
        await client.agent.prompt(session_id=session, prompt=[text_block("Plan")])
        [plan] = client.of("plan")
        assert [(entry.content, entry.status) for entry in plan.entries] == [("look", "completed")]


def answering(chosen: str | None) -> Callable[[list[Any]], str | None]:
    return lambda options: chosen


def test_each_update_holds_all_output_so_far() -> None:
    """An editor replaces what it shows of a call."""
    turn = mapping.Turn()

    def shown(text: str, call: str = "c") -> str:
        [update] = turn.take(StreamEvent("custom", {"type": "tool_progress", "tool_call_id": call, "text": text}))
        return str(update.content[0].content.text)

    assert [shown("one\n"), shown("other", "d"), shown("two\n")] == ["one\n", "other", "one\ntwo\n"]
    assert len(shown("x" * 10 * mapping.MOST_RESULT)) == mapping.MOST_RESULT
    list(turn.take(StreamEvent("messages-tuple", {"type": "tool", "content": "done", "tool_call_id": "c"})))
    assert shown("again") == "again"


async def test_questions_are_requests_for_permission(editor: Start, models: Models) -> None:
    async with editor() as client:
        for chosen, status in (("approve", "completed"), ("reject", "failed"), (None, "failed")):
            client.forget()
            client.choose = answering(chosen)
            session = await client.session("mailing")
            answer = await client.agent.prompt(session_id=session, prompt=[text_block("Mail")])
            assert answer.stop_reason == "end_turn"
            [(call, options)] = client.asked
            assert call.title == "Run it? bash: echo sent"
            assert [option.kind for option in options] == ["allow_once", "reject_once"]
            [start] = client.of("tool_call")
            assert call.tool_call_id == start.tool_call_id
            assert client.of("tool_call_update")[-1].status == status
            assert client.texts().endswith("Ok.")

        client.forget()
        client.choose = answering("blue")
        session = await client.session("choosing")
        await client.agent.prompt(session_id=session, prompt=[text_block("Paint")])
        assert [option.name for option in client.asked[0][1]] == ["red", "blue", "Answer otherwise"]
        assert client.texts().endswith("So be it.")
        assert "blue" in str(models.prompts("choosing")[-1][-1])

        client.forget()
        client.choose = answering("answer-otherwise")
        session = await client.session("choosing")
        answer = await client.agent.prompt(session_id=session, prompt=[text_block("Paint")])
        assert answer.stop_reason == "end_turn"
        assert "Which?" in client.texts()
        await client.agent.prompt(session_id=session, prompt=[text_block("green")])
        assert client.texts().endswith("So be it.")

        client.forget()
        session = await client.session("asking")
        answer = await client.agent.prompt(session_id=session, prompt=[text_block("Ask me")])
        assert (answer.stop_reason, client.asked) == ("end_turn", [])
        assert "When?" in client.texts()
        await client.agent.prompt(session_id=session, prompt=[text_block("at nine")])
        assert client.texts().endswith("Thank you.")
        assert "at nine" in str(client.of("tool_call_update")[-1])


async def test_a_failed_run_is_an_error(editor: Start) -> None:
    async with editor() as client:
        session = await client.session("failing")
        with pytest.raises(RequestError) as refused:
            await client.agent.prompt(session_id=session, prompt=[text_block("Go")])
        assert "no luck today" in str(refused.value.data)


async def test_cancelling_stops_the_run(editor: Start, models: Models) -> None:
    async with editor() as client:
        session = await client.session("gated")
        prompt = asyncio.ensure_future(client.agent.prompt(session_id=session, prompt=[text_block("Go")]))
        await models.reached("gated")
        with pytest.raises(RequestError, match="Invalid request"):
            await client.agent.prompt(session_id=session, prompt=[text_block("Go")])
        await client.agent.cancel(session_id=session)
        assert (await prompt).stop_reason == "cancelled"
        [info] = [info for info in (await client.agent.list_sessions()).sessions if info.session_id == session]
        assert info.cwd == "/home/ada/project"
        await client.agent.set_config_option("model", session, "hello")
        assert (await client.agent.prompt(session_id=session, prompt=[text_block("Go on")])).stop_reason == "end_turn"


async def test_loading_replays_before_it_answers(editor: Start) -> None:
    async with editor() as client:
        session = await client.session("noting")
        await client.agent.prompt(session_id=session, prompt=[text_block("Note it")])
    async with editor() as other:
        await other.agent.load_session(cwd="/elsewhere", session_id=session)
        kinds = [update.session_update for update in other.updates]
        assert kinds == [
            "user_message_chunk",
            "agent_message_chunk",
            "tool_call",
            "tool_call_update",
            "agent_message_chunk",
        ]
        assert other.texts("user_message_chunk") == "Note it"
        assert other.texts() == "I note it.Noted."


async def test_what_is_refused_and_what_is_named(editor: Start) -> None:
    async with editor() as client:
        agent = client.agent
        with pytest.raises(RequestError, match="Resource not found"):
            await agent.load_session(cwd="/x", session_id="no-such")
        with pytest.raises(RequestError, match="Invalid params"):
            await agent.new_session(cwd="relative")
        with pytest.raises(RequestError, match="Invalid params"):
            await agent.prompt(session_id="unopened", prompt=[text_block("x")])
        own = McpServerStdio(name="files", command="npx", args=[], env=[])
        session = await client.session("hello", mcp_servers=[own])
        with pytest.raises(RequestError, match="Invalid params"):
            await agent.set_config_option("model", session, "no-such-model")
        for empty in ([], [text_block(" ")], [image_block("%%%", "image/png")]):
            with pytest.raises(RequestError, match="Invalid params"):
                await agent.prompt(session_id=session, prompt=empty)
        await agent.prompt(session_id=session, prompt=[text_block("Hi")])
        assert "not used: files" in client.texts("agent_thought_chunk")


@pytest.mark.parametrize(
    ("finished", "reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), (None, "end_turn")],
)
def test_stop_reasons(finished: str | None, reason: str) -> None:
    answer = {"type": "ai", "content": "x", "response_metadata": {"finish_reason": finished}}
    assert mapping.stop_reason({"messages": [answer]}) == reason


@pytest.mark.parametrize(("policy", "reason"), [("call_limit", "max_turn_requests"), ("budgets", "max_tokens")])
def test_a_run_that_met_a_limit(policy: str, reason: str) -> None:
    answer = {"type": "ai", "content": "x", "additional_kwargs": {"stopped_by": policy}}
    assert mapping.stop_reason({"messages": [answer]}) == reason


def test_a_run_that_made_too_many_steps() -> None:
    assert mapping.failure(RunFailed("x", "TooManySteps", "t", "r", {})) == "max_turn_requests"


async def test_the_editors_directory_is_asked_for_once(editor: Start, models: Models, tmp_path: Path) -> None:
    folder = tmp_path / "people/ada/app"
    folder.mkdir(parents=True)
    prompt = [text_block("Make it")]
    async with editor() as client:
        client.choose = answering("no")
        refused = await client.session("editing", str(folder))
        await client.agent.prompt(session_id=refused, prompt=prompt)
        [(call, options)] = client.asked
        assert str(folder) in call.title
        assert [option.option_id for option in options] == ["read-write", "read-only", "no"]
        assert list(folder.iterdir()) == []
        assert "You do not see that" in str(models.prompts("editing")[-1])

        client.forget()
        client.choose = answering("read-write")
        session = await client.session("editing", str(folder))
        await client.agent.prompt(session_id=session, prompt=prompt)
        assert len(client.asked) == 1
        assert (folder / "made.txt").read_text() == "made\n"
        [start] = client.of("tool_call")
        assert [place.path for place in start.locations] == [f"{folder}/made.txt"]
        assert "/mnt/project" in str(models.prompts("editing")[-1])

        client.forget()
        (folder / "made.txt").unlink()
        another = await client.session("editing", str(folder))
        await client.agent.prompt(session_id=another, prompt=prompt)
        assert client.asked == []
        assert (folder / "made.txt").exists()

        client.forget()
        await client.agent.load_session(cwd=str(folder), session_id=session)
        [start] = client.of("tool_call")
        assert [place.path for place in start.locations] == [f"{folder}/made.txt"]


async def test_a_directory_that_is_refused_is_no_reason_to_stop(editor: Start) -> None:
    async with editor() as client:
        client.choose = answering("read-write")
        session = await client.session("hello", "/etc")
        answer = await client.agent.prompt(session_id=session, prompt=[text_block("Hi")])
        assert answer.stop_reason == "end_turn"
        assert "I do not work in your directory: /etc: is a folder of the system" in client.texts("agent_thought_chunk")


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/mnt/project/a/b.py", "/home/ada/app/a/b.py"),
        ("/mnt/project", "/home/ada/app"),
        ("a/b.py", "/home/ada/app/a/b.py"),
        ("/mnt/projects/x", "/mnt/projects/x"),
        ("/mnt/user-data/outputs/x", "/mnt/user-data/outputs/x"),
    ],
)
def test_a_path_of_the_folder_is_one_of_the_editors(path: str, place: str) -> None:
    assert mapping.place_of(path, "/home/ada/app") == place
    assert mapping.place_of(path, None) == path
