"""Tools of MCP servers that are configured and not used: what they cost at the start, in the prompt, and to the first
token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

from tests.bench import processes
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median
from tests.support.mcp import server

SERVERS, TOOLS = 5, 100
MOST = 1.2
OWN = 18
"""Tools that the small server has in any case."""


def mcp(lab: Laboratory) -> Iterator[Row]:
    """Two servers in turn, with nothing configured and with `SERVERS` MCP servers of `TOOLS` tools."""
    tries, runs = (1, 20) if lab.quick else (5, 200)
    bare, full = lab.folder / "bare", lab.folder / "full"
    figures: dict[Path, tuple[list[float], list[float], list[int]]] = {bare: ([], [], []), full: ([], [], [])}
    lab.say(f"{SERVERS * TOOLS} tools of MCP servers beside none")
    with processes.models(record=True) as url:
        configs = {project: _configured(project, url, SERVERS if project == full else 0) for project in figures}
        for _ in range(tries):
            for project, (starts, tokens, sizes) in figures.items():
                with processes.cold_start(lab.new_home(), configs[project]) as (running, seconds):
                    starts.append(seconds)
                    lab.load(running, "tokens-1", 5, 1)  # the first run lists the servers
                    samples = lab.load(running, "tokens-1", runs, 1).samples
                    tokens += [sample.first_token or 0.0 for sample in samples]
                sizes.append(_prompt(url))
    note = f"{SERVERS * TOOLS} tools of {SERVERS} servers; bare: none"
    for what, index, scale in (("start (seconds)", 0, 1.0), ("first token (ms)", 1, 1000.0)):
        ours, without = (scale * median(figures[project][index]) for project in (full, bare))
        yield Row(what, ours / without, at_most(MOST), "×", ours, without, note=note)
    ours, without = (median(figures[project][2]) / 4 for project in (full, bare))
    tokens_note = f"{note}; four characters a token"
    yield Row("prompt and tools (tokens)", ours / without, at_most(MOST), "×", ours, without, note=tokens_note)


def _configured(project: Path, url: str, count: int) -> Path:
    project.mkdir(parents=True)
    servers = {f"server-{number}": server(f"many={TOOLS - OWN}") for number in range(count)}
    (project / "extensions_config.json").write_text(json.dumps({"mcpServers": servers}))
    return processes.configure(project / "config.yaml", url)


def _prompt(url: str) -> int:
    """Returns the characters of the last request's prompt and tools."""
    with urlopen(f"{url}/control/requests", timeout=30) as answer:
        body = json.load(answer)["requests"][-1]["body"]
    return len(json.dumps([body["messages"][0], body.get("tools")]))
