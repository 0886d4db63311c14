"""An actor that executes runs with an agent, and records them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread
import structlog
from langchain_core.runnables import RunnableConfig

from actors.agent.loop.agent import Agent, Agents
from actors.agent.loop.chain import Ports, arranged, middlewares, policies
from actors.agent.loop.langchain_tools import Conversions
from actors.agent.loop.recorder import Ended
from actors.agent.messages.convert import MessageCache
from actors.agent.policies.limits.budgets import counts_days, limited
from actors.agent.run.attempt import (
    Attempt,
    Call,
    Candidate,
    Count,
    Limits,
    VisibleFailure,
    no_progress,
    uncounted,
)
from actors.agent.run.breaker import Breakers
from actors.agent.run.breakpoints import Breakpoints
from actors.agent.setup import input as preparation
from actors.agent.setup import recording
from actors.agent.setup.environment import Environment
from actors.agent.setup.plan import DEMO, Models, Planner, RunSetup, Toolset
from actors.agent.setup.prompt import short_hash
from actors.agent.stop import stop_calls
from actors.agent.summary.write import Writer, summary_models, writer
from core.config.load import Config, ConfigSource
from core.config.settings import Guardrails
from core.errors import Invalid
from core.events import FileUploaded, Json, Message, thread, type_of
from core.files.uploads import Uploads
from core.identity.standing import Standing
from core.log.store import EventLog
from core.mcp.tools import Catalogue
from core.memory import inject
from core.memory.facts import Memories, memory_id
from core.memory.search import Searches
from core.ports.guardrails import Provider
from core.ports.images import Images
from core.runs.journal import Failed, Journal, Paused
from core.runs.ledger import Ledgers, Today
from core.runs.owned import OwnedRun
from core.runs.prompts import release
from core.runs.replay import ReplayJournal
from core.runs.run import Prepared, RunActor
from core.runs.setups import Setups
from core.runs.windows import Windows
from core.skills.library import Library
from core.skills.selection import reference
from core.thread.instructions import InstructionFile, InstructionFiles
from core.thread.messages import MEMORY, SPEAKER_MEMORY
from core.thread.state import ThreadState
from core.thread.values import next_nodes
from core.user import agents

log = structlog.get_logger("sika.agent")

UPLOADED = type_of(FileUploaded.__name__)
LoadGuardrails = Callable[[Guardrails], Provider | None]
"""Returns the provider that the settings name. Raises `Invalid`."""


class Traced(Protocol):
    """Returns the part of an invocation's configuration that traces it: callbacks, tags and metadata."""

    def __call__(self, **about: Any) -> RunnableConfig: ...


def untraced(**about: Any) -> RunnableConfig:
    return {}


def unguarded(settings: Guardrails) -> Provider | None:
    return None


class AgentActor(RunActor):
    """Executes runs with an agent. Keeps no state of them beside the log, only caches. Subclasses plan a run."""

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
        self._tools = Conversions()
        self._cache = MessageCache()
        self._breakers = Breakers()

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
        recall = partial(self._recalled, setup, run)
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
        tools = [self._tools.langchain(tool) for tool in setup.tools]
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

    async def _recalled(self, setup: RunSetup, run: OwnedRun, text: str, earlier: Sequence[Message]) -> Json:
        """Returns references to the parts of the agent's memories that go into the prompt: of the user, and in a group
        of who wrote the message, if that person lets it in (`core.memory.facts.MemoryGroupsSet`).
        """
        if not setup.config.memory.injection_enabled or setup.options.bootstrap or setup.role is not None:
            return {}
        agent, at_least = setup.agent.name if setup.agent else None, run.state.seq
        before = inject.referred(earlier, agent)
        records = {MEMORY: await self._fitting(setup, run.state.user, agent, at_least, text, before)}
        speaker = run.request.origin.speaker if run.request.origin else None
        if speaker and speaker.user and (await self._memories.of(speaker.user, None, at_least)).in_groups:
            private = await self._fitting(setup, speaker.user, agent, at_least, text, ())
            records[SPEAKER_MEMORY] = private and {**private, "user": speaker.user}
        return records

    async def _fitting(
        self, setup: RunSetup, user: str, agent: str | None, at_least: int, text: str, before: Sequence[str]
    ) -> Json | None:
        settings = setup.config.memory
        memory = await self._memories.of(user, agent, at_least)
        hits = await self._searches.relevant(memory_id(user, agent), memory, text)
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
        attempt.complete = partial(preparation.with_files, run.state.user, run.thread_id, self._uploads)
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

    @abstractmethod
    async def _setup(self, journal: Journal) -> RunSetup:
        """Returns what a run is done with: its model, tools, prompt and configuration."""

    def works_for(self, state: ThreadState) -> str:
        """Returns the thread that a subagent works for; empty for a run of a thread."""
        return ""

    async def stopped(self, run: OwnedRun, open_calls: list[Json]) -> None:
        await stop_calls(self._call, run, open_calls, self.works_for(run.state))

    async def _work(self, attempt: Attempt, setup: RunSetup) -> None:
        state = attempt.state
        if not next_nodes(state.messages) and not state.runs[attempt.run].again and not await attempt.steered():
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
            effects=self._tools.of(setup.tools).effects,
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
        chat, tools = attempt.candidates[0].model, self._tools.of(setup.tools).tools
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
        return Candidate(
            name, chat, self._breakers.of(name, user, setup.config.circuit_breaker), blind=name in setup.blind
        )


def _traced_options(setup: RunSetup) -> Json:
    """Returns the options of a run for its trace, by DeerFlow's names."""
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
