"""The files of a conversation: found, followed while they change, and shown as what they are."""

from __future__ import annotations

import base64
import io
import wave
import zipfile
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image
from playwright.async_api import Browser, expect

from tests.e2e.servers import serving
from tests.page.site import Site, Tab, bash, looks, tab, violations
from tests.page.test_access import WIDER, shot
from tests.support import documents
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.ports import free_port
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.anyio

OUTPUTS = "/mnt/user-data/outputs"
PAGE = "<!doctype html><script>document.title = 'ran'; document.write('<p id=p>drawn by a script</p>')</script>"
CODE = 'def area(r):\n    """Returns the area."""\n    return 3.14 * r**2\n'
TABLE = 'id;name;note\n007;"Ada; the first";"said ""yes""\nand left"\n012;Bob;\n'
NOTES = """# Notes

With a [table](/mnt/user-data/outputs/cities.csv), **bold** words and <script>x</script>.

```sh
ls -l
```
"""
WRITTEN = {
    "notes.md": NOTES,
    "page.html": PAGE,
    "area.py": CODE,
    "cities.csv": TABLE,
    "deep/er.txt": "below",
    "none.txt": "",
}


def writes(**files: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall("write_file", {"path": f"{OUTPUTS}/{name}", "content": text}) for name, text in files.items())


PRESENT = ToolCall("present_files", {"filepaths": [f"{OUTPUTS}/notes.md", f"{OUTPUTS}/cities.csv"]})
EDIT = ToolCall("str_replace", {"path": f"{OUTPUTS}/area.py", "old_str": "3.14", "new_str": "math.pi"})
SCRIPTS = {
    "plain": [Turn(text="One two three.")],
    "files": [
        Turn(tool_calls=writes(**WRITTEN)),
        Turn(tool_calls=(PRESENT,)),
        Turn(text="Six files."),
    ],
    "changes": [
        Turn(tool_calls=(EDIT, bash(f"rm {OUTPUTS}/none.txt"))),
        Turn(text="Changed."),
    ],
    "waits": [Turn(tool_calls=writes(first="1")), Turn(text="Then.", gate="waits"), Turn(text="Later.")],
}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("files")
    async with ModelServer(SCRIPTS) as models:
        settings: dict[str, Any] = {"http": {"heartbeat_seconds": 1}, "uploads": {"convert_unconfined": True}}
        config = configure(path / "config.yaml", models, **settings)
        async with serving(path / "home", config, "--port", str(free_port())) as server:
            yield Site(server, models)


@pytest.fixture(scope="module")
async def conversation(chromium: Browser, site: Site) -> str:
    """A thread whose two runs wrote, presented and changed files, with documents that were put there."""
    async with tab(chromium, site) as opened:
        await opened.open("files")
        await opened.say("Write them")
        await opened.ended()
        thread = opened.thread
        [run] = await site.ask("GET", f"/threads/{thread}/runs")

        async def looked_at() -> bool:
            """What a run changed is known only if nothing changes it again before."""
            path = f"/threads/{thread}/runs/{run['run_id']}/workspace-changes"
            return bool((await site.ask("GET", path))["available"])

        await wait_for(looked_at)
        await site.run(thread, "Now change them", "changes")
        await opened.ended(2)
        return opened.thread


def room(page: Tab) -> Any:
    return page.page.locator(".files-room")


async def choose(page: Tab, thread: str, name: str) -> None:
    await page.page.goto(f"{page.site.server.url}/#/files/{thread}{OUTPUTS}/{name}")


async def upload(page: Tab, thread: str, name: str, content: bytes) -> None:
    """Puts a file into the uploads as the page does."""
    await page.page.evaluate(
        """async ([thread, name, data]) => {
          const form = new FormData();
          form.append("files", new Blob([Uint8Array.from(atob(data), (one) => one.charCodeAt(0))]), name);
          const response = await fetch(`api/threads/${thread}/uploads`, { method: "POST", body: form });
          if (!response.ok) throw new Error(await response.text());
        }""",
        [thread, name, base64.b64encode(content).decode()],
    )


