"""Who may talk, and people who connect."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from actors.chat import router
from actors.chat.access import Gate
from actors.chat.person import group_user, person_user
from core.chat.connections import CONNECTIONS, MOST_PENDING, ConnectionOffered, Connections, TooManyCodes
from core.chat.facts import DeliveryPlanned
from core.chat.state import Conversation
from core.config.load import ConfigSource
from core.errors import NotFound
from core.identity.accounts import ACCOUNTS, AccountCreated, AccountDisabled, AccountEnabled
from core.memory.facts import Fact, FactRemembered, Memories
from tests.actors.chat.site import PACKAGE, account

pytestmark = pytest.mark.anyio
CONNECT: Any = {"enabled": True}


async def test_in_a_group_only_what_is_addressed_to_the_bot_counts(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        assert (await office.outcome(await office.hears("hi", kind="group", topic="t"))).outcome == "ignored"
        mention = await office.hears("hi", kind="group", topic="t", mentioned=True)
        assert (await office.outcome(mention)).outcome == "run"
        follow_up = await office.hears("and?", kind="group", topic="t")
        assert (await office.outcome(follow_up)).outcome == "run"
        to_bob = await office.hears("@Bob do you agree?", kind="group", topic="t")
        assert (await office.outcome(to_bob)).outcome == "ignored", "it is for somebody else"
        both = await office.hears("@Bob I ask the bot, too", kind="group", topic="t", mentioned=True)
        assert (await office.outcome(both)).outcome == "run"
        elsewhere = await office.hears("and?", kind="group", topic="u")
        assert (await office.outcome(elsewhere)).outcome == "ignored"
        assert await office.said(topic="u") == []


async def test_without_the_rule_every_message_of_a_group_counts(tmp_path: Path) -> None:
    async with account(tmp_path, settings={"require_mention": False}) as office:
        assert (await office.outcome(await office.hears("hi", kind="group"))).outcome == "run"


async def test_only_listed_people_and_chats(tmp_path: Path) -> None:
    settings = {"allowed_users": ["U1", 7], "allowed_chats": ["G1"], "require_mention": False}
    async with account(tmp_path, settings=settings) as office:
        assert (await office.outcome(await office.hears("hi", sender="7", chat="P"))).outcome == "run"
        assert (await office.outcome(await office.hears("hi", sender="U2", chat="Q"))).outcome == "ignored"
        assert (await office.outcome(await office.hears("hi", kind="group", chat="G1"))).outcome == "run"
        assert (await office.outcome(await office.hears("hi", kind="group", chat="G2"))).outcome == "ignored"
        assert await office.said("Q") == []


async def test_on_a_platform_open_to_the_world_strangers_are_told_their_id_once(tmp_path: Path) -> None:
    async with account(tmp_path, "world") as world:
        assert (await world.outcome(await world.hears("hi", sender="42"))).outcome == "refused"
        assert (await world.outcome(await world.hears("hello?", sender="42"))).outcome == "ignored"
        [said] = await world.said()
        assert "`42`" in said


async def test_with_a_list_of_people_strangers_are_told_their_id_in_private_only(tmp_path: Path) -> None:
    async with account(tmp_path, "world", {"allowed_users": [7]}) as world:
        assert (await world.outcome(await world.hears("hi", sender="42"))).outcome == "refused"
        assert len(await world.said()) == 1
        group = await world.hears("hi", sender="42", kind="group", chat="G", mentioned=True)
        assert (await world.outcome(group)).outcome == "ignored"
        assert await world.said("G") == []


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({"allow_everyone": True}, "private"), ({"allowed_users": 42}, "private"), ({"allowed_chats": "C1"}, "group")],
)
async def test_who_is_let_in_on_a_platform_open_to_the_world(tmp_path: Path, settings: Any, kind: str) -> None:
    async with account(tmp_path, "world", settings) as world:
        event = await world.hears("hi", sender="42", kind=kind, mentioned=True)
        assert (await world.outcome(event)).outcome == "run"


async def test_a_person_connects_and_what_they_do_is_their_users(tmp_path: Path) -> None:
    """The code is read before it is asked who may talk."""
    async with account(tmp_path, "world", channel_connections=CONNECT) as world:
        connections = Connections(world.stage.system.log, actor="http")
        code = await connections.offer("ada", "world")
        connected = await world.hears(f"/connect {code} yes", sender="42")
        assert (await world.outcome(connected)).user == "ada"
        assert await world.said() == [router.CONNECTED]
        routed = await world.outcome(await world.hears("hello", sender="42"))
        state = await world.state(routed)
        assert (routed.outcome, state.user) == ("run", "ada")
        context = state.runs[routed.run_id].request.context
        assert (context["user_id"], context["channel_user_id"]) == ("ada", "42")
        again = await world.hears(f"/connect {code} yes", sender="43", chat="C2")
        assert (await world.outcome(again)).outcome == "refused"
        assert await world.said("C2") == [router.BAD_CODE]


async def test_a_person_whose_account_is_disabled_gets_no_run(tmp_path: Path) -> None:
    async with account(tmp_path, "world", {"allow_everyone": True}, channel_connections=CONNECT) as world:
        log = world.stage.system.log
        await log.append(ACCOUNTS, [AccountCreated(user="ada", email="a@x.example")], expected=0, actor="test")
        code = await Connections(log, actor="http").offer("ada", "world")
        await world.outcome(await world.hears(f"/connect {code} yes", sender="42"))
        await log.append(ACCOUNTS, [AccountDisabled(user="ada")], expected=await log.tip(ACCOUNTS), actor="test")
        for text in ("hello", "/new"):
            assert (await world.outcome(await world.hears(text, sender="42"))).outcome == "refused"
        assert (await world.said())[-1] == router.INACTIVE
        await log.append(ACCOUNTS, [AccountEnabled(user="ada")], expected=await log.tip(ACCOUNTS), actor="test")
        assert (await world.outcome(await world.hears("hello again", sender="42"))).outcome == "run"


async def test_who_is_not_connected_is_told_so(tmp_path: Path) -> None:
    async with account(tmp_path, channel_connections=CONNECT) as office:
        assert (await office.outcome(await office.hears("hello"))).outcome == "refused"
        assert await office.said() == [router.NOT_CONNECTED]


async def test_connections_can_be_optional(tmp_path: Path) -> None:
    optional = {**CONNECT, "require_bound_identity": False}
    async with account(tmp_path, channel_connections=optional) as office:
        routed = await office.outcome(await office.hears("hello"))
        assert (routed.outcome, (await office.state(routed)).user) == ("run", person_user("office", "U1"))


async def test_the_latest_connection_of_a_person_counts(tmp_path: Path) -> None:
    async with account(tmp_path, channel_connections=CONNECT) as office:
        connections = Connections(office.stage.system.log, actor="http")
        for user in ("ada", "bob"):
            await office.hears(f"/connect {await connections.offer(user, 'office')} yes")
            assert (await office.outcome(await office.hears("hello"))).user == user
        state = await connections.state()
        assert (state.of_user("ada"), len(state.of_user("bob"))) == ([], 1)
        [connection] = state.of_user("bob")
        with pytest.raises(NotFound):
            await connections.revoke("ada", connection.id)
        await connections.revoke("bob", connection.id)
        assert (await office.outcome(await office.hears("hello"))).outcome == "refused"


async def test_a_conversation_of_a_group_belongs_to_the_group(tmp_path: Path) -> None:
    """Connected or not: no private memory, file or agent of a person is in it."""
    optional = {**CONNECT, "require_bound_identity": False}
    async with account(tmp_path, channel_connections=optional) as office:
        connections = Connections(office.stage.system.log, actor="http")
        await office.hears(f"/connect {await connections.offer('ada', 'office')} yes", sender="U1", chat="U1")
        threads, users = set(), set()
        for sender in ("U1", "U2", "U1"):
            routed = await office.outcome(
                await office.hears("hi", kind="group", chat="G", sender=sender, mentioned=True)
            )
            threads.add(routed.thread)
            users.add((await office.state(routed)).user)
        assert (len(threads), users) == (1, {group_user("office", "G")})
        alone = await office.outcome(await office.hears("hi", sender="U1", chat="U1"))
        assert (await office.state(alone)).user == "ada"


async def test_people_without_an_account_are_users_of_their_own(tmp_path: Path) -> None:
    async with account(tmp_path, "world", {"allow_everyone": True}) as world:
        users = []
        for sender in ("42", "43", "42", "a b", "default", "group", "x__y"):
            routed = await world.outcome(await world.hears("hi", sender=sender, chat=f"C{sender}"))
            users.append((await world.state(routed)).user)
        assert users[0] == users[2] == "world__42"
        assert len(set(users)) == 6
        assert "default" not in users
        memories = Memories(world.stage.system.log, actor="test")
        fact = Fact(id="fact_1", content="Looks for a new job.")
        await memories.decide("world__42", lambda _: [FactRemembered(fact=fact)])
        for sender, count in (("42", "1 fact"), ("43", "0 facts")):
            await world.hears("/memory", sender=sender, chat=f"C{sender}")
            assert f"I remember {count}." in (await world.said(f"C{sender}"))[-1]


async def test_a_code_is_confirmed_by_who_reads_whose_it_is(tmp_path: Path) -> None:
    """A link of somebody's connects nobody: the bot names the account, and what ends."""
    async with account(tmp_path, "world", {"allow_everyone": True}, channel_connections=CONNECT) as world:
        log = world.stage.system.log
        await log.append(ACCOUNTS, [AccountCreated(user="bob", email="bob@x.example")], expected=0, actor="test")
        connections, memories = Connections(log, actor="http"), Memories(log, actor="test")
        await world.hears(f"/connect {await connections.offer('ada', 'world')} yes", sender="42")
        code = await connections.offer("bob", "world")
        asked = await world.outcome(await world.hears(f"/connect {code}", sender="42"))
        text = (await world.said())[-1]
        assert "`bob@x.example`" in text
        assert "`ada`, which would end" in text
        assert asked.user != "bob"
        assert (await world.outcome(await world.hears("hello", sender="42"))).user == "ada"
        in_group = await world.hears(f"/connect {code} yes", sender="42", kind="group", chat="G", mentioned=True)
        assert (await world.outcome(in_group)).outcome == "refused"
        own, fact = person_user("world", "42"), Fact(id="fact_1", content="Likes tea.")
        await memories.decide(own, lambda _: [FactRemembered(fact=fact)])
        await world.hears(f"/connect {code} yes", sender="42")
        assert (await world.outcome(await world.hears("hello", sender="42"))).user == "bob"
        assert [each.content for each in (await memories.of("bob")).facts.values()] == ["Likes tea."]
        assert (await memories.of(own)).facts == {}


