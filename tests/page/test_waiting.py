"""What waits for a person: in place, and all of it in one room; forms, calls that are changed first, notices."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Route, expect

from tests.e2e.servers import serving
from tests.page.site import Site, Tab, bash, looks, tab, violations
from tests.page.test_access import WIDER, shot
from tests.page.test_budgets import REQUESTS
from tests.support.mcp import server
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.ports import free_port
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.anyio

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2},
        "mail": {"type": "string", "format": "email", "description": "Where the ticket goes"},
        "seats": {"type": "integer", "minimum": 1, "maximum": 9},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "window": {"type": "boolean"},
    },
    "required": ["name", "seats"],
}
ASK = ToolCall("s_ask", {"text": json.dumps({"message": "Who travels?", "requestedSchema": FORM})})
CARD = [
    {"name": "city", "label": "City", "type": "text", "required": True},
    {"name": "class", "label": "Class", "type": "select", "required": True, "options": ["first", "second"]},
]
FILE = "/mnt/user-data/workspace/careful.txt"
TURNS = {
    "plain": [Turn(text="One two three.")],
    "asks": [Turn(tool_calls=(bash("echo careful"),)), Turn(text="It is done.")],
    "hides": [Turn(tool_calls=(bash("echo careful\u202e\u200b"),)), Turn(text="It is done.")],
    "writes": [
        Turn(tool_calls=(ToolCall("write_file", {"path": FILE, "content": "one\ntwo\n"}),)),
        Turn(text="Written."),
    ],
    "form": [Turn(tool_calls=(ASK,)), Turn(text="Booked.")],
    "card": [
        Turn(tool_calls=(ToolCall("ask_clarification", {"question": "Where to?", "fields": json.dumps(CARD)}),)),
        Turn(text="Off we go."),
    ],
    "choice": [
        Turn(tool_calls=(ToolCall("ask_clarification", {"question": "Which?", "options": ["tea", "coffee"]}),)),
        Turn(text="Served."),
    ],
}
SCRIPTS = {name: Script(tuple(turns), "total") for name, turns in TURNS.items()}
"""An edit or an answer is a message of the person: turns count in the whole conversation."""
COMMAND = "The command or text, which you can change"


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    """A server on which what is careful waits for a person, and a program has questions."""
    path: Path = tmp_path_factory.mktemp("waiting")
    rules = [{"tool": "bash", "match": {"command": "careful"}}, {"tool": "write_file", "match": {"path": "careful"}}]
    async with ModelServer(SCRIPTS) as models:
        settings: dict[str, Any] = {"approvals": rules, "http": {"heartbeat_seconds": 1}}
        config = configure(path / "config.yaml", models, mcp={"servers": {"s": server("asking")}}, **settings)
        async with serving(path / "home", config, "--port", str(free_port())) as running:
            yield Site(running, models)


def entry(page: Tab, thread: str) -> Any:
    return page.page.locator(f".waiting-list article:has(a[href='#/t/{thread}'])")


def row(page: Tab, thread: str) -> Locator:
    """A conversation in the sidebar."""
    return page.page.locator("li.thread", has=page.page.locator(f"a[href='#/t/{thread}']"))


def mark(page: Tab, thread: str) -> Locator:
    """What the sidebar says that a conversation does."""
    return row(page, thread).locator(".mark")


async def titled(page: Tab, thread: str, title: str) -> None:
    """Gives a conversation a title, and waits until the page has heard of it, and so of what was before."""
    await page.site.ask("POST", f"/threads/{thread}/state", {"values": {"title": title}})
    await expect(row(page, thread)).to_contain_text(title)


async def waits_in(site: Site, thread: str, model: str = "asks") -> None:
    """Has a new thread wait for the person."""
    await site.run(thread, "Go", model)

    async def there() -> bool:
        return thread in {one["thread_id"] for one in (await site.ask("GET", "/approvals"))["waiting"]}

    await wait_for(there)


async def rejected(site: Site, thread: str) -> None:
    """Rejects the call that waits in a thread, and waits for the end of what comes of it."""
    [approval] = await site.ask("GET", f"/threads/{thread}/approvals?status=pending")
    await site.ask("POST", f"/threads/{thread}/approvals/{approval['approval_id']}", {"decision": "reject"})
    await idle(site, thread)


async def idle(site: Site, thread: str) -> None:
    async def there() -> bool:
        return bool((await site.ask("GET", f"/threads/{thread}"))["status"] == "idle")

    await wait_for(there)


async def decided(site: Site, thread: str) -> Any:
    """The newest approval of a thread, when it has been decided."""
    approvals: list[Any] = []

    async def there() -> bool:
        approvals[:] = await site.ask("GET", f"/threads/{thread}/approvals?status=resolved")
        return bool(approvals)

    await wait_for(there)
    return approvals[0]


async def test_what_waits_is_listed_edited_and_approved(page: Tab, site: Site) -> None:
    """The list follows what happens; the command is run as it was changed, and the conversation shows which one ran."""
    await page.open("asks")
    await page.page.click("a[href='#/approvals']")
    await expect(page.page.get_by_text("Nothing waits for you.")).to_be_visible()
    await site.run("waits", "Go", "asks")
    await expect(page.page.locator(".badge")).to_have_text("1")
    command = entry(page, "waits").get_by_label(COMMAND)
    await expect(command).to_have_value("echo careful")
    await command.fill("echo changed")
    await page.page.get_by_role("button", name="Approve as changed").click()
    approval = await decided(site, "waits")
    assert (approval["status"], approval["edited_args"]["command"]) == ("edited", "echo changed")
    await expect(page.page.locator(".badge")).to_have_count(0)
    await page.page.goto(f"{site.server.url}/#/t/waits")
    for _ in range(2):
        line = page.page.locator(".step-line")
        await expect(line).to_contain_text("Ran echo changed")
        await expect(line).to_contain_text("changed before it ran")
        await line.click()
        await expect(page.page.locator(".diff .removed")).to_have_text(["-echo careful\n"])
        await expect(page.page.locator(".diff .added")).to_have_text(["+echo changed\n"])
        await page.page.reload()  # the history says the same


async def test_what_waits_is_counted_and_marked_on_a_fresh_page_and_in_a_second_tab(
    chromium: Browser, page: Tab, site: Site
) -> None:
    """Also a question, whose run is over; nothing has to happen first. Both tabs follow."""
    await site.run("marked-call", "Go", "asks")
    await site.run("marked-question", "Go", "choice")
    page_of: dict[str, Any] = {}

    async def both() -> bool:
        page_of.update(await site.ask("GET", "/approvals"))
        waiting = {one["thread_id"] for one in page_of["waiting"]}
        return {"marked-call", "marked-question"} <= waiting

    await wait_for(both)
    async with tab(chromium, site, page.page.context) as second:
        for each in (page, second):
            await each.open("choice")
            await expect(each.page.locator(".badge")).to_have_text(str(page_of["threads"]))
            for thread in ("marked-call", "marked-question"):
                await expect(mark(each, thread)).to_have_class("mark waiting")
        await page.page.goto(f"{site.server.url}/#/approvals")
        await entry(page, "marked-question").get_by_role("button", name="tea").click()
        await entry(page, "marked-call").get_by_role("button", name="Reject").click()
        for each in (page, second):
            await expect(each.page.locator(".badge")).to_have_count(0 if page_of["threads"] == 2 else 1)
            for thread in ("marked-call", "marked-question"):
                await expect(mark(each, thread)).to_have_count(0)


async def test_a_start_with_what_waits_asks_little(page: Tab, site: Site) -> None:
    """The list of conversations says what waits: nothing else is asked about it."""
    await waits_in(site, "started-with")
    urls: list[str] = []
    page.page.on("request", lambda request: urls.append(request.url))
    async with page.page.expect_response("**/api/assistants/search"):  # the last of what a page asks for
        await page.open()
    await expect(page.page.locator(".badge")).to_be_visible()
    await expect(mark(page, "started-with")).to_have_class("mark waiting")
    await expect(page.page.get_by_role("button", name="Model: ")).to_be_visible()
    await page.page.wait_for_function(
        "performance.getEntriesByType('resource').some((one) => /markdown|rooms/.test(one.name))"
    )
    assert len(urls) <= REQUESTS, urls
    await rejected(site, "started-with")


@pytest.mark.long
async def test_what_waits_is_right_beyond_the_list_and_after_the_network_was_gone(page: Tab, site: Site) -> None:
    """An old conversation is counted at once, and marked when it is listed or found by words. A run that was stopped
    waits for nobody.
    """
    others = (await site.ask("GET", "/approvals"))["threads"]
    await waits_in(site, "old-call")
    await site.ask("POST", "/threads/old-call/state", {"values": {"title": "Of old"}})
    await site.ask("POST", "/threads", {"thread_id": "stopped"})
    stopped = await site.run("stopped", "Go", "asks")
    await site.ask("POST", f"/threads/stopped/runs/{stopped}/cancel?wait=true")
    for number in range(50):
        await site.ask("POST", "/threads", {"thread_id": f"newer{number}"})
    await page.open()
    await expect(page.page.locator("li.thread")).to_have_count(50)
    await expect(page.page.locator(".badge")).to_have_text(str(others + 1))
    await page.page.fill("#search", "Of old")
    await expect(mark(page, "old-call")).to_have_class("mark waiting")
    await page.page.fill("#search", "")
    await page.page.get_by_role("button", name="Older").click()
    await expect(mark(page, "old-call")).to_have_class("mark waiting")
    await expect(row(page, "stopped")).to_be_visible()
    await expect(mark(page, "stopped")).to_have_count(0)
    await page.page.context.set_offline(True)
    await rejected(site, "old-call")
    for name in ("gone1", "gone2"):
        await waits_in(site, name)
    await page.page.context.set_offline(False)
    await expect(page.page.locator(".badge")).to_have_text(str(others + 2))
    await expect(mark(page, "gone1")).to_have_class("mark waiting")
    await expect(row(page, "old-call")).to_be_visible()
    await expect(mark(page, "old-call")).to_have_count(0)
    for name in ("gone1", "gone2"):
        await rejected(site, name)
        await expect(mark(page, name)).to_have_count(0)


@pytest.mark.long
async def test_an_answer_that_is_done_before_the_page_knows_of_its_run_works_no_more(page: Tab, site: Site) -> None:
    """The response to the answer comes after the news that its run has ended."""
    await waits_in(site, "quick", "choice")

    async def hold(route: Route) -> None:
        response = await route.fetch()
        await idle(site, "quick")
        await titled(page, "quick", "The run has ended")
        await route.fulfill(response=response)

    await page.open("choice", place="approvals")
    await page.page.route("**/api/threads/quick/runs", hold)
    async with page.page.expect_response("**/api/threads/quick/runs"):
        await entry(page, "quick").get_by_role("button", name="tea").click()

    async def acknowledged() -> bool:
        return bool(await page.page.evaluate("localStorage.getItem('sika.sent.quick') === null"))

    await wait_for(acknowledged)
    await titled(page, "quick", "The response has come")
    await expect(mark(page, "quick")).to_have_count(0)


@pytest.mark.long
async def test_the_room_is_filled_whatever_the_last_news_were(page: Tab, site: Site) -> None:
    await page.open("asks")
    await site.run("unseen", "Go", "asks")
    waits = page.page.locator("li.thread", has=page.page.locator("a[href='#/t/unseen']")).locator(".mark.waiting")
    await expect(waits).to_be_visible()
    await site.ask("POST", "/threads", {"thread_id": "titled"})
    await site.ask("POST", "/threads/titled/state", {"values": {"title": "Of something else"}})
    await expect(page.page.locator("a[href='#/t/titled']")).to_contain_text("Of something else")
    await page.page.click("a[href='#/approvals']")
    await entry(page, "unseen").get_by_role("button", name="Reject").click()
    await expect(entry(page, "unseen")).to_have_count(0)


async def test_what_is_rejected_waits_no_more(page: Tab, site: Site) -> None:
    await site.run("refused", "Go", "asks")
    await page.open("asks", place="t/refused")
    await page.page.click("a[href='#/approvals']")
    await entry(page, "refused").get_by_label("A word to the agent (optional)").fill("Not today")
    await entry(page, "refused").get_by_role("button", name="Reject").click()
    await expect(entry(page, "refused")).to_have_count(0)
    approval = await decided(site, "refused")
    assert (approval["status"], approval["message"]) == ("rejected", "Not today")


async def test_a_file_is_shown_by_what_changes_in_it(page: Tab, site: Site) -> None:
    await page.open("writes")
    await page.say("Write")
    card = page.page.locator(".card.waiting")
    await expect(card.locator(".added")).to_have_text(["+one\n", "+two\n"])
    await card.get_by_role("button", name="Edit the text").click()
    await card.get_by_label(COMMAND).fill("one\nthree\n")
    await expect(card.locator(".added")).to_have_text(["+one\n", "+three\n"])
    await card.get_by_role("button", name="As it was").click()
    await expect(card.locator(".added")).to_have_text(["+one\n", "+two\n"])
    await card.get_by_label(COMMAND).fill("three\n")
    await card.get_by_role("button", name="Approve as changed").click()
    await page.ended(2)  # the run that asked, and the one that goes on
    assert (await decided(site, page.thread))["edited_args"]["content"] == "three\n"


async def test_characters_that_nobody_sees_are_shown_in_the_field(page: Tab, site: Site) -> None:
    await page.open("hides")
    await page.say("Go")
    card = page.page.locator(".card.waiting")
    await expect(card.get_by_role("alert").locator("pre")).to_have_text("echo careful[U+202E][U+200B]")
    await card.get_by_role("button", name="Remove them").click()
    await expect(card.get_by_role("alert")).to_have_count(0)
    await expect(card.get_by_label(COMMAND)).to_have_value("echo careful")
    await card.get_by_role("button", name="Approve as changed").click()
    assert (await decided(site, page.thread))["edited_args"]["command"] == "echo careful"


@pytest.mark.long
async def test_a_program_is_answered_field_by_field(page: Tab, site: Site) -> None:
    """What is wrong is said at its field, before anything is sent; the first one has the focus."""
    await page.open("form")
    await page.say("Book")
    card = page.page.locator(".card.waiting")
    await card.get_by_label("mail").fill("nobody")
    await card.get_by_label("seats").fill("12")
    await card.get_by_role("button", name="Send").click()
    await expect(card.get_by_role("alert")).to_have_text(
        ["This is needed.", "An e-mail address is expected.", "At most 9."]
    )
    await expect(card.get_by_label("Your name")).to_be_focused()
    await card.get_by_label("Your name").fill("A")
    await expect(card.get_by_role("alert").first).to_have_text("At least 2 characters are needed.")
    await card.get_by_label("Your name").fill("Ada")
    await card.get_by_label("mail").fill("ada@example.org")
    await card.get_by_label("seats").fill("2")
    await card.get_by_label("blue").check()
    await card.get_by_label("window").check()
    await expect(card.get_by_role("alert")).to_have_count(0)
    await card.get_by_role("button", name="Send").click()
    await page.ended(2)  # the run that asked, and the one that goes on
    expected = {"name": "Ada", "mail": "ada@example.org", "seats": 2, "color": "blue", "window": True}
    assert (await decided(site, page.thread))["edited_args"] == expected


@pytest.mark.long
async def test_a_question_is_answered_from_the_room_by_its_form(page: Tab, site: Site) -> None:
    await site.run("travels", "Go", "card")
    await page.open("card", place="t/travels")
    await page.page.click("a[href='#/approvals']")
    await entry(page, "travels").get_by_label("City").fill("Bern")
    await entry(page, "travels").get_by_role("button", name="Send").click()
    await expect(entry(page, "travels").get_by_role("alert")).to_have_text("This is needed.")
    await entry(page, "travels").get_by_label("second").check()
    await entry(page, "travels").get_by_role("button", name="Send").click()
    await expect(entry(page, "travels")).to_have_count(0)

    async def answered() -> bool:
        return (await site.texts("travels"))[-1:] == ["Off we go."]

    await wait_for(answered)
    assert "City: Bern\nClass: second" in await site.texts("travels")


async def test_a_question_takes_an_option_or_another_answer(page: Tab, site: Site) -> None:
    await page.open("choice")
    for number, answer in enumerate(("coffee", "water")):
        await page.page.goto(f"{site.server.url}/#/")
        await page.say("Drink")
        card = page.page.locator(".card.waiting")
        if number == 0:
            await card.get_by_role("button", name=answer).click()
        else:
            await card.get_by_label("Another answer").fill(answer)
            await card.get_by_role("button", name="Send").click()
        await expect(card).to_contain_text("Answered")
        await expect(page.page.locator(".answer .markdown").last).to_have_text("Served.")
        assert (await page.shown())[-2:] == [answer, "Served."]


NOTICES = """() => {
  window.notices = [];
  window.Notification = class {
    static permission = 'default';
    static async requestPermission() { return (this.permission = 'granted'); }
    constructor(title, options) { window.notices.push(title + '|' + options.body); }
  };
  Object.defineProperty(document, 'hidden', { get: () => window.away === true });
}"""


async def test_notices_are_asked_for_by_a_click_and_name_nothing(page: Tab, site: Site) -> None:
    await page.page.add_init_script(f"({NOTICES})()")
    await page.open("asks")
    await page.page.click("a[href='#/approvals']")
    assert await page.page.evaluate("Notification.permission") == "default"
    await page.page.get_by_role("button", name="Notify me").click()
    await expect(page.page.get_by_role("button", name="Notifications are on")).to_be_visible()
    await page.page.evaluate("window.away = true")
    await site.run("noticed", "My secret words", "asks")

    async def told() -> bool:
        return bool(await page.page.evaluate("window.notices.length"))

    await wait_for(told)
    assert await page.page.evaluate("window.notices") == ["Sika waits for your approval|Open the page to see it."]
    await page.page.get_by_role("button", name="Notifications are on").click()
    await expect(page.page.get_by_role("button", name="Notify me")).to_be_visible()
    await page.page.evaluate("window.away = false")
    await entry(page, "noticed").get_by_role("button", name="Reject").click()
    await expect(entry(page, "noticed")).to_have_count(0)


@pytest.mark.long
async def test_more_than_a_page_waits(page: Tab, site: Site) -> None:
    async def waiting() -> int:
        return int((await site.ask("GET", "/approvals?limit=1"))["threads"])

    for number in range(52):
        await site.run(f"many{number}", "Go", "choice")

    async def there() -> bool:
        return await waiting() >= 52

    await wait_for(there)
    await page.open(place="approvals")
    await expect(page.page.locator(".waiting-list article")).to_have_count(50)
    await page.page.get_by_role("button", name="Show more").click()
    await expect(page.page.locator(".waiting-list article")).to_have_count(await waiting())
    await expect(page.page.locator(".waiting-list a[href='#/t/many0']")).to_be_visible()


@looks
async def test_no_rule_is_broken(page: Tab, site: Site, scheme: Any, language: str) -> None:
    for model in ("hides", "writes", "form"):
        await site.run(f"{model}-{scheme}-{language}", "Go", model)
    await page.page.emulate_media(color_scheme=scheme)
    await page.open(place="approvals", language=language)
    await expect(entry(page, f"hides-{scheme}-{language}").locator(".hidden-found")).to_be_visible()
    await expect(entry(page, f"writes-{scheme}-{language}").locator(".added").first).to_be_visible()
    form = entry(page, f"form-{scheme}-{language}")
    await form.locator("button.first").click()
    await expect(form.get_by_role("alert").first).to_be_visible()
    await shot(page, f"approvals-{scheme}-{language}")
    assert await violations(page) == []


@pytest.mark.long
async def test_a_narrow_screen_shows_all_that_waits(chromium: Browser, site: Site) -> None:
    async with tab(chromium, site, viewport={"width": 360, "height": 740}) as page:
        await site.run("narrow", "Go", "form")
        await page.open(place="approvals")
        await expect(entry(page, "narrow").get_by_label("Your name")).to_be_visible()
        assert await page.page.evaluate(WIDER) <= 0
        await shot(page, "approvals-narrow")
