"""People who talk to the bot in a storm (`tests.chaos.chats`): what they write, what they decide, and the judgement of
what they were answered."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import anyio
import msgspec

from actors.chat.runs import waiting_id
from actors.delivery.delivering import AGAIN
from core.chat.facts import (
    ASKED,
    ChatReceived,
    ChatRouted,
    DeliveryAttempted,
    DeliveryFailed,
    DeliveryPlanned,
    DeliverySent,
    key_of,
)
from core.runtime.system import System
from tests.chaos.towns import Town
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import wait_for

ANSWER_SECONDS = 900.0
"""Time for one answer, or one question, however many processes die meanwhile: on a busy machine a server needs 40 s to
start, and is killed before. Who has given up on a question has nothing to answer."""
AGAIN_SECONDS = 15.0
"""Time after which a person presses a button again that shows no effect: some platforms deliver a press only once."""
TWICE = 0.2
"""Part of the turns that are followed by another one at once."""
Kind = Literal["text", "file", "command", "approval", "paste", "flood", "room"]
PARTS: Mapping[Kind, float] = {
    "file": 0.1,
    "command": 0.12,
    "approval": 0.12,
    "paste": 0.12,
    "flood": 0.03,
    "room": 0.12,
}
"""Parts of the turns that are of a kind. A paste is cut in three by the client, a flood are many messages, and in a
room, a group, several people talk to the bot."""
MESSAGES: Mapping[Kind, int] = {"paste": 3, "flood": 12}
FLOOD_PAUSES = (0.0, 0.1, 1.5)
"""Seconds between the messages of a flood: some become one turn, some come while the bot is at work."""
IN_A_ROOM = 4
"""People of a room."""
BETWEEN_PARTS = 0.005
"""Seconds between the parts of a paste as its client sends them: the times of platforms tell them apart."""
SAME_TURN = 1.0
"""Seconds between parts of a paste, as the log has them, within which they must be one turn: the account's default is
a little more."""
APPROVED = "ls"
"""The tool that needs an approval."""
SLOW_MS, SLOW = 400, 5
"""Milliseconds before the answer to each fifth question of a person: they see that the bot is busy."""
_QUESTION = re.compile(r"question (\d+)-(\d+)")
_OTHER_UPLOADS = re.compile(
    r"From previous messages:.*?</uploaded_files>|\(A file could not be taken: [^\n]*\)", re.DOTALL
)
"""Also files of messages that are still queued, and of none."""
MARK = AGAIN.strip("_()").partition(":")[0]
"""Words of an answer that says itself that it may be the second one."""
MARK_OF, FACT = "amber-{}", "The code word is amber-{}."
"""A person's secret, and what is remembered of it."""
_MARKED, _REMEMBERED = re.compile(r"amber-(\d+)"), re.compile(r"The code word is amber-(\d+)")
_ABOUT, _ROOM = "about the code word", "in the room"
_STATUS = re.compile(r"Conversation .{30,60}: |There is no conversation yet")
_WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew "
_TYPED = {"Approve": ("yes", "1", "approve"), "Reject": ("no", "2", "Reject")}


class Tally(msgspec.Struct):
    """Figures, then faults: all of these must be 0."""

    messages: int = 0
    kinds: dict[str, int] = {}
    kills: dict[str, int] = {}
    disturbances: dict[str, int] = {}
    """Faults of the platform."""
    decided: dict[str, int] = {}
    """Approvals, by the way in which they were decided."""
    together: int = 0
    """Pastes whose parts became one turn."""
    uncertain: int = 0
    """Deliveries of unknown fate, which the log says."""
    marked: int = 0
    """Answers that are there again, with the mark."""
    repeated: int = 0
    """Answers to commands that are there again: these are repeated freely."""
    remembered: int = 0
    """People whose memory was in a prompt of theirs."""
    connections: int = 0
    """Most at a time."""
    fail_over_seconds: float | None = None
    """Time from the death of a replica that held the account until another took a message."""

    connections_beside: int = 0
    """Connections beside the one."""
    unanswered: int = 0
    lost: int = 0
    """Messages that no prompt had."""
    answered_twice: int = 0
    out_of_order: int = 0
    garbled: int = 0
    torn: int = 0
    """Pastes that arrived within the window, and became several turns."""
    over: int = 0
    """Notices about what was over when they were sent, or is over and was not taken back."""
    leaks: int = 0
    """Prompts with the memory of another person."""
    buttons_left: int = 0
    """Questions that were decided and look as if they were open."""
    problems: int = 0
    wake_ups_left: int = 0
    dead_letters: int = 0
    stories: list[str] = []

    def faults(self) -> int:
        return sum(
            getattr(self, name)
            for name in self.__struct_fields__[self.__struct_fields__.index("connections_beside") : -1]
        )

    def report(self) -> str:
        lines = [f"{name.replace('_', ' '):<20} {getattr(self, name)}" for name in self.__struct_fields__[:-1]]
        return "\n".join([*lines, *self.stories[:40]])


