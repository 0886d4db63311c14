"""Where in a thread an event is, by its id: clients that come back name the last one they saw."""

from __future__ import annotations

import re

from channels.http.protocols.langgraph_events.wire import STRIDE, Slot, place
from core.errors import NotFound
from core.thread import turns
from core.thread.state import ThreadState

_FACT = re.compile(r"(\d{1,16})-(\d{1,3})")
_RUN = re.compile(r"synth:([^:|]{1,200}):(lc|answered|input)\|\|(.{0,200})", re.DOTALL)
_MESSAGE = re.compile(r"(.{1,200}?)(?::\d{1,6})?:(start|finish|\d{1,9})", re.DOTALL)


def place_of(state: ThreadState, event_id: str) -> int | None:
    """Returns the number after which all comes that is later than an event; None if the thread has no such event. Of a
    message that was not whole at the event, all comes again.
    """
    if match := _FACT.fullmatch(event_id):
        return place(int(match[1]), min(int(match[2]), STRIDE - 1))
    if match := _RUN.fullmatch(event_id):
        return _of_run(state, match[1], match[2], match[3])
    if match := _MESSAGE.fullmatch(event_id):
        return _of_message(state, match[1], whole=event_id == f"{match[1]}:finish")
    return None


def _of_run(state: ThreadState, run_id: str, kind: str, name: str) -> int | None:
    run = state.runs.get(run_id)
    if run is None or run.started_seq is None:
        return None
    if kind == "answered":
        return place(run.started_seq, Slot.ANSWERED)
    if kind == "lc" and name == "running":
        return place(run.started_seq, Slot.RUNNING)
    if run.ended_seq is None:
        return None
    if kind == "lc":
        return place(run.ended_seq, Slot.ENDED)
    questions = state.paused.interrupts if state.paused is not None else ()
    number = next((number for number, question in enumerate(questions) if question.id == name), 0)
    return place(run.ended_seq, Slot.INPUT + number)


def _of_message(state: ThreadState, message_id: str, *, whole: bool) -> int | None:
    try:
        seq = state.commits[turns.newest_with(state, message_id)].seq
    except NotFound:
        return None
    return place(seq, Slot.MESSAGE) - (0 if whole else 1)
