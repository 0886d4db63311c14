"""The processes of a benchmark: the model server, Sika, the baselines. Each is gone when its block ends."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from tests.bench.baselines import Figures
from tests.bench.measure import cpu_seconds, memory_bytes, settle
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0
STOP_SECONDS = 15.0
_URL = re.compile(r"http://[^\s]+")
MODELS = (
    "tokens-1",
    "tokens-50",
    "tokens-500",
    "tokens-50-delay-20",
    "tokens-100-delay-20",
    "tokens-400",
    "tokens-400-delay-10",
)


class Broken(Exception):
    """A process, or a run, did not do what the benchmark needs; there is no figure."""


class Sika:
    """A running server, with the processes it has started."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, home: Path) -> None:
        self.pid = process.pid
        self.home = home
        place = urlsplit(url)
        self.host, self.port = place.hostname or "127.0.0.1", place.port or 80

    def cpu(self) -> float:
        return cpu_seconds(self.pid)

    def nats_cpu(self) -> float:
        """Of its children: nats-server is the only one that works."""
        return cpu_seconds(self.pid, own=False)

    def memory(self) -> int:
        return memory_bytes(self.pid)

    def settle(self) -> None:
        settle(self.pid)


@contextmanager
def models(*, record: bool = False, scripts: Path | None = None) -> Iterator[str]:
    """A model server in a process of its own; its URL. `record`: it keeps the requests. `scripts`: a file of more."""
    command = [sys.executable, "-m", "tests.support.model_server", *([] if record else ["--count-only"])]
    if scripts is not None:
        command += ["--scripts", str(scripts)]
    with _child(command, subprocess.DEVNULL) as process:
        yield _url(process, "the model server")


def configure(path: Path, models_url: str, **sections: Any) -> Path:
    """A configuration with those models. Titles and memory are off: the baselines make no such model calls."""
    entries = [{"name": name, "model": name, "base_url": models_url, "api_key": "none"} for name in MODELS]
    off = {"title": {"enabled": False}, "memory": {"enabled": False}}
    path.write_text(json.dumps({"models": entries, **off, **sections}))
    return path


@contextmanager
def sika(home: Path, config: Path, checkout: Path = ROOT) -> Iterator[Sika]:
    """A server on a data directory, as soon as it has printed its URL; of another checkout by that one's command."""
    command = _serve(home, config, 0)
    if checkout != ROOT:
        command[:3] = [str(checkout / ".venv" / "bin" / "sika")]
    with open(home.with_suffix(".log"), "wb") as log, _child(command, log, checkout) as process:
        yield Sika(process, _url(process, "sika serve", Path(log.name)), home)


@contextmanager
def cold_start(home: Path, config: Path) -> Iterator[tuple[Sika, float]]:
    """A server, and the seconds from its birth to its first healthy answer."""
    port, start = free_port(), time.perf_counter()
    with open(home.with_suffix(".log"), "wb") as log, _child(_serve(home, config, port), log) as process:
        while not _healthy(port):
            if process.poll() is not None or time.perf_counter() - start > START_SECONDS:
                raise Broken(f"sika serve is not healthy: {_tail(Path(log.name))}")
            time.sleep(0.002)
        seconds = time.perf_counter() - start
        yield Sika(process, f"http://127.0.0.1:{port}", home), seconds


@contextmanager
def foreign(command: Sequence[str], folder: Path, path: str, **variables: str) -> Iterator[Sika]:
    """Another server, which takes `--port`, as soon as it answers on a path. Its files are in the folder."""
    port, start = free_port(), time.perf_counter()
    with (
        (folder / "out.log").open("wb") as log,
        _child([*command, "--port", str(port)], log, folder, **variables) as process,
    ):
        assert process.stdout
        process.stdout.close()
        while not _healthy(port, path):
            if process.poll() is not None or time.perf_counter() - start > START_SECONDS:
                raise Broken(f"{command[0]} does not answer: {_tail(Path(log.name))}")
            time.sleep(0.1)
        yield Sika(process, f"http://127.0.0.1:{port}", folder)


@contextmanager
def front(api: str, page: str) -> Iterator[str]:
    """One origin for that page and that API; its URL."""
    command = [sys.executable, "-m", "tests.bench.front", "--api", api, "--page", page]
    with _child(command, None) as process:
        yield _url(process, "the front")


def baseline(
    kind: str, url: str, model: str, folder: Path, *, runs: int, concurrency: int = 1, turns: int = 1
) -> Figures:
    """What one of the baselines measures in a process of its own, with its files in `folder`: it cannot tidy up when
    it is ended early.
    """
    options = {"kind": kind, "url": url, "model": model, "runs": runs, "concurrency": concurrency, "turns": turns}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with _child([sys.executable, "-m", "tests.bench.baselines", *words, "--json"], None, TMPDIR=str(folder)) as process:
        out, _ = process.communicate()
    if process.returncode:
        raise Broken(f"the baseline {kind} failed; see above")
    return Figures(**json.loads(out))


def timed(command: Sequence[str]) -> float:
    """Seconds from the birth to the end of a Python that does this."""
    start = time.perf_counter()
    with _child([sys.executable, *command], None) as process:
        if process.wait():
            raise Broken(f"{command} failed; see above")
        return time.perf_counter() - start


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _serve(home: Path, config: Path, port: int) -> list[str]:
    words = ["serve", "--home", str(home), "--port", str(port), "--config", str(config)]
    return [sys.executable, "-m", "channels.cli", *words]


@contextmanager
def _child(
    command: Sequence[str], stderr: int | IO[bytes] | None, folder: Path = ROOT, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own: Ctrl-C is for us, and we end it. The environment must not configure it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SIKA_", "DEER_FLOW_"))}
    process = subprocess.Popen(
        command, cwd=folder, env=environment | variables, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely; if it is too slow, or we are interrupted, the hard way."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout:
            process.stdout.close()


def _url(process: subprocess.Popen[bytes], what: str, log: Path | None = None) -> str:
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline().decode() if ready else ""
    found = _URL.search(line)
    if found is None:
        raise Broken(f"{what} does not say where it is: {line} {_tail(log) if log else ''}")
    return found[0]


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _healthy(port: int, path: str = "/health") -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        return b" 200 " in connection.recv(64)
    return False
