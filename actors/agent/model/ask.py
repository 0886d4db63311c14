"""Asks models for an answer, with retries and fallbacks (DeerFlow's LLMErrorHandling), and streams it as previews."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

import anyio
import msgspec
import structlog
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.errors import GraphBubbleUp

from actors.agent.messages.content import without_images
from actors.agent.model.answer import completed, redacted
from actors.agent.model.assembly import Assembly
from actors.agent.model.caching import with_cache_marks
from actors.agent.model.failures import address, classify, pause_ms, status_of, unreachable, without_address
from actors.agent.model.refusals import text_of_error
from actors.agent.run.attempt import Attempt, Candidate, VisibleFailure
from actors.agent.run.breaker import Breaker
from core.config.redaction import redactor
from core.errors import SikaError
from core.events import ModelCompleted, ModelFailed
from core.ids import uuid7
from core.ports.models import BEFORE_REQUEST, AnswerTooLong, Piece
from core.thread.messages import text_of
from core.thread.usage import ANSWERED_BY

log = structlog.get_logger("sika.agent")

Ask = Callable[[Sequence[BaseMessage]], AsyncIterator[AIMessage | Piece]]
Bind = Callable[[BaseChatModel], Ask]
log = structlog.get_logger("sika.agent")

E = TypeVar("E", bound=BaseException)

CONTEXT = "context"
"""The class of a refusal for a request's length."""
MOST_TEXT = 2000
"""Limit of an error's text, in characters."""
_APOLOGIES = {
    "quota": "The model's provider says that the quota is used up. Please check the provider's plan and billing.",
    "auth": "The model's provider did not accept the server's credentials. Please check the model's API key.",
    "transient": "The model did not answer, and several tries did not help. Please try again in a while.",
    "context": "This conversation is too long for the model, and could not be made shorter. Please have it summarised "
    "(/compact), set `models[].context_window`, or begin a new one.",
    "busy": "The model's provider is too busy to answer right now. Please try again in a while.",
    "circuit_open": "The model has failed several times in a row and is left alone for a moment. Please try again.",
    "generic": "The model's provider refused the request. The run's error says why.",
}


class ModelGaveUp(VisibleFailure):
    """No candidate answered. `error` is the class of the last error, `reason` as in `model.failed`. `model` is the
    configured name of the last candidate.
    """

    code = "model_failed"

    def __init__(self, error: str, text: str, reason: str, model: str = "") -> None:
        apology = _APOLOGIES.get(reason, _APOLOGIES["generic"])
        super().__init__(text, error=error, apology=apology, reason=reason)
        self.model = model


async def answered(
    attempt: Attempt, candidates: Sequence[Candidate], bind: Bind, messages: Sequence[BaseMessage]
) -> ModelCompleted:
    """Returns the answer of the first candidate that gives one. Raises `ModelGaveUp` if none does."""
    for place, candidate in enumerate(candidates):
        rest = candidates[place + 1 :]
        try:
            visible = [without_images(message) for message in messages] if candidate.blind else messages
            visible = with_cache_marks(visible, candidate.model)
            answer = await _with_retries(attempt, candidate, bind(candidate.model), visible, last=not rest)
        except ModelGaveUp as failure:
            if not rest or (attempt.shortens and failure.reason == CONTEXT):
                raise
            why = f"{candidate.name} → {rest[0].name}: {failure}"[:500]
            attempt.decide("failover", "switched", why)
            continue
        if place:
            answer.message.setdefault("response_metadata", {})[ANSWERED_BY] = candidate.name
        return answer
    raise AssertionError("the last candidate answers or raises")


async def _with_retries(
    attempt: Attempt, candidate: Candidate, ask: Ask, messages: Sequence[BaseMessage], *, last: bool
) -> ModelCompleted:
    """Returns one model's answer, after retries. Raises `ModelGaveUp`; at once while its circuit is open."""
    breaker, attempts = candidate.breaker, attempt.config.runs.max_model_attempts
    admitted = breaker.admit(time.monotonic())
    if admitted is None:
        down = _down(breaker)
        raise await _given_up(attempt, candidate, down, last=last)
    try:
        for number in range(1, attempts + 1):
            try:
                answer = await _ask(attempt, ask, messages)
            except (SikaError, GraphBubbleUp):
                raise
            except Exception as raised:
                if refused := _caused(raised, SikaError):
                    raise refused from None
                error = _caused(raised, AnswerTooLong) or raised
                reason, retriable = classify(error)
                if reason == "generic" and status_of(error) is None:
                    log.warning("model failed", model=candidate.name, exc_info=error)  # its class has a defect
                failed = _failure(candidate, error, reason, number, attempts, again=retriable and number < attempts)
                if failed.wait_ms is None:
                    breaker.failed(admitted, time.monotonic(), retriable=retriable)
                    raise await _given_up(attempt, candidate, failed, last=last) from error
                await _record(attempt, candidate, failed)
                await asyncio.sleep(failed.wait_ms / 1000)
            else:
                breaker.succeeded(admitted)
                return answer
        raise AssertionError("the last try returns or raises")
    finally:
        breaker.freed(admitted)


