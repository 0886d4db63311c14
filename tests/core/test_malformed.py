"""Messages in the log that are no events: each is set aside in one place and named, and dispatching goes on."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from core.actor import Actor, Context
from core.bus.connection import Bus
from core.bus.errors import PERMANENT, ApiRefused, ApiUnavailable, api_error, is_permanent
from core.config.load import ConfigSource
from core.errors import Invalid, Unavailable
from core.events import UNREADABLE, Aggregate, Event, ThreadAnnotated, ThreadCreated, catalogue
from core.ids import now, uuid7
from core.runtime import dispatch, readiness
from core.runtime import letters as dlq
from core.runtime.readiness import Readiness
from core.testing import Stage, acting
from tests.support.nats import append, eventually, fresh, read

pytestmark = pytest.mark.anyio
MALFORMED = 1000


class MarkSet(Event, frozen=True):
    """The answer of the actor."""


class Marks(Actor[ThreadAnnotated]):
    """Answers each annotation."""

    name = "marks"

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        await ctx.append(MarkSet())


def envelope(thread: str = "t1", **fields: Any) -> dict[str, Any]:
    return {
        "id": uuid7(),
        "type": "thread.annotated",
        "kind": "thread",
        "aggregate": thread,
        "actor": "other",
        "at": now(),
        "metadata": {},
        **fields,
    }


async def publish(bus: Bus, body: bytes, subject: str = "thread.t1", headers: dict[str, str] | None = None) -> int:
    """Stores a message as a client in another language does, without a guard."""
    return await bus.store(f"{bus.names.prefix}.log.{subject}", body, headers)


WRONG: dict[str, Any] = {
    "another aggregate": envelope("t2"),
    "another kind": envelope(kind="memory"),
    "an aggregate that is no token": envelope("a b"),
    "a wildcard": envelope(">"),
    "a path": envelope("../x"),
    "an id with a line": envelope(id="a\r\nNats-Msg-Id: b"),
    "no id": envelope(id=""),
    "a type with a space": envelope(type="a b"),
    "a long actor": envelope(actor="x" * 10_000),
    "a run that is a wildcard": envelope(run="*"),
    "a run that is a path": envelope(run="../../x"),
    "a cause with a line": envelope(cause="a\nb"),
    "a blob that is a wildcard": envelope(blob={"sha256": "*", "size": 1}),
    "a number as id": envelope(id=7),
    "no kind": {key: value for key, value in envelope().items() if key != "kind"},
    "a version that is no number": envelope(v="x"),
    "a list": [],
    "a text": "x",
    "null": None,
}
RAW = {
    "nothing": b"",
    "bytes": b"\xff\xfe\x00",
    "half": b'{"id": "x',
    "deep": b"[" * 100_000,
    "deep in a field": json.dumps(envelope())[:-1].encode() + b', "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "not UTF-8": json.dumps(envelope()).encode().replace(b"other", b"\xff\xff"),
}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with acting(Marks(), home=tmp_path) as stage:
        yield stage


async def goes_on(stage: Stage) -> None:
    """An event that follows is dispatched, and answered."""
    log, thread = stage.system.log, fresh()
    await append(log, thread, ThreadAnnotated(metadata={}))

    async def answered() -> bool:
        return any(isinstance(record.event, MarkSet) for record in await read(log, thread))

    await eventually(answered)


async def refused(stage: Stage, seq: int) -> bool:
    return f"message {seq} of the log is no event; `sika dlq list` says why" in stage.system.log.refused.shown()


async def test_what_is_no_event_is_set_aside_and_named(stage: Stage) -> None:
    """Each after the other: an event that follows is dispatched."""
    bus, ready = stage.system.bus, Readiness(stage.system, ConfigSource())
    ready.working = True
    bodies = {name: json.dumps(body).encode() for name, body in WRONG.items()} | RAW
    names = dict[int, str]()
    for name, body in bodies.items():
        names[seq := await publish(bus, body)] = name
        await goes_on(stage)
        assert await refused(stage, seq), name
        part = next(part for part in await ready.missing() if part.part == "events")
        assert part.part in readiness.DEGRADING
        assert "of the log is no event" in part.reason, name
    letters = {letter.aggregate.id: letter async for letter in dlq.letters(bus)}
    assert letters.keys() == set(map(str, names))
    assert all(letter.actor == "log" and letter.body.reason for letter in letters.values())
    assert await dlq.redrive(stage.system.log, stage.system.queue, by="ada", actor="cli") == []
    records = await read(stage.system.log, Aggregate("thread", "t1"))
    assert [record.seq for record in records] == list(names)
    for record in records:
        shown = msgspec.json.decode(record.raw)  # for readers that pass it on
        assert (shown["type"], shown["problem"]) == (UNREADABLE, letters[str(record.seq)].body.reason)
        assert bodies[names[record.seq]].startswith(base64.b64decode(shown["body"]))
    assert await read(stage.system.log, Aggregate("thread", "t2")) == []
    await append(stage.system.log, Aggregate("thread", "t1"), ThreadCreated(user="ada"), expected=records[-1].seq)


async def test_subjects_of_another_form(stage: Stage) -> None:
    for subject in ("thread", "thread.t1.more", "a.b.c.d"):
        seq = await publish(stage.system.bus, json.dumps(envelope()).encode(), subject)
        await goes_on(stage)
        assert await refused(stage, seq)


async def test_live_messages_that_the_log_has_not_sent(stage: Stage) -> None:
    bus, body = stage.system.bus, json.dumps(envelope()).encode()
    live = f"{bus.names.prefix}.live.thread.t1"
    for headers in (None, {"Nats-Sequence": "x"}, {"Nats-Sequence": str(10**18), "Nats-Subject": live}):
        await bus.publish(live, body, headers)
    await goes_on(stage)
    assert "a live message that the log has not sent" in stage.system.log.refused.shown()
    assert stage.system.log.position < 10**6
    assert await stage.system.log.unchanged_until(fresh(), stage.system.log.position) is not None


# ── by a generator ──────────────────────────────────────────────────────────────────────────────────────────────────

texts = st.text(max_size=20) | st.sampled_from(["", " ", "..", "*", ">", "a/b", "\r\n", "\x00", "é", "x" * 300])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
FIELDS = ("id", "type", "kind", "aggregate", "actor", "at", "v", "run", "cause", "blob", "metadata")


OURS = sorted(name for name, cls in catalogue().items() if cls.__module__ == "core.events")


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message of the log: bytes, any JSON, or an event with fields that are wrong, missing or of another type."""
    match draw(st.sampled_from(["bytes", "json", "fields", "fields", "fields", "known"])):
        case "bytes":
            return draw(st.binary(max_size=200))
        case "json":
            return json.dumps(draw(values)).encode()
        case "known":  # a type of ours, with fields of others
            body = envelope(type=draw(st.sampled_from(OURS)), **draw(st.dictionaries(texts, values)))  # type: ignore[arg-type]
            return json.dumps(body).encode()
        case _:
            changed = draw(st.dictionaries(st.sampled_from(FIELDS), values | st.just(...), min_size=1, max_size=3))
            body = {key: value for key, value in {**envelope(), **changed}.items() if value is not ...}
            return json.dumps(body).encode()


