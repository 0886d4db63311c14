"""Answers that are sent once more, from the log and without a new run: of those that a platform did not confirm."""

from __future__ import annotations

import msgspec

from actors.chat.answers import plan_id
from actors.chat.buttons import closing, may_decide, planned
from actors.chat.call import Call
from actors.chat.runs import Runs
from core.chat.facts import FAILED_NOTICE, DeliveryPlanned
from core.chat.state import Conversation, Plan
from core.log.store import EventLog

NOTHING = "All answers have arrived, as far as I know."
NOT_KNOWN = "I do not have that answer any more."
ALREADY = "It was sent once more already."
BELOW = "➡️ Sent once more below"


class Again:
    """Plans the rest of deliveries of unknown fate, each once."""

    def __init__(self, runs: Runs, log: EventLog) -> None:
        self._runs = runs
        self._log = log

    async def newest(self, call: Call) -> None:
        """Sends the newest answer of which it is not known whether it arrived (`/again`)."""
        lost = [plan for plan, about in call.state.plans.items() if _is_lost(about)]
        plan = next((plan for plan in reversed(lost) if _again(plan) not in call.state.plans), None)
        if plan is None:
            return await self._runs.end(call, "command", call.says(ALREADY if lost else NOTHING))
        await self._send(call, plan, "command")

    async def pressed(self, call: Call, notice: DeliveryPlanned, refusal: str) -> None:
        """Sends what a notice is about, whose button was pressed. `refusal`: for who may not decide that."""
        if not may_decide(call, notice):
            return await self._runs.end(call, "refused", call.says(refusal), reason="not the person who was asked")
        await self._send(call, notice.plan.removesuffix(FAILED_NOTICE), "choice")

    async def _send(self, call: Call, plan: str, outcome: str) -> None:
        about = call.state.plans.get(plan)
        if _again(plan) in call.state.plans:
            return await self._runs.end(call, outcome, call.says(ALREADY))
        lost = await planned(self._log, call.conversation, about)
        if lost is None or about is None:
            return await self._runs.end(call, outcome, call.says(NOT_KNOWN))
        rest = msgspec.structs.replace(
            lost,
            plan=_again(plan),
            purpose="push",
            first=lost.first + len(about.messages),
            replaces="",
            buttons=lost.buttons if lost.question else (),
        )
        notice = await planned(self._log, call.conversation, shown_notice(call.state, plan))
        await self._runs.end(call, outcome, *closing(call, notice, BELOW), rest)


def shown_notice(state: Conversation, plan: str) -> Plan | None:
    """Returns the notice of a plan that failed, if it was sent."""
    notice = state.plans.get(f"{plan}{FAILED_NOTICE}")
    return notice if notice is not None and notice.messages else None


def _again(plan: str) -> str:
    return plan_id(plan, "again")


def _is_lost(plan: Plan) -> bool:
    return plan.failed == "unknown" and not plan.overtakes
