"""Subagents: performs their runs, and answers the calls of `task` with what becomes of them.

Theory of operation
-------------------
A call of `task` is a question to this actor. Whoever answers it appends `subagent.started` to the caller's log and the
request to the subagent's. Both follow from the call, so a question that is asked again finds them and joins in. The
run is worked on like any other: by the worker that takes the wake-up, and by another one if that worker dies. The
answerer follows the subagent's log to its end, and states on the caller's log what is to be seen there. So a dead
caller, answerer or subagent is replaced by another, which begins from the logs.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import msgspec

from actors.agent.actor import AgentActor, LoadGuardrails, Traced, unguarded, untraced
from actors.agent.run import attempt as loop
from actors.agent.run.attempt import Attempt, Callers, Count, Limits, uncounted
from actors.agent.setup.delegates import setting_of
from actors.agent.setup.environment import Environment
from actors.agent.setup.plan import Models, RunSetup, Toolset
from actors.subagents.batch import Batch
from actors.subagents.delegation import BOUND_BY_CALLER, Call, Task
from actors.subagents.prompts import Source, rendered
from core.actor import Progress
from core.config.load import ConfigSource
from core.config.settings import TokenBudget
from core.errors import Invalid, NotFound
from core.events import Json, SubagentCompleted
from core.files.paths import OUTPUTS
from core.identity.standing import Standing
from core.log.kinds import SUBAGENT
from core.log.store import EventLog
from core.ports.batches import BatchFiles
from core.ports.images import Images
from core.runs.intake import Intake
from core.runs.journal import Journal
from core.runs.owned import OwnedRun
from core.runs.replay import ReplayJournal
from core.runs.run import Prepared
from core.skills.library import Library
from core.thread.instructions import InstructionFiles
from core.thread.state import ThreadState
from core.thread.subagents import identity, started_at
from core.thread.threads import Threads
from core.thread.usage import by_model, of_subagents, together, tokens_of_thread

ATTEND_SECONDS = 600.0
"""Time after which a question is answered with None, to be repeated: answers have a deadline."""
STOP_SECONDS = 30.0
"""Time for a subagent to end that was asked to stop."""
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9]+")


class Question(msgspec.Struct, frozen=True, kw_only=True, tag_field="op"):
    """A question of a run. `caller`: the subagent that does it, None for the agent of the thread."""

    thread: str
    user: str
    run: str
    caller: str | None = None


class Keyed(Question, frozen=True, kw_only=True):
    """A question about a call."""

    call_id: str
    """The call's key in its run."""
    seconds: float | None = None
    """The time that the run has left for it; None if it has any."""


class Delegate(Keyed, frozen=True, kw_only=True, tag="run"):
    """Asks for the outcome of a call. The answer is a `subagent.completed`, or None: ask again."""

    task: Task


class DelegateBatch(Keyed, frozen=True, kw_only=True, tag="batch"):
    """Asks for the outcome of a call of `tasks`, as `Delegate` does of `task`."""

    description: str
    name: str
    """The type of the subagents."""
    source: Source


class Late(Keyed, frozen=True, kw_only=True, tag="late"):
    """Asks for the end of a call for which the run has no time any more. The answer is what was done until then."""


class Cancel(Question, frozen=True, kw_only=True, tag="cancel"):
    """Asks for the end of a subagent, as its caller stops. The answer is as that of `Delegate`."""

    subagent: str
    call_id: str
    """The call's id as the model named it."""


