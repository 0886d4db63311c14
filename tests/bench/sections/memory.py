"""Memory of all our processes: at rest, and what a thread that nobody uses costs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most

_MIB = 2**20


def memory(lab: Laboratory) -> Iterator[Row]:
    threads = 100 if lab.quick else 500
    lab.say(f"memory at rest, and after {threads} threads")
    bare = lab.baseline("bare", "tokens-50", runs=20).max_rss_bytes / _MIB
    found = []
    with lab.sika(warm=False) as server:
        for runs in (0, 50, threads):
            if runs:
                lab.load(server, "tokens-50", runs, 10)
            server.settle()
            found.append(server.memory() / _MIB)
    idle, warm, full = found
    each = (full - warm) * 1024 / threads
    yield Row("at rest, agent loaded, no run yet (MiB)", idle, at_most(150), "MiB", idle, bare)
    yield Row("at rest after 50 runs (MiB)", warm, None, "MiB", warm, bare)
    yield Row(f"per idle thread, over {threads} threads of one turn (KiB)", each, None, "KiB", each)
