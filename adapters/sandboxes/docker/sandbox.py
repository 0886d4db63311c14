"""A thread's sandbox in a container: commands by the agent in it, files by the server on the mounted folders."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import structlog
from anyio import to_thread

from adapters.sandboxes.docker.agent import Agent
from adapters.sandboxes.docker.background import Background, Egress
from adapters.sandboxes.docker.calls import Box, Call
from adapters.sandboxes.docker.engine import EngineAway
from adapters.sandboxes.files.operations import Files
from adapters.sandboxes.process import listening, quota
from adapters.sandboxes.process.record import FIRST_PAUSE, LAST_PAUSE, LOOK_AGAIN, NEVER_STARTED, PATIENCE
from adapters.sandboxes.process.usage import Growth
from core.errors import Unavailable
from core.files.paths import Tree
from core.ports.sandbox import Access, ExecResult, MachineLost, Output, ShellCommand

log = structlog.get_logger("sika.sandbox")

ENGINE_SECONDS = 60.0
"""Time for an engine that was stopped to come back. Commands run on meanwhile."""
RESEND_SECONDS = 5.0
"""Seconds after which an order that shows no effect is sent again."""
KILL_SECONDS = 1.0
"""The same for the order to end a command."""
POLL_SHARE = 0.2
"""The outcome of a command is seen when at most a fifth of its time has passed since."""
PROBE_SECONDS = 2.0
"""Seconds between two questions whether a command's supervising shell lives."""
WATCH_PROBE_SECONDS = 30.0
"""The same for a command in the background: whoever asks for its output asks for its shell, too."""
START_SECONDS = 60.0
"""Time for a command to begin: the engine is slow when a machine is full."""
PORTS_SECONDS = 2.0
"""Time for the agent to look for the ports of a command."""
PORTS_BYTES = 256 << 10
GRACE = 30.0
"""Seconds after a command's timeout until its machine is ended, because the agent in it could not end the command."""


class DockerSandbox(Files):
    """Guarantees: those of the port. A command runs on when the server or the engine ends, and stops at its timeout.
    Non-guarantees: the quota is enforced while a server waits for the command, or knows of it in the background. A
    process that clears its environment may run on until no other command runs.
    """

    def __init__(
        self,
        root: Path,
        tree: Tree,
        machine: Path,
        agent: Agent,
        max_file_mb: int,
        limits: quota.Quota,
        environment: Mapping[str, str],
        abandon: Callable[[], Awaitable[None]],
        egress: Egress,
        background: Background,
    ) -> None:
        super().__init__(root, tree, max_file_mb, limits)
        self._machine, self._agent, self._abandon = machine, agent, abandon
        self._max_file_mb, self._limits, self._environment = max_file_mb, limits, environment
        self._egress, self._background = egress, background

    async def exec(self, call_id: str, command: ShellCommand, on_output: Callable[[str], None]) -> ExecResult:
        call = self._call(call_id)
        try:
            async with self._egress.open(call):
                return await self._follow(call, _Order(self, call, command), on_output)
        finally:
            call.close()

    async def start(self, call_id: str, command: ShellCommand) -> None:
        call = self._call(call_id)
        await to_thread.run_sync(call.admit, command.text)
        await self._hold(call)
        order, pause = _Order(self, call, command), FIRST_PAUSE
        while (state := await to_thread.run_sync(call.advance, command.text)) == "unsent":
            await order.pursue(state)
            await anyio.sleep(pause)
            pause = min(pause * 1.5, LAST_PAUSE)

    async def output(self, call_id: str, after: int = 0) -> Output:
        call = self._call(call_id)
        part = await to_thread.run_sync(call.output, after)
        if part.result is None:
            await self._hold(call)  # the server that started it may be gone
        if part.result is None and not part.text:  # it may have lost its supervising shell, or its machine
            try:
                await self._agent.probe(call.name)
            except MachineLost:
                await to_thread.run_sync(call.settle)
                return await to_thread.run_sync(call.output, after)
            except Unavailable as error:
                log.info("a command in the background was not looked after", call=call_id, reason=str(error))
        return part

    async def ports(self, call_id: str) -> Sequence[int]:
        call, file = self._call(call_id), f"ports-{secrets.token_hex(4)}"
        box, text = Box(self._machine, call.name), b""
        try:
            await self._agent.listen(call.name, file)
            with anyio.move_on_after(PORTS_SECONDS):
                while not text.endswith(b"\nend\n"):
                    await anyio.sleep(FIRST_PAUSE)
                    text = await to_thread.run_sync(box.read, file, PORTS_BYTES)
        except Unavailable as error:
            log.info("the ports of a command are not known", call=call_id, reason=str(error))
        await to_thread.run_sync(box.remove, file)
        return listening.ports_in(text)

    async def kill(self, call_id: str) -> None:
        call = self._call(call_id)
        begun, pause, sent = time.monotonic(), FIRST_PAUSE, 0.0
        while await to_thread.run_sync(call.is_sent):
            if isinstance(await to_thread.run_sync(call.advance), ExecResult):
                return
            waited = time.monotonic() - begun
            try:
                if waited > PATIENCE:
                    await self._abandon()
                    break
                if time.monotonic() - sent > KILL_SECONDS:  # each order is a walk over all processes
                    await self._agent.end(call.name, "interrupted")
                    sent = time.monotonic()
            except MachineLost:
                break
            except Unavailable:
                if waited > ENGINE_SECONDS:
                    raise
            await anyio.sleep(pause)
            pause = min(pause * 1.5, LAST_PAUSE)
        await to_thread.run_sync(call.settle)

    async def _follow(self, call: Call, order: _Order, on_output: Callable[[str], None]) -> ExecResult:
        await to_thread.run_sync(call.admit, order.command.text)
        usage, begun = Growth(str(self.root), self._limits), time.monotonic()
        while True:
            state, text = await to_thread.run_sync(_look, call, order.command.text)
            if text:
                on_output(text)
            if isinstance(state, ExecResult):
                await to_thread.run_sync(usage.finish)
                return state
            await order.pursue(state)
            if state == "running" and (reason := await to_thread.run_sync(usage.excess)):
                await self._agent.end(call.name, "stopped", reason)
            await anyio.sleep(min(max(FIRST_PAUSE, (time.monotonic() - begun) * POLL_SHARE), LAST_PAUSE))

    async def accesses(self, call_id: str) -> Sequence[Access]:
        return await self._egress.accesses(self._call(call_id))

    async def _hold(self, call: Call) -> None:
        own = Call(call.record, self._machine)
        await self._background.hold(own, self._egress, partial(self._watch, own))

    async def _watch(self, call: Call) -> None:
        """Ends a command in the background that exceeds a limit of files. Returns when it has ended, or its machine."""
        usage, since, probed = Growth(str(self.root), self._limits), time.monotonic(), time.monotonic()
        reason: str | None = None
        while (state := await to_thread.run_sync(call.advance)) == "running" or (
            state == "unsent" and time.monotonic() - since < NEVER_STARTED
        ):
            reason = reason or (await to_thread.run_sync(usage.excess) if state == "running" else None)
            try:
                if reason:
                    await self._agent.end(call.name, "stopped", reason)
                elif time.monotonic() - probed > WATCH_PROBE_SECONDS:
                    probed = time.monotonic()
                    await self._agent.probe(call.name)
            except MachineLost:
                return
            except Unavailable as error:
                log.info("a command in the background was not looked after", call=call.name, reason=str(error))
            await anyio.sleep(LOOK_AGAIN)
        await to_thread.run_sync(usage.finish)

    def _call(self, call_id: str) -> Call:
        return Call(self.calls.record(call_id), self._machine)


