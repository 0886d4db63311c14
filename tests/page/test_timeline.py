"""The timeline of a conversation: from the chat to what went wrong and back, live, and of a file without a server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Locator, Request, Route, expect

from actors.debugging import pins
from actors.wiring.compose import Options
from channels import web
from core.ids import uuid7
from tests.e2e.servers import serving
from tests.page.site import SCRIPTS, Site, Tab, bash, gated, tab, violations
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.long(keep=4)]

README = Path(__file__).parents[2] / "README.md"
PICTURE = Path(web.__file__).parent / "pictures/timeline.png"
LARGEST = 150_000
HOSTILE = "<img src=x onerror=canary()>\u202eevil\u202c"
OWN = {
    "lines": gated("lines"),
    "hostile": [Turn(text=HOSTILE, tool_calls=(bash(f"echo '{HOSTILE}' >&2; exit 1"),)), Turn(text=HOSTILE)],
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("timeline")


@pytest.fixture(scope="module")
async def site(path: Path, anyio_backend: str) -> AsyncIterator[Site]:
    async with ModelServer({**SCRIPTS, **OWN}) as models:
        config = configure(path / "config.yaml", models, http={"heartbeat_seconds": 1})
        async with serving(path / "home", config) as server:
            yield Site(server, models)


class Timeline:
    """A tab that shows a timeline."""

    def __init__(self, page: Tab) -> None:
        self.tab, self.page = page, page.page
        self.rows = page.page.locator(".tl-row")
        self.moment = page.page.locator(".tl-moment")
        self.list = page.page.get_by_role("listbox", name="Events")

    async def open(self, thread: str, seq: int | None = None) -> None:
        await self.page.goto(f"{self.tab.site.server.url}/#/timeline/{thread}{f'/{seq}' if seq else ''}")
        await expect(self.page.locator(".timeline")).to_be_visible()

    def row(self, text: str) -> Locator:
        return self.page.locator(".tl-row", has_text=text)

    async def look_at(self, tab_name: str) -> None:
        await self.moment.get_by_role("button", name=tab_name, exact=True).click()

    @property
    def seq(self) -> int:
        match = re.search(r"#/timeline/[\w-]+/(\d+)", self.page.url)
        assert match, self.page.url
        return int(match[1])


@pytest.fixture(scope="module")
async def thread(site: Site) -> str:
    """A conversation in which a command failed."""
    name = uuid7()
    await ended(site, name, await site.run(name, "Do it", "tools"))
    return name


async def ended(site: Site, thread: str, run: str) -> None:
    await site.ask("GET", f"/threads/{thread}/runs/{run}/join")


@pytest.fixture
async def timeline(page: Tab, thread: str) -> Timeline:
    opened = Timeline(page)
    await page.open()
    await opened.open(thread)
    await expect(page.page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    return opened


# ── ways ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_from_the_chat_to_what_went_wrong_and_why_and_back(page: Tab, thread: str) -> None:
    loaded: list[str] = []
    page.page.on("request", lambda request: loaded.append(request.url))
    await page.open(place=f"t/{thread}")
    await page.ended()
    assert not [url for url in loaded if "/page/timeline" in url]
    await page.page.get_by_role("button", name="This conversation").click()
    await page.page.get_by_role("menuitem", name="Timeline").click()
    timeline = Timeline(page)
    await page.page.locator(".tl-problem").click()
    await expect(timeline.moment.get_by_role("heading", level=2)).to_have_text("Failed: Tool ended")
    await expect(timeline.moment).to_contain_text("oops")
    await timeline.look_at("Why")
    causes = timeline.moment.locator(".tl-why li")
    await expect(causes.first).to_have_text("Asked for “Do it”")
    await expect(causes.last).to_contain_text("oops")
    await causes.filter(has_text="Asked for").get_by_role("button").click()
    await expect(timeline.moment.get_by_role("heading", level=2)).to_have_text("Asked for")
    await timeline.moment.get_by_role("link", name="Show in the conversation").click()
    await expect(page.page.locator(".person")).to_be_in_viewport()


async def test_from_a_message_to_its_place(page: Tab, thread: str) -> None:
    await page.open(place=f"t/{thread}")
    await page.ended()
    answer = page.page.locator(".answer", has_text="All is done.")
    await answer.hover()
    await answer.get_by_role("link", name="Show in the timeline").click()
    await expect(Timeline(page).moment).to_contain_text("All is done.")
    await expect(page.page.locator(".tl-row[aria-selected=true]")).to_contain_text("The model answered")


async def test_words_are_those_of_the_language_of_now(timeline: Timeline) -> None:
    """What is open is drawn anew: kinds, what events say, and what the filter finds."""
    failed = timeline.page.locator(".tl-problem")
    await expect(failed).to_contain_text(re.compile(r"Tool ended bash \[exit 3, .*oops"))
    await timeline.page.get_by_role("button", name="Language", exact=True).click()
    await timeline.page.get_by_role("menuitemradio", name="中文").click()
    await expect(failed).to_contain_text(re.compile(r"工具已结束 bash \[退出码 3，.*oops"))
    await timeline.page.locator(".tl-filters input").first.fill("退出码")
    await expect(timeline.rows).to_have_count(1)
    await expect(timeline.rows).to_contain_text("工具已结束")


async def test_keys_move_through_the_list_and_the_state_follows(timeline: Timeline) -> None:
    await timeline.list.focus()
    await timeline.page.keyboard.press("Home")
    await expect(timeline.moment.get_by_role("heading", level=2)).to_have_text("Conversation begun")
    await timeline.look_at("How it stood")
    await expect(timeline.moment).to_contain_text("0 messages")
    await timeline.page.keyboard.press("Tab")
    await timeline.list.focus()
    await timeline.page.keyboard.press("End")
    await timeline.page.keyboard.press("ArrowUp")
    await expect(timeline.moment).to_contain_text(re.compile(r"[1-9]\d* messages"))
    await expect(timeline.list).to_have_attribute("aria-activedescendant", f"tl-row-{timeline.seq}")


async def test_lanes_are_zoomed_moved_and_pressed(timeline: Timeline) -> None:
    canvas = timeline.page.get_by_role("img", name="Events in lanes over time")
    pixels = "canvas => canvas.toDataURL()"
    seen = {await canvas.evaluate(pixels)}
    for key in ("+", "+", "ArrowRight", "-"):
        await canvas.press(key)
        await timeline.page.wait_for_timeout(50)
        seen.add(await canvas.evaluate(pixels))
    await canvas.hover()
    await timeline.page.mouse.wheel(0, -300)
    await timeline.page.wait_for_timeout(50)
    seen.add(await canvas.evaluate(pixels))
    assert len(seen) == 6
    await timeline.page.get_by_role("button", name="Show everything").click()
    box = await canvas.bounding_box()
    assert box
    await timeline.page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 72)
    await expect(timeline.moment.get_by_role("heading", level=2)).not_to_be_empty()
    assert timeline.seq > 0


DRAWN = "() => new Promise((drawn) => setTimeout(() => requestAnimationFrame(drawn)))"
"""Waits until what changed is drawn."""


@pytest.mark.long
@pytest.mark.parametrize("hand", ["mouse", "finger"])
async def test_lanes_are_dragged_and_spread(chromium: Browser, site: Site, thread: str, hand: str) -> None:
    """A mouse and one finger move, two fingers zoom: back where they were, all is as it was."""
    async with tab(chromium, site, has_touch=True) as opened:
        await opened.open()
        timeline = Timeline(opened)
        await timeline.open(thread)
        await expect(opened.page.get_by_role("status").filter(has_text="Live")).to_be_visible()
        canvas = opened.page.get_by_role("img", name="Events in lanes over time")
        await canvas.scroll_into_view_if_needed()
        for _ in range(3):
            await canvas.press("+")
        chosen, box = opened.page.url, await canvas.bounding_box()
        assert box
        left, y = box["x"], box["y"] + box["height"] / 2
        device = await opened.page.context.new_cdp_session(opened.page)

        async def touch(kind: str, *places: float) -> None:
            points = [{"x": left + x, "y": y, "id": number} for number, x in enumerate(places)]
            await device.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        async def press(kind: str, x: float) -> None:
            button: Any = {"button": "left", "buttons": 1, "clickCount": 1}
            await device.send("Input.dispatchMouseEvent", {"type": kind, "x": left + x, "y": y, **button})

        async def pictures(*moves: Callable[[], Awaitable[None]]) -> list[str]:
            """What is seen after each move."""
            seen = []
            for move in moves:
                await move()
                await opened.page.evaluate(
                    "() => new Promise((drawn) => setTimeout(() => requestAnimationFrame(drawn)))"
                )
                seen.append(await canvas.evaluate("canvas => canvas.toDataURL()"))
            return seen

        if hand == "mouse":
            kinds = [("mousePressed", 300), ("mouseMoved", 420), ("mouseMoved", 300), ("mouseReleased", 300)]
            first, moved, *back = await pictures(*(partial(press, kind, x) for kind, x in kinds))
        else:
            ways = [("touchStart", 300), ("touchMove", 420), ("touchMove", 300)]
            first, moved, *back = await pictures(
                *(partial(touch, kind, x) for kind, x in ways), partial(touch, "touchEnd")
            )
        assert moved != first
        assert set(back) == {first}
        if hand == "finger":
            spread = [("touchStart", 300, 360), ("touchMove", 300, 480), ("touchMove", 300, 360)]
            first, zoomed, *back = await pictures(
                *(partial(touch, kind, *places) for kind, *places in spread), partial(touch, "touchEnd")
            )
            assert zoomed not in (first, moved)
            assert set(back) == {first}
        assert opened.page.url == chosen, "who moves chooses nothing"


@pytest.mark.long
async def test_the_list_says_what_the_server_says(timeline: Timeline, thread: str) -> None:
    """In its words, which `sika log show` has, too; each kind of event that is there has a lane with its name."""
    events = (await timeline.tab.site.ask("GET", f"/threads/{thread}/log/events?limit=1000"))["events"]
    await timeline.list.focus()
    for key, some in (("Home", events[:8]), ("End", events[-8:])):
        await timeline.page.keyboard.press(key)
        for entry in some:
            row = timeline.page.locator(f"#tl-row-{entry['seq']}")
            await expect(row.locator(".tl-phrase")).to_contain_text(entry["phrase"]["name"])
            await expect(row.locator(".tl-about")).to_have_text(entry["phrase"]["text"])
    names = await timeline.page.locator(".tl-names li").all_inner_texts()
    assert names[:4] == ["Queue", "Runs", "Model", "Tools"]


async def test_filters_by_text_kind_and_problem(timeline: Timeline) -> None:
    everything = await timeline.rows.count()
    await timeline.page.get_by_role("searchbox", name="Search in events").fill("oops")
    await expect(timeline.rows).not_to_have_count(everything)
    await expect(timeline.row("oops").first).to_be_visible()
    await timeline.page.get_by_role("searchbox", name="Search in events").fill("")
    await timeline.page.get_by_label("All kinds").select_option("model")
    await expect(timeline.rows).to_have_count(4)
    await timeline.page.get_by_label("All kinds").select_option("")
    await timeline.page.get_by_label("Only problems").check()
    await expect(timeline.rows).to_have_count(1)
    await timeline.page.get_by_label("All runs").select_option(index=1)
    await expect(timeline.rows).to_have_count(1)


async def test_two_moments_are_compared(timeline: Timeline) -> None:
    await timeline.row("Asked for").click()
    await timeline.look_at("How it stood")
    await timeline.moment.get_by_role("button", name="Compare this moment").click()
    await timeline.row("All is done.").first.click()
    compared = timeline.moment.get_by_role("region", name="What differs")
    await expect(compared.locator("ins").first).to_be_visible()
    await expect(compared).to_contain_text("messages")


async def test_two_runs_are_compared_step_by_step(page: Tab, site: Site) -> None:
    thread = uuid7()
    for model in ("plain", "tools"):
        await ended(site, thread, await site.run(thread, "Do it", model))
    await page.open()
    timeline = Timeline(page)
    await timeline.open(thread)
    await timeline.row("All is done.").first.click()
    await timeline.look_at("From here")
    await timeline.moment.get_by_label("Compare this run with another").select_option(label="Run 1")
    compared = timeline.moment.get_by_role("region", name="What differs between the two runs")
    await expect(compared.locator("del").first).to_contain_text('"model": "plain"')
    answer = compared.locator("del").filter(has_text="One two three.")
    await expect(compared.locator("ins").filter(has_text="I look.").first).to_be_visible()
    await answer.get_by_role("button", name="Go to this step").click()
    await expect(page.page.locator(".tl-row[aria-selected=true]")).to_contain_text("One two three.")


async def test_a_new_conversation_goes_on_from_a_moment(timeline: Timeline, thread: str) -> None:
    await timeline.row("I look.").first.click()
    await timeline.look_at("From here")
    await timeline.moment.get_by_role("button", name="Go on from here").click()
    await expect(timeline.moment.get_by_role("alert")).to_contain_text("name another event")
    await timeline.row("All is done.").first.click()
    await timeline.look_at("From here")
    await timeline.moment.get_by_role("button", name="Go on from here").click()
    await timeline.page.wait_for_url(re.compile(rf"#/t/(?!{thread})"))
    await expect(timeline.page.locator(".answer").last).to_contain_text("All is done.")


async def test_steps_lead_from_breakpoint_to_breakpoint(timeline: Timeline) -> None:
    await timeline.list.focus()
    await timeline.page.keyboard.press("Home")
    stop, on = (
        timeline.page.get_by_role("searchbox", name="Breakpoint"),
        timeline.page.get_by_role("button", name="On to"),
    )
    heading = timeline.moment.get_by_role("heading", level=2)
    await stop.fill("model.completed message.tool_calls.args.command~oops")
    await on.click()
    await expect(timeline.page.locator(".tl-row[aria-selected=true]")).to_contain_text("I look.")
    await expect(heading).to_have_text("The model answered")
    await on.click()
    alert = timeline.page.locator(".tl-filters").get_by_role("alert")
    await expect(alert).to_have_text("Nothing further stops there.")
    await stop.fill("run.completed name!")
    await on.click()
    await expect(alert).to_contain_text("is no condition")
    await stop.fill("run.completed")
    await on.click()
    await expect(heading).to_have_text("Run done")


async def test_the_prompt_of_a_call_and_what_is_new_in_it(timeline: Timeline) -> None:
    await timeline.row("All is done.").first.click()
    await timeline.look_at("Prompt")
    changes = timeline.moment.get_by_role("region", name="Other than at the call before")
    await expect(changes.locator("li").filter(has_text="added").first).to_contain_text("Message")
    messages = timeline.moment.locator(".tl-messages li")
    await expect(messages.filter(has_text="Replaced at line 2.")).to_contain_text("● added")
    await expect(messages.filter(has_text="Do it").first).not_to_contain_text("●")
    await timeline.moment.get_by_text(re.compile(r"Tools \(\d+\)")).click()
    await expect(timeline.moment.locator("figcaption").filter(has_text="bash_output")).to_be_visible()
    await timeline.moment.get_by_role("button", name="The call before").click()
    await expect(timeline.page.locator(".tl-row[aria-selected=true]")).to_contain_text("I edit.")
    await expect(messages.filter(has_text="All is done.")).to_have_count(0)


async def with_windows(page: Tab, window: int, slices: int) -> list[str]:
    """Makes windows, and the pages that they are read by, shorter. Returns the scripts that were changed."""
    shortened: list[str] = []

    async def shorten(route: Route) -> None:
        response = await route.fetch()
        text = await response.text()
        if "WINDOW = 10_000;" in text:
            shortened.append(route.request.url)
            text = text.replace("WINDOW = 10_000;", f"WINDOW = {window};").replace("PAGE = 1000;", f"PAGE = {slices};")
            text = text.replace("FIRST = 200;", f"FIRST = {slices};")
        await route.fulfill(response=response, body=text)

    await page.page.route("**/*.js*", shorten)
    return shortened


@pytest.mark.long
async def test_a_window_stays_one_while_thousands_of_events_come(page: Tab, site: Site) -> None:
    """Earlier events are dropped, and come back when asked for; what somebody looks at stays: following ends."""
    thread = uuid7()
    await ended(site, thread, await site.run(thread, "Go", "plain"))
    assert await with_windows(page, 100, 20) == []
    await page.open()
    timeline = Timeline(page)
    await timeline.open(thread)
    status = page.page.get_by_role("status").filter(has_text="events")
    await expect(status).to_have_text(re.compile("^Live"))
    for _ in range(3):
        await ended(site, thread, await site.run(thread, "Go", "busy-200"))
    log = (await site.ask("GET", f"/threads/{thread}/log/events?limit=1000"))["events"]
    assert len(log) == 1000, "and more"
    await timeline.list.focus()
    await page.page.keyboard.press("End")
    await expect(timeline.rows.last).to_contain_text("Run done")
    [shown] = await status.all_inner_texts()
    match = re.fullmatch(r"Live · (\d+) events", shown)
    assert match, shown
    assert 100 <= int(match[1]) < 120
    assert await timeline.rows.count() < 120
    await page.page.keyboard.press("Home")
    first = timeline.seq
    for _ in range(2):
        await ended(site, thread, await site.run(thread, "Go", "busy-40"))
    await expect(status).to_have_text(re.compile("^A part of the log"))
    await expect(page.page.locator(".tl-row[aria-selected=true]")).to_have_id(f"tl-row-{first}")
    await page.page.get_by_role("button", name="Earlier events").click()
    await expect(page.page.locator(f"#tl-row-{first}")).to_be_visible()


async def test_a_long_log_is_looked_at_window_by_window(page: Tab, site: Site, thread: str) -> None:
    """Its newest events first; a place outside the window opens the window around it."""
    shortened = await with_windows(page, 6, 2)
    everything = [entry["seq"] for entry in (await site.ask("GET", f"/threads/{thread}/log/events"))["events"]]
    await page.open()
    timeline = Timeline(page)
    await timeline.open(thread)
    status = page.page.get_by_role("status").filter(has_text="events")
    earlier = page.page.get_by_role("button", name="Earlier events")
    later = page.page.get_by_role("button", name="Later events")
    await expect(status).to_have_text("Live · 6 events")
    assert shortened
    await expect(timeline.row("Run done")).to_have_count(1)
    await expect(later).to_have_count(0)
    seen: set[int] = set()
    while True:
        ids = [
            int(name.removeprefix("tl-row-")) for name in await timeline.rows.evaluate_all("all => all.map(o => o.id)")
        ]
        seen.update(ids)
        if ids[0] == everything[0]:
            break
        await earlier.click()
        await expect(page.page.locator(f"#tl-row-{ids[-1]}")).to_have_count(0)
        await expect(status).to_have_text(re.compile("^A part of the log"))
    await expect(earlier).to_have_count(0)
    assert sorted(seen) == everything
    await later.click()
    await expect(timeline.row("Conversation begun")).to_have_count(0)
    await timeline.open(thread, everything[8])
    await expect(page.page.locator(".tl-row[aria-selected=true]")).to_have_id(f"tl-row-{everything[8]}")
    await expect(earlier).to_be_enabled()
    await expect(later).to_be_enabled()


async def test_files_and_usage_of_a_moment(timeline: Timeline) -> None:
    await timeline.row("All is done.").first.click()
    await timeline.look_at("How it stood")
    await timeline.moment.get_by_text("Files as they were known then").click()
    await expect(timeline.moment.get_by_text("/mnt/user-data/workspace/a.txt").last).to_be_visible()
    await timeline.moment.get_by_text("Used so far").click()
    used = timeline.moment.locator("li").filter(has_text="tokens in")
    await expect(used).to_contain_text("tools: 4 calls")
    await timeline.row("I look.").first.click()
    await timeline.moment.get_by_text("Used so far").click()
    await expect(used).to_contain_text("tools: 1 call,")


async def test_a_message_is_changed_in_a_conversation_of_its_own(timeline: Timeline, thread: str, site: Site) -> None:
    """It is as it was before the message, which waits to be changed and sent."""
    await timeline.row("Do it").first.click()
    await expect(timeline.moment.get_by_role("heading", level=2)).to_have_text("Asked for")
    await timeline.look_at("From here")
    await timeline.moment.get_by_role("button", name="Change this message").click()
    await timeline.page.wait_for_url(re.compile(rf"#/t/(?!{thread})"))
    await expect(timeline.page.get_by_role("textbox", name="Message")).to_have_value("Do it")
    await expect(timeline.page.locator(".answer")).to_have_count(0)
    fork = re.search(r"#/t/([\w-]+)", timeline.page.url)
    assert fork
    assert (await site.ask("GET", f"/threads/{fork[1]}/runs")) == []


async def test_what_if_names_its_price_before_it_asks_a_model(page: Tab, site: Site) -> None:
    thread = uuid7()
    await ended(site, thread, await site.run(thread, "Do it", "tools"))
    await page.open()
    timeline = Timeline(page)
    await timeline.open(thread)
    await timeline.row("A process works on the run").first.click()
    await timeline.look_at("What if")
    form = timeline.moment.get_by_role("form", name="What if")
    requests, events = len(site.models.requests), await site.ask("GET", f"/threads/{thread}/log/events?limit=1000")
    await form.get_by_label("Model").select_option(value="plain")
    await form.get_by_label("Another system prompt").fill("You rhyme.")
    await form.get_by_label("Samples").select_option(value="2")
    await form.get_by_role("button", name="What would it cost?").click()
    await expect(form.get_by_role("status")).to_contain_text("tokens")
    assert len(site.models.requests) == requests, "an estimate asks no model"
    await form.get_by_label("Samples").select_option(value="1")
    await expect(form.get_by_role("button", name="What would it cost?")).to_be_visible()
    await form.get_by_role("button", name="What would it cost?").click()
    await form.get_by_role("button", name="Run it").click()
    futures = form.get_by_role("region", name="What came of it")
    await expect(futures.get_by_role("article", name="As recorded")).to_contain_text("All is done.")
    await expect(futures.get_by_role("article", name="Sample 1")).to_contain_text("One two three.")
    [asked] = site.models.requests[requests:]
    assert (asked.model, "You rhyme." in json.dumps(asked.body)) == ("plain", True)
    await futures.get_by_text("Sample 1: ").click()
    await expect(futures.locator("ins").filter(has_text="One two three.").first).to_be_visible()
    assert await site.ask("GET", f"/threads/{thread}/log/events?limit=1000") == events, "nothing of it is on the log"


async def test_a_run_is_compared_with_its_replay(timeline: Timeline, site: Site, path: Path) -> None:
    """By the policies of then, and by others, under which it is pinned, too."""
    requests = len(site.models.requests)
    await timeline.row("All is done.").first.click()
    await timeline.look_at("From here")
    await timeline.moment.get_by_role("button", name="Replay this run").click()
    compared = timeline.moment.get_by_role("region", name="What differs between the run and its replay")
    await expect(compared).to_contain_text("Decided as it is recorded.")
    await expect(compared).to_contain_text("Nothing differs.")
    configure(path / "config.yaml", site.models, approvals=[{"tool": "bash", "match": "oops"}])
    try:
        await timeline.look_at("What happened")
        await timeline.look_at("From here")
        await timeline.moment.get_by_role("button", name="Replay this run").click()
        await expect(compared).to_contain_text("Decided otherwise today.")
        await expect(compared.locator("del")).to_contain_text("echo first")
        await expect(compared.locator("ins")).to_contain_text("approval.requested")
        await expect(compared).to_contain_text("steps after that are not compared")
        pin, saved = await pinned(timeline)
        assert "otherwise" in saved
        assert b'"approval.requested"' in pin.read(f"{site_thread(timeline)}.jsonl").splitlines()[0]
        await compared.locator("del").get_by_role("button", name="Go to this step").click()
        await expect(timeline.page.locator(".tl-row[aria-selected=true]")).to_contain_text("Tool called")
    finally:
        configure(path / "config.yaml", site.models, http={"heartbeat_seconds": 1})
    assert len(site.models.requests) == requests, "no model was asked"


def site_thread(timeline: Timeline) -> str:
    match = re.search(r"#/timeline/([\w-]+)", timeline.page.url)
    assert match
    return match[1]


async def pinned(timeline: Timeline) -> tuple[zipfile.ZipFile, str]:
    """The archive that is saved by the button, and what the page says of it."""
    async with timeline.page.expect_download() as download:
        await timeline.moment.get_by_role("button", name="Pin this run as a test").click()
    archive = zipfile.ZipFile(await (await download.value).path())
    return archive, await timeline.moment.get_by_role("status").inner_text()


async def test_a_run_is_pinned_as_a_test(timeline: Timeline, thread: str, tmp_path: Path) -> None:
    """With the files of `sika log pin`, which fail under other policies."""
    await timeline.row("oops").first.click()
    await timeline.look_at("From here")
    pin, saved = await pinned(timeline)
    assert saved == f"{thread}.zip is saved. The run is decided as it is recorded."
    pin.extractall(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {f"{thread}.jsonl", "shared", "test_pinned.py"}
    options = Options(tmp_path / "home", configure(tmp_path / "config.yaml", timeline.tab.site.models))
    assert await pins.check(tmp_path / f"{thread}.jsonl", options) == ""
    configure(tmp_path / "config.yaml", timeline.tab.site.models, approvals=[{"tool": "bash", "match": "oops"}])
    assert "approval.requested" in await pins.check(tmp_path / f"{thread}.jsonl", options)


async def test_a_link_to_a_moment_opens_there(timeline: Timeline, chromium: Browser, site: Site) -> None:
    await timeline.tab.may_copy()
    await timeline.row("oops").first.click()
    await timeline.look_at("From here")
    await timeline.moment.get_by_role("button", name="Copy a link").click()
    address = await timeline.tab.copied()
    async with tab(chromium, site) as other:
        await other.page.goto(address)
        await expect(Timeline(other).moment).to_contain_text("oops")


async def test_what_happens_now_is_there_at_once(page: Tab, site: Site) -> None:
    thread = uuid7()
    run = await site.run(thread, "Go", "lines")
    await page.open()
    timeline = Timeline(page)
    await timeline.open(thread)
    await expect(timeline.row("A process works on the run")).to_be_visible()
    await expect(timeline.row("Run done")).to_have_count(0)
    site.models.release("lines")
    await ended(site, thread, run)
    await expect(timeline.row("Run done")).to_be_visible()


async def test_texts_of_others_run_nothing_and_hide_nothing(page: Tab, site: Site) -> None:
    thread = uuid7()
    await ended(site, thread, await site.run(thread, HOSTILE, "hostile"))
    await page.page.add_init_script("window.canary = () => { window.ran = true }")
    await page.open()
    timeline = Timeline(page)
    await timeline.open(thread)
    await page.page.locator(".tl-problem").first.click()
    for name, text in (("Why", ">evil"), ("How it stood", "[U+202E]evil"), ("What happened", "[U+202E]evil")):
        await timeline.look_at(name)
        await expect(timeline.moment).to_contain_text(text)
    assert "\u202e" not in await page.page.locator(".timeline").inner_text()
    assert await page.page.locator(".timeline img").count() == 0
    assert not await page.page.evaluate("'ran' in window")


async def test_a_conversation_of_nobody_is_not_there(page: Tab) -> None:
    await page.open()
    await page.page.goto(f"{page.site.server.url}/#/timeline/{uuid7()}")
    await expect(page.page.get_by_role("alert")).to_be_visible()


# ── looks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("scheme", "language"), [("light", "en"), ("dark", "zh")])
async def test_every_part_of_a_moment_keeps_the_rules(
    chromium: Browser, site: Site, thread: str, scheme: Literal["light", "dark"], language: str
) -> None:
    broken = {}
    async with tab(chromium, site, color_scheme=scheme, viewport={"width": 1120, "height": 700}) as opened:
        await opened.open(language=language)
        timeline = Timeline(opened)
        await timeline.open(thread)
        await opened.page.locator(".tl-problem").click()
        tabs = opened.page.locator(".tl-tabs button")
        await expect(tabs).to_have_count(5)
        for index in range(5):
            await tabs.nth(index).click()
            await expect(timeline.moment.get_by_text(re.compile("Loading|正在加载"))).to_have_count(0)
            if found := await violations(opened):
                broken[index] = found
    assert broken == {}


async def test_it_is_seen_in_the_readme(chromium: Browser, site: Site, thread: str, tmp_path: Path) -> None:
    async with tab(chromium, site, viewport={"width": 1120, "height": 700}) as opened:
        await opened.open()
        timeline = Timeline(opened)
        await timeline.open(thread)
        await opened.page.locator(".tl-problem").click()
        await timeline.look_at("Why")
        await expect(timeline.moment.locator(".tl-why li").last).to_contain_text("oops")
        place = PICTURE if os.environ.get("SIKA_PICTURES") else tmp_path / "timeline.png"
        picture = await opened.page.screenshot(path=place)
    assert len(picture) < LARGEST
    assert f"({PICTURE.relative_to(README.parent)})" in README.read_text()
    assert PICTURE.read_bytes().startswith(b"\x89PNG")


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_file_is_read_without_a_server(page: Tab, site: Site, thread: str, tmp_path: Path) -> None:
    exported = await page.page.context.request.get(f"{site.server.url}/api/threads/{thread}/log/export")
    file = tmp_path / "thread.jsonl"
    file.write_bytes(await exported.body())
    await page.open()
    await page.page.goto(f"{site.server.url}/#/timeline/file")
    await expect(page.page.get_by_text("Open a file")).to_be_visible()
    asked: list[Request] = []
    page.page.on("request", lambda request: asked.append(request) if thread in request.url else None)
    await page.page.locator("input[type=file]").set_input_files(file)
    timeline = Timeline(page)
    await page.page.locator(".tl-problem").click()
    await expect(timeline.moment).to_contain_text("oops")
    await timeline.look_at("Why")
    await expect(timeline.moment.locator(".tl-why li").filter(has_text="Asked for")).to_contain_text("Do it")
    assert not asked


@pytest.mark.long
async def test_what_was_exported_opens_by_drop_without_a_network(
    timeline: Timeline, thread: str, tmp_path: Path
) -> None:
    await timeline.row("All is done.").first.click()
    await timeline.look_at("From here")
    async with timeline.page.expect_download() as download:
        await timeline.moment.get_by_role("link", name="Export", exact=True).click()
    saved = await download.value
    assert saved.suggested_filename == f"{thread}.jsonl"
    await saved.save_as(file := tmp_path / saved.suggested_filename)
    served = [await told_of(timeline, said) for said in SAID]
    differences = await compared_of(timeline)
    count = await timeline.page.get_by_role("status").filter(has_text="events").inner_text()
    await timeline.page.goto(f"{timeline.tab.site.server.url}/#/timeline/file")
    await expect(timeline.page.get_by_text("Open a file")).to_be_visible()
    await timeline.page.context.set_offline(True)
    await dropped(timeline.tab, file)
    status = timeline.page.get_by_role("status").filter(has_text="events")
    await expect(status).to_contain_text(count.partition(" · ")[2])
    await timeline.page.locator(".tl-problem").click()
    await expect(timeline.moment).to_contain_text("oops")
    await timeline.look_at("Why")
    await expect(timeline.moment.locator(".tl-why li").first).to_contain_text("Do it")
    assert [await told_of(timeline, said) for said in SAID] == served
    assert await compared_of(timeline) == differences
    await timeline.page.get_by_label("All kinds").select_option("model")
    await expect(timeline.rows).to_have_count(4)


SAID = ("I edit.", "All is done.")


async def compared_of(timeline: Timeline) -> list[str]:
    """Returns what differs in the states at the two answers."""
    first, last = SAID
    await timeline.row(first).first.click()
    await timeline.look_at("How it stood")
    await timeline.moment.get_by_role("button", name="Compare this moment").click()
    await timeline.row(last).first.click()
    values = timeline.moment.get_by_role("region", name="What differs").locator("li")
    await expect(values.filter(has_text=last)).to_have_count(1)
    return await values.all_inner_texts()


async def told_of(timeline: Timeline, said: str) -> list[str]:
    """Returns what is shown of the state, the files and the prompt at a model's answer."""
    await timeline.row(said).first.click()
    await timeline.look_at("How it stood")
    state = timeline.moment.locator(".tl-part")
    await expect(state).to_contain_text("Status: busy")
    await state.get_by_text("Files as they were known then").click()
    await expect(state.locator("details[open]")).to_contain_text(re.compile(r"No file was known|\.txt"))
    shown = [
        await state.locator(part).all_inner_texts() for part in (":scope > p", "h3", ".tl-messages", "details[open]")
    ]
    await timeline.look_at("Prompt")
    await expect(timeline.moment.get_by_text(re.compile(r"Tools \(\d+\)"))).to_be_visible()
    prompt = await state.inner_text()
    assert len(prompt) > 1000
    return [*map(str, shown), prompt]


