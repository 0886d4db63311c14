"""What people write arrives as facts, once it is in custody, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest

from channels.chat import reconnecting
from channels.feishu import connection
from channels.feishu.platform import connect
from core.chat.facts import Attachment, Choice, Quoted, Target, key_of
from core.chat.port import Content, CredentialsDead
from core.errors import Unavailable
from tests.channels.feishu import platform_cards
from tests.channels.feishu.account import Watch, account, listening
from tests.channels.feishu.server import FeishuServer

pytestmark = pytest.mark.anyio


async def test_a_private_chat_is_one_conversation() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        message = ann.says("hello")
        event = await running.inbox.one()
        assert event.message == message
        assert event.target == Target(ann.chat, "", "private", reply_to=message, sender=ann.id)
        assert (event.text, event.sender, event.mentioned) == ("hello", ann.id, True)
        await server.until(lambda: server.acknowledged.get(message) == 200)
        assert server.delivered[message] == 1


async def test_in_a_group_each_root_is_a_conversation() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        team = server.group(ann)
        first = ann.says("ask", team, mention=True)
        await running.inbox.until(lambda: len(running.inbox.received) == 1)
        reply = ann.says("more", team, reply_to=first)
        deeper = ann.says("and more", team, reply_to=reply)
        other = ann.says("else", team)
        await running.inbox.until(lambda: len(running.inbox.received) == 4)
        events = {event.message: event for event in running.inbox.received}
        assert [events[id_].target.topic for id_ in (first, reply, deeper, other)] == [first, first, first, other]
        assert all(event.target.kind == "group" for event in events.values())
        assert (events[first].mentioned, events[reply].mentioned, events[other].mentioned) == (True, False, False)
        assert events[first].text == "ask"


async def test_what_the_agent_has_not_read_is_quoted_once() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann, bob = server.person("ann"), server.person("bob")
        server.scopes.add("im:message.group_msg")
        team = server.group(ann, bob)
        said = bob.says("the **plan**: @_user_1 does it", team)
        ann.says("I agree", team, reply_to=said)
        ann.says("what do you think?", team, mention=True, reply_to=said)
        await running.inbox.until(lambda: len(running.inbox.received) == 3)
        ann.says("well?", team, mention=True, reply_to=said)
        asked = ann.says("something else", team, mention=True)
        ann.says("and this", team, mention=True, reply_to=asked)
        await running.inbox.until(lambda: len(running.inbox.received) == 6)
        quotes = {event.text: event.quoted for event in running.inbox.received if event.quoted}
        assert quotes == {"what do you think?": Quoted('the **plan**: @"Sika" (ou_bot) does it', "Bob")}


async def test_a_message_that_cannot_be_read_is_not_quoted() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        team = server.group(ann)
        server.scopes.add("im:message.group_msg")
        said = ann.says("the plan", team)
        server.faults.fail("GET .*messages/", 502)
        ann.says("what do you think?", team, mention=True, reply_to=said)
        await running.inbox.until(lambda: len(running.inbox.received) == 2)
        assert [event.quoted for event in running.inbox.received] == [None, None]


async def test_a_reply_to_the_bot_is_addressed_to_it() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        team = server.group(ann)
        asked = ann.says("ask", team, mention=True)
        event = await running.inbox.one()
        answer = await running.platform.post(event.target, Content("done"), "k")
        ann.says("thanks", team, reply_to=answer)
        await running.inbox.until(lambda: len(running.inbox.received) == 2)
        assert running.inbox.received[1].mentioned
        assert running.inbox.received[1].target.topic == asked
        assert not server.called("GET .*/messages/om")

        # After a restart the platform is asked whose message it is, once.
    async with FeishuServer() as server, listening(server) as running:
        server.scopes.add("im:message.group_msg")
        ann = server.person("ann")
        team = server.group(ann)
        old = server.add_message(team, server.app_id, "text", {"text": "from before"})
        for text in ("one", "two"):
            ann.says(text, team, reply_to=old.id)
        await running.inbox.until(lambda: len(running.inbox.received) == 2)
        assert [event.mentioned for event in running.inbox.received] == [True, True]


async def test_mentions_are_names_and_the_bots_is_left_out() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        team = server.group(ann)
        bob = {"key": "@_user_2", "id": {"open_id": "ou_bob"}, "name": "@_user_1"}
        content = {"text": "@_user_1 ask @_user_2 and @_all, not @_user_3"}
        ann.sends("text", content, team, mention=True, mentions=[bob])
        event = await running.inbox.one()
        assert event.text == 'ask @"@_user_1" (ou_bob) and @all, not @_user_3'
        ann.sends("text", {"text": "@_all look"}, team)
        await running.inbox.until(lambda: len(running.inbox.received) == 2)
        assert not running.inbox.received[1].mentioned
        ann.says("", team, mention=True)
        await running.inbox.until(lambda: len(running.inbox.received) == 3)
        assert (running.inbox.received[2].text, running.inbox.received[2].mentioned) == ("", True)


async def test_people_have_names_where_the_app_may_read_them() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        for text in ("one", "two"):
            ann.says(text)
        await running.inbox.until(lambda: len(running.inbox.received) == 2)
        assert {event.sender_name for event in running.inbox.received} <= {"Ann"}
        bob = server.person("bob")
        server.faults.fail("GET .*/users/ou_bob", 502)
        bob.says("three")
        await running.inbox.until(lambda: len(running.inbox.received) == 3)
        assert running.inbox.received[2].sender_name == ""
        bob.says("four")
        await running.inbox.until(lambda: len(running.inbox.received) == 4)
        assert running.inbox.received[3].sender_name == "Bob"

    async with FeishuServer() as server, listening(server) as running:
        server.scopes -= {"contact:contact.base:readonly", "contact:user.base:readonly"}
        for name in ("ann", "bob"):
            server.person(name).says("hello")
            await running.inbox.until(lambda name=name: any(name in e.sender for e in running.inbox.received))  # type: ignore[misc]
        assert [event.sender_name for event in running.inbox.received] == ["", ""]
        assert len(server.called("GET .*/users/")) == 1


async def test_many_people_at_once_are_within_the_rates() -> None:
    async with FeishuServer() as server, listening(server) as running:
        server.enforce_rates = True
        messages = {server.person(f"p{number}").says("hello") for number in range(100)}
        await running.inbox.until(lambda: len(running.inbox.received) == 100)
        assert {event.message for event in running.inbox.received} == messages
        assert not server.refusals


async def test_messages_of_apps_are_not_received() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        echo = ann.sends("text", {"text": "I am a bot"}, sender_type="app")
        await server.until(lambda: server.acknowledged.get(echo) == 200)
        ann.says("I am not")
        assert (await running.inbox.one()).text == "I am not"


async def test_rich_text_keeps_its_parts_in_order() -> None:
    async with FeishuServer() as server, listening(server) as running:
        image = server.store(b"png", "image")
        content = {
            "title": "Report",
            "content": [
                [
                    {"tag": "at", "user_id": "@_user_1"},
                    {"tag": "at", "user_id": "all"},
                    {"tag": "at", "user_id": "ou_bob"},
                    {"tag": "at", "user_id": "ou_cy", "user_name": "Cy <system>"},
                    {"tag": "text", "text": " see "},
                    {"tag": "img", "image_key": image},
                ],
                [{"tag": "a", "text": "this", "href": "https://example.com"}],
                [{"tag": "code_block", "language": "PYTHON", "text": "print(1)\n"}],
            ],
        }
        server.person("bob")
        server.person("ann").sends("post", content, mention=True)
        event = await running.inbox.one()
        people = '@all@"Bob" (ou_bob)@"Cy &lt;system>" (ou_cy)'
        text = "Report\n\nsee [image]\n\n[this](https://example.com)\n\n```python\nprint(1)\n```"
        assert event.text == text.replace("Report\n\nsee", f"Report\n\n{people} see")
        assert event.attachments == (Attachment(image, f"{image}.png", "image", "image/png"),)


@pytest.mark.parametrize(
    ("kind", "content", "attachment"),
    [
        ("image", {"image_key": "k"}, Attachment("k", "k.png", "image", "image/png")),
        ("file", {"file_key": "k", "file_name": "a b.pdf"}, Attachment("k", "a b.pdf")),
        ("audio", {"file_key": "k", "duration": 900}, Attachment("k", "k.opus", "voice", "audio/ogg")),
        ("media", {"file_key": "k", "file_name": "f.mp4", "image_key": "i"}, Attachment("k", "f.mp4", "video")),
        ("sticker", {"file_key": "k"}, None),
    ],
)
async def test_kinds_of_messages(kind: str, content: dict[str, str], attachment: Attachment | None) -> None:
    async with FeishuServer() as server, listening(server) as running:
        server.person("ann").sends(kind, content)
        event = await running.inbox.one()
        assert event.attachments == ((attachment,) if attachment else ())
        assert event.text == ("" if attachment else "[sticker]")


async def test_files_sent_at_once_are_an_album() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann, bob = server.person("ann"), server.person("bob")
        team = server.group(ann, bob)
        first = ann.sends_file("1.txt", b"1", at=0)
        ann.sends_file("2.png", b"2", kind="image", at=0.7)
        ann.sends_file("3.txt", b"3", at=1.4)
        later = ann.sends_file("4.txt", b"4", at=3)
        bobs = bob.sends_file("5.txt", b"5", team, at=3)
        ann.says("what is this?", at=3)
        await running.inbox.until(lambda: len(running.inbox.received) == 6)
        albums = {
            event.attachments[0].name if event.attachments else "": event.album for event in running.inbox.received
        }
        assert albums[""] == ""
        names = [name for name, album in albums.items() if album == first]
        assert len(names) == 3
        assert (albums["4.txt"], albums["5.txt"]) == (later, bobs)


async def test_a_button_comes_back_with_its_plan_and_place() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        team = server.group(ann)
        asked = ann.says("delete it", team, mention=True)
        target = (await running.inbox.one()).target
        await running.platform.post(target, platform_cards.question("p-1"), "q")
        (message,) = server.seen(team)
        answer = await ann.presses(message, "Yes")
        assert answer is not None
        assert answer["toast"]["type"] == "info"
        event = running.inbox.received[1]
        assert event.choice == Choice("p-1", "yes")
        assert event.sender == ann.id
        assert event.target == Target(team, asked, "group", reply_to=asked, sender=ann.id)


async def test_a_press_by_somebody_else_is_another_one() -> None:
    """Else it would hide that of the person who was asked: a message that was received before is dropped."""
    async with FeishuServer() as server, listening(server) as running:
        ann, ben = server.person("ann"), server.person("ben")
        team = server.group(ann, ben)
        await running.platform.post(Target(team, kind="group"), platform_cards.question("p-1"), "q")
        (message,) = server.seen(team)
        for person in (ben, ann, ann):
            assert await person.presses(message, "Yes") is not None
        ben_pressed, pressed, again = map(key_of, running.inbox.received)
        assert ben_pressed != pressed == again


async def test_a_pressed_button_out_of_custody_is_not_acknowledged() -> None:
    async with FeishuServer() as server, listening(server) as running:
        ann = server.person("ann")
        await running.platform.post(Target(ann.chat), platform_cards.question("p-1"), "q")
        running.inbox.errors.append(Unavailable("the log is away"))
        assert await ann.presses(server.seen(ann.chat)[0], "Yes") is None
        assert await ann.presses(server.seen(ann.chat)[0], "Yes") is not None


async def test_out_of_custody_is_delivered_again() -> None:
    """F9: an acknowledgement of 500, and the same event comes once more."""
    async with FeishuServer() as server, listening(server) as running:
        server.redelivery = (0.05, 0.05)
        running.inbox.errors.append(Unavailable("the log is away"))
        message = server.person("ann").says("hello")
        assert (await running.inbox.one()).message == message
        await server.until(lambda: server.acknowledged[message] == 200)
        assert server.delivered[message] == 2


async def test_a_slow_custody_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: the platform is answered within its time, and other messages arrive meanwhile."""
    monkeypatch.setattr(connection, "CUSTODY_SECONDS", 0.3)
    async with FeishuServer() as server, listening(server) as running:
        server.redelivery = (0.05, 0.05)
        running.inbox.hangs = 1
        slow = server.person("ann").says("slow")
        quick = server.person("bob").says("quick")
        await running.inbox.until(lambda: len(running.inbox.received) == 2)
        assert [event.message for event in running.inbox.received] == [quick, slow]
        assert server.delivered[slow] == 2


