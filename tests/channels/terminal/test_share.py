"""Files of recorded events at the command line: exported, read without a server, imported again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from channels.terminal import share
from channels.terminal.verify import compare, verify, verify_file
from core.errors import Invalid, NotFound, Refused
from core.events import (
    Aggregate,
    Record,
    RunRequested,
    RunStarted,
    StatePatched,
    SubagentStarted,
    ThreadCreated,
    thread,
)
from core.log.store import EventLog
from core.replay.archive import FORMAT, Archive, Header
from core.replay.exporting import LogReader, Scope, lines, write
from core.replay.importing import derived, restore
from core.thread.fold import fold
from tests.channels.terminal.test_log import fill
from tests.golden.stories import configured, load
from tests.property.test_export import Records

pytestmark = pytest.mark.anyio

ALONE = """
import socket, sys

def refused(*arguments, **options):
    raise OSError("the network is off")

socket.socket.connect = socket.socket.connect_ex = socket.socket.bind = refused
socket.getaddrinfo = refused
from actors.cli import main
code = main(sys.argv[1:])
loaded = [name for name in ("nats", "aiohttp", "httpx", "langchain_core") if name in sys.modules]
print(loaded, file=sys.stderr)
sys.exit(code)
"""
"""The command line with the network off; says which libraries were loaded."""


async def file_of(name: str, folder: Path) -> Path:
    """A recorded log of an older version as a file."""
    records = load(name)
    path = folder / f"{name}.jsonl"
    header = Header(format=FORMAT, sika="1", thread=records[0].head.aggregate_id)
    await write(path, lines(Records(records), header, Scope()))
    return path


def alone(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SIKA")}
    environ |= {"PYTHONPATH": str(Path(__file__).parents[3]), "NO_COLOR": "1"}
    command = [sys.executable, "-c", ALONE, *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "{}"], "run: echo hi"),
        (["show", "{}", "5"], "echo hi"),
        (["list", "--in", "{}"], "golden-commands"),
        (["find", "exit 3", "--in", "{}"], "exit 3"),
        (["show", "{}", "--json"], '"type":"run.completed"'),
        (["state", "{}"], "thread golden-commands"),
        (["why", "{}", "12"], "→"),
        (["tree", "{}"], "bash"),
        (["verify", "{}"], "ok: "),
        (["diff", "{}@5", "{}@12"], "messages"),
    ],
)
async def test_a_file_is_read_without_a_server_and_without_the_network(
    tmp_path: Path, arguments: Sequence[str], text: str
) -> None:
    path = await file_of("commands", tmp_path)
    work = tmp_path / "empty"
    work.mkdir()
    done = alone(work, "log", *(argument.format(f"../{path.name}") for argument in arguments))
    assert text in done.stdout, done.stderr
    assert done.stderr == "[]\n", "libraries that a reader of files does not need"
    assert done.returncode == (1 if arguments[0] == "diff" else 0)
    assert not list(work.iterdir())


async def test_a_file_is_replayed_without_a_server_and_without_the_network(tmp_path: Path) -> None:
    path = await file_of("commands", tmp_path)
    done = alone(tmp_path, "log", "replay", path.name, "--config", str(configured("commands", tmp_path / "c.yaml")))
    assert done.returncode == 0, done.stderr
    assert "4 runs" in done.stdout
    assert "nats" not in done.stderr
    assert not (tmp_path / ".sika").exists()


async def test_a_file_goes_on_under_other_conditions_without_a_server(tmp_path: Path) -> None:
    path = await file_of("commands", tmp_path)
    config = str(configured("commands", tmp_path / "c.yaml"))
    about = ("--at", str(len(load("commands"))), "--message", "Thanks", "--config", config)
    done = alone(tmp_path, "log", "whatif", path.name, *about)
    assert done.returncode == 0, done.stderr
    assert "what-if of thread golden-commands" in done.stdout
    assert "not restored  all files" in done.stdout


async def test_a_file_is_not_followed(tmp_path: Path) -> None:
    path = await file_of("commands", tmp_path)
    done = alone(tmp_path, "log", "tail", path.name)
    assert (done.returncode, done.stdout) == (2, "")
    assert "commands.jsonl is a file, to which nothing comes; sika log show --events reads it" in done.stderr
    assert not (tmp_path / ".sika").exists()


async def test_two_files_are_compared(tmp_path: Path) -> None:
    one, two = await file_of("commands", tmp_path), await file_of("research", tmp_path)
    done = alone(tmp_path, "log", "diff", one.name, two.name)
    assert done.returncode == 1
    assert "first difference" in done.stdout
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(one.read_bytes())
    assert alone(tmp_path, "log", "diff", one.name, copy.name).stdout.startswith("the same")


async def test_a_changed_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = await file_of("commands", tmp_path)
    path.write_text(path.read_text().replace("echo hi", "echo ho", 1))
    done = alone(tmp_path, "log", "show", path.name)
    assert done.returncode == 2
    assert "commands.jsonl, line 3: does not fit its sum" in done.stderr


async def exported(log: EventLog, path: Path, thread_id: str = "t1", **terms: bool) -> Archive:
    terms = {"redact": False, "blobs": True, "files": False} | terms
    await share.export(LogReader(log), thread(thread_id), path, share.Terms(**terms), None, "log", path.parent)
    return await Archive.open(path)


async def records(log: EventLog, aggregate: Aggregate) -> list[Record]:
    return [record async for record in log.read(aggregate)]


async def test_export_and_import_give_the_same_thread(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    archive = await exported(log, tmp_path / "t.jsonl")
    result = await restore(nats_log, archive)
    assert (result.thread, result.events, result.cancelled) == ("t1", 8, 0)
    there, here = await records(log, thread("t1")), await records(nats_log, thread("t1"))
    assert [record.raw for record in here] == [record.raw for record in there]
    assert [record.chain for record in here] == [record.chain for record in there], "the same chain of hashes"
    assert fold(here).values == fold(there).values
    assert (await verify(nats_log, "t1")).problems == []
    assert (await restore(nats_log, archive)).events == 0, "a second import does nothing"
    archive.close()


async def test_an_import_goes_on_where_it_was_interrupted(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    archive = await exported(log, tmp_path / "t.jsonl")
    first = [record.raw for record in await records(log, thread("t1"))][:3]
    await nats_log.restore(thread("t1"), first, expected=0)
    assert (await restore(nats_log, archive)).events == 5
    assert len(await records(nats_log, thread("t1"))) == 8
    archive.close()


async def test_another_thread_of_the_same_id_is_not_written_to(
    log: EventLog, nats_log: EventLog, tmp_path: Path
) -> None:
    await fill(log)
    await nats_log.append(thread("t1"), [ThreadCreated(user="bob")], expected=0, actor="test")
    archive = await exported(log, tmp_path / "t.jsonl")
    with pytest.raises(Refused, match="--as ID"):
        await restore(nats_log, archive)
    assert len(await records(nats_log, thread("t1"))) == 1
    result = await restore(nats_log, archive, thread="copy", user="bob")
    assert (result.thread, result.events) == ("copy", 8)
    copy = await records(nats_log, thread("copy"))
    state = fold(copy)
    assert state.user == "bob"
    assert list(state.runs) == [derived("copy", "r1")]
    assert not {record.id for record in copy} & {record.id for record in await records(log, thread("t1"))}
    assert (await verify(nats_log, "copy")).problems == []
    assert (await restore(nats_log, archive, thread="copy")).events == 0
    archive.close()


async def test_subagents_checkpoints_and_open_runs_come_along(
    log: EventLog, nats_log: EventLog, tmp_path: Path
) -> None:
    t, sub = thread("t1"), Aggregate("subagent", "s1")
    last = await fill(log)
    await nats_log.append(thread("other"), [ThreadCreated(user="bob")], expected=0, actor="test")  # other sequences
    await log.append(sub, [ThreadCreated(user="me", metadata={"thread": "t1"})], expected=0, actor="lead")
    call = SubagentStarted(call_id="c", subagent="s1", name="general-purpose")
    for event, run in (
        (StatePatched(values={"title": "back"}, base=last), None),
        (RunRequested(input={"messages": []}), "r2"),
        (RunStarted(attempt=1, worker="w", lease=1), "r2"),
        (call, "r2"),
    ):
        await log.append(t, [event], expected=await log.tip(t), actor="lead", run=run)
    archive = await exported(log, tmp_path / "t.jsonl")
    result = await restore(nats_log, archive, thread="copy")
    assert result.cancelled == 1
    copy = await records(nats_log, thread("copy"))
    state = fold(copy)
    assert [run.status for run in state.runs.values()] == ["success", "interrupted"]
    patched = next(record.event for record in copy if isinstance(record.event, StatePatched))
    assert patched.base in {record.seq for record in copy}
    [created] = await records(nats_log, Aggregate("subagent", derived("copy", "s1")))
    assert isinstance(created.event, ThreadCreated)
    assert created.event.metadata == {"thread": "copy"}
    assert not state.problems
    archive.close()


async def test_a_log_that_was_changed_is_found_by_an_earlier_export(
    log: EventLog, nats_log: EventLog, tmp_path: Path
) -> None:
    await fill(log)
    archive = await exported(log, tmp_path / "t.jsonl")
    assert await compare(log, archive) == []
    raws = [record.raw for record in await records(log, thread("t1"))]
    raws[3] = raws[3].replace(b'"look"', b'"look!"')
    await nats_log.restore(thread("t1"), raws, expected=0)  # the whole log written anew, with a sound chain
    assert (await verify(nats_log, "t1")).problems == []
    assert await compare(nats_log, archive) == ["4: was changed since t.jsonl was exported (thread/t1)"]
    verdict = await verify_file(archive)
    assert (verdict.problems, verdict.events) == ([], 8)
    archive.close()


async def test_files_come_along_and_stay_inside(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    folder = tmp_path / "home" / "users" / "me" / "threads" / "t1" / "user-data" / "workspace"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("hello")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "big.bin").write_bytes(os.urandom(600_000))
    terms = share.Terms(blobs=True, files=True)
    await share.export(LogReader(log), thread("t1"), tmp_path / "t.jsonl", terms, None, "log", tmp_path / "home")
    archive = await Archive.open(tmp_path / "t.jsonl")
    line = await share.restore(nats_log, archive, tmp_path / "other", None, None)
    assert line == "thread t1: 8 events, 2 files"
    there = tmp_path / "other" / "users" / "me" / "threads" / "t1" / "user-data" / "workspace"
    assert sorted(path.name for path in there.iterdir()) == ["a.txt", "big.bin"]
    assert (there / "big.bin").read_bytes() == (folder / "big.bin").read_bytes()
    (there / "a.txt").write_text("mine")
    line = await share.restore(nats_log, archive, tmp_path / "other", None, None)
    assert line == "thread t1: was there already, 2 files were there and stay"
    assert (there / "a.txt").read_text() == "mine"
    archive.close()


async def test_what_cannot_be_exported_or_imported_is_said(log: EventLog, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing in the log"):
        await exported(log, tmp_path / "t.jsonl", "nope")
    assert not list(tmp_path.iterdir()), "in full or not at all"
    await fill(log)
    archive = await exported(log, tmp_path / "t.jsonl", blobs=False)
    with pytest.raises(Invalid, match="its body is not in the file"):
        await restore(log, archive, thread="copy")
    archive.close()


async def test_a_redacted_file_is_imported_for_somebody(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    archive = await exported(log, tmp_path / "t.jsonl", redact=True)
    assert archive.end.redactions == {"user": 1, "worker": 1}
    await share.restore(nats_log, archive, tmp_path, None, None)
    state = fold(await records(nats_log, thread("t1")))
    assert (state.user, len(state.messages)) == ("default", 4)
    types = [json.loads(record.raw)["type"] for record in await archive.read(thread("t1"))]
    assert len(types) == 8
    archive.close()