@pytest.mark.long
async def test_a_file_says_what_it_lacks(page: Tab, site: Site, thread: str, tmp_path: Path) -> None:
    """One that was exported without secrets, and was cut off."""
    exported = await page.page.context.request.get(f"{site.server.url}/api/threads/{thread}/log/export?redact=1")
    lines = (await exported.body()).splitlines(keepends=True)
    answers = [place for place, line in enumerate(lines) if b'"type":"model.completed"' in line]
    claim = json.loads(lines[answers[0]])
    claim["event"] = {key: claim["event"][key] for key in ("id", "type", "kind", "aggregate", "actor", "at", "run")}
    claim["event"]["blob"] = {"sha256": "0" * 64, "size": 1}
    lines[answers[0]] = json.dumps(claim).encode() + b"\n"
    setups = [line for line in lines if b'"kind":"setup"' in line or b'"kind":"thread_setup"' in line]
    file = tmp_path / "thread.jsonl"
    file.write_bytes(b"".join(line for line in lines[: answers[-1] + 1] if line not in setups))
    await page.open()
    await page.page.goto(f"{site.server.url}/#/timeline/file")
    await page.page.locator("input[type=file]").set_input_files(file)
    timeline = Timeline(page)
    await expect(page.page.get_by_text("Exported without secrets: placeholders stand in their place.")).to_be_visible()
    await expect(page.page.get_by_role("alert").filter(has_text="The file is cut off or broken")).to_be_visible()
    await timeline.rows.last.click()
    await timeline.look_at("Prompt")
    await expect(timeline.moment).to_contain_text("System prompt: it is not in the file, which was exported without")
    await timeline.moment.get_by_text("1 event of which it is not known here what it changed").click()
    await timeline.look_at("How it stood")
    await timeline.moment.get_by_text("1 event of which it is not known here what it changed").click()
    await timeline.moment.get_by_role("button", name="The model answered").click()
    await timeline.look_at("What happened")
    await expect(timeline.moment).to_contain_text("This event is not in the file whole")