async def test_files_lie_beside_the_conversation(page: Tab, conversation: str) -> None:
    """Opened from where they were presented; the conversation stays as it is beside them."""
    await page.open(place=f"t/{conversation}")
    await page.ended(2)
    await expect(page.page.locator(".answer .diff .removed")).to_have_text(["-3.14\n"])  # drawn after the rest
    await page.watch()
    await page.page.locator(".presented a", has_text="notes.md").click()
    await expect(room(page).locator("h1", has_text="Notes")).to_be_visible()
    await expect(room(page).get_by_text("<script>x</script>")).to_have_count(0)
    await expect(page.page.locator("#composer")).to_be_visible()
    assert await page.changes() == []
    await room(page).get_by_role("link", name="table").click()
    await expect(room(page).get_by_role("cell", name="Ada; the first")).to_be_visible()
    await room(page).get_by_role("link", name="All files").click()
    await expect(room(page).locator(".file-chips a")).to_have_text(["notes.md", "cities.csv"])
    await expect(room(page).locator(".file-row", has_text="area.py")).to_contain_text("67B")
    await room(page).get_by_role("link", name="Close the files").click()
    await expect(room(page)).to_have_count(0)
    assert await page.changes() == []


async def test_each_file_is_shown_as_what_it_is(page: Tab, conversation: str) -> None:
    await page.open(place=f"files/{conversation}{OUTPUTS}/cities.csv")
    table = room(page).locator("table")
    await expect(table.locator("thead th")).to_have_text(["Row", "id", "name", "note"])
    rows = await table.locator("tbody tr").evaluate_all(
        "all => all.map(r => [...r.cells].slice(1).map(c => c.textContent))"
    )
    assert rows == [["007", "Ada; the first", 'said "yes"\nand left'], ["012", "Bob", ""]]
    await room(page).get_by_role("button", name="Source").click()
    await expect(room(page).locator("code")).to_contain_text("007;")

    await choose(page, conversation, "area.py")
    await expect(room(page).locator("code .h-keyword").first).to_have_text("def")
    assert await room(page).locator("code").text_content() == CODE.replace("3.14", "math.pi")
    await expect(room(page).locator(".line-numbers")).to_have_text("1\n2\n3")

    await choose(page, conversation, "page.html")
    frame = page.page.frame_locator(".file-shown iframe")
    await expect(frame.locator("#p")).to_have_text("drawn by a script")
    assert "ran" not in await page.page.title()
    await page.page.reload()
    await expect(frame.locator("#p")).to_have_text("drawn by a script")

    await choose(page, conversation, "deep/er.txt")
    await expect(room(page).locator("code")).to_have_text("below")


async def test_documents_are_shown_by_their_text(page: Tab, conversation: str) -> None:
    await page.open(place=f"t/{conversation}")
    await upload(page, conversation, "cities.xlsx", documents.xlsx(("id", "city"), ("007", "Bern")))
    await upload(page, conversation, "letter.docx", documents.docx("Dear reader", "Yours"))
    await upload(page, conversation, "talk.pptx", documents.pptx("Cities of Europe", "The end"))
    await upload(page, conversation, "broken.pptx", b"PK nothing")
    where = f"{page.site.server.url}/#/files/{conversation}/mnt/user-data/uploads"
    await page.page.goto(f"{where}/cities.xlsx")
    await expect(room(page).get_by_role("cell", name="007")).to_be_visible()
    await page.page.goto(f"{where}/letter.docx")
    await expect(room(page).get_by_text("Dear reader")).to_be_visible()
    await page.page.goto(f"{where}/talk.pptx")
    await expect(room(page).get_by_text("Cities of Europe")).to_be_visible()
    await expect(room(page).get_by_text("The end")).to_be_visible()
    await page.page.goto(f"{where}/broken.pptx")
    await expect(room(page).get_by_role("alert")).to_contain_text("No text can be shown")


def picture() -> bytes:
    with io.BytesIO() as file:
        Image.new("RGB", (30, 20), "red").save(file, "png")
        return file.getvalue()


def sound() -> bytes:
    """A quarter of a second of silence."""
    with io.BytesIO() as file:
        with wave.open(file, "wb") as written:
            written.setnchannels(1)
            written.setsampwidth(2)
            written.setframerate(8000)
            written.writeframes(bytes(4000))
        return file.getvalue()


