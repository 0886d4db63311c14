"""Messages from DingTalk: what arrives, when it is acknowledged, and how the connection is kept alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from channels.dingtalk import translation
from channels.dingtalk.platform import DingTalk, connect
from core.chat.facts import Button, ChatReceived, Choice, Quoted, Target, key_of
from core.chat.port import Content, CredentialsDead
from core.errors import Invalid, Unavailable
from tests.channels.dingtalk.server import ANSWER_TEMPLATE, BUTTON_TEMPLATE, CARD, ROBOT, DingTalkServer

pytestmark = pytest.mark.anyio


class Account:
    """What the account's process does with the port: the log as a list, and the state of the connection."""

    def __init__(self) -> None:
        self.received: list[ChatReceived] = []
        self.deliveries = 0
        self.down = 0
        """So many calls fail as if the log was out of reach."""
        self.gate = anyio.Event()
        self.gate.set()
        self.connections = 0
        self.frames = 0
        self.reasons: list[str] = []

    async def receive(self, event: ChatReceived) -> None:
        self.deliveries += 1
        if self.down:
            self.down -= 1
            raise Unavailable("the log is out of reach")
        await self.gate.wait()
        if key_of(event) not in map(key_of, self.received):
            self.received.append(event)

    def connected(self) -> None:
        self.connections += 1

    def heard(self) -> None:
        self.frames += 1

    def disconnected(self, reason: str) -> None:
        self.reasons.append(reason)

    @property
    def texts(self) -> list[str]:
        return [event.text for event in self.received]


def dingtalk(server: DingTalkServer, **settings: str) -> DingTalk:
    return DingTalk({**server.settings, **settings}, ping_seconds=0.3, pause=0.02)


@asynccontextmanager
async def listening(server: DingTalkServer, **settings: str) -> AsyncIterator[tuple[Account, DingTalk]]:
    account, platform = Account(), dingtalk(server, **settings)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(platform.listen, account.receive, account)
            await server.until(lambda: bool(server.sockets))
            yield account, platform
            tasks.cancel_scope.cancel()
    finally:
        await platform.close()


async def test_a_private_message_is_received_and_acknowledged() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        id_ = await server.person("ann").says("hello")
        await server.until(lambda: not server.waits())
        (event,) = account.received
        assert event.message == id_
        assert (event.text, event.sender, event.sender_name, event.mentioned) == ("hello", "staff-ann", "Ann", True)
        assert event.target == Target(
            "staff-ann", "", "private", reply_to=f"{id_} cid-private-ann==", sender="staff-ann"
        )
        assert event.sent_at.startswith("20")
        assert [topic["topic"] for topic in server.subscriptions] == [ROBOT, CARD]


async def test_a_group_message_is_a_topic_of_its_own_without_the_mention() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        first = await server.person("ann").says("one", chat="team")
        second = await server.person("bob").says("two", chat="team")
        await server.until(lambda: not server.waits())
        assert account.texts == ["one", "two"]
        assert [event.target.chat for event in account.received] == ["cid-team=="] * 2
        assert [event.target.topic for event in account.received] == [first, second]
        assert all(event.mentioned and event.target.kind == "group" for event in account.received)


async def test_kinds_that_the_sdk_does_not_parse_are_read_from_the_data() -> None:  # D3
    async with DingTalkServer() as server, listening(server) as (account, _):
        ann = server.person("ann")
        await ann.sends("plan.pdf", b"%PDF")
        await ann.sends("", b"amr", "audio", recognition="call me back", duration=4000)
        await ann.sends("", b"mp4", "video", videoType="mp4")
        await ann.sends("", b"png", "picture")
        await ann.writes("look: ", b"png", "and ", b"png", "done")
        await server.until(lambda: not server.waits())
        files = [[(file.name, file.kind, file.transcript) for file in event.attachments] for event in account.received]
        assert files == [
            [("plan.pdf", "document", "")],
            [("voice.amr", "voice", "call me back")],
            [("video.mp4", "video", "")],
            [("image.jpg", "image", "")],
            [("image-1.jpg", "image", ""), ("image-2.jpg", "image", "")],
        ]
        assert account.texts == ["", "", "", "", "look: and done"]
        assert {file.id for event in account.received for file in event.attachments} == set(server.files)