@pytest.mark.long
async def test_a_thousand_malformed_messages(stage: Stage) -> None:
    """Each is named or is an event; dispatching, views and folds go on."""
    drawn: list[bytes] = []

    @hypothesis_settings(
        max_examples=MALFORMED,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages())
    def draw(message: bytes) -> None:
        drawn.append(message)

    draw()
    assert len(drawn) >= MALFORMED
    system = stage.system
    threads = [f"t{number % 50}" for number in range(len(drawn))]
    seqs = [await publish(system.bus, body, f"thread.{name}") for name, body in zip(threads, drawn, strict=True)]
    published = set(seqs)
    await goes_on(stage)
    letters = {letter.aggregate.id async for letter in dlq.letters(system.bus)}
    placeholders = 0
    for name in sorted(set(threads)):
        records = await read(system.log, Aggregate("thread", name))
        stored = [record.seq for record in records if record.seq in published]  # beside the actor's answers
        assert stored == [s for s, t in zip(seqs, threads, strict=True) if t == name]
        for record in records:
            assert record.aggregate == Aggregate("thread", name)
            if record.type == UNREADABLE:
                placeholders += 1
                assert str(record.seq) in letters
        assert (await system.threads.load(name)).seq == records[-1].seq
    assert placeholders > MALFORMED / 4
    async with asyncio.timeout(60):
        await system.views.reached(await system.log.last())


# ── errors of NATS ──────────────────────────────────────────────────────────────────────────────────────────────────


def classes(base: type[BaseException]) -> list[type[BaseException]]:
    return [base, *(cls for child in base.__subclasses__() for cls in classes(child))]


