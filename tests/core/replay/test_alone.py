"""Everything that a file can show, in a directory without a data directory, with the network off."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import anyio
import pytest

from tests.core.replay.recorded import configured, exported

pytestmark = pytest.mark.long(keep=3)

ALONE = """
import contextlib, io, json, socket, sys

def refused(*arguments, **options):
    raise OSError("the network is off")

socket.socket.connect = socket.socket.connect_ex = socket.socket.bind = refused
socket.getaddrinfo = refused
from channels.cli import main

results = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    results.append([code, out.getvalue(), err.getvalue()])
loaded = [name for name in ("nats", "aiohttp", "httpx", "langchain_core") if name in sys.modules]
print(json.dumps([results, loaded]))
"""
"""Commands in one process, in which no socket is connected; with their results and the libraries that were loaded."""
Result = tuple[int, str, str]


@cache
def namespace() -> tuple[str, ...]:
    """Returns the command that executes another one without a network; none where that is not allowed."""
    command = ("unshare", "-n") if os.geteuid() == 0 else ("unshare", "-rn")
    if shutil.which("unshare") is None:
        return ()
    done = subprocess.run([*command, "true"], capture_output=True, timeout=60, check=False)
    return command if done.returncode == 0 else ()


def alone(cwd: Path, *commands: Sequence[object], typed: str = "") -> tuple[list[Result], list[str]]:
    """Executes commands of the group `log`. Returns code, output and errors of each, and the loaded libraries."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SIKA")}
    environ |= {"PYTHONPATH": str(Path(__file__).parents[3]), "NO_COLOR": "1"}
    words = json.dumps([["log", *map(str, command)] for command in commands])
    command = [*namespace(), sys.executable, "-c", ALONE, words]
    options = {"cwd": cwd, "env": environ, "input": typed, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=120, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    results, loaded = json.loads(done.stdout)
    return [(code, out, err) for code, out, err in results], loaded


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with an exported file and nothing else; the configuration lies beside it."""
    directory = tmp_path / "work"
    directory.mkdir()
    anyio.run(exported, directory / "story.jsonl")
    shutil.copy(directory / "story.jsonl", tmp_path / "copy.jsonl")
    configured(tmp_path / "config.yaml")
    return directory


def test_a_file_is_read(work: Path) -> None:
    file = "story.jsonl"
    questions: dict[str, tuple[Sequence[object], int]] = {
        "Count the lines.": (["show", file], 0),
        "rm x.txt": (["show", file, 24], 0),
        "exit 3": (["show", file, "--errors"], 0),
        '"type":"run.completed"': (["show", file, "--json"], 0),
        "1 thread, 2 runs": (["list", "--in", file], 0),
        "5 events": (["find", "--tool", "bash", "--type", "tool.requested", "--in", file], 0),
        "thread story": (["state", file], 0),
        "Exit Code: 3": (["state", file, "--at", 9, "--path", "messages[-1].content"], 0),
        "Task Succeeded": (["why", file, 16], 0),
        "tools (--json has their schemas)": (["request", file, "5"], 0),
        "event 9 is tool.completed; models were called in ": (["request", file, 9], 2),
        "waited for: bash": (["tree", file], 0),
        "first difference": (["diff", f"{file}#1", f"{file}#2"], 1),
        "+ {": (["diff", f"{file}@5", f"{file}@12"], 1),
        "the same": (["diff", file, "../copy.jsonl"], 0),
        "ok: 46 events": (["verify", file], 0),
        "is a file, to which nothing comes; sika log show --events reads it": (["tail", file], 2),
    }
    results, loaded = alone(work, *(words for words, _ in questions.values()))
    for (text, (words, expected)), (code, out, err) in zip(questions.items(), results, strict=True):
        assert text in out + err, (words, out, err)
        assert code == expected, (words, err)
    assert loaded == [], "libraries that a reader of files does not need"
    assert [path.name for path in work.iterdir()] == [file]


def test_a_file_is_executed_again_pinned_and_written(work: Path) -> None:
    file, config = "story.jsonl", ("--config", "../config.yaml")
    live = ("--set", "subagents.agents={}", "--set", "models=[]", "--model", "demo")
    commands: list[Sequence[object]] = [
        ["replay", file, *config],
        ["replay", file, "--until", 9, *config],
        ["replay", file, "--break", "tool.requested args.command~sleep", *config],
        ["whatif", file, "--at", 9, *live, "--message", "Stop here.", *config],
        ["pin", file, "--name", "bug", "--dir", ".", *config],
        ["export", file, "--redact", "--out", "redacted.jsonl"],
        ["replay", "redacted.jsonl", *config],
    ]
    results, loaded = alone(work, *commands, typed="show messages[0].content\ncontinue\n")
    outs = [out for _, out, _ in results]
    assert [code for code, _, _ in results] == [0] * len(commands), results
    assert outs[0].startswith("same decisions under another prompt and configuration: 16 steps in 3 runs")
    assert outs[1].startswith("same so far")
    assert "Count the lines." in outs[2]
    assert "what-if of thread story" in outs[3]
    assert "not restored  all files: the thread's directory is not here" in outs[3]
    assert outs[4].startswith("bug.jsonl: ")
    assert "redacted: 1 user" in outs[5]
    assert "16 steps in 3 runs" in outs[6]
    assert "nats" not in loaded
    assert not (work / ".sika").exists()
    shutil.copy(work.parent / "config.yaml", work)
    command = [*namespace(), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pinned.py"]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, cwd=work, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_changed_file_is_refused_with_its_line(work: Path) -> None:
    path = work / "story.jsonl"
    path.write_text(path.read_text().replace("exit 3", "exit 4", 1))
    [(code, _, err)], _ = alone(work, ["show", path.name])
    assert code == 2
    assert "story.jsonl, line 6: does not fit its sum" in err
