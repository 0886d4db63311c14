"""The benchmarks: a table of ratios to an agent loop without a server, with the targets beside them.

python -m tests.bench --quick --only cpu
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row
from tests.bench.processes import ROOT, Broken
from tests.bench.sections import (
    chain,
    chats,
    cold,
    extensions,
    fairness,
    fanout,
    giants,
    growth,
    hostile,
    long,
    many,
    memory,
    page,
    recall,
    replay,
    replay_runs,
    runs,
    sandboxes,
    steps,
    streams,
    subagents,
    threads,
    timeline,
    titles,
    tokens,
)

Section = Callable[[Laboratory], Iterator[Row]]

SECTIONS: Mapping[str, tuple[str, Section]] = {
    "cpu": ("CPU per run", runs.cpu),
    "throughput": ("Runs a second", runs.throughput),
    "first-token": ("Time to the first token", runs.first_token),
    "turns": ("One long conversation", long.turns),
    "cold": ("Cold start", cold.cold),
    "extensions": ("Extensions that are not used", extensions.extensions),
    "hostile": ("Hostile MCP servers", hostile.hostile),
    "many": ("Many people on one machine", many.many),
    "fairness": ("Others behind three hundred runs of one", fairness.fairness),
    "chats": ("A bot with a thousand chats", chats.chats),
    "memory": ("Memory", memory.memory),
    "page": ("The page in a browser", page.page),
    "recall": ("What is remembered", recall.recall),
    "streams": ("A hundred streams of 50 tokens a second", streams.streams),
    "threads": ("Ten thousand threads", threads.threads),
    "growth": ("Years of use", growth.growth),
    "giants": ("Threads of 100 000 and 1 000 000 events", giants.giants),
    "timeline": ("A long log, looked at", timeline.timeline),
    "chain": ("The chain of policies", chain.chain),
    "step": ("A step of a run by rounds, beside a graph", steps.steps),
    "subagents": ("A subagent beside a nested agent", subagents.subagents),
    "fanout": ("A batch of prompts beside a bare loop", fanout.fanout),
    "tokens": ("Reading an answer", tokens.tokens),
    "title": ("A title's effect on the first run", titles.titles),
    "sandboxes": ("Commands in sandboxes", sandboxes.sandboxes),
    "replay": ("Debugging a thread of 100 000 events", replay.replay),
    "replay-runs": ("Recorded runs replayed", replay_runs.replay_runs),
    "fold": ("The log, folded and replayed", long.fold_speed),
}
_HEAD = ("", "value", "target", "", "ours", "bare", "sqlite", "")
_WIDTHS = (52, 8, 8, 4, 9, 9, 9, 0)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    started, found = time.time(), dict[str, list[Row]]()
    page = options.deerflow_page.rstrip("/")
    with Laboratory(quick=options.quick, deerflow_page=page, langgraph=options.langgraph, crowd=options.crowd) as lab:
        try:
            for name, (title, section) in _sections(options).items():
                found[name] = []
                print(f"\n{title}\n{_line(_HEAD)}", flush=True)
                for row in section(lab):
                    found[name].append(row)
                    print(_shown(row), flush=True)
        except Broken as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        finally:
            _write(options.out, found, {"quick": options.quick, "loops": lab.loops, "seconds": time.time() - started})
    missed = sum(row.verdict == "MISS" for rows in found.values() for row in rows)
    wanted = sum(row.limit is not None for rows in found.values() for row in rows)
    print(f"\n{wanted - missed} of {wanted} targets met; loops: {lab.loops}; {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs, no repetitions")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="only this section (repeatable)")
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="only runs, in turn with this installed checkout"
    )
    parser.add_argument(
        "--deerflow-page", default="", metavar="URL", help="page beside DeerFlow's, started with next start"
    )
    parser.add_argument("--langgraph", type=Path, metavar="VENV", help="environment with langgraph dev, beside many")
    parser.add_argument("--crowd", default="", metavar="WORD", help="of fairness only what has the word, as `bot`")
    parser.add_argument("--out", type=Path, default=ROOT / ".bench" / "bench.json", metavar="FILE")
    return parser


def _sections(options: argparse.Namespace) -> Mapping[str, tuple[str, Section]]:
    if options.against is not None:
        checkout = options.against.resolve()
        return {"against": (f"Against {checkout}", partial(runs.against, checkout=checkout))}
    return {name: SECTIONS[name] for name in options.only or SECTIONS}


def _terminated(*_: object) -> None:
    """As Ctrl-C does: so that every block ends what it started."""
    raise KeyboardInterrupt


def _shown(row: Row) -> str:
    numbers = [_number(value) for value in (row.ours, row.bare, row.sqlite)]
    unit = f" {row.unit}" if row.unit else ""
    return _line((row.what, _number(row.value), str(row.limit or ""), row.verdict, *numbers, f"{unit}  {row.note}"))


def _line(cells: Sequence[str]) -> str:
    first, *rest = (cell.ljust(width) if not n else cell.rjust(width) for n, (cell, width) in enumerate(_pairs(cells)))
    return " ".join([f"  {first}", *rest]).rstrip()


def _pairs(cells: Sequence[str]) -> Iterator[tuple[str, int]]:
    return zip(cells, _WIDTHS, strict=True)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def _write(path: Path, found: Mapping[str, Sequence[Row]], facts: Mapping[str, Any]) -> None:
    """What was measured so far, for machines."""
    rows = {
        name: [{**asdict(row), "limit": str(row.limit or ""), "verdict": row.verdict} for row in rows]
        for name, rows in found.items()
    }
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"commit": _commit(), **machine, "load": os.getloadavg(), **facts, "sections": rows}, indent=1)
    )


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