class Number(NamedTuple):
    """The number of a question, by which its answer is recognised."""

    person: int
    turn: int

    @property
    def text(self) -> str:
        return f"question {self.person}-{self.turn}"

    @property
    def answer(self) -> str:
        words = _WORDS * (1 + self.turn % 4)
        return f"answer {self.person}-{self.turn}: {words}that was {self.person}-{self.turn}."

    @property
    def begin(self) -> str:
        return f"answer {self.person}-{self.turn}: "

    @property
    def end(self) -> str:
        return f"that was {self.person}-{self.turn}."


def numbers(text: str) -> list[Number]:
    return [Number(int(person), int(turn)) for person, turn in _QUESTION.findall(text)]


class Model:
    """The model: what it is shown of people, and what it says."""

    def __init__(self) -> None:
        self.seen: set[Number] = set()
        self.remembered: set[int] = set()
        """People whose memory was in a prompt of theirs."""
        self.leaks: list[str] = []

    def answer(self, messages: Sequence[dict[str, Any]]) -> Turn:
        """Answers the last question of a conversation, and calls a tool before if the question says so."""
        contents = [_OTHER_UPLOADS.sub("", str(message.get("content"))) for message in messages]
        asked = self._look("\n".join(contents))
        if not asked:
            return Turn(text="I have read it.", delay_ms=4)
        last = asked[-1]
        if messages[-1]["role"] == "user" and f"approve {last.text}" in contents[-1]:
            args = {"description": f"Look for {last.text}", "path": "/mnt/user-data/outputs"}
            return Turn(text="", tool_calls=(ToolCall(APPROVED, args),))
        return Turn(text=last.answer, delay_ms=4 if last.turn % SLOW else SLOW_MS / 10)

    def remember(self, messages: Sequence[dict[str, Any]]) -> Turn:
        """Remembers the secret that a conversation has."""
        text = "\n".join(str(message.get("content")) for message in messages)
        self._look(text)
        facts = [{"content": FACT.format(n), "confidence": 0.9, "turn": 1} for n in set(_MARKED.findall(text))]
        return Turn(text=json.dumps({"newFacts": facts}))

    def _look(self, text: str) -> list[Number]:
        """Returns the questions of a prompt. Notes whose secrets it has."""
        asked = numbers(text)
        self.seen.update(asked)
        owners = {number.person for number in asked} if _ROOM not in text else set()
        if asked and (others := {int(person) for person in _MARKED.findall(text)} - owners):
            self.leaks.append(f"memory of {others} in a prompt of {owners or 'a room'}: {text[-600:]}")
        self.remembered |= {int(person) for person in _REMEMBERED.findall(text)} & owners
        return asked


