"""Questions that are shown in a conversation: their plans, who may decide, and what takes their buttons away."""

from __future__ import annotations

import msgspec

from actors.chat import questions
from actors.chat.answers import plan_id
from actors.chat.call import Call
from actors.chat.questions import Question
from core.chat import platforms
from core.chat.account import platform_of
from core.chat.facts import KIND, DeliveryPlanned
from core.chat.state import Conversation, Plan
from core.events import Aggregate
from core.log.store import EventLog


async def planned(log_: EventLog, conversation: str, plan: Plan | None) -> DeliveryPlanned | None:
    """Returns the event of a plan."""
    if plan is None:
        return None
    async for record in log_.read(Aggregate(KIND, conversation), after=plan.seq - 1, upto=plan.seq):
        if isinstance(record.event, DeliveryPlanned):
            return record.event
    return None


def replacing(shown: DeliveryPlanned, line: str) -> DeliveryPlanned:
    """Returns the plan that takes the buttons from a question, and says what was decided."""
    return msgspec.structs.replace(
        shown,
        plan=plan_id(shown.plan, "decided"),
        purpose="question",
        text=f"{shown.text.removesuffix(questions.CHOICES)}\n\n{line}",
        buttons=(),
        artifacts=(),
        replaces=shown.plan,
        question="",
    )


def closing(call: Call, shown: DeliveryPlanned | None, line: str) -> list[DeliveryPlanned]:
    """Returns what takes the buttons from a notice of ours, where messages can be changed."""
    free = platforms.traits(platform_of(call.account), call.config).edits_are_free
    return [replacing(shown, line)] if free and shown is not None else []


def plan_of(state: Conversation, question: Question) -> str | None:
    return next((plan for plan, about in reversed(list(state.plans.items())) if about.question == question.id), None)


def may_decide(call: Call, shown: DeliveryPlanned) -> bool:
    """Tells whether a person is the one who was asked, or connected as the user whose thread it is."""
    return shown.target.sender in ("", call.first.event.sender) or (call.connected and call.user == shown.user)
