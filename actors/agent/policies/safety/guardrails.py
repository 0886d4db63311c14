"""Asks a provider whether a tool call may be made; without its answer, the call is denied (DeerFlow's Guardrail)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import structlog
from langgraph.errors import GraphBubbleUp

from core.config import settings
from core.policy import Policy, Refuse, ToolCall, View
from core.ports.guardrails import DENIED, EVALUATOR_ERROR, Decision, Provider, Reason, Request

log = structlog.get_logger("sika.guardrails")

DEADLINE_SECONDS = 10.0
"""Timeout of the decision on one call."""


class Guardrails(Policy):
    """Asks the provider before each call, except a call begun before a crash. Fails closed unless configured open."""

    name = "guardrails"
    deadline_seconds = 2 * DEADLINE_SECONDS

    def __init__(self, config: settings.Guardrails, provider: Provider) -> None:
        self._provider = provider
        self._passport, self._fail_closed = config.passport, config.fail_closed

    async def before_tool(self, view: View, call: ToolCall) -> Refuse | None:
        try:
            decision = await self._decision(self._request(view, call))
        except _NoAnswer as error:
            decision = Decision(not self._fail_closed, [Reason(EVALUATOR_ERROR, str(error))])
            if decision.allow:
                view.decided("allowed", f"{EVALUATOR_ERROR}: {error}")
        if decision.allow:
            return None
        reason = decision.reasons[0] if decision.reasons else Reason(DENIED, "the policy does not allow it")
        rule = f" (policy {decision.policy_id})" if decision.policy_id else ""
        text = f"Error: the tool {call.name!r} was denied ({reason.code}): {reason.message}"
        return Refuse(text, f"{reason.code}: {reason.message}{rule}", "denied")

    def _request(self, view: View, call: ToolCall) -> Request:
        return Request(
            tool_name=call.name,
            tool_input=call.args,
            agent_id=self._passport,
            thread_id=view.thread,
            is_subagent=view.subagent is not None,
            timestamp=datetime.now(UTC).isoformat(),
            user_id=view.user,
            run_id=view.run,
            tool_call_id=call.id,
        )

    async def _decision(self, request: Request) -> Decision:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return _decision_of(await _evaluated(self._provider, request))
        except GraphBubbleUp:
            raise
        except Exception as error:
            provider = getattr(self._provider, "name", type(self._provider).__name__)
            log.warning("no answer of the guardrail", provider=provider, tool=request.tool_name, exc_info=True)
            raise _NoAnswer(f"the guardrail did not answer ({type(error).__name__})") from error


class _NoAnswer(Exception):
    """The provider failed, or took too long."""


async def _evaluated(provider: Provider, request: Request) -> Any:
    if callable(getattr(provider, "aevaluate", None)):
        return await provider.aevaluate(request)
    return await anyio.to_thread.run_sync(provider.evaluate, request, abandon_on_cancel=True)


def _decision_of(answer: Any) -> Decision:
    """Converts a provider's answer from its own classes. Raises `TypeError` if `allow` is not a boolean."""
    if not isinstance(answer.allow, bool):
        raise TypeError(f"allow: expected true or false, got {type(answer.allow).__name__}")
    reasons = [_reason(reason) for reason in getattr(answer, "reasons", None) or ()]
    return Decision(answer.allow, reasons, getattr(answer, "policy_id", None))


def _reason(reason: Any) -> Reason:
    code, message = (
        reason.get(key) if isinstance(reason, Mapping) else getattr(reason, key, None) for key in ("code", "message")
    )
    return Reason(str(code or DENIED), str(message or "the policy does not allow it"))