class Fates:
    """What the log says: the order of the messages, which of them became one turn, and deliveries that ended without
    having arrived for certain."""

    def __init__(self, running: System) -> None:
        self._running, self._seq = running, 0
        self._plans: dict[str, tuple[str, str]] = {}
        """Conversations and texts of plans."""
        self._keys: dict[tuple[str, str], Number] = {}
        """Numbers of messages, by conversation and key."""
        self._turn: dict[tuple[str, int], list[Number]] = {}
        """The newest turn, by conversation and person."""
        self._waits: dict[str, str] = {}
        """The runs that notices are about, by plan."""
        self._copies: dict[str, int] = {}
        """Attempts at plans of which it is not known whether they brought a message there."""
        self._said: set[str] = set()
        """Plans of which something was sent."""
        self.over: list[str] = []
        """Notices that were sent when their run had been answered."""
        self.asked: set[Number] = set()
        """Files about which the person was asked, and has not said what to do, and those that could not be taken."""
        self.at: dict[Number, datetime] = {}
        self._turns: dict[Number, list[Number]] = {}
        self._order: dict[Number, tuple[int, str]] = {}
        """Places in a turn: what joins it stands last, and messages that came together in the order of their times."""
        self.failed: dict[str, DeliveryFailed] = {}
        """By plan."""
        self.received: dict[Number, int] = {}
        """Sequences of messages: a platform delivers what was not acknowledged after what came later."""
        self.conversations: dict[int, str] = {}
        """By person."""

    async def look(self) -> None:
        """Reads the log on."""
        last = await self._running.log.last()
        async for record in self._running.log.between(self._seq, last):
            self._take(record.aggregate.id, record.seq, record.at, record.event)
            self._seq = record.seq

    def _take(self, conversation: str, seq: int, at: str, event: Any) -> None:
        match event:
            case ChatReceived():
                for number in numbers(" ".join([event.text, *(file.name for file in event.attachments)])):
                    self.received.setdefault(number, seq)
                    self.at.setdefault(number, datetime.fromisoformat(at))
                    self._order.setdefault(number, (0, event.sent_at))
                    if event.target.kind == "private":
                        self.conversations[number.person] = conversation
                    self._keys[conversation, key_of(event)] = number
            case ChatRouted(message=key, outcome=outcome) if (conversation, key) in self._keys:
                number = self._keys[conversation, key]
                if event.run_id:
                    self._waits[waiting_id(conversation, event.run_id)] = event.run_id
                if outcome not in ("merged", "steered"):
                    self._turn[conversation, number.person] = []
                turn = self._turns[number] = self._turn.setdefault((conversation, number.person), [])
                joined, _ = self._order[turn[-1]] if turn else (0, "")
                self._order[number] = (joined + (outcome == "steered"), self._order[number][1])
                turn.append(number)
                turn.sort(key=self._order.__getitem__)
                (self.asked.add if outcome in (ASKED, "refused") else self.asked.discard)(number)
            case DeliveryAttempted(plan=plan, withdrawn=withdrawn):
                self._copies[plan] = self._copies.get(plan, 0) + (-1 if withdrawn else 1)
            case DeliverySent(plan=plan):
                self._copies[plan] = self._copies.get(plan, 0) - 1
                self._said.add(plan)
                if self._waits.get(plan) in self._said:
                    self.over.append(f"a notice came after the answer of run {self._waits[plan]}")
            case DeliveryPlanned():
                self._plans[event.plan] = (conversation, event.text)
            case DeliveryFailed():
                self.failed[event.plan] = event

    def turn(self, number: Number) -> list[Number]:
        """Returns the questions that are answered together with one."""
        return self._turns.get(number, [])

    def uncertain(self, text: str) -> bool:
        """Tells whether the delivery of a text ended with an unknown fate."""
        return any(text in said for said in self._uncertain())

    def uncertain_status(self, person: int) -> int:
        """Returns how many answers to `/status` ended so in a person's conversation."""
        place = self.conversations.get(person, "")
        return sum(_STATUS.search(text) is not None for text in self._uncertain(place))

    def copies(self, person: int, text: str) -> int:
        """Returns how many messages with a text there may be in a person's conversation of which no id is known."""
        place = self.conversations.get(person)
        return sum(self._copies.get(plan, 0) for plan, about in self._plans.items() if about == (place, text))

    def _uncertain(self, place: str = "") -> list[str]:
        plans = [self._plans.get(plan, ("", "")) for plan, event in self.failed.items() if event.fate == "unknown"]
        return [text for conversation, text in plans if place in ("", conversation)]


