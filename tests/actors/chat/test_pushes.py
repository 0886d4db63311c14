"""Outcomes that are delivered to a chat where nobody asked for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.chat.account import Accounts
from core.chat.connections import Connections
from core.chat.facts import DeliveryPlanned, conversation
from core.chat.state import Chats, Plan
from core.config.settings import Config
from core.events import ModelCompleted, RunCompleted, RunRequested, RunStarted
from core.identity.seal import Seal
from tests.actors.chat.site import Account, account
from tests.support.nats import eventually
from tests.support.records import ai, human

pytestmark = pytest.mark.anyio


async def ends(office: Account, deliver: Any, run: str = "r1") -> None:
    """Has a run end whose metadata name a chat, as those of a schedule do."""
    request = RunRequested(input={"messages": [human("h")]}, metadata={"deliver": deliver})
    started, said = RunStarted(attempt=1, worker="w", lease=1), ModelCompleted(message=ai(f"a-{run}", "It rains."))
    await office.stage.given(request, started, said, RunCompleted(), run=run)


async def test_an_outcome_goes_to_a_chat(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        await ends(office, {"channel": "office", "chat": "C1"})
        [plan] = await office.events(DeliveryPlanned)
        assert (plan.purpose, plan.text, plan.target.chat, plan.user) == ("push", "It rains.", "C1", "ada")


async def test_an_outcome_goes_to_an_account_that_was_entered_in_the_browser(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        log, place = office.stage.system.log, {"channel": "telegram", "chat": "C1"}
        await ends(office, place)
        assert await office.events(DeliveryPlanned) == []
        accounts = Accounts(log, Config, Seal(tmp_path))
        await accounts.configure("telegram", {"bot_token": "1:x"}, actor="http")
        await ends(office, place, "r2")
        chats, place_id = Chats(log), conversation("telegram", "C1").id

        async def plans() -> list[Plan]:
            return [*(await chats.load(place_id)).plans.values()]

        [plan] = await eventually(plans)
        assert plan.open


@pytest.mark.parametrize(
    "deliver",
    [
        None,
        "C1",
        {"channel": "office"},
        {"channel": "other", "chat": "C1"},
        {"channel": "office-other", "chat": "C1"},
        {"channel": "../x", "chat": "C1"},
    ],
)
async def test_what_names_no_chat_is_passed_over(tmp_path: Path, deliver: Any) -> None:
    async with account(tmp_path) as office:
        await ends(office, deliver)
        assert await office.events(DeliveryPlanned) == []


async def test_where_there_are_accounts_only_ones_own_chats_are_reached(tmp_path: Path) -> None:
    async with account(tmp_path, auth={"enabled": True}, channel_connections={"enabled": True}) as office:
        place = {"channel": "office", "chat": "C1", "kind": "private"}
        await ends(office, place)
        assert await office.said() == []
        code = await Connections(office.stage.system.log, actor="http").offer("ada", "office")
        await office.hears(f"/connect {code} yes")
        await office.hears("hello")
        await ends(office, place, "r2")
        assert (await office.said())[-1] == "It rains."
        await ends(office, {**place, "chat": "C2"}, "r3")
        assert await office.said("C2") == []
        await ends(office, {**place, "chat": "U1"}, "r4")
        assert await office.said("U1") == ["It rains."]
