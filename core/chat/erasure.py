"""Erasure of what a deleted thread left in its conversation on a chat platform.

Messages, names of files and texts that were said go. Ids stay, by which a message that is delivered again is known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

from core.chat.facts import (
    ChatBegun,
    ChatErased,
    ChatFetched,
    ChatReceived,
    ChatRouted,
    DeliveryPlanned,
    DeliverySent,
    account_of,
    key_of,
    sent_message,
)
from core.chat.state import Chats
from core.events import Aggregate, Record
from core.thread.threads import Threads


class _Words(NamedTuple):
    """An event with words. `message`: the key of the message that it is about, or its plan's cause."""

    seq: int
    message: str
    plan: str = ""
    thread: str = ""


@dataclass
class _Reading:
    """A conversation as far as it was read."""

    threads: set[str] = field(default_factory=set)
    current: dict[str, str] = field(default_factory=dict)
    """The thread of each user."""
    of_message: dict[str, str] = field(default_factory=dict)
    """Threads, by the keys of messages."""
    keys: dict[str, str] = field(default_factory=dict)
    """Keys of messages, by the ids of their events."""
    words: list[_Words] = field(default_factory=list)
    chats: dict[str, str] = field(default_factory=dict)
    """Chats, by plan."""
    sent: list[tuple[str, str]] = field(default_factory=list)
    """Plans and ids of messages that were sent."""

    def take(self, record: Record) -> None:
        match record.event:
            case ChatReceived() as event:
                self.keys[record.id] = key_of(event)
                self.words.append(_Words(record.seq, key_of(event)))
            case ChatFetched(message=message):
                self.words.append(_Words(record.seq, message))
            case ChatBegun(thread=thread, user=user):
                self.threads.add(thread)
                self.current[user] = thread
            case ChatRouted(message=message, thread=thread, user=user):
                self.of_message[message] = thread or self.current.get(user, "")
            case DeliveryPlanned(plan=plan, thread=thread, target=target):
                self.chats[plan] = target.chat
                self.words.append(_Words(record.seq, self.keys.get(record.head.cause or "", ""), plan, thread))
            case DeliverySent(plan=plan, message=message) if message:
                self.sent.append((plan, message))

    def of(self, threads: set[str]) -> list[_Words]:
        """Returns the events with words that belong to some threads."""
        return [each for each in self.words if (each.thread or self.of_message.get(each.message)) in threads]


async def erase_words(chats: Chats, threads: Threads, conversation: Aggregate, seconds: float) -> bool:
    """Erases what belongs to the deleted threads of a conversation. Returns False if `seconds` passed before the end:
    call again. Raises `Unavailable`.
    """
    log, reading = chats.log, _Reading()
    async for record in log.read(conversation):
        reading.take(record)
    erased = {each for each in reading.threads if (await threads.load(each)).erased}
    words = reading.of(erased)
    if not words:
        return True
    await chats.decide(conversation.id, lambda _: [ChatErased(threads=tuple(sorted(erased)))], actor="janitor")
    plans, account = {each.plan for each in words if each.plan}, account_of(conversation.id)
    for plan, message in reading.sent:
        if plan in plans:
            noted = sent_message(account, reading.chats[plan], message)
            if tip := await log.tip(noted):
                await log.erase(noted, before=tip + 1)
    seqs = {each.seq for each in words}

    async def records() -> AsyncIterator[Record]:
        async for record in log.read(conversation, upto=max(seqs), bodies=False):
            if record.seq in seqs:
                yield record

    chats.forget(conversation.id)
    done = await log.erase_records(records(), seconds)
    await chats.drop(conversation.id)
    return done
