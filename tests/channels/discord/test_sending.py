"""Speaking on Discord: certainty and keys of posts, its limits, drafts, files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.chat.facts import STOP, Button
from core.chat.port import ChatGone, Content, FateUnknown, RateLimited, Rejected
from core.errors import Unavailable
from tests.channels.discord.server import DiscordServer
from tests.channels.discord.support import account, direct, in_group

pytestmark = pytest.mark.anyio
SINCE = timedelta(seconds=300)


async def test_a_post_whose_answer_was_lost_is_there_once() -> None:
    async with DiscordServer() as server, account(server) as discord:
        target = in_group(server)
        for fault in ("lose", "cut", "502"):
            server.faults.add("POST /channels/.*/messages", fault)
            with pytest.raises(FateUnknown):
                await discord.post(target, Content(fault), fault)
            assert await discord.find(target, fault, datetime.now(UTC) - SINCE) is None
            await discord.post(target, Content(fault), fault)
        own = [seen for seen in server.seen(target.chat) if seen.by_bot]
        assert [seen.text for seen in own] == ["lose", "cut", "502"]
        assert {seen.reply_to for seen in own} == {target.reply_to}
        with pytest.raises(Rejected):
            await discord.find(target, "old", datetime.now(UTC) - timedelta(minutes=10))


@pytest.mark.parametrize(("age", "known"), [(SINCE, True), (timedelta(minutes=10), False)])
async def test_a_draft_whose_answer_was_lost_is_found_for_some_minutes(age: timedelta, known: bool) -> None:
    async with DiscordServer() as server, account(server) as discord:
        target = in_group(server)
        server.faults.add("POST /channels/.*/messages", "lose")
        with pytest.raises(FateUnknown):
            await discord.draft(target, "r/draft").show("text", "")
        found = await discord.find(target, "r/draft", datetime.now(UTC) - age)
        [draft] = [seen.id for seen in server.seen(target.chat) if seen.by_bot]
        assert found == (draft if known else None)


async def test_limits_are_kept_by_what_the_answers_tell() -> None:
    async with DiscordServer() as server, account(server) as discord:
        server.limits = {"POST": (5, 3600.0)}  # no machine is so busy that the first one does not count any more
        target, other = direct(server), direct(server, "bob")
        for number in range(5):
            await discord.post(target, Content(str(number)), f"k{number}")
        with pytest.raises(RateLimited):
            await discord.post(target, Content("one too many"), "k5")
        await discord.post(other, Content("another channel"), "k6")
        assert server.problems == [], "Discord was not asked"


@pytest.mark.parametrize(("scope", "others"), [("rate", False), ("global", True)])
async def test_a_refusal_names_the_time_to_wait(scope: str, others: bool) -> None:
    async with DiscordServer() as server, account(server) as discord:
        target, other = direct(server), direct(server, "bob")
        server.faults.add("POST /channels/.*/messages", scope, 7)
        with pytest.raises(RateLimited) as refusal:
            await discord.post(target, Content("text"), "k")
        assert refusal.value.seconds == 7
        with pytest.raises(RateLimited):
            await discord.post(target, Content("text"), "k")
        if others:
            with pytest.raises(RateLimited):
                await discord.edit(other, "1", Content("text"))
        else:
            await discord.post(other, Content("text"), "k2")
        assert server.problems == []


async def test_nobody_is_pinged_and_long_texts_are_split() -> None:
    async with DiscordServer() as server, account(server) as discord:
        target = direct(server)
        text = "@everyone <@500> **bold** `code`\n\n" + "\n\n".join(
            f"Paragraph {n}: {'words ' * 60}" for n in range(12)
        )
        parts = discord.parts(text)
        assert len(parts) > 2
        for number, part in enumerate(parts):
            server._recent.clear()
            discord._api._waits = type(discord._api._waits)()
            await discord.post(target, Content(part), f"k{number}")
        shown = [seen.text for seen in server.seen(target.chat)]
        assert max(map(len, shown)) <= 2000
        assert shown[0].startswith("@everyone \\<@500> **bold** `code`")
        assert server.problems == []


async def test_a_draft_grows_in_one_message_and_becomes_the_answer() -> None:
    async with DiscordServer() as server, account(server) as discord:
        target = in_group(server)
        draft = discord.draft(target, "run/draft")
        await draft.show("One", "bash: listing")
        await draft.show("One", "bash: listing")
        await draft.show("One two " + "three " * 600, "")
        [shown] = [seen for seen in server.seen(target.chat) if seen.by_bot]
        assert (len(shown.text) <= 2000, shown.text.endswith("three"), shown.buttons) == (True, True, [STOP.label])
        assert await draft.finish(Content("The answer."), "run") == draft.message == shown.id
        [shown] = [seen for seen in server.seen(target.chat) if seen.by_bot]
        assert (shown.text, shown.buttons) == ("The answer.", [])
        del server.messages[target.chat][shown.id]
        again = discord.draft(target, "run/draft", shown.id)
        assert await again.finish(Content("Anew."), "run-2") != shown.id
        await again.drop()
        assert [seen for seen in server.seen(target.chat) if seen.by_bot] == []


async def test_the_status_is_a_small_line() -> None:
    async with DiscordServer() as server, account(server) as discord:
        target = direct(server)
        await discord.post(target, Content("text", "bash:\nlisting"), "k")
        assert server.seen(target.chat)[0].text == "text\n-# bash: listing"


async def test_a_thread_is_answered_in_the_thread() -> None:
    async with DiscordServer() as server, account(server) as discord:
        target = in_group(server, "general/topic")
        thread = target.chat
        parent = server.channels[thread]["parent_id"]
        place = type(target)(parent, f"thread:{thread}", "group", target.reply_to, target.sender)
        await discord.post(place, Content("here"), "k")
        await discord.working(place, True)
        assert [seen.text for seen in server.seen(thread) if seen.by_bot] == ["here"]
        assert server.typing == {thread}


async def test_what_is_gone_or_refused_is_told_apart() -> None:
    async with DiscordServer() as server, account(server) as discord:
        target = direct(server)
        with pytest.raises(ChatGone):
            await discord.edit(target, "1", Content("text"))
        with pytest.raises(ChatGone):
            await discord.post(type(target)("12345"), Content("text"), "k")
        with pytest.raises(Rejected):
            await discord.post(target, Content("text", buttons=(Button("a", "A"),), plan="p" * 90), "k")
        server.faults.add("PATCH", "502")
        message = await discord.post(target, Content("text"), "k")
        with pytest.raises(Unavailable) as error:
            await discord.edit(target, message, Content("other"))
        assert not isinstance(error.value, FateUnknown), "it may be made again"


async def test_files_are_sent_once_and_not_over_the_limit(tmp_path: Path) -> None:
    async with DiscordServer() as server, account(server) as discord:
        target = direct(server)
        (tmp_path / "a.txt").write_text("words")
        server.faults.add("POST /channels/.*/messages", "lose")
        with pytest.raises(FateUnknown):
            await discord.upload(target, tmp_path / "a.txt", "ä b.txt", "k")
        await discord.upload(target, tmp_path / "a.txt", "ä b.txt", "k")
        [seen] = server.seen(target.chat)
        assert seen.files == [b"words"]
        assert server.messages[target.chat][seen.id]["attachments"][0]["filename"] == "ä b.txt"
        with (tmp_path / "large").open("wb") as file:
            file.truncate(discord.traits.largest_file + 1)
        with pytest.raises(Rejected, match="10 MB"):
            await discord.upload(target, tmp_path / "large", "large", "k2")
