"""What is special about containers: how they are kept, what they may do, and what happens when they end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from actors.wiring import sandboxes
from adapters.sandboxes.confine import toolkit
from adapters.sandboxes.docker import sandbox as docker_sandbox
from adapters.sandboxes.docker.calls import Box
from adapters.sandboxes.docker.provider import PATH, Docker
from adapters.sandboxes.docker.sandbox import DockerSandbox
from channels.cli.extend import skill
from core.config.settings import Config
from core.errors import Unavailable
from core.files.folder import Folder
from core.ports.sandbox import ExecResult, Machine, MachineLost, SandboxSetup, ShellCommand
from core.sandbox.probe import SCRIPT, parsed
from tests.adapters.sandboxes.conftest import SECRET, running, settings
from tests.adapters.sandboxes.test_contract import run
from tests.support.engine import IMAGE, TestEngine
from tests.support.nats import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]
WAITING = "echo x >> count; touch began; while [ ! -e go ]; do sleep 0.01; done; echo end"


def docker(place: Path, engine: TestEngine, **changes: Any) -> Docker:
    options = {"host": engine.host, "image": IMAGE} | changes.pop("options", {})
    return Docker(SandboxSetup(**settings(place) | changes, settings=options))


@pytest.fixture
def provider(tmp_path: Path, docker_engine: TestEngine) -> Docker:
    return docker(tmp_path, docker_engine)


@pytest.fixture
async def machine(provider: Docker) -> AsyncIterator[Machine]:
    yield (started := await provider.start("ada", "t1"))
    await provider.end(started)


@pytest.fixture
async def sandbox(provider: Docker, machine: Machine) -> DockerSandbox:
    return await provider.open(machine, "ada", "t1")


async def began(workspace: Path) -> None:
    async def exists() -> bool:
        return (workspace / "began").exists()

    await eventually(exists)


# ── machines ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_machine_is_adopted_listed_and_ended(
    tmp_path: Path, docker_engine: TestEngine, provider: Docker, machine: Machine
) -> None:
    successor = docker(tmp_path, docker_engine)
    assert await successor.start("ada", "t1") == machine
    assert list(await successor.residents()) == [(machine, "ada", "t1")]
    assert list(await docker(tmp_path / "other", docker_engine).residents()) == []
    for _ in range(2):
        await successor.end(machine)
    assert list(await provider.residents()) == []
    with pytest.raises(MachineLost):
        await provider.open(machine, "ada", "t1")


async def test_an_image_is_looked_at_in_a_container_of_its_own(provider: Docker, docker_engine: TestEngine) -> None:
    probe = parsed(await provider.probe(SCRIPT))
    assert {"wget"} <= probe.programs.keys()
    assert "python3" not in probe.programs
    assert probe.system == "Linux"
    assert await provider.edition() == await provider.edition() != ""
    with docker_engine.client() as client:
        assert [c for c in client.containers(all=True) if any("sika-check" in name for name in c["Names"])] == []
    missing = msgspec.structs.asdict(provider._settings) | {"image": "nobody-has-it"}
    with pytest.raises(Unavailable, match="nobody-has-it"):
        await Docker(replace(provider._setup, settings=missing)).probe(SCRIPT)


async def test_two_servers_start_one_machine(tmp_path: Path, docker_engine: TestEngine) -> None:
    machines = []

    async def start() -> None:
        machines.append(await docker(tmp_path, docker_engine).start("ada", "t1"))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(start)
    assert len(set(machines)) == 1
    await docker(tmp_path, docker_engine).end(machines[0])


async def test_other_settings_make_another_machine(
    tmp_path: Path, docker_engine: TestEngine, provider: Docker, machine: Machine
) -> None:
    changed = docker(tmp_path, docker_engine, memory_mb=300)
    other = await changed.start("ada", "t1")
    assert other != machine
    assert list(await provider.residents()) == [(other, "ada", "t1")]
    await changed.end(other)


async def test_a_program_that_cannot_start_is_an_error_with_its_reason(
    tmp_path: Path, docker_engine: TestEngine
) -> None:
    missing = docker(tmp_path, docker_engine, options={"image": "sika-test-missing"})
    assert "docker build" in (await missing.check() or "")
    with pytest.raises(Unavailable, match="sika-test-missing"):
        await missing.start("ada", "t1")
    runtime = docker(tmp_path, docker_engine, options={"runtime": "runsc"})
    assert "runsc" in (await runtime.check() or "")


async def test_folders_that_the_engine_does_not_see_are_named(tmp_path: Path, docker_engine: TestEngine) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in ("workspace", "uploads", "outputs"):
        (elsewhere / "users/ada/threads/t1/user-data" / name).mkdir(parents=True)
    provider = docker(tmp_path, docker_engine, options={"host_base_dir": str(elsewhere)})
    with pytest.raises(Unavailable, match="bind source path does not exist"):
        await provider.start("ada", "t1")


async def test_a_server_in_a_container_names_the_hosts_folder(tmp_path: Path, docker_engine: TestEngine) -> None:
    """`home` is a link here: the engine gets the folder's other name."""
    settings(tmp_path)
    (tmp_path / "inside").symlink_to(tmp_path / "home")
    provider = docker(tmp_path, docker_engine, options={"host_base_dir": str(tmp_path / "inside")})
    sandbox = await provider.acquire("ada", "t1")
    assert (await run(sandbox, "echo ok > made; cat made")).stdout == "ok\n"
    [resident] = await provider.residents()
    await provider.end(resident.machine)


