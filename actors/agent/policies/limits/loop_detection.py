"""Detects an agent that goes in circles: warns it, then lets it answer once more, without tools.

Theory of operation
-------------------
The input is the log: the *rounds* of this run since a person's last message, newest first. A round is an answer with
its tool calls and their results. Before each model call the newest rounds are judged by three rules:

*Nothing new.* Rounds are the same if their calls and their results are, but for ids, times and durations in results.
A streak of `n` rounds with only `d` different ones goes in circles if `n >= limit * d`. So the same call with the same
result counts, and also A-B-A-B. An edit, a test with another outcome, or the next page is another round.

*Errors alike.* A streak of rounds in which all calls failed, with the same texts but for numbers, whatever their
arguments: one more than the limit.

*One tool too often*, with any arguments, only if the configuration has numbers for it.

Waiting is work: a round that waits or looks after something that runs ends a streak, and is never part of one.

A warning comes when a rule first applies with `warn_threshold`: it does to the newest rounds, and did not without the
newest one. So no state is needed, and a run that is resumed after a crash decides the same.

Rejected: counting calls without their results, as DeerFlow does: the fifth test run after the fifth edit is no loop.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse

from actors.agent.model.last_answer import is_last, last_answer
from actors.agent.run.attempt import Attempt, ModelHandler, hidden
from core.config import settings
from core.events import Json, Message
from core.thread.messages import text_of
from core.thread.state import COMPACTED, ThreadState
from core.thread.usage import answer_in, messages_in

NOTE = "loop_warning"
"""Name of the hidden message (DeerFlow's thread state)."""
MOST_DIFFERENT = 8
"""Limit of different rounds in a streak that goes in circles."""
WARNINGS = 4
"""Limit of warnings in one note (DeerFlow's middleware LoopDetection)."""
REMARKS = frozenset(("description", "explanation", "reason", "thought", "intent"))
"""Arguments in which models say why they make a call."""
SHORT = 80
"""Characters of a result that says no more than that something was done."""
ERROR_CHARACTERS = 4000
"""Characters of each end of an error that are compared."""

_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"  # a time
    r"|\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b"  # a clock
    r"|\b\d+(?:[.,]\d+)?\s?(?:ns|µs|us|ms|s|secs?|seconds?|mins?|minutes?)\b"  # a duration
    r"|\b(?:\d+[dhm])+(?:\d+(?:\.\d+)?s)?\b"  # another form of it
    r"|\b1[6-9]\d{8}(?:\d{3})?(?:\.\d+)?\b"  # seconds or milliseconds since 1970
    r"|\b0x[0-9a-fA-F]{4,}\b"  # an address
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"  # a UUID
    r"|/tmp/(?:tmp\w{6,}|pytest-of-\w+/pytest-\d+)|\.tool-results/[\w./-]+"  # a name that is new in each call
    r"|\b(?:pid|PID)[ =:]*\d+"
)
_NUMBERS = re.compile(r"\b[0-9a-f]*\d[0-9a-f]*\b|\d+")
_FAILED = re.compile(r"^(?:Exit Code:|exit code|\[exit code:?) *-?[1-9]", re.MULTILINE)
_WAITING_TOOL = re.compile(r"wait|sleep|poll|(?<!git_)status|progress|_output$")
_WAITING_COMMAND = re.compile(
    r"\bsleep\b *\(?[\d.$]|^\s*wait\b|[;&|]\s*wait\b|\binotifywait\b|\bwait[-_]for|\btail\b.* -[0-9n ]*[fF]\b"
    r"|\bwatch\b|--(?:wait|follow)\b",
    re.MULTILINE,
)
_WAITING_ARGUMENT = re.compile(r"wait|delay|timeout_s|poll")
_STEPPING_TOOL = re.compile(r"press|scroll|step|next|click|type|key|drag|swipe|move")


