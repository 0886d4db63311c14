"""The composition root: where configuration, adapters, actors and channels meet to be a server."""

from __future__ import annotations

import importlib
import importlib.util
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import structlog

from actors.sandbox.machines import machines_of
from actors.sandbox.reaping import Reaper
from actors.wiring import sandboxes
from actors.wiring.account_processes import Supervisor
from actors.wiring.added import with_added
from actors.wiring.discovery import actor_classes, load_tools, provider_of
from actors.wiring.options import Options as Options
from actors.wiring.parts import Parts, Toolset, library, load_actors, mcp_access, warn_of
from adapters import toolbox
from core import egress, plugins
from core.bus import embedded
from core.bus.endpoint import Endpoint, configured
from core.bus.upkeep import Upkeep
from core.chat import platforms
from core.chat.account import Accounts
from core.config.load import Additions, ConfigSource, parse
from core.config.settings import Config, Model
from core.errors import Invalid, ungrouped
from core.events import Aggregate, Record, RunRequested
from core.files.paths import THREADS
from core.identity.seal import Seal
from core.models.added import AddedModels
from core.phrases import counted
from core.ports.mcp import McpSessions
from core.ports.sandbox import Runs, SandboxProvider
from core.runtime import system
from core.runtime.applied import keep_record
from core.runtime.readiness import Readiness
from core.runtime.servers import Address, announce, announced, withdraw
from core.runtime.system import System
from core.views.projections import own_file

if TYPE_CHECKING:
    from actors.agent.setup.plan import RunSetup
    from channels.http.server.live import ToolListing, Trial
    from core.replay.exports.exporting import Reader
    from core.replay.exports.pins import Packed
    from core.replay.fork import Forked
    from core.replay.whatif.running import Changes, Experiment
    from core.runs.replay import Part, Read, Report

log = structlog.get_logger("sika.compose")

OPEN_FILES = 65_536
CLOSE_SECONDS = 5.0
DRAIN_SECONDS = 5.0
"""Default of `http.drain_seconds` where other servers may take over."""


@asynccontextmanager
async def serve(options: Options) -> AsyncIterator[str]:
    """Starts a whole server, and yields its URL when it accepts runs.

    Raises `Invalid` before it starts anything if a part of the configuration cannot be loaded.
    """
    source = ConfigSource(options.config)
    for warning in source.current().warnings:
        log.warning("configuration", warning=warning)
    check = partial(_check, options=options, project=source.project)
    await anyio.to_thread.run_sync(check, source.current(), abandon_on_cancel=True)
    source.require(check)
    with ungrouped():
        async with source.watched(), _server(options, source) as url:
            yield url


def _check(config: Config, options: Options, project: Path) -> None:
    from actors.wiring import names  # loads the agent's libraries, which readers of the log do not need

    http = msgspec.structs.replace(config.http, host=options.host or config.http.host)
    if wrong := problems(msgspec.structs.replace(config, http=http)):
        raise Invalid("\n  ".join(wrong))
    for remark in names.remarks(config, project):
        log.warning("configuration", warning=remark)


