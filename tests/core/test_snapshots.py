"""Snapshots: a cold thread costs what came after its snapshot, and whatever becomes of the files, the log is right."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from core.bus.connection import Bus
from core.bus.queue import WorkQueue
from core.errors import Unavailable
from core.events import Event, Json, Record, StatePatched, ThreadCreated, thread
from core.log import snapshots as core_snapshots
from core.log.snapshots import Snapshot, Snapshots, version_of
from core.log.store import EventLog
from core.runs.intake import Intake
from core.runtime.system import start
from core.thread import past, snapshots
from core.thread.fold import fold
from core.thread.prune import prune
from core.thread.snapshots import ThreadForm
from core.thread.state import ThreadState
from core.thread.threads import Threads
from tests.support.nats import Nats, append, eventually, fresh, read, running_tasks
from tests.support.records import human


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after every event, with pages of a few commits."""
    monkeypatch.setattr(core_snapshots, "SNAPSHOT_BYTES", 1)
    monkeypatch.setattr(past, "PAGE", 4)


def patches(count: int, begin: int = 0) -> list[Event]:
    return [StatePatched(values={"messages": [human(f"m{begin + n}")]}) for n in range(count)]


async def written(log: EventLog, count: int) -> str:
    """A thread of so many events."""
    aggregate = fresh()
    await append(log, aggregate, ThreadCreated(user="ada"), *patches(count - 1))
    return aggregate.id


async def add(log: EventLog, name: str, *events: Event) -> None:
    await append(log, thread(name), *events, expected=await log.tip(thread(name)))


@asynccontextmanager
async def process(log: EventLog, place: Path) -> AsyncIterator[Threads]:
    """A process with nothing in memory that writes snapshots."""
    threads = Threads(log, place)
    assert threads.snapshots is not None
    async with running_tasks(threads.snapshots.run):
        await asyncio.sleep(0)
        yield threads


async def snapshot(log: EventLog, place: Path, name: str) -> ThreadState:
    """Has a snapshot written by a process of its own. Returns its state."""
    async with process(log, place) as threads:
        state = await threads.load(name)
        await there(place, name, state.seq)
        return state


def on_disk(place: Path, name: str) -> Snapshot[ThreadState] | None:
    try:
        return Snapshots(None, place, "thread", ThreadForm())._read(name)[0]  # type: ignore[arg-type]
    except FileNotFoundError:
        return None


async def there(place: Path, name: str, seq: int) -> None:
    async def is_there() -> bool:
        found = on_disk(place, name)
        return found is not None and found.seq == seq

    await eventually(is_there)


@contextmanager
def reads(log: EventLog) -> Iterator[list[Record]]:
    """The events that are read while the block lasts."""
    records: list[Record] = []
    original = log.read

    async def reading(*arguments: object, **options: object) -> AsyncIterator[Record]:
        async for record in original(*arguments, **options):  # type: ignore[arg-type]
            records.append(record)
            yield record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "read", reading)
        yield records


async def whole(log: EventLog, name: str) -> ThreadState:
    return fold(await read(log, thread(name)))


async def test_a_cold_thread_is_read_from_its_snapshot_on(log: EventLog, tmp_path: Path) -> None:
    name = await written(log, 50)
    before = await snapshot(log, tmp_path, name)
    await add(log, name, *patches(3, 100))
    threads = Threads(log, tmp_path)
    with reads(log) as records:
        state = await threads.load(name)
    assert [record.seq for record in records] == [before.seq, before.seq + 1, before.seq + 2, before.seq + 3]
    assert state == await whole(log, name)
    assert len(state.commits) == 52


async def test_a_snapshot_adds_its_new_pages(log: EventLog, tmp_path: Path) -> None:
    """Also if another process wrote the one before: nothing is written twice."""
    name = await written(log, 50)
    await snapshot(log, tmp_path, name)
    [first] = tmp_path.glob("thread/*/pages-*")
    beginning = first.read_bytes()
    await add(log, name, *patches(20, 100))
    await snapshot(log, tmp_path, name)
    [second] = tmp_path.glob("thread/*/pages-*")
    assert first == second
    assert second.read_bytes()[: len(beginning)] == beginning
    assert len(second.read_bytes()) > len(beginning)
    assert await Threads(log, tmp_path).load(name) == await whole(log, name)


