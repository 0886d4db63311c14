"""Notes of an account's connection: the next process goes on where this one stopped, also after a kill."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from cachetools import LRUCache

from channels.discord.gateway import Session

REMEMBERED = 2000
log = structlog.get_logger("sika.channels.discord")


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """`seq`: the number of an event, up to which all are in custody. `newest`: the newest message of channels, and
    their servers."""

    bot: str = ""
    session: str = ""
    url: str = ""
    seq: int | None = None
    newest: Mapping[str, tuple[str, str]] = {}


class Progress:
    """The progress of an account: up to which event all are in custody."""

    def __init__(self) -> None:
        self.session = Session()
        self.newest: LRUCache[str, tuple[str, str]] = LRUCache(REMEMBERED)
        self.file: Path | None = None
        self._open: dict[int, None] = {}
        """Numbers of events that are not in custody yet, in their order."""
        self._saved: Note | None = None

    def begin(self, seq: int) -> None:
        self._open[seq] = None

    def end(self, seq: int) -> None:
        self._open.pop(seq, None)

    def load(self, bot: str) -> None:
        """Goes on where the last process of the same bot stopped."""
        note = Note()
        if self.file is not None:
            with suppress(OSError, msgspec.MsgspecError):  # none yet, or a broken one: a new session begins
                note = msgspec.json.decode(self.file.read_bytes(), type=Note)
        if note.bot == bot:
            self.session.id, self.session.url, self.session.seq = note.session, note.url, note.seq
            self.newest.update(note.newest)

    def save(self, bot: str) -> None:
        """Writes the note, if there is something new."""
        session, first = self.session, next(iter(self._open), None)
        seq = session.seq if first is None else first - 1
        note = Note(bot, session.id, session.url, seq, dict(self.newest))
        if self.file is None or note == self._saved:
            return
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self.file.with_suffix(".new")
            draft.write_bytes(msgspec.json.encode(note))
            draft.chmod(0o600)
            draft.replace(self.file)
            self._saved = note
        except OSError as error:
            log.warning("where the connection stands was not noted", reason=error.strerror)
