"""Documents of agents in a frame, in a real browser: they run, find the files of their folder, and reach no more."""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.async_api import Browser, Page, Request, async_playwright

from channels.http.accounts import view_links
from channels.http.app import Services
from core.runtime.system import System
from tests.channels.http.conftest import Api
from tests.channels.http.people import ADA, AUTH, BOB, WithAccounts, place
from tests.channels.http.test_uploads import Settings, config, folder, services  # noqa: F401  fixtures
from tests.support.browsers import CHROMIUM

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
OUT = "mnt/user-data/outputs"

DOCUMENT = """<!doctype html><title>x</title><link rel="stylesheet" href="style.css"><p id="p">text</p>
<script src="plain.js"></script>
<script>
const told = {}, tries = {
  cookie: () => document.cookie,
  storage: () => localStorage.length,
  parent: () => parent.document.title,
  top: () => top.document.title,
  fetch: () => fetch("/api/threads/t").then(() => "came"),
  absolute: () => fetch(ORIGIN + "/health", {mode: "no-cors", credentials: "include"}).then(() => "came"),
  near: () => fetch("data.json").then(() => "came"),
  xhr: () => new Promise((ok, no) => {
    const r = new XMLHttpRequest(); r.onload = () => ok("came"); r.onerror = no; r.open("GET", "/health"); r.send() }),
  socket: () => new Promise((ok, no) => {
    const s = new WebSocket(ORIGIN.replace("http", "ws") + "/api/threads/t/stream/events");
    s.onopen = ok; s.onerror = no }),
  events: () => new Promise((ok, no) => { const e = new EventSource("/api/events"); e.onopen = ok; e.onerror = no }),
  beacon: () => { if (!navigator.sendBeacon("/api/threads")) throw 1; return "queued" },
  image: () => new Promise((ok, no) => {
    const i = new Image(); i.onload = ok; i.onerror = no;
    i.src = "/api/threads/t/artifacts/mnt/user-data/outputs/dot.png" }),
  above: () => new Promise((ok, no) => { const i = new Image(); i.onload = ok; i.onerror = no; i.src = "../dot.png" }),
  outside: () => new Promise((ok, no) => {
    const i = new Image(); i.onload = ok; i.onerror = no; i.src = "http://outside.invalid/?leak" }),
  frame: () => new Promise((ok, no) => {
    const f = document.createElement("iframe"); f.src = "/health"; f.onload = () => no(); document.body.append(f);
    setTimeout(no, 500) }),
  navigate: () => { top.location = "/docs"; return "went" },
  popup: () => { if (!window.open("/docs")) throw 1; return "opened" },
  form: () => { const f = document.createElement("form"); f.action = "/docs"; f.target = "_top";
    document.body.append(f); f.submit(); throw 1 },
  download: () => { const a = document.createElement("a"); a.href = "data:text/plain,x"; a.download = "x.txt";
    document.body.append(a); a.click(); throw 1 },
};
(async () => {
  for (const [name, run] of Object.entries(tries)) {
    try { told[name] = String(await run()) } catch (error) { told[name] = null }
  }
  const picture = new Image(); picture.src = "dot.png"; await picture.decode().catch(() => 0);
  await import("./module.js").then(module => told.module = module.word).catch(error => told.module = String(error));
  told.picture = picture.naturalWidth; told.script = window.plain;
  told.style = getComputedStyle(document.getElementById("p")).color; told.origin = self.origin;
  parent.postMessage(told, "*");
})();
</script>"""
REFUSED = (
    *("cookie", "storage", "parent", "top", "fetch", "absolute", "near", "xhr", "socket", "events", "image", "above"),
    *("outside", "frame", "navigate", "popup", "form", "download"),
)


