"""Polling: custody before the offset, reconnecting, conflicts, dead tokens, and a clean end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import threading
import traceback
from collections.abc import Sized
from functools import partial

import anyio
import pytest

from channels.telegram.platform import connect
from core.chat.facts import ChatReceived, Target, key_of
from core.chat.port import Content, CredentialsDead
from core.errors import Invalid, Unavailable
from tests.channels.telegram.conftest import QUICK, Account, account_of, listening, listening_with, until
from tests.channels.telegram.server import TOKEN, TelegramServer

pytestmark = pytest.mark.anyio


async def test_the_offset_advances_only_after_custody(server: TelegramServer) -> None:
    """Trap T1: an update counts as delivered from the next poll on, whatever the handler is at."""
    custody = anyio.Event()
    entered: list[ChatReceived] = []

    async def receive(event: ChatReceived) -> None:
        entered.append(event)
        await custody.wait()

    account = account_of(server)
    async with anyio.create_task_group() as group:
        group.start_soon(account.platform.listen, receive, account)
        server.person("ann").says("hello")
        await until(lambda: entered)
        assert server.waiting() == 1
        custody.set()
        await until(lambda: not server.waiting())
        group.cancel_scope.cancel()
    await account.platform.close()
    assert len(entered) == 1


async def test_a_message_whose_custody_was_cancelled_comes_again(server: TelegramServer) -> None:
    entered: list[ChatReceived] = []

    async def receive(event: ChatReceived) -> None:
        entered.append(event)
        await anyio.sleep_forever()

    first = account_of(server)
    async with anyio.create_task_group() as group:
        group.start_soon(first.platform.listen, receive, first)
        server.person("ann").says("hello")
        await until(lambda: entered)
        group.cancel_scope.cancel()
    await first.platform.close()
    async with listening(server) as second:
        assert key_of(await second.message()) == key_of(entered[0])


async def test_a_message_that_the_log_does_not_take_in_time_comes_again(server: TelegramServer) -> None:
    account = account_of(server, QUICK._replace(custody=0.05))
    tries: list[ChatReceived] = []

    async def receive(event: ChatReceived) -> None:
        tries.append(event)
        await anyio.sleep(0 if len(tries) > 1 else 3600)

    account.receive = receive  # type: ignore[method-assign]
    server.person("ann").says("hello")
    async with listening_with(account):
        await until(lambda: not server.waiting())
    await account.platform.close()
    assert len(tries) == 2


async def test_what_the_log_did_not_take_comes_again_and_holds_up_no_other_chat(server: TelegramServer) -> None:
    ann, ben = server.person("ann"), server.person("ben")
    account = account_of(server)
    refused: list[str] = []

    async def receive(event: ChatReceived) -> None:
        """Refuses ann's first message twice, and takes each message once, as the inbox does."""
        if event.text == "one" and len(refused) < 2:
            refused.append(event.text)
            raise Unavailable("the log is away")
        if event not in account.received:
            account.received.append(event)

    account.receive = receive  # type: ignore[method-assign]
    ann.says("one")
    ben.says("another")
    ann.says("two")
    async with listening_with(account):
        await account.messages(3)
        await until(lambda: not server.waiting())
    await account.platform.close()
    assert [message.text for message in account.received if message.sender_name == "ann"] == ["one", "two"]
    assert account.received[0].text == "another"
    assert account.reports == ["connected"]


async def test_duplicates_and_disorder_are_handed_over_with_the_same_keys(
    server: TelegramServer, account: Account
) -> None:
    server.faults.duplicates = server.faults.reordered = True
    ann = server.person("ann")
    for text in ("one", "two", "three"):
        ann.says(text)
        await account.has(text)
    await until(lambda: len(account.received) > 3 and not server.waiting())
    assert len({key_of(message) for message in account.received}) == 3


@pytest.mark.parametrize(
    ("kind", "status"), [("status", 502), ("status", 504), ("html", 200), ("drop", 0), ("lose", 0)]
)
async def test_a_broken_poll_is_repeated(server: TelegramServer, account: Account, kind: str, status: int) -> None:
    server.faults.add("getUpdates", kind, 2, status=status)  # type: ignore[arg-type]
    server.person("ann").says("first")
    server.person("ann").says("second")
    texts = {message.text for message in await account.messages(2)}
    assert texts == {"first", "second"}


async def test_messages_are_handed_over_in_the_order_of_their_updates(server: TelegramServer) -> None:
    server.faults.reordered = True
    for text in ("one", "two", "three"):
        server.person("ann").says(text)
    async with listening(server) as account:
        assert [message.text for message in await account.messages(3)] == ["one", "two", "three"]


