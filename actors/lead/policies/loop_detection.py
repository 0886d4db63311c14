"""Detects an agent in a loop: warns it, then stops it.

The input is the log: the answers of this run with tool calls, and the last `window_size` such answers before them.
*The same calls* are counted among the last `window_size` answers of the thread. The warning comes once for as long as
the set of calls stays in the window. The hard limit counts only this run: the same command every morning does not stop
a later run. *The same tool*, with any arguments, is counted over the run; its warning comes once for each tool. The
first rule takes precedence.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage

from actors.lead.loop.attempt import Attempt, ModelHandler, revised
from actors.lead.model.answer import without_calls
from core.config import settings
from core.thread.state import STOPPED
from core.thread.usage import answer_in

NOTE = "loop_warning"
"""Name of the hidden message (contract runtime §4)."""
WARNINGS = 4
"""Limit of warnings in one note (contract runtime §5.18)."""
BUCKET_LINES = 200
WHOLE = ("write_file", "str_replace")
"""Tools whose arguments all count."""
SALIENT = ("path", "url", "query", "command", "pattern", "glob", "cmd")
"""Arguments that count for other tools, if they have any of them."""


class LoopDetection(AgentMiddleware[Any, Attempt, Any]):
    """Judges every answer with tool calls (contract runtime §5.18, §23.1)."""

    name = "loop_detection"

    def __init__(self, limits: settings.LoopDetection) -> None:
        super().__init__()
        self._limits = limits

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        response = await handler(request)
        answer = response.result[-1]
        if not isinstance(answer, AIMessage) or not answer.tool_calls:
            return response
        attempt = request.runtime.context
        verdict = judged(_history(attempt, answer, self._limits.window_size), self._limits)
        if verdict is None:
            return response
        if not verdict.stop:
            attempt.decide(self.name, "warned", verdict.text, note=verdict.text, name=NOTE)
            return response
        attempt.decide(self.name, STOPPED, verdict.text)
        return revised(response, without_calls(answer, verdict.text))


class Step(NamedTuple):
    """The calls of one answer. `own` means of this run."""

    calls: Sequence[Mapping[str, Any]]
    own: bool = True


class Verdict(NamedTuple):
    """The judgement. `text` is for the model, or with `stop` for the person."""

    stop: bool
    text: str


def judged(history: Sequence[Step], limits: settings.LoopDetection) -> Verdict | None:
    """Judges the first step by the steps before it, newest first."""
    return _repeated(history, limits) or _overused(history, limits)


def fingerprint(calls: Sequence[Mapping[str, Any]]) -> str:
    """Returns 12 hex digits that identify a set of calls (contract runtime §5.18)."""
    keys = sorted(f"{call['name']}:{key_of(call['name'], call['args'])}" for call in calls)
    return hashlib.md5(json.dumps(keys).encode(), usedforsecurity=False).hexdigest()[:12]


def key_of(name: str, args: Any) -> str:
    """Returns the key of a call: calls with equal keys count as the same."""
    args = _parsed(args)
    if not isinstance(args, dict):
        return _text(args)
    if name == "read_file":
        first, last = sorted((_line(args.get("start_line")), _line(args.get("end_line") or args.get("start_line"))))
        return f"{args.get('path')}:{first // BUCKET_LINES}-{last // BUCKET_LINES}"
    if name not in WHOLE:
        args = {field: args[field] for field in SALIENT if args.get(field) is not None} or args
    return _text(args)


def _history(attempt: Attempt, answer: AIMessage, window: int) -> list[Step]:
    """Returns the answers with calls, newest first: those of the run, and `window` before it."""
    steps, before = [Step(answer.tool_calls)], 0
    state = attempt.state
    index = state.head
    while index >= 0 and before < window:
        commit = state.commits[index]
        index = commit.parent
        if commit.node == "model" and (past := answer_in(commit)) and (calls := past.get("tool_calls")):
            own = commit.run == attempt.run
            before += not own
            steps.append(Step(calls, own))
    return steps


# ── the same calls ───────────────────────────────────────────────────────────────────────────────────────────────────


def _repeated(history: Sequence[Step], limits: settings.LoopDetection) -> Verdict | None:
    window = limits.window_size
    near = _alike(history[:window])
    if len(near) < limits.warn_threshold:
        return None
    own = sum(history[place].own for place in near)
    if own >= limits.hard_limit:
        return Verdict(True, f"The agent made the same tool calls {own} times and was stopped.")
    if _was_warned(_alike(history), window, limits.warn_threshold):
        return None
    text = (
        f"You have made the same tool calls {len(near)} times. They will not tell you anything new: do not repeat them."
    )
    return Verdict(False, f"{text} Try another way, or answer with what you have, and say what is missing.")


def _alike(history: Sequence[Step]) -> list[int]:
    """Returns the places of the steps with the same calls as the first one."""
    names = _names(history[0])
    target = fingerprint(history[0].calls)
    return [n for n, step in enumerate(history) if _names(step) == names and fingerprint(step.calls) == target]


def _names(step: Step) -> list[str]:
    return sorted(call["name"] for call in step.calls)


def _was_warned(places: Sequence[int], window: int, threshold: int) -> bool:
    """Tells whether an earlier window reached the threshold, and the calls have been in the window ever since."""
    for n in range(1, len(places)):
        if places[n] - places[n - 1] > window:
            return False
        if sum(place < places[n] + window for place in places[n:]) >= threshold:
            return True
    return False


# ── the same tool ────────────────────────────────────────────────────────────────────────────────────────────────────


def _overused(history: Sequence[Step], limits: settings.LoopDetection) -> Verdict | None:
    counts = _counts(history)
    used = dict.fromkeys(call["name"] for call in history[0].calls)
    for name in used:
        if counts[name] >= _limits(name, limits)[1]:
            return Verdict(True, f"The agent used {name} {counts[name]} times in this run and was stopped.")
    texts = [
        f"You have used {name} {counts[name]} times in this run. Come to an end with it, or try another way."
        for name in used
        if counts[name] >= _limits(name, limits)[0] and not _was_warned_of(name, history, limits)
    ]
    return Verdict(False, "\n\n".join(texts[:WARNINGS])) if texts else None


def _counts(history: Sequence[Step]) -> Counter[str]:
    return Counter(call["name"] for step in takewhile(lambda step: step.own, history) for call in step.calls)


def _limits(name: str, limits: settings.LoopDetection) -> tuple[int, int]:
    own = limits.tool_freq_overrides.get(name)
    return (own.warn, own.hard_limit) if own else (limits.tool_freq_warn, limits.tool_freq_hard_limit)


def _was_warned_of(name: str, history: Sequence[Step], limits: settings.LoopDetection) -> bool:
    """Tells whether an earlier answer of the run passed the threshold, and the first rule did not apply to it."""
    for n in range(1, len(history)):
        before = history[n:]
        if _counts(before)[name] < _limits(name, limits)[0]:
            return False
        if any(call["name"] == name for call in before[0].calls) and _repeated(before, limits) is None:
            return True
    return False


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parsed(args: Any) -> Any:
    if not isinstance(args, str):
        return args
    try:
        return json.loads(args)
    except ValueError:
        return args


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _line(number: Any) -> int:
    """Returns the line counted from 0; the first line if the argument is not a number."""
    try:
        return max(int(number), 1) - 1
    except (TypeError, ValueError, OverflowError):
        return 0
