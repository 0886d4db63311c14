"""Paths of the HTTP API, and what its answers must be."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from channels.client.errors import unexpected
from channels.client.events import INTERRUPT, Json


def thread_path(thread_id: str) -> str:
    return f"/api/threads/{quote(thread_id, safe='')}"


def run_path(thread_id: str, run_id: str) -> str:
    return f"{thread_path(thread_id)}/runs/{quote(run_id, safe='')}"


def object_of(answer: Any) -> Json:
    """Returns the answer, an object. Raises `ClientError` if it is anything else."""
    if not isinstance(answer, dict):
        raise unexpected(answer)
    return answer


def rows_of(answer: Any) -> list[Json]:
    """Returns the answer, a list of objects. Raises `ClientError` if it is anything else."""
    if not isinstance(answer, list):
        raise unexpected(answer)
    return [object_of(row) for row in answer]


def goal_of(answer: Any) -> Json | None:
    """Returns the goal of an answer; None if the thread has none."""
    return _optional(answer, "goal")


def folder_of(answer: Any) -> Json | None:
    """Returns the folder of an answer; None if the thread has none."""
    return _optional(answer, "folder")


def _optional(answer: Any, name: str) -> Json | None:
    value = object_of(answer)[name]
    return None if value is None else object_of(value)


def checkpoint_of(state: Json) -> Json:
    """Returns a state of LangGraph's history as a checkpoint of DeerFlow's client."""
    interrupts = [(task["id"], task["interrupts"]) for task in state["tasks"] if task.get("interrupts")]
    return {
        "checkpoint_id": state["checkpoint_id"],
        "parent_checkpoint_id": state["parent_checkpoint_id"],
        "ts": state["created_at"],
        "metadata": state["metadata"],
        "values": state["values"],
        "pending_writes": [{"task_id": task, "channel": INTERRUPT, "value": value} for task, value in interrupts],
    }


def age(state: Json) -> tuple[int, str]:
    """Returns a sort key of a checkpoint: ids are numbers, or texts of equal length."""
    identity = str(state["checkpoint_id"])
    return len(identity), identity