async def test_nothing_is_lost_or_reordered_under_faults(server: TelegramServer) -> None:
    """20 people write 5 messages each, while polls break, the log is away at times, and the process is replaced."""
    chaos = random.Random(5)
    log: dict[str, ChatReceived] = {}

    class Taker(Account):
        async def receive(self, event: ChatReceived) -> None:
            """Takes each message once, as the inbox does, and fails now and then: before it has, or after."""
            luck = chaos.random()
            if luck < 0.1:
                raise Unavailable("the log is away")
            log.setdefault(f"{event.sender}/{key_of(event)}", event)
            if luck < 0.2:
                raise Unavailable("the log did not answer")

    async def break_polls() -> None:
        while True:
            server.faults.add("getUpdates", chaos.choice(("drop", "lose", "status", "html")))
            server.faults.duplicates = chaos.random() < 0.5
            await anyio.sleep(0.1)
            server.faults.clear()

    async def write() -> None:
        for number in range(5):
            for person in range(20):
                server.person(f"p{person}").says(f"{person}: {number}")
                await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        group.start_soon(break_polls)
        group.start_soon(write)
        for wanted in (30, 60, 100):
            account = Taker(account_of(server).platform)
            async with listening_with(account):
                await until(partial(_has, log, wanted))
            await account.platform.close()
        group.cancel_scope.cancel()
    written = [[event.text for event in log.values() if event.text.startswith(f"{person}:")] for person in range(20)]
    assert written == [[f"{person}: {number}" for number in range(5)] for person in range(20)]


def _has(log: Sized, count: int) -> bool:
    return len(log) >= count


async def test_the_state_follows_the_connection(server: TelegramServer, account: Account) -> None:
    await server.stop()
    await until(lambda: len(account.reports) > 1)
    assert account.reports[1].startswith("disconnected: getUpdates: ")
    await server.start()
    await until(lambda: account.reports[-1] == "connected")
    server.person("ann").says("still there?")
    assert (await account.message()).text == "still there?"


async def test_a_flood_pause_of_polling_is_kept(server: TelegramServer, account: Account) -> None:
    server.faults.add("getUpdates", "flood", 1, seconds=1)
    server.person("ann").says("one")
    await account.messages(1)
    server.person("ann").says("two")
    await account.messages(2)
    flooded = next(n for n, call in enumerate(server.calls) if call.status == 429)
    again = next(call for call in server.calls[flooded + 1 :] if call.method == "getUpdates")
    assert again.at - server.calls[flooded].at >= 1.0


async def test_a_half_open_connection_is_given_up(server: TelegramServer) -> None:
    """The watchdog: no answer in the time of the poll and some more."""
    async with listening(server, QUICK._replace(poll=1, grace=0.3)) as account:
        server.faults.add("getUpdates", "hang")
        server.person("ann").says("before")
        await account.messages(1)
        server.person("ann").says("after")
        assert (await account.messages(2))[1].text == "after"
        await until(lambda: any(report.startswith("disconnected: ") for report in account.reports))


async def test_a_short_burst_of_conflicts_is_normal(server: TelegramServer) -> None:
    """The poll of the process before this one lingers at Telegram."""
    text = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
    server.faults.add("getUpdates", "gone", QUICK.conflicts, status=409, description=text)
    async with listening(server) as account:
        assert account.reports == ["connected"]


async def test_another_poller_is_a_state(server: TelegramServer, account: Account) -> None:
    """Trap T6: conflicts without end look healthy from outside."""
    text = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
    server.faults.add("getUpdates", "gone", QUICK.conflicts + 3, status=409, description=text)
    server.person("ann").says("hello")
    await until(lambda: any("another poller" in report for report in account.reports))
    await until(lambda: account.reports[-1] == "connected")
    await account.messages(1)


async def test_two_pollers_lose_nothing_and_say_so(server: TelegramServer) -> None:
    """Each poll ends the other's, and answers in between do not look healthy. The server counts them."""
    ann = server.person("ann")
    timing = QUICK._replace(quiet=60.0)
    async with listening(server, timing) as first, listening(server, timing) as second:
        await until(lambda: all("another poller" in each.reports[-1] for each in (first, second)))
        for text in ("one", "two", "three"):
            ann.says(text)
        await until(lambda: {message.text for message in first.received + second.received} == {"one", "two", "three"})
        await until(lambda: not server.waiting())
        assert all("another poller" in each.reports[-1] for each in (first, second))
    assert server.conflicts > 2 * QUICK.conflicts


