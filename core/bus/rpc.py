"""Requests to an actor that change nothing in the log: request and answer, with progress on the way.

The answer is preceded by any number of frames: progress, or a heartbeat every `HEARTBEAT_SECONDS`, by which a caller
tells a dead actor from a busy one. Nothing is stored: a caller that needs certainty retries, with a key that makes the
request repeatable.

Progress is for people who watch: it is cut into pieces that fit a message, and at most the newest
`PROGRESS_CHARACTERS` per interval are sent. Each request is answered in a task of its own, which ends alone after any
error; the loop that takes requests outlives all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import msgspec
import structlog

from core.bus.connection import Bus
from core.bus.errors import BusUnavailable
from core.config.redaction import redactor
from core.control import sendable
from core.errors import BY_CODE, Internal, Invalid, SikaError, Unavailable, contained, family_of
from core.nesting import VALUE_LEVELS, too_deep

if TYPE_CHECKING:
    from nats.aio.msg import Msg

T = TypeVar("T")

log = structlog.get_logger("sika.calls")

HEARTBEAT_SECONDS = 3.0
SILENCE_SECONDS = 10.0
"""Timeout of the next frame."""
PROGRESS_SECONDS = 0.1
"""Interval in which progress is gathered before it is sent."""
PROGRESS_CHARACTERS = 32_768
"""Limit of progress in an interval; as JSON at most six bytes each (`\\u0000`), which fits the server's 1 MiB."""
ANSWER_BYTES = 900_000
"""Answers must fit a message; the server's limit is 1 MiB."""
ERROR_CHARACTERS = 32_768
"""Limit of the text of an error, as of progress."""
ANSWER_SECONDS = 3600.0
"""Timeout of an answer: longer than any command may take."""
MAX_REQUESTS = 1000
"""Limit of requests that a process answers at once; others are declined."""
TOO_DEEP = f"nested too deeply, more than {VALUE_LEVELS} levels"


class Declined(Unavailable):
    """The actor answered that it cannot help now: an immediate retry is useless."""


class Silent(BusUnavailable):
    """A process may have taken the request, and fell silent: the outcome is unknown."""


class Disrupted(Silent):
    """The process that took the request does not reach NATS: the outcome is unknown."""


Answer = Callable[[Mapping[str, Any], Callable[[str], Awaitable[None]]], Awaitable[Any]]


class _Frame(msgspec.Struct, omit_defaults=True):
    """A reply, in which exactly one field is set; a heartbeat has none."""

    progress: str | None = None
    answer: msgspec.Raw = msgspec.Raw()
    error: tuple[str, str] | None = None
    """Code and text of an error."""
    family: str | None = None
    """Code of the error's class in `BY_CODE`, where it is not the error's own. Older versions do not name it."""
    disrupted: bool = False
    """The error is that the actor did not reach NATS."""


async def call(
    bus: Bus,
    actor: str,
    request: Mapping[str, Any],
    on_progress: Callable[[str], Awaitable[None]] | None = None,
    on_sign: Callable[[], None] | None = None,
) -> Any:
    """Sends a request to an actor and returns its answer. `on_sign` is called at each sign of life.

    It may take `ANSWER_SECONDS`, as long as signs of life come.

    Raises the actor's error, with its code: `Invalid`, `NotFound`, `Refused`, `Declined` (it cannot help now),
    `Internal` (a defect of the actor). Raises `Silent` if no frame arrives in time, `Disrupted` if the actor does not
    reach NATS, `Unavailable` if no such actor runs.
    """
    subject = bus.names.call(actor)
    async with bus.ask_many(subject, msgspec.json.encode(request)) as replies:
        until = asyncio.get_running_loop().time() + ANSWER_SECONDS + SILENCE_SECONDS
        while True:
            msg = await _frame_of(actor, replies, until)
            if msg.headers and msg.headers.get("Status") == "503":
                raise Unavailable(f"no {actor} actor is running")
            try:
                frame = msgspec.json.decode(msg.data, type=_Frame)
            except msgspec.DecodeError as error:
                log.warning("not an answer", actor=actor, error=str(error))
                continue
            if frame.disrupted and frame.error is not None:
                raise Disrupted(frame.error[1])
            if on_sign is not None:
                on_sign()
            if frame.error is not None:
                raise _raised(*frame.error, frame.family)
            if frame.answer:
                return msgspec.json.decode(frame.answer)
            if frame.progress and on_progress is not None:
                await on_progress(frame.progress)


async def _frame_of(actor: str, replies: asyncio.Queue[Msg], until: float) -> Msg:
    """Returns the next frame. Raises `Silent` if none arrives in time, or a time of the loop's clock has come."""
    if asyncio.get_running_loop().time() > until:
        raise Silent(f"{actor}: no answer within {ANSWER_SECONDS:g} s")
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            return await replies.get()
    except TimeoutError as error:
        raise Silent(f"{actor}: no sign of life for {SILENCE_SECONDS:g} s") from error


def _raised(code: str, text: str, family: str | None) -> SikaError:
    """Returns the error that the actor raised; `Invalid` for an unknown code without a family."""
    cls = BY_CODE.get(family or code, Invalid)
    error = Declined(text) if cls is Unavailable else cls(text)
    error.code = code
    return error


