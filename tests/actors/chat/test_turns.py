"""When a turn is over: pieces, pastes and files of a person are answered together, once, also while the agent works."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.chat import runs as chat_runs
from actors.chat.turns import CUT_CHARACTERS, LONGEST, MOST_MESSAGES, Message, turns_of
from core.chat.facts import (
    FAILED_NOTICE,
    Attachment,
    ChatReceived,
    DeliveryFailed,
    DeliveryPlanned,
    Target,
)
from core.events import ModelCompleted, Origin, RunCompleted, Speaker, StatePatched
from tests.actors.chat.site import Account, account
from tests.actors.chat.test_files import attached, fetched, routed
from tests.support.nats import eventually
from tests.support.records import ai

pytestmark = pytest.mark.anyio

AT = datetime(2026, 1, 1, tzinfo=UTC)
GATHER = timedelta(seconds=1.2)
FAST = {"gather_seconds": 0.3}


def written(
    at: float, text: str = "words", sender: str = "U1", *, file: bool = False, mentioned: bool = False
) -> Message:
    attachments = (Attachment("f", "a.txt"),) if file else ()
    event = ChatReceived(
        message=f"{at}", target=Target("C"), sender=sender, text=text, attachments=attachments, mentioned=mentioned
    )
    return Message(f"{at}", f"id-{at}", 1, AT + timedelta(seconds=at), event, () if file else None)


def sizes(messages: Sequence[Message]) -> list[int]:
    turns = turns_of(messages, lambda event: not event.text.startswith("/"), GATHER)
    return [len(turn.messages) for turn in turns]


LONG = "x" * CUT_CHARACTERS


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([written(0), written(0.2), written(1.3)], [3]),
        ([written(0), written(1.3)], [1, 1]),
        ([written(0, LONG), written(2.9, LONG), written(5.8, "end")], [3]),
        ([written(0, ""), written(2.9)], [1, 1]),
        ([written(0, "", file=True), written(2.9, "what is it?")], [2]),
        ([written(0, "look", file=True), written(2.9, "what is it?")], [1, 1]),
        ([written(0), written(0.1, "/status"), written(0.2)], [1, 1, 1]),
        ([written(0), written(0.1, sender="U2"), written(0.2), written(0.3, sender="U2")], [2, 2]),
        ([written(0, "you all"), written(0.5, "do it", mentioned=True), written(0.6)], [1, 2]),
        ([written(0, "", file=True), written(0.5, "this", mentioned=True)], [2]),
    ],
)
def test_what_is_one_turn(messages: Sequence[Message], expected: Sequence[int]) -> None:
    assert sizes(messages) == expected


PAUSES = st.lists(st.tuples(st.floats(0, 4), st.sampled_from(("U1", "U2")), st.sampled_from(("a", LONG))), max_size=80)


@given(PAUSES)
def test_turns_hold_each_message_once_in_order_and_have_bounds(pauses: list[tuple[float, str, str]]) -> None:
    messages: list[Message] = []
    at = 0.0
    for pause, sender, text in pauses:
        at += pause
        messages.append(written(at, text, sender))
    turns = turns_of(messages, lambda event: True, GATHER)
    for sender in ("U1", "U2"):
        own = [message for turn in turns for message in turn.messages if message.event.sender == sender]
        assert own == [message for message in messages if message.event.sender == sender]
    for turn in turns:
        assert len({message.event.sender for message in turn.messages}) == 1
        assert len(turn.messages) <= MOST_MESSAGES
        assert turn.ready_at(GATHER) <= turn.first.at + LONGEST
        assert turn.messages[-1].at - turn.first.at <= LONGEST


async def contents(office: Account, *events: ChatReceived) -> list[str]:
    """The messages of the runs that messages became."""
    outcomes = [await routed(office, event) for event in events]
    made = [outcome for outcome in outcomes if outcome.outcome == "run"]
    requests = [(await office.state(outcome)).runs[outcome.run_id].request for outcome in made]
    return [str(message["content"]) for request in requests for message in (request.input or {})["messages"]]


async def test_people_do_not_wait_for_the_turns_of_others(tmp_path: Path) -> None:
    settings = {"gather_seconds": 10, "require_mention": False}
    async with account(tmp_path, settings=settings) as office:
        mine = await office.hears("one moment", kind="group", settle=False)
        await office.hears("/new", sender="U2", kind="group", settle=False)
        assert (await office.chats.load(office.place().id)).heard[mine.message].outcome == ""


async def test_a_file_alone_is_asked_about_and_goes_with_the_next_words(tmp_path: Path) -> None:
    async with account(tmp_path, settings=FAST) as office:
        file = await office.hears("", attachments=attached("report.pdf"), settle=False)
        await fetched(office, file, ("report.pdf", b"x"))
        assert (await routed(office, file)).outcome == "asked"
        assert await office.said() == ["What shall I do with `report.pdf`?"]
        other = await office.hears("hello", sender="U2", settle=False)
        assert (await message_of(office, other))["content"] == "hello", "files go with words of the same person"
        words = await office.hears("summarise it", settle=False)
        message = await message_of(office, words)
        assert message["content"] == "summarise it"
        assert [each["filename"] for each in message["additional_kwargs"]["files"]] == ["report.pdf"]

        async def merged() -> bool:
            return (await office.chats.load(office.place().id)).heard[file.message].outcome == "merged"

        await eventually(merged)
        await office.answers(words)
        again = await message_of(office, await office.hears("and then?", settle=False))
        assert "additional_kwargs" not in again, "once"


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (("00:00:01+00:00", "00:00:01.250000+00:00", "00:00:01.240000+00:00"), "first\n\nthird\n\nsecond"),
        (("00:00:02.500000+00:00", "00:00:02+00:00", "00:00:01+00:00"), "third\n\nsecond\n\nfirst"),
        (("00:00:01+00:00",) * 3, "first\n\nsecond\n\nthird"),
        (("", "", ""), "first\n\nsecond\n\nthird"),
    ],
    ids=["the-last-is-late", "backwards", "within-a-second", "without-times"],
)
def test_the_parts_of_a_turn_are_in_the_order_in_which_they_were_sent(sent: Sequence[str], text: str) -> None:
    words = ("first", "second", "third")
    messages = [written(place / 10, words[place]) for place in range(3)]
    messages = [
        message._replace(event=msgspec.structs.replace(message.event, sent_at=at and f"2026-01-01T{at}"))
        for message, at in zip(messages, sent, strict=True)
    ]
    (turn,) = turns_of(messages, lambda _: True, GATHER)
    assert (turn.text, turn.content, turn.first.event.text) == (text, text, "first")


def test_a_file_goes_with_the_first_of_several_turns_with_words() -> None:
    asked = [written(0, "", file=True), written(0, "", "U2", file=True)]
    waiting = [written(9, "/status"), written(10, "", file=True), written(20), written(20, sender="U2"), written(30)]
    turns = turns_of(waiting, lambda event: not event.text.startswith("/"), GATHER, asked)
    assert [list(turn.brought) for turn in turns] == [[], [], asked[:1], asked[1:], []]


async def message_of(office: Account, event: ChatReceived) -> Any:
    outcome = await routed(office, event)
    [message] = ((await office.state(outcome)).runs[outcome.run_id].request.input or {})["messages"]
    return message


async def test_what_could_not_be_taken_of_a_file_alone_is_said(tmp_path: Path) -> None:
    async with account(tmp_path, settings=FAST) as office:
        file = await office.hears("", attachments=attached("a.txt"), settle=False)
        await fetched(office, file, ("a.txt", "too large"))
        assert (await routed(office, file)).outcome == "refused"
        assert await office.said() == ["I could not take every file:\n- a.txt: too large"]


async def test_a_failure_that_could_not_be_said_is_said_with_the_next_message(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        first = await office.answers(await office.hears("one"))
        lost = DeliveryFailed(plan=first.run_id, part=0, fate="unknown", reason="HTTP status 502")
        notice = DeliveryPlanned(
            plan=f"{first.run_id}{FAILED_NOTICE}", purpose="notice", target=Target("C1"), text="A part is missing."
        )
        unsaid = DeliveryFailed(plan=notice.plan, part=0, fate="unknown", reason="HTTP status 502")
        await office.chats.decide(office.place().id, lambda _: [lost, notice, unsaid], actor=office.name)
        for text in ("two", "three"):
            await office.answers(await office.hears(text))
        assert (await office.said()).count(chat_runs.UNSAID) == 1


async def test_in_a_group_each_message_says_who_wrote_it(tmp_path: Path) -> None:
    async with account(tmp_path, settings={"on_busy": "steer"}) as office:
        about: Any = {"kind": "group", "topic": "t", "mentioned": True}
        first, other = [await office.hears(f"of {sender}", sender=sender, **about) for sender in ("U1", "U2")]
        routed = await office.starts(first)
        assert (await office.outcome(other)).outcome == "run", "a run that has not begun is of its own person"
        state = await office.state(routed)
        origins = [run.request.origin for run in state.runs.values()]
        assert origins == [
            Origin("office", office.place("C1", "t").id, Speaker(who, f"Name of {who}", f"office__{who}"))
            for who in ("U1", "U2")
        ]
        await office.hears("steers", sender="U2", **about)
        [joined] = (await office.state(routed)).runs[routed.run_id].steers
        assert joined["additional_kwargs"]["speaker"] == {"id": "U2", "name": "Name of U2"}
        await office.does(routed, ModelCompleted(message=ai("a", "Hi.")), RunCompleted())
        alone = await office.run(await office.hears("hi", chat="C2"))
        assert alone.request.origin == Origin("office", office.place("C2").id)


async def test_a_question_that_is_asked_again_keeps_its_author(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        about: Any = {"kind": "group", "topic": "t", "mentioned": True}
        first = await office.hears("why?", **about)
        routed = await office.starts(first)
        kwargs = {"speaker": {"id": "U1", "name": "Name of U1"}}
        message = {"id": f"human-{routed.run_id}", "additional_kwargs": kwargs}
        await office.does(routed, ModelCompleted(message=ai("a", "So.")), RunCompleted())
        state = await office.state(routed)
        asked = state.messages[0]
        assert asked["id"] == message["id"]
        await office.does(routed, StatePatched(values={"messages": [{**asked, **message}]}))
        again = await office.run(await office.hears("/retry", sender="U2", **about))
        assert again.request.origin is not None
        assert again.request.origin.speaker == Speaker("U1", "Name of U1"), "and brings nobody's memory"
