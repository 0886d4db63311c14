"""What people write arrives as messages of the port: topics, mentions, files, buttons."""

from __future__ import annotations

import pytest

from core.chat.facts import Attachment, Button, Choice, Quoted, Target, key_of
from core.chat.port import Content
from core.errors import Unavailable
from tests.channels.telegram.conftest import Account, until
from tests.channels.telegram.server import BOT_NAME, TelegramServer

pytestmark = pytest.mark.anyio


async def test_a_private_message(server: TelegramServer, account: Account) -> None:
    ann = server.person("ann")
    number = ann.says("hello 👋 there")
    message = await account.message()
    assert (message.text, message.sender, message.sender_name) == ("hello 👋 there", str(ann.id), "ann")
    assert message.target == Target(chat=str(ann.chat), reply_to=str(number), sender=str(ann.id))
    assert message.message == str(number)
    assert message.mentioned
    assert message.sent_at.startswith("2025-")


async def test_a_group_message_begins_a_topic_and_replies_go_on_in_it(server: TelegramServer, account: Account) -> None:
    ann, chat = server.person("ann"), server.group()
    first = ann.says(f"@{BOT_NAME}, what is this?", chat)
    message = await account.message()
    assert (message.text, message.mentioned) == ("what is this?", True)
    assert message.target == Target(str(chat), str(first), "group", str(first), str(ann.id))
    second = ann.says(f"and @{BOT_NAME} that?", chat, reply_to=first)
    message = await account.message()
    assert (message.text, message.target.topic, message.target.reply_to) == ("and that?", str(first), str(second))


async def test_a_reply_to_the_bot_is_addressed_to_it(server: TelegramServer, account: Account) -> None:
    ann, chat = server.person("ann"), server.group()
    answer = await account.platform.post(Target(str(chat), kind="group"), Content("An answer"), "k")
    ann.says("Thanks", chat, reply_to=int(answer))
    message = await account.message()
    assert (message.mentioned, message.target.topic) == (True, answer)


async def test_what_a_message_replies_to_is_quoted(server: TelegramServer, account: Account) -> None:
    ann = server.person("ann")
    first = ann.says("all of it")
    ann.says("what is this?", reply_to=first)
    ann.says("and this?", reply_to=first, quote={"text": "of it", "position": 4})
    messages = await account.messages(3)
    assert [message.quoted for message in messages] == [None, Quoted("all of it", "ann"), Quoted("of it", "ann")]


async def test_who_is_meant_in_a_group(server: TelegramServer, account: Account) -> None:
    server.privacy = False
    ann, ben, chat = server.person("ann"), server.person("ben"), server.group()
    own = {"id": 123456789, "is_bot": True, "first_name": "Sika"}
    ben_said = ben.says("Hi all", chat)
    ann.says("Not for @ben", chat, reply_to=ben_said)
    ann.says(f"/status@{BOT_NAME.upper()} now", chat)
    ann.says("/status@other_bot", chat)
    ann.says("/connect@other_bot code", chat, reply_to=ben_said)
    ann.says("/new", chat)
    ann.says("/unknown", chat)
    ann.says("Sika do", chat, entities=[{"type": "text_mention", "offset": 0, "length": 4, "user": own}])
    ann.says(f"@{BOT_NAME}", chat)
    messages = await account.messages(7)
    assert [(message.text, message.mentioned) for message in messages] == [
        ("Hi all", False),
        ("Not for @ben", False),
        ("/status now", True),
        ("/new", True),
        ("/unknown", False),
        ("do", True),
        ("", True),
    ]


