"""Settings of streams and consumers: whoever connects, nothing is taken back that another process relies on."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels import cli
from core.bus import upkeep
from core.bus.connection import Bus, connect
from core.bus.endpoint import Endpoint
from core.bus.errors import ApiError
from core.bus.queue import WorkQueue
from core.bus.subjects import SECOND, Subjects, stream_configs
from core.bus.upkeep import SCHEMA, SCHEMA_KEY, Upkeep, changed
from core.errors import NotFound, SikaError
from core.events import ThreadAnnotated
from core.runtime import system
from core.runtime.dispatch import ensure_timers
from tests.support.nats import DEADLINE, Nats, append, bus_on, fresh, log_on, read

pytestmark = pytest.mark.long(keep=3)

FINGERPRINT = "66f2ce97139b8048"


def test_the_schema_number_changes_with_the_settings() -> None:
    settings = json.dumps(stream_configs(Subjects(), 3), sort_keys=True).encode()
    assert hashlib.sha256(settings).hexdigest()[:16] == FINGERPRINT, "raise SCHEMA, and correct FINGERPRINT"
    assert SCHEMA == 1


@given(*(st.integers(0, 5) for _ in range(4)))
def test_what_is_there_is_changed_by_newer_schemas_only(theirs: int, mine: int, had: int, want: int) -> None:
    there = {"num_replicas": had, "x": "theirs", "own": 1, "metadata": {SCHEMA_KEY: str(theirs), "by": "operator"}}
    ours = {"num_replicas": want, "x": "ours", "metadata": {SCHEMA_KEY: str(mine)}}
    new = changed(there, ours)
    assert new["num_replicas"] == max(had, want)
    assert new["x"] == ("ours" if mine > theirs else "theirs")
    assert new["metadata"] == {SCHEMA_KEY: str(max(theirs, mine)), "by": "operator"}
    assert new["own"] == 1


@pytest.mark.parametrize("stored", ["", "x", "-1", "1.5", None])
def test_a_schema_that_cannot_be_read_is_the_oldest(stored: str | None) -> None:
    there = {"x": "theirs", "metadata": {} if stored is None else {SCHEMA_KEY: stored}}
    assert changed(there, {"x": "ours", "metadata": {SCHEMA_KEY: "1"}})["x"] == "ours"


async def settings(bus: Bus) -> dict[str, Any]:
    """The settings of all streams of an installation, and of its consumers."""
    streams: dict[str, Any] = {}
    for plane in stream_configs(bus.names):
        with suppress(ApiError):
            name = bus.names.stream(plane)
            streams[plane] = (await bus.api(f"STREAM.INFO.{name}"))["config"]
            for consumer in (await bus.api(f"CONSUMER.LIST.{name}", {"offset": 0}))["consumers"]:
                streams[f"{plane}/{consumer['name']}"] = consumer["config"]
    return streams


@pytest.mark.long(keep=1)  # in the short lane
async def test_replicas_that_the_servers_cannot_hold_are_refused(single: Nats, prefix: str) -> None:
    """Nothing is said to be changed that is not."""
    async with bus_on(single, prefix) as bus:
        await bus.ensure_streams(Upkeep.ALL)
        with pytest.raises(ApiError, match="replicas"):
            await upkeep.set_replicas(bus, 3)
        assert set(replicas(await settings(bus)).values()) == {1}


def replicas(found: Mapping[str, Any]) -> dict[str, int]:
    return {plane: config["num_replicas"] for plane, config in found.items() if "/" not in plane and plane != "tok"}


# ── a cluster ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def three(cluster: Nats, prefix: str) -> Endpoint:
    """A cluster's endpoint without the key `nats.replicas`, after a server with it has run."""
    async with bus_on(cluster, prefix) as bus:
        await bus.ensure_streams(Upkeep.ALL)
        await WorkQueue(bus, 30).ensure("lead")
        await ensure_timers(bus)
        assert replicas(await settings(bus)) == dict.fromkeys(("log", "cmd", "timer", "place", "dlq", "blobs"), 3)
    return Endpoint(cluster.url, prefix=prefix)


