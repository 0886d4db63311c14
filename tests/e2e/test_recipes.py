"""The recipes of `docs/recipes.md`: what stands on the page is read, checked and carried out."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import promql_parser
import pytest
import yaml

from channels.cli.run.serve import GRACE_SECONDS, LEAVE_SECONDS
from channels.http.debug import metrics as of_process
from core.lifecycle import ENDS, OPEN
from core.observe import metrics as of_log
from core.observe.metrics import Family
from core.policy import STOPS
from tests.e2e.servers import SIKA, Frame, Server, browser, run_of, serving
from tests.e2e.test_operations import SCRIPT, nats, run, whole
from tests.skew.test_versions import RELEASE, ROOT
from tests.support import warm
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import DEADLINE, configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

PAGE = (ROOT / "channels/http/docs/recipes.md").read_text()


def block(heading: str, language: str, number: int = 0) -> str:
    """Returns a code block of a section of the page."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return blocks[number]


# ── a service ───────────────────────────────────────────────────────────────────────────────────────────────────────


def unit() -> Mapping[str, Any]:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(block("A service under systemd", "ini"))
    return parser["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = block("A service under systemd", "ini").replace("/opt/sika/.venv/bin/sika", sys.executable)
    (tmp_path / "sika.service").write_text(text.replace("User=sika", "User=root"))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "sika.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "sika.service" in line]) == (0, [])


async def test_the_service_starts_and_has_time_to_stop(tmp_path: Path) -> None:
    """The command of the unit, elsewhere; it ends by itself before systemd would kill it, and its child with it."""
    assert float(unit()["TimeoutStopSec"]) > GRACE_SECONDS + LEAVE_SECONDS
    program, *arguments = unit()["ExecStart"].split()
    assert program.endswith("/bin/sika")
    places = {"/etc/sika/config.yaml": str(tmp_path / "config.yaml"), "/var/lib/sika": str(tmp_path / "home")}
    async with ModelServer(SCRIPT) as models:
        configure(tmp_path / "config.yaml", models, http={"port": 0})
        command = [places.get(word, word) for word in arguments]
        process = await asyncio.to_thread(warm.start, SIKA, *command, env=os.environ, stderr=sys.stderr.fileno())
        try:
            async with asyncio.timeout(DEADLINE):
                assert b"Sika is ready" in await process.line()
                process.terminate()
                assert await process.waited() == 0
        finally:
            process.kill()


# ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_log_file_is_rotated_under_the_server(tmp_path: Path) -> None:
    assert "\n    copytruncate\n" in block("Log rotation", "text")
    async with ModelServer(SCRIPT) as models:
        config = configure(tmp_path / "config.yaml", models)
        async with serving(tmp_path / "home", config) as server:
            file = tmp_path / "sika.log"
            shutil.copy(file, tmp_path / "sika.log.1")
            os.truncate(file, 0)  # as logrotate does by that word
            configure(config, models, loop_detection={"enabled": False})

            async def written() -> bool:
                return "configuration read again" in server.said()

            await wait_for(written)
            assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["configuration read again"]
            assert (tmp_path / "sika.log.1").stat().st_size > 0


# ── alerts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

FAMILIES = {
    family.name: family
    for module in (of_log, of_process)
    for family in vars(module).values()
    if isinstance(family, Family)
}
NAMES = {
    **FAMILIES,
    **{f"{name}{end}": family for name, family in FAMILIES.items() if family.kind == "histogram"
       for end in ("_bucket", "_sum", "_count")},
}  # fmt: skip
VALUES: Mapping[tuple[str, str], Collection[str]] = {
    ("sika_runs_total", "status"): {end.name for end in ENDS.values()},
    ("sika_runs_open", "status"): set(OPEN),
    ("sika_policy_decisions_total", "action"): STOPS,
}
"""The words of a label, where there are few."""
OF_PROMETHEUS: Mapping[str | None, set[str]] = {"up": {"job", "instance"}}


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(block("Alerts", "yml", 1))["groups"]
    assert group.keys() == {"name", "rules"}
    return list(group["rules"])


def nodes(expression: str) -> Iterator[Any]:
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression), found.append)
    return iter(found)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_each_alert_is_a_rule_over_metrics_that_there_are(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "annotations"}
    assert re.fullmatch(r"[A-Z]\w+", rule["alert"])
    assert "for" not in rule or promql_parser.parse_duration(rule["for"]) is not None
    selectors = [node for node in nodes(rule["expr"]) if isinstance(node, promql_parser.VectorSelector)]
    assert selectors
    labels = set[str]()
    for selector in selectors:
        name = str(selector.name)
        own = OF_PROMETHEUS.get(name) or {*NAMES[name].labels, "instance", "job"}
        for matcher in selector.matchers.matchers:
            assert matcher.name in own
            assert matcher.value in VALUES.get((name, matcher.name), {matcher.value})
        labels |= own
    for node in nodes(rule["expr"]):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= labels
            labels = set(node.modifier.labels)
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels


def test_a_command_that_an_alert_names_is_there() -> None:
    commands = {command for rule in rules() for command in re.findall(r"sika [a-z -]+", rule["annotations"]["summary"])}
    assert len(commands) > 3
    for command in sorted(commands):
        words = [word for word in command.split()[1:] if not word.startswith("-")]
        done = warm.run(SIKA, *words, "--help", timeout=DEADLINE)
        assert done.returncode == 0, (command, done.stderr)