FILM = """async () => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 48 });
  const context = canvas.getContext("2d");
  const recorder = new MediaRecorder(canvas.captureStream(), { mimeType: "video/webm;codecs=vp8" });
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const stopped = new Promise((resolve) => (recorder.onstop = resolve));
  recorder.start();
  for (let frame = 0; frame < 10; frame += 1) {
    context.fillStyle = frame % 2 ? "red" : "blue";
    context.fillRect(0, 0, 64, 48);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
  recorder.stop();
  await stopped;
  const bytes = new Uint8Array(await new Blob(parts).arrayBuffer());
  return btoa(Array.from(bytes, (one) => String.fromCharCode(one)).join(""));
}"""
"""A film of ten frames, as the browser records it."""
PLAYED = """async (player) => {
  player.muted = true;
  await player.play();
  if (!player.ended) await new Promise((resolve) => player.addEventListener("ended", resolve));
  return [player.videoWidth ?? 0, player.videoHeight ?? 0, player.currentTime > 0];
}"""


@pytest.mark.long
async def test_pictures_sound_and_films_are_shown(page: Tab, conversation: str) -> None:
    await page.open(place=f"t/{conversation}")
    film = base64.b64decode(await page.page.evaluate(FILM))
    for name, content in {"red.png": picture(), "still.wav": sound(), "film.webm": film}.items():
        await upload(page, conversation, name, content)
    where = f"{page.site.server.url}/#/files/{conversation}/mnt/user-data/uploads"
    await page.page.goto(f"{where}/red.png")
    image = room(page).get_by_role("img", name="red.png")
    await expect(image).to_be_visible()
    size = await image.evaluate(
        "async (image) => { await image.decode(); return [image.naturalWidth, image.naturalHeight]; }"
    )
    assert size == [30, 20]
    await page.page.goto(f"{where}/still.wav")
    assert await room(page).locator("audio[controls]").evaluate(PLAYED) == [0, 0, True]
    await page.page.goto(f"{where}/film.webm")
    assert await room(page).locator("video[controls]").evaluate(PLAYED) == [64, 48, True]


async def test_a_pdf_is_drawn(page: Tab, conversation: str) -> None:
    """What the page's content paints red is red on the screen, and its words can be read."""
    await page.open(place=f"t/{conversation}")
    await upload(page, conversation, "letter.pdf", documents.pdf("A letter) Tj ET 1 0 0 rg 0 0 612 600 re f BT ("))
    await page.page.goto(f"{page.site.server.url}/#/files/{conversation}/mnt/user-data/uploads/letter.pdf")
    frame = room(page).get_by_role("region", name="Page 1 of 1")
    await expect(frame).to_contain_text("A letter")
    assert await violations(page) == []

    async def drawn() -> bool:
        with Image.open(io.BytesIO(await frame.screenshot())) as seen:
            colours = seen.convert("RGB").getcolors(1 << 24) or []
        return any(count > 5000 for count, colour in colours if colour == (255, 0, 0))

    await wait_for(drawn, every=0.2)


async def test_a_page_finds_styles_scripts_and_pictures_of_its_folder(page: Tab, conversation: str) -> None:
    links = '<link rel="stylesheet" href="red.css"><img src="./red.png"><p>Hello</p><script src="written.js"></script>'
    written = {
        "site.html": f"<!doctype html>{links}".encode(),
        "red.css": b"p { color: rgb(255, 0, 0) }",
        "written.js": b"document.querySelector('p').append(' there')",
        "red.png": picture(),
    }
    await page.open(place=f"t/{conversation}")
    for name, content in written.items():
        await upload(page, conversation, name, content)
    await page.page.goto(f"{page.site.server.url}/#/files/{conversation}/mnt/user-data/uploads/site.html")
    frame = page.page.frame_locator(".file-shown iframe")
    await expect(frame.locator("p")).to_have_text("Hello there")
    await expect(frame.locator("p")).to_have_css("color", "rgb(255, 0, 0)")
    await expect(frame.locator("img")).to_have_js_property("naturalWidth", 30)