async def test_no_engine_is_an_error_that_names_it(tmp_path: Path, docker_engine: TestEngine) -> None:
    host = f"unix://{tmp_path}/none"
    provider = docker(tmp_path, docker_engine, options={"host": host})
    assert host in (await provider.check() or "")
    with pytest.raises(Unavailable, match="none"):
        await provider.residents()


# ── confinement ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_command_has_no_privileges_and_no_network(sandbox: DockerSandbox) -> None:
    result = await run(sandbox, "cat /proc/self/status; cat /proc/net/dev", "c1")
    status = dict(line.split(":", 1) for line in result.stdout.splitlines() if ":" in line)
    assert {status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    assert "eth0" not in result.stdout
    uid = int(status["Uid"].split()[0])
    assert uid == (os.geteuid() or 1000)


async def test_only_the_mounts_are_writable_and_secrets_are_out_of_sight(
    tmp_path: Path, sandbox: DockerSandbox
) -> None:
    (tmp_path / "home" / "config.yaml").write_text(SECRET)
    command = (
        "for d in / /bin /etc /mnt /mnt/user-data /mnt/skills/demo /mnt/readonly /dev; do touch $d/x && echo $d; done;"
        f"cat {tmp_path}/home/config.yaml; ls {tmp_path}; cat /proc/*/environ | grep -a {SECRET};"
        "touch /tmp/x /dev/shm/x /mnt/user-data/workspace/x && echo fine"
    )
    result = await run(sandbox, command)
    assert result.stdout == "fine\n"


async def test_memory_is_limited_and_the_model_is_told(tmp_path: Path, docker_engine: TestEngine) -> None:
    provider = docker(tmp_path, docker_engine, memory_mb=64)
    sandbox = await provider.acquire("ada", "t1")
    result = await run(sandbox, "head -c 100000000 /dev/zero | tail -c 90000000 | wc -c")
    assert "no memory left (sandbox.memory_mb)" in result.stderr
    assert (await run(sandbox, "echo on", "c2")).stdout == "on\n"
    for resident in await provider.residents():
        await provider.end(resident.machine)


async def test_a_crowd_of_processes_ends_at_the_limit_and_with_its_command(sandbox: DockerSandbox) -> None:
    """The limit of the settings is 100 processes. A fork that fails ends the shell."""
    command = "i=0; while [ $i -lt 400 ]; do sleep 987644 & i=$((i + 1)); done"
    result = await run(sandbox, command)
    assert result.exit_code not in (0, None)
    assert running("987644") == []
    assert (await run(sandbox, "echo on", "c2")).stdout == "on\n"


async def test_a_cleared_environment_does_not_hide_a_process(sandbox: DockerSandbox) -> None:
    await run(sandbox, "(env -i setsid sleep 987643 &); echo on")
    assert running("987643") == []


async def test_the_quota_ends_a_command(tmp_path: Path, sandbox: DockerSandbox) -> None:
    """The limit of the settings is 64 MB, of a file 8 MB."""
    command = "i=0; while [ $i -lt 20 ]; do head -c 8000000 /dev/zero > f$i; i=$((i + 1)); done; sleep 60"
    result = await run(sandbox, command)
    assert result.exit_code == 137
    assert "sandbox.max_thread_mb" in result.stderr


async def test_the_quota_ends_a_command_in_the_background(
    tmp_path: Path, provider: Docker, sandbox: DockerSandbox
) -> None:
    command = "i=0; while [ $i -lt 20 ]; do head -c 8000000 /dev/zero > f$i; i=$((i + 1)); done; sleep 987640"

    async def ended() -> bool:
        return (await sandbox.output("c1")).result is not None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.run)
        await anyio.wait_all_tasks_blocked()
        await sandbox.start("c1", ShellCommand(command, 100))
        await eventually(ended)
        tasks.cancel_scope.cancel()
    assert "sandbox.max_thread_mb" in (await sandbox.output("c1")).text
    assert running("987640") == []


