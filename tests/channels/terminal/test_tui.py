"""The full screen, driven by keys without a terminal: on the recorded story, on new events, on 100 000 events."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest
from rich.style import Style
from textual.pilot import Pilot

from channels.terminal.tui.app import Viewer
from channels.terminal.tui.lines import Rows, Slider
from channels.terminal.tui.recording import Recording
from core.errors import Unavailable
from core.events import Event, ModelCompleted, Record, RunCompleted, RunRequested, ThreadCreated, encode, written
from core.replay import causes
from core.replay.find import is_failure
from core.thread.fold import fold
from tests.core.replay.recorded import Story

pytestmark = pytest.mark.anyio

SIZE = (120, 40)
MANY = 100_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def story() -> list[Record]:
    return [record for record in Story().records if record.aggregate.kind == "thread"]


def record(seq: int, event: Event, run: str | None = "r") -> Record:
    at = f"2026-01-01T{seq // 3600 % 24:02}:{seq // 60 % 60:02}:{seq % 60:02}+00:00"
    head = written(event, kind="thread", aggregate_id="t", id=f"e{seq}", actor="lead", at=at, run=run, cause=None)
    return Record(seq, encode(event, head))


def many(count: int) -> list[Record]:
    """A thread of answers, as text of 20 bytes each."""
    answers = (
        ModelCompleted(message={"type": "ai", "id": f"m{n}", "content": f"answer {n}"}) for n in range(count - 2)
    )
    events = [RunRequested(input={"messages": []}), *answers]
    return [record(1, ThreadCreated(user="ada"), None), *(record(seq, e) for seq, e in enumerate(events, 2))]


def screen(viewer: Viewer) -> str:
    """Returns the text of the timeline and of the details."""
    return "\n".join(
        "".join(segment.text for segment in widget.render_line(y))
        for widget in viewer.query("Rows, Lines")
        for y in range(widget.size.height)
    )


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Waits until the screen shows what it shall."""
    with anyio.fail_after(60):
        while not condition():
            await pilot.pause(0.01)


async def test_the_events_and_the_moment_of_each(tmp_path: Path) -> None:
    records = story()
    viewer = Viewer("story", Recording(records))
    async with viewer.run_test(size=SIZE) as pilot:
        await pilot.press("home")
        await until(pilot, lambda: "thread.created" in viewer.detail[0] if viewer.detail else False)
        assert viewer.place == 0
        await pilot.press("down", "down")
        assert viewer.place == 2
        await until(pilot, lambda: viewer.detail[0] == f"3 {records[2].type}")
        await pilot.press("end", "s")
        state = fold(records)
        await until(pilot, lambda: any(f"sequence {state.seq}," in line for line in viewer.detail))
        assert records[-1].type in screen(viewer)
        await pilot.press("home", "right")
        assert 0 < viewer.place < len(records) - 1


async def test_keys_go_to_failures_runs_and_causes() -> None:
    records = story()
    failures = [place for place, one in enumerate(records) if is_failure(one.event)]
    viewer = Viewer("story", Recording(records))
    async with viewer.run_test(size=SIZE) as pilot:
        await pilot.press("home", "full_stop")
        await until(pilot, lambda: viewer.place == failures[0])
        await pilot.press("full_stop")
        await until(pilot, lambda: viewer.place == failures[1])
        await pilot.press("comma")
        await until(pilot, lambda: viewer.place == failures[0])
        expected = await causes.cause_of(records, records[failures[0]])
        await pilot.press("c")
        await until(pilot, lambda: records[viewer.place] is expected)
        await pilot.press("b")
        await until(pilot, lambda: viewer.place == failures[0])
        runs = list(dict.fromkeys(one.run for one in records if one.run))
        await pilot.press("home", "right_square_bracket")
        assert records[viewer.place].run == runs[0]
        await pilot.press("home", "c")
        await until(pilot, lambda: "no cause" in viewer.note)


async def test_a_filter_and_what_it_hides() -> None:
    records = story()
    viewer = Viewer("story", Recording(records))
    tools = [place for place, one in enumerate(records) if one.type.startswith("tool.")]
    async with viewer.run_test(size=SIZE) as pilot:
        await pilot.press("slash", *"type:tool.*", "enter")
        await until(pilot, lambda: list(viewer.recording.visible) == tools)
        assert "model.completed" not in "\n".join(screen(viewer).splitlines()[:5])
        await pilot.press("home")
        assert viewer.place == tools[0]
        await pilot.press("c")
        await until(pilot, lambda: records[viewer.place].type == "model.completed")
        assert len(viewer.recording.visible) == len(records), "the cause was hidden by the filter"
        await pilot.press("slash", *"run:99", "enter")
        await until(pilot, lambda: "there is no run 99" in viewer.note)