@pytest.mark.long
async def test_a_terminal_opens_the_browser_at_the_thread(page: Tab, thread: str, path: Path, tmp_path: Path) -> None:
    """`sika log open` gives its address to the browser of the person who sits at the terminal."""
    browser, asked_for = tmp_path / "browser", tmp_path / "asked"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {asked_for}.part && mv {asked_for}.part {asked_for}\n')
    browser.chmod(0o755)
    terminal, screen = os.openpty()
    try:
        command = [sys.executable, "-m", "channels.cli", "log", "open", "--home", str(path / "home"), thread]
        opening = await asyncio.create_subprocess_exec(
            *command, stdout=screen, cwd=README.parent, env={**os.environ, "BROWSER": f"{browser} %s"}
        )
        assert await opening.wait() == 0
        printed = os.read(terminal, 10_000).decode().strip()
    finally:
        os.close(terminal)
        os.close(screen)

    async def asked() -> bool:
        return asked_for.exists()

    await wait_for(asked)
    address = asked_for.read_text()
    assert address == printed
    await page.open()
    await page.page.goto(address)
    await expect(Timeline(page).row("All is done.").first).to_be_visible()


async def test_a_file_is_imported_as_a_conversation_of_one_s_own(
    page: Tab, site: Site, thread: str, tmp_path: Path
) -> None:
    """From the file that was dropped; one that was changed is refused with its line."""
    exported = await (await page.page.context.request.get(f"{site.server.url}/api/threads/{thread}/log/export")).body()
    whole, changed = tmp_path / "thread.jsonl", tmp_path / "changed.jsonl"
    whole.write_bytes(exported)
    changed.write_bytes(exported.replace(b"All is done.", b"All is lost."))
    await page.open()
    button = page.page.get_by_role("button", name="Import as a conversation of mine")
    await page.page.goto(f"{site.server.url}/#/timeline/file")
    await expect(page.page.get_by_text("Open a file")).to_be_visible()
    for file in (changed, whole):
        await dropped(page, file)
        await expect(page.page.get_by_role("heading", level=1)).to_have_text(file.name)
        await button.click()
        if file is changed:
            await expect(page.page.get_by_role("alert")).to_contain_text(re.compile(r"line \d+: does not fit its sum"))
    await page.page.wait_for_url(re.compile(rf"#/timeline/(?!{thread}|file)"))
    timeline = Timeline(page)
    await timeline.row("Read from a file").click()
    await expect(timeline.moment).to_contain_text(thread)
    await page.page.get_by_role("link", name="Back to the conversation").click()
    await expect(page.page.locator(".answer").last).to_contain_text("All is done.")
    await page.say("And now?")
    await page.ended(2)