async def test_messages_of_a_chat_keep_their_order() -> None:
    async with FeishuServer() as server, listening(server) as running:
        running.inbox.delays = [0.1, 0.05, 0]
        ann = server.person("ann")
        messages = [ann.says(str(number)) for number in range(5)]
        await running.inbox.until(lambda: len(running.inbox.received) == 5)
        assert [event.message for event in running.inbox.received] == messages


async def test_an_event_that_is_not_understood_ends_nothing() -> None:
    async with FeishuServer() as server, listening(server) as running:
        server.redelivery = ()
        server.deliver("im.message.receive_v1", {"message": {}})
        server.deliver("im.chat.updated_v1", {"chat_id": "c"})
        server.person("ann").sends("text", {"text": 5})
        server.person("bob").says("hello")
        assert (await running.inbox.one()).text == "hello"


async def test_events_in_several_frames_are_joined() -> None:
    async with FeishuServer() as server, listening(server) as running:
        server.frame_bytes = 100
        text = "long " * 200
        server.person("ann").says(text)
        assert (await running.inbox.one()).text == text.strip()


async def test_deliveries_again_and_out_of_order_carry_the_same_keys() -> None:
    async with FeishuServer() as server, listening(server) as running:
        server.faults.duplicates = 2
        server.faults.reorder = 2
        ann = server.person("ann")
        messages = [ann.says("one"), ann.says("two")]
        await running.inbox.until(lambda: len(running.inbox.received) == 6)
        assert {event.message for event in running.inbox.received} == set(messages)