@pytest.mark.parametrize(
    ("replied", "quoted"),
    [
        ({"msgType": "text", "content": {"text": "the old plan"}}, Quoted("the old plan")),
        ({"content": {"richText": [{"text": "a"}, {"downloadCode": "c"}, {"text": "b"}]}}, Quoted("ab")),
        ({"msgType": "picture", "content": {"downloadCode": "c"}}, None),
        ({"content": 5}, None),
        (None, None),
    ],
    ids=["text", "rich", "picture", "malformed", "none"],
)
def test_a_quoted_message_comes_with_the_reply(replied: object, quoted: Quoted | None) -> None:
    data = {"msgId": "m", "conversationId": "c", "conversationType": "1", "msgtype": "text", "senderStaffId": "ann"}
    event = translation.message({**data, "text": {"content": "this?", "isReplyMsg": True, "repliedMsg": replied}})
    assert event is not None
    assert (event.text, event.quoted) == ("this?", quoted)


async def test_a_mention_alone_is_a_message() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        await server.person("ann").says("", chat="team")
        await server.until(lambda: not server.waits())
        assert [(event.text, event.mentioned) for event in account.received] == [("", True)]


async def test_outsiders_own_echoes_unknown_kinds_and_malformed_frames_are_acknowledged_and_ignored() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        ann = server.person("ann")
        await ann.says("from outside", senderStaffId=None)
        await ann.says("an echo", senderId="$:LWCP_v1:$bot")
        await ann.says("odd", msgtype="sticker")
        await ann.says("broken", conversationType="9")
        await ann.says("good")
        await server.until(lambda: not server.waits())
        assert account.texts == ["good"]


async def test_deliveries_again_have_the_same_key() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        server.faults.twice = True
        id_ = await server.person("ann").says("once")
        await server.until(lambda: account.deliveries == 3)
        assert [key_of(event) for event in account.received] == [id_]


async def test_messages_keep_the_order_of_their_arrival() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        account.down = 2  # the first message is tried again, and must not be overtaken
        for n in range(20):
            await server.person("ann").says(f"{n}")
        await server.until(lambda: not server.waits())
        assert account.texts == [f"{n}" for n in range(20)]


async def test_reordered_messages_are_both_received() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        server.faults.reversed = True
        await server.person("ann").says("one")
        await server.person("ann").says("two")
        await server.until(lambda: not server.waits())
        assert sorted(account.texts) == ["one", "two"]


async def test_nothing_is_acknowledged_before_it_is_in_the_log() -> None:  # D2
    async with DingTalkServer() as server, listening(server) as (account, _):
        account.gate = anyio.Event()
        await server.person("ann").says("hello")
        await server.until(lambda: account.deliveries == 1)
        assert server.waits() == 1
        account.gate.set()
        await server.until(lambda: server.waits() == 0)


async def test_a_message_is_kept_while_the_log_is_out_of_reach_even_if_it_is_never_delivered_again() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        account.down = 3
        await server.person("ann").says("hello")
        await server.until(lambda: account.texts == ["hello"])
        await server.until(lambda: server.waits() == 0)
        assert account.deliveries == 4


async def test_a_message_survives_the_loss_of_its_connection() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        account.gate = anyio.Event()
        await server.person("ann").says("hello")
        await server.until(lambda: account.deliveries == 1)
        server.faults.cut()
        await server.until(lambda: server.opened == 2 and bool(server.sockets))
        account.gate.set()
        await server.until(lambda: server.waits() == 0)  # the second delivery is acknowledged
        assert account.texts == ["hello"]