@pytest.mark.parametrize("how", Upkeep)
async def test_whoever_connects_to_a_cluster_leaves_its_settings(
    three: Endpoint, how: Upkeep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader, a helper, a server without the key; each with an older lease, and as an older version."""
    for schema in (SCHEMA, SCHEMA - 1):
        monkeypatch.setattr(upkeep, "SCHEMA", schema)
        async with system.start(
            three, tmp_path / "v.db", lease_seconds=2, slots=1, loops=how is Upkeep.ALL, upkeep=how
        ) as running:
            before = await settings(running.bus)
            if how is Upkeep.ALL:
                await running.queue.ensure("lead")
                await ensure_timers(running.bus)
            assert await settings(running.bus) == before
            assert set(replicas(before).values()) == {3}
            assert before["cmd/lead"]["ack_wait"] == 30 * SECOND
            assert running.bus.replicas == 3  # reads wait for the leader


async def test_a_newer_version_changes_settings_and_an_older_one_does_not_take_them_back(
    three: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = stream_configs

    def newer(names: Subjects, replicas: int = 1) -> dict[str, dict[str, Any]]:
        return {plane: {**config, "description": "new"} for plane, config in configs(names, replicas).items()}

    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "SCHEMA", SCHEMA + 1)
        patched.setattr(upkeep, "stream_configs", newer)
        for how in (Upkeep.NONE, Upkeep.MISSING):
            async with connect(three, upkeep=how) as bus:
                assert "description" not in (await settings(bus))["log"]
        async with connect(three, upkeep=Upkeep.ALL) as bus:
            assert (await settings(bus))["log"]["description"] == "new"
    async with connect(three, upkeep=Upkeep.ALL) as bus:
        found = await settings(bus)
        assert found["log"]["description"] == "new"
        assert set(replicas(found).values()) == {3}


NEEDS_NO_BUS = {
    *("init", "doctor", "log serve-recorded", "log record", "skill new", "skill check", "skill test", "config check"),
    *("config reference", "new", "asyncapi", "plugins", "provisioner"),
}
OF_A_SERVER = {
    *("serve", "chat", "acp", "threads", "mcp serve", "mcp add", "channel", "log tui", "projections rebuild"),
}
"""Servers of their own, or requests to one that runs in the data directory: see the test above."""
LOWERS = {"cluster replicas", "cluster lease"}
ARGUMENTS = {
    "sql": ["select 1"],
    "key create": ["--user", "ada"],
    "log fork": ["x", "--at", "1"],
    "mcp call": ["t"],
    "log whatif": ["x", "--at", "1", "--model", "m"],
    "user role": ["ada", "user"],
    "agent rollback": ["x", "1"],
}


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    def below(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[tuple[str, argparse.ArgumentParser]]:
        if path and parser.get_default("command"):
            yield " ".join(path), parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, sub in action.choices.items():
                    yield from below(sub, (*path, name))

    return below(cli.parser(), ())


async def test_no_command_changes_the_settings_of_a_cluster(
    cluster: Nats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of the command line that connects, in an empty folder without a configuration."""
    monkeypatch.chdir(tmp_path)
    connected: list[str] = []
    visited = Bus.start

    async def start(bus: Bus) -> None:
        connected.append(bus.names.prefix)
        await visited(bus)

    monkeypatch.setattr(Bus, "start", start)
    async with bus_on(cluster) as bus, log_on(bus) as log:
        await append(log, fresh(), ThreadAnnotated(metadata={}))
        before = await settings(bus)
        assert set(replicas(before).values()) == {3}
        for name, parser in commands():
            if name in NEEDS_NO_BUS | OF_A_SERVER | LOWERS:
                continue
            arguments = ARGUMENTS.get(name) or ["1" for a in parser._actions if a.required and not a.option_strings]
            line = [*name.split(), *arguments, "--nats", cluster.url, "--home", str(tmp_path / "home")]
            parsed = cli.parser().parse_args(line)
            with suppress(SikaError, OSError), anyio.fail_after(DEADLINE):
                await parsed.command(parsed)
            assert await settings(bus) == before, name
        assert len(connected) > 20
    capsys.readouterr()


async def test_readers_make_nothing(cluster: Nats, prefix: str, tmp_path: Path) -> None:
    endpoint = Endpoint(cluster.url, prefix=prefix)
    with pytest.raises(NotFound, match=f"no log under the prefix '{prefix}'"):
        async with system.start(endpoint, tmp_path / "v.db", lease_seconds=2, slots=1, loops=False):
            pass
    async with connect(Endpoint(cluster.url, prefix="another")) as bus:
        bus.names = Subjects(prefix)
        assert await settings(bus) == {}


async def test_a_helper_makes_what_is_missing_and_a_server_raises_it(cluster: Nats, prefix: str) -> None:
    async with connect(Endpoint(cluster.url, prefix=prefix)) as bus:
        assert set(replicas(await settings(bus)).values()) == {1}
    async with connect(Endpoint(cluster.url, prefix=prefix, replicas=3)) as bus:
        assert set(replicas(await settings(bus)).values()) == {1}
        assert bus.replicas == 1
    async with connect(Endpoint(cluster.url, prefix=prefix, replicas=3), upkeep=Upkeep.ALL) as bus:
        assert set(replicas(await settings(bus)).values()) == {3}
        assert bus.replicas == 3


async def test_commands_lower_what_servers_do_not(
    three: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"nats: {{url: '{three.url}', prefix: {three.prefix}}}\n")

    async def command(*words: str) -> str:
        arguments = cli.parser().parse_args(["cluster", *words, "--config", str(config)])
        assert await arguments.command(arguments) == 0
        return capsys.readouterr().out

    name = Subjects(three.prefix).stream
    assert f"{name('log')}: 3 → 1\n" in await command("replicas", "1")
    assert await command("replicas", "1") == "nothing to change\n"
    assert await command("lease", "4") == "lead: 30 → 4 s\n"
    async with connect(three, upkeep=Upkeep.ALL) as bus, log_on(bus) as log:
        found = await settings(bus)
        assert set(replicas(found).values()) == {1}
        assert found["cmd/lead"]["ack_wait"] == 4 * SECOND
        thread = fresh()
        await append(log, thread, ThreadAnnotated(metadata={}))
        await command("replicas", "3")
        assert set(replicas(await settings(bus)).values()) == {3}
        await log.last()
        assert bus.replicas == 3  # a process that runs takes note
        assert len(await read(log, thread)) == 1


async def test_the_store_of_bodies_has_the_replicas_of_the_log(cluster: Nats, prefix: str) -> None:
    async with connect(Endpoint(cluster.url, prefix=prefix, replicas=3), upkeep=Upkeep.ALL):
        pass
    async with connect(Endpoint(cluster.url, prefix=prefix)) as bus, log_on(bus) as log:
        await append(log, thread := fresh(), ThreadAnnotated(metadata={"big": "x" * 100_000}))
        assert (await settings(bus))["blobs"]["num_replicas"] == 3
        assert len((await read(log, thread))[0].raw) > 100_000
