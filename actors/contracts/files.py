"""Files to and fro: those without words wait for them, and long answers are one."""

from __future__ import annotations

from collections.abc import Sequence

from actors.contracts.seat import WithBundles, WithFiles
from actors.contracts.table import Table
from actors.delivery.long import FOLLOWS, WHOLE
from core.chat.facts import Artifact, DeliveryPlanned
from core.chat.state import Plan
from core.events import RunCompleted
from core.files.folder import Folder

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


class Bundles:
    """Platforms of which one message carries several files."""

    async def test_several_files_are_one_message(self, here: Table[WithBundles]) -> None:
        plan = await self._sends(here, "olga", ["a.txt", "b.txt", "c.txt"])
        assert (plan.failed, len(plan.messages)) == ("", 4)
        assert here.seat.bundles("olga") == [["a.txt", "b.txt", "c.txt"]]

    async def test_more_than_fit_are_several(self, here: Table[WithBundles]) -> None:
        names = [f"{number:02}.txt" for number in range(12)]
        plan = await self._sends(here, "omar", names)
        assert (plan.failed, len(plan.messages)) == ("", 13)
        assert here.seat.bundles("omar") == [names[:10], names[10:]]

    async def test_a_refused_file_is_named_and_the_others_arrive(self, here: Table[WithBundles]) -> None:
        here.seat.refuses("evil.txt")
        plan = await self._sends(here, "otto", ["a.txt", "evil.txt", "c.txt"])
        assert (plan.failed, len(plan.messages)) == ("", 4)
        assert sorted(here.seat.files("otto")) == ["a.txt", "c.txt"]
        assert "was not sent" in await here.shows("evil.txt", "otto")

    async def test_a_missing_file_is_named_and_the_others_arrive(self, here: Table[WithBundles]) -> None:
        plan = await self._sends(here, "olaf", ["a.txt", "b.txt"], missing=["gone.txt"])
        assert (plan.failed, len(plan.messages)) == ("", 4)
        assert here.seat.bundles("olaf") == [["a.txt", "b.txt"]]
        assert "was not sent" in await here.shows("gone.txt", "olaf")

    async def test_files_of_a_call_that_failed_arrive_once(self, here: Table[WithBundles]) -> None:
        for how in ("limited", "reset", "gateway", "lost"):
            person, names = f"oda-{how}", ["a.txt", "b.txt"]
            plan = await self._sends(here, person, names, fails=how)
            arrived = here.seat.files(person)
            assert len(arrived) == len(set(arrived)), how
            assert plan.failed in ("", "unknown"), how
            if plan.failed:
                await here.shows("did not say whether", person)
            else:
                assert here.seat.bundles(person) == [names], how

    async def _sends(
        self,
        here: Table[WithBundles],
        person: str,
        names: Sequence[str],
        *,
        missing: Sequence[str] = (),
        fails: str = "",
    ) -> Plan:
        """Answers a person with files whose content is their name, and with words unless the call fails. Returns the
        plan once it is over."""
        event = await here.hears(person, "send me all")
        routed = await here.works(event)
        folder = Folder(here.home, routed.user, routed.thread)
        folder.make()
        for name in names:
            (folder.root / "user-data" / "outputs" / name).write_text(name)
        artifacts = tuple(Artifact(f"/mnt/user-data/outputs/{name}", name) for name in (*names, *missing))
        assert routed.target is not None
        answer = DeliveryPlanned(
            plan=routed.run_id,
            purpose="answer",
            target=routed.target,
            text="" if fails else "Here they are.",
            artifacts=artifacts,
            thread=routed.thread,
            user=routed.user,
        )
        here.seat.fails(fails)
        try:
            await here.stage.system.chats.decide(here.place(event).id, lambda _: [answer], actor=here.seat.name)
            plan = await here.delivered(event, routed.run_id)
        finally:
            here.seat.fails("")
        await here.does(routed, RunCompleted())
        return plan
