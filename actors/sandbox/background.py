"""Commands that run on while the agent does something else.

That a command runs, and how much of its output the agent has seen, are facts (`core.sandbox`), so every worker can
answer for it, also after a restart. A call that is repeated after a crash starts nothing again, and shows the same
output again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import anyio

from actors.excerpt import cut
from actors.sandbox.requests import End, Output, Start
from actors.sandbox.words import MOST_OUTPUT
from core.config.sandbox import Sandbox as Limits
from core.errors import Invalid, NotFound
from core.events import Event
from core.ids import now, stamp
from core.log.repository import Repository
from core.ports.sandbox import ExecResult, ListsPorts, Machine, RunsInBackground, Sandbox, ShellCommand
from core.ports.sandbox import Output as Chunk
from core.sandbox.facts import CommandEnded, CommandRead, CommandStarted
from core.sandbox.state import Command, Lease, key_of

ACTOR = "sandbox"
MOST_WAIT = 300.0
"""Limit of seconds that a request waits for the end of a command."""
PAUSE = 0.25
"""Seconds between two looks at a command whose end is awaited."""
ENDS = {
    "timeout": "it was stopped after its time limit",
    "interrupted": "it was ended",
    "lost": "it ended with its sandbox",
}


class Background:
    """The commands in the background of all threads."""

    def __init__(self, leases: Repository[Lease], limits: Limits) -> None:
        self._leases, self._limits = leases, limits

    async def start(self, request: Start, sandbox: Sandbox, machine: Machine | None, command: ShellCommand) -> str:
        """Starts a command once, and returns its id with words for the agent. Raises `Invalid`."""
        runner, key, id = _runner(sandbox), key_of(request.user, request.thread), command_id(request.key)
        lease, there = await self._leases.load(key), machine.id if machine else ""
        if (known := lease.commands.get(id)) and (known.ended or known.machine != there):
            return ended(id, known.ended or "lost", None)  # a repeated call
        if known is None:
            await self._within_limit(key, lease, runner)
            until = stamp(datetime.now(UTC) + timedelta(seconds=command.timeout))
            await self._begin(key, CommandStarted(command=id, until=until, machine=there))
        try:
            await runner.start(id, command)
        except Invalid:
            await self._append(key, id, [CommandEnded(command=id, ended="interrupted")])
            raise
        return (
            f"{id} runs in the background, for {command.timeout:g} seconds at most. "
            f'Its output: bash_output(id="{id}"). To end it: bash_kill(id="{id}").'
        )

    async def output(self, request: Output, sandbox: Sandbox) -> str:
        """Returns the output that the agent has not seen, and how the command stands."""
        key, command = await self._known(request)
        after = command.after if command.call == request.key else command.place
        try:
            chunk = await _awaited(_runner(sandbox), request, after)
        except NotFound:
            await self._append(key, request.id, [CommandEnded(command=request.id, ended="lost")])
            return ended(request.id, "lost", None)
        read = CommandRead(command=request.id, call=request.key, after=after, place=chunk.place)
        seen = command.call == request.key and command.place == chunk.place
        events: list[Event] = [] if seen else [read]
        await self._append(key, request.id, [*events, *_end(request.id, command, chunk)])
        ports = await sandbox.ports(request.id) if chunk.result is None and isinstance(sandbox, ListsPorts) else ()
        return self._text_of_chunk(request.id, chunk, ports)

    async def end(self, request: End, sandbox: Sandbox) -> str:
        """Ends a command, and returns its last output."""
        await self._known(request)
        await sandbox.kill(request.id)
        user, thread, run, call_id = request.user, request.thread, request.run, request.call_id
        return await self.output(Output(user=user, thread=thread, run=run, call_id=call_id, id=request.id), sandbox)

    async def gone(self, request: Output | End) -> str | None:
        """Returns the words for a command whose machine has ended; None if it may be there."""
        key, command = await self._known(request)
        machine = (await self._leases.load(key)).machine
        there = machine is not None and machine.id == command.machine
        return None if there else f"{ended(request.id, command.ended or 'lost', None)} Its output is gone."

    async def _known(self, request: Output | End) -> tuple[str, Command]:
        key = key_of(request.user, request.thread)
        commands = (await self._leases.load(key)).commands
        if request.id not in commands:
            there = ", ".join(commands) or "none"
            raise Invalid(f"id: there is no command {request.id[:80]!r} in the background; there are: {there}")
        return key, commands[request.id]

    async def _within_limit(self, key: str, lease: Lease, runner: RunsInBackground) -> None:
        """Raises `Invalid` if too many commands run. Looks at each before, as it may have ended."""
        if len(running := lease.running(now())) < self._limits.max_background:
            return
        for name in running:
            try:
                chunk = await runner.output(name, lease.commands[name].place)
            except NotFound:
                await self._append(key, name, [CommandEnded(command=name, ended="lost")])
            else:
                await self._append(key, name, _end(name, lease.commands[name], chunk))

    async def _begin(self, key: str, started: CommandStarted) -> None:
        def decide(lease: Lease) -> Sequence[Event]:
            if started.command in lease.commands:
                return []
            running = lease.running(now())
            if len(running) >= self._limits.max_background:
                raise Invalid(
                    f"background: {len(running)} commands run already, which is the limit: {', '.join(running)}. "
                    "End one with bash_kill."
                )
            return [started]

        await self._leases.decide(key, decide, actor=ACTOR)

    async def _append(self, key: str, command: str, events: Sequence[Event]) -> None:
        """Appends events about a command, unless it is known to have ended."""

        def decide(lease: Lease) -> Sequence[Event]:
            known = lease.commands.get(command)
            over = known is None or bool(known.ended)
            return [event for event in events if not (over and isinstance(event, CommandEnded))]

        if events:
            await self._leases.decide(key, decide, actor=ACTOR)

    def _text_of_chunk(self, name: str, chunk: Chunk, ports: Sequence[int]) -> str:
        limit = min(self._limits.bash_output_max_chars or MOST_OUTPUT, MOST_OUTPUT)
        text = cut(chunk.text.rstrip("\n"), limit) or "(no new output)"
        result = chunk.result
        where = f" and listens on localhost:{', localhost:'.join(map(str, ports))}" if ports else ""
        head = f"{name} is running{where}." if result is None else ended(name, result.ended, result.exit_code)
        return f"{head}\n{text}"


async def _awaited(runner: RunsInBackground, request: Output, after: int) -> Chunk:
    """Returns the output of a command when it has ended, or when the request has waited for long enough."""
    until = anyio.current_time() + min(request.wait_seconds, MOST_WAIT)
    while True:
        chunk = await runner.output(request.id, after)
        left = until - anyio.current_time()
        if chunk.result is not None or left <= 0:
            return chunk
        await anyio.sleep(min(left, PAUSE))


def command_id(key: str) -> str:
    """Returns the id of the command that a call starts."""
    return f"bg-{hashlib.blake2b(key.encode(), digest_size=5).hexdigest()}"


def ended(name: str, how: str, exit_code: int | None) -> str:
    """Returns the words for a command that has ended."""
    how = ENDS.get(how, "by itself" if exit_code is None else f"exit code {exit_code}")
    return f"{name} has ended: {how}."


def _end(name: str, command: Command, chunk: Chunk) -> Sequence[Event]:
    result: ExecResult | None = chunk.result
    if result is None or command.ended:
        return []
    return [CommandEnded(command=name, ended=result.ended, exit_code=result.exit_code)]


def _runner(sandbox: Sandbox) -> RunsInBackground:
    if not isinstance(sandbox, RunsInBackground):
        raise Invalid("background: this sandbox runs no commands in the background")
    return sandbox
