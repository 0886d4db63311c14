"""Runs for turns: a turn's thread, the run on it, and what became of the turn.

What became of a turn is written as `chat.routed` after its effects, which are the same when they are repeated: the ids
of threads, runs and plans derive from the message's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actors.chat import questions
from actors.chat.answers import plan_id
from actors.chat.buttons import planned, replacing
from actors.chat.call import Call
from actors.chat.files import LATE, FetchedFiles, Files
from actors.chat.place import Place
from actors.chat.questions import Question
from actors.chat.session import Setup, setup_of
from core.chat.facts import ASKED, FAILED_NOTICE, KIND, ChatBegun, ChatRouted, DeliveryPlanned
from core.chat.state import Chats, Conversation
from core.errors import Refused
from core.events import Event, Json, Origin, RunOrigin, RunRequested, Speaker
from core.ids import now
from core.lifecycle import TARGET
from core.log.store import EventLog
from core.runs.intake import Intake
from core.runs.share import asking
from core.thread import approvals
from core.thread.messages import SPEAKER
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads

ACTOR = "chat"
MOST_REASON = 500

# Texts.
QUEUED = "_I am still at work. I answer what you write now together, as soon as I am done._"
BEGUN = "_I was at work when you wrote; I answer now._"
UNSAID = "⚠️ An earlier answer may not have reached you as a whole. `/again` sends what may be missing once more."
UNTAKEN = "A command takes no files: send {names} once more, without it."
WHAT_FOR = "What shall I do with {names}?"
BUSY = "I am still at work. Write again when I have answered, or send `/stop`."
DECIDED = "That was decided already."


class Runs:
    """Requests runs for turns. `chats`: the conversations."""

    def __init__(self, chats: Chats, threads: Threads, intake: Intake, files: Files, log: EventLog) -> None:
        self._chats = chats
        self._threads = threads
        self._intake = intake
        self._files = files
        self._log = log

    async def run(
        self,
        call: Call,
        text: str,
        *,
        context: Mapping[str, Any] | None = None,
        kwargs: Json | None = None,
        outcome: str = "run",
        also: Sequence[DeliveryPlanned] = (),
    ) -> None:
        """Requests a run on a text and the files of a turn."""
        request = self.request(call, context or {})
        thread_id = await self.thread(call)
        taken = await self._files.take(call.turn, call.user, thread_id, call.config.uploads)
        run, says = call.id("run"), list(also)
        message = _message(run, text, taken, kwargs or {})
        if taken.problems:
            listed = "\n".join(f"- {problem}" for problem in taken.problems)
            says.append(call.says(f"I could not take every file:\n{listed}", "files"))
        state = await self._threads.load(thread_id)
        if run not in state.runs:
            mode, busy = call.settings.on_busy, any(state.runs.open())
            if busy and mode == "reject":
                return await self.end(call, "refused", call.says(BUSY, "busy"), reason="busy")
            plain = outcome == "run" and not context and not kwargs
            joined = state.active if mode == "steer" else None
            if plain and call.settings.gather_seconds:
                joined = _waiting(state, call) or joined
            spoken = _spoken(message, call)
            if mode != "interrupt" and await self._steered(call, thread_id, state, spoken, joined):
                await self._files.forget(call.turn)
                return await self.end(call, "steered", *says, thread=thread_id)
            if busy and mode != "interrupt":
                says += _notice(call, state)
            says += _unsaid(call)
            request = msgspec.structs.replace(
                request,
                input={"messages": [message]},
                multitask="interrupt" if mode == "interrupt" else "enqueue",
            )
            await self.begin(call, thread_id, request)
        await self._files.forget(call.turn)
        await self.end(call, outcome, *says, thread=thread_id, run=run, takes_files=True)

    async def ask(self, call: Call) -> None:
        """Asks what to do with files that came without words. They go with the next words of the person."""
        fetched = [file for message in call.turn.all for file in message.files or ()]
        problems = [f"- {file.name}: {file.error}" for file in fetched if file.error]
        problems += [f"- {a.name}: {LATE}" for m in call.turn.all if m.files is None for a in m.event.attachments]
        names = [_name(file.name) for file in fetched if not file.error]
        lines = ["I could not take every file:", *problems] if problems else []
        lines += ["", WHAT_FOR.format(names=_in_a_sentence(names))] if names else []
        await self.end(call, ASKED if names else "refused", call.says("\n".join(lines).strip()))

    def setup(self, call: Call) -> Setup:
        """Returns what the configuration says of runs for this person. Raises `NoAgent`."""
        return setup_of(call.config.channels, call.account, call.first.event.sender)

    def request(self, call: Call, context: Mapping[str, Any] = {}) -> RunRequested:
        """Returns the request of a run for a turn, without its input. Raises `NoAgent`."""
        setup = self.setup(call)
        about = {"user_id": call.user, "channel_user_id": call.first.event.sender}
        return RunRequested(
            config=setup.config,
            context={**setup.context, **context, **about},
            metadata={TARGET: msgspec.to_builtins(call.target)},
            origin=Origin(call.account, call.conversation, _speaker(call)),
            wanted=RunOrigin(KIND, call.conversation, call.first.key),
        )

    async def begin(self, call: Call, thread_id: str, request: RunRequested) -> None:
        """Requests the run of a turn, in the share of its writer: in a group all have one user."""
        with asking(call.writer):
            await self._intake.request_run(thread_id, call.id("run"), request, user=call.user, actor=ACTOR)

    async def _steered(self, call: Call, thread_id: str, state: ThreadState, message: Json, run: Run | None) -> bool:
        """Adds a message to a run that has not ended. Tells whether it went there, or to another one before."""
        identity = message["id"]
        if identity in state.places or any(s.get("id") == identity for r in state.runs.open() for s in r.steers):
            return True
        if run is None:
            return False
        try:
            await self._intake.steer(thread_id, run.id, message, user=call.user, actor=ACTOR)
        except Refused:
            return False
        return True

    async def current(self, call: Call) -> Place | None:
        """Returns the thread of the person in this conversation; None if there is none, or not any more."""
        known = call.state.threads.get(call.user)
        state = await self._threads.load(known) if known else None
        return Place(known, state) if known and state and state.exists and not state.erased else None

    async def thread(self, call: Call) -> str:
        """Returns the id of the person's thread in this conversation: a new one if there is none, or it was deleted."""
        known = call.state.threads.get(call.user)
        if known is None or (await self._threads.load(known)).erased:
            known = await self._begin(call)
        about = {"channel": call.account, "conversation": call.conversation, "chat": call.target.chat}
        await self._intake.create_thread(known, user=call.user, metadata=about, actor=ACTOR)
        return known

    async def _begin(self, call: Call) -> str:
        """Returns the id of a new thread. The event has no cause: it does not settle the message."""
        fresh = call.id("thread", call.user)

        def decide(state: Conversation) -> Sequence[Event]:
            return [] if state.threads.get(call.user) == fresh else [ChatBegun(thread=fresh, user=call.user)]

        await self._chats.decide(call.conversation, decide, actor=ACTOR)
        return fresh

    async def resume(
        self,
        call: Call,
        place: Place,
        question: Question,
        value: Any,
        closed: Sequence[DeliveryPlanned],
        outcome: str,
    ) -> None:
        """Has the paused run go on with an answer."""
        run, (thread_id, state) = call.id("run"), place
        known = state.approvals.get(question.id)
        if known is not None and approvals.over(known.request, now()):
            return await self.end(call, outcome, call.says(DECIDED), reason="its deadline is over")
        request = approvals.resuming(state, {question.id: value})
        own = self.request(call)
        request = msgspec.structs.replace(
            request,
            context={**request.context, "user_id": call.user, "channel_user_id": call.first.event.sender},
            metadata={**request.metadata, **own.metadata},
            origin=own.origin,
            wanted=own.wanted,
        )
        await self.begin(call, thread_id, request)
        await self.end(call, outcome, *closed, thread=thread_id, run=run)

    async def close(self, call: Call, place: Place) -> list[DeliveryPlanned]:
        """Returns what takes the buttons from the open questions of a thread, as the conversation goes on."""
        closed = []
        for plan, about in call.state.plans.items():
            shown = await self.planned(call, plan) if about.question else None
            if shown is None or shown.thread != place.id:
                continue
            approval = shown.question in place.state.approvals
            line = questions.GONE_ON if approval else f"➡️ Answered by {call.who}"
            closed.append(replacing(shown, line))
        return closed

    async def planned(self, call: Call, plan: str | None) -> DeliveryPlanned | None:
        """Returns a delivery that was planned; None if it is not remembered."""
        return await planned(self._log, call.conversation, call.state.plans.get(plan or ""))

    async def end(
        self,
        call: Call,
        outcome: str,
        *more: ChatBegun | ChatRouted | DeliveryPlanned,
        thread: str = "",
        run: str = "",
        user: str = "",
        reason: str = "",
        takes_files: bool = False,
    ) -> None:
        """Writes what became of a turn, and the reply about it, once. `takes_files`: the run has those of a command."""
        first, *others = call.turn.messages
        others += call.turn.brought
        together = "merged" if run or outcome == "steered" else outcome
        routed = ChatRouted(
            message=first.key,
            outcome=outcome,
            thread=thread,
            run_id=run,
            user=user or call.user,
            target=call.target if run else None,
            reason=reason[:MOST_REASON],
        )
        rest = [ChatRouted(message=m.key, outcome=together, thread=thread, user=routed.user) for m in others]

        if outcome == "command" and first.event.attachments and not takes_files and not first.event.edited:
            names = _in_a_sentence([_name(attachment.name) for attachment in first.event.attachments])
            more = (*more, call.says(UNTAKEN.format(names=names), "files"))
        replies = [_refusing(call, event) if outcome in ("refused", "choice") else event for event in more]

        def decide(state: Conversation) -> Sequence[Event]:
            heard = state.heard.get(first.key)
            if heard is None or heard.outcome:
                return []
            new = [
                event for event in replies if not isinstance(event, DeliveryPlanned) or event.plan not in state.plans
            ]
            return [routed, *rest, *new]

        await self._chats.decide(call.conversation, decide, actor=ACTOR, cause=first.id)