async def test_new_events_are_followed_until_that_is_turned_off() -> None:
    records = story()
    send, receive = anyio.create_memory_object_stream[Record](0)

    async def follow(after: int) -> AsyncIterator[Record]:
        assert after == records[-1].seq
        async for new in receive:
            yield new
        raise Unavailable("the server is gone")

    viewer, seq = Viewer("story", Recording(records), follow), records[-1].seq
    async with receive, viewer.run_test(size=SIZE) as pilot:
        await send.send(record(seq + 1, RunCompleted()))
        await until(pilot, lambda: viewer.place == len(records))
        await pilot.press("f", "home")
        await send.send(record(seq + 2, RunCompleted()))
        await until(pilot, lambda: len(viewer.recording) == len(records) + 2)
        assert viewer.place == 0
        await send.aclose()
        await until(pilot, lambda: "the server is gone" in viewer.note)
        assert len(viewer.recording) == len(records) + 2


async def test_a_click_selects_an_event_and_a_moment() -> None:
    viewer = Viewer("story", Recording(story()))
    async with viewer.run_test(size=SIZE) as pilot:
        await pilot.press("home")
        await pilot.click(Rows, offset=(5, 4))
        assert viewer.place == 4
        await pilot.click(Slider, offset=(SIZE[0] - 1, 0))
        assert viewer.place == len(viewer.recording) - 1


async def test_only_what_is_seen_is_drawn_and_decoded() -> None:
    """Of 100 000 events a screen decodes some: the time of a page does not grow with the log."""
    records = many(MANY)
    recording = Recording(records)
    drawn: list[int] = []
    viewer = Viewer("many", recording)
    viewer._changed = _Never()
    draw = viewer._draw

    def noted(row: int, width: int) -> tuple[str, Style]:
        drawn.append(row)
        return draw(row, width)

    viewer._draw = noted  # type: ignore[method-assign]
    async with viewer.run_test(size=SIZE) as pilot:
        await pilot.press(*["pageup"] * 20)
        assert viewer.place < MANY - 20 * 30
        assert f" {viewer.place + 1}  " in screen(viewer)
    assert len(set(drawn)) < 22 * SIZE[1]
    assert sum(one._event is not None for one in records) < 22 * SIZE[1]


class _Never(asyncio.Event):
    """Folds no moment."""

    def set(self) -> None:
        return


def test_any_moment_of_a_long_thread_is_near_a_kept_state() -> None:
    records = many(20_000)
    recording = Recording(records)
    recording.state(len(records))
    counted: list[int] = []
    recording.records = _Counting(records, counted)
    for count in (15_500, 1, 20_000, 9_999):
        assert recording.state(count).seq == count
    assert max(counted) < 1000


class _Counting(list[Record]):
    """Notes how many events are read at once."""

    def __init__(self, records: list[Record], counted: list[int]) -> None:
        super().__init__(records)
        self._counted = counted

    def __getitem__(self, place: object) -> object:  # type: ignore[override]
        result = super().__getitem__(place)  # type: ignore[call-overload]
        self._counted.append(len(result))
        return result


async def test_a_file_without_a_server(tmp_path: Path) -> None:
    """The command in a terminal of its own, on an exported file, in a folder without a server."""
    from core.replay.exports.format import FORMAT, Header, Writer

    writer, records = Writer(), story()
    header = Header(format=FORMAT, sika="x", thread=records[0].aggregate.id, at=records[0].at)
    path = tmp_path / "story.jsonl"
    path.write_bytes(b"".join([writer.line(header), *map(writer.event, records), writer.end()]))
    master, terminal = pty.openpty()
    os.set_blocking(master, False)
    command = [sys.executable, "-m", "channels.cli", "log", "tui", str(path)]
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, env=environ
    )
    os.close(terminal)
    shown = b""
    try:
        with anyio.fail_after(60):
            while f"of {len(records)}".encode() not in shown:
                await anyio.wait_readable(master)
                shown += os.read(master, 65536)
            os.write(master, b"q")
            while process.returncode is None:
                with anyio.move_on_after(0.05):
                    await process.wait()
                try:
                    os.read(master, 65536)
                except OSError:
                    continue
            assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)
    assert not (tmp_path / ".sika").exists()
