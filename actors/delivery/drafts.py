"""Drafts: shows the answer of a run while it grows, in one message that the answer then replaces.

One owner per visible message. The message of a draft belongs to `Drafts` until `Lives.take` has returned it: from there
on to whoever took it, and nothing more is shown. So a draft and its answer never write at the same time.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from datetime import datetime, timedelta

import anyio
import structlog
from cachetools import FIFOCache

from actors.delivery.outlet import ERRORS, Outlet, person
from actors.delivery.progress import Progress
from actors.delivery.signs import TIMEOUT, sign
from core.actor import Actor, Context
from core.chat.facts import KIND, ChatRouted, Target
from core.chat.port import DRAFT, CredentialsDead, Draft, FateUnknown, RateLimited
from core.chat.state import REMEMBERED, Conversation
from core.errors import Unavailable, ungrouped
from core.runtime.system import System

log = structlog.get_logger("sika.delivery")

TURN_SECONDS = 0.5
"""Interval of looks for earlier answers of the conversation that are still to be said."""
LONGEST_TURN_SECONDS = 120.0
"""Time after which a draft no longer waits for them: they may be held up for long."""
WORKING_SECONDS = 4.0
"""Interval of the sign that somebody is at work: Telegram's lasts 5 s."""
LONGEST_SECONDS = 12 * 3600.0
"""Time for which a run is followed."""
GRACE_SECONDS = 60.0
"""Time after the end of a run in which its answer is planned, also while a server starts anew; then the sign of work,
and the line about what it does, are taken away."""
HANDOVER_SECONDS = 90.0
"""Timeout of a draft's last call: longer than that of a call."""
PAUSES = (1.0, 5.0, 15.0)
"""Seconds after a failure before the draft is shown again."""
WORDS = 5
"""Part of the time between edits in a group for which the first words are gathered: on Telegram 0.6 of 3 seconds."""
FIND_SECONDS = 300.0
"""Time before the cause of a message from which on it is looked for: clocks differ."""


class Live:
    """A draft that is being shown."""

    def __init__(self, conversation: str, run: str, target: Target) -> None:
        self.conversation = conversation
        self.run = run
        self.target = target
        self.text = ""
        self.status = ""
        self.draft: Draft | None = None
        self.shown: tuple[str, str] | None = None
        """The text and the status that the platform has."""
        self.recorded = ""
        """The message that the log knows."""
        self.anew = False
        """It is shown though nothing has changed."""
        self.over = False
        """The run has ended: its answer is coming."""
        self.taken = False
        self.changed = anyio.Event()
        self.closing = anyio.Event()
        self.released = anyio.Event()
        """Nothing is being shown, and nothing will be."""
        self.said = anyio.Event()
        """The answer stands there."""
        self._waiting = anyio.CancelScope()

    @property
    def key(self) -> str:
        return f"{self.run}{DRAFT}"

    @property
    def group(self) -> bool:
        return self.target.kind == "group"

    def show_again(self) -> None:
        self.anew = True
        self.changed.set()

    def say(self, text: str, status: str) -> None:
        if (text, status) != (self.text, self.status):
            self.text, self.status = text, status
            self.changed.set()

    def waits(self) -> anyio.CancelScope:
        """Returns the scope of a wait that `close` ends."""
        self._waiting = anyio.CancelScope()
        return self._waiting

    def close(self) -> None:
        """Has it end after the call that is being made."""
        self.closing.set()
        self.changed.set()
        self._waiting.cancel()


class Lives:
    """The drafts that are shown in this process, by run."""

    def __init__(self) -> None:
        self._lives: dict[str, Live] = {}
        self._taken: dict[str, Live] = {}
        """Those whose answers are being said."""
        self._ours: FIFOCache[str, None] = FIFOCache(REMEMBERED)
        """Runs whose drafts no other process can have begun, the newest last."""
        self._doubted: FIFOCache[str, None] = FIFOCache(REMEMBERED)
        """Runs with a draft that may be there, and whose message is not known."""

    def put(self, live: Live, *, ours: bool) -> None:
        self._lives[live.run] = live
        if ours:
            self._ours[live.run] = None

    def are_known(self, run: str) -> bool:
        """Tells whether all drafts of a run are known here or in the log."""
        return run in self._ours

    def doubt(self, run: str) -> None:
        """Notes that a draft of a run may be there that neither this process nor the log knows."""
        self._ours.pop(run, None)
        self._doubted[run] = None

    def is_doubtful(self, run: str) -> bool:
        """Tells whether such a draft may be there."""
        return run in self._doubted

    def remove(self, live: Live) -> None:
        if self._lives.get(live.run) is live:
            del self._lives[live.run]

    async def take(self, run: str) -> Draft | None:
        """Ends the draft of a run. Returns it, now the caller's; None if nothing was shown."""
        live = self._lives.get(run)
        if live is None:
            return None
        live.taken = True
        self.hand_over(live)
        live.close()
        with anyio.move_on_after(HANDOVER_SECONDS):
            await live.released.wait()
        self.remove(live)
        return live.draft if live.shown is not None else None

    def hand_over(self, live: Live) -> None:
        """Has `said` tell it."""
        self._taken[live.run] = live

    def said(self, run: str) -> None:
        """Notes that the answer of a run stands there, or will not."""
        if live := self._taken.pop(run, None):
            live.said.set()


