"""Overview of recorded threads: their users, times, runs, models, tokens and failures."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from core.errors import Unavailable
from core.events import (
    Event,
    ModelCompleted,
    Record,
    RunFailed,
    RunRequested,
    RunStarted,
    StatePatched,
    ThreadCreated,
    ThreadErased,
    ThreadPruned,
    ThreadTitled,
)
from core.lifecycle import ENDS
from core.log.kinds import KIND
from core.policy import stop_of
from core.replay.source import Source
from core.thread.messages import text_of
from core.thread.tokens import Tokens, tokens_of
from core.views.overview import newest_file
from core.views.rows import TITLE, VERSION

MOST = 100
"""Default limit of the threads that are listed."""


class Summary(msgspec.Struct, omit_defaults=True):
    """A thread at a glance. `status` is that of its last run; `text` is its title, else its first message."""

    thread: str
    user: str = ""
    status: str = "idle"
    text: str = ""
    created_at: str = ""
    updated_at: str = ""
    runs: int = 0
    models: list[str] = []
    input_tokens: int = 0
    output_tokens: int = 0
    failures: int = 0
    """Runs that failed."""
    stopped: int = 0
    """Runs that a policy stopped, or whose answer was refused."""
    titled: bool = False

    def add(self, record: Record) -> None:
        """Takes in the next event of the thread."""
        event, self.updated_at = record.event, record.at
        self.failures += isinstance(event, RunFailed)
        match event:
            case ThreadCreated(user=user):
                self.user, self.created_at, self.status = user, record.at, "idle"  # a deleted one may have had its id
            case ThreadPruned():
                self.user, self.created_at = event.user, event.created_at
                self._title(event.values.get("title"))
            case ThreadTitled(title=title):
                self._title(title)
            case StatePatched(values=values):
                self._title(values.get("title"))
            case ThreadErased():
                self.status, self.text = "erased", ""
            case RunRequested():
                self.runs += 1
                self.status = "pending"
                self._requested(event)
            case RunStarted(model=model):
                self.status = "running"
                self.models += [model] if model and model not in self.models else []
            case ModelCompleted(message=message):
                self.stopped += stop_of(event) is not None
                used = tokens_of(message)
                self.input_tokens, self.output_tokens = self.input_tokens + used.input, self.output_tokens + used.output
            case Event() if end := ENDS.get(type(event)):
                self.status = end.name

    def _title(self, title: object) -> None:
        if isinstance(title, str) and title:
            self.text, self.titled = title[:200], True

    def _requested(self, event: RunRequested) -> None:
        messages = (event.input or {}).get("messages") or ()
        if not self.text and messages:
            self.text = text_of(messages[-1].get("content", ""))[:200]


class Filter(NamedTuple):
    """Conditions on threads. Those that are empty are met by every thread."""

    user: str = ""
    status: str = ""
    since: str = ""
    """Changed at this time (ISO 8601 in UTC) or later."""
    text: str = ""
    """Occurs in the title or the first message."""
    model: str = ""
    errors: bool = False
    """It has a run that failed, or that a policy stopped."""

    def matches(self, summary: Summary) -> bool:
        """Tells whether a thread meets all conditions."""
        return (
            (not self.user or summary.user == self.user)
            and (not self.status or summary.status == self.status)
            and (not self.since or summary.updated_at >= self.since)
            and (not self.text or self.text.casefold() in summary.text.casefold())
            and (not self.model or self.model in summary.models)
            and (not self.errors or summary.failures + summary.stopped > 0)
        )


class Listing(NamedTuple):
    """The last changed threads that meet conditions, and the sums of all that do."""

    summaries: list[Summary]
    threads: int
    runs: int
    failures: int
    tokens: Tokens
    stopped: int


async def threads_of_file(source: Source, conditions: Filter = Filter(), limit: int = MOST) -> Listing:  # noqa: B008  a tuple
    """Returns the threads of a file that meet conditions, the last changed first. One pass over all events.

    Keeps a summary of each thread, and no events. For the log of a server use `listed_in_views`.
    """
    summaries: dict[str, Summary] = {}
    async for record in source.events():
        if record.head.kind == KIND:
            name = record.head.aggregate_id
            (summaries.get(name) or summaries.setdefault(name, Summary(name))).add(record)
    hits = [summary for summary in summaries.values() if conditions.matches(summary)]
    hits.sort(key=lambda summary: summary.updated_at, reverse=True)
    used = Tokens(sum(hit.input_tokens for hit in hits), sum(hit.output_tokens for hit in hits))
    runs, failures, stopped = (sum(getattr(hit, name) for hit in hits) for name in ("runs", "failures", "stopped"))
    return Listing(hits[:limit], len(hits), runs, failures, used, stopped)


# ── from read models ────────────────────────────────────────────────────────────────────────────────────────────────

_HITS = """
WITH listed AS (
    SELECT t.id, t.thread_id, t.user, t.created_at, t.updated_at, iif(t.paused IS NOT NULL, 'paused', coalesce((
        SELECT status FROM all_runs WHERE thread = t.id AND NOT removed ORDER BY seq DESC LIMIT 1
    ), 'idle')) AS status, coalesce(t.title, (
        SELECT m.text FROM messages m WHERE m.thread = t.id AND m.message != :title AND m.text IS NOT NULL
        ORDER BY m.id LIMIT 1
    ), '') AS text, t.title IS NOT NULL AS titled
    FROM threads t WHERE (:user = '' OR t.user = :user) AND t.updated_at >= :since
), hits AS (
    SELECT * FROM listed l WHERE (:status = '' OR status = :status)
    AND (:text = '' OR instr(casefold(text), casefold(:text)) > 0)
    AND (:model = '' OR EXISTS (SELECT 1 FROM all_runs WHERE thread = l.id AND model = :model AND NOT removed))
    AND (NOT :errors OR EXISTS (
        SELECT 1 FROM all_runs WHERE thread = l.id AND (status = 'error' OR stopped) AND NOT removed
    ))
)
"""
_PAGE = f"""{_HITS}
SELECT h.thread_id, h.user, h.status, substr(h.text, 1, 200), h.created_at, h.updated_at, (
    SELECT count(*) FROM all_runs WHERE thread = h.id AND NOT removed
), (
    SELECT json_group_array(DISTINCT model) FROM all_runs WHERE thread = h.id AND model IS NOT NULL AND NOT removed
), (
    SELECT coalesce(sum(u.input_tokens), 0) FROM all_runs r JOIN used u ON u.run = r.seq WHERE r.thread = h.id
), (
    SELECT coalesce(sum(u.output_tokens), 0) FROM all_runs r JOIN used u ON u.run = r.seq WHERE r.thread = h.id
), (
    SELECT count(*) FROM all_runs WHERE thread = h.id AND status = 'error' AND NOT removed
), (
    SELECT count(*) FROM all_runs WHERE thread = h.id AND stopped AND NOT removed
), h.titled
FROM (SELECT * FROM hits ORDER BY updated_at DESC, thread_id LIMIT :limit) h ORDER BY h.updated_at DESC, h.thread_id
"""
_SUMS = f"""{_HITS}
SELECT (SELECT count(*) FROM hits), count(*), coalesce(sum(r.status = 'error'), 0), coalesce(sum(r.stopped), 0),
coalesce(sum((
    SELECT sum(input_tokens) FROM used WHERE run = r.seq
)), 0), coalesce(sum((SELECT sum(output_tokens) FROM used WHERE run = r.seq)), 0)
FROM hits h JOIN all_runs r ON r.thread = h.id WHERE NOT r.removed
"""


def listed_in_views(home: Path, conditions: Filter = Filter(), limit: int = MOST) -> Listing | None:  # noqa: B008
    """Returns the threads of a data directory that meet conditions, from the read models of its server, whether that
    runs or not; None without read models of this version. Blocks. Raises `Unavailable`.
    """
    path = newest_file(home)
    if path is None:
        return None
    values = {**conditions._asdict(), "title": TITLE, "limit": limit}
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as views:
            if next(iter(views.execute("SELECT version FROM position")), None) != (VERSION,):
                return None
            views.create_function("casefold", 1, str.casefold, deterministic=True)
            summaries = [_summary(row) for row in views.execute(_PAGE, values)]
            [(threads, runs, failures, stopped, *tokens)] = views.execute(_SUMS, values).fetchall()
    except sqlite3.Error as error:
        raise Unavailable(f"{path.name}: {error}") from error
    return Listing(summaries, threads, runs, failures, Tokens(*tokens), stopped)


def _summary(row: tuple[Any, ...]) -> Summary:
    """Returns the summary of a row of `_PAGE`, whose columns are its fields."""
    summary = Summary(*row)
    summary.models, summary.titled = msgspec.json.decode(row[7]), bool(summary.titled)
    return summary
