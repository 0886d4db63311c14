"""`sika doctor`: what is wrong with this machine and the configuration, by `channels.cli.checks`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from channels.cli.admin import cluster
from channels.cli.checks import Check
from channels.cli.common import options_of, port_number
from channels.cli.verbs import Parser
from channels.client.servers import announced, healthy
from channels.terminal.text import style_of
from core.bus import embedded, streams
from core.bus.subjects import Subjects
from core.config.load import ConfigSource, load
from core.config.settings import Config
from core.errors import Invalid, SikaError, Unavailable
from core.mcp.servers import aggregates, in_force
from core.ports.sandbox import Explains
from core.runtime.readiness import Finding

if TYPE_CHECKING:
    from actors.wiring.options import Options


ADDED_SECONDS = 10.0
"""Time to read which models were added beside the configuration file."""


def arguments(parser: Parser) -> None:
    parser.runs(_doctor)
    parser.add_argument(
        "--port", type=port_number, help="the port that a server would listen on (default: as configured)"
    )
    parser.add_argument("--call", action="store_true", help="ask each model one short question, which may cost money")


async def _doctor(arguments: argparse.Namespace) -> int:
    from channels.cli import checks as doctor

    checks = await checks_of(options_of(arguments), arguments.port, call=arguments.call)
    return await doctor.examine(checks, print, style_of(sys.stdout))


async def findings(options: Options, port: int | None) -> list[Finding]:
    """Returns what all checks find; of a server that listens on a port. No model is asked."""
    from channels.cli import checks as doctor

    checks = await checks_of(options, port, call=False)
    return [finding for name, check in checks for finding in await doctor.findings_of(name, check)]


async def checks_of(options: Options, port: int | None, *, call: bool) -> list[tuple[str, Check]]:
    """Returns the checks of an installation by name. `call`: each model is asked a question."""
    from actors.wiring import compose
    from channels.cli import checks as doctor

    checks: list[tuple[str, Check]] = [
        ("Python", doctor.python),
        ("configuration", partial(doctor.configuration, options.config, options.home)),
        ("data directory", partial(doctor.disk, options.home)),
    ]
    url = announced(options.home)
    running = url if url is not None and await healthy(url) else None
    if running:
        checks += [("server", partial(doctor.server, running)), ("MCP", partial(_mcp, options))]
    try:
        config = load(options.config)
    except Invalid:  # reported by the check; checks that need the configuration are impossible
        return checks
    if not running:
        checks.append(("MCP", partial(_unreached, config)))
    loading = partial(doctor.loading, partial(compose.problems, config), partial(_remarks, options))
    checks.append(("loading", loading))
    external = options.nats or config.nats.url
    address = compose.running_server(options.home) if running else None
    if external is None and address is not None and doctor.lock_holder(options.home) is None:
        external = address.nats  # its server was started with --nats, or with another configuration
        options = replace(options, nats=external)
    checks.append(("NATS", partial(_cluster, options, config)) if external else ("nats-server", doctor.nats_server))
    if not running:
        checks.append(("log", partial(_log, options, config, external)))
    if port is None:
        port = urlsplit(running).port if running else config.http.port
    checks += [
        ("port", partial(doctor.port, options.home, config.http.host, port or config.http.port)),
        ("sandbox", partial(_sandbox, options, config)),
        ("sandbox", partial(strength, options, config)),
        ("plug-ins", partial(_plugged, config)),
        *_models(await _configured(options) if running else options.source(), options.home, call),
    ]
    return checks


async def _configured(options: Options) -> ConfigSource:
    """Returns the configuration with the models that were added beside the file; without them if the log cannot
    be read, which its own check says.
    """
    from actors.wiring import compose
    from actors.wiring.added import with_added

    with contextlib.suppress(SikaError), anyio.move_on_after(ADDED_SECONDS):
        async with compose.attach(options) as system:
            options = await with_added(options, system.log)
    return options.source()


def _remarks(options: Options) -> list[str]:
    from actors.wiring import names

    source = ConfigSource(options.config)
    return names.remarks(source.current(), source.project)


async def _mcp(options: Options) -> list[Finding]:
    """Says how each server is, and names tools that are left out, and those that changed since somebody saw them."""
    from actors.wiring import compose
    from channels.cli.extend import mcp

    config = load(options.config)
    async with compose.attach(options) as system:
        states = aggregates(system.log)
        return [
            *await mcp.changes(states),
            *await mcp.health(states, lambda state: in_force(config, state, lambda _: "")),
        ]


async def _unreached(config: Config) -> list[Finding]:
    from channels.cli.extend import mcp

    return mcp.unreached(config.mcp.servers)


async def _cluster(options: Options, config: Config) -> list[Finding]:
    from actors.wiring import compose

    async with compose.endpoint(options, config) as endpoint:
        return await cluster.examine(endpoint)


async def _log(options: Options, config: Config, external: str | None) -> list[Finding]:
    """Says an empty log beside the files of threads, with which no server starts."""
    from actors.wiring import compose

    if external is None:
        empty = not embedded.has_stored(options.home, Subjects(config.nats.prefix).stream("log"))
    else:
        try:
            async with (
                compose.endpoint(options, config) as endpoint,
                streams.visit(endpoint, "sika doctor") as (bus, _),
            ):
                empty = await streams.is_empty(bus, "log")
        except Unavailable:
            return []  # the check of NATS says it
    problem = await compose.stranger(options.home, external or f"{options.home}/nats/js") if empty else None
    return [Finding("log", "fail", problem)] if problem else []


async def _plugged(config: Config) -> list[Finding]:
    from actors.wiring import parts
    from channels.cli.extend import plugins

    try:
        listed = await anyio.to_thread.run_sync(parts.plugins_of, config, abandon_on_cancel=True)
    except Invalid:
        return []  # of what the configuration names: the check of what can be loaded says it
    return plugins.findings([plugin.listed() for plugin in listed])


async def _sandbox(options: Options, config: Config) -> list[Finding]:
    """Checks the sandbox provider that a server would use."""
    from actors.wiring import sandboxes

    settings = config.sandbox
    stronger: Mapping[str, str] = {}
    try:
        if settings.provider == "auto":
            provider, stronger = await sandboxes.strongest(options.home, config)
        else:
            provider = await sandboxes.provider_for(options.home, config)
        problem = await provider.check()
    except (Unavailable, Invalid) as error:
        return [Finding("sandbox", "fail", str(error))]
    if stronger and provider.name == "host" and not settings.allow_host_bash:
        text = f"{', '.join(stronger)} does not work here: the agent has file tools, but cannot run commands"
        return [Finding("sandbox", "warn", text, " ".join(stronger.values()))]
    if problem:
        return [Finding("sandbox", "fail", f"{provider.name} does not work", problem)]
    if provider.name == "host" and settings.allow_host_bash:
        text = "host: commands run unconfined as this user"
        return [Finding("sandbox", "warn", text, "choose sandbox.provider: bubblewrap unless you trust every prompt")]
    if provider.name == "host":
        return [Finding("sandbox", "ok", "host, file tools only")]
    because = f", as {', '.join(stronger)} does not work here" if stronger else ""
    chosen = ", the strongest that works here" if settings.provider == "auto" else ""
    return [Finding("sandbox", "ok", provider.name + chosen + because, " ".join(stronger.values()))]


async def strength(options: Options, config: Config) -> list[Finding]:
    """Returns which limits of the sandbox are in force, and its gaps. Whether it works is for `_sandbox`."""
    from actors.wiring import sandboxes

    try:
        provider = await sandboxes.provider_for(options.home, config)
    except (Unavailable, Invalid):
        return []
    if not isinstance(provider, Explains):
        return []
    weak = [Finding("sandbox", "warn", weakness) for weakness in provider.weaknesses()]
    return [Finding("sandbox", "ok", provider.strength()), *weak]


def _models(source: ConfigSource, home: Path, call: bool) -> list[tuple[str, Check]]:
    from channels.cli import checks as doctor

    models = source.current().models
    if not models:
        return [("model", doctor.demo)]
    from adapters.models.configured import Configured

    build = partial(Configured(source).get, thinking=False, reasoning_effort=None)
    return [
        *(("model", partial(doctor.model, model, build, call=call)) for model in models),
        ("model", partial(doctor.failures, home, [model.name for model in models])),
    ]