async def test_a_topic_of_a_forum(server: TelegramServer, account: Account) -> None:
    """Each message of a topic answers the one that created it, by the bot or by others: that is no reply."""
    ann, chat = server.person("ann"), server.group(forum=True)
    topic = server.topic(chat, "Plans")
    server.privacy = False
    ann.says("Without the bot", chat, thread=topic)
    ann.says(f"@{BOT_NAME} go", chat, thread=topic)
    first, second = await account.messages(2)
    assert (first.mentioned, second.mentioned) == (False, True)
    assert first.target.topic == second.target.topic
    await account.platform.post(second.target, Content("Gone"), "k")
    assert [shown.text for shown in server.seen(chat, topic)][-1] == "Gone"


async def test_a_topic_of_a_private_chat(server: TelegramServer, account: Account) -> None:
    ann = server.person("ann")
    topic = server.topic(ann.chat, "Plans")
    ann.says("hello", thread=topic)
    message = await account.message()
    assert (message.target.kind, message.target.topic) == ("private", f"forum:{topic}")
    draft = account.platform.draft(message.target, "run-1")
    await draft.show("Once", "")
    await draft.finish(Content("The end"), "k")
    assert [shown.text for shown in server.seen(ann.chat, topic)] == ["hello", "The end"]
    assert [call.parameters["message_thread_id"] for call in server.made("sendMessageDraft")] == [topic]


async def test_the_offsets_of_mentions_are_utf16_units(server: TelegramServer, account: Account) -> None:
    ann, chat = server.person("ann"), server.group()
    ann.says(f"👩‍👩‍👧 family @{BOT_NAME} 🎉 done", chat)
    message = await account.message()
    assert message.text == "👩‍👩‍👧 family 🎉 done"


async def test_a_link_behind_words_is_kept(server: TelegramServer, account: Account) -> None:
    mark = {"type": "text_link", "offset": 5, "length": 4, "url": "https://example.org/a"}
    server.person("ann").says("Read this now", entities=[mark])
    message = await account.message()
    assert message.text == "Read this (https://example.org/a) now"


async def test_bots_and_service_messages_are_ignored(server: TelegramServer, account: Account) -> None:
    chat = server.group()
    server.privacy = False
    server.person("other", is_bot=True).says(f"@{BOT_NAME} hello", chat)
    ann = server.person("ann")
    server.write(ann, chat, None, None, new_chat_members=[ann.json])
    server.write(ann, chat, None, None, text="From the channel", is_automatic_forward=True)
    ann.says("Last", chat)
    await until(lambda: account.received)
    assert [message.text for message in account.received] == ["Last"]


async def test_an_edited_message_has_a_key_of_its_own(server: TelegramServer, account: Account) -> None:
    ann = server.person("ann")
    number = ann.says("helo")
    ann.edits(number, "hello")
    ann.edits(number, "hello!")
    messages = await account.messages(3)
    assert [message.text for message in messages] == ["helo", "hello", "hello!"]
    assert {message.message for message in messages} == {str(number)}
    assert len({key_of(message) for message in messages}) == 3


async def test_attachments(server: TelegramServer, account: Account) -> None:
    ann = server.person("ann")
    ann.sends(b"%PDF", "report.pdf", mime="application/pdf", caption=f"Read @{BOT_NAME}")
    ann.sends(b"\xff\xd8\xff" + b"0" * 100, kind="photo")
    ann.sends(b"OggS", kind="voice", mime="audio/ogg")
    ann.sends(b"mp4", "film.mp4", kind="video", mime="video/mp4")
    ann.sends(b"png", "chart.png", mime="image/png")
    report, photo, voice, video, image = await account.messages(5)
    assert report.text == "Read"
    assert report.attachments == (Attachment(report.attachments[0].id, "report.pdf", "document", "application/pdf", 4),)
    assert (photo.attachments[0].kind, photo.attachments[0].size) == ("image", 103)
    assert (voice.attachments[0].kind, video.attachments[0].kind) == ("voice", "video")
    assert (image.attachments[0].kind, image.attachments[0].name) == ("image", "chart.png")


