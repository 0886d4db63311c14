"""The lead agent: works through the runs of a thread with LangChain's agent loop, recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import structlog
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError

from actors.lead.agent import Agents, as_langchain
from actors.lead.breakpoints import Breakpoints
from actors.lead.failures import Breaker
from actors.lead.messages import Loaded
from actors.lead.prompt import build, short_hash
from actors.lead.recorder import Call, Turn
from core.config import ConfigSource
from core.errors import SikaError
from core.events import Json, RunRequested
from core.run import Journal, OwnedRun, Paused, RunActor
from core.state import next_nodes, unanswered
from core.tools import Effect, Tool

log = structlog.get_logger("sika.lead")

DEMO = "demo"
"""The demo model likes to plan; others do when they are asked to (contract runtime §1.1: `is_plan_mode`)."""
TODO_TOOL = "write_todos"


class TooManySteps(SikaError):
    """The agent did not come to an end within `recursion_limit`."""

    code = "too_many_steps"


class Traced(Protocol):
    """What an invocation's configuration has besides, so that it can be traced: callbacks and how it is found."""

    def __call__(self, **about: Any) -> RunnableConfig: ...


class Models(Protocol):
    """Finds the model for a run."""

    def name(self, wanted: str | None) -> str:
        """The configured name that a request for `wanted` gets."""
        ...

    def get(self, name: str, *, thinking: bool, reasoning_effort: str | None) -> BaseChatModel: ...


class Lead(RunActor):
    """Does runs. Stateless: whatever it needs to know about a run is in the log."""

    name = "lead"

    def __init__(
        self, config: ConfigSource, models: Models, tools: Sequence[Tool], call: Call, traced: Traced | None = None
    ) -> None:
        self._traced: Traced = traced or _untraced
        self._config = config
        self._models = models
        self._call = call
        self._agents = Agents([as_langchain(tool) for tool in tools])
        self._effects: Mapping[str, Effect] = {tool.name: tool.effect for tool in tools} | {TODO_TOOL: "pure"}
        self._loaded = Loaded()
        self._prompt = build()
        self._breakers: dict[str, Breaker] = {}

    def describe(self, request: RunRequested) -> Mapping[str, Any]:
        return {
            "model": self._models.name(_option(request, "model_name") or _option(request, "model")),
            "prompt": short_hash(self._prompt),
            "config": self._config.current().hash,
        }

    async def perform(self, run: OwnedRun) -> None:
        await self.execute(run, run.request, run.run.model or "", run.thread_id, run.state.user, self._call)

    async def execute(
        self, journal: Journal, request: RunRequested, model: str, thread_id: str, user: str, call: Call
    ) -> None:
        """The loop itself, on any journal: live, or replaying."""
        if not next_nodes(journal.state.messages) and not await journal.steered():
            return  # nothing to answer, or answered already
        chat = self._models.get(
            model,
            thinking=_option(request, "thinking_enabled") is not False,
            reasoning_effort=_option(request, "reasoning_effort"),
        )
        plan_mode = bool(_option(request, "is_plan_mode", model == DEMO))
        agent = self._agents.get(chat, self._prompt, plan_mode=plan_mode)
        limits = self._config.current().runs
        turn = Turn(
            journal=journal,
            thread=thread_id,
            run=journal.id,
            user=user,
            call=call,
            attempts=limits.max_model_attempts,
            effects=self._effects,
            breakpoints=Breakpoints(request),
            breaker=self._breaker(model),
        )
        state = {name: value for name, value in journal.state.values.items() if name in agent.channels}
        state["messages"] = self._seed(thread_id, journal)
        steps = _recursion_limit(request, limits.recursion_limit)
        try:
            traced = self._traced(
                thread=thread_id,
                run=journal.id,
                user=user,
                assistant=request.assistant,
                model=model,
                given=request.metadata,
            )
            await agent.ainvoke(state, config={"recursion_limit": steps, **traced}, context=turn)
        except GraphRecursionError as error:
            raise TooManySteps(f"The agent had not finished at its recursion limit of {steps} steps.") from error
        finally:
            await turn.end()
        if turn.asked:
            raise Paused(["tools"], turn.asked)

    def _breaker(self, model: str) -> Breaker:
        """The circuit to a model, shared by the runs of this process."""
        limits = self._config.current().circuit_breaker
        breaker = self._breakers.setdefault(model, Breaker())
        breaker.threshold, breaker.recovery_seconds = limits.failure_threshold, limits.recovery_timeout_sec
        return breaker

    def _seed(self, thread_id: str, journal: Journal) -> list[BaseMessage]:
        """The messages to start from. An answer with open tool calls is left out: the first model call gives it
        again.
        """
        messages = journal.state.messages
        if unanswered(messages):
            cut = max(n for n, message in enumerate(messages) if message["type"] == "ai")
            messages = messages[:cut]
        return self._loaded.load(thread_id, messages)

    async def stopped(self, run: OwnedRun, open_calls: list[Json]) -> None:
        """A command of a stopped run must not go on."""
        for call in open_calls:
            request = {
                "op": "kill",
                "thread": run.thread_id,
                "user": run.state.user,
                "run": run.id,
                "call_id": f"{run.said_seq()}-{call['id']}",
            }
            try:
                await self._call("sandbox", request, _nobody)
            except SikaError as error:
                log.warning("command not stopped", call=call["id"], error=str(error))


def _untraced(**about: Any) -> RunnableConfig:
    return {}


async def _nobody(text: str) -> None:
    """Nobody looks at the progress of this."""


def _option(request: RunRequested, name: str, default: Any = None) -> Any:
    """A run option: the caller's `context`, else `config.configurable` (contract runtime §1.1)."""
    if name in request.context:
        return request.context[name]
    return request.config.get("configurable", {}).get(name, default)


def _recursion_limit(request: RunRequested, default: int) -> int:
    limit = request.config.get("recursion_limit", default)
    return min(max(int(limit), 1), 1000) if isinstance(limit, int | float) else default
