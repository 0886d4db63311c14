"""The full screen: its parts, its keys, and the two tasks that fold moments and follow the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

import msgspec
from rich.style import Style as Look
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input, Static

from channels.terminal.log import diff as diff_text
from channels.terminal.log.numbers import Numbers
from channels.terminal.log.story import Story
from channels.terminal.log.views import field_lines, state_lines, values_of
from channels.terminal.text import Style, one_line
from channels.terminal.tui.lines import FAILED, PLAIN, SELECTED, Lines, Rows, Slider
from channels.terminal.tui.recording import Recording
from core.errors import Invalid, SikaError
from core.events import Record
from core.replay import diff as diffs
from core.replay.find import is_failure
from core.replay.named import aggregate_of
from core.replay.source import LogSource, Source, records_of

T = TypeVar("T")
Follow = Callable[[int], AsyncIterator[Record]]
"""Yields the events after a sequence, as they come."""

MOST_LINES = 2000
"""Limit of the lines about one event; `log show` has all."""
MOST_CHARACTERS = 400
"""Limit of such a line."""
STEPS = 20
"""Parts of the time that the arrow keys go by."""


class Viewer(App[None]):
    """Shows the events of a log. `follow`: yields new ones; None for a file."""

    CSS = """
    #timeline { width: 3fr; }
    #detail { width: 2fr; border-left: solid $primary; }
    #status { height: 1; }
    #filter { display: none; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None  # the keys are the screen's, not the hidden field's
    BINDINGS = [  # noqa: RUF012  textual's form
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("left", "time(-1)", show=False),
        Binding("right", "time(1)", show=False),
        Binding("left_square_bracket", "run_from(-1)", show=False),
        Binding("right_square_bracket", "run_from(1)", show=False),
        Binding("full_stop", "failure(1)", show=False),
        Binding("comma", "failure(-1)", show=False),
        Binding("c", "cause", show=False),
        Binding("b", "return", show=False),
        Binding("s", "whole", show=False),
        Binding("f", "follow", show=False),
        Binding("J", "detail(1)", show=False),
        Binding("K", "detail(-1)", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "leave", show=False),
        Binding("q", "quit", show=False),
    ]

    def __init__(self, name: str, recording: Recording, follow: Follow | None = None) -> None:
        super().__init__()
        self._log_name = name
        self.recording = recording
        self._follow = follow
        self._following = follow is not None
        self.place = max(0, len(recording) - 1)
        """The selected event, from 0."""
        self.detail: list[str] = []
        self.note = ""
        self._whole = False
        self._filter = ""
        self._before: list[int] = []
        self._changed = asyncio.Event()
        self._folding = asyncio.Lock()

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Rows(self._draw, id="timeline")
            yield Lines(self._draw_detail, id="detail")
        yield Slider()
        yield Static(id="status", markup=False)
        yield Input(id="filter", placeholder="texts, type:tool.*, tool:bash, run:1, errors")

    def on_mount(self) -> None:
        self.run_worker(self._show_moments(), name="moments")
        if self._follow is not None:
            self.run_worker(self._add_new(self._follow), name="follow")

    def on_resize(self) -> None:
        self.call_after_refresh(self._redraw)

    # ── drawing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _redraw(self) -> None:
        """Draws all anew, with the selected event in sight."""
        recording, timeline = self.recording, self.query_one("#timeline", Rows)
        timeline.resize_to(len(recording.visible))
        timeline.reveal(recording.row(self.place))
        self.query_one(Slider).set(recording.share(self.place))
        self._say()
        self._changed.set()

    def _say(self) -> None:
        shown, count = len(self.recording.visible), len(self.recording)
        facts = [self._log_name, f"event {self.place + 1} of {count}"]
        facts += [f"{shown} match {self._filter!r}"] if self._filter else []
        facts += ["following"] if self._following else []
        facts += [self.note or "/ filter · c cause · . failure · s state · q end"]
        self.query_one("#status", Static).update(one_line(" · ".join(facts), 500))

    def _draw(self, row: int, width: int) -> tuple[str, Look]:
        place = self.recording.visible[row]
        record, story = self.recording.records[place], Story(Style(), width)
        story.numbers = _Place(place + 1)
        if answer := self.recording.call_of(place):
            story.line(answer)
        look = FAILED if is_failure(record.event) else PLAIN
        return story.line(record), look + SELECTED if place == self.place else look

    def _draw_detail(self, row: int, width: int) -> tuple[str, Look]:
        return self.detail[row], PLAIN

    async def _show_moments(self) -> None:
        """Shows the event that is selected last, whenever another one is; moments that were passed are left out."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            place, whole = self.place, self._whole
            if not len(self.recording):
                continue
            lines = await self._folded(lambda place=place, whole=whole: self._detail(place, whole))  # type: ignore[misc]
            if place == self.place:
                self.detail = lines
                panel = self.query_one("#detail", Lines)
                panel.resize_to(len(lines))
                panel.scroll_to(y=0, animate=False)

    async def _folded(self, work: Callable[[], T]) -> T:
        """Does work on the recording that takes time, in a thread."""
        async with self._folding:
            return await asyncio.to_thread(work)

    def _detail(self, place: int, whole: bool) -> list[str]:
        """Returns the lines about an event: its fields, then the state after it, or what it changed."""
        record = self.recording.records[place]
        lines = [f"{place + 1} {record.type}", f"{record.at}  seq:{record.seq}", ""]
        lines += field_lines(msgspec.json.decode(record.raw)) if record.raw else []
        after = self.recording.state(place + 1)
        if whole:
            lines += ["", "── state ──", *state_lines(record.head.aggregate_id, after, Style())]
        else:
            changes = list(diffs.changes(values_of(self.recording.state(place)), values_of(after)))
            lines += ["", "── changes of the state ──", *diff_text.state_lines(changes, Style())]
        cut = [_cut(line) for line in lines[:MOST_LINES]]
        return [*cut, f"… {len(lines) - MOST_LINES} more lines: sika log show"] if len(lines) > MOST_LINES else cut

    # ── moving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def select(self, place: int, note: str = "") -> None:
        """Selects the event at a place, or the visible one before it."""
        recording = self.recording
        if not len(recording):
            return
        if len(recording.visible):
            place = recording.visible[recording.row(min(max(0, place), len(recording) - 1))]
        self.place, self.note = place, note
        self._redraw()

    def action_move(self, step: int) -> None:
        visible = self.recording.visible
        if len(visible):
            row = self.recording.row(self.place) + step
            self.select(visible[min(max(0, row), len(visible) - 1)])

    def action_page(self, step: int) -> None:
        self.action_move(step * max(1, self.query_one("#timeline", Rows).size.height - 1))

    def action_edge(self, last: int) -> None:
        self.select(len(self.recording) - 1 if last else 0)

    def action_time(self, step: int) -> None:
        share = self.recording.share(self.place) + step / STEPS
        place = self.recording.place_at(share)
        self.select(place if place != self.place else place + step)

    def action_run_from(self, step: int) -> None:
        self._go(self.recording.run_from(self.place, step), "there is no such run")

    async def action_failure(self, step: int) -> None:
        place = self.place
        self._go(await self._folded(lambda: self.recording.failure(place, step)), "there is no such failure")

    async def action_cause(self) -> None:
        place = self.place
        before = await self._folded(lambda: self.recording.cause(place))
        if before is not None:
            self._before = [*self._before[-99:], place]
        self._go(before, "no cause in this log; sika log why follows it into others")

    def action_return(self) -> None:
        if self._before:
            self._go(self._before.pop(), "")

    def _go(self, place: int | None, otherwise: str) -> None:
        """Selects an event, also one that the filter hides, which is then off."""
        if place is None:
            self.note = otherwise
            self._say()
            return
        if place not in self.recording.visible:
            self._filter = ""
            self.recording.show(None, ())
        self.select(place)

    def action_detail(self, step: int) -> None:
        panel = self.query_one("#detail", Lines)
        panel.scroll_to(y=panel.scroll_offset.y + step * max(1, panel.size.height - 1), animate=False)

    def action_whole(self) -> None:
        self._whole = not self._whole
        self._changed.set()

    def on_rows_clicked(self, message: Rows.Clicked) -> None:
        self.select(self.recording.visible[message.row])

    def on_slider_moved(self, message: Slider.Moved) -> None:
        self.select(self.recording.place_at(message.share))

    # ── filter ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value, field.display = self._filter, True
        field.focus()

    def action_leave(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = False
        self.set_focus(None)

    async def on_input_submitted(self, message: Input.Submitted) -> None:
        self.action_leave()
        text = message.value.strip()
        try:
            query = self.recording.query(text)
        except Invalid as error:
            self.note = str(error)
            self._say()
            return
        async with self._folding:  # nothing is added meanwhile
            search, places = await asyncio.to_thread(self.recording.matching, query)
            self.recording.show(search, places)
        self._filter = text if query is not None else ""
        self.select(self.place, "" if len(places) else "no event matches")

    # ── new events ──────────────────────────────────────────────────────────────────────────────────────────────────

    def action_follow(self) -> None:
        if self._follow is None:
            self.note = "a file has no new events"
            self._say()
            return
        self._following = not self._following
        if self._following:
            self.action_edge(1)
        self._say()

    async def _add_new(self, follow: Follow) -> None:
        """Adds new events as they come. If that fails, the status says so, and what was read stays."""
        last = self.recording.records[-1].seq if len(self.recording) else 0
        try:
            async for record in follow(last):
                await self._add(record)
        except SikaError as error:
            self._following, self.note = False, f"no longer followed: {error}"
            self._say()

    async def _add(self, record: Record) -> None:
        async with self._folding:  # the recording does not change while a thread works on it
            self.recording.add([record])
        if self._following:
            self.select(len(self.recording) - 1)
        else:
            self.query_one("#timeline", Rows).resize_to(len(self.recording.visible))
            self._say()


class _Place(Numbers):
    """The number of the one event that is drawn."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def of(self, record: Record) -> int:
        return self._number


def _cut(line: str) -> str:
    """Returns a line with its indentation and at most `MOST_CHARACTERS` of its text."""
    text = line.lstrip(" ")
    return " " * (len(line) - len(text)) + one_line(text, MOST_CHARACTERS)


async def show(source: Source, name: str) -> None:
    """Shows a log until the person ends it, and follows it if it is a server's. Raises `NotFound` and `Invalid`."""
    aggregate = await aggregate_of(source, name)
    recording = await asyncio.to_thread(Recording, await records_of(source, aggregate))
    follow = partial(source.follow, aggregate) if isinstance(source, LogSource) else None
    await Viewer(f"{aggregate.kind} {aggregate.id}", recording, follow).run_async()
