"""News: what the facts of a thread are to somebody who looks at all their threads. Pure functions of one fact.

A fact that is no news makes nothing. The names of news are those of events where an event says the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Event,
    Json,
    Record,
    RunFailed,
    RunPaused,
    RunRequested,
    RunStarted,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadPruned,
    ThreadTitled,
    ToolCompleted,
    type_of,
)
from core.files.workspace import WorkspaceScanned, WorkspaceUndone
from core.lifecycle import ENDS
from core.thread.messages import text_of
from core.thread.values import CLARIFICATION

MOST_CHARACTERS = 500
"""Limit of a text: a notification, not the thing itself."""
MOST_FILES = 50
"""Limit of the files of one fact: as many as a tool presents at once."""
_OF_THREADS = (ThreadCreated, ThreadAnnotated, ThreadTitled, ThreadPruned, ThreadErased, StatePatched)
_OF_RUNS = (RunRequested, RunStarted, ApprovalRequested, ApprovalResolved, ToolCompleted)
_OF_FILES = (WorkspaceScanned, WorkspaceUndone)
_FACTS: tuple[type[Event], ...] = (*_OF_THREADS, *_OF_RUNS, *_OF_FILES, *ENDS)
TYPES = frozenset(type_of(fact.__name__) for fact in _FACTS)
"""The types of facts that may be news."""
ENDED = "run.ended"
TITLED = "thread.titled"
WITH_TITLE = frozenset((ENDED, TITLED))
"""News that tell the title that the thread has now: not every fact about a title counts."""


class News(NamedTuple):
    """One piece of news, without the thread it is about."""

    type: str
    fields: Json


def news_of(record: Record) -> list[News]:
    """Returns what a fact is to those who look at all their threads."""
    return [News(kind, fields) for kind, fields in _of_event(record, record.event)]


def owner_in(record: Record) -> str | None:
    """Returns the owner of the thread that a fact names, if it does."""
    event = record.event
    return event.user if isinstance(event, ThreadCreated | ThreadPruned) else None


def _of_event(record: Record, event: Any) -> Iterator[tuple[str, Json]]:
    run: Json = {"run_id": record.run}
    match event:
        case ThreadCreated():
            yield "thread.created", {"metadata": event.metadata}
        case ThreadTitled():
            yield TITLED, {}
        case StatePatched(values={"title": title}):
            yield "thread.renamed", {"title": title if isinstance(title, str) else None}
        case ThreadAnnotated():
            yield "thread.annotated", {"metadata": {**event.metadata, **dict.fromkeys(event.removed)}}
        case ThreadErased():
            yield "thread.deleted", {}
        case RunRequested():
            yield "run.requested", {**run, "multitask": event.multitask}
            yield from _answered(run, event)
        case RunStarted():
            yield "run.started", {**run, "attempt": event.attempt}
        case ApprovalRequested():
            about = {"approval_id": event.approval, "tool": event.tool, "text": _short(event.text)}
            yield "approval.waiting", {**run, **about, "deadline": event.deadline}
        case ApprovalResolved():
            yield "approval.answered", {**run, "approval_id": event.approval, "decision": event.decision}
        case ToolCompleted():
            yield from _of_tool(run, event)
        case WorkspaceScanned() if event.changes:
            yield "file.changed", {**run, "files": len(event.changes)}
        case WorkspaceUndone():
            yield "file.changed", {**run, "files": len(event.paths)}
        case _ if type(event) in ENDS:
            yield from _ended(run, event)


def _answered(run: Json, event: RunRequested) -> Iterator[tuple[str, Json]]:
    """A run that answers what its thread waits for: all its questions at once, or the one that it names."""
    if event.resume is not None:
        yield "question.answered", {**run, "question_id": None}
    messages = (event.input or {}).get("messages")
    for message in messages if isinstance(messages, list) else ():
        match message:
            case {"additional_kwargs": {"human_input_response": {"request_id": str(question)}}}:
                yield "question.answered", {**run, "question_id": question}


def _of_tool(run: Json, event: ToolCompleted) -> Iterator[tuple[str, Json]]:
    presented = event.update.get("artifacts")
    for path in presented[:MOST_FILES] if isinstance(presented, list) else ():
        if isinstance(path, str):
            yield "file.presented", {**run, "path": path}
    if isinstance(title := event.update.get("title"), str):
        yield "thread.renamed", {"title": title}
    if str(event.message.get("id", "")).startswith(CLARIFICATION):
        yield "question.waiting", {**run, "question_id": event.message["id"], "text": question_text(event.message)}


def question_text(message: Mapping[str, Any]) -> str:
    """Returns the question of a tool message that asks the person, in short."""
    match message.get("artifact"):
        case {"human_input": {"question": str(question)}}:
            return _short(question)
    return _short(text_of(message.get("content")))


def _ended(run: Json, event: Event) -> Iterator[tuple[str, Json]]:
    paused = isinstance(event, RunPaused)
    error = _short(event.text) if isinstance(event, RunFailed) else None
    yield ENDED, {**run, "status": ENDS[type(event)].status, "paused": paused, "error": error}
    for question in event.interrupts if isinstance(event, RunPaused) else ():
        match question.value:
            case {"type": "approval"}:
                continue  # sent when it was asked for
            case {"question": str(text)} | str(text):
                pass
            case value:
                text = msgspec.json.encode(value).decode()
        yield "question.waiting", {**run, "question_id": question.id, "text": _short(text)}


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
