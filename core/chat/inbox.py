"""Custody of what people write: an account's messages become facts of their conversations."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from core.chat.facts import ChatReceived, TopicNoted, conversation, key_of, sent_message
from core.chat.state import Chats, Conversation
from core.events import Event


class Inbox:
    """Takes the messages of one account. `replies_are_topics`: see `Traits`.

    Guarantees: when `receive` returns, the message is in the log, once, however often it comes, as long as it is among
    the newest `core.chat.state.REMEMBERED` of its conversation.
    """

    def __init__(self, account: str, chats: Chats, *, replies_are_topics: bool) -> None:
        self._account = account
        self._chats = chats
        self._replies_are_topics = replies_are_topics

    async def receive(self, event: ChatReceived) -> None:
        """Appends a message to its conversation. Raises `Unavailable`."""
        event = await self._in_its_topic(event)
        key = key_of(event)

        def decide(state: Conversation) -> Sequence[Event]:
            return [] if key in state.heard else [event]

        target = conversation(self._account, event.target.chat, event.target.topic)
        await self._chats.decide(target.id, decide, actor=self._account)

    async def _in_its_topic(self, event: ChatReceived) -> ChatReceived:
        """Returns a reply to a message of ours with the topic of that."""
        target = event.target
        if not self._replies_are_topics or target.kind == "private" or not target.topic:
            return event
        noted = sent_message(self._account, target.chat, target.topic)
        async for record in self._chats.log.read(noted):
            if isinstance(record.event, TopicNoted):
                return msgspec.structs.replace(event, target=msgspec.structs.replace(target, topic=record.event.topic))
        return event
