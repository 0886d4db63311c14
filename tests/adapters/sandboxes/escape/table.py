"""The table of attempts and verdicts: what is expected, what happened, and the page that shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.adapters.sandboxes.conftest import SECRET
from tests.adapters.sandboxes.escape import server
from tests.adapters.sandboxes.escape.inside import ATTEMPTS, BY_DESIGN, CONTAINED, Attempt
from tests.adapters.sandboxes.escape.outside import OUTSIDE, Outside

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "channels/http/docs/sandbox-escapes.md"
ORDINARY = 65534
NOT_RUN = "by design, not run"
SECONDS = 150


class Column(NamedTuple):
    provider: str
    uid: int | None
    """None: that of the test."""


PROVIDERS = ("bubblewrap", "docker", "host")
COLUMNS = tuple(Column(provider, uid) for provider in PROVIDERS for uid in (None, ORDINARY))
ENGINE = "as the engine decides"
"""The verdict of the engine's own filter of system calls, which becomes stricter with its versions."""
IN_DOCKER = {
    **dict.fromkeys(
        (
            *("server: memory of process 1", "proc: mapping of user ids", "proc: score of the out-of-memory killer"),
            *("sys: devices by /sys", "privileges: limits of the process"),
            *(
                f"other commands: {name} of the agent, for a command with secrets"
                for name in ("port", "abstract socket", "/tmp")
            ),
        ),
        BY_DESIGN,
    ),
    **dict.fromkeys(
        (
            *("kernel: io_uring_setup", "kernel: io_uring_enter", "kernel: memfd_secret", "kernel: vmsplice"),
            *("kernel: calls by the table of 32-bit programs", "network: machine's own host by vsock"),
            *("network: multipath TCP", "network: netlink: packet filter", "network: netlink: audit"),
            "network: netlink: device events",
        ),
        ENGINE,
    ),
    "sys: debugging file system": CONTAINED,
}
"""Verdicts for containers that are not those of bubblewrap."""


def expected(provider: str) -> dict[str, str]:
    """Returns the verdict for each attempt."""
    attempts: list[Attempt | Outside] = [*ATTEMPTS, *OUTSIDE]
    column = "bubblewrap" if provider == "docker" else provider
    verdicts = {f"{one.category}: {one.name}": getattr(one, column) or NOT_RUN for one in attempts}
    return verdicts | IN_DOCKER if provider == "docker" else verdicts


@cache
def python_for(uid: int | None) -> str | None:
    """Returns a Python of this version that the user can start; ours may lie in a home that is closed to others."""
    if uid is not None and os.geteuid() != 0:
        return None
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with suppress(OSError):
            words = [python, "-c", "import msgspec, anyio, adapters.sandboxes.process.record"]
            if subprocess.run(words, cwd=ROOT, env=_environment(), user=uid, group=uid, check=False).returncode == 0:
                return python
    return None


def happened(column: Column, base: Path, *options: str) -> dict[str, tuple[str, str]]:
    """Runs all attempts of a column against a server of its own. Returns verdicts and details. `options` are the engine
    and the image for containers.
    """
    python = python_for(column.uid)
    assert python is not None
    base.mkdir(mode=0o755)
    if column.uid is not None:
        os.chown(base, column.uid, column.uid)
    words = [python, "-m", server.__name__, str(base), column.provider, *options]
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=_environment() | {"THE_KEY": SECRET},
            user=column.uid,
            group=column.uid,
            stdout=subprocess.PIPE,
            check=True,
            timeout=SECONDS,
            start_new_session=True,
        )
    finally:
        subprocess.run(["rm", "-rf", str(base)], check=True)
    return msgspec.json.decode(done.stdout, type=dict[str, tuple[str, str]])


def verdict_of(outcome: tuple[str, str], wanted: str) -> str:
    """Returns the word of the table. What is reached by design is no failure."""
    if wanted == ENGINE:
        return ENGINE
    return BY_DESIGN if outcome[0] == "reached" and wanted == BY_DESIGN else outcome[0]


def page() -> str:
    """Returns the page, from what is expected: the test shows that it also happens."""
    bubblewrap, docker, host = (expected(provider) for provider in PROVIDERS)
    lines = [
        "# Attempts to get out of the sandbox",
        "",
        f"{len(bubblewrap)} attempts, each really made by the tests, against servers that run as root and as an "
        "ordinary user. `python -m tests.adapters.sandboxes.escape` makes them and prints what happened; `--write` "
        "renews this page.",
        "",
        "- **refused**: the attempt got an error.",
        "- **contained**: it did something, without effect outside of the sandbox or beyond its limits.",
        "- **by design**: it succeeds. The provider `host` is no boundary: its commands may do what the server's user "
        "may, so most attempts are not run there. In a container it is about the container's own processes, of which "
        "process 1 only sleeps, and whose limits those of the whole container hold, and about the thread's other "
        "commands, which share it.",
        "- **as the engine decides**: Docker's own filter of system calls has the answer, which differs by version: "
        "io_uring is refused since Docker 25, AF_VSOCK since 23. `docker.runtime` with a kernel of its own is safer.",
        "",
    ]
    category = ""
    for name in bubblewrap:
        if (part := name.partition(": ")[0]) != category:
            category = part
            lines += [
                "",
                f"## {part[0].upper()}{part[1:]}",
                "",
                "| attempt | bubblewrap | docker | host |",
                "|---|---|---|---|",
            ]
        lines.append(f"| {name.partition(': ')[2]} | {bubblewrap[name]} | {docker[name]} | {host[name]} |")
    return "\n".join(lines) + "\n"


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}", "PATH": os.environ["PATH"]}
