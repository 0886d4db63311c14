"""The port of a batch's files: its input, and the table of its results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

MAX_BYTES = 32 << 20
"""Limit of bytes of an input."""


class BatchFiles(Protocol):
    """Files of a thread by their virtual paths. They never leave its folder, whatever links the agent makes. Refusals
    are `Invalid`, fit for the model.
    """

    async def read(self, user: str, thread: str, path: str) -> bytes: ...

    async def glob(self, user: str, thread: str, pattern: str, limit: int) -> list[str]:
        """Returns the files of an absolute pattern, in order; at most `limit`."""
        ...

    async def append(self, user: str, thread: str, path: str, line: bytes) -> None:
        """Adds a line to an existing file."""
        ...

    async def replace(self, user: str, thread: str, path: str, lines: Iterable[bytes]) -> None:
        """Makes a file, or replaces it as a whole."""
        ...
