"""Sessions on the web: its pages are those of a server of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.support import documents
from tests.support.applications import running
from tests.work.conftest import working
from tests.work.session import OUTPUTS, Work

pytestmark = pytest.mark.long(keep=3)

PAGES = 60
FETCH = {"name": "web_fetch", "use": "adapters.tools.web_fetch:web_fetch", "allow_private_addresses": True}


def page(number: int) -> str:
    words = "This is about the town and its history. " * 40
    title = f"Town {number}"
    return f"<title>{title}</title><h1>{title}</h1><p>{words}</p><p>{title} has {number * 137} wells.</p>"


async def answer(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name == "long":
        text = "".join(f"<p>Paragraph {n} says {n * n}.</p>" for n in range(1, 4_001))
        return web.Response(text=f"<title>Long</title>{text}", content_type="text/html")
    if name == "report.pdf":
        pages = [*(f"Page {n}." for n in range(1, 9)), "The river is 731 kilometres long."]
        return web.Response(body=documents.pdf(*pages), content_type="application/pdf")
    return web.Response(text=page(int(name)), content_type="text/html")


@pytest.fixture(scope="module")
async def site(anyio_backend: str) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{name}", answer)
    async with running(app) as url:
        yield url


@pytest.fixture(scope="module")
async def work(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Work]:
    async with working(tmp_path_factory.mktemp("work"), tools=[FETCH]) as office:
        yield office


async def test_research_over_sixty_pages(work: Work, site: str) -> None:
    session = await work.session(f"How many wells have the towns at {site}/1 to {site}/{PAGES}?")
    for number in range(1, PAGES + 1):
        text = await session.call("web_fetch", url=f"{site}/{number}")
        assert f"Town {number} has {number * 137} wells." in text
        await session.write("notes.csv", f"{number},{number * 137}\n", **({"append": True} if number > 1 else {}))
    text = await session.bash("awk -F, '{ s += $2 } END { print NR, s }' notes.csv")
    assert f"{PAGES} {137 * PAGES * (PAGES + 1) // 2}" in text
    await session.write(f"{OUTPUTS}/report.md", "# Wells\n\nThere are many wells.\n")
    await session.call("present_files", filepaths=[f"{OUTPUTS}/report.md"])
    await session.answers("There are many wells.")


async def test_a_long_page_is_read_to_its_end(work: Work, site: str) -> None:
    session = await work.session(f"What does paragraph 3 999 of {site}/long say?")
    text = await session.call("web_fetch", url=f"{site}/long")
    assert "Paragraph 1 says 1." in text
    names = session.tools["web_fetch"]["properties"]
    name = next((n for n in names if any(word in n for word in ("start", "offset", "page", "from"))), None)
    assert name is not None, f"a long page can be read on: {list(names)}"
    position, seen = len(text), text
    for number in range(2, 60):
        if "Paragraph 3999 says" in seen:
            break
        text = await session.call("web_fetch", url=f"{site}/long", **{name: number if name == "page" else position})
        position, seen = position + len(text), text
    assert f"Paragraph 3999 says {3999 * 3999}." in seen
    await session.answers("It says its square.")


async def test_a_pdf_of_the_web_is_read(work: Work, site: str) -> None:
    session = await work.session(f"How long is the river by {site}/report.pdf?")
    text = await session.call("web_fetch", url=f"{site}/report.pdf")
    assert "731 kilometres" in text
    await session.answers("731 kilometres.")
