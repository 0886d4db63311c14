"""What the commands of a thread share in bubblewrap, who does not, and what becomes of it. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.sandboxes import bubblewrap
from adapters.sandboxes.bubblewrap import Bubblewrap, BubblewrapSandbox
from adapters.sandboxes.process import holder, listening, machine
from adapters.sandboxes.process.machine import EMPTIED, LOST, Machine
from core.config.sandbox import Egress
from core.ports.sandbox import SandboxSetup, ShellCommand
from core.skills.commands import NOWHERE, SAFE
from tests.adapters.sandboxes import doomed
from tests.adapters.sandboxes.conftest import run, settings, wait_for
from tests.adapters.sandboxes.test_contract import ASK, SERVE
from tests.support import warm
from tests.support.nats import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
PORT = 8001
"""Nobody else can have it: each thread has all ports of its own."""
ABSTRACT = """python3 -c '
import socket, time
with socket.socket(socket.AF_UNIX) as server:
    server.bind("\\0of-this-thread")
    server.listen()
    print("listening", flush=True)
    time.sleep(60)'"""
KNOCK = """python3 -c '
import socket
socket.socket(socket.AF_UNIX).connect("\\0of-this-thread")'"""


WITHOUT_SETNS = """
import ctypes, os
from adapters.sandboxes.process import machine
from adapters.sandboxes.confine import seccomp
setns = seccomp.REFUSED["setns"][seccomp.ARCHITECTURES[os.uname().machine][1]]
rules = [
    seccomp._instruction(seccomp._LOAD, seccomp._NUMBER),
    seccomp._instruction(seccomp._EQUAL, setns, 0, 1),
    seccomp._instruction(seccomp._RETURN, seccomp._ERRNO | 1),
    seccomp._instruction(seccomp._RETURN, seccomp._ALLOW),
]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_char_p)]
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(Program(len(rules), b"".join(rules)))) == 0  # PR_SET_SECCOMP
print(machine.is_joinable())
"""


def provider_of(tmp_path: Path, **more: Any) -> Bubblewrap:
    return Bubblewrap(SandboxSetup(**settings(tmp_path) | more))


def machine_of(sandbox: BubblewrapSandbox) -> Machine:
    assert sandbox.calls.machine is not None
    return sandbox.calls.machine


def holder_of(sandbox: BubblewrapSandbox) -> int:
    return int((machine_of(sandbox).folder / "pid").read_text())


def is_alive(sandbox: BubblewrapSandbox) -> bool:
    """Tells whether the thread has a holder."""
    return is_locked(machine_of(sandbox).folder / "life")


def is_locked(path: Path) -> bool:
    fd = holder.locked(str(path))
    if fd is not None:
        os.close(fd)
    return fd is None


