"""Everything that waits for a person, over all their threads: calls to approve, and questions to answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from channels.http.deerflow.approvals import Approval, approval_object
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Offset, Routes
from channels.http.server.routes import API
from core.errors import NotFound
from core.events import Interrupt, Json, Message
from core.thread.messages import text_of
from core.thread.state import ThreadState
from core.thread.values import CLARIFICATION, asks_person


class Question(msgspec.Struct):
    """A question. `answer`: how it is answered: `resume` by a run with `command.resume`, `message` by the next message
    of the person (with `human_input_response`, if it answers a form). `options` and `fields` are those of its card, if
    it has one; `value` is what a program asks with, otherwise.
    """

    question_id: str
    text: str
    context: str
    options: list[Json]
    fields: list[Json]
    source: str
    answer: Literal["resume", "message"]
    value: Any


class Waiting(msgspec.Struct):
    """Something that waits. One of `approval` and `question` is set."""

    kind: Literal["approval", "question"]
    id: str
    thread_id: str
    thread_title: str | None
    run_id: str
    at: str
    approval: Approval | None = None
    question: Question | None = None


class Page(msgspec.Struct):
    """`threads`: how many there are that wait. `next_offset`: null on the last page."""

    waiting: list[Waiting]
    threads: int
    next_offset: int | None


ROUTES = Routes(mounts=API, tag="approvals")


@ROUTES("GET", "/approvals", "threads:read")
async def get_list(
    call: Call,
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=100), "Threads at most"] = 50,
    offset: Annotated[Offset, "Threads before them"] = 0,
) -> Page:
    """Everything that waits for you, over all your threads: calls to approve, and questions. The threads that changed
    last come first. `GET /api/events` tells when this list changes.
    """
    services = call.services
    await services.views.current()
    rows, total = await services.views.waiting(call.user, limit, offset)
    waiting: list[Waiting] = []
    for thread_id, seq in rows:
        try:
            state = await services.commands.state(call.user, thread_id, at_least=seq)
        except NotFound:
            continue  # it was deleted meanwhile
        waiting += waits(thread_id, state)
    following = offset + len(rows)
    return Page(waiting, total, following if following < total else None)


def waits(thread_id: str, state: ThreadState) -> list[Waiting]:
    """Returns what a thread waits for; nothing while a run is at work."""
    return [] if state.status == "busy" else [*_paused(thread_id, state), *_question(thread_id, state)]


def _paused(thread_id: str, state: ThreadState) -> Iterator[Waiting]:
    if state.paused is None:
        return
    title, ended = state.values.get("title"), [run for run in state.runs.values() if run.ended_seq]
    last = max(ended, key=lambda run: run.ended_seq or 0, default=None)
    for interrupt in state.paused.interrupts:
        entry = state.approvals.get(interrupt.id)
        if entry is not None:
            shown = approval_object(thread_id, state, entry)
            if shown.status == "pending":
                yield Waiting("approval", interrupt.id, thread_id, title, entry.run, entry.at, approval=shown)
        elif last is not None:
            question = _of_interrupt(interrupt)
            at = last.updated_at
            yield Waiting("question", interrupt.id, thread_id, title, last.id, at, question=question)


def _of_interrupt(interrupt: Interrupt) -> Question:
    match interrupt.value:
        case {"question": str(text)} | str(text):
            pass
        case value:
            text = msgspec.json.encode(value).decode()
    return Question(interrupt.id, text, "", [], [], "interrupt", "resume", interrupt.value)


def _question(thread_id: str, state: ThreadState) -> Iterator[Waiting]:
    """The question with which the last run ended, if it did."""
    if not asks_person(state.messages):
        return
    for message in reversed(state.messages):
        identity = str(message.get("id"))
        if message.get("type") != "tool":
            return
        if identity.startswith(CLARIFICATION):
            commit = state.commits[state.head]
            question = _of_message(identity, message)
            title = state.values.get("title")
            yield Waiting("question", identity, thread_id, title, commit.run or "", commit.at, question=question)


def _of_message(identity: str, message: Message) -> Question:
    card = (message.get("artifact") or {}).get("human_input") or {}
    return Question(
        identity,
        str(card.get("question") or text_of(message.get("content"))),
        str(card.get("context") or ""),
        card.get("options") or [],
        card.get("fields") or [],
        str(card.get("source") or "ask_clarification"),
        "message",
        None,
    )
