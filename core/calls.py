"""Questions to an actor that change nothing in the log: request and answer, with progress on the way.

The answer is preceded by any number of frames: progress, or a heartbeat every `HEARTBEAT_SECONDS`, so that an
answerer that died is told from one that is still at work. Nothing is stored: an asker that wants to be sure asks
again, with whatever key makes the question repeatable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import msgspec
import structlog
from nats.aio.msg import Msg

from core.bus import Bus
from core.errors import Invalid, SikaError, Unavailable

log = structlog.get_logger("sika.calls")

HEARTBEAT_SECONDS = 3.0
SILENCE_SECONDS = 10.0
"""An answerer that has not been heard for this long is given up."""
PROGRESS_SECONDS = 0.1
"""Progress is gathered this long before it is sent."""
ANSWER_BYTES = 900_000
"""Answers must fit a message; the server's limit is 1 MiB."""


class Declined(Unavailable):
    """Somebody answered, and cannot help now: asking again at once does not change that."""


Answer = Callable[[Mapping[str, Any], Callable[[str], Awaitable[None]]], Awaitable[Any]]


class _Frame(msgspec.Struct, omit_defaults=True):
    """One reply: exactly one of these. All empty: a heartbeat."""

    progress: str | None = None
    answer: msgspec.Raw = msgspec.Raw()
    error: tuple[str, str] | None = None
    """Code and text of a refusal."""


async def call(
    bus: Bus, actor: str, request: Mapping[str, Any], on_progress: Callable[[str], Awaitable[None]] | None = None
) -> Any:
    """Ask an actor. Raises `Invalid` with its words if it refuses, `Declined` if it cannot help now, `Unavailable` if
    nobody answers (any more).
    """
    subject = bus.names.call(actor)
    async with bus.ask_many(subject, msgspec.json.encode(request)) as replies:
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    msg = await replies.get()
            except TimeoutError as error:
                raise Unavailable(f"{actor}: no sign of life for {SILENCE_SECONDS:g} s") from error
            if msg.headers and msg.headers.get("Status") == "503":
                raise Unavailable(f"no {actor} actor is running")
            frame = msgspec.json.decode(msg.data, type=_Frame)
            if frame.error is not None:
                code, text = frame.error
                raise Declined(text) if code == Unavailable.code else Invalid(text)
            if frame.answer:
                return msgspec.json.decode(frame.answer)
            if frame.progress and on_progress is not None:
                await on_progress(frame.progress)


async def serve(bus: Bus, actor: str, answer: Answer) -> None:
    """Answer questions to an actor, until cancelled; processes that serve the same actor share the questions."""
    async with anyio.create_task_group() as tasks:

        async def on_question(msg: Msg) -> None:
            tasks.start_soon(_answer, bus, actor, answer, msg)

        subscription = await bus.subscribe(bus.names.call(actor), on_question, queue=actor)
        try:
            await anyio.sleep_forever()
        finally:
            await subscription.unsubscribe()


async def _answer(bus: Bus, actor: str, answer: Answer, msg: Msg) -> None:
    """One question: the actor's answer, with a sign of life as long as it takes."""
    pending: list[str] = []

    async def progress(text: str) -> None:
        pending.append(text)

    async def alive() -> None:
        quiet = 0.0
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            quiet += PROGRESS_SECONDS
            if pending or quiet >= HEARTBEAT_SECONDS:
                text, quiet = "".join(pending), 0.0
                pending.clear()
                await bus.publish(msg.reply, msgspec.json.encode(_Frame(progress=text or None)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alive)
        frame = await _frame(actor, answer, msg, progress)
        tasks.cancel_scope.cancel()
    if pending:
        await bus.publish(msg.reply, msgspec.json.encode(_Frame(progress="".join(pending))))
    try:
        await bus.publish(msg.reply, msgspec.json.encode(frame))
    except Unavailable as error:
        log.warning("answer lost", actor=actor, error=str(error))


async def _frame(actor: str, answer: Answer, msg: Msg, progress: Callable[[str], Awaitable[None]]) -> _Frame:
    try:
        request = msgspec.json.decode(msg.data, type=dict[str, Any])
        raw = msgspec.json.encode(await answer(request, progress))
        if len(raw) > ANSWER_BYTES:
            raise Invalid(f"{actor}: the answer has {len(raw)} bytes, more than {ANSWER_BYTES}")
        return _Frame(answer=msgspec.Raw(raw))
    except SikaError as error:
        return _Frame(error=(error.code, str(error)))
    except msgspec.DecodeError as error:
        return _Frame(error=(Invalid.code, f"{actor}: not a JSON object: {error}"))
    except Exception:
        log.exception("question failed", actor=actor)
        return _Frame(error=(Invalid.code, f"{actor}: internal error; see the server's log"))
