"""The filter of system calls of confined processes: for gaps of the namespaces, and for needless risks.

Classic BPF (`bwrap --seccomp`). Calls that are not listed are allowed. Refused calls return EPERM where programs do
not need them, ENOSYS where programs try them and fall back. `clone3` must be ENOSYS: its flags lie behind a pointer
that a filter cannot follow, and the C library then uses `clone`, whose flags are a plain argument.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NOTIFY = 0x7FC00000
_LOAD, _EQUAL, _AT_LEAST, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
_NAMESPACES = 0x7E020000
"""The CLONE_NEW… flags without CLONE_NEWTIME, which is a part of the signal in `clone`."""
_NEWTIME, _THREAD = 0x80, 0x00010000
_FAMILIES, _NETLINK = (1, 2, 10), 16
"""AF_UNIX, AF_INET, AF_INET6. AF_VSOCK reaches the machine's own host without any network."""
_NETLINK_ROUTE = 0
"""The netlink protocol that getaddrinfo needs. The others (audit, netfilter, uevents) are the kernel's."""
_MULTIPATH = 262
"""IPPROTO_MPTCP, which rules for TCP (Landlock) miss. Programs fall back to TCP."""
_PERSONALITIES = (0, 0x40000, 0xFFFFFFFF)
"""Linux, without randomised addresses (debuggers), and the query of the current one."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI, TIOCLINUX: they insert input into another process's terminal."""
_SHARED_BYTES = 65536
"""Limit of a System V segment. An unattached one is in no process's memory, so no limit would count it."""