class Subagents(AgentActor):
    """Does runs as the lead does, with another plan. A subagent works with the files and the sandbox of its thread."""

    name = "subagents"
    kind = SUBAGENT

    def __init__(
        self,
        config: ConfigSource,
        models: Models,
        tools: Toolset,
        call: loop.Call,
        log: EventLog,
        home: Path,
        *,
        threads: Threads,
        subagents: Intake,
        batches: BatchFiles,
        traced: Traced = untraced,
        images: Images | None = None,
        guardrails: LoadGuardrails = unguarded,
        skills: Library | None = None,
        environment: Environment | None = None,
        instructions: InstructionFiles | None = None,
        standing: Standing | None = None,
    ) -> None:
        super().__init__(
            *(config, models, tools, call, log, home, traced),
            images=images,
            guardrails=guardrails,
            skills=skills,
            environment=environment,
            instructions=instructions,
            standing=standing,
        )
        self._threads = threads
        self._intake = subagents
        self._files = batches

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _setup(self, journal: Journal) -> RunSetup:
        run, user = journal.state.runs[journal.id], journal.state.user
        role = await self._planner.role(user, str(run.request.context.get("subagent_type")))
        thread = await self._threads.load(self.works_for(journal.state))
        own = thread.folder, thread.variables
        return await self._planner.plan(run.request, user, run.model, role, journal.state.seq, *own)

    async def perform(self, run: OwnedRun, prepared: Prepared[RunSetup]) -> None:
        if run.run.batch is None:
            return await super().perform(run, prepared)
        with run.idle():
            await (await self._batch(run)).work()

    async def execute(self, journal: ReplayJournal, call: loop.Call) -> None:
        if journal.state.runs[journal.id].batch is None:
            await super().execute(journal, call)

    async def stopped(self, run: OwnedRun, open_calls: list[Json]) -> None:
        if run.run.batch is None:
            return await super().stopped(run, open_calls)
        with run.idle():
            await (await self._batch(run)).stop()

    async def _batch(self, run: OwnedRun) -> Batch:
        role = await self._planner.role(run.state.user, str(run.request.context["subagent_type"]))
        return Batch(run, role, self._config.current().subagents.batch, self._intake, self._files)

    def works_for(self, state: ThreadState) -> str:
        return str(state.metadata["thread"])

    def deadline(self, run: OwnedRun) -> tuple[float, float]:
        """A subagent's time counts from its first start."""
        limit, begun = float(run.request.context["timeout_seconds"]), started_at(run.state, run.run)
        return limit, limit - (datetime.now(UTC) - begun).total_seconds() if begun else limit

    def _attempt_at(self, setup: RunSetup, journal: Journal, call: loop.Call, today: Count = uncounted) -> Attempt:
        attempt, own = super()._attempt_at(setup, journal, call, today), setup.config.subagents.token_budget
        share = TokenBudget(max_tokens=own.max_tokens, warn_threshold=own.warn_threshold)
        attempt.last_words = share if own.enabled else None
        attempt.limits = attempt.limits._replace(tokens_key="subagents.token_budget")
        return attempt

    def _limits(self, setup: RunSetup) -> Limits:
        limits, role = super()._limits(setup), setup.role
        if role is None:
            return limits
        calls_key = limits.calls_key
        if limits.calls == setup.options.calls:
            calls_key = setting_of(setup.config, role, "max_turns")
        return limits._replace(calls_key=calls_key, seconds_key=setting_of(setup.config, role, "timeout_seconds"))

    def _live(self, setup: RunSetup, run: OwnedRun) -> Attempt:
        attempt = super()._live(setup, run)
        attempt.call, attempt.above = partial(self._calling_out, run), partial(self._above, run.state)
        if run.request.context.get(BOUND_BY_CALLER):
            attempt.limits = attempt.limits._replace(seconds_key="")
        return attempt

    async def _calling_out(self, run: OwnedRun, actor: str, request: Mapping[str, Any], progress: Progress) -> Any:
        """Calls an actor. A run that waits for its own subagents does not keep a slot that they need."""
        with run.idle() if actor == self.name else nullcontext():
            return await self._call(actor, request, progress)

    async def _above(self, state: ThreadState) -> Callers:
        """Returns what a subagent's callers used, without what it has reported to them."""
        about = state.metadata
        callers, caller = self._calling(about["thread"], about["caller"])
        above = await callers.load(caller)
        if (run := above.runs.get(about["run"])) is None:
            return Callers()
        mine = about["subagent"]
        used = together(by_model(above, run), of_subagents(run, but=mine))
        if about["caller"] is None:
            return Callers(used, tokens_of_thread(above, but=mine))
        further = await self._above(above)
        return Callers(together(used, further.run), together(used, further.thread))

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Json | None:
        try:
            question = msgspec.convert(dict(request), Delegate | DelegateBatch | Late | Cancel)
        except msgspec.ValidationError as error:
            raise Invalid(f"subagents: {error}") from error
        callers, caller = self._calling(question.thread, question.caller)
        about: dict[str, Any] = {"callers": callers, "caller": caller, "intake": self._intake}
        about |= {"thread": question.thread, "user": question.user, "run": question.run}
        match question:
            case Cancel(subagent=subagent, call_id=call_id):
                ended = await self._cancel(Call(**about, id=call_id, subagent=subagent))
            case Delegate() | DelegateBatch() | Late() as keyed:
                subagent = identity(callers.aggregate(caller), keyed.run, keyed.call_id)
                key = keyed.call_id.partition("-")[2]
                ended = await self._answer(keyed, Call(**about, id=key, subagent=subagent, seconds=keyed.seconds))
        return None if ended is None else dict(msgspec.to_builtins(ended))

    async def _answer(self, question: Delegate | DelegateBatch | Late, call: Call) -> SubagentCompleted | None:
        match question:
            case Delegate(task=task):
                return await self._delegate(call, task.name, partial(_ready, task))
            case DelegateBatch(name=name):
                return await self._delegate(call, name, partial(self._frozen, question, call.subagent))
            case Late():
                return await call.late()
        assert_never(question)

    def _calling(self, thread: str, caller: str | None) -> tuple[Threads, str]:
        """Returns the conversation that calls: the thread, or a subagent of it."""
        return (self._threads, thread) if caller is None else (self._intake.threads, caller)

    async def _frozen(self, question: DelegateBatch, subagent: str) -> Task:
        """Returns a batch with the prompts as they are now. Raises `Invalid`."""
        most = self._config.current().subagents.batch.max_items
        prompts = await rendered(question.source, self._files, question.user, question.thread, most)
        name = _NOT_PLAIN.sub("-", question.description).strip("-")[:40] or "batch"
        return Task(
            description=question.description,
            prompt=f"{len(prompts)} prompts, such as: {prompts[0][:200]}",
            name=question.name,
            prompts=prompts,
            table=f"{OUTPUTS}/{name}-{subagent[:8]}.jsonl",
        )

    async def _delegate(self, call: Call, name: str, make: Callable[[], Awaitable[Task]]) -> SubagentCompleted | None:
        log, aggregate = self._intake.threads.log, self._intake.threads.aggregate(call.subagent)
        with log.listen(aggregate) as listener:
            state, run = await call.calling()
            if call.subagent not in run.subagents or not (await self._intake.threads.load(call.subagent)).runs:
                settings = self._config.current().subagents
                try:
                    role = await self._planner.role(state.user, name, run.request)
                    task = await make()
                except (Invalid, NotFound) as error:
                    if call.subagent not in run.subagents:
                        raise
                    return await call.failed(f"it was not begun in time: {error}")
                if task.table is not None:
                    role = msgspec.structs.replace(role, seconds=settings.batch.timeout_seconds)
                depth = 1 + int(state.metadata["depth"] if call.callers.kind == SUBAGENT else 0)
                await call.begin(task, role, depth, nested=depth < settings.max_depth and task.table is None)
            return await call.attend(listener, ATTEND_SECONDS)

    async def _cancel(self, call: Call) -> SubagentCompleted | None:
        log, aggregate = self._intake.threads.log, self._intake.threads.aggregate(call.subagent)
        with log.listen(aggregate) as listener:
            try:
                await call.stop()
            except NotFound:  # its caller was stopped before it was created
                return await call.completed(SubagentCompleted(call_id=call.id, status="cancelled"))
            return await call.attend(listener, STOP_SECONDS)


async def _ready(task: Task) -> Task:
    return task
