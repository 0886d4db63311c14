"""Settings of the agent: its models and tools, and the policies that bound it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from core.config.sections import Count, Open, Positive, Price, Seconds, Section, Share

# --- models and tools -------------------------------------------------------------------------------------------


class Pricing(Section, frozen=True, kw_only=True):
    """Prices of a million tokens. Costs and budgets in money are counted with them."""

    currency: Annotated[str, msgspec.Meta(min_length=1, max_length=8)] = "USD"
    """The currency."""
    input_per_million: Price = 0
    """Price of input."""
    output_per_million: Price = 0
    """Price of output."""
    cache_read_per_million: Price | None = None
    """Price of input that the provider had in its cache. Default: `input_per_million`."""


class Model(Section, frozen=True, kw_only=True):
    """The models. The first one is the default; without any, a small demo model answers offline.

    Other keys are arguments of the class that `use` names, as `temperature`, `max_tokens`, `api_key` or `base_url`.
    """

    name: str
    """The name that clients use for it."""
    model: str
    """The name that the provider uses for it."""
    use: str = "langchain_openai:ChatOpenAI"
    """The LangChain class, as `module:Class`. The default takes any OpenAI-compatible endpoint. For vLLM:
    `adapters.models.dialects:VLLM`, with `base_url`; for DeepSeek: `adapters.models.dialects:DeepSeek`."""
    display_name: str | None = None
    """Its name on pages. Default: `name`."""
    description: str | None = None
    """A sentence about it, for people who choose."""
    supports_thinking: bool = False
    """True if thinking can be turned on."""
    supports_reasoning_effort: bool = False
    """True if clients can choose how much it reasons."""
    supports_vision: bool = False
    """True if it can look at images."""
    when_thinking_enabled: Open | None = None
    """Arguments that are added when thinking is on."""
    when_thinking_disabled: Open | None = None
    """Arguments that are added when thinking is off."""
    thinking: Open | None = None
    """Short for `when_thinking_enabled.thinking`."""
    use_responses_api: bool | None = None
    """True if OpenAI's Responses API is used."""
    output_version: str | None = None
    """The form of answers, as `responses/v1`."""
    max_concurrency: Positive | None = None
    """Requests at the same time from one server process. Models with the same address and key share them."""
    context_window: Positive | None = None
    """Tokens that fit in one request, at most the model's `num_ctx`. Default: of a table of known models
    (`core/config/windows.json`), by `model`, or 128 000. If the provider refuses a request and names a smaller number,
    that counts for 30 days."""
    pricing: Pricing | None = None


class ToolEntry(Section, frozen=True, kw_only=True):
    """Tools that are added to the built-in ones, or settings for built-in ones. Other keys are the tool's settings."""

    name: str
    """The name of the tool, for the model."""
    use: str
    """The tool, as `module:name`: a tool, or a function that makes one of its settings."""
    group: str | None = None
    """The group that it belongs to (`tool_groups`)."""
    deferred: bool = False
    """With `tool_search`: whether the model sees it only after a search."""


class ToolGroup(Section, frozen=True, kw_only=True):
    """Groups of tools; custom agents name the groups that they use."""

    name: str
    """The name of the group."""


# --- help with writing ------------------------------------------------------------------------------------------


