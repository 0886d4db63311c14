"""Delivery: says what is planned, one part after another, each once as far as anybody can know.

Theory of operation
-------------------
A plan is executed from the first part on that the log does not know as sent. `delivery.attempted` goes before each
part, `delivery.sent` comes after it. If the process dies between the two, or no answer comes, nobody knows whether the
platform has the part: its fate is in doubt. Where the platform can be asked (`Traits.answers_can_be_found`), the part
is looked for by its key, and sent if it is not there. Elsewhere a text is sent again with a mark, `DOUBLES` times in
all: a person who reads it twice has lost nothing. A file is not: its plan ends as of unknown fate. People are told of
such an end, and have what is missing sent by a further plan (`DeliveryPlanned.first`). What changes a
message that is known (an edit, a draft that becomes the answer), and replies of the system itself, may simply be done
again.

Files that one message can carry are sent by one call (`Bundling`): `delivery.attempted` names the last of them, and
they are sent, refused or in doubt together. Where one of them is refused, each goes alone.

In one process, the fate of a call is known unless it says otherwise (`FateUnknown`): that is kept in `Execution`, so a
part that was sent is recorded later if the log is out of reach, and one that was refused is not looked for.

A wait is short, then the handler sleeps, or long, then a timer calls it again: no slot is held for a platform's pause.
While the account's credentials are dead, the handler sleeps, too: with new ones the connection is made anew, and what
was at work is taken up at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, cast

import anyio
import msgspec
import structlog

from actors.delivery import files
from actors.delivery.drafts import FIND_SECONDS, Lives
from actors.delivery.files import Unsendable
from actors.delivery.job import Ended, Execution, Job, Way
from actors.delivery.long import in_a_file, is_long
from actors.delivery.outlet import ERRORS, FILE_SECONDS, Outlet, person
from actors.delivery.pacing import PATIENCE_SECONDS, Later, UntilConnected
from actors.delivery.plain import plain
from core.actor import Actor, Context
from core.chat.facts import (
    FAILED_NOTICE,
    KIND,
    SEND_AGAIN,
    Artifact,
    DeliveryAttempted,
    DeliveryDrafted,
    DeliveryFailed,
    DeliveryPlanned,
    DeliverySent,
)
from core.chat.port import (
    DRAFT,
    Bundling,
    ChatGone,
    Content,
    CredentialsDead,
    Draft,
    FateUnknown,
    File,
    RateLimited,
    Rejected,
    Whispering,
)
from core.chat.state import Conversation, Plan
from core.errors import Unavailable
from core.events import Aggregate

log = structlog.get_logger("sika.delivery")

CREDENTIALS_SECONDS = 60.0
"""Seconds before a plan is tried again whose account has no valid credentials."""
DOUBTS = 6
"""Calls of unknown fate after which a part is given up, although the platform does not have it when it is asked."""
DOUBLES = 3
"""The same where the platform cannot be asked: a text is there so often at most, but for deaths of the process."""
AGAIN = "_(Perhaps for the second time: the platform did not say whether this message had arrived.)_"
DEFECTS = 3
"""Failures of our own code at a plan after which it is given up."""
LONGEST_SECONDS = 24 * 3600.0
"""Time for which a platform may be out of reach, or take nothing, before a plan is given up: those after it wait as
long.
"""
TURN_SECONDS = 600.0
"""Time after which a handler leaves the rest to the next."""
GROWN = ("answer", "question")
"""Purposes of plans that end a run, whose answer may have grown in a draft."""
IN_THREAD = 2000
"""Characters from which on splitting a text would hold up other conversations."""
TIMER = "delivery"
NOT_SENT = "📎 `{name}` was not sent: {reason}."
UNKNOWN = (
    "⚠️ The platform did not say whether all of the answer before this message has arrived. `/again` sends what may be "
    "missing once more."
)
REFUSED = "⚠️ The platform did not take a message, or a part of it."
LINKED = "📎 [{name}]({link}) ({reason})"

Link = Callable[[DeliveryPlanned, Artifact], str | None]
"""Returns an address at which the person can get an artifact; None if there is none."""


class Delivery(Actor[DeliveryPlanned]):
    """Executes the plans of an account's conversations, in order; replies of the system itself overtake answers.

    Guarantees: each part is sent once, or again with a mark, or its plan ends as of unknown fate. The texts come
    before the files, and if a text fails, no file is sent. A file that cannot be sent is named instead. The person
    is told of an answer that failed. A plan that fails does not hold up the next, but while a platform is out of
    reach (or credentials are dead) plans wait, up to `LONGEST_SECONDS`.
    """

    kind = KIND
    concurrency = 1000
    prompt = True
    deadline_seconds = 3600.0

    def __init__(self, outlet: Outlet, lives: Lives, home: Path, passing: Path, link: Link) -> None:
        self.name = f"delivery-{outlet.account}"  # type: ignore[misc]  # one for each account
        self.only = (outlet.account,)  # type: ignore[misc]
        self._outlet = outlet
        self._platform = outlet.platform
        self._lives = lives
        self._home = home
        self._passing = passing
        self._link = link
        self._busy: dict[str, bool] = {}
        """Conversations at work, and whether there is more to do in them."""
        self._own: dict[tuple[str, str], Execution] = {}
        """By conversation and plan."""

    async def handle(self, event: DeliveryPlanned, ctx: Context) -> None:
        await self._deliver(ctx.record.aggregate, ctx)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        await self._deliver(aggregate, ctx)

    async def given_up(self, aggregate: Aggregate, ctx: Context) -> None:
        """Ends the plan that was at work: its person is told, and those after it go on."""
        state = await self._outlet.chats.load(aggregate.id)
        if (plan_id := _next(state)) is not None:
            end = Ended("unknown", "its delivery was given up")
            await self._fail(aggregate.id, plan_id, len(state.plans[plan_id].messages), end)
            await ctx.wake_at(datetime.now(UTC), TIMER, aggregate)

    async def _deliver(self, conversation: Aggregate, ctx: Context) -> None:
        """Executes the open plans. A call while another one is at work in the conversation returns at once: the other's
        wake-up stays in the queue until all is done.
        """
        self._outlet.begin()
        if conversation.id in self._busy:
            self._busy[conversation.id] = True
            return
        self._busy[conversation.id] = True
        until = anyio.current_time() + TURN_SECONDS
        try:
            while self._busy[conversation.id]:
                self._busy[conversation.id] = False
                if (pause := await self._execute_all(conversation.id, until)) is not None:
                    await ctx.wake_at(datetime.now(UTC) + timedelta(seconds=pause), TIMER, conversation)
                    return
        finally:
            del self._busy[conversation.id]

    async def _execute_all(self, conversation: str, until: float) -> float | None:
        """Executes the open plans. Returns the seconds after which to go on; None if all is done."""
        while True:
            plan_id = _next(await self._outlet.chats.load(conversation))
            if plan_id is None:
                return None
            if (pause := await self._execute(conversation, plan_id, until)) is not None:
                return pause

    async def _execute(self, conversation: str, plan_id: str, until: float) -> float | None:
        """Executes a plan. Returns as `_execute_all` does."""
        own = self._own.setdefault((conversation, plan_id), Execution())
        try:
            return await self._execute_on(conversation, plan_id, own, until)
        finally:
            own.close()

    async def _execute_on(self, conversation: str, plan_id: str, own: Execution, until: float) -> float | None:
        while True:
            state = await self._outlet.chats.load(conversation)
            plan = state.plans.get(plan_id)
            if plan is None or not plan.open or plan.messages:
                self._lives.said(plan_id)
            if plan is None or not plan.open:
                del self._own[conversation, plan_id]
                return None
            if anyio.current_time() > until:
                return 0.0
            pause = await self._step(conversation, plan_id, plan, own, state)
            if pause > PATIENCE_SECONDS:
                return pause
            await anyio.sleep(pause)

    async def _step(self, conversation: str, plan_id: str, plan: Plan, own: Execution, state: Conversation) -> float:
        """Says the next part, or ends the plan. Returns the seconds until the next step. Raises `Unavailable` if the
        log is out of reach.
        """
        part = len(plan.messages)
        try:
            job = await self._job(conversation, plan_id, plan, own)
            if not part and not own.sent and job.event.unless_answered and job.event.unless_answered not in state.runs:
                own.sent = {part: await self._overtaken(job)}
            if job.event.purpose == "notice" and _was_not_sent(state.plans.get(job.event.replaces)):
                raise Ended("refused", "what it changes was not sent", silent=True)
            if part not in own.sent:
                own.sent = dict(enumerate(await self._say(job, state), part))
            for message in dict.fromkeys(own.sent.values()):
                await self._outlet.note_topic(job.event.target, message)
            facts = [
                DeliverySent(plan=plan_id, part=number, parts=job.parts, message=message)
                for number, message in own.sent.items()
            ]
            await self._outlet.record(conversation, plan_id, *facts)
        except UntilConnected as pause:
            await anyio.sleep(pause.seconds)
            return 0.0
        except Later as later:
            return later.seconds
        except Ended as end:
            await self._fail(conversation, plan_id, part, end)
            return 0.0
        except Unavailable:
            raise
        except Exception as error:
            own.defects += 1
            log.exception("plan failed", account=self._outlet.account, plan=plan_id)
            if own.defects < DEFECTS:
                return own.pause()
            await self._fail(conversation, plan_id, part, Ended("unknown", f"a defect: {type(error).__name__}"))
            return 0.0
        own.sent.clear()
        own.failures, own.plain = 0, False
        return 0.0

    async def _job(self, conversation: str, plan_id: str, plan: Plan, own: Execution) -> Job:
        """Reads a plan. Raises `Ended` for one that cannot be executed."""
        record = await self._outlet.planned(conversation, plan)
        if record is None or not isinstance(record.event, DeliveryPlanned):
            raise Ended("refused", "the plan is not in the log any more")
        event = record.event
        texts = own.texts = own.texts if own.texts is not None else await self._split(event)
        if is_long(texts, event.text):
            texts, event = in_a_file(texts, event, self._platform.parts)
        if event.first:
            artifacts = event.artifacts[max(0, event.first - len(texts)) :]
            texts, event = texts[event.first :], msgspec.structs.replace(event, artifacts=artifacts)
        job = Job(conversation, plan_id, plan, event, datetime.fromisoformat(record.at), texts, own)
        if plan.messages and job.parts != plan.parts:
            raise Ended("unknown", f"there are {job.parts} parts, and there were {plan.parts} when the first was sent")
        if not texts and not plan.messages and (draft := await self._draft_of(job)) is not None:
            await self._drop(job, draft)
        if not job.parts:
            raise Ended("refused", "there is nothing to say", silent=True)
        return job

    async def _split(self, event: DeliveryPlanned) -> Sequence[str]:
        """Returns the text of a plan in parts. Raises `Ended`."""
        try:
            if len(event.text) < IN_THREAD:
                texts = self._platform.parts(event.text)
            else:
                texts = await asyncio.to_thread(self._platform.parts, event.text)
        except Exception as error:
            log.exception("text cannot be split", account=self._outlet.account, plan=event.plan)
            raise Ended("refused", f"the text cannot be split: {type(error).__name__}") from error
        return list(texts) or ([""] if event.buttons else [])

    async def _fail(self, conversation: str, plan_id: str, part: int, end: Ended) -> None:
        log.warning(
            "delivery failed", account=self._outlet.account, plan=plan_id, part=part, fate=end.fate, reason=end.reason
        )
        fact = DeliveryFailed(plan=plan_id, part=part, fate=end.fate, reason=end.reason)
        await self._outlet.record(conversation, plan_id, fact, *await self._notices(conversation, plan_id, end))

    async def _notices(self, conversation: str, plan_id: str, end: Ended) -> Sequence[DeliveryPlanned]:
        """Returns the notice about a plan that failed; None for one that is such a notice itself."""
        plan = (await self._outlet.chats.load(conversation)).plans.get(plan_id)
        record = await self._outlet.planned(conversation, plan) if plan else None
        if record is None or not isinstance(record.event, DeliveryPlanned) or end.fate == "gone" or end.silent:
            return ()
        if (event := record.event).purpose == "notice":
            return ()
        text = UNKNOWN if end.fate == "unknown" else REFUSED
        target, thread, user = event.target, event.thread, event.user
        notice = DeliveryPlanned(
            plan=f"{plan_id}{FAILED_NOTICE}",
            purpose="notice",
            target=target,
            text=text,
            thread=thread,
            user=user,
            buttons=(SEND_AGAIN,) if end.fate == "unknown" else (),
        )
        return [notice]

    # ── one part ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _say(self, job: Job, state: Conversation) -> Sequence[str]:
        """Says the next part, or several. Returns the id of the message of each. Raises `Later`, `Ended`, `Unavailable`
        (of the log)."""
        way = await self._way(job, state)
        findable = self._is_findable(job)
        if self._is_in_doubt(job) and (findable or not (way.repeatable or way.marked)):
            message = await self._look(job, job.key)
            if message is not None:
                return [message] * way.parts
            job.own.unsent.add(job.part)
        turns = self._outlet.turns
        target = job.event.target
        if way.beside:
            await turns.call(person(target))
        else:
            await turns.send(target.chat, job.group, person(target), way.parts)
        if way.posts:
            job.own.unsent.add(job.part)  # if what follows is stored and we do not hear of it
            attempt = DeliveryAttempted(plan=job.id, part=job.part + way.parts - 1)
            await self._outlet.record(job.conversation, job.id, *self._unrecorded_draft(job), attempt)
        job.own.unsent.discard(job.part)
        try:
            messages = await self._outlet.call(job.event.target, way.call, way.seconds)
        except FateUnknown as error:
            again = way.repeatable or findable or (way.marked and job.own.doubts.get(job.part, 0) + 1 < DOUBLES)
            raise self._doubted(job, error, again=again) from error
        except ERRORS as error:
            job.own.unsent.add(job.part)
            if way.posts:
                fact = DeliveryAttempted(plan=job.id, part=job.part, withdrawn=True)
                await self._outlet.record(job.conversation, job.id, fact)
            raise self._refused(job, error, way.parts) from error
        if not way.beside:
            turns.sent(job.event.target.chat)
        return [messages] if isinstance(messages, str) else messages

    async def _overtaken(self, job: Job) -> str:
        """Returns the message of a notice that is not true any more, if an attempt has brought it there: it is changed.
        Raises `Ended` if it is not there, or nobody can know.
        """
        message = await self._look(job, job.key) if self._is_in_doubt(job) else None
        if message is None:
            raise Ended("refused", "it is not true any more", silent=True)
        return message

    def _is_findable(self, job: Job) -> bool:
        return self._platform.traits.answers_can_be_found and not job.own.unfindable

    def _is_in_doubt(self, job: Job) -> bool:
        """Tells whether the platform may have the part already."""
        return job.part not in job.own.unsent and job.plan.attempted >= job.part

    async def _look(self, job: Job, key: str) -> str | None:
        """Looks for a message by its key. Raises `Ended` where that is impossible."""
        if not self._is_findable(job):
            raise Ended("unknown", "the process ended while the part was sent, or no answer came")
        target, since = job.event.target, job.at - timedelta(seconds=FIND_SECONDS)
        if wait := self._outlet.turns.pause(target.chat):
            raise Later(wait)
        await self._outlet.turns.call(person(target))
        try:
            return await self._outlet.call(target, lambda: self._platform.find(target, key, since))
        except FateUnknown as error:  # nor can the platform tell
            raise self._doubted(job, error) from error
        except (Unavailable, CredentialsDead) as error:
            raise self._postponed(job, error, "unknown") from error
        except ChatGone as error:
            raise Ended("gone", str(error)) from error
        except Rejected as error:
            job.own.unfindable = True
            raise Later(0.0) from error

    def _doubted(self, job: Job, error: FateUnknown, *, again: bool = True) -> Exception:
        """Returns what follows from a call of unknown fate. `again`: the fate can be found out, or does not matter."""
        job.own.doubts[job.part] = doubts = job.own.doubts.get(job.part, 0) + 1
        return Later(job.own.pause()) if again and doubts < DOUBTS else Ended("unknown", str(error))

    def _refused(self, job: Job, error: Exception, parts: int) -> Exception:
        """Returns what follows from a call for some parts that certainly had no effect."""
        changes = job.part == 0 and not job.own.anew and (job.own.draft is not None or bool(job.event.replaces))
        match error:
            case ChatGone() if not changes:
                return Ended("gone", str(error))
            case Rejected() if job.part < len(job.texts) and not job.own.plain:
                job.own.plain = True
                return Later(0.0)
            case ChatGone() | Rejected() if changes:
                job.own.anew, job.own.plain = True, False
                return Later(0.0)
            case Rejected() if parts > 1:
                job.own.alone = job.part + parts
                return Later(0.0)
            case Rejected() if isinstance(job.own.files.get(job.part), Path):
                job.own.files[job.part] = self._instead(job, job.part, Unsendable(_refusal_of(job)))
                return Later(0.0)
            case Rejected():
                return Ended("refused", str(error))
        return self._postponed(job, error, "refused")

    def _postponed(self, job: Job, error: Exception, fate: Literal["refused", "unknown"]) -> Exception:
        """Returns what follows while the platform is out of reach, or takes nothing from the account."""
        if datetime.now(UTC) - job.at > timedelta(seconds=LONGEST_SECONDS):
            return Ended(fate, str(error))
        match error:
            case RateLimited():
                return Later(error.seconds)
            case CredentialsDead():
                return UntilConnected(CREDENTIALS_SECONDS)
        return Later(job.own.pause())

    # ── ways ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _way(self, job: Job, state: Conversation) -> Way:
        """Returns the way to say the next part."""
        target, key = job.event.target, job.key
        if job.part >= len(job.texts):
            return await self._file_way(job)
        content = self._content(job)
        if job.part == 0 and not job.own.anew:
            if message := self._replaced(job, state):
                return Way(lambda: self._edit(job, message, content), repeatable=True, posts=False)
            if (draft := await self._draft_of(job)) is not None and (draft.message or not self._is_in_doubt(job)):
                return Way(lambda: draft.finish(content, key), repeatable=bool(draft.message), marked=True)
        if job.event.private and self._platform.traits.whispers:
            return Way(lambda: self._whisper(job, content), repeatable=True, beside=True)
        if job.event.purpose == "notice":
            return Way(lambda: self._platform.post(target, content, key), repeatable=True)
        is_drafted = job.part == 0 and self._lives.is_doubtful(job.id)
        if (self._is_in_doubt(job) or is_drafted) and not self._is_findable(job):
            return Way(partial(self._post_again, job, content), marked=True)
        return Way(lambda: self._platform.post(target, content, key), marked=True)

    async def _whisper(self, job: Job, content: Content) -> str:
        """Says something to the person alone; to all where that is impossible."""
        try:
            await cast(Whispering, self._platform).whisper(job.event.target, content.text)
        except Rejected:
            target = job.event.target
            await self._outlet.turns.send(target.chat, job.group, person(target))
            message = await self._platform.post(target, content, job.key)
            self._outlet.turns.sent(target.chat)
            return message
        return ""

    async def _post_again(self, job: Job, content: Content) -> str:
        """Posts a text that may be there already, with the mark in a message of its own where both do not fit."""
        target, marked = job.event.target, f"{AGAIN}\n\n{content.text}"
        if len(self._platform.parts(marked)) == 1:
            return await self._platform.post(target, msgspec.structs.replace(content, text=marked), job.key)
        await self._platform.post(target, Content(AGAIN), f"{job.key}/again")
        self._outlet.turns.sent(target.chat)
        await self._outlet.turns.send(target.chat, job.group, person(target))
        return await self._platform.post(target, content, job.key)

    def _content(self, job: Job) -> Content:
        text = job.texts[job.part]
        last = job.part == len(job.texts) - 1
        return Content(plain(text) if job.own.plain else text, "", job.event.buttons if last else (), job.id)

    def _replaced(self, job: Job, state: Conversation) -> str:
        """Returns the message that the plan changes: the last of the plan that it replaces."""
        replaced = state.plans.get(job.event.replaces)
        if replaced is None or not replaced.messages or not self._platform.traits.edits_are_free:
            return ""
        return replaced.messages[-1]

    async def _edit(self, job: Job, message: str, content: Content) -> str:
        await self._platform.edit(job.event.target, message, content)
        return message

    async def _draft_of(self, job: Job) -> Draft | None:
        """Returns the draft in which the answer has grown, now ours; None if there is none."""
        own, key = job.own, f"{job.id}{DRAFT}"
        if not own.draft_known and job.event.purpose in GROWN and not job.event.replaces:
            draft = await self._lives.take(job.id)
            message, findable = job.plan.draft, self._platform.traits.answers_can_be_found
            unknown = not message and not self._lives.are_known(job.id) and not self._is_in_doubt(job)
            if draft is None and unknown and findable:
                message = await self._begun_elsewhere(job, key)
            if draft is None and message:
                draft = self._platform.draft(job.event.target, key, message)
            own.draft = draft
        own.draft_known = True
        return own.draft

    @staticmethod
    def _unrecorded_draft(job: Job) -> Sequence[DeliveryDrafted]:
        """Returns the fact of the draft that becomes the answer, if the log does not have it. So a part that was
        attempted without such a fact was posted. To look for its draft could begin one."""
        draft = job.own.draft if job.part == 0 and not job.own.anew else None
        if draft is None or draft.message in ("", job.plan.draft):
            return ()
        return (DeliveryDrafted(plan=job.id, message=draft.message),)

    async def _begun_elsewhere(self, job: Job, key: str) -> str:
        """Returns the message of a draft that a process began and did not record; "" if there is none, or nobody knows:
        the answer does not depend on it."""
        try:
            return await self._look(job, key) or ""
        except Ended as end:
            if end.fate == "gone":
                raise
            return ""

    async def _drop(self, job: Job, draft: Draft) -> None:
        """Takes back a draft that no text replaces."""
        job.own.draft = None
        try:
            await self._outlet.call(job.event.target, draft.drop)
        except ERRORS as error:
            log.info("draft not taken back", account=self._outlet.account, reason=str(error))

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _file_way(self, job: Job) -> Way:
        target, key = job.event.target, job.key
        if len(bundle := await self._bundle(job)) > 1:
            return Way(partial(self._upload_bundle, job, bundle), len(bundle), seconds=FILE_SECONDS)
        file = await self._file(job, job.part)
        if isinstance(file, str):
            return Way(lambda: self._platform.post(target, Content(file, plan=job.id), key))
        return Way(
            lambda: self._platform.upload(target, file, _artifact(job, job.part).name, key), seconds=FILE_SECONDS
        )

    async def _upload_bundle(self, job: Job, bundle: Sequence[File]) -> tuple[str, ...]:
        platform = cast(Bundling, self._platform)
        return tuple(await platform.upload_bundle(job.event.target, bundle, job.key))

    async def _bundle(self, job: Job) -> Sequence[File]:
        """Returns the files that the next message carries, from the next part on. What was attempted together stays
        together, so that it is known again. Raises `Ended` if it cannot."""
        if not self._platform.traits.bundles or job.part < job.own.alone:
            return []
        attempted, limit = job.plan.attempted + 1, self._platform.traits.largest_file
        together, size = list[File](), 0
        for part in range(job.part, min(job.parts, attempted) if attempted > job.part else job.parts):
            path = await self._file(job, part)
            about = (await anyio.Path(path).stat()).st_size if isinstance(path, Path) else 0
            if isinstance(path, str) or (together and size + about > limit):
                break
            together.append(File(path, _artifact(job, part).name, about))
            size += about
        if attempted > job.part:
            if len(together) < attempted - job.part > 1:
                raise Ended("unknown", "a file of a message that may be there cannot be read any more")
            return together
        return together[: cast(Bundling, self._platform).bundle(together)] if together else []

    async def _file(self, job: Job, part: int) -> Path | str:
        """Returns a copy of the artifact of a part, or the text instead of it."""
        if part not in job.own.files:
            job.own.files[part] = await self._copy(job, part)
        return job.own.files[part]

    async def _copy(self, job: Job, part: int) -> Path | str:
        if job.own.folder is None:
            job.own.folder = tempfile.TemporaryDirectory(dir=self._passing)
        path, artifact = Path(job.own.folder.name) / str(part), _artifact(job, part)
        limit = self._platform.traits.largest_file
        if not artifact.path:
            await anyio.Path(path).write_text(job.event.text)
            return path
        problem = await asyncio.to_thread(files.copy, self._home, job.event, artifact, limit, path)
        return path if problem is None else self._instead(job, part, problem)

    def _instead(self, job: Job, part: int, problem: Unsendable) -> str:
        """Returns the text about a file that is not sent."""
        artifact = _artifact(job, part)
        name = artifact.name.replace("`", "'").replace("[", "(").replace("]", ")")
        if problem.too_large and (link := self._link(job.event, artifact)):
            return LINKED.format(name=name, link=link, reason=problem.reason)
        return NOT_SENT.format(name=name, reason=problem.reason)


def _next(state: Conversation) -> str | None:
    """Returns the open plan that is executed next."""
    open_ = {plan_id: plan for plan_id, plan in state.plans.items() if plan.open}
    begun = (plan_id for plan_id, plan in open_.items() if plan.messages or plan.attempted >= 0)
    overtaking = (plan_id for plan_id, plan in open_.items() if plan.overtakes)
    return next(chain(begun, overtaking, open_), None)


def _was_not_sent(plan: Plan | None) -> bool:
    return plan is not None and bool(plan.failed) and not plan.messages


def _artifact(job: Job, part: int) -> Artifact:
    return job.event.artifacts[part - len(job.texts)]


def _refusal_of(job: Job) -> str:
    """Returns why a platform does not take the file of a part."""
    file = job.own.files[job.part]
    empty = isinstance(file, Path) and not file.stat().st_size
    return "it is empty" if empty else "the platform does not take it"
