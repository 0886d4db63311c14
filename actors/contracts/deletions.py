"""A message that is deleted goes out of what the agent reads from then on."""

from __future__ import annotations

from actors.chat.deletions import GONE
from actors.contracts.seat import WithDeletions
from actors.contracts.table import Table
from actors.contracts.talk import all_of, outcome
from core.chat.facts import ChatReceived, ChatRouted


class Deletions:
    """Messages that people delete."""

    async def test_a_deleted_question_is_not_read_any_more(self, here: Table[WithDeletions]) -> None:
        first = await here.hears("zoe", "my password is swordfish")
        routed = await here.answers(first, "Better do not tell me.")
        await deletes(here, "zoe", first)
        assert await read(here, routed) == [GONE, "Better do not tell me."]
        await here.answers(await here.hears("zoe", "and now?"), "I know nothing.")
        assert await read(here, routed) == [GONE, "Better do not tell me.", "and now?", "I know nothing."]

    async def test_a_message_that_is_deleted_in_time_becomes_nothing(self, here: Table[WithDeletions]) -> None:
        with here.set(gather_seconds=10):
            event = await here.hears("zita", "my password is swordfish")
            await deletes(here, "zita", event)
            assert await outcome(here, event) == "ignored"

    async def test_a_deleted_message_that_waits_is_not_answered(self, here: Table[WithDeletions]) -> None:
        await here.works(await here.hears("zack", "one"))
        waiting = await here.hears("zack", "two")
        await here.routed(waiting)
        await here.seat.deletes("zack", waiting.message)
        await here.until_ended(waiting)
        assert (await here.run(waiting)).started_seq is None

    async def test_a_deletion_during_a_run_counts_after_it(self, here: Table[WithDeletions]) -> None:
        event = await here.hears("zara", "my password is swordfish")
        routed = await here.works(event)
        await here.seat.deletes("zara", event.message)
        await here.until(lambda: any(e.deleted and e.message == event.message for e in here.received))
        await here.ends(routed, "Better do not tell me.")
        await here.routed(next(e for e in here.received if e.deleted and e.message == event.message))
        assert await read(here, routed) == [GONE, "Better do not tell me."]
        await here.shows("Better do not tell me.", "zara")

    async def test_a_part_of_a_turn_is_deleted_and_the_rest_stays(self, here: Table[WithDeletions]) -> None:
        with here.set(gather_seconds=2):
            events = await all_of(here, "zeno", "how do I log in?", "my password is swordfish", "quick please")
            routed = await here.answers(events[0], "With your password.")
        await deletes(here, "zeno", events[1])
        assert await read(here, routed) == ["how do I log in?\n\nquick please", "With your password."]
        await deletes(here, "zeno", events[0])
        assert await read(here, routed) == ["quick please", "With your password."]


async def deletes(here: Table[WithDeletions], person: str, event: ChatReceived) -> None:
    """Has a person delete a message, and waits until that was decided on."""
    await here.seat.deletes(person, event.message)
    gone = await here.until(lambda: next((e for e in here.received if e.deleted and e.message == event.message), None))
    await here.routed(gone)


async def read(here: Table[WithDeletions], routed: ChatRouted) -> list[str]:
    """Returns the words of a thread's messages."""
    state = await here.stage.system.threads.load(routed.thread)
    return [message["content"] for message in state.messages]
