"""What tool calls ask the run's model beside the conversation: within the run's budgets, and recorded as its usage."""

from __future__ import annotations

import asyncio
import time

import structlog
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from actors.agent.messages.content import without_thoughts
from actors.agent.policies.limits.budgets import Budgets, BudgetSpent
from actors.agent.run.attempt import Attempt, Candidate
from core.config.redaction import redactor
from core.errors import Refused, SikaError, Unavailable
from core.events import ModelSampled
from core.ports.models import BEFORE_REQUEST
from core.thread.messages import text_of
from core.tools import Completion, Prompt

log = structlog.get_logger("sika.agent")

SECONDS = 300.0
"""Time for the answer of one model."""
RECORDED_CHARACTERS = 1000
"""Length of the answer's beginning that is recorded."""


async def complete(attempt: Attempt, call_id: str, prompt: Prompt) -> Completion:
    """Returns the answer of the run's model, else of its fallbacks (`ToolContext.complete`)."""
    try:
        await Budgets(attempt.config).check(attempt)
    except BudgetSpent as error:
        raise Refused(str(error)) from None
    messages: list[BaseMessage] = [SystemMessage(prompt.system)] if prompt.system else []
    messages += [HumanMessage(text) if role == "user" else AIMessage(text) for role, text in prompt.messages]
    reason = "there is no model"
    for candidate in attempt.candidates:
        try:
            async with asyncio.timeout(SECONDS):
                return await _answered(attempt, candidate, call_id, messages, prompt)
        except SikaError:
            raise
        except Exception:  # each provider has errors of its own
            log.warning("a model did not answer a tool", model=candidate.name, exc_info=True)
            reason = f"{candidate.name} failed; the server's own log has more"
    raise Unavailable(f"no model answered ({reason})")


async def _answered(
    attempt: Attempt, candidate: Candidate, call_id: str, messages: list[BaseMessage], prompt: Prompt
) -> Completion:
    await attempt.journal.confirm()
    BEFORE_REQUEST.set(attempt.journal.confirm)
    started = time.monotonic()
    bound = candidate.model.bind(max_tokens=prompt.max_tokens)
    answer = await bound.ainvoke(messages, stop=list(prompt.stop) or None)
    text = redactor.text(without_thoughts(text_of(answer.content)))

    async def make() -> ModelSampled:
        duration = int((time.monotonic() - started) * 1000)
        usage = dict(answer.usage_metadata) if answer.usage_metadata else None
        return ModelSampled(call_id, candidate.name, text[:RECORDED_CHARACTERS], usage, duration)

    await attempt.journal.fact(ModelSampled, call_id, make)
    return Completion(text, candidate.name, str(answer.response_metadata.get("finish_reason") or ""))
