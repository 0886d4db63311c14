"""The folder that a person lets the agent work on: asked once for each folder, and remembered in the data directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from core import reasons
from core.errors import Invalid

Access = Literal["read-write", "read-only"]
FILE = "folders.json"
_WORDS: Mapping[Access, str] = {"read-write": "read and write", "read-only": "read, and change nothing"}


class Here(NamedTuple):
    """A folder to work on, and the patterns of secrets that are readable there."""

    path: str
    access: Access = "read-write"
    show: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return f"{self.path} ({_WORDS[self.access]})"


class Consent(msgspec.Struct, frozen=True):
    """A person's consent for a folder, with its time."""

    access: Access
    at: str
    show: tuple[str, ...] = ()

    def covers(self, here: Here) -> bool:
        return self.access in ("read-write", here.access) and set(here.show) <= set(self.show)


class Consents:
    """The folders that a person agreed to, in a private file of the data directory."""

    def __init__(self, home: Path) -> None:
        self._place = home / FILE

    def all(self) -> dict[str, Consent]:
        """Returns the consents by folder. Raises `Invalid` for a file that cannot be read."""
        try:
            return msgspec.json.decode(self._place.read_bytes(), type=dict[str, Consent])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            reason = reasons.of_file(error) if isinstance(error, OSError) else "is no list of folders"
            raise Invalid(f"{self._place}: {reason}; remove it to be asked again") from None

    def covers(self, here: Here) -> bool:
        consent = self.all().get(here.path)
        return consent is not None and consent.covers(here)

    def agree(self, here: Here) -> None:
        """Remembers a consent, in the place of an earlier one for the folder."""
        with self._changed() as consents:
            consents[here.path] = Consent(here.access, datetime.now(UTC).isoformat(timespec="seconds"), here.show)

    def forget(self, path: str) -> bool:
        """Forgets a consent. Returns False if there was none."""
        with self._changed() as consents:
            return consents.pop(path, None) is not None

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Consent]]:
        self._place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._place.with_suffix(".lock"), "a") as lock:
            flock(lock, LOCK_EX)
            consents = self.all()
            yield consents
            draft = self._place.with_suffix(".part")
            with suppress(FileNotFoundError):
                draft.unlink()
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(consents), indent=1) + b"\n")
            draft.replace(self._place)


def question(here: Here) -> str:
    """Returns the question whether the agent may work on a folder."""
    shown = f" It reads {', '.join(here.show)}, too." if here.show else ""
    return (
        f"May the agent {_WORDS[here.access]} in {here.path}? It works there in the talks that you begin with --here. "
        f"Files that look like secrets (.env, keys) stay hidden.{shown} You are asked once."
    )


def is_yes(answer: str | None) -> bool:
    return (answer or "").strip().lower() in ("y", "yes")
