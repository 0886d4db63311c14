"""`sika doctor`: what it finds, and that it changes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from actors.wiring.compose import Options
from adapters.models import trial
from adapters.sandboxes.confine import seccomp
from adapters.sandboxes.process import cgroups
from channels import cli
from channels.cli import checks as doctor
from channels.cli.admin import cluster
from channels.cli.extend import mcp
from channels.cli.run.doctor import _log as logged
from channels.cli.run.doctor import strength
from channels.terminal.text import Style
from core.bus.endpoint import Endpoint
from core.config.load import parse
from core.config.mcp import McpServer
from core.errors import Invalid, Unavailable
from core.events import ThreadCreated, thread
from core.log.store import EventLog
from core.mcp.servers import Known, config_of
from core.ports.mcp_frames import Listing, Problem
from core.runtime.readiness import Finding
from tests.support.nats import Nats
from tests.support.ports import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory and no variable of the developer's."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("SIKA_", "DEER_FLOW_", "OPENAI_")):
            monkeypatch.delenv(name)


def statuses(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.name: finding.status for finding in findings}


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


async def test_the_report() -> None:
    async def good() -> list[Finding]:
        return [Finding("a", "ok", "fine"), Finding("b", "warn", "hm\x1b[2J", "do this")]

    async def raising() -> list[Finding]:
        raise Unavailable("not there")

    async def broken() -> list[Finding]:
        raise KeyError("x")

    lines: list[str] = []
    assert await doctor.examine([("a", good)], lines.append, Style()) == 0
    assert lines == ["ok    a              fine", "warn  b              hm", "                     → do this"]
    lines.clear()
    assert await doctor.examine([("c", raising), ("d", broken), ("a", good)], lines.append, Style()) == 1
    assert lines[0] == "fail  c              not there"
    assert "the check itself failed: KeyError" in lines[1]
    assert len(lines) == 5


async def test_a_check_that_does_not_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECK_SECONDS", 0.01)

    async def endless() -> list[Finding]:
        await anyio.sleep_forever()
        return []

    lines: list[str] = []
    assert await doctor.examine([("x", endless)], lines.append, Style()) == 1
    assert "no result" in lines[0]


async def test_this_machine_is_fine(tmp_path: Path) -> None:
    assert statuses(await doctor.python()) == {"Python": "ok"}
    assert statuses(await doctor.nats_server()) == {"nats-server": "ok", "durability": "ok"}
    home = tmp_path / "new" / "home"
    assert statuses(await doctor.disk(home)) == {"data directory": "ok", "disk": "ok", "in use": "ok"}
    assert not home.parent.exists()


async def test_a_full_disk_and_a_file_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    [finding] = await doctor.disk(tmp_path / "file" / "home")
    assert finding.status == "fail"
    assert "--home" in finding.advice
    monkeypatch.setattr(doctor, "LOW_DISK", 1 << 60)
    assert statuses(await doctor.disk(tmp_path))["disk"] == "warn"


async def test_who_uses_the_data_directory(tmp_path: Path) -> None:
    assert doctor.lock_holder(tmp_path) is None
    (tmp_path / "lock").write_text("4711\n")
    assert doctor.lock_holder(tmp_path) is None
    with (tmp_path / "lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert doctor.lock_holder(tmp_path) == "4711"
        found = (await doctor.disk(tmp_path))[-1]
        assert found.status == "warn"
        assert "4711" in found.text
        async with healthy_server(tmp_path) as url:
            found = (await doctor.disk(tmp_path))[-1]
            assert found.status == "ok"
            assert url in found.text


async def test_the_port(tmp_path: Path, listener: int) -> None:
    assert statuses(await doctor.port(tmp_path, "127.0.0.1", free_port())) == {"port": "ok"}
    [finding] = await doctor.port(tmp_path, "127.0.0.1", listener)
    assert finding.status == "fail"
    assert "--port" in finding.advice
    async with healthy_server(tmp_path) as url:
        [finding] = await doctor.port(tmp_path, "127.0.0.1", int(url.rpartition(":")[2]))
        assert finding.status == "ok"


async def test_the_configuration(tmp_path: Path) -> None:
    assert statuses(await doctor.configuration(None, tmp_path)) == {"configuration": "ok"}
    file = tmp_path / "config.yaml"
    file.write_text("runs: {lease_secnds: 5}")
    found = await doctor.configuration(None, tmp_path)
    assert [finding.status for finding in found] == ["ok", "warn"]
    assert "did you mean lease_seconds" in found[1].text
    file.write_text("runs: {lease_seconds: many}")
    [finding] = await doctor.configuration(None, tmp_path)
    assert finding.status == "fail"
    assert "runs.lease_seconds" in finding.text


async def test_a_configuration_that_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `serve` refuses, each problem on a line of its own."""
    file = tmp_path / "config.yaml"
    arguments = cli.parser().parse_args(["doctor", "--home", str(tmp_path), "--config", str(file), "--port", "0"])
    file.write_text("actors: ['nope:X']\ntools: [{name: x, use: 'nope:x'}]")
    assert await arguments.command(arguments) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fail")]
    assert [line.split(":")[0].split()[-1] for line in failed] == ["tools[0].use", "actors[0]"]
    file.write_text("")
    await arguments.command(arguments)
    assert "everything that it names can be loaded" in capsys.readouterr().out


