"""view_image and present_files, with the sandbox actor that they ask."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors.agent.loop.arguments import Arguments
from actors.sandbox import Sandbox
from adapters.images import LocalImages
from adapters.tools.present_files import present_files
from adapters.tools.view_image import view_image
from core.config.sandbox import Sandbox as Limits
from core.errors import Invalid
from core.ports.images import MAX_BYTES
from core.tools import Result, Tool
from tests.adapters.sandboxes.conftest import provider_of

pytestmark = pytest.mark.anyio
DATA = "/mnt/user-data"
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 90


@dataclass
class Asking:
    """A tool context that asks the actor directly."""

    actor: Sandbox
    files: Path
    thread: str = "t1"
    user: str = "ada"
    run: str = "r1"
    call_id: str = "c1"

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        assert actor == "sandbox"
        return await self.actor.answer(request, self.show)

    async def show(self, text: str) -> None:
        raise AssertionError(text)

    def put(self, path: str, content: bytes) -> None:
        place = self.files / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    async def view(self, path: str) -> Result:
        found = await view_image.function(self, image_path=path)
        assert isinstance(found, Result)
        return found

    async def present(self, *paths: str) -> Result:
        found = await present_files.function(self, filepaths=list(paths))
        assert isinstance(found, Result)
        return found


@pytest.fixture(params=["bubblewrap", "host"])
async def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Asking:
    provider = provider_of(request.param, tmp_path)
    await provider.acquire("ada", "t1")
    return Asking(Sandbox(provider, Limits()), tmp_path / "home/users/ada/threads/t1/user-data")


# ── view_image ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [f"{DATA}/workspace/d/a.png", "d/a.png", f"{DATA}//workspace/./d/a.png"])
async def test_view(ask: Asking, tmp_path: Path, path: str) -> None:
    ask.put("workspace/d/a.png", PNG)
    found, place = await ask.view(path), f"{DATA}/workspace/d/a.png"
    about = {"mime_type": "image/png", "size": len(PNG), "sha256": hashlib.sha256(PNG).hexdigest()}
    assert found == Result(f"{place}: image/png, {len(PNG)} bytes", update={"viewed_images": {place: about}})
    assert await LocalImages(tmp_path / "home").load("ada", "t1", place) == PNG


@pytest.mark.parametrize("root", ["uploads", "workspace", "outputs"])
async def test_view_in_each_directory(ask: Asking, root: str) -> None:
    ask.put(f"{root}/a.png", PNG)
    assert list((await ask.view(f"{DATA}/{root}/a.png")).update) == ["viewed_images"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (f"{DATA}/workspace/none.png", "none.png: not found"),
        (f"{DATA}/workspace/d.png", "d.png: is a directory"),
        (f"{DATA}/workspace/a.jpg", "the content is image/png"),
        (f"{DATA}/workspace/t.png", "not a JPEG, PNG or WebP image"),
        (f"{DATA}/workspace/large.png", "larger than 20 MB"),
        (f"{DATA}/workspace/t.txt", "not an image that can be looked at"),
        ("/mnt/skills/a.png", "are looked at in"),
        ("/mnt/readonly/a.png", "are looked at in"),
        ("/etc/a.png", "are looked at in"),
        (f"{DATA}/workspace/../../a.png", "not allowed"),
        (f"{DATA}/workspace/out.png", "outside of the directories"),
    ],
)
async def test_what_cannot_be_viewed(ask: Asking, path: str, problem: str) -> None:
    ask.put("workspace/a.jpg", PNG)
    ask.put("workspace/t.png", b"text")
    ask.put("workspace/t.txt", b"text")
    ask.put("workspace/large.png", PNG + bytes(MAX_BYTES))
    ask.put("workspace/d.png/x", b"")
    (ask.files / "workspace/out.png").symlink_to("/etc/passwd")
    with pytest.raises(Invalid, match=problem):
        await ask.view(path)


# ── present_files ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_present(ask: Asking) -> None:
    ask.put("outputs/a.md", b"")
    ask.put("outputs/build/b c.log", b"\0")
    paths = [f"{DATA}/outputs/a.md", f"{DATA}/outputs/build/b c.log"]
    found = await ask.present(paths[0], f"{DATA}//outputs/./build/b c.log", paths[0])
    assert (found.update, found.text.splitlines()[1:]) == ({"artifacts": paths}, paths)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (f"{DATA}/outputs/none", "none: not found"),
        (f"{DATA}/outputs/d", "d: is not a file"),
        (f"{DATA}/outputs/e", "e: is not a file"),
        (f"{DATA}/outputs/l", "l: is not a file"),
        (f"{DATA}/outputs/out", "outside of the directories"),
        (f"{DATA}/outputs", "only files in"),
        (f"{DATA}/workspace/w", "only files in"),
        (f"{DATA}/outputs-too/w", "only files in"),
        ("w", "only files in"),
        ("/srv/outputs/a", "only files in"),
        (f"{DATA}/outputs/../workspace/w", "not allowed"),
        ("", "is empty"),
    ],
)
async def test_one_bad_path_fails_the_call(ask: Asking, path: str, problem: str) -> None:
    ask.put("outputs/a", b"")
    ask.put("outputs/d/x", b"")
    ask.put("workspace/w", b"")
    (ask.files / "outputs/e").mkdir()
    (ask.files / "outputs/l").symlink_to(f"{DATA}/workspace/w")
    (ask.files / "outputs/out").symlink_to("/etc/passwd")
    with pytest.raises(Invalid, match=problem):
        await ask.present(f"{DATA}/outputs/a", path)


@pytest.mark.parametrize("count", [0, 51])
async def test_how_many(ask: Asking, count: int) -> None:
    with pytest.raises(Invalid, match="1 to 50"):
        await ask.present(*[f"{DATA}/outputs/a"] * count)


@pytest.mark.parametrize(
    ("tool", "arguments"), [(view_image, ["image_path"]), (present_files, ["filepaths"])], ids=["view", "present"]
)
def test_what_the_model_sees(tool: Tool, arguments: list[str]) -> None:
    schema = Arguments.of(tool).schema()
    assert (tool.effect, tool.group) == ("pure", None)
    assert (list(schema["properties"]), schema["required"]) == (arguments, arguments)
