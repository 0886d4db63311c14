"""Remembers: reads conversations some time after their runs, and records what is worth knowing of their person.

The timer of a thread carries nothing. What is to be read follows from the thread, and from the position that the memory
has recorded for it, so a repeated, late or lost timer changes nothing: the next run sets it again. A crash between the
model's answer and its record costs a second answer, never a second fact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
import structlog

from actors.agent.run.options import options
from actors.agent.setup.plan import Models
from actors.completion import NoCompletion, Prompt, candidates, complete
from actors.memory import extract
from actors.memory.decide import Reading, events
from actors.memory.extract import Extraction, New, Verdict
from core.actor import Actor, Context, Progress
from core.config.load import Config, ConfigSource
from core.errors import Invalid
from core.events import Aggregate, Event, RunRequested
from core.ids import now, stamp
from core.lifecycle import ENDS, RunEnded
from core.log.store import EventLog
from core.memory import facts
from core.memory.conversation import MOST_RUNS, Part, ended_after, part
from core.memory.facts import (
    CUT_AFTER,
    Fact,
    FactReinforced,
    FactRemembered,
    Memories,
    Memory,
    MemoryFailed,
    MemoryKept,
    line,
    memory_id,
)
from core.memory.search import Hit, Searches
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads
from core.user import agents
from core.user.agents import AgentRemoved

log = structlog.get_logger("sika.memory")

KEY = "read"
"""Key of a thread's only timer."""
LONGEST = 10
"""Debounces after the first unread run at which a conversation is read although new runs keep coming."""
PAUSES = (60, 600, 3600, 21_600)
"""Seconds between the attempts if no model gives a usable answer."""
NEIGHBOURS = 5
MOST_RECALLED = 20
REMEMBERED_CONFIDENCE = 0.95


class Remember(msgspec.Struct, frozen=True, tag_field="op", tag="remember"):
    """Adds a fact to the memory of the run's user and agent. The response is the fact's id."""

    thread: str
    user: str
    run: str
    call: str
    content: str
    category: str = "context"
    keywords: list[str] = []


class Recall(msgspec.Struct, frozen=True, tag_field="op", tag="recall"):
    """Searches the memory of the run's user and agent. The response is a list of `{id, text}`."""

    thread: str
    user: str
    run: str
    query: str


