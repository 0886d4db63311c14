"""A real browser at real pages: what holds, what does not, and what the page reports."""

from __future__ import annotations

import shutil

import pytest
from PIL import Image

from tests.skills.conftest import PUBLIC, Desk

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
S = "python3 $S/web-app-testing/scripts"
BROWSER = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
SERVER = '--start "python3 -m http.server 8123 --directory site" --url http://127.0.0.1:8123'
PAGE = """\
<!doctype html><title>Broken</title>
<button id="ok" onclick="this.textContent='pressed'">Go</button>
<button disabled>Later</button>
<div style="position:fixed;left:0;right:0;bottom:0;height:200px;background:#ccc" class="banner">Cookies</div>
<a href="#x" style="position:fixed;bottom:20px;left:20px">Hidden link</a>
<script>
  document.querySelector("a").style.zIndex = -1;
  console.error("no stock", 7);
  fetch("/missing.json");
  setTimeout(() => { throw new Error("late trouble"); }, 10);
</script>
"""
STEPS = {
    "text=Nowhere": "text=Nowhere: is not visible; the page says: 'Go",
    "text=Hidden link": 'text=Hidden link: is covered by <div style="position:fixed',
    "text=Later": "text=Later: is disabled",
}


def driven(steps: str) -> str:
    return f"{S}/with_server.py {SERVER} -- {S}/drive.py http://127.0.0.1:8123 {steps} --out shots --seconds 0.5"


@BROWSER
async def test_a_flow_that_works_holds(desk: Desk) -> None:
    shutil.copytree(PUBLIC / "web-app-testing/examples/shop", desk.folder / "site")
    desk.copy(PUBLIC / "web-app-testing/examples/order.yaml")
    text = await desk.run(driven("order.yaml"))
    assert "all of 12 steps held\n" in text
    with Image.open(desk.folder / "shots/ordered.png") as image:
        assert image.size == (390, 844)


@BROWSER
async def test_what_a_page_reports_fails_it(desk: Desk) -> None:
    desk.write("site/index.html", PAGE)
    desk.write("s.yaml", "- open: /\n- click: text=Go\n- expect: {see: '#ok', text: pressed}\n")
    text = await desk.run(driven("s.yaml"), 1)
    assert "all of 3 steps held, the page reported errors" in text
    for line in (
        "console: no stock 7",
        "request: 404 http://127.0.0.1:8123/missing.json",
        "exception: Error: late trouble",
    ):
        assert f"page: {line}" in text
    assert "page: " in await desk.run(f"{driven('s.yaml')} --allow-errors")


@BROWSER
async def test_what_a_person_cannot_click_is_not_clicked(desk: Desk) -> None:
    desk.write("site/index.html", PAGE)
    for target, reason in STEPS.items():
        desk.write("s.yaml", f"- open: /\n- click: {target}\n- expect: text=never\n")
        text = await desk.run(driven("s.yaml"), 1)
        assert f"FAILED: {reason}" in text
        assert "not all of 3 steps held" in text
        assert "shots/failed-2.png" in text


@BROWSER
async def test_mistakes_of_the_steps_are_no_findings(desk: Desk) -> None:
    desk.write("site/index.html", PAGE)
    desk.write("a.yaml", "- opne: /\n")
    desk.write("b.yaml", "- open: https://example.org/\n")
    desk.write("c.yaml", "- open: /\n- type: {into: '#ok'}\n")
    assert "step 1: opne is not one of open" in await desk.run(driven("a.yaml"), 2)
    assert "is another site" in await desk.run(driven("b.yaml"), 2)
    assert "expected {into: …, text: …}" in await desk.run(driven("c.yaml"), 2)


async def test_a_server_that_does_not_start_is_shown_with_its_log(desk: Desk) -> None:
    text = await desk.run(
        f"{S}/with_server.py --start 'echo port taken; exit 1' --url http://127.0.0.1:8124 -- true", 2
    )
    assert "the server has ended" in text
    assert "port taken" in text


async def test_without_a_browser_it_is_said(desk: Desk) -> None:
    text = await desk.run(f"P=$(command -v python3); PATH=/nowhere $P {S.removeprefix('python3 ')}/drive.py --check", 3)
    assert "no browser here" in text