class _Order:
    """A command on its way to the agent, and the watch over what becomes of it."""

    def __init__(self, sandbox: DockerSandbox, call: Call, command: ShellCommand) -> None:
        self._sandbox, self._call, self.command = sandbox, call, command
        self._environment = {**sandbox._environment, **command.environment}
        self._begun = self._probed = time.monotonic()
        self._sent = self._away = 0.0

    async def pursue(self, state: str) -> None:
        """Sends the order, or asks for the command, where it is time for that. Raises `MachineLost`, unless the outcome
        is known, and `Unavailable` when the engine or the agent was away for too long.
        """
        now = time.monotonic()
        try:
            if state == "unsent":
                await self._send(now)
            elif now - self._begun > self.command.timeout + GRACE:
                await self._sandbox._abandon()
                raise MachineLost("the sandbox was ended, because a command in it could not be stopped")
            elif now - self._probed > PROBE_SECONDS or self._sandbox._agent.lost():
                self._probed = now
                await self._sandbox._agent.probe(self._call.name)
            self._away = 0.0
        except MachineLost:
            # Its last outcome may have come after we looked.
            if not isinstance(await to_thread.run_sync(self._call.advance), ExecResult):
                raise
        except Unavailable as error:
            self._away = self._away or now
            cannot_start = state == "unsent" and not isinstance(error, EngineAway)
            if cannot_start or now - self._away > ENGINE_SECONDS:
                raise

    async def _send(self, now: float) -> None:
        if now - self._begun > START_SECONDS + ENGINE_SECONDS:
            raise Unavailable("docker: the command was not started in time; the sandbox may have too many processes")
        if now - self._sent > RESEND_SECONDS or self._sandbox._agent.lost():
            await self._sandbox._agent.run(
                self._call.name,
                self.command.timeout,
                self._sandbox._max_file_mb,
                self._sandbox._egress.prefix(self._call),
                self.command.text,
                self._environment,
            )
            self._sent = self._probed = time.monotonic()


def _look(call: Call, command: str) -> tuple[ExecResult | str, str]:
    """Returns the state of a call, and what it said since the last look."""
    text = call.more()
    state = call.advance(command)
    return state, text + (call.more() if isinstance(state, ExecResult) else "")
