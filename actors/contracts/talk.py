"""Tests of every private chat, whatever the platform has besides texts: whose memory it is, when a turn is over,
and what is said while the agent is busy."""

from __future__ import annotations

import re

import anyio
import msgspec

from actors.chat.runs import BEGUN, QUEUED
from actors.contracts.seat import Seat
from actors.contracts.table import Table
from core.chat import platforms
from core.chat.facts import ChatReceived, DeliveryPlanned
from core.events import RunStarted
from core.memory.facts import Fact, FactRemembered, Memories, memory_id

CUT = "The words of a long text that an app has cut. " * 85
"""As long as what the apps of platforms cut: see `actors.chat.turns.CUT_CHARACTERS`."""


class Talk:
    """Private chats of a platform that has nothing but texts."""

    async def test_a_person_without_an_account_is_a_user_of_their_own(self, here: Table[Seat]) -> None:
        first = await here.routed(await here.hears("ada", "hello"))
        second = await here.routed(await here.hears("ada", "and again"))
        other = await here.routed(await here.hears("bea", "hello"))
        assert first.user == second.user
        assert first.user != other.user
        assert {first.user, other.user}.isdisjoint({"default", ""})
        assert first.thread != other.thread
        assert (await here.stage.system.threads.load(first.thread)).user == first.user, "budgets and files are, too"

    async def test_what_is_remembered_of_one_is_told_to_nobody_else(self, here: Table[Seat]) -> None:
        user = (await here.routed(await here.hears("cleo", "I look for another job"))).user
        await remember(here, user, "She looks for another job.")
        await here.hears("cleo", "/memory")
        await here.shows("I remember 1 fact.", "cleo")
        await here.hears("dina", "/memory")
        await here.shows("I remember 0 facts.", "dina")

    async def test_people_who_write_at_once_get_answers_of_their_own(self, here: Table[Seat]) -> None:
        people = [f"crowd{number}" for number in range(12)]

        async def talk(person: str) -> None:
            await here.answers(await here.hears(person, "hello"), f"Hello, {person}.")
            await here.shows(f"Hello, {person}.", person)

        async with anyio.create_task_group() as tasks:
            for person in people:
                tasks.start_soon(talk, person)
        assert [list(here.seat.shown(person)) for person in people] == [[f"Hello, {person}."] for person in people]

    async def test_messages_are_answered_in_their_order(self, here: Table[Seat]) -> None:
        events = [await here.hears("edda", f"question {number}") for number in range(3)]
        for number, event in enumerate(events):
            await here.answers(event, f"Answer {number}.")
        await here.shows("Answer 2.", "edda")
        answers = [text for text in here.seat.shown("edda") if text.startswith("Answer")]
        assert answers == ["Answer 0.", "Answer 1.", "Answer 2."]

    async def test_pieces_of_a_message_are_one_turn(self, here: Table[Seat]) -> None:
        pieces = ("I have a question", "about Python", "how do I sort a list?")
        with here.set(gather_seconds=3):
            events = await all_of(here, "fay", *pieces)
            outcomes = [(await here.routed(event)).outcome for event in events]
        assert outcomes == ["run", "merged", "merged"]
        assert (await here.message(events[0]))["content"] == "\n\n".join(pieces)
        assert not here.seat.shown("fay"), "nothing is said before the answer"

    async def test_the_parts_of_a_paste_are_one_turn(self, here: Table[Seat]) -> None:
        """Also where the window for other messages is over between them."""
        with here.set(gather_seconds=0.1):
            events = await all_of(here, "gil", CUT, CUT, "What does it say?")
            await here.routed(events[-1])
        content = (await here.message(events[0]))["content"].split()
        assert content == [*CUT.split(), *CUT.split(), "What", "does", "it", "say?"]

    async def test_what_comes_before_the_first_call_of_a_model_joins_the_run(self, here: Table[Seat]) -> None:
        with here.set(gather_seconds=0.01):
            working = await here.works(await here.hears("hal", "one"))
            events = []
            for text in ("two", "three", "four"):
                events.append(await here.hears("hal", text))
                await here.routed(events[-1])
        outcomes = [await here.routed(event) for event in events]
        assert [outcome.outcome for outcome in outcomes] == ["run", "steered", "steered"]
        run = (await here.stage.system.threads.load(working.thread)).runs[outcomes[0].run_id]
        assert [message["content"] for message in run.steers] == ["three", "four"]

    async def test_a_person_who_waits_is_told_so_once_and_not_afterwards(self, here: Table[Seat]) -> None:
        working = await here.works(await here.hears("ina", "one"))
        waiting = [await here.hears("ina", text) for text in ("two", "three")]
        for event in waiting:
            await here.routed(event)
        notice = QUEUED.strip("_")
        await here.shows(notice, "ina")
        await here.ends(working, "One.")
        await here.shows("One.", "ina")
        for number, event in enumerate(waiting):
            await here.answers(event, f"Answer {number}.")
        await here.shows("Answer 1.", "ina")
        shown = here.seat.shown("ina")
        assert sum(notice in text for text in shown) == (0 if edits_are_free(here) else 1)
        assert sum(BEGUN.strip("_") in text for text in shown) == (1 if edits_are_free(here) else 0)

    async def test_replies_of_the_system_overtake_answers(self, here: Table[Seat]) -> None:
        event = await here.hears("jan", "hello")
        routed = await here.routed(event)
        assert routed.target is not None
        first, second, reply = (
            DeliveryPlanned(plan=f"{routed.run_id}/{text}", purpose="answer", target=routed.target, text=text)
            for text in ("First.", "Second.", "Help.")
        )
        plans = [first, second, msgspec.structs.replace(reply, purpose="notice")]
        await here.stage.system.chats.decide(here.place(event).id, lambda _: plans, actor=here.seat.name)
        await here.shows("Second.", "jan")
        assert list(here.seat.shown("jan")) == ["Help.", "First.", "Second."]

    async def test_a_command_does_not_wait_for_the_rest_of_a_turn(self, here: Table[Seat]) -> None:
        with here.set(gather_seconds=10):
            piece = await here.hears("kai", "I have a question")
            await here.hears("kai", "/status")
            await here.shows("There is no conversation yet", "kai")
            assert await outcome(here, piece) == ""

    async def test_the_status_says_how_long_with_which_model_and_at_which_step(self, here: Table[Seat]) -> None:
        routed = await here.routed(await here.hears("kim", "count the files"))
        await here.does(routed, RunStarted(attempt=1, worker="test", lease=1, model="small-model"))
        await here.says(routed, "I count.")
        await here.hears("kim", "/status")
        status = await here.shows("small-model", "kim")
        assert re.search(r"For \d+ s, with small-model; now: \W*bash", status), status

    async def test_the_queue_is_listed_and_cleared(self, here: Table[Seat]) -> None:
        await here.works(await here.hears("lena", "one"))
        waiting = [await here.hears("lena", text) for text in ("the second", "the third")]
        for event in waiting:
            await here.routed(event)
        await here.hears("lena", "/queue")
        listed = await here.shows("Waiting:", "lena")
        assert listed.index("the second") < listed.index("the third")
        await here.hears("lena", "/queue clear")
        await here.shows("Dropped 2 messages.", "lena")
        assert [(await here.run(event)).open for event in waiting] == [False, False]

    async def test_stop_all_ends_what_is_at_work_and_what_waits(self, here: Table[Seat]) -> None:
        working = await here.works(await here.hears("mara", "one"))
        waiting = await here.hears("mara", "two")
        await here.routed(waiting)
        command = await here.hears("mara", "/stop all")
        assert (await here.routed(command)).outcome == "command"
        runs = (await here.stage.system.threads.load(working.thread)).runs
        assert [run.cancel is not None or not run.open for run in runs.values()] == [True, True]


async def remember(here: Table[Seat], user: str, text: str, fact: str = "fact_1") -> None:
    """Has something remembered of a user."""
    memories = Memories(here.stage.system.log, actor="test")
    event = FactRemembered(fact=Fact(id=fact, content=text))
    await memories.decide(memory_id(user, None), lambda _: [event])


async def all_of(here: Table[Seat], person: str, *texts: str) -> list[ChatReceived]:
    """Has a person write several messages without a pause. Returns them as they were received."""
    before = len(here.received)
    for text in texts:
        await here.seat.writes(person, text)
    sender = here.seat.id_of(person)
    await here.until(lambda: sum(event.sender == sender for event in here.received[before:]) == len(texts))
    return [event for event in here.received[before:] if event.sender == sender]


async def outcome(here: Table[Seat], event: ChatReceived) -> str:
    """Returns what became of a message so far."""
    return (await here.stage.system.chats.load(here.place(event).id)).heard[event.message].outcome


def edits_are_free(here: Table[Seat]) -> bool:
    return platforms.traits(here.seat.name, here.config).edits_are_free
