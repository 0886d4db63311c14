"""What a person may change of a recorded event while a run is replayed."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import Invalid
from core.events import Event, ToolCompleted
from core.replay.debugger import edited
from tests.support.records import opaque, record

MESSAGE: dict[str, Any] = {"type": "tool", "content": ["one", {"text": "two"}], "status": "success"}
RECORD = record(7, ToolCompleted(call_id="c1", message=MESSAGE), "r")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("message.content", {**MESSAGE, "content": "other"}),
        ("message.content.0", {**MESSAGE, "content": ["other", {"text": "two"}]}),
        ("message.content.1.text", {**MESSAGE, "content": ["one", {"text": "other"}]}),
        ("message.name", {**MESSAGE, "name": "other"}),
    ],
)
def test_a_value_is_changed(path: str, message: Any) -> None:
    changed = edited(RECORD, path, "other")
    assert (changed.seq, changed.head) == (RECORD.seq, RECORD.head)
    assert changed.event == ToolCompleted(call_id="c1", message=message)
    assert isinstance(RECORD.event, Event)
    assert RECORD.event == ToolCompleted(call_id="c1", message=MESSAGE)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("message.nothing.x", r"message\.nothing\.x: there is no 'nothing'"),
        ("message.content.2", r"message\.content\.2: there is no '2'"),
        ("message.content.two", r"message\.content\.two: there is no 'two'"),
        ("message.status.x", r"message\.status\.x: there is nothing to change in a str"),
        ("message", r"Expected `object`, got `str` - at `\$\.message`"),
        ("id", "the envelope of an event is not changed"),
    ],
)
def test_what_is_not_there_is_named(path: str, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        edited(RECORD, path, "other")


def test_an_event_of_an_unknown_type_is_left_alone() -> None:
    with pytest.raises(Invalid, match=r"text: toy\.painted cannot be changed here"):
        edited(opaque(1, "toy.painted", text="x"), "text", "other")
