"""Batches: what becomes of many prompts, each of which a subagent of its own answers. Pure functions.

A batch is a subagent whose run calls no model: its request holds the prompts. Its log has the start and the end of
each attempt at an item; the outcomes are the rows of a table, and the caller gets a summary of bounded length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from core.events import Message, Record, RunFailed, SubagentCompleted, SubagentStarted
from core.thread.entries import Delegation, Items, Run
from core.thread.tokens import Tokens, usage_of

MOST_RESULT = 10_000
"""Limit of characters of a result in the table; the subagent's own log has all of it."""
MOST_KINDS = 8
"""Limit of the kinds of failures that are counted apart."""
OTHERS = "other"
_RESULTS, _FAILURES, _EXAMPLE = 2, 3, 160


def after(items: Items, known: Delegation, event: SubagentCompleted, tokens: Tokens) -> Items:
    """Returns the summary after the end of an attempt at an item."""
    model = event.model or known.model or "unknown"
    used = {**items.tokens, model: items.tokens.get(model, Tokens()).plus(tokens)}
    if event.retried:
        return msgspec.structs.replace(items, tokens=used)
    if event.status == "completed":
        examples = _with_example(items, known, event, _RESULTS, good=True)
        return msgspec.structs.replace(items, tokens=used, done=items.done + 1, examples=examples)
    kind = event.failure or event.status
    kind = kind if kind in items.failures or len(items.failures) < MOST_KINDS else OTHERS
    failures = {**items.failures, kind: items.failures.get(kind, 0) + 1}
    examples = _with_example(items, known, event, _FAILURES, good=False)
    return msgspec.structs.replace(items, tokens=used, failures=failures, examples=examples)


def _with_example(
    items: Items, known: Delegation, event: SubagentCompleted, most: int, *, good: bool
) -> tuple[tuple[int, str, str], ...]:
    alike = sum((status == "completed") is good for _, status, _ in items.examples)
    text = " ".join((event.result if good else event.error or "").split())
    return (*items.examples, (known.item or 0, event.status, text[:_EXAMPLE])) if alike < most else items.examples


def failure(error: RunFailed | None, status: str) -> str:
    """Returns the kind of a failure: the reason of the model's, else the name of the error, else the status."""
    if error is None:
        return status
    extra = (error.message or {}).get("additional_kwargs")
    reason = extra.get("error_reason") if isinstance(extra, dict) else None
    return str(reason or error.error)[:64]


# ── for the caller ───────────────────────────────────────────────────────────────────────────────────────────────────


def counts(run: Run) -> str:
    """Returns how many items have ended, such as `412/1000 done, 3 failed`."""
    failed = f", {run.items.failed} failed" if run.items.failed else ""
    return f"{run.items.ended}/{len(run.batch or ())} done{failed}"


def percent(run: Run) -> int:
    return 100 * run.items.ended // max(1, len(run.batch or ()))


def progress(run: Run) -> Message:
    """Returns the progress of a batch as a message of it, with the usage so far."""
    total = Tokens()
    for tokens in run.items.tokens.values():
        total = total.plus(tokens)
    return {
        "type": "ai",
        "id": f"progress-{run.id}-{percent(run)}",
        "content": counts(run),
        "usage_metadata": usage_of(total),
    }


def since(message: Message, known: Tokens) -> Message:
    """Returns a progress message with the usage that is not known yet."""
    used = message["usage_metadata"]
    fresh = Tokens(max(0, used["input_tokens"] - known.input), max(0, used["output_tokens"] - known.output))
    return {**message, "usage_metadata": usage_of(fresh)}


def summary(run: Run) -> str:
    """Returns counts, failures by kind, examples, and the place of the table."""
    lines = [f"{counts(run)}. All results, one JSON object for each prompt: {run.request.batch_table}"]
    if left := len(run.batch or ()) - run.items.ended:
        lines.append(f"Not done: {left}.")
    if run.items.failures:
        kinds = ", ".join(f"{kind}: {number}" for kind, number in sorted(run.items.failures.items()))
        lines.append(f"Failures: {kinds}.")
    examples = sorted(run.items.examples)
    lines += [f"- {index}: {'' if status == 'completed' else f'{status}: '}{text}" for index, status, text in examples]
    return "\n".join(lines)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the table: the outcome of an item. `tokens` are those of the last attempt."""

    index: int
    status: str
    prompt: str
    result: str | None
    error: str | None
    attempts: int
    tokens: int | None
    subagent: str
    stop_reason: str | None = None
    """The limit at which it gave the result: its work is not finished."""

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def row(index: int, prompt: str, attempts: int, subagent: str, event: SubagentCompleted) -> Row:
    good = event.status == "completed"
    return Row(
        index=index,
        status=event.status,
        prompt=prompt,
        result=event.result if good else None,
        error=None if good else event.error or event.status,
        attempts=attempts,
        tokens=(event.usage or {}).get("total_tokens"),
        subagent=subagent,
        stop_reason=event.stop_reason,
    )


class History:
    """The items of a batch as its log tells them: attempts and rows."""

    def __init__(self, prompts: list[str]) -> None:
        self._prompts = prompts
        self.attempts: dict[int, int] = {}
        """The number of attempts that were begun, by item."""
        self.rows: dict[int, bytes] = {}
        """The lines of the items that have ended."""
        self._open: dict[str, tuple[int, str]] = {}

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            match record.event:
                case SubagentStarted(item=int(item), call_id=call_id, subagent=subagent):
                    self.attempts[item] = self.attempts.get(item, 0) + 1
                    self._open[call_id] = item, subagent
                case SubagentCompleted(call_id=call_id) as event if call_id in self._open:
                    item, subagent = self._open.pop(call_id)
                    if not event.retried:
                        known = row(item, self._prompts[item], self.attempts[item], subagent, event)
                        self.rows[item] = known.line()

    def lines(self) -> Iterator[bytes]:
        """Yields the rows in the order of the items."""
        return (self.rows[item] for item in sorted(self.rows))