class Title(Section, frozen=True, kw_only=True):
    """Titles of conversations, made beside the first run. A title that a person or a client sets counts more."""

    enabled: bool = True
    """True if conversations get one."""
    max_words: Annotated[int, msgspec.Meta(ge=1, le=20)] = 6
    """Words that the model is told to use at most. In writing without spaces, four characters count as a word."""
    max_chars: Annotated[int, msgspec.Meta(ge=10, le=200)] = 60
    """Characters of the longest title; a longer one is cut. The beginning of the message, which is the title where no
    model writes one, has at most 50."""
    model_name: str | None = None
    """The model that writes them: one call for each conversation. Default: that of the run, or the first."""
    prompt_template: str | None = None
    """Instructions for it, instead of the built-in ones. `{max_words}`, `{user_msg}` and `{assistant_msg}` are
    replaced; the last is empty, as the title is made beside the first answer."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=120)] = 30
    """Time to write one; then the title is the beginning of the message."""


class Goals(Section, frozen=True, kw_only=True):
    """Goals of conversations: after each run a model judges whether the goal is reached, and if not, a run follows."""

    enabled: bool = True
    """True if goals can be set, and runs follow."""
    max_continuations: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    """Runs that follow by themselves: the number where the client names none, and the highest that it can name."""
    max_no_progress_continuations: Annotated[int, msgspec.Meta(ge=1, le=100)] = 2
    """Runs in a row without a new answer, or without a tool that worked, after which the goal is paused."""
    max_tokens: Positive | None = 1_000_000
    """Tokens of all runs of a goal, after which it is paused. `null`: no limit."""
    model_name: str | None = None
    """The model that judges. Default: the first of the role `goal`, or the first."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=300)] = 60
    """Time to judge; then the goal is paused."""


class Suggestions(Section, frozen=True, kw_only=True):
    """Suggestions of what to ask next."""

    enabled: bool = True
    """True if there are any."""
    max_suggestions: Annotated[int, msgspec.Meta(ge=1, le=5)] = 3
    """The number of suggestions."""
    model_name: str | None = None
    """The model that writes them. Default: the one that the client names, or the first."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 20
    """Time to write them; then there are none."""


class InputPolish(Section, frozen=True, kw_only=True):
    """A clearer wording of a message, before a person sends it."""

    enabled: bool = True
    """True if there is one. If not, the text comes back unchanged."""
    max_chars: Annotated[int, msgspec.Meta(ge=1, le=20_000)] = 4000
    """The longest text; a longer one is refused."""
    model_name: str | None = None
    """The model that writes it. Default: as for `suggestions`."""


# --- long conversations and long results ------------------------------------------------------------------------


class ContextSize(Section, frozen=True, kw_only=True):
    type: Literal["tokens", "messages", "fraction"]
    """The unit. `fraction` is a part of the model's context window (see `models[].context_window`)."""
    value: Seconds
    """The number."""


class Summarization(Section, frozen=True, kw_only=True):
    """Summaries of long conversations, for the model. The log and the people keep every word."""

    enabled: bool = True
    """True if summaries are made, and old results of tools are shown to the model as one line each. If not, a
    conversation that is longer than the model's context window fails."""
    trigger: tuple[ContextSize, ...] = ()
    """Sizes of a conversation; any of them starts a summary, as `{type: tokens, value: 60000}`. In any case one starts
    at 80 % of the model's context window, less if its answers need more room, and at 400 000 tokens; and when the
    provider refuses a request as too long: then the run goes on with it."""
    keep: ContextSize = ContextSize(type="fraction", value=0.15)
    """The end of the conversation that stays as it is, at most half of what fits."""
    trim_tokens_to_summarize: Positive | None = None
    """Tokens that the summarising model reads at once; a longer conversation is read in parts. `null`: 60 % of its
    context window, at most 60 000."""
    model_name: str | None = None
    """The summarising model. Default: the first one."""
    summary_prompt: str | None = None
    """Instructions for it, instead of the built-in ones."""
    preserve_recent_skill_count: Count = 5
    """Skills read lately that survive a summary: how many."""
    preserve_recent_skill_tokens: Count = 25_000
    """Skills read lately that survive a summary: tokens of all together."""
    preserve_recent_skill_tokens_per_skill: Count = 5000
    """Skills read lately that survive a summary: tokens of each."""
    skill_file_read_tool_names: tuple[str, ...] = ("read_file", "read", "view", "cat")
    """Tools that read a skill."""


