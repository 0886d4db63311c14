"""Whatever stands in a log, a terminal gets no control of it: every text of every event is poisoned, and read."""

from __future__ import annotations

import copy
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.terminal.output import harmless
from core.events import Opaque, Record
from core.replay.exports.format import FORMAT, Header, Writer
from tests.golden.stories import FOLDER

pytestmark = pytest.mark.long(keep=3)

ROOT = Path(__file__).parents[3]
POISON = "\x1b]52;c;Q0FOQVJZ\x07\x1b[2J\x9b31m\x1b[8m\u202e\x08\x7fBAD"
ENVELOPE = {"id", "kind", "aggregate", "actor", "at", "run", "cause", "type", "v"}
ALLOWED = re.compile(r"\x1b\[(?:0|1|2|3[1-6])?(?:;(?:0|1|2|3[1-6]))*m")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COMMANDS = [
    ["show"],
    ["show", "--events"],
    ["tree"],
    ["state"],
    ["why", "FILE", "3"],
    ["find", "--in", "FILE"],
    ["diff", "FILE", "FILE@4"],
]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))


def poisoned(raw: bytes) -> bytes:
    """Returns an event with the poison in each text that may have it: where the event can still be read."""
    event = msgspec.json.decode(raw)
    for path in [path for path in leaves(event) if path[0] not in ENVELOPE]:
        changed = copy.deepcopy(event)
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] += POISON
        try:
            if not isinstance(Record(1, msgspec.json.encode(changed)).event, Opaque):
                event = changed
        except Exception:  # this text has a form
            continue
    return msgspec.json.encode(event)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = (FOLDER / "policies.jsonl").read_bytes().splitlines()
    records = [Record(number, poisoned(line)) for number, line in enumerate(lines, 1)]
    assert sum(record.raw.count(b"BAD") for record in records) > 100
    writer = Writer()
    header = Header(format=FORMAT, sika="x", thread=records[0].aggregate.id, at=records[0].at)
    path = tmp_path_factory.mktemp("poison") / "thread.jsonl"
    path.write_bytes(b"".join([writer.line(header), *map(writer.event, records), writer.end()]))
    return path


def on_terminal(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Runs a command on a terminal. Returns its exit code, and what the terminal got."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "channels.cli", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environ)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(60), shown.decode("utf-8", "replace")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_terminal_gets_no_control_of_a_log(file: Path, words: list[str]) -> None:
    filled = [word.replace("FILE", str(file)) for word in words]
    arguments = filled if filled != words else [*filled, str(file)]
    code, shown = on_terminal("log", *arguments, cwd=file.parent)
    assert code in (0, 1), shown
    assert shown.strip()
    assert CONTROL.findall(ALLOWED.sub("", shown)) == []


def test_the_poison_reaches_what_is_shown(file: Path) -> None:
    """What is left of it is seen: the commands above do show the texts."""
    _, shown = on_terminal("log", "show", "--events", str(file), cwd=file.parent)
    assert shown.count("BAD") > 10


def test_other_outputs_get_every_byte(file: Path) -> None:
    command = [sys.executable, "-m", "channels.cli", "log", "show", "--json", str(file)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, cwd=file.parent, env=environ, timeout=60, check=True)
    assert "\u202e" in done.stdout.decode()


PIECES = st.lists(
    st.sampled_from(["\x1b", "[", "]", "2", "31", ";", "m", "J", "\x07", "\x9b", "\u202e", "a", "\n", "52", "\\"])
    | st.text(max_size=3)
)


@given(PIECES)
def test_nothing_but_colours_passes(pieces: list[str]) -> None:
    once = harmless("".join(pieces))
    assert CONTROL.findall(ALLOWED.sub("", once)) == []
    assert harmless(once) == once
