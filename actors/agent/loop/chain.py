"""Builds the chain of policies of a run, outermost first; once per configuration and kind of run.

The recorder is outermost, the effects are innermost. A policy gets the request as the outer policies changed it, and
the answer or result as the inner ones changed it. The order is fixed. Middlewares of the configuration are placed by
name, by default right before the repair of the conversation. Clarification is always the last policy.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from langchain.agents.middleware import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
)
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.loop.effects import Effects
from actors.agent.loop.ported import Ported
from actors.agent.loop.recorder import Recorder, patched
from actors.agent.messages.convert import load
from actors.agent.policies.context.asides import Asides
from actors.agent.policies.context.deferred_tools import DeferredTools
from actors.agent.policies.context.dynamic_context import DynamicContext, Recall
from actors.agent.policies.context.earlier_messages import EarlierMessages
from actors.agent.policies.context.summarization import Summarization
from actors.agent.policies.context.thinning import Thinning
from actors.agent.policies.context.vision import Vision
from actors.agent.policies.interaction.clarification import Clarification
from actors.agent.policies.interaction.delivery import PRESENT, Delivery
from actors.agent.policies.interaction.todos import Todos
from actors.agent.policies.interaction.token_usage import TokenUsage
from actors.agent.policies.limits.budgets import Budgets, counts_days
from actors.agent.policies.limits.loop_detection import LoopDetection
from actors.agent.policies.limits.output_budget import OutputBudget
from actors.agent.policies.limits.run_limits import CallLimit, TimeLimit
from actors.agent.policies.limits.subagent_limit import SubagentLimit
from actors.agent.policies.repair.dangling_calls import DanglingCalls
from actors.agent.policies.repair.finish_reasons import LengthFinish, SafetyFinish
from actors.agent.policies.repair.terminal_response import TerminalResponse
from actors.agent.policies.safety.approvals import Approvals
from actors.agent.policies.safety.command_audit import CommandAudit
from actors.agent.policies.safety.guardrails import Guardrails
from actors.agent.policies.safety.input_sanitising import InputSanitising
from actors.agent.policies.safety.read_before_write import ReadBeforeWrite
from actors.agent.policies.safety.tool_results import ToolResults
from actors.agent.run.attempt import Answer, Attempt, ModelHandler, ToolHandler, ToolResult
from actors.agent.setup.plan import RunSetup
from actors.agent.summary.write import Models
from core import policy as port
from core.config import settings
from core.config.load import reveal
from core.config.settings import Config, MiddlewareEntry
from core.errors import Invalid, contained, place_of
from core.plugins import POLICIES, Plugin, usable, with_settings
from core.plugins import load as load_class
from core.ports.guardrails import Provider
from core.ports.images import Images
from core.runs.windows import Windows
from core.thread.subagents import TOOLS

Policy = AgentMiddleware[Any, Attempt, Any]

LAST = "clarification"
REPAIR = "dangling_calls"
"""The policy that makes requests valid for the provider, after all other changes to them."""
WRAPS = ("wrap_model_call", "awrap_model_call", "wrap_tool_call", "awrap_tool_call")
HOOKS = ("before_agent", "before_model", "after_model", "after_agent")


class Ports(NamedTuple):
    """The outside services that policies use."""

    images: Images | None = None
    guardrails: Provider | None = None
    summaries: Models = list
    memories: Recall | None = None
    windows: Windows | None = None


def policies(setup: RunSetup, ports: Ports, deferred: Sequence[BaseTool] = ()) -> list[Policy]:
    """Returns the built-in policies of a run. `deferred` are the tools that the model must look up."""
    config = setup.config
    provider, images = ports.guardrails, ports.images
    chain: list[Policy | None] = [
        TokenUsage() if config.token_usage.enabled else None,
        CallLimit(),
        TimeLimit(),
        Budgets(config) if _has_budgets(config) or setup.role is not None else None,
        Summarization(config.summarization, ports.summaries, ports.windows) if config.summarization.enabled else None,
        Thinning(ports.windows) if config.summarization.enabled else None,
        SubagentLimit() if any(tool.name in TOOLS for tool in setup.tools) else None,
        LoopDetection(config.loop_detection) if config.loop_detection.enabled else None,
        TerminalResponse(),
        LengthFinish(),
        SafetyFinish() if config.safety_finish_reason.enabled else None,
        Todos() if setup.todos else None,
        Delivery() if config.delivery_check.enabled and _presents(setup) else None,
        Asides(),
        InputSanitising(),
        DynamicContext(ports.memories),
        Vision(images) if setup.vision and images is not None else None,
        ToolResults(),
        OutputBudget(config.tool_output) if config.tool_output.enabled else None,
        Approvals(config.approvals),
        Ported(Guardrails(config.guardrails, provider)) if provider is not None else None,
        CommandAudit() if config.command_audit.enabled else None,
        ReadBeforeWrite() if config.read_before_write.enabled else None,
        DeferredTools(deferred) if deferred else None,
        EarlierMessages(),
        *installed(config),
        DanglingCalls(),
        Clarification(),
    ]
    return [policy for policy in chain if policy is not None]


def installed(config: Config) -> list[Policy]:
    """Returns the policies of installed packages, but for those that `middlewares:` places.

    Raises `Invalid` for one that cannot be used: nothing runs without the policies that are there to hold it back.
    """
    placed = {entry.use for entry in config.middlewares}
    return [_installed(plugin, config) for plugin in usable(POLICIES) if _path_of(plugin.value) not in placed]


def describe(plugin: Plugin, config: Config) -> str:
    """Returns what an installed policy gives. Raises `Invalid` if it cannot be used."""
    return f"{_of_plugin(plugin, config).name}, a policy of every run"


def _installed(plugin: Plugin, config: Config) -> Policy:
    try:
        return _of_plugin(plugin, config)
    except NotAPolicy as error:
        raise Invalid(f"{plugin.place}: {error}") from None


def _of_plugin(plugin: Plugin, config: Config) -> Policy:
    cls = plugin.value
    if not (isinstance(cls, type) and issubclass(cls, port.Policy)):
        raise NotAPolicy("not a sika.Policy class")
    return _ported(cls, config.installed.get(cls.name, {}), f"installed.{cls.name}")


class NotAPolicy(Invalid):
    """An object of another kind is where a policy is expected."""


def _ported(cls: type[port.Policy], options: settings.Open, where: str) -> Policy:
    revealed = reveal(options)
    try:
        return Ported(with_settings(cls, revealed))
    except Exception as error:
        shown = f": {error}" if revealed == options else ""  # else it might show a secret
        name = f"{cls.__module__}:{cls.__qualname__}"
        raise Invalid(f"{where}: {name}: {type(error).__name__}{shown}{place_of(error)}") from None


def _path_of(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"


def _presents(setup: RunSetup) -> bool:
    return any(tool.name == PRESENT for tool in setup.tools)


def _has_budgets(config: Config) -> bool:
    return config.token_budget.enabled or config.budgets != settings.Budgets() or counts_days(config)


class Chain(AgentMiddleware[Any, Attempt, Any]):
    """Policies as one middleware.

    LangChain's own composition traces every layer of every call, which costs more than most policies do.
    """

    name = "chain"

    def __init__(self, policies: Sequence[Policy]) -> None:
        super().__init__()
        self.tools = [tool for policy in policies if not has_hooks(policy) for tool in getattr(policy, "tools", ())]
        inner_first = policies[::-1]
        self._model = [_normal(policy) for policy in inner_first if _wraps(policy, "awrap_model_call")]
        self._tool = [policy.awrap_tool_call for policy in inner_first if _wraps(policy, "awrap_tool_call")]

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        for wrap in self._model:
            handler = partial(_call, wrap, handler)
        return await handler(request)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        for wrap in self._tool:
            handler = partial(_call, wrap, handler)
        return await handler(request)


async def _call(wrap: Any, handler: Any, request: Any) -> Any:
    with contained():
        return await wrap(request, handler)


def _normal(policy: Policy) -> Any:
    """Returns the policy's wrapper of model calls. Third-party ones are adapted to return an `Answer`.

    They may return a bare message, or add a command, which is recorded. Their answer keeps the event of the newest
    answer that they received, which they may have changed in place.
    """
    if type(policy).__module__.startswith("actors.agent."):
        return policy.awrap_model_call

    async def wrap(request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        newest = Answer([])

        async def inner(request: ModelRequest[Attempt]) -> ModelResponse[Any]:
            nonlocal newest
            response = await handler(request)
            newest = _apart(response) if isinstance(response, Answer) else Answer(response.result)
            return newest

        response: Any = await policy.awrap_model_call(request, inner)
        if isinstance(response, ExtendedModelResponse):
            if response.command is not None and response.command.update:
                await patched(request.runtime.context, dict(response.command.update))
            response = response.model_response
        if isinstance(response, Answer):
            return response
        return replace(newest, result=[response] if isinstance(response, AIMessage) else response.result)

    return wrap


def _apart(answer: Answer) -> Answer:
    """Returns the answer with an original of its own: what others do to the message in place shows beside it."""
    return answer if answer.event is None else replace(answer, original=load(answer.event.message))


def middlewares(policies: Sequence[Policy]) -> list[Policy]:
    """Returns the middlewares for LangChain: the chain, and the hooks of policies, which become graph nodes."""
    return [*(_hooks_of(policy) for policy in policies if has_hooks(policy)), Chain(policies)]


def _hooks_of(policy: Policy) -> Policy:
    """Returns the middleware without its wrappers of calls."""
    cls = type(policy)
    wraps = {name: getattr(AgentMiddleware, name) for name in WRAPS}
    hooks = copy.copy(policy)
    hooks.__class__ = type(cls.__name__, (cls,), wraps)
    return hooks


def arranged(policies: Sequence[Policy], entries: Sequence[MiddlewareEntry], *, confined: bool = False) -> list[Policy]:
    """Returns the whole chain: the policies and the middlewares of the configuration. Raises `Invalid`.

    `confined`: the sandbox confines commands. They are not audited then, though entries may be placed at the audit.
    """
    chain = list(policies)
    for place, entry in enumerate(entries):
        where = f"middlewares[{place}]"
        chain.insert(_position(chain, entry, where), of_entry(entry, where))
    chain = [policy for policy in chain if not (confined and isinstance(policy, CommandAudit))]
    chain.sort(key=lambda policy: policy.name == LAST)
    owners: dict[str, Policy] = {}
    for policy in chain:
        if owners.setdefault(policy.name, policy) is not policy:
            both = " and ".join(f"{type(p).__module__}:{type(p).__name__}" for p in (owners[policy.name], policy))
            raise Invalid(f"middlewares: {both} are both named {policy.name}")
    return [Recorder(watched=any(map(has_hooks, chain))), *chain, Effects()]


def of_entry(entry: MiddlewareEntry, where: str) -> Policy:
    """Builds a middleware of the configuration. Raises `Invalid`."""
    cls = load_class(entry.use, f"{where}.use: {entry.use}")
    if isinstance(cls, type) and issubclass(cls, port.Policy):
        return _ported(cls, entry.config, f"{where}.config")
    if not (isinstance(cls, type) and issubclass(cls, AgentMiddleware)):
        raise Invalid(f"{where}.use: {entry.use} is neither a sika.Policy nor a LangChain AgentMiddleware")
    arguments = reveal(entry.config)
    try:
        middleware: Policy = cls(**arguments)
    except Exception as error:
        detail = f": {error}" if arguments == entry.config else ""  # else it might show a secret
        raise Invalid(f"{where}.config: {type(error).__name__}{detail}{place_of(error)}") from None
    for name in ("wrap_model_call", "wrap_tool_call"):
        if _wraps(middleware, name) and not _wraps(middleware, f"a{name}"):
            raise Invalid(f"{where}.use: {entry.use} has {name} but no a{name}: the server is asynchronous")
    return middleware


def _position(policies: Sequence[Policy], entry: MiddlewareEntry, where: str) -> int:
    anchor = entry.before or entry.after
    names = [policy.name for policy in policies]
    if anchor is None:
        return names.index(REPAIR) if REPAIR in names else len(policies)
    if anchor not in names:
        raise Invalid(f"{where}: there is no {anchor!r} to be placed at; there are: {', '.join(names)}")
    return names.index(anchor) + (0 if entry.before else 1)


def has_hooks(policy: Policy) -> bool:
    """Tells whether a middleware may change the graph's state beside the calls it wraps."""
    return any(_wraps(policy, f"{a}{hook}") for hook in HOOKS for a in ("", "a"))


def _wraps(policy: Policy, name: str) -> bool:
    return getattr(type(policy), name) is not getattr(AgentMiddleware, name)
