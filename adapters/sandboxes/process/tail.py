"""Follows the output files of a running command as text."""

from __future__ import annotations

import codecs
from pathlib import Path

LIMIT = 256 << 10
"""Limit of bytes of a file that are shown while it grows; the result has all."""


class Tail:
    """Guarantees: every byte of the first `LIMIT` once and in order per file, characters never cut. Non-guarantee: the
    order between files.
    """

    def __init__(self, *paths: Path) -> None:
        self._files = [_File(path) for path in paths]

    def more(self) -> str:
        """Returns the text added since the last call."""
        return "".join(file.more() for file in self._files)


class _File:
    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> str:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(LIMIT - self._offset)
        except FileNotFoundError:
            return ""
        self._offset += len(data)
        return self._decoder.decode(data)
