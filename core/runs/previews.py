"""Previews: the text of a message while the model writes it. A lost preview does no harm: the whole message follows as
an event.

Theory of operation
-------------------
A message is one line of text to a reader: its reasoning, then its content, then the argument text of each tool
call, in that order, unless the model sent them in another, which is then recorded with the message (`line_of`). A
preview is a piece of that line with its offset, so pieces can be lost, doubled or cut anywhere and a reader still
knows its position: it drops text that it has, shows text that follows directly, and waits where text is missing. When
the finished message arrives, the reader shows the rest of the line. So, whatever happens to the previews, a reader has
seen exactly the message in the end, once.

An answer can be given up: its worker froze or died and another one asks the model again, or the model failed. Its last
previews may arrive after that. So each preview names the newest fact that its writer knew when it asked the model. A
reader drops previews of answers that were begun before the run's newest start, answer or failure (`Run.turn_seq`), and
keeps those that are ahead of the facts it has until these come. The number of the attempt would not do: a model can
fail several times within one.

Pieces are coalesced: the first is sent at once (time to first token), later ones every `FLUSH_SECONDS`, and less often
in a busy process (`core.pace`), by one timer for all its runs.

Previews of a run at work in this process are handed to its readers here as they are. NATS gets all of them, for readers
elsewhere and for those that come later; from a busy process in bundles, `BUNDLE_SECONDS` later at most. The first piece
of a message is sent at once.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from core.bus.errors import ApiError
from core.config import redaction
from core.config.redaction import redactor
from core.errors import Invalid, Unavailable
from core.events import Json, Message
from core.pace import pace
from core.thread.messages import text_of

if TYPE_CHECKING:
    from core.bus.connection import Bus

log = structlog.get_logger("sika.previews")

T = TypeVar("T")

FLUSH_SECONDS = 0.04
FLUSH_CHARACTERS = 512
BUNDLE_SECONDS = 0.1
BUNDLE = 1000
"""Previews that wait for NATS at most."""
STORED_PAGE = 1000

Part = Literal["reasoning", "text", "call"]
_ORDER: Mapping[str, int] = {"reasoning": 0, "text": 1, "call": 2}


def flush_seconds() -> float:
    """Returns the time between two pieces. What was gathered when it was read is not gathered again."""
    return FLUSH_SECONDS + pace.seconds / 2


class Preview(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message: `text` at `offset` characters of its line. `index`, `call_id` and `name` say which tool
    call it belongs to.
    """

    message: str
    after: int
    """Log sequence of the newest fact of the thread that the writer knew when the message began."""
    offset: int
    text: str
    part: Part = "text"
    index: int = 0
    call_id: str | None = None
    name: str | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="progress", tag_field="kind"):
    """Output of a tool while it works."""

    call_id: str
    name: str
    text: str
    stage: bool = False
    """It is what the tool says that it does now, in place of what it said before: one line, and a line break."""


class RunPreview(NamedTuple):
    """A preview and its run. `stored`: it was published before the run's previews were followed."""

    run: str
    preview: Preview | Progress
    stored: bool = False


class Piece(msgspec.Struct, frozen=True):
    """A run of one part of a message's line."""

    part: Part
    text: str
    index: int = 0
    call_id: str | None = None
    name: str | None = None


def line_of(message: Message, call_texts: Mapping[str, str], order: Sequence[tuple[str, int, int]] = ()) -> list[Piece]:
    """Returns the whole line of a finished message. `order`: its parts as the model sent them, if unusual."""
    parts: dict[tuple[str, int], Piece] = {}
    if reasoning := message.get("additional_kwargs", {}).get("reasoning_content"):
        parts["reasoning", 0] = Piece("reasoning", str(reasoning))
    if text := text_of(message.get("content", "")):
        parts["text", 0] = Piece("text", text)
    for index, call in enumerate(message.get("tool_calls", ())):
        text = call_texts.get(call["id"]) or call_text(call["args"])
        parts["call", index] = Piece("call", text, index, call["id"], call["name"])
    return _reordered(parts, order) if order else list(parts.values())


def _reordered(parts: dict[tuple[str, int], Piece], order: Sequence[tuple[str, int, int]]) -> list[Piece]:
    """Returns the parts in the order they were sent, then the rest. A dropped part (an invalid call) is blank."""
    line = []
    for part, index, length in order:
        whole = parts.get((part, index))
        if whole is None:
            line.append(Piece("call", " " * length, index))
            continue
        line.append(msgspec.structs.replace(whole, text=whole.text[:length]))
        parts[part, index] = msgspec.structs.replace(whole, text=whole.text[length:], call_id=None, name=None)
    return line + [piece for piece in parts.values() if piece.text]


def rest_of(pieces: list[Piece], offset: int) -> Iterator[tuple[int, Piece]]:
    """Yields the line from an offset on, piece by piece, each with the offset of its end. A call that starts before the
    offset has no id and name.
    """
    end = 0
    for piece in pieces:
        start, end = end, end + len(piece.text)
        if offset <= start:
            yield end, piece
        elif offset < end:
            yield end, Piece(piece.part, piece.text[offset - start :], piece.index)


