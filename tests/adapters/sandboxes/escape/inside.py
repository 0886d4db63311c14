"""Attempts to get out of a sandbox, each a function that runs inside it. Standard library only.

An attempt that raises `OSError` was refused. One that returns False was contained: it did something, without effect
outside. One that returns True has reached what it should not. Nothing here harms the machine if it succeeds: files are
opened for writing and not written to, system calls get arguments that have no effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

REFUSED, CONTAINED, BY_DESIGN = "refused", "contained", "by design"
SECONDS = 10
HARMLESS_ERRORS = (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
"""Errors of a system call that was refused. With any other the kernel has looked at its arguments."""
Facts = dict[str, Any]


class Attempt(NamedTuple):
    name: str
    category: str
    run: Callable[[Facts], bool]
    bubblewrap: str
    host: str | None
    """None: by design, and not run, because it could harm the machine or differs by its settings."""


ATTEMPTS: list[Attempt] = []
_libc = ctypes.CDLL(None, use_errno=True)


def attempt(category: str, name: str, bubblewrap: str = REFUSED, host: str | None = None) -> Callable[..., Any]:
    def add(run: Callable[[Facts], bool]) -> Callable[[Facts], bool]:
        ATTEMPTS.append(Attempt(name, category, run, bubblewrap, host))
        return run

    return add


def several(category: str, cases: dict[str, Callable[[Facts], bool]], bubblewrap: str = REFUSED) -> None:
    for name, run in cases.items():
        attempt(category, name, bubblewrap)(run)


def call(facts: Facts, name: str, *arguments: object) -> bool:
    """Calls the kernel. Returns True unless the call was refused."""
    if _libc.syscall(facts["calls"][name], *arguments) < 0 and ctypes.get_errno() in HARMLESS_ERRORS:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


def calls(name: str, *arguments: object) -> Callable[[Facts], bool]:
    return lambda facts: call(facts, name, *arguments)


def _done(function: Callable[..., object], *arguments: object) -> bool:
    """Calls a function that returns nothing, and raises `OSError` if it is refused."""
    function(*arguments)
    return True


def opens(path: str, flags: int = os.O_RDONLY) -> Callable[[Facts], bool]:
    def run(facts: Facts) -> bool:
        os.close(os.open(path.format(**facts), flags | os.O_NONBLOCK))
        return True

    return run


def reads(path: str) -> Callable[[Facts], bool]:
    """Reads a file that holds the secret."""

    def run(facts: Facts) -> bool:
        with open(path.format(**facts), "rb") as file:
            return facts["secret"].encode() in file.read(1 << 20)

    return run


def creates(path: str) -> Callable[[Facts], bool]:
    def run(facts: Facts) -> bool:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.unlink(path)
        return True

    return run


def connects(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> Callable[[Facts], bool]:
    def run(facts: Facts) -> bool:
        target = address(facts) if callable(address) else address
        with socket.socket(family, kind) as client:
            client.settimeout(3)
            client.connect(target)
        return True

    return run


def makes(family: int, kind: int, protocol: int = 0) -> Callable[[Facts], bool]:
    def run(facts: Facts) -> bool:
        socket.socket(family, kind, protocol).close()
        return True

    return run


# ── files of the host ───────────────────────────────────────────────────────────────────────────────────────────────

for _name, _path in {
    "configuration of the server": "{config}",
    "secrets of the server": "{home}/secrets/token",
    "file of another thread": "{other_thread}",
    "file of another user": "{other_user}",
    "by .. from the workspace": "../../../../../../../../../../..{config}",
    "by .. from a mount": "/mnt/skills/../../../..{config}",
    "by /proc/self/root": "/proc/self/root{config}",
    "by /proc/1/root": "/proc/1/root{config}",
    "by the working directory of process 1": "/proc/1/cwd{config}",
}.items():
    attempt("files", _name, host=BY_DESIGN if "proc/1" not in _path and ".. from" not in _name else None)(reads(_path))


@attempt("files", "symbolic link to the configuration", host=BY_DESIGN)
def symbolic_link(facts: Facts) -> bool:
    os.symlink(facts["config"], "link")
    return reads("link")(facts)


@attempt("files", "chain of links through /proc")
def chain_of_links(facts: Facts) -> bool:
    os.symlink("/proc/self/cwd/../../../../../../..", "up")
    return reads("up" + facts["config"])(facts)


@attempt("files", "hard link to a file of the system")
def hard_link_to_the_system(facts: Facts) -> bool:
    os.link("/usr/bin/env", "env")
    return True


@attempt("files", "hard link to a file of a read-only mount")
def hard_link_to_a_mount(facts: Facts) -> bool:
    os.link("/mnt/readonly/fixed.txt", "fixed")
    return True


@attempt("files", "hard link to the configuration")
def hard_link_to_the_configuration(facts: Facts) -> bool:
    os.link(facts["config"], "config")
    return True


@attempt("files", "rename across mounts")
def rename(facts: Facts) -> bool:
    open("mine", "w").close()
    os.rename("mine", "/mnt/skills/mine")
    return True


several(
    "files",
    {
        "passwords of the host": opens("/etc/shadow"),
        "keys of root": lambda facts: bool(os.listdir(os.path.join("/", "root", ".ssh"))),
        "private keys of TLS": lambda facts: bool(os.listdir("/etc/ssl/private")),
        "directories of people": lambda facts: bool(os.listdir("/home")),
        "logs of the host": lambda facts: bool(os.listdir("/var/log")),
        "name with a NUL": lambda facts: bool(os.stat(b"a\0b")),
        "writing to /": creates("/x"),
        "writing to /usr": creates("/usr/x"),
        "writing to /etc": creates("/etc/x"),
        "writing to the packages of Python": creates("/python/x"),
        "writing to a skill": creates("/mnt/skills/demo/x"),
        "writing to a read-only mount": creates("/mnt/readonly/x"),
        "changing a file of a read-only mount": opens("/mnt/readonly/fixed.txt", os.O_WRONLY),
        "changing the mode of a read-only file": lambda facts: _done(os.chmod, "/mnt/readonly/fixed.txt", 0o777),
        "socket of the container engine": connects(socket.AF_UNIX, "/var/run/docker.sock"),
    },
)


@attempt("files", "other accounts of the host", CONTAINED)
def accounts(facts: Facts) -> bool:
    with open("/etc/passwd") as file:
        return len(file.readlines()) > 2


@attempt("files", "place of the data on the host, in the list of mounts", BY_DESIGN)
def list_of_mounts(facts: Facts) -> bool:
    with open("/proc/self/mountinfo") as file:
        return os.path.basename(facts["base"]) in file.read()


# ── the server's process ────────────────────────────────────────────────────────────────────────────────────────────

several(
    "server",
    {
        "environment of the server": reads("/proc/{pid}/environ"),
        "command line of the server": opens("/proc/{pid}/cmdline"),
        "memory of the server": opens("/proc/{pid}/mem"),
        "descriptors of the server": lambda facts: bool(os.listdir(f"/proc/{facts['pid']}/fd")),
        "signal to the server": lambda facts: _done(os.kill, facts["pid"], 0),
        "signal to the server's group": lambda facts: _done(os.killpg, facts["group"], 0),
        "pidfd of the server": lambda facts: os.pidfd_open(facts["pid"]) > 0,
        "priority of the server": lambda facts: _done(os.setpriority, os.PRIO_PROCESS, facts["pid"], 19),
        "tracing of the server": lambda facts: call(facts, "ptrace", 16, facts["pid"], 0, 0) and _failed(),
        "memory of process 1": opens("/proc/1/mem", os.O_RDWR),
        "memory of another process by system call": calls("process_vm_readv", 1, 0, 0, 0, 0, 0),
        "descriptor of another process": calls("pidfd_getfd", -1, 0, 0),
    },
)


def _failed() -> bool:
    if ctypes.get_errno():
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


@attempt("server", "secret in an environment that can be seen", CONTAINED, host=BY_DESIGN)
def environments(facts: Facts) -> bool:
    return _any(glob.glob("/proc/[0-9]*/environ"), facts["secret"])


@attempt("server", "place of the data in a command line that can be seen", CONTAINED, host=BY_DESIGN)
def command_lines(facts: Facts) -> bool:
    return _any(glob.glob("/proc/[0-9]*/cmdline"), facts["base"])


@attempt("server", "inherited descriptors", CONTAINED)
def descriptors(facts: Facts) -> bool:
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return any(facts["home"] in os.readlink(link) for link in links if os.path.islink(link))


@attempt("server", "files and directories that process 1 has open", CONTAINED)
def descriptors_of_the_first(facts: Facts) -> bool:
    for name in os.listdir("/proc/1/fd"):
        try:
            fd = os.open(f"/proc/1/fd/{name}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        if facts["base"] in os.readlink(f"/proc/1/fd/{name}") or stat.S_ISDIR(os.fstat(fd).st_mode):
            return True
    return False


@attempt("server", "record of the call", CONTAINED)
def record(facts: Facts) -> bool:
    return bool(glob.glob("/mnt/user-data/../calls/*") + glob.glob("/mnt/user-data/../../calls/*"))


def _any(paths: list[str], text: str) -> bool:
    own = str(os.getpid())
    for path in paths:
        try:
            with open(path, "rb") as file:
                if path.split("/")[2] != own and text.encode() in file.read():
                    return True
        except OSError:
            continue
    return False


# ── /proc and /sys ──────────────────────────────────────────────────────────────────────────────────────────────────

several(
    "proc",
    {
        "handler of core dumps": opens("/proc/sys/kernel/core_pattern", os.O_WRONLY),
        "magic keys": opens("/proc/sysrq-trigger", os.O_WRONLY),
        "dropping caches": opens("/proc/sys/vm/drop_caches", os.O_WRONLY),
        "loading modules": opens("/proc/sys/kernel/modprobe", os.O_WRONLY),
        "forwarding packets": opens("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY),
        "memory of the kernel": opens("/proc/kcore"),
        "messages of the kernel": opens("/proc/kmsg"),
        "mapping of user ids": opens("/proc/self/uid_map", os.O_WRONLY),
        "group ids": opens("/proc/self/setgroups", os.O_WRONLY),
        "score of the out-of-memory killer": opens("/proc/self/oom_score_adj", os.O_WRONLY),
        "interrupts": opens("/proc/irq/default_smp_affinity", os.O_WRONLY),
    },
)


@attempt("proc", "tables that only root may read", CONTAINED)
def kernel_tables(facts: Facts) -> bool:
    for name in ("kpageflags", "kpagecount", "vmallocinfo", "slabinfo", "keys", "timer_list"):
        try:
            with open(f"/proc/{name}", "rb") as file:
                if file.read(64):
                    return True
        except OSError:
            continue
    return False


@attempt("proc", "other processes of the machine", CONTAINED, host=BY_DESIGN)
def processes(facts: Facts) -> bool:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(path) as file:
            if facts["program"] in file.read():
                return True
    return False


several(
    "sys",
    {
        "devices by /sys": lambda facts: bool(os.listdir("/sys")),
        "cgroups of the host": opens("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.O_WRONLY),
        "release agent": opens("/sys/fs/cgroup/memory/release_agent", os.O_WRONLY),
        "helper for device events": opens("/sys/kernel/uevent_helper", os.O_WRONLY),
        "debugging file system": lambda facts: bool(os.listdir("/sys/kernel/debug")),
        "variables of the firmware": opens("/sys/firmware/efi"),
    },
)

# ── mounts and namespaces ───────────────────────────────────────────────────────────────────────────────────────────

_NEW = {"mounts": 0x20000, "users": 0x10000000, "processes": 0x20000000, "network": 0x40000000, "time": 0x80}

several(
    "mounts",
    {
        "tmpfs": calls("mount", b"none", b"/tmp", b"tmpfs", 0, None),
        "proc": calls("mount", b"none", b"/tmp", b"proc", 0, None),
        "cgroup2": calls("mount", b"none", b"/tmp", b"cgroup2", 0, None),
        "making /usr writable": calls("mount", b"none", b"/usr", b"none", 0x1020, None),
        "uncovering /proc/keys": calls("umount2", b"/proc/keys", 2),
        "another root": calls("pivot_root", b"/tmp", b"/tmp"),
        "chroot": calls("chroot", b"/tmp"),
        "new interface: fsopen": calls("fsopen", b"tmpfs", 0),
        "new interface: open_tree": calls("open_tree", -100, b"/", 1),
        "new interface: move_mount": calls("move_mount", -100, b"/tmp", -100, b"/tmp", 0),
        "new interface: mount_setattr": calls("mount_setattr", -100, b"/usr", 0, None, 0),
        "file handles: open_by_handle_at": calls("open_by_handle_at", -100, None, 0),
        "file handles: name_to_handle_at": calls("name_to_handle_at", -100, b"/", None, None, 0),
    },
)
several("namespaces", {f"new one of {name}": calls("unshare", bits) for name, bits in _NEW.items()})
several(
    "namespaces",
    {
        "new one of users by clone": calls("clone", 0x10000011, 0, 0, 0, 0),
        "clone3, whose flags no filter can see": calls("clone3", 0, 0),
        "that of process 1": lambda facts: call(facts, "setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0),
        "by the program unshare": lambda facts: _succeeds("unshare", "-Ur", "true"),
        "a sandbox in the sandbox": lambda facts: _succeeds("bwrap", "--dev-bind", "/", "/", "true"),
    },
)


def _succeeds(*words: str) -> bool:
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        raise OSError(errno.EPERM, done.stderr.decode(errors="replace")[:60])
    return True


# ── devices and privileges ──────────────────────────────────────────────────────────────────────────────────────────

several(
    "devices",
    {
        "new block device": lambda facts: _done(os.mknod, "disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)),
        "new character device": lambda facts: _done(os.mknod, "mem", stat.S_IFCHR | 0o600, os.makedev(1, 1)),
        "memory": opens("/dev/mem"),
        "messages of the kernel": opens("/dev/kmsg"),
        "disk": opens("/dev/vda"),
        "virtual machines": opens("/dev/kvm"),
        "file systems in user space": opens("/dev/fuse"),
        "tunnels": opens("/dev/net/tun"),
        "loop devices": opens("/dev/loop-control"),
        "file in /dev": creates("/dev/x"),
    },
)


@attempt("devices", "input to a terminal")
def terminal_input(facts: Facts) -> bool:
    _, follower = os.openpty()
    fcntl.ioctl(follower, 0x5412, b"x")
    return True


several(
    "privileges",
    {
        "becoming root": lambda facts: _done(os.setuid, 0),
        "becoming another user": lambda facts: _done(os.setuid, 1001),
        "further groups": lambda facts: _done(os.setgroups, [0]),
        "program su": lambda facts: _succeeds("su", "-c", "true"),
        "higher priority": lambda facts: os.nice(-5) < 0,
        "real-time priority": lambda facts: _done(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
        "name of the machine": calls("sethostname", b"x", 1),
        "clock": calls("clock_settime", 0, 0),
        "restart": calls("reboot", 0, 0, 0, 0),
    },
)


@attempt("privileges", "capabilities", CONTAINED)
def capabilities(facts: Facts) -> bool:
    with open("/proc/self/status") as file:
        lines = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    return any(int(lines[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"))


@attempt("privileges", "own program with the setuid bit", CONTAINED)
def setuid_program(facts: Facts) -> bool:
    subprocess.run(["cp", "/usr/bin/id", "id"], check=True)
    os.chmod("id", 0o6755)
    return subprocess.run(["./id", "-u"], capture_output=True, check=True).stdout == b"0\n"


@attempt("privileges", "limits of the process")
def own_limits(facts: Facts) -> bool:
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError as error:
        raise PermissionError(errno.EPERM, str(error)) from error
    return True


# ── the kernel ──────────────────────────────────────────────────────────────────────────────────────────────────────

several(
    "kernel",
    {
        name: calls(name, *arguments)
        for name, arguments in {
            "io_uring_setup": (8, 0),
            "io_uring_enter": (-1, 0, 0, 0, 0),
            "userfaultfd": (0,),
            "bpf": (0, 0, 0),
            "perf_event_open": (0, 0, -1, -1, 0),
            "memfd_secret": (0,),
            "kexec_load": (0, 0, 0, 0),
            "init_module": (0, 0, b""),
            "finit_module": (-1, b"", 0),
            "swapon": (b"/x", 0),
            "syslog": (10, 0, 0),
            "acct": (b"/x",),
            "quotactl": (0, 0, 0, 0),
            "fanotify_init": (0, 0),
            "vmsplice": (-1, 0, 0, 0),
            "personality": (0x0400000,),
            "move_pages": (0, 0, 0, 0, 0, 0),
        }.items()
    },
)


@attempt("kernel", "calls by the table of 32-bit programs")
def other_table(facts: Facts) -> bool:
    import mmap

    if facts["machine"] != "x86_64":
        raise OSError(errno.ENOSYS, "there is no such table")
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex("b814000000cd80c3"))  # getpid of i386
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    return True


@attempt("kernel", "calls by the numbers of x32")
def x32(facts: Facts) -> bool:
    if facts["machine"] != "x86_64" or _libc.syscall(0x40000000 + 39) < 0:
        raise OSError(errno.ENOSYS, "no such call")
    return True


several(
    "keyrings",
    {
        "key of the server": calls("keyctl", 10, -3, b"user", b"sika-escape", 0),
        "new key": calls("add_key", b"user", b"x", b"x", 1, -3),
        "request for a key": calls("request_key", b"user", b"sika-escape", None, 0),
    },
)


@attempt("keyrings", "shared memory of the host by its key")
def shared_memory(facts: Facts) -> bool:
    if _libc.shmget(facts["shm"], 0, 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


# ── network ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_INET, _INET6 = socket.AF_INET, socket.AF_INET6
for _name, _run in {
    "port of NATS": connects(_INET, lambda facts: ("127.0.0.1", facts["nats"])),
    "port of the server": connects(_INET, lambda facts: ("127.0.0.1", facts["http"])),
    "port of the server by another loopback address": connects(_INET, lambda facts: ("127.1.2.3", facts["http"])),
    "port of the server by 0.0.0.0": connects(_INET, lambda facts: ("0.0.0.0", facts["http"])),
    "abstract socket of the host": connects(socket.AF_UNIX, lambda facts: "\0" + facts["abstract"]),
    "socket in a directory of the host": connects(socket.AF_UNIX, lambda facts: facts["socket"]),
}.items():
    attempt("network", _name, host=BY_DESIGN)(_run)
several(
    "network",
    {
        "metadata of the cloud": connects(_INET, ("169.254.169.254", 80)),
        "metadata of the cloud by IPv6": connects(_INET6, ("fd00:ec2::254", 80)),
        "address outside": connects(_INET, ("192.0.2.1", 80)),
        "address outside by UDP": connects(_INET, ("192.0.2.1", 53), socket.SOCK_DGRAM),
        "name of a host": lambda facts: bool(socket.getaddrinfo("example.org", 80)),
        "raw packets": makes(_INET, socket.SOCK_RAW, 1),
        "packets below IP": makes(17, socket.SOCK_RAW),
        "machine's own host by vsock": makes(40, socket.SOCK_STREAM),
        "cryptography of the kernel": makes(38, socket.SOCK_SEQPACKET),
        "Bluetooth": makes(31, socket.SOCK_RAW),
        "multipath TCP": makes(_INET, socket.SOCK_STREAM, 262),
        "netlink: packet filter": makes(16, socket.SOCK_RAW, 12),
        "netlink: audit": makes(16, socket.SOCK_RAW, 9),
        "netlink: device events": makes(16, socket.SOCK_RAW, 15),
    },
)


@attempt("network", "interfaces of the host", CONTAINED, host=BY_DESIGN)
def interfaces(facts: Facts) -> bool:
    return [name for _, name in socket.if_nameindex()] != ["lo"]


@attempt("network", "sockets of the host in /proc", CONTAINED, host=BY_DESIGN)
def sockets(facts: Facts) -> bool:
    with open("/proc/net/unix") as unix, open("/proc/net/tcp") as tcp:
        return facts["abstract"] in unix.read() or f":{facts['nats']:04X} " in tcp.read()


@attempt("network", "bringing an interface up")
def interface_up(facts: Facts) -> bool:
    with socket.socket() as one:
        fcntl.ioctl(one, 0x8914, b"lo".ljust(16, b"\0") + b"\x41\0" + bytes(22))
    return True


# ── running them ────────────────────────────────────────────────────────────────────────────────────────────────────


def verdict(one: Attempt, facts: Facts) -> tuple[str, str]:
    """Returns what happened, and the detail. Runs in a process of its own, which may die."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.mkdir(f"of-{os.getpid()}")
        os.chdir(f"of-{os.getpid()}")
        try:
            outcome = ("reached", "") if one.run(facts) else (CONTAINED, "")
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None)
            outcome = (REFUSED, errno.errorcode.get(number or 0, type(error).__name__))
        except BaseException as error:
            outcome = ("broken", repr(error))
        os.write(write_end, json.dumps(outcome).encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as answer:
        text = answer.read()
    status = os.waitpid(child, 0)[1]
    if text:
        state, detail = json.loads(text)
        return state, detail
    return REFUSED, f"killed by signal {os.WTERMSIG(status)}"


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        all_facts, names = json.load(file)
    for one in ATTEMPTS:
        if f"{one.category}: {one.name}" in names:
            print(json.dumps([f"{one.category}: {one.name}", *verdict(one, all_facts)]), flush=True)