async def dropped(page: Tab, file: Path) -> None:
    """Drops a file on the page."""
    transfer = await page.page.evaluate_handle(
        """([name, text]) => {
          const data = new DataTransfer();
          data.items.add(new File([text], name));
          return data;
        }""",
        [file.name, file.read_text()],
    )
    await page.page.dispatch_event("body", "drop", {"dataTransfer": transfer})


async def test_steps_of_a_file_lead_from_breakpoint_to_breakpoint(page: Tab, tmp_path: Path) -> None:
    """In the language of the server, also of bodies beside the events; bodies that are missing are named."""
    long, missing = entry(2, "far"), entry(3, "far")
    long["event"] |= {"blob": {"sha256": "b" * 64, "size": 9}}
    missing["event"] |= {"blob": {"sha256": "c" * 64, "size": 9}}
    body = {"line": "blob", "sha256": "b" * 64, "body": {**entry(2, "far")["event"], "message": {"content": "sought"}}}
    file = tmp_path / "far.jsonl"
    lines = [{"line": "header", "thread": "far"}, entry(1, "far"), body, long, missing, entry(4, "far")]
    file.write_text("\n".join(map(json.dumps, lines)))
    await page.open()
    await page.page.goto(f"{page.site.server.url}/#/timeline/file")
    await page.page.locator("input[type=file]").set_input_files(file)
    await page.page.route("**/api/**", lambda route: route.abort())
    steps, chosen = page.page.locator(".tl-filters"), page.page.locator(".tl-row[aria-selected=true]")
    stop, on = steps.get_by_role("searchbox", name="Breakpoint"), steps.get_by_role("button", name="On to")
    await expect(steps.get_by_text("1 long event is not in the file whole")).to_be_visible()
    for text, place in (("run.* message.content~sought", "tl-row-2"), ("seq=[34] message.content='no 4'", "tl-row-4")):
        await stop.fill(text)
        await on.click()
        await expect(chosen).to_have_id(place)
    await on.click()
    await expect(steps.get_by_role("alert")).to_have_text("Nothing further stops there.")
    await stop.fill("run.steered 'name")
    await on.click()
    await expect(steps.get_by_role("alert")).to_contain_text("No closing quotation")


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"line":"header"}x'])
async def test_what_is_no_file_of_ours_is_named(page: Tab, site: Site, tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text(text)
    await page.open()
    await page.page.goto(f"{site.server.url}/#/timeline/file")
    await page.page.locator("input[type=file]").set_input_files(file)
    await expect(page.page.get_by_role("alert")).to_have_text("This is not a file of an exported conversation.")


def entry(seq: int, thread: str) -> dict[str, Any]:
    head = {"id": f"e{seq}", "kind": "thread", "aggregate": thread, "actor": "lead", "run": "r"}
    at = f"2026-11-28T08:{seq // 600 % 60:02}:{seq % 600 / 10:04.1f}Z"
    return {
        "line": "event",
        "seq": seq,
        "chain": "",
        "event": {**head, "type": "run.steered", "at": at, "message": {"content": f"no {seq}"}},
    }


async def test_of_a_long_log_only_what_is_in_view_is_drawn(page: Tab, site: Site, tmp_path: Path) -> None:
    lines = [{"line": "header", "thread": "long"}, *(entry(seq, "long") for seq in range(1, 10_001))]
    file = tmp_path / "long.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    await page.open()
    await page.page.goto(f"{site.server.url}/#/timeline/file")
    await page.page.locator("input[type=file]").set_input_files(file)
    timeline = Timeline(page)
    await expect(page.page.get_by_role("status").filter(has_text="10000 events")).to_be_visible()
    assert await timeline.rows.count() < 60
    await timeline.list.focus()
    await page.page.keyboard.press("End")
    await expect(timeline.row("no 10000")).to_have_attribute("aria-posinset", "10000")
    assert await timeline.rows.count() < 60
