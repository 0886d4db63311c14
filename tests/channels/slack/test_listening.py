"""Listening on Slack: the connection, custody before the acknowledgement, and what becomes of what arrives."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import anyio
import pytest

from channels.slack.platform import SCOPES, connect
from core.chat.facts import Quoted, Target
from core.chat.port import Content, CredentialsDead
from core.errors import Invalid, Unavailable
from tests.channels.slack.server import BOT_USER, SlackServer
from tests.channels.slack.support import Inbox, listening, platform_of

pytestmark = pytest.mark.anyio


async def test_a_direct_message_is_one_conversation_and_its_threads_are_others() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        ann = server.person("ann")
        first = await ann.says("hello")
        await ann.says("and here", thread=first)
        await inbox.until(events=2)
        hello, reply = inbox.events
        assert (hello.message, hello.text, hello.sender, hello.sender_name) == (first, "hello", ann.id, "Ann")
        assert (hello.target.topic, hello.target.kind, hello.target.reply_to) == ("", "private", first)
        assert hello.mentioned
        assert reply.target.topic == first


async def test_a_mention_in_a_channel_is_the_same_message_as_its_twin() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        server.faults.hold = True
        ann = server.person("ann")
        root = await ann.says("what is <https://example.com/?a=1&amp;b=2|this> &lt;3", chat="general", mention=True)
        server.release(reverse=True)
        await inbox.until(events=2)
        mention, message = inbox.events
        assert mention == message
        assert (message.text, message.mentioned) == ("what is [this](https://example.com/?a=1&b=2) <3", True)
        assert (message.target.topic, message.target.kind) == (root, "group")


async def test_who_is_addressed_in_a_channel() -> None:
    async with SlackServer() as server, listening(server) as (platform, inbox):
        ann = server.person("ann")
        root = await ann.says("nobody in particular", chat="general")
        await ann.says(f"you <@{BOT_USER}|sika> there", chat="general")
        own = server.ts()
        server.chat("general").messages[own] = {"ts": own, "user": BOT_USER, "text": "an answer"}
        await ann.says("a reply to that", chat="general", thread=own)
        await ann.says("<@U0BOB> look at <#C123|random>", chat="general", thread=root)
        await inbox.until(events=5)
        assert [(event.text, event.mentioned) for event in inbox.events] == [
            ("nobody in particular", False),
            *[("you there", True)] * 2,
            ("a reply to that", True),
            ("@U0BOB look at #random", False),
        ]
        assert inbox.events[4].target.topic == root
        assert (await platform.bot()).user == BOT_USER


async def test_own_messages_other_bots_and_notices_are_ignored() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        ann, room = server.person("ann"), server.chat("general").id
        base = {"type": "message", "channel": room, "channel_type": "channel"}
        server.event({**base, "ts": server.ts(), "user": BOT_USER, "text": "me"})
        server.event({**base, "ts": server.ts(), "user": "U0OTHER", "bot_id": "B0OTHER", "text": "another bot"})
        server.event({**base, "ts": server.ts(), "subtype": "bot_message", "bot_id": "B0OLD", "text": "an old bot"})
        server.event({**base, "ts": server.ts(), "subtype": "channel_join", "user": ann.id, "text": "joined"})
        server.event({**base, "ts": server.ts(), "user": ann.id, "text": ""})
        server.event({"type": "reaction_added", "user": ann.id, "item": {"channel": room}})
        await ann.says("hello", chat="general")
        await server.until(lambda: len(server.acked) == 7)
        assert [event.text for event in inbox.events] == ["hello"]


async def test_edits_are_messages_but_unfurled_links_are_not() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        ann = server.person("ann")
        ts = await ann.says("a", chat="general")
        ann.edits("general", ts, "a")
        ann.edits("general", ts, f"<@{BOT_USER}> b")
        await inbox.until(events=2)
        edit = inbox.events[1]
        assert (edit.message, edit.text, edit.mentioned, edit.target.topic) == (ts, "b", True, ts)
        assert float(edit.edited) > float(ts)


async def test_the_beginning_of_a_thread_that_the_agent_has_not_read_is_quoted_once() -> None:
    async with SlackServer() as server, listening(server) as (platform, inbox):
        ann, bob = server.person("ann"), server.person("bob")
        root = await bob.says("the <https://a.example|plan>", chat="general")
        await inbox.until(events=1)
        await ann.says("I agree", chat="general", thread=root)
        await inbox.until(events=2)
        await ann.says("what do you think?", chat="general", thread=root, mention=True)
        await inbox.until(events=4)  # as `message` and as `app_mention`
        await ann.says("well?", chat="general", thread=root, mention=True)
        own = await platform.post(Target("C0GENERAL"), Content("the report"), "key")
        await ann.says("who wrote it?", chat="general", thread=own)
        asked = await ann.says("a new thread", chat="general", mention=True)
        await inbox.until(events=9)
        await ann.says("and this", chat="general", thread=asked, mention=True)
        await inbox.until(events=11)
        quotes = {event.text: event.quoted for event in inbox.events if event.quoted}
        assert quotes == {
            "what do you think?": Quoted("the [plan](https://a.example)", "Bob"),
            "who wrote it?": Quoted("the report", "Sika"),
        }


async def test_a_mention_alone_is_a_message_and_quotes_the_beginning_of_its_thread() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        root = await server.person("bob").says("the plan", chat="general")
        await inbox.until(events=1)
        await server.person("ann").says("", chat="general", thread=root, mention=True)
        await inbox.until(events=3)
        [_, first, twin] = inbox.events
        assert (first.text, first.mentioned, first.quoted) == ("", True, Quoted("the plan", "Bob"))
        assert (twin.text, twin.mentioned, twin.message) == ("", True, first.message)


async def test_a_thread_whose_beginning_cannot_be_read_is_answered_all_the_same() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        root = await server.person("bob").says("the plan", chat="general")
        server.faults.add("conversations.replies", "html", "html")
        await server.person("ann").says("and?", chat="general", thread=root, mention=True)
        await inbox.until(events=3)
        assert [event.quoted for event in inbox.events] == [None] * 3
        assert server.called("conversations.replies")


async def test_shared_messages_are_quoted_but_unfurled_links_are_not() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        ann = server.person("ann")
        shared = {"is_share": True, "author_name": "Bob", "text": "a &lt; b"}
        await ann.says("look", attachments=[{"text": "a page", "from_url": "https://example.com"}, shared])
        await ann.says("", attachments=[shared])
        await ann.says("a link", attachments=[{"text": "a page", "from_url": "https://example.com"}])
        await inbox.until(events=3)
        assert [event.quoted for event in inbox.events] == [*[Quoted("a < b", "Bob")] * 2, None]


async def test_commands() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        ann = server.person("ann")
        ann.commands("/sika", "new", chat="general")
        ann.commands("/sika-work", "")
        ann.commands("/sika", "what is the weather")
        ann.commands("/sika", "/summarise this")
        ann.commands("/models", "all")
        await ann.says("!stop")
        await ann.says("!important")
        await ann.says("/status", chat="general", mention=True)
        await inbox.until(events=9)
        texts = {event.text for event in inbox.events}
        assert texts == {
            "/new",
            "what is the weather",
            "/summarise this",
            "/help",
            "/models all",
            "!stop",
            "!important",
            "/status",
        }
        new = next(event for event in inbox.events if event.text == "/new")
        assert (new.target.kind, new.target.topic, new.sender_name, new.mentioned) == ("group", "", "ann", True)


async def test_files_and_voice() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        files = {"a.png": ("image/png", b"123"), "b.pdf": ("application/pdf", b"12"), "c.m4a": ("audio/mp4", b"1")}
        await server.person("ann").says("", chat="general", files=files)
        await server.person("ann").says("look", chat="general", mention=True, files={"a.png": ("image/png", b"1")})
        await inbox.until(events=3)
        first, message, mention = inbox.events
        assert [(file.name, file.kind, file.size) for file in first.attachments] == [
            ("a.png", "image", 3),
            ("b.pdf", "document", 2),
            ("c.m4a", "voice", 1),
        ]
        assert message == mention
        transcription = {"status": "complete", "preview": {"content": "hi there"}}
        transcribed = {"id": "F1", "mimetype": "audio/mp4", "name": "v", "transcription": transcription}
        event = {"type": "message", "subtype": "file_share", "user": "U0ANN", "channel": "D0ANN", "text": ""}
        server.event({**event, "ts": server.ts(), "files": [transcribed]})
        await inbox.until(events=4)
        assert inbox.events[3].attachments[0].transcript == "hi there"


async def test_a_message_is_acknowledged_when_it_is_in_custody() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        inbox.fails = [Unavailable("the bus is away"), Unavailable("still")]
        await server.person("ann").says("one")
        await server.person("ann").says("two")
        await server.until(lambda: len(server.acked) == 2)
        # What comes after it does not overtake it.
        assert [event.text for event in inbox.events] == ["one", "two"]


async def test_what_is_not_acknowledged_is_delivered_again() -> None:
    async with SlackServer(ack_seconds=0.3, redelivery=(0.0, 0.1, 0.1)) as server, listening(server) as (_, inbox):
        inbox.fails = [RuntimeError("a defect")]
        await server.person("ann").says("one")
        await inbox.until(events=1)
        await server.until(lambda: len(server.acked) == 1)
        assert server.abandoned == []


async def test_a_message_on_a_connection_that_is_cut_is_not_lost() -> None:
    async with SlackServer(ack_seconds=0.3, redelivery=(0.0, 0.1, 0.1)) as server:
        async with listening(server) as (_, inbox):
            await server.person("ann").says("one")
            server.drop()
            await server.person("ann").says("two")
            await inbox.until(connections=2)
            await server.until(lambda: len(server.acked) >= 2)
            assert {event.text for event in inbox.events} == {"one", "two"}
        assert server.most_sockets == 1


async def test_an_event_that_is_not_as_documented_is_named_and_passed_over() -> None:
    async with SlackServer() as server, listening(server) as (_, inbox):
        server.event({"type": "message", "user": "U0ANN", "text": "no channel, no ts"})
        server.deliver("interactive", {"type": "block_actions", "actions": [{"action_id": "sika:x", "value": "{"}]})
        server.deliver("interactive", {"type": "view_submission"})
        await server.person("ann").says("hello")
        await server.until(lambda: len(server.acked) == 4)
        assert [event.text for event in inbox.events] == ["hello"]


async def test_full_lanes_leave_messages_to_slack() -> None:
    async with SlackServer(ack_seconds=0.5, redelivery=(0.0, *[0.2] * 50)) as server:
        async with listening(server) as (_, inbox):
            inbox.fails = [Unavailable("the bus is away")] * 2
            for number in range(150):
                await server.person("ann").says(str(number))
            await server.until(lambda: {event.text for event in inbox.events} == {str(n) for n in range(150)})
        assert server.abandoned == []


@pytest.mark.parametrize("end", ["drop", "close", "warning", "refresh_requested"])
async def test_it_connects_anew(end: str) -> None:
    async with SlackServer() as server, listening(server, ping_seconds=0.5) as (_, inbox):
        match end:
            case "drop":
                server.drop()
            case "close":
                await server.close_sockets()
            case reason:
                server.disconnect(reason)
        await inbox.until(connections=2, reasons=1)
        await server.person("ann").says("hello")
        await inbox.until(events=1)
        assert server.most_sockets == 1
        assert server.problems == []


async def test_a_half_open_connection_is_noticed() -> None:
    async with SlackServer() as server:
        server.faults.no_hello = 1
        async with listening(server, ping_seconds=0.4) as (_, inbox):
            # The first connection is silent from the beginning.
            await inbox.until(signs=3, reasons=1)
            server.half_open()
            await inbox.until(connections=2, reasons=2)


async def test_refused_handshakes_and_errors_of_the_api_are_survived() -> None:
    async with SlackServer() as server:
        server.faults.refuse_handshakes = 1
        server.faults.add("apps.connections.open", "html", "internal_error")
        async with listening(server) as (_, inbox):
            assert len(inbox.reasons) == 3
            assert [call.result for call in server.called("apps.connections.open")] == [
                "html",
                "internal_error",
                *["ok"] * 2,
            ]
        # A ticket is good for one connection.
        assert server.problems == []


async def test_a_rate_limit_of_the_connection_is_kept() -> None:
    async with SlackServer() as server:
        server.faults.add("apps.connections.open", "rate:1.5")
        async with listening(server):
            assert server.problems == []


@pytest.mark.parametrize("method", ["auth.test", "apps.connections.open"])
async def test_dead_credentials_end_it(method: str) -> None:
    async with SlackServer() as server:
        server.faults.add(method, "invalid_auth")
        platform = platform_of(server)
        with anyio.fail_after(120), pytest.raises(CredentialsDead, match=f"{method}: invalid_auth"):
            await platform.listen(Inbox().receive, Inbox())
        await platform.close()


async def test_credentials_that_die_later_end_it() -> None:
    async with SlackServer() as server:
        platform, inbox = platform_of(server, ping_seconds=0.5), Inbox()

        listening = asyncio.ensure_future(platform.listen(inbox.receive, inbox))
        await inbox.until(connections=1)
        server.app_token_error = "token_revoked"
        server.drop()
        with pytest.raises(CredentialsDead, match="token_revoked"):
            await asyncio.wait_for(listening, 120)
        await platform.close()


async def test_nothing_is_left_after_it_was_cancelled() -> None:
    async with SlackServer() as server:
        before = asyncio.all_tasks()
        async with listening(server) as (_, inbox):
            await server.person("ann").says("hello")
            await inbox.until(events=1)
        await server.until(lambda: not server.sockets)
        left = [str(task.get_coro()) for task in asyncio.all_tasks() - before]
        # The server's own are those of aiohttp's `RequestHandler`.
        assert [name for name in left if "RequestHandler" not in name] == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "bot_token: expected a token that begins with xoxb-"),
        ({"bot_token": "xapp-1", "app_token": "xapp-1"}, "bot_token"),
        ({"bot_token": "xoxb-1", "app_token": 7}, "app_token: expected a token that begins with xapp-"),
    ],
)
def test_mistaken_settings_are_named(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        connect(settings)


async def test_the_check_names_what_is_missing() -> None:
    async with SlackServer() as server:
        platform = connect(server.settings)
        assert all(finding.ok for finding in await platform.check())
        server.scopes = server.scopes.replace("files:read,", "").replace(",metadata.message:read", "")
        server.app_token_error = "missing_scope"
        findings = [finding for finding in await platform.check() if not finding.ok]
        assert [finding.what.split(" (")[0] for finding in findings] == [
            "scope files:read is missing",
            "scope metadata.message:read is missing",
            "app token: app_token: apps.connections.open: missing_scope",
        ]
        assert all(finding.advice for finding in findings)
        server.bot_token_error = "account_inactive"
        assert (await platform.check())[0].what == "bot token: auth.test: account_inactive"
        await platform.close()


def test_the_manifest_of_the_documentation_asks_for_what_is_checked() -> None:
    page = (Path(__file__).parents[3] / "channels/http/docs/slack.md").read_text()
    [text] = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    manifest = json.loads(text)
    assert manifest["oauth_config"]["scopes"]["bot"] == sorted(SCOPES)
    assert manifest["settings"]["socket_mode_enabled"]
    assert set(re.findall(r"`([a-z_.]+:[a-z]+)`", page)) - {"connections:write"} == set(SCOPES) - {"commands"}
