"""The tables of the read models, their indexes, and the triggers that keep sums and copies of columns in step.

A question must cost what it returns, not what lies there: every order has an index of its own, and numbers that are
shown for everything are kept as sums. Triggers keep the sums, so that no statement can forget them.
"""

from __future__ import annotations

EVERYBODY = ""
"""Stands for all users in the sums."""

_THREADS = """
CREATE TABLE position (version INTEGER NOT NULL, log TEXT NOT NULL, seq INTEGER NOT NULL);
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, thread_id TEXT NOT NULL UNIQUE, user TEXT NOT NULL, status TEXT NOT NULL, title TEXT,
    paused TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, state_updated_at TEXT NOT NULL,
    seq INTEGER NOT NULL, pinned INTEGER NOT NULL, asks INTEGER NOT NULL
);
CREATE INDEX threads_by_id ON threads (user, thread_id);
CREATE INDEX threads_by_creation ON threads (user, created_at, thread_id);
CREATE INDEX threads_by_update ON threads (user, updated_at, thread_id);
CREATE INDEX threads_by_state ON threads (user, state_updated_at, thread_id);
CREATE INDEX threads_by_status ON threads (user, status, thread_id);
CREATE INDEX threads_by_status_and_update ON threads (user, status, updated_at, thread_id);
CREATE INDEX threads_by_pin ON threads (user, pinned, updated_at, thread_id);
CREATE INDEX threads_waiting ON threads (user, updated_at, thread_id) WHERE paused IS NOT NULL OR asks;
CREATE TABLE metadata (
    thread INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, shown INTEGER NOT NULL, user TEXT NOT NULL,
    updated_at TEXT NOT NULL, PRIMARY KEY (thread, key)
) WITHOUT ROWID;
CREATE INDEX metadata_by_value ON metadata (user, key, value, updated_at);
CREATE TABLE thread_counts (
    user TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, status TEXT NOT NULL, threads INTEGER NOT NULL,
    PRIMARY KEY (user, key, value, status)
) WITHOUT ROWID;
"""
"""Threads are named by the sequence of the event that made them, where only rows see it. `pinned`: its metadata say
`"pinned": true`. `asks`: its last run ended with a question to the person.
`metadata`: with the thread's user and time of change, so that threads with a value are found in that order; not `shown`
is what a thread counts as until its metadata say it. `thread_counts`: threads by metadata value and status; key and
value "": all of them.
"""

_RUNS = """
CREATE TABLE all_runs (
    seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, thread INTEGER NOT NULL, user TEXT NOT NULL,
    assistant TEXT NOT NULL, model TEXT, status TEXT NOT NULL, created_at TEXT NOT NULL, started_at TEXT, ended_at TEXT,
    error TEXT, input INTEGER NOT NULL, removed INTEGER NOT NULL, stopped INTEGER NOT NULL
);
CREATE INDEX runs_by_thread ON all_runs (thread);
CREATE INDEX runs_by_creation ON all_runs (created_at);
CREATE INDEX runs_by_user ON all_runs (user, created_at);
CREATE INDEX runs_by_status ON all_runs (status, created_at);
CREATE INDEX runs_by_user_and_status ON all_runs (user, status, created_at);
CREATE INDEX open_runs ON all_runs (thread) WHERE status IN ('pending', 'running');
CREATE VIEW runs AS
    SELECT run_id, thread_id, r.user, assistant, model, r.status, r.seq, r.created_at, started_at, ended_at, error
    FROM all_runs r JOIN threads t ON t.id = r.thread WHERE NOT removed;
CREATE TABLE run_counts (
    user TEXT NOT NULL, day TEXT NOT NULL, status TEXT NOT NULL, runs INTEGER NOT NULL, PRIMARY KEY (user, day, status)
) WITHOUT ROWID;
CREATE TABLE used (
    run INTEGER NOT NULL, model TEXT NOT NULL, caller TEXT NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL, calls INTEGER NOT NULL,
    PRIMARY KEY (run, model, caller)
) WITHOUT ROWID;
CREATE VIEW usage AS
    SELECT run_id, u.model, caller, input_tokens, output_tokens, cache_read_tokens, calls
    FROM used u JOIN all_runs r ON r.seq = u.run;
CREATE TABLE usage_sums (
    user TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL, assistant TEXT NOT NULL, runs INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL,
    calls INTEGER NOT NULL, PRIMARY KEY (user, day, model, assistant)
) WITHOUT ROWID;
CREATE INDEX usage_by_day ON usage_sums (day);
"""
"""Runs are named by the sequence of the event that asked for them. `run_counts`, `usage_sums`: of runs that were not
removed, by the day (UTC) they were asked for.
"""

