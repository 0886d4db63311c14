"""Records without a log: for the pure parts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from core.events import Event, Json, Record, encode, written

AT = "2026-01-01T00:00:00.000000+00:00"


def record(seq: int, event: Event, run: str | None = None, cause: str | None = None) -> Record:
    """An event as it would be stored, and read back."""
    head = written(event, id=f"e{seq}", kind="thread", aggregate_id="t", actor="test", at=AT, run=run, cause=cause)
    return Record(seq, encode(event, head))


def opaque(seq: int, kind: str, run: str | None = None, **fields: object) -> Record:
    """An event of any type and any fields."""
    head: Json = {"id": f"e{seq}", "type": kind, "kind": "thread", "aggregate": "t", "actor": "test", "at": AT}
    return Record(seq, msgspec.json.encode({**head, **({"run": run} if run else {}), **fields}))


def log_of(*events: tuple[Event, str | None] | Event) -> list[Record]:
    """Records of events with their runs, numbered by tens: other aggregates lie between them."""
    pairs = [(event, None) if isinstance(event, Event) else event for event in events]
    return [record(10 * (n + 1), event, run) for n, (event, run) in enumerate(pairs)]


def human(identity: str, text: str = "?") -> Json:
    return {"type": "human", "id": identity, "content": text}


def ai(identity: str, text: str = "!", calls: Sequence[Json] = ()) -> Json:
    message: Json = {"type": "ai", "id": identity, "content": text}
    return {**message, "tool_calls": list(calls)} if calls else message


def call(identity: str, name: str = "bash", **args: object) -> Json:
    return {"name": name, "args": args, "id": identity, "type": "tool_call"}