async def test_prometheus_reads_them_where_the_page_says(tmp_path: Path) -> None:
    """The numbers of the rules that every server has are at its `/metrics`, and change with a run."""
    async with ModelServer(SCRIPT) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models)
        async with serving(tmp_path / "home", config) as server:
            await run(client, server)

            async def counted() -> bool:
                async with client._session.get(f"{server.url}/metrics") as response:
                    return 'sika_runs_total{status="success"} 1' in await response.text()

            await wait_for(counted)
            async with client._session.get(f"{server.url}/metrics") as response:
                text = await response.text()
    shown = set(re.findall(r"^(sika_\w+)", text, re.MULTILINE))
    used = {
        node.name for rule in rules() for node in nodes(rule["expr"]) if isinstance(node, promql_parser.VectorSelector)
    }
    assert used - shown == {
        "up", "sika_model_failures_total", "sika_run_takeovers_total", "sika_chat_connected",
        "sika_policy_decisions_total",
    }  # fmt: skip


# ── upgrade and restart ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the version before this one."""
    archive = subprocess.run(["git", "archive", RELEASE], cwd=ROOT, capture_output=True, timeout=60, check=False)
    if archive.returncode:
        pytest.skip("the older version is not in this clone")
    tree = tmp_path_factory.mktemp("released")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(tree, filter="data")
    return tree


@pytest.mark.long
async def test_a_data_directory_of_the_version_before_is_taken_over(tmp_path: Path, released: Path) -> None:
    """Stop, copy, another version, check, start, verify; and the old version still starts on the copy."""
    home, text = tmp_path / "home", block("Upgrade", "console")
    steps = (
        "systemctl stop",
        "cp -a",
        "pip install",
        "config upgrade",
        "config check",
        "systemctl start",
        "log verify --all",
    )
    assert [text.find(step) for step in steps] == sorted(text.find(step) for step in steps)
    assert -1 not in [text.find(step) for step in steps]
    async with ModelServer(SCRIPT) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models)
        async with old_server(released, home, config) as server:
            thread = await run(client, server)
        shutil.copytree(home, tmp_path / "before", symlinks=True)
        place = ("--home", str(home), "--config", str(config))
        for command in (("config", "upgrade"), ("config", "check")):
            done = await asyncio.to_thread(warm.run, SIKA, *command, *place, timeout=DEADLINE)
            assert done.returncode == 0, done.stderr
        async with serving(home, config) as server:
            assert await whole(client, server, thread)
            assert await whole(client, server, await run(client, server))
            done = await asyncio.to_thread(warm.run, SIKA, "log", "verify", "--all", *place, timeout=DEADLINE)
            assert done.stdout.startswith("ok: 2 threads"), done.stdout + done.stderr
        async with old_server(released, tmp_path / "before", config) as server:
            assert await whole(client, server, thread)


class Old(Server):
    """A server of another version, in a process of its own."""

    def __init__(self, tree: Path, home: Path, config: Path) -> None:
        super().__init__(home, config)
        self.tree = tree


def old_server(tree: Path, home: Path, config: Path) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def started() -> Any:
        server = Old(tree, home, config)
        command = [sys.executable, "-m", "actors", *server._command]  # where the older version has its command line
        environ = {**os.environ, "PYTHONPATH": str(tree)}
        process = await anyio.open_process(command, cwd=tree, env=environ, stderr=sys.stderr.fileno())
        try:
            assert process.stdout is not None
            with anyio.fail_after(DEADLINE):
                line = await process.stdout.receive()
            found = re.search(rb"http://\S+", line)
            assert found, line
            server.url = found[0].decode()
            yield server
            process.terminate()
            with anyio.fail_after(DEADLINE):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.aclose()

    return started()


@pytest.mark.long
async def test_servers_are_restarted_one_after_the_other(tmp_path: Path) -> None:
    """A run that works meanwhile comes to its end, and at every moment one server takes work."""
    assert "systemctl restart" in block("Rolling restart", "console")
    assert "/ready" in block("Rolling restart", "console")
    turn = Turn(text="one two three", gate="end", gate_after=1)
    async with (
        ModelServer({**SCRIPT, "slow": [turn]}) as models,
        nats(tmp_path / "n", tmp_path / "n/js") as url,
        browser() as client,
    ):
        config = configure(tmp_path / "config.yaml", models, http={"drain_seconds": 1}, runs={"lease_seconds": 2})
        servers = [Server(tmp_path / "home", config, "--nats", url, name=f"s{number}") for number in range(2)]
        try:
            for server in servers:
                await server.start()
            first, second = servers
            thread, frames = await client.thread(first), list[Frame]()
            at_work = asyncio.create_task(client.start(first, thread, "go", "slow", frames))
            await models.reached("end")
            for server, other in ((first, second), (second, first)):
                leaving = asyncio.create_task(server.terminate())
                assert await whole(client, other, await run(client, other))
                models.release("end")
                assert await leaving == 0
                await server.start()
                async with client._session.get(f"{server.url}/ready") as response:
                    assert response.status == 200, await response.text()
            await at_work
            run_id = run_of(frames)

            async def ended() -> bool:
                return await client.status(second, thread, run_id) == "success"

            await wait_for(ended)
            assert (await client.messages(first, thread))[-1]["content"] == "one two three"
        finally:
            for server in servers:
                if server._process is not None:
                    server.process.kill()
                    await server.process.waited()
