"""Posting and editing: what people see, and what is certain after each failure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from channels.telegram.platform import Telegram
from core.chat.facts import Button, Target
from core.chat.port import (
    ChatGone,
    Content,
    CredentialsDead,
    FateUnknown,
    Platform,
    RateLimited,
    Rejected,
)
from core.errors import Unavailable
from tests.channels.telegram.server import TelegramServer

pytestmark = pytest.mark.anyio

HELLO = Content("Hello **there**")


def _replace(target: Target, **changes: str) -> Target:
    fields = {name: getattr(target, name) for name in target.__struct_fields__}
    return Target(**(fields | changes))


async def test_a_message_has_entities_and_answers_its_question(
    server: TelegramServer, platform: Telegram, ann: Target
) -> None:
    question = server.person("ann").says("hi")
    message = await platform.post(_replace(ann, reply_to=str(question)), Content("👋 **there**", status="reading"), "k")
    shown = server.seen(int(ann.chat))[-1]
    assert (shown.text, shown.reply_to, str(shown.id)) == ("👋 there\n\nreading", question, message)
    assert [(mark["type"], mark["offset"], mark["length"]) for mark in shown.entities] == [
        ("bold", 3, 5),
        ("italic", 10, 7),
    ]


async def test_a_reply_to_a_deleted_message_is_sent_without(
    server: TelegramServer, platform: Telegram, ann: Target
) -> None:
    await platform.post(_replace(ann, reply_to="999"), HELLO, "k")
    assert server.answers(int(ann.chat)) == ["Hello there"]


async def test_all_parts_of_a_long_answer_are_taken(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    source = "\n\n".join(f"**Point {n}** 😀 and `code {n}`, [link](https://example.org/{n})." for n in range(150))
    parts = platform.parts(source)
    assert len(parts) > 1
    for part in parts:
        await platform.post(ann, Content(part), "k")
    text = "\n\n".join(server.answers(int(ann.chat)))
    assert [n for n in range(150) if f"Point {n} " not in text] == []


async def test_a_part_that_fills_the_message_leaves_the_status_out(
    server: TelegramServer, platform: Telegram, ann: Target
) -> None:
    await platform.post(ann, Content("x" * 4096, status="reading"), "k")
    assert server.answers(int(ann.chat)) == ["x" * 4096]


async def test_buttons(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    run = "0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e0"
    buttons = (Button("approve", "Approve", "primary"), Button("reject", "Reject", "danger"), Button("c" * 12, "Later"))
    message = await platform.post(ann, Content("Sure?", buttons=buttons, plan=run), "k")
    shown = server.seen(int(ann.chat))[-1]
    assert [(button["text"], button.get("style")) for button in shown.buttons] == [
        ("Approve", "primary"),
        ("Reject", "danger"),
        ("Later", None),
    ]
    await platform.edit(ann, message, Content("Approved by ann"))
    assert (shown.text, shown.buttons) == ("Approved by ann", [])


async def test_a_plan_that_leaves_no_room_for_its_buttons_is_refused(platform: Telegram, ann: Target) -> None:
    with pytest.raises(Rejected, match="64 bytes"):
        await platform.post(ann, Content("Sure?", buttons=(Button("yes", "Yes"),), plan="p" * 61), "k")


async def test_entities_that_telegram_refuses_are_left_out(
    server: TelegramServer, platform: Telegram, ann: Target
) -> None:
    """Trap T3: descriptions are compared whatever their case."""
    server.faults.add(
        "sendMessage", "gone", status=400, description="Bad Request: CAN'T PARSE ENTITIES: ENTITY_BOUNDS_INVALID"
    )
    await platform.post(ann, HELLO, "k")
    shown = server.seen(int(ann.chat))[-1]
    assert (shown.text, shown.entities) == ("Hello there", [])


@pytest.mark.parametrize("fault", [("lose", 0), ("status", 502), ("status", 500), ("html", 200), ("drop", 0)])
async def test_a_post_without_an_answer_is_of_unknown_fate_and_not_repeated(
    server: TelegramServer, platform: Telegram, ann: Target, fault: tuple[Any, int]
) -> None:
    """Trap T4."""
    kind, status = fault
    server.faults.add("sendMessage", kind, status=status)
    with pytest.raises(FateUnknown):
        await platform.post(ann, HELLO, "k")
    assert len(server.made("sendMessage")) == 1
    assert len(server.answers(int(ann.chat))) == (1 if kind == "lose" else 0)


async def test_an_unreachable_server_has_certainly_nothing(
    server: TelegramServer, platform: Telegram, ann: Target
) -> None:
    await server.stop()
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        await platform.post(ann, HELLO, "k")
    assert not isinstance(caught.value, FateUnknown)
    await server.start()
    await platform.post(ann, HELLO, "k")
    assert server.answers(int(ann.chat)) == ["Hello there"]


async def test_a_flood_says_how_long_to_wait(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    server.faults.add("sendMessage", "flood", seconds=14)
    with pytest.raises(RateLimited) as caught:
        await platform.post(ann, HELLO, "k")
    assert caught.value.seconds == 14.0
    assert len(server.made("sendMessage")) == 1


async def test_a_storm_of_messages_is_refused_by_the_server(
    server: TelegramServer, platform: Telegram, ann: Target
) -> None:
    """The local server checks Telegram's rates itself."""
    server.rates = True

    async def storm() -> None:
        for _ in range(10):
            await platform.post(ann, HELLO, "k")

    with pytest.raises(RateLimited):
        await storm()
    assert server.violations


