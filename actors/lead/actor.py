"""The lead agent: executes the runs of a thread with LangChain's agent loop, and records them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio.to_thread
import structlog
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from actors.lead.loop.agent import Agent, Agents
from actors.lead.loop.attempt import (
    Attempt,
    Call,
    Candidate,
    Count,
    Limits,
    VisibleFailure,
    no_progress,
    uncounted,
)
from actors.lead.loop.breakpoints import Breakpoints
from actors.lead.loop.chain import Ports, arranged, middlewares, policies
from actors.lead.loop.described import as_langchain
from actors.lead.loop.recorder import Ended
from actors.lead.messages.convert import MessageCache
from actors.lead.model.failures import Breaker
from actors.lead.policies.budgets import counts_days, limited
from actors.lead.setup import acp, recording
from actors.lead.setup import input as preparation
from actors.lead.setup.environment import Environment
from actors.lead.setup.plan import DEMO, Models, Planner, RunSetup, Toolset
from actors.lead.setup.prompt import short_hash
from actors.lead.summary.write import Writer, summary_models, writer
from core.config.load import Config, ConfigSource
from core.config.settings import Guardrails
from core.errors import Invalid, SikaError
from core.events import FileUploaded, Json, Message, SubagentCompleted, ToolCompleted, thread, type_of
from core.files.uploads import Uploads
from core.identity.standing import Standing
from core.log.store import EventLog
from core.mcp.tools import Catalogue
from core.memory import inject
from core.memory.facts import Memories, memory_id
from core.memory.search import Searches
from core.ports.guardrails import Provider
from core.ports.images import Images
from core.runs.journal import CallRef, Failed, Journal, Paused, tool_message
from core.runs.ledger import Ledgers, Today
from core.runs.owned import OwnedRun
from core.runs.prompts import release
from core.runs.replay import ReplayJournal
from core.runs.run import Prepared, RunActor
from core.runs.setups import Setups
from core.runs.windows import Windows
from core.skills.library import Library
from core.skills.selection import reference
from core.thread.earlier import SEARCH
from core.thread.instructions import InstructionFile, InstructionFiles
from core.thread.state import ThreadState
from core.thread.subagents import TOOLS, tool_message_of
from core.thread.values import next_nodes
from core.tools import Effect, Tool
from core.user import agents

log = structlog.get_logger("sika.lead")

UPLOADED = type_of(FileUploaded.__name__)
KEPT_TOOLS, KEPT_SETS, KEPT_BREAKERS = 1024, 64, 10_000
"""Sizes of the caches of LangChain tools, and of the sets of them that runs have. Each change of the configuration
makes new ones."""
STOP_SECONDS = 15.0
"""Time that a stopping run waits for its subagents."""
LoadGuardrails = Callable[[Guardrails], Provider | None]
"""Returns the provider that the settings name. Raises `Invalid`."""
POLICIES_EFFECTS: dict[str, Effect] = {"write_todos": "pure", "tool_search": "pure", SEARCH: "pure"}
"""Effects of the tools that policies add."""


class Converted(NamedTuple):
    """The tools of a run as the loop needs them. The reference to `source` reserves its id."""

    source: Sequence[Tool]
    tools: Sequence[BaseTool]
    effects: Mapping[str, Effect]


class Traced(Protocol):
    """Returns the part of an invocation's configuration that traces it: callbacks, tags and metadata."""

    def __call__(self, **about: Any) -> RunnableConfig: ...


def untraced(**about: Any) -> RunnableConfig:
    return {}


def unguarded(settings: Guardrails) -> Provider | None:
    return None


