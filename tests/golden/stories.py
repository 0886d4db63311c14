"""What was said in the recorded logs, and what a folded state looks like on paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from core.events import Record, RunRequested
from core.state import ThreadState, fold

FOLDER = Path(__file__).parent
STORIES: dict[str, tuple[str | RunRequested, ...]] = {
    "research": ("research nats",),
    "commands": ("run: echo hi", "write Hello to hello.txt", "read hello.txt", "run: exit 3"),
    "pauses": (
        RunRequested(
            input={"messages": [{"type": "human", "id": "human-stop", "content": "run: echo paused"}]},
            interrupt_before=["tools"],
            interrupt_after=["tools"],
        ),
        RunRequested(interrupt_after=["tools"]),
        RunRequested(),
    ),
}


def load(name: str) -> list[Record]:
    """The records of a golden log, numbered as on an empty stream."""
    lines = (FOLDER / f"{name}.jsonl").read_bytes().splitlines()
    return [Record(number, line) for number, line in enumerate(lines, 1)]


def snapshot(records: Sequence[Record]) -> bytes:
    """The state, as JSON for people to compare. Sequences are those of an empty stream."""
    numbered = [Record(number, record.raw) for number, record in enumerate(records, 1)]
    return msgspec.json.format(msgspec.json.encode(shown(fold(numbered)), order="sorted"), indent=2) + b"\n"


def shown(state: ThreadState) -> dict[str, Any]:
    return {
        "seq": state.seq,
        "user": state.user,
        "status": state.status,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
        "metadata": state.metadata,
        "values": state.values,
        "head": state.head,
        "commits": [
            {"seq": c.seq, "parent": c.parent, "source": c.source, "node": c.node, "run": c.run, "step": c.step}
            for c in state.commits
        ],
        "runs": {
            run.id: {
                "status": run.status,
                "attempt": run.attempt,
                "model": run.model,
                "requested": run.requested_seq,
                "started": run.started_seq,
                "ended": run.ended_seq,
                "error": msgspec.to_builtins(run.error),
                "open": sorted(run.intents),
            }
            for run in state.runs.values()
        },
    }
