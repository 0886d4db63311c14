"""Commands in chat."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from actors.chat import answers, perform, place, runs
from actors.chat.commands import Command, parsed
from actors.chat.runs import UNTAKEN
from core.chat.commands import HELP
from core.chat.facts import Attachment, ChatFetched, DeliveryPlanned, Fetched, key_of
from core.events import GoalSet, RunCancelled, RunCancelRequested, RunStarted, ToolRequested, thread
from tests.actors.chat.site import Account, account
from tests.support.nats import eventually, read

pytestmark = pytest.mark.anyio
MODELS: Any = [{"name": "small", "model": "m", "api_key": "none"}]


@pytest.mark.parametrize(
    ("text", "platform", "command"),
    [
        ("/new", "slack", Command("new")),
        ("/NEW@some_bot", "telegram", Command("new")),
        ("@bot /goal  learn\nGerman ", "feishu", Command("goal", "learn\nGerman")),
        ("<@U1> /stop", "slack", Command("stop")),
        ("Stop", "feishu", Command("stop")),
        ("stop it", "feishu", None),
        ("!stop", "slack", Command("stop")),
        ("!stop", "feishu", None),
        ("/etc/hosts", "feishu", None),
        ("/help/me", "feishu", None),
        ("/unknown", "slack", None),
        ("/start abc", "telegram", Command("start", "abc")),
        ("/start abc", "slack", None),
        ("what is /new", "slack", None),
        ("", "slack", None),
    ],
)
def test_what_is_a_command(text: str, platform: str, command: Command | None) -> None:
    assert parsed(text, platform) == command


async def told(office: Account, text: str, **more: Any) -> str:
    """Sends a command; the reply of the system."""
    event = await office.hears(text, **more)
    assert (await office.outcome(event)).outcome == "command"
    plan = await office.plan()
    assert plan.purpose == "notice"
    return plan.text


async def test_help_names_every_command(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        text = await told(office, "/help")
        assert all(f"`/{name}`" in text for name in HELP)


async def test_commands_that_tell_something(tmp_path: Path) -> None:
    async with account(tmp_path, models=MODELS) as office:
        assert await told(office, "/models") == "Models:\n- small"
        assert await told(office, "/memory") == "I remember 0 facts."
        assert await told(office, "/status") == "There is no conversation yet."
        assert await told(office, "/queue") == "No message is waiting."
        routed = await office.starts(await office.hears("long"))
        await office.hears("second")
        shown = (await told(office, "/status")).splitlines()
        assert shown[0] == f"Conversation `{routed.thread}`: at work."
        assert re.fullmatch(r"For \d+ s, with no model yet; the model answers\.", shown[1]), shown
        assert shown[2:] == ["Messages in the queue: 1."]
        await office.does(routed, ToolRequested(call_id="c", name="bash", effect="idempotent"))
        assert (await told(office, "/status")).splitlines()[1].endswith("; now: `bash`.")
        assert await told(office, "/queue") == "Waiting:\n1. second"


@pytest.mark.parametrize(
    ("command", "is_told"),
    [("/help", True), ("/stop", True), ("/retry", True), ("/new", True), ("/bootstrap", False), ("/goal tidy", False)],
)
async def test_a_file_whose_caption_is_a_command_is_taken_or_said_not_to_be(
    tmp_path: Path, command: str, is_told: bool
) -> None:
    async with account(tmp_path) as office:
        await office.answers(await office.hears("hello"))
        event = await office.hears(command, attachments=(Attachment("id-a", "a.txt"),), settle=False)
        fetched = ChatFetched(message=key_of(event), files=(Fetched("a.txt", error="too large"),))
        await office.chats.decide(office.place().id, lambda _: [fetched], actor="office")

        async def said() -> list[str]:
            records = await read(office.stage.system.log, office.place())
            plans = [record.event for record in records if isinstance(record.event, DeliveryPlanned)]
            return [plan.text for plan in plans if "a.txt" in plan.text]

        assert await eventually(said) == [
            UNTAKEN.format(names="`a.txt`") if is_told else "I could not take every file:\n- a.txt: too large"
        ]


async def test_a_person_who_may_not_talk_commands_nothing(tmp_path: Path) -> None:
    async with account(tmp_path, settings={"allowed_users": ["U1"]}) as office:
        event = await office.hears("/help", sender="U2")
        assert (await office.outcome(event)).outcome == "ignored"
        assert await office.said() == []


async def test_new_begins_another_thread(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        first = await office.answers(await office.hears("hello"))
        assert await told(office, "/new") == perform.BEGUN
        second = await office.outcome(await office.hears("hello"))
        assert second.thread != first.thread


async def test_stop_stops_what_is_at_work_and_not_the_next_message(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        first = await office.starts(await office.hears("long"))
        second = await office.outcome(await office.hears("next"))
        stop = await office.hears("stop")
        assert ((await office.outcome(stop)).outcome, await office.said()) == ("command", [runs.QUEUED])
        known_runs = (await office.state(first)).runs
        assert (known_runs[first.run_id].cancel, known_runs[second.run_id].cancel) == ("interrupt", None)
        # Whoever handles the command again, now that the next run is at work, stops that one no more than before.
        await office.does(first, RunCancelled())
        await office.does(second, RunStarted(attempt=1, worker="w", lease=1))
        records = await office.stage.settled(thread(first.thread))
        stops = [record for record in records if isinstance(record.event, RunCancelRequested)]
        assert len(stops) == 1
        known = await office.chats.load(office.place().id)
        chosen = place.at_work(await office.state(first), known, known.heard["m3"].seq)
        assert chosen is not None
        assert chosen.id == first.run_id


async def test_stop_without_a_run_says_so(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        assert await told(office, "/stop") == perform.NOTHING_AT_WORK
        await office.answers(await office.hears("hello"))
        assert await told(office, "/stop") == perform.NOTHING_AT_WORK


async def test_stop_takes_back_a_message_whose_files_are_on_their_way(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        event = await office.hears("look", attachments=(Attachment("f", "a.txt"),))
        assert await told(office, "/stop") == answers.STOPPED
        assert (await office.outcome(event)).reason == "stopped"


async def test_retry_answers_the_last_message_again(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        assert await told(office, "/retry") == perform.NOTHING_TO_RETRY
        await office.answers(await office.hears("one"), "first")
        asked = await office.answers(await office.hears("two"), "second")
        event = await office.hears("/retry")
        request = (await office.run(event)).request
        assert [message["content"] for message in request.input["messages"]] == ["two"]  # type: ignore[index]
        await office.answers(event, "better")
        contents = [message["content"] for message in (await office.state(asked)).messages]
        assert contents == ["one", "first", "two", "better"]
        assert (await office.plan()).text == "better"


async def test_undo_forgets_the_last_message_and_its_answer(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        assert await told(office, "/undo") == perform.NOTHING_TO_UNDO
        await office.answers(await office.hears("one"), "first")
        asked = await office.answers(await office.hears("two"), "second")
        assert await told(office, "/undo") == perform.UNDONE
        assert [message["content"] for message in (await office.state(asked)).messages] == ["one", "first"]
        assert await told(office, "/undo") == perform.UNDONE
        assert (await office.state(asked)).messages == []
        assert await told(office, "/undo") == perform.NOTHING_TO_UNDO


@pytest.mark.parametrize("command", ["/retry", "/undo", "/goal learn"])
async def test_what_changes_the_past_waits_for_the_run_at_work(tmp_path: Path, command: str) -> None:
    async with account(tmp_path) as office:
        routed = await office.starts(await office.hears("long"))
        event = await office.hears(command)
        assert (await office.outcome(event)).outcome == "refused"
        assert await office.said() == [runs.BUSY]
        assert len(await office.requests(routed)) == 1


async def test_a_goal_is_set_and_worked_on_shown_and_given_up(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        event = await office.hears("/goal learn German")
        routed = await office.outcome(event)
        state = await office.state(routed)
        assert state.goal is not None
        assert isinstance(state.goal.set, GoalSet)
        assert state.goal.set.objective == "learn German"
        assert state.runs[routed.run_id].request.input["messages"][0]["content"] == "learn German"  # type: ignore[index]
        assert await told(office, "/goal") == "The goal: learn German"
        assert "It was not set." in await told(office, "/goal " + "long " * 1000)
        assert await told(office, "/goal") == "The goal: learn German"
        await told(office, "/goal clear")
        assert (await office.state(routed)).goal is None


async def test_bootstrap_is_a_run_of_its_own_kind(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        for text, content in (("/bootstrap", perform.BOOTSTRAP), ("/bootstrap a cook", "a cook")):
            request = (await office.run(await office.hears(text))).request
            assert request.context["is_bootstrap"] is True
            assert request.input["messages"][0]["content"] == content  # type: ignore[index]


async def test_an_unknown_command_goes_to_the_agent(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        event = await office.hears("/research cats")
        assert (await office.outcome(event)).outcome == "run"
        assert await office.events(DeliveryPlanned) == []
