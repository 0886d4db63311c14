"""`sika log pin`: a pinned run fails when a policy decides otherwise, and passes when a change is without effect."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.debugging import pins
from actors.debugging.pins import TEST
from actors.wiring.compose import Options
from channels.cli import main
from core.errors import Invalid
from core.events import RunStarted, ThreadPruned
from core.replay.exports.archive import Archive
from core.replay.exports.pins import expected
from core.replay.recorded import read_of
from tests.channels.terminal.test_share import file_of
from tests.core.replay.recorded import configured, exported
from tests.golden.make_story import SECTIONS
from tests.golden.stories import FOLDER
from tests.support.replays import sent

SANDBOX = {"sandbox": {"provider": "host", "allow_host_bash": True}}

NAMED = [{"name": name, "model": name, "api_key": "none"} for name in ("lead", "sub")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs of a recorded thread, the last of which calls `bash`."""
    return anyio.run(file_of, "commands", tmp_path_factory.mktemp("recorded"))


def config(path: Path, **more: Any) -> Path:
    path.write_text(json.dumps(SANDBOX | more))  # JSON is YAML
    return path


def check(pin: Path, home: Path, **more: Any) -> str:
    return anyio.run(pins.check, pin, Options(home, config(home / "other.yaml", **more)))


@pytest.fixture
def pinned(recorded: Path, tmp_path: Path) -> Path:
    """The last run, pinned at the command line."""
    config(tmp_path / "config.yaml")
    assert main(["log", "pin", str(recorded), "--name", "exit-3", "--dir", str(tmp_path)]) == 0
    return tmp_path / "exit-3.jsonl"


def test_a_pin_holds_one_run_and_the_state_before_it(pinned: Path) -> None:
    async def read() -> list[type]:
        archive = await Archive.open(pinned)
        types = [type(record.event) for record in await archive.read(archive.root)]
        assert expected(archive).name == "exit-3"
        assert archive.header.redacted
        archive.close()
        return types

    types = anyio.run(read)
    assert types[0] is ThreadPruned
    assert len(types) == 8
    assert pinned.stat().st_size < 10_000
    assert b"vm-" not in pinned.read_bytes(), "the name of a machine"
    assert (pinned.parent / "test_pinned.py").read_text() == TEST


def test_it_fails_when_a_policy_is_changed_so_that_it_decides_otherwise(pinned: Path, tmp_path: Path) -> None:
    assert check(pinned, tmp_path) == ""
    text = check(pinned, tmp_path, approvals=[{"tool": "bash", "match": "exit"}])
    assert text.startswith("decides otherwise: ")
    assert "approval.requested" in text


@pytest.mark.parametrize(
    "change",
    [
        {"approvals": [{"tool": "bash", "match": "rm -rf"}]},
        {"models": [{"name": "other", "model": "other", "api_key": "none"}]},
        {"title": {"enabled": False}},
    ],
)
def test_it_passes_when_the_change_is_without_effect(pinned: Path, tmp_path: Path, change: Any) -> None:
    assert check(pinned, tmp_path, **change) == ""


def test_an_update_shows_the_decision_and_asks(
    pinned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(answer: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        capsys.readouterr()
        code = main(["log", "pin", "--update", str(pinned)])
        return code, capsys.readouterr().out

    assert update("") == (0, f"{pinned}: is decided as it was pinned\n")
    before = pinned.read_bytes()
    strict: dict[str, Any] = {"approvals": [{"tool": "bash", "match": "exit"}]}
    config(tmp_path / "config.yaml", **strict)
    code, text = update("n\n")
    assert code == 1
    assert "recorded" in text
    assert "approval.requested" in text
    assert pinned.read_bytes() == before
    assert update("y\n")[0] == 0
    assert check(pinned, tmp_path, **strict) == ""
    assert "as recorded again" in check(pinned, tmp_path)


def test_pins_share_what_models_got(tmp_path: Path) -> None:
    story = anyio.run(exported, tmp_path / "story.jsonl")
    configured(tmp_path / "config.yaml")
    for name in ("one", "two"):
        assert main(["log", "pin", str(story), "--name", name, "--dir", str(tmp_path)]) == 0
    shared = {path.stem: path for path in (tmp_path / "shared").iterdir()}
    assert len(shared) == 6, "prompt, tools and model of the lead and of its subagent, once"
    assert sum(path.stat().st_size for path in shared.values()) > (tmp_path / "one.jsonl").stat().st_size

    async def parts(path: Path) -> dict[str, str]:
        archive = await Archive.open(path)
        [start, *_] = [r.event for r in await archive.read(archive.root) if isinstance(r.event, RunStarted)]
        try:
            return await sent(read_of(archive), start)
        finally:
            archive.close()

    assert anyio.run(parts, tmp_path / "two.jsonl") == anyio.run(parts, story) != {}
    assert check(tmp_path / "one.jsonl", tmp_path, **SECTIONS, models=NAMED) == ""
    for path in shared.values():
        path.write_bytes(path.read_bytes().replace(b'"content":"', b'"content":"Changed. '))
    with pytest.raises(Invalid, match="does not match its hash"):
        anyio.run(parts, tmp_path / "two.jsonl")


def test_one_that_cannot_be_replayed_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = anyio.run(exported, tmp_path / "story.jsonl")
    configured(tmp_path / "config.yaml", middlewares=["nowhere:Policy"])
    before = sorted(tmp_path.iterdir())
    assert main(["log", "pin", str(story), "--name", "one", "--dir", str(tmp_path)]) == 2
    assert "one.jsonl: is not written: " in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before, "no bodies, and no test"


def test_a_big_one_is_refused(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.replay.exports.pins.MOST_BYTES", 4096)
    arguments = ["log", "pin", str(recorded), "--name", "big", "--dir", str(tmp_path)]
    assert main(arguments) == 2
    assert not list(tmp_path.glob("*.jsonl"))
    assert main([*arguments, "--big"]) == 0


def test_the_pins_of_this_repository_have_the_test_that_the_command_writes() -> None:
    assert (FOLDER / "pinned" / "test_pinned.py").read_text() == TEST


def test_a_file_that_is_no_pin_is_named(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"commands\.jsonl: is no pin"):
        check(recorded, tmp_path)