def _refusing(call: Call, event: Event) -> Event:
    """Returns a reply to somebody who may not have what they want: others of the group need not see it."""
    shared = call.target.kind == "group" or call.first.event.choice is not None
    if not shared or not isinstance(event, DeliveryPlanned) or event.purpose != "notice" or event.replaces:
        return event
    return msgspec.structs.replace(event, private=True)


def waiting_id(conversation: str, run: str) -> str:
    """Returns the id of the plan that tells people that what they write waits for a run: one for each."""
    return plan_id(conversation, "queued", run)


def _notice(call: Call, state: ThreadState) -> list[DeliveryPlanned]:
    run = state.active or next(state.runs.open())
    notice = call.says(QUEUED)
    unless = run.id if run.id in call.state.runs else ""
    plan = waiting_id(call.conversation, run.id)
    return [msgspec.structs.replace(notice, plan=plan, unless_answered=unless)]


def _unsaid(call: Call) -> list[DeliveryPlanned]:
    """Returns what tells a person that an earlier answer did not arrive, where that could not be said, either."""
    failed = [plan for plan, about in call.state.plans.items() if plan.endswith(FAILED_NOTICE) and about.failed]
    notices = {plan_id(call.conversation, plan): call.says(UNSAID) for plan in failed}
    return [msgspec.structs.replace(notice, plan=plan) for plan, notice in notices.items()]