class LoopDetection(AgentMiddleware[Any, Attempt, Any]):
    """Judges the newest rounds of the run before each model call (DeerFlow's middleware LoopDetection)."""

    name = "loop_detection"

    def __init__(self, limits: settings.LoopDetection) -> None:
        super().__init__()
        self._limits = limits

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        verdict = None if is_last(request) else judged(history(attempt.state, attempt.run, self._limits), self._limits)
        if verdict is None:
            return await handler(request)
        if verdict.stop:
            return await last_answer(self.name, verdict.text, request, handler)
        attempt.decide(self.name, "warned", verdict.text)
        note: Any = hidden(verdict.text, name=NOTE)
        return await handler(request.override(messages=[*request.messages, note]))


class Verdict(NamedTuple):
    """The judgement. `text` is for the model, or with `stop` for the person."""

    stop: bool
    text: str


class Round:
    """An answer with its calls and their results: `results` are by the ids of the calls."""

    def __init__(self, answer: Message, results: Mapping[str, Message]) -> None:
        self.calls: Sequence[Json] = answer.get("tool_calls", ())
        self._answer, self._results = answer, results

    def texts(self) -> Iterator[tuple[Json, str, bool]]:
        """Yields each call with the text of its result, and whether it failed."""
        for call in self.calls:
            result = self._results.get(str(call.get("id")), {})
            text = text_of(result.get("content", ""))
            yield call, text, result.get("status") == "error" or bool(_FAILED.search(text))

    @cached_property
    def waits(self) -> bool:
        """Tells whether a call waited for something, or moved on without a word on where to."""
        return any(_waits(call, text) for call, text, _ in self.texts())

    @cached_property
    def request(self) -> Hashable:
        """The calls without their results; of an answer without calls, its text."""
        if not self.calls:
            return _stable(text_of(self._answer.get("content", "")))
        return tuple(sorted(f"{call['name']}:{_arguments(call.get('args'))}" for call in self.calls))

    @cached_property
    def key(self) -> Hashable:
        """The identity of a round: rounds with equal keys are the same."""
        return self.request, tuple(sorted(hash(_stable(text)) for _, text, _ in self.texts()))

    @cached_property
    def error(self) -> Hashable:
        """The identity of a failure, equal for alike ones; None if a call succeeded, or none was made."""
        if not self.calls or not all(failed for *_, failed in self.texts()):
            return None
        return tuple(sorted(f"{call['name']}:{_alike(text)}" for call, text, _ in self.texts()))


def history(state: ThreadState, run: str, limits: settings.LoopDetection) -> list[Round]:
    """Returns the rounds of a run since a person's last message, newest first; all, if uses of tools are counted."""
    rounds: list[Round] = []
    results: dict[str, Message] = {}
    most = None if _counts_uses(limits) else limits.window_size + 1
    for index in state.chain(state.head):
        commit = state.commits[index]
        if commit.node == COMPACTED and commit.run == run:
            continue
        messages = messages_in(commit)
        if commit.run != run or any(message["type"] == "human" for message in messages) or len(rounds) == most:
            break
        if answer := answer_in(commit):
            rounds.append(Round(answer, results))
            results = {}
        elif commit.node == "tools":
            results |= {str(message.get("tool_call_id")): message for message in messages}
    return rounds


def judged(rounds: Sequence[Round], limits: settings.LoopDetection) -> Verdict | None:
    """Judges the rounds, newest first."""
    if not rounds:
        return None
    return _repeated(rounds, limits) or _failing(rounds, limits) or _overused(rounds, limits)


# ── nothing new ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _repeated(rounds: Sequence[Round], limits: settings.LoopDetection) -> Verdict | None:
    def applies(rounds: Sequence[Round], limit: int) -> int:
        near = rounds[: limits.window_size]
        return _circles(near, _key, limit) if _circles(near, _request, limit) else 0

    if times := applies(rounds, limits.hard_limit):
        text = f"Stopped: the agent made the same calls {times} times, with the same results (`loop_detection`)."
        return Verdict(True, text)
    times = applies(rounds, limits.warn_threshold)
    if not times or applies(rounds[1:], limits.warn_threshold):
        return None
    text = f"You have made the same calls {times} times, with the same results: they will not tell you anything new."
    return Verdict(
        False,
        f"{text} If you wait for something, wait longer in one call. Otherwise try another way, or answer with what "
        "you have, and say what is missing.",
    )


