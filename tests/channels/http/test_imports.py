"""Import over HTTP: files of strangers are refused with what is wrong and where; others are the importer's threads."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.http.page import imports
from core.events import (
    Aggregate,
    Blob,
    Event,
    ModelCompleted,
    Record,
    RunCompleted,
    RunRequested,
    RunStarted,
    SetupRecorded,
    SubagentStarted,
    ThreadCreated,
    ThreadExpirySet,
    ThreadImported,
    encode,
    thread,
    written,
)
from core.ids import uuid7
from core.lifecycle import DELIVER, IMPORTED, TARGET
from core.replay.exports.format import FORMAT, MOST_FILES, FileLine, Header, Writer
from core.runtime.system import System
from tests.channels.http.people import ADA, BOB, Browser, WithAccounts, place
from tests.channels.http.story import ai, human
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio
SECRET = "Bob's name is in this prompt."
SETUP = hashlib.sha256(SECRET.encode()).hexdigest()
AT = "2026-11-28T08:00:00.000000Z"


ROOT = thread("t")


def record(seq: int, event: Event, aggregate: Aggregate = ROOT, **fields: Any) -> Record:
    head = {"id": f"e{seq}-{aggregate.id}", "at": AT, "actor": "lead", **fields}
    return Record(seq, encode(event, written(event, kind=aggregate.kind, aggregate_id=aggregate.id, **head)))


BEGUN = record(1, ThreadCreated(user="someone else", metadata={"k": "v"}))
RUN = [
    record(2, RunRequested(input={"messages": [human("h", "Look")]}), run="r"),
    record(3, RunStarted(attempt=1, worker="w", lease=1), run="r"),
    record(4, ModelCompleted(message=ai("a", "Seen.")), run="r"),
]
ENDED = [*RUN, record(5, RunCompleted(), run="r")]


def file(*records: Record, before: Sequence[Any] = (), after: Sequence[FileLine] = (), **header: Any) -> bytes:
    writer = Writer()
    lines = [writer.line(Header(**{"format": FORMAT, "sika": "x", "thread": "t", "at": AT, **header}))]
    lines += [writer.blob(body) for body in before]
    lines += map(writer.event, records)
    lines += map(writer.line, after)
    return b"".join([*lines, writer.end()])


def kept(path: str, data: bytes = b"x", offset: int = 0) -> FileLine:
    return FileLine(path=path, data=data, offset=offset)


def packed() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("thread.jsonl", file(BEGUN, *ENDED))
    return buffer.getvalue()


WHOLE = file(BEGUN, *ENDED)
CLAIM = record(4, ModelCompleted(message=ai("a", "")), run="r", blob=Blob(hashlib.sha256(RUN[0].raw).hexdigest(), 9))
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "file: cut off after line 0"),
    "an archive": (packed(), "file, line 1: does not fit its sum"),
    "another program's": (b'{"a":1}\n', "file, line 1: does not fit its sum"),
    "another format": (file(BEGUN, format="sika-log/9"), "file, line 1: the format 'sika-log/9'"),
    "cut off": (b"".join(WHOLE.splitlines(True)[:-1]), "file: cut off after line 6"),
    "changed": (WHOLE.replace(b"Seen.", b"Soon."), "file, line 5: does not fit its sum"),
    "a subagent": (file(BEGUN, kind="subagent"), "file: is a subagent"),
    "another thread beside": (
        file(BEGUN, record(9, RunCompleted(), thread("other"))),
        "thread/other: thread t did",
    ),
    "prompts of another": (
        file(BEGUN, record(9, SetupRecorded("prompt", "x"), Aggregate("thread_setup", "other"))),
        "thread_setup/other: thread t did not call it",
    ),
    "a subagent that nobody called": (
        file(BEGUN, record(9, RunCompleted(), Aggregate("subagent", "s"))),
        "subagent/s: thread t did not call it",
    ),
    "a log of a user": (
        file(BEGUN, record(9, RunCompleted(), Aggregate("user", "ada"))),
        "event 9: a file holds no",
    ),
    "a content of another name": (
        file(BEGUN, record(9, SetupRecorded("prompt", "x"), Aggregate("setup", SETUP))),
        "the content does not match its hash",
    ),
    "a content twice": (
        file(BEGUN, *(record(n, SetupRecorded("prompt", SECRET), Aggregate("setup", SETUP)) for n in (8, 9))),
        "a content is one event, got 2",
    ),
    "an id twice": (file(BEGUN, record(2, RunCompleted(), id="e1-t")), "event 2: the id e1-t is there twice"),
    "an actor that breaks lines": (file(record(1, ThreadCreated(user="u"), actor="a\nb")), "line 2: actor: 1 to 256"),
    "a body that is missing": (file(BEGUN, *RUN[:2], CLAIM), "event 4: its body is not in the file"),
    "a body of another event": (
        file(BEGUN, *RUN[:2], CLAIM, before=[RUN[0].raw]),
        "event 4: its body is that of another event",
    ),
    "too many files": (
        file(BEGUN, after=[kept(f"outputs/{n}") for n in range(MOST_FILES + 1)]),
        f"there are more than {MOST_FILES} files",
    ),
    "a hole": (file(BEGUN, after=[kept("outputs/a", offset=1 << 40)]), "line 3: file 'outputs/a': a piece is at"),
    "below a file": (file(BEGUN, after=[kept("outputs/a"), kept("outputs/a/b")]), "outputs/a/b"),
    **{
        f"outside: {path!r}": (file(BEGUN, after=[kept(path)]), "is outside of the thread's folders")
        for path in ("../x", "/etc/passwd", "outputs/../../x", "outputs//x", "a\0b", "outputs/\u202ex", "")
    },
}


class Here:
    def __init__(self, ada: Browser, bob: Browser, system: System, home: Path, users: tuple[str, str]) -> None:
        self.ada, self.bob, self.system, self.home = ada, bob, system, home
        self.ada_id, self.bob_id = users

    async def send(self, data: bytes, person: Browser | None = None, **form: Any) -> Any:
        fields = aiohttp.FormData()
        fields.add_field(form.get("field", "file"), data, filename=form.get("name", "thread.jsonl"))
        return await (person or self.ada).ask("POST", "/api/threads/import", data=fields)


@pytest.fixture
async def here(system: System, tmp_path: Path) -> AsyncIterator[Here]:
    async with place(system, WithAccounts(), tmp_path) as opened:
        ada, bob = await opened.person(ADA), await opened.person(BOB)
        users = str((await ada.me()).body["id"]), str((await bob.me()).body["id"])
        yield Here(ada, bob, system, tmp_path, users)


async def test_files_of_strangers_are_refused_and_leave_nothing(here: Here) -> None:
    """By the table: with the line or the event that is wrong."""
    tip = await here.system.log.last()
    before = {path for path in here.home.rglob("*") if path.is_file() and "threads" in path.parts}
    for name, (data, text) in REFUSED.items():
        answer = await here.send(data)
        assert (answer.status, text in answer.body.get("detail", "")) == (422, True), (name, answer.body)
    assert (await here.send(WHOLE, field="other")).status == 400
    assert {path for path in here.home.rglob("*") if path.is_file() and "threads" in path.parts} == before
    assert await here.system.log.last() == tip, "no event was appended"


async def test_a_file_is_too_large(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "MOST_BYTES", len(WHOLE) - 1)
    answer = await here.send(WHOLE)
    assert (answer.status, answer.code) == (413, "too_large")


async def test_a_thread_of_a_stranger_is_the_importer_s_and_does_nothing(here: Here) -> None:
    """Whatever it says of owners, chats, webhooks and other people's prompts; an event says who imported it."""
    log = here.system.log
    theirs = uuid7()
    await here.system.intake.create_thread(theirs, user=here.bob_id)
    await log.append(
        Aggregate("thread_setup", theirs), [SetupRecorded(part="prompt", content=SECRET)], expected=0, actor="test"
    )
    evil = RunRequested(
        input={"messages": [human("h", "thread")]},
        webhook="https://evil.example/x",
        on_completion="delete",
        metadata={DELIVER: {"channel": "slack", "chat": "c"}, TARGET: {"chat": "c"}, "own": "stays"},
    )
    started = RunStarted(attempt=1, worker="w", lease=1, setup={"prompt": SETUP}, setup_thread=theirs)
    huge = ai("a", "Seen.") | {"usage_metadata": {"input_tokens": 1 << 70, "output_tokens": -5, "total_tokens": 0}}
    data = file(
        record(1, ThreadCreated(user=here.bob_id, metadata={"k": "v"}), id="thread"),
        record(2, ThreadExpirySet(minutes=1), id=here.ada_id),
        record(3, evil, run="run", id="lead"),
        record(4, started, run="run", at="soon"),
        record(5, SubagentStarted(call_id="c", subagent="elsewhere", name="x", prompt="p"), run="run"),
        record(6, ModelCompleted(message=huge), run="run", at="9999-01-01T00:00:00Z"),
        record(7, ModelCompleted(message=huge, duration_ms=1 << 70), run="run"),
        after=[kept("outputs/a.txt", b"made by it")],
    )
    answer = await here.send(data)
    assert (answer.status, answer.body["events"], answer.body["cancelled"], answer.body["files"]) == (201, 7, 1, 1)
    new = str(answer.body["thread_id"])
    records = [one async for one in log.read(thread(new))]
    assert {one.aggregate for one in records} == {thread(new)}
    assert all(IMPORTED in one.labels for one in records)
    created, expiry, requested, run, called, *_, last = (one.event for one in records)
    assert created == ThreadCreated(user=here.ada_id, metadata={"k": "v"})
    assert expiry == ThreadExpirySet(minutes=None)
    assert isinstance(requested, RunRequested)
    assert (requested.webhook, requested.on_completion, requested.metadata) == (None, "keep", {"own": "stays"})
    assert isinstance(run, RunStarted)
    assert run.setup_thread == ""
    assert isinstance(called, SubagentStarted)
    assert called.subagent != "elsewhere"
    assert isinstance(last, ThreadImported)
    assert (last.by, last.source, last.events) == (here.ada_id, "t", 7)
    for question in ("prompt?at=6", "export?blobs=1", "why?event=6", "tree", "state"):
        shown = await here.ada.ask("GET", f"/api/threads/{new}/log/{question}")
        assert shown.status == 200, (question, shown.body)
        assert SECRET.encode() not in shown.raw
    for person, status in ((here.ada, 200), (here.bob, 404)):
        assert (await person.ask("GET", f"/api/threads/{new}")).status == status

    async def listed() -> bool:
        found = await here.ada.ask("POST", "/api/threads/search", {})
        return new in [one["thread_id"] for one in found.body]

    await eventually(listed)
    file_of = await here.ada.ask("GET", f"/api/threads/{new}/artifacts/mnt/user-data/outputs/a.txt")
    assert file_of.raw == b"made by it"


async def test_what_was_exported_is_imported_by_somebody_else(here: Here) -> None:
    """As a thread of their own, each time a new one; a key needs the right to write threads."""
    first = str((await here.send(WHOLE)).body["thread_id"])
    exported = await here.ada.ask("GET", f"/api/threads/{first}/log/export?redact=1")
    seen: set[str] = set()
    states: list[Any] = []
    for _ in range(2):
        answer = await here.send(exported.raw, here.bob)
        assert answer.status == 201, answer.body
        seen.add(answer.body["thread_id"])
        state = await here.bob.ask("GET", f"/api/threads/{answer.body['thread_id']}/state")
        states.append([message["content"] for message in state.body["values"]["messages"]])
    assert (len(seen), states) == (2, [["Look", "Seen."]] * 2)
