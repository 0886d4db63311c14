"""People who talk to the bot in a storm (`tests.chaos.chats`): what they write, what they decide, and the judgement of
what they were answered."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import anyio
import msgspec

from actors.delivery.delivering import AGAIN
from core.chat.facts import ChatReceived, ChatRouted, DeliveryFailed, DeliveryPlanned, key_of
from core.runtime.system import System
from tests.chaos.towns import Town
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import wait_for

ANSWER_SECONDS = 240.0
"""Time for one answer, however many processes die meanwhile."""
AGAIN_SECONDS = 15.0
"""Time after which a person presses a button again that shows no effect: some platforms deliver a press only once."""
TWICE, FILES, COMMANDS, APPROVALS = 0.2, 0.1, 0.15, 0.15
"""Parts of the messages that are followed by another at once, that are files, commands, and that need an approval."""
APPROVED = "ls"
"""The tool that needs an approval."""
Kind = Literal["text", "file", "command", "approval"]
_QUESTION = re.compile(r"question (\d+)-(\d+)")
_OTHER_UPLOADS = re.compile(r"From previous messages:.*?</uploaded_files>", re.DOTALL)
"""Also files of messages that are still queued."""
MARK = AGAIN.strip("_()").partition(":")[0]
"""Words of an answer that says itself that it may be the second one."""
_STATUS = re.compile(r"Conversation .{30,60}: |There is no conversation yet")
_WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew "
_TYPED = {"Approve": ("yes", "1", "approve"), "Reject": ("no", "2", "Reject")}


class Tally(msgspec.Struct):
    """Figures, then faults: all of these must be 0."""

    messages: int = 0
    kinds: dict[str, int] = {}
    kills: dict[str, int] = {}
    decided: dict[str, int] = {}
    """Approvals, by the way in which they were decided."""
    uncertain: int = 0
    """Deliveries of unknown fate, which the log says."""
    connections: int = 0
    """Most at a time."""
    fail_over_seconds: float | None = None
    """Time from the death of a replica that held the account until another took a message."""

    connections_beside: int = 0
    """Connections beside the one."""
    unanswered: int = 0
    answered_twice: int = 0
    out_of_order: int = 0
    garbled: int = 0
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


def answering(messages: Sequence[dict[str, Any]]) -> Turn:
    """Answers the last question of a conversation, and calls a tool before if the question says so."""
    contents = [_OTHER_UPLOADS.sub("", str(message.get("content"))) for message in messages]
    asked = [number for text in contents for number in numbers(text)]
    if not asked:
        return Turn(text="I have read it.", delay_ms=4)
    last = asked[-1]
    if messages[-1]["role"] == "user" and f"approve {last.text}" in contents[-1]:
        args = {"description": f"Look for {last.text}", "path": "/mnt/user-data/outputs"}
        return Turn(text="", tool_calls=(ToolCall(APPROVED, args),))
    return Turn(text=last.answer, delay_ms=4)


class Fates:
    """What the log says: the order of the messages, which of them became one turn, and deliveries that ended without
    having arrived for certain."""

    def __init__(self, running: System) -> None:
        self._running, self._seq = running, 0
        self._plans: dict[str, tuple[str, str]] = {}
        """Conversations and texts of plans."""
        self._keys: dict[tuple[str, str], Number] = {}
        """Numbers of messages, by conversation and key."""
        self._turn: dict[str, list[Number]] = {}
        """The newest turn of a conversation."""
        self._turns: dict[Number, list[Number]] = {}
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
            self._take(record.aggregate.id, record.seq, record.event)
            self._seq = record.seq

    def _take(self, conversation: str, seq: int, event: Any) -> None:
        match event:
            case ChatReceived():
                for number in numbers(" ".join([event.text, *(file.name for file in event.attachments)])):
                    self.received.setdefault(number, seq)
                    self.conversations[number.person] = conversation
                    self._keys[conversation, key_of(event)] = number
            case ChatRouted(message=key, outcome=outcome) if (conversation, key) in self._keys:
                if outcome != "merged":
                    self._turn[conversation] = []
                number = self._keys[conversation, key]
                self._turns[number] = self._turn.setdefault(conversation, [])
                self._turns[number].append(number)
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

    def _uncertain(self, place: str = "") -> list[str]:
        plans = [self._plans.get(plan, ("", "")) for plan, event in self.failed.items() if event.fate == "unknown"]
        return [text for conversation, text in plans if place in ("", conversation)]


class Talk:
    """One person's conversation."""

    def __init__(self, town: Town, fates: Fates, person: int, dice: random.Random) -> None:
        self._town, self._fates, self.person, self._dice = town, fates, person, dice
        self.asked: list[tuple[Number, Kind]] = []
        self.decided: list[str] = []
        """The ways in which approvals were decided."""

    async def go(self, turns: int) -> None:
        waits = False
        for turn in range(turns):
            kind, number = self._kind() if turn else "text", Number(self.person, turn)
            match kind:
                case "file":
                    await self._town.send(self.person, f"{number.text}.txt", b"a file")
                case "command":
                    await self._town.say(self.person, "/status")
                case "approval":
                    await self._town.say(self.person, f"approve {number.text}")
                case _:
                    await self._town.say(self.person, number.text)
            self.asked.append((number, kind))
            if kind == "approval":
                await self._decide(number)
            waits = kind == "approval" or self._dice.random() >= TWICE
            if waits:
                await self._until(lambda: not self.lacking())
        if not waits:
            await self._until(lambda: not self.lacking())

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

    def lacking(self) -> int:
        """Returns how many messages are not answered yet, and are not marked either."""
        texts = self._town.answers(self.person)
        questions = sum(not self._is_done(number, texts) for number, kind in self.asked if kind != "command")
        return questions + max(0, self._commands() - self._statuses(texts) - self._fates.uncertain_status(self.person))

    def _is_done(self, number: Number, texts: Sequence[str]) -> bool:
        expected = self._expected(number)
        return any(expected.end in text for text in texts) or self._is_marked(expected)

    def _is_marked(self, number: Number) -> bool:
        """Tells whether the log says that an answer, or the question before it, may be missing."""
        return self._fates.uncertain(number.begin) or self._fates.uncertain(f"Look for {number.text}")

    def _expected(self, number: Number) -> Number:
        """Returns the question whose answer is the turn's: its text, which comes after its files, or its last file."""
        turn = self._fates.turn(number) or [number]
        kinds = dict(self.asked)
        return next((each for each in reversed(turn) if kinds.get(each) != "file"), turn[-1])

    def _kind(self) -> Kind:
        number = self._dice.random()
        for kind, part in (("file", FILES), ("command", COMMANDS), ("approval", APPROVALS)):
            if number < part:
                return kind  # type: ignore[return-value]
            number -= part
        return "text"

    def judge(self, tally: Tally) -> None:
        texts = self._town.answers(self.person)
        order = list[tuple[int, int]]()
        for number, kind in self.asked:
            tally.messages += 1
            tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
            if kind != "command" and self._expected(number) == number:
                order += self._judge(number, texts, tally)
            elif kind != "command" and any(number.begin in text for text in texts):
                tally.answered_twice += 1
                tally.stories.append(f"answered apart from its turn: {number}: {texts}")
        for way in self.decided:
            tally.decided[way] = tally.decided.get(way, 0) + 1
        places = [place for _, place in sorted(order)]
        tally.out_of_order += sum(a > b for a, b in pairwise(places))
        if places != sorted(places):
            tally.stories.append(f"out of order: {order}: {texts}")
        self._judge_commands(texts, tally)
        for number, kind in self.asked:
            if kind == "approval" and self._town.has_button(self.person, number.text, "Approve"):
                tally.buttons_left += not self._is_marked(number)
                tally.stories.append(f"buttons left: {number}: {texts}")

    def _judge(self, number: Number, texts: Sequence[str], tally: Tally) -> list[tuple[int, int]]:
        there = [place for place, text in enumerate(texts) if number.begin in text]
        if not there and self._is_marked(number):
            return []
        if not there:
            tally.unanswered += 1
            tally.stories.append(f"unanswered: {number}; seen: {texts}")
            return []
        if sum(MARK not in texts[place] for place in there) > 1:
            tally.answered_twice += 1
            tally.stories.append(f"twice: {number}: {[texts[place] for place in there]}")
        if number.answer not in " ".join(texts[there[0]].split()):
            tally.garbled += 1
            tally.stories.append(f"garbled: {number}: {texts[there[0]]!r}")
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
        if answers > commands:
            tally.answered_twice += 1
            tally.stories.append(f"{commands} commands, {answers} answers: {texts}")