class Talk:
    """One person's conversation."""

    def __init__(self, town: Town, fates: Fates, person: int, dice: random.Random) -> None:
        self._town, self._fates, self.person, self._dice = town, fates, person, dice
        self._room = f"room{person // IN_A_ROOM}"
        self.asked: list[tuple[Number, Kind]] = []
        self.decided: list[str] = []
        """The ways in which approvals were decided."""

    async def go(self, turns: int) -> None:
        waits = True
        for turn in range(turns):
            kind = self._kind(turn)
            if kind == "paste" and not waits:  # its parts are one turn, and not those of an earlier one
                await self._until(lambda: not self.missing())
            await self._write(kind)
            waits = kind == "approval" or self._dice.random() >= TWICE
            if waits:
                await self._until(lambda: not self.missing())
        if not waits:
            await self._until(lambda: not self.missing())

    async def _write(self, kind: Kind) -> None:
        count = MESSAGES.get(kind, 1)
        for part in range(count):
            number = Number(self.person, len(self.asked))
            self.asked.append((number, kind))
            text = f"{number.text} {_ABOUT}"
            match kind:
                case "file":
                    await self._town.send(self.person, f"{number.text}.txt", b"a file")
                case "command":
                    await self._town.say(self.person, "/status")
                case "approval":
                    await self._town.say(self.person, f"approve {text}")
                    await self._decide(number)
                case "paste":
                    cut = self._town.cut if part < count - 1 else 0
                    await self._town.say(self.person, f"{text} ".ljust(cut, "x"))
                    await anyio.sleep(BETWEEN_PARTS)
                case "room":
                    await self._town.say(self.person, f"{text} {_ROOM}", self._room)
                case _:
                    secret = "" if number.turn else f" My code word is {MARK_OF.format(self.person)}."
                    await self._town.say(self.person, f"{text}{secret}")
            if kind == "flood":
                await anyio.sleep(self._dice.choice(FLOOD_PAUSES))

    async def _decide(self, number: Number) -> None:
        """Answers the question for an approval, by its button or in writing."""

        def settled() -> bool:
            texts = self._town.answers(self.person)
            return any(number.end in text for text in texts) or self._fates.uncertain(number.end)

        await self._until(lambda: settled() or self._asks(number) or self._fates.uncertain(number.text))
        if settled() or not self._asks(number):
            return
        label = self._dice.choice(("Approve", "Reject"))
        button = self._dice.random() < 0.5 and self._town.has_button(self.person, number.text, label)
        self.decided.append(f"{label} by {'button' if button else 'word'}")
        if not button:
            await self._town.say(self.person, self._dice.choice(_TYPED[label]))
        else:
            until = anyio.current_time() + ANSWER_SECONDS

            def over() -> bool:
                return settled() or not self._town.has_button(self.person, number.text, label)

            while anyio.current_time() < until and not over():
                await self._town.press(self.person, number.text, label)
                await self._until(over, AGAIN_SECONDS)

    def _asks(self, number: Number) -> bool:
        return any("May I do this?" in text and number.text in text for text in self._town.answers(self.person))

    @staticmethod
    async def _until(condition: Any, seconds: float = ANSWER_SECONDS) -> None:
        async def holds() -> bool:
            return bool(condition())

        with suppress(TimeoutError):
            await wait_for(holds, seconds, every=0.1)

    def missing(self) -> list[str]:
        """Returns the messages that are not answered yet, and are not marked either."""
        texts = self._town.answers(self.person)
        rooms = self._town.answers(self.person, self._room) if any(kind == "room" for _, kind in self.asked) else ()
        kinds = [(number, rooms if kind == "room" else texts) for number, kind in self.asked if kind != "command"]
        questions = [number.text for number, seen in kinds if not self._is_done(number, seen)]
        commands = self._commands() - self._statuses(texts) - self._fates.uncertain_status(self.person)
        return questions + ["/status"] * commands

    def _is_done(self, number: Number, texts: Sequence[str]) -> bool:
        if number in self._fates.asked:
            return self._is_asked(number, texts) or self._is_marked(number)
        expected = self._expected(number)
        return any(expected.end in text for text in texts) or self._is_marked(expected)

    @staticmethod
    def _is_asked(number: Number, texts: Sequence[str]) -> bool:
        """Tells whether a person was asked what to do with a file, or told that it could not be taken."""
        said = [text for text in texts if "What shall I do with" in text or "could not take every file" in text]
        return any(f"{number.text}.txt" in text for text in said)

    def _is_marked(self, number: Number) -> bool:
        """Tells whether the log says that an answer, or the question before it, may be missing."""
        texts = (number.begin, f"Look for {number.text}", f"{number.text}.txt`?")
        return any(self._fates.uncertain(text) for text in texts)

    def _expected(self, number: Number) -> Number:
        """Returns the question whose answer is the turn's: its text, which comes after its files, or its last file."""
        turn = self._fates.turn(number) or [number]
        kinds = dict(self.asked)
        return next((each for each in reversed(turn) if kinds.get(each) != "file"), turn[-1])

    def _kind(self, turn: int) -> Kind:
        """Returns the kind of a turn: people begin with words, and in small storms, too, each kind is met."""
        if not turn:
            return "text"
        kinds = {kind: part for kind, part in PARTS.items() if kind != "file" or self._town.takes_files}
        if turn == 1 and self.person < len(kinds):
            return list(kinds)[self.person]
        return self._dice.choices([*kinds, "text"], [*kinds.values(), 1 - sum(kinds.values())])[0]

    def judge(self, tally: Tally, model: Model) -> None:
        texts, rooms = self._town.answers(self.person), self._town.answers(self.person, self._room)
        order = list[tuple[int, int]]()
        for number, kind in self.asked:
            tally.messages += 1
            tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
            if kind == "command":
                continue
            seen = rooms if kind == "room" else texts
            if number not in model.seen and number not in self._fates.asked:
                tally.lost += 1
                tally.stories.append(f"lost: {number}, {kind}")
            if number in self._fates.asked:
                self._judge_asked(number, seen, tally)
            elif self._expected(number) == number:
                shown = self._judge(number, seen, tally)
                order += shown if kind != "room" else []
            elif any(number.begin in text for text in seen):
                tally.answered_twice += 1
                tally.stories.append(f"answered apart from its turn: {number}: {seen}")
        for way in self.decided:
            tally.decided[way] = tally.decided.get(way, 0) + 1
        places = [place for _, place in sorted(order)]
        tally.out_of_order += sum(a > b for a, b in pairwise(places))
        if places != sorted(places):
            tally.stories.append(f"out of order: {order}: {texts}")
        self._judge_commands(texts, tally)
        self._judge_pastes(tally)
        for number, kind in self.asked:
            if kind == "approval" and self._town.has_button(self.person, number.text, "Approve"):
                # The buttons of a copy cannot be taken back where its fate was unknown.
                copies = sum("May I do this?" in text and number.text in text for text in texts)
                if copies == 1 and not self._is_marked(number):
                    tally.buttons_left += 1
                    tally.stories.append(f"buttons left: {number}: {texts}")

    def _judge_asked(self, number: Number, texts: Sequence[str], tally: Tally) -> None:
        if not self._is_asked(number, texts) and not self._is_marked(number):
            tally.unanswered += 1
            tally.stories.append(f"unanswered: {number}, a file; seen: {texts}")

    def _judge_pastes(self, tally: Tally) -> None:
        parts = [number for number, kind in self.asked if kind == "paste"]
        for paste in zip(*(parts[n :: MESSAGES["paste"]] for n in range(MESSAGES["paste"])), strict=True):
            turn = self._fates.turn(paste[0])
            if set(paste) <= set(turn):
                tally.together += 1
                tally.out_of_order += [number for number in turn if number in paste] != list(paste)
            elif len(times := sorted(self._fates.at[n] for n in paste if n in self._fates.at)) == len(paste):
                tally.torn += all((b - a).total_seconds() < SAME_TURN for a, b in pairwise(times))
            if not set(paste) <= set(turn) or [n for n in turn if n in paste] != list(paste):
                about = {n: (str(self._fates.at.get(n)), self._fates.received.get(n)) for n in paste}
                tally.stories.append(f"a paste in pieces, or not in order: {turn}: {about}")

    def _judge(self, number: Number, texts: Sequence[str], tally: Tally) -> list[tuple[int, int]]:
        there = [place for place, text in enumerate(texts) if number.begin in text]
        if not there and self._is_marked(number):
            return []
        if not there:
            tally.unanswered += 1
            tally.stories.append(f"unanswered: {number}; seen: {texts}")
            return []
        tally.marked += sum(MARK in texts[place] for place in there)
        if sum(MARK not in texts[place] for place in there) > 1:
            tally.answered_twice += 1
            tally.stories.append(f"twice: {number}: {[texts[place] for place in there]}")
        if not any(number.answer in " ".join(texts[place].split()) for place in there):
            tally.garbled += 1
            tally.stories.append(f"garbled: {number}: {[texts[place] for place in there]}")
        return [(self._fates.received.get(number, 0), there[0])]

    def _commands(self) -> int:
        """Returns how many commands were written."""
        return sum(kind == "command" for _, kind in self.asked)

    @staticmethod
    def _statuses(texts: Sequence[str]) -> int:
        """Returns how many answers to commands there are."""
        return sum(_STATUS.search(text) is not None for text in texts)

    def _judge_commands(self, texts: Sequence[str], tally: Tally) -> None:
        commands, answers = self._commands(), self._statuses(texts)
        if commands > answers + self._fates.uncertain_status(self.person):
            tally.unanswered += 1
            tally.stories.append(f"{commands} commands, {answers} answers: {texts}")
        tally.repeated += max(0, answers - commands)
