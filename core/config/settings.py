"""The whole configuration, composed of its sections. Data only: `core.config.load` reads them.

A section is declared in `server`, `sandbox` or `agent`, by what it configures, and its keys are explained there: the
configuration reference is generated from it (`core.config.reference`). Sections are not declared beside the code that
reads them, because most have several readers: an actor, a channel and an adapter, which do not know each other.

DeerFlow's keys and defaults are accepted; unknown keys are kept in `extra` of their section.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from core.config.acp import NAME, AcpAgent
from core.config.agent import (
    ApprovalRule,
    Budget,
    Budgets,
    CircuitBreaker,
    ContextSize,
    Frequency,
    Goals,
    Guardrails,
    InputPolish,
    LoopDetection,
    Memory,
    MiddlewareEntry,
    Model,
    Pricing,
    Provider,
    Suggestions,
    Summarization,
    Title,
    TokenBudget,
    ToolEntry,
    ToolGroup,
    ToolOutput,
)
from core.config.channels import ChannelConnections, Channels
from core.config.deerflow import FORM
from core.config.mcp import Mcp, McpOffer, McpServer
from core.config.sandbox import Mount, Sandbox
from core.config.sections import Off, On, Open, Secret, Section
from core.config.server import (
    Auth,
    Http,
    Langfuse,
    LangSmith,
    Limits,
    Metrics,
    Nats,
    OidcProvider,
    Otlp,
    Runs,
    Tls,
    Tracing,
    Uploads,
    Webhooks,
)
from core.config.skills import SkillEvolution, Skills
from core.config.subagents import INHERIT, Subagents

__all__ = [
    "ROLES",
    "AcpAgent",
    "ApprovalRule",
    "Auth",
    "Budget",
    "Budgets",
    "ChannelConnections",
    "Channels",
    "CircuitBreaker",
    "Config",
    "ContextSize",
    "Frequency",
    "Goals",
    "Guardrails",
    "Http",
    "InputPolish",
    "LangSmith",
    "Langfuse",
    "Limits",
    "LoopDetection",
    "Mcp",
    "McpServer",
    "Memory",
    "Metrics",
    "MiddlewareEntry",
    "Model",
    "Mount",
    "Nats",
    "Off",
    "OidcProvider",
    "On",
    "Open",
    "Otlp",
    "Pricing",
    "Provider",
    "Runs",
    "Sandbox",
    "Secret",
    "Section",
    "SkillEvolution",
    "Skills",
    "Subagents",
    "Suggestions",
    "Summarization",
    "Title",
    "Tls",
    "TokenBudget",
    "ToolEntry",
    "ToolGroup",
    "ToolOutput",
    "Tracing",
    "Uploads",
    "Webhooks",
]

ROLES = ("lead", "summarization", "title", "goal", "suggestions", "memory")
"""Roles that models can be chosen for."""


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration. `hash` names its content (references unresolved); `warnings` are for people."""

    config_version: int = FORM
    """The version of this file's form: 100 has the keys that stand here, 1 to 34 are DeerFlow's. Keys are read by their
    old names in any case; `sika config upgrade` writes the file with those of today."""
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    """The lowest level in the server's own log."""
    http: Http = Http()
    auth: Auth = Auth()
    limits: Limits = Limits()
    nats: Nats = Nats()
    runs: Runs = Runs()
    actors: tuple[str, ...] = ()
    """Actors of yours, as `module:Class`."""
    installed: Mapping[str, Open] = {}
    """Settings of installed actors, channels, policies and sandbox providers, by their names."""
    models: tuple[Model, ...] = ()
    model_roles: Mapping[str, tuple[str, ...]] = {}
    """Lists of models by role; the first that works answers. Roles: `lead` (the agent), `summarization`, `title`,
    `goal`, `suggestions`, `memory`. The first of `lead` is the model of runs that name none, the others are fallbacks:
    `{lead: [main, backup]}`."""
    tools: tuple[ToolEntry, ...] = ()
    tools_exclusive: bool | None = None
    """True if there are only the tools of `tools`, without the built-in ones. Default: whether that list names a class
    of DeerFlow."""
    tool_groups: tuple[ToolGroup, ...] = ()
    tool_search: Off = Off()
    """Tools with `deferred: true`, and all tools of MCP servers, are shown to the model only after it searched for
    them."""
    mcp: Mcp = Mcp()
    mcp_server: McpOffer = McpOffer()
    channels: Channels = Channels()
    channel_connections: ChannelConnections = ChannelConnections()
    sandbox: Sandbox = Sandbox()
    uploads: Uploads = Uploads()
    webhooks: Webhooks = Webhooks()
    title: Title = Title()
    goals: Goals = Goals()
    suggestions: Suggestions = Suggestions()
    input_polish: InputPolish = InputPolish()
    summarization: Summarization = Summarization()
    memory: Memory = Memory()
    guardrails: Guardrails = Guardrails()
    approvals: tuple[ApprovalRule, ...] = ()
    command_audit: On = On()
    """Refuses commands that would destroy or leak data, and warns of doubtful ones. It has an effect only where
    commands run on this machine unconfined (`sandbox.provider: host`)."""
    read_before_write: On = On()
    """The agent may change a file only after it read the file as it is now."""
    delivery_check: On = On()
    """A run that wrote files to the outputs and is about to end without showing any to the person is told so, once."""
    tool_output: ToolOutput = ToolOutput()
    subagents: Subagents = Subagents()
    budgets: Budgets = Budgets()
    token_budget: TokenBudget = TokenBudget()
    safety_finish_reason: On = On()
    """Answers that the provider refused are marked, and their tool calls are not made."""
    middlewares: tuple[MiddlewareEntry, ...] = ()
    loop_detection: LoopDetection = LoopDetection()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    token_usage: On = On()
    """Counts the tokens of runs."""
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    agents_api: Off = Off()
    """The routes of custom agents: `/api/agents` and `/api/user-profile`."""
    skills: Skills = Skills()
    acp_agents: Mapping[str, AcpAgent] = {}
    """Other agents by name, to which the agent gives work with the tool `invoke_acp_agent`:
    `{codex: {command: codex-acp, trusted: true}}`."""
    skill_scan: On = On()
    """Checks skills by fixed rules before they are installed or changed, in addition to the check by a model."""
    skill_evolution: SkillEvolution = SkillEvolution()
    hash: str = ""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, entries in (("models", self.models), ("tools", self.tools), ("tool_groups", self.tool_groups)):
            _refuse_twice(key, [entry.name for entry in entries])
        _refuse_twice("sandbox.mounts", [mount.container_path for mount in self.sandbox.mounts], "container_path")
        _refuse_twice("approvals", [repr((rule.tool, rule.match, rule.when)) for rule in self.approvals], "tool")
        if wrong := [name for name in self.acp_agents if not NAME.fullmatch(name)]:
            raise ValueError(f"acp_agents.{wrong[0]}: a name has letters, digits, _ . and -, at most 64")
        if unknown := [role for role in self.model_roles if role not in ROLES]:
            raise ValueError(f"model_roles.{unknown[0]}: no such role; there are: {', '.join(ROLES)}")
        names = [model.name for model in self.models]
        for place, name in self._models_by_place():
            if name not in names:
                raise ValueError(f"{place}: {name} is none of the models; there are: {', '.join(names) or 'none'}")

    def _models_by_place(self) -> Iterator[tuple[str, str]]:
        for role, models in self.model_roles.items():
            yield from ((f"model_roles.{role}[{index}]", name) for index, name in enumerate(models))
        for key, name in (
            ("summarization.model_name", self.summarization.model_name),
            ("title.model_name", self.title.model_name),
            ("goals.model_name", self.goals.model_name),
            ("suggestions.model_name", self.suggestions.model_name),
            ("input_polish.model_name", self.input_polish.model_name),
            ("memory.model_name", self.memory.model_name),
            ("skill_evolution.moderation_model_name", self.skill_evolution.moderation_model_name),
        ):
            if name is not None:
                yield key, name
        for kind, override in self.subagents.agents.items():
            if override.model is not None:
                yield f"subagents.agents.{kind}.model", override.model
        for kind, custom in self.subagents.custom_agents.items():
            if custom.model != INHERIT:
                yield f"subagents.custom_agents.{kind}.model", custom.model


def _refuse_twice(key: str, names: Sequence[str], field: str = "name") -> None:
    for index, name in enumerate(names):
        if (first := names.index(name)) < index:
            raise ValueError(f"{key}[{index}].{field}: {name} is already {key}[{first}]")