async def test_a_configuration_the_server_has_not_seen(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("log_level: debug")
    async with healthy_server(tmp_path):
        os.utime(tmp_path / "config.yaml", (2e9, 2e9))
        found = await doctor.configuration(None, tmp_path)
        assert [finding.status for finding in found] == ["ok", "warn"]
        os.utime(tmp_path / "config.yaml", (1e9, 1e9))
        assert len(await doctor.configuration(None, tmp_path)) == 1


class Answers:
    """A model that answers, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, 0

    def build(self, name: str) -> Answers:
        return self

    async def ainvoke(self, input: str) -> object:
        self.asked += 1
        if self.error:
            raise self.error
        return "yes"


async def examined(entry: str, model: Answers | None = None, *, call: bool = False) -> Finding:
    [configured] = parse(f"models: [{{name: a, model: m, {entry}}}]").models
    [finding] = await doctor.model(configured, (model or Answers()).build, call=call)
    return finding


async def test_models(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    [finding] = await doctor.demo()
    assert (finding.status, "demo" in finding.text) == ("ok", True)
    there, gone = (f"base_url: 'http://127.0.0.1:{port}/v1', api_key: sk-secret" for port in (listener, free_port()))
    finding = await examined(there)
    assert (finding.status, "can be reached" in finding.text, "--call" in finding.advice) == ("ok", True, True)
    finding = await examined(gone)
    assert finding.status == "fail"
    assert "sk-secret" not in str(finding)
    finding = await examined("api_key: ''")
    assert (finding.status, finding.advice) == ("fail", "its api_key is empty")
    assert (await examined("base_url: nonsense")).status == "fail"
    assert (await examined("use: 'x:Y'")).text == "a (m): x:Y can be built"
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    assert (await examined(gone)).status == "warn"


async def test_a_model_that_cannot_be_built_is_one_failure() -> None:
    def build(name: str) -> Answers:
        raise Invalid(f"model {name}: no package of this name")

    [configured] = parse("models: [{name: a, model: m, use: 'x:Y'}]").models
    assert await doctor.model(configured, build, call=False) == [
        Finding("model", "fail", "a (m): model a: no package of this name")
    ]


async def test_a_model_is_called_when_that_is_wanted(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    there = f"base_url: 'http://127.0.0.1:{listener}/v1', api_key: sk-secret"
    answers = Answers()
    assert "can be reached" in (await examined(there, answers)).text
    assert answers.asked == 0
    assert "answered in" in (await examined(there, answers, call=True)).text
    finding = await examined(there, Answers(RuntimeError("no model m for sk-secret")), call=True)
    assert (finding.status, finding.text) == ("fail", "a (m): RuntimeError: no model m for …")
    monkeypatch.setattr(trial, "CALL_SECONDS", 0.01)

    class Silent(Answers):
        async def ainvoke(self, input: str) -> object:
            await anyio.sleep_forever()
            raise AssertionError

    assert "no answer within" in (await examined(there, Silent(), call=True)).text


async def test_the_running_server_is_examined_where_it_is(
    tmp_path: Path, nats: Nats, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not at the configured port, and with the NATS it uses."""
    missing = [{"part": "configuration", "reason": "config.yaml: models: expected array"}]
    async with healthy_server(tmp_path, nats.url, missing) as url:
        arguments = cli.parser().parse_args(["doctor", "--home", str(tmp_path)])
        assert await arguments.command(arguments) == 1
        shown = capsys.readouterr().out
        assert "fail  server         configuration: config.yaml: models: expected array" in shown
        assert f"{url.removeprefix('http://')} is used by the running server" in shown
        assert "durability     cannot be read from outside" in shown
        assert "an acknowledged event is on the disk" not in shown
        port = free_port()
        arguments = cli.parser().parse_args(["doctor", "--home", str(tmp_path), "--port", str(port)])
        await arguments.command(arguments)
        assert f"127.0.0.1:{port} is free" in capsys.readouterr().out


# ── a NATS that is not ours ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_cluster_is_looked_at_and_left_alone(nats: Nats) -> None:
    found = await cluster.examine(nats.endpoint("untouched"))
    assert statuses(found) == {"NATS": "ok", "streams": "ok", "durability": "warn"}
    assert re.fullmatch(r"\S+: nats-server \d+\.\d+\.\d+", found[0].text)
    assert "none yet" in found[1].text
    assert "sync_interval: always" in found[2].text
    assert await cluster.examine(nats.endpoint("untouched")) == found


async def test_an_empty_log_beside_files_of_threads_is_said(nats: Nats, log: EventLog, tmp_path: Path) -> None:
    home, config = tmp_path / "home", parse("")
    options = Options(home=home, config=None, nats=nats.url)

    async def found(nats_url: str | None, prefix: str = "") -> list[str]:
        settings = parse(f"nats: {{prefix: {prefix}}}") if prefix else config
        return [finding.status for finding in await logged(replace(options, nats=nats_url), settings, nats_url)]

    assert await found(nats.url, "empty") == await found(None) == []
    (home / "users/default/threads/t").mkdir(parents=True)
    assert await found(nats.url, "empty") == await found(None) == ["fail"]
    await log.append(thread("t"), [ThreadCreated(user="me")], expected=0, actor="test")
    assert await found(nats.url, log.bus.names.prefix) == []
    assert await found(f"nats://127.0.0.1:{free_port()}") == []


async def test_advice_about_an_mcp_server_fits_its_problem() -> None:
    server = McpServer(command="x")
    problems = [Problem(tool="a", reason="too long", left_out=True), Problem(reason="mcp.interceptors: x: no module x")]
    known = Known(config=config_of(server), listing=Listing(problems=problems))
    [_, own, theirs] = mcp._findings("s", server, known)
    assert (own.advice, own.text) == ("correct the configuration", "s: mcp.interceptors: x: no module x")
    assert "maintainer" in theirs.advice
    assert theirs.text == "s: a is left out: too long"


async def test_too_few_replicas(nats: Nats, log: EventLog) -> None:
    endpoint = Endpoint(nats.url, prefix=log.bus.names.prefix, replicas=3)
    assert statuses(await cluster.examine(endpoint))["streams"] == "warn"


async def test_no_nats() -> None:
    [finding] = await cluster.examine(Endpoint(f"nats://127.0.0.1:{free_port()}", token="secret-token"))
    assert finding.status == "fail"
    assert "secret-token" not in str(finding)


class healthy_server:
    """Something that answers /health, and says so in `server.json`."""

    def __init__(self, home: Path, nats: str = "", missing: Sequence[dict[str, str]] = ()) -> None:
        self._home = home
        self._nats = nats
        app = web.Application()

        async def health(_: web.Request) -> web.Response:
            return web.json_response({"status": "healthy"})

        async def ready(_: web.Request) -> web.Response:
            return web.json_response({"status": "degraded", "missing": list(missing)})

        app.router.add_get("/health", health)
        app.router.add_get("/ready", ready)
        self._runner = web.AppRunner(app)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        (self._home / "server.json").write_text(json.dumps({"url": url, "pid": os.getpid(), "nats": self._nats}))
        return url

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        (self._home / "server.json").unlink()


async def test_credentials_in_an_address_are_not_shown(listener: int) -> None:
    address = f"http://me:pa55-word-1@127.0.0.1:{listener}/v1?api_key=qu3ry-key-1"
    models = [{"name": "m", "model": "m", "api_key": "k", "base_url": address}]
    config = parse(json.dumps({"models": models}))
    shown: list[str] = []
    check = partial(doctor.model, config.models[0], Answers().build, call=False)
    await doctor.examine([("model", check)], shown.append, Style())
    line = shown[0]
    assert f"@127.0.0.1:{listener}" in line
    assert "pa55" not in line
    assert "qu3ry" not in line


@pytest.mark.skipif(not seccomp.available(), reason="no filter for this machine")
async def test_limits_and_gaps_of_the_sandbox(tmp_path: Path) -> None:
    async def findings(text: str) -> list[Finding]:
        return await strength(Options(home=tmp_path), parse(text))

    assert await findings("sandbox: {provider: host}") == []
    limits, *gaps = await findings("sandbox: {provider: bubblewrap}")
    assert limits == Finding("sandbox", "ok", cgroups.describe())
    assert await findings("sandbox: {provider: bubblewrap, network: true}") == [limits, *gaps]
    shared = await findings("sandbox: {provider: bubblewrap, network: true, egress: {direct: true}}")
    assert ["localhost" in finding.text for finding in shared[len(gaps) + 1 :]] == [True]
