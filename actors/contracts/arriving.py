"""An answer always arrives: what a platform did not confirm is sent once more, from the log."""

from __future__ import annotations

from typing import Any

from actors.chat import again
from actors.chat.runs import UNSAID
from actors.contracts.seat import Seat, WithButtons, WithFiles
from actors.contracts.table import Table
from actors.delivery.delivering import UNKNOWN
from core.chat.facts import (
    FAILED_NOTICE,
    SEND_AGAIN,
    Artifact,
    ChatReceived,
    DeliveryFailed,
    DeliveryPlanned,
    DeliverySent,
)
from core.events import Event, RunCompleted
from core.files.folder import Folder


class Arriving:
    """Any platform."""

    async def test_a_command_sends_it_once_more_and_only_once(self, here: Table[Seat]) -> None:
        await lost(here, await here.hears("dora", "one"), "The lost answer.")
        await here.hears("dora", "/again")
        await here.hears("dora", "/again")
        await here.shows(again.ALREADY, "dora")
        await here.shows("The lost answer.", "dora")
        assert times(here, "The lost answer.", "dora") == 1

    async def test_an_answer_that_was_lost_in_silence_is_told_of_with_the_next_message(self, here: Table[Seat]) -> None:
        """Where the notice about it was lost, too."""
        event = await here.hears("gabi", "one")
        await lost(here, event, "The lost answer.", silent=True)
        routed = await here.answers(await here.hears("gabi", "two"), "The next answer.")
        await here.shows("The next answer.", "gabi")
        assert await here.shows(UNSAID.partition(".")[0], "gabi")
        assert routed.outcome == "run"

    async def test_without_a_lost_answer_there_is_nothing_to_send(self, here: Table[Seat]) -> None:
        await here.hears("fred", "/again")
        await here.shows(again.NOTHING, "fred")


class ArrivingByButton:
    """Platforms with buttons."""

    async def test_a_button_sends_a_lost_answer_once_more(self, here: Table[WithButtons]) -> None:
        event = await here.hears("cara", "one")
        await lost(here, event, "The answer of a long run.")
        await here.shows("did not say whether", "cara")
        await here.seat.presses("cara", SEND_AGAIN.label)
        await here.shows("The answer of a long run.", "cara")
        threads = (await here.stage.system.chats.load(here.place(event).id)).threads
        state = await here.stage.system.threads.load(next(iter(threads.values())))
        assert len(state.runs.values()) == 1, "without a new run"


class ArrivingFiles:
    """Platforms with files."""

    async def test_files_of_unknown_fate_are_sent_without_the_words_before_them(self, here: Table[WithFiles]) -> None:
        event = await here.hears("edna", "one")
        routed = await here.routed(event)
        folder = Folder(here.home, routed.user, routed.thread)
        folder.make()
        (folder.root / "user-data" / "outputs" / "plan.txt").write_text("the plan")
        artifact = Artifact("/mnt/user-data/outputs/plan.txt", "plan.txt")
        run = await lost(here, event, "Here it is.", artifact, sent=1)
        await here.hears("edna", "/again")
        plan = await here.delivered(event, again._again(run))
        assert (len(plan.messages), plan.parts) == (1, 1), "the file alone"
        assert times(here, "Here it is.", "edna") == 0


async def lost(
    here: Table[Any], event: ChatReceived, text: str, *artifacts: Artifact, sent: int = 0, silent: bool = False
) -> str:
    """Has an answer end as of unknown fate, after some parts that arrived. `silent`: the notice about it fails, too.
    Returns its run."""
    routed = await here.works(event)
    assert routed.target is not None
    about: dict[str, Any] = {"target": routed.target, "thread": routed.thread, "user": routed.user}
    answer = DeliveryPlanned(plan=routed.run_id, purpose="answer", text=text, artifacts=artifacts, **about)
    parts = [
        DeliverySent(plan=answer.plan, part=part, parts=1 + len(artifacts), message=f"m{part}") for part in range(sent)
    ]
    failed = DeliveryFailed(plan=answer.plan, part=sent, fate="unknown", reason="HTTP status 502")
    notice = DeliveryPlanned(
        plan=f"{answer.plan}{FAILED_NOTICE}", purpose="notice", text=UNKNOWN, buttons=(SEND_AGAIN,), **about
    )
    unsaid = DeliveryFailed(plan=notice.plan, part=0, fate="refused", reason="HTTP status 400")
    events: list[Event] = [answer, *parts, failed, notice, *([unsaid] if silent else [])]
    await here.stage.system.chats.decide(here.place(event).id, lambda _: events, actor=here.seat.name)
    await here.does(routed, RunCompleted())
    return routed.run_id


def times(here: Table[Any], text: str, person: str) -> int:
    return sum(text in shown for shown in here.seat.shown(person))
