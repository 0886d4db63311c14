"""The last model call of a run that has met a limit: without tools, it says what is done and what is not."""

from __future__ import annotations

from typing import Any

from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from actors.agent.model.answer import without_calls
from actors.agent.run.attempt import Answer, Attempt, ModelHandler, VisibleFailure, hidden, revised
from core.ids import uuid7
from core.thread.state import STOPPED
from core.thread.usage import STOPPED_BY

NO_TOOLS = "none"
"""The `tool_choice` of a request whose answer may call no tools."""
ASK = (
    "{limit} This is your last answer in this run: no tool works any more. Say what is done, what is not, and how to "
    "go on. Name files, results and next steps exactly, and announce no further work."
)


def is_last(request: ModelRequest[Attempt]) -> bool:
    """Tells whether a limit was met before this request."""
    return request.tool_choice == NO_TOOLS


async def last_answer(
    policy: str, limit: str, request: ModelRequest[Attempt], handler: ModelHandler
) -> ModelResponse[Any]:
    """Makes the last model call. `limit` is a sentence for the person, which ends the answer, or is the answer if the
    model gives none.

    The tools stay in the request, because providers refuse calls in a conversation without their tools, and because
    their caches begin with them.
    """
    request.runtime.context.decide(policy, STOPPED, limit)
    note: Any = hidden(ASK.format(limit=limit), name=policy)
    request = request.override(messages=[*request.messages, note], tool_choice=NO_TOOLS)
    try:
        response = await handler(request)
    except VisibleFailure:
        marked = {STOPPED_BY: policy}
        return Answer([AIMessage(limit, id=f"{policy}-{uuid7()}", additional_kwargs=marked)])
    answer = response.result[-1]
    if not isinstance(answer, AIMessage):
        return response
    marked = {**answer.additional_kwargs, STOPPED_BY: policy}
    return revised(response, without_calls(answer.model_copy(update={"additional_kwargs": marked}), limit))


def tool_choice(model: BaseChatModel, requested: Any) -> Any:
    """Returns a request's choice of tools in the words of a model's class. None where the class has no word for "no
    tools": then the note alone says so, and calls are dropped.
    """
    if requested != NO_TOOLS:
        return requested
    names = {cls.__name__ for cls in type(model).__mro__}
    if "ChatAnthropic" in names:
        return {"type": "none"}
    return NO_TOOLS if names & {"BaseChatOpenAI", "ChatGoogleGenerativeAI", "ChatMistralAI"} else None
