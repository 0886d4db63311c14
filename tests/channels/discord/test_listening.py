"""Listening on Discord: the gateway's sessions, custody, what arrives, and interactions within their time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from channels.discord.gateway import NO_CONTENT
from channels.discord.platform import connect
from core.chat.facts import Attachment, Choice, Quoted, Target
from core.chat.port import Content, CredentialsDead, Rejected
from core.errors import Invalid, Unavailable
from tests.channels.discord.server import DiscordServer
from tests.channels.discord.support import account, direct, listening
from tests.channels.feishu import platform_cards
from tests.channels.slack.support import Inbox

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.chat.reconnecting.LONGEST_BREAK", 0.2)
    monkeypatch.setattr("channels.chat.reconnecting.LONGEST_PAUSE", 0.2)
    monkeypatch.setattr("random.uniform", lambda low, high: low if low < 1 else 0.01)


async def test_where_a_message_belongs() -> None:
    async with DiscordServer() as server, listening(server) as (_, inbox):
        ann, bob = server.person("ann"), server.person("bob")
        private = ann.says("hello")
        root = ann.says("what is that?", "general")
        bob.says("and this?", "general", reply_to=root, bot=False)
        ann.says("in here", "general/topic", bot=False)
        await inbox.until(events=4)
        targets = {event.text: event.target for event in inbox.events}
        general, thread = server.channel("general", ann), server.channel("general/topic", ann)
        assert targets["hello"] == Target(server.channel("", ann), "", "private", private, ann.id)
        assert targets["what is that?"] == Target(general, root, "group", root, ann.id)
        assert (targets["and this?"].chat, targets["and this?"].topic) == (general, root)
        assert (targets["in here"].chat, targets["in here"].topic) == (general, f"thread:{thread}")
        mentioned = {event.text: event.mentioned for event in inbox.events}
        assert mentioned == {"hello": True, "what is that?": True, "and this?": False, "in here": False}


async def test_what_a_message_says() -> None:
    async with DiscordServer() as server, listening(server) as (platform, inbox):
        ann, bob = server.person("ann"), server.person("bob")
        ann.says(f"ask <@{bob.id}> <@!{bob.id}> in <#123> <:wave:5> <@&77>", "general", mentions=[bob])
        await inbox.until(events=1)
        named = f'@"Bob" ({bob.id})'
        assert inbox.events[0].text == f"ask {named} {named} in #123 :wave: @77"
        assert inbox.events[0].sender_name == "Ann"
        own = await platform.post(direct(server), Content("an answer"), "k")
        ann.says("and now?", reply_to=own)
        said = bob.says("the plan", "general", bot=False)
        ann.says("what of this?", "general", reply_to=said)
        await inbox.until(events=4)
        of_bot, _, of_bob = inbox.events[1:]
        assert (of_bot.quoted, of_bot.mentioned) == (None, True)
        assert of_bob.quoted == Quoted("the plan", "Bob")
        ann.says("", message_reference={"type": 1}, message_snapshots=[{"message": {"content": "forwarded"}}])
        await inbox.until(events=5)
        assert inbox.events[4].quoted == Quoted("forwarded")


async def test_notices_bots_and_embeds_are_no_messages() -> None:
    async with DiscordServer() as server, listening(server) as (_, inbox):
        ann = server.person("ann")
        ann.says("joined", type=7)
        ann.says("a hook", webhook_id="1")
        first = ann.says("first")
        server.dispatch("MESSAGE_UPDATE", server.sent(server.messages[server.channel("", ann)][first], ann.user))
        server.dispatch("MESSAGE_CREATE", {"author": {}, "channel_id": "1"})
        server.dispatch("TYPING_START", {"channel_id": "1"})
        ann.edits(first, "changed")
        await inbox.until(events=3)
        assert [(event.text, bool(event.edited)) for event in inbox.events] == [
            ("first", False),
            ("first", False),
            ("changed", True),
        ]
        assert inbox.events[0] == inbox.events[1], "an embed changes nothing: the inbox keeps one"


async def test_without_the_intent_only_what_is_addressed_has_words() -> None:
    async with DiscordServer() as server, listening(server, message_content=False) as (_, inbox):
        server.content_intent = False
        ann = server.person("ann")
        ann.says("not for the bot", "general", bot=False)
        ann.says("for the bot", "general")
        ann.says("alone")
        await inbox.until(events=2)
        assert {event.text for event in inbox.events} == {"for the bot", "alone"}


async def test_other_servers_can_be_left_out() -> None:
    async with DiscordServer() as server, listening(server, allowed_guilds=[1, 2]) as (_, inbox):
        server.person("ann").says("in a server", "general")
        server.person("ann").commands("in a server", "general")
        server.person("ann").says("alone")
        await inbox.until(events=1)
        assert [event.text for event in inbox.events] == ["alone"]


async def test_a_broken_connection_is_resumed_and_nothing_is_missed() -> None:
    async with DiscordServer() as server, listening(server) as (_, inbox):
        ann = server.person("ann")
        ends: list[Callable[[], None]] = [server.drop, partial(server.say, 7), partial(server.say, 9, True)]
        for number, end in enumerate(ends):
            ann.says(f"before {number}")
            end()
            ann.says(f"meanwhile {number}")
            await inbox.until(connections=number + 2, events=2 * number + 2)
        assert (server.identified, server.resumed, server.most_sockets) == (1, 3, 1)
        texts = [event.text for event in inbox.events]
        assert texts == [f"{when} {n}" for n in range(3) for when in ("before", "meanwhile")]


async def test_after_a_lost_session_the_gap_is_read() -> None:
    async with DiscordServer() as server, listening(server) as (_, inbox):
        ann = server.person("ann")
        ann.says("before", "general")
        await inbox.until(events=1)
        server.sessions.clear()
        server.drop()
        await inbox.until(reasons=1)
        ann.says("meanwhile", "general")
        ann.says("and then", "general", bot=False)
        await inbox.until(connections=2, events=3)
        assert server.identified == 2
        assert [event.text for event in inbox.events] == ["before", "meanwhile", "and then"]
        assert inbox.events[1].target.kind == "group"
        assert len({event.target.chat for event in inbox.events}) == 1


async def test_the_next_process_goes_on_where_this_one_stopped(tmp_path: Path) -> None:
    notes = tmp_path / "channels" / "discord.json"
    async with DiscordServer() as server:
        ann, texts = server.person("ann"), []
        for number, forgets in enumerate((False, False, True)):
            inbox = Inbox()
            inbox.fails = [Unavailable("the log is away")] * (1000 if number == 0 else 0)
            async with account(server) as platform, anyio.create_task_group() as tasks:
                platform.resume(notes)
                tasks.start_soon(platform.listen, inbox.receive, inbox)
                await inbox.until(connections=1)
                ann.says(f"during {number}")
                await inbox.until(events=0 if number == 0 else 2)
                tasks.cancel_scope.cancel()
            texts += [event.text for event in inbox.events]
            if forgets:
                assert (server.identified, server.resumed) == (2, 1)
            if number == 1:
                server.sessions.clear()
                ann.says("while nobody was there")
        assert texts == ["during 0", "during 1", "while nobody was there", "during 2"]
        assert notes.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("code", [4000, 4007, 4009, 1000])
async def test_the_gateway_may_close_the_connection(code: int) -> None:
    async with DiscordServer() as server, listening(server) as (_, inbox):
        await server.close(code)
        await inbox.until(connections=2)
        server.person("ann").says("still there?")
        await inbox.until(events=1)
        assert server.identified == (1 if code == 4000 else 2)


async def test_a_silent_connection_is_noticed() -> None:
    async with DiscordServer() as server:
        server.heartbeat_ms = 200
        async with listening(server) as (_, inbox):
            server.faults.mute = True
            await inbox.until(reasons=1)
            server.faults.mute = False
            await inbox.until(connections=2)
            assert server.resumed == 1
            assert "does not answer" in inbox.reasons[0]


async def test_what_is_final_ends_listening() -> None:
    async with DiscordServer() as server:
        server.content_intent = False
        async with account(server) as platform:
            with pytest.raises(CredentialsDead, match="Message Content Intent"), anyio.fail_after(60):
                await platform.listen(Inbox().receive, Inbox())
        async with account(server, bot_token="a.b.c") as platform:
            with pytest.raises(CredentialsDead, match="bot token") as error, anyio.fail_after(60):
                await platform.listen(Inbox().receive, Inbox())
        assert "a.b.c" not in str(error.value)
    for settings in ({}, {"bot_token": "one"}, {"bot_token": "a.b.c", "message_content": "yes"}):
        with pytest.raises(Invalid):
            connect(settings)


async def test_refusals_to_connect_are_waited_out() -> None:
    async with DiscordServer() as server:
        server.faults.refuse_handshakes = 2
        server.faults.add("GET /gateway/bot", "502")
        server.faults.add("GET /users/@me", "rate", 0.1)
        async with listening(server) as (_, inbox):
            assert len(inbox.reasons) == 4


async def test_a_message_waits_for_the_log_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also more messages than can wait: they come again when the session is resumed."""
    monkeypatch.setattr("channels.chat.lanes.LANE_LENGTH", 2)
    async with DiscordServer() as server, listening(server) as (_, inbox):
        inbox.fails = [Unavailable("the log is away")] * 3
        for number in range(8):
            server.person("ann").says(str(number))
        await inbox.until(events=8)
        assert [event.text for event in inbox.events] == [str(number) for number in range(8)]
        assert server.identified == 1


