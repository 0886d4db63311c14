"""The example page in one file, seen by the check and by a real browser; defects are named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.skills.conftest import PUBLIC, Desk

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
S = "python3 $S/web-page/scripts"
SKILL = PUBLIC / "web-page"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
GOOD = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="description" content="d"><title>T</title><style>p { color: #222; background: #fff }</style></head>
<body><main><h1>One</h1><h2>Two</h2><p id="a">Text</p><a href="#a">up</a><label>Name <input name="n"></label></main>
<script>const a = 1;</script></body></html>
"""


async def test_the_example_page_is_put_into_one_file_without_errors(desk: Desk) -> None:
    desk.copy(SKILL / "examples/bakery")
    Image.new("RGB", (20, 20), "red").save(desk.folder / "bakery/roll.png")
    page = (desk.folder / "bakery/index.html").read_text()
    picture = '<img src="roll.png" alt="A roll" width="20" height="20">'
    desk.write("bakery/index.html", page.replace("</main>", f'{picture}</main><script src="s.js" defer></script>'))
    desk.write("bakery/s.js", "document.title = 'ready';")
    await desk.run(f"{S}/inline.py bakery/index.html --out page.html")
    assert "0 errors" in await desk.run(f"{S}/check_page.py page.html --single")
    text = (desk.folder / "page.html").read_text()
    assert all(part in text for part in ("--accent", "data:image/png;base64,", "document.title"))
    desk.write("bakery/out.html", '<img src="../page.html">')
    assert "lies outside" in await desk.run(f"{S}/inline.py bakery/out.html --out no.html", 2)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('<html lang="en">', "<html>", "<html> has no lang"),
        ("<h2>Two</h2>", "<h4>Two</h4>", "skips a level"),
        ('href="#a"', 'href="#b"', "link to #b, which is not there"),
        ('href="#a"', 'href="#"', "leads nowhere"),
        ("<label>Name <input", "<label>Name</label> <input", "has no label"),
        ("Text</p>", 'Text</p><img src="x.png">', "has no alt"),
        ("Text</p>", 'Text</p><script src="https://cdn.example/x.js"></script>', "from elsewhere"),
        ("#222", "#aaa", "contrast 2.3, needs 4.5"),
        ("Text</p>", "{{text}}</p>", "leftover '{{text}}'"),
        ("<p id", '<h1 id="a">x</h1><p id', "id 'a' is there twice"),
    ],
)
async def test_defects_are_named(desk: Desk, old: str, new: str, reason: str) -> None:
    desk.write("good.html", GOOD)
    assert old in GOOD
    desk.write("bad.html", GOOD.replace(old, new))
    text = await desk.run(f"{S}/check_page.py good.html --single && {S}/check_page.py bad.html --single", 1)
    assert "good.html: fine" in text
    assert reason in text


@pytest.mark.skipif(shutil.which("node", path="/usr/local/bin:/usr/bin:/bin") is None, reason="node is not in /usr")
async def test_a_script_that_does_not_parse_is_named(desk: Desk) -> None:
    desk.write("bad.html", GOOD.replace("const a = 1;", "const a = ;"))
    assert "script 1: SyntaxError" in await desk.run(f"{S}/check_page.py bad.html", 1)


async def test_without_a_browser_the_fix_is_named(desk: Desk) -> None:
    desk.write("good.html", GOOD)
    text = await desk.run(
        f"PATH=/python/bin {'/python/bin/python3'} $S/web-page/scripts/screenshot.py good.html --out s", 3
    )
    assert "Fix: install chromium" in text


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
async def test_pictures_are_taken_in_the_sandbox(desk: Desk) -> None:
    desk.write("good.html", GOOD)
    await desk.run(f"{S}/screenshot.py good.html --out shots")
    for name, width in (("phone", 500), ("desktop", 1280)):
        with Image.open(desk.folder / f"shots/good-{name}.png") as picture:
            assert picture.size == (width, 900)
            assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 1  # there is text on it


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
def test_the_page_works_in_a_real_browser(tmp_path: Path) -> None:
    # Outside of the sandbox: which browsers run in it depends on the machine.
    page = tmp_path / "page.html"
    script = "document.title = document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'scrolls';"
    text = (SKILL / "examples/bakery/index.html").read_text()
    style = (SKILL / "examples/bakery/style.css").read_text()
    page.write_text(text.replace("</body>", f"<style>{style}</style><script>{script}</script></body>"))
    words = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/p"]
    words += ["--window-size=500,900", "--dump-dom", page.as_uri()]
    process = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert "<title>fits</title>" in process.stdout, process.stderr[-500:]
