"""The rows of the read models: their tables, what an event does to them, what a search asks of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from core.errors import Invalid
from core.events import (
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRequested,
    RunRolledBack,
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
from core.previews import text_of
from core.state import REMOVE_ALL
from core.usage import Tokens, tokens_of

log = structlog.get_logger("sika.projections")

VERSION = 4

SCHEMA = """
CREATE TABLE position (version INTEGER NOT NULL, log TEXT NOT NULL, seq INTEGER NOT NULL);
CREATE TABLE threads (
    thread_id TEXT PRIMARY KEY, user TEXT NOT NULL, status TEXT NOT NULL, title TEXT, paused TEXT,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL, state_updated_at TEXT NOT NULL, seq INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX threads_by_creation ON threads (user, created_at);
CREATE INDEX threads_by_update ON threads (user, updated_at);
CREATE INDEX threads_by_state ON threads (user, state_updated_at);
CREATE INDEX threads_by_status ON threads (user, status);
CREATE TABLE metadata (
    thread_id TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, user TEXT NOT NULL, PRIMARY KEY (thread_id, key)
) WITHOUT ROWID;
CREATE INDEX metadata_by_value ON metadata (user, key, value);
CREATE TABLE all_runs (
    run_id TEXT PRIMARY KEY, thread_id TEXT NOT NULL, user TEXT NOT NULL, assistant TEXT NOT NULL, model TEXT,
    status TEXT NOT NULL, seq INTEGER NOT NULL, created_at TEXT NOT NULL, started_at TEXT, ended_at TEXT, error TEXT,
    input INTEGER NOT NULL, removed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_thread ON all_runs (thread_id, seq);
CREATE INDEX runs_by_user ON all_runs (user, created_at);
CREATE INDEX open_runs ON all_runs (thread_id) WHERE status IN ('pending', 'running');
CREATE VIEW runs AS
    SELECT run_id, thread_id, user, assistant, model, status, seq, created_at, started_at, ended_at, error
    FROM all_runs WHERE NOT removed;
CREATE TABLE usage (
    run_id TEXT NOT NULL, model TEXT NOT NULL, caller TEXT NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL, calls INTEGER NOT NULL,
    PRIMARY KEY (run_id, model, caller)
) WITHOUT ROWID;
CREATE TABLE written (
    user TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, thread_id TEXT NOT NULL,
    PRIMARY KEY (user, key, value, thread_id)
) WITHOUT ROWID;
CREATE INDEX written_by_thread ON written (thread_id);
CREATE TABLE messages (id INTEGER PRIMARY KEY, thread_id TEXT NOT NULL, message TEXT NOT NULL, run TEXT);
CREATE INDEX messages_by_thread ON messages (thread_id, message);
CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = 'unicode61 remove_diacritics 2');
"""
"""`written`: every value that was ever written to a thread's state, by field; those of its head are among them.
`messages`: every version of every message, in the order of the log; `texts` has the words of those that people read.
The version that counts is the newest; a message that was removed has a newest version without words.
"""

TOUCH = """
UPDATE threads SET updated_at = ?2, seq = ?3, paused = iif(?4, ?5, paused),
    state_updated_at = max(state_updated_at, ?6),
    status = CASE
        WHEN EXISTS (SELECT 1 FROM all_runs WHERE thread_id = ?1 AND status IN ('pending', 'running')) THEN 'busy'
        WHEN iif(?4, ?5, paused) IS NOT NULL THEN 'interrupted'
        ELSE coalesce((SELECT CASE WHEN status IN ('error', 'interrupted') THEN status END
                       FROM all_runs WHERE thread_id = ?1 ORDER BY seq DESC LIMIT 1), 'idle') END
WHERE thread_id = ?1
"""
"""The thread's status as `core.state.ThreadState.status` has it."""
BEGAN = """
UPDATE threads SET state_updated_at = max(state_updated_at, ?1)
WHERE thread_id = ?2 AND EXISTS (SELECT 1 FROM all_runs WHERE run_id = ?3 AND input)
"""
REQUESTED = """
INSERT OR IGNORE INTO all_runs
SELECT ?2, thread_id, user, ?3, NULL, 'pending', ?4, ?5, NULL, NULL, NULL, ?6, 0 FROM threads WHERE thread_id = ?1
"""
KNOWN = """
INSERT OR IGNORE INTO metadata SELECT thread_id, ?2, ?3, user FROM threads WHERE thread_id = ?1
AND NOT EXISTS (SELECT 1 FROM all_runs WHERE thread_id = ?1 AND seq < ?4)
"""
STARTED = """
UPDATE all_runs SET status = 'running', started_at = coalesce(started_at, ?2), model = coalesce(?3, model)
WHERE run_id = ?1
"""
USED = """
INSERT INTO usage SELECT ?1, coalesce(?2, (SELECT model FROM all_runs WHERE run_id = ?1), 'unknown'), ?3, ?4, ?5, ?6, ?7
WHERE true ON CONFLICT DO UPDATE SET input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens,
    cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, calls = calls + excluded.calls
"""
_UNDONE = """
SELECT id FROM messages WHERE thread_id = ?1 AND run = ?2
AND (?3 OR NOT EXISTS (SELECT 1 FROM all_runs WHERE run_id = ?2 AND started_at IS NOT NULL))
"""
"""What a run said that was rolled back, or what was to be said to one that never began."""
NEWEST = f"""
NOT EXISTS (SELECT 1 FROM messages n WHERE n.thread_id = m.thread_id AND n.id > m.id
    AND n.message IN (m.message, CASE m.message WHEN '' THEN '' ELSE '{REMOVE_ALL}' END))
"""
FOUND = f"SELECT m.thread_id FROM texts JOIN messages m ON m.id = texts.rowid WHERE texts MATCH ? AND {NEWEST}"
SNIPPETS = f"""
SELECT m.thread_id, m.message, snippet(texts, 0, '', '', '…', 24) FROM texts JOIN messages m ON m.id = texts.rowid
WHERE texts MATCH ? AND m.thread_id IN ({{ids}}) AND {NEWEST} ORDER BY m.id DESC LIMIT ?
"""
RESET = (
    "DELETE FROM texts WHERE rowid IN (SELECT id FROM messages WHERE thread_id = ?)",
    "DELETE FROM messages WHERE thread_id = ?",
    "DELETE FROM written WHERE thread_id = ?",
    "DELETE FROM usage WHERE run_id IN (SELECT run_id FROM all_runs WHERE thread_id = ?)",
    "DELETE FROM all_runs WHERE thread_id = ?",
    "DELETE FROM metadata WHERE thread_id = ?",
    "DELETE FROM threads WHERE thread_id = ?",
)

ENDED: Mapping[type, str] = {
    RunCompleted: "success",
    RunPaused: "success",
    RunFailed: "error",
    RunCancelled: "interrupted",
    RunRolledBack: "rolled_back",
}
CALLERS: Mapping[str, str] = {"lead": "lead_agent"}
"""Who asks models, as DeerFlow calls them; anybody else by the name of the actor."""
TITLE = ""
"""The title counts as a message with this id."""
MOST_CHARACTERS = 100_000
"""Of a message's text that are searched."""
MOST_VALUE = 200
"""Characters of a value that are compared before the state itself is."""
MOST_WORDS = 32
"""Of a full-text query; more are not looked at."""

SEPARATOR = "\u200b"
"""Zero-width space. Ends a word for SQLite, and is not seen where a text is shown."""
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff])"
)
"""Scripts that put no spaces between words, or too few: every character of theirs is a word."""


