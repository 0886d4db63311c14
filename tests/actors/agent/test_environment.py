"""What runs are told of the machine of their commands, by provider and settings; and that it is true."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.agent.setup.environment import FILE, Environment, Known, remembered, section
from actors.agent.setup.plan import Planner
from actors.wiring import sandboxes
from adapters.models.configured import Silent
from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.confine import toolkit
from adapters.sandboxes.host.sandbox import Host
from adapters.tools.bash import bash
from core.config.load import ConfigSource
from core.config.sandbox import Egress, Sandbox
from core.errors import Unavailable
from core.events import RunRequested
from core.ports.sandbox import SandboxSetup
from core.runtime import system as core
from core.runtime.system import System
from core.sandbox.probe import PACKAGES, PROGRAMS, Probe
from core.tools import Tool
from core.user.agents import aggregates
from tests.adapters.sandboxes.conftest import run, settings
from tests.support.nats import Nats

pytestmark = pytest.mark.anyio


@pytest.fixture
async def system(nats: Nats, tmp_path: Path) -> AsyncIterator[System]:
    endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with core.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as system:
        yield system


EVERYTHING = Probe(
    system="Debian GNU/Linux 12 (bookworm)",
    machine="x86_64",
    cores=64,
    programs=dict.fromkeys(PROGRAMS, "20.20.20"),
    packages=dict.fromkeys(PACKAGES, "20.20.20"),
)


@pytest.mark.parametrize(
    ("provider", "sandbox", "words"),
    [
        ("bubblewrap", Sandbox(), ["in a sandbox", "none but localhost", "/tmp until no command ran for 600 s"]),
        ("docker", Sandbox(idle_seconds=0), ["in a sandbox", "/tmp; commands in the background"]),
        ("host", Sandbox(), ["without a sandbox", "Network: that of this machine", "What lasts: files in the"]),
        ("bubblewrap", Sandbox(network=True), ["by a proxy (http_proxy is set) to all public hosts"]),
        ("bubblewrap", Sandbox(network=True, egress=Egress(direct=True)), ["Network: that of this machine"]),
        (
            "docker",
            Sandbox(network=True, egress=Egress(allow=tuple(f"h{n}.example" for n in range(10)))),
            ["to h0.example, h1.example", "h7.example and 2 more"],
        ),
        ("docker", Sandbox(network=True, egress=Egress(allow=())), ["to no host"]),
        (
            "bubblewrap",
            Sandbox(timeout_seconds=7, memory_mb=77, max_processes=8, max_file_mb=9, max_thread_mb=0),
            ["a command 7 s", "each 77 MB of memory and 8 processes; 9 MB a file."],
        ),
    ],
)
def test_what_is_told(provider: str, sandbox: Sandbox, words: list[str]) -> None:
    text = section(Known(provider=provider, probe=EVERYTHING), sandbox)
    assert all(word in text for word in words), text
    assert len(text) <= 1800
    assert text == section(Known(provider=provider, probe=EVERYTHING), sandbox)


def test_without_a_look_at_the_machine_nothing_is_claimed() -> None:
    text = section(Known(provider="docker"), Sandbox())
    assert "look before you rely on one" in text
    assert "python3" not in text
    assert section(Known(), Sandbox()) == ""


@pytest.mark.parametrize("make", [Bubblewrap, Host])
async def test_a_server_looks_once_and_what_it_found_is_there(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit, "beside", lambda: None)
    provider = make(SandboxSetup(**settings(tmp_path), allow_host_bash=True))
    monkeypatch.setattr(sandboxes, "PROBE_SECONDS", 60.0)
    home = tmp_path / "home"
    environment = await sandboxes.environment_of(home, provider)
    known = msgspec.json.decode((home / "sandbox" / FILE).read_bytes(), type=Known)
    assert known.probe is not None
    said = (await run(await provider.acquire("ada", "t1"), "python3 --version; command -v git")).stdout
    assert known.probe.programs["python3"] in said
    assert ("git" in known.probe.programs) == ("/git" in said)
    assert "pandas" in known.probe.packages
    assert environment.section(Sandbox()) == remembered(home).section(Sandbox())
    monkeypatch.setattr(provider, "probe", None)  # nobody looks again
    again = await sandboxes.environment_of(home, provider)
    assert again.section(Sandbox()) == environment.section(Sandbox())


async def test_a_machine_that_cannot_be_looked_at_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(script: str) -> str:
        raise Unavailable("no")

    monkeypatch.setattr(toolkit, "beside", lambda: None)
    provider = Bubblewrap(SandboxSetup(**settings(tmp_path)))
    monkeypatch.setattr(provider, "probe", fail)
    environment = await sandboxes.environment_of(tmp_path / "home", provider)
    assert environment.confined
    assert "look before you rely" in environment.section(Sandbox())


@pytest.mark.parametrize("role", [None, "general-purpose"])
@pytest.mark.parametrize("tools", [(), (bash,)])
async def test_runs_with_commands_are_told_and_others_are_not(
    system: System, tmp_path: Path, role: str | None, tools: Sequence[Tool]
) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    source = ConfigSource(tmp_path / "config.yaml")
    environment = Environment(Known(provider="bubblewrap", probe=EVERYTHING))
    planner = Planner(source, Silent(), lambda _: tools, aggregates(system.log), tmp_path, environment=environment)
    plan = await planner.plan(RunRequested(), "ada", role=await planner.role("ada", role) if role else None)
    assert plan.prompt.count(environment.section(source.current().sandbox)) == len(tools)
    assert plan.prompt.count("<environment>") == len(tools)


def test_a_data_directory_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / FILE).write_text("{")
    assert remembered(tmp_path).section(Sandbox()) == Environment().section(Sandbox()) == ""
