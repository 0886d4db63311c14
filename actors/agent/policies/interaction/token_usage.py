"""Annotates an answer with the purpose of its tokens, for the web page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, ToolCall

from actors.agent.policies.interaction.todos import todos_of
from actors.agent.run.attempt import Attempt, ModelHandler, revised
from core.events import Json

ATTRIBUTION = "token_usage_attribution"
"""The key in `additional_kwargs` (DeerFlow's middleware TokenUsage)."""
TODOS, SUBAGENT = "write_todos", "task"
_SEARCHES = ("web_search", "image_search")
_STEPS = {"in_progress": "todo_start", "completed": "todo_complete"}


class TokenUsage(AgentMiddleware[Any, Attempt, Any]):
    """Attributes the answer as it is recorded: outside of the policies that remove calls."""

    name = "token_usage"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer = response.result[-1]
        if not isinstance(answer, AIMessage):
            return response
        purpose = attribution(answer, todos_of(request.runtime.context.state))
        extra = {**answer.additional_kwargs, ATTRIBUTION: purpose}
        return revised(response, answer.model_copy(update={"additional_kwargs": extra}))


def attribution(message: AIMessage, todos_before: Sequence[Json]) -> Json:
    """Returns the purpose of an answer: `{version, kind, shared_attribution, tool_call_ids, actions}`.

    `todos_before` is the list before the answer. Several actions share the tokens.
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
    """Returns the actions of a call in the page's terms; a list of todos has one for each changed todo."""
    name, args = call["name"], call["args"]
    if name == TODOS:
        actions: list[Json] = list(_todo_actions(todos_before, args.get("todos")))
    elif name == SUBAGENT:
        actions = [{"kind": "subagent", **_texts(args, "description", "subagent_type")}]
    elif name in _SEARCHES:
        actions = [{"kind": "search", "tool_name": name, **_texts(args, "query")}]
    elif name == "present_files":
        actions = [{"kind": "present_files"}]
    elif name == "ask_clarification":
        actions = [{"kind": "clarification"}]
    else:
        actions = [{"kind": "tool", "tool_name": name, **_texts(args, "description")}]
    return [{**action, "tool_call_id": str(call["id"])} for action in actions]


def _todo_actions(before: Sequence[Json], after: Any) -> Iterator[Json]:
    """Yields the changes between two lists. Todos are matched by content; equal contents are different todos."""
    left = list(before)
    for todo in after if isinstance(after, list) else ():
        if not isinstance(todo, dict) or not isinstance(todo.get("content"), str):
            continue
        old = next((other for other in left if other["content"] == todo["content"]), None)
        if old is not None:
            left.remove(old)
        if old is None or old["status"] != todo.get("status"):
            yield {"kind": _STEPS.get(str(todo.get("status")), "todo_update"), "content": todo["content"]}
    for todo in left:
        yield {"kind": "todo_remove", "content": todo["content"]}


def _texts(args: Json, *names: str) -> Json:
    return {name: args[name] for name in names if isinstance(args.get(name), str)}
