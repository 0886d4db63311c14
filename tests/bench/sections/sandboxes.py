"""What a command costs in each sandbox, beside a bare process; how long a container takes to begin; a lot of output."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio

from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.docker.provider import Docker
from adapters.sandboxes.host import Host
from core.ports.sandbox import Sandbox, SandboxProvider, SandboxSetup
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, percentile
from tests.support import engine

OF_HOST, OF_BUBBLEWRAP = 1.5, 2.0
"""Most of a command in bubblewrap, of the host's; most of one in a container, of bubblewrap's."""
OUTPUT_BYTES = 1 << 30
GROWTH_MB = 64
"""Most that the server grows by a lot of output, which it stores 4 MB of."""


def sandboxes(lab: Laboratory) -> Iterator[Row]:
    calls = 20 if lab.quick else 200
    samples: dict[str, list[float]] = {"bare": [_timed(_bare) for _ in range(calls)]}
    starts: dict[str, float] = {}
    growth: dict[str, float] = {}
    with ExitStack() as stack:
        for name, provider in _providers(lab.new_home(), stack).items():
            lab.say(f"{calls} commands in {name}")
            samples[name], starts[name], growth[name] = anyio.run(
                _measure, provider, calls, OUTPUT_BYTES >> (5 if lab.quick else 0)
            )
    middle = {name: 1000 * percentile(values, 50) for name, values in samples.items()}
    limits = {"bubblewrap": ("host", OF_HOST), "docker": ("bubblewrap", OF_BUBBLEWRAP)}
    for name in middle.keys() - {"bare"}:
        other, limit = limits.get(name, ("bare", None))
        note = f"p95 {1000 * percentile(samples[name], 95):.1f} ms; a bare process {middle['bare']:.1f} ms"
        if other in middle:
            target = at_most(limit) if limit else None
            yield Row(f"{name}: a command, of {other}'s", middle[name] / middle[other], target, "ms", middle[name],
                      middle[other], note=note)  # fmt: skip
        yield Row(f"{name}: growth by a lot of output (MB)", growth[name], at_most(GROWTH_MB))
        yield Row(f"{name}: first command of a new thread (ms)", starts[name])
    if reason := engine.problem():
        yield Row("docker: not measured", 0, note=reason)


def _providers(home: Path, stack: ExitStack) -> dict[str, SandboxProvider]:
    providers: dict[str, SandboxProvider] = {
        "host": Host(SandboxSetup(home=home, allow_host_bash=True)),
        "bubblewrap": Bubblewrap(SandboxSetup(home=home)),
    }
    if engine.problem() is None:
        running = stack.enter_context(engine.engine())
        options = {"host": running.host, "image": engine.GNU_IMAGE}
        providers["docker"] = Docker(SandboxSetup(home=home, settings=options))
    return providers


async def _measure(provider: SandboxProvider, calls: int, output: int) -> tuple[list[float], float, float]:
    """Returns the seconds of commands, those of the first one with its sandbox, and the growth in MB by output."""
    begun = time.perf_counter()
    sandbox = await provider.acquire("bench", provider.name)
    await _run(sandbox, "first", "true")
    first = time.perf_counter() - begun
    seconds = [await _awaited(partial(_run, sandbox, f"c{number}", "true")) for number in range(calls)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await _run(sandbox, "output", f"head -c {output} /dev/zero")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return seconds, 1000 * first, grown


async def _run(sandbox: Sandbox, call: str, command: str) -> None:
    result = await sandbox.exec(call, command, timeout=300, on_output=lambda _: None)
    assert result.exit_code == 0, result.stderr


async def _awaited(work: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


def _timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _bare() -> None:
    subprocess.run(["sh", "-c", "true"], check=True)
