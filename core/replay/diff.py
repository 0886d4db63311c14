"""Differences of two runs, threads or moments.

Runs are compared step by step: a step is a request of a person, an answer of the model, or a call of a tool, each with
what went in and what came out. Steps are aligned by what they are and what went in; times, ids, workers and usage are
no difference. The first difference tells who made it: another input is ours, another output on the same input is the
model's or the world's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import msgspec

from core.events import Json, Message, ModelCompleted, Record, RunRequested, RunStarted, ToolCompleted, ToolRequested
from core.replay.cuts import Spend, cut
from core.replay.money import FREE, Cost, Meter, Prices
from core.thread.messages import text_of

Kind = Literal["request", "answer", "call"]
MOST_WORDS = 20_000
"""Limit of words that are aligned one by one; longer texts are shown as replaced."""

MOST_PAIRS = 250_000
"""Limit of the pairs of steps in a difference that are aligned exactly, in time that grows with their number."""
WINDOW = 64
"""Steps on each side among which longer differences look for the next equal ones."""
STEP_BYTES = 600
"""Bytes that a step takes besides what went in and came out."""


class Step(NamedTuple):
    """A step of a run. `input` and `output` are JSON, with thread ids replaced."""

    kind: Kind
    name: str
    seq: int
    input: Any
    output: Any
    tokens: int = 0
    milliseconds: int = 0
    cost: Cost = FREE

    def key(self) -> str:
        return msgspec.json.encode((self.kind, self.name, self.input), order="deterministic").decode()

    def came_out(self) -> Any:
        """Returns what tells the output from another one."""
        return self.output


class CutStep(Step):
    """A step whose `input` and `output` are cut. The whole ones are told apart by their hashes."""

    hashes: tuple[str, str]

    @classmethod
    def of(cls, step: Step, longest: int) -> CutStep:
        whole = step.key(), msgspec.json.encode(step.output, order="deterministic").decode()
        short = cls(*step._replace(input=cut(step.input, longest), output=cut(step.output, longest)))
        key, output = (hashlib.sha256(text.encode()).hexdigest() for text in whole)
        short.hashes = key, output
        return short

    def key(self) -> str:
        return self.hashes[0]

    def came_out(self) -> Any:
        return self.hashes[1]


class Piece(NamedTuple):
    """A range of both sequences that is equal, or replaced."""

    equal: bool
    a0: int
    a1: int
    b0: int
    b1: int


class Row(NamedTuple):
    """Two steps beside each other; None where one side has no such step."""

    left: Step | None
    right: Step | None

    @property
    def same(self) -> bool:
        left, right = self.left, self.right
        return (
            left is not None and right is not None and left.key() == right.key() and left.came_out() == right.came_out()
        )

    @property
    def difference(self) -> Literal["", "input", "output", "only left", "only right"]:
        """Returns in which part the steps differ; empty if they do not."""
        if self.same:
            return ""
        if self.left is None or self.right is None:
            return "only right" if self.left is None else "only left"
        return "output" if self.left.key() == self.right.key() else "input"


class Change(NamedTuple):
    """A value of a state that differs. `before` and `after` are `UNSET` where there is none."""

    path: str
    before: Any
    after: Any


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def steps(records: Sequence[Record], run: str | None = None, prices: Prices | None = None) -> list[Step]:
    """Returns the steps of a log, or of one run of it. Calls of one answer are in the order in which they were made."""
    if not records:
        return []
    taken = Steps(records[0].head.aggregate_id, run, prices)
    for record in records:
        taken.add(record)
    return taken.steps()


class Steps:
    """Takes the steps of a log, or of one run of it, event by event. With `longest`, texts of what went in and came out
    of a step are cut to so many characters, and told apart by hashes. `spend` is told the bytes of each step.
    """

    def __init__(
        self,
        thread: str,
        run: str | None = None,
        prices: Prices | None = None,
        *,
        longest: int | None = None,
        spend: Spend | None = None,
    ) -> None:
        self.start: RunStarted | None = None
        """The last start of the run, or of the last run."""
        self._run, self._longest, self._spend = run, longest, spend
        self._prompts: dict[str, str | None] = {}
        self._calls: dict[tuple[str, str], int] = {}
        """Calls without an outcome."""
        self._steps = list[Step]()
        self._meter = Meter(prices)
        self._thread = re.compile(rf"(?<![\w-]){re.escape(thread)}(?![\w-])")

    def add(self, record: Record) -> None:
        of_run = record.run or ""
        self._meter.learn(record)
        if self._run not in (None, record.run):
            return
        match record.event:
            case RunRequested(input=run_input, context=context):
                texts = [text_of(message.get("content", "")) for message in (run_input or {}).get("messages") or ()]
                model = context.get("model_name")
                self._append(Step("request", "", record.seq, {"messages": texts, "model": model}, None))
            case RunStarted(prompt=prompt) as start:
                self._prompts[of_run], self.start = prompt, start
            case ModelCompleted() as answer:
                self._answered(record, answer)
            case ToolRequested(call_id=call, args=args) if args is not None and (of_run, call) in self._calls:
                place = self._calls[of_run, call]
                self._steps[place] = self._steps[place]._replace(input=args)
            case ToolCompleted() as outcome if (of_run, outcome.call_id) in self._calls:
                place = self._calls.pop((of_run, outcome.call_id))
                text = text_of(outcome.message.get("content", ""))
                ended = {"status": outcome.message.get("status", "success"), "text": text}
                step = self._steps[place]._replace(seq=record.seq, output=ended, milliseconds=outcome.duration_ms)
                self._steps[place] = self._taken(step)

    def steps(self) -> list[Step]:
        """Returns the steps; calls without an outcome, too."""
        for place in self._calls.values():
            self._steps[place] = self._taken(self._steps[place])
        self._calls.clear()
        return self._steps

    def _answered(self, record: Record, answer: ModelCompleted) -> None:
        of_run = record.run or ""
        went_in = {"conversation": answer.request, "prompt": self._prompts.get(of_run)}
        tokens, cost = (used.tokens.total, used.cost) if (used := self._meter.used(record)) else (0, {})
        came_out = _comparable(answer.message)
        self._append(Step("answer", "", record.seq, went_in, came_out, tokens, answer.duration_ms, cost))
        for call in answer.message.get("tool_calls") or ():
            self._calls[of_run, str(call.get("id"))] = len(self._steps)
            self._steps.append(Step("call", str(call.get("name")), record.seq, call.get("args") or {}, None))

    def _append(self, step: Step) -> None:
        self._steps.append(self._taken(step))

    def _taken(self, step: Step) -> Step:
        """Returns the step with the thread's id replaced, so that those of two threads can be equal."""
        plain = msgspec.json.encode((step.input, step.output)).decode()
        went_in, came_out = msgspec.json.decode(self._thread.sub("<thread>", plain))
        step = step._replace(input=went_in, output=came_out)
        if self._longest is not None:
            step = CutStep.of(step, self._longest)
        if self._spend is not None:
            self._spend(STEP_BYTES + len(msgspec.json.encode((step.input, step.output))))
        return step