async def test_codes_are_for_one_platform_and_for_minutes(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        connections = Connections(office.stage.system.log, actor="http")
        code = await connections.offer("ada", "office")
        assert await connections.bind(code, "world", "42") is None
        assert await connections.bind("guessed", "office", "42") is None
        bound = await connections.bind(code, "office-work", "42")
        assert bound is not None
        assert (bound.user, bound.provider) == ("ada", "office")
        assert await connections.bind(code, "office-work", "42") == bound
        await office.stage.given(
            ConnectionOffered(code=_hash("old"), user="ada", provider="office", expires="2026-01-01T00:00:00+00:00"),
            aggregate=CONNECTIONS,
        )
        assert await connections.bind("old", "office", "43") is None


async def test_a_user_has_few_codes_at_a_time(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        connections = Connections(office.stage.system.log, actor="http")
        for _ in range(MOST_PENDING):
            code = await connections.offer("ada", "office")
        with pytest.raises(TooManyCodes):
            await connections.offer("ada", "office")
        await connections.offer("ada", "world")
        await connections.offer("bob", "office")
        await connections.bind(code, "office", "42")
        await connections.offer("ada", "office")
        assert await office.events(DeliveryPlanned) == []


def _hash(code: str) -> str:

    return hashlib.sha256(code.encode()).hexdigest()


@pytest.mark.parametrize("enabled", [True, False])
async def test_where_nobody_connects_an_account_that_is_disabled_means_nothing(tmp_path: Path, enabled: bool) -> None:
    """The person writes as themselves, and is judged as anybody is."""
    async with account(tmp_path, "world", {"allow_everyone": True}, channel_connections=CONNECT) as world:
        system = world.stage.system
        await world.hears(f"/connect {await Connections(system.log, actor='http').offer('ada', 'world')} yes")
        event = await world.hears("hi")
        created = AccountCreated(user="ada", email="ada@example.org", role="user")
        await system.log.append(ACCOUNTS, [created, AccountDisabled(user="ada")], expected=0, actor="test")
        settings = {"world": {"enabled": True, "use": f"{PACKAGE}.world", "allow_everyone": True}}
        other = {"channels": settings, "channel_connections": {"enabled": enabled}}
        (tmp_path / "other.yaml").write_text(json.dumps(other))
        gate = Gate("world", ConfigSource(tmp_path / "other.yaml"), system.log, system.standing)
        assert await gate.admits(event, Conversation()) is not enabled
