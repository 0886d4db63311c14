"""The answer of a run as a plan of delivery (DeerFlow's dispatcher). Pure functions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import PurePosixPath

import msgspec

from actors.chat.questions import Question, of_messages, overtaken, pending
from core.chat.facts import BAD, GOOD, Artifact, DeliveryPlanned, Target
from core.events import Json, Record, RunPaused
from core.files.paths import OUTPUTS
from core.lifecycle import ENDS, TARGET
from core.thread.messages import text_of
from core.thread.runs import end_of
from core.thread.state import Run, ThreadState
from core.thread.usage import steps_of
from core.thread.values import CLARIFICATION

NO_RESPONSE = "(No response from the agent.)"
FAILED = "Something went wrong, and there is no answer. Try again, or `/new` for a new conversation."
STOPPED = "_Stopped._"
_PLANS = uuid.UUID("0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e2")
"""The namespace of the ids of plans that are no run's answer."""


def plan_id(*parts: str) -> str:
    """Returns the id of a plan, the same for the same reason."""
    return str(uuid.uuid5(_PLANS, "\n".join(parts)))


def target_of(run: Run) -> Target | None:
    """Returns where the answer of a run goes; None if nobody in a chat asked for it."""
    if run.request.origin is None or TARGET not in run.request.metadata:
        return None
    try:
        return msgspec.convert(run.request.metadata[TARGET], Target)
    except msgspec.ValidationError:
        return None


def plans(end: Record, run: Run, state: ThreadState, target: Target, *, rated: bool = False) -> list[DeliveryPlanned]:
    """Returns the replies at the end of a run: its answer, and the questions it ends with. The first plan has the
    run's id. `rated`: people can say what they think of the answer."""
    status = ENDS[type(end.event)].name  # type: ignore[index]
    artifacts = _artifacts(_presented(state, run))
    questions = _questions(end, run, state)
    text = _text(status, _last_text(state.values_at(end_of(state, run)).get("messages", ())), run)
    if status == "success" and questions:
        text = ""  # the question is the last text
    first = _joined(text, questions[0].text if questions else "", _names(artifacts))
    question = questions[0] if questions else None
    ratings = (GOOD, BAD) if rated and status == "success" and first else ()
    planned = DeliveryPlanned(
        plan=run.id,
        purpose="question" if question else "answer",
        target=target,
        text=first or ("" if _never_begun(run) else NO_RESPONSE),
        buttons=tuple(question.buttons) if question else ratings,
        artifacts=artifacts,
        thread=end.aggregate.id,
        user=state.user,
        question=question.id if question and question.buttons else "",
    )
    return [planned, *(_asking(more, run, planned) for more in questions[1:])]


def pushed(end: Record, run: Run, state: ThreadState, target: Target) -> DeliveryPlanned:
    """Returns the replies about a run in a chat where nobody asked for it. Its questions are answered elsewhere."""
    plan = plans(end, run, state, target)[0]
    return msgspec.structs.replace(plan, plan=plan_id(run.id, "push"), purpose="push", buttons=(), question="")


def _asking(question: Question, run: Run, first: DeliveryPlanned) -> DeliveryPlanned:
    return msgspec.structs.replace(
        first,
        plan=plan_id(run.id, question.id),
        purpose="question",
        text=question.text,
        buttons=tuple(question.buttons),
        artifacts=(),
        question=question.id if question.buttons else "",
    )


def _questions(end: Record, run: Run, state: ThreadState) -> list[Question]:
    """Returns the questions that a run ended with; without buttons if the conversation has gone on since."""
    if isinstance(end.event, RunPaused):
        current = state.paused is not None and state.paused == end.event and not any(state.runs.open())
        return pending(state) if current else overtaken(end.event.interrupts)
    if run.status != "success":
        return []
    question = of_messages(state.values_at(end_of(state, run)).get("messages", ()))
    return [question] if question else []


def _text(status: str, text: str, run: Run) -> str:
    match status:
        case "error":
            message = run.error.message if run.error else None
            return (text_of(message.get("content", "")) if message else "") or FAILED
        case "interrupted" | "rolled_back" if _never_begun(run):
            return ""  # who stopped it was told
        case "interrupted":
            return _joined(text, STOPPED)
        case "rolled_back":
            return STOPPED
    return text


def _last_text(messages: Sequence[Json]) -> str:
    """Returns the last text for the person since their message: an answer, or a question."""
    for message in reversed(messages):
        if message.get("type") == "human":
            return ""
        asks = message.get("type") == "tool" and str(message.get("id")).startswith(CLARIFICATION)
        if (asks or message.get("type") == "ai") and (text := text_of(message.get("content", "")).strip()):
            return text
    return ""


def _never_begun(run: Run) -> bool:
    return run.status in ("interrupted", "rolled_back") and run.started_seq is None


def _presented(state: ThreadState, run: Run) -> Sequence[str]:
    """Returns the paths of the files that a run presented."""
    patches = (commit.patch for commit in steps_of(state, run) if commit.node == "tools")
    return [path for patch in patches for path in patch.get("artifacts", ())]


def _artifacts(paths: Sequence[str]) -> tuple[Artifact, ...]:
    """Returns the files below the outputs, each once."""
    inside = [path for path in dict.fromkeys(paths) if _inside(PurePosixPath(path))]
    return tuple(Artifact(path, PurePosixPath(path).name) for path in inside)


def _inside(path: PurePosixPath) -> bool:
    return PurePosixPath(OUTPUTS) in path.parents and ".." not in path.parts


def _names(artifacts: Sequence[Artifact]) -> str:
    if not artifacts:
        return ""
    names = ", ".join(f"`{artifact.name.replace('`', '')}`" for artifact in artifacts)
    return f"Created {'file' if len(artifacts) == 1 else 'files'}: {names}"


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