def aligned(left: Sequence[Step], right: Sequence[Step]) -> list[Row]:
    """Returns the steps beside each other: those with the same input, and between them those of the same kind."""
    rows: list[Row] = []
    for equal, a0, a1, b0, b1 in _pieces([_place(step) for step in left], [_place(step) for step in right]):
        if equal:
            rows += [Row(a, b) for a, b in zip(left[a0:a1], right[b0:b1], strict=True)]
        else:
            rows += _gap(left[a0:a1], right[b0:b1])
    return rows


def _place(step: Step) -> str:
    """Returns the key by which steps are aligned: answers by what they say, for their input holds all before it."""
    return step.key() if step.kind != "answer" else msgspec.json.encode(("answer", step.came_out())).decode()


def _gap(left: Sequence[Step], right: Sequence[Step]) -> Iterator[Row]:
    """Yields steps that are nowhere on the other side; of the same kind and name they stand beside each other."""
    names = [[f"{step.kind} {step.name}" for step in side] for side in (left, right)]
    for equal, a0, a1, b0, b1 in _pieces(names[0], names[1]):
        if equal:
            yield from (Row(a, b) for a, b in zip(left[a0:a1], right[b0:b1], strict=True))
        else:
            yield from (Row(step, None) for step in left[a0:a1])
            yield from (Row(None, step) for step in right[b0:b1])


