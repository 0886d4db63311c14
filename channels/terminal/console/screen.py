"""The screen of a conversation: the only writer to the terminal.

On a terminal, answers are Markdown, and a status line is below them. An incomplete block of an answer is part of the
status. Other outputs get plain text, line by line. Foreign text is made harmless first, and is never markup.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, TextIO

from markdown_it import MarkdownIt
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.spinner import Spinner
from rich.text import Text

from channels.terminal.output import unguarded
from channels.terminal.text import clean

WIDE = 10_000
"""Width of outputs that are no terminal: lines are not wrapped there."""
LEAST_CELL = 20
"""Cells of the last column of a table, however narrow the terminal is."""
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])\s")
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


class Form(NamedTuple):
    """Format of a text."""

    style: str = ""
    indent: str = ""
    markdown: bool = False


ANSWER = Form(markdown=True)
THOUGHT = Form("dim")
OUTPUT = Form("dim", "    ")
FAILURE = Form("red", "    ")


class Screen:
    """The person's screen: `out` gets the agent's texts, `err` the program's notices.

    For programs, `answers` gets nothing but the last answer of each run, and `out` what came before it.
    """

    def __init__(self, out: TextIO, err: TextIO, answers: TextIO | None = None, *, quiet: bool = False) -> None:
        """`quiet`: errors are shown, notices are not."""
        self._quiet = quiet
        self._out, self._err = _console(out), _console(err)
        self._answers = None if answers is None else _console(answers)
        self._held, self._holder = "", ""
        """The latest text of the agent in a run, which may be its answer, and its writer."""
        self._working = False
        self._typed = ""
        self.live = self._out.is_terminal and not self._out.is_dumb_terminal
        """True if there is a status line."""
        self._writer, self._form = "", Form()
        self._text = Blocks(whole_lines=True)
        self._live: Live | None = None
        self._spinner = Spinner("dots", style="dim")
        self._tasks: dict[str, tuple[str, float]] = {}

    def write(self, writer: str, text: str, form: Form = ANSWER) -> None:
        """Writes text that may continue the writer's line, and may end in the middle of a line."""
        if self._answers is not None and form == ANSWER:
            self._hold(writer, clean(text))
            return
        if (writer, form) != (self._writer, self._form):
            self.settle()
            self._writer, self._form = writer, form
            self._text = Blocks(whole_lines=not (form.markdown and self.live))
        for block in self._text.feed(clean(text)):
            self._show(block)

    def settle(self) -> None:
        """Ends the current text."""
        rest, self._writer, self._text = self._text.rest, "", Blocks(whole_lines=True)
        if rest:
            self._show(rest)

    def conclude(self) -> None:
        """Ends the texts of a run: what the agent wrote last is its answer."""
        self.settle()
        if self._answers is not None:
            self._release(self._answers)

    def _hold(self, writer: str, text: str) -> None:
        if writer != self._holder:
            self._release(self._out)
            self._holder = writer
        self._held += text

    def _release(self, place: Console) -> None:
        held, self._held, self._holder = self._held.strip("\n"), "", ""
        if held:
            place.print(Text(held), soft_wrap=True)

    def line(self, text: str, style: str = "") -> None:
        """Writes separate lines: of a run, or the answer of a command."""
        self.settle()
        self._place().print(Text(clean(text), style), soft_wrap=True)

    def question(self, title: str, lines: Sequence[str]) -> None:
        """Writes what is asked of the person."""
        self.settle()
        self._out.print(Text(clean(title), "yellow"), soft_wrap=True)
        self._out.print(Text(clean("\n".join(lines))), soft_wrap=True)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Writes rows of equally many cells, a line each: what is too long for the line is cut from the last cell."""
        self.settle()
        cleaned = [[clean(cell) for cell in row] for row in rows]
        widths = [max(map(cell_len, column)) for column in list(zip(*cleaned, strict=True))[:-1]]
        room = max(self._place().width - sum(widths) - 2 * len(widths), LEAST_CELL)
        for row in cleaned:
            cells = [set_cell_size(cell, width) for cell, width in zip(row, widths, strict=False)]
            last = row[-1] if cell_len(row[-1]) <= room else f"{set_cell_size(row[-1], room - 1).rstrip()}…"
            self._place().print(Text("  ".join([*cells, last]).rstrip()), soft_wrap=True)

    def _place(self) -> Console:
        """Returns where lines go: those of a run do not go to a program that wants its answer."""
        return self._answers if self._answers is not None and not self._working else self._out

    def notice(self, text: str, style: str = "") -> None:
        """Writes a line of the program, without ending the current text."""
        if not self._quiet:
            self._notice(text, style)

    def _notice(self, text: str, style: str) -> None:
        console = self._out if self._live is not None and self._err.is_terminal else self._err
        console.print(Text(clean(text), style), soft_wrap=True)

    def error(self, text: str) -> None:
        """Writes a notice of an error."""
        self._notice(f"error: {text}", "red")

    # ── status ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def working(self) -> Iterator[None]:
        """Shows the status line during the block, if the terminal supports it."""
        self._working = True
        try:
            with self._status() if self.live else nullcontext():
                yield
        finally:
            self._working = False

    @contextmanager
    def _status(self) -> Iterator[None]:
        self._tasks = {"": ("working", time.monotonic())}
        self._live = Live(
            _Changing(self._progress),
            console=self._out,
            transient=True,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        try:
            with self._live:
                yield
        finally:
            self._live = None

    def begin(self, task: str, text: str) -> None:
        """Adds a task to the status line, until its `end`. What the agent wrote before it is no answer."""
        self._release(self._out)
        self._tasks[task] = (clean(text), time.monotonic())

    def update(self, task: str, text: str) -> None:
        """Replaces the text of a task that has not ended."""
        if task in self._tasks:
            self._tasks[task] = (clean(text), self._tasks[task][1])

    def end(self, task: str) -> None:
        self._tasks.pop(task, None)

    def _progress(self) -> RenderableType:
        now = time.monotonic()
        tasks = list(self._tasks.values())[1:] or list(self._tasks.values())
        lines = (f"{text} {now - since:.0f} s" for text, since in tasks[-5:])
        self._spinner.update(text=Text("\n  ".join(lines), "dim", no_wrap=True, overflow="ellipsis"))
        typed = [Text(f"> {self._typed[-(self._out.width - 4) :]}▏", no_wrap=True)] if self._typed else []
        return Group(*self._unfinished(), self._spinner, *typed)

    def typed(self, text: str) -> None:
        """Shows what the person types below the status line."""
        self._typed = clean(text)
        if self._live is not None:
            self._live.refresh()

    def _unfinished(self) -> Iterator[RenderableType]:
        """Yields the incomplete text; its last lines, if it is long."""
        rest = self._text.rest
        if rest and (lines := rest.split("\n")):
            room = max(self._out.height - 8, 1)
            yield self._rendered(rest) if len(lines) <= room else Text("\n".join(lines[-room:]), "dim", no_wrap=True)

    # ── output ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _show(self, block: str) -> None:
        block = block.removesuffix("\n")
        self._out.print(self._rendered(block), soft_wrap=not self._form.markdown or not self.live)

    def _rendered(self, block: str) -> RenderableType:
        if self._form.markdown and self.live:
            return Group(markdown(block), "") if block.endswith("\n") else markdown(block)
        lines = (self._form.indent + line if line else "" for line in block.split("\n"))
        return Text("\n".join(lines), self._form.style)


class _Changing:
    """A renderable that is created anew whenever it is shown."""

    def __init__(self, make: Callable[[], RenderableType]) -> None:
        self._make = make

    def __rich__(self) -> RenderableType:
        return self._make()


class Blocks:
    """Splits streamed text where it can be printed for good: after lines, or between blocks of Markdown."""

    def __init__(self, *, whole_lines: bool) -> None:
        self._whole_lines = whole_lines
        self._lines: list[str] = []
        self._partial = ""
        self._fence = ""
        self._blank = False

    @property
    def rest(self) -> str:
        return "".join(self._lines) + self._partial

    def feed(self, text: str) -> Iterator[str]:
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            if self._whole_lines:
                yield f"{line}\n"
                continue
            if self._blank and not self._fence and line[:1].strip() and not self._continues(line):
                block, self._lines = "".join(self._lines), []
                yield block
            self._take(line)

    def _continues(self, line: str) -> bool:
        """Tells whether a line is an item of the current list."""
        return bool(_ITEM.match(line) and _ITEM.match(self._lines[0]))

    def _take(self, line: str) -> None:
        self._lines.append(f"{line}\n")
        self._blank = not line.strip()
        if match := _FENCE.match(line):
            if not self._fence:
                self._fence = match[1]
            elif line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
                self._fence = ""


def markdown(text: str) -> Markdown:
    """Returns Markdown that shows URLs and HTML literally, without hyperlinks."""
    renderable = Markdown("", hyperlinks=False, code_theme="ansi_dark")
    renderable.markup, renderable.parsed = text, _PARSER.parse(text)
    return renderable


class _Console(Console):
    """A console whose lost reader is a `BrokenPipeError`, as with `print`; rich ends the process by `SystemExit`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console(file: TextIO) -> Console:
    terminal = file.isatty()
    return _Console(
        file=unguarded(file),
        force_terminal=terminal,
        width=None if terminal else WIDE,
        markup=False,
        emoji=False,
        highlight=False,
    )
