"""An answer grows in one message, which holds the whole answer in the end, whatever the platform does meanwhile."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from channels.feishu.traits import TRAITS
from core.chat.facts import Target
from core.chat.port import Content, FateUnknown, RateLimited, Rejected
from core.errors import Unavailable
from tests.channels.feishu.account import account
from tests.channels.feishu.server import FeishuServer, Message

pytestmark = pytest.mark.anyio
POST = "POST .*/(reply|messages)$"
ELEMENT = "PUT .*/content$"


def only(server: FeishuServer, target: Target) -> Message:
    (message,) = server.seen(target.chat)
    return message


async def test_text_and_status_grow_in_a_card() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        assert draft.message == ""
        await draft.show("", "reads")
        message = only(server, target)
        assert draft.message == message.id
        assert (message.status, message.growing) == ("reads", True)
        for text in ("ha", "haha", "haha", "haha!"):  # F10: no overlaps are guessed
            await draft.show(text, "reads")
        assert message.card is not None
        assert message.card.shown == ["ha", "haha", "haha!"]
        await draft.show("haha!", "writes")
        assert (message.text, message.status) == ("haha!", "writes")
        assert await draft.finish(Content("haha! **Done.**"), "k") == message.id
        assert (message.text, message.status, message.growing) == ("haha! **Done.**", "", False)
        assert only(server, target) is message
        assert not server.refusals


async def test_what_was_never_shown_is_posted() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        message = await bot.platform.draft(target, "k").finish(Content("quick"), "k")
        assert only(server, target).id == message
        assert not server.cards


async def test_after_a_restart_the_same_message_goes_on() -> None:
    async with FeishuServer() as server, account(server) as bot, account(server) as after:
        target = Target(server.person("ann").chat)
        before = bot.platform.draft(target, "k")
        for number in range(30):  # faster than its sequences
            await before.show("x" * number, "")
        draft = after.platform.draft(target, "k", before.message)
        await draft.show("more", "goes on")
        assert (only(server, target).text, only(server, target).status) == ("more", "goes on")
        await draft.finish(Content("all"), "k")
        assert (only(server, target).text, only(server, target).growing) == ("all", False)


async def test_a_message_that_was_sent_before_a_crash_is_the_one_that_grows() -> None:
    """The key is known to the platform, and the message shows the card from before the crash."""
    async with FeishuServer() as server, account(server) as bot, account(server) as after:
        target = Target(server.person("ann").chat)
        await bot.platform.draft(target, "k").show("before", "")
        draft = after.platform.draft(target, "k")
        await draft.show("after", "")
        await draft.show("after", "")
        assert only(server, target).text == "after"
        await draft.finish(Content("all"), "k")
        assert only(server, target).text == "all"


@pytest.mark.parametrize("begun", [True, False])
async def test_a_draft_from_before_a_crash_is_found(begun: bool) -> None:
    """Also if the answer is there by then, and nothing is shown any more."""
    async with FeishuServer() as server, account(server) as bot, account(server) as after:
        target = Target(server.person("ann").chat)
        if begun:
            await bot.platform.draft(target, "r/draft").show("before", "")
        message = await after.platform.find(target, "r/draft", datetime.now(UTC))
        assert message == only(server, target).id
        await after.platform.draft(target, "r/draft", message or "").finish(Content("all"), "r/0")
        assert only(server, target).text == "all"
        long_ago = datetime.now(UTC) - timedelta(hours=2)
        assert await after.platform.find(target, "old/draft", long_ago) is None


@pytest.mark.parametrize("ending", ["show", "finish", "drop"])
async def test_a_message_whose_id_was_lost_is_not_sent_twice(ending: str) -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        server.faults.lose(POST)
        with pytest.raises(FateUnknown):
            await draft.show("one", "")
        if ending == "show":
            await draft.show("one two", "")
            await draft.show("one two", "")
            assert only(server, target).text == "one two"
        elif ending == "finish":
            await draft.finish(Content("one two three"), "k")
            assert only(server, target).text == "one two three"
        else:
            await draft.drop()
            assert not server.seen(target.chat)


async def test_a_card_that_the_platform_has_closed_is_changed_as_a_whole() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        server.skew += 601
        await draft.show("one two", "still at work")
        message = only(server, target)
        assert (message.text, message.status) == ("one two", "still at work")
        await draft.show("one two", "still at work")
        await draft.show("one two three", "")
        assert len(server.called(ELEMENT)) == 1
        assert await draft.finish(Content("all"), "k") == message.id
        assert (only(server, target).text, message.growing) == ("all", False)


async def test_a_card_that_closed_before_the_end_is_finished() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        server.faults.refuse(ELEMENT, 200850)
        await draft.show("two", "")
        assert only(server, target).text == "two"
        server.skew += 7200
        await draft.finish(Content("all"), "k")
        assert only(server, target).text == "all"


async def test_without_cardkit_the_message_is_changed() -> None:
    async with FeishuServer() as server, account(server) as bot:
        server.scopes.discard("cardkit:card:write")
        target = Target(server.person("ann").chat)
        for key in ("k1", "k2"):
            draft = bot.platform.draft(target, key)
            for text in ("one", "one two", "one two"):
                await draft.show(text, "")
            message = server.seen(target.chat)[-1]
            assert (message.text, message.changes) == ("one two", 1)
            assert await draft.finish(Content(f"all of {key}"), key) == message.id
        assert [message.text for message in server.seen(target.chat)] == ["all of k1", "all of k2"]
        assert len(server.called("POST .*/cards$")) == 1  # once refused, it is not tried again


async def test_without_a_card_the_message_grows_all_the_same() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        server.faults.refuse("POST .*/cards$", 300301)
        draft = bot.platform.draft(target, "k")
        for text in ("one", "one two"):
            await draft.show(text, "works")
        message = only(server, target)
        assert (message.text, message.status, message.changes) == ("one two", "works", 1)
        await draft.finish(Content("all"), "k")
        assert only(server, target).text == "all"
        await bot.platform.draft(target, "k2").show("next", "")
        assert len(server.called("POST .*/cards$")) == 2


async def test_a_message_that_cannot_be_changed_is_replaced() -> None:
    async with FeishuServer() as server, account(server) as bot, account(server) as after:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        old = draft.message
        server.faults.refuse("PUT .*/cards/[^/]*$", 300306)
        server.faults.lose(POST)
        with pytest.raises(FateUnknown):
            await draft.finish(Content("all"), "k")
        # In the next process the card may be changed again.
        message = await after.platform.draft(target, "k", old).finish(Content("all"), "k")
        assert message != old
        assert (only(server, target).id, only(server, target).text) == (message, "all")


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_lost_answers_to_changes_leave_one_answer(times: int) -> None:
    """The HTTP client must not repeat a PUT by itself: its sequence is used up then."""
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        server.faults.lose("PUT ", times)
        message = ""
        while not message:
            with suppress(FateUnknown):
                message = await draft.finish(Content("all"), "k")
        assert (only(server, target).id, only(server, target).text) == (message, "all")
        assert not server.called("DELETE")
        sequences = [call.body["sequence"] for call in server.called("PUT")]
        assert len(set(sequences)) == len(sequences)


async def test_a_message_that_was_withdrawn_is_posted_again() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        server.messages[draft.message].deleted = True
        server.faults.refuse("PUT .*/cards/[^/]*$", 230011)
        await draft.finish(Content("all"), "k")
        assert only(server, target).text == "all"


async def test_refused_content_may_be_followed_by_another() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        with pytest.raises(Rejected):
            await draft.finish(Content("x" * 40_000), "k")
        await draft.finish(Content("shorter"), "k")
        assert only(server, target).text == "shorter"


async def test_sequences_jump_over_a_faster_past(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        (card,) = server.cards.values()
        await draft.show("two", "")
        card.sequence += 1000
        await draft.show("three", "")
        await draft.show("four", "")
        assert only(server, target).text == "four"
        assert server.refusals == {300317: 1}
        assert 0 < card.sequence < 1 << 31
        monkeypatch.setattr(time, "time", lambda: 0.0)  # the clock was set back
        await draft.show("five", "")
        assert only(server, target).text == "five"


@pytest.mark.parametrize(("status", "error"), [(429, RateLimited), (502, FateUnknown)])
async def test_a_failed_change_is_made_up_for_by_the_next_one(status: int, error: type[Unavailable]) -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        server.faults.fail(ELEMENT, status, Retry_After="3")
        with pytest.raises(error):
            await draft.show("two", "")
        await draft.show("two", "")
        assert only(server, target).text == "two"
        server.faults.fail("PUT .*/cards/[^/]*$", status)
        with pytest.raises(error):
            await draft.finish(Content("all"), "k")
        await draft.finish(Content("all"), "k")
        assert only(server, target).text == "all"


async def test_a_long_answer_shows_its_first_part() -> None:
    text = "".join(f"Paragraph {number} has words, and some more of them.\n\n" for number in range(600))
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        for end in (1000, 20_000, 25_000, 27_000, len(text)):
            await draft.show(text[:end], "")
        first = bot.platform.parts(text)[0]
        assert len(server.called(ELEMENT)) == 2
        shown = only(server, target).text
        await draft.finish(Content(first), "k")
        assert only(server, target).text == shown
        assert not server.refusals


async def test_dropped_is_taken_back() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        await bot.platform.draft(target, "never").drop()
        draft = bot.platform.draft(target, "k")
        await draft.show("one", "")
        await draft.drop()
        assert not server.seen(target.chat)
        await draft.drop()


@pytest.mark.parametrize("cardkit", [True, False])
async def test_the_pace_of_the_traits_breaks_no_rule(cardkit: bool) -> None:
    async with FeishuServer() as server, account(server) as bot:
        if not cardkit:
            server.scopes.discard("cardkit:card:write")
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("", "")
        server.refusals.clear()
        server.enforce_rates = True
        for number in range(40):
            server.skew += TRAITS.pace.edit_seconds
            await draft.show("x" * number, str(number))
        server.skew += TRAITS.pace.edit_seconds
        await draft.finish(Content("all"), "k")
        for number in range(20):
            server.skew += TRAITS.pace.send_seconds
            await bot.platform.post(target, Content("more"), f"k{number}")
        assert not server.refusals
        for number in range(20, 40):  # the rules are enforced
            with suppress(RateLimited):
                await bot.platform.post(target, Content("more"), f"k{number}")
        assert server.refusals[230020]