async def test_a_cut_connection_is_opened_again() -> None:
    async with FeishuServer() as server, listening(server) as running:
        for number, end in enumerate((server.faults.drop_sockets, server.faults.close_sockets), 1):
            await server.until(lambda number=number: running.watch.connections == number)  # type: ignore[misc]
            before = server.handshakes
            if (closing := end()) is not None:
                await closing
            await server.until(lambda before=before: server.handshakes > before and server.sockets)  # type: ignore[misc]
        message = server.person("ann").says("still there?")
        assert (await running.inbox.one()).message == message
        assert server.most_sockets == 1
        assert len(running.watch.ends) == 2
        assert running.watch.connections == 3


async def test_a_silent_connection_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open."""
    monkeypatch.setattr(connection, "PING_SECONDS", 0.2)
    async with FeishuServer() as server, listening(server) as running:
        await server.until(lambda: running.watch.frames)
        server.faults.mute = True
        await server.until(lambda: running.watch.ends)
        server.faults.mute = False
        assert "no answer" in running.watch.ends[0]
        server.redelivery = (0.2,) * 50
        server.person("ann").says("hello")
        assert (await running.inbox.one()).text == "hello"


async def test_refusals_to_connect_are_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5, F6: whatever the refusal, also an unknown one, the connection is tried again, and soon."""
    monkeypatch.setattr(reconnecting, "LONGEST_PAUSE", 0.05)
    async with FeishuServer() as server, listening(server) as running:
        server.faults.endpoint.extend((1, 1000040343, 1000040350, 4711))
        server.faults.handshakes.append((514, "not now"))
        server.faults.fail("POST /callback", 502)
        server.faults.drop_sockets()
        await server.until(lambda: not server.sockets)
        await server.until(lambda: server.sockets)
        reasons = " ".join(running.watch.ends)
        assert all(part in reasons for part in ("1000040343", "1000040350", "4711", "514 not now", "HTTP 502"))
        server.person("ann").says("hello")
        assert (await running.inbox.one()).text == "hello"


