"""The rows of the read models: their tables, what an event does to them, what a search asks of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from core import fulltext
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
from core.ids import assistant_id
from core.lifecycle import ENDS
from core.state import REMOVE_ALL
from core.usage import Tokens, tokens_of

log = structlog.get_logger("sika.projections")

VERSION = 4

SCHEMA = """
CREATE TABLE position (version INTEGER NOT NULL, log TEXT NOT NULL, seq INTEGER NOT NULL);
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, thread_id TEXT NOT NULL UNIQUE, user TEXT NOT NULL, status TEXT NOT NULL, title TEXT,
    paused TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, state_updated_at TEXT NOT NULL,
    seq INTEGER NOT NULL
);
CREATE INDEX threads_by_creation ON threads (user, created_at);
CREATE INDEX threads_by_update ON threads (user, updated_at, thread_id);
CREATE INDEX threads_by_state ON threads (user, state_updated_at);
CREATE INDEX threads_by_status ON threads (user, status);
CREATE TABLE metadata (
    thread INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, user TEXT NOT NULL, PRIMARY KEY (thread, key)
) WITHOUT ROWID;
CREATE INDEX metadata_by_value ON metadata (user, key, value);
CREATE TABLE all_runs (
    seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, thread INTEGER NOT NULL, assistant TEXT NOT NULL, model TEXT,
    status TEXT NOT NULL, created_at TEXT NOT NULL, started_at TEXT, ended_at TEXT, error TEXT,
    input INTEGER NOT NULL, removed INTEGER NOT NULL
);
CREATE INDEX runs_by_thread ON all_runs (thread);
CREATE INDEX open_runs ON all_runs (thread) WHERE status IN ('pending', 'running');
CREATE VIEW runs AS
    SELECT run_id, thread_id, user, assistant, model, r.status, r.seq, r.created_at, started_at, ended_at, error
    FROM all_runs r JOIN threads t ON t.id = r.thread WHERE NOT removed;
CREATE TABLE used (
    run INTEGER NOT NULL, model TEXT NOT NULL, caller TEXT NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL, calls INTEGER NOT NULL,
    PRIMARY KEY (run, model, caller)
) WITHOUT ROWID;
CREATE VIEW usage AS
    SELECT run_id, u.model, caller, input_tokens, output_tokens, cache_read_tokens, calls
    FROM used u JOIN all_runs r ON r.seq = u.run;
CREATE TABLE written (
    user TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, thread INTEGER NOT NULL,
    PRIMARY KEY (user, key, value, thread)
) WITHOUT ROWID;
CREATE INDEX written_by_thread ON written (thread);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, thread INTEGER NOT NULL, key INTEGER NOT NULL, message TEXT NOT NULL, run INTEGER, text TEXT
);
CREATE INDEX messages_by_thread ON messages (thread, key);
CREATE VIRTUAL TABLE texts USING fts5(
    text, content = messages, content_rowid = id, columnsize = 0, tokenize = 'unicode61 remove_diacritics 2'
);
"""
"""Threads and runs are named by the sequence of the event that made them, where only rows see it.
`written`: every value that was ever written to a thread's state, by field; those of its head are among them.
`messages`: every version of every message that people read, in the order of the log; `texts` finds their words. The
version that counts is the newest; a message that was removed has a newest version without text.
"""

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
"""The thread's status as `core.state.ThreadState.status` has it."""
BEGAN = """
UPDATE threads SET state_updated_at = max(state_updated_at, ?2)
WHERE thread_id = ?1 AND EXISTS (SELECT 1 FROM all_runs WHERE run_id = ?3 AND input)
"""
REQUESTED = """
INSERT OR IGNORE INTO all_runs
SELECT ?3, ?2, id, ?4, NULL, 'pending', ?5, NULL, NULL, NULL, ?6, 0 FROM threads WHERE thread_id = ?1
"""
KNOWN = """
INSERT OR IGNORE INTO metadata SELECT id, ?2, ?3, user FROM threads WHERE thread_id = ?1
AND NOT EXISTS (SELECT 1 FROM all_runs r WHERE r.thread = threads.id AND r.seq < ?4)
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
FORGOTTEN = "INSERT INTO texts (texts, rowid, text) SELECT 'delete', id, text FROM messages WHERE text IS NOT NULL AND "
_UNDONE = """
run = (SELECT seq FROM all_runs WHERE run_id = ?2) AND thread = (SELECT id FROM threads WHERE thread_id = ?1)
AND (?3 OR NOT EXISTS (SELECT 1 FROM all_runs WHERE run_id = ?2 AND started_at IS NOT NULL))
"""
"""What a run said that was rolled back, or what was to be said to one that never began."""
_NEWEST = """
NOT EXISTS (SELECT 1 FROM messages n WHERE n.thread = m.thread AND n.id > m.id
    AND n.key IN (m.key, CASE m.key WHEN 0 THEN 0 ELSE 1 END))
