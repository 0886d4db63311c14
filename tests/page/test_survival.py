"""The page follows from where it was: reloads, servers that are killed, networks that are gone, laptops that sleep,
long threads. Afterwards the text on the screen is the log's, and nothing is there twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from core.ids import uuid7
from tests.e2e.servers import serving
from tests.page.site import SCRIPTS, Site, Tab, tab, texts_of
from tests.support.model_server import ModelServer
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.anyio

LONG = bool(os.environ.get("SIKA_LONG"))
OFFLINE, FROZEN = (30, 120) if LONG else (3, 3)
"""Seconds without a network, and asleep. The server's heart beats each second: both are more than two beats."""


async def agree(page: Tab, site: Site, *before: str) -> None:
    """The screen shows what the log has, after what was written `before` the first run."""

    async def same() -> bool:
        return await page.shown() == [*before, *await site.texts(page.thread)]

    await wait_for(same)


async def test_the_server_is_killed_in_mid_stream_and_comes_back(page: Tab, site: Site) -> None:
    await page.open("killed")
    thread = await written(site, [{"type": "human", "content": "Once"}, {"type": "ai", "content": "*Upon* a time."}])
    await page.page.goto(f"{site.server.url}/#/t/{thread}")
    await expect(page.page.locator(".answer em")).to_be_visible()
    await page.watch()
    await page.say("Go on whatever happens")
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    await page.page.fill("#composer", "typed meanwhile")
    await site.server.kill()
    await expect(page.page.locator(".connection")).to_contain_text("Connection lost")
    site.models.release("killed")
    back = expect(page.page.locator(".connection")).to_contain_text("nothing was lost")
    await asyncio.gather(site.server.start(), back)  # it is said for seconds only
    await page.ended()
    await agree(page, site, "Once", "Upon a time.")
    assert await page.changes() == []
    await expect(page.page.locator("#composer")).to_have_value("typed meanwhile")


async def written(site: Site, messages: Sequence[dict[str, Any]]) -> str:
    """A thread with these messages, of no run."""
    thread = str(uuid7())
    await site.ask("POST", "/threads", {"thread_id": thread})
    for start in range(0, len(messages), 200):
        part = [{"id": f"m{n}", **message} for n, message in enumerate(messages[start : start + 200], start)]
        await site.ask("POST", f"/threads/{thread}/state", {"values": {"messages": part}})
    return thread


async def wait_for_end(site: Site, thread: str, runs: int) -> None:
    async def ended() -> bool:
        records = await site.ask("GET", f"/threads/{thread}/log")
        return len([record for record in records if record["type"] == "run.completed"]) == runs

    await wait_for(ended)


# ── in mid-stream ────────────────────────────────────────────────────────────────────────────────────────────────────

Rest = Callable[[], Awaitable[None]]
"""Has the answer made to its end."""


async def reloaded(page: Tab, rest: Rest) -> None:
    await page.page.reload()
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    await page.watch()
    await rest()


async def offline(page: Tab, rest: Rest) -> None:
    """The network is gone, and the browser knows."""
    await page.page.context.set_offline(True)
    await expect(page.page.locator(".connection")).to_contain_text("Connection lost")
    await rest()
    await asyncio.sleep(OFFLINE)
    back = expect(page.page.locator(".connection")).to_contain_text("nothing was lost")
    await asyncio.gather(page.page.context.set_offline(False), back)


async def silent(page: Tab, rest: Rest) -> None:
    """The connection stands, but nothing comes through it."""
    process = page.site.server.process.pid
    os.kill(process, signal.SIGSTOP)
    try:
        await expect(page.page.locator(".connection")).to_contain_text("Connection lost")
    finally:
        os.kill(process, signal.SIGCONT)
    await rest()


async def frozen(page: Tab, rest: Rest) -> None:
    """The laptop sleeps: the page is told, and its process stands still."""
    await page.page.evaluate(TICK)
    session = await page.page.context.new_cdp_session(page.page)
    await session.send("Page.setWebLifecycleState", {"state": "frozen"})
    browser = page.page.context.browser
    assert browser
    about = await (await browser.new_browser_cdp_session()).send("SystemInfo.getProcessInfo")
    processes = [one["id"] for one in about["processInfo"] if one["type"] == "renderer"]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        await rest()
        await asyncio.sleep(FROZEN)
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    await session.send("Page.setWebLifecycleState", {"state": "active"})
    assert await page.page.evaluate("new Promise((done) => setTimeout(() => done(widest), 100))") >= 900 * FROZEN