def dot() -> bytes:
    """A picture of 3 × 1 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\1\2\3")) + chunk(b"IEND", b"")


@pytest.fixture
async def outputs(api: Api, services: Services) -> Path:  # noqa: F811
    """Of the thread `t`: a report with its files, in a folder."""
    await api.ask("POST", "/threads", {"thread_id": "t"})
    path = folder(services, "t", "outputs")
    report = path / "a report"
    report.mkdir(parents=True)
    (path / "dot.png").write_bytes(dot())
    (report / "dot.png").write_bytes(dot())
    (report / "style.css").write_text("p { color: rgb(1, 2, 3) }")
    (report / "plain.js").write_text("window.plain = 'ran'")
    (report / "module.js").write_text("export const word = 'imported'")
    (report / "data.json").write_text("{}")
    (report / "page.html").write_text(DOCUMENT.replace("ORIGIN", msgspec.json.encode(api.url).decode()))
    (report / "drawing.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><script>parent.postMessage({origin: self.origin}, "*")</script></svg>'
    )
    return path


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


async def shown(page: Page, api: Api, path: str, attribute: str | None = "allow-scripts") -> Any:
    """What a document tells its parent, which is a page of ours with the cookies of a session."""
    names = ("access_token", "csrf_token")
    await page.context.add_cookies([{"name": name, "value": "secret", "url": api.url} for name in names])
    await page.goto(f"{api.url}/health")
    script = """([src, sandbox]) => new Promise((ok, no) => {
        window.addEventListener("message", event => ok(event.data)); setTimeout(() => no("silence"), 20000);
        const frame = document.createElement("iframe"); if (sandbox !== null) frame.sandbox = sandbox;
        frame.src = src; document.body.append(frame) })"""
    return await page.evaluate(script, [f"/api/threads/t/artifacts/{path}?view=sandbox", attribute])


@in_a_browser
@pytest.mark.parametrize("attribute", [None, "allow-scripts"], ids=["header only", "header and attribute"])
async def test_a_document_runs_and_reaches_nothing(
    api: Api, outputs: Path, browser: Browser, attribute: str | None
) -> None:
    page = await browser.new_page()
    asked: list[Request] = []
    downloads: list[Any] = []
    page.on("download", lambda download: downloads.append(download))

    page.on("request", lambda request: asked.append(request))
    told = await shown(page, api, f"{OUT}/a%20report/page.html", attribute)
    assert {name: told[name] for name in REFUSED} == dict.fromkeys(REFUSED)
    assert (told["origin"], told["picture"], told["script"]) == ("null", 3, "ran")
    assert (told["style"], told["module"]) == ("rgb(1, 2, 3)", "imported")
    assert page.url == f"{api.url}/health", "nobody went anywhere"
    assert downloads == []
    assert len(page.context.pages) == 1
    allowed = [request for request in asked if not request.failure]
    requests = [(request.url, (await request.all_headers()).get("cookie")) for request in allowed]
    inside = {url.rpartition("/")[2]: cookie for url, cookie in requests if "/api/views/" in url}
    assert {"dot.png", "style.css", "plain.js", "module.js"} <= inside.keys()
    assert {cookie for name, cookie in inside.items() if name != "page.html"} == {None}
    others = [url for url, _ in requests if "/api/" in url and "/api/views/" not in url]
    assert [url for url in others if "view=sandbox" not in url] == [], "nothing of ours was asked for"


@in_a_browser
async def test_a_drawing_runs_on_an_origin_of_its_own(api: Api, outputs: Path, browser: Browser) -> None:
    told = await shown(await browser.new_page(), api, f"{OUT}/a%20report/drawing.svg", None)
    assert told == {"origin": "null"}


@in_a_browser
async def test_outside_of_a_frame_nothing_runs(api: Api, outputs: Path, browser: Browser) -> None:
    """There it could go to another address, and take what it knows with it."""
    page = await browser.new_page()
    await page.goto(f"{api.url}/api/threads/t/artifacts/{OUT}/a%20report/page.html?view=sandbox")
    assert await page.locator("#p").inner_text() == "text"
    assert await page.evaluate("getComputedStyle(document.getElementById('p')).color") == "rgb(1, 2, 3)"
    assert await page.evaluate("window.plain") is None


# ── the address ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def where(api: Api, path: str, status: int = 302) -> str:
    url = f"{api.url}/api/threads/t/artifacts/{path}?view=sandbox"
    async with api.session.get(url, allow_redirects=False) as response:
        assert response.status == status, await response.text()
        return response.headers.get("Location", "")


async def get(api: Api, path: str, **headers: str) -> tuple[int, Any, bytes]:
    async with api.session.get(f"{api.url}{path}", headers=headers) as response:
        return response.status, response.headers, await response.read()


async def test_what_is_sent(api: Api, outputs: Path) -> None:
    (outputs / "paper.pdf").write_bytes(b"%PDF-1.4 x")
    address = await where(api, f"{OUT}/a%20report/page.html")
    status, headers, _ = await get(api, address, **{"Sec-Fetch-Dest": "iframe"})
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Disposition"].startswith("inline")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "connect-src 'none'" in policy
    assert "'self'" not in policy.replace("frame-ancestors 'self'", ""), "our origin is not its own"
    assert (headers["Referrer-Policy"], headers["Cross-Origin-Resource-Policy"]) == ("no-referrer", "cross-origin")
    _, headers, _ = await get(api, await where(api, f"{OUT}/paper.pdf"), **{"Sec-Fetch-Dest": "iframe"})
    assert headers["Content-Type"] == "application/pdf"
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'self'"
    status, headers, part = await get(api, address.rpartition("/")[0] + "/dot.png", Range="bytes=0-3")
    assert (status, part) == (206, b"\x89PNG")


async def test_an_address_is_of_one_folder(api: Api, outputs: Path) -> None:
    (outputs / "a report" / "in").mkdir()
    (outputs / "a report" / "in" / "x.txt").write_text("x")
    prefix = (await where(api, f"{OUT}/a%20report/page.html")).rpartition("/")[0]
    assert (await get(api, f"{prefix}/in/x.txt"))[0] == 200
    for path in ("none.txt", "..%2Fdot.png", "%2e%2e/dot.png", "in", "x%00y", "a" * 300, "..%5Cdot.png"):
        assert (await get(api, f"{prefix}/{path}"))[0] == 404, path
    (outputs / "a report" / "link").symlink_to("/etc/passwd")
    assert (await get(api, f"{prefix}/link"))[0] == 404


async def test_no_address_of_what_is_not_there(api: Api, outputs: Path) -> None:
    await where(api, f"{OUT}/none.html", 404)
    await where(api, "etc/passwd", 400)


async def test_forged_and_ended_addresses(api: Api, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = await where(api, f"{OUT}/a%20report/page.html")
    token = address.split("/")[3]
    for other in (token[:-2] + ("aa" if token[-2:] != "aa" else "bb"), "x", token.split(".")[0] + "..", "a.b.c"):
        assert (await get(api, address.replace(token, other)))[0] == 404
    monkeypatch.setattr(view_links, "VALID_SECONDS", -1)
    assert (await get(api, await where(api, f"{OUT}/a%20report/page.html")))[0] == 404
    assert (await get(api, address))[0] == 200
    await api.ask("DELETE", "/threads/t", status=204)
    assert (await get(api, address))[0] == 404


async def test_addresses_end_with_the_sessions(system: System, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        thread = (await ada.ask("POST", "/api/threads", {})).body["thread_id"]
        user = (await ada.me()).body["id"]
        outputs = tmp_path / "home" / "users" / user / "threads" / thread / "user-data" / "outputs"
        outputs.mkdir(parents=True)
        (outputs / "a.html").write_text("<p>")
        path = f"/api/threads/{thread}/artifacts/{OUT}/a.html?view=sandbox"
        assert (await bob.ask("GET", path)).status == 404
        assert (await here.browser().ask("GET", path)).status == 401
        address = (await ada.ask("GET", path)).headers["Location"]
        nobody = here.browser()
        assert (await nobody.ask("GET", address)).status == 200
        assert (await ada.ask("POST", f"{AUTH}/logout-all")).status == 200
        assert (await nobody.ask("GET", address)).status == 404
