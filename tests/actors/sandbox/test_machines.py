"""Machines of threads: started once, shared, replaced when lost, ended when nobody needs them. All of it is real."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.sandbox.machines import TIMER
from core.bus import rpc
from core.bus.endpoint import Endpoint
from core.config.sandbox import Sandbox as Settings
from core.errors import NotFound, Unavailable
from core.events import Aggregate, ThreadCreated, ThreadErased, thread
from core.ids import stamp
from core.ports.sandbox import Machine
from core.runtime import system
from core.runtime.system import System
from core.sandbox.facts import SandboxAcquired, SandboxClaimed, SandboxFailed, SandboxReleased, SandboxUsed
from core.sandbox.state import KIND, key_of
from tests.support.machines import Processes, alive, cut, process, quick, worker
from tests.support.nats import read
from tests.support.workers import wait_for

pytestmark = pytest.mark.long(keep=3)

USER, THREAD = "ada", "t1"
LOST = "running commands and files outside /mnt/user-data are gone"


async def ask(system: System, op: str, number: int = 1, *, thread_id: str = THREAD, **more: Any) -> Any:
    request: dict[str, Any] = {"op": op, "user": USER, "thread": thread_id}
    if op in ("exec", "start", "write", "replace", "kill", "output", "end"):
        request |= {"run": "r1", "call_id": f"c{number}"}
    async with asyncio.timeout(60):
        return await system.call("sandbox", request | more)


async def run(system: System, command: str, number: int = 1, thread_id: str = THREAD) -> Any:
    return await ask(system, "exec", number, thread_id=thread_id, command=command)


async def facts(system: System, thread_id: str = THREAD) -> list[Any]:
    return [record.event for record in await read(system.log, Aggregate(KIND, key_of(USER, thread_id)))]


async def released(system: System, thread_id: str = THREAD) -> list[str]:
    return [fact.reason for fact in await facts(system, thread_id) if isinstance(fact, SandboxReleased)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async def check() -> bool:
        return await condition()

    await wait_for(check)


async def exists(path: Path) -> None:
    async def check() -> bool:
        return path.exists()

    await wait_for(check)


def workspace(home: Path, thread_id: str = THREAD) -> Path:
    return home / "users" / USER / "threads" / thread_id / "user-data" / "workspace"


async def test_two_workers_share_the_machine_that_one_of_them_starts(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    settings = Settings()
    async with (
        worker(endpoint, home, processes, settings, quick()) as one,
        worker(endpoint, home, processes, settings, quick()),
        asyncio.TaskGroup() as tasks,
    ):
        results = [tasks.create_task(run(one, f"echo {number}", number)) for number in range(12)]
    assert [await result for result in results] == [str(number) for number in range(12)]
    assert len(processes.notes("start")) == 1
    assert processes.notes("end") == []


async def test_facts_say_who_uses_the_machine_and_not_how_often(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(), quick(use=120)) as system:
        for number in range(5):
            await run(system, "true", number)
        claimed, acquired = await facts(system)
    assert isinstance(claimed, SandboxClaimed)
    assert (claimed.user, claimed.thread, claimed.worker) == (USER, THREAD, system.name)
    assert isinstance(acquired, SandboxAcquired)
    assert (acquired.provider, [int(acquired.machine)]) == ("processes", processes.notes("start"))


async def test_a_machine_is_in_use_for_as_long_as_a_call_and_idle_afterwards(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    settings = Settings(idle_seconds=1)
    async with worker(endpoint, home, processes, settings, quick(use=2)) as system, asyncio.TaskGroup() as tasks:
        long = tasks.create_task(run(system, "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo done"))
        await exists(workspace(home) / "begun")

        async def renewed() -> bool:
            return sum(isinstance(fact, SandboxUsed) for fact in await facts(system)) >= 4

        await until(renewed)
        assert processes.notes("end") == []
        (workspace(home) / "go").touch()
        assert await long == "done"

        async def idle() -> bool:
            return await released(system) == ["idle"]

        await until(idle)
        assert processes.notes("end") == processes.notes("start")
        for _ in range(2):  # an answer may be lost, and its call be repeated
            assert LOST in await run(system, "true", 2)
        assert LOST not in await run(system, "true", 3)


async def test_a_lost_machine_is_replaced_and_its_command_not_repeated(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(), quick()) as system, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(run(system, "echo x >> count; touch begun; sleep 600"))
        await exists(workspace(home) / "begun")
        [machine] = processes.notes("start")
        await cut(machine)
        error = (await call)["error"]
        assert "the command was interrupted" in error
        assert LOST in error
        assert (workspace(home) / "count").read_text() == "x\n"
        assert await run(system, "echo on", 2) == "on"
        assert len(processes.notes("start")) == 2
        assert await released(system) == ["lost"]


async def test_a_machine_that_died_between_calls_is_noticed_at_the_next(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(), quick()) as system:
        await run(system, "true")
        await cut(processes.notes("start")[0])
        result = await ask(system, "list", path="/mnt/user-data/workspace")
        assert result.startswith("Note: the sandbox was replaced, because its machine was gone")
        assert LOST not in await run(system, "true", 2)


async def test_a_full_house_ends_the_machine_that_was_not_used_for_longest_and_none_in_use(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    settings = Settings(replicas=2)
    async with worker(endpoint, home, processes, settings, quick(use=2)) as system, asyncio.TaskGroup() as tasks:
        await run(system, "true", thread_id="old")
        busy = tasks.create_task(run(system, "touch begun; while [ ! -e go ]; do sleep 0.05; done", thread_id="busy"))
        await exists(workspace(home, "busy") / "begun")

        async def old_is_idle() -> bool:
            lease = [fact for fact in await facts(system, "busy") if isinstance(fact, SandboxUsed)]
            return len(lease) >= 3

        await until(old_is_idle)
        await run(system, "true", thread_id="new")
        assert await released(system, "old") == ["evicted"]
        await run(system, "true", thread_id="newer")
        assert await released(system, "busy") == []
        assert await released(system, "new") == []
        (workspace(home, "busy") / "go").touch()
        await busy


async def test_an_erased_thread_loses_its_machine_and_its_facts(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(), quick()) as system:
        await system.log.append(thread(THREAD), [ThreadCreated(user=USER)], expected=0, actor="t")
        await run(system, "true")
        tip = await system.log.tip(thread(THREAD))
        await system.log.append(thread(THREAD), [ThreadErased(by=USER)], expected=tip, actor="t")

        async def gone() -> bool:
            left = await facts(system)
            return [type(fact) for fact in left] == [SandboxReleased] and processes.notes("end") == processes.notes(
                "start"
            )

        await until(gone)
        with pytest.raises(NotFound, match="was erased"):
            await run(system, "true", 2)


async def test_machines_that_nobody_holds_are_swept_at_the_start(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(), quick(), begin=False) as system:
        await run(system, "true")
    [held] = processes.notes("start")
    stray = await processes.start(USER, "nobody")
    async with worker(endpoint, home, processes, Settings(), quick()) as system:

        async def swept() -> bool:
            return not alive(int(stray.id))

        await until(swept)
        assert await run(system, "echo here", 2) == "here"
    assert alive(held)
    assert processes.notes("end") == [int(stray.id)]


async def test_machines_stay_when_a_server_stops_unless_they_are_to_end_with_it(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(), quick()) as system:
        await run(system, "true")
    [machine] = processes.notes("start")
    assert alive(machine)
    async with worker(endpoint, home, processes, Settings(stop_on_exit=True), quick(use=1)) as system:

        async def unused() -> bool:  # the first worker's use has run out
            facts_ = [fact for fact in await facts(system) if isinstance(fact, SandboxUsed)]
            return len({fact.worker for fact in facts_}) >= 1 and len(facts_) >= 3

        long = asyncio.create_task(run(system, "sleep 5", 2))
        await until(unused)
        await long
    assert not alive(machine)


async def test_parallel_changes_of_one_file_all_have_effect(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    path = "/mnt/user-data/workspace/f"
    async with (
        worker(endpoint, home, processes, Settings(), quick()) as one,
        worker(endpoint, home, processes, Settings(), quick()),
    ):
        await ask(one, "write", 0, path=path, content=" ".join(f"w{number}." for number in range(8)))
        async with asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(ask(one, "replace", number + 1, path=path, old=f"w{number}.", new=f"v{number}."))
        assert await ask(one, "read", path=path) == " ".join(f"v{number}." for number in range(8))


async def test_a_killed_worker_leaks_nothing_and_its_command_is_recovered(
    endpoint: Endpoint, home: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command goes on without the worker that began it, and another one returns its outcome."""
    monkeypatch.setattr(rpc, "SILENCE_SECONDS", 5.0)
    settings = Settings()
    async with process(endpoint.url, endpoint.prefix, home) as first, reader(endpoint, home) as system:
        command = "echo x >> count; touch begun; while [ ! -e go ]; do sleep 0.05; done; echo done"
        call = asyncio.create_task(run(system, command))
        await exists(workspace(home) / "begun")
        first.send_signal(signal.SIGKILL)
        await first.wait()
        async with worker(endpoint, home, processes, lambda: settings, quick(use=1)) as second:
            (workspace(home) / "go").touch()
            assert await call == "done"
            assert (workspace(home) / "count").read_text() == "x\n"
            assert processes.notes("end") == []
            settings = Settings(idle_seconds=1)
            aggregate = Aggregate(KIND, key_of(USER, THREAD))
            await second.queue.wake_at(datetime.now(UTC), "sandbox", aggregate, key=TIMER)

            async def idle() -> bool:
                return await released(second) == ["idle"]

            await until(idle)
    assert len(processes.notes("start")) == 1
    assert processes.notes("end") == processes.notes("start")


