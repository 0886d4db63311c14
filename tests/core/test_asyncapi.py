"""The AsyncAPI document: rules that a schema does not say, and recorded events against its schemas."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from core.bus.subjects import Subjects, stream_configs
from core.events import Aggregate, Json, catalogue
from core.runtime.asyncapi import FOREIGN, document
from tests.golden.test_golden import ours

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def described() -> Json:
    ours()
    api: Json = msgspec.json.decode(msgspec.json.encode(document("1.2.3", "acme")))
    return api


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from (value for key, value in part.items() if key == "$ref" and isinstance(value, str))
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def test_every_reference_leads_somewhere(described: Json) -> None:
    for reference in _references(described):
        target: Any = described
        for name in reference.removeprefix("#/").split("/"):
            target = target[name]
        assert isinstance(target, dict)


def test_operations_use_messages_of_their_channel(described: Json) -> None:
    for operation in described["operations"].values():
        assert operation["action"] in ("send", "receive")
        for message in operation.get("messages", ()):
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")


def test_addresses_are_those_of_the_bus(described: Json) -> None:
    """With all their variables described, and no others."""
    names, thing = Subjects("acme"), Aggregate("{kind}", "{id}")
    addresses = {name: channel["address"] for name, channel in described["channels"].items()}
    assert addresses == {
        "log": names.log(thing),
        "live": names.live(thing),
        "previews": names.tok("{run}"),
        "wakeups": names.cmd("{actor}", thing),
        "timers": names.timer("{actor}", thing, "{key}"),
        "requests": names.call("{actor}"),
        "replies": None,
        "deadLetters": names.dlq("{actor}", thing),
    }
    for channel in described["channels"].values():
        assert set(re.findall(r"\{(\w+)\}", channel["address"] or "")) == set(channel.get("parameters", ()))
    assert {stream["name"] for plane, stream in described["x-sika-streams"].items() if plane != "blobs"} == {
        config["name"] for plane, config in stream_configs(names).items() if plane != "blobs"
    }


def test_every_event_type_is_a_message(described: Json) -> None:
    messages = described["channels"]["log"]["messages"]
    assert set(messages) == {*catalogue(), "foreign"}
    for name, cls in catalogue().items():
        assert messages[name]["headers"]["properties"]["Sika-Type"] == {"const": name}
        schema = messages[name]["payload"]["allOf"][1]["$ref"].rpartition("/")[2]
        assert described["components"]["schemas"][schema]["description"], cls


@pytest.fixture(scope="module")
def validator(described: Json) -> Callable[[str], jsonschema_rs.Validator]:
    """Makes the validator of a message."""

    @functools.cache
    def make(name: str) -> jsonschema_rs.Validator:
        message = described["channels"]["log"]["messages"][name]
        return jsonschema_rs.validator_for({**message["payload"], "components": described["components"]})

    return make


@pytest.mark.parametrize("story", sorted(GOLDEN.glob("*.jsonl")), ids=lambda path: path.stem)
def test_recorded_events_fit_their_schemas(validator: Callable[[str], jsonschema_rs.Validator], story: Path) -> None:
    events = [msgspec.json.decode(line) for line in story.read_bytes().splitlines()]
    assert events
    for event in events:
        validator(event["type"]).validate(event)


def test_examples_fit_and_others_do_not(described: Json, validator: Callable[[str], jsonschema_rs.Validator]) -> None:
    foreign = validator("foreign")
    [example] = described["channels"]["log"]["messages"]["foreign"]["examples"]
    foreign.validate(example["payload"])
    for name in ("poem.written", "x.acme", "x.Acme.poem"):
        assert not foreign.is_valid({**example["payload"], "type": name})
        assert not re.match(FOREIGN, name)
    assert not foreign.is_valid({"type": "x.acme.poem_written"})


def test_no_type_of_ours_looks_like_one_of_another_vendor() -> None:
    assert [name for name in catalogue() if name.startswith("x.")] == []
