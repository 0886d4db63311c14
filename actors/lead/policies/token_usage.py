"""What the tokens of an answer were spent on, said on the answer itself, for the web page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, ToolCall

from actors.lead.loop.turn import ModelHandler, Turn, revised
from actors.lead.policies.todos import todos_of
from core.events import Json

ATTRIBUTION = "token_usage_attribution"
"""The key in `additional_kwargs` (contract runtime §5.12)."""
TODOS, SUBAGENT = "write_todos", "task"
_SEARCHES = ("web_search", "image_search")
_STEPS = {"in_progress": "todo_start", "completed": "todo_complete"}


class TokenUsage(AgentMiddleware[Any, Turn, Any]):
    """Outside of the policies that take calls away: what is attributed is what is recorded."""

    name = "token_usage"

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer = response.result[-1]
        if not isinstance(answer, AIMessage):
            return response
        found = attribution(answer, todos_of(request.runtime.context.state))
        extra = {**answer.additional_kwargs, ATTRIBUTION: found}
        return revised(response, answer.model_copy(update={"additional_kwargs": extra}))


def attribution(message: AIMessage, todos_before: Sequence[Json]) -> Json:
    """What an answer was for: `{version, kind, shared_attribution, tool_call_ids, actions}`. `todos_before`: the list
    as it was when the model answered. With more than one action the tokens are shared by them.
    """
    actions = [action for call in message.tool_calls for action in _actions(call, todos_before)]
    return {
        "version": 1,
        "kind": _kind(message),
        "shared_attribution": len(actions) > 1,
        "tool_call_ids": [str(call["id"]) for call in message.tool_calls],
        "actions": actions,
    }


def _kind(message: AIMessage) -> str:
    names = {call["name"] for call in message.tool_calls}
    if not names:
        return "final_answer" if message.text.strip() else "thinking"
    if names == {TODOS}:
        return "todo_update"
    return "subagent_dispatch" if names == {SUBAGENT} else "tool_batch"


def _actions(call: ToolCall, todos_before: Sequence[Json]) -> list[Json]:
    """What a call does, in the page's terms; a list of todos is as many actions as it changes todos."""
    name, args = call["name"], call["args"]
    if name == TODOS:
        found: list[Json] = list(_todo_actions(todos_before, args.get("todos")))
    elif name == SUBAGENT:
        found = [{"kind": "subagent", **_texts(args, "description", "subagent_type")}]
    elif name in _SEARCHES:
        found = [{"kind": "search", "tool_name": name, **_texts(args, "query")}]
    elif name == "present_files":
        found = [{"kind": "present_files"}]
    elif name == "ask_clarification":
        found = [{"kind": "clarification"}]
    else:
        found = [{"kind": "tool", "tool_name": name, **_texts(args, "description")}]
    return [{**action, "tool_call_id": str(call["id"])} for action in found]


def _todo_actions(before: Sequence[Json], given: Any) -> Iterator[Json]:
    """How one list becomes the other. A todo is known by its content; the same content twice is two todos."""
    left = list(before)
    for todo in given if isinstance(given, list) else ():
        if not isinstance(todo, dict) or not isinstance(todo.get("content"), str):
            continue
        known = next((one for one in left if one["content"] == todo["content"]), None)
        if known is not None:
            left.remove(known)
        if known is None or known["status"] != todo.get("status"):
            yield {"kind": _STEPS.get(str(todo.get("status")), "todo_update"), "content": todo["content"]}
    for todo in left:
        yield {"kind": "todo_remove", "content": todo["content"]}


def _texts(args: Json, *names: str) -> Json:
    return {name: args[name] for name in names if isinstance(args.get(name), str)}