async def test_a_command_is_acknowledged_and_shown_with_its_words() -> None:
    async with DiscordServer() as server, listening(server) as (_, inbox):
        ann = server.person("ann")
        for text, group in (("what is *this*?", "general"), ("stop", ""), ("", "general/topic")):
            ann.commands(text, group)
        await inbox.until(events=3)
        await server.until(server.answered)
        asked, stop, empty = sorted(inbox.events, key=lambda event: int(event.message.partition("-")[2]))
        assert (asked.text, stop.text, empty.text) == ("what is *this*?", "/stop", "/help")
        assert (asked.target.kind, stop.target.kind, stop.target.topic) == ("group", "private", "")
        assert empty.target.topic == f"thread:{server.channel('general/topic', ann)}"
        general = server.channel("general", ann)
        await server.until(lambda: server.seen(general))
        [shown] = server.seen(general)
        assert (shown.id, shown.text) == (asked.target.reply_to, "> what is *this*?")
        [command] = server.commands
        assert (command["name"], command["options"][0]["name"]) == ("sika", "text")


async def test_an_interaction_is_acknowledged_also_while_the_log_is_away() -> None:
    async with DiscordServer() as server, listening(server) as (platform, inbox):
        inbox.fails = [Unavailable("the log is away")] * 4
        ann = server.person("ann")
        ann.says("held up")
        ann.commands("later")
        await platform.post(direct(server), platform_cards.question("p-1"), "q")
        ann.presses("Yes")
        await server.until(server.answered)
        await inbox.until(events=3)
        assert server.problems == []


