"""What a program in the sandbox tries, whether the server is root or an ordinary user. All of it really runs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from adapters.sandboxes.confine import seccomp
from adapters.sandboxes.process import quota
from core.ports.sandbox import ExecResult
from tests.adapters.sandboxes import server
from tests.adapters.sandboxes.conftest import wait_for

ORDINARY = 65534
ROOT = Path(__file__).parents[3]
ENV = {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}", "PATH": os.environ["PATH"]}
LIBC = "import ctypes, errno, os, socket, sys, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"

pytestmark = [
    pytest.mark.skipif(not seccomp.available(), reason="no filter for this machine"),
    pytest.mark.long(keep=3),
]
Attack = Callable[..., ExecResult]


def _python(uid: int | None) -> str | None:
    """A Python of our version that the user can start; ours may lie in a home that is closed to others."""
    if uid is not None and os.geteuid() != 0:
        return None
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with suppress(OSError):
            words = [python, "-c", "import msgspec, adapters.sandboxes.process.record"]
            if subprocess.run(words, cwd=ROOT, env=ENV, user=uid, group=uid, check=False).returncode == 0:
                return python
    return None


@pytest.fixture(scope="module", params=[None, ORDINARY], ids=["own uid", "ordinary uid"])
def attack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    uid: int | None = request.param
    python = _python(uid)
    if python is None:
        pytest.skip(f"cannot be run as uid {uid} here")
    home = Path(f"/tmp/sika-attacks-{os.getpid()}-{uid}")
    home.mkdir(mode=0o755)
    if uid is not None:
        os.chown(home, uid, uid)
    words = [python, "-m", server.__name__, str(home)]
    process = subprocess.Popen(
        words, cwd=ROOT, env=ENV, user=uid, group=uid, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def script(source: str, kind: str = "bubblewrap") -> ExecResult:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode((kind, LIBC + source)).decode() + "\n")
        process.stdin.flush()
        return msgspec.json.decode(process.stdout.readline(), type=ExecResult)

    script.home = home  # type: ignore[attr-defined]
    yield script
    process.stdin.close()
    process.wait(30)
    process.stdout.close()
    subprocess.run(["rm", "-rf", str(home)], check=True)


def test_nested_user_namespace(attack: Attack) -> None:
    found = attack(f"""
for number, flags in (({_number("unshare")}, 0x10000000), ({_number("clone")}, 0x10000011)):
    answer = libc.syscall(number, flags, 0, 0, 0, 0)
    if answer == 0 and number == {_number("clone")}:
        os._exit(0)
    print(answer, errno.errorcode[ctypes.get_errno()])
""")
    assert found.stdout == "-1 EPERM\n-1 EPERM\n"


def test_cgroups_of_the_host(attack: Attack) -> None:
    found = attack("""
for kind in (b"cgroup2", b"cgroup", b"tmpfs"):
    print(libc.unshare(0x10020000), libc.mount(b"none", b"/tmp", kind, 0, None))
""")
    assert found.stdout.split() == ["-1"] * 6


def test_vsock_of_the_host(attack: Attack) -> None:
    found = attack("""
for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET, socket.AF_INET, socket.AF_UNIX):
    try:
        socket.socket(family, socket.SOCK_STREAM if family != socket.AF_ALG else socket.SOCK_SEQPACKET).close()
        print("made")
    except OSError as error:
        print(errno.errorcode[error.errno])
""")
    assert found.stdout.split() == ["EAFNOSUPPORT"] * 3 + ["made"] * 2


def test_keyring_of_the_server(attack: Attack) -> None:
    found = attack(_SEARCH)
    assert found.stdout == "-1 ENOSYS\n"


def test_a_command_has_a_session_keyring_of_its_own(attack: Attack) -> None:
    """Also where there is no filter."""
    found = attack(_SEARCH, "host")
    assert found.stdout == "-1 ENOKEY\n", found


def test_dangerous_system_calls(attack: Attack) -> None:
    found = attack(f"""
for number in {[_number(name) for name in ("io_uring_setup", "userfaultfd", "bpf", "clone3", "personality")]}:
    print(libc.syscall(number, 0x8, 0, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()])
