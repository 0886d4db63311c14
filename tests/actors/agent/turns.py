"""A turn without a log: what a policy sees of a thread with these messages, and what it records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command

from actors.agent.messages.convert import MessageCache
from actors.agent.run.attempt import Attempt, Candidate
from actors.agent.run.breaker import Breaker
from actors.agent.run.breakpoints import Breakpoints
from actors.agent.run.options import options
from core.config import load as configuration
from core.events import (
    Event,
    Json,
    Message,
    ModelCompleted,
    ModelFailed,
    RunRequested,
    RunStarted,
    StatePatched,
    ThreadCreated,
    ToolCompleted,
)
from core.runs.journal import Complete, outcome_of
from core.runs.previews import Previewer
from core.thread.fold import fold
from core.thread.state import ThreadState
from core.tools import Effect
from tests.support.records import log_of, record

E = TypeVar("E", bound=Event)
RUN = "r"


class Kept:
    """A journal in memory: folds what is recorded."""

    id = RUN
    thread_id = "t"
    stopping = False

    def __init__(self, state: ThreadState) -> None:
        self.state = state
        self.events: list[Event] = []

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self.state = fold([record(self.state.seq + 1, event, RUN)], self.state)

    async def model_recorded(self, request: str) -> ModelCompleted | None:
        return None

    async def model_completed(self, event: ModelCompleted) -> None:
        self._take(event)

    async def model_failed(self, event: ModelFailed) -> None:
        self._take(event)

    async def fact(self, kind: type[E], key: str, make: Callable[[], Awaitable[E]]) -> E:
        event = await make()
        self._take(event)
        return event

    async def steered(self, complete: Complete) -> list[Message]:
        return []

    def answers(self, call_id: str) -> Sequence[Any]:
        return self.state.runs[RUN].answers.get(call_id, ())

    async def tool_requested(self, call_id: str, name: str, effect: Effect, args: Json) -> ToolCompleted | None:
        return outcome_of(self.state, call_id)

    async def tool_completed(self, event: ToolCompleted) -> None:
        self._take(event)

    async def confirm(self) -> None: ...

    def preview(self, message: str) -> Previewer | None:
        return None

    async def progress(self, call_id: str, name: str, text: str, *, stage: bool = False) -> None:
        """Nobody looks."""


async def nobody(actor: str, request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
    raise AssertionError(f"the policy asks {actor}: {request}")


def turn(
    messages: Sequence[Message] = (),
    *,
    values: Json | None = None,
    call: Callable[..., Awaitable[Any]] = nobody,
    context: Json | None = None,
    config: Json | None = None,
) -> Attempt:
    """`messages` and `values`: the thread's. `context`: the run's options. `config`: sections of the configuration."""
    request = RunRequested(context=context or {}, input={"messages": []})
    patched = StatePatched(values={**(values or {}), "messages": list(messages)})
    started = RunStarted(attempt=1, worker="w", lease=1, model="m")
    state = fold(log_of(ThreadCreated(user="u"), patched, (request, RUN), (started, RUN)))
    return Attempt(
        journal=Kept(state),
        call=call,
        config=configuration.parse(msgspec.json.encode(config or {}).decode()),
        options=options(request),
        candidates=[Candidate("m", FakeListChatModel(responses=["ok"]), Breaker())],
        effects={},
        breakpoints=Breakpoints(request),
        cache=MessageCache(),
    )


class Asked:
    """The handler of a model call: keeps what it was sent, and answers with `answers` in turn."""

    def __init__(self, *answers: AIMessage) -> None:
        self.requests: list[ModelRequest[Attempt]] = []
        self._answers = list(answers) or [AIMessage("ok", id="a")]

    async def __call__(self, request: ModelRequest[Attempt]) -> ModelResponse[Any]:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return ModelResponse(result=[answer])

    @property
    def messages(self) -> list[BaseMessage]:
        return list(self.requests[-1].messages)


async def model_call(
    policy: AgentMiddleware[Any, Attempt, Any],
    on: Attempt,
    handler: Asked,
    *,
    tools: Sequence[Any] = (),
    prompt: str = "p",
) -> AIMessage:
    """Put one model call through a policy, on the conversation of the turn: its answer."""
    request: ModelRequest[Attempt] = ModelRequest(
        model=on.candidates[0].model,
        messages=on.conversation(),  # type: ignore[arg-type]
        system_message=SystemMessage(prompt),
        tools=list(tools),
        state={"messages": on.conversation()},  # type: ignore[arg-type]
        runtime=Runtime(context=on),
    )
    response = await policy.awrap_model_call(request, handler)
    assert isinstance(response, ModelResponse)
    answer = response.result[-1]
    assert isinstance(answer, AIMessage)
    return answer


async def tool_call(
    policy: AgentMiddleware[Any, Attempt, Any],
    on: Attempt,
    name: str,
    args: Json | None = None,
    *,
    call_id: str = "c1",
    result: str | ToolMessage | Exception | Command[Any] = "done",
    tool: BaseTool | None = None,
) -> tuple[ToolMessage | Command[Any], list[Json]]:
    """Put one tool call through a policy: what comes of it, and the arguments of the calls that were made."""
    calls: list[Json] = []

    async def handler(request: ToolCallRequest) -> ToolMessage | Command[Any]:
        calls.append(request.tool_call["args"])
        if isinstance(result, Exception):
            raise result
        return ToolMessage(result, tool_call_id=call_id, name=name) if isinstance(result, str) else result

    request = ToolCallRequest(
        tool_call={"name": name, "args": args or {}, "id": call_id, "type": "tool_call"},
        tool=tool,
        state={"messages": on.conversation()},
        runtime=Runtime(context=on),  # type: ignore[arg-type]
    )
    return await policy.awrap_tool_call(request, handler), calls