class ToolOutput(Section, frozen=True, kw_only=True):
    """Long results of tools. They go to a file of the thread, and the model sees the beginning and the end."""

    enabled: bool = True
    """True if long results are shortened."""
    externalize_min_chars: Count = 30_000
    """Results of at least this length go to a file. 0: never."""
    preview_head_chars: Count = 10_000
    """Characters of the beginning that the model sees."""
    preview_tail_chars: Count = 18_000
    """Characters of the end that the model sees."""
    fallback_max_chars: Positive = 30_000
    """Where no file can be written: longer results are cut."""
    fallback_head_chars: Count = 10_000
    """Where no file can be written: how much of the beginning stays."""
    fallback_tail_chars: Count = 18_000
    """Where no file can be written: how much of the end stays."""
    exempt_tools: tuple[str, ...] = ("read_file",)
    """Tools whose results are never shortened here."""
    overrides: Mapping[str, Count] = {}
    """`externalize_min_chars` by tool, as `{bash: 4000}`."""


# --- permissions ------------------------------------------------------------------------------------------------


class ApprovalRule(Section, frozen=True, kw_only=True):
    """Tool calls that wait until a person approves them: in the stream, in `sika chat`, at `/threads/{id}/approvals`.
    The first rule that fits a call counts.
    """

    tool: str
    """Name of the tool; `*` stands for any text."""
    match: str | Mapping[str, str] | None = None
    """A regular expression: only calls with it in their arguments wait. Or one for each argument: `{command: "rm"}`."""
    when: Literal["always", "once_per_run", "once_per_thread"] = "always"
    """True if each call waits, or calls until one is approved in the run or in the thread."""
    allowed: tuple[Literal["approve", "edit", "reject"], ...] = ("approve", "edit", "reject")
    """Decisions that the person can take."""
    deadline_seconds: Seconds | None = None
    """Time after which the call counts as rejected. Without it, it waits for ever."""
    text: str = ""
    """An explanation for the person."""

    def __post_init__(self) -> None:
        patterns = self.match.values() if isinstance(self.match, Mapping) else [self.match] if self.match else []
        for expression in patterns:
            try:
                re.compile(expression)
            except re.error as error:
                raise ValueError(f"match: {expression!r} is no regular expression: {error}") from None
        if not self.allowed:
            raise ValueError("allowed: at least one of approve, edit, reject")


class Provider(Section, frozen=True, kw_only=True):
    """The program that decides on every tool call."""

    use: str
    """Its class, as `module:Class`. Built in: `adapters.guardrails:AllowList`."""
    config: Mapping[str, Any] = {}
    """Its arguments, as `{denied_tools: [bash]}` for the built-in one, or `allowed_tools`."""


class Guardrails(Section, frozen=True, kw_only=True):
    """A program of yours that decides on every tool call."""

    enabled: bool = False
    """True if tool calls need its decision."""
    provider: Provider | None = None
    fail_closed: bool = True
    """True if a call is refused when the provider does not answer."""
    passport: str | None = None
    """The agent's id for the provider."""

    def __post_init__(self) -> None:
        if self.enabled and self.provider is None:
            raise ValueError("enabled, but no provider decides: name one, as adapters.guardrails:AllowList")


class MiddlewareEntry(Section, frozen=True, kw_only=True):
    """Policies (`core.policy`) and LangChain middlewares of yours, around model and tool calls. An entry can be just
    `module:Class`."""

    use: str
    """The class, as `module:Class`."""
    before: str | None = None
    """The policy that it is placed before, as `loop_detection`. Default: closest to the model."""
    after: str | None = None
    """The policy that it is placed after. Only one of `before` and `after`."""
    config: Mapping[str, Any] = {}
    """Its arguments."""

    def __post_init__(self) -> None:
        if self.before and self.after:
            raise ValueError("before and after: only one of them")


# --- limits -----------------------------------------------------------------------------------------------------


class Budget(Section, frozen=True, kw_only=True):
    tokens: Positive | None = None
    """Tokens. Without a number there is no limit."""
    cost: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Money, in the currency of `models[].pricing`. Without a number there is no limit."""


class Budgets(Section, frozen=True, kw_only=True):
    """Budgets in tokens and money. When one is used up, the next model call is not made. There are none by default."""

    run: Budget = Budget()
    """The budget of each run."""
    thread: Budget = Budget()
    """The budget of each thread."""
    user_per_day: Budget = Budget()
    """The budget of each user in a day, which ends at 0:00 UTC. Counted from when there is a budget of a day. Titles,
    judgements of goals, suggestions and the memory's readings count here and in `day`, not for a run or a thread."""
    day: Budget = Budget()
    """The budget of all users together in a day."""
    warn: Share = 0.8
    """The part of a run's tokens after which the agent is told to come to an end."""


