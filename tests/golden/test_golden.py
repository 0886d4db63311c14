"""Recorded logs of real runs: they fold to what they folded to, and run again as they ran. And their schema."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import actors
import adapters
import channels
import core
from actors.wiring import compose
from core.events import Envelope, Event, catalogue, thread, type_of
from core.ids import uuid7
from core.log.store import EventLog
from core.runtime import system
from core.runtime.system import System
from tests.golden.stories import FOLDER, configured, load, snapshot
from tests.support.nats import own
from tests.support.replays import replay

LOGS = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
SCHEMA = FOLDER / "schema.json"
HELP = """
The schema of the events is frozen: logs that people have must stay readable (rules at the top of core/events.py).
- New event types and new fields with a default are fine: write the schema anew (`python -m tests.golden.schema`) and
  commit it.
- Never remove, rename or re-type a field, or make one required. New meaning is a new event type. If a field must change
  all the same: raise the class's `version`, add an upcaster and a test with a stored event of the old version; then as
  above.
"""


# ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_there_are_some() -> None:
    assert {"research", "commands"} <= set(LOGS)


@pytest.mark.parametrize("name", LOGS)
def test_it_folds_to_the_same_state(name: str) -> None:
    assert snapshot(load(name)).decode() == (FOLDER / f"{name}.state.json").read_text()


@pytest.mark.parametrize("name", LOGS)
def test_every_event_is_known_and_written_as_it_was(name: str) -> None:
    """Decoding and encoding again loses nothing."""
    for record in load(name):
        assert isinstance(record.event, Event), record
        fields = msgspec.json.decode(record.raw)
        again = msgspec.json.decode(msgspec.json.encode(record.event))
        assert {name: fields.get(name) for name in again} == again


async def restored(running: System, name: str) -> str:
    """The golden log on a real bus, byte by byte; the thread's id."""
    log: EventLog = running.log
    records = load(name)
    aggregate = records[0].aggregate
    for record in records:
        headers = {"Nats-Msg-Id": record.id, "Sika-Type": record.type}
        await log.bus.ask(log.bus.names.log(aggregate), record.raw, headers)
    assert [r.raw async for r in log.read(aggregate)] == [r.raw for r in records]
    return aggregate.id


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[System]:
    async with (
        own(tmp_path / "nats") as nats,
        system.start(nats.endpoint(), tmp_path / "views.db", lease_seconds=5, slots=1) as running,
    ):
        yield running


REPLAYED = ("model.completed", "tool.completed", "context.compacted", "approval.requested", "approval.resolved")


def _options(name: str, home: Path) -> compose.Options:
    return compose.Options(home, configured(name, home / "config.yaml"))


@pytest.mark.parametrize("name", LOGS)
async def test_it_runs_again_as_it_ran(running: System, name: str, tmp_path: Path) -> None:
    """The loop of today, on the answers of then, without a model or a tool."""
    thread_id = await restored(running, name)
    report = await replay(running, thread_id, None, _options(name, tmp_path))
    types = [record.type for record in load(name)]
    assert report.divergence is None
    assert report.runs == types.count("run.started")
    assert report.steps == sum(types.count(kind) for kind in REPLAYED)


@pytest.mark.parametrize("name", LOGS)
async def test_a_changed_answer_is_a_divergence(running: System, name: str, tmp_path: Path) -> None:
    """That the replay compares something at all: a call that the log does not know is reported."""
    records = load(name)
    aggregate = thread(uuid7())
    for record in records:
        if record.type == "tool.requested":
            continue
        fields = {**msgspec.json.decode(record.raw), "aggregate": aggregate.id}
        await running.bus.ask(running.bus.names.log(aggregate), msgspec.json.encode(fields), {"Nats-Msg-Id": uuid7()})
    report = await replay(running, aggregate.id, None, _options(name, tmp_path))
    assert report.divergence
    assert "the run did not" in report.divergence