def call_text(args: Json) -> str:
    """Returns tool-call arguments as compact JSON, the form that most models send: it need not be stored twice."""
    return msgspec.json.encode(args).decode()


class Previewer:
    """The writer of one message's previews: takes the chunks of the model, publishes pieces."""

    def __init__(self, pump: Pump, run: str, message: str, after: int) -> None:
        self._pump = pump
        self._run = run
        self._message = message
        self._after = after
        self._offset = 0
        self._pending: list[Piece] = []
        self._size = 0
        self._parts: list[tuple[Part, int, int]] = []
        self._streams: dict[tuple[Part, int], redaction.Stream] = {}
        self._last: tuple[Part, int] | None = None
        self._sent_at = float("-inf")
        self._sending = asyncio.Lock()

    async def add(
        self, part: Part, text: str, *, index: int = 0, call_id: str | None = None, name: str | None = None
    ) -> None:
        """The next characters of a part, as the model sent them. What a secret may begin with is held back: the next
        characters of the part show it, or the finished message does.
        """
        if (before := self._last) is not None and before[0] != "call" and before != (part, index):
            await self._put(before[0], self._streams[before].end(), index=before[1])
        self._last = (part, index)
        text = self._streams.setdefault(self._last, redaction.Stream(redactor)).feed(text)
        await self._put(part, text, index=index, call_id=call_id, name=name)

    async def _put(
        self, part: Part, text: str, *, index: int = 0, call_id: str | None = None, name: str | None = None
    ) -> None:
        if not text and call_id is None and name is None:
            return
        if self._parts and self._parts[-1][:2] == (part, index):
            self._parts[-1] = (part, index, self._parts[-1][2] + len(text))
        else:
            self._parts.append((part, index, len(text)))
        last = self._pending[-1] if self._pending else None
        if last and (last.part, last.index) == (part, index) and call_id is None:
            self._pending[-1] = Piece(part, last.text + text, index, last.call_id, last.name)
        else:
            self._pending.append(Piece(part, text, index, call_id, name))
        self._size += len(text)
        clock = self._pump.clock()
        if self._size >= FLUSH_CHARACTERS or clock - self._sent_at >= flush_seconds():
            await self.flush()
        else:
            self._pump.later(self)

    async def flush(self) -> None:
        """Publishes the pending pieces. The start of a tool call waits for its first character: no piece is empty."""
        waiting = self._pending[-1:] if self._pending and not self._pending[-1].text else []
        pending, self._pending, self._size = self._pending[: len(self._pending) - len(waiting)], waiting, 0
        self._sent_at = self._pump.clock()
        previews = []
        for piece in pending:
            previews.append(
                Preview(
                    message=self._message,
                    after=self._after,
                    offset=self._offset,
                    text=piece.text,
                    part=piece.part,
                    index=piece.index,
                    call_id=piece.call_id,
                    name=piece.name,
                )
            )
            self._offset += len(piece.text)
        async with self._sending:
            for preview in previews:
                await self._pump.publish(self._run, preview)

    @property
    def order(self) -> list[tuple[str, int, int]]:
        """The parts in the order they came; empty if that is the usual order."""
        cut = any(self._streams[place] for place in self._streams if place != self._last)
        places = [(_ORDER[part], index) for part, index, _ in self._parts]
        return [] if not cut and all(a < b for a, b in pairwise(places)) else list(self._parts)


class Audience(Protocol):
    """Readers of previews in this process."""

    def hand(self, run: str, preview: Preview | Progress) -> None:
        """Takes a preview of a run at work here."""

    def moved(self, run: str, here: bool) -> None:
        """A run is at work here from now on, or goes on elsewhere."""


