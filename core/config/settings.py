"""The sections of the configuration, their defaults and limits. Data only: `core.config.load` reads them.

DeerFlow's keys and defaults are accepted; keys nobody knows are kept in `extra` of their section.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Price = Annotated[float, msgspec.Meta(ge=0)]
Open = Mapping[str, Any]
"""A section whose keys belong to somebody else."""
_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
ROLES = ("lead", "summarization", "suggestions")
"""What models may be chosen for."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Secret:
    """A string that does not print itself. `reveal()` where it is used, nowhere else."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every section; `extra` holds the keys that we do not know."""

    extra: Open = {}


class Http(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 2026
    max_body_bytes: Positive = 8 * 1024 * 1024
    heartbeat_seconds: Seconds = 5
    cors_origins: tuple[str, ...] = ()
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    docs: bool = True
    request_timeout_seconds: Seconds = 20
    max_connections_per_address: Positive = 512

    def __post_init__(self) -> None:
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy, strict=False)
            except ValueError:
                raise ValueError(f"trusted_proxies: an address or a network is expected, got {proxy!r}") from None
        if self.public_url is not None and not _ORIGIN.fullmatch(self.public_url):
            raise ValueError("public_url: expected http(s)://name[:port] without a path")


class OidcProvider(Section, frozen=True, kw_only=True):
    """Where people may sign in. `allowed_domains`: those whose verified address is in one of these, and nobody else."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    issuer: str
    client_id: str
    client_secret: Secret | None = None
    display_name: str | None = None
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    allowed_domains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        place = urlsplit(self.issuer)
        if place.scheme != "https" and not (place.scheme == "http" and place.hostname in _LOOPBACK):
            raise ValueError("issuer: expected an address that begins with https://")


class Auth(Section, frozen=True, kw_only=True):
    """Accounts. `registration`: people may make accounts for themselves."""

    enabled: bool = False
    registration: bool = False
    session_days: Annotated[float, msgspec.Meta(gt=0, le=365)] = 7
    oidc: tuple[OidcProvider, ...] = ()

    def __post_init__(self) -> None:
        names = [provider.name for provider in self.oidc]
        if len(set(names)) < len(names):
            raise ValueError("oidc: two providers have the same name")


class Limits(Section, frozen=True, kw_only=True):
    """Of one user; None: none."""

    max_concurrent_runs: Positive | None = None
    requests_per_minute: Positive | None = None
    tokens_per_day: Positive | None = None
    exempt_admins: bool = True


class Tls(Section, frozen=True, kw_only=True):
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class Nats(Section, frozen=True, kw_only=True):
    url: str | None = None
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    credentials: str | None = None
    tls: Tls | None = None
    prefix: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+\Z")] = "sika"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    start_seconds: Seconds = 300

    def __post_init__(self) -> None:
        if self.url and "@" in self.url:
            raise ValueError("no credentials in the address; use nats.user and nats.password, or nats.token")


class Runs(Section, frozen=True, kw_only=True):
    lease_seconds: Annotated[int, msgspec.Meta(ge=2, le=60)] = 10
    max_concurrent: Positive = 128
    recursion_limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    max_recursion_limit: Positive = 1000
    """No run gets more steps, whatever a client asks for."""
    max_model_attempts: Positive = 3


class Pricing(Section, frozen=True, kw_only=True):
    """What a million tokens cost; without `cache_read_per_million`, cached input costs as much as other input."""

    currency: Annotated[str, msgspec.Meta(min_length=1, max_length=8)] = "USD"
    input_per_million: Price = 0
    output_per_million: Price = 0
    cache_read_per_million: Price | None = None


class Model(Section, frozen=True, kw_only=True):
    """`extra` goes to the class named by `use`, as it is (see `core.config.load.reveal`)."""

    name: str
    model: str
    use: str = "langchain_openai:ChatOpenAI"
    display_name: str | None = None
    description: str | None = None
    supports_thinking: bool = False
    supports_reasoning_effort: bool = False
    supports_vision: bool = False
    when_thinking_enabled: Open | None = None
    when_thinking_disabled: Open | None = None
    thinking: Open | None = None
    use_responses_api: bool | None = None
    output_version: str | None = None
    max_concurrency: Positive | None = None
    """Requests that the provider gets at once from one process; models with the same address and key share them."""
    context_window: Positive | None = None
    """Tokens that fit in one request, for people to see."""
    pricing: Pricing | None = None


class ToolGroup(Section, frozen=True, kw_only=True):
    name: str


class ToolEntry(Section, frozen=True, kw_only=True):
    """`extra` holds the tool's own settings. `deferred`: with `tool_search`, it has to be looked up to be called."""

    name: str
    use: str
    group: str | None = None
    deferred: bool = False