async def test_more_messages_than_can_wait_are_left_to_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.chat.lanes.LANE_LENGTH", 1)
    async with DingTalkServer() as server, listening(server) as (account, _):
        account.gate = anyio.Event()
        await server.person("ann").says("1")
        await server.until(lambda: account.deliveries == 1)
        for n in range(2, 6):
            await server.person("ann").says(f"{n}")
        await server.person("bob").says("another chat")
        await server.until(lambda: account.deliveries == 2)
        account.gate.set()
        await server.until(lambda: server.waits() == 3)
        assert account.texts == ["1", "another chat", "2"]
        while server.waits():
            await server.redeliver()
            await asyncio.sleep(0.05)
        assert sorted(account.texts) == ["1", "2", "3", "4", "5", "another chat"]


async def test_the_connection_comes_back_after_every_kind_of_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.chat.reconnecting.LONGEST_BREAK", 0.2)
    monkeypatch.setattr("channels.chat.reconnecting.LONGEST_PAUSE", 0.2)
    async with DingTalkServer() as server, listening(server) as (account, _):
        server.faults.cut()
        await server.until(lambda: server.opened == 2 and bool(server.sockets))
        await server.faults.close()
        await server.until(lambda: server.opened == 3 and bool(server.sockets))
        await server.faults.disconnect()
        await server.until(lambda: server.opened == 4 and bool(server.sockets))
        server.faults.refused_handshakes = 2
        server.faults.next("connections/open", "html", "cut", "limited", "lost")
        server.faults.retry_after = 0
        server.faults.cut()
        await server.until(lambda: server.opened == 5 and bool(server.sockets))
        await server.person("ann").says("still there?")
        await server.until(lambda: account.texts == ["still there?"])
        assert server.peak == 1
        assert account.connections == 5
        reasons = " | ".join(account.reasons)
        for reason in ("connection was lost", "asked to reconnect", "refused with 503", "502", "no answer"):
            assert reason in reasons
        assert "planted" not in reasons


async def test_a_half_open_socket_is_noticed() -> None:
    async with DingTalkServer() as server, listening(server) as (account, _):
        await server.until(lambda: account.frames > 2)  # pings of the platform and pongs count
        server.faults.deaf = True
        await server.until(lambda: bool(account.reasons))
        server.faults.deaf = False
        assert "no answer" in account.reasons[0]
        await server.until(lambda: server.opened == 2 and bool(server.sockets))
        await server.person("ann").says("hello")
        await server.until(lambda: account.texts == ["hello"])


async def test_dead_credentials_end_the_account() -> None:
    async with DingTalkServer() as server:
        platform = DingTalk({**server.settings, "client_secret": "of-yesterday"}, pause=0.02)
        account = Account()
        with anyio.fail_after(120), pytest.raises(CredentialsDead, match="client_secret") as error:
            await platform.listen(account.receive, account)
        assert "of-yesterday" not in str(error.value)
        await platform.close()


async def test_credentials_that_die_while_connected_end_the_account() -> None:
    async with DingTalkServer() as server:
        platform, account = dingtalk(server), Account()

        async def die() -> None:
            await server.until(lambda: bool(server.sockets))
            server.client_secret = "another"
            server.faults.cut()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(die)
            with anyio.fail_after(120), pytest.raises(CredentialsDead):
                await platform.listen(account.receive, account)
        await platform.close()


async def test_settings_without_credentials_are_refused_by_name() -> None:
    with pytest.raises(Invalid, match=r"channels\.dingtalk\.client_secret: missing"):
        connect({"client_id": "dingtest"})


@pytest.mark.parametrize("moment", ["connected", "half-open", "opening", "waiting for the log"])
async def test_cancelled_it_leaves_nothing(moment: str) -> None:
    async with DingTalkServer() as server:
        before = asyncio.all_tasks()
        platform, account = dingtalk(server), Account()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(platform.listen, account.receive, account)
            await server.until(lambda: bool(server.sockets))
            if moment == "half-open":
                server.faults.deaf = True
            if moment == "opening":
                server.faults.refused_handshakes = 1000
                server.faults.cut()
                await server.until(lambda: not server.sockets)
            if moment == "waiting for the log":
                account.gate = anyio.Event()
                await server.person("ann").says("hello")
                await server.until(lambda: account.deliveries == 1)
            tasks.cancel_scope.cancel()
        await platform.close()
        server.faults.deaf = False
        await server.until(lambda: not server.sockets)
        for _ in range(100):
            left = {
                task for task in asyncio.all_tasks() - before if "dingtalk" in repr(task) or "websockets" in repr(task)
            }
            if not left:
                break
            await asyncio.sleep(0.05)
        assert not left


