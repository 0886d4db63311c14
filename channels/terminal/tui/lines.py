"""Lines on the screen, drawn only where they are seen: 100 000 take no more time than 50."""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

SELECTED = Style(reverse=True)
FAILED = Style(color="red")
DIM = Style(dim=True)
PLAIN = Style()

Draw = Callable[[int, int], tuple[str, Style]]
"""Returns the text and the style of a row, for a width."""


class Lines(ScrollView, can_focus=False):
    """Rows that a function draws."""

    def __init__(self, draw: Draw, *, id: str) -> None:
        super().__init__(id=id)
        self._draw = draw
        self._rows = 0

    def resize_to(self, rows: int) -> None:
        """Has this number of rows from now on, and draws them anew."""
        self._rows = rows
        self.virtual_size = Size(self.size.width, rows)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        row, width = y + self.scroll_offset.y, self.size.width
        if row >= self._rows:
            return Strip.blank(width)
        text, style = self._draw(row, width)
        return Strip([Segment(text, style)]).crop_extend(0, width, style)

    def reveal(self, row: int) -> None:
        """Scrolls as little as needed to show a row."""
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if not top <= row < top + height:
            self.scroll_to(y=row if row < top else row - height + 1, animate=False, immediate=True)


class Rows(Lines):
    """Rows of which one can be clicked."""

    class Clicked(Message):
        """A row was clicked."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    def on_click(self, event: events.Click) -> None:
        row = event.y + self.scroll_offset.y
        if row < self._rows:
            self.post_message(self.Clicked(row))


class Slider(Widget):
    """The time of the log as a bar."""

    DEFAULT_CSS = "Slider { height: 1; }"

    class Moved(Message):
        """A moment was clicked: the share of the time before it."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self) -> None:
        super().__init__(id="slider")
        self._share = 0.0

    def set(self, share: float) -> None:
        """Shows a moment."""
        self._share = share
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = max(1, self.size.width)
        done = min(width - 1, round(self._share * (width - 1)))
        return Strip([Segment("━" * done + "●"), Segment("─" * (width - done - 1), DIM)])

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Moved(event.x / max(1, self.size.width - 1)))
