"""The rows of the read models: what an event does to them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from core.errors import Invalid
from core.events import (
    ContextCompacted,
    Event,
    GoalEvaluated,
    Json,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    QuestionsSuggested,
    Record,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRequested,
    RunStarted,
    StatePatched,
    SubagentCompleted,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadForked,
    ThreadPruned,
    ThreadTitled,
    ToolCompleted,
)
from core.lifecycle import ENDS
from core.policy import stop_of
from core.thread.runs import known_by
from core.thread.usage import ANSWERED_BY, Tokens, tokens_of
from core.thread.values import CLARIFICATION, REMOVE_ALL
from core.user.assistants import DEFAULT
from core.views import configured, fulltext

log = structlog.get_logger("sika.projections")

VERSION = 13

THREAD = "(SELECT id FROM threads WHERE thread_id = ?1)"
TOUCH = """
UPDATE threads SET updated_at = ?2, seq = ?3, paused = iif(?4, ?5, paused),
    state_updated_at = max(state_updated_at, ?6), asks = coalesce(?7, asks), pinned = coalesce(?8, pinned),
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
SELECT ?3, ?2, id, user, ?4, NULL, 'pending', ?5, NULL, NULL, NULL, ?6, 0, 0 FROM threads WHERE thread_id = ?1
"""
CREATED = "INSERT OR IGNORE INTO threads VALUES (?2, ?1, ?3, 'idle', NULL, NULL, ?4, ?5, ?4, 0, 0, 0)"
TITLED = "UPDATE threads SET title = ?2 WHERE thread_id = ?1"
WRITTEN = "INSERT OR IGNORE INTO written SELECT user, ?2, ?3, id FROM threads WHERE thread_id = ?1"
ANNOTATED = """
INSERT INTO metadata SELECT id, ?2, ?3, 1, user, updated_at FROM threads WHERE thread_id = ?1
ON CONFLICT DO UPDATE SET value = excluded.value, shown = 1
"""
UNANNOTATED = f"DELETE FROM metadata WHERE thread = {THREAD} AND key = ?2 AND key NOT IN ('graph_id', 'assistant_id')"
"""The assistant stays: a thread is found by it in any case."""
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
ENDED = "UPDATE all_runs SET status = ?2, ended_at = ?3, error = ?4 WHERE run_id = ?1"
STOPPED = "UPDATE all_runs SET stopped = 1 WHERE run_id = ?"
REMOVED = "UPDATE all_runs SET removed = 1 WHERE run_id = ?"
USED = """
INSERT INTO used SELECT seq, coalesce(?2, model, 'unknown'), ?3, ?4, ?5, ?6, ?7 FROM all_runs WHERE run_id = ?1
ON CONFLICT DO UPDATE SET input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens,
    cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, calls = calls + excluded.calls
"""
CALLED = """
INSERT OR IGNORE INTO calls
SELECT ?2, id, (SELECT seq FROM all_runs WHERE run_id = ?3), ?4, ?5,
    coalesce(?6, (SELECT model FROM all_runs WHERE run_id = ?3), 'unknown'), ?7, ?8
FROM threads WHERE thread_id = ?1
"""
CHANGED = "INSERT OR IGNORE INTO changes VALUES (?, ?, ?, ?, ?)"
FAILED = """
INSERT INTO model_failures
SELECT coalesce(?1, r.model), ?2, ?3, ?4, ?5, ?6 FROM all_runs r WHERE run_id = ?7 AND coalesce(?1, r.model) NOT NULL
ON CONFLICT DO UPDATE SET
    seq = excluded.seq, at = excluded.at, reason = excluded.reason, text = excluded.text, thread_id = excluded.thread_id
    WHERE excluded.seq > seq
