"""Runs as the log has them, to tell spans of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from adapters.tracing.spans import Span, Spans
from core.events import (
    Decision,
    Event,
    Message,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCompleted,
    RunRequested,
    RunStarted,
    ToolCompleted,
    ToolRequested,
    encode,
    written,
)

RUN, THREAD, WORKER = "run-1", "thread-1", "worker-1"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def at(second: float) -> str:
    return f"2026-01-01T00:00:{second:09.6f}+00:00"


def records(*events: tuple[float, Event], run: str = RUN, first: int = 1) -> list[Record]:
    """Events with the second at which each happened."""
    found = []
    for seq, (second, event) in enumerate(events, first):
        fields = {"kind": "thread", "aggregate_id": THREAD, "actor": "lead", "at": at(second), "run": run}
        found.append(Record(seq, encode(event, written(event, id=f"{run}-{seq}", **fields))))
    return found


def requested(**metadata: Any) -> RunRequested:
    return RunRequested(metadata=metadata)


def started(attempt: int = 1, worker: str = WORKER) -> RunStarted:
    return RunStarted(attempt=attempt, worker=worker, lease=1, model="main")


def said(duration_ms: int = 1000, *, decision: bool = False, **more: Any) -> ModelCompleted:
    message: Message = {
        "type": "ai",
        "id": "m",
        "content": "secret words",
        "usage_metadata": {"input_tokens": 100, "output_tokens": 7, "input_token_details": {"cache_read": 40}},
        "response_metadata": {"model_name": "gpt-x", "model_provider": "openai", "finish_reason": "tool_calls"},
        **more,
    }
    return ModelCompleted(message=message, duration_ms=duration_ms, decisions=[decided()] if decision else [])


def asked(call: str = "c1", name: str = "bash") -> ToolRequested:
    return ToolRequested(call_id=call, name=name, effect="once", args={"command": "secret command"})


def did(
    call: str = "c1", status: str = "success", unknown: bool = False, decisions: Sequence[Decision] = ()
) -> ToolCompleted:
    message = {"type": "tool", "name": "bash", "content": "secret output", "status": status}
    return ToolCompleted(call_id=call, message=message, unknown=unknown, decisions=list(decisions))


def decided(policy: str = "loops", action: str = "warned") -> Decision:
    return Decision(policy=policy, action=action, text="secret reason")


def failed(wait_ms: int | None = 2000, model: str | None = None) -> ModelFailed:
    about: dict[str, Any] = {"error": "RateLimitError", "text": "secret", "reason": "busy"}
    return ModelFailed(**about, attempt=1, max_attempts=3, wait_ms=wait_ms, model=model)


def whole(**metadata: Any) -> Sequence[Record]:
    """A run with a failed try, a tool, and an end."""
    return records(
        (0, requested(**metadata)),
        (1, started()),
        (2, failed()),
        (5.5, said()),
        (6, asked()),
        (8, did()),
        (10, said(500, usage_metadata=None)),
        (11, RunCompleted()),
    )


def spans(records: Iterable[Record]) -> list[Span]:
    """The spans of the runs in these events, in the order of their ends."""
    fold = Spans()
    return [span for record in records for span in fold.add(record)]
