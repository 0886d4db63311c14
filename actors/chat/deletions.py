"""Messages that people delete on the platform: they go out of what the agent reads from then on.

One that waits becomes nothing. One that the agent has read keeps its place, so that what follows it still has a
question, but none of its words. While a run of its thread is at work, the deletion waits for the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from actors.chat.call import Call, derived
from actors.chat.runs import ACTOR, Runs
from actors.chat.turns import Message, Turn
from core.chat.facts import ASKED, DELETED, KIND, ChatReceived, ChatRouted
from core.errors import Refused
from core.events import Aggregate, Event, StatePatched
from core.log.store import EventLog
from core.runs.intake import Intake
from core.thread import turns
from core.thread.state import ThreadState
from core.thread.threads import Threads

GONE = "(The person deleted this message.)"
"""The text that the agent reads in its place."""


class _Taken(NamedTuple):
    """A turn that was taken: its thread, its first message, and the keys of all of them, in order."""

    thread: str
    first: str
    keys: Sequence[str]


class Deletions:
    """Takes deleted messages out of conversations."""

    def __init__(self, runs: Runs, threads: Threads, intake: Intake, log: EventLog) -> None:
        self._runs = runs
        self._threads = threads
        self._intake = intake
        self._log = log

    async def deleted(self, call: Call) -> None:
        """Takes a message out; leaves the turn unrouted while that has to wait."""
        key = call.first.event.message
        known = call.state.heard.get(key)
        if known is None:
            return await self._runs.end(call, "ignored", reason="a message that is not remembered")
        if known.outcome in ("", ASKED):
            dropped = ChatRouted(message=key, outcome="ignored", reason=DELETED)
            return await self._runs.end(call, "command", dropped)
        taken = await self._taken(call, key)
        if taken is None or not taken.thread:
            return await self._runs.end(call, "ignored", reason="a message that the agent has not read")
        rest = await self._rest(call, taken)
        try:
            if not rest:
                await self._cancel(call, taken)
            await self._take_out(call, taken, Turn(rest).content if rest else GONE)
        except Refused:
            return
        await self._runs.end(call, "command", thread=taken.thread)

    async def _taken(self, call: Call, key: str) -> _Taken | None:
        """Returns the turn of which a message was a part; its facts have the same cause."""
        place, routed, cause = Aggregate(KIND, call.conversation), list[ChatRouted](), ""
        async for record in self._log.read(place, after=call.state.heard[key].seq):
            if not isinstance(record.event, ChatRouted):
                continue
            if any(each.message == key for each in routed) and record.head.cause != cause:
                break
            routed = [*(routed if record.head.cause == cause else ()), record.event]
            cause = record.head.cause or ""
        if not any(each.message == key for each in routed):
            return None
        keys = [each.message for each in routed if each.message in call.state.heard]
        return _Taken(routed[0].thread, routed[0].message, sorted(keys, key=lambda each: call.state.heard[each].seq))

    async def _rest(self, call: Call, taken: _Taken) -> list[Message]:
        """Returns the messages of a turn that were not deleted."""
        rest = list[Message]()
        for key in taken.keys:
            seq = call.state.heard[key].seq
            async for record in self._log.read(Aggregate(KIND, call.conversation), after=seq - 1, upto=seq):
                gone = f"{key}/{DELETED}" in call.state.heard
                if isinstance(record.event, ChatReceived) and not gone:
                    rest.append(Message(key, record.id, record.seq, call.first.at, record.event, ()))
        return rest

    async def _cancel(self, call: Call, taken: _Taken) -> None:
        """Cancels the run that a turn became, if it has not begun."""
        run = (await self._threads.load(taken.thread)).runs.get(derived(call.conversation, taken.first, "run"))
        if run is not None and run.open and run.started_seq is None:
            await self._intake.cancel(taken.thread, run.id, user=call.user, actor=ACTOR)

    async def _take_out(self, call: Call, taken: _Taken, content: str) -> None:
        """Changes the words of a message that a thread has. Raises `Refused` while a run is at work."""
        identity = f"human-{derived(call.conversation, taken.first, 'run')}"

        def decide(state: ThreadState) -> Sequence[Event]:
            turns.at_rest(taken.thread, state)
            place = state.places.get(identity)
            if place is None or state.messages[place].get("content") == content:
                return []
            message = {"type": "human", "id": identity, "content": content}
            return [StatePatched(values={"messages": [message]}, as_node="model")]

        await self._threads.decide(taken.thread, decide, actor=ACTOR, cause=call.first.id)


def is_deletion(key: str) -> bool:
    """Tells whether a key is that of a deletion."""
    return key.endswith(f"/{DELETED}")