async def test_a_second_poll_of_the_same_account_never_leaves(server: TelegramServer, account: Account) -> None:
    """Trap T2: it waits for the one connection of polling, in vain, and the first goes on."""
    await until(lambda: server.pollers == 1)
    with pytest.raises(Unavailable, match="all connections to it are in use"):
        await account.platform._api.updates(0, 0, 1.5)
    assert (server.pollers, server.conflicts) == (1, 0)
    server.person("ann").says("hello")
    await account.messages(1)


async def test_a_webhook_is_named(server: TelegramServer) -> None:
    server.webhook = "https://example.org/hook"
    async with listening(server) as account:
        assert "webhook is active" in account.reports[0]
        server.webhook = ""
        await until(lambda: account.reports[-1] == "connected")


@pytest.mark.parametrize(("status", "description"), [(401, "Unauthorized"), (404, "Not Found")])
@pytest.mark.parametrize("method", ["getMe", "getUpdates"])
async def test_dead_credentials_end_listening(
    server: TelegramServer, method: str, status: int, description: str
) -> None:
    server.faults.add(method, "gone", status=status, description=description)
    account = account_of(server)
    with pytest.raises(CredentialsDead, match="BotFather"):
        await account.platform.listen(account.receive, account)
    assert account.reports[-1].startswith("disconnected: Telegram does not accept the bot token")
    await account.platform.close()


async def test_a_404_of_a_proxy_is_no_dead_token(server: TelegramServer, account: Account) -> None:
    server.faults.add("getUpdates", "status", 2, status=404)
    server.person("ann").says("one")
    server.person("ann").says("two")
    await account.messages(2)


async def test_a_defect_of_the_receiver_ends_listening(server: TelegramServer) -> None:
    account = account_of(server)
    account.refusals = [Invalid("no such account")]
    server.person("ann").says("hello")
    with pytest.raises(Invalid, match="no such account"):
        await account.platform.listen(account.receive, account)
    await account.platform.close()
    assert server.waiting() == 1


async def test_nothing_is_left_when_listening_is_cancelled(recwarn: pytest.WarningsRecorder) -> None:
    def sockets() -> int:
        gc.collect()
        return sum(os.path.realpath(entry).rpartition("/")[2].startswith("socket:") for entry in _descriptors())

    sockets()
    recwarn.clear()  # those of other tests
    before = len(asyncio.all_tasks()), threading.active_count(), sockets()
    async with TelegramServer() as server, listening(server) as account:
        server.person("ann").says("hello")
        await account.messages(1)
        await until(lambda: server.pollers == 1)
        assert (len(asyncio.all_tasks()), sockets()) > (before[0], before[2])
    await until(lambda: (len(asyncio.all_tasks()), threading.active_count(), sockets()) == before)
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]


def _descriptors() -> list[str]:
    return [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]


async def test_listening_again_after_a_cancelled_one(server: TelegramServer) -> None:
    account = account_of(server)
    for text in ("one", "two"):
        async with listening_with(account):
            server.person("ann").says(text)
            await account.has(text)
    await account.platform.close()


async def test_the_token_is_in_no_log_and_no_error(
    server: TelegramServer, caplog: pytest.LogCaptureFixture, ann: Target
) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    caplog.set_level(logging.DEBUG)
    account = account_of(server)
    errors: list[BaseException] = []
    for method, kind, status in (
        *(("getMe", kind, status) for kind, status in (("drop", 0), ("status", 502), ("html", 200))),
        *(("sendMessage", kind, status) for kind, status in (("lose", 0), ("status", 500), ("flood", 429))),
    ):
        server.faults.add(method, kind, status=status)  # type: ignore[arg-type]
        api, post = account.platform._api, account.platform.post
        with pytest.raises(Unavailable) as caught:
            await (api.me() if method == "getMe" else post(ann, Content("hello"), "k"))
        errors.append(caught.value)
    await server.stop()
    with pytest.raises(Unavailable) as caught:
        await account.platform.post(ann, Content("hello"), "k")
    errors.append(caught.value)
    await server.start()
    server.token = "1:other"
    with pytest.raises(CredentialsDead) as dead:
        await account.platform.post(ann, Content("hello"), "k")
    await account.platform.close()
    lines = "\n".join("".join(traceback.format_exception(error)) for error in (*errors, dead.value))
    assert TOKEN not in lines
    assert TOKEN not in caplog.text
    assert all(error.__context__ is None and error.__cause__ is None for error in errors)


@pytest.mark.parametrize("token", ["12:a b", "nonsense", "1:../../x"])
async def test_a_token_that_cannot_be_one_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(CredentialsDead) as caught:
        connect({"bot_token": token})
    assert token not in str(caught.value)


async def test_a_missing_token_is_named() -> None:
    with pytest.raises(Invalid, match="bot_token"):
        connect({})