async def left(page: Tab, rest: Rest) -> None:
    """Somebody looks at another conversation meanwhile."""
    thread = page.thread
    await page.page.get_by_role("link", name="Sika").click()
    await expect(page.page.locator(".begin")).to_be_visible()
    await rest()
    await page.page.goto(f"{page.site.server.url}/#/t/{thread}")
    await expect(page.page.locator(".answer", has_text="word59")).to_be_visible()
    await page.watch()  # it was drawn anew


async def joined(page: Tab, rest: Rest) -> None:
    """Another tab comes, and says something, too."""
    browser = page.page.context.browser
    assert browser
    async with tab(browser, page.site, page.page.context) as second:
        await second.open(place=f"t/{page.thread}")
        await expect(second.page.locator(".growing .markdown")).to_contain_text("word5")
        await second.watch()
        await rest()
        await second.ended(2)
        await agree(second, page.site)
        assert await second.changes() == []


DISTURBANCES = (
    reloaded,
    offline,
    *(pytest.param(one, marks=pytest.mark.long) for one in (silent, frozen, left, joined)),
)
TICK = """window.widest = 0;
let before = performance.now();
setInterval(() => { const now = performance.now(); widest = Math.max(widest, now - before); before = now; }, 20);"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda one: one.__name__)
async def test_an_answer_that_a_program_began_is_shown_once(
    page: Tab, site: Site, disturb: Callable[[Tab, Rest], Awaitable[None]]
) -> None:
    """Whatever happens meanwhile: the screen has what the log has, and what was finished before is not touched."""
    model = disturb.__name__
    await page.open("tools")
    await page.say("Work")
    await page.ended()
    await page.watch()
    await site.run(page.thread, "Go on whatever happens", model)
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    thread = page.thread

    async def rest() -> None:
        site.models.release(model)
        await wait_for_end(site, thread, 2)

    await disturb(page, rest)
    await page.ended(2)
    await agree(page, site)
    await expect(page.page.locator(".step")).to_have_count(5)
    assert await page.changes() == []


# ── much, and many ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_conversation_that_is_deleted_while_it_is_open_says_so(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Soon gone")
    await page.ended()
    await site.ask("DELETE", f"/threads/{page.thread}")
    await expect(page.page.locator(".gone")).to_contain_text("This conversation was deleted")
    assert "Soon gone" not in await page.page.inner_text("main")
    await page.open(place="t/none-such")
    await page.page.reload()
    await expect(page.page.locator(".gone")).to_contain_text("There is no such conversation")


async def test_lists_and_searches_that_a_busy_server_refuses_are_made_again(page: Tab, site: Site) -> None:
    thread = await written(site, [{"type": "human", "content": "A lantern"}])
    refused: list[str] = []

    async def refuse(route: Route) -> None:
        """Each of two searches, once."""
        body = route.request.post_data or ""
        if body in refused or len(refused) == 2:
            return await route.continue_()
        refused.append(body)
        problem = {"code": "unavailable", "detail": "the search index is behind; try again"}
        await route.fulfill(status=503, json=problem, headers={"Retry-After": "1"})

    await page.page.route("**/threads/search", refuse)
    await page.open()
    link = page.page.locator(f"li.thread a[href='#/t/{thread}']")
    await expect(link).to_be_visible()
    await page.page.fill("#search", "lantern")
    await expect(page.page.locator("li.thread")).to_have_count(1)
    await expect(link).to_be_visible()
    assert len(refused) == 2


@pytest.mark.long
async def test_a_conversation_that_is_deleted_in_mid_stream_says_so(page: Tab, site: Site) -> None:
    await page.open("erased")
    await page.say("Soon gone")
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    await site.ask("DELETE", f"/threads/{page.thread}")
    site.models.release("erased")
    await expect(page.page.locator(".gone")).to_contain_text("This conversation was deleted")
    assert "word5" not in await page.page.inner_text("main")


@pytest.mark.parametrize("pairs", [250, pytest.param(1000, marks=pytest.mark.long)])
async def test_many_messages_are_read_back_to_the_first(page: Tab, site: Site, pairs: int) -> None:
    """Page by page; those that were there are not touched by those that come before and after them."""
    said = [f"{kind} {n}" for n in range(pairs) for kind in ("human", "ai")]
    thread = await written(site, [{"type": text.split()[0], "content": text} for text in said])
    await page.open(place=f"t/{thread}")
    await expect(page.page.locator(".answer").last).to_contain_text(f"ai {pairs - 1}")
    assert len(await page.shown()) <= 200
    await page.watch()

    async def all_shown() -> bool:
        await page.page.locator(".conversation").evaluate("e => { e.scrollTop = 0 }")
        return len(await page.shown()) >= len(said)

    await wait_for(all_shown, every=0.1)
    assert await page.shown() == said
    await site.run(thread, "One more", "plain")
    await page.ended()
    await agree(page, site, *said)
    assert await page.changes() == []


@pytest.mark.parametrize("calls", [40, pytest.param(200, marks=pytest.mark.long)])
async def test_many_calls_in_a_turn_are_lines(page: Tab, site: Site, calls: int) -> None:
    await page.open("plain")
    await page.say("Begin")
    await page.ended()
    await page.watch()
    await site.run(page.thread, "Do a lot", f"busy-{calls}")
    await page.ended(2)
    await expect(page.page.locator(".step")).to_have_count(calls)
    lines = await page.page.locator(".step").all_inner_texts()
    assert [text.partition("Ran echo call ")[2].split()[0] for text in lines] == [str(n) for n in range(calls)]
    await agree(page, site)
    assert await page.changes() == []


async def test_a_long_output_is_cut_until_it_is_asked_for(page: Tab) -> None:
    await page.open("long")
    await page.say("Print a lot")
    await page.ended()
    step = page.page.locator(".step")
    await step.locator("button.step-line").click()
    text = await step.locator(".output").last.inner_text()
    assert len(text) < 60_000
    assert "line 1" in text


@pytest.mark.long
async def test_five_megabytes_of_output_are_cut_until_they_are_asked_for(page: Tab, site: Site) -> None:
    output = "\n".join(f"line {n}" for n in range(450_000))
    assert len(output) > 5_000_000
    call = {"id": "c1", "name": "bash", "args": {"command": "seq -f 'line %.0f' 0 449999"}}
    said: list[dict[str, Any]] = [
        {"type": "human", "content": "Print a lot"},
        {"type": "ai", "content": "Here it is.", "tool_calls": [call]},
        {"type": "tool", "tool_call_id": "c1", "name": "bash", "content": output},
    ]
    thread = await written(site, said)
    await page.open(place=f"t/{thread}")
    step = page.page.locator(".step")
    await step.locator("button.step-line").click()
    shown = step.locator(".output pre").last
    assert len(await shown.inner_text()) < 60_000
    await page.page.get_by_role("button", name="Show all").click()
    assert await shown.evaluate("e => e.textContent") == output
    await page.watch()
    await site.run(thread, "And on", "plain")
    await page.ended()
    await agree(page, site, "Print a lot", "Here it is.")
    assert await page.changes() == []


@pytest.mark.long
async def test_three_tabs_and_a_program_are_one_conversation(page: Tab, site: Site, chromium: Browser) -> None:
    await page.open("plain")
    await page.say("From the first")
    await page.ended()
    context = page.page.context
    async with tab(chromium, site, context) as second, tab(chromium, site, context) as third:
        for other in (second, third):
            await other.open(place=f"t/{page.thread}")
            await other.ended()
        for one in (page, second, third):
            await one.watch()
        await second.say("From the second")
        for one in (page, second, third):
            await one.ended(2)
        await site.run(page.thread, "From a program", "plain")
        for one in (page, second, third):
            await one.ended(3)
            await agree(one, site)
            assert await one.changes() == []


@pytest.fixture(scope="module")
async def accounts(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    """A server on which everybody may make an account."""
    path: Path = tmp_path_factory.mktemp("accounts")
    async with ModelServer({"pairs": SCRIPTS["pairs"]}) as models:
        auth = {"enabled": True, "registration": True}
        config = configure(path / "config.yaml", models, auth=auth, http={"heartbeat_seconds": 1})
        async with serving(path / "home", config) as server:
            yield Site(server, models)


@pytest.mark.long
async def test_two_people_at_once_see_each_their_own(chromium: Browser, accounts: Site) -> None:
    async with tab(chromium, accounts) as one, tab(chromium, accounts) as other:
        people = {"initialize": one, "register": other}
        for way, each in people.items():
            account = {"email": f"{way}@example.org", "password": "correct horse battery"}
            url = f"{accounts.server.url}/api/v1/auth/{way}"
            assert (await each.page.context.request.post(url, data=account)).ok
            await each.open("pairs")
            await each.say(f"By {way}")
            await expect(each.page.locator(".growing .markdown")).to_contain_text("word5")
            await each.watch()
        accounts.models.release("pairs")
        for way, each in people.items():
            await each.ended()
            log = await each.page.context.request.get(f"{accounts.server.url}/api/threads/{each.thread}/log")
            texts = texts_of(await log.json())
            assert texts == [f"By {way}", " ".join(f"word{n}" for n in range(60))]
            await expect(each.page.locator(".person > .bubble, .answer > .markdown")).to_have_text(texts)
            assert await each.changes() == []
            await expect(each.page.locator("nav li.thread")).to_have_count(1)