class Drafts(Actor[ChatRouted]):
    """Shows drafts at the platform's pace: the first at once, then the latest, the same never twice."""

    kind = KIND
    concurrency = 1000
    prompt = True
    deadline_seconds = LONGEST_SECONDS + 3600

    def __init__(self, outlet: Outlet, lives: Lives, system: System) -> None:
        self.name = f"drafts-{outlet.account}"  # type: ignore[misc]  # one for each account
        self.only = (outlet.account,)  # type: ignore[misc]
        self._outlet = outlet
        self._lives = lives
        self._system = system

    async def handle(self, event: ChatRouted, ctx: Context) -> None:
        if not event.run_id or not event.thread or event.target is None:
            return
        self._outlet.begin()
        live = Live(ctx.record.aggregate.id, event.run_id, event.target)
        doubtful = self._outlet.is_older(ctx.record.seq)
        self._lives.put(
            live, ours=not doubtful
        )  # before the look at the log: an answer that is planned after it finds the draft
        try:
            state = await ctx.load(self._outlet.chats)
            if event.run_id not in state.plans:
                since = datetime.fromisoformat(ctx.record.at) - timedelta(seconds=FIND_SECONDS)
                await self._adopt(live, state, since, doubtful=doubtful)
                with ungrouped(), anyio.move_on_after(LONGEST_SECONDS):
                    await self._accompany(live, event.thread)
            else:
                live.released.set()
                await self._until_said(live)
                await sign(self._outlet, live.target, False)
        finally:
            live.released.set()
            self._lives.remove(live)

    async def _until_said(self, live: Live) -> None:
        """Waits until an answer that was planned before its draft began stands there, or will not."""
        self._lives.hand_over(live)
        try:
            plan = (await self._outlet.chats.load(live.conversation)).plans.get(live.run)
            if plan is not None and plan.open and not plan.messages:
                with anyio.move_on_after(HANDOVER_SECONDS):
                    await live.said.wait()
        finally:
            self._lives.said(live.run)

    async def _adopt(self, live: Live, state: Conversation, since: datetime, *, doubtful: bool) -> None:
        """Goes on with the draft that another process has begun, if there is one."""
        live.recorded = message = state.drafts.get(live.run, "")
        if not message and doubtful:
            await self._wait_for_earlier(live)  # a platform that is asked by posting again shows it where it stands now
            message = "" if live.closing.is_set() else await self._find(live, since) or ""
        if message:
            live.draft, live.shown = self._outlet.platform.draft(live.target, live.key, message), ("", "")
            await self._record(live)

    async def _find(self, live: Live, since: datetime) -> str | None:
        """Returns the message of a draft that may be there; "" if there is none. None if nobody knows: the platform
        does not permit to look, or the draft was closed before it could tell."""
        platform = self._outlet.platform
        failures = 0
        while platform.traits.answers_can_be_found and not live.closing.is_set():
            await self._outlet.turns.call(person(live.target))
            try:
                return await self._outlet.call(live.target, lambda: platform.find(live.target, live.key, since)) or ""
            except (Unavailable, CredentialsDead) as error:
                log.info("draft not looked for yet", account=self._outlet.account, reason=str(error))
                pause = max(_pause(failures), self._outlet.turns.pause(live.target.chat))
            except ERRORS as error:
                log.info("draft not looked for", account=self._outlet.account, reason=str(error))
                return None
            with anyio.move_on_after(pause):
                await live.closing.wait()
            failures += 1
        return None

    async def _accompany(self, live: Live, thread: str) -> None:
        """Shows the run until its answer takes over, or until it has ended and no answer came."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work, live)
            tasks.start_soon(self._follow, live, thread)
            tasks.start_soon(self._show_again, live)
            await self._show(live)
            if live.taken:
                live.released.set()
                with anyio.move_on_after(HANDOVER_SECONDS):
                    await live.said.wait()
            tasks.cancel_scope.cancel()
        if not live.taken and live.shown is not None:
            await self._settle(live)

    async def _show_again(self, live: Live) -> None:
        while seconds := self._outlet.platform.traits.buttonless_seconds:
            await anyio.sleep(seconds)
            live.show_again()

    # ── following ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _follow(self, live: Live, thread: str) -> None:
        """Follows the run to its end, then waits a while for its answer."""
        while True:
            try:
                await self._listen(live, thread)
                break
            except Unavailable as error:
                log.info("run not followed for now", account=self._outlet.account, reason=str(error))
                await anyio.sleep(PAUSES[0])
        live.over = True
        with anyio.move_on_after(GRACE_SECONDS):
            await live.closing.wait()
        live.close()

    async def _listen(self, live: Live, thread: str) -> None:
        async with self._system.followers.follow(thread) as follower:
            await follower.hear(live.run)
            state = await self._system.threads.load(thread)
            seq = state.seq
            if live.run not in state.runs:
                live.close()  # it is requested before it is routed, so it was removed, or its thread was erased
                return
            progress = Progress(live.run, state)
            begun = False
            async with aclosing(follower.since(seq, lambda: [progress.run])) as batches:
                while not progress.is_over():
                    if not begun and progress.run.status == "running":
                        begun = True
                        follower.recall(live.run)  # what was said before it was heard
                    live.say(progress.text, progress.status)
                    progress.take(await anext(batches))

    async def _work(self, live: Live) -> None:
        """Shows that somebody is at work, until it is cancelled: when the answer stands there."""
        try:
            while True:
                await sign(self._outlet, live.target, True)
                await anyio.sleep(WORKING_SECONDS)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(TIMEOUT):
                await sign(self._outlet, live.target, False)

    # ── showing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _show(self, live: Live) -> None:
        """Shows what there is to show, until the draft is closed. Leaves no call behind."""
        failures = 0
        while not live.closing.is_set():
            await live.changed.wait()
            live.changed = anyio.Event()
            if live.over or not (live.text or live.status):
                continue
            if (live.text, live.status) == live.shown and not live.anew:
                continue
            if live.shown is None:
                await self._wait_for_earlier(live)
                await self._gather_words(live)
            with live.waits():
                await self._outlet.turns.edit(live.target.chat, live.group, live.run, person(live.target))
            if live.closing.is_set() or live.over:
                continue
            try:
                await self._put(live, live.text, live.status)
                failures = 0
                continue
            except RateLimited:
                pass  # its pause is known
            except FateUnknown:
                if not await self._is_known(live):
                    break
            except Unavailable as error:
                log.info("draft not shown for now", account=self._outlet.account, reason=str(error))
            except ERRORS as error:
                log.info("draft given up", account=self._outlet.account, reason=str(error))
                break
            with anyio.move_on_after(_pause(failures)):
                await live.closing.wait()
            failures += 1
            live.changed.set()
        await live.closing.wait()

    async def _gather_words(self, live: Live) -> None:
        """Waits for some words where the first ones stand alone until the platform permits an edit."""
        if live.group:
            with live.waits():
                await anyio.sleep(self._outlet.platform.traits.pace.group_edit_seconds / WORDS)

    async def _wait_for_earlier(self, live: Live) -> None:
        """Waits until what comes before the answer in the conversation is said, or the draft is closed."""
        with anyio.move_on_after(LONGEST_TURN_SECONDS):
            while not live.closing.is_set() and not await self._is_next(live):
                with anyio.move_on_after(TURN_SECONDS):
                    await live.closing.wait()

    async def _is_next(self, live: Live) -> bool:
        try:
            state = await self._outlet.chats.load(live.conversation)
        except Unavailable:
            return False
        return next(iter(state.runs), live.run) == live.run and not any(plan.open for plan in state.plans.values())

    async def _is_known(self, live: Live) -> bool:
        """After a call of unknown fate: tells whether there is one message at most, and which."""
        assert live.draft is not None
        if live.draft.message:
            return True
        self._lives.doubt(live.run)
        message = await self._find(live, datetime.now().astimezone() - timedelta(seconds=FIND_SECONDS))
        if message:
            live.draft, live.shown = self._outlet.platform.draft(live.target, live.key, message), ("", "")
            await self._record(live)
        return message is not None

    async def _put(self, live: Live, text: str, status: str) -> None:
        outlet = self._outlet
        draft = live.draft = live.draft or outlet.platform.draft(live.target, live.key)
        live.anew = False
        await outlet.call(live.target, lambda: draft.show(text, status))
        outlet.turns.edited(live.target.chat, live.run)
        live.shown = (text, status)
        await self._record(live)

    async def _record(self, live: Live) -> None:
        """Records the message of the draft as soon as it has one."""
        message = live.draft.message if live.draft else ""
        if message and message != live.recorded:
            await self._outlet.drafted(live.conversation, live.target, live.run, message)
            live.recorded = message

    async def _settle(self, live: Live) -> None:
        """Leaves the text alone where no answer came, or nothing if there is none. Begins no message, which an answer
        that comes later would not know."""
        draft, outlet = live.draft, self._outlet
        if draft is None or live.shown == (live.text, "") or (live.text and not draft.message):
            return
        await outlet.turns.edit(live.target.chat, live.group, live.run, person(live.target))
        with suppress(*ERRORS):
            if live.text:
                await outlet.call(live.target, lambda: draft.show(live.text, ""))
            else:
                await outlet.call(live.target, draft.drop)


def _pause(failures: int) -> float:
    return PAUSES[min(failures, len(PAUSES) - 1)]