async def test_a_press_comes_once_and_its_person_alone_sees_a_refusal() -> None:
    async with DiscordServer() as server, listening(server) as (platform, inbox):
        ann = server.person("ann")
        root = ann.says("a question", "general")
        place = Target(server.channel("general", ann), root, "group", root, ann.id)
        message = await platform.post(place, platform_cards.question("p-1"), "q")
        await inbox.until(events=1)
        bob = server.person("bob")
        bob.presses("Yes", "general")
        await inbox.until(events=2)
        press = inbox.events[1]
        assert press.choice == Choice("p-1", platform_cards.question("p-1").buttons[0].id)
        assert (press.target.topic, press.target.reply_to, press.sender) == (root, message, bob.id)
        await platform.whisper(press.target, "not **yours**")
        assert server.whispers == {(place.chat, bob.id): ["not **yours**"]}
        with pytest.raises(Rejected):
            await platform.whisper(place, "no press")
        server.faults.add("POST /interactions", "lose")
        bob.presses("Yes", "general")
        await inbox.until(events=3)


async def test_files_arrive_by_a_fresh_address(tmp_path: Path) -> None:
    async with DiscordServer() as server, listening(server) as (platform, inbox):
        files = {"a.txt": ("text/plain; charset=utf-8", b"words"), "b.ogg": ("audio/ogg", b"sound")}
        server.person("ann").says("look", files=files)
        await inbox.until(events=1)
        event = inbox.events[0]
        text, voice = event.attachments
        assert (text.name, text.mime, text.size, text.kind, voice.kind) == (
            "a.txt",
            "text/plain",
            5,
            "document",
            "voice",
        )
        await platform.fetch(text, event.message, tmp_path / "a", 100)
        assert (tmp_path / "a").read_bytes() == b"words"
        for attachment, limit in ((text, 4), (Attachment(f"{event.target.chat}/1", "gone"), 100)):
            with pytest.raises(Rejected):
                await platform.fetch(attachment, event.message, tmp_path / "b", limit)
        assert not (tmp_path / "b").exists()
        assert server.problems == []


async def test_what_is_missing_is_named() -> None:
    async with DiscordServer() as server, account(server) as platform:
        assert all(finding.ok for finding in await platform.check())
        server.content_intent = False
        [missing] = [finding for finding in await platform.check() if not finding.ok]
        assert missing.advice == NO_CONTENT
        async with account(server, bot_token="a.b.c") as other:
            [finding] = await other.check()
            assert not finding.ok
