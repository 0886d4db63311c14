"""Envelope, catalogue, decoding: two steps, unknown types, old versions."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from core import events
from core.errors import Invalid
from core.events import (
    Aggregate,
    Envelope,
    Event,
    Json,
    Opaque,
    Record,
    RunCancelRequested,
    ThreadCreated,
    ToolRequested,
    catalogue,
    thread,
    type_of,
)
from tests.support.records import opaque, record


def _renamed(stored: Json) -> Json:
    return {**stored, "colour": stored.pop("color")}


def _split(stored: Json) -> Json:
    return {**stored, "shades": [stored.pop("colour")]}


class CanvasPainted(Event, frozen=True):
    """A test's own event, in its third version."""

    version: ClassVar[int] = 3
    upcasters: ClassVar[Mapping[int, Callable[[Json], Json]]] = {1: _renamed, 2: _split}
    shades: list[str]


class GapLeft(Event, frozen=True):
    """A test's own event: nobody knows how to read its first version."""

    version: ClassVar[int] = 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("RunCancelRequested", "run.cancel_requested"),
        ("ToolRequested", "tool.requested"),
        ("RunRolledBack", "run.rolled_back"),
        ("Ping", "ping"),
    ],
)
def test_names(name: str, kind: str) -> None:
    assert type_of(name) == kind


def test_an_event_is_one_flat_object_and_comes_back() -> None:
    event = ToolRequested(call_id="c1", name="bash", effect="once", args={"a": [1, "ü"]})
    found = record(5, event, "r1", "e1")
    assert msgspec.json.decode(found.raw) == {
        **{"id": "e5", "type": "tool.requested", "kind": "thread", "aggregate": "t", "actor": "test", "at": found.at},
        **{"run": "r1", "cause": "e1", "call_id": "c1", "name": "bash", "effect": "once", "args": {"a": [1, "ü"]}},
    }
    assert (found.event, found.type, found.run, found.head.cause) == (event, "tool.requested", "r1", "e1")
    assert repr(found) == "Record(5, tool.requested, thread/t)"
    assert str(thread("x")) == str(Aggregate("thread", "x")) == "thread/x"


def test_what_has_no_value_is_not_written() -> None:
    assert set(msgspec.json.decode(record(1, RunCancelRequested()).raw)) == {
        *("id", "type", "kind", "aggregate", "actor", "at"),
    }


@pytest.mark.parametrize(
    "found",
    [
        opaque(1, "rocket.launched", fuel=1),
        opaque(1, "thread.created", v=2, user="ada"),
        opaque(1, "run.exploded", "r"),
    ],
)
def test_unknown_types_and_newer_versions_are_opaque(found: Record) -> None:
    assert found.event == Opaque(found.type)


def test_unknown_fields_are_ignored() -> None:
    assert opaque(1, "thread.created", user="ada", mood="good").event == ThreadCreated(user="ada")


@pytest.mark.parametrize(
    "found",
    [
        opaque(1, "canvas.painted", color="red"),
        opaque(1, "canvas.painted", v=2, colour="red"),
        opaque(1, "canvas.painted", v=3, shades=["red"]),
    ],
)
def test_old_versions_are_brought_up(found: Record) -> None:
    assert found.event == CanvasPainted(shades=["red"])
    assert record(1, CanvasPainted(shades=[])).head.v == 3


def test_no_way_up() -> None:
    assert opaque(1, "gap.left").event == Opaque("gap.left", "GapLeft: no upcaster from version 1")


@pytest.mark.parametrize(
    ("found", "place"),
    [
        (opaque(1, "thread.created", user=5), r"e1 \(thread.created\): Expected `str`, got `int` - at `\$.user`"),
        (opaque(1, "thread.created"), "missing required field `user`"),
        (opaque(1, "canvas.painted", v=2, colour=5), "got `int`"),
    ],
)
def test_a_known_type_that_does_not_fit_is_opaque_and_says_why(found: Record, place: str) -> None:
    assert isinstance(found.event, Opaque)
    assert found.event.problem
    assert re.search(place, found.event.problem)


def test_an_old_version_that_does_not_fit_is_opaque_and_says_why() -> None:
    event = opaque(1, "canvas.painted", v=1).event
    assert isinstance(event, Opaque)
    assert event.problem


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"null", b"{", b'{"id":1}', b"\xff"])
def test_what_is_no_event(raw: bytes) -> None:
    with pytest.raises(Invalid, match="not an event"):
        Record(1, raw)


def test_the_catalogue_has_them_all_and_each_name_once() -> None:
    found = catalogue()
    assert (found["canvas.painted"], found["thread.created"]) == (CanvasPainted, ThreadCreated)
    elsewhere: Any = type("CanvasPainted", (Event,), {"__module__": "elsewhere"}, frozen=True)
    with pytest.raises(Invalid, match=r"canvas\.painted: declared in .*test_events and in elsewhere"):
        catalogue()
    elsewhere.__module__ = CanvasPainted.__module__  # for the tests after this one
    catalogue()


@pytest.mark.parametrize("name", sorted(Envelope.__struct_encode_fields__))
def test_a_field_with_a_name_of_the_envelope_is_refused(name: str) -> None:
    fields = {"__annotations__": {name: str}, "__module__": __name__}
    with pytest.raises(Invalid, match=rf"^event {__name__}.HaikuWritten: {name}: a name of the envelope$"):
        types.new_class("HaikuWritten", (Event,), exec_body=lambda body: body.update(fields))


def test_an_unknown_type_is_looked_for_once_until_a_class_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the types that are remembered have a bound."""
    looks = 0
    walk = events._clashes

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return walk()

    monkeypatch.setattr(events, "_clashes", counted)
    monkeypatch.setattr(events, "MAX_UNKNOWN", 3)
    raw = b'{"id": "a", "type": "otter.seen", "kind": "thread", "aggregate": "t", "actor": "x", "at": ""}'
    for _ in range(10):
        assert isinstance(Record(1, raw).event, Opaque)
    assert looks == 1

    class OtterSeen(Event, frozen=True):
        """A test's own event."""

    assert isinstance(Record(1, raw).event, OtterSeen)
    for number in range(10):
        assert isinstance(Record(1, raw.replace(b"seen", b"x%d" % number)).event, Opaque)
        assert len(events._unknown) <= 3
