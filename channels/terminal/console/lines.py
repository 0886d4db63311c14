"""Input of a person: what a conversation reads its lines from, one answer at a terminal, and the lines of a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Protocol

import anyio

from core.errors import Invalid

MAX_PIPED_BYTES = 4 << 20
PIPE_SECONDS = 3.0
"""Timeout of a silent pipe, after which a message goes without its content."""


class Lines(Protocol):
    """Source of a conversation's messages. None is the end; Ctrl-C raises `Stopped`."""

    async def line(self, prompt: str) -> str | None:
        """Reads a message or a command."""
        ...

    async def answer(self, prompt: str) -> str | None:
        """Reads an answer to a question."""
        ...

    async def secret(self, prompt: str) -> str | None:
        """Reads an answer that is not shown."""
        ...

    def forget(self) -> None:
        """Drops typeahead: text typed before a question is no answer to it."""
        ...

    def while_working(
        self, shown: Callable[[str], None], entered: Callable[[str], None], stopped: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """Reads lines during the block: `shown` gets what is typed after each key, `entered` each line."""
        ...

    def begin(self, text: str) -> bool:
        """Begins the next message with a text; returns whether the person can edit it."""
        ...


async def ask(question: str, default: str, secret: bool) -> str:
    """Reads an answer at a terminal; a secret is not shown. Raises `KeyboardInterrupt` at Ctrl-C and Ctrl-D."""
    from prompt_toolkit import PromptSession  # takes 0.2 s

    prompt = f"{question} [{default}]: " if default else f"{question}: "
    try:
        return await PromptSession[str]().prompt_async(prompt, is_password=secret, handle_sigint=False) or default
    except EOFError:
        raise KeyboardInterrupt from None


class Piped:
    """The lines of a standard input that is no terminal."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._buffer = b""

    async def line(self, prompt: str) -> str | None:
        while b"\n" not in self._buffer:
            if not (chunk := await _chunk(self._fd)):
                rest, self._buffer = self._buffer, b""
                return rest.decode(errors="replace") or None
            self._buffer += chunk
            if len(self._buffer) > MAX_PIPED_BYTES:
                raise Invalid(f"standard input: a line has more than {MAX_PIPED_BYTES >> 20} MiB")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    answer = secret = line

    def forget(self) -> None:
        """Does nothing: the lines of a pipe are answers."""

    def while_working(
        self, shown: Callable[[str], None], entered: Callable[[str], None], stopped: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """Does nothing: a line of a pipe waits until the one before it is answered."""
        return nullcontext()

    def begin(self, text: str) -> bool:
        """Does nothing: the lines of a pipe are as they are."""
        return False


async def piped(fd: int = 0) -> str:
    """Reads all of a standard input that is no terminal; returns an empty text if it stays silent, and says so."""
    content = bytearray()
    with anyio.move_on_after(PIPE_SECONDS) as silence:
        while chunk := await _chunk(fd):
            silence.deadline = float("inf")
            content += chunk
            if len(content) > MAX_PIPED_BYTES:
                raise Invalid(
                    f"standard input: more than {MAX_PIPED_BYTES >> 20} MiB; use a file, and name it as @file"
                )
    if silence.cancelled_caught:
        print(f"standard input is silent for {PIPE_SECONDS:g} s: the message goes without it", file=sys.stderr)
    return content.decode(errors="replace")


async def _chunk(fd: int) -> bytes:
    """Waits for bytes and reads them; returns none at the end."""
    with suppress(PermissionError):  # a file, or a device like /dev/null: it is always readable
        await anyio.wait_readable(fd)
    return os.read(fd, 65536)