class Pump:
    """Publishes previews; one timer flushes all messages of the process."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._encoder = msgspec.json.Encoder()
        self._dirty: set[Previewer] = set()
        self._wake = asyncio.Event()
        self._here: set[str] = set()
        self._audiences: list[Audience] = []
        self._bundle: list[tuple[str, bytes]] = []
        self._bundled = asyncio.Event()
        self._sending = asyncio.Lock()
        self._timed = False
        self.clock = asyncio.get_running_loop().time

    def message(self, run: str, message: str, *, after: int) -> Previewer:
        """Returns the writer of a message that begins `after` this event of the thread."""
        return Previewer(self, run, message, after)

    def later(self, previewer: Previewer) -> None:
        self._dirty.add(previewer)
        self._wake.set()

    async def publish(self, run: str, preview: Preview | Progress) -> None:
        """Publishes a preview; to NATS, one that is too big for a message is lost."""
        raw = self._encoder.encode(preview)
        if run in self._here:
            for audience in self._audiences:
                audience.hand(run, preview)
        is_first = isinstance(preview, Preview) and not preview.offset
        bundles = bool(self._bundle) or self._sending.locked() or (self._timed and pace.seconds > 0)
        if is_first or not bundles:
            await self._send(run, raw)
            return
        self._bundle.append((run, raw))
        self._bundled.set()
        if len(self._bundle) >= BUNDLE:
            await self.send()

    async def send(self, *, stored: bool = False) -> None:
        """Sends what waits for NATS. `stored`: returns when NATS keeps it."""
        async with self._sending:
            bundle, self._bundle = self._bundle, []
            for number, (run, raw) in enumerate(bundle, 1):
                await self._send(run, raw, stored=stored and number == len(bundle))

    async def _send(self, run: str, raw: bytes, *, stored: bool = False) -> None:
        subject = self._bus.names.tok(run)
        try:
            await (self._bus.store(subject, raw) if stored else self._bus.publish(subject, raw))
        except (ApiError, Invalid, Unavailable) as error:
            log.debug("preview lost", error=str(error))

    async def progress(self, run: str, progress: Progress) -> None:
        await self.publish(run, progress)

    # ── readers in this process ─────────────────────────────────────────────────────────────────────────────────────

    def join(self, audience: Audience) -> None:
        """Hands an audience the previews of runs at work here, for as long as the process."""
        self._audiences.append(audience)

    def works_on(self, run: str) -> bool:
        """Tells whether a run is at work here: then its previews are handed over."""
        return run in self._here

    def begin(self, run: str) -> None:
        """A run is at work here from now on."""
        self._here.add(run)
        for audience in self._audiences:
            audience.moved(run, True)

    def end(self, run: str, *, over: bool) -> None:
        """A run is not at work here any more. Unless it is `over`, it goes on elsewhere, or later."""
        if run in self._here:
            self._here.discard(run)
            for audience in self._audiences if not over else ():
                audience.moved(run, False)

    # ── timers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs for as long as the process."""
        self._timed = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._flush_again())
                tasks.create_task(self._send_again())
        finally:
            self._timed = False

    async def _flush_again(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(flush_seconds())
            dirty, self._dirty = self._dirty, set()
            for previewer in dirty:
                await previewer.flush()

    async def _send_again(self) -> None:
        while True:
            await self._bundled.wait()
            await asyncio.sleep(BUNDLE_SECONDS)
            self._bundled.clear()
            await self.send()


_decoder = msgspec.json.Decoder(Preview)
_progress_decoder = msgspec.json.Decoder(Progress)


def decode(raw: bytes) -> Preview | Progress:
    """Decodes a message of the `tok` plane."""
    return _progress_decoder.decode(raw) if raw.startswith(b'{"kind"') else _decoder.decode(raw)


def decoded(raw: bytes) -> Preview | Progress | None:
    """Decodes a message like `decode`; None if it is no preview."""
    try:
        return decode(raw)
    except msgspec.DecodeError as error:
        log.debug("not a preview", error=str(error))
        return None


async def stored(bus: Bus, run: str) -> list[Preview | Progress]:
    """Returns the stored previews of a run; none if the memory stream is gone."""
    from core.bus.streams import direct_get  # readers of files load no bus

    previews: list[Preview | Progress] = []
    seq = 1
    try:
        while True:
            page, more = await direct_get(bus, "tok", bus.names.tok(run), seq, STORED_PAGE)
            previews += [preview for msg in page if (preview := decoded(msg.data))]
            if not more or not page:
                break
            seq = int((page[-1].headers or {})["Nats-Sequence"]) + 1
    except Unavailable as error:
        log.debug("no stored previews", error=str(error))
    return previews


def tag(message: str) -> str:
    """Returns eight hexadecimal digits that stand for a message's id in a cursor."""
    return f"{zlib.crc32(message.encode()):08x}"


AHEAD = 256


class Ahead(Generic[T]):
    """Previews that are ahead of the events a reader has, until these come. Holds at most `AHEAD`: the rest comes with
    its event.
    """

    def __init__(self) -> None:
        self._previews: list[T] = []

    def put(self, preview: T) -> None:
        if len(self._previews) < AHEAD:
            self._previews.append(preview)

    def take(self) -> list[T]:
        """Returns all of them; none is left."""
        previews, self._previews = self._previews, []
        return previews


class Reader:
    """The reader of one run's previews: returns the new part of each piece.

    A reader that resumes in the middle of a message has its `tag`, or (`tag` is empty) takes the next message for it.
    """

    def __init__(self, message: str | None = None, offset: int = 0, tag: str = "") -> None:
        self.message = message
        self.offset = offset
        self._tag = tag

    @property
    def tag(self) -> str:
        """Tag of the message being read; empty if it is unknown."""
        return tag(self.message) if self.message is not None else self._tag

    def position(self, message: str) -> int:
        """Returns the number of characters of a message that were read."""
        if self.message is None:
            return self.offset if self._tag in ("", tag(message)) else 0
        return self.offset if self.message == message else 0

    def take(self, preview: Preview) -> Preview | None:
        """Returns the new part of a preview; None if there is none, or if text before it is missing."""
        if preview.message != self.message:
            self.message, self.offset = preview.message, self.position(preview.message)
        end = preview.offset + len(preview.text)
        if preview.offset > self.offset or end <= self.offset:
            return None
        overlap = self.offset - preview.offset
        self.offset = end
        if not overlap:
            return preview
        return Preview(
            message=preview.message,
            after=preview.after,
            offset=preview.offset + overlap,
            text=preview.text[overlap:],
            part=preview.part,
            index=preview.index,
        )