class Mount(Section, frozen=True, kw_only=True):
    host_path: str
    container_path: str
    read_only: bool = False


class Sandbox(Section, frozen=True, kw_only=True):
    provider: str = "auto"
    """`auto`, `bubblewrap`, `host`, or the name of one that an installed package brings."""
    allow_host_bash: bool = False
    network: bool = False
    timeout_seconds: Seconds = 600
    memory_mb: Positive = 2048
    max_processes: Positive = 256
    max_file_mb: Positive = 1024
    max_thread_mb: Count = 4096
    max_thread_files: Count = 200_000
    max_user_mb: Count = 20_480
    max_user_files: Count = 1_000_000
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, Secret] = {}
    bash_output_max_chars: Count = 20_000
    read_file_output_max_chars: Count = 50_000
    ls_output_max_chars: Count = 20_000


class Webhooks(Section, frozen=True, kw_only=True):
    """`secret` signs what is posted; without one, a generated secret of the data directory does."""

    secret: Secret | None = None
    allow_private: bool = False
    timeout_seconds: Seconds = 10


class Uploads(Section, frozen=True, kw_only=True):
    max_files: Positive = 10
    max_file_size: Positive = 50 * 1024 * 1024
    max_total_size: Positive = 100 * 1024 * 1024
    auto_convert_documents: bool = False
    convert_unconfined: bool = False


class Suggestions(Section, frozen=True, kw_only=True):
    enabled: bool = True
    max_suggestions: Annotated[int, msgspec.Meta(ge=1, le=5)] = 3
    model_name: str | None = None
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 20


class InputPolish(Section, frozen=True, kw_only=True):
    enabled: bool = True
    max_chars: Annotated[int, msgspec.Meta(ge=1, le=20_000)] = 4000
    model_name: str | None = None


class ContextSize(Section, frozen=True, kw_only=True):
    type: Literal["tokens", "messages", "fraction"]
    value: Seconds


class Summarization(Section, frozen=True, kw_only=True):
    """`trigger`: any of these sizes starts a summary."""

    enabled: bool = False
    trigger: tuple[ContextSize, ...] = ()
    keep: ContextSize = ContextSize(type="messages", value=20)
    trim_tokens_to_summarize: Positive | None = 4000
    model_name: str | None = None
    summary_prompt: str | None = None
    preserve_recent_skill_count: Count = 5
    preserve_recent_skill_tokens: Count = 25_000
    preserve_recent_skill_tokens_per_skill: Count = 5000
    skill_file_read_tool_names: tuple[str, ...] = ("read_file", "read", "view", "cat")


class Frequency(Section, frozen=True, kw_only=True):
    warn: Positive
    hard_limit: Positive

    def __post_init__(self) -> None:
        if self.hard_limit < self.warn:
            raise ValueError("hard_limit must not be below warn")


class LoopDetection(Section, frozen=True, kw_only=True):
    enabled: bool = True
    warn_threshold: Positive = 3
    hard_limit: Positive = 5
    window_size: Positive = 20
    tool_freq_warn: Positive = 30
    tool_freq_hard_limit: Positive = 50
    tool_freq_overrides: Mapping[str, Frequency] = {}

    def __post_init__(self) -> None:
        if self.hard_limit < self.warn_threshold or self.tool_freq_hard_limit < self.tool_freq_warn:
            raise ValueError("a hard limit must not be below its warning threshold")