LATER = {
    *("Error", "TimeoutError", "FlushTimeoutError", "DrainTimeoutError", "FetchTimeoutError", "NoRespondersError"),
    *("StaleConnectionError", "UnexpectedEOF", "OutboundBufferLimitError", "ConnectionClosedError", "NoServersError"),
    *("SecureConnRequiredError", "SecureConnWantedError", "SecureConnFailedError", "SlowConsumerError"),
    *("AuthorizationError", "ConnectionDrainingError", "ConnectionReconnectingError", "ProtocolError", "APIError"),
    *("ServerNotInPoolError", "ServiceUnavailableError", "ServerError", "NotFoundError", "NoStreamResponseError"),
    *("BucketNotFoundError", "KeyDeletedError", "KeyNotFoundError", "ObjectNotFoundError", "ObjectDeletedError"),
    *("KeyValueError", "NoKeysError", "TooManyStalledMsgsError", "ConsumerSequenceMismatchError", "ErrDrainTimeout"),
    *("DigestMismatchError", "ObjectAlreadyExists", "NatsError", "ErrTimeout", "ErrStaleConnection", "ErrNoServers"),
    *("ErrConnectionClosed", "ErrSecureConnRequired", "ErrSecureConnWanted", "ErrSecureConnFailed", "ErrProtocol"),
    *("ErrSlowConsumer", "ErrAuthorization", "ErrConnectionDraining", "ErrConnectionReconnecting"),
}
"""Errors of the client after which another attempt may succeed."""


def test_every_error_of_the_client_is_one_or_the_other() -> None:
    import nats.aio.errors
    import nats.js.errors

    for cls in set(classes(nats.errors.Error)):
        permanent = is_permanent(cls.__new__(cls))
        assert permanent == any(base.__name__ in PERMANENT for base in cls.__mro__)
        assert permanent != (cls.__name__ in LATER), f"{cls.__name__}: decide whether it is permanent"


@pytest.mark.parametrize(
    ("status", "number", "cls"),
    [
        (400, 10003, ApiRefused),
        (400, 10025, ApiRefused),
        (400, 10054, ApiRefused),
        (400, 10071, ApiUnavailable),
        (400, 10164, ApiUnavailable),
        (400, 10005, ApiUnavailable),
        (404, 10059, ApiUnavailable),
        (500, 10047, ApiUnavailable),
        (503, 10008, ApiUnavailable),
    ],
)
def test_errors_of_the_api(status: int, number: int, cls: type) -> None:
    error = api_error({"code": status, "err_code": number, "description": "x"})
    assert type(error) is cls
    assert isinstance(error, Invalid) != isinstance(error, Unavailable)
    assert error.err_code == number


async def test_a_subject_that_nats_refuses_is_invalid(stage: Stage) -> None:
    bus = stage.system.bus
    with pytest.raises(Invalid, match="invalid subject"):
        await bus.publish("a b", b"")
    with pytest.raises(Invalid):
        await bus.subscribe("a b", lambda _: asyncio.sleep(0))


async def test_a_wake_up_that_is_never_taken_does_not_hold_up_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: the dispatcher has no loop without an exit."""
    wake, thread = stage.system.queue.wake, fresh()

    async def refusing(actor: str, aggregate: Aggregate, *more: Any, **keys: Any) -> None:
        if aggregate == thread:
            raise Invalid("never")
        await wake(actor, aggregate, *more, **keys)

    monkeypatch.setattr(stage.system.queue, "wake", refusing)
    await append(stage.system.log, thread, ThreadAnnotated(metadata={}))
    await goes_on(stage)
    assert any("never take" in text for text in stage.system.log.refused.shown())


async def test_a_timer_that_nats_will_never_take_becomes_a_dead_letter(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, wake, thread = stage.system.queue, stage.system.queue.wake, fresh()

    async def refusing(actor: str, aggregate: Aggregate, *more: Any, **keys: Any) -> None:
        if aggregate == thread:
            raise Invalid("never")
        await wake(actor, aggregate, *more, **keys)

    monkeypatch.setattr(queue, "wake", refusing)
    await queue.wake_at(datetime.now(UTC), "marks", thread, key="x")

    async def buried() -> list[dlq.Letter]:
        return [letter async for letter in dlq.letters(stage.system.bus)]

    [letter] = await eventually(buried)
    assert (letter.actor, letter.body.reason) == ("timers", "never")


async def test_a_dispatcher_that_stands_says_so_and_begins_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "STANDING_SECONDS", 0.0)
    monkeypatch.setattr(dispatch, "RETRY_SECONDS", 0.0)
    wake, failures = stage.system.queue.wake, 3

    async def failing(*arguments: Any, **keys: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise Unavailable("no leader")
        await wake(*arguments, **keys)

    monkeypatch.setattr(stage.system.queue, "wake", failing)
    await goes_on(stage)
    assert failures == 0
    assert stage.system.dispatcher is not None
    assert stage.system.dispatcher.standing is None
