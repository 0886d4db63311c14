"""The documents actor: each content once, whoever asks, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.documents import Documents
from core.config.load import ConfigSource
from core.errors import Invalid, NotFound
from core.events import Event, FileConverted, FileRejected, FileRemoved, FileUploaded, thread
from core.files.folder import KnownUploads, Text, Upload, fold_uploads
from core.ports.documents import UNCONFINED, Converted, Outcome, Rejected
from core.runtime import system as core
from core.runtime.system import System
from tests.support.nats import Nats, eventually

pytestmark = pytest.mark.anyio

Progress = Callable[[str], Awaitable[None]]


@pytest.fixture
async def system(nats: Nats, tmp_path: Path) -> AsyncIterator[System]:
    endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with core.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as system:
        await system.intake.create_thread("t", user="ada")
        yield system


@pytest.fixture
def config(tmp_path: Path) -> ConfigSource:
    (tmp_path / "config.yaml").write_text("uploads: {auto_convert_documents: true}")
    return ConfigSource(tmp_path / "config.yaml")


class Shelf:
    """Documents by name, as the port has them: their content is their SHA-256."""

    def __init__(self, **files: str) -> None:
        self.files = dict(files)
        self.asked: list[str] = []
        self.discarded: list[str] = []
        self.confined = True
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def convert(self, user: str, thread: str, name: str, own: Text | None, progress: Progress) -> Outcome:
        assert (user, thread) == ("ada", "t")
        if name not in self.files:
            raise NotFound(f"{name}: not found")
        self.asked.append(name)
        await progress(f"{name}: page 1 of 1\n")
        content, text = self.files[name], own or Text(f"{name}-{len(self.asked)}.md", "text")
        if self.meanwhile is not None:
            await self.meanwhile()
        if content == "bad":
            return Rejected(content, "is damaged")
        if self.confined is False:
            return Rejected(content, UNCONFINED)
        return Converted(content, text, 1)

    async def read(self, user: str, thread: str, path: str, progress: Progress) -> tuple[str, int | None]:
        return f"{user} {thread} {self.files[path]}", 2

    async def discard(self, user: str, thread: str, text: Text) -> None:
        assert text.sha256 == "text"
        self.discarded.append(text.name)


async def write(system: System, *events: Event) -> None:
    await system.threads.decide("t", lambda _: events, actor="http")


async def test_the_text_of_a_file_is_shown_to_its_owner_only(system: System, config: ConfigSource) -> None:
    actor = Documents(config, system.threads, Shelf(**{"/a.docx": "12345678"}))
    show = {"op": "show", "thread": "t", "user": "ada", "path": "/a.docx", "limit": 10}
    assert await actor.answer(show, _quiet) == {"text": "ada t 1234", "truncated": True, "pages": 2}
    with pytest.raises(NotFound):
        await actor.answer({**show, "user": "bob"}, _quiet)


async def known(system: System) -> Mapping[str, Upload]:
    return fold_uploads([record async for record in system.log.read(thread("t"))], KnownUploads()).files


async def written(system: System) -> list[Event]:
    records = [record async for record in system.log.read(thread("t"))]
    return [r.event for r in records if isinstance(r.event, FileConverted | FileRejected)]


@asynccontextmanager
async def served(system: System, config: ConfigSource, shelf: Shelf) -> AsyncIterator[Documents]:
    actor = Documents(config, system.threads, shelf)
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(system.serve, [actor], alone=True))
        yield actor
        tasks.cancel_scope.cancel()


def ask(name: str, **more: str) -> dict[str, Any]:
    return {"op": "convert", "thread": "t", "user": "ada", "name": name, **more}


def uploaded(name: str, content: str) -> FileUploaded:
    return FileUploaded(name=name, size=1, sha256=content)


async def test_an_upload_is_converted_once(system: System, config: ConfigSource) -> None:
    shelf = Shelf(**{"a.pdf": "1", "b.pdf": "bad", "c.txt": "2"})
    async with served(system, config, shelf):
        await write(system, uploaded("a.pdf", "1"), uploaded("b.pdf", "bad"), uploaded("c.txt", "2"))
        await eventually(lambda: _settled(system, "a.pdf", "b.pdf"))
        await write(system, uploaded("a.pdf", "1"))
        assert (await system.call("documents", ask("a.pdf")))["markdown"] == "a.pdf-1.md"
        shelf.files["a.pdf"] = "3"
        await write(system, uploaded("a.pdf", "3"))
        await eventually(lambda: _settled(system, "a.pdf"))
    assert sorted(shelf.asked) == ["a.pdf", "a.pdf", "b.pdf"]
    uploads = await known(system)
    assert uploads["a.pdf"] == Upload("3", Text("a.pdf-1.md", "text"), "3", 1)
    assert uploads["b.pdf"] == Upload("bad", None, "bad", None, "is damaged")
    assert not uploads["c.txt"].settled
    assert len(await written(system)) == 3


async def _settled(system: System, *names: str) -> bool:
    uploads = await known(system)
    return all(name in uploads and uploads[name].settled for name in names)


async def test_what_the_server_could_not_convert_is_converted_when_it_can(system: System, config: ConfigSource) -> None:
    shelf = Shelf(**{"a.pdf": "1"})
    shelf.confined = False
    async with served(system, config, shelf):
        await write(system, uploaded("a.pdf", "1"))
        await eventually(lambda: _settled(system, "a.pdf"))
        for _ in range(2):
            with pytest.raises(Invalid, match=r"a\.pdf cannot be converted on this server.*convert_unconfined"):
                await system.call("documents", ask("a.pdf"))
        assert len(await written(system)) == 1
        shelf.confined = True
        assert (await system.call("documents", ask("a.pdf")))["pages"] == 1
    assert (await known(system))["a.pdf"].reason is None


async def test_what_was_uploaded_while_nobody_was_there(system: System, config: ConfigSource) -> None:
    shelf = Shelf(**{"a.pdf": "1"})
    async with served(system, config, shelf):
        pass
    await write(system, uploaded("a.pdf", "1"))
    async with served(system, config, shelf):
        await eventually(lambda: _settled(system, "a.pdf"))


async def test_only_on_demand_if_so_configured(system: System, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("uploads: {auto_convert_documents: false}")
    shelf = Shelf(**{"a.pdf": "1", "b.pdf": "bad"})
    texts: list[str] = []

    async def progress(text: str) -> None:
        texts.append(text)

    async with served(system, ConfigSource(tmp_path / "other.yaml"), shelf):
        await write(system, uploaded("a.pdf", "1"))
        answer = await system.call("documents", ask("a.pdf"), progress)
        assert (answer, texts) == ({"markdown": "a.pdf-1.md", "pages": 1}, ["a.pdf: page 1 of 1\n"])
        with pytest.raises(Invalid, match=r"b\.pdf is damaged"):
            await system.call("documents", ask("b.pdf"))
    assert shelf.asked == ["a.pdf", "b.pdf"]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ask("none.pdf"), NotFound),
        (ask("a.pdf", user="eve"), NotFound),
        (ask("a.pdf", thread="other"), NotFound),
        (ask("a.pdf", op="explode"), Invalid),
        (ask("a.pdf", more="x"), Invalid),
        ({}, Invalid),
    ],
)
async def test_questions_that_are_refused(
    system: System, config: ConfigSource, request_: dict[str, str], error: type[Exception]
) -> None:
    actor = Documents(config, system.threads, shelf := Shelf(**{"a.pdf": "1"}))
    with pytest.raises(error):
        await actor.answer(request_, _quiet)
    assert shelf.asked == []
    assert await written(system) == []


async def _quiet(_: str) -> None: ...


async def test_two_at_once_write_it_down_once(system: System, config: ConfigSource) -> None:
    shelf, both = Shelf(**{"a.pdf": "1"}), asyncio.Barrier(2)
    shelf.meanwhile = both.wait
    actors = [Documents(config, system.threads, shelf) for _ in range(2)]
    first, second = await asyncio.gather(*(actor.answer(ask("a.pdf"), _quiet) for actor in actors))
    [event] = await written(system)
    assert isinstance(event, FileConverted)
    assert first["markdown"] == second["markdown"] == event.markdown
    assert {event.markdown, *shelf.discarded} == {"a.pdf-1.md", "a.pdf-2.md"}


async def test_a_file_that_goes_meanwhile(system: System, config: ConfigSource) -> None:
    shelf = Shelf(**{"a.pdf": "1"})
    await write(system, uploaded("a.pdf", "1"))
    shelf.meanwhile = lambda: write(system, FileRemoved(name="a.pdf"))
    with pytest.raises(NotFound):
        await Documents(config, system.threads, shelf).answer(ask("a.pdf"), _quiet)
    assert (await written(system), shelf.discarded) == ([], ["a.pdf-1.md"])


async def test_a_version_that_is_refused_takes_the_old_text_along(system: System, config: ConfigSource) -> None:
    shelf = Shelf(**{"a.pdf": "1"})
    actor = Documents(config, system.threads, shelf)
    await write(system, uploaded("a.pdf", "1"))
    await actor.answer(ask("a.pdf"), _quiet)
    shelf.files["a.pdf"] = "bad"
    await write(system, uploaded("a.pdf", "bad"))
    with pytest.raises(Invalid):
        await actor.answer(ask("a.pdf"), _quiet)
    assert shelf.discarded == ["a.pdf-1.md"]
