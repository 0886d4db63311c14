"""Whether a tool call may be made: as a provider says, and without its word not (contract runtime §5.6)."""

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
"""For the word on one call."""


class Guardrails(Policy):
    """Asks the provider before each call that was not begun already; fails closed, unless configured otherwise."""

    name = "guardrails"
    deadline_seconds = 2 * DEADLINE_SECONDS

    def __init__(self, wanted: settings.Guardrails, provider: Provider) -> None:
        self._provider = provider
        self._passport, self._fail_closed = wanted.passport, wanted.fail_closed

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
            is_subagent=False,
            timestamp=datetime.now(UTC).isoformat(),
            user_id=view.user,
            run_id=view.run,
            tool_call_id=call.id,
        )

    async def _decision(self, request: Request) -> Decision:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return _checked(await _evaluated(self._provider, request))
        except GraphBubbleUp:
            raise
        except Exception as error:
            provider = getattr(self._provider, "name", type(self._provider).__name__)
            log.warning("no answer of the guardrail", provider=provider, tool=request.tool_name, error=repr(error))
            raise _NoAnswer(f"the guardrail did not answer ({type(error).__name__})") from error


class _NoAnswer(Exception):
    """The provider failed, or took too long."""


async def _evaluated(provider: Provider, request: Request) -> Any:
    if callable(getattr(provider, "aevaluate", None)):
        return await provider.aevaluate(request)
    return await anyio.to_thread.run_sync(provider.evaluate, request, abandon_on_cancel=True)


def _checked(answer: Any) -> Decision:
    """Ours of what a provider says in whatever classes it has. Raises `TypeError` if it says neither yes nor no."""
    if not isinstance(answer.allow, bool):
        raise TypeError(f"allow: expected true or false, got {type(answer.allow).__name__}")
    reasons = [_reason(one) for one in getattr(answer, "reasons", None) or ()]
    return Decision(answer.allow, reasons, getattr(answer, "policy_id", None))


def _reason(given: Any) -> Reason:
    code, message = (
        given.get(key) if isinstance(given, Mapping) else getattr(given, key, None) for key in ("code", "message")
    )
    return Reason(str(code or DENIED), str(message or "the policy does not allow it"))
