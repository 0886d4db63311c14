"""The life of a run: the events that may follow in each status, the ends, and the labels that an end carries.

Rules.
1. The transitions of a run are a table here. The fold (`core.thread.state`) looks them up.
2. An event that may not follow folds as nothing, and the thread names it as a problem: the fold is total.
3. An end is one of five events. `RunPaused` is an end, too: another run goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from core.events import (
    Event,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRequested,
    RunRolledBack,
    RunStarted,
    RunSteered,
    RunSuspended,
    ToolCompleted,
    ToolRequested,
    WebhookDelivered,
    WebhookFailed,
)

Status = Literal["pending", "running", "success", "error", "interrupted", "rolled_back"]
"""Statuses of a run. A run that paused has succeeded: another goes on from there."""
OPEN: frozenset[Status] = frozenset(("pending", "running"))

RunEnded = RunCompleted | RunPaused | RunFailed | RunCancelled | RunRolledBack
"""The events by which a run ends: a type for annotations, `isinstance` and subscriptions of actors."""


class End(NamedTuple):
    """The end of a run. `name` is different for each of the five; `status` has no pause."""

    name: str
    status: Status


ENDS: Mapping[type[Event], End] = {
    RunCompleted: End("success", "success"),
    RunPaused: End("paused", "success"),
    RunFailed: End("error", "error"),
    RunCancelled: End("interrupted", "interrupted"),
    RunRolledBack: End("rolled_back", "rolled_back"),
}

END_TYPES: frozenset[str] = frozenset(str(end.__struct_config__.tag) for end in ENDS)
"""The types of the ends, as records name them."""
LAST_TYPES = END_TYPES | {"thread.erased"}
"""The types of the events after which nothing of a run follows."""

_AFTER_END: frozenset[type[Event]] = frozenset((RunRemoved, WebhookDelivered, WebhookFailed))
FOLLOWS: Mapping[Status | None, frozenset[type[Event]]] = {
    None: frozenset((RunRequested,)),
    "pending": frozenset((RunStarted, RunSteered, RunCancelRequested, RunFailed, RunCancelled, RunRolledBack)),
    "running": frozenset(
        (
            RunStarted,
            RunSuspended,
            RunSteered,
            RunCancelRequested,
            MessageAdded,
            ModelCompleted,
            ModelFailed,
            ModelSampled,
            ToolRequested,
            ToolCompleted,
            *ENDS,
        )
    ),
    "success": _AFTER_END,
    "error": _AFTER_END,
    "interrupted": _AFTER_END,
    "rolled_back": _AFTER_END,
}
"""The events that may follow in each status (None: not requested yet). A second `RunStarted` is another attempt."""
EVENTS: frozenset[type[Event]] = frozenset().union(*FOLLOWS.values())
"""The events of a run's life. Others may name a run, and follow at any time."""


def problem(event: Event, run_id: str, status: Status | None) -> str | None:
    """Returns the reason why the event may not follow in a run's status; None if it may."""
    if type(event) in FOLLOWS[status]:
        return None
    why = f"whose status is {status}" if status else "which was not requested"
    return f"{event.__struct_config__.tag} of run {run_id}, {why}"


# ── labels ───────────────────────────────────────────────────────────────────────────────────────────────────────────

WEBHOOK = "webhook"
"""The run has a webhook, to which its outcome is posted."""
TEMPORARY = "temporary"
"""The thread was created for the run, and is deleted after it."""
CHANNEL = "channel"
"""The outcome of the run is to be delivered to the conversation of a channel."""
DELIVER = "deliver"
"""Key of a run's metadata that names a chat to which its outcome is delivered, too: `{"channel": …, "chat": …}`."""
TARGET = "chat_target"
"""Key of a run's metadata: the `Target` of its answer (`core.chat.facts`). Such a run has an `Origin`, too."""
USED_TOOLS = "used_tools"
"""The run called tools, which may have had effects."""
IMPORTED = "imported"
"""The event was imported from a file: no actor is woken for it."""


UNTITLED = "untitled"
"""The request of a run on a thread that has no title."""


def beginning(*, untitled: bool) -> frozenset[str]:
    """Returns the labels of a run's request, by which actors select requests."""
    return frozenset((UNTITLED,)) if untitled else frozenset()


GOAL = "goal"
"""The thread of the run has a goal, for which its end counts."""


def labels(request: RunRequested, used_tools: bool, *, goal: bool = False) -> frozenset[str]:
    """Returns the labels of a run's end, by which actors select ends (`Actor.only`)."""
    facts = {
        WEBHOOK: bool(request.webhook),
        TEMPORARY: request.on_completion == "delete",
        CHANNEL: request.origin is not None or DELIVER in request.metadata,
        USED_TOOLS: used_tools,
        GOAL: goal,
    }
    return frozenset(label for label, holds in facts.items() if holds)
