"""Usage of runs in tokens and money, derived from the usage that models report of each call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from threading import Lock
from typing import Any, NamedTuple

from core.cache import ByteCache
from core.config.settings import Pricing
from core.events import Message
from core.thread.messages import text_of
from core.thread.pages import CommitPage, RunPage, decoded_commits
from core.thread.state import COMPACTED, Commit, Run, ThreadState
from core.thread.tokens import Tokens as Tokens
from core.thread.tokens import tokens_of as tokens_of
from core.thread.values import REMOVE_ALL

MILLION = 1_000_000
ANSWERED_BY = "answered_by"
"""In an answer's `response_metadata`: the configured name of the model that stood in for the run's."""
APOLOGY = "deerflow_error_fallback"
"""Key in `additional_kwargs` of an assistant message that the server wrote in the model's place. Messages in
the log carry it, and DeerFlow's clients look for it: the name stays.
"""
STOPPED_BY = "stopped_by"
"""Key in `additional_kwargs` of the last answer of a run that has met a limit: the policy that it belongs to."""
UNNAMED = "unknown"
"""Name of a model that no event names."""
SUMMARY = "summary"
"""Name of the message that replaces the summarised ones (DeerFlow's middleware Summarization)."""
BYTES_PER_TOKEN, TOKENS_PER_MESSAGE, TOKENS_PER_IMAGE = 4, 3, 85
"""Factors of estimates, as in `langchain_core`, but by bytes: a Chinese character costs about a token."""


PAGES_BYTES = 32 << 20
"""Limit of the pages whose usage is kept, of all threads, by what they hold."""
Usage = Mapping[str, Tokens]
"""Tokens by model."""
_pages: ByteCache[CommitPage | RunPage, Usage] = ByteCache(PAGES_BYTES)
_pages_lock = Lock()
"""Usage is asked for in several threads."""


class Size(NamedTuple):
    """The length of a conversation."""

    messages: int = 0
    tokens: int = 0


class RunUsage(NamedTuple):
    """The usage of a run: by its agent with what its calls asked models, the summaries of its conversation, and its
    subagents. `messages`: how many it added.
    """

    agent: Tokens = Tokens()
    summaries: Tokens = Tokens()
    subagents: Tokens = Tokens()
    messages: int = 0

    @property
    def total(self) -> Tokens:
        return self.agent.plus(self.summaries).plus(self.subagents)


class Price(NamedTuple):
    """A sum of money; empty where no model has a price, or the prices are in several currencies."""

    total: float | None = None
    currency: str | None = None


def model_of(message: Message, run: Run | None) -> str:
    """Returns the configured name of the model that answered, else the run's model, else the provider's name of it."""
    metadata = message.get("response_metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if isinstance(metadata.get(ANSWERED_BY), str):
        return str(metadata[ANSWERED_BY])
    name = metadata.get("model_name")
    return (run.model if run else None) or (name if isinstance(name, str) else None) or UNNAMED


def of_run(state: ThreadState, run: Run) -> RunUsage:
    """Returns the usage of a run and its subagents so far. Reads the run's own steps only."""
    agent, summaries, messages = Tokens(), Tokens(), 0
    for commit in steps_of(state, run):
        messages += len(messages_in(commit))
        if answer := answer_in(commit):
            agent = agent.plus(tokens_of(answer))
        elif summary := summary_in(commit):
            summaries = summaries.plus(tokens_of(summary))
    subagents = _sum(of_subagents(run).values())
    agent = agent.plus(_sum(run.sampled.values()))
    return RunUsage(agent, summaries, subagents, messages)


def by_model(state: ThreadState, run: Run) -> dict[str, Tokens]:
    """Returns the usage of a run by model, without that of its subagents, whose runs count for themselves."""
    return together(_by_model(state, steps_of(state, run)), run.sampled)


def of_subagents(run: Run, *, but: str = "") -> dict[str, Tokens]:
    """Returns the usage of a run's subagents by model, `but` that of one of them."""
    used = dict(run.items.tokens)
    for subagent, delegation in run.subagents.items():
        if subagent != but:
            model = delegation.model or run.model or UNNAMED
            used[model] = used.get(model, Tokens()).plus(delegation.tokens)
    return used


def together(*parts: Mapping[str, Tokens]) -> dict[str, Tokens]:
    """Returns the sums by model."""
    return {model: _sum(part.get(model, Tokens()) for part in parts) for model in {name for p in parts for name in p}}


def tokens_of_thread(state: ThreadState, *, but: str = "") -> dict[str, Tokens]:
    """Returns the usage of all runs of a thread and of their subagents, `but` one of these, by model. Rolled-back runs
    are included: they were paid for. The usage of pages is kept, so a question costs what is new.
    """
    runs = state.runs
    recent = [together(of_subagents(run, but=but), run.sampled) for run in runs.tail.values() if _delegates(run)]
    paged = [_of_commits(state, page) for page in state.commits.pages]
    paged += [_of_runs(state, page, but) for page in runs.pages]
    return together(*paged, *recent, _by_model(state, state.commits.tail))


def _of_commits(state: ThreadState, page: CommitPage) -> Usage:
    """Returns the usage of the model calls in a page. It is final when their runs, which name models, have ended."""
    if (cached := _cached(page)) is not None:
        return cached
    commits = decoded_commits.get(page)
    used = _by_model(state, commits)
    runs = (state.runs.get(run) for run in {commit.run for commit in commits if commit.run})
    return used if any(run is not None and run.open for run in runs) else _keep(page, used)


def _of_runs(state: ThreadState, page: RunPage, but: str) -> Usage:
    """Returns what subagents and samples of the runs in a page used. It is final where none has changed since."""
    changed = any(identity in state.runs.changed for identity in page.ids)
    if not (but or changed) and (cached := _cached(page)) is not None:
        return cached
    runs = [state.runs[identity] for identity in page.ids]
    used = together(*(together(of_subagents(run, but=but), run.sampled) for run in runs if _delegates(run)))
    return used if but or changed else _keep(page, used)


def _delegates(run: Run) -> bool:
    return bool(run.subagents or run.items.tokens or run.sampled)


def _cached(page: CommitPage | RunPage) -> Usage | None:
    with _pages_lock:
        return _pages.get(page)


def _keep(page: CommitPage | RunPage, used: Usage) -> Usage:
    with _pages_lock:
        _pages.put(page, used, len(page.data))
    return used


def in_context(state: ThreadState) -> int:
    """Returns the tokens of the present conversation: those of the newest model call at the head, and an estimate of
    the messages after it. Estimates all of it if no call since the last summary reports usage.
    """
    messages, place = state.messages, _measured(state)
    reported = tokens_of(messages[place]).total if place >= 0 else 0
    return reported + estimate(messages[place + 1 :])


def last_asked(state: ThreadState) -> Size:
    """Returns the length of the conversation at the last model call since the last summary, zero without one."""
    place = _measured(state)
    return Size(place, tokens_of(state.messages[place]).input) if place >= 0 else Size()


def estimate(messages: Iterable[Message]) -> int:
    """Estimates the tokens of messages that no provider has counted, without the system prompt and the tools."""
    return sum(_estimated(message) for message in messages)


def cost(tokens: Tokens, pricing: Pricing) -> float:
    """Returns the cost in the pricing's currency."""
    cached = min(tokens.cache_read, tokens.input)
    cached_price = pricing.cache_read_per_million
    if cached_price is None:
        cached_price = pricing.input_per_million
    fresh = (tokens.input - cached) * pricing.input_per_million
    return (fresh + cached * cached_price + tokens.output * pricing.output_per_million) / MILLION


def price(used: Mapping[str, Tokens], prices: Mapping[str, Pricing]) -> Price:
    """Returns the cost of tokens by model. Models without a price are left out."""
    priced = {model: prices[model] for model in used if model in prices}
    currencies = {pricing.currency for pricing in priced.values()}
    if len(currencies) != 1:
        return Price()
    return Price(round(sum(cost(used[model], pricing) for model, pricing in priced.items()), 6), currencies.pop())


def steps_of(state: ThreadState, run: Run) -> Iterator[Commit]:
    """Yields the commits of a run, oldest first."""
    for index in span_of(state, run):
        if (commit := state.commits[index]).run == run.id:
            yield commit


def span_of(state: ThreadState, run: Run) -> range:
    """Returns the indices of the commits from a run's start to its end: its own, and those written meanwhile."""
    if run.started_seq is None:
        return range(0)
    end = len(state.commits) if run.ended_seq is None else state.commits.upto(run.ended_seq)
    return range(state.commits.upto(run.started_seq - 1), end)


def messages_in(commit: Commit) -> list[Message]:
    """Returns the messages that a step added or replaced."""
    return messages_of(commit.patch)


def messages_of(patch: Mapping[str, Any]) -> list[Message]:
    """Returns the messages that a patch adds or replaces, each once in its last form. Leaves out removed messages, and
    those of a summary.
    """
    value = patch.get("messages")
    added = value if isinstance(value, list) and not is_summary(patch) else []
    messages = [m for m in added if isinstance(m, dict) and isinstance(m.get("type"), str) and m["type"] != "remove"]
    return list({m.get("id") or place: m for place, m in enumerate(messages)}.values())


def is_apology(message: Mapping[str, Any]) -> bool:
    """Tells whether a message is the server's, in place of an answer."""
    extra = message.get("additional_kwargs")
    return isinstance(extra, dict) and APOLOGY in extra


def answer_in(commit: Commit) -> Message | None:
    """Returns the model's answer if the step is a model call of a run, and not an apology of the server."""
    if commit.run is None or commit.source != "loop" or commit.node != "model":
        return None
    return next((message for message in messages_in(commit) if not is_apology(message)), None)


def summary_in(commit: Commit) -> Message | None:
    """Returns the summary message if the step is a summary written in a run."""
    if commit.run is None or commit.node != COMPACTED:
        return None
    summary: Message = commit.patch["messages"][1]
    return summary


def is_summary(patch: Mapping[str, Any]) -> bool:
    """Tells if a patch replaces the conversation with a summary, also one copied from another thread."""
    match patch.get("messages"):
        case [{"type": "remove", "id": str(removed)}, {"type": "human", "name": "summary", "id": str(identity)}, *_]:
            return removed == REMOVE_ALL and identity.startswith(f"{SUMMARY}-")
    return False


def _sum(tokens: Iterable[Tokens]) -> Tokens:
    return reduce(Tokens.plus, tokens, Tokens())


def _by_model(state: ThreadState, commits: Iterable[Commit]) -> dict[str, Tokens]:
    used: dict[str, Tokens] = {}
    for commit in commits:
        if message := answer_in(commit) or summary_in(commit):
            model = model_of(message, state.runs.get(commit.run or ""))
            used[model] = used.get(model, Tokens()).plus(tokens_of(message))
    return used


def _measured(state: ThreadState) -> int:
    """Returns the index of the newest answer since the last summary that reports usage, -1 if there is none."""
    messages = state.messages
    begin = _summarised(state) if messages and messages[0].get("name") == SUMMARY else 0
    for place in range(len(messages) - 1, begin - 1, -1):
        if messages[place]["type"] == "ai" and tokens_of(messages[place]).total:
            return place
    return -1


def _summarised(state: ThreadState) -> int:
    """Returns the number of messages right after the newest summary."""
    index = state.head
    while index >= 0 and not is_summary(state.commits[index].patch):
        index = state.commits[index].parent
    return len(state.commits[index].patch["messages"]) - 1 if index >= 0 else 0


def _estimated(message: Message) -> int:
    content, images, size = message.get("content", ""), 0, 0
    if isinstance(content, list):
        images = sum(isinstance(part, dict) and part.get("type") in ("image", "image_url") for part in content)
        content = text_of(content)
    for name in ("name", "tool_call_id", "tool_calls"):
        if name in message:
            size += _bytes(str(message[name]))
    size += _bytes(str(content))
    return TOKENS_PER_MESSAGE + images * TOKENS_PER_IMAGE + -(-size // BYTES_PER_TOKEN)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
