"""Places: the thread of a person in a conversation, and what commands read from it. Pure functions."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from core.chat.state import Conversation
from core.events import Event, Json, StatePatched
from core.thread import turns
from core.thread.state import Run, ThreadState
from core.thread.subagents import started_at
from core.thread.values import REMOVE_ALL


class Place(NamedTuple):
    """A thread and its state."""

    id: str
    state: ThreadState


def at_work(state: ThreadState, known: Conversation, seq: int) -> Run | None:
    """Returns the run that was at work when a message was written (`seq`), else the oldest one that waited. The answer
    is the same at any later time."""
    earlier = {heard.run for heard in known.heard.values() if heard.seq < seq}
    runs = [
        run
        for run in state.runs.values()
        if (run.requested_seq < seq or run.id in earlier) and (run.ended_seq is None or run.ended_seq > seq)
    ]
    begun = [run for run in runs if run.started_seq is not None and run.started_seq < seq]
    return next(iter(begun or runs), None)


def last_question(place: Place, text: str | None = None) -> tuple[int, Json] | None:
    """Returns the checkpoint before the last question, and the input that asks it again, in other words if there is a
    `text`. Raises `Refused` while a run is at work."""
    state = place.state
    turns.at_rest(place.id, state)
    if not state.messages:
        return None
    first = state.messages[turns.turn_of(state.messages, len(state.messages) - 1)[0]]
    if first.get("type") != "human":
        return None
    question = turns.question(state, first)
    return turns.before(state, question, question if text is None else {**question, "content": text})


def forgotten(place: Place) -> list[Event]:
    """Returns what takes the last question and its answer from a thread."""
    start = last_question(place)
    if start is None:
        return []
    base, input_ = start
    ids = {message.get("id") for message in input_.get("messages", ())}
    before = place.state.values_at(place.state.commit_at(base)).get("messages", ())
    if any(message.get("id") in ids for message in before):  # the first question has no checkpoint before it
        return [StatePatched(values={"messages": [{"type": "remove", "id": REMOVE_ALL}]})]
    return [StatePatched(values={"messages": []}, base=base)]


def status(place: Place | None, now: datetime, untaken: int) -> str:
    """Says what the agent does in a conversation: for how long, with which model, and at which step. `untaken`: see
    `queue`."""
    if place is None:
        return "There is no conversation yet."
    state = place.state
    words = {"busy": "at work", "interrupted": "waits for your decision", "error": "the last answer failed"}
    lines = [f"Conversation `{place.id}`: {words.get(state.status, 'idle')}."]
    if (run := state.active) is not None:
        lines.append(_at_work(state, run, now))
    if waiting := len(waiting_runs(place)) + untaken:
        lines.append(f"Messages in the queue: {waiting}.")
    return "\n".join(lines)


def _at_work(state: ThreadState, run: Run, now: datetime) -> str:
    begun = started_at(state, run)
    time = f"For {_duration((now - begun).total_seconds())}" if begun else "Just begun"
    steps = [
        *(intent.event.name for intent in run.intents.values()),
        *(d.name for d in run.subagents.values() if not d.ended),
    ]
    now_at = f"; now: {', '.join(f'`{step}`' for step in steps[-MOST_STEPS:])}" if steps else "; the model answers"
    return f"{time}, with {run.model or 'no model yet'}{now_at}."


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


MOST_STEPS = 5
"""Limit of the steps of a run that `/status` names."""
NOTHING_WAITS = "No message is waiting."


def waiting_runs(place: Place) -> list[Run]:
    """Returns the runs that wait for another one, oldest first."""
    return place.state.queued if place.state.active else place.state.queued[1:]  # the first is about to begin


def queue(place: Place | None, untaken: int) -> str:
    """Says which messages wait. `untaken`: those that are no runs yet, as more came than are taken at once."""
    queued = waiting_runs(place) if place else []
    lines = [f"{number}. {_beginning(run)}" for number, run in enumerate(queued, 1)]
    lines += [f"Not taken yet: {untaken}."] if untaken else []
    return "\n".join(["Waiting:", *lines]) if lines else NOTHING_WAITS


def _beginning(run: Run) -> str:
    messages = [*((run.request.input or {}).get("messages") or [{}]), *run.steers]
    text = " ".join(word for message in messages for word in str(message.get("content", "")).split())
    return text if len(text) <= 80 else f"{text[:80]}…"