def _refusal(error: SikaError) -> _Frame:
    """Returns the frame of an error."""
    cls = family_of(error)
    code = Internal.code if cls is Internal else error.code
    text = redactor.text(sendable(str(error)))
    if len(text) > ERROR_CHARACTERS:
        text = f"{text[:ERROR_CHARACTERS]} ... [{len(text) - ERROR_CHARACTERS} characters not shown]"
    family = cls.code if cls.code != code else None
    return _Frame(error=(code, text), family=family, disrupted=isinstance(error, BusUnavailable))


async def serve(bus: Bus, actor: str, answer: Answer, until: Callable[[], Awaitable[object]] | None = None) -> None:
    """Answers an actor's requests, until cancelled; processes that serve the same actor share its requests. When
    `until` returns, it takes no more of them, and ends after the last answer.
    """
    slots = anyio.Semaphore(MAX_REQUESTS)
    async with anyio.create_task_group() as tasks:

        async def guarded(msg: Msg) -> None:
            try:
                await _answer(bus, actor, answer, msg)
            except Exception:
                log.exception("question failed", actor=actor)
            finally:
                slots.release()

        async def on_request(msg: Msg) -> None:
            try:
                slots.acquire_nowait()
            except anyio.WouldBlock:
                busy = Unavailable(f"{actor}: {MAX_REQUESTS} questions are being answered")
                await _send(bus, actor, msg, _refusal(busy))
                return
            tasks.start_soon(guarded, msg)

        subscription = await bus.subscribe(bus.names.call(actor), on_request, queue=actor)
        try:
            await (until or anyio.sleep_forever)()
        finally:
            if not bus.nc.is_closed:
                await subscription.unsubscribe()


async def _answer(bus: Bus, actor: str, answer: Answer, msg: Msg) -> None:
    """Sends the actor's answer to a request, with signs of life until then."""
    if not msg.reply:
        log.warning("a question without an address for its answer", actor=actor, bytes=len(msg.data))
        return
    progress = _Progress()

    async def alive() -> None:
        while True:  # until there is a frame
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                await progress.some.wait()
                await asyncio.sleep(PROGRESS_SECONDS)
            await _send(bus, actor, msg, _Frame(progress=progress.take() or None))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alive)
        frame = await _frame(actor, answer, msg, progress.add)
        tasks.cancel_scope.cancel()
    if progress:
        await _send(bus, actor, msg, _Frame(progress=progress.take()))
    await _send(bus, actor, msg, frame)


async def _send(bus: Bus, actor: str, msg: Msg, frame: _Frame) -> None:
    try:
        await bus.publish(msg.reply, msgspec.json.encode(frame))
    except Unavailable as error:
        log.warning("answer lost", actor=actor, error=str(error))


class _Progress:
    """Progress of an interval: the newest characters, and the number of those left out."""

    def __init__(self) -> None:
        self.some = asyncio.Event()
        """Set while there is any."""
        self._texts: list[str] = []
        self._characters = 0
        self._left_out = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    async def add(self, text: str) -> None:
        self.some.set()
        self._texts.append(sendable(text))
        self._characters += len(text)
        if self._characters > 2 * PROGRESS_CHARACTERS:
            self._cut()

    def take(self) -> str:
        self._cut()
        note = f"\n... [{self._left_out} characters not shown] ...\n" if self._left_out else ""
        text = note + "".join(self._texts)
        self._texts, self._characters, self._left_out = [], 0, 0
        self.some.clear()
        return text

    def _cut(self) -> None:
        if self._characters > PROGRESS_CHARACTERS:
            text = "".join(self._texts)
            self._left_out += len(text) - PROGRESS_CHARACTERS
            self._texts, self._characters = [text[-PROGRESS_CHARACTERS:]], PROGRESS_CHARACTERS


def sendable_value(value: T) -> T:
    """Returns a JSON value whose texts are `sendable`; the same object if they all are. Raises `ValueError` if it has
    more than `VALUE_LEVELS`.
    """
    return encoded(value)[0]


def encoded(value: T) -> tuple[T, bytes]:
    """Returns what `sendable_value` returns, and its JSON."""
    try:
        try:
            raw = msgspec.json.encode(value, enc_hook=str)
        except UnicodeEncodeError:
            raw = sendable(json.dumps(value, ensure_ascii=False, default=str)).encode()
            value = cast(T, json.loads(raw))
    except RecursionError:  # as late as at 10 000 levels, from Python 3.12 on
        raise ValueError(TOO_DEEP) from None
    if too_deep(raw, VALUE_LEVELS):
        raise ValueError(TOO_DEEP)
    return value, raw


async def _frame(actor: str, answer: Answer, msg: Msg, progress: Callable[[str], Awaitable[None]]) -> _Frame:
    try:
        request = msgspec.json.decode(msg.data, type=dict[str, Any])
        async with asyncio.timeout(ANSWER_SECONDS):
            with contained():
                response = await answer(request, progress)
            raw = redactor.json(msgspec.json.encode(response))
        if len(raw) > ANSWER_BYTES:
            raise Invalid(f"{actor}: the answer has {len(raw)} bytes, more than {ANSWER_BYTES}")
        return _Frame(answer=msgspec.Raw(raw))
    except SikaError as error:
        if family_of(error) is Internal:
            log.error("question failed", actor=actor, error=str(error), kind=type(error).__name__)
        return _refusal(error)
    except msgspec.DecodeError as error:
        return _refusal(Invalid(f"{actor}: not a JSON object: {error}"))
    except Exception:
        log.exception("question failed", actor=actor)
        return _refusal(Internal(f"{actor}: internal error; see the server's log"))
