"""The rows of the read models: what an event does to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from core.errors import Invalid
from core.events import (
    ContextCompacted,
    Event,
    Json,
    MessageAdded,
    ModelCompleted,
    Record,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRequested,
    RunStarted,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadForked,
    ThreadPruned,
    ToolCompleted,
)
from core.lifecycle import ENDS
from core.thread.runs import known_by
from core.thread.state import REMOVE_ALL
from core.thread.usage import Tokens, tokens_of
from core.user.assistants import DEFAULT
from core.views import fulltext

log = structlog.get_logger("sika.projections")

VERSION = 5

THREAD = "(SELECT id FROM threads WHERE thread_id = ?1)"
TOUCH = """
UPDATE threads SET updated_at = ?2, seq = ?3, paused = iif(?4, ?5, paused),
    state_updated_at = max(state_updated_at, ?6),
    status = CASE
        WHEN EXISTS (SELECT 1 FROM all_runs r WHERE r.thread = threads.id AND r.status IN ('pending', 'running'))
            THEN 'busy'
        WHEN iif(?4, ?5, paused) IS NOT NULL THEN 'interrupted'
        ELSE coalesce((SELECT CASE WHEN r.status IN ('error', 'interrupted') THEN r.status END
                       FROM all_runs r WHERE r.thread = threads.id ORDER BY r.seq DESC LIMIT 1), 'idle') END
WHERE thread_id = ?1
"""
"""The thread's status as `core.thread.state.ThreadState.status` has it."""
BEGAN = """
UPDATE threads SET state_updated_at = max(state_updated_at, ?2)
WHERE thread_id = ?1 AND EXISTS (SELECT 1 FROM all_runs WHERE run_id = ?3 AND input)
"""
REQUESTED = """
INSERT OR IGNORE INTO all_runs
SELECT ?3, ?2, id, user, ?4, NULL, 'pending', ?5, NULL, NULL, NULL, ?6, 0 FROM threads WHERE thread_id = ?1
"""
ANNOTATED = """
INSERT INTO metadata SELECT id, ?2, ?3, 1, user, updated_at FROM threads WHERE thread_id = ?1
ON CONFLICT DO UPDATE SET value = excluded.value, shown = 1
"""
IMPLIED = "INSERT OR IGNORE INTO metadata SELECT id, ?2, ?3, 0, user, updated_at FROM threads WHERE thread_id = ?1"
KNOWN = """
INSERT INTO metadata SELECT id, ?2, ?3, 1, user, updated_at FROM threads WHERE thread_id = ?1
AND NOT EXISTS (SELECT 1 FROM all_runs r WHERE r.thread = threads.id AND r.seq < ?4)
ON CONFLICT DO UPDATE SET value = excluded.value, shown = 1 WHERE NOT shown
"""
STARTED = """
UPDATE all_runs SET status = 'running', started_at = coalesce(started_at, ?2), model = coalesce(?3, model)
WHERE run_id = ?1
"""
USED = """
INSERT INTO used SELECT seq, coalesce(?2, model, 'unknown'), ?3, ?4, ?5, ?6, ?7 FROM all_runs WHERE run_id = ?1
ON CONFLICT DO UPDATE SET input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens,
    cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, calls = calls + excluded.calls
"""
SAID = """
INSERT INTO messages SELECT ?2, id, ?3, ?4, (SELECT seq FROM all_runs WHERE run_id = ?5), ?6 FROM threads
WHERE thread_id = ?1
"""
INDEXED = "INSERT INTO texts (rowid, text, owner) SELECT id, text, owner FROM owned_texts WHERE id = ?"
FORGOTTEN = """
INSERT INTO texts (texts, rowid, text, owner)
SELECT 'delete', o.id, o.text, o.owner FROM messages m CROSS JOIN owned_texts o ON o.id = m.id WHERE
"""
_UNDONE = """
run = (SELECT seq FROM all_runs WHERE run_id = ?2) AND thread = (SELECT id FROM threads WHERE thread_id = ?1)
AND (?3 OR NOT EXISTS (SELECT 1 FROM all_runs WHERE run_id = ?2 AND started_at IS NOT NULL))
"""
"""What a run said that was rolled back, or what was to be said to one that never began."""
RESET = (
    f"{FORGOTTEN} thread = {THREAD}",
    f"DELETE FROM messages WHERE thread = {THREAD}",
    f"DELETE FROM written WHERE thread = {THREAD}",
    f"DELETE FROM used WHERE run IN (SELECT seq FROM all_runs WHERE thread = {THREAD})",
    f"DELETE FROM all_runs WHERE thread = {THREAD}",
    f"DELETE FROM metadata WHERE thread = {THREAD}",
    "DELETE FROM threads WHERE thread_id = ?1",
)

