"""Groups: who speaks, whose memory it is, and who waits for whom."""

from __future__ import annotations

from actors.chat.perform import INSIDE, OUTSIDE
from actors.contracts.seat import Seat
from actors.contracts.table import Table
from actors.contracts.talk import remember
from core.memory.facts import Memories
from core.thread.messages import person


class Groups:
    """Groups of people with the bot, and mentions of others in what they write."""

    async def test_people_who_are_mentioned_have_names(self, here: Table[Seat]) -> None:
        await here.hears("bob", "hello", "team")
        event = await here.hears("ann", "what did {} ask for?", "team", mentions="bob")
        name = next(event.sender_name for event in here.received if event.sender == here.seat.id_of("bob"))
        mention = f"@{person(name, here.seat.id_of('bob'))}"
        content = (await here.message(event))["content"]
        assert mention in content, content
        assert content.replace(mention, "").split() == ["what", "did", "ask", "for?"]

    async def test_a_mention_before_a_command_is_none_of_its_words(self, here: Table[Seat]) -> None:
        event = await here.hears("ann", "{} /status", "team", mentions="bob")
        assert (await here.routed(event)).outcome == "command"

    async def test_who_wrote_a_message_is_with_its_run(self, here: Table[Seat]) -> None:
        in_group = await here.hears("ann", "hello", "team")
        speaker = (await here.run(in_group)).request.origin
        assert speaker is not None
        assert speaker.speaker is not None
        assert speaker.speaker.id == here.seat.id_of("ann")
        alone = (await here.run(await here.hears("ann", "hello"))).request.origin
        assert alone is not None
        assert alone.speaker is None

    async def test_a_conversation_of_a_group_is_of_the_group(self, here: Table[Seat]) -> None:
        """So no private memory is in its prompts, and what is remembered of it is in nobody's."""
        private = await here.routed(await here.hears("olga", "I look for another job"))
        await remember(here, private.user, "She looks for another job.")
        events = [await here.hears(name, "hello", "choir") for name in ("olga", "pia")]
        routed = [await here.routed(event) for event in events]
        assert routed[0].user == routed[1].user != private.user
        users = {(await here.stage.system.threads.load(each.thread)).user for each in routed}
        assert users == {routed[0].user}
        await remember(here, routed[0].user, "They sing on Mondays.")
        await remember(here, routed[0].user, "They rehearse in the school.", "fact_2")
        await here.hears("olga", "/memory", "choir")
        await here.shows("I remember 2 facts.", "olga", "choir")
        await here.hears("olga", "/memory")
        await here.shows("I remember 1 fact.", "olga")

    async def test_a_person_sets_whether_their_memory_goes_into_groups(self, here: Table[Seat]) -> None:
        """The group's is nobody's to set, and only the writer's own comes with what they write."""
        memories = Memories(here.stage.system.log, actor="test")
        private = (await here.routed(await here.hears("sven", "hello"))).user
        for command, on in (("on", True), ("OFF", False), ("on", True)):
            event = await here.hears("sven", f"/memory groups {command}")
            await here.shows((INSIDE if on else OUTSIDE).partition(".")[0], "sven")
            assert (await here.routed(event)).outcome == "command"
            assert (await memories.of(private)).in_groups is on
        events = [await here.hears(name, "hello", "quartet") for name in ("sven", "tove")]
        origins = [(await here.run(event)).request.origin for event in events]
        writers = [origin.speaker.user for origin in origins if origin is not None and origin.speaker is not None]
        assert writers[0] == private != writers[1]
        group = (await here.routed(events[0])).user
        assert [(await memories.of(user)).in_groups for user in (writers[1], group)] == [False, False]

    async def test_a_person_who_floods_waits_for_themselves(self, here: Table[Seat]) -> None:
        """Whatever one person has written, the next one waits for two answers: the one at work, and theirs."""
        with here.set(gather_seconds=0.01, require_mention=False):
            first = await here.works(await here.hears("quin", "one", "rush"))
            topic = here.received[-1].target.topic
            for number in range(5):
                event = await here.hears("quin", f"and {number}", "rush")
                await here.routed(event)
            other = await here.routed(await here.hears("rosa", "my question", "rush"))
        if topic == here.received[-1].target.topic:
            runs = (await here.stage.system.threads.load(first.thread)).runs
            assert [*runs].index(other.run_id) == 2
        else:
            assert other.thread != first.thread, "where each question of a group is a conversation, nobody waits"
