"""What was said in the recorded logs, and what a folded state looks like on paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from core.events import Json, Record, Resume, RunRequested
from core.thread.fold import fold
from core.thread.state import ThreadState
from tests.support.model_server import Failure, Script, ToolCall, Turn

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
    "policies": (
        RunRequested(
            input={"messages": [{"type": "human", "id": "human-plan", "content": "Plan it"}]},
            context={"is_plan_mode": True},
        ),
        "Release it",
        RunRequested(resume=Resume(value={"decisions": [{"type": "approve"}]})),
        "Paint it",
        "Blue",
    ),
    "delegates": (
        RunRequested(
            input={"messages": [{"type": "human", "id": "human-delegate", "content": "Look into both"}]},
            context={"subagent_enabled": True, "model_name": "main"},
        ),
    ),
}
"""What a person says. The demo model answers, unless there is a script."""


def _todos(status: str) -> ToolCall:
    return ToolCall("write_todos", {"todos": [{"content": "look around", "status": status}]})


def _task(name: str) -> ToolCall:
    return ToolCall("task", {"description": "look", "prompt": f"Look as {name}.", "subagent_type": name})


WRITER = {"description": "looks", "system_prompt": "You look.", "model": "writer", "max_turns": 9}
RELEASE = {"description": "d", "command": "echo release"}
_DECLINED = Failure(status=401, message="Invalid API key", code="invalid_api_key")
SCRIPTS: dict[str, dict[str, Script]] = {
    "policies": {
        "main": Script((Turn(error=_DECLINED),)),
        "backup": Script(
            (
                Turn(text="A plan: step-0.", tool_calls=(_todos("in_progress"),)),
                Turn(text="Done early: step-1."),
                Turn(text="Now really: step-2.", tool_calls=(_todos("completed"),)),
                Turn(text="All done: step-3."),
                Turn(
                    text="Now step-4.", tool_calls=(ToolCall("bash", {"description": "d", "command": "echo release"}),)
                ),
                Turn(text="Released: step-5."),
                Turn(
                    text="One thing: step-6.",
                    tool_calls=(
                        ToolCall(
                            "ask_clarification",
                            {"question": "Which colour?", "clarification_type": "missing_info", "options": ["Blue"]},
                        ),
                    ),
                ),
                Turn(text="Blue it is: step-7."),
            ),
            count="marker",
        ),
        "writer": Script((Turn(text="They planned and released."),)),
    }
}
SCRIPTS["delegates"] = {
    "main": Script((Turn(text="Both at once.", tool_calls=(_task("writer"), _task("nobody"))), Turn(text="One did."))),
    "backup": Script(()),
    "writer": Script(
        (
            Turn(tool_calls=(ToolCall("bash", {"description": "d", "command": "echo found"}),)),
            Turn(text="It is found."),
        )
    ),
}
SETTINGS: dict[str, Json] = {
    "delegates": {"subagents": {"custom_agents": {"writer": WRITER}}},
    "policies": {
        "model_roles": {"lead": ["main", "backup"]},
        "approvals": [{"tool": "bash", "match": "release"}],
        "summarization": {
            "enabled": True,
            "model_name": "writer",
            "trigger": [{"type": "messages", "value": 8}],
            "keep": {"type": "messages", "value": 2},
        },
    },
}
"""Sections of the configuration besides the sandbox's."""


def configured(name: str, path: Path, **more: Any) -> Path:
    """Write the configuration that a story was recorded with."""
    sandbox = {"provider": "host", "allow_host_bash": True}
    models = [{"name": model, "model": model, "api_key": "none"} for model in ("main", "backup", "writer")]
    sections = {"models": models, **SETTINGS[name]} if name in SETTINGS else {}
    path.write_text(json.dumps({"sandbox": sandbox, **sections, **more}))  # JSON is YAML
    return path


def load(name: str) -> list[Record]:
    """The records of a golden log, numbered as on an empty stream."""
    lines = (FOLDER / f"{name}.jsonl").read_bytes().splitlines()
    return [Record(number, line) for number, line in enumerate(lines, 1)]


def snapshot(records: Sequence[Record]) -> bytes:
    """The state, as JSON for people to compare. Sequences are those of an empty stream."""
    numbered = [Record(number, record.raw) for number, record in enumerate(records, 1)]
    return msgspec.json.format(msgspec.json.encode(shown(fold(numbered)), order="sorted"), indent=2) + b"\n"


def shown(state: ThreadState) -> dict[str, Any]:
    approvals = {key: msgspec.to_builtins(one.resolved) for key, one in state.approvals.items()}
    return {
        **({"approvals": approvals} if approvals else {}),
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
                **({"subagents": msgspec.to_builtins(run.subagents)} if run.subagents else {}),
            }
            for run in state.runs.values()
        },
    }
