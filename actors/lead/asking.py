"""Asks a model until there is an answer: as often as is worth it, and the next candidate if it is not (contract runtime
§5.5). Shows the answer while it comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

import anyio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langgraph.errors import GraphBubbleUp

from actors.lead.answers import completed, merge
from actors.lead.failures import classify, pause_ms
from actors.lead.turn import Candidate, Turn, VisibleFailure
from core.errors import SikaError
from core.events import ModelCompleted, ModelFailed
from core.ids import uuid7
from core.previews import Previewer, text_of
from core.usage import ANSWERED_BY

Ask = Callable[[Sequence[BaseMessage]], AsyncIterator[AIMessage]]
Bind = Callable[[BaseChatModel], Ask]

_APOLOGIES = {
    "quota": "The model's provider says that the quota is used up. Please check the provider's plan and billing.",
    "auth": "The model's provider did not accept the server's credentials. Please check the model's API key.",
    "transient": "The model did not answer, and several tries did not help. Please try again in a while.",
    "busy": "The model's provider is too busy to answer right now. Please try again in a while.",
    "circuit_open": "The model has failed several times in a row and is left alone for a moment. Please try again.",
    "generic": "The model's provider refused the request. The run's error says why.",
}


class ModelGaveUp(VisibleFailure):
    """No candidate answered. `error` is the class of what the last one said, `reason` as in `model.failed`."""

    code = "model_failed"

    def __init__(self, error: str, text: str, reason: str) -> None:
        said = _APOLOGIES.get(reason, _APOLOGIES["generic"])
        super().__init__(text, error=error, said=said, reason=reason)


async def answered(turn: Turn, candidates: Sequence[Candidate], bind: Bind, messages: Sequence[BaseMessage]) -> None:
    """Leave the first answer there is in `turn.answer`. Raises `ModelGaveUp` if there is none."""
    for place, candidate in enumerate(candidates):
        rest = candidates[place + 1 :]
        try:
            answer = await _one(turn, candidate, bind(candidate.model), messages, last=not rest)
        except ModelGaveUp as failure:
            if not rest:
                raise
            why = f"{candidate.name} → {rest[0].name}: {failure}"[:500]
            turn.decide("failover", "switched", why)
            continue
        if place:
            answer.message.setdefault("response_metadata", {})[ANSWERED_BY] = candidate.name
        turn.answer = answer
        return


async def _one(
    turn: Turn, candidate: Candidate, ask: Ask, messages: Sequence[BaseMessage], *, last: bool
) -> ModelCompleted:
    """One model's answer, after as many tries as are worth it; none while it is known to be down."""
    breaker = candidate.breaker
    admitted = breaker.admit(time.monotonic())
    if admitted is None:
        wait = breaker.wait_seconds(time.monotonic())
        text = f"the model has failed {breaker.failures} times in a row; it is asked again in {wait:.0f} s"
        await _failed(turn, candidate, "ModelDown", text, 1, 1, "circuit_open", None if last else 0)
        raise ModelGaveUp("ModelDown", text, "circuit_open")
    attempts = turn.config.runs.max_model_attempts
    try:
        for attempt in range(1, attempts + 1):
            try:
                answer = await _ask(turn, ask, messages)
                break
            except Exception as error:
                if isinstance(error, SikaError | GraphBubbleUp):
                    raise
                reason, retriable = classify(error)
                name, text = type(error).__name__, (str(error) or type(error).__name__)[:2000]
                if retriable and attempt < attempts:
                    wait_ms = pause_ms(error, attempt)
                    await _failed(turn, candidate, name, text, attempt, attempts, reason, wait_ms)
                    await asyncio.sleep(wait_ms / 1000)
                    continue
                await _failed(turn, candidate, name, text, attempt, attempts, reason, None if last else 0)
                breaker.failed(admitted, time.monotonic(), retriable=retriable)
                raise ModelGaveUp(name, text, reason) from error
        breaker.succeeded(admitted)
        return answer
    finally:
        breaker.freed(admitted)


async def _failed(
    turn: Turn,
    candidate: Candidate,
    error: str,
    text: str,
    attempt: int,
    attempts: int,
    reason: str,
    wait_ms: int | None,
) -> None:
    model = None if candidate is turn.candidates[0] else candidate.name
    await turn.journal.model_failed(
        ModelFailed(
            error=error,
            text=text,
            attempt=attempt,
            max_attempts=attempts,
            reason=reason,
            wait_ms=wait_ms,
            model=model,
        )
    )


async def _ask(turn: Turn, ask: Ask, messages: Sequence[BaseMessage]) -> ModelCompleted:
    """One request to the model, shown while it is answered. If a person stops the run meanwhile, what was said is
    kept.
    """
    started = time.monotonic()
    identity = f"lc_run--{uuid7()}"
    previewer = turn.journal.preview(identity)
    chunks: list[AIMessageChunk] = []
    try:
        await _collect(ask(messages), previewer, chunks)
    except asyncio.CancelledError:
        if turn.journal.stopping and chunks:
            with anyio.CancelScope(shield=True):
                event = completed(merge(chunks), identity, turn.request, started, previewer, stopped=True)
                if text_of(event.message["content"]):
                    await turn.journal.model_completed(event)
        raise
    if not chunks:
        raise ValueError("the model sent an empty answer")
    return completed(merge(chunks), identity, turn.request, started, previewer)


async def _collect(stream: AsyncIterator[AIMessage], previewer: Previewer | None, chunks: list[AIMessageChunk]) -> None:
    async for chunk in stream:
        assert isinstance(chunk, AIMessageChunk)
        chunks.append(chunk)
        if previewer is None:
            continue
        if chunk.additional_kwargs and (reasoning := chunk.additional_kwargs.get("reasoning_content")):
            await previewer.add("reasoning", str(reasoning))
        if chunk.content and (text := text_of(chunk.content)):
            await previewer.add("text", text)
        for part in chunk.tool_call_chunks:
            index = part["index"]
            await previewer.add(
                "call",
                part["args"] or "",
                index=index if isinstance(index, int) else 0,
                call_id=part["id"] or None,
                name=part["name"] or None,
            )