# ── records that a command forges ───────────────────────────────────────────────────────────────────────────────────


async def test_a_record_with_links_shows_nothing_of_the_host(tmp_path: Path, sandbox: DockerSandbox) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    command = (
        "cd /run/sika/call-c1; until [ -e stdout ] && [ -e stderr ]; do :; done;"
        f"rm stdout stderr; ln -s {secret} stdout; mkfifo stderr && ln -s {secret} reason;"
        "mkdir sub; echo done"
    )
    result = await run(sandbox, command)
    assert (result.stdout, result.stderr, result.ended) == ("done\n", "", "exited")  # the tail, which it left
    assert secret.read_text() == SECRET


async def test_a_forged_outcome_is_one_or_none(tmp_path: Path) -> None:
    box = Box(tmp_path, "call-c1")
    (tmp_path / "call-c1").mkdir()
    for text in ("exited 0", "exited 99999\n", "fine -\n", "exited 0\nexited 1\n", '{"ended": 1}\n'):
        (tmp_path / "call-c1" / "exit").write_text(text)
        assert box.exit() is None
    (tmp_path / "call-c1" / "exit").write_text("exited 7\n")
    assert box.exit() is not None


async def test_a_command_without_its_record_ends_in_time(sandbox: DockerSandbox) -> None:
    command = "until rm -r /run/sika/call-c1; do :; done 2>/dev/null; mkdir /run/sika/call-c1; sleep 987641"
    result = await run(sandbox, command, timeout=1)
    assert (result.stdout, result.stderr) == ("", "")
    assert running("987641") == []


async def test_a_command_that_kills_its_supervisor_is_interrupted(sandbox: DockerSandbox) -> None:
    result = await run(sandbox, "kill -9 $PPID; sleep 987642")
    assert result.ended == "interrupted"
    assert running("987642") == []


# ── ends of machines and of the engine ──────────────────────────────────────────────────────────────────────────────


async def test_a_container_removed_under_a_command(
    tmp_path: Path, provider: Docker, machine: Machine, sandbox: DockerSandbox, workspace: Path
) -> None:
    lost: list[str] = []

    async def wait() -> None:
        try:
            await run(sandbox, WAITING)
        except MachineLost as error:
            lost.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await began(workspace)
        await provider.end(machine)
    assert len(lost) == 1
    with pytest.raises(MachineLost):
        await run(sandbox, "true", "c2")
    new = await provider.start("ada", "t1")
    replaced = await provider.open(new, "ada", "t1")
    assert (await run(replaced, WAITING)).ended == "interrupted"
    assert (workspace / "count").read_text() == "x\n"
    assert (await run(replaced, "true", "c2")).exit_code == 0
    await provider.end(new)