_CALLS = """
CREATE TABLE calls (
    seq INTEGER PRIMARY KEY, thread INTEGER NOT NULL, run INTEGER, at TEXT NOT NULL, kind TEXT NOT NULL,
    name TEXT NOT NULL, ms INTEGER NOT NULL, failed INTEGER NOT NULL
);
CREATE INDEX calls_by_thread ON calls (thread);
"""
"""How long each call of a tool or a model took (`kind`), by the event of its end."""

_CHANGES = """
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY, at TEXT NOT NULL, type TEXT NOT NULL, actor TEXT NOT NULL, text TEXT NOT NULL
);
"""
"""What was configured: facts of the installation, in words and without secrets."""

_FAILURES = """
CREATE TABLE model_failures (
    model TEXT PRIMARY KEY, seq INTEGER NOT NULL, at TEXT NOT NULL, reason TEXT NOT NULL, text TEXT NOT NULL,
    thread_id TEXT NOT NULL
) WITHOUT ROWID;
"""
"""The last failure of each model that has not answered since, by its configured name. `thread_id`: whose it is, as its
text may quote the conversation.
"""

_TEXTS = """
CREATE TABLE written (
    user TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, thread INTEGER NOT NULL,
    PRIMARY KEY (user, key, value, thread)
) WITHOUT ROWID;
CREATE INDEX written_by_thread ON written (thread);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, thread INTEGER NOT NULL, key INTEGER NOT NULL, message TEXT NOT NULL, run INTEGER, text TEXT
);
CREATE INDEX messages_by_thread ON messages (thread, key);
CREATE VIEW owned_texts AS
    SELECT m.id, m.text, hex(t.user) AS owner FROM messages m JOIN threads t ON t.id = m.thread WHERE text IS NOT NULL;
CREATE VIRTUAL TABLE texts USING fts5(
    text, owner, content = owned_texts, content_rowid = id, columnsize = 0,
    tokenize = 'unicode61 remove_diacritics 2'
);
"""
"""`written`: every value that was ever written to a thread's state, by field; those of its head are among them.
`messages`: every version of every message that people read, in the order of the log; `texts` finds their words, and
those of one user by the word `owner`. The version that counts is the newest; a message that was removed has a newest
version without text.
"""

_EACH = "(SELECT 0 AS everybody UNION ALL SELECT 1)"
"""Sums are kept for the user and for everybody."""


def _thread_counted(rows: str) -> str:
    """Adds to the counts of threads: user, key, value, status, and how many more there are."""
    return f"INSERT INTO thread_counts {rows} ON CONFLICT DO UPDATE SET threads = threads + excluded.threads;"


def _of_all(row: str, more: int) -> str:
    """A row of `threads` among all of them."""
    return _thread_counted(
        f"SELECT iif(everybody, '', {row}.user), '', '', {row}.status, {more} FROM {_EACH} WHERE true"
    )


def _of_values(row: str, more: int) -> str:
    """A row of `threads` among those with each of its metadata values."""
    return _thread_counted(f"SELECT user, key, value, {row}.status, {more} FROM metadata WHERE thread = {row}.id")


def _of_value(row: str, more: int) -> str:
    """The thread of a row of `metadata` among those with that value."""
    return _thread_counted(
        f"SELECT {row}.user, {row}.key, {row}.value, status, {more} FROM threads WHERE id = {row}.thread"
    )


def _of_runs(row: str, more: int) -> str:
    """A row of `all_runs` among those of its day."""
    return f"""
    INSERT INTO run_counts
        SELECT iif(everybody, '', {row}.user), substr({row}.created_at, 1, 10), {row}.status, {more} FROM {_EACH}
        WHERE NOT {row}.removed ON CONFLICT DO UPDATE SET runs = runs + excluded.runs;
    """