"""
ANSWERED = """
DELETE FROM model_failures
WHERE model = coalesce(?1, (SELECT model FROM all_runs WHERE run_id = ?2)) AND seq < ?3
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
"""The messages of a run that was rolled back, or the input of one that never began."""
UNINDEXED, UNSAID = FORGOTTEN + _UNDONE, f"DELETE FROM messages WHERE {_UNDONE}"
RESET = (
    "DELETE FROM model_failures WHERE thread_id = ?1",
    f"{FORGOTTEN} thread = {THREAD}",
    f"DELETE FROM messages WHERE thread = {THREAD}",
    f"DELETE FROM written WHERE thread = {THREAD}",
    f"DELETE FROM calls WHERE thread = {THREAD}",
    f"DELETE FROM used WHERE run IN (SELECT seq FROM all_runs WHERE thread = {THREAD})",
    f"DELETE FROM all_runs WHERE thread = {THREAD}",
    f"DELETE FROM metadata WHERE thread = {THREAD}",
    "DELETE FROM threads WHERE thread_id = ?1",
)
ORDER = (
    *RESET,
    *(CREATED, UNANNOTATED, ANNOTATED, IMPLIED, TITLED, WRITTEN),
    *(REQUESTED, KNOWN, USED, STARTED, CALLED, STOPPED, FAILED, ANSWERED, ENDED, REMOVED),
    *(SAID, INDEXED, UNINDEXED, UNSAID),
    *(BEGAN, TOUCH),
)
"""The statements of a batch, each for all its rows at once."""

SUMMARIES = "summaries"
"""Caller of the models that write summaries. Every other caller has the name of its actor."""
TITLE = ""
"""The title counts as a message with this id."""
PINNED = "pinned"
"""The key of a thread's metadata that lists can be sorted by."""
NOT_OF_THE_MODEL = frozenset({"context", "circuit_open", "time"})
"""Reasons of failed calls that say nothing about the model: of a conversation, of the failures before, of a run."""
MOST_NAME = 100
"""Characters of the name of a tool: models invent names."""
MOST_VALUE = 200
"""Characters of a value that are compared before the state itself is."""


def as_text(value: Any) -> str:
    """A metadata value as it is stored and compared: equal values are equal texts; `false`, `0` and `null` differ."""
    return msgspec.json.encode(value, order="sorted").decode()


