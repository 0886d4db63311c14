"""Follows the output files of a running command as text."""

from __future__ import annotations

import codecs
from pathlib import Path


class Tail:
    """Guarantees: every byte once and in order per file, characters never cut. Non-guarantee: order between files."""

    def __init__(self, *paths: Path) -> None:
        self._files = [_File(path) for path in paths]

    def more(self) -> str:
        """What was added since the last time. Bounded, because the files are (`supervisor.HEAD`, `TAIL`)."""
        return "".join(file.more() for file in self._files)


class _File:
    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> str:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return ""
        self._offset += len(data)
        return self._decoder.decode(data)
