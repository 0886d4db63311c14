"""The documentation in words, at /docs/<page>."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import channels.http
from channels.http.docs.pages import CONTENTS
from core.config.reference import all_keys
from tests.channels.http.conftest import Api

FOLDER = Path(channels.http.__file__).parent / "docs"
NAMES = sorted(file.stem for file in FOLDER.glob("*.md"))
PAGES = [CONTENTS, *NAMES]


class Page(HTMLParser):
    """The links, anchors and tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "href" and tag == "a":
                self.links.append(value or "")
            if name == "id":
                self.anchors.append(value or "")


async def text_of(api: Api, name: str) -> str:
    async with api.session.get(f"{api.url}/docs/{name}") as response:
        assert response.status == 200
        return await response.text()


async def test_pages_obey_their_policy(api: Api) -> None:
    for name in PAGES:
        async with api.session.get(f"{api.url}/docs/{name}") as response:
            page = Page(await response.text())
            assert (response.status, response.content_type, response.charset) == (200, "text/html", "utf-8"), name
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'; script-src 'self'" in response.headers["Content-Security-Policy"]
        assert page.tags.isdisjoint({"script", "style", "img", "iframe", "form"}), name
        assert not [tag for tag in page.attributes if tag == "style" or tag.startswith("on")], name


async def test_links_lead_somewhere(api: Api) -> None:
    pages = {name: Page(await text_of(api, name)) for name in PAGES}
    for name, page in pages.items():
        assert set(PAGES) <= set(page.links), name
        assert len(set(page.anchors)) == len(page.anchors), name
        for link in {link for link in page.links if not link.startswith(("http:", "https:", "../"))}:
            path, _, anchor = link.partition("#")
            assert path in ("", *PAGES), f"{name}: {link}"
            assert not anchor or anchor in pages[path or name].anchors, f"{name}: {link}"


async def test_the_contents_say_what_each_page_is_about(api: Api) -> None:
    text = await text_of(api, CONTENTS)
    assert '<strong><a href="operations">Operations</a></strong>: How to start, check, back up' in text


async def test_the_configuration_page_has_every_key(api: Api) -> None:
    text = await text_of(api, "configuration")
    cells = set(re.findall(r"<td><code>([^<]+)</code></td>", text))
    page = Page(text)
    for key in all_keys():
        assert key.path in cells or key.path in page.anchors, key.path
    assert "<td><code>http.port</code></td>\n<td>integer ≥ 0 and ≤ 65535</td>\n<td><code>2026</code></td>" in text
    assert "<td><code>uploads.max_file_count</code></td>\n<td><code>uploads.max_files</code></td>" in text


async def test_a_page_that_is_not_there(api: Api) -> None:
    for name in ("nothing", "operations.md", "text.html", "%2e%2e%2fpages.py"):
        async with api.session.get(f"{api.url}/docs/{name}") as response:
            assert (response.status, response.content_type) == (404, "application/json"), name


async def test_head(api: Api) -> None:
    async with api.session.head(f"{api.url}/docs/operations") as response:
        assert (response.status, response.content_type, await response.read()) == (200, "text/html", b"")