@asynccontextmanager
async def _server(options: Options, source: ConfigSource) -> AsyncIterator[str]:
    from channels.http import app

    _open_many()
    config = source.current()
    async with (
        _outside_closed(),
        endpoint(options, config) as place,
        _system(options, config, place) as (running, number),
        AsyncExitStack() as opened,
    ):
        await _refuse_stranger(running, options.home, place)
        models = AddedModels(running.log, Seal(options.home), source)
        await models.apply()
        provider = await sandboxes.provider_for(options.home, config, source.project)
        machines = machines_of(running, provider, lambda: source.current().sandbox)
        sessions = await opened.enter_async_context(mcp_sessions(running, options.home, source, provider))
        skills = library(running.log, source, options.home)
        environment = await sandboxes.environment_of(options.home, provider)
        load = partial(load_actors, running, source, options, provider, machines, sessions, skills, environment)
        loaded = await anyio.to_thread.run_sync(load, abandon_on_cancel=True)
        ready = Readiness(running, source)
        listed = [plugin.listed() for plugin in loaded.plugins]
        services = app.Services.of(running, source.current, options.home)
        services = replace(
            services, missing=ready.missing, plugins=listed, skills=skills, problem=lambda: source.problem
        )
        services = replace(services, written=source.written, models=models, try_model=_try_model)
        services = replace(services, tools=partial(tool_listings, Toolset(source.current()), source))
        services = replace(services, **_debugging(running, options), examine=options.examine)
        host = options.host or config.http.host
        port = config.http.port if options.port is None else options.port
        async with app.serve(services, host, port) as bound, anyio.create_task_group() as tasks:
            tasks.start_soon(keep_record, running.log, source, running.name)
            tasks.start_soon(models.follow)
            tasks.start_soon(egress.outside.keep_looking, lambda: source.current().http.public_url)
            if config.tracing.otlp.endpoint:
                from adapters.tracing.otlp import Exporter

                tasks.start_soon(Exporter(running.log, running.name, config.tracing, services.version).run)
            if isinstance(provider, Runs):
                tasks.start_soon(provider.run)
            alone = options.nats is None and config.nats.url is None
            await tasks.start(partial(running.serve, loaded.actors, alone=alone))
            log.info("actors", names=[actor.name for actor in loaded.actors])
            ready.working = True
            if machines is not None and any(actor.name == "sandbox" for actor in loaded.actors):
                opened.push_async_callback(Reaper(machines).stop)
                await Reaper(machines).begin()
            if options.actors is None or "chat" in options.actors:
                accounts = Accounts(running.log, source.current, Seal(options.home))
                tasks.start_soon(Supervisor(accounts, source, options.home, options.config, place, alone).run)
            url = f"http://{_host_in_url(host)}:{bound}"
            _announce(options.home, Address(url, os.getpid(), place.url), number)
            try:
                yield url
                withdraw(options.home, number)
                if options.drains:
                    await _drained(source.current(), ready, alone=alone)
            finally:
                tasks.cancel_scope.cancel()
                withdraw(options.home, number)


async def _refuse_stranger(running: System, home: Path, place: Endpoint) -> None:
    """Raises `Invalid` if the log is empty and the data directory is not: threads would seem lost, and others begin."""
    if not await running.log.last() and (problem := await stranger(home, place.url)):
        raise Invalid(problem)


async def stranger(home: Path, url: str) -> str | None:
    """Returns why an empty log is not that of a data directory; None if the directory has no threads, either."""
    threads = await anyio.to_thread.run_sync(lambda: len([*home.glob(THREADS)]), abandon_on_cancel=True)
    if not threads:
        return None
    return (
        f"the log at {url} is empty, but {home / 'users'} has the files of {counted(threads, 'thread')}: this is not "
        f"their log. Let NATS serve the folder that has it (store_dir, nats.prefix; of the server that sika "
        f"starts: {home}/nats/js), "
        "or name another data directory (--home). To begin anew, move the folder users away"
    )


async def _drained(config: Config, ready: Readiness, *, alone: bool) -> None:
    """Serves on for a while, so that balancers turn to other servers."""
    seconds = config.http.drain_seconds
    if seconds is None:
        seconds = 0 if alone else DRAIN_SECONDS
    if seconds:
        ready.drain()
        log.info("serving on before the end", seconds=seconds)
        await anyio.sleep(seconds)


async def _try_model(entry: Additions | Model) -> Trial:
    """Calls a model of the configuration, or as it would be there."""
    from adapters.models.configured import build
    from adapters.models.trial import tried
    from channels.http.server.live import Trial

    model = entry if isinstance(entry, Model) else parse("", added=entry._replace(version="trial")).models[0]
    started = anyio.current_time()
    try:
        problem = await tried(model, await anyio.to_thread.run_sync(build, model))
    except Invalid as error:
        problem = str(error)
    return Trial(problem is None, problem or "", anyio.current_time() - started)