class Lead(RunActor):
    """Executes runs. Keeps no state of them beside the log, only caches."""

    name = "lead"

    def __init__(
        self,
        config: ConfigSource,
        models: Models,
        tools: Toolset,
        call: Call,
        log: EventLog,
        home: Path,
        traced: Traced = untraced,
        uploads: Uploads | None = None,
        images: Images | None = None,
        guardrails: LoadGuardrails = unguarded,
        skills: Library | None = None,
        environment: Environment | None = None,
        instructions: InstructionFiles | None = None,
        standing: Standing | None = None,
    ) -> None:
        self._environment = environment or Environment()
        self._models = models
        self._call = call
        self._traced = traced
        self._config = config
        self._log = log
        self._ledgers = Ledgers(log)
        self._standing = standing or Standing(log)
        self._uploads, self._instructions = uploads, instructions
        self._images = images
        self._guardrails = guardrails
        rosters, self._catalogue = agents.aggregates(log), Catalogue(log, self._ask)
        self._planner = Planner(config, models, tools, rosters, home, skills, self._catalogue, self._environment)
        self._memories = Memories(log, actor=self.name)
        self._searches = Searches()
        self._windows = Windows(log)
        self._agents = Agents()
        self._setups = Setups(log)
        self._as_langchain: OrderedDict[int, tuple[Tool, BaseTool]] = OrderedDict()
        self._conversions: OrderedDict[int, Converted] = OrderedDict()
        self._cache = MessageCache()
        self._breakers: OrderedDict[tuple[str, str], Breaker] = OrderedDict()

    async def _ask(self, actor: str, request: Mapping[str, Any]) -> Any:
        return await self._call(actor, request, no_progress)

    async def prepare(self, run: OwnedRun) -> Prepared[RunSetup]:
        await self._standing.require(run.state.user, at_least=run.state.seq)
        setup = await self._setup(run)
        facts: Json = {"model": setup.model, "prompt": short_hash(setup.prompt), "config": setup.config.hash}
        facts |= await self._recorded(setup, self.works_for(run.state) or run.thread_id)
        if setup.agent:
            facts["agent"] = setup.agent.name
        if setup.skills.skills:
            facts["skills"] = setup.skills.record(setup.config.skills.list_limit)
        if run.attempt > 1 or not run.request.input:
            return Prepared(setup, facts)
        recall = partial(self._recalled, setup, run.state.user, run.state.seq)
        added = await preparation.prepare(
            run.id,
            run.request,
            run.state,
            run.thread_id,
            self._uploads,
            recall,
            skill=await _called(setup),
            references=await self._referenced(setup, run),
            guidance=await self._instructed(setup, run),
            later=partial(self._uploaded_later, run),
        )
        return Prepared(setup, facts | {"prepared": added})

    async def _instructed(self, setup: RunSetup, run: OwnedRun) -> Sequence[InstructionFile]:
        """Returns the instructions for agents in the folders that a run works in."""
        if self._instructions is None or setup.folders is None:
            return ()
        thread = self.works_for(run.state) or run.thread_id
        return await self._instructions.read(run.state.user, thread, setup.folders)

    async def _uploaded_later(self, run: OwnedRun) -> Sequence[str]:
        """Returns the names of the files that were uploaded while the run waited."""
        events = self._log.read(thread(run.thread_id), after=run.run.requested_seq, bodies=False)
        uploaded = [record async for record in events if record.type == UPLOADED]
        wholes = [(await self._log.whole(record)).event for record in uploaded]
        return [event.name for event in wholes if isinstance(event, FileUploaded)]

    async def _recorded(self, setup: RunSetup, thread: str) -> Json:
        """Returns what a run of a thread, or of its subagents, records of its setup; stores the contents that are not
        there yet.
        """
        hashes = self._setups.known(recording.key_of(setup)) or await self._shared(setup)
        if not setup.personal:
            return {"setup": hashes, "release": release()}
        prompt = await self._setups.store_for(thread, "prompt", setup.prompt, self.name)
        return {"setup": {**hashes, "prompt": prompt}, "setup_thread": thread, "release": release()}

    async def _shared(self, setup: RunSetup) -> dict[str, str]:
        """Stores the contents without anything of a user, and returns their hashes."""
        tools = [self._langchain(tool) for tool in setup.tools]
        names = {tool.name for tool in setup.deferred}
        built_in = policies(setup, self._ports(setup), [tool for tool in tools if tool.name in names])
        chain = arranged(built_in, setup.config.middlewares, confined=self._environment.confined)
        offered = {tool.name: tool for tool in (*(t for p in chain for t in getattr(p, "tools", ())), *tools)}
        contents = await anyio.to_thread.run_sync(recording.contents, setup, list(offered.values()))
        return await self._setups.store(recording.key_of(setup), contents, setup, self.name)

    async def _referenced(self, setup: RunSetup, run: OwnedRun) -> Sequence[Json]:
        """Returns what the message of a run records of the resources and prompts that it names."""
        if setup.options.bootstrap or setup.role is not None:
            return ()
        only = setup.agent.mcp_servers if setup.agent else None
        text, about = preparation.last_text(run.request.input or {}), {"user": run.state.user, "thread": run.thread_id}
        return await self._catalogue.referenced(setup.config, text, only, about, run.state.seq)

    async def _recalled(
        self, setup: RunSetup, user: str, at_least: int, text: str, earlier: Sequence[Message]
    ) -> Json | None:
        """Returns references to what the agent is told of its memory of the user."""
        settings = setup.config.memory
        if not settings.injection_enabled or setup.options.bootstrap or setup.role is not None:
            return None
        agent = setup.agent.name if setup.agent else None
        memory = await self._memories.of(user, agent, at_least)
        hits = await self._searches.relevant(memory_id(user, agent), memory, text)
        before = inject.referred(earlier, agent)
        refs = inject.fitting(memory, hits, before, settings.max_injection_tokens, settings.order)
        return inject.reference(memory, refs, agent) if refs else None

    async def perform(self, run: OwnedRun, prepared: Prepared[RunSetup]) -> None:
        setup = prepared.setup
        await self._work(self._live(setup, run), setup)

    def _live(self, setup: RunSetup, run: OwnedRun) -> Attempt:
        """Returns the attempt of a run whose usage counts."""
        attempt = self._attempt_at(setup, run, self._call, partial(self._post, run, setup.config))
        seconds, left = self.deadline(run)
        attempt.limits = attempt.limits._replace(seconds=seconds, until=time.monotonic() + left)
        return attempt

    def _limits(self, setup: RunSetup) -> Limits:
        """Returns the limits of a run without its time, which only a live run has."""
        requested, limits = setup.options.calls, setup.config.runs
        if (requested or limits.recursion_limit) > limits.max_recursion_limit:
            return Limits(limits.max_recursion_limit, "runs.max_recursion_limit")
        if requested is not None:
            return Limits(requested, "config.recursion_limit of the request")
        return Limits(limits.recursion_limit, "runs.recursion_limit")

    async def before_end(self, run: OwnedRun) -> None:
        config = self._config.current()
        if counts_days(config):
            await self._post(run, config)

    async def _post(self, journal: Journal, config: Config) -> Today:
        run = journal.state.runs[journal.id]
        return await self._ledgers.post(journal.state, run, everybody=limited(config.budgets.day))

    async def execute(self, journal: ReplayJournal, call: Call) -> None:
        """Executes a recorded run again with the current configuration; its usage is not counted."""
        setup = await self._setup(journal)
        configured = setup.model == DEMO or any(model.name == setup.model for model in setup.config.models)
        journal.planned(setup.model, configured, short_hash(setup.prompt), setup.config.hash)
        await self._work(self._attempt_at(setup, journal, call), setup)

    async def _setup(self, journal: Journal) -> RunSetup:
        run = journal.state.runs[journal.id]
        state = journal.state
        own = state.folder, state.variables
        return await self._planner.plan(run.request, state.user, run.model, None, state.seq, *own)

    def works_for(self, state: ThreadState) -> str:
        """Returns the thread that a subagent works for; empty for a run of a thread."""
        return ""

    async def _work(self, attempt: Attempt, setup: RunSetup) -> None:
        state = attempt.state
        if not next_nodes(state.messages) and not state.runs[attempt.run].again and not await attempt.journal.steered():
            return  # nothing to answer, or answered already
        try:
            await self._loop(setup, attempt)
        except Ended:
            return
        except VisibleFailure as failure:
            raise Failed(failure.error, str(failure), failure.message()) from failure
        finally:
            await attempt.end()
        if attempt.questions:
            raise Paused(["tools"], attempt.questions)

    def _attempt_at(self, setup: RunSetup, journal: Journal, call: Call, today: Count = uncounted) -> Attempt:
        return Attempt(
            journal=journal,
            call=call,
            config=setup.config,
            options=setup.options,
            candidates=[self._candidate(name, setup, journal.state.user) for name in setup.candidates],
            effects=self._converted(setup.tools).effects,
            breakpoints=Breakpoints(journal.state.runs[journal.id].request),
            cache=self._cache,
            agent=setup.agent.name if setup.agent else None,
            today=today,
            limits=self._limits(setup),
            last_words=setup.config.token_budget if setup.config.token_budget.enabled else None,
            start=setup.start,
            of_thread=self.works_for(journal.state),
        )

    async def _loop(self, setup: RunSetup, attempt: Attempt) -> None:
        """Runs the agent's loop from the folded state."""
        request = attempt.state.runs[attempt.run].request
        agent = self._agent(setup, attempt)
        traced = self._traced(
            thread=attempt.thread,
            run=attempt.run,
            user=attempt.user,
            assistant=request.assistant,
            model=setup.model,
            extra=request.metadata,
            options=_traced_options(setup),
        )
        await agent.run(attempt, traced)

    def _agent(self, setup: RunSetup, attempt: Attempt) -> Agent:
        """Returns the agent of a setup; equal setups share it."""
        chat, tools = attempt.candidates[0].model, self._converted(setup.tools).tools
        key = (id(chat), id(setup.config), setup.prompt, setup.todos, setup.vision, setup.role is None, id(setup.tools))

        def make() -> Agent:
            names = {tool.name for tool in setup.deferred}
            built_in = policies(setup, self._ports(setup), [tool for tool in tools if tool.name in names])
            chain = arranged(built_in, setup.config.middlewares, confined=self._environment.confined)
            return Agent(chat, tools, setup.prompt, middlewares(chain))

        return self._agents.get(key, make)

    def _ports(self, setup: RunSetup) -> Ports:
        def summaries() -> list[Writer]:
            preferred = (setup.config.summarization.model_name, *setup.config.model_roles.get("summarization", ()))
            names = summary_models(setup.config, *preferred, setup.model)
            return [writer(self._models, setup.config, name) for name in names]

        guardrails = self._guardrails(setup.config.guardrails)
        return Ports(self._images, guardrails, summaries, self._memories.of, self._windows)

    def _candidate(self, name: str, setup: RunSetup, user: str) -> Candidate:
        options = setup.options
        chat = self._models.get(name, thinking=options.thinking is not False, reasoning_effort=options.effort)
        return Candidate(name, chat, self._breaker(name, user, setup.config), blind=name in setup.blind)

    def _converted(self, tools: Sequence[Tool]) -> Converted:
        """Returns what the loop needs of a run's tools, the same for the same object."""
        known = self._conversions.get(id(tools))
        if known is None:
            effects = {tool.name: tool.effect for tool in tools} | POLICIES_EFFECTS
            known = self._conversions[id(tools)] = Converted(tools, [*map(self._langchain, tools)], effects)
        self._conversions.move_to_end(id(tools))
        while len(self._conversions) > KEPT_SETS:
            self._conversions.popitem(last=False)
        return known

    def _langchain(self, tool: Tool) -> BaseTool:
        """Returns the same object for the same tool, so that models are bound to their tools once."""
        if id(tool) not in self._as_langchain:
            self._as_langchain[id(tool)] = (tool, as_langchain(tool))  # a reference to the tool reserves its id
        self._as_langchain.move_to_end(id(tool))
        while len(self._as_langchain) > KEPT_TOOLS:
            self._as_langchain.popitem(last=False)
        return self._as_langchain[id(tool)][1]

    def _breaker(self, model: str, user: str, config: Config) -> Breaker:
        """Returns the circuit breaker of a model, shared by a user's runs in this process: the failures of one person's
        conversations say nothing about those of another.
        """
        limits = config.circuit_breaker
        breaker = self._breakers.setdefault((model, user), Breaker())
        self._breakers.move_to_end((model, user))
        while len(self._breakers) > KEPT_BREAKERS:
            self._breakers.popitem(last=False)
        breaker.threshold, breaker.recovery_seconds = limits.failure_threshold, limits.recovery_timeout_sec
        return breaker

    async def stopped(self, run: OwnedRun, open_calls: list[Json]) -> None:
        """Kills the commands of a stopped run, and stops its subagents and other agents."""
        await self._stop_subagents(run, open_calls)
        thread = self.works_for(run.state) or run.thread_id
        for call in open_calls:
            if call["name"] in TOOLS:
                continue
            request = {
                "op": "kill",
                "thread": thread,
                "user": run.state.user,
                "run": run.id,
                "call_id": CallRef.of(run, call["id"]).key,
            }
            try:
                await self._call("acp" if call["name"] == acp.TOOL else "sandbox", request, no_progress)
            except SikaError as error:
                log.warning("command not stopped", call=call["id"], error=str(error))

    async def _stop_subagents(self, run: OwnedRun, open_calls: list[Json]) -> None:
        """Stops the subagents that are at work, and closes their calls with what becomes of them."""
        working = {name: known.call_id for name, known in run.run.subagents.items() if not known.ended}
        try:
            async with asyncio.timeout(STOP_SECONDS), asyncio.TaskGroup() as tasks:
                for name, call_id in working.items():
                    tasks.create_task(self._stop_subagent(run, name, call_id))
        except* (SikaError, TimeoutError) as errors:
            log.warning("subagents not stopped", run=run.id, error=str(errors.exceptions[0]) or "no answer in time")
        for call in open_calls:
            if call["name"] in TOOLS and call["id"] in working.values():
                text, fields = tool_message_of(SubagentCompleted(call_id=call["id"], status="cancelled"))
                message = tool_message(CallRef.of(run, call["id"]), call["name"], text, "error")
                message["additional_kwargs"] = fields
                await run.tool_completed(ToolCompleted(call_id=call["id"], message=message))

    async def _stop_subagent(self, run: OwnedRun, subagent: str, call_id: str) -> None:
        thread = self.works_for(run.state)
        request = {
            "op": "cancel",
            "thread": thread or run.thread_id,
            "caller": run.thread_id if thread else None,
            "user": run.state.user,
            "run": run.id,
            "subagent": subagent,
            "call_id": call_id,
        }
        await self._call("subagents", request, no_progress)


def _traced_options(setup: RunSetup) -> Json:
    """Returns the options of a run for its trace (contract runtime §1.1)."""
    agent, options = setup.agent, setup.options
    whitelist = options.skills if agent is None or agent.skills is None else agent.skills
    return {
        "agent_name": agent.name if agent else "default",
        "thinking_enabled": options.thinking is not False,
        "reasoning_effort": options.effort,
        "is_plan_mode": setup.todos,
        "subagent_enabled": options.subagents is not False,
        "tool_groups": list(agent.tool_groups) if agent and agent.tool_groups is not None else None,
        "available_skills": None if whitelist is None else sorted(whitelist),
    }


async def _called(setup: RunSetup) -> Json | None:
    """Returns the record of the skill that the message of a run calls; None if the skill is gone since."""
    if (skill := setup.skills.called) is None:
        return None
    try:
        return reference(skill, await anyio.to_thread.run_sync(skill.text, abandon_on_cancel=True))
    except Invalid as error:
        log.warning("the called skill cannot be read", skill=skill.name, reason=str(error))
        return None
