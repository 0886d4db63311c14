"""What the sections share: the model server, a warm Sika, repetitions, and measurements that several of them show."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from tests.bench import load, processes
from tests.bench.baselines import Figures
from tests.bench.load import Load, Sample
from tests.bench.measure import loop_of, median
from tests.bench.processes import Broken, Sika
from tests.support.model_server import run, words

WARM_UP = 20
_AFTERWARDS = 0.5
"""Seconds for what the server does after the last answer: it counts too."""
_RUNS = {1: 600, 50: 250, 500: 60}
"""Runs of a measurement by tokens: some seconds each."""


@dataclass
class Cell:
    """One load (tokens, concurrency) on the three, once per repetition; `sqlite` has no target and is asked once."""

    speed: dict[str, list[float]] = field(default_factory=dict)
    """Runs a second."""
    cpu: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds per run."""
    wall: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds of a run, median."""

    def add(self, kind: str, runs: int, wall: float, cpu: float, totals: list[float]) -> None:
        self.speed.setdefault(kind, []).append(runs / wall)
        self.cpu.setdefault(kind, []).append(1000 * cpu / runs)
        self.wall.setdefault(kind, []).append(1000 * median(totals))


class Laboratory:
    """Use it as a context manager: whatever it started ends with it, its files too."""

    def __init__(self, *, quick: bool, deerflow_page: str = "", langgraph: Path | None = None, crowd: str = "") -> None:
        self.quick = quick
        self.crowd = crowd
        """A word of the crowds of `fairness` that are measured; empty for all."""
        self.langgraph = langgraph
        """The environment with `langgraph dev`; None for the command on the path, if there is one."""
        self.deerflow_page = deerflow_page
        """The address of a started one; empty if there is none."""
        self.repetitions = 1 if quick else 3
        self.loops: dict[str, str] = {}
        self._cells: dict[tuple[int, int], Cell] = {}
        self._homes = 0
        self._stack = ExitStack()

    def __enter__(self) -> Laboratory:
        try:
            self.folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="sika-bench-")))
            self.models = self._stack.enter_context(processes.models())
        except BaseException:
            self._stack.close()
            raise
        self.config = processes.configure(self.folder / "config.yaml", self.models)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        """Progress, for whoever waits."""
        print(f"  … {text}", file=sys.stderr, flush=True)

    # ── Sika ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def new_home(self) -> Path:
        self._homes += 1
        home = self.folder / f"home-{self._homes}"
        home.mkdir()
        return home

    @contextmanager
    def sika(self, home: Path | None = None, *, warm: bool = True, checkout: Path = processes.ROOT) -> Iterator[Sika]:
        with processes.sika(home or self.new_home(), self.config, checkout) as server:
            if warm:
                self.load(server, "tokens-50", WARM_UP, 10)
            yield server

    @cached_property
    def shared(self) -> Sika:
        """A warm server, for the sections that do not mind what it did before."""
        server = self._stack.enter_context(self.sika())
        self.loops["ours"] = loop_of(server.pid)
        return server

    def load(self, server: Sika, model: str, runs: int, concurrency: int) -> Load:
        """Runs on fresh threads. All must succeed."""
        extra = {"context": {"model_name": model}}
        done = run(load.drive(server.host, server.port, runs=runs, concurrency=concurrency, extra=extra))
        for sample in done.samples:
            checked(sample)
        return done

    def baseline(self, kind: str, model: str, *, runs: int, concurrency: int = 1, turns: int = 1) -> Figures:
        figures = processes.baseline(
            kind, self.models, model, self.folder, runs=runs, concurrency=concurrency, turns=turns
        )
        self.loops[kind] = figures.loop
        return figures

    # ── shared measurements ─────────────────────────────────────────────────────────────────────────────────────────

    def cell(self, tokens: int, concurrency: int) -> Cell:
        """Measured when first asked for; one repetition of each kind after the other."""
        key = (tokens, concurrency)
        if key not in self._cells:
            self.say(f"{tokens} tokens, {concurrency} at a time")
            self._cells[key] = self._measure(tokens, concurrency)
        return self._cells[key]

    def _measure(self, tokens: int, concurrency: int) -> Cell:
        cell, model = Cell(), f"tokens-{tokens}"
        runs = max(_RUNS[tokens] // (4 if self.quick else 1), concurrency * (1 if self.quick else 2))
        for repetition in range(self.repetitions):
            for kind in ("bare", "ours", *(["sqlite"] if not repetition else [])):
                if kind == "ours":
                    self._measure_ours(cell, tokens, runs, concurrency)
                else:
                    figures = self.baseline(kind, model, runs=runs, concurrency=concurrency)
                    cell.add(kind, runs, figures.wall, figures.cpu, figures.turn)
        return cell

    def _measure_ours(self, cell: Cell, tokens: int, runs: int, concurrency: int) -> None:
        done, cpu = self.timed(self.shared, tokens, runs, concurrency)
        cell.add("ours", runs, done.wall, cpu, [sample.total for sample in done.samples])

    def timed(self, server: Sika, tokens: int, runs: int, concurrency: int) -> tuple[Load, float]:
        """Runs on a server that is warm by then, and the seconds of CPU that they took."""
        model = f"tokens-{tokens}"
        self._prove(server, model, words(tokens))
        self.load(server, model, WARM_UP, concurrency)
        time.sleep(_AFTERWARDS)
        cpu = server.cpu()
        done = self.load(server, model, runs, concurrency)
        time.sleep(_AFTERWARDS)
        return done, server.cpu() - cpu

    def _prove(self, server: Sika, model: str, text: str) -> None:
        """One run whose every word is looked at: what is measured must be the whole answer."""
        said = run(ask(server, str(uuid4()), "Hello?", model, text=True)).text
        if said != text:
            raise Broken(f"{model} should have answered {text[:80]!r}…, a client has seen {said[:80]!r}…")


async def ask(server: Sika, thread: str, question: str, model: str, *, text: bool = False) -> Sample:
    """A turn of a thread, which must succeed."""
    body = {
        "assistant_id": "lead_agent",
        "input": {"messages": [{"type": "human", "content": question}]},
        "stream_mode": ["messages-tuple"],
        "if_not_exists": "create",
        "context": {"model_name": model},
    }
    path = f"/api/threads/{thread}/runs/stream"
    return checked(await load.run_once(server.host, server.port, path, body, text=text))


def checked(sample: Sample) -> Sample:
    """The sample, if its run ended well."""
    if sample.error or not sample.ended or sample.first_token is None:
        raise Broken(f"a run failed: {sample.error or 'no token, or no end'} (status {sample.status})")
    return sample
