"""Turns: messages of a conversation that wait, and which of them are answered together. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from core.chat.facts import ChatReceived, Fetched
from core.control import neutralised

TOGETHER = timedelta(seconds=1)
"""Files of a person that arrive within this time are one turn (contract channels §7.5 has 0.75 s), and so is what they
write after them."""
MOST_QUOTED, MOST_AUTHOR = 4000, 80
"""Limits of characters of a quoted message and of its author's name."""
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
    def has_files(self) -> bool:
        return any(message.has_files for message in self.messages)

    @property
    def is_blank(self) -> bool:
        """True if it has neither words nor files, and quotes nothing: a mention of the bot alone."""
        return not self.content and not self.has_files

    @property
    def text(self) -> str:
        """The texts and transcripts of all messages."""
        parts = [text for message in self.messages for text in _texts(message.event)]
        return "\n\n".join(part for part in parts if part)

    @property
    def content(self) -> str:
        """The same, each after what it quotes: as the agent reads it."""
        parts = [text for message in self.messages for text in (_quote(message.event), *_texts(message.event))]
        return "\n\n".join(part for part in parts if part)

    def ready_at(self) -> datetime | None:
        """Returns the earliest time at which the turn may begin; None if at once."""
        if not self.has_files:
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


def _quote(event: ChatReceived) -> str:
    """Returns what a message quotes, as a block quotation: each line has a mark, so no text can end it."""
    if event.quoted is None or not event.quoted.text.strip():
        return ""
    text, author = event.quoted.text.strip(), " ".join(event.quoted.author.split())[:MOST_AUTHOR]
    text = text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…"
    lines = [f"> {line}".rstrip() for line in neutralised(text).splitlines()]
    return "\n".join([f"Quoted message{f' of {neutralised(author)}' if author else ''}:", *lines])


def _texts(event: ChatReceived) -> list[str]:
    return [event.text.strip(), *(attachment.transcript.strip() for attachment in event.attachments)]
