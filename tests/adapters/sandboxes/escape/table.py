"""The table of attempts and verdicts: what is expected, what happened, and the page that shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.adapters.sandboxes.conftest import SECRET
from tests.adapters.sandboxes.escape import server
from tests.adapters.sandboxes.escape.inside import ATTEMPTS, BY_DESIGN, Attempt
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


COLUMNS = tuple(Column(provider, uid) for provider in ("bubblewrap", "host") for uid in (None, ORDINARY))


def expected(provider: str) -> dict[str, str]:
    """Returns the verdict for each attempt."""
    attempts: list[Attempt | Outside] = [*ATTEMPTS, *OUTSIDE]
    return {f"{one.category}: {one.name}": getattr(one, provider) or NOT_RUN for one in attempts}


def python_for(uid: int | None) -> str | None:
    """Returns a Python of this version that the user can start; ours may lie in a home that is closed to others."""
    if uid is not None and os.geteuid() != 0:
        return None
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with suppress(OSError):
            words = [python, "-c", "import msgspec, anyio, adapters.sandboxes.record"]
            if subprocess.run(words, cwd=ROOT, env=_environment(), user=uid, group=uid, check=False).returncode == 0:
                return python
    return None


def happened(column: Column, base: Path) -> dict[str, tuple[str, str]]:
    """Runs all attempts of a column against a server of its own. Returns verdicts and details."""
    python = python_for(column.uid)
    assert python is not None
    base.mkdir(mode=0o755)
    if column.uid is not None:
        os.chown(base, column.uid, column.uid)
    words = [python, "-m", server.__name__, str(base), column.provider]
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
    return BY_DESIGN if outcome[0] == "reached" and wanted == BY_DESIGN else outcome[0]


def page() -> str:
    """Returns the page, from what is expected: the test shows that it also happens."""
    bubblewrap, host = expected("bubblewrap"), expected("host")
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
        "may, so most attempts are not run there.",
        "",
    ]
    category = ""
    for name in bubblewrap:
        if (part := name.partition(": ")[0]) != category:
            category = part
            lines += ["", f"## {part[0].upper()}{part[1:]}", "", "| attempt | bubblewrap | host |", "|---|---|---|"]
        lines.append(f"| {name.partition(': ')[2]} | {bubblewrap[name]} | {host[name]} |")
    return "\n".join(lines) + "\n"


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}", "PATH": os.environ["PATH"]}