MIDDLEWARE = "middleware"
CALLERS: Mapping[str, str] = {"lead": "lead_agent"}
"""Who asks models, as DeerFlow calls them; anybody else by the name of the actor."""
TITLE = ""
"""The title counts as a message with this id."""
MOST_VALUE = 200
"""Characters of a value that are compared before the state itself is."""


def as_text(value: Any) -> str:
    """A metadata value as it is stored and compared: equal values are equal texts; `false`, `0` and `null` differ."""
    return msgspec.json.encode(value, order="sorted").decode()


def comparable(value: Any) -> str:
    """What is stored of a value: enough to find it, and for lists and objects only that there is one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if isinstance(value, list | dict) else as_text(value)[:MOST_VALUE]


@dataclass(slots=True)
class _Thread:
    """What a batch says about one thread since it was `reset`, if it was."""

    reset: bool = False
    created: tuple[int, str, str] | None = None
    """Its id, whose it is, and when it was made."""
    updated_at: str = ""
    wrote_at: str = ""
    seq: int = 0
    paused: tuple[str | None] | None = None
    """The run it is paused at, if that changed."""
    title: tuple[Any] | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    written: dict[tuple[str, str], None] = field(default_factory=dict)
    messages: list[tuple[int, int, str, str | None, str | None]] = field(default_factory=list)
    """Id, key, message, run, words."""
    requested: dict[str, tuple[int, str, str, bool]] = field(default_factory=dict)
    began: dict[str, str] = field(default_factory=dict)
    models: dict[str, str | None] = field(default_factory=dict)
    ended: dict[str, tuple[str, str, str | None]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    used: dict[tuple[str, str | None, str], Tokens] = field(default_factory=dict)


class Batch:
    """What a sequence of events amounts to, by thread: the last word on each row is what counts."""

    def __init__(self) -> None:
        self._threads: dict[str, _Thread] = {}

    def add(self, record: Record) -> None:
        if record.head.kind != "thread":
            return
        try:
            event = record.event
        except Invalid as error:  # one event that cannot be read must not stop the others
            log.error("event skipped", id=record.id, error=str(error))
            return
        name, run = record.aggregate.id, record.run or ""
        if isinstance(event, ThreadErased | ThreadPruned):
            self._threads[name] = _Thread(reset=True)
        thread = self._threads.setdefault(name, _Thread())
        thread.updated_at, thread.seq = record.at, record.seq
        match event:
            case ThreadCreated():
                thread.created = record.seq, event.user, record.at
                thread.metadata |= _texts(event.metadata)
            case ThreadAnnotated():
                thread.metadata |= _texts(event.metadata)
            case ThreadPruned():
                thread.created = record.seq, event.user, event.created_at
                thread.metadata = _texts(event.metadata)
                _write(thread, record, event.values)
            case ThreadForked():
                _write(thread, record, *event.patches)
            case StatePatched():
                _write(thread, record, event.values)
            case MessageAdded():
                _write(thread, record, {"messages": event.messages})
            case ToolCompleted():
                _write(thread, record, event.update)
            case ModelCompleted():
                _write(thread, record, {"messages": [event.message]})
                key = run, thread.models.get(run), CALLERS.get(record.head.actor, record.head.actor)
                thread.used[key] = thread.used.get(key, Tokens()).plus(tokens_of(event.message))
            case ContextCompacted():
                _write(thread, record)
                key = run, event.model, MIDDLEWARE
                thread.used[key] = thread.used.get(key, Tokens()).plus(tokens_of(event.summary))
            case RunRequested():
                thread.requested.setdefault(run, (record.seq, event.assistant, record.at, bool(event.input)))
                if event.input:
                    _write(thread, record, event.input, later=True)
            case RunStarted():
                thread.began.setdefault(run, record.at)
                thread.models[run] = event.model or thread.models.get(run)
                if event.attempt == 1:
                    thread.paused = (None,)
            case Event() if end := ENDS.get(type(event)):
                why = f"{event.error}: {event.text}" if isinstance(event, RunFailed) else None
                thread.ended[run] = end.status, record.at, why
                if isinstance(event, RunPaused):
                    thread.paused = (run,)
            case RunRemoved():
                thread.removed.append(run)

    def statements(self) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
        """In this order, each for all its rows at once."""
        threads = self._threads
        gone = [(name,) for name, thread in threads.items() if thread.reset]
        yield from ((sql, gone) for sql in RESET)
        yield (
            "INSERT OR IGNORE INTO threads VALUES (?2, ?1, ?3, 'idle', NULL, NULL, ?4, ?5, ?4, 0)",
            [(name, *thread.created, thread.updated_at) for name, thread in threads.items() if thread.created],
        )
        yield (
            ANNOTATED,
            [(name, key, value) for name, thread in threads.items() for key, value in thread.metadata.items()],
        )
        yield (
            IMPLIED,
            [(name, *pair) for name, thread in threads.items() if thread.created for pair in _DEFAULT.items()],
        )
        yield (
            "UPDATE threads SET title = ?2 WHERE thread_id = ?1",
            [(name, *thread.title) for name, thread in threads.items() if thread.title],
        )
        yield (
            "INSERT OR IGNORE INTO written SELECT user, ?2, ?3, id FROM threads WHERE thread_id = ?1",
            [(name, key, value) for name, thread in threads.items() for key, value in thread.written],
        )
        yield from self._of_runs()
        yield from self._of_messages()
        yield BEGAN, [(name, at, run) for name, thread in threads.items() for run, at in thread.began.items()]
        yield (
            TOUCH,
            [
                (name, t.updated_at, t.seq, t.paused is not None, t.paused and t.paused[0], t.wrote_at)
                for name, t in threads.items()
            ],
        )

    def _of_runs(self) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
        threads = self._threads
        yield (
            REQUESTED,
            [(name, run, *row) for name, thread in threads.items() for run, row in thread.requested.items()],
        )
        yield (
            KNOWN,
            [
                (name, key, value, seq)
                for name, thread in threads.items()
                for seq, assistant, *_ in list(thread.requested.values())[:1]
                for key, value in _texts(known_by(assistant)).items()
            ],
        )
        yield USED, [(*key, *tokens) for thread in threads.values() for key, tokens in thread.used.items()]
        yield (
            STARTED,
            [(run, at, thread.models.get(run)) for thread in threads.values() for run, at in thread.began.items()],
        )
        yield (
            "UPDATE all_runs SET status = ?2, ended_at = ?3, error = ?4 WHERE run_id = ?1",
            [(run, *row) for thread in threads.values() for run, row in thread.ended.items()],
        )
        yield (
            "UPDATE all_runs SET removed = 1 WHERE run_id = ?",
            [(run,) for thread in threads.values() for run in thread.removed],
        )

    def _of_messages(self) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
        said = [(name, *row) for name, thread in self._threads.items() for row in thread.messages]
        yield SAID, said
        yield INDEXED, [(identity,) for _, identity, *_, words in said if words]
        undone = [
            (name, run, status == "rolled_back")
            for name, thread in self._threads.items()
            for run, (status, *_) in thread.ended.items()
            if status != "success"
        ]
        yield FORGOTTEN + _UNDONE, undone
        yield f"DELETE FROM messages WHERE {_UNDONE}", undone


def _texts(metadata: Json) -> dict[str, str]:
    return {key: as_text(value) for key, value in metadata.items()}


_DEFAULT = _texts(known_by(DEFAULT))
"""What a thread counts as in searches while its metadata name no assistant."""


def _write(thread: _Thread, record: Record, *patches: Mapping[str, Any], later: bool = False) -> None:
    """What patches of the state say. `later`: they are applied when their run starts."""
    if not later:
        thread.wrote_at = record.at
    for key, value in ((key, value) for patch in patches for key, value in patch.items() if key != "messages"):
        thread.written[key, comparable(value)] = None
        if key == "title":
            thread.title = (value if isinstance(value, str) else None,)
    for place, (message, words) in enumerate(_said(patches)):
        thread.messages.append((record.seq << 20 | place, _key(message), message, record.run, words))


def _said(patches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str | None]]:
    """Id and words of each message in patches, as far as people read it; no words if it is removed."""
    for patch in patches:
        if isinstance(patch.get("title"), str):
            yield TITLE, fulltext.indexed(patch["title"])
        given = patch.get("messages")
        for message in given if isinstance(given, list) else ():
            if isinstance(message, dict) and message.get("type") in ("human", "ai", "remove"):
                yield str(message.get("id")), fulltext.words_of(message)


def _key(message: str) -> int:
    """A message's id as a number, which takes a third of the room. 0: the title. 1: what removes all messages."""
    if message in (TITLE, REMOVE_ALL):
        return int(message == REMOVE_ALL)
    return int.from_bytes(hashlib.blake2b(message.encode(), digest_size=8).digest(), signed=True)
