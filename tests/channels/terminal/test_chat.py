"""`sika chat` with a real server, over lines that break."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from channels.client import AsyncSikaClient, Invalid, NotFound, Refused, Unauthenticated, Unavailable, wire
from channels.terminal.chat.chat import COMMANDS, FAILED, OK, STOPPED, Chat, _misuse, explained
from channels.terminal.console.interrupts import Interrupts
from channels.terminal.console.screen import Screen
from core import errors
from tests.channels.client.stage import Line, serving
from tests.channels.terminal.talks import Place, Talk, talking
from tests.channels.terminal.terminals import Terminal, on_terminal
from tests.support.ports import free_port
from tests.support.workers import DEADLINE, wait_for

HELLO = "Hello,\nworld\n"
MANY = 10**9
"""Bytes: a connection that does not break."""


async def test_one_message_and_its_answer(place: Place) -> None:
    async with talking(place, "hello") as talk:
        assert await talk.chat.once("hi") == OK
        assert talk.out == HELLO
        assert talk.notices == [
            f"thread {talk.thread} is new: there was none of this name",
            f"thread {talk.thread} (go on with: sika chat --thread {talk.thread})",
        ]


async def test_a_new_thread_is_named_at_the_end(place: Place) -> None:
    async with talking(place, "hello", new=True) as talk:
        assert await talk.chat.once("hi", "three\nlines\npiped") == OK
        assert talk.thread in talk.notices[-1]
        (message, _) = (await talk.client.describe_thread(talk.thread))["values"]["messages"]
        assert message["content"] == "hi\n\nthree\nlines\npiped"


async def test_a_broken_connection_is_mended_and_told(place: Place) -> None:
    line = Line(place.url)
    async with line.open(), talking(place, "line", url=line.url) as talk, anyio.create_task_group() as tasks:

        async def break_off() -> None:
            await talk.until("Hello")
            await line.cut()
            await talk.until("connection lost")
            place.release("line")  # it is back with the next words: nothing else need come after those that were shown

        tasks.start_soon(break_off)
        assert await talk.chat.once("hi") == OK
        assert talk.out == "Hello\nand never more\n"
        [lost] = [notice for notice in talk.notices if notice.startswith("connection lost")]
        assert lost.endswith("the server closed the connection); trying again for up to 60 s")
        assert "connected again" in talk.notices
        assert len(await talk.ask("GET", "/runs")) == 1


async def test_a_server_that_stays_away_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "AWAY_SECONDS", 0.1)
    async with talking(place, "hello", url=f"http://127.0.0.1:{free_port()}") as talk:
        monkeypatch.setattr(wire, "FIRST_SECONDS", 0.1)
        with pytest.raises(Unavailable, match="given up"):
            await talk.chat.once("hi")
    line = Line(place.url)
    async with line.open(), talking(place, "hello", url=line.url) as talk:
        assert await talk.chat.once("hi") == OK
        line.cuts = [0] * 100
        await line.cut()
        with pytest.raises(Unavailable, match="given up"):
            await talk.chat.once("hi")


async def test_a_failed_run_is_a_failed_command(place: Place) -> None:
    async with talking(place, "failing") as talk:
        assert await talk.chat.once("hi") == FAILED
        [error] = [notice for notice in talk.notices if notice.startswith("error: ")]
        assert "slow down" in error
        assert "\x1b" not in talk.shown


async def test_a_refusal_is_told_in_the_servers_words_and_does_not_end_a_talk(place: Place) -> None:
    async with talking(place, "busy") as talk:
        events = talk.client.stream("hi", thread_id=talk.thread)
        await anext(events)
        with pytest.raises(Refused, match="already has an active run"):
            await talk.chat.once("hi")
        shown = await talk.converse("hi", "/quit")
        assert "error: " in shown
        assert "already has an active run" in shown
        await events.aclose()


async def test_ctrl_c_cancels_the_run(place: Place) -> None:
    async with talking(place, "stop") as talk, anyio.create_task_group() as tasks:
        tasks.start_soon(press_after, talk, "Hello")
        assert await talk.chat.once("hi") == STOPPED
        assert "stopped" in talk.notices
        assert [run["status"] for run in await talk.ask("GET", "/runs")] == ["interrupted"]


async def test_a_second_ctrl_c_does_not_wait_for_the_end(place: Place) -> None:
    line = Line(place.url)
    async with line.open(), talking(place, "leave", url=line.url) as talk, anyio.create_task_group() as tasks:

        async def press() -> None:
            await talk.until("Hello")
            line.mute = True
            talk.pressed.press()
            await talk.until("stopping the run")
            talk.pressed.press()

        tasks.start_soon(press)
        with anyio.fail_after(DEADLINE):
            assert await talk.chat.once("hi") == STOPPED


async def test_a_conversation(place: Place) -> None:
    async with talking(place, "hello", new=True) as talk:
        shown = await talk.converse("/help", "hi", "  ", "again", "/threads", "/new", "/threads 1", "third", "/quit")
        assert shown.count(HELLO) == 3
        assert "/new " in shown
        [listed] = [line for line in talk.out.splitlines() if line.endswith(f"{talk.thread}  hi")]
        assert listed.split()[0] == "1"
        assert len(await talk.ask("GET", "/runs")) == 3
        assert "not found" in await talk.converse(f"/threads {talk.thread}x", "/threads a/b")


async def test_variables_are_set_shown_and_removed(place: Place) -> None:
    async with talking(place, "hello", new=True) as talk:
        secret = ("/env SHOP", "canary-of-the-shop", "/env")
        shown = await talk.converse(
            "/env", "/env STAGE=two words", *secret, "/env STAGE=", "/env 1=x", "hi", "/env SHOP="
        )
        assert shown.count("no variables; /env NAME=VALUE sets one") == 2
        assert shown.count("SHOP=***\nSTAGE=two words") == 2
        assert "name: '1' is no name of a variable" in shown
        assert "canary" not in shown
        assert "Hello" in shown, "the thread goes on"
        assert await talk.client.get_variables(talk.thread) == []


async def test_a_skill_is_called_and_other_words_are_not(place: Place) -> None:
    async with talking(place, "hello", new=True) as talk:
        assert "/no-such-skill: there is no such command" in await talk.converse("/no-such-skill draw")
        assert HELLO in await talk.converse("/data-analysis draw it")
        assert HELLO in await talk.converse("/docs:sum cats")
        messages = (await talk.ask("GET", "/state"))["values"]["messages"]
    texts = [message["content"] for message in messages if message["type"] == "human"]
    assert texts == ["/data-analysis draw it", "/docs:sum cats"]
    assert messages[0]["additional_kwargs"]["skill"]["name"] == "data-analysis"


async def test_ctrl_c_at_the_prompt_asks_and_then_leaves(place: Place) -> None:
    async with talking(place, "hello") as talk:
        assert HELLO in await talk.converse(talk.pressed.press, "hi")
        assert HELLO not in await talk.converse(talk.pressed.press, talk.pressed.press)
    assert len([notice for notice in talk.notices if "again Ctrl-C" in notice]) == 2


@pytest.mark.parametrize("line", ["/threads", "hi", "/asked"])
async def test_ctrl_c_ends_every_wait_for_the_server(place: Place, line: str) -> None:
    broken = Line(place.url)
    async with broken.open(), talking(place, "hello", url=broken.url) as talk, anyio.create_task_group() as tasks:

        async def mute(prompt: str) -> None:
            if not broken.mute:
                broken.mute = True
                tasks.start_soon(press)

        async def press() -> None:
            await broken.muted.wait()
            talk.pressed.press()

        talk.before = mute
        assert "stopped" in await talk.converse(line)


async def test_ctrl_c_while_nobody_waits_is_kept() -> None:
    pressed = Interrupts()
    pressed.press()
    with anyio.fail_after(DEADLINE):
        await pressed.wait()
    with anyio.move_on_after(0) as nothing_left:
        await pressed.wait()
    assert nothing_left.cancelled_caught


async def test_a_conversation_begins_with_a_greeting_and_what_is_wrong(place: Place) -> None:
    with broken(place.config) as whole:
        async with talking(place, "hello") as talk:

            async def seen() -> bool:
                return bool((await talk.client.readiness()).get("missing"))

            async def mended() -> bool:
                return not await seen()

            await wait_for(seen)
            await talk.converse()
            place.config.write_text(whole)
            await wait_for(mended)
    greeting, problem, new = talk.notices[:3]
    assert greeting == f"Sika on {place.url}, model default. /help lists the commands."
    assert problem.startswith("the server has a problem: configuration: config.yaml: models[0].api_key: ")
    assert "NOT_THERE is not set" in problem
    assert new == f"thread {talk.thread} is new: there was none of this name"


@contextmanager
def broken(config: Path) -> Iterator[str]:
    before = config.read_text()
    config.write_text(before.replace('"none"', '"$NOT_THERE"', 1))
    try:
        yield before
    finally:
        config.write_text(before)


async def test_the_latest_thread_is_gone_on_with(place: Place) -> None:
    async with talking(place, "hello", new=True) as talk:
        await talk.chat.once("What is\nnew?")
        await talk.ask("POST", "/state", {"values": {"title": "Old\x1b[2J"}})
    async with talking(place, "hello", latest=True) as again:
        assert await again.chat.once("hi") == OK
        assert (again.thread, again.notices[0]) == (talk.thread, f"thread {talk.thread}: Old")


async def test_a_goal_is_pursued(place: Place) -> None:
    async with talking(place, "hello", new=True) as talk:
        shown = await talk.converse("/goal See the world", "/goal clear", "/goal")
    assert shown.count("Hello,") == 3
    paused = "goal, paused: 2 continuations in a row made no progress (2 of 8 continuations): See the world"
    assert [notice for notice in talk.notices if "goal" in notice] == [paused, "no goal", "no goal, or it is reached"]


async def test_a_new_server_has_no_latest_thread(place: Place, tmp_path: Path) -> None:
    async with serving(tmp_path / "home", place.config) as url, talking(place, "hello", url=url, latest=True) as talk:
        with pytest.raises(NotFound, match="--continue"):
            await talk.chat.once("hi")
        assert "no threads yet" in await talk.converse("/threads")


async def test_files_that_a_message_names_go_with_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("1,2")
    (tmp_path / "b c.txt").write_text("x")
    async with talking(place, "hello") as talk:
        assert await talk.chat.once('look at @a.csv, @"b c.txt" and @nobody') == OK
        [message, _] = (await talk.client.describe_thread(talk.thread))["values"]["messages"]
        files = message["additional_kwargs"]["files"]
        assert [(file["filename"], file["size"], file["status"]) for file in files] == [
            ("a.csv", 3, "uploaded"),
            ("b c.txt", 1, "uploaded"),
        ]
        assert (await talk.client.list_uploads(talk.thread))["count"] == 2
        told = str(talk.place.models.requests[-1].body["messages"])
        assert "/mnt/user-data/uploads/a.csv" in told
        assert "sent: a.csv, b c.txt" in talk.notices


async def test_a_name_that_no_file_can_have_is_a_plain_word(place: Place) -> None:
    name = "a" * 300
    async with talking(place, "hello") as talk:
        assert await talk.chat.once(f"look at @{name}") == OK
        [message, _] = (await talk.client.describe_thread(talk.thread))["values"]["messages"]
        assert message["content"] == f"look at @{name}"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that also root cannot read")
async def test_a_file_that_cannot_be_read_is_named_and_does_not_end_a_talk(place: Place) -> None:
    async with talking(place, "hello", new=True) as talk:
        shown = await talk.converse("look at @/proc/self/mem", "hi", "/quit")
        assert "error: /proc/self/mem: cannot be read: Input/output error" in shown
        assert HELLO in shown


@pytest.mark.parametrize(
    ("key", "hint"), [(None, "put a key (sika key create) into SIKA_API_KEY"), ("x", "still valid")]
)
def test_a_key_that_is_missing_or_wrong_is_named(key: str | None, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIKA_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("SIKA_API_KEY", key)
    text = explained(Unauthenticated("Sign in, or send an API key."))
    assert text.startswith("Sign in, or send an API key; ")
    assert hint in text


async def test_a_bad_thread_id_is_refused_here() -> None:
    with pytest.raises(errors.Invalid, match="--thread"):
        Chat(AsyncSikaClient, Interrupts(), Screen(sys.stdout, sys.stderr), thread="a/b")
    async with AsyncSikaClient(url="not an address") as client:
        with pytest.raises(Invalid):
            await client.search_threads()


async def press_after(talk: Talk, words: str) -> None:
    await talk.until(words)
    talk.pressed.press()


# ── on a terminal ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("term", ["xterm", "dumb"])
async def test_ctrl_c_on_a_terminal_while_the_server_is_away(place: Place, term: str) -> None:
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(Line(place.url).open())

        async def work(terminal: Terminal) -> None:
            await terminal.prompt()
            await stack.aclose()
            terminal.type(b"hi\r")
            await terminal.until("connection lost")
            terminal.process.send_signal(signal.SIGINT)
            await terminal.until("stopped")
            await terminal.prompt()
            terminal.process.send_signal(signal.SIGINT)
            await terminal.until("again Ctrl-C")
            await terminal.prompt()
            terminal.process.send_signal(signal.SIGINT)
            assert await terminal.ended() == 0

        await on_terminal(work, "chat", "--url", line.url, "--thread", "T", term=term)


async def test_ctrl_c_on_a_terminal_stops_the_run_and_then_leaves(place: Place) -> None:
    async def work(terminal: Terminal) -> None:
        await terminal.prompt()
        terminal.type(b"run it\r")
        await place.reached("default")
        await terminal.until("Hello")
        terminal.process.send_signal(signal.SIGINT)
        await terminal.until("stopping the run")
        await terminal.until("stopped")
        await terminal.prompt()
        terminal.type(b"\x03")
        await terminal.until("again Ctrl-C")
        await terminal.prompt()
        terminal.type(b"\x03")
        assert await terminal.ended() == 0

    await on_terminal(work, "chat", "--url", place.url)


@pytest.mark.parametrize("word", COMMANDS)
def test_a_command_with_other_words_says_how_it_is_used(word: str) -> None:
    text = _misuse(word, f"{word} x y")
    assert text.startswith(f"{word} x y: is not understood; {word}: ")
    assert len(text.partition(f"; {word}: ")[2]) > 8
