"""Exports: what goes in comes out, no planted secret does, and no changed byte goes unnoticed."""

from __future__ import annotations

import io
import random
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.config.redaction import Redactor
from core.errors import Invalid
from core.events import ENVELOPE, Aggregate, Record, ThreadCreated, thread
from core.replay.exports.archive import Archive
from core.replay.exports.exporting import Scope, lines
from core.replay.exports.format import FORMAT, Header, checked_lines
from core.replay.exports.redact import Redaction
from core.thread.fold import fold
from tests.property.test_fold import logs, same
from tests.support.laws import EXAMPLES
from tests.support.records import log_of

T = thread("t")
HEADER = Header(format=FORMAT, sika="1", thread="t")
SECRETS = [f"pl4nt3d/{secrets.token_hex(8)}+{number}" for number in range(5)]


class Records:
    """A reader of records that are in memory."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    async def stored(self, aggregate: Aggregate) -> AsyncIterator[Record]:
        for record in self._records:
            if record.aggregate == aggregate:
                yield record

    async def body_of(self, record: Record) -> bytes:
        return record.raw


def exported(records: Sequence[Record], redaction: Redaction | None = None) -> bytes:
    async def joined() -> bytes:
        return b"".join([line async for line in lines(Records(records), HEADER, Scope(redaction=redaction))])

    work = joined()
    try:
        work.send(None)  # nothing in it waits: an event loop for each example would take longer than the work
    except StopIteration as end:
        return bytes(end.value)
    raise AssertionError


def read_back(path: Path, content: bytes) -> Sequence[Record]:
    path.write_bytes(content)
    archive = Archive._open(path)
    try:
        return archive._read(T)
    finally:
        archive.close()


def planted(value: Any, draw: random.Random, but: frozenset[str] = frozenset()) -> Any:
    """The value with secrets in some of its texts, as they are and as JSON in a text; not under keys of `but`."""
    if isinstance(value, str):
        return value if draw.random() < 0.5 else f"{value} {msgspec.json.encode(draw.choice(SECRETS)).decode()}"
    if isinstance(value, dict):
        return {key: item if key in but else planted(item, draw, but) for key, item in value.items()}
    return [planted(item, draw, but) for item in value] if isinstance(value, list) else value


FREE = frozenset(("text", "content", "title", "metadata", "values", "update", "config", "context", "args", "input"))
"""Fields in which anything may stand; an event with a secret in another one would not fit its schema."""


def plant(record: Record, draw: random.Random, but: frozenset[str] = frozenset()) -> Record:
    def walk(value: Any, free: bool) -> Any:
        if free:
            value = {**value, "note": ""} if isinstance(value, dict) else value  # most are empty
            return planted(value, draw, but)
        if isinstance(value, dict):
            return {key: walk(item, key in FREE) for key, item in value.items()}
        return [walk(item, False) for item in value] if isinstance(value, list) else value

    fields = msgspec.json.decode(record.raw)
    fields = {key: value if key in ENVELOPE else walk(value, key in FREE) for key, value in fields.items()}
    if "user" in fields:
        fields["user"] = draw.choice(SECRETS)
    return Record(record.seq, msgspec.json.encode(fields))


SETTINGS = settings(
    max_examples=4 * EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SETTINGS
@given(logs(), st.randoms(use_true_random=False))
def test_an_export_folds_to_the_same_state_and_a_redacted_one_holds_no_secret(
    tmp_path: Path, log: list[Record], draw: random.Random
) -> None:
    if not log:
        return
    records = [plant(record, draw) for record in log]
    back = read_back(tmp_path / "t.jsonl", exported(records))
    assert [record.raw for record in back] == [record.raw for record in records]
    state = fold(records)
    assert same(fold(back), state)
    known = Redactor()
    known.add(*SECRETS)
    content = exported(records, Redaction(known))
    assert not [secret for secret in SECRETS if secret.encode() in content]
    assert known.data(content) is content, "in another form"
    redacted = fold(read_back(tmp_path / "t.jsonl", content))
    assert [run.status for run in redacted.runs.values()] == [run.status for run in state.runs.values()]
    ids = [[message.get("id") for message in one.messages] for one in (redacted, state)]
    assert [one.index(identity) for one in ids for identity in one] == [ids[1].index(one) for one in ids[1]] * 2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logs(), st.randoms(use_true_random=False))
def test_any_flipped_byte_is_refused_with_its_line(log: list[Record], draw: random.Random) -> None:
    content = exported(log) if log else b""
    for place in draw.sample(range(len(content)), min(20, len(content))):
        changed = content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
        line = content.count(b"\n", 0, place) + 1
        with pytest.raises(Invalid, match=rf"line {line}\b"):
            list(checked_lines("t.jsonl", io.BytesIO(changed)))


@pytest.mark.parametrize("cut", [1, 70, 200])
def test_a_file_that_was_cut_is_refused(cut: int) -> None:
    content = exported(log_of(ThreadCreated(user="ada")))
    with pytest.raises(Invalid, match="line"):
        list(checked_lines("t.jsonl", io.BytesIO(content[:-cut])))
    whole_lines = content[: content.rindex(b'{"line":"end"')]
    with pytest.raises(Invalid, match="cut off after line 2"):
        list(checked_lines("t.jsonl", io.BytesIO(whole_lines)))