ARCHITECTURES: Mapping[str, tuple[int, int]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""`uname -m`: the AUDIT_ARCH_… value, and the column of the numbers below."""
REFUSED: Mapping[str, tuple[int, int]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "settimeofday": (164, 170),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "mbind": (237, 235),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "set_mempolicy": (238, 237),
    "quotactl_fd": (443, 443),
    "open_tree_attr": (467, 467),
}
"""Calls that return EPERM."""
_REFUSED_X86 = {"modify_ldt": 154, "iopl": 172, "ioperm": 173, "uselib": 134}
"""Those that only x86_64 has."""
ABSENT: Mapping[str, tuple[int, int]] = {
    "clone3": (435, 435),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    "map_shadow_stack": (453, 453),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "lsm_get_self_attr": (459, 459),
    "lsm_set_self_attr": (460, 460),
    "lsm_list_modules": (461, 461),
}
"""Calls that return ENOSYS."""
_CLONE, _UNSHARE, _SOCKET, _SOCKETPAIR = (56, 220), (272, 97), (41, 198), (53, 199)
_PERSONALITY, _IOCTL, _SHMGET = (135, 92), (16, 29), (29, 194)
_FORKS = ((57, None), (58, None))
"""fork and vfork, which only x86_64 has."""


_SECCOMP = (317, 277)


def available() -> bool:
    return sys.platform == "linux" and os.uname().machine in ARCHITECTURES


def number(name: str) -> int | None:
    """Returns the number of a system call (`keyctl` or `seccomp`); None on an unknown architecture."""
    if not available():
        return None
    return {"keyctl": ABSENT["keyctl"], "seccomp": _SECCOMP}[name][ARCHITECTURES[os.uname().machine][1]]


@functools.cache
def program(machine: str | None = None) -> bytes:
    """Returns the filter for a machine (`uname -m`). Raises `KeyError` for an unknown one."""
    architecture, column = ARCHITECTURES[machine or os.uname().machine]
    return b"".join(_program(architecture, column))


@functools.cache
def notifying(machine: str | None = None) -> bytes:
    """Returns a filter that notifies its listener of each new process (not thread)."""
    architecture, column = ARCHITECTURES[machine or os.uname().machine]
    body = [_instruction(_LOAD, _NUMBER)]
    for fork in _FORKS:
        if (number := fork[column]) is not None:
            body += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _NOTIFY)]
    body += _argument(_CLONE[column], 0, [_instruction(_ANY_BIT, _THREAD, 1, 0), _instruction(_RETURN, _NOTIFY)])
    # clone3 hides its flags: with ENOSYS the C library uses clone.
    body += [_instruction(_EQUAL, ABSENT["clone3"][column], 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    head = [_instruction(_LOAD, _ARCHITECTURE), _instruction(_EQUAL, architecture, 1, 0)]
    return b"".join([*head, _instruction(_RETURN, _KILL), *body, _instruction(_RETURN, _ALLOW)])


def _program(architecture: int, column: int) -> Iterator[bytes]:
    # Any other architecture has other numbers: a 64-bit program could call the i386 table.
    yield _instruction(_LOAD, _ARCHITECTURE)
    yield _instruction(_EQUAL, architecture, 1, 0)
    yield _instruction(_RETURN, _KILL)
    yield _instruction(_LOAD, _NUMBER)
    if not column:
        yield _instruction(_AT_LEAST, _X32, 0, 1)
        yield _instruction(_RETURN, _ERRNO | errno.ENOSYS)
        yield from _not(tuple(_REFUSED_X86.values()), errno.EPERM)
    for numbers, error in ((REFUSED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for number in numbers.values():
            yield _instruction(_EQUAL, number[column], 0, 1)
            yield _instruction(_RETURN, _ERRNO | error)
    yield from _argument(_CLONE[column], 0, _unless_any(_NAMESPACES))
    yield from _argument(_UNSHARE[column], 0, _unless_any(_NAMESPACES | _NEWTIME))
    yield from _socket(_SOCKET[column])
    yield from _argument(_SOCKETPAIR[column], 0, _only(_FAMILIES, errno.EAFNOSUPPORT))
    yield from _argument(_PERSONALITY[column], 0, _only(_PERSONALITIES, errno.EPERM))
    yield from _argument(_IOCTL[column], 1, _not(_TERMINAL_INPUT, errno.EPERM))
    too_big = _instruction(_RETURN, _ERRNO | errno.EINVAL)
    yield from _argument(_SHMGET[column], 1, [_instruction(_ABOVE, _SHARED_BYTES, 0, 1), too_big], high=too_big)
    yield _instruction(_RETURN, _ALLOW)


def _argument(number: int, index: int, check: Sequence[bytes], *, high: bytes | None = None) -> list[bytes]:
    """Returns a check of the low half of an argument: the kernel ignores the rest of an int, so comparing it would be a
    way around. `high` is the instruction for a high half that is not zero.
    """
    body = [_instruction(_LOAD, _ARGUMENTS + 8 * index), *check, _instruction(_RETURN, _ALLOW)]
    if high is not None:
        body = [_instruction(_LOAD, _ARGUMENTS + 8 * index + 4), _instruction(_EQUAL, 0, 1, 0), high, *body]
    return [_instruction(_EQUAL, number, 0, len(body)), *body]


def _socket(number: int) -> list[bytes]:
    """Returns the check of a socket's family and protocol."""
    refused = _instruction(_RETURN, _ERRNO | errno.EPROTONOSUPPORT)
    families = [_instruction(_EQUAL, family, 3 + len(_FAMILIES) - place, 0) for place, family in enumerate(_FAMILIES)]
    body = [
        _instruction(_LOAD, _ARGUMENTS),
        _instruction(_EQUAL, _NETLINK, len(families) + 1, 0),
        *families,
        _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
        _instruction(_LOAD, _ARGUMENTS + 16),
        _instruction(_EQUAL, _NETLINK_ROUTE, 4, 0),
        refused,
        _instruction(_LOAD, _ARGUMENTS + 16),
        _instruction(_EQUAL, _MULTIPATH, 0, 1),
        refused,
        _instruction(_RETURN, _ALLOW),
    ]
    return [_instruction(_EQUAL, number, 0, len(body)), *body]


def _unless_any(bits: int) -> list[bytes]:
    return [_instruction(_ANY_BIT, bits, 0, 1), _instruction(_RETURN, _ERRNO | errno.EPERM)]


def _only(values: Sequence[int], error: int) -> list[bytes]:
    tests = [_instruction(_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [*tests, _instruction(_RETURN, _ERRNO | error)]


def _not(values: Sequence[int], error: int) -> list[bytes]:
    return [
        word for value in values for word in (_instruction(_EQUAL, value, 0, 1), _instruction(_RETURN, _ERRNO | error))
    ]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Packs a `sock_filter`: operation, jump offsets, value."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