import threading
threading.Thread(target=print, args=("a thread",)).start()
""")
    assert found.stdout.splitlines() == ["-1 ENOSYS", "-1 ENOSYS", "-1 EPERM", "-1 ENOSYS", "-1 EPERM", "a thread"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the other table of system calls is the 32-bit one of x86")
def test_calls_by_the_other_table_of_numbers(attack: Attack) -> None:
    found = attack("""
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))  # getpid of i386
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
print(call())
""")
    assert (found.stdout, found.exit_code) == ("", 128 + 31)


@pytest.mark.parametrize(
    "way",
    [
        "import mmap; held = mmap.mmap(-1, 400 << 20); [held.write(bytes(1 << 20)) for _ in range(400)]",
        "files = [os.memfd_create('m') for _ in range(60)]; [os.write(fd, bytes(7 << 20)) for fd in files]",
        "[os.fork() for _ in range(3)]; held = b'x' * (50 << 20)",
    ],
    ids=["mapped", "memory file", "by many processes"],
)
def test_memory_that_is_shared(attack: Attack, way: str) -> None:
    found = attack(f"{way}\ntime.sleep(60)")
    assert found.exit_code == 137
    assert "more than 128 MB of memory" in found.stderr


def test_memory_of_the_device_folder(attack: Attack) -> None:
    found = attack(f"""
try:
    for number in range(30):
        with open(f"/dev/shm/{{number}}", "wb") as file:
            for _ in range(7):
                file.write(bytes(1 << 20))
except OSError as error:
    print(errno.errorcode[error.errno])
print(sum(os.path.getsize(f"/dev/shm/{{name}}") for name in os.listdir("/dev/shm")) >> 20)
try:
    open("/dev/x", "w")
except OSError as error:
    print(errno.errorcode[error.errno])
print(libc.syscall({_number("shmget")}, 0, 1 << 20, 0o1600), errno.errorcode[ctypes.get_errno()])
""")
    assert found.stdout.split() == ["ENOSPC", "64", "EROFS", "-1", "EINVAL"]


def test_out_of_memory_killer(attack: Attack) -> None:
    found = attack("""
print(open("/proc/self/oom_score_adj").read().strip())
try:
    open("/proc/self/oom_score_adj", "w").write("0")
except OSError as error:
    print(errno.errorcode[error.errno])
""")
    assert found.stdout.split() == ["1000", "EROFS"]


def test_burst_of_processes(attack: Attack) -> None:
    found = attack("""
made = 0
for _ in range(400):
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
    except BlockingIOError:
        break
print(made, flush=True)
""")
    assert 20 <= int(found.stdout) <= 32


def test_a_process_that_ended_makes_room_for_another(attack: Attack) -> None:
    found = attack("for _ in range(100):\n    os.fork() or os._exit(0)\n    os.wait()\nprint('all')")
    assert found.stdout == "all\n", found


def test_what_the_kernel_tells_a_root(attack: Attack) -> None:
    found = attack("""
for name in ("kpageflags", "kpagecount", "vmallocinfo", "slabinfo", "keys"):
    try:
        print(name, open("/proc/" + name).read(10))
    except OSError:
        pass
""")
    assert found.stdout == ""


def test_host_paths_of_the_data_are_not_in_the_process_list(attack: Attack) -> None:
    found = attack("print(open('/proc/1/cmdline').read().split(chr(0)), os.environ['PATH'])")
    assert "'bwrap', '--args'" in found.stdout
    assert str(attack.home) not in found.stdout  # type: ignore[attr-defined]
    assert sys.base_prefix == "/usr" or sys.base_prefix not in found.stdout


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("[open(f'{n}', 'wb').write(os.urandom(4 << 20)) for n in range(30)]", "take more than 64 MB"),
        ("[open(f'{n}', 'w').close() for n in range(3000)]", "more than 2000 files"),
    ],
    ids=["disk in sum", "number of files"],
)
def test_quota(attack: Attack, way: str, reason: str) -> None:
    place = attack.home / "home/users/ada/threads/t1"  # type: ignore[attr-defined]
    found = attack(f"os.mkdir('much'); os.chdir('much')\n{way}\ntime.sleep(60)")
    assert found.exit_code == 137
    assert reason in found.stderr

    def counted() -> bool:
        last = quota.recorded(str(place))
        return last is not None and last[0] == quota.count(str(place))

    wait_for(counted, 120)  # files are counted when nothing else has work
    # Who is above the limit may run, and delete.
    freed = attack("""
names = sorted(os.listdir("much"))
for name in names[: len(names) // 6]:
    os.unlink("much/" + name)
time.sleep(0.7)
import shutil
shutil.rmtree("much")
print("freed")
""")
    assert freed.stdout == "freed\n", freed


_SEARCH = f"""
found = libc.syscall({seccomp.number("keyctl")}, 10, -3, b"user", {server.KEY!r}, 0)
print(found, errno.errorcode[ctypes.get_errno()])
"""


def _number(name: str) -> int:
    column = seccomp.ARCHITECTURES[os.uname().machine][1]
    known = {"unshare": seccomp._UNSHARE, "clone": seccomp._CLONE, "personality": seccomp._PERSONALITY}
    known["shmget"] = seccomp._SHMGET
    return {**seccomp.REFUSED, **seccomp.ABSENT, **known}[name][column]