@pytest.mark.long
async def test_one_file_is_saved_as_it_is(page: Tab, conversation: str) -> None:
    """A page, too: it is not opened."""
    name = "größe 100% #1.html"
    await page.open(place=f"t/{conversation}")
    await upload(page, conversation, name, PAGE.encode())
    await page.page.goto(f"{page.site.server.url}/#/files/{conversation}/mnt/user-data/uploads/{quote(name)}")
    link = room(page).get_by_role("link", name=f"Save {name}")
    async with page.page.expect_download() as download:
        await link.click()
    saved = await download.value
    assert saved.suggested_filename.endswith("1.html")
    assert Path(await saved.path()).read_bytes() == PAGE.encode()
    assert "ran" not in await page.page.title()


@pytest.mark.long
async def test_the_text_of_a_file_and_code_in_it_are_copied(page: Tab, conversation: str) -> None:
    await page.may_copy()
    await page.open(place=f"files/{conversation}{OUTPUTS}/notes.md")
    await room(page).get_by_role("button", name="Copy the text").click()
    assert await page.copied() == NOTES
    await room(page).get_by_role("button", name="Copy", exact=True).click()
    assert await page.copied() == "ls -l\n"


async def test_what_is_not_there_or_may_not_be_shown_is_said(page: Tab, conversation: str) -> None:
    await page.open(place=f"files/{conversation}{OUTPUTS}/none.txt")
    await expect(room(page).get_by_role("alert")).to_have_text("This file is not there any more.")
    await upload(page, conversation, "void.txt", b"")
    await page.page.goto(f"{page.site.server.url}/#/files/{conversation}/mnt/user-data/uploads/void.txt")
    await expect(room(page).get_by_text("The file is empty.")).to_be_visible()
    await upload(page, conversation, "long.log", b"a line of a log\n" * 40_000)
    await page.page.goto(f"{page.site.server.url}/#/files/{conversation}/mnt/user-data/uploads/long.log")
    await expect(room(page).get_by_text("This is the beginning")).to_be_visible()
    await expect(room(page).get_by_text("The first 5000 lines.")).to_be_visible()
    await upload(page, conversation, "some.bin", bytes(range(256)))
    await page.page.goto(f"{page.site.server.url}/#/files/{conversation}/mnt/user-data/uploads/some.bin")
    await expect(room(page).get_by_text("Files of this kind are not shown here.")).to_be_visible()


async def test_what_each_run_changed_is_shown_as_a_diff(page: Tab, conversation: str) -> None:
    await page.open(place=f"files/{conversation}")
    await room(page).get_by_role("button", name="Changes").click()
    newest = room(page).locator("details", has_text="Now change them")
    await expect(newest.locator(".removed")).to_have_text(["-    return 3.14 * r**2\n"])
    await expect(newest.locator(".added")).to_have_text(["+    return math.pi * r**2\n"])
    await expect(newest.locator(".change-kind.deleted")).to_have_count(1)
    first = room(page).locator("details", has_text="Write them")
    await first.locator("summary").click()
    await expect(first.locator(".change-kind.created")).to_have_count(6)
    await room(page).get_by_role("button", name="All", exact=True).click()
    row = room(page).locator(".file-row", has_text="area.py")
    await row.get_by_role("button").click()
    await expect(newest.locator(".added")).to_be_visible()


async def test_what_a_run_changed_is_taken_back_on_confirmation(page: Tab, site: Site) -> None:
    """All files or none: what was changed since is not lost, and the card says why."""
    await page.open("files")
    await page.say("Write them")
    await page.ended()
    thread = page.thread
    await page.open(place=f"files/{thread}")
    await room(page).get_by_role("button", name="Changes").click()
    newest = room(page).locator("details", has_text="Write them")
    take_back = newest.get_by_role("button", name="Take back")
    await take_back.click()
    await page.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert len(await names(site, thread)) == len(WRITTEN)
    content = {"content": "mine now", "expected_sha256": sha256(TABLE.encode()).hexdigest()}
    await site.ask("PUT", f"/threads/{thread}/artifacts{OUTPUTS}/cities.csv", content)
    await take_back.click()
    confirm = page.page.get_by_role("dialog").get_by_role("button", name="Take back")
    await confirm.click()
    await expect(newest.get_by_role("alert")).to_contain_text("cities.csv")
    assert len(await names(site, thread)) == len(WRITTEN)
    content = {"content": TABLE, "expected_sha256": sha256(b"mine now").hexdigest()}
    await site.ask("PUT", f"/threads/{thread}/artifacts{OUTPUTS}/cities.csv", content)
    await take_back.click()
    await confirm.click()
    await expect(newest.locator("summary")).to_contain_text("taken back")
    await expect(take_back).to_have_count(0)
    assert await names(site, thread) == []