class MemoryActor(Actor[RunEnded | MemoryKept | AgentRemoved]):
    """Keeps the memories of users, one for each of their agents."""

    name = "memory"

    def __init__(self, config: ConfigSource, models: Models, log: EventLog, threads: Threads) -> None:
        self._config = config
        self._models = models
        self._threads = threads
        self._memories = Memories(log, actor=self.name)
        self._searches = Searches()

    # ── timers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def ignored(self) -> tuple[type[Event], ...]:
        return () if _reads(self._config.current()) else tuple(ENDS)

    async def handle(self, event: RunEnded | MemoryKept | AgentRemoved, ctx: Context) -> None:
        match event:
            case MemoryKept():
                await self._memories.repository.erase(ctx.record.aggregate.id, before=ctx.record.seq)
            case AgentRemoved(name=name):
                identity = memory_id(ctx.record.aggregate.id, name)
                await self._memories.decide(identity, lambda memory: [] if memory.empty else facts.cleared(memory))
            case _:
                await self._schedule(ctx)

    async def _schedule(self, ctx: Context) -> None:
        """Sets the timer of a thread that has something to be read."""
        config = self._config.current()
        if not _reads(config):
            return
        state = await ctx.load()
        debounce = timedelta(seconds=config.memory.debounce_seconds)
        moment = datetime.fromisoformat(ctx.now())
        for _, memory, unread in await self._unread(state, ctx.record.aggregate.id):
            longest = datetime.fromisoformat(unread.since) + LONGEST * debounce
            failed = memory.failed.get(ctx.record.aggregate.id)
            if failed is None or failed.upto != unread.upto:
                await ctx.wake_at(max(moment, min(moment + debounce, longest)), KEY)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        config = self._config.current()
        if not _reads(config):
            return
        state = await ctx.load()
        for identity, memory, unread in await self._unread(state, aggregate.id):
            await self._attempt(identity, memory, unread, aggregate.id, config, ctx)

    async def _unread(self, state: ThreadState, thread: str) -> list[tuple[str, Memory, Part]]:
        """Returns what was not read of a thread, by the memories that it belongs to."""
        if not state.exists:
            return []
        result = []
        for agent in dict.fromkeys(_agents(state)):
            identity = memory_id(state.user, agent)
            memory = await self._memories.repository.load(identity)
            runs = [run for run in ended_after(state, memory.upto(thread)) if _is_of(run, agent)]
            if (unread := part(state, runs)) is not None and unread.complete:
                result.append((identity, memory, unread))
        return result

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _attempt(
        self, identity: str, memory: Memory, unread: Part, thread: str, config: Config, ctx: Context
    ) -> None:
        """Reads a conversation, or records the failure and sets the timer of the next attempt."""
        failed = memory.failed.get(thread)
        if failed is not None and failed.upto != unread.upto:
            failed = None
        if failed is not None and (failed.again_at is None or failed.again_at > ctx.now()):
            if failed.again_at is not None:
                await ctx.wake_at(datetime.fromisoformat(failed.again_at), KEY)
            return
        try:
            reading = await self._read(identity, memory, unread, thread, config)
        except NoCompletion as error:
            await self._fail(identity, unread, thread, 1 + (failed.attempt if failed else 0), str(error), ctx)
            return
        at = ctx.now()
        memory = await self._memories.decide(identity, lambda memory: events(memory, reading, config.memory, at))
        if memory.upto(thread) < unread.upto:  # another attempt has read a part of it meanwhile
            await ctx.wake_at(datetime.fromisoformat(at), KEY)
        if memory.events >= CUT_AFTER:
            await self._memories.decide(identity, lambda m: [facts.snapshot(m)] if m.events >= CUT_AFTER else [])

    async def _fail(self, identity: str, unread: Part, thread: str, attempt: int, reason: str, ctx: Context) -> None:
        log.warning("a conversation was not read", thread=thread, attempt=attempt, reason=reason)
        again = None
        if attempt <= len(PAUSES):
            moment = datetime.fromisoformat(ctx.now()) + timedelta(seconds=PAUSES[attempt - 1])
            again = stamp(moment)
            await ctx.wake_at(moment, KEY)
        event = MemoryFailed(thread=thread, upto=unread.upto, attempt=attempt, reason=reason, again_at=again)

        def decide(memory: Memory) -> Sequence[Event]:
            known = memory.failed.get(thread)
            settled = memory.upto(thread) >= unread.upto or (
                known and known.upto == unread.upto and known.attempt >= attempt
            )
            return [] if settled else [event]

        await self._memories.decide(identity, decide)

    async def _read(self, identity: str, memory: Memory, unread: Part, thread: str, config: Config) -> Reading:
        """Asks models what a conversation says of its person. Raises `Unavailable`."""
        shown = await self._facts_to_compare(identity, memory, unread)
        prompt = Prompt(extract.EXTRACT, extract.question(memory, shown, unread))
        usage: Counter[str] = Counter()
        reason = "no model is configured"
        for name in candidates(config, "memory", config.memory.model_name):
            try:
                text = await self._ask(name, prompt, config, usage)
                if (extraction := extract.extraction(text, unread, shown)) is not None:
                    verdicts = await self._compared(identity, memory, extraction, name, config, usage)
                    return Reading(thread, memory.upto(thread), unread.upto, extraction, verdicts, name, usage)
                reason = f"{name}: the answer is no JSON object"
            except NoCompletion as error:
                reason = str(error)
        raise NoCompletion(reason)

    async def _facts_to_compare(self, identity: str, memory: Memory, unread: Part) -> list[Fact]:
        """Returns the known facts that bear on a conversation, and the most certain others."""
        text = "\n".join(utterance.text for utterance in reversed(unread.utterances))
        near = [hit.fact for hit in await self._searches.relevant(identity, memory, text)]
        rest = sorted(memory.facts.values(), key=lambda fact: -fact.confidence)
        return list({fact.id: fact for fact in (*near, *rest)}.values())[: extract.SHOWN_FACTS]

    async def _compared(
        self, identity: str, memory: Memory, extraction: Extraction, model: str, config: Config, usage: Counter[str]
    ) -> Mapping[int, Verdict]:
        """Returns the model's judgement on each new fact that has neighbours: one call for all of them."""
        near: dict[int, tuple[New, Sequence[Hit]]] = {}
        for place, new in enumerate(extraction.new):
            if new.confidence < config.memory.fact_confidence_threshold or facts.twin(memory, new.content):
                continue
            hits = await self._searches.relevant(identity, memory, " ".join((new.content, *new.keywords)))
            if hits := [hit for hit in hits if hit.fact.id not in extraction.removed][:NEIGHBOURS]:
                near[place] = (new, hits)
        if not near:
            return {}
        pairs = list(near.values())
        text = await self._ask(model, Prompt(extract.JUDGE, extract.comparison(pairs)), config, usage)
        return dict(zip(near, extract.verdicts(text, pairs), strict=True))

    async def _ask(self, name: str, prompt: Prompt, config: Config, usage: Counter[str]) -> str:
        """Returns a model's answer, and adds its usage. Raises `NoCompletion`."""
        seconds = config.memory.timeout_seconds
        answer = await complete(self._models, [name], prompt, seconds=seconds, purpose=self.name)
        for kind in ("input_tokens", "output_tokens"):
            usage[kind] += (answer.usage or {}).get(kind, 0)
        return answer.text

    # ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Any:
        try:
            command: Remember | Recall = msgspec.convert(dict(request), type=Remember | Recall)
        except msgspec.ValidationError as error:
            raise Invalid(f"memory: {error}") from None
        if not self._config.current().memory.tools:
            raise Invalid("The tools of the memory are turned off (memory.tools).")
        state = await self._threads.load(command.thread)
        if state.user != command.user or command.run not in state.runs:
            raise Invalid(f"Run {command.run} not found")
        run = state.runs[command.run]
        agents_of_run = list(_agent_of(run.request))
        if not agents_of_run:
            raise Invalid("There is no memory in a conversation that makes an agent.")
        identity = memory_id(state.user, agents_of_run[0])
        if isinstance(command, Remember):
            return await self._remember(identity, command, run)
        memory = await self._memories.repository.load(identity)
        hits = await self._searches.relevant(identity, memory, command.query)
        return [{"id": hit.fact.id, "text": line(hit.fact)} for hit in hits[:MOST_RECALLED]]

    async def _remember(self, identity: str, command: Remember, run: Run) -> str:
        """Records the fact once for each call."""
        at = now()
        fact = facts.checked_fact(
            Fact(
                id="",
                content=command.content,
                category=command.category[:100],
                confidence=REMEMBERED_CONFIDENCE,
                created_at=at,
                seen_at=at,
                source=command.thread,
                run=run.id,
                event=run.started_seq,
                keywords=command.keywords[: facts.MOST_KEYWORDS],
            )
        )

        def decide(memory: Memory) -> Sequence[Event]:
            if known := facts.twin(memory, fact.content):
                if known.run == run.id or known.confidence >= fact.confidence:
                    return []
                return [FactReinforced(fact=known.id, confidence=fact.confidence)]
            return [FactRemembered(fact=msgspec.structs.replace(fact, id=facts.fact_id(memory, run.id, command.call)))]

        memory = await self._memories.decide(identity, decide, cause=run.last_id)
        known = facts.twin(memory, fact.content)
        return known.id if known else ""


def _reads(config: Config) -> bool:
    return config.memory.enabled and bool(config.models)


def _agents(state: ThreadState) -> Iterator[str | None]:
    """Yields the agents of the newest runs: None for the default agent."""
    for run in islice(state.runs.newest_first(), MOST_RUNS):
        yield from _agent_of(run.request)


def _is_of(run: Run, agent: str | None) -> bool:
    return agent in _agent_of(run.request)


def _agent_of(request: RunRequested) -> Iterator[str | None]:
    """Yields the agent of a run; nothing for a run that makes an agent, and for a malformed name."""
    requested = options(request)
    if requested.bootstrap:
        return
    try:
        yield None if requested.agent is None else agents.valid_name(requested.agent)
    except Invalid:
        return
