"""The platforms keep the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.contracts.arriving import Arriving, ArrivingByButton, ArrivingFiles
from actors.contracts.deciding import Decisions
from actors.contracts.deletions import Deletions
from actors.contracts.edits import Edits
from actors.contracts.files import Files
from actors.contracts.held import Faults, Held, Repeated
from actors.contracts.people import Groups
from actors.contracts.refusals import Refusals
from actors.contracts.signs import Signs
from actors.contracts.stopping import Stopping
from actors.contracts.table import table
from actors.contracts.talk import Talk
from tests.channels.contract.seats import DingTalkWithNames

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=8)]


class TestTalk(Talk): ...


class TestGroups(Groups): ...


class TestSigns(Signs): ...


class TestHeld(Held): ...


class TestRepeated(Repeated): ...


class TestFaults(Faults): ...


class TestDecisions(Decisions): ...


class TestRefusals(Refusals): ...


class TestFiles(Files): ...


class TestArriving(Arriving, ArrivingByButton, ArrivingFiles): ...


@pytest.mark.parametrize("here", ["slack", "telegram", "discord"], indirect=True)
class TestEdits(Edits):
    """The apps of Feishu and DingTalk take no events of changes."""


@pytest.mark.parametrize("here", ["slack", "feishu", "discord"], indirect=True)
class TestDeletions(Deletions):
    """Telegram's and DingTalk's bots are told of none."""


@pytest.mark.parametrize("here", ["slack"], indirect=True)
class TestStopping(Stopping):
    """Slack's native streams, in threads, Telegram's drafts, in private chats, and cards of DingTalk have no buttons of
    ours. A draft of Telegram has one of its own."""


@pytest.mark.parametrize("here", ["telegram", "feishu", "discord"], indirect=True)
class TestStoppingInGroups(Stopping):
    group = "stopping"


async def test_dingtalk_may_leave_names_in_texts(tmp_path: Path, anyio_backend: str) -> None:
    async with table(DingTalkWithNames(), tmp_path) as here:
        await here.hears("bob", "hello", "team")
        event = await here.hears("ann", "ask {} now", "team", mentions="bob")
        assert (await here.message(event))["content"] == 'ask @"Bob" (staff-bob) now'