async def test_what_is_decided_leads_to_snapshots(log: EventLog, tmp_path: Path) -> None:
    name = fresh().id
    async with process(log, tmp_path) as threads:
        state, _ = await threads.decide(name, lambda _: [ThreadCreated(user="ada"), *patches(20)], actor="t")
        await there(tmp_path, name, state.seq)
    assert await Threads(log, tmp_path).load(name) == state


async def test_small_threads_have_none(log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_snapshots, "SNAPSHOT_BYTES", 10_000)
    small, big = await written(log, 3), await written(log, 100)
    async with process(log, tmp_path) as threads:
        await threads.load(small)
        state = await threads.load(big)
        await there(tmp_path, big, state.seq)
        await add(log, big, *patches(1, 1000))
        await threads.load(big)
    assert [path.name for path in tmp_path.glob("thread/*")] == [big]
    found = on_disk(tmp_path, big)
    assert found is not None
    assert found.seq == state.seq


async def test_a_process_writes_them_beside_its_views(single: Nats, prefix: str, tmp_path: Path) -> None:
    async with start(single.endpoint(prefix), tmp_path / "views.db", lease_seconds=2, slots=1) as system:
        name = await written(system.log, 5)
        await there(tmp_path / "snapshots", name, (await system.threads.load(name)).seq)


