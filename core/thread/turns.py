"""Turns of a conversation: a question with all answers to it. Pure functions of a thread's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core.errors import Invalid, NotFound, Refused
from core.events import Json, Message, RunRequested
from core.ids import uuid7
from core.thread.messages import UPLOADS_BLOCK, text_of
from core.thread.state import ThreadState
from core.thread.usage import SUMMARY, is_apology, is_summary, messages_of
from core.thread.values import next_nodes, places_of, reduce


def first_message(state: ThreadState, request: RunRequested) -> Message | None:
    """Returns the person's message of a request, if it is the only one and the conversation begins with it. Later
    messages of the conversation do not count: the request may be handled late.
    """
    people = [message for message in messages_of(request.input or {}) if _is_of_person(message)]
    first = next(filter(_is_of_person, state.messages), None)
    begins = len(people) == 1 and (first is None or first.get("id") == people[0].get("id"))
    return people[0] if begins else None


def _is_of_person(message: Message) -> bool:
    extra = message.get("additional_kwargs")
    hidden = isinstance(extra, dict) and extra.get("hide_from_ui")
    return message.get("type") == "human" and not hidden


def at_rest(thread_id: str, state: ThreadState) -> None:
    """Raises `Refused` while a run is at work."""
    if state.status == "busy":
        raise Refused(f"Thread {thread_id} has an active run; wait for its end")


def conversation(state: ThreadState, message_id: str) -> Sequence[Message]:
    """Returns the present conversation, or the one before the summary that replaced a message."""
    for index in state.chain(state.head) if message_id not in state.places else ():
        if is_summary(state.commits[index].patch):
            messages: list[Message] = state.values_at(state.commits[index].parent).get("messages", [])
            if any(message.get("id") == message_id for message in messages):
                return messages
    return state.messages


def index_of(messages: Sequence[Message], message_id: str, kind: str | None = None) -> int:
    """Index of a message. Raises `NotFound`, and `Invalid` if it is not of that type."""
    index = next((at for at, message in enumerate(messages) if message.get("id") == message_id), None)
    if index is None:
        raise NotFound(f"Message {message_id[:80]!r} not found")
    actual = messages[index]["type"]
    if kind is not None and actual != kind:
        raise Invalid(f"{message_id[:80]!r} is a message of type {actual}, expected {kind}")
    return index


def turn_of(messages: Sequence[Message], index: int) -> tuple[int, int]:
    """Returns the bounds of a message's turn: from its question, if there is one, up to the next question."""
    begin = next((at for at in range(index, -1, -1) if messages[at]["type"] == "human"), 0)
    end = next((at for at in range(index + 1, len(messages)) if messages[at]["type"] == "human"), len(messages))
    return begin, end


def question(state: ThreadState, first: Message, end: int | None = None) -> Message:
    """Returns the question of a turn that begins with a message: for a summary, the last question before it, up to the
    commit `end` (the head).
    """
    if first.get("name") != SUMMARY:
        return first
    patches = (
        messages_of(state.commits[index].patch)[::-1] for index in state.chain(state.head if end is None else end)
    )
    return next((message for messages in patches for message in messages if message["type"] == "human"), first)


def commit_of(state: ThreadState, message_id: str, end: int | None = None) -> int:
    """Returns the index of the last commit up to `end` (the head) that added or replaced a message. A summary that
    keeps the message does not count.
    """
    for index in state.chain(state.head if end is None else end):
        if any(message.get("id") == message_id for message in messages_of(state.commits[index].patch)):
            return index
    raise NotFound(f"Message {message_id[:80]!r} not found")


def newest_with(state: ThreadState, message_id: str) -> int:
    """Returns the index of the last commit on any branch that added or replaced a message."""
    undone = state.undone
    for index in range(len(state.commits) - 1, -1, -1):
        commit = state.commits[index]
        if commit.run not in undone and any(message.get("id") == message_id for message in messages_of(commit.patch)):
            return index
    raise NotFound(f"Message {message_id[:80]!r} not found")