def reader(endpoint: Endpoint, home: Path) -> AbstractAsyncContextManager[System]:
    return system.start(endpoint, home / "reader.db", lease_seconds=3, slots=4, loops=False)


async def test_a_worker_that_dies_while_it_starts_a_machine_holds_up_nobody_for_long(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    """Its claim runs out, and the next one starts the machine."""
    async with worker(endpoint, home, processes, Settings(), quick()) as system:
        dead = SandboxClaimed(
            claim="c", worker="dead", until=stamp(datetime.now(UTC) + timedelta(seconds=2)), user=USER, thread=THREAD
        )
        await system.log.append(Aggregate(KIND, key_of(USER, THREAD)), [dead], expected=0, actor="t")
        with anyio.fail_after(120):
            assert await run(system, "echo here") == "here"
        assert len(processes.notes("start")) == 1


async def test_a_machine_that_cannot_be_started_is_an_error_with_the_reason(
    endpoint: Endpoint, home: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = processes.start

    async def broken(user: str, thread: str) -> Machine:
        raise Unavailable("no image sika-sandbox")

    monkeypatch.setattr(processes, "start", broken)
    async with worker(endpoint, home, processes, Settings(), quick()) as system:
        with pytest.raises(Unavailable, match="no image sika-sandbox"):
            await run(system, "true")
        assert [type(fact) for fact in await facts(system)] == [SandboxClaimed, SandboxFailed]
        monkeypatch.setattr(processes, "start", start)
        assert await run(system, "echo on") == "on"


async def test_a_machine_that_starts_without_end_is_given_up(
    endpoint: Endpoint, home: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(user: str, thread: str) -> Machine:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(processes, "start", endless)
    async with worker(endpoint, home, processes, Settings(), quick(start=0.2)) as system:
        with pytest.raises(Unavailable, match=r"not ready within 0\.2 s"):
            await run(system, "true")


async def test_output_that_is_no_text_and_longer_than_shown_is_an_answer(
    endpoint: Endpoint, home: Path, processes: Processes
) -> None:
    async with worker(endpoint, home, processes, Settings(), quick()) as system:
        assert await run(system, "printf 'a\\377\\000b'", 1) == "a\ufffd\0b"
        assert len(await run(system, "head -c 9000000 /dev/zero", 2)) <= 30_000
