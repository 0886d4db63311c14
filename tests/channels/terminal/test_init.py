"""`sika init`: a first configuration, tried before it is written."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from channels.cli.run.init import Choice, Wishes, choose, write, written
from core.config.load import parse
from core.config.model_providers import CUSTOM, PROVIDERS
from core.errors import Invalid, Refused
from tests.channels.terminal.terminals import Terminal, on_terminal
from tests.channels.terminal.test_cli import sika
from tests.support.model_server import Failure, ModelServer, Script, Turn

KEY = "sk-first-0123456789"
UNKNOWN = Failure(status=404, message="none")
SCRIPTS = {"good": Script((Turn(text="yes"),) * 9), "bad": Script((Turn(error=UNKNOWN),) * 9)}


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer(SCRIPTS) as models:
        yield models


async def init(folder: Path, *arguments: str, key: str = KEY) -> tuple[int, str]:
    done = await anyio.to_thread.run_sync(lambda: sika("init", *arguments, cwd=folder, stdin=f"{key}\n"))
    return done.returncode, done.stdout + done.stderr


async def test_a_configuration_that_works_is_written(tmp_path: Path, models: ModelServer) -> None:
    given = ("--provider", "custom", "--base-url", models.url, "--model", "good", "--key-stdin")
    code, shown = await init(tmp_path, *given)
    assert code == 0, shown
    assert "answered in" in shown
    assert KEY not in shown
    assert models.requests[-1].body["model"] == "good"
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert KEY not in (tmp_path / "config.yaml").read_text()
    assert 20 <= len((tmp_path / "config.yaml").read_text().splitlines()) <= 30
    doctor = await anyio.to_thread.run_sync(lambda: sika("doctor", "--call", "--home", "home", cwd=tmp_path))
    assert "main (good): answered" in doctor.stdout
    code, shown = await init(tmp_path, *given)
    assert code == 2
    assert "config.yaml: is there already" in shown


async def test_a_model_that_does_not_answer_leaves_nothing(tmp_path: Path, models: ModelServer) -> None:
    given = ("--provider", "custom", "--base-url", models.url, "--model", "bad", "--key-stdin")
    code, shown = await init(tmp_path, *given)
    assert code == 1
    assert "nothing was written" in shown
    assert list(tmp_path.iterdir()) == []
    assert (await init(tmp_path, *given, "--no-call"))[0] == 0


async def test_an_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    code, shown = await init(tmp_path, "--provider", "anthropic", "--key-stdin")
    assert code == 1
    assert 'pip install "sika[anthropic]"' in shown
    assert "nothing was written" in shown


async def test_a_key_that_is_in_the_env_file_is_used(tmp_path: Path, models: ModelServer) -> None:
    (tmp_path / ".env").write_text(f"MODEL_API_KEY={KEY}")
    given = ("--provider", "custom", "--base-url", models.url, "--model", "good")
    code, shown = await init(tmp_path, *given, "--key-stdin", key="sk-other-0123456789")
    assert (code, "--key-env uses that one" in shown) == (2, True)
    code, shown = await init(tmp_path, *given, "--key-env", "MODEL_API_KEY")
    assert code == 0, shown
    assert "api_key: $MODEL_API_KEY" in (tmp_path / "config.yaml").read_text()
    assert (tmp_path / ".env").read_text() == f"MODEL_API_KEY={KEY}"


async def test_a_person_is_asked(tmp_path: Path, models: ModelServer) -> None:
    async def work(terminal: Terminal) -> None:
        for question, answer in (
            ("Provider", "custom"),
            ("Base URL", models.url),
            ("Model", "good"),
            ("API key", KEY),
        ):
            await terminal.prompt()
            await terminal.until(question)
            terminal.type(f"{answer}\r".encode())
        await terminal.until("answered in")
        await terminal.until("next: sika serve")
        assert await terminal.ended() == 0

    await on_terminal(work, "init", cwd=tmp_path)
    assert f"MODEL_API_KEY='{KEY}'" in (tmp_path / ".env").read_text()


@pytest.mark.parametrize("name", PROVIDERS)
async def test_every_provider_makes_a_configuration(name: str) -> None:
    """The keys of Amazon are not in the file: its class reads them where Amazon's tools do."""
    choice = await choose(Wishes(name, "http://127.0.0.1:1/v1", "m" if name == CUSTOM else "", "", KEY), None)
    [model] = parse(written(choice), environ={choice.variable: KEY}).models
    assert model.name == "main"
    assert model.model == (PROVIDERS[name].example or "m")
    assert model.extra["base_url"] == "http://127.0.0.1:1/v1"
    assert ("api_key" in model.extra) == (name != "bedrock")


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        (Wishes("nobody"), "--provider: nobody unknown"),
        (Wishes("custom"), "--base-url is missing"),
        (Wishes("azure"), "--base-url is missing"),
        (Wishes("anthropic"), "--key-env or --key-stdin is missing"),
        (Wishes("custom", "localhost"), "http"),
        (Wishes("ollama", "nonsense"), "http"),
        (Wishes("ollama", "http://localhost:99999/v1"), "http"),
        (Wishes("openai"), "--key-env or --key-stdin is missing"),
        (Wishes("openai", variable="NOT_THERE"), "NOT_THERE is not set"),
        (Wishes("openai", variable="a b"), "no name of a variable"),
        (Wishes("openai", key="it's"), "characters"),
        (Wishes("openai", key="a\nB=c"), "characters"),
    ],
)
async def test_wrong_wishes(wishes: Wishes, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        await choose(wishes, None)


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    config, env = tmp_path / "config.yaml", tmp_path / ".env"
    choice = Choice("m", None, "", "A_KEY", KEY, False)
    env.write_text("OTHER=1")
    env.chmod(0o644)
    assert write(config, choice) == [config, env]
    assert env.read_text() == f"OTHER=1\nA_KEY='{KEY}'\n"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    with pytest.raises(Refused, match="is there already"):
        write(config, choice)
    config.unlink()
    assert write(config, choice) == [config], "the key is there"
    config.unlink()
    with pytest.raises(Refused, match="another value"):
        write(config, choice._replace(key="sk-other-123456"))
    assert os.listdir(tmp_path) == [".env"]