class TokenBudget(Section, frozen=True, kw_only=True):
    """DeerFlow's budget of a run. New configurations use `budgets`."""

    enabled: bool = False
    """True if it counts."""
    max_tokens: Positive = 200_000
    """Tokens of input and output."""
    warn_threshold: Share = 0.8
    """The part of it after which the agent is told to come to an end."""
    hard_stop_threshold: Share = 1.0
    """The part of it after which the agent has to answer with what it has."""


class Frequency(Section, frozen=True, kw_only=True):
    warn: Positive
    """Calls in a run after which the model is warned."""
    hard_limit: Positive
    """Calls in a run after which the run is stopped."""

    def __post_init__(self) -> None:
        if self.hard_limit < self.warn:
            raise ValueError("hard_limit must not be below warn")


class LoopDetection(Section, frozen=True, kw_only=True):
    """Detection of an agent that goes in circles: the same calls with the same results and nothing else between, or the
    same error again and again. At the hard limit it answers once more, without tools. Waiting, tests after changes and
    other work of many alike calls are no circles."""

    enabled: bool = True
    """True if loops are detected."""
    warn_threshold: Positive = 3
    """Repetitions of the same tool calls with the same results after which the model is warned. Of errors that are
    alike, one more."""
    hard_limit: Positive = 7
    """Repetitions of the same tool calls with the same results after which the run is stopped. Of errors that are
    alike, one more. A warned model has four rounds to do something else."""
    window_size: Positive = 60
    """The latest answers of the run, among which repetitions are counted."""
    tool_freq_warn: Positive | None = None
    """Calls of one tool, with any arguments, after which the model is warned. Default: never, as work has many."""
    tool_freq_hard_limit: Positive | None = None
    """Calls of one tool, with any arguments, after which the run is stopped. Default: never."""
    tool_freq_overrides: Mapping[str, Frequency] = {}
    """Both numbers by tool, as `{bash: {warn: 100, hard_limit: 150}}`."""

    def __post_init__(self) -> None:
        uses = self.tool_freq_warn, self.tool_freq_hard_limit
        if self.hard_limit < self.warn_threshold or (uses[0] and uses[1] and uses[1] < uses[0]):
            raise ValueError("a hard limit must not be below its warning threshold")


class CircuitBreaker(Section, frozen=True, kw_only=True):
    """The pause of a model that fails, for the user whose runs it failed."""

    failure_threshold: Positive = 5
    """Failed calls until a model gets a pause."""
    recovery_timeout_sec: Seconds = 60
    """Seconds of the pause."""


# --- memory -----------------------------------------------------------------------------------------------------


class Memory(Section, frozen=True, kw_only=True):
    """Memory of a user from one conversation to the next; each custom agent has a memory of its own."""

    enabled: bool = True
    """True if facts are taken from conversations. Earlier facts stay."""
    debounce_seconds: Annotated[float, msgspec.Meta(ge=1, le=300)] = 30
    """Seconds after a run until its conversation is read. The next run starts them again, 10 times at most."""
    model_name: str | None = None
    """The model that reads conversations. Default: those of the role `memory`, or the first."""
    max_facts: Annotated[int, msgspec.Meta(ge=10, le=10_000)] = 100
    """Limit of facts; beyond it, the least certain go."""
    fact_confidence_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.7
    """Facts of which the model is less certain are not taken."""
    injection_enabled: bool = True
    """True if agents read the memory."""
    max_injection_tokens: Annotated[int, msgspec.Meta(ge=100, le=8000)] = 2000
    """Tokens that agents are told at most."""
    order: Literal["relevance", "confidence"] = "relevance"
    """Which facts come first: those that bear on the message, or the most certain ones."""
    tools: bool = False
    """True if agents have the tools `remember` and `recall`."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 120
    """Time for the model to read a conversation."""