async def test_the_messages_of_an_album_belong_together(server: TelegramServer, account: Account) -> None:
    ann = server.person("ann")
    for letter in (b"a", b"b"):
        ann.sends(letter, kind="photo", album="77", caption="two" if letter == b"a" else "")
    messages = await account.messages(2)
    assert [(message.album, message.text) for message in messages] == [("77", "two"), ("77", "")]


async def test_what_has_no_text_gets_words(server: TelegramServer, account: Account) -> None:
    ann = server.person("ann")
    server.write(ann, ann.chat, None, None, location={"latitude": 1.5, "longitude": 2.5})
    server.write(ann, ann.chat, None, None, dice={"emoji": "🎲", "value": 3})
    server.write(ann, ann.chat, None, None, contact={"phone_number": "+49", "first_name": "Ben"})
    messages = await account.messages(3)
    assert [message.text for message in messages] == ["Location: 1.5, 2.5", "🎲 3", "Contact: Ben +49"]


RUN = "0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e0"
QUESTION = Content("Delete it?", buttons=(Button("yes", "Yes", "danger"), Button("longest_id12", "No")), plan=RUN)


async def test_a_pressed_button_comes_back_as_a_choice(server: TelegramServer, account: Account, ann: Target) -> None:
    shown = await account.platform.post(ann, QUESTION, "k")
    press = server.person("ann").presses(int(shown), "No")
    message = await account.message()
    assert message.choice == Choice(RUN, "longest_id12")
    assert message.target == Target(ann.chat, reply_to=shown, sender=ann.sender)
    await until(lambda: server.answered == [press])


async def test_presses_of_two_people_in_a_group_have_different_keys(
    server: TelegramServer, account: Account, team: Target
) -> None:
    shown = await account.platform.post(team, QUESTION, "k")
    for name in ("ann", "ben"):
        server.person(name).presses(int(shown), "Yes", int(team.chat))
    first, second = await account.messages(2)
    assert key_of(first) != key_of(second)
    assert {first.target.topic, second.target.topic} == {shown}


async def test_a_press_is_acknowledged_only_when_it_is_in_the_log(
    server: TelegramServer, account: Account, ann: Target
) -> None:
    shown = await account.platform.post(ann, QUESTION, "k")
    account.refusals = [Unavailable("the log is away")]
    server.person("ann").presses(int(shown), "Yes")
    await account.messages(1)
    await until(lambda: server.answered)
    assert account.refusals == []
    assert len(server.answered) == 1


async def test_the_stop_button_of_a_draft_is_the_command(server: TelegramServer, account: Account, ann: Target) -> None:
    draft = account.platform.draft(ann, "run-1")
    await draft.show("Once upon", "")
    server.person("ann").stops()
    message = await account.message()
    assert (message.text, message.sender, message.target.chat) == ("/stop", ann.sender, ann.chat)


async def test_a_late_press_of_stop_does_not_stop_the_next_answer(
    server: TelegramServer, account: Account, ann: Target
) -> None:
    draft = account.platform.draft(ann, "run-1")
    await draft.show("Once upon", "")
    number = next(iter(server.chat(int(ann.chat)).drafts))
    await draft.finish(Content("Once upon a time"), "k")
    server.person("ann").stops(number)
    server.person("ann").says("next")
    message = await account.message()
    assert message.text == "next"


async def test_the_menu_of_commands_is_registered(server: TelegramServer, account: Account) -> None:
    assert {"new", "stop", "help"} <= {command["command"] for command in server.commands}


async def test_an_update_of_unknown_shape_hides_no_other(server: TelegramServer, account: Account) -> None:
    server.update("message", {"message_id": "what", "no": "chat"})
    server.person("ann").says("hello")
    message = await account.message()
    assert message.text == "hello"
    await until(lambda: not server.waiting())


async def test_a_start_payload_arrives_as_it_is(server: TelegramServer, account: Account) -> None:
    server.person("ann").says("/start Ab-c_1")
    assert (await account.message()).text == "/start Ab-c_1"