def comparable(value: Any) -> str:
    """Returns the stored form of a value: enough to find it, and for lists and objects only that there is one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if isinstance(value, list | dict) else as_text(value)[:MOST_VALUE]


@dataclass(slots=True)
class _Thread:
    """The changes of a batch to one thread, since it was reset if it was."""

    name: str
    rows: dict[str, dict[Hashable, tuple[Any, ...]]] = field(default_factory=dict)
    """Values by statement, and by the key of the row that they change: the last ones count."""
    created: tuple[int, str, str] | None = None
    """Its id, whose it is, and when it was made."""
    updated_at: str = ""
    wrote_at: str = ""
    seq: int = 0
    paused: tuple[str | None] | None = None
    """The run it is paused at, if that changed."""
    asks: bool | None = None
    pinned: bool | None = None
    """Whether a question to the person is open, and whether it is pinned, if that changed."""
    models: dict[str, str | None] = field(default_factory=dict)
    """By run."""

    def put(self, sql: str, key: Hashable, *values: Any) -> None:
        """Adds values of which the last ones for a key count."""
        self.rows.setdefault(sql, {})[key] = values

    def put_first(self, sql: str, key: Hashable, *values: Any) -> None:
        """Adds values of which the first ones for a key count."""
        self.rows.setdefault(sql, {}).setdefault(key, values)

    def create(self, seq: int, user: str, at: str, metadata: Json) -> None:
        self.created = seq, user, at
        self.annotate(metadata)
        for pair in _DEFAULT.items():
            self.put(IMPLIED, pair, self.name, *pair)

    def annotate(self, metadata: Json) -> None:
        for key, value in _texts(metadata).items():
            self.put(ANNOTATED, key, self.name, key, value)
            self.rows.get(UNANNOTATED, {}).pop(key, None)
        if PINNED in metadata:
            self.pinned = metadata[PINNED] is True

    def unannotate(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.put(UNANNOTATED, key, self.name, key)
            self.rows.get(ANNOTATED, {}).pop(key, None)
            if key == PINNED:
                self.pinned = False

    def request(self, record: Record, event: RunRequested) -> None:
        run = record.run or ""
        if REQUESTED not in self.rows:  # the thread's first, if no earlier batch had one
            for key, value in _texts(known_by(event.assistant)).items():
                self.put(KNOWN, key, self.name, key, value, record.seq)
        self.put_first(REQUESTED, run, self.name, run, record.seq, event.assistant, record.at, bool(event.input))
        if event.input:
            self.write(record, event.input, later=True)

    def start(self, record: Record, event: RunStarted) -> None:
        run = record.run or ""
        self.models[run] = event.model or self.models.get(run)
        self.put_first(BEGAN, run, self.name, record.at, run)
        self.put(STARTED, run, run, self.rows[BEGAN][run][1], self.models[run])
        if event.attempt == 1:
            self.paused, self.asks = (None,), False

    def end(self, record: Record, event: Event, status: str) -> None:
        run = record.run or ""
        error = event.text if isinstance(event, RunFailed) else None
        self.put(ENDED, run, run, status, record.at, error)
        if isinstance(event, RunPaused):
            self.paused = (run,)
        if status != "success":
            self.asks = False
            for sql in (UNINDEXED, UNSAID):
                self.put(sql, run, self.name, run, status == "rolled_back")

    def use(self, run: str, model: str | None, caller: str, message: Json) -> None:
        """Adds what a call of a model used."""
        key = run, model, caller
        _, _, _, *sums = self.rows.get(USED, {}).get(key, (*key, *Tokens()))
        self.put(USED, key, *key, *Tokens(*sums).plus(tokens_of(message)))

    def call_tool(self, record: Record, event: ToolCompleted) -> None:
        """Keeps how long a tool took, unless a crash hid it."""
        if not event.unknown:
            name, failed = str(event.message.get("name") or "unknown"), event.message.get("status") == "error"
            self._called(record, "tool", name[:MOST_NAME], event.duration_ms, failed)

    def call_model(self, record: Record, event: ModelCompleted) -> None:
        """Keeps how long a model took."""
        if event.duration_ms > 0:
            model = _answered_by(event.message) or self.models.get(record.run or "")
            self._called(record, "model", model, event.duration_ms, False)

    def _called(self, record: Record, kind: str, name: str | None, ms: float, failed: bool) -> None:
        self.put(
            CALLED,
            record.seq,
            self.name,
            record.seq,
            record.run,
            record.at,
            kind,
            name,
            round(ms),
            failed,
        )

    def fail(self, record: Record, event: ModelFailed) -> None:
        """Keeps a failed call of a model after which it was not asked again at once."""
        run, model = record.run or "", event.model or self.models.get(record.run or "")
        values = (model, record.seq, record.at, event.reason, event.public, self.name, run)
        self.put(FAILED, (model, run), *values)

    def answer(self, record: Record, message: Json) -> None:
        """Forgets the failures of a model that answered."""
        run = record.run or ""
        model = _answered_by(message) or self.models.get(run)
        self.put(ANSWERED, (model, run), model, run, record.seq)

    def write(self, record: Record, *patches: Mapping[str, Any], later: bool = False) -> None:
        """Adds what patches of the state write. `later`: they are applied when their run starts."""
        if not later:
            self.wrote_at = record.at
        for key, value in ((key, value) for patch in patches for key, value in patch.items() if key != "messages"):
            text = comparable(value)
            self.put(WRITTEN, (key, text), self.name, key, text)
            if key == "title":
                self.put(TITLED, key, self.name, value if isinstance(value, str) else None)
        for place, (message, words) in enumerate(_readable(patches)):
            identity = record.seq << 20 | place
            self.put(SAID, identity, self.name, identity, _key(message), message, record.run, words)
            if words:
                self.put(INDEXED, identity, identity)

    def close(self) -> None:
        """Says how the thread is at the end of the batch."""
        if self.created:
            self.put(CREATED, self.name, self.name, *self.created, self.updated_at)
        paused = (self.paused is not None, self.paused and self.paused[0])
        flags = (self.asks, self.pinned)
        self.put(TOUCH, self.name, self.name, self.updated_at, self.seq, *paused, self.wrote_at, *flags)


class Batch:
    """The changes of a sequence of events, by thread."""

    def __init__(self, failing: bool = False) -> None:
        self._threads: dict[str, _Thread] = {}
        self._changes: list[tuple[int, str, str, str, str]] = []
        self.failing = failing
        """Tells whether there may be rows of models that failed: else answers have none to remove."""
        self.forgets = False
        """Tells whether a thread was deleted or pruned."""

    def add(self, record: Record) -> None:
        if configured.is_change(record):
            self._changes.append((record.seq, record.at, record.type, *configured.words_of(record)))
        if record.head.kind != "thread":
            return
        try:
            event = record.event
        except Invalid as error:  # one event that cannot be read must not stop the others
            log.error("event skipped", id=record.id, error=str(error))
            return
        name, run = record.aggregate.id, record.run or ""
        if isinstance(event, ThreadErased | ThreadPruned):
            self._threads[name] = _Thread(name, {sql: {name: (name,)} for sql in RESET})
            self.forgets = True
        thread = self._threads.get(name) or self._threads.setdefault(name, _Thread(name))
        thread.updated_at, thread.seq = record.at, record.seq
        match event:
            case ThreadCreated():
                thread.create(record.seq, event.user, record.at, event.metadata)
            case ThreadAnnotated():
                thread.annotate(event.metadata)
                thread.unannotate(event.removed)
            case ThreadPruned():
                thread.create(record.seq, event.user, event.created_at, event.metadata)
                thread.write(record, event.values)
            case ThreadTitled():
                thread.write(record, {"title": event.title})
                if event.model is not None:
                    thread.use(run, event.model, record.head.actor, {"usage_metadata": event.usage})
            case GoalEvaluated() | QuestionsSuggested() if event.model is not None:
                thread.use(run, event.model, record.head.actor, {"usage_metadata": event.usage})
            case ThreadForked():
                thread.write(record, *event.patches)
            case StatePatched():
                thread.write(record, event.values)
            case MessageAdded():
                thread.write(record, {"messages": event.messages})
            case ToolCompleted():
                thread.write(record, event.update)
                thread.call_tool(record, event)
                if str(event.message.get("id")).startswith(CLARIFICATION):
                    thread.asks = True
            case ModelCompleted():
                thread.write(record, {"messages": [event.message]})
                thread.use(run, thread.models.get(run), record.head.actor, event.message)
                thread.call_model(record, event)
                if stop_of(event):
                    thread.put(STOPPED, run, run)
                if self.failing:
                    thread.answer(record, event.message)
            case ModelFailed() if not event.wait_ms and event.reason not in NOT_OF_THE_MODEL:
                self.failing = True
                thread.fail(record, event)
            case ModelSampled():
                thread.use(run, event.model, record.head.actor, {"usage_metadata": event.usage})
            case ContextCompacted():
                thread.write(record)
                thread.use(run, event.model, SUMMARIES, event.summary)
            case SubagentCompleted(usage=usage) if usage is not None:
                thread.use(run, event.model, record.head.actor, {"usage_metadata": usage})
            case RunRequested():
                thread.request(record, event)
            case RunStarted():
                thread.start(record, event)
            case Event() if end := ENDS.get(type(event)):
                thread.end(record, event, end.status)
            case RunRemoved():
                thread.put(REMOVED, run, run)

    def statements(self) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
        """The batch is complete: its statements, in `ORDER`, each with the values of all its rows."""
        for thread in self._threads.values():
            thread.close()
        yield CHANGED, self._changes
        for sql in ORDER:
            yield sql, [row for thread in self._threads.values() for row in thread.rows.get(sql, {}).values()]


def _answered_by(message: Json) -> str | None:
    """Returns the model that answered in place of the run's."""
    metadata = message.get("response_metadata")
    spare = metadata.get(ANSWERED_BY) if isinstance(metadata, dict) else None
    return spare if isinstance(spare, str) else None


def _texts(metadata: Json) -> dict[str, str]:
    return {key: as_text(value) for key, value in metadata.items()}


_DEFAULT = _texts(known_by(DEFAULT))
"""Metadata of a thread in searches while it names no assistant."""


def _readable(patches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str | None]]:
    """Id and words of each message in patches, as far as people read it; no words if it is removed."""
    for patch in patches:
        if isinstance(patch.get("title"), str):
            yield TITLE, fulltext.indexed(patch["title"])
        messages = patch.get("messages")
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, dict) and message.get("type") in ("human", "ai", "remove"):
                yield str(message.get("id")), fulltext.words_of(message)


def _key(message: str) -> int:
    """A message's id as a number, which takes a third of the room. 0: the title. 1: what removes all messages."""
    if message in (TITLE, REMOVE_ALL):
        return int(message == REMOVE_ALL)
    return int.from_bytes(hashlib.blake2b(message.encode(), digest_size=8).digest(), signed=True)