def _pieces(left: Sequence[str], right: Sequence[str]) -> Iterator[Piece]:
    """Yields the pieces of two sequences in order. What long ones begin and end with costs only a look."""
    shorter = min(len(left), len(right)) if len(left) * len(right) > MOST_PAIRS else 0
    head = next((n for n in range(shorter) if left[n] != right[n]), shorter)
    tail = next((n for n in range(shorter - head) if left[-1 - n] != right[-1 - n]), shorter - head)
    a, b = left[head : len(left) - tail], right[head : len(right) - tail]
    if head:
        yield Piece(True, 0, head, 0, head)
    if len(a) * len(b) <= MOST_PAIRS:
        for name, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            yield Piece(name == "equal", a0 + head, a1 + head, b0 + head, b1 + head)
    else:
        yield from (Piece(p.equal, *(place + head for place in p[1:])) for p in _nearest(a, b))
    if tail:
        yield Piece(True, len(left) - tail, len(left), len(right) - tail, len(right))


def _nearest(left: Sequence[str], right: Sequence[str]) -> Iterator[Piece]:
    """Yields the pieces of long sequences: after a difference both go on at the nearest equal items. Linear."""
    a = b = 0
    while a < len(left) and b < len(right):
        a1, b1 = a, b
        while a1 < len(left) and b1 < len(right) and left[a1] == right[b1]:
            a1, b1 = a1 + 1, b1 + 1
        if a1 > a:
            yield Piece(True, a, a1, b, b1)
            a, b = a1, b1
            continue
        skipped = _skip(left[a : a + WINDOW], right[b : b + WINDOW])
        yield Piece(False, a, a + skipped[0], b, b + skipped[1])
        a, b = a + skipped[0], b + skipped[1]
    if a < len(left) or b < len(right):
        yield Piece(False, a, len(left), b, len(right))


def _skip(left: Sequence[str], right: Sequence[str]) -> tuple[int, int]:
    """Returns how many items of each side to skip to the nearest equal ones; all, if there are none."""
    places: dict[str, int] = {}
    for place, item in enumerate(right):
        places.setdefault(item, place)
    meets = [(place, places[item]) for place, item in enumerate(left) if item in places]
    return min(meets, key=sum) if meets else (len(left), len(right))


def _comparable(message: Message) -> Json:
    return {
        "text": text_of(message.get("content", "")),
        "calls": [[call.get("name"), call.get("args") or {}] for call in message.get("tool_calls") or ()],
    }


# ── states and texts ────────────────────────────────────────────────────────────────────────────────────────────────


def changes(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Yields the values that differ in two JSON values. Items of lists with an `id` are compared by it."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys([*before, *after]):
            where = f"{path}.{name}" if path else str(name)
            yield from changes(before.get(name, msgspec.UNSET), after.get(name, msgspec.UNSET), where)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
    elif before != after:
        yield Change(path, before, after)


def _of_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Change]:
    olds, news = _by_id(before), _by_id(after)
    if olds is None or news is None:
        for index, (old, new) in enumerate(zip_longest(before, after, fillvalue=msgspec.UNSET)):
            yield from changes(old, new, f"{path}[{index}]")
        return
    for identity in dict.fromkeys([*olds, *news]):
        where = f"{path}[{identity}]"
        yield from changes(olds.get(identity, msgspec.UNSET), news.get(identity, msgspec.UNSET), where)


def _by_id(items: list[Any]) -> dict[str, Any] | None:
    """Returns the items by their ids; None if one has none, or two have the same."""
    by_id = {str(item["id"]): item for item in items if isinstance(item, Mapping) and item.get("id")}
    return by_id if len(by_id) == len(items) else None


def words(before: str, after: str) -> list[tuple[Literal["same", "gone", "new"], str]]:
    """Returns the pieces of two texts, word by word."""
    a, b = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (before, after))
    if len(a) + len(b) > MOST_WORDS:
        return [("gone", before), ("new", after)]
    pieces: list[tuple[Literal["same", "gone", "new"], str]] = []
    for name, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if name == "equal":
            pieces.append(("same", "".join(a[a0:a1])))
            continue
        pieces += [("gone", "".join(a[a0:a1]))] if a1 > a0 else []
        pieces += [("new", "".join(b[b0:b1]))] if b1 > b0 else []
    return pieces
