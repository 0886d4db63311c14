"""Files of recorded events at the command line: exported, read without a server, imported again."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.cli.log.export import Terms, export
from channels.cli.log.import_ import restore as restored
from core.errors import Invalid, NotFound, Refused
from core.events import (
    Aggregate,
    FolderAttached,
    Record,
    RunRequested,
    RunStarted,
    StatePatched,
    SubagentStarted,
    ThreadCreated,
    ThreadErased,
    ThreadShared,
    VariableSet,
    thread,
)
from core.log.store import EventLog
from core.replay.exports.archive import Archive
from core.replay.exports.exporting import LogReader, Scope, lines, write
from core.replay.exports.format import FORMAT, Header
from core.replay.exports.importing import derived, restore
from core.replay.soundness import compare, verify, verify_file
from core.thread.fold import fold
from tests.channels.terminal.test_log import fill
from tests.golden.stories import load
from tests.property.test_export import Records

pytestmark = pytest.mark.anyio


async def file_of(name: str, folder: Path) -> Path:
    """A recorded log of an older version as a file."""
    records = load(name)
    path = folder / f"{name}.jsonl"
    header = Header(format=FORMAT, sika="1", thread=records[0].head.aggregate_id)
    await write(path, lines(Records(records), header, Scope()))
    return path


async def exported(log: EventLog, path: Path, thread_id: str = "t1", **terms: bool) -> Archive:
    terms = {"redact": False, "blobs": True, "files": False} | terms
    await export(LogReader(log), thread(thread_id), path, Terms(**terms), "log", path.parent)
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


async def test_a_thread_with_the_id_of_a_deleted_one(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    events = [ThreadErased(by="ada"), ThreadCreated(user="ada"), StatePatched(values={"title": "again"})]
    await log.append(thread("t1"), events, expected=0, actor="test")
    assert (await verify(log, "t1")).problems == []
    archive = await exported(log, tmp_path / "t.jsonl")
    assert (await restore(nats_log, archive)).events == 3
    state = fold(await records(nats_log, thread("t1")))
    assert (state.exists, state.erased, state.values) == (True, False, {"title": "again"})
    assert (await verify(nats_log, "t1")).problems == []
    archive.close()


async def test_an_imported_thread_works_on_no_folder(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    folder = FolderAttached(path="/home/ada/app", access="read-write", by="ada")
    await log.append(thread("t1"), [folder], expected=await log.tip(thread("t1")), actor="test")
    assert fold(await records(log, thread("t1"))).folder == folder
    archive = await exported(log, tmp_path / "t.jsonl")
    await restore(nats_log, archive)
    assert fold(await records(nats_log, thread("t1"))).folder is None
    assert (await restore(nats_log, archive)).events == 0
    archive.close()


async def test_an_imported_thread_has_no_variables(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    facts = [VariableSet(name="A", value="1", by="ada"), VariableSet(name="B", sealed="v1.x.y", by="ada")]
    await log.append(thread("t1"), facts, expected=await log.tip(thread("t1")), actor="test")
    assert [*fold(await records(log, thread("t1"))).variables] == ["A", "B"]
    archive = await exported(log, tmp_path / "t.jsonl")
    await restore(nats_log, archive)
    there = await records(nats_log, thread("t1"))
    assert fold(there).variables == {}
    assert b"v1.x.y" not in b"".join(record.raw for record in there)
    archive.close()


async def test_an_imported_thread_is_shared_with_nobody(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    shared = ThreadShared(share="s", by="ada", upto=1, digest="d" * 64)
    await log.append(thread("t1"), [shared], expected=await log.tip(thread("t1")), actor="test")
    assert fold(await records(log, thread("t1"))).shares["s"].fact == shared
    archive = await exported(log, tmp_path / "t.jsonl")
    await restore(nats_log, archive)
    assert fold(await records(nats_log, thread("t1"))).shares == {}
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
    terms = Terms(blobs=True, files=True)
    await export(LogReader(log), thread("t1"), tmp_path / "t.jsonl", terms, "log", tmp_path / "home")
    archive = await Archive.open(tmp_path / "t.jsonl")
    line = await restored(nats_log, archive, tmp_path / "other", None, None)
    assert line == "thread t1: 8 events, 2 files"
    there = tmp_path / "other" / "users" / "me" / "threads" / "t1" / "user-data" / "workspace"
    assert sorted(path.name for path in there.iterdir()) == ["a.txt", "big.bin"]
    assert (there / "big.bin").read_bytes() == (folder / "big.bin").read_bytes()
    (there / "a.txt").write_text("mine")
    line = await restored(nats_log, archive, tmp_path / "other", None, None)
    assert line == "thread t1: was there already, 2 files there already, unchanged"
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


async def test_a_file_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    """The system writes the part of it that fits, and says how long that was."""

    async def content() -> AsyncIterator[bytes]:
        yield bytes(300_000)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(Invalid, match=r"t\.jsonl: cannot be written: File too large"):
            await write(tmp_path / "t.jsonl", content())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


async def test_an_export_replaces_files_only(log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    (folder := tmp_path / "folder").mkdir()
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (folder, pipe):
        with pytest.raises(Invalid, match="is there already, and not a file"):
            await exported(log, path)
    assert pipe.is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "t.jsonl")
    (await exported(log, tmp_path / "link")).close()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "t.jsonl").is_file()


async def test_a_redacted_file_is_imported_for_somebody(log: EventLog, nats_log: EventLog, tmp_path: Path) -> None:
    await fill(log)
    archive = await exported(log, tmp_path / "t.jsonl", redact=True)
    assert archive.end.redactions == {"user": 1, "worker": 1}
    await restored(nats_log, archive, tmp_path, None, None)
    state = fold(await records(nats_log, thread("t1")))
    assert (state.user, len(state.messages)) == ("default", 4)
    types = [json.loads(record.raw)["type"] for record in await archive.read(thread("t1"))]
    assert len(types) == 8
    archive.close()
