"""The webhook: it keeps the contract of platforms, and takes and sends what is signed only."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.contracts.credentials import Credentials
from actors.contracts.held import Faults, Held, Repeated
from actors.contracts.table import Table, table
from actors.contracts.talk import Talk
from channels.webhook.platform import Public, Webhook, connect
from channels.webhook.signature import WINDOW_SECONDS, signed
from core.chat.facts import Target
from core.chat.port import ChatGone, Content, CredentialsDead, FateUnknown, RateLimited, Rejected
from core.errors import Invalid, Unavailable
from tests.channels.slack.support import Inbox
from tests.channels.webhook.server import SECRET, Program


class Seat:
    name = "webhook"

    def __init__(self) -> None:
        self.server = Program()

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings

    def id_of(self, person: str) -> str:
        return person

    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        self.server._ids += 1
        identity = f"m{self.server._ids}"
        message = {"id": identity, "chat": person, "sender": person, "text": text}
        for attempt in range(2 if self.server.again else 1):
            body = json.dumps(message).encode()
            header = signed(self.server.secret, body, int(time.time()) - attempt)
            assert await self.server.sends(message, header=header) == 202
        return identity

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        return [each["text"] for each in self.server.messages.values() if each.get("chat") == person and "text" in each]

    def revoke(self) -> Mapping[str, Any]:
        self.server.secret = "t" * 32
        return {"secret": self.server.secret}

    def refused(self) -> int:
        return self.server.unauthorised

    def duplicates(self, on: bool) -> None:
        self.server.again = on

    def fails(self, how: str) -> None:
        kinds = {"gateway": "502", "reset": "reset", "limited": "429", "refused": "400", "lost": "lose"}
        self.server.next = [kinds[how]] if how else []


pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Table[Seat]]:
    async with table(Seat(), tmp_path_factory.mktemp("webhook")) as opened:
        yield opened


@pytest.mark.long(keep=4)
class TestTalk(Talk): ...


@pytest.mark.long(keep=4)
class TestCredentials(Credentials): ...


class TestHeld(Held): ...


@pytest.mark.long(keep=4)
class TestRepeated(Repeated): ...


@pytest.mark.long(keep=4)
class TestFaults(Faults): ...


def message(**more: Any) -> dict[str, Any]:
    return {"id": "1", "chat": "c", "sender": "s", "text": "hello", **more}


async def listening(program: Program, inbox: Inbox, tasks: anyio.abc.TaskGroup) -> Webhook:
    platform = connect(program.settings)
    tasks.start_soon(platform.listen, inbox.receive, inbox)
    await inbox.until(connections=1)
    return platform


async def test_what_is_not_signed_in_time_is_refused_and_a_replay_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Program() as program, anyio.create_task_group() as tasks:
        inbox = Inbox()
        await listening(program, inbox, tasks)
        body, now = json.dumps(message()).encode(), int(time.time())
        for header in ("t=1", signed("x" * 32, body), signed(SECRET, body + b" "), signed(SECRET, body, now - 400)):
            assert await program.sends(message(), header=header) == 401
        assert await program.sends(message(), header=signed(SECRET, body, now + WINDOW_SECONDS + 60)) == 401
        header = signed(SECRET, body, now)
        inbox.fails = [Unavailable("the log is away")]
        assert await program.sends(message(), header=header) == 503
        assert await program.sends(message(), header=header) == 202
        assert await program.sends(message(), header=header) == 409
        assert [event.text for event in inbox.events] == ["hello"]
        for wrong in (message(id=""), message(text=1), {"id": "1"}):
            assert await program.sends(wrong) == 400
        tasks.cancel_scope.cancel()


async def test_where_a_message_belongs_and_a_choice() -> None:
    async with Program() as program, anyio.create_task_group() as tasks:
        inbox = Inbox()
        await listening(program, inbox, tasks)
        choice = {"plan": "p", "button": "yes"}
        assert await program.sends(message(group=True, topic="t", mentioned=False, sender_name="Ann")) == 202
        assert await program.sends(message(id="2", choice=choice)) == 202
        group, press = inbox.events
        assert (group.target, group.mentioned) == (Target("c", "t", "group", "1", "s"), False)
        assert press.choice is not None
        assert (press.choice.plan, press.choice.button, press.target.kind) == ("p", "yes", "private")
        tasks.cancel_scope.cancel()


async def test_an_answer_whose_fate_is_unknown_has_the_same_key(tmp_path: Path) -> None:
    async with Program() as program:
        platform, target = connect(program.settings), Target("c", sender="s")
        for fault in ("lose", "503"):
            program.next = [fault]
            with pytest.raises(FateUnknown):
                await platform.post(target, Content(fault), fault)
            await platform.post(target, Content(fault), fault)
        assert [each["text"] for each in program.messages.values()] == ["lose", "503"]
        for status, kind in (("429", RateLimited), ("401", CredentialsDead), ("410", ChatGone), ("302", Rejected)):
            program.next = [status]
            with pytest.raises(kind):
                await platform.post(target, Content("text"), status)
        (tmp_path / "a").write_bytes(b"words")
        await platform.upload(target, tmp_path / "a", "a.txt", "file")
        assert [*program.messages.values()][-1]["file"] == {"name": "a.txt", "content": "d29yZHM="}
        assert all(finding.ok for finding in await platform.check())
        assert program.problems == []
        await platform.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"secret": "short"},
        {"answer_url": "http://example.com/answers"},
        {"answer_url": "https://127.0.0.1/answers"},
        {"answer_url": "https://169.254.169.254/latest"},
        {"answer_url": "https://localhost/answers"},
        {"answer_url": "https://user:word@example.com/"},
        {"listen": "2030"},
        {"allow_private": "yes"},
    ],
)
def test_settings_that_are_refused(settings: Mapping[str, Any]) -> None:
    good = {"secret": SECRET, "answer_url": "https://example.com/answers"}
    connect(good)
    with pytest.raises(Invalid):
        connect({**good, **settings})


async def test_a_name_that_leads_inside_is_not_connected_to() -> None:
    with pytest.raises(OSError, match="public"):
        await Public().resolve("localhost", 443)
