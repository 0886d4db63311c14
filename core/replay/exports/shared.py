"""The folder of bodies that the pins beside it share, by their hash: bodies outside of the log, prompts and tools."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from core.errors import Invalid

FOLDER = "shared"
_HASH = re.compile(r"[0-9a-f]{64}")


class Shared:
    """Bodies that are to be shared, held until `write`. `most`: their limit in bytes."""

    def __init__(self, beside: Path, most: int | None = None) -> None:
        self._folder = beside.parent / FOLDER
        self._most = most
        self._bodies: dict[str, bytes] = {}

    def add(self, sha256: str, body: bytes) -> None:
        """Takes a body. Raises `Invalid` if they are too many."""
        self._bodies[sha256] = body
        if self._most is not None and sum(map(len, self._bodies.values())) > self._most:
            raise Invalid(
                f"what is shared has more than {self._most >> 10} KiB; pin a shorter run (--until), or say --big"
            )

    def write(self) -> None:
        """Writes the bodies that are not there yet. Blocks."""
        for sha256, body in self._bodies.items():
            self._folder.mkdir(exist_ok=True)
            path = self._folder / f"{sha256}.json"
            if not path.exists():
                part = path.with_suffix(".part")
                part.write_bytes(body)
                part.replace(path)


def publish(draft: Path, path: Path) -> None:
    """Moves a pin and the bodies beside it into another folder of the file system, the pin last. Blocks."""
    folder = path.parent / FOLDER
    for body in (draft.parent / FOLDER).glob("*.json"):
        folder.mkdir(exist_ok=True)
        body.replace(folder / body.name)
    draft.replace(path)


def body_of(beside: Path, sha256: str) -> bytes | None:
    """Returns a body of the folder beside a pin; None if it is not there. Blocks."""
    if _HASH.fullmatch(sha256):
        with suppress(FileNotFoundError):
            return (beside.parent / FOLDER / f"{sha256}.json").read_bytes()
    return None