def _caused(error: BaseException, kind: type[E]) -> E | None:
    """Returns the error of `BEFORE_REQUEST`, or of a connection, which transports and SDKs wrap in theirs."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__
    return cause


def _failure(
    candidate: Candidate, error: Exception, reason: str, attempt: int, attempts: int, *, again: bool
) -> ModelFailed:
    """Returns the event of a failed attempt; without `wait_ms` if there is no other attempt. People read it: where the
    model is, the process's log says, for its operator.
    """
    where, text = address(error, candidate.model), redactor.text(_text(error))
    log.warning("a model call failed", model=candidate.name, asked=redactor.text(where), error=text[:MOST_TEXT])
    text = redactor.text(unreachable(error) or without_address(text, error, candidate.model))
    text = f"{text[:MOST_TEXT]} (model {candidate.name})"
    return ModelFailed(
        error=type(error).__name__,
        text=text,
        attempt=attempt,
        max_attempts=attempts,
        reason=reason,
        wait_ms=pause_ms(error, attempt) if again else None,
        status=status_of(error),
        public="" if again else text,
    )


def _text(error: Exception) -> str:
    """Returns an error's text with the provider's message, and with its OS error: the SDK's "Connection error." does
    not name the cause.
    """
    text, cause = text_of_error(error), _caused(error, OSError)
    return text if cause is None else f"{text} ({cause})"


def _down(breaker: Breaker) -> ModelFailed:
    wait = math.ceil(breaker.wait_seconds(time.monotonic()))
    when = f"it is asked again in {wait} s" if wait else "another run is trying it now"
    text = f"the model has failed {breaker.failures} times in a row; {when}"
    return ModelFailed(error="ModelDown", text=text, attempt=1, max_attempts=1, reason="circuit_open")


async def _given_up(attempt: Attempt, candidate: Candidate, failed: ModelFailed, *, last: bool) -> ModelGaveUp:
    """Records the failure of a candidate. Unless it was the last, the next one follows without a pause."""
    await _record(attempt, candidate, failed if last else msgspec.structs.replace(failed, wait_ms=0))
    return ModelGaveUp(failed.error, failed.public or failed.text, failed.reason, candidate.name)


async def _record(attempt: Attempt, candidate: Candidate, failed: ModelFailed) -> None:
    model = None if candidate is attempt.candidates[0] else candidate.name
    await attempt.journal.model_failed(msgspec.structs.replace(failed, model=model))


async def _ask(attempt: Attempt, ask: Ask, messages: Sequence[BaseMessage]) -> ModelCompleted:
    """Sends one request, and previews the answer. If a person stops the run, records the partial answer."""
    await attempt.journal.confirm()  # for adapters that do not call `BEFORE_REQUEST`
    BEFORE_REQUEST.set(attempt.journal.confirm)
    started = time.monotonic()
    identity = f"lc_run--{uuid7()}"
    previewer = attempt.journal.preview(identity)
    answer = Assembly(previewer)
    try:
        # in a task of its own: what comes resumes the reading, and not each policy around it
        await asyncio.create_task(_collect(ask(messages), answer))
    except asyncio.CancelledError:
        if attempt.journal.stopping and answer:
            with anyio.CancelScope(shield=True):
                event = completed(answer, identity, attempt.request, started, previewer, stopped=True)
                event = redacted(event)
                if text_of(event.message["content"]):
                    await attempt.journal.model_completed(event)
        raise
    if not answer:
        raise ValueError("the model sent an empty answer")
    return redacted(completed(answer, identity, attempt.request, started, previewer, tools=attempt.effects))


async def _collect(stream: AsyncIterator[AIMessage | Piece], answer: Assembly) -> None:
    """Takes what comes until the answer is whole. Raises `AnswerTooLong` and `AnswerBroken`."""
    async with aclosing(cast(AsyncGenerator[AIMessage | Piece], stream)):
        async for part in stream:
            await answer.add(part)
    await answer.finish()
