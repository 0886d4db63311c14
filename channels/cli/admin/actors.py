"""`sika actors`: what runs where."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec

from channels.cli.common import OK, options_of
from channels.cli.verbs import Parser
from channels.terminal.text import one_line
from core.phrases import counted
from core.runtime.vitals import ActorReport, Overview, ProcessReport, overview


def arguments(parser: Parser) -> None:
    parser.runs(_actors)
    parser.add_argument("--json", action="store_true")


async def _actors(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    async with compose.attach(options_of(arguments)) as system:
        report = await overview(system.bus, await system.log.last())
    print(msgspec.json.encode(report).decode() if arguments.json else "\n".join(lines(report)))
    return OK


COLUMNS = ("ACTOR", "IN FLIGHT", "DONE", "FAILED", "RESTARTS", "POSITION", "LAG", "P50 MS", "P95 MS", "CONSUMES")
ROW = "  {:<14}{:>10}{:>8}{:>8}{:>10}{:>10}{:>7}{:>9}{:>9}  {}"


def lines(overview: Overview) -> Iterator[str]:
    """Yields a table for each process, and the wake-ups that wait."""
    for process in overview.processes:
        yield f"{process.process}  pid {process.pid} on {process.host}, since {process.started_at[:19]}{_load(process)}"
        yield ROW.format(*COLUMNS)
        for actor in process.actors:
            yield from _row(actor, overview.position)
    if not overview.processes:
        yield "no process reports"
    running = {actor.name for process in overview.processes for actor in process.actors}
    for backlog in overview.backlogs:
        if backlog.waiting or backlog.delivered:
            nowhere = "" if backlog.actor.partition("~")[0] in running else "; it runs nowhere"
            lag = "" if backlog.lag_seconds is None else f", the first for {backlog.lag_seconds:g} s"
            waiting = counted(backlog.waiting, "wake-up")
            yield f"{backlog.actor}: {waiting} waiting{lag}, {backlog.delivered} delivered{nowhere}"


def _load(process: ProcessReport) -> str:
    if process.memory_bytes is None or process.cpu_percent is None:
        return ""
    return f", {process.memory_bytes >> 20} MiB, {process.cpu_percent:g} % of a processor"


def _row(actor: ActorReport, last: int) -> Iterator[str]:
    position = "" if actor.position is None else actor.position
    lag = "" if actor.position is None else max(0, last - actor.position)
    consumes = ", ".join(actor.consumes) or "requests"
    durations = ("" if ms is None else f"{ms:g}" for ms in (actor.p50_ms, actor.p95_ms))
    flight = f"{actor.in_flight}/{actor.limit}"
    counts = (actor.handled, actor.failed, actor.restarts)
    yield ROW.format(actor.name, flight, *counts, position, lag, *durations, one_line(consumes, 60))
    if actor.last_error is not None:
        yield f"    last error {actor.last_error.at[:19]}: {one_line(actor.last_error.text, 120)}"