async def names(site: Site, thread: str) -> list[str]:
    files = await site.ask("GET", f"/threads/{thread}/files")
    return [file["name"] for file in files["files"] if file["kind"] == "file"]


@pytest.mark.long
async def test_changes_come_to_who_looks_before_they_are_known(page: Tab, site: Site) -> None:
    """What a run changed is looked at after its end: the room that is open shows it as soon as it is known."""
    await page.open("files")
    await page.say("Write them")
    await page.page.wait_for_url("**/#/t/*")
    await page.page.get_by_role("link", name="Files").click()
    await room(page).get_by_role("button", name="Changes").click()
    await expect(room(page).locator("details", has_text="Write them").locator(".change")).to_have_count(len(WRITTEN))


async def test_all_files_are_saved_at_once(page: Tab, conversation: str) -> None:
    await page.open(place=f"files/{conversation}")
    async with page.page.expect_download() as download:
        await room(page).get_by_role("link", name="Save all files").click()
    with zipfile.ZipFile(await (await download.value).path()) as archive:
        [table] = [name for name in archive.namelist() if name.endswith("cities.csv")]
        assert archive.read(table).decode() == TABLE


async def test_the_room_follows_what_the_agent_does(page: Tab, site: Site) -> None:
    await page.open("waits")
    await page.say("Go")
    await page.page.get_by_role("link", name="Files").click()
    await expect(room(page).get_by_role("link", name="first")).to_be_visible()
    site.models.release("waits")
    await page.ended()
    await upload(page, page.page.url.split("/files/")[1], "mine.txt", b"x")
    await site.run(page.page.url.split("/files/")[1], "Again", "plain")
    await expect(room(page).get_by_role("link", name="mine.txt")).to_be_visible()


@pytest.mark.long
async def test_files_of_a_conversation_without_any(page: Tab) -> None:
    await page.open("plain")
    await page.say("Hello")
    await page.ended()
    await page.page.get_by_role("link", name="Files").click()
    await expect(page.page.get_by_text("There are no files here yet.")).to_be_visible()


@looks
async def test_no_rule_is_broken(page: Tab, conversation: str, scheme: Any, language: str) -> None:
    await page.page.emulate_media(color_scheme=scheme)
    await page.open(place=f"files/{conversation}", language=language)
    await expect(room(page).locator(".file-row").first).to_be_visible()
    broken = {"tree": await violations(page)}
    await shot(page, f"files-{scheme}-{language}")
    await room(page).locator(".tab").nth(1).click()
    await expect(room(page).locator(".added").first).to_be_visible()
    broken["changes"] = await violations(page)
    await shot(page, f"changes-{scheme}-{language}")
    for name, place in {"notes.md": "h1", "cities.csv": "table", "area.py": ".h-keyword", "none.txt": ".error"}.items():
        await choose(page, conversation, name)
        await expect(room(page).locator(f".file-shown {place}").first).to_be_visible()
        broken[name] = await violations(page)
        await shot(page, f"file-{name}-{scheme}-{language}")
    assert {view: found for view, found in broken.items() if found} == {}


@pytest.mark.long
async def test_a_narrow_screen_shows_files_by_themselves(chromium: Browser, site: Site, conversation: str) -> None:
    async with tab(chromium, site, viewport={"width": 360, "height": 640}) as page:
        await page.open(place=f"t/{conversation}")
        await page.ended(2)
        await page.page.locator(".chat-header").get_by_role("link", name="Files").click()
        await expect(page.page.locator("#composer")).to_have_count(0)
        await room(page).get_by_role("link", name="cities.csv").last.click()
        await expect(room(page).get_by_role("cell", name="Bob")).to_be_visible()
        assert await page.page.evaluate(WIDER) <= 0
        await shot(page, "file-narrow")
        await room(page).get_by_role("link", name="All files").click()
        assert await page.page.evaluate(WIDER) <= 0
        await shot(page, "files-narrow")
        await room(page).get_by_role("link", name="Close the files").click()
        await expect(page.page.locator("#composer")).to_be_visible()