def _debugging(running: System, options: Options) -> dict[str, Any]:
    """Returns the services that fork, replay and pin threads and execute what-ifs; their modules are loaded when they
    are used.
    """
    from core.replay.source import LogSource

    async def fork(aggregate: Aggregate, at: int, new: str) -> Forked:
        from actors.debugging.forks import fork_thread

        return await fork_thread(running.threads, LogSource(running.log), options.home, aggregate, at, new)

    async def what_if(changes: Changes, allow_effects: bool) -> Experiment:
        def make() -> Experiment:
            from actors.debugging.whatif import WhatIf

            source, log = LogSource(running.log), running.log
            return WhatIf(source, seen, changes, log=log, allow_effects=allow_effects, call=running.call)

        seen = await with_added(options, running.log)
        return await anyio.to_thread.run_sync(make)

    async def replay_run(read: Read, aggregate: Aggregate, part: Part) -> Report:
        from actors.debugging import rehearsal

        seen = await with_added(options, running.log)
        prepared = await anyio.to_thread.run_sync(rehearsal.Rehearsal, LogSource(running.log), seen, running.log)
        return await prepared.replay_part(read, aggregate, part, rehearsal.yielding)

    async def pin(reader: Reader, aggregate: Aggregate, records: Sequence[Record], name: str) -> Packed:
        from actors.debugging import pins

        return await pins.packed(reader, aggregate, records, name, await with_added(options, running.log))

    return {"fork": fork, "what_if": what_if, "replay": replay_run, "pin": pin}


@asynccontextmanager
async def _outside_closed() -> AsyncIterator[None]:
    """Closes connections to models, which belong to this event loop, and sends remaining traces; with deadlines."""
    try:
        yield
    finally:
        if factory := sys.modules.get("adapters.models.factory"):  # else no model was ever asked
            await factory.close()
        if other_agents := sys.modules.get("adapters.acp.agents"):
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
                await other_agents.close()
        if tracing := sys.modules.get("adapters.tracing.callbacks"):
            with anyio.CancelScope(shield=True):  # it has a deadline of its own
                await tracing.close()


@asynccontextmanager
async def attach(options: Options) -> AsyncIterator[System]:
    """The bus and log of the data directory's running server; if none runs, of a nats-server started for the moment."""
    with ungrouped():
        async with nearest(options) as place, reading(options, place) as running:
            yield running


@asynccontextmanager
async def nearest(options: Options) -> AsyncIterator[Endpoint]:
    """Yields the NATS of the data directory's running server; if none runs, one started for the moment."""
    config = ConfigSource(options.config).current()
    address = running_server(options.home)
    if address is not None and options.nats is None and config.nats.url is None:
        token = (options.home / "secrets" / "nats_token").read_text().strip()
        yield Endpoint(address.nats, token=token, prefix=config.nats.prefix)
        return
    async with endpoint(options, config) as place:
        yield place


@asynccontextmanager
async def reading(options: Options, place: Endpoint) -> AsyncIterator[System]:
    """Starts a system that executes nothing, for what reads the log."""
    warn_of(plugins.load_events())
    async with _reader(options, ConfigSource(options.config).current(), place) as running:
        yield running


async def plan(running: System, request: RunRequested, user: str, options: Options) -> RunSetup:
    """Plans a run without executing it. Raises `Invalid`, and `NotFound` for an unknown agent."""
    from actors.agent.setup.environment import remembered
    from actors.agent.setup.plan import Planner
    from adapters.models.configured import Silent
    from core.mcp.tools import Catalogue
    from core.user.agents import aggregates

    source = (await with_added(options, running.log)).source()
    tools, rosters = Toolset(source.current()), aggregates(running.log)
    skills, catalogue = library(running.log, source, options.home), Catalogue(running.log)
    environment = remembered(options.home)
    planner = Planner(source, Silent(), tools, rosters, options.home, skills, catalogue, environment)
    return await planner.plan(request, user)


def running_server(home: Path) -> Address | None:
    """Returns the address of a live server of the data directory, or None."""
    return next(iter(announced(home)), None)