def has_looked(pid: int) -> bool:
    """Tells whether a holder took its signals, and waits again."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["ShdPnd"], 16) == 0 and status["State"].startswith("S")


def make_idle(sandbox: BubblewrapSandbox, *, at_work: bool = False) -> None:
    """Makes the last use an old one. A supervisor notes the time as it ends, after the outcome of its command."""
    use = machine_of(sandbox).folder / "use"
    wait_for(lambda: at_work or not is_locked(use))
    used = use.stat().st_mtime - 1000
    os.utime(use, (used, used))


async def serve(sandbox: BubblewrapSandbox, command: str, call_id: str = "server") -> None:
    await sandbox.start(call_id, ShellCommand(command, 60))

    async def listening() -> bool:
        return (await sandbox.output(call_id)).text == "listening\n"

    await eventually(listening)


async def test_another_thread_reaches_nothing_of_it(tmp_path: Path, jail: BubblewrapSandbox) -> None:
    await run(jail, "echo mine > /tmp/note")
    await serve(jail, SERVE.format(port=PORT))
    await serve(jail, ABSTRACT, "abstract")
    other = await provider_of(tmp_path).acquire("ada", "t2")
    for number, attempt in enumerate((ASK.format(port=PORT), KNOCK, "cat /tmp/note")):
        result = await run(other, attempt, f"c{number}")
        assert (result.stdout, result.exit_code) == ("", 1)
        assert "refused" in result.stderr or "No such file" in result.stderr
    assert (await run(jail, KNOCK, "k")).exit_code == 0
    assert (await run(jail, ASK.format(port=PORT), "a")).stdout == "hello"
    assert (await run(other, "cat /proc/net/dev | wc -l", "d")).stdout == "3\n"


async def test_a_command_with_secrets_shares_nothing_and_reads_nothing_that_was_left_for_it(
    jail: BubblewrapSandbox,
) -> None:
    await run(jail, "echo mine > /tmp/note; echo mine > ~/.curlrc; mkdir -p ~/.config /tmp/matplotlib; ls -a ~")
    await serve(jail, SERVE.format(port=PORT))
    look = f'echo "$HOME $XDG_CONFIG_HOME $MPLCONFIGDIR"; cd ~; cat /tmp/note ~/.curlrc; mkdir {NOWHERE}; ls /tmp'
    environment = {"KEY": "value", **SAFE}
    result = await jail.exec("p1", ShellCommand(f"cd / && {look}", 60, environment, private=True), lambda _: None)
    assert result.stdout == f"{NOWHERE} {NOWHERE}/config {NOWHERE}/matplotlib\n"
    assert result.stderr.count("No such file") == 3
    assert "Read-only file system" in result.stderr
    asked = await jail.exec("p2", ShellCommand(ASK.format(port=PORT), 60, environment, private=True), lambda _: None)
    assert "refused" in asked.stderr
    await jail.exec("p3", ShellCommand("echo left > /tmp/left", 60, private=True), lambda _: None)
    assert (await run(jail, "ls /tmp/left", "c3")).exit_code != 0


async def test_ports_of_a_command_are_its_own(jail: BubblewrapSandbox) -> None:
    await serve(jail, SERVE.format(port=PORT))
    await serve(jail, SERVE.format(port=9000), "other")
    assert [await jail.ports(call_id) for call_id in ("server", "other", "never")] == [[PORT], [9000], ()]
    await jail.kill("server")
    assert await jail.ports("server") == []


async def test_commands_at_once_have_one_network(tmp_path: Path) -> None:
    providers = [provider_of(tmp_path) for _ in range(3)]
    holders: set[str] = set()

    async def one(number: int) -> None:
        sandbox = await providers[number % 3].acquire("ada", "t1")
        holders.add((await run(sandbox, "readlink /proc/self/ns/net", f"c{number}")).stdout)

    async with anyio.create_task_group() as tasks:
        for number in range(9):
            tasks.start_soon(one, number)
    assert len(holders) == 1


async def test_tmp_counts_to_the_quota(jail: BubblewrapSandbox) -> None:
    many = "for n in $(seq 30); do head -c 4000000 /dev/urandom > /tmp/$n; done; sleep 60"
    assert "(sandbox.max_thread_mb)" in (await run(jail, many)).stderr
    assert (await run(jail, "rm -r /tmp/*", "c2")).exit_code == 0


async def test_tmp_is_emptied_when_the_thread_was_idle_and_the_next_command_is_told(tmp_path: Path) -> None:
    sandbox = await provider_of(tmp_path, idle_seconds=500).acquire("ada", "t1")
    closed = "mkdir -p /tmp/a/b && echo x > /tmp/a/b/c && chmod 0 /tmp/a/b /tmp/a"
    await run(sandbox, f"{closed}; ln -s {tmp_path} /tmp/link", "c1")
    assert (await run(sandbox, "ls /tmp", "c2")).note == ""
    make_idle(sandbox)
    result = await run(sandbox, "ls /tmp", "c3")
    assert (result.stdout, result.note) == ("", EMPTIED)
    assert await run(sandbox, "ls /tmp", "c3") == result
    assert (await run(sandbox, "ls /tmp", "c4")).note == ""
    make_idle(sandbox)
    machine.sweep(tmp_path / "home", 500)
    folder = machine_of(sandbox).folder
    assert [path.name for path in folder.iterdir() if path.name in ("tmp", "news") or "old" in path.name] == []
    assert tmp_path.is_dir()
    assert [*(tmp_path / "home/sandbox/machines").iterdir()] == []


async def test_what_programs_leave_by_themselves_is_not_missed(tmp_path: Path) -> None:
    sandbox = await provider_of(tmp_path, idle_seconds=500).acquire("ada", "t1")
    await run(sandbox, "mkdir /tmp/cache /tmp/matplotlib", "c1")
    make_idle(sandbox)
    result = await run(sandbox, "ls /tmp", "c2")
    assert (result.stdout, result.note) == ("", "")


async def test_a_thread_at_work_is_not_idle(tmp_path: Path) -> None:
    sandbox = await provider_of(tmp_path, idle_seconds=500).acquire("ada", "t1")
    await serve(sandbox, SERVE.format(port=PORT))
    await run(sandbox, "echo mine > /tmp/note", "c1")
    make_idle(sandbox, at_work=True)
    machine.sweep(tmp_path / "home", 500)
    os.kill(holder_of(sandbox), signal.SIGTERM)
    assert (await run(sandbox, f"cat /tmp/note; {ASK.format(port=PORT)}", "c2")).stdout == "mine\nhello"


async def test_a_network_that_nobody_uses_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LINGER", 0.1)
    sandbox = await provider_of(tmp_path).acquire("ada", "t1")
    await run(sandbox, "echo mine > /tmp/note", "c1")
    wait_for(lambda: not is_alive(sandbox))
    result = await run(sandbox, "cat /tmp/note", "c2")
    assert (result.stdout, result.note) == ("mine\n", "")


async def test_networks_end_with_their_server_or_their_thread(tmp_path: Path) -> None:
    provider = provider_of(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.run)
        first, second = [await provider.acquire("ada", thread) for thread in ("t1", "t2")]
        for sandbox in (first, second):
            await run(sandbox, "true")
        (machine_of(second).folder.rename(tmp_path / "erased"))
        tasks.cancel_scope.cancel()
    wait_for(lambda: not is_alive(first))
    pid = int((tmp_path / "erased/pid").read_text())
    (tmp_path / "erased/pid").unlink()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


async def test_a_network_that_should_end_ends_after_its_last_command(jail: BubblewrapSandbox) -> None:
    await run(jail, "true")
    with machine_of(jail).used():
        pid = holder_of(jail)
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: has_looked(pid))
        assert is_alive(jail)
    wait_for(lambda: not is_alive(jail))


def test_namespaces_can_be_joined() -> None:
    assert machine.is_joinable()


def test_where_a_filter_forbids_to_join_namespaces_they_cannot_be_joined() -> None:
    """An engine's profile may allow to make namespaces, but not to join them."""
    result = subprocess.run([sys.executable, "-c", WITHOUT_SETNS], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("False\n", "")


async def test_where_namespaces_cannot_be_joined_only_tmp_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "is_joinable", lambda: False)
    provider = provider_of(tmp_path)
    sandbox = await provider.acquire("ada", "t1")
    networks = {
        (await run(sandbox, "echo one >> /tmp/note; readlink /proc/self/ns/net", f"c{number}")).stdout
        for number in range(2)
    }
    assert len(networks | {os.readlink("/proc/self/ns/net") + "\n"}) == 3
    assert (await run(sandbox, "cat /tmp/note", "c3")).stdout == "one\none\n"
    assert not (machine_of(sandbox).folder / "pid").exists()
    assert any("by localhost" in weakness for weakness in provider.weaknesses())


