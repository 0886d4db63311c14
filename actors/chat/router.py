"""Routes turns: access is checked, then a turn is a choice, a command, an answer, or a run.

Each decision is written as `chat.routed` after its effects, which are the same when they are repeated: the ids of
threads, runs and plans derive from the message's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog

from actors.chat import commands, questions
from actors.chat.access import judged
from actors.chat.answers import FAILED, plan_id
from actors.chat.buttons import may_decide, plan_of, planned, replacing
from actors.chat.call import Call
from actors.chat.commands import Command
from actors.chat.files import Files, Taken
from actors.chat.place import Place, at_work, forgotten, last_question, queue, status
from actors.chat.questions import Question
from actors.chat.session import NoAgent, Setup, setup_of
from actors.chat.turns import Turn
from core.chat.account import platform_of
from core.chat.connections import Connections
from core.chat.facts import KIND, TARGET, Button, ChatBegun, ChatRouted, DeliveryPlanned
from core.chat.state import Chats, Conversation
from core.config.channels import AccountSettings
from core.config.load import ConfigSource
from core.errors import Conflict, Refused, Unavailable
from core.events import Event, GoalSet, Json, Origin, RunRequested, Wanted, thread
from core.ids import now
from core.log.store import EventLog
from core.memory.facts import Memories
from core.thread import approvals
from core.thread.commands import Commands
from core.thread.intake import Intake
from core.thread.state import ThreadState
from core.thread.threads import Threads

log = structlog.get_logger("sika.chat")

ACTOR = "chat"
BOOTSTRAP = "Help me to set up an agent of my own."
"""The message of a bare `/bootstrap`."""
MOST_GOAL = 4000
"""Characters of a goal (contract http §8.5)."""
MOST_REASON = 500

# Texts.
QUEUED = "_I am still at work. Your message is queued: I answer it next._"
BUSY = "I am still at work. Write again when I have answered, or send `/stop`."
BEGUN = "New conversation. What was said before is not known in it."
NOTHING_AT_WORK = "Nothing is at work."
STOPPING = "Stopping."
DONE_ALREADY = "That was done already."
NOTHING_TO_RETRY = "There is no message to answer again."
NOTHING_TO_UNDO = "There is no message to forget."
UNDONE = "I forgot your last message and its answer. Files that were changed stay as they are."
STRANGER = "You cannot talk to me yet. Your id is `{sender}`: the operator of this server can let you in with it."
NOT_CONNECTED = "Connect first: open the settings of the web page, choose this platform, and send me the code."
CONNECTED = "Connected. From here on your messages are yours on the web page, too."
BAD_CODE = "This code is not valid, or not any more. Get a new one in the settings of the web page."
NOT_YOURS = "Only the person who was asked can decide that."
DECIDED = "That was decided already."
GREETING = "Hello."


class Router:
    """Decides on turns. `chats`: the conversations."""

    def __init__(
        self, chats: Chats, config: ConfigSource, threads: Threads, intake: Intake, files: Files, log: EventLog
    ) -> None:
        self._chats = chats
        self._config = config
        self._threads = threads
        self._intake = intake
        self._files = files
        self._log = log
        self._commands = Commands(threads, intake, actor=ACTOR)
        self._connections = Connections(log, actor=ACTOR)
        self._memories = Memories(log, actor=ACTOR)

    async def route(self, conversation: str, account: str, turn: Turn, state: Conversation) -> None:
        """Decides on a turn. Raises `Unavailable`."""
        config = self._config.current()
        settings = config.channels.account(account) or AccountSettings()
        call = Call(conversation, account, turn, state, settings, config)
        try:
            await self._route(call)
        except NoAgent as error:
            log.warning("no agent of this name", account=account, reason=str(error))
            await self._end(call, "refused", call.says(f"That did not work: {error}"), reason=str(error))
        except (Unavailable, Conflict):
            raise
        except Exception as error:  # else the messages after it would wait for ever
            log.exception("a message was not taken", conversation=conversation, message=call.first.id)
            await self._end(call, "refused", call.says(FAILED), reason=type(error).__name__)

    async def _route(self, call: Call) -> None:
        event, platform = call.first.event, platform_of(call.account)
        command = commands.parsed(event.text, platform) if event.choice is None else None
        if (code := commands.code_of(command)) is not None:
            return await self._connect(call, code)
        if event.edited and call.state.heard.get(event.message) is not None:
            original = call.state.heard[event.message]
            if original.outcome != "ignored":
                return await self._end(call, "ignored", reason="an edit of a message that was taken")
        connection = (await self._connections.state()).of_person(call.account, event.sender)
        if call.config.channel_connections.enabled and connection is not None:
            call = call._replace(user=connection.user, connected=True)
        verdict = judged(event, call.state, call.config, call.account, connection)
        match verdict.outcome:
            case "refused":
                return await self._refuse(call, verdict.reason)
            case "unconnected":
                return await self._end(call, "refused", call.says(NOT_CONNECTED), reason=verdict.reason)
            case "ignored":
                return await self._end(call, "ignored", reason=verdict.reason)
        if event.choice is not None:
            return await self._chosen(call)
        if command is not None:
            return await self._command(call, command)
        await self._written(call)

    # ── who may talk ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _connect(self, call: Call, code: str) -> None:
        event = call.first.event
        connection = None
        if call.config.channel_connections.enabled:
            connection = await self._connections.bind(code, call.account, event.sender, event.sender_name)
        if connection is None:
            return await self._end(call, "refused", call.says(BAD_CODE), reason="no such code")
        await self._end(call, "command", call.says(CONNECTED), user=connection.user)

    async def _refuse(self, call: Call, reason: str) -> None:
        """Tells a person their id, once in a conversation."""
        sender = call.first.event.sender
        plan = plan_id(call.conversation, "stranger", sender)
        if plan in call.state.plans:
            return await self._end(call, "ignored", reason=reason)
        log.warning("a person may not talk to the agent", account=call.account, sender=sender, reason=reason)
        notice = msgspec.structs.replace(call.says(STRANGER.format(sender=sender)), plan=plan)
        await self._end(call, "refused", notice, reason=reason)

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _written(self, call: Call) -> None:
        """A message: the answer to a question, or the next one of the conversation."""
        place = await self._current(call)
        question = next(iter(questions.pending(place.state)), None) if place else None
        shown = await self._planned(call, plan_of(call.state, question)) if question else None
        mine = shown is None or may_decide(call, shown)
        if question and question.approval and not mine:  # others would have the call given up by writing on
            return await self._end(call, "refused", call.says(NOT_YOURS), reason="not the person who was asked")
        answers_it = question and mine and not any(message.has_files for message in call.turn.messages)
        if place and question and answers_it and (shown or not question.approval):
            option = question.option(call.turn.text)
            if option is not None:
                return await self._decide(call, place, question, option, shown, "answer")
            if (question.form or not question.approval) and place.state.paused is not None:
                return await self._resume(call, place, question, call.turn.text, [], "answer")
        closed = await self._close(call, place) if place else []
        await self._run(call, call.turn.content, also=closed)

    async def _run(
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
        setup = self._setup(call)
        thread_id = await self._thread(call)
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
                return await self._end(call, "refused", call.says(BUSY, "busy"), reason="busy")
            if mode == "steer" and await self._steered(call, thread_id, state, message):
                await self._files.forget(call.turn)
                return await self._end(call, "steered", *says, thread=thread_id)
            if busy and mode != "interrupt":
                says.append(call.says(QUEUED, "queued"))
            request = self._request(call, setup, context or {})
            request = msgspec.structs.replace(
                request,
                input={"messages": [message]},
                multitask="interrupt" if mode == "interrupt" else "enqueue",
            )
            await self._intake.request_run(thread_id, run, request, user=call.user, actor=ACTOR)
        await self._files.forget(call.turn)
        await self._end(call, outcome, *says, thread=thread_id, run=run)

    def _setup(self, call: Call) -> Setup:
        return setup_of(call.config.channels, call.account, call.first.event.sender)

    def _request(self, call: Call, setup: Setup, context: Mapping[str, Any]) -> RunRequested:
        about = {"user_id": call.user, "channel_user_id": call.first.event.sender}
        return RunRequested(
            config=setup.config,
            context={**setup.context, **context, **about},
            metadata={TARGET: msgspec.to_builtins(call.target)},
            origin=Origin(call.account, call.conversation),
            wanted=Wanted(KIND, call.conversation, call.first.key),
        )

    async def _steered(self, call: Call, thread_id: str, state: ThreadState, message: Json) -> bool:
        """Tells whether a message went to the run at work."""
        identity = message["id"]
        if identity in state.places or any(s.get("id") == identity for r in state.runs.open() for s in r.steers):
            return True
        active = state.active
        if active is None:
            return False
        try:
            await self._intake.steer(thread_id, active.id, message, user=call.user, actor=ACTOR)
        except Refused:
            return False
        return True

    async def _current(self, call: Call) -> Place | None:
        """Returns the thread of the person in this conversation; None if there is none, or not any more."""
        known = call.state.threads.get(call.user)
        state = await self._threads.load(known) if known else None
        return Place(known, state) if known and state and state.exists and not state.erased else None

    async def _thread(self, call: Call) -> str:
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

    # ── answers to questions ────────────────────────────────────────────────────────────────────────────────────────

    async def _chosen(self, call: Call) -> None:
        """A pressed button."""
        choice = call.first.event.choice
        assert choice is not None
        plan = call.state.plans.get(choice.plan)
        shown = await self._planned(call, choice.plan)
        if plan is None or shown is None:
            return await self._end(call, "ignored", reason="a button of a message that is not remembered")
        if not may_decide(call, shown):
            return await self._end(call, "refused", call.says(NOT_YOURS), reason="not the person who was asked")
        call = call._replace(user=shown.user)
        state = await self._threads.load(shown.thread)
        if (run := call.id("run")) in state.runs:  # before a crash
            return await self._end(call, "choice", thread=shown.thread, run=run)
        question = next((each for each in questions.pending(state) if each.id == shown.question), None)
        option = next((each for each in question.buttons if each.id == choice.button), None) if question else None
        if question is None or option is None or not plan.question:
            return await self._end(call, "choice", call.says(DECIDED), reason="decided already")
        await self._decide(call, Place(shown.thread, state), question, option, shown, "choice")

    async def _decide(
        self,
        call: Call,
        place: Place,
        question: Question,
        option: Button,
        shown: DeliveryPlanned | None,
        outcome: str,
    ) -> None:
        """Takes an option of a question."""
        line = questions.decided(option, call.who, approval=question.approval)
        closed = [replacing(shown, line)] if shown is not None else []
        if question.approval:
            return await self._resume(call, place, question, {"decision": option.id}, closed, outcome)
        message = next(message for message in place.state.messages if message.get("id") == question.id)
        response = questions.response(message, option)
        kwargs = {"human_input_response": response} if response else None
        text = str(response["value"]) if response else option.label
        await self._run(call, text, kwargs=kwargs, outcome=outcome, also=closed)

    async def _resume(
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
            return await self._end(call, outcome, call.says(DECIDED), reason="its deadline is over")
        request = approvals.resuming(state, {question.id: value})
        own = self._request(call, self._setup(call), {})
        request = msgspec.structs.replace(
            request,
            context={**request.context, "user_id": call.user, "channel_user_id": call.first.event.sender},
            metadata={**request.metadata, **own.metadata},
            origin=own.origin,
            wanted=own.wanted,
        )
        await self._intake.request_run(thread_id, run, request, user=call.user, actor=ACTOR)
        await self._end(call, outcome, *closed, thread=thread_id, run=run)

    async def _close(self, call: Call, place: Place) -> list[DeliveryPlanned]:
        """Returns what takes the buttons from the open questions of a thread, as the conversation goes on."""
        closed = []
        for plan, about in call.state.plans.items():
            shown = await self._planned(call, plan) if about.question else None
            if shown is None or shown.thread != place.id:
                continue
            approval = shown.question in place.state.approvals
            line = questions.GONE_ON if approval else f"➡️ Answered by {call.who}"
            closed.append(replacing(shown, line))
        return closed

    async def _planned(self, call: Call, plan: str | None) -> DeliveryPlanned | None:
        return await planned(self._log, call.conversation, call.state.plans.get(plan or ""))

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _command(self, call: Call, command: Command) -> None:
        match command.name:
            case "new":
                begun = ChatBegun(thread=call.id("thread", call.user), user=call.user)
                return await self._end(call, "command", begun, call.says(BEGUN))
            case "stop":
                return await self._stop(call)
            case "retry":
                return await self._retry(call)
            case "undo":
                return await self._undo(call)
            case "goal":
                return await self._goal(call, command.text)
            case "bootstrap":
                text = command.text or BOOTSTRAP
                return await self._run(call, text, context={"is_bootstrap": True}, outcome="command")
        await self._end(call, "command", call.says(await self._reply(call, command.name)))

    async def _reply(self, call: Call, name: str) -> str:
        """Returns the answer to a command that changes nothing."""
        match name:
            case "status":
                return status(await self._current(call))
            case "queue":
                return queue(await self._current(call))
            case "models":
                names = [model.display_name or model.name for model in call.config.models]
                return "\n".join(["Models:", *(f"- {name}" for name in names)]) if names else "There is no model."
            case "memory":
                agent = self._setup(call).context.get("agent_name")
                facts = len((await self._memories.of(call.user, agent)).facts)
                return f"I remember {facts} {'fact' if facts == 1 else 'facts'}."
            case commands.START:
                return f"{GREETING}\n\n{commands.help_text()}"
        return commands.help_text()

    async def _stop(self, call: Call) -> None:
        """Cancels the run that was at work when the command was written, and no later one."""
        place, seq = await self._current(call), call.first.seq
        run = at_work(place.state, call.state, seq) if place else None
        if place is None or run is None:
            waits = [key for key, heard in call.state.heard.items() if not heard.outcome and heard.seq < seq]
            dropped = [ChatRouted(message=key, outcome="ignored", reason="stopped") for key in waits]
            text = STOPPING if dropped else NOTHING_AT_WORK
            return await self._end(call, "command", *dropped, call.says(text))
        try:
            await self._intake.cancel(place.id, run.id, user=call.user, actor=ACTOR)
        except Refused:
            return await self._end(call, "command", call.says(DONE_ALREADY))
        await self._end(call, "command", call.says(STOPPING))

    async def _retry(self, call: Call) -> None:
        """Asks the last question again, from the checkpoint before it."""
        place, run = await self._current(call), call.id("run")
        if place and run not in place.state.runs:
            if any(place.state.runs.open()):
                return await self._end(call, "refused", call.says(BUSY, "busy"), reason="busy")
            start = last_question(place)
            if start is None:
                return await self._end(call, "command", call.says(NOTHING_TO_RETRY))
            request = self._request(call, self._setup(call), {})
            request = msgspec.structs.replace(request, base=start[0], input=start[1])
            await self._intake.request_run(place.id, run, request, user=call.user, actor=ACTOR)
        if place is None:
            return await self._end(call, "command", call.says(NOTHING_TO_RETRY))
        await self._end(call, "command", *await self._close(call, place), thread=place.id, run=run)

    async def _undo(self, call: Call) -> None:
        """Moves the thread back to the checkpoint before the last question."""
        place, cause = await self._current(call), call.first.id
        if place is None:
            return await self._end(call, "command", call.says(NOTHING_TO_UNDO))
        after = [record async for record in self._log.read(thread(place.id), after=call.first.seq)]
        if not any(record.head.cause == cause for record in after):
            if any(place.state.runs.open()):
                return await self._end(call, "refused", call.says(BUSY, "busy"), reason="busy")
            if last_question(place) is None:
                return await self._end(call, "command", call.says(NOTHING_TO_UNDO))
            await self._threads.decide(
                place.id, lambda state: forgotten(Place(place.id, state)), actor=ACTOR, cause=cause
            )
        await self._end(call, "command", *await self._close(call, place), call.says(UNDONE))

    async def _goal(self, call: Call, text: str) -> None:
        """Sets the goal of the thread and works on it, gives it up, or shows it."""
        settings, place = call.config.goals, await self._current(call)
        if not settings.enabled:
            return await self._end(call, "command", call.says("Goals are off on this server."))
        if not text:
            goal = place.state.goal if place else None
            shown = f"The goal: {goal.set.objective}" if goal else "There is no goal. Set one with `/goal text`."
            return await self._end(call, "command", call.says(shown))
        if text.casefold() == "clear":
            if place:
                await self._commands.clear_goal(call.user, place.id)
            return await self._end(call, "command", call.says("The goal is given up."))
        thread_id = await self._thread(call)
        if call.id("run") not in (await self._threads.load(thread_id)).runs:
            goal_set = GoalSet(
                objective=text[:MOST_GOAL],
                by=call.user,
                max_continuations=settings.max_continuations,
                max_no_progress_continuations=settings.max_no_progress_continuations,
                max_tokens=settings.max_tokens,
            )
            try:
                await self._commands.set_goal(call.user, thread_id, goal_set)
            except Refused:
                return await self._end(call, "refused", call.says(BUSY, "busy"), reason="busy")
        await self._run(call, text, outcome="command")

    # ── the decision ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _end(
        self,
        call: Call,
        outcome: str,
        *more: ChatBegun | ChatRouted | DeliveryPlanned,
        thread: str = "",
        run: str = "",
        user: str = "",
        reason: str = "",
    ) -> None:
        """Writes what became of a turn, and what is said about it, once."""
        first, *others = call.turn.messages
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

        def decide(state: Conversation) -> Sequence[Event]:
            heard = state.heard.get(first.key)
            if heard is None or heard.outcome:
                return []
            new = [event for event in more if not isinstance(event, DeliveryPlanned) or event.plan not in state.plans]
            return [routed, *rest, *new]

        await self._chats.decide(call.conversation, decide, actor=ACTOR, cause=first.id)


def _message(run: str, text: str, taken: Taken, kwargs: Json) -> Json:
    """Returns the message that a run is about."""
    notes = [f"(A file could not be taken: {problem})" for problem in taken.problems]
    content = "\n\n".join(part for part in (text, *notes) if part)
    more = {**({"files": list(taken.files)} if taken.files else {}), **kwargs}
    message = {"type": "human", "id": f"human-{run}", "content": content}
    return {**message, "additional_kwargs": more} if more else message
