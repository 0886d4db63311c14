"""Turns: messages of a conversation that wait, and which of them are answered together. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from core.chat.facts import ChatReceived, Fetched

TOGETHER = timedelta(seconds=1)
"""Files of a person that arrive within this time are one turn (contract channels §7.5 has 0.75 s), and so is what they
write after them."""
FETCHING = timedelta(seconds=60)
"""The time after which a turn goes on without files that were not fetched."""


class Message(NamedTuple):
    """A received message that was not routed. `files`: None while its attachments are being fetched."""

    key: str
    id: str
    """Id of its `chat.received`."""
    seq: int
    at: datetime
    event: ChatReceived
    files: Sequence[Fetched] | None

    @property
    def has_files(self) -> bool:
        return bool(self.event.attachments)


class Turn(NamedTuple):
    """Messages that are answered together; the first one stands for them."""

    messages: Sequence[Message]

    @property
    def first(self) -> Message:
        return self.messages[0]

    @property
    def text(self) -> str:
        """The texts and transcripts of all messages."""
        parts = [text for message in self.messages for text in _texts(message.event)]
        return "\n\n".join(part for part in parts if part)

    def ready_at(self) -> datetime | None:
        """Returns the earliest time at which the turn may begin; None if at once."""
        if not any(message.has_files for message in self.messages):
            return None
        together = self.messages[-1].at + TOGETHER
        if all(message.files is not None or not message.has_files for message in self.messages):
            return together
        return max(together, self.first.at + FETCHING)


def turns_of(messages: Iterable[Message], is_chat: Callable[[ChatReceived], bool]) -> list[Turn]:
    """Returns the messages as turns: those of an album, and those with files that one person sent within `TOGETHER`,
    with the words that follow. `is_chat`: tells words for the agent from commands."""
    turns: list[list[Message]] = []
    for message in messages:
        if turns and _belongs(turns[-1][-1], message, is_chat):
            turns[-1].append(message)
        else:
            turns.append([message])
    return [Turn(turn) for turn in turns]


def _belongs(last: Message, message: Message, is_chat: Callable[[ChatReceived], bool]) -> bool:
    if last.event.sender != message.event.sender or not last.has_files:
        return False
    if not message.has_files and not is_chat(message.event):
        return False
    if message.event.album and message.event.album == last.event.album:
        return True
    return message.at - last.at <= TOGETHER


def _texts(event: ChatReceived) -> list[str]:
    return [event.text.strip(), *(attachment.transcript.strip() for attachment in event.attachments)]
