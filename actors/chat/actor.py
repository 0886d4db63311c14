"""The conversations on chat platforms: messages become runs or are answered at once, and the ends of runs answers.

Reading order: `turns.py` (messages that are answered together), `allowance.py` (how many of a person at once) →
`call.py`, `router.py`, `runs.py` and `perform.py` (what becomes of a turn) → what they use: `access.py`, `place.py`,
`session.py`, `commands.py`, `questions.py`, `buttons.py`, `files.py` → `answers.py` (replies at the end of a run).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from actors.chat import answers, questions
from actors.chat.allowance import Allowance
from actors.chat.answers import plan_id
from actors.chat.buttons import planned, replacing
from actors.chat.commands import CONTROL, code_of, parsed
from actors.chat.deletions import is_deletion
from actors.chat.files import Files
from actors.chat.pushes import refusal
from actors.chat.router import Router
from actors.chat.runs import ACTOR, BEGUN, waiting_id
from actors.chat.turns import Message, Turn, turns_of
from core.actor import Actor, Context, Progress
from core.chat import platforms
from core.chat.account import Accounts, platform_of
from core.chat.connections import Connections
from core.chat.facts import ASKED, KIND, ChatFetched, ChatReceived, DeliveryPlanned, account_of
from core.chat.objects import Objects
from core.chat.port import Traits
from core.chat.push import push_of
from core.chat.state import Chats, Conversation
from core.config.channels import AccountSettings
from core.config.load import ConfigSource
from core.errors import Invalid
from core.events import Aggregate, ApprovalResolved, Event
from core.identity.seal import Seal
from core.identity.standing import Standing
from core.lifecycle import CHANNEL, RunEnded
from core.log.store import EventLog
from core.runs.intake import Intake
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads

log = structlog.get_logger("sika.chat")


class Send(msgspec.Struct, frozen=True, tag_field="op", tag="send"):
    """A message of the agent in the chat of a run. `call`: of the tool; repeated, it is sent once."""

    thread: str
    run: str
    call: str
    text: str


class Chat(Actor[ChatReceived | ChatFetched | RunEnded | ApprovalResolved]):
    """Decides on the messages of a conversation in their order, and plans the replies.

    Guarantees: each message becomes one thing, whoever dies; a run is answered once. A turn to which more may come,
    whose files are still being fetched, or whose person has written too many (`Allowance`), holds up the later ones of
    the same person, but for commands about the present and answers by buttons.
    """

    name = ACTOR
    only = (CHANNEL, ChatReceived, ChatFetched, ApprovalResolved)
    ordered = True
    prompt = True

    def __init__(
        self,
        config: ConfigSource,
        log: EventLog,
        threads: Threads,
        chats: Chats,
        intake: Intake,
        home: Path,
        standing: Standing,
    ) -> None:
        self._log = log
        self._config = config
        self._threads = threads
        self._connections = Connections(log, actor=self.name)
        self._chats = chats
        self._allowance = Allowance()
        self._accounts = Accounts(log, config.current, Seal(home))
        files = Files(home, Objects(log.bus), threads)
        self._router = Router(self._chats, config, threads, intake, files, log, standing)

    async def handle(self, event: ChatReceived | ChatFetched | RunEnded | ApprovalResolved, ctx: Context) -> None:
        match event:
            case ChatReceived() | ChatFetched():
                await self._work(ctx.record.aggregate, ctx)
            case ApprovalResolved():
                await self._resolved(event, ctx)
            case _:
                await self._answer(ctx)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        """Goes on with a turn that has waited."""
        await self._work(aggregate, ctx)

    async def given_up(self, aggregate: Aggregate, ctx: Context) -> None:
        """Refuses the turn that was at work, or says that a run has no answer: else its person would hear nothing, and
        what they write next would meet the same."""
        if aggregate.kind != KIND:
            return await self._unanswered(await self._threads.load(aggregate.id), aggregate.id)
        async for turn in self._ready(aggregate, ctx):
            state = await self._chats.load(aggregate.id)
            await self._router.refuse(aggregate.id, account_of(aggregate.id), turn, state)
            return await ctx.wake_at(datetime.fromisoformat(ctx.now()), turn.first.id, aggregate)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self, aggregate: Aggregate, ctx: Context) -> None:
        """Routes the messages of a conversation, up to the first turn that must wait."""
        async for turn in self._ready(aggregate, ctx):
            await self._router.route(aggregate.id, account_of(aggregate.id), turn, await self._chats.load(aggregate.id))

    async def _ready(self, aggregate: Aggregate, ctx: Context) -> AsyncIterator[Turn]:
        """Yields the turns of a conversation that may begin. Those that wait have a timer."""
        account = account_of(aggregate.id)
        gather = self._gather(account)
        unrouted, asked = await self._unrouted(aggregate)
        held: set[str] = set()
        """People whose turns wait."""
        for turn in turns_of(unrouted, partial(_is_chat, account), gather, asked):
            sender = turn.first.event.sender
            if _at_once(turn, account):
                pass
            elif sender in held:
                continue
            elif wait := self._wait(turn, gather, account, now := datetime.fromisoformat(ctx.now())):
                await ctx.wake_at(now + wait, turn.first.id, aggregate)
                held.add(sender)
                continue
            yield turn

    def _wait(self, turn: Turn, gather: timedelta, account: str, now: datetime) -> timedelta:
        """Returns the time until a turn may begin; zero if that is now."""
        if (wait := turn.ready_at(gather) - now) > timedelta():
            return wait
        return timedelta(seconds=self._allowance.wait(f"{account}/{turn.first.event.sender}", turn.first.id))

    def _gather(self, account: str) -> timedelta:
        settings = self._config.current().channels.account(account) or AccountSettings()
        return timedelta(seconds=settings.gather_seconds)

    async def _unrouted(self, aggregate: Aggregate) -> tuple[list[Message], list[Message]]:
        """Returns the messages of a conversation that were not routed, oldest first, and those with files about which
        their persons were asked.
        """
        state = await self._chats.load(aggregate.id)
        waiting = {heard.event: (key, heard) for key, heard in state.heard.items() if heard.outcome in ("", ASKED)}
        new = [heard.seq for _, heard in waiting.values() if not heard.outcome]
        if not new:
            return [], []
        parts = [(heard.seq - 1, heard.seq) for _, heard in waiting.values() if heard.outcome and heard.seq < min(new)]
        messages: list[Message] = []
        for after, upto in (*parts, (min(new) - 1, None)):
            async for record in self._log.read(aggregate, after=after, upto=upto):
                if record.id in waiting and isinstance(record.event, ChatReceived):
                    key, heard = waiting[record.id]
                    at = datetime.fromisoformat(record.at)
                    messages.append(Message(key, record.id, record.seq, at, record.event, heard.files))
        asked = [message for message in messages if state.heard[message.key].outcome]
        return [message for message in messages if not state.heard[message.key].outcome], asked

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, ctx: Context) -> None:
        """Plans the replies at the end of a run."""
        state = await ctx.load()
        run = state.runs.get(ctx.record.run or "")
        if run is None:
            return
        await self._push(run, state, ctx)
        target = answers.target_of(run)
        if run.request.origin is None or target is None:
            return
        conversation = run.request.origin.conversation
        rated = self._traits(account_of(conversation)).rates_answers
        plans = answers.plans(ctx.record, run, state, target, rated=rated)
        plans += await self._begun(conversation, run, account_of(conversation))
        closed = {plan.question for plan in plans} - {""}
        again = await self._replacements(conversation, closed, questions.AGAIN)

        def decide(known: Conversation) -> Sequence[Event]:
            if plans[0].plan in known.plans:
                return []
            return [*(plan for plan in again if plan.plan not in known.plans), *plans]

        known = await self._chats.decide(conversation, decide, actor=self.name, cause=ctx.record.id)
        if any(is_deletion(key) and not heard.outcome for key, heard in known[0].heard.items()):
            await ctx.wake_at(datetime.fromisoformat(ctx.now()), run.id, Aggregate(KIND, conversation))

    async def _unanswered(self, state: ThreadState, thread: str) -> None:
        """Plans words instead of the answers of a thread's runs that are over and have none."""
        for run in state.runs.values():
            target = answers.target_of(run)
            if run.open or run.request.origin is None or target is None:
                continue
            text, user = answers.FAILED, state.user
            lost = DeliveryPlanned(plan=run.id, purpose="answer", target=target, text=text, thread=thread, user=user)

            def decide(known: Conversation, lost: DeliveryPlanned = lost) -> Sequence[Event]:
                return [lost] if lost.plan in known.runs else []

            await self._chats.decide(run.request.origin.conversation, decide, actor=self.name)

    async def _begun(self, conversation: str, run: Run, account: str) -> list[DeliveryPlanned]:
        """Returns what changes the notice of messages that waited for this run: they are answered now. It may be
        on its way still.
        """
        known = await self._chats.load(conversation)
        notice = known.plans.get(waiting_id(conversation, run.id))
        shown = await planned(self._log, conversation, notice) if notice and not notice.failed else None
        if shown is None or not self._traits(account).edits_are_free:
            return []
        plan = plan_id(shown.plan, "begun")
        return [msgspec.structs.replace(shown, plan=plan, text=BEGUN, replaces=shown.plan, unless_answered="")]

    def _traits(self, account: str) -> Traits:
        return platforms.traits(platform_of(account), self._config.current())

    async def _push(self, run: Run, state: ThreadState, ctx: Context) -> None:
        """Plans the replies in the chat that a run's metadata name."""
        try:
            push = push_of(run.request.metadata)
        except Invalid as error:
            log.warning("an outcome is not delivered", run=run.id, reason=str(error))
            return
        if push is None:
            return
        known, connections = await self._chats.load(push.conversation), await self._connections.state()
        exists = await self._accounts.exists(push.channel)
        if reason := refusal(push, state.user, exists, self._config.current(), known, connections):
            log.warning("an outcome is not delivered", run=run.id, channel=push.channel, reason=reason)
            return
        plan = answers.pushed(ctx.record, run, state, push.target)

        def decide(known: Conversation) -> Sequence[Event]:
            return [] if plan.plan in known.plans else [plan]

        await self._chats.decide(push.conversation, decide, actor=self.name, cause=ctx.record.id)

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> str:
        """Says something in the conversation of a run (the tool `send_message`). Raises `Invalid`."""
        command = self.parse(request, Send)
        state = await self._threads.load(command.thread)
        run = state.runs.get(command.run)
        target = answers.target_of(run) if run is not None else None
        if run is None or run.request.origin is None or target is None:
            raise Invalid("This conversation is not in a chat: say it in your answer.")
        if not command.text.strip():
            raise Invalid("text: must not be blank")
        fact = DeliveryPlanned(
            plan=answers.plan_id(command.run, command.call), purpose="push", target=target, text=command.text
        )

        def decide(known: Conversation) -> Sequence[Event]:
            return [] if fact.plan in known.plans else [fact]

        await self._chats.decide(run.request.origin.conversation, decide, actor=self.name)
        return "Sent."

    async def _resolved(self, event: ApprovalResolved, ctx: Context) -> None:
        """Shows what was decided about an approval, unless that was decided in the conversation itself."""
        state = await ctx.load()
        approval = state.approvals.get(event.approval)
        run = state.runs.get(approval.run) if approval is not None else None
        if run is None or run.request.origin is None or answers.target_of(run) is None:
            return
        conversation = run.request.origin.conversation
        line = questions.outcome(event, form=approval is not None and approval.request.form is not None)
        plans = await self._replacements(conversation, {event.approval}, line)
        await self._chats.decide(
            conversation,
            lambda known: [plan for plan in plans if plan.plan not in known.plans],
            actor=self.name,
            cause=ctx.record.id,
        )

    async def _replacements(self, conversation: str, of: set[str], line: str) -> list[DeliveryPlanned]:
        """Returns what takes the buttons from the open ones of some questions."""
        state = await self._chats.load(conversation)
        shown = [await planned(self._log, conversation, plan) for plan in state.plans.values() if plan.question in of]
        return [replacing(plan, line) for plan in shown if plan is not None]


def _is_chat(account: str, event: ChatReceived) -> bool:
    """Tells whether a message is words for the agent, and no command, button or edit."""
    return (
        event.choice is None
        and not event.edited
        and not event.deleted
        and parsed(event.text, platform_of(account)) is None
    )


def _at_once(turn: Turn, account: str) -> bool:
    """Tells whether a turn need not wait for those before it."""
    event = turn.first.event
    command = parsed(event.text, platform_of(account))
    return (
        event.choice is not None
        or event.deleted
        or code_of(command) is not None
        or (command is not None and command.name in CONTROL)
    )