async def test_a_process_without_loops_reads_them_only(log: EventLog, tmp_path: Path) -> None:
    name = await written(log, 50)
    await Threads(log, tmp_path).load(name)
    assert list(tmp_path.glob("**/head")) == []


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, empty, Path.unlink])
@pytest.mark.parametrize("file", ["head", "pages-*"])
async def test_a_damaged_snapshot_is_read_from_the_log(
    log: EventLog, tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    name = await written(log, 50)
    await snapshot(log, tmp_path, name)
    [path] = tmp_path.glob(f"thread/{name}/{file}")
    damage(path)
    with structlog.testing.capture_logs() as lines:
        async with process(log, tmp_path) as threads:
            state = await threads.load(name)
            assert state == await whole(log, name)
            await there(tmp_path, name, state.seq)
    said = [line["event"] for line in lines]
    assert said == ([] if (file, damage) == ("head", Path.unlink) else ["a snapshot cannot be read: the log is"])
    with reads(log) as records:
        assert await Threads(log, tmp_path).load(name) == state
    assert len(records) == 1


async def test_a_changed_fold_reads_no_old_snapshot(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await written(log, 50)
    await snapshot(log, tmp_path, name)
    changed = Threads(log, tmp_path)
    assert changed.snapshots is not None
    monkeypatch.setattr(changed.snapshots._form, "version", "another")
    with structlog.testing.capture_logs() as lines, reads(log) as records:
        assert await changed.load(name) == await whole(log, name)
    assert "another version" in lines[0]["event"]
    assert len(records) == 100


def test_the_version_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    version = ThreadForm().version
    assert ThreadForm().version == version
    monkeypatch.setattr("core.thread.snapshots._CODE", ("core.errors",))
    assert ThreadForm().version != version


def test_the_version_covers_all_that_folds() -> None:
    """Of what the fold imports, only what makes no part of a state is left out."""
    folding, rest = set[str](), ["core.thread.fold"]
    while rest:
        folding.add(name := rest.pop())
        rest += imported(name) - folding - {"core.errors", "core.cache", "core.phrases"}
    assert folding <= {*snapshots._CODE}


def test_the_version_covers_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension that is installed, or changed, folds old events anew."""
    version = ThreadForm().version

    class WeatherSeen(Event, frozen=True):
        """A test's own event."""

        def patch(self, values: Mapping[str, Any]) -> Json:
            return {"weather": "fine"}

    assert ThreadForm().version != version
    monkeypatch.setattr(WeatherSeen, "patch", Event.patch)
    assert ThreadForm().version == version


def imported(module: str) -> set[str]:
    """Returns the modules of `core` that a module imports."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found = set[str]()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("core"):
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in submodules if _is_module(name)} or {node.module}
    return found


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the part before it is no package
        return False


async def test_a_snapshot_that_was_not_finished_is_nothing(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off between the pages and the head: the old one counts, and the next one goes on from there."""
    name = await written(log, 50)
    before = await snapshot(log, tmp_path, name)
    await add(log, name, *patches(20, 100))

    def killed(*_: object) -> int:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(core_snapshots, "_replace", killed)
        found = Snapshots(log, tmp_path, "thread", ThreadForm())
        state = await whole(log, name)
        with pytest.raises(OSError, match="killed"):
            found._write(name, Snapshot(state.seq, "?", state.size, state))
    left = on_disk(tmp_path, name)
    assert left is not None
    assert left.seq == before.seq
    assert await snapshot(log, tmp_path, name) == await whole(log, name)
    assert await Threads(log, tmp_path).load(name) == await whole(log, name)


async def test_a_disk_that_is_full_costs_the_snapshot_only(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, tried = await written(log, 50), asyncio.Event()
    loop = asyncio.get_running_loop()

    def full(*_: object) -> int:
        loop.call_soon_threadsafe(tried.set)
        raise OSError("no space left on device")

    monkeypatch.setattr(core_snapshots, "_append", full)
    with structlog.testing.capture_logs() as lines:
        async with process(log, tmp_path) as threads:
            assert await threads.load(name) == await whole(log, name)
            await tried.wait()

            async def logged() -> bool:
                return any(line["event"] == "no snapshot written" for line in lines)

            await eventually(logged)


async def test_a_state_that_cannot_be_written_stops_no_other(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, other = await written(log, 20), await written(log, 30)
    original = ThreadForm.head

    def head(self: ThreadForm, state: ThreadState) -> list[bytes]:
        if len(state.commits) == 19:
            raise RecursionError("too deep")
        return original(self, state)

    monkeypatch.setattr(ThreadForm, "head", head)
    with structlog.testing.capture_logs() as lines:
        async with process(log, tmp_path) as threads:
            await threads.load(odd)
            state = await threads.load(other)
            await there(tmp_path, other, state.seq)
    assert [line["event"] for line in lines] == ["no snapshot written"]
    assert on_disk(tmp_path, odd) is None


# ── forgetting ──────────────────────────────────────────────────────────────────────────────────────────────────────


def intake(threads: Threads, bus: Bus) -> Intake:
    return Intake(threads, WorkQueue(bus, 2))


async def test_what_is_erased_has_no_snapshot(log: EventLog, bus: Bus, tmp_path: Path) -> None:
    name = await written(log, 50)
    async with process(log, tmp_path) as threads:
        state = await threads.load(name)
        await there(tmp_path, name, state.seq)
        await intake(threads, bus).erase(name, by="ada")
        assert list(tmp_path.glob("thread/*")) == []
        assert (await threads.load(name)).erased
    assert list(tmp_path.glob("thread/*")) == []


async def test_what_is_pruned_has_no_old_snapshot(log: EventLog, tmp_path: Path) -> None:
    name = await written(log, 50)
    async with process(log, tmp_path) as threads:
        await there(tmp_path, name, (await threads.load(name)).seq)
        assert await prune(threads, name, actor="t")
        state = await threads.load(name)
    found = on_disk(tmp_path, name)
    assert found is None or found.seq == state.seq
    again = await Threads(log, tmp_path).load(name)
    assert again == state == await whole(log, name)
    assert len(again.commits) == 1


async def test_a_snapshot_of_what_was_erased_meanwhile_is_removed(log: EventLog, bus: Bus, tmp_path: Path) -> None:
    """By the process that wrote it; and if it died, by the next that reads it."""
    name = await written(log, 50)
    state = await whole(log, name)
    records = await read(log, thread(name))
    late = Snapshot(state.seq, records[-1].id, state.size, state)
    await intake(Threads(log, tmp_path), bus).erase(name, by="ada")
    await Threads(log).erase(name)
    snapshots = Snapshots(log, tmp_path, "thread", ThreadForm())
    await snapshots._write_checked(name, late)
    assert list(tmp_path.glob("thread/*")) == []
    snapshots._write(name, late)
    assert [path.name for path in tmp_path.glob("thread/*")] == [name]
    assert (await Threads(log, tmp_path).load(name)).erased
    assert list(tmp_path.glob("thread/*")) == []


async def test_erasing_says_when_a_snapshot_cannot_be_removed(
    log: EventLog, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await written(log, 50)
    await snapshot(log, tmp_path, name)

    def refused(_: Path) -> None:
        raise OSError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refused)
        with pytest.raises(Unavailable, match="snapshot cannot be removed"):
            await intake(Threads(log, tmp_path), bus).erase(name, by="ada")
    await intake(Threads(log, tmp_path), bus).erase(name, by="ada")
    assert list(tmp_path.glob("thread/*")) == []


async def test_the_snapshot_of_another_log_counts_for_nothing(log: EventLog, tmp_path: Path) -> None:
    """As after a restore: the same sequence, another event."""
    name = await written(log, 50)
    state = await whole(log, name)
    Snapshots(log, tmp_path, "thread", ThreadForm())._write(name, Snapshot(state.seq, "another", state.size, state))
    with reads(log) as records:
        assert await Threads(log, tmp_path).load(name) == await whole(log, name)
    assert len(records) == 1 + 50 + 50


# ── several processes ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_processes_share_the_directory(log: EventLog, tmp_path: Path) -> None:
    name = await written(log, 20)
    async with process(log, tmp_path) as one, process(log, tmp_path) as other:
        for number in range(5):
            await asyncio.gather(*(some.decide(name, _more(number), actor="t") for some in (one, other)))
    await add(log, name, *patches(60, 1000))
    state = await snapshot(log, tmp_path, name)
    assert len(list(tmp_path.glob("thread/*/pages-*"))) == 1
    assert await Threads(log, tmp_path).load(name) == state == await whole(log, name)


def _more(number: int) -> Callable[[ThreadState], list[Event]]:
    return lambda state: patches(3, len(state.commits) + 100 * number)


async def test_who_comes_second_leaves_it_to_the_first(log: EventLog, tmp_path: Path) -> None:
    name = await written(log, 50)
    state = await snapshot(log, tmp_path, name)
    snapshots = Snapshots(log, tmp_path, "thread", ThreadForm())
    before = fold((await read(log, thread(name)))[:20])
    assert snapshots._write(name, Snapshot(before.seq, "older", before.size, before)) == 0
    with core_snapshots._alone(tmp_path / "thread" / name) as alone:
        assert alone
        newer = fold([], state)
        assert snapshots._write(name, Snapshot(newer.seq + 1, "newer", newer.size, newer)) == 0
    found = on_disk(tmp_path, name)
    assert found is not None
    assert found.seq == state.seq


async def test_a_state_whose_pages_are_others_begins_anew(log: EventLog, tmp_path: Path) -> None:
    name, other = await written(log, 50), await written(log, 60)
    await snapshot(log, tmp_path, name)
    state = await whole(log, other)
    snapshots = Snapshots(log, tmp_path, "thread", ThreadForm())
    assert snapshots._write(name, Snapshot(state.seq + 1000, "?", state.size, state)) > 0
    found = on_disk(tmp_path, name)
    assert found is not None
    assert found.state == state
    assert len(list(tmp_path.glob("thread/*/pages-*"))) == 1


@pytest.mark.parametrize("damage", [cut, Path.unlink])
async def test_pages_that_are_lost_are_written_anew(
    log: EventLog, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    name = await written(log, 50)
    state = await snapshot(log, tmp_path, name)
    [path] = tmp_path.glob("thread/*/pages-*")
    damage(path)
    snapshots = Snapshots(log, tmp_path, "thread", ThreadForm())
    assert snapshots._write(name, Snapshot(state.seq + 1, "?", state.size, state)) > 0
    found = on_disk(tmp_path, name)
    assert found is not None
    assert found.state == state


async def test_an_id_that_is_no_name_has_no_snapshot(log: EventLog, tmp_path: Path) -> None:
    snapshots = Snapshots(log, tmp_path, "thread", ThreadForm())
    assert await snapshots.read("../x") is None
    await snapshots.remove("../x")


def test_the_helpers_of_an_extension_are_part_of_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the module that declares the event: what its patch calls changes states, too."""
    package = tmp_path / "acme_ext"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "facts.py").write_text("from acme_ext.helpers import f\n")
    helpers = package / "helpers.py"
    helpers.write_text("f = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def version() -> str:
        return version_of(["acme_ext.facts"], ["acme_ext"])

    before = version()
    assert version() == before
    helpers.write_text("f = 2\n")
    assert version() != before
    (tmp_path / "acme_single.py").write_text("f = 1\n")
    assert version_of([], ["acme_single"]) != version_of([])