async def test_a_blocked_bot_a_lost_chat_and_a_bad_id(server: TelegramServer, platform: Telegram, team: Target) -> None:
    server.person("ben").blocks()
    server.remove_bot(int(team.chat))
    for target in (Target(str(server.person("ben").chat)), team, Target("42"), Target("@channel")):
        with pytest.raises(ChatGone):
            await platform.post(target, HELLO, "k")


async def test_content_that_is_refused(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    with pytest.raises(Rejected, match="Message text is empty"):
        await platform.post(ann, Content("\n"), "k")
    with pytest.raises(Rejected, match="Message_too_long"):
        await platform.post(ann, Content("x" * 4097), "k")


async def test_a_dead_token(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    server.token = "1:revoked"
    with pytest.raises(CredentialsDead):
        await platform.post(ann, HELLO, "k")


async def test_an_edit_repeats_without_effect(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    message = await platform.post(ann, HELLO, "k")
    server.faults.add("editMessageText", "lose")
    with pytest.raises(Unavailable) as caught:
        await platform.edit(ann, message, Content("Bye"))
    assert not isinstance(caught.value, FateUnknown)
    await platform.edit(ann, message, Content("Bye"))
    assert [(shown.text, shown.edits) for shown in server.seen(int(ann.chat))] == [("Bye", 1)]


async def test_an_edit_of_a_deleted_message(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    message = await platform.post(ann, HELLO, "k")
    server.chat(int(ann.chat)).messages.clear()
    with pytest.raises(ChatGone, match="Message to edit not found"):
        await platform.edit(ann, message, Content("Bye"))


async def test_a_group_that_became_a_supergroup(server: TelegramServer, platform: Telegram) -> None:
    """Nothing was sent to the old group, and its message ids mean nothing in the new one."""
    old = server.group(kind="group")
    question = server.person("ann").says("/status", old)
    fresh = server.upgrade(old)
    target = Target(str(old), str(question), "group", str(question))
    for text in ("one", "two"):
        await platform.post(target, Content(text), "k")
    assert [(shown.text, shown.reply_to) for shown in server.seen(fresh)] == [("one", None), ("two", None)]
    assert [call.parameters["chat_id"] for call in server.made("sendMessage")] == [old, fresh, fresh]


async def test_a_topic_of_a_forum_that_is_gone(server: TelegramServer, platform: Telegram) -> None:
    chat = server.group(forum=True)
    with pytest.raises(ChatGone, match="Message thread not found"):
        await platform.post(Target(str(chat), "forum:77", "group"), HELLO, "k")


async def test_the_working_sign(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    await platform.working(ann, True)
    await platform.working(ann, False)
    assert server.actions == {int(ann.chat): 1}


async def test_nothing_can_be_looked_for(platform: Platform, ann: Target) -> None:
    assert not platform.traits.answers_can_be_found
    with pytest.raises(FateUnknown):
        await platform.find(ann, "k", datetime.now(UTC))


async def test_the_check_names_what_is_wrong(server: TelegramServer, platform: Telegram) -> None:
    findings = await platform.check()
    assert [finding.ok for finding in findings] == [True, True, True]
    assert "@sika_test_bot" in findings[0].what
    assert "/setprivacy" in findings[2].advice
    server.webhook = "https://example.org"
    assert "deleteWebhook" in next(finding.advice for finding in await platform.check() if not finding.ok)
    server.token = "1:revoked"
    findings = await platform.check()
    assert [(finding.ok, finding.what) for finding in findings] == [(False, "the bot token")]
    await server.stop()
    findings = await platform.check()
    assert [(finding.ok, finding.what) for finding in findings] == [(False, "the connection to Telegram")]
