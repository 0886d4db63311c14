"""Servers in this process: started when needed, shared, gone with their last client; and whose things are whose."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.wiring.compose import running_server
from channels.client import Forbidden, Invalid, NotFound, Refused, SikaClient, Unauthenticated
from tests.channels.client.stage import Models, Stage, processes, serving, written
from tests.support import warm
from tests.support.workers import DEADLINE

pytestmark = pytest.mark.long(keep=4)

HELLO = "Hello there, nice to meet you."


@contextmanager
def nothing_left(home: Path) -> Iterator[None]:
    """Whatever is started in the block is gone after it. Idle workers of event loops end by themselves."""
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in set(threading.enumerate()) - before if not thread.name.startswith("AnyIO")]
    assert left == []
    assert list(processes(home)) == []


def test_a_server_is_gone_with_its_client(tmp_path: Path, config: Path) -> None:
    home = tmp_path / "home"
    for _ in range(2):  # also when it is started again, and the models are used in another event loop
        with nothing_left(home), SikaClient(config_path=config, home=home) as client:
            assert client.chat("Hi", thread_id="t", model_name="hello") == HELLO
            assert list(processes(home))
    assert running_server(home) is None


def test_it_is_gone_also_if_a_stream_was_not_followed_to_its_end(tmp_path: Path, config: Path, models: Models) -> None:
    home, gate = tmp_path / "home", models.gated()
    with nothing_left(home):
        client = SikaClient(config_path=config, home=home)
        events = client.stream("Hi", thread_id="t", model_name=gate)
        next(events)
        models.reached(gate)
        client.close()
        client.close()
        with pytest.raises(Exception, match="the client is closed"):
            next(events)
        with pytest.raises(Exception, match="the client is closed"):
            client.list_models()
    models.release(gate)
    with SikaClient(config_path=config, home=home) as client:
        assert _ended(client, "t")["status"] == "interrupted"


def test_clients_of_one_data_directory_share_a_server(tmp_path: Path, config: Path) -> None:
    home = tmp_path / "home"
    with nothing_left(home):
        one, other = (SikaClient(config_path=config, home=home) for _ in range(2))
        one.chat("Hi", thread_id="t", model_name="hello")
        assert len(other.get_thread("t")["checkpoints"]) == 3
        with pytest.raises(Invalid, match="another configuration"), SikaClient(home=home):
            pass
        one.close()
        assert other.chat("Hi", thread_id="t", model_name="hello") == HELLO
        other.close()


def test_a_server_that_is_there_is_used(tmp_path: Path, config: Path, stage: Stage) -> None:
    home = tmp_path / "home"
    stage.enter(serving(home, config))
    here = len(list(processes(home)))
    with SikaClient(config_path=config, home=home) as client:
        assert client.chat("Hi", model_name="hello") == HELLO
        assert len(list(processes(home))) == here


SCRIPT = """
from channels.client import SikaClient
client = SikaClient(config_path={config!r}, home={home!r})
print(client.chat("Hi", model_name="hello"))
{rest}
"""


@pytest.mark.parametrize("rest", ["", "next(client.stream('Hi', model_name='hello'))", "raise SystemExit"])
def test_a_script_need_not_close_its_client(tmp_path: Path, config: Path, rest: str) -> None:
    home = tmp_path / "home"
    (tmp_path / "script.py").write_text(SCRIPT.format(config=str(config), home=str(home), rest=rest))
    done = warm.run("script", cwd=tmp_path, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{HELLO}\n", "")
    assert list(processes(home)) == []
    assert not (home / "server.json").exists()


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("models: 7", Invalid, "models"),
        ("actors: ['tests.support.haiku:Nobody']", Invalid, "tests.support.haiku:Nobody"),
    ],
)
def test_a_server_that_cannot_start_says_why(tmp_path: Path, text: str, error: type[Exception], says: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    home = tmp_path / "home"
    with (
        nothing_left(home),
        pytest.raises(error, match=says),
        SikaClient(config_path=tmp_path / "config.yaml", home=home) as client,
    ):
        client.chat("Hi")


def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="cannot be used"), SikaClient(home=tmp_path / "file" / "home"):
        pass


# ── accounts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_users_have_their_own_things(tmp_path: Path, models: Models) -> None:
    config, home = written(tmp_path / "config", models.server, auth={"enabled": True}), tmp_path / "home"
    with (
        SikaClient(config_path=config, home=home, user="ada") as ada,
        SikaClient(config_path=config, home=home, user="bob") as bob,
        SikaClient(config_path=config, home=home) as nobody,
    ):
        ada.chat("Hi", thread_id="t", model_name="hello")
        assert [row["thread_id"] for row in ada.list_threads()["thread_list"]] == ["t"]
        for other in (bob, nobody):
            assert other.list_threads()["thread_list"] == []
            with pytest.raises(NotFound):
                other.get_thread("t")
            with pytest.raises((NotFound, Refused)):
                other.chat("Hi", thread_id="t", model_name="hello")
        with pytest.raises(Forbidden):
            ada.rebuild_projections()
        address = running_server(home)
        assert address is not None
        for key in (None, "wrong"):
            with SikaClient(url=address.url, api_key=key) as stranger, pytest.raises(Unauthenticated):
                stranger.list_threads()


def test_a_key_is_its_user(tmp_path: Path, models: Models, stage: Stage) -> None:
    config, home = written(tmp_path / "config", models.server, auth={"enabled": True}), tmp_path / "home"
    url = stage.enter(serving(home, config))
    _sika(home, "user", "create", "ada@example.org", "--id", "ada", config=config)
    key = _sika(home, "key", "create", "--user", "ada@example.org", config=config).split()
    (token,) = [word for word in key if word.startswith("sk")]
    with (
        SikaClient(url=url, api_key=token) as remote,
        SikaClient(config_path=config, home=home, user="ada") as local,
    ):
        remote.chat("Hi", thread_id="t", model_name="hello")
        assert [row["thread_id"] for row in local.list_threads()["thread_list"]] == ["t"]


def _sika(home: Path, *arguments: str, config: Path) -> str:
    done = warm.run("channels.cli", *arguments, "--home", str(home), "--config", str(config), timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _ended(client: SikaClient, thread_id: str) -> dict[str, Any]:
    """The only run of a thread, when it has ended."""
    runs = f"/api/threads/{thread_id}/runs"

    def ask(path: str) -> Any:
        return client._loop().call(partial(client._core._json, "GET", path))

    (run,) = ask(runs)
    ask(f"{runs}/{run['run_id']}/join")
    found: dict[str, Any] = ask(f"{runs}/{run['run_id']}")
    return found
