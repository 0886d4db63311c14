"""Files to and fro: those without words wait for them, and long answers are one."""

from __future__ import annotations

from actors.contracts.seat import WithFiles
from actors.contracts.table import Table
from actors.delivery.long import FOLLOWS, WHOLE

LONG = "\n\n".join(f"Paragraph {n} of a long answer: {'words and more words ' * 20}" for n in range(200)).strip()


class Files:
    """Platforms on which people and the bot send files."""

    async def test_a_file_without_words_is_asked_about_and_goes_with_the_next_words(
        self, here: Table[WithFiles]
    ) -> None:
        with here.set(gather_seconds=0.01):
            before = len(here.received)
            await here.seat.sends("ilse", "Größen.txt", b"12 cm")
            await here.until(lambda: len(here.received) > before)
            await here.shows("What shall I do with", "ilse")
            assert (await here.routed(here.received[before])).outcome == "asked", "no model is run on nothing"
            words = await here.hears("ilse", "add them up")
            message = await here.message(words)
        assert message["content"] == "add them up"
        assert [file["filename"] for file in message["additional_kwargs"]["files"]] == ["Größen.txt"]

    async def test_an_answer_of_many_messages_is_a_file(self, here: Table[WithFiles]) -> None:
        event = await here.hears("kate", "tell me all")
        routed = await here.answers(event, LONG)
        plan = await here.delivered(event, routed.run_id)
        assert (plan.failed, plan.parts) == ("", 3), "the beginning, a line about the file, and the file"
        assert await here.shows("Paragraph 0 of", "kate")
        assert await here.shows(WHOLE, "kate")
        assert not [text for text in here.seat.shown("kate") if "Paragraph 199" in text]
        assert here.seat.files("kate") == [LONG]

    async def test_the_first_message_of_such_an_answer_is_its_lead_and_the_second_its_headings(
        self, here: Table[WithFiles]
    ) -> None:
        sections = [f"## Finding {n}\n\n{LONG[: n * 8000]}" for n in range(1, 6)]
        event = await here.hears("nora", "what did you find?")
        await here.answers(event, "\n\n".join(["# Report", "Five findings, the last one is the worst.", *sections]))
        follows = await here.shows(FOLLOWS.strip("*"), "nora")
        assert ["Finding 1" in follows, "Finding 5" in follows, WHOLE in follows] == [True] * 3
        lead = await here.shows("the last one is the worst", "nora")
        assert "Paragraph" not in lead
        assert len(here.seat.shown("nora")) >= 2

    async def test_an_answer_of_some_messages_is_none(self, here: Table[WithFiles]) -> None:
        event = await here.hears("liam", "tell me some")
        routed = await here.answers(event, LONG[:5000])
        plan = await here.delivered(event, routed.run_id)
        assert (plan.failed, len(plan.messages)) == ("", plan.parts)
        assert here.seat.files("liam") == []