def _open_many() -> None:
    """Lets this process open as many files and connections as the system lets it have: a run at work has two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def endpoint(options: Options, config: Config) -> AsyncIterator[Endpoint]:
    """Yields the configured NATS, or an embedded nats-server."""
    nats = config.nats
    url = options.nats or nats.url
    if url is None:
        async with embedded.start(options.home, nats.start_seconds) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(server.keep)
            try:
                yield Endpoint(
                    server.url,
                    token=server.token,
                    prefix=nats.prefix,
                    embedded=True,
                    trouble=lambda: server.trouble,
                )
            finally:
                tasks.cancel_scope.cancel()
        return
    yield configured(nats, url)


@asynccontextmanager
async def _system(options: Options, config: Config, endpoint: Endpoint) -> AsyncIterator[tuple[System, int]]:
    """Starts the system; yields it and its number among the data directory's processes. Waits for NATS."""
    endpoint = replace(endpoint, patience=config.nats.start_seconds)
    with own_file(options.home) as (views, number):
        async with system.start(
            endpoint,
            views,
            lease_seconds=config.runs.lease_seconds,
            slots=config.runs.max_concurrent,
            most_waiting=config.runs.max_waiting,
        ) as running:
            yield running, number


@asynccontextmanager
async def _reader(options: Options, config: Config, endpoint: Endpoint) -> AsyncIterator[System]:
    """Starts a system without loops: it executes nothing, and keeps no views."""
    lease, slots = config.runs.lease_seconds, config.runs.max_concurrent
    upkeep = Upkeep.MISSING if options.writes or endpoint.embedded else Upkeep.NONE
    async with system.start(
        endpoint, options.home / "views.db", lease_seconds=lease, slots=slots, loops=False, upkeep=upkeep
    ) as running:
        yield running


def problems(config: Config) -> list[str]:
    """Returns an error with its key for each part of the configuration that cannot be loaded. `serve` refuses them.

    Imports tools, actors, middlewares, guardrails and models, which takes seconds: a server calls it in a thread.
    """
    importlib.import_module("adapters.tracing.light")  # before LangChain
    from actors.agent.check import check
    from adapters import guardrails

    errors = list(platforms.problems(config))
    for load in _loads(config):
        try:
            load()
        except Invalid as error:
            errors.append(str(error))
    if not errors:
        try:
            check(config, load_tools(config.tools, config.tools_exclusive), guardrails.load(config.guardrails))
        except Invalid as error:
            errors.append(str(error))
    return errors


def _loads(config: Config) -> Iterator[Callable[[], object]]:
    """Yields a loader for each thing that the configuration names."""
    from actors.agent.loop import chain
    from adapters import guardrails
    from adapters.models import configured
    from adapters.tracing import callbacks
    from channels.http import app

    yield partial(app.check_host, config, config.http.host)
    yield partial(provider_of, config)
    yield load_tools
    for number, entry in enumerate(config.tools):
        yield partial(toolbox.of_entry, entry, number)
    yield partial(actor_classes, config.actors, Parts.__annotations__, config.installed)
    yield partial(guardrails.load, config.guardrails)
    for number, middleware in enumerate(config.middlewares):
        yield partial(chain.of_entry, middleware, f"middlewares[{number}]")
    for model in config.models:
        yield partial(configured.build, model)
    yield partial(callbacks.check, config.tracing)


def mcp_sessions(
    running: System, home: Path, source: ConfigSource, provider: SandboxProvider
) -> AbstractAsyncContextManager[McpSessions]:
    """Returns what keeps the sessions with MCP servers; the processes that keep them are started when they are used."""
    from adapters.mcp.confine import confine
    from adapters.mcp.sessions import opened

    access = mcp_access(running, home, source)
    return opened(home, lambda: source.current().mcp, partial(confine, provider, home), access)


def tool_listings(tools: Toolset, source: ConfigSource) -> list[ToolListing]:
    """Returns the tools that the configuration declares, as they are described to models."""
    from actors.agent.loop.arguments import schema_of
    from channels.http.server.live import ToolListing

    declared = tools(source.current())
    return [ToolListing(tool.name, tool.description, schema_of(tool), tool.effect) for tool in declared]


def _announce(home: Path, address: Address, number: int) -> None:
    try:
        announce(home, address, number)
    except OSError as error:
        raise Invalid(f"data directory {home} cannot be used: {error.filename}: {error.strerror}") from error


def _host_in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