async def test_with_the_network_of_the_computer_only_tmp_is_shared(tmp_path: Path) -> None:
    sandbox = await provider_of(tmp_path, network=True, egress=Egress(direct=True)).acquire("ada", "t1")
    result = await run(sandbox, "echo one > /tmp/note; readlink /proc/self/ns/net")
    assert result.stdout == os.readlink("/proc/self/ns/net") + "\n"
    assert (await run(sandbox, "cat /tmp/note", "c2")).stdout == "one\n"


async def test_if_the_network_is_lost_the_next_command_is_told(jail: BubblewrapSandbox) -> None:
    await serve(jail, SERVE.format(port=PORT))
    await run(jail, "echo mine > /tmp/note", "c1")
    os.kill(holder_of(jail), signal.SIGKILL)
    wait_for(lambda: not is_alive(jail))
    result = await run(jail, f"cat /tmp/note; {ASK.format(port=PORT)}", "c2")
    assert (result.stdout, result.note) == ("mine\n", LOST)
    assert "refused" in result.stderr
    await jail.kill("server")
    await serve(jail, SERVE.format(port=PORT), "again")
    assert (await run(jail, ASK.format(port=PORT), "c3")).stdout == "hello"


async def test_a_server_in_the_background_outlives_ours_and_is_still_reached(tmp_path: Path) -> None:
    doing = warm.start(
        doomed.__name__, "bubblewrap", str(tmp_path), SERVE.format(port=PORT), "background", "60", stdout=DEVNULL
    )
    assert doing.wait() == -signal.SIGKILL
    sandbox = await provider_of(tmp_path).acquire("ada", "t1")

    async def listening() -> bool:
        return (await sandbox.output("c1")).text == "listening\n"

    await eventually(listening)
    assert (await run(sandbox, ASK.format(port=PORT), "c2")).stdout == "hello"
    assert is_alive(sandbox)
    os.kill(holder_of(sandbox), signal.SIGTERM)  # as after `LINGER` seconds
    wait_for(lambda: not is_alive(sandbox))


async def test_a_command_does_not_start_where_its_network_is_not(
    jail: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(jail, "true", "c1")
    monkeypatch.setattr(Machine, "used", _of_nobody)
    result = await run(jail, "echo ran", "c2")
    assert (result.stdout, result.exit_code) == ("", 126)


def _of_nobody(self: Machine) -> Any:
    from contextlib import nullcontext

    return nullcontext(machine.Use(os.open(self.folder / "use", os.O_RDWR), 1 << 22, ""))


TABLE = b"""  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1 0 100 0 0 10 0
   1: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 100 0 0 10 0
   2: 0100007F:1F42 0100007F:1F40 01 00000000:00000000 00:00000000 00000000  1000        0 13 1 0 100 0 0 10 0
"""


@given(st.binary(max_size=200), st.lists(st.sampled_from([11, 12, 13, 14]), unique=True))
def test_ports_are_read_from_whatever_a_command_writes(noise: bytes, inodes: list[int]) -> None:
    """Of sockets that listen and that the command has open, whatever stands between them."""
    files = b"".join(b"lrwx 1 a a 64 3 -> socket:[%d]\n" % inode for inode in inodes)
    expected = [port for inode, port in ((11, 8000), (12, 8001)) if inode in inodes]
    assert listening.ports_in(files + TABLE) == expected
    assert all(0 <= port < 1 << 16 for port in listening.ports_in(files + noise + TABLE + noise))
    assert len(listening.ports_in(noise * 50)) <= listening.MOST