async def test_pauses_grow_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    async with FeishuServer() as server, account(server) as running:
        server.faults.fail("POST /callback", 503, times=12)
        monkeypatch.setattr(anyio, "sleep", sleep)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running.platform.listen, running.inbox.receive, running.watch)
            await server.until(lambda: server.sockets)
            tasks.cancel_scope.cancel()
    assert len(pauses) >= 12
    assert pauses[0] <= 0.5
    assert 30 <= pauses[11] <= 60


async def test_a_rate_limit_of_connections_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    async with FeishuServer() as server, account(server) as running:
        server.faults.fail("POST /callback", 429, Retry_After="7")
        monkeypatch.setattr(anyio, "sleep", sleep)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running.platform.listen, running.inbox.receive, running.watch)
            await server.until(lambda: server.sockets)
            tasks.cancel_scope.cancel()
    assert pauses[0] == 7


async def test_dead_credentials_are_named_at_once_and_later() -> None:
    async with FeishuServer() as server:
        bot = connect({**server.settings, "app_secret": "another"})
        with pytest.raises(CredentialsDead) as error, anyio.fail_after(120):
            await bot.listen(_nobody, Watch())
        assert "another" not in str(error.value)
        await bot.close()

        bot = connect(server.settings)
        task = asyncio.ensure_future(bot.listen(_nobody, Watch()))
        await server.until(lambda: server.sockets)
        server.secret_is_dead = True
        server.faults.drop_sockets()
        with pytest.raises(CredentialsDead), anyio.fail_after(120):
            await task
        await bot.close()


async def test_a_cancelled_account_leaves_nothing_behind() -> None:
    async with FeishuServer() as server:
        server.redelivery = ()
        before, threads = asyncio.all_tasks(), threading.active_count()
        async with listening(server) as running:
            running.inbox.hangs = 1
            server.person("ann").says("hello")
            await running.inbox.until(lambda: not running.inbox.hangs)
        async with listening(server):
            server.faults.mute = True  # the closing of the socket is not answered either
        server.faults.mute = False
        for socket in server.sockets:
            socket.unmute.set()
        await server.until(lambda: not server.sockets)

        def left() -> list[asyncio.Task[Any]]:
            others = (task for task in asyncio.all_tasks() - before if "/tests/" not in str(task))
            return [task for task in others if "aiohttp" not in str(task)]

        await server.until(lambda: not left())  # those of a socket end in the turns after it
        assert threading.active_count() <= threads


async def test_two_accounts_in_one_process_know_nothing_of_each_other() -> None:
    """Neither a loop nor a token is one for all."""
    async with FeishuServer() as one, FeishuServer() as two, listening(one) as first, listening(two) as second:
        one.person("ann").says("to one")
        two.person("ann").says("to two")
        assert (await first.inbox.one()).text == "to one"
        assert (await second.inbox.one()).text == "to two"


async def _nobody(event: object) -> None:
    raise AssertionError("nobody writes here")
