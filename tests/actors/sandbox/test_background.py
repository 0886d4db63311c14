"""Commands in the background, as the agent's tools see them: on a real log, and on machines that can die."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.sandbox import Sandbox
from adapters.sandboxes.host.sandbox import Host
from adapters.tools.bash import bash
from adapters.tools.bash_kill import bash_kill
from adapters.tools.bash_output import bash_output
from core.bus.endpoint import Endpoint
from core.config.sandbox import Sandbox as Limits
from core.config.sandbox import Sandbox as Settings
from core.errors import Invalid
from core.events import Aggregate, ThreadCreated, ThreadErased, thread
from core.ids import now
from core.ports.sandbox import SandboxSetup
from core.runtime import system
from core.runtime.system import System
from core.sandbox.facts import CommandEnded, CommandRead, CommandStarted, SandboxAcquired, SandboxUsed
from core.sandbox.state import KIND, key_of
from core.tools import Result, Tool
from tests.adapters.sandboxes.conftest import running, settings
from tests.support.machines import Processes, alive, cut, quick, worker
from tests.support.nats import read
from tests.support.workers import wait_for

USER, THREAD = "ada", "t1"


class Agent:
    """A context of tools that asks the actor over the bus."""

    thread, user, run, subagent, channel_user = THREAD, USER, "r1", None, ""

    def __init__(self, running: System) -> None:
        self.system, self.call_id = running, "c0"
        self.call_id_of: dict[str, str] = {}
        """The calls that started commands."""

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        return await self.system.call(actor, request)

    async def use(self, tool: Tool, call_id: str = "", **arguments: Any) -> str:
        self.call_id = call_id or f"c{int(self.call_id[1:]) + 1}"
        result: str | Result = await tool.function(self, **arguments)
        return result.text if isinstance(result, Result) else result

    async def begin(self, command: str, call_id: str = "") -> str:
        """Returns the id of a command that was started."""
        words = await self.use(bash, call_id, command=command, background=True)
        assert "runs in the background" in words
        self.call_id_of[words.split()[0]] = self.call_id
        return words.split()[0]

    async def reads(self, name: str, text: str) -> str:
        """Returns the answer that has a text."""
        with anyio.fail_after(60):
            while True:
                answer = await self.use(bash_output, id=name)
                if text in answer:
                    return answer
                await anyio.sleep(0.05)

    async def rest(self, name: str) -> tuple[str, str]:
        """Returns how a command has ended, and its output since the last look."""
        texts = ""
        with anyio.fail_after(60):
            while True:
                head, _, text = (await self.use(bash_output, id=name)).partition("\n")
                texts += "" if text == "(no new output)" else f"{text}\n"
                if "has ended" in head:
                    return head, texts
                await anyio.sleep(0.05)


@asynccontextmanager
async def local(endpoint: Endpoint, home: Path, limits: Limits | None = None) -> AsyncIterator[Agent]:
    """A worker whose commands run on this host."""
    provider = Host(SandboxSetup(**settings(home), allow_host_bash=True))
    async with system.start(endpoint, home / f"{os.urandom(4).hex()}.db", lease_seconds=3, slots=4) as running_:
        actor = Sandbox(provider, limits or Limits(timeout_seconds=30), log=running_.log)
        async with anyio.create_task_group() as tasks:

            async def serve(task_status: anyio.abc.TaskStatus[None]) -> None:
                await running_.serve([actor], alone=True, task_status=task_status)

            await tasks.start(serve)
            yield Agent(running_)
            tasks.cancel_scope.cancel()


@pytest.fixture
async def agent(endpoint: Endpoint, home: Path) -> AsyncIterator[Agent]:
    async with local(endpoint, home) as agent:
        yield agent


async def facts(system: System) -> list[Any]:
    return [record.event for record in await read(system.log, Aggregate(KIND, key_of(USER, THREAD)))]


async def test_only_new_output_is_shown_and_a_repeated_call_shows_the_same(agent: Agent) -> None:
    name = await agent.begin("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 3")
    assert await agent.reads(name, "one") == f"{name} is running.\none"
    repeated = agent.call_id
    assert await agent.use(bash_output, repeated, id=name) == f"{name} is running.\none"
    assert await agent.use(bash_output, "c900", id=name) == f"{name} is running.\n(no new output)"
    assert await agent.use(bash, "c901", command="touch go") == "(no output)"
    assert await agent.rest(name) == (f"{name} has ended: exit code 3.", "two\n")
    kinds = {type(fact) for fact in await facts(agent.system)}
    assert kinds == {CommandStarted, CommandRead, CommandEnded}


async def test_the_end_of_a_command_can_be_awaited(agent: Agent) -> None:
    name = await agent.begin("echo one; sleep 1; echo two")
    answer = await agent.use(bash_output, id=name, wait_seconds=60)
    assert answer == f"{name} has ended: exit code 0.\none\ntwo"
    other = await agent.begin("sleep 987685")
    assert await agent.use(bash_output, id=other, wait_seconds=1) == f"{other} is running.\n(no new output)"
    await agent.use(bash_kill, id=other)


async def test_a_repeated_start_is_one_command(agent: Agent) -> None:
    command = "echo x >> count; echo counted; sleep 987681"
    name = await agent.begin(command, "c5")
    assert await agent.begin(command, "c5") == name
    await agent.reads(name, "counted")
    assert await agent.use(bash, "c6", command="cat count") == "x"
    assert (await agent.use(bash_kill, "c7", id=name)).startswith(f"{name} has ended: it was ended.")
    assert running("987681") == []


async def test_an_unknown_id_is_refused_with_those_that_there_are(agent: Agent) -> None:
    name = await agent.begin("true")
    with pytest.raises(Invalid, match=f"no command 'x' in the background; there are: {name}"):
        await agent.use(bash_output, id="x")


async def test_more_than_the_limit_is_refused_until_one_has_ended(endpoint: Endpoint, home: Path) -> None:
    async with local(endpoint, home, Limits(max_background=2)) as agent:
        first = await agent.begin("sleep 987682")
        second = await agent.begin("while [ ! -e go ]; do sleep 0.02; done; touch gone")
        with pytest.raises(Invalid, match=r"2 commands run already, which is the limit: .*End one with bash_kill"):
            await agent.begin("true")
        await agent.use(bash, command="touch go; while [ ! -e gone ]; do sleep 0.02; done")
        await agent.reads(second, "has ended")
        third = await agent.begin("true")
        assert len({first, second, third}) == 3
        await agent.use(bash_kill, id=first)


async def test_another_worker_answers_for_a_command(endpoint: Endpoint, home: Path) -> None:
    async with local(endpoint, home) as agent:
        name = await agent.begin("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two")
        await agent.reads(name, "one")
    async with local(endpoint, home) as agent:
        await agent.use(bash, "c500", command="touch go")
        assert await agent.rest(name) == (f"{name} has ended: exit code 0.", "two\n")


async def test_its_facts_go_with_the_thread(agent: Agent) -> None:
    log = agent.system.log
    await log.append(thread(THREAD), [ThreadCreated(user=USER)], expected=0, actor="t")
    await agent.reads(await agent.begin("true"), "has ended")
    await log.append(thread(THREAD), [ThreadErased(by=USER)], expected=await log.tip(thread(THREAD)), actor="t")

    async def gone() -> bool:
        return len(await facts(agent.system)) == 1

    await wait_for(gone)


async def test_a_machine_stays_for_its_commands_and_they_end_with_it(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(replicas=1), quick(use=0.5)) as system:
        agent = Agent(system)
        name = await agent.begin("echo one; sleep 987683")
        await agent.reads(name, "one")
        [machine] = processes.notes("start")

        async def unused() -> bool:
            uses = [fact.until for fact in await facts(system) if isinstance(fact, SandboxAcquired | SandboxUsed)]
            return max(uses) < now()

        await wait_for(unused)
        request = {"op": "exec", "user": USER, "run": "r1", "command": "true"}
        await system.call("sandbox", request | {"thread": "t2", "call_id": "d1"})
        assert alive(machine), "it was evicted although a command runs on it"
        started = agent.call_id_of[name]
        await cut(machine)
        assert "it was interrupted" not in await agent.use(bash, command="true")
        before = running("987683")
        repeated = await agent.use(bash, started, command="echo one; sleep 987683", background=True)
        assert repeated == f"{name} has ended: it ended with its sandbox."
        assert set(running("987683")) <= set(before), "it was started again"
        await (await processes.host.acquire(USER, THREAD)).kill(f"{machine}-{name}")  # what no machine takes along here
        assert (
            await agent.use(bash_output, id=name) == f"{name} has ended: it ended with its sandbox. Its output is gone."
        )


async def test_a_machine_may_end_when_its_commands_have_ended(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(replicas=1), quick(use=0.5)) as system:
        agent = Agent(system)
        name = await agent.begin("sleep 987684")
        await agent.use(bash_kill, id=name)
        [machine] = processes.notes("start")

        async def evicted() -> bool:
            request = {"op": "exec", "user": USER, "run": "r1", "command": "true"}
            await system.call("sandbox", request | {"thread": f"t{agent.call_id}", "call_id": "d1"})
            agent.call_id += "1"
            return not alive(machine)

        await wait_for(evicted)
