"""The platforms keep the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from actors.contracts.arriving import Arriving, ArrivingByButton, ArrivingFiles
from actors.contracts.connections import Connections
from actors.contracts.credentials import Credentials
from actors.contracts.deciding import Decisions
from actors.contracts.deletions import Deletions
from actors.contracts.edits import Edits
from actors.contracts.files import Bundles, Files
from actors.contracts.held import Code, Faults, Held, Repeated
from actors.contracts.people import Groups
from actors.contracts.refusals import Refusals
from actors.contracts.signs import Signs
from actors.contracts.stopping import Stopping
from actors.contracts.table import DEADLINE, Table, table
from actors.contracts.talk import Talk
from channels.chat.presses import Press, Presses
from channels.slack.platform import SlackPlatform
from channels.slack.traits import TRAITS
from core.chat.facts import Target
from tests.channels.contract.seats import SEATS, All, DingTalk, DingTalkWithNames, Slack
from tests.channels.dingtalk.server import STOPPABLE_TEMPLATE

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=8)]


class TestTalk(Talk): ...


class TestGroups(Groups): ...


class TestSigns(Signs): ...


class TestHeld(Held): ...


class TestCode(Code): ...


class TestRepeated(Repeated): ...


class TestFaults(Faults): ...


class TestConnections(Connections): ...


class TestCredentials(Credentials):
    """Each on a table of its own: the signs of other tests' runs would be refused, too."""

    @pytest.fixture(params=SEATS)
    async def here(
        self, request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
    ) -> AsyncIterator[Table[All]]:
        async with table(SEATS[request.param](), tmp_path) as opened:
            yield opened


class TestDecisions(Decisions): ...


class TestRefusals(Refusals):
    @pytest.fixture(autouse=True)
    def _whoever_is_refused_waits(self, here: Table[All], monkeypatch: pytest.MonkeyPatch) -> None:
        """Telegram and Feishu say it within the answer to the press, which waits as long as a busy machine takes."""
        text = Presses.text

        async def text_of(presses: Presses, target: Target, press: Press) -> str:
            if target.sender == here.seat.id_of("hank"):
                with anyio.fail_after(DEADLINE):
                    await press.answered.wait()
            return await text(presses, target, press)

        monkeypatch.setattr(Presses, "text", text_of)
        monkeypatch.setattr(here.seat.server, "ack_seconds", DEADLINE, raising=False)


class TestFiles(Files): ...


@pytest.mark.parametrize("here", ["slack", "telegram", "discord"], indirect=True)
class TestBundles(Bundles):
    """Feishu and DingTalk have one file in a message."""


class TestArriving(Arriving, ArrivingByButton, ArrivingFiles): ...


@pytest.mark.parametrize("here", ["slack", "telegram", "discord"], indirect=True)
class TestEdits(Edits):
    """The apps of Feishu and DingTalk take no events of changes."""


@pytest.mark.parametrize("here", ["slack", "feishu", "discord"], indirect=True)
class TestDeletions(Deletions):
    """Telegram's and DingTalk's bots are told of none."""


@pytest.mark.parametrize("here", ["slack"], indirect=True)
class TestStopping(Stopping):
    """Telegram's drafts, in private chats, have a button of their own."""


@pytest.mark.parametrize("here", ["telegram", "feishu", "discord"], indirect=True)
class TestStoppingInGroups(Stopping):
    group = "stopping"


class TestStoppingInThreads(Stopping):
    """Slack's native streams have no buttons: after a while the answer grows in a message that has."""

    group = "streaming"

    @pytest.fixture
    async def here(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
    ) -> AsyncIterator[Table[Slack]]:
        monkeypatch.setattr(SlackPlatform, "traits", TRAITS._replace(buttonless_seconds=0.1))
        async with table(Slack(), tmp_path) as opened:
            yield opened
            assert opened.seat.server.called("chat.startStream")
            assert not opened.seat.problems()


@pytest.mark.parametrize("group", ["", "stopping"])
class TestStoppingCards(Stopping):
    """A template of DingTalk's AI card may have buttons."""

    @pytest.fixture(autouse=True)
    def _of(self, group: str) -> None:
        self.group = group

    @pytest.fixture
    async def here(self, tmp_path: Path, anyio_backend: str) -> AsyncIterator[Table[DingTalk]]:
        about = {"card_template_id": STOPPABLE_TEMPLATE, "stop_button": True}
        async with table(DingTalk(), tmp_path, **about) as opened:
            yield opened
            assert not opened.seat.problems()


async def test_dingtalk_may_leave_names_in_texts(tmp_path: Path, anyio_backend: str) -> None:
    async with table(DingTalkWithNames(), tmp_path) as here:
        await here.hears("bob", "hello", "team")
        event = await here.hears("ann", "ask {} now", "team", mentions="bob")
        assert (await here.message(event))["content"] == 'ask @"Bob" (staff-bob) now'
