"""Commands whose only network is the proxy, in bubblewrap and in containers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from adapters.sandboxes.bubblewrap import Bubblewrap, BubblewrapSandbox
from adapters.sandboxes.confine.confinement import in_memory
from adapters.sandboxes.docker.provider import Docker
from adapters.sandboxes.docker.sandbox import DockerSandbox
from adapters.sandboxes.egress.proxy import SOCKET
from core.config.sandbox import Credential, Egress
from core.config.sections import Secret
from core.errors import Invalid
from core.ports.sandbox import ExecResult, SandboxSetup, ShellCommand
from tests.adapters.sandboxes.conftest import settings
from tests.adapters.sandboxes.egress.test_proxy import BIG, site
from tests.support.engine import IMAGE, TestEngine
from tests.support.nats import eventually

pytestmark = pytest.mark.long(keep=3)

HOST = "127.0.0.2"
TOUCH = """
import socket, sys
def tcp(host, port):
    with socket.create_connection((host, port), timeout=5) as s:
        return s.recv(1)
def udp(host, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(b"x", (host, port))
for kind, host, port in (entry.split() for entry in sys.argv[1:]):
    try:
        {"tcp": tcp, "udp": udp}[kind](host, int(port))
        print(kind, host, "reached")
    except OSError as error:
        print(kind, host, "refused")
"""


Provider = Bubblewrap | Docker
Box = BubblewrapSandbox | DockerSandbox
Make = Callable[..., Provider]


@pytest.fixture(params=["bubblewrap", "docker"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes providers on one home, which stand for servers one after the other. Their machines are ended."""
    options: dict[str, Any] = {}
    if request.param == "docker":
        engine = request.getfixturevalue("docker_engine")
        options = {"host": engine.host, "image": request.getfixturevalue("python_image")}

    def provider(**egress: Any) -> Provider:
        setup = SandboxSetup(**{**settings(tmp_path), "network": True, "egress": Egress(**egress)}, settings=options)
        return Docker(setup) if options else Bubblewrap(setup)

    if (problem := await provider().check()) is not None:
        pytest.skip(problem)
    yield provider
    if isinstance(last := provider(), Docker):
        for resident in await last.residents():
            await last.end(resident.machine)


async def run(sandbox: Box, call: str, command: str) -> ExecResult:
    with anyio.fail_after(60):
        return await sandbox.exec(call, ShellCommand(command, 50), lambda _: None)


async def test_a_command_that_cannot_be_run_is_refused_with_its_reason(make: Make) -> None:
    sandbox = await make(allow=("example.com",)).acquire("user", "thread")
    with pytest.raises(Invalid, match="longer than"):
        await run(sandbox, "call", "x" * 200_000)


async def test_a_command_reaches_what_is_allowed(make: Make) -> None:
    async with site() as port:
        made = make(allow=(), allow_private=(f"{HOST}:{port}",))
        sandbox = await made.acquire("ada", "t1")
        fetch = "python3 -c 'import urllib.request as u; print(u.urlopen(\"{}\").read().decode())'"
        result = await run(sandbox, "1", fetch.format(f"http://{HOST}:{port}/hello"))
        assert json.loads(result.stdout)["path"] == "/hello", result
        big = await run(sandbox, "2", f"curl -sp http://{HOST}:{port}/big | wc -c")
        assert big.stdout.strip() == str(BIG)
        refused = await run(sandbox, "3", "curl -s http://example.com/")
        assert "example.com:80 is not in the sandbox's list of allowed hosts" in refused.stdout
        [entry] = await sandbox.accesses("2")
        assert (entry.host, entry.port, entry.connections) == (HOST, port, 1)
        assert entry.received > BIG
        [entry] = await sandbox.accesses("3")
        assert (entry.host, entry.received) == ("example.com", 0)
        assert await sandbox.accesses("none") == []


async def test_a_program_that_ignores_the_proxy_reaches_nothing(make: Make) -> None:
    async with site() as port:
        made = make(allow=("*",))
        sandbox = await made.acquire("ada", "t1")
        places = [f"tcp 127.0.0.1 {port}", f"tcp {HOST} {port}", "tcp 169.254.169.254 80", "tcp 192.0.2.1 80"]
        places += ["udp 192.0.2.1 53", "udp 8.8.8.8 53", "tcp ::1 80"]
        quoted = " ".join(f"'{place}'" for place in places)
        await sandbox.write("/mnt/user-data/workspace/touch.py", TOUCH)
        result = await run(sandbox, "1", f"python3 touch.py {quoted}; getent hosts example.com || echo no names")
        assert "reached" not in result.stdout, result
        assert result.stdout.count("refused") == len(places)
        assert "no names" in result.stdout
        assert await sandbox.accesses("1") == []


async def test_the_host_s_own_ports_are_refused_by_the_proxy_too(make: Make) -> None:
    async with site() as port:
        sandbox = await make(allow=("*:*",)).acquire("ada", "t1")
        command = f"curl -s --noproxy '' http://{HOST}:{port}/; curl -s --noproxy '' http://localhost:{port}/"
        result = await run(sandbox, "1", command)
        assert result.stdout.count("has no public address") == 2, result


async def test_commands_at_the_same_time_are_told_apart(make: Make) -> None:
    async with site() as port:
        sandbox = await make(allow_private=(f"{HOST}:{port}",)).acquire("ada", "t1")
        command = f"curl -s http://{HOST}:{port}/ > /dev/null"
        await asyncio.gather(run(sandbox, "1", command), run(sandbox, "2", f"{command}; {command}"))
        assert [entry.connections for entry in await sandbox.accesses("1")] == [1]
        assert [entry.connections for entry in await sandbox.accesses("2")] == [2]


@asynccontextmanager
async def running(made: Provider) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        await anyio.wait_all_tasks_blocked()
        yield
        tasks.cancel_scope.cancel()


async def test_a_command_in_the_background_has_its_network_also_from_the_next_server(make: Make) -> None:
    async with site() as port:
        egress: dict[str, Any] = {"allow_private": (f"{HOST}:{port}",)}
        fetch = f"curl -s --retry 20 --retry-all-errors --retry-delay 1 http://{HOST}:{port}/ > /dev/null"
        script = f"{fetch} && echo one; while [ ! -e go ]; do sleep 0.1; done; {fetch} && echo two"
        first = make(**egress)
        async with running(first):
            sandbox = await first.acquire("ada", "t1")
            await sandbox.start("1", ShellCommand(script, 100))
            assert "one" in await said(sandbox, "one")
        second = make(**egress)
        async with running(second):
            sandbox = await second.acquire("ada", "t1")
            await sandbox.output("1")
            await sandbox.write("/mnt/user-data/workspace/go", "")
            assert "two" in await said(sandbox, "two")
            [entry] = await sandbox.accesses("1")
            assert entry.connections >= 2


async def said(sandbox: Box, word: str) -> str:
    text, place = "", 0
    with anyio.fail_after(60):
        while word not in text:
            output = await sandbox.output("1", place)
            text, place = text + output.text, output.place
            assert word in text or output.result is None, text
            await anyio.sleep(0.05)
    return text


async def test_an_image_without_python_is_refused(tmp_path: Path, docker_engine: TestEngine) -> None:
    options = {"host": docker_engine.host, "image": IMAGE}
    made = Docker(SandboxSetup(**{**settings(tmp_path), "network": True}, settings=options))
    problem = await made.check()
    assert problem is not None
    assert "sandbox.network needs python3 in the image" in problem
    direct = {**settings(tmp_path), "network": True, "egress": Egress(direct=True)}
    assert await Docker(SandboxSetup(**direct, settings=options)).check() is None


async def test_a_container_cannot_change_the_sockets(make: Make) -> None:
    made = make()
    if not isinstance(made, Docker):
        pytest.skip("in bubblewrap a call sees its own socket only")
    sandbox = await made.acquire("ada", "t1")
    command = "cd /run/sika-egress && ls; touch made; rm */proxy.sock; mv trust gone; ls | grep -c made"
    result = await run(sandbox, "1", command)
    assert result.stdout.split()[-1] == "0"
    assert result.stderr.count("Read-only file system") == 3, result


async def test_credentials_are_added_outside(make: Make, tmp_path: Path) -> None:
    """The host is one whose name does not resolve here: what matters is whom the command trusts, and what it sees."""
    credentials = (Credential(host="api.example.com", value=Secret("Bearer hidden-token")),)
    sandbox = await make(credentials=credentials).acquire("ada", "t1")
    command = "env; ls $(dirname $SSL_CERT_FILE); grep -c BEGIN $SSL_CERT_FILE; cat /run/sika*/trust/authority.pem"
    result = await run(sandbox, "1", command)
    assert "hidden-token" not in result.stdout
    assert "all.pem" in result.stdout
    assert "PRIVATE" not in result.stdout
    assert (tmp_path / "home/sandbox/egress/authority.pem").read_text().strip() in result.stdout


async def enclosed(made: Bubblewrap, source: str, *, network: bool) -> str:
    """Runs a Python program as a server of tools runs, and returns what it says."""
    fds = [in_memory(b"") for _ in range(2)]
    program = await to_thread.run_sync(
        partial(made.enclosed, ["python3", "-c", source], {}, (), network=network, directory="/tmp", fds=fds)
    )
    for fd, content in zip(fds, program.files, strict=False):
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    try:
        with anyio.fail_after(60):
            done = await anyio.run_process(program.argv, env={}, pass_fds=fds, check=False)
    finally:
        for fd in fds:
            os.close(fd)
    return (done.stdout + done.stderr).decode()


async def test_a_program_that_runs_for_long_has_the_proxy_only(tmp_path: Path) -> None:
    async with site() as port:
        credentials = (Credential(host="api.example.com", value=Secret("hidden-token")),)
        egress = Egress(allow=(), allow_private=(f"{HOST}:{port}",), credentials=credentials)
        made = Bubblewrap(SandboxSetup(**{**settings(tmp_path), "egress": egress}))
        if (problem := await made.check()) is not None:
            pytest.skip(problem)
        fetch = f"import urllib.request as u; print(u.urlopen('http://{HOST}:{port}/hello').read().decode())"
        touch = f"import socket; socket.create_connection(('{HOST}', {port}), 5); print('reached')"
        trust = "import os; print(open(os.environ['SSL_CERT_FILE']).read())"
        assert "BEGIN CERTIFICATE" in await enclosed(made, trust, network=True), "also before the proxy runs"
        async with running(made):
            text = await enclosed(made, fetch, network=True)
            assert json.loads(text)["path"] == "/hello", text
            assert "refused" in await enclosed(made, touch, network=True)
            assert '"path"' not in await enclosed(made, fetch, network=False)
        assert list((tmp_path / "home/sandbox/programs").iterdir()) == []


async def test_the_folder_of_a_killed_server_is_deleted_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    setup = SandboxSetup(**settings(tmp_path))
    alive, dead = Bubblewrap(setup), tmp_path / "home/sandbox/programs/dead"
    (dead / "egress").mkdir(parents=True)
    folder = os.open(dead / "egress", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
    os.close(folder)
    async with running(alive):
        await eventually(lambda: _is_gone(dead))
        [living] = dead.parent.iterdir()
        async with running(Bubblewrap(setup)):
            await eventually(lambda: _are_two(dead.parent))
        assert list(dead.parent.iterdir()) == [living]


async def _is_gone(path: Path) -> bool:
    return not path.exists() and any((folder / "egress" / SOCKET).exists() for folder in path.parent.iterdir())


async def _are_two(path: Path) -> bool:
    return len(list(path.glob(f"*/egress/{SOCKET}"))) == 2
