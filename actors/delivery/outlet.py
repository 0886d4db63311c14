"""Shared parts of the actors of one account: its platform, the pace of its calls, its conversations and their facts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import structlog

from actors.delivery.pacing import Turns
from core.chat.facts import KIND, DeliveryDrafted, DeliveryPlanned, DeliverySent, Target, TopicNoted, sent_message
from core.chat.port import ChatGone, CredentialsDead, FateUnknown, Platform, RateLimited, Rejected
from core.chat.state import Chats, Conversation, Plan
from core.errors import Conflict, Unavailable
from core.events import Aggregate, Event, Record

log = structlog.get_logger("sika.delivery")

T = TypeVar("T")

CALL_SECONDS = 60.0
"""Timeout of a call that shows text."""
FILE_SECONDS = 300.0
"""Timeout of a call that carries a file."""
ERRORS = (Unavailable, ChatGone, Rejected, CredentialsDead)
"""Errors of `Outlet.call`; `RateLimited` and `FateUnknown` are kinds of `Unavailable`."""


def person(target: Target) -> str:
    """Returns for whom what is shown there is: the person has a share of the account's calls."""
    return target.sender or target.chat


class Outlet:
    """The author of its facts is the account, not an actor: an actor is not woken again by an event that it answered,
    and one fact of a delivery is not yet the answer.
    """

    def __init__(self, account: str, platform: Platform, chats: Chats) -> None:
        self.account = account
        self.platform = platform
        self.log = chats.log
        self.chats = chats
        self.turns = Turns(platform.traits.pace)
        self._began: int | None = None

    def begin(self) -> None:
        """Notes the position of the log at the first event: what comes after it, no other process has worked on."""
        if self._began is None:
            self._began = self.log.position

    def is_older(self, seq: int) -> bool:
        """Tells whether an event may have been worked on by another process."""
        return seq <= (self._began or 0)

    async def call(self, target: Target, make: Callable[[], Awaitable[T]], seconds: float = CALL_SECONDS) -> T:
        """Makes a call whose turn it is. Raises one of `ERRORS`: `FateUnknown` also for a timeout and a defect. A pause
        that the platform asks for is noted.
        """
        try:
            async with asyncio.timeout(seconds):
                return await make()
        except RateLimited as error:
            self.turns.refused(target.chat, error.seconds)
            raise
        except ERRORS:
            raise
        except TimeoutError as error:
            raise FateUnknown(f"no answer within {seconds:g} s") from error
        except Exception as error:
            log.exception("defect of a platform", account=self.account)
            raise FateUnknown(f"{type(error).__name__} in the platform's code; see the log of the process") from error

    # ── facts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def planned(self, conversation: str, plan: Plan) -> Record | None:
        """Returns the event of a plan; None if it was erased."""
        async for record in self.log.read(Aggregate(KIND, conversation), after=plan.seq - 1, upto=plan.seq):
            if isinstance(record.event, DeliveryPlanned):
                return record
        return None

    async def record(self, conversation: str, plan: str, event: Event, *more: Event) -> None:
        """Appends a fact of an open plan, and further ones. A part that is known as sent is not recorded again."""

        def decide(state: Conversation) -> Sequence[Event]:
            known = state.plans.get(plan)
            repeated = known and isinstance(event, DeliverySent) and event.part != len(known.messages)
            return [event, *more] if known and known.open and not repeated else []

        state = await self.chats.load(conversation)
        cause = state.plans[plan].event if plan in state.plans else None
        await self.chats.decide(conversation, decide, actor=self.account, cause=cause)

    async def drafted(self, conversation: str, target: Target, run: str, message: str) -> None:
        """Records the message in which the answer of a run grows."""
        await self.note_topic(target, message)

        def decide(state: Conversation) -> Sequence[Event]:
            known = state.plans[run].draft if run in state.plans else state.drafts.get(run)
            return [] if known == message else [DeliveryDrafted(plan=run, message=message)]

        state = await self.chats.load(conversation)
        await self.chats.decide(conversation, decide, actor=self.account, cause=state.runs.get(run))

    async def note_topic(self, target: Target, message: str) -> None:
        """Records the topic of a message of ours, where replies to it are to go on there."""
        if not message or target.kind == "private" or not self.platform.traits.replies_are_topics:
            return
        noted = sent_message(self.account, target.chat, message)
        with suppress(Conflict):  # it was noted before
            await self.log.append(noted, [TopicNoted(topic=target.topic)], expected=0, actor=self.account)
