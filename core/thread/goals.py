"""The goal of a thread: a fold over its facts, and what the next step is after an evaluation."""

from __future__ import annotations

import msgspec

from core.events import (
    Blocker,
    Event,
    GoalCleared,
    GoalContinued,
    GoalEvaluated,
    GoalPaused,
    GoalReached,
    GoalSet,
    Json,
    Record,
)

GoalChanged = GoalSet | GoalEvaluated | GoalContinued | GoalPaused | GoalReached | GoalCleared
KEY = "goal"
"""The field of the state under which clients see the goal."""
WAITS: Blocker = "needs_user_input"
"""The blocker that the next run of the person lifts."""


class Evaluation(msgspec.Struct, frozen=True):
    """The newest evaluation, of the run `run`. `id` is that of its event."""

    id: str
    run: str
    at: str
    event: GoalEvaluated


class Goal(msgspec.Struct, frozen=True):
    """A goal that is not reached yet. `seq`: where it was set; `changed`: where it was changed last; `run`: its newest
    continuation.
    """

    seq: int
    changed: int
    set: GoalSet
    created_at: str
    updated_at: str
    paused: GoalPaused | None = None
    continuations: int = 0
    no_progress: int = 0
    tokens: int = 0
    """Tokens of the evaluated runs."""
    run: str = ""
    last: Evaluation | None = None
    due: bool = False
    """A continuation follows from the newest evaluation, and was not requested yet."""

    @property
    def listens(self) -> bool:
        """Tells whether the end of a run is evaluated."""
        return self.paused is None or self.paused.blocker == WAITS

    def limit(self, tokens: int, *, progressed: bool) -> str | None:
        """Returns the reason why no continuation may follow a run that used so many tokens; None if one may."""
        set_, idle = self.set, self.no_progress_after(progressed)
        if self.continuations >= set_.max_continuations:
            return f"the limit of {set_.max_continuations} continuations is reached"
        if idle >= set_.max_no_progress_continuations:
            return f"{idle} continuations in a row made no progress"
        if set_.max_tokens is not None and self.tokens + tokens >= set_.max_tokens:
            return f"the budget of {set_.max_tokens} tokens is used up"
        return None

    def no_progress_after(self, progressed: bool) -> int:
        """Returns the continuations in a row without progress after one more evaluation."""
        return 0 if progressed or not self.continuations else self.no_progress + 1


def after(goal: Goal | None, event: GoalChanged, record: Record) -> Goal | None:
    """Returns the goal after one of its events. Pure, and total: events without a goal change nothing, and neither do
    those that the goal has seen (a rewound thread keeps its newest goal, see `core.thread.rewind`).
    """
    if goal is not None and record.seq <= goal.changed:
        return goal
    if isinstance(event, GoalSet):
        return Goal(record.seq, record.seq, event, record.at, record.at)
    if goal is None or isinstance(event, GoalReached | GoalCleared):
        return None
    return _changed(msgspec.structs.replace(goal, changed=record.seq, updated_at=record.at), event, record)


def _changed(goal: Goal, event: GoalEvaluated | GoalContinued | GoalPaused, record: Record) -> Goal:
    change = msgspec.structs.replace
    match event:
        case GoalEvaluated():
            return change(
                goal,
                paused=None,
                last=Evaluation(record.id, record.run or "", record.at, event),
                due=not event.satisfied,
                tokens=goal.tokens + event.tokens,
                no_progress=goal.no_progress_after(event.progressed),
            )
        case GoalContinued():
            return change(goal, run=record.run or "", due=False, continuations=goal.continuations + 1)
        case GoalPaused():
            return change(goal, paused=event, due=False)


def restated(goal: Goal | None) -> list[Event]:
    """Returns the events that state a goal anew, for a thread whose past is pruned."""
    return [] if goal is None else [goal.set, *([goal.paused] if goal.paused else [])]


def goal_for_clients(goal: Goal | None) -> Json | None:
    """Returns the goal as DeerFlow's clients see it."""
    if goal is None:
        return None
    return {
        "objective": goal.set.objective,
        "status": "paused" if goal.paused else "active",
        "created_at": goal.created_at,
        "updated_at": goal.updated_at,
        "continuation_count": goal.continuations,
        "max_continuations": goal.set.max_continuations,
        "no_progress_count": goal.no_progress,
        "max_no_progress_continuations": goal.set.max_no_progress_continuations,
        **({"pause_reason": goal.paused.reason} if goal.paused else {}),
        **({"last_evaluation": _evaluation(goal, goal.last)} if goal.last else {}),
    }


def _evaluation(goal: Goal, last: Evaluation) -> Json:
    return {
        "satisfied": last.event.satisfied,
        "blocker": last.event.blocker,
        "reason": last.event.reason,
        "run_id": last.run,
        "evaluated_at": last.at,
        **({"stand_down_reason": goal.paused.reason} if goal.paused else {}),
    }