def run_of(state: ThreadState, message_id: str) -> str | None:
    """Returns the run that added a message."""
    return state.commits[commit_of(state, message_id)].run


def before(state: ThreadState, asking: Message, instead: Message, end: int | None = None) -> tuple[int, Json]:
    """Returns the checkpoint before a question, and the input that asks another question there, with the rest of the
    first input. The first question of a thread has no checkpoint before it: there the message is replaced. `end`: a
    commit of the question's branch (the head).
    """
    commit = state.commits[_first(state, str(asking["id"]), end)]
    messages = [instead if message.get("id") == asking["id"] else message for message in _messages(commit.patch)]
    if commit.parent >= 0:
        return state.commits[commit.parent].seq, {**commit.patch, "messages": messages}
    removed = [] if instead["id"] == asking["id"] else [{"type": "remove", "id": asking["id"]}]
    return commit.seq, {"messages": [*removed, instead]}


def reworded(state: ThreadState, request: RunRequested) -> RunRequested:
    """Returns a request whose input has a known question in other words, or one that was answered by an apology only,
    and would leave nothing to answer: as the question asked otherwise, in place of the answer to the first one. Beside
    a run that is at work, after which the conversation is another one, it becomes a new message. Any other request is
    returned as it is.
    """
    index = state.head if request.base is None else state.commit_at(request.base)
    sent, brought = _messages(request.input or {}), messages_of(request.input or {})
    there = state.values_at(index).get("messages", ()) if brought else ()
    known = {str(message.get("id")): message for message in there}
    failed = there[-2:-1] if there and is_apology(there[-1]) else ()
    changed = [
        new
        for new in brought
        if (old := known.get(str(new.get("id")))) is not None and (_is_reworded(old, new) or old in failed)
    ]
    if not changed:
        return request
    if request.base is None and any(state.runs.open()):
        names = {message["id"]: uuid7() for message in changed}
        messages = [{**message, "id": names.get(message.get("id"), message.get("id"))} for message in sent]
        return msgspec.structs.replace(request, input={**(request.input or {}), "messages": messages})
    if _leads_on(there, request.input):
        return request
    new = min(changed, key=lambda message: [*known].index(str(message["id"])))
    base, input = before(state, known[str(new["id"])], new, index)
    others = [message for message in sent if message.get("id") != new["id"]]
    mine = {message.get("id") for message in others}
    messages = [*(message for message in input["messages"] if message.get("id") not in mine), *others]
    return msgspec.structs.replace(request, base=base, input={**input, **(request.input or {}), "messages": messages})


def _is_reworded(known: Message, new: Message) -> bool:
    return known["type"] == new["type"] == "human" and _words(known) != _words(new)


def _words(message: Message) -> tuple[str, list[Any]]:
    """Returns what a person says in a message: the text without what the server wrote before it, and the rest."""
    content, extra = message.get("content"), message.get("additional_kwargs")
    written = extra.get(UPLOADS_BLOCK) if isinstance(extra, dict) else None
    text = text_of(content)
    others = [block for block in content if not text_of([block])] if isinstance(content, list) else []
    return (text[written:] if isinstance(written, int) else text).strip(), others


def _leads_on(messages: Sequence[Message], input: Json | None) -> bool:
    """Tells whether there is something to do once an input is applied to a conversation."""
    values: Json = {"messages": [*messages]}
    reduce(values, places_of(values), {"messages": (input or {}).get("messages")})
    return bool(next_nodes(values["messages"]))


def _first(state: ThreadState, message_id: str, end: int | None) -> int:
    """Returns the index of the commit that added a message first; later commits replaced it."""
    index = commit_of(state, message_id, end)
    while (parent := state.commits[index].parent) >= 0:
        if not any(message.get("id") == message_id for message in state.values_at(parent).get("messages", ())):
            break
        index = commit_of(state, message_id, parent)
    return index


def _messages(patch: Mapping[str, Any]) -> list[Message]:
    messages = patch.get("messages")
    return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
