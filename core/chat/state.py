"""The state of a conversation: what was received and what became of it, what is to be said and how far that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from core.chat import facts
from core.chat.facts import (
    ASKED,
    ChatBegun,
    ChatErased,
    ChatFetched,
    ChatReceived,
    ChatRouted,
    DeliveryAttempted,
    DeliveryDrafted,
    DeliveryFailed,
    DeliveryPlanned,
    DeliverySent,
    Fetched,
    key_of,
)
from core.events import Event, Record
from core.log.repository import Repository
from core.log.snapshots import Parts
from core.log.store import EventLog

V = TypeVar("V")
REMEMBERED = 1000
"""Messages whose repetition is noticed, and plans that are remembered: more than any platform delivers again."""


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message that was received. `outcome` is empty before it was routed."""

    seq: int
    event: str
    """Id of the `chat.received`."""
    outcome: str = ""
    run: str = ""
    files: tuple[Fetched, ...] | None = None
    """Its attachments, until it has become a run."""


class Plan(msgspec.Struct, frozen=True):
    """A delivery and how far it is. Its event is read from the log: `seq`."""

    seq: int
    event: str
    draft: str = ""
    attempted: int = -1
    """The last part that was about to be sent."""
    messages: tuple[str, ...] = ()
    """The platform's ids of the parts that were sent."""
    parts: int = -1
    failed: str = ""
    overtakes: bool = False
    """It is a reply of the system itself, which does not wait for answers before it."""
    question: str = ""
    """The question whose buttons it shows, until a plan has replaced it."""

    @property
    def open(self) -> bool:
        return not self.failed and len(self.messages) != self.parts


class Conversation(msgspec.Struct, frozen=True):
    """`thread`: the newest one, empty before the first message that became a run."""

    thread: str = ""
    user: str = ""
    threads: Mapping[str, str] = {}
    """The thread of each user: in a group, people do not share what belongs to them."""
    heard: Mapping[str, ReceivedMessage] = {}
    """By `key_of`; the newest last."""
    plans: Mapping[str, Plan] = {}
    """By id, in the order in which they were planned."""
    drafts: Mapping[str, str] = {}
    """Messages in which answers grow that are not planned yet, by run."""
    runs: Mapping[str, str] = {}
    """The runs whose answer is not planned yet, with the id of their `chat.routed`."""


def fold(records: Iterable[Record], state: Conversation) -> Conversation:
    """Pure and total."""
    for record in records:
        state = _after(state, record)
    return state


def _after(state: Conversation, record: Record) -> Conversation:
    change = msgspec.structs.replace
    match record.event:
        case ChatReceived() as event:
            return change(state, heard=_with(state.heard, key_of(event), ReceivedMessage(record.seq, record.id)))
        case ChatFetched(message=message, files=files):
            late = message in state.heard and state.heard[message].outcome
            return change(state, heard=_with_change(state.heard, message, files=() if late else files))
        case ChatRouted(message=message, outcome=outcome, run_id=run):
            erased = message not in state.heard  # what was received; that it was remains known
            before = _with(state.heard, message, ReceivedMessage(record.seq, "")) if erased else state.heard
            kept = before[message].files if outcome == ASKED else before[message].files and ()
            heard = _with_change(before, message, outcome=outcome, run=run, files=kept)
            waits = run and run not in state.plans  # it may have ended before this was written
            return change(state, heard=heard, runs=_with(state.runs, run, record.id) if waits else state.runs)
        case ChatBegun(thread=thread, user=user):
            return change(state, thread=thread, user=user, threads=_with(state.threads, user, thread))
        case ChatErased(threads=gone):
            left = {user: thread for user, thread in state.threads.items() if thread not in gone}
            return change(state, threads=left)
        case DeliveryPlanned(plan=id_, replaces=replaced, question=question, purpose=purpose):
            if id_ in state.plans:
                return state
            overtakes = purpose == "notice" and not replaced
            plan = Plan(record.seq, record.id, draft=state.drafts.get(id_, ""), overtakes=overtakes, question=question)
            return change(
                state,
                plans=_with(_changed(state.plans, replaced, question=""), id_, plan),
                runs=_without(state.runs, id_),
                drafts=_without(state.drafts, id_),
            )
        case DeliveryDrafted(plan=id_, message=message):
            if id_ in state.plans:
                return change(state, plans=_changed(state.plans, id_, draft=message))
            return change(state, drafts=_with(state.drafts, id_, message))
        case DeliveryAttempted(plan=id_, part=part, withdrawn=withdrawn):
            return change(state, plans=_changed(state.plans, id_, attempted=part - 1 if withdrawn else part))
        case DeliverySent(plan=id_, part=part, parts=parts, message=message):
            known = state.plans.get(id_)
            if known is None or part != len(known.messages):
                return state
            return change(state, plans=_changed(state.plans, id_, messages=(*known.messages, message), parts=parts))
        case DeliveryFailed(plan=id_, fate=fate):
            return change(state, plans=_changed(state.plans, id_, failed=fate))
    return state


def _with(values: Mapping[str, V], key: str, value: V) -> dict[str, V]:
    """Returns a copy with a new value, at the end, and without the oldest ones."""
    kept = {name: known for name, known in values.items() if name != key}
    kept[key] = value
    while len(kept) > REMEMBERED:
        del kept[next(iter(kept))]
    return kept


def _without(values: Mapping[str, V], key: str) -> Mapping[str, V]:
    return {name: value for name, value in values.items() if name != key} if key in values else values


def _with_change(heard: Mapping[str, ReceivedMessage], message: str, **changes: Any) -> Mapping[str, ReceivedMessage]:
    """Returns the messages with changes to one, if it is remembered."""
    known = heard.get(message)
    return heard if known is None else {**heard, message: msgspec.structs.replace(known, **changes)}


def _changed(plans: Mapping[str, Plan], plan: str, **changes: Any) -> Mapping[str, Plan]:
    known = plans.get(plan)
    return plans if known is None else {**plans, plan: msgspec.structs.replace(known, **changes)}


_FORM = Parts(Conversation, lambda state: [state], lambda parts: next(iter(parts)), facts.__name__, __name__)


class Chats(Repository[Conversation]):
    """The conversations of all accounts. Their events carry the account's name as a label. `snapshots`: the directory
    where they are kept, if they are.
    """

    def __init__(self, log: EventLog, snapshots: Path | None = None) -> None:
        super().__init__(log, facts.KIND, fold, Conversation(), form=_FORM, directory=snapshots)

    def _labels(self, identity: str, state: Conversation, run: str | None, events: Sequence[Event]) -> frozenset[str]:
        return frozenset((facts.account_of(identity),))
