"""Messages that people change after they were answered: the last question is answered anew on request."""

from __future__ import annotations

import msgspec

from actors.chat.answers import plan_id
from actors.chat.buttons import closing, may_decide
from actors.chat.call import Call
from actors.chat.perform import Performer
from actors.chat.place import last_question
from actors.chat.runs import Runs
from actors.chat.turns import Message, Turn
from core.chat.facts import ANEW, KIND, ChatReceived, DeliveryPlanned
from core.chat.state import Conversation, ReceivedMessage
from core.errors import Refused
from core.events import Aggregate
from core.log.store import EventLog

CHANGED = "You have changed your last message. Shall I answer it anew?"
BELOW = "➡️ Answered anew below"
GONE_ON = "The conversation has gone on since. Write again what you want to know."


class Edits:
    """Asks about messages that were changed, and has them answered."""

    def __init__(self, runs: Runs, performer: Performer, log: EventLog) -> None:
        self._runs = runs
        self._performer = performer
        self._log = log

    async def changed(self, call: Call, original: ReceivedMessage) -> None:
        """Asks what is to become of a changed message, if it is the last question. Others are passed over."""
        if not await self._is_last(call, original):
            return await self._runs.end(call, "ignored", reason="an edit of a message that was taken")
        notice = call.says(CHANGED)
        about = {"plan": _asked(call.conversation, call.first.key), "buttons": (ANEW,), "user": call.user}
        await self._runs.end(call, "command", msgspec.structs.replace(notice, **about))

    async def pressed(self, call: Call, shown: DeliveryPlanned, refusal: str) -> None:
        """Has a changed message answered anew. `refusal`: for who may not decide that."""
        if not may_decide(call, shown):
            return await self._runs.end(call, "refused", call.says(refusal), reason="not the person who was asked")
        known, place = call.state, await self._runs.current(call)
        closed = closing(call, shown, BELOW)
        if place is not None and call.id("run") in place.state.runs:  # before a crash
            return await self._performer.ask_again(call, also=closed)
        edit = next((key for key in known.heard if _asked(call.conversation, key) == shown.plan), None)
        changed = await self._received(call, known.heard[edit]) if edit else None
        original = known.heard.get(changed.event.message) if changed else None
        if changed is None or original is None or not await self._is_last(call, original):
            return await self._runs.end(call, "choice", call.says(GONE_ON), reason="it is not the last question")
        await self._performer.ask_again(call, Turn([changed]).content, closed)

    async def _is_last(self, call: Call, original: ReceivedMessage) -> bool:
        """Tells whether a message, by itself, is the last question of its thread."""
        place, first = await self._runs.current(call), await self._received(call, original)
        if place is None or first is None or not original.run:
            return False
        try:
            start = last_question(place)
        except Refused:
            return False
        question = (start[1].get("messages") or [{}])[-1] if start else {}
        return question.get("id") == f"human-{original.run}" and question.get("content") == Turn([first]).content

    async def _received(self, call: Call, known: ReceivedMessage) -> Message | None:
        place = Aggregate(KIND, call.conversation)
        async for record in self._log.read(place, after=known.seq - 1, upto=known.seq):
            if isinstance(record.event, ChatReceived):
                return Message("", record.id, record.seq, call.first.at, record.event, ())
        return None


def is_edit(state: Conversation, event: ChatReceived) -> bool:
    """Tells whether a message is the changed form of one that was taken."""
    before = state.heard.get(event.message) if event.edited else None
    return before is not None and before.outcome != "ignored"


def _asked(conversation: str, key: str) -> str:
    return plan_id(conversation, key, "changed")