async def test_a_machine_is_started_while_the_engine_removes_the_one_before(
    docker_engine: TestEngine, provider: Docker
) -> None:
    """The engine refuses a second removal, and a container of the same name, until the first one is over."""

    def remove(machine: Machine) -> None:
        with docker_engine.client() as client:
            client.remove_container(machine.id, force=True)

    for _ in range(5):
        machine = await provider.start("ada", "t1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, remove, machine)
            with contextlib.suppress(MachineLost):
                while True:
                    await provider.open(machine, "ada", "t1")
            successor = await provider.start("ada", "t1")
        assert successor != machine
        assert (await run(await provider.open(successor, "ada", "t1"), "echo on", successor.id)).stdout == "on\n"
    await provider.end(successor)


async def test_everything_killed_from_within(provider: Docker, sandbox: DockerSandbox) -> None:
    with pytest.raises(MachineLost):
        await run(sandbox, "kill -9 -1")
    successor = await provider.acquire("ada", "t1")
    assert (await run(successor, "kill -9 -1")).ended == "interrupted"


async def test_a_machine_whose_command_cannot_be_stopped_is_ended(
    sandbox: DockerSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command kills the agent's shells, which would end it, wherever they come from."""
    monkeypatch.setattr(docker_sandbox, "PATIENCE", 0.5)
    command = (
        "touch began; while :; do for p in /proc/[0-9]*; do "
        "grep -q SIKA_RECORDS $p/environ 2>/dev/null && kill -9 ${p#/proc/}; done; done"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(swallowed, sandbox, command)
        await began(workspace)
        with anyio.fail_after(60):
            await sandbox.kill("c1")
    assert (await sandbox.exec("c1", ShellCommand(command, 60), lambda _: None)).ended == "interrupted"


async def swallowed(sandbox: DockerSandbox, command: str) -> ExecResult | None:
    try:
        return await run(sandbox, command)
    except Unavailable:
        return None


@pytest.fixture
def own_engine(docker_engine: TestEngine) -> Iterator[TestEngine]:
    """The engine, for a test that stops it."""
    yield docker_engine
    docker_engine.stop()
    docker_engine.start()


async def test_a_command_outlives_a_killed_engine(
    own_engine: TestEngine, sandbox: DockerSandbox, workspace: Path
) -> None:
    results: list[ExecResult] = []

    async def wait() -> None:
        results.append(await run(sandbox, WAITING))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await began(workspace)
        await anyio.to_thread.run_sync(own_engine.stop, signal.SIGKILL)
        (workspace / "go").touch()
    assert (results[0].stdout, results[0].exit_code) == ("end\n", 0)
    await anyio.to_thread.run_sync(own_engine.start)
    assert (workspace / "count").read_text() == "x\n"


async def test_an_engine_that_stops_takes_its_machines_along(
    own_engine: TestEngine, provider: Docker, sandbox: DockerSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_sandbox, "ENGINE_SECONDS", 1.0)
    errors: list[Exception] = []

    async def wait() -> None:
        try:
            await run(sandbox, WAITING)
        except Unavailable as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await began(workspace)
        await anyio.to_thread.run_sync(own_engine.stop)
    assert len(errors) == 1
    await anyio.to_thread.run_sync(own_engine.start)
    successor = await provider.acquire("ada", "t1")
    assert (await run(successor, WAITING)).ended == "interrupted"
    assert (workspace / "count").read_text() == "x\n"


async def test_an_upload_belongs_to_the_agent(tmp_path: Path, sandbox: DockerSandbox) -> None:
    """The container runs already. The server is root, and the commands are another user's."""
    draft = Folder(tmp_path / "home", "ada", "t1").draft()
    draft.write(b"uploaded\n")
    with Folder(tmp_path / "home", "ada", "t1").open("uploads") as directory:
        draft.publish(directory, "given.txt")
    draft.close()
    result = await run(
        sandbox, "cd /mnt/user-data/uploads && echo changed >> given.txt && cat given.txt && rm given.txt"
    )
    assert (result.stdout, result.stderr) == ("uploaded\nchanged\n", "")


async def test_the_tests_of_a_skill_leave_no_container(tmp_path: Path, docker_engine: TestEngine) -> None:
    (folder := skill.create("my-skill", tmp_path)).joinpath("scripts/example.py").unlink()
    (folder / "tests/example.sh").write_text('test -e "$SKILL/SKILL.md"\n')
    options = {"host": docker_engine.host, "image": IMAGE}
    config = msgspec.convert({"sandbox": {"provider": "docker", "docker": options}}, Config)
    outcomes = {title: text async for title, text in skill.test(folder, sandboxes.for_tests(config), [])}
    assert outcomes == {"tests/example.sh can be parsed": "", "tests/example.sh": ""}
    with docker_engine.client() as client:
        assert client.containers(all=True, filters={"label": "sika.user=test"}) == []


def test_the_image_has_the_packages_of_skills() -> None:
    text = (Path(docker_sandbox.__file__).parent / "Dockerfile").read_text()
    missing = [name for name in toolkit.PACKAGES if f" {name}" not in text]
    assert missing == []
    assert f"ENV PATH={PATH}\n" in text  # commands get ours, not the image's


async def test_the_configuration_chooses_it(tmp_path: Path, docker_engine: TestEngine) -> None:
    options = {"host": docker_engine.host, "image": IMAGE}
    config = msgspec.convert({"sandbox": {"provider": "docker", "docker": options}}, Config)
    provider = await sandboxes.provider_for(tmp_path, config)
    assert provider.name == "docker"
    missing = msgspec.convert({"sandbox": {"provider": "docker", "docker": {**options, "image": "none"}}}, Config)
    with pytest.raises(Unavailable, match=r"sandbox.provider: docker does not work here: .*sandbox.docker.image"):
        await sandboxes.provider_for(tmp_path, missing)
