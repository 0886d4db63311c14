"""What the clients talk to: models, a bus, and one or more `sika serve`, each a process."""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.models import SCRIPTS
from tests.support import warm
from tests.support.nats import running

ROOT = Path(__file__).parents[2]
READY_SECONDS = 120.0
TOKENS = ("tokens-50", "tokens-2000-delay-0.1", "tokens-8000-delay-0.1")
SECTIONS: Mapping[str, Any] = {
    "title": {"enabled": False},
    "memory": {"enabled": False},
    "subagents": {"agents": {"general-purpose": {"model": "looks"}}},
    "webhooks": {"allow_private": True},
    "http": {"heartbeat_seconds": 1, "cors_origins": ["http://page.example"]},
}
_URL = re.compile(r"http://\S+")


class Site(NamedTuple):
    urls: Sequence[str]
    """Of the servers; they share the bus and the folder of data."""
    models: str
    pids: Sequence[int]
    logs: Sequence[Path]


@contextmanager
def site(folder: Path, servers: int = 1, **sections: Any) -> Iterator[Site]:
    """`sections` of the configuration; with one for `nats` the bus is the caller's."""
    with ExitStack() as stack:
        if "nats" not in sections:
            sections["nats"] = {"url": stack.enter_context(running(folder / "nats")).url}
        _, models = stack.enter_context(process("tests.conformance.models", log=folder / "models.log"))
        config = configuration(folder / "config.yaml", models, **sections)
        started = [
            stack.enter_context(
                process("tests.conformance.sika", *serve(folder / "home", config), log=folder / f"{number}.log")
            )
            for number in range(servers)
        ]
        logs = [folder / f"{number}.log" for number in range(servers)]
        yield Site([url for _, url in started], models, [pid for pid, _ in started], logs)


def configuration(path: Path, models: str, **sections: Any) -> Path:
    """JSON is YAML."""
    entries = [{"name": name, "model": name, "base_url": models, "api_key": "none"} for name in (*SCRIPTS, *TOKENS)]
    path.write_text(json.dumps({"models": entries, **SECTIONS, **sections}))
    return path


def serve(home: Path, config: Path) -> Sequence[str]:
    return "serve", "--home", str(home), "--config", str(config), "--port", "0"


@contextmanager
def process(module: str, *arguments: str, log: Path) -> Iterator[tuple[int, str]]:
    """A process of ours that names its address in its first line: its id and that address."""
    with log.open("wb") as errors:
        made = warm.start(module, *arguments, env={**os.environ, "PYTHONUNBUFFERED": "1"}, stderr=errors.fileno())
    try:
        yield made.pid, _address(made, log)
    finally:
        made.terminate()
        try:
            made.wait(READY_SECONDS)
        finally:
            made.kill()
            made.wait()


def _address(made: warm.Process, log: Path) -> str:
    assert made.stdout is not None
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and made.poll() is None:
        ready, _, _ = select.select([made.stdout], [], [], 0.5)
        if ready and (found := _URL.search(made.stdout.readline().decode())):
            return found[0]
    raise RuntimeError(f"process {made.pid} did not start:\n{log.read_text()[-4000:]}")