def _circles(rounds: Sequence[Round], key: Callable[[Round], Hashable], limit: int) -> int:
    """Returns the repetitions in the shortest streak with `limit` times as many rounds as different ones, else 0."""
    different: set[Hashable] = set()
    for number, round_ in enumerate(takewhile(lambda each: not each.waits, rounds), 1):
        different.add(key(round_))
        if len(different) > MOST_DIFFERENT:
            break
        if number >= limit * len(different):
            return number // len(different)
    return 0


def _key(round_: Round) -> Hashable:
    return round_.key


def _request(round_: Round) -> Hashable:
    return round_.request


# ── errors alike ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _failing(rounds: Sequence[Round], limits: settings.LoopDetection) -> Verdict | None:
    first = rounds[0].error
    if first is None or rounds[0].waits:
        return None
    times = sum(1 for _ in takewhile(lambda each: each.error == first and not each.waits, rounds))
    if times > limits.hard_limit:
        text = f"Stopped: {times} calls in a row failed with the same error (`loop_detection`)."
        return Verdict(True, text)
    if times != limits.warn_threshold + 1:
        return None
    text = f"{times} calls in a row failed with the same error. Find its cause, or try another way; or answer with what"
    return Verdict(False, f"{text} you have, and say what is missing.")


# ── one tool too often ───────────────────────────────────────────────────────────────────────────────────────────────


def _overused(rounds: Sequence[Round], limits: settings.LoopDetection) -> Verdict | None:
    if not _counts_uses(limits):
        return None
    uses = Counter(call["name"] for each in rounds for call in each.calls)
    newest = Counter(call["name"] for call in rounds[0].calls)
    for name in newest:
        most = _limits(name, limits)[1]
        if most is not None and uses[name] >= most:
            text = f"Stopped: the agent used {name} {uses[name]} times (`loop_detection.tool_freq_hard_limit`)."
            return Verdict(True, text)
    texts = [
        f"You have used {name} {uses[name]} times in this run. Come to an end with it, or try another way."
        for name, number in newest.items()
        if (warn := _limits(name, limits)[0]) is not None and uses[name] - number < warn <= uses[name]
    ]
    return Verdict(False, "\n\n".join(texts[:WARNINGS])) if texts else None


def _counts_uses(limits: settings.LoopDetection) -> bool:
    return bool(limits.tool_freq_overrides or limits.tool_freq_warn or limits.tool_freq_hard_limit)


def _limits(name: str, limits: settings.LoopDetection) -> tuple[int | None, int | None]:
    own = limits.tool_freq_overrides.get(name)
    return (own.warn, own.hard_limit) if own else (limits.tool_freq_warn, limits.tool_freq_hard_limit)


# ── calls and texts ──────────────────────────────────────────────────────────────────────────────────────────────────


def _waits(call: Json, result: str) -> bool:
    """Tells whether a call waits or looks after something that runs, or takes a step whose result says nothing."""
    name, args = str(call["name"]).lower(), call.get("args")
    if _STEPPING_TOOL.search(name) and len(result) < SHORT:
        return True
    if _WAITING_TOOL.search(name):
        return "has ended" not in result
    if not isinstance(args, dict):
        return False
    return any(_waits_by(field, value) for field, value in args.items())


def _waits_by(field: str, value: Any) -> bool:
    if isinstance(value, str):
        return field not in REMARKS and bool(_WAITING_COMMAND.search(value))
    return isinstance(value, int | float) and value > 1 and bool(_WAITING_ARGUMENT.search(field))


def _arguments(args: Any) -> str:
    if isinstance(args, dict):
        args = {field: value for field, value in args.items() if field not in REMARKS}
    return " ".join(json.dumps(args, sort_keys=True, default=str).split())


def _stable(text: str) -> str:
    """Returns a text without what is different each time, and with single spaces."""
    return " ".join(_VOLATILE.sub("~", text).split())


def _alike(text: str) -> str:
    """Returns the text of an error without numbers."""
    if len(text) > 2 * ERROR_CHARACTERS:
        text = text[:ERROR_CHARACTERS] + text[-ERROR_CHARACTERS:]
    return _NUMBERS.sub("#", _stable(text))
