"""Turns: messages of a conversation that wait, and which of them are answered together. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from core.chat.facts import ChatReceived, Fetched
from core.control import neutralised

FILES = timedelta(seconds=1)
"""Least time in which files of a person are one turn, and what they write after them (DeerFlow has
0.75 s)."""
UNFINISHED = timedelta(seconds=3)
"""Time for the rest of a text that a platform's client has cut, and for the words about a file."""
CUT_CHARACTERS = 3800
"""Length from which on a message may be a part of a longer text: Telegram's clients cut at 4096, others later."""
LONGEST = timedelta(seconds=10)
"""Time from its first message on after which a turn begins though more is coming."""
MOST_MESSAGES = 50
"""Limit of the messages of a turn."""
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
    brought: Sequence[Message] = ()
    """Earlier messages of the person, with the files about which they were asked."""

    @property
    def all(self) -> Sequence[Message]:
        return [*self.brought, *self.messages]

    @property
    def first(self) -> Message:
        return self.messages[0]

    @property
    def has_files(self) -> bool:
        return any(message.has_files for message in self.all)

    @property
    def mentioned(self) -> bool:
        """True if any of it is addressed to the bot: a file is by the words after it."""
        return any(message.event.mentioned for message in self.messages)

    @property
    def is_blank(self) -> bool:
        """True if it has neither words nor files, and quotes nothing: a mention of the bot alone."""
        return not self.content and not self.has_files

    @property
    def as_sent(self) -> Sequence[Message]:
        """The messages in the order in which they were sent: one that a platform delivers again arrives late."""
        return sorted(self.messages, key=lambda message: message.event.sent_at)

    @property
    def text(self) -> str:
        """The texts and transcripts of all messages."""
        parts = [text for message in self.as_sent for text in _texts(message.event)]
        return "\n\n".join(part for part in parts if part)

    @property
    def content(self) -> str:
        """The same, each after what it quotes: as the agent reads it."""
        parts = [text for message in self.as_sent for text in (_quote(message.event), *_texts(message.event))]
        return "\n\n".join(part for part in parts if part)

    def ready_at(self, gather: timedelta) -> datetime:
        """Returns the earliest time at which the turn may begin."""
        complete = self.messages[-1].at + self.window(gather)
        complete = complete if len(self.messages) < MOST_MESSAGES else self.messages[-1].at
        complete = min(complete, self.first.at + LONGEST) if gather else complete
        if all(message.files is not None or not message.has_files for message in self.messages):
            return complete
        return max(complete, self.first.at + FETCHING)

    def window(self, gather: timedelta) -> timedelta:
        """Returns the time after the last message within which another one belongs to the turn."""
        last = self.messages[-1]
        wordless = self.has_files and not self.text
        if gather and (wordless or len(last.event.text) >= CUT_CHARACTERS):
            return max(gather, UNFINISHED)
        return max(gather, FILES) if last.has_files else gather


def turns_of(
    messages: Iterable[Message],
    is_chat: Callable[[ChatReceived], bool],
    gather: timedelta,
    asked: Sequence[Message] = (),
) -> list[Turn]:
    """Returns the messages as turns: those of an album, and what one person writes and sends within a while, also
    between other people's messages. `is_chat`: tells words for the agent from commands. `asked`: messages with files
    about which their persons were asked; they go with the next words, once.
    """
    turns: list[Turn] = []
    newest: dict[str, int] = {}
    for message in messages:
        place = newest.get(message.event.sender)
        if place is not None and _belongs(turns[place], message, is_chat, gather):
            turns[place] = turns[place]._replace(messages=[*turns[place].messages, message])
            continue
        newest[message.event.sender] = len(turns)
        turns.append(Turn([message]))
    first: dict[str, int] = {}
    """The first turn of each person that has words."""
    for place, turn in enumerate(turns):
        if turn.text and is_chat(turn.first.event):
            first.setdefault(turn.first.event.sender, place)
    for sender, place in first.items():
        brought = [message for message in asked if message.event.sender == sender]
        turns[place] = turns[place]._replace(brought=brought)
    return turns


def _belongs(turn: Turn, message: Message, is_chat: Callable[[ChatReceived], bool], gather: timedelta) -> bool:
    last, first = turn.messages[-1], turn.first
    if not is_chat(message.event) or not is_chat(first.event) or len(turn.messages) >= MOST_MESSAGES:
        return False
    if message.event.album and message.event.album == last.event.album:
        return True
    if message.event.mentioned and not turn.mentioned and not last.has_files:  # what came before was for others
        return False
    if not gather and not last.has_files:
        return False
    return message.at - last.at <= turn.window(gather) and (not gather or message.at - first.at <= LONGEST)


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