async def test_reconnections_leave_no_threads() -> None:
    async with DingTalkServer() as server, listening(server):
        for n in range(2, 8):
            server.faults.cut()
            await server.until(lambda n=n: server.opened == n and bool(server.sockets))  # type: ignore[misc]
        workers = [thread.name for thread in threading.enumerate() if thread.name.startswith("asyncio_")]
        assert len(workers) <= 4  # those of the loop's own executor


async def test_a_pressed_button_names_its_plan_wherever_the_card_is() -> None:
    plan = "0199f0a0-0000-7000-8000-000000000001"
    content = Content("Delete it?", buttons=(Button("yes", "Yes", "danger"), Button("no", "No")), plan=plan)
    async with DingTalkServer() as server, listening(server, button_template_id=BUTTON_TEMPLATE) as (account, platform):
        ann = server.person("ann")
        asked = await ann.says("rm", chat="team")
        await server.until(lambda: not server.waits())
        (message,) = account.received
        await platform.post(message.target, content, "key-1")
        (card,) = server.seen("team")
        assert list(card.buttons) == ["Yes", "No"]
        await ann.presses(card, "Yes")
        await server.until(lambda: len(account.received) == 2 and not server.waits())
        assert server.violations == []
        pressed = account.received[1]
        assert pressed.choice == Choice(plan, "yes")
        assert pressed.sender == "staff-ann"
        assert (pressed.target.chat, pressed.target.topic, pressed.target.kind) == ("cid-team==", asked, "group")
        foreign = card._replace(buttons={"Odd": "no id of ours"})
        await ann.presses(foreign, "Odd")
        await server.until(lambda: not server.waits())
        assert len(account.received) == 2
        for person in (ann, server.person("ben")):
            await person.presses(card, "Yes")
        await server.until(lambda: not server.waits())
        # A press by somebody else must not hide that of the person who was asked.
        assert [event.sender for event in account.received[1:]] == ["staff-ann", "staff-ben"]


async def test_the_working_sign_is_put_on_the_message_and_taken_off() -> None:
    async with DingTalkServer() as server, listening(server) as (account, platform):
        await server.person("ann").says("hello")
        await server.person("ann").says("hello", chat="team")
        await server.until(lambda: not server.waits())
        for event in account.received:
            for on in (True, True, False, False):
                await platform.working(event.target, on)
        assert dict(server.emotions) == {event.message: 0 for event in account.received}
        assert len([call for call in server.calls if "emotion" in call.path]) == 4
        conversations = {call.body["openConversationId"] for call in server.calls if "emotion" in call.path}
        assert conversations == {"cid-private-ann==", "cid-team=="}


async def test_the_sign_of_a_process_that_died_is_taken_off_with_the_answer() -> None:
    async with DingTalkServer() as server:
        async with listening(server) as (account, platform):
            for _ in range(2):
                await server.person("ann").says("hello")
            await server.until(lambda: not server.waits())
            for event in account.received:
                await platform.working(event.target, True)
        first, second = (event.target for event in account.received)
        async with listening(server, card_template_id=ANSWER_TEMPLATE) as (account, platform):
            await platform.post(first, Content("Hello"), "k1")
            draft = platform.draft(second, "k2")
            await draft.show("Hello", "")
            await draft.finish(Content("Hello"), "k2")
            assert [*server.emotions.values()] == [0, 0]
            await platform.post(first, Content("And more"), "k3")
            await server.person("ann").says("to the new process")
            await server.until(lambda: len(account.received) == 1 and not server.waits())
            await platform.post(account.received[0].target, Content("Hello"), "k4")
        assert len([call for call in server.calls if "recall" in call.path]) == 2