# ── schema ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _import_all() -> None:
    for package in (core, actors, channels, adapters):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def ours() -> dict[str, type[Event]]:
    """Every event type of the product, wherever it is declared."""
    _import_all()
    roots = tuple(f"{package.__name__}." for package in (core, actors, channels, adapters))
    return {name: cls for name, cls in sorted(catalogue().items()) if cls.__module__.startswith(roots)}


def schema() -> dict[str, Any]:
    """Envelope and events by name, with everything they refer to."""
    events = ours()
    _, components = msgspec.json.schema_components([Envelope, *events.values()])
    return {
        "versions": {name: cls.version for name, cls in events.items()},
        "components": {name: without_words(part) for name, part in sorted(components.items())},
    }


def without_words(part: Any) -> Any:
    """A schema without its descriptions: those may be improved."""
    if isinstance(part, dict):
        return {key: without_words(value) for key, value in sorted(part.items()) if key != "description"}
    return [without_words(value) for value in part] if isinstance(part, list | tuple) else part


def breaks(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """What of the old schema the new one does not honour. Additions are none, except of required fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key not in new:
                yield f"{place}/{key}: removed"
            else:
                yield from breaks(value, new[key], f"{place}/{key}")
        return
    if place.endswith("/required"):
        yield from (f"{place}: {name} is required now" for name in sorted(set(new) - set(old)))
        return
    if place.endswith(("/enum", "/anyOf")):
        yield from (f"{place}: {value} is gone" for value in old if value not in new)
        return
    if old != new:
        yield f"{place}: was {old!r}, is {new!r}"


def test_the_schema_is_frozen() -> None:
    frozen, current = msgspec.json.decode(SCHEMA.read_bytes()), schema()
    broken = list(breaks(frozen["components"], current["components"], ""))
    assert not broken, "\n  ".join(["", *broken]) + "\n" + HELP
    assert frozen == current, "the schema has grown; write it anew\n" + HELP


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (("RunRequested", "properties", "assistant"), None, "/RunRequested/properties/assistant: removed"),
        (("RunRequested", "properties", "assistant", "type"), "integer", "was 'string', is 'integer'"),
        (("RunRequested", "required"), ["type", "assistant"], "assistant is required now"),
        (("RunRequested", "properties", "multitask", "enum"), ["reject"], "enqueue is gone"),
        (("ToolCompleted",), None, "/ToolCompleted: removed"),
        (("RunRequested", "properties", "new"), {"type": "string", "default": ""}, ""),
        (("RunRequested", "properties", "multitask", "enum"), ["reject", "enqueue", "interrupt", "rollback", "x"], ""),
    ],
)
def test_what_breaks_a_schema(path: tuple[str, ...], value: Any, found: str) -> None:
    old, new = schema()["components"], schema()["components"]
    place = new
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    assert found in "\n".join(breaks(old, new)) if found else not list(breaks(old, new))


def test_every_event_says_what_it_is() -> None:
    for name, cls in ours().items():
        words = inspect.cleandoc(cls.__doc__ or "")
        assert words, cls
        assert words.endswith((".", "`")), cls
        assert name == str(cls.__struct_config__.tag) == type_of(cls.__name__), cls
        assert re.fullmatch(r"[a-z0-9]+\.[a-z0-9_]+", name), cls
        assert cls.__struct_config__.frozen, cls
        assert cls.__struct_config__.omit_defaults, cls


def test_fields_of_events_are_not_those_of_the_envelope() -> None:
    """On the wire both are one flat object."""
    taken = {field.name for field in msgspec.structs.fields(Envelope)}
    for cls in ours().values():
        assert not taken & {field.encode_name for field in msgspec.structs.fields(cls)}, cls


def test_old_versions_have_a_way_up() -> None:
    for cls in ours().values():
        assert set(range(1, cls.version)) <= set(cls.upcasters), cls