_THREAD_SUMS = f"""
CREATE TRIGGER thread_added AFTER INSERT ON threads BEGIN {_of_all("new", 1)} END;
CREATE TRIGGER thread_touched AFTER UPDATE OF updated_at ON threads WHEN new.updated_at != old.updated_at BEGIN
    UPDATE metadata SET updated_at = new.updated_at WHERE thread = new.id;
END;
CREATE TRIGGER thread_changed AFTER UPDATE OF status ON threads WHEN new.status != old.status BEGIN
    {_of_all("old", -1)} {_of_all("new", 1)} {_of_values("old", -1)} {_of_values("new", 1)}
END;
CREATE TRIGGER thread_removed AFTER DELETE ON threads BEGIN {_of_all("old", -1)} END;
CREATE TRIGGER metadata_added AFTER INSERT ON metadata BEGIN {_of_value("new", 1)} END;
CREATE TRIGGER metadata_changed AFTER UPDATE OF value ON metadata WHEN new.value != old.value BEGIN
    {_of_value("old", -1)} {_of_value("new", 1)}
END;
CREATE TRIGGER metadata_removed AFTER DELETE ON metadata BEGIN {_of_value("old", -1)} END;
CREATE TRIGGER thread_count_zero AFTER UPDATE OF threads ON thread_counts WHEN new.threads = 0 BEGIN
    DELETE FROM thread_counts
        WHERE user = new.user AND key = new.key AND value = new.value AND status = new.status;
END;
"""

_ADDED = """
ON CONFLICT DO UPDATE SET runs = runs + excluded.runs, input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens,
    cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, calls = calls + excluded.calls
"""


def _summed(row: str, runs: str, sign: str = "", less: str = "") -> str:
    """Adds a row of `used` to the sums, without what it was before."""
    columns = ("input_tokens", "output_tokens", "cache_read_tokens", "calls")
    sums = ", ".join(f"{sign}{row}.{column}{less and f' - {less}.{column}'}" for column in columns)
    return f"""
    INSERT INTO usage_sums
        SELECT iif(everybody, '', r.user), substr(r.created_at, 1, 10), {row}.model, r.assistant, {runs}, {sums}
        FROM all_runs r, {_EACH} WHERE r.seq = {row}.run AND NOT r.removed {_ADDED};
    """


_RUN_SUMS = f"""
CREATE TRIGGER run_added AFTER INSERT ON all_runs BEGIN {_of_runs("new", 1)} END;
CREATE TRIGGER run_changed AFTER UPDATE OF status, removed ON all_runs
WHEN new.status != old.status OR new.removed != old.removed BEGIN {_of_runs("old", -1)} {_of_runs("new", 1)} END;
CREATE TRIGGER run_hidden BEFORE UPDATE OF removed ON all_runs WHEN new.removed AND NOT old.removed BEGIN
    INSERT INTO usage_sums
        SELECT iif(everybody, '', old.user), substr(old.created_at, 1, 10), model, old.assistant, -1,
            -sum(input_tokens), -sum(output_tokens), -sum(cache_read_tokens), -sum(calls)
        FROM used, {_EACH} WHERE run = old.seq GROUP BY 1, 2, 3 {_ADDED};
END;
CREATE TRIGGER run_deleted AFTER DELETE ON all_runs BEGIN {_of_runs("old", -1)} END;
CREATE TRIGGER run_count_zero AFTER UPDATE OF runs ON run_counts WHEN new.runs = 0 BEGIN
    DELETE FROM run_counts WHERE user = new.user AND day = new.day AND status = new.status;
END;
CREATE TRIGGER usage_added AFTER INSERT ON used BEGIN
    {_summed("new", "(SELECT count(*) = 1 FROM used WHERE run = new.run AND model = new.model)")}
END;
CREATE TRIGGER usage_changed AFTER UPDATE ON used BEGIN {_summed("new", "0", less="old")} END;
CREATE TRIGGER usage_removed AFTER DELETE ON used BEGIN
    {_summed("old", "-(SELECT count(*) = 0 FROM used WHERE run = old.run AND model = old.model)", sign="-")}
END;
CREATE TRIGGER usage_sum_zero AFTER UPDATE OF runs ON usage_sums WHEN new.runs = 0 BEGIN
    DELETE FROM usage_sums
        WHERE user = new.user AND day = new.day AND model = new.model AND assistant = new.assistant;
END;
"""

SCHEMA = _THREADS + _RUNS + _CALLS + _CHANGES + _FAILURES + _TEXTS + _THREAD_SUMS + _RUN_SUMS
