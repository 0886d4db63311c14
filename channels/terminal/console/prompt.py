"""Lines that a person types at a terminal, with a history and completions."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from channels.terminal.console.interrupts import Stopped
from channels.terminal.console.typed import TypedLine, reading
from channels.terminal.text import one_line

MAX_HISTORY_BYTES = 1 << 20
COMPLETE_SECONDS = 3.0

Words = Callable[[str], Awaitable[Sequence[tuple[str, str]]]]
"""Returns the words that can follow a command, with what each is; after `/` alone, the commands that are no commands of
the terminal: skills. Raises nothing.
"""


class Prompt:
    """Lines at a terminal. Enter sends them; Alt-Enter, or Enter after a backslash, begins another line."""

    def __init__(self, history: Path | None, completions: Completer) -> None:
        output = None if sys.stdout.isatty() else create_output(always_prefer_tty=True)
        self._lines: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=completions,
            complete_while_typing=False,
            key_bindings=_bindings(),
            multiline=True,
            prompt_continuation="  ",
            output=output,
        )
        self._answers: PromptSession[str] = PromptSession(output=output)
        self._output = output
        self._begun = ""
        """The beginning of the next message."""

    async def line(self, prompt: str) -> str | None:
        begun, self._begun = self._begun, ""
        return await _prompt_line(self._lines, prompt, begun)

    async def answer(self, prompt: str) -> str | None:
        return await _prompt_line(self._answers, prompt)

    async def secret(self, prompt: str) -> str | None:
        return await _prompt_line(PromptSession(is_password=True, output=self._output), prompt)

    def forget(self) -> None:
        clear_typeahead(self._lines.input)
        with suppress(termios.error):
            termios.tcflush(self._lines.input.fileno(), termios.TCIFLUSH)

    @contextmanager
    def while_working(
        self, shown: Callable[[str], None], entered: Callable[[str], None], stopped: Callable[[], None]
    ) -> Iterator[None]:
        line = TypedLine(shown, entered, stopped)
        with reading(self._lines.input, line):
            yield
        self.begin(line.text)

    def begin(self, text: str) -> bool:
        self._begun = "\n".join(filter(None, (self._begun, text)))
        return True


async def _prompt_line(session: PromptSession[str], prompt: str, begun: str = "") -> str | None:
    try:
        return await session.prompt_async(prompt, default=begun, handle_sigint=False)
    except EOFError:
        return None
    except KeyboardInterrupt:
        raise Stopped from None


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    return bindings


class Completions(Completer):
    """Completes commands and what can follow them, and files after an `@`."""

    def __init__(self, commands: Sequence[str], words: Words) -> None:
        self._commands = commands
        self._words = words
        self._files = ThreadedCompleter(PathCompleter(expanduser=True))

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Returns nothing: completion is asynchronous only."""
        return iter(())

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        before = document.text_before_cursor
        word = before.rpartition(" ")[2].rpartition("\n")[2]
        if word.startswith("@"):
            path = Document(word.removeprefix("@").removeprefix('"'))
            async for completion in self._files.get_completions_async(path, complete_event):
                yield completion
        elif before.startswith("/") and word == before:
            for command in self._commands:
                if command.startswith(before):
                    yield Completion(command, -len(before))
            async for completion in self._named("/", word):
                yield completion
        elif before.startswith("/") and before == f"{(command := before.partition(' ')[0])} {word}":
            async for completion in self._named(command, word):
                yield completion

    async def _named(self, command: str, word: str) -> AsyncGenerator[Completion, None]:
        """Yields the words after a command that begin so, with what each is."""
        names: Sequence[tuple[str, str]] = ()
        with anyio.move_on_after(COMPLETE_SECONDS):
            names = await self._words(command)
        for name, about in names:
            if name.startswith(word):
                title = one_line(about, 60)
                yield Completion(name, -len(word), display=title or name, display_meta=name if title else "")


def _history(path: Path | None) -> History:
    """Returns the history in a private file; in memory if the file cannot be used."""
    if path is None:
        return InMemoryHistory()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)
        if path.stat().st_size > MAX_HISTORY_BYTES:
            tail = path.read_bytes()[-MAX_HISTORY_BYTES // 2 :]
            path.write_bytes(tail[max(tail.find(b"\n# "), 0) :])
    except OSError:
        return InMemoryHistory()
    return _Stored(path)


class _Stored(FileHistory):
    """A history whose lines are in memory only while the file cannot be written, as on a full disk, and if they hold
    the value of a variable.
    """

    def store_string(self, string: str) -> None:
        if string.startswith("/env ") and "=" in string:
            return
        with suppress(OSError):
            super().store_string(string)