class ToolOutput(Section, frozen=True, kw_only=True):
    """Results of at least `externalize_min_chars` go to a file, and the model gets a head and a tail; where there is
    no file to be had, results are cut at `fallback_max_chars`. `overrides`: the first number, by tool; 0 is never.
    """

    enabled: bool = True
    externalize_min_chars: Count = 12_000
    preview_head_chars: Count = 2000
    preview_tail_chars: Count = 1000
    fallback_max_chars: Positive = 30_000
    fallback_head_chars: Count = 8000
    fallback_tail_chars: Count = 3000
    exempt_tools: tuple[str, ...] = ("read_file",)
    overrides: Mapping[str, Count] = {}


class ApprovalRule(Section, frozen=True, kw_only=True):
    """Calls of `tool` (a name, `*` stands for anything) wait for a person. `match`: only those in whose arguments the
    expression is found: anywhere, or by name of the argument. `when`: every time, or until one was approved.
    """

    tool: str
    match: str | Mapping[str, str] | None = None
    when: Literal["always", "once_per_run", "once_per_thread"] = "always"
    allowed: tuple[Literal["approve", "edit", "reject"], ...] = ("approve", "edit", "reject")
    deadline_seconds: Seconds | None = None
    text: str = ""

    def __post_init__(self) -> None:
        given = self.match.values() if isinstance(self.match, Mapping) else [self.match] if self.match else []
        for expression in given:
            try:
                re.compile(expression)
            except re.error as error:
                raise ValueError(f"match: {expression!r} is no regular expression: {error}") from None
        if not self.allowed:
            raise ValueError("allowed: at least one of approve, edit, reject")


class Budget(Section, frozen=True, kw_only=True):
    """The most that may be used; None: as much as is wanted. `cost` is in the currency of the models' prices."""

    tokens: Positive | None = None
    cost: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Budgets(Section, frozen=True, kw_only=True):
    """What a run, a thread, a user in a day, and everybody in a day may use. A day is a day in UTC. From `warn` of a
    run's budget on, the agent is told to come to an end.
    """

    run: Budget = Budget()
    thread: Budget = Budget()
    user_per_day: Budget = Budget()
    day: Budget = Budget()
    warn: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8


class TokenBudget(Section, frozen=True, kw_only=True):
    """DeerFlow's: of a run. At `hard_stop` the agent has to answer with what it has."""

    enabled: bool = False
    max_tokens: Positive = 200_000
    warn_threshold: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    hard_stop_threshold: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


class MiddlewareEntry(Section, frozen=True, kw_only=True):
    """A policy (`core.policy`) or LangChain middleware of yours: `module:Class`, made with `config`, placed `before` or
    `after` a named one.
    """

    use: str
    before: str | None = None
    after: str | None = None
    config: Open = {}

    def __post_init__(self) -> None:
        if self.before and self.after:
            raise ValueError("before and after: only one of them")


class CircuitBreaker(Section, frozen=True, kw_only=True):
    failure_threshold: Positive = 5
    recovery_timeout_sec: Seconds = 60


class Provider(Section, frozen=True, kw_only=True):
    use: str
    config: Open = {}


class Guardrails(Section, frozen=True, kw_only=True):
    enabled: bool = False
    provider: Provider | None = None
    fail_closed: bool = True
    passport: str | None = None

    def __post_init__(self) -> None:
        if self.enabled and self.provider is None:
            raise ValueError("enabled, but no provider decides: name one, as adapters.guardrails:AllowList")


class Skills(Section, frozen=True, kw_only=True):
    path: str | None = None
    container_path: str = "/mnt/skills"


class Metrics(Section, frozen=True, kw_only=True):
    """`/metrics`. `public`: also to those who are not signed in."""

    enabled: bool = True
    public: bool = False


class LangSmith(Section, frozen=True, kw_only=True):
    """None: as the environment says (`LANGSMITH_TRACING`, `LANGSMITH_API_KEY` …)."""

    enabled: bool | None = None
    api_key: Secret | None = None
    project: str | None = None
    endpoint: str | None = None


class Langfuse(Section, frozen=True, kw_only=True):
    """None: as the environment says (`LANGFUSE_TRACING`, `LANGFUSE_PUBLIC_KEY` …)."""

    enabled: bool | None = None
    public_key: str | None = None
    secret_key: Secret | None = None
    base_url: str | None = None


