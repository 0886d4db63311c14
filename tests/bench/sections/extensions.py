"""Extensions that are configured and not used: what they cost at the start, in the prompt, and to the first token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

from tests.bench import processes
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median
from tests.support.mcp import server
from tests.support.skills import write

SKILLS = 200
SERVERS, TOOLS = 5, 100
"""MCP servers, and the tools of each."""
OWN_TOOLS = 18
"""Tools that the small MCP server has in any case."""
MOST = 1.2
_WORDS = ["reports", "invoices", "charts", "letters", "pictures", "tables", "contracts", "recipes", "plans", "maps"]


def extensions(lab: Laboratory) -> Iterator[Row]:
    """Two servers in turn, with nothing configured and with `SKILLS` skills and the tools of `SERVERS` MCP servers."""
    tries, runs = (1, 20) if lab.quick else (5, 200)
    bare, full = _projects(lab)
    starts: dict[Path, list[float]] = {bare: [], full: []}
    tokens: dict[Path, list[float]] = {bare: [], full: []}
    sizes: dict[Path, int] = {}
    lab.say(f"{SKILLS} skills and {SERVERS * TOOLS} tools beside none")
    with processes.models(record=True) as url:
        configs = {project: processes.configure(project / "config.yaml", url) for project in (bare, full)}
        for _ in range(tries):
            for project, config in configs.items():
                with processes.cold_start(lab.new_home(), config) as (server, seconds):
                    starts[project].append(seconds)
                    lab.load(server, "tokens-1", 5, 1)
                    samples = lab.load(server, "tokens-1", runs, 1).samples
                    tokens[project] += [sample.first_token or 0.0 for sample in samples]
                sizes[project] = _prompt(url)
    note = f"{SKILLS} skills, {SERVERS * TOOLS} tools of MCP servers; bare: none"
    yield _row("start (seconds)", median(starts[full]), median(starts[bare]), note)
    yield _row("prompt and tools (tokens)", sizes[full] / 4, sizes[bare] / 4, f"{note}; four characters a token")
    yield _row("first token (ms)", 1000 * median(tokens[full]), 1000 * median(tokens[bare]), note)


def _projects(lab: Laboratory) -> tuple[Path, Path]:
    bare, full = lab.folder / "bare", lab.folder / "full"
    (bare / "skills/public").mkdir(parents=True)
    for number in range(SKILLS):
        about = f"Makes {_WORDS[number % 10]} of the kind {number}, and checks them. Use it for {_WORDS[number // 20]}."
        write(full / f"skills/public/skill-{number}", f"skill-{number}", about, "Do it step by step.\n" * 100)
    servers = {f"server-{number}": server(f"many={TOOLS - OWN_TOOLS}") for number in range(SERVERS)}
    (full / "extensions_config.json").write_text(json.dumps({"mcpServers": servers}))
    return bare, full


def _prompt(url: str) -> int:
    """Returns the characters of the last request's prompt and tools."""
    with urlopen(f"{url}/control/requests", timeout=30) as answer:
        body = json.load(answer)["requests"][-1]["body"]
    return len(json.dumps([body["messages"][0], body.get("tools")]))


def _row(what: str, ours: float, bare: float, note: str) -> Row:
    return Row(what, ours / bare, at_most(MOST), "×", ours, bare, note=note)
