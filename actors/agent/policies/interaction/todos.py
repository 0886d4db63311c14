"""Plan mode: the agent keeps a list of todos, is reminded of it, and is kept from ending before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse, TodoListMiddleware
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from actors.agent.messages.convert import dump
from actors.agent.run.attempt import Attempt, ModelHandler, ToolHandler, ToolResult, error_result, hidden, message_of
from core.events import Json, Message
from core.phrases import counted
from core.thread.state import ThreadState
from core.thread.usage import steps_of

WRITE = "write_todos"
REMINDER = "todo_reminder"
COMPLETION_REMINDER = "todo_completion_reminder"
"""Names of the two hidden messages (DeerFlow's thread state)."""
MOST_CONTINUED = 2
"""Limit of continuations of a run (DeerFlow's middleware TodoList)."""
_TOOL_REASONS = ("tool_calls", "function_call", "tool_use")
DESCRIPTION = """\
Keep the list of the steps of a long piece of work, which the person sees. The call replaces the whole list.

- Use it for work of more than about five steps, or for several wishes at once; not for questions and short work.
- Steps are results that can be checked. Exactly one is in_progress while you work; set it to completed as soon as it \
is done and checked, and change the list when the work shows something else.
- The list is no answer: give that after the last call, which sets all steps to completed.\
"""
_PARALLEL = "write_todos replaces the whole list: call it once per response. Nothing was written."


class Step(TypedDict):
    """A step of the work."""

    content: Annotated[str, Field(description="The result of the step, in a few words.")]
    status: Annotated[Literal["pending", "in_progress", "completed"], Field(description="How it stands.")]


class Steps(BaseModel):
    """The arguments of the tool: LangChain's, with descriptions."""

    todos: Annotated[list[Step], Field(description="The whole list, in the order of the work.")]


class Todos(TodoListMiddleware[Any, Attempt]):
    """Adds LangChain's tool. Works in wrappers of calls instead of hooks, so that it costs no step."""

    name = "todos"
    after_model = AgentMiddleware.after_model
    aafter_model = AgentMiddleware.aafter_model

    def __init__(self) -> None:
        super().__init__(system_prompt="", tool_description=DESCRIPTION)
        self.tools[0].args_schema = Steps

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        if (todos := todos_of(attempt.state)) and not any(map(_shows_todos, request.messages)):
            reminder = hidden(f"This is your list of todos:\n{todo_lines(todos)}\nKeep it up to date.", name=REMINDER)
            request = request.override(messages=[*request.messages, reminder])
        response = await handler(request)
        self._continue(attempt, response.result[-1])
        return response

    def _continue(self, attempt: Attempt, answer: Any) -> None:
        """Continues the run if the model finishes before its list."""
        left = [todo for todo in todos_of(attempt.state) if todo["status"] != "completed"]
        if not left or not isinstance(answer, AIMessage) or not is_final(dump(answer)):
            return
        if continued(attempt.state, attempt.run) >= MOST_CONTINUED:
            return
        text = f"{counted(len(left), 'todo')} left"
        note = (
            f"You have not completed these todos:\n{todo_lines(left)}\n"
            "Go on with them. If one is done or not wanted any more, say so with write_todos before you answer."
        )
        attempt.decide(self.name, "continued", text, note=note, name=COMPLETION_REMINDER, again=True)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        call = request.tool_call
        if call["name"] == WRITE:
            attempt, call_id = cast(Attempt, request.runtime.context), str(call["id"])
            message = message_of(attempt, call_id) or {}
            if sum(other["name"] == WRITE for other in message.get("tool_calls", ())) > 1:
                attempt.decide(self.name, "denied", _PARALLEL, call_id=call_id)
                return error_result(call, _PARALLEL)
        return await handler(request)


def todos_of(state: ThreadState) -> list[Json]:
    """Returns the todos of a thread, as `{content, status}`. Drops invalid entries: clients may write the state."""
    todos = state.values.get("todos")
    return list(filter(_is_todo, todos)) if isinstance(todos, list) else []


def todo_lines(todos: Sequence[Json]) -> str:
    return "\n".join(f"- [{todo['status']}] {todo['content']}" for todo in todos)


def is_final(message: Message) -> bool:
    """Tells whether an answer is final: it calls no tools in any form (DeerFlow's middleware TodoList)."""
    extra, about = message.get("additional_kwargs", {}), message.get("response_metadata", {})
    calls = message.get("tool_calls") or message.get("invalid_tool_calls")
    raw = extra.get("tool_calls") or extra.get("function_call")
    reasons = (about.get("finish_reason"), about.get("stop_reason"))
    return not calls and not raw and not any(reason in _TOOL_REASONS for reason in reasons)


def continued(state: ThreadState, run: str) -> int:
    """Counts the final answers of a run since a person's last message; from its commits, which survive compactions."""
    mine = reversed(list(steps_of(state, state.runs[run])))
    answers = [c for c in takewhile(lambda commit: commit.source == "loop", mine) if c.node == "model"]
    return sum(is_final(message) for commit in answers for message in commit.patch["messages"])


def _is_todo(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("content"), str)
        and value.get("status") in ("pending", "in_progress", "completed")
    )


def _shows_todos(message: AnyMessage) -> bool:
    if isinstance(message, AIMessage):
        return any(call["name"] == WRITE for call in message.tool_calls)
    return message.name == REMINDER