class Otlp(Section, frozen=True, kw_only=True):
    """A collector of spans and measures; without an `endpoint` there are none."""

    endpoint: str | None = None
    headers: Mapping[str, Secret] = {}
    service_name: str = "sika"

    def __post_init__(self) -> None:
        if self.endpoint is not None and not re.match(r"https?://[^/\s]", self.endpoint):
            raise ValueError("endpoint: expected http(s)://name[:port]")


class Tracing(Section, frozen=True, kw_only=True):
    environment: str | None = None
    langsmith: LangSmith = LangSmith()
    langfuse: Langfuse = Langfuse()
    otlp: Otlp = Otlp()


class On(Section, frozen=True, kw_only=True):
    enabled: bool = True


class Off(Section, frozen=True, kw_only=True):
    enabled: bool = False


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration. `hash` names its content (references unresolved); `warnings` are for people."""

    config_version: int = 1
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    http: Http = Http()
    auth: Auth = Auth()
    limits: Limits = Limits()
    nats: Nats = Nats()
    runs: Runs = Runs()
    actors: tuple[str, ...] = ()
    installed: Mapping[str, Open] = {}
    """Settings of installed actors, channels, policies and sandbox providers, by their names."""
    models: tuple[Model, ...] = ()
    tools: tuple[ToolEntry, ...] = ()
    tools_exclusive: bool | None = None
    """Whether there are only the tools of the list. None: if it names one of DeerFlow's classes."""
    tool_groups: tuple[ToolGroup, ...] = ()
    tool_search: Off = Off()
    sandbox: Sandbox = Sandbox()
    uploads: Uploads = Uploads()
    webhooks: Webhooks = Webhooks()
    suggestions: Suggestions = Suggestions()
    input_polish: InputPolish = InputPolish()
    summarization: Summarization = Summarization()
    skills: Skills = Skills()
    guardrails: Guardrails = Guardrails()
    loop_detection: LoopDetection = LoopDetection()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    model_roles: Mapping[str, tuple[str, ...]] = {}
    """Models by what they are for (`lead`, `summarization`, `suggestions`), the first that works."""
    tool_output: ToolOutput = ToolOutput()
    read_before_write: On = On()
    command_audit: On = On()
    safety_finish_reason: On = On()
    approvals: tuple[ApprovalRule, ...] = ()
    budgets: Budgets = Budgets()
    token_budget: TokenBudget = TokenBudget()
    middlewares: tuple[MiddlewareEntry, ...] = ()
    token_usage: On = On()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    agents_api: Off = Off()
    hash: str = ""
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, entries in (("models", self.models), ("tools", self.tools), ("tool_groups", self.tool_groups)):
            _refuse_twice(key, [entry.name for entry in entries])
        _refuse_twice("sandbox.mounts", [mount.container_path for mount in self.sandbox.mounts], "container_path")
        _refuse_twice("approvals", [repr((rule.tool, rule.match, rule.when)) for rule in self.approvals], "tool")
        if unknown := [role for role in self.model_roles if role not in ROLES]:
            raise ValueError(f"model_roles.{unknown[0]}: no such role; there are: {', '.join(ROLES)}")
        names = [model.name for model in self.models]
        for place, name in self._models_by_place():
            if name not in names:
                raise ValueError(f"{place}: {name} is none of the models; there are: {', '.join(names) or 'none'}")

    def _models_by_place(self) -> Iterator[tuple[str, str]]:
        for role, wanted in self.model_roles.items():
            yield from ((f"model_roles.{role}[{index}]", name) for index, name in enumerate(wanted))
        for key, name in (
            ("summarization.model_name", self.summarization.model_name),
            ("suggestions.model_name", self.suggestions.model_name),
        ):
            if name is not None:
                yield key, name


def _refuse_twice(key: str, names: Sequence[str], field: str = "name") -> None:
    for index, name in enumerate(names):
        if (first := names.index(name)) < index:
            raise ValueError(f"{key}[{index}].{field}: {name} is already {key}[{first}]")