"""
"""Nothing came after it with the same key, and nothing that removed all messages (`_key`)."""
_FOUND = f"SELECT m.thread FROM texts JOIN messages m ON m.id = texts.rowid WHERE texts MATCH ? AND {_NEWEST}"
SNIPPETS = f"""
SELECT t.thread_id, m.message, snippet(texts, 0, '', '', '…', 24)
FROM texts JOIN messages m ON m.id = texts.rowid JOIN threads t ON t.id = m.thread
WHERE texts MATCH ? AND t.thread_id IN ({{ids}}) AND {_NEWEST} ORDER BY m.id DESC LIMIT ?
"""
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


def where(
    user: str,
    metadata: Mapping[str, Any],
    status: str | None,
    ids: Sequence[str] | None,
    values: Mapping[str, Any],
    query: str | None,
    default: Mapping[str, Any],
) -> tuple[str, tuple[Any, ...]]:
    """The condition of a search on `threads t`, and its values. What `values` find are candidates."""
    clauses = ["user = ?"]
    given: list[Any] = [user]
    for key, wanted in default.items():
        clauses.append("NOT EXISTS (SELECT 1 FROM metadata m WHERE m.thread = t.id AND m.key = ? AND m.value <> ?)")
        given += [key, as_text(wanted)]
    for key, wanted in metadata.items():
        clauses.append("id IN (SELECT thread FROM metadata WHERE user = ? AND key = ? AND value = ?)")
        given += [user, key, as_text(wanted)]
    for key, wanted in values.items():
        clauses.append("id IN (SELECT thread FROM written WHERE user = ? AND key = ? AND value = ?)")
        given += [user, key, _comparable(wanted)]
    if status is not None:
        clauses.append("status = ?")
        given.append(status)
    if ids is not None:
        clauses.append(f"thread_id IN ({', '.join('?' * len(ids))})")
        given += ids
    if query is not None:
        words = fulltext.expression(query)
        clauses.append(f"id IN ({_FOUND})" if words else "false")
        given += [words] if words else []
    return " AND ".join(clauses), tuple(given)


def looked_up(condition: str) -> str:
    """The same condition for when it selects few threads: SQLite does not go through all of a user's then."""
    return condition.replace("user = ?", "+user = ?", 1) if " IN (" in condition else condition


def _comparable(value: Any) -> str:
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
            "INSERT OR REPLACE INTO threads VALUES (?2, ?1, ?3, 'idle', NULL, NULL, ?4, ?4, ?4, 0)",
            [(name, *thread.created) for name, thread in threads.items() if thread.created],
        )
        yield (
            "INSERT OR REPLACE INTO metadata SELECT id, ?2, ?3, user FROM threads WHERE thread_id = ?1",
            [(name, key, value) for name, thread in threads.items() for key, value in thread.metadata.items()],
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
        yield (
            "INSERT INTO texts (rowid, text) SELECT id, text FROM messages WHERE id = ?",
            [(identity,) for _, identity, *_, words in said if words],
        )
        undone = [
            (name, run, status == "rolled_back")
            for name, thread in self._threads.items()
            for run, (status, *_) in thread.ended.items()
            if status != "success"
        ]
        yield FORGOTTEN + _UNDONE, undone
        yield f"DELETE FROM messages WHERE {_UNDONE}", undone


def known_by(assistant: str) -> Json:
    """What the first run says in the metadata of a thread that does not say it itself."""
    identity = assistant_id(assistant)
    return {"assistant_id": identity} if identity == assistant else {"graph_id": assistant, "assistant_id": identity}


def _texts(metadata: Json) -> dict[str, str]:
    return {key: as_text(value) for key, value in metadata.items()}


def _write(thread: _Thread, record: Record, *patches: Mapping[str, Any], later: bool = False) -> None:
    """What patches of the state say. `later`: they are applied when their run starts."""
    if not later:
        thread.wrote_at = record.at
    for key, value in ((key, value) for patch in patches for key, value in patch.items() if key != "messages"):
        thread.written[key, _comparable(value)] = None
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