def as_text(value: Any) -> str:
    """A metadata value as it is stored and compared: equal values are equal texts; `false`, `0` and `null` differ."""
    return msgspec.json.encode(value, order="sorted").decode()


def separated(text: str) -> str:
    """The text with the words set apart that SQLite would not find."""
    return text if text.isascii() else _UNSPACED.sub(rf"{SEPARATOR}\1{SEPARATOR}", text)


def match(query: str) -> str:
    """The words of a query as an FTS5 expression: all must be there, the last one at least as a beginning. "" if it
    has no words.
    """
    words = [word for word in query.replace("\0", " ").split() if any(map(str.isalnum, word))][:MOST_WORDS]
    terms = ['"{}"'.format(separated(word).replace('"', '""')) for word in words]
    return " ".join(terms) + ("*" if terms and not query[-1:].isspace() else "")


def where(
    user: str,
    metadata: Mapping[str, Any],
    status: str | None,
    ids: Sequence[str] | None,
    values: Mapping[str, Any],
    query: str | None,
) -> tuple[str, tuple[Any, ...]]:
    """The condition of a search on `threads t`, and its values. What `values` find are candidates."""
    clauses = ["user = ?"]
    given: list[Any] = [user]
    for key, wanted in metadata.items():
        clauses.append("thread_id IN (SELECT thread_id FROM metadata WHERE user = ? AND key = ? AND value = ?)")
        given += [user, key, as_text(wanted)]
    for key, wanted in values.items():
        clauses.append("thread_id IN (SELECT thread_id FROM written WHERE user = ? AND key = ? AND value = ?)")
        given += [user, key, _comparable(wanted)]
    if status is not None:
        clauses.append("status = ?")
        given.append(status)
    if ids is not None:
        clauses.append(f"thread_id IN ({', '.join('?' * len(ids))})")
        given += ids
    if query is not None:
        words = match(query)
        clauses.append(f"thread_id IN ({FOUND})" if words else "false")
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
    created: tuple[str, str] | None = None
    """Whose it is, and when it was made."""
    updated_at: str = ""
    wrote_at: str = ""
    seq: int = 0
    paused: tuple[str | None] | None = None
    """The run it is paused at, if that changed."""
    title: tuple[Any] | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    written: dict[tuple[str, str], None] = field(default_factory=dict)
    messages: list[tuple[int, str, str | None, str | None]] = field(default_factory=list)
    """Id, message, run, words."""
    requested: dict[str, tuple[str, int, str, bool]] = field(default_factory=dict)
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
        name, run = record.head.aggregate, record.run or ""
        if isinstance(event, ThreadErased | ThreadPruned):
            self._threads[name] = _Thread(reset=True)
        thread = self._threads.setdefault(name, _Thread())
        thread.updated_at, thread.seq = record.at, record.seq
        match event:
            case ThreadCreated():
                thread.created = event.user, record.at
                thread.metadata |= _texts(event.metadata)
            case ThreadAnnotated():
                thread.metadata |= _texts(event.metadata)
            case ThreadPruned():
                thread.created = event.user, event.created_at
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
            case RunRequested():
                thread.requested.setdefault(run, (event.assistant, record.seq, record.at, bool(event.input)))
                if event.input:
                    _write(thread, record, event.input, later=True)
            case RunStarted():
                thread.began.setdefault(run, record.at)
                thread.models[run] = event.model or thread.models.get(run)
                if event.attempt == 1:
                    thread.paused = (None,)
            case RunCompleted() | RunPaused() | RunFailed() | RunCancelled() | RunRolledBack():
                why = f"{event.error}: {event.text}" if isinstance(event, RunFailed) else None
                thread.ended[run] = ENDED[type(event)], record.at, why
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
            "INSERT OR REPLACE INTO threads VALUES (?1, ?2, 'idle', NULL, NULL, ?3, ?3, ?3, 0)",
            [(name, *thread.created) for name, thread in threads.items() if thread.created],
        )
        yield (
            "INSERT OR REPLACE INTO metadata SELECT thread_id, ?2, ?3, user FROM threads WHERE thread_id = ?1",
            [(name, key, value) for name, thread in threads.items() for key, value in thread.metadata.items()],
        )
        yield (
            "UPDATE threads SET title = ?2 WHERE thread_id = ?1",
            [(name, *thread.title) for name, thread in threads.items() if thread.title],
        )
        yield (
            "INSERT OR IGNORE INTO written SELECT user, ?2, ?3, thread_id FROM threads WHERE thread_id = ?1",
            [(name, key, value) for name, thread in threads.items() for key, value in thread.written],
        )
        yield from self._of_runs()
        yield from self._of_messages()
        yield BEGAN, [(at, name, run) for name, thread in threads.items() for run, at in thread.began.items()]
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
                for assistant, seq, *_ in list(thread.requested.values())[:1]
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
        rows = [(name, row) for name, thread in self._threads.items() for row in thread.messages]
        yield "INSERT INTO messages VALUES (?, ?, ?, ?)", [(row[0], name, row[1], row[2]) for name, row in rows]
        yield "INSERT INTO texts (rowid, text) VALUES (?, ?)", [(row[0], row[3]) for _, row in rows if row[3]]
        undone = [
            (name, run, status == "rolled_back")
            for name, thread in self._threads.items()
            for run, (status, *_) in thread.ended.items()
            if status != "success"
        ]
        yield f"DELETE FROM texts WHERE rowid IN ({_UNDONE})", undone
        yield f"DELETE FROM messages WHERE id IN ({_UNDONE})", undone


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
        thread.messages.append((record.seq << 20 | place, message, record.run, words))


def _said(patches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str | None]]:
    """Id and words of each message in patches, as far as people read it; no words if it is removed."""
    for patch in patches:
        if isinstance(patch.get("title"), str):
            yield TITLE, separated(patch["title"][:MOST_CHARACTERS])
        given = patch.get("messages")
        for message in given if isinstance(given, list) else ():
            if isinstance(message, dict) and message.get("type") in ("human", "ai", "remove"):
                yield str(message.get("id")), _words(message)


def _words(message: Message) -> str | None:
    text = "" if message["type"] == "remove" else text_of(message.get("content", ""))[:MOST_CHARACTERS]
    return separated(text) if text.strip() else None