def _waiting(state: ThreadState, call: Call) -> Run | None:
    """Returns the run that the same person asked for here, and that has not begun; None if there is none."""
    sender = call.first.event.sender
    runs = (run for run in reversed(state.queued) if run.request.input and run.cancel is None)
    own = (run for run in runs if run.request.origin and run.request.origin.conversation == call.conversation)
    return next((run for run in own if run.request.context.get("channel_user_id") == sender), None)


def _name(file: str) -> str:
    return f"`{file.replace('`', '')}`"


def _in_a_sentence(names: Sequence[str]) -> str:
    """Returns names in a sentence."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _speaker(call: Call) -> Speaker | None:
    """Returns who wrote a turn, for the agent, where several people talk to it."""
    event = call.first.event
    return Speaker(event.sender, event.sender_name, call.writer) if call.target.kind == "group" else None


def _spoken(message: Json, call: Call) -> Json:
    """Returns a message that joins a run with its speaker, who need not be that of the run."""
    speaker, kwargs = _speaker(call), message.get("additional_kwargs", {})
    if speaker is None:
        return message
    return {**message, "additional_kwargs": {**kwargs, SPEAKER: {"id": speaker.id, "name": speaker.name}}}


def _message(run: str, text: str, taken: FetchedFiles, kwargs: Json) -> Json:
    """Returns the message that a run is about."""
    notes = [f"(A file could not be taken: {problem})" for problem in taken.problems]
    content = "\n\n".join(part for part in (text, *notes) if part)
    more = {**({"files": list(taken.files)} if taken.files else {}), **kwargs}
    message = {"type": "human", "id": f"human-{run}", "content": content}
    return {**message, "additional_kwargs": more} if more else message
