"""The conversations on chat platforms: messages become runs or are answered at once, and the ends of runs answers.

Reading order: `turns.py` (messages that are answered together) → `router.py` (what becomes of a turn) → what it asks:
`access.py`, `session.py`, `commands.py`, `questions.py`, `files.py` → `answers.py` (what is said at the end of a run).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from actors.chat import answers, questions
from actors.chat.commands import CONTROL, code_of, parsed
from actors.chat.files import Files
from actors.chat.router import ACTOR, Router, planned, replacing
from actors.chat.turns import Message, Turn, turns_of
from core.actor import Actor, Context
from core.chat.facts import ChatFetched, ChatReceived, DeliveryPlanned, account_of
from core.chat.objects import Objects
from core.chat.state import Chats, Conversation
from core.config.load import ConfigSource
from core.events import Aggregate, ApprovalResolved, Event
from core.lifecycle import CHANNEL, RunEnded
from core.log.store import EventLog
from core.thread.intake import Intake
from core.thread.threads import Threads


class Chat(Actor[ChatReceived | ChatFetched | RunEnded | ApprovalResolved]):
    """Decides on the messages of a conversation in their order, and plans what is said.

    Guarantees: each message becomes one thing, whoever dies; a run is answered once. A message whose files are still
    being fetched holds up those after it, but for commands about the present and answers by buttons.
    """

    name = ACTOR
    only = (CHANNEL, ChatReceived, ChatFetched, ApprovalResolved)
    ordered = True

    def __init__(self, config: ConfigSource, log: EventLog, threads: Threads, intake: Intake, home: Path) -> None:
        self._log = log
        self._chats = Chats(log)
        files = Files(home, Objects(log.bus), threads)
        self._router = Router(self._chats, config, threads, intake, files, log)

    async def handle(self, event: ChatReceived | ChatFetched | RunEnded | ApprovalResolved, ctx: Context) -> None:
        match event:
            case ChatReceived() | ChatFetched():
                await self._work(ctx.record.aggregate, ctx)
            case ApprovalResolved():
                await self._resolved(event, ctx)
            case _:
                await self._answer(ctx)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        """Goes on with a turn that has waited for its files."""
        await self._work(aggregate, ctx)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self, aggregate: Aggregate, ctx: Context) -> None:
        """Routes the messages of a conversation, up to the first turn that must wait."""
        account, held = account_of(aggregate.id), False
        for turn in turns_of(await self._unrouted(aggregate)):
            if held and not _at_once(turn, account):
                continue
            ready = turn.ready_at()
            if ready is not None and ready > datetime.fromisoformat(ctx.now()):
                await ctx.wake_at(ready, turn.first.id, aggregate)
                held = True
                continue
            await self._router.route(aggregate.id, account, turn, await self._chats.load(aggregate.id))

    async def _unrouted(self, aggregate: Aggregate) -> list[Message]:
        """Returns the messages of a conversation that were not routed, oldest first."""
        state = await self._chats.load(aggregate.id)
        waiting = {heard.event: (key, heard) for key, heard in state.heard.items() if not heard.outcome}
        if not waiting:
            return []
        messages = []
        first = min(heard.seq for _, heard in waiting.values())
        async for record in self._log.read(aggregate, after=first - 1):
            if record.id in waiting and isinstance(record.event, ChatReceived):
                key, heard = waiting[record.id]
                at = datetime.fromisoformat(record.at)
                messages.append(Message(key, record.id, record.seq, at, record.event, heard.files))
        return messages

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, ctx: Context) -> None:
        """Plans what is said at the end of a run."""
        state = await ctx.load()
        run = state.runs.get(ctx.record.run or "")
        target = answers.target_of(run) if run is not None else None
        if run is None or run.request.origin is None or target is None:
            return
        conversation = run.request.origin.conversation
        said = answers.plans(ctx.record, run, state, target)
        asked = {plan.question for plan in said} - {""}
        again = await self._replacements(conversation, asked, questions.AGAIN)

        def decide(known: Conversation) -> Sequence[Event]:
            if said[0].plan in known.plans:
                return []
            return [*(plan for plan in again if plan.plan not in known.plans), *said]

        await self._chats.decide(conversation, decide, actor=self.name, cause=ctx.record.id)

    async def _resolved(self, event: ApprovalResolved, ctx: Context) -> None:
        """Shows what was decided about an approval, unless that was decided in the conversation itself."""
        state = await ctx.load()
        approval = state.approvals.get(event.approval)
        run = state.runs.get(approval.run) if approval is not None else None
        if run is None or run.request.origin is None or answers.target_of(run) is None:
            return
        conversation = run.request.origin.conversation
        plans = await self._replacements(conversation, {event.approval}, questions.outcome(event))
        await self._chats.decide(
            conversation,
            lambda known: [plan for plan in plans if plan.plan not in known.plans],
            actor=self.name,
            cause=ctx.record.id,
        )

    async def _replacements(self, conversation: str, asked: set[str], line: str) -> list[DeliveryPlanned]:
        """Returns what takes the buttons from the open ones of some questions."""
        state = await self._chats.load(conversation)
        found = [
            await planned(self._log, conversation, plan) for plan in state.plans.values() if plan.question in asked
        ]
        return [replacing(plan, line) for plan in found if plan is not None]


def _at_once(turn: Turn, account: str) -> bool:
    """Tells whether a turn need not wait for those before it."""
    event = turn.first.event
    command = parsed(event.text, account.partition("-")[0])
    return event.choice is not None or code_of(command) is not None or (command is not None and command.name in CONTROL)
