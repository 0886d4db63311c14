"""Performs the commands of people in a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec

from actors.chat import commands
from actors.chat.again import Again
from actors.chat.answers import STOPPED
from actors.chat.call import Call
from actors.chat.commands import Command
from actors.chat.deletions import is_deletion
from actors.chat.place import NOTHING_WAITS, Place, at_work, forgotten, last_question, queue, status, waiting_runs
from actors.chat.runs import ACTOR, BUSY, Runs
from core.chat.commands import START
from core.chat.facts import ChatBegun, ChatRouted, DeliveryPlanned
from core.errors import NotFound, Refused
from core.events import GoalSet, Json, RunRequested, Speaker, thread
from core.log.store import EventLog
from core.memory.facts import Memories, memory_id, set_for_groups
from core.phrases import counted
from core.runs.commands import Commands, Rating
from core.runs.intake import Intake
from core.thread.messages import SPEAKER
from core.thread.state import Run
from core.thread.threads import Threads

BOOTSTRAP = "Help me to set up an agent of my own."
"""The message of a bare `/bootstrap`."""
MOST_GOAL = 4000
"""Characters of a goal (DeerFlow's route of goals)."""

ALL, CLEAR = "all", "clear"
"""Words after `/stop` and `/queue`."""

# Texts.
BEGUN = "New conversation. What was said before is not known in it."
NOTHING_AT_WORK = "Nothing is at work."
DONE_ALREADY = "That was done already."
NOTHING_TO_RETRY = "There is no message to answer again."
NOTHING_TO_UNDO = "There is no message to forget."
UNDONE = "I forgot your last message and its answer. Files that were changed stay as they are."
RATED = "Thank you. I have noted what you think of this answer."
GREETING = "Hello."
OUTSIDE = (
    "What I remember of you alone stays out of groups. `/memory groups on` lets me use it there when it is you who "
    "writes to me."
)
INSIDE = (
    "What I remember of you alone I use in groups, too, from your next message on, and only when it is you who writes "
    "to me. Everybody there reads my answers, and they stay in the conversation. `/memory groups off` ends it."
)
NO_MEMORY = "On this server I am told nothing of what is remembered (`memory.injection_enabled`)."
MEMORY_USAGE = "Send `/memory`, `/memory groups`, `/memory groups on` or `/memory groups off`."


class Performer:
    """Performs commands on the threads of a conversation, each once however often it is repeated."""

    def __init__(self, runs: Runs, threads: Threads, intake: Intake, log: EventLog) -> None:
        self._runs = runs
        self._threads = threads
        self._intake = intake
        self._log = log
        self._commands = Commands(threads, intake, actor=ACTOR)
        self._memories = Memories(log, actor=ACTOR)
        self._again = Again(runs, log)

    async def perform(self, call: Call, command: Command) -> None:
        """Performs a command. Raises `Unavailable`."""
        match command.name:
            case "new":
                begun = ChatBegun(thread=call.id("thread", call.user), user=call.user)
                return await self._runs.end(call, "command", begun, call.says(BEGUN))
            case "stop":
                return await (self._stop_all(call) if command.text.casefold() == ALL else self._stop(call))
            case "queue" if command.text.casefold() == CLEAR:
                return await self._clear(call)
            case "memory" if command.text:
                return await self._memory_in_groups(call, command.text.casefold().split())
            case "again":
                return await self._again.newest(call)
            case "retry":
                return await self.ask_again(call)
            case "undo":
                return await self._undo(call)
            case "goal":
                return await self._goal(call, command.text)
            case "bootstrap":
                text = command.text or BOOTSTRAP
                return await self._runs.run(call, text, context={"is_bootstrap": True}, outcome="command")
        await self._runs.end(call, "command", call.says(await self._reply(call, command.name)))

    async def _reply(self, call: Call, name: str) -> str:
        """Returns the answer to a command that changes nothing."""
        match name:
            case "status":
                return status(await self._runs.current(call), datetime.now(UTC), len(_unrouted(call)))
            case "queue":
                return queue(await self._runs.current(call), len(_unrouted(call)))
            case "models":
                names = [model.display_name or model.name for model in call.config.models]
                return "\n".join(["Models:", *(f"- {name}" for name in names)]) if names else "There is no model."
            case "memory":
                agent = self._runs.setup(call).context.get("agent_name")
                facts = len((await self._memories.of(call.user, agent)).facts)
                return f"I remember {counted(facts, 'fact')}."
            case _ if name == START:
                return f"{GREETING}\n\n{commands.help_text()}"
        return commands.help_text()

    async def _memory_in_groups(self, call: Call, words: Sequence[str]) -> None:
        """Tells whether the person's private memory goes into groups, or sets it, for them alone to see."""
        match words:
            case ["groups"]:
                text = INSIDE if (await self._memories.of(call.writer)).in_groups else OUTSIDE
            case ["groups", "on"] if not call.config.memory.injection_enabled:
                text = NO_MEMORY
            case ["groups", ("on" | "off") as word]:
                decide = partial(set_for_groups, in_groups=word == "on", by=call.writer)
                await self._memories.decide(memory_id(call.writer, None), decide, cause=call.first.id)
                text = INSIDE if word == "on" else OUTSIDE
            case _:
                text = MEMORY_USAGE
        reply = msgspec.structs.replace(call.says(text), private=call.target.kind == "group")
        await self._runs.end(call, "command", reply)

    async def _stop(self, call: Call) -> None:
        """Cancels the run that was at work when the command was written, and no later one."""
        place, seq = await self._runs.current(call), call.first.seq
        run = at_work(place.state, call.state, seq) if place else None
        if place is None or run is None:
            dropped = _unrouted(call)
            text = STOPPED if dropped else NOTHING_AT_WORK
            return await self._runs.end(call, "command", *dropped, call.says(text))
        try:
            await self._intake.cancel(place.id, run.id, user=call.user, actor=ACTOR)
        except Refused:
            return await self._runs.end(call, "command", call.says(DONE_ALREADY))
        await self._runs.end(call, "command", *_stopped(call, [run]))

    async def stop(self, call: Call, run: str) -> None:
        """Cancels a run whose button was pressed."""
        place = await self._runs.current(call)
        known = place.state.runs.get(run) if place else None
        if place is None or known is None or not known.open or not await self._cancelled(call, place, run):
            return await self._runs.end(call, "choice", call.says(NOTHING_AT_WORK))
        await self._runs.end(call, "choice", *_stopped(call, [known]))

    async def rate(self, call: Call, answer: DeliveryPlanned, value: int) -> None:
        """Records what a person thinks of an answer, whose button was pressed. Only they see the reply."""
        try:
            await self._commands.rate(answer.user, answer.thread, answer.plan, Rating(value), by=call.writer)
        except (NotFound, Refused) as error:
            return await self._runs.end(call, "choice", reason=str(error))
        reply = msgspec.structs.replace(call.says(RATED), private=True)
        await self._runs.end(call, "choice", reply)

    async def _stop_all(self, call: Call) -> None:
        """Cancels the runs of the person's thread that had not ended when the command was written."""
        place = await self._runs.current(call)
        runs = [run for run in place.state.runs.open() if run.requested_seq < call.first.seq] if place else []
        dropped = _unrouted(call)
        stopped = [run for run in runs if place and await self._cancelled(call, place, run.id)]
        reply = _stopped(call, stopped) if stopped or dropped else [call.says(NOTHING_AT_WORK)]
        await self._runs.end(call, "command", *dropped, *reply)

    async def _clear(self, call: Call) -> None:
        """Cancels the runs of the person's thread that have not begun."""
        place = await self._runs.current(call)
        waiting = waiting_runs(place) if place else []
        cleared = [run for run in waiting if place and await self._cancelled(call, place, run.id)]
        dropped = _unrouted(call)
        count = len(cleared) + len(dropped)
        text = f"Dropped {counted(count, 'message')}." if count else NOTHING_WAITS
        await self._runs.end(call, "command", *dropped, call.says(text))

    async def _cancelled(self, call: Call, place: Place, run: str) -> bool:
        try:
            await self._intake.cancel(place.id, run, user=call.user, actor=ACTOR)
        except Refused:
            return False
        return True

    async def ask_again(self, call: Call, text: str | None = None, also: Sequence[DeliveryPlanned] = ()) -> None:
        """Asks the last question again, from the checkpoint before it, in other words if there is a `text`."""
        place, run = await self._runs.current(call), call.id("run")
        if place and run not in place.state.runs:
            if any(place.state.runs.open()):
                return await self._runs.end(call, "refused", call.says(BUSY, "busy"), reason="busy")
            start = last_question(place, text)
            if start is None:
                return await self._runs.end(call, "command", call.says(NOTHING_TO_RETRY))
            request = msgspec.structs.replace(
                _of_author(self._runs.request(call), start[1]), base=start[0], input=start[1]
            )
            await self._runs.begin(call, place.id, request)
        if place is None:
            return await self._runs.end(call, "command", call.says(NOTHING_TO_RETRY))
        closed = [*await self._runs.close(call, place), *also]
        await self._runs.end(call, "command", *closed, thread=place.id, run=run)

    async def _undo(self, call: Call) -> None:
        """Moves the thread back to the checkpoint before the last question."""
        place, cause = await self._runs.current(call), call.first.id
        if place is None:
            return await self._runs.end(call, "command", call.says(NOTHING_TO_UNDO))
        after = [record async for record in self._log.read(thread(place.id), after=call.first.seq)]
        if not any(record.head.cause == cause for record in after):
            if any(place.state.runs.open()):
                return await self._runs.end(call, "refused", call.says(BUSY, "busy"), reason="busy")
            if last_question(place) is None:
                return await self._runs.end(call, "command", call.says(NOTHING_TO_UNDO))
            await self._threads.decide(
                place.id, lambda state: forgotten(Place(place.id, state)), actor=ACTOR, cause=cause
            )
        await self._runs.end(call, "command", *await self._runs.close(call, place), call.says(UNDONE))

    async def _goal(self, call: Call, text: str) -> None:
        """Sets the goal of the thread and works on it, gives it up, or shows it."""
        settings, place = call.config.goals, await self._runs.current(call)
        if not settings.enabled:
            return await self._runs.end(call, "command", call.says("Goals are off on this server."))
        if not text:
            goal = place.state.goal if place else None
            shown = f"The goal: {goal.set.objective}" if goal else "There is no goal. Set one with `/goal text`."
            return await self._runs.end(call, "command", call.says(shown))
        if text.casefold() == "clear":
            if place:
                await self._commands.clear_goal(call.user, place.id)
            return await self._runs.end(call, "command", call.says("The goal is given up."))
        if len(text) > MOST_GOAL:
            refusal = f"A goal has at most {MOST_GOAL} characters, this one has {len(text)}. It was not set."
            return await self._runs.end(call, "command", call.says(refusal))
        thread_id = await self._runs.thread(call)
        if call.id("run") not in (await self._threads.load(thread_id)).runs:
            goal_set = GoalSet(
                objective=text,
                by=call.user,
                max_continuations=settings.max_continuations,
                max_no_progress_continuations=settings.max_no_progress_continuations,
                max_tokens=settings.max_tokens,
            )
            try:
                await self._commands.set_goal(call.user, thread_id, goal_set)
            except Refused:
                return await self._runs.end(call, "refused", call.says(BUSY, "busy"), reason="busy")
        await self._runs.run(call, text, outcome="command")


def _of_author(request: RunRequested, question: Json) -> RunRequested:
    """Returns a request whose speaker is who wrote the question, not who has it answered again: whose memory that is
    (`Speaker.user`) is known only of the author.
    """
    messages = question.get("messages") or [{}]
    speaker = (messages[-1].get("additional_kwargs") or {}).get(SPEAKER)
    if request.origin is None or request.origin.speaker is None or not isinstance(speaker, dict):
        return request
    author = msgspec.convert(speaker, Speaker)
    if author.id == request.origin.speaker.id:
        return request
    return msgspec.structs.replace(request, origin=msgspec.structs.replace(request.origin, speaker=author))


def _stopped(call: Call, runs: Sequence[Run]) -> list[DeliveryPlanned]:
    """Returns the reply about stopped runs. What one that had begun has answered so far ends with the same word."""
    return [] if any(run.started_seq is not None for run in runs) else [call.says(STOPPED)]


def _unrouted(call: Call) -> list[ChatRouted]:
    """Returns what drops the messages that were written before and are no runs yet."""
    earlier = {
        key: heard for key, heard in call.state.heard.items() if not heard.outcome and heard.seq < call.first.seq
    }
    waits = [key for key in earlier if not is_deletion(key)]
    return [ChatRouted(message=key, outcome="ignored", reason="stopped") for key in waits]
