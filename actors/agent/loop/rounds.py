"""The agent's loop: rounds of a model call and the tool calls of its answer, until an answer makes none.

The policies do the work: the recorder reads the conversation from the fold before each model call and records what
comes, so a resumed run begins like any other: its first model call returns the recorded answer, its calls what is
recorded of them. The calls of an answer are made at once, each in a task of its own. One that fails fails the run, and
the others are cancelled as the attempt ends. One that asks a person does not stop the others: the run pauses when all
have come to their ends.

Third-party tools and middlewares find what LangGraph gives them in a graph: `interrupt()`, `get_config()`,
`get_runtime()`, and the arguments that it injects. There is no store, no stream writer that is heard, and no `goto`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, SystemMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.prebuilt.tool_node import INVALID_TOOL_NAME_ERROR_TEMPLATE, ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command

from actors.agent.loop.described import Described
from actors.agent.loop.effects import SCRATCHPAD
from actors.agent.run.attempt import Attempt

SEND, NAMESPACE, TASK, RUNTIME = "__pregel_send", "checkpoint_ns", "__pregel_task_id", "__pregel_runtime"
"""Keys of what LangGraph's functions look for in the configuration of a task."""


class Rounds:
    """The loop of an agent, for any number of runs at a time."""

    def __init__(
        self,
        model: BaseChatModel,
        tools: Sequence[BaseTool],
        prompt: SystemMessage,
        chain: AgentMiddleware[Any, Attempt, Any],
    ) -> None:
        self._model, self._tools, self._prompt, self._chain = model, list(tools), prompt, chain
        self._by_name = {tool.name: tool for tool in tools}

    async def run(self, attempt: Attempt) -> None:
        """Does a run from the folded state on, to its end or to its pause."""
        while calls := (await self._answer(attempt)).tool_calls:
            made = await together(attempt, [partial(self._call, attempt, call) for call in calls])
            if not all(made) or self._returns(calls):
                return

    def _returns(self, calls: Sequence[ToolCall]) -> bool:
        """Tells whether the results of calls are the answer (LangChain's `return_direct`)."""
        tools = [tool for call in calls if (tool := self._by_name.get(call["name"]))]
        return bool(tools) and all(tool.return_direct for tool in tools)

    # ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, attempt: Attempt) -> AIMessage:
        state: Any = _state(attempt)
        runtime = Runtime(context=attempt)
        request = ModelRequest(
            model=self._model,
            tools=[*self._tools],
            system_message=self._prompt,
            messages=state["messages"],
            state=state,
            runtime=runtime,
        )
        with _configured(_config(runtime, attempt.run)):
            response = cast(ModelResponse[Any], await self._chain.awrap_model_call(request, _no_model))
        answer = response.result[-1]
        assert isinstance(answer, AIMessage)
        return answer

    # ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, attempt: Attempt, call: ToolCall) -> bool:
        """Makes a call, in a task of its own. Returns False if it waits for a person."""
        config = _config(Runtime(context=attempt), f"{attempt.run}-{call['id']}")
        state = _state(attempt)
        runtime: Any = ToolRuntime(
            state=state,
            context=attempt,
            config=config,
            stream_writer=_unheard,
            tool_call_id=call["id"],
            store=None,
            tools=self._tools,
        )
        request = ToolCallRequest(tool_call=call, tool=self._by_name.get(call["name"]), state=state, runtime=runtime)
        var_child_runnable_config.set(config)
        try:
            await self._chain.awrap_tool_call(request, self._executed)
        except GraphInterrupt:
            return False
        return True

    async def _executed(self, request: ToolCallRequest) -> Any:
        """Executes a request, as the policies left it."""
        tool, call = request.tool, request.tool_call
        if isinstance(tool, Described):
            return await tool.result(call["args"])
        if tool is None:
            text = INVALID_TOOL_NAME_ERROR_TEMPLATE.format(
                requested_tool=call["name"], available_tools=", ".join(self._by_name)
            )
            return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error")
        return await _by_langgraph(tool, request)


async def _by_langgraph(tool: BaseTool, request: ToolCallRequest) -> Any:
    """Executes a tool that is LangChain's own: LangGraph injects what it wants of the state, the runtime and the call.

    Returns one result, or all of them if the tool has several.
    """
    call = {"__type": "tool_call_with_context", "tool_call": request.tool_call, "state": request.state}
    outputs = await ToolNode([tool]).ainvoke(call, request.runtime.config)
    parts = outputs if isinstance(outputs, list) else [outputs]
    results = [result for part in parts for result in ([part] if isinstance(part, Command) else part["messages"])]
    return results[0] if len(results) == 1 else results


async def together(attempt: Attempt, calls: Sequence[Callable[[], Coroutine[Any, Any, bool]]]) -> list[bool]:
    """Makes calls at once. Raises the error of the first that fails; `Attempt.end` cancels the others."""
    tasks = [attempt.task(call()) for call in calls]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    failed = [error for task in tasks if task in done and (error := task.exception())]
    if failed:
        raise failed[0]
    return [task.result() for task in tasks]


async def _no_model(request: ModelRequest[Attempt]) -> ModelResponse[Any]:
    raise AssertionError("the innermost policy asks the model")


def _unheard(chunk: Any) -> None:
    """Discards what a tool streams by LangGraph's writer."""


def _state(attempt: Attempt) -> dict[str, Any]:
    """Returns the state of the thread in the form of a graph's."""
    return {**attempt.state.values, "messages": attempt.conversation()}


# ── what LangGraph's functions look for ──────────────────────────────────────────────────────────────────────────────


class Scratchpad:
    """The answers to the questions of a task, and the number of the next question."""

    def __init__(self) -> None:
        self.resume: list[Any] = []
        self.interrupt_counter = count().__next__

    def get_null_resume(self, consume: bool = False) -> None:
        """Returns None: an answer belongs to a question."""


def _config(runtime: Runtime[Attempt], task: str) -> RunnableConfig:
    return {
        "configurable": {
            SCRATCHPAD: Scratchpad(),
            SEND: _unheard,
            NAMESPACE: f"rounds:{task}",
            TASK: task,
            RUNTIME: runtime,
        }
    }


@contextmanager
def _configured(config: RunnableConfig) -> Iterator[None]:
    before = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(before)
