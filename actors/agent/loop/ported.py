"""A policy of the port (`core.policy`) as a LangChain middleware."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar, cast

import structlog
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.messages.content import messages_of, with_messages, with_text
from actors.agent.messages.convert import dump
from actors.agent.model.answer import without_calls
from actors.agent.run.attempt import Answer, Attempt, ModelHandler, ToolHandler, ToolResult, hidden, revised
from core.errors import SikaError, contained, is_defect, sentence_of
from core.events import Event
from core.ids import uuid7
from core.policy import ENDED, End, Policy, Refuse, ToolCall
from core.thread.state import ThreadState

log = structlog.get_logger("sika.agent")

T = TypeVar("T")

_ANSWERS: Mapping[str, type] = {"before_model": End, "after_model": End, "before_tool": Refuse, "after_tool": str}
"""The types of what hooks return, if it is not None."""


class PolicyFailed(SikaError):
    """A hook of a policy raised, or took too long: the run fails rather than go on unchecked."""

    code = "policy_failed"


class Ported(AgentMiddleware[Any, Attempt, Any]):
    """Calls the hooks of a policy around each call."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    @property
    def name(self) -> str:
        return self.policy.name

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        view = _View(request.runtime.context, self.policy, "")
        end = await self._hook("before_model", self.policy.before_model(view))
        if end is not None:
            view.decided(ENDED, end.text)
            return Answer([AIMessage(end.text, id=f"{self.name}-{uuid7()}")])
        if view.notes:
            notes = [cast(AnyMessage, hidden(text, name=self.name)) for text in view.notes]
            request = request.override(messages=[*request.messages, *notes])
        response = await handler(request)
        return await self._judged(request.runtime.context, response)

    async def _judged(self, attempt: Attempt, response: ModelResponse[Any]) -> ModelResponse[Any]:
        answer = response.result[-1]
        if not isinstance(answer, AIMessage):
            return response
        view = _View(attempt, self.policy, "", later=True)
        end = await self._hook("after_model", self.policy.after_model(view, dump(answer)))
        if end is None:
            return response
        view.decided("ended", end.text)
        return revised(response, without_calls(answer, end.text))

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        attempt = cast(Attempt, request.runtime.context)
        requested = request.tool_call
        call = ToolCall(str(requested["id"]), requested["name"], copy.deepcopy(requested["args"]))
        view = _View(attempt, self.policy, call.id, later=True)
        refusal = None
        if not attempt.begun(call.id):
            refusal = await self._hook("before_tool", self.policy.before_tool(view, call))
        if refusal is not None:
            view.decided(refusal.action, refusal.reason or refusal.text)
            return ToolMessage(refusal.text, tool_call_id=call.id, name=call.name, status="error")
        return await self._result_for_model(view, call, await handler(request))

    async def _result_for_model(self, view: _View, call: ToolCall, result: ToolResult) -> ToolResult:
        messages = messages_of(result)
        shown = []
        for message in messages:
            text = await self._hook("after_tool", self.policy.after_tool(view, call, dump(message)))
            change = {} if text is None else {"content": with_text(cast(Any, message.content), text)}
            shown.append(message.model_copy(update=change) if change else message)
        return with_messages(result, messages, shown)

    async def _hook(self, name: str, hook: Awaitable[T]) -> T:
        """Runs one hook. Raises `PolicyFailed`, naming the policy and the hook."""
        try:
            async with asyncio.timeout(self.policy.deadline_seconds) as deadline:
                with contained():
                    return _valid_answer(name, await hook)
        except GraphBubbleUp:  # it asks a person
            raise
        except Exception as error:
            late = isinstance(error, TimeoutError) and deadline.expired()
            limit = f"not done within {self.policy.deadline_seconds:g} s"
            reason = limit if late else sentence_of(error)
            if is_defect(error):
                log.exception("policy failed", policy=self.name, hook=name)
            raise PolicyFailed(f"policy {self.name}: {name}: {reason}") from error


def _valid_answer(name: str, answer: T) -> T:
    """Returns what a hook answered. Raises `TypeError` if that is none of its answers."""
    if answer is not None and not isinstance(answer, _ANSWERS[name]):
        raise TypeError(f"it returned {type(answer).__name__}; {_ANSWERS[name].__name__} or None is expected")
    return answer


class _View:
    """See `core.policy.View`. `later`: notes are for the next model call."""

    def __init__(self, attempt: Attempt, policy: Policy, call_id: str, *, later: bool = False) -> None:
        self._attempt = attempt
        self._policy = policy
        self._call_id = call_id
        self._later = later
        self.notes: list[str] = []
        """For the model call that is about to be made."""

    @property
    def thread(self) -> str:
        return self._attempt.thread

    @property
    def user(self) -> str:
        return self._attempt.user

    @property
    def run(self) -> str:
        return self._attempt.run

    @property
    def subagent(self) -> str | None:
        return self._attempt.subagent

    @property
    def state(self) -> ThreadState:
        return self._attempt.state

    def note(self, text: str) -> None:
        if not self._later:
            self.notes.append(text)
        self._attempt.decide(self._policy.name, "noted", text, call_id=self._call_id, note=text if self._later else "")

    def decided(self, action: str, text: str = "") -> None:
        self._attempt.decide(self._policy.name, action, text, call_id=self._call_id)

    async def record(self, event: Event) -> None:
        async def make() -> Event:
            return event

        await self._attempt.journal.fact(type(event), "", make)
