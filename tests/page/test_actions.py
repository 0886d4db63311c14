"""What people do in a conversation, and with conversations."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from tests.page.site import Site, Tab, tab
from tests.support.workers import wait_for

pytestmark = pytest.mark.anyio


async def working(page: Tab, model: str = "slow") -> None:
    """Begins a run that waits at its gate."""
    await page.open(model)
    await page.say("Go slowly")
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")


async def test_a_run_is_stopped_and_its_text_stays(page: Tab, site: Site) -> None:
    await working(page, "halts")
    await page.page.get_by_role("button", name="Stop", exact=True).click()
    await expect(page.page.locator(".run-end .stopped")).to_be_visible()
    await page.say("And now?")
    await page.page.wait_for_selector(".growing, .run-end >> nth=1")


async def test_the_chosen_model_answers_also_who_writes_before_the_models_are_read(page: Tab, site: Site) -> None:
    held: list[Route] = []
    await page.page.route("**/api/models", lambda route: held.append(route))
    await page.open("thinks")
    await page.say("Think")
    await page.ended()
    records = await site.ask("GET", f"/threads/{page.thread}/log")
    [context] = [record["context"] for record in records if record["type"] == "run.requested"]
    assert context["model_name"] == "thinks"
    for route in held:
        await route.continue_()


@pytest.mark.long
async def test_the_words_of_a_menu_stand_below_each_other(page: Tab) -> None:
    await page.open()
    await page.page.get_by_role("button", name="Mode: Pro").click()
    places = await page.page.locator(".menu-label").evaluate_all("all => all.map(e => e.getBoundingClientRect().x)")
    assert len(places) == 4
    assert len(set(places)) == 1


async def test_enter_during_a_run_offers_to_queue_and_to_steer(page: Tab, site: Site) -> None:
    await working(page, "lines")
    await page.say("Later please")
    await page.page.get_by_role("button", name="Queue", exact=True).click()
    await page.say("Not this one")
    await page.page.get_by_role("button", name="Queue", exact=True).click()
    queue = page.page.locator(".queue li")
    await expect(queue).to_have_count(2)
    await page.page.get_by_role("button", name="Remove from the queue: Not this one").click()
    await expect(queue).to_have_count(1)
    await page.page.reload()
    await expect(queue).to_contain_text("Later please")
    await page.page.fill("#composer", "Be brief")
    await page.page.press("#composer", "Enter")
    await page.page.get_by_role("button", name="Steer now").click()
    await expect(page.page.locator(".queue")).to_contain_text("Be brief")
    site.models.release("lines")
    await page.ended(2)
    await expect(page.page.locator(".queue")).to_have_count(0)
    assert "Not this one" not in await page.shown()
    assert {"Later please", "Be brief"} <= set(await page.shown())


async def test_a_message_is_edited_an_answer_made_again_and_the_old_ones_stay(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("One")
    await page.ended()
    person = page.page.locator(".person")
    await person.hover()
    await page.page.get_by_role("button", name="Edit").click()
    await page.page.locator("textarea.bubble").fill("Two")
    await page.page.locator("textarea.bubble").press("Enter")
    await expect(person.locator(".bubble")).to_have_text("Two")
    await page.ended()
    await expect(person.locator(".branches")).to_contain_text("2/2")
    assert await page.shown() == ["Two", "One two three."]
    await page.page.get_by_role("button", name="Earlier version").first.click()
    await expect(person.locator(".bubble")).to_have_text("One")
    await expect(page.page.locator(".branches")).to_contain_text("1/2")
    await page.page.reload()
    await expect(person.locator(".bubble")).to_have_text("Two")
    await page.page.get_by_role("button", name="Try again").click()
    await expect(page.page.locator(".answer .branches")).to_contain_text("2/2")
    await page.ended()
    await expect(person.locator(".branches")).to_contain_text("2/2")
    assert await page.shown() == ["Two", "One two three."]
    await page.page.locator(".answer .branches").get_by_role("button", name="Earlier version").click()
    await expect(page.page.locator(".answer .branches")).to_contain_text("1/2")


@pytest.mark.long
async def test_an_earlier_question_is_edited_and_what_is_seen_goes_on(page: Tab, site: Site) -> None:
    """A message goes to the branch that is on the screen, not to the newest one."""
    await page.open("plain")
    for count, text in enumerate(("One", "Two"), start=1):
        await page.say(text)
        await page.ended(count)
    first = page.page.locator(".person").first
    await first.hover()
    await first.get_by_role("button", name="Edit").click()
    await page.page.locator("textarea.bubble").fill("Other")
    await page.page.locator("textarea.bubble").press("Enter")
    await expect(first.locator(".bubble")).to_have_text("Other")
    await page.ended(1)
    assert await page.shown() == ["Other", "One two three."]
    await page.page.get_by_role("button", name="Earlier version").first.click()
    await expect(page.page.locator(".person .bubble")).to_have_text(["One", "Two"])
    await page.say("Three")
    await expect(page.page.locator(".person .bubble")).to_have_text(["One", "Two", "Three"])
    await page.ended(3)
    await page.page.reload()
    await expect(page.page.locator(".person .bubble")).to_have_text(["One", "Two", "Three"])


async def test_files_are_attached_several_at_once_and_a_refused_one_is_named(page: Tab, tmp_path: Path) -> None:
    files = []
    for name in ("one.txt", "two ä.csv"):
        (tmp_path / name).write_text("a,b\n1,2\n")
        files.append(tmp_path / name)
    (tmp_path / "big.bin").write_bytes(b"0" * 3_000_000)
    await page.open("plain")
    await page.page.set_input_files("[data-attach]", [str(file) for file in files])
    await expect(page.page.locator(".attachments .file")).to_have_count(2)
    await page.page.set_input_files("[data-attach]", str(tmp_path / "big.bin"))
    await expect(page.page.locator(".attachments .file.refused")).to_contain_text("big.bin")
    await page.page.get_by_role("button", name="Remove big.bin").click()
    await page.say("Look at these")
    await page.ended()
    await expect(page.page.locator(".person .file")).to_have_count(2)
    await page.page.reload()
    await expect(page.page.locator(".person .file").first).to_contain_text("one.txt")
    assert "uploaded_files" not in await page.page.inner_text("main")


async def test_an_answer_is_rated_and_the_rating_stays(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Rate me")
    await page.ended()
    await page.page.locator(".answer").hover()
    good = page.page.get_by_role("button", name="Good answer")
    await good.click()
    await expect(good).to_have_attribute("aria-pressed", "true")
    await page.page.reload()
    await expect(good).to_have_attribute("aria-pressed", "true")


@pytest.mark.long
async def test_a_rating_is_changed_and_taken_back(page: Tab, site: Site) -> None:
    """One opinion of an answer at a time; who presses it again has none. Also of one from before a reload."""
    await page.open("plain")
    await page.say("Rate me")
    await page.ended()
    [run] = await site.ask("GET", f"/threads/{page.thread}/runs")
    answer = page.page.locator(".answer").first
    good, bad = (answer.get_by_role("button", name=name) for name in ("Good answer", "Bad answer"))

    async def rated(*values: int) -> None:
        for button, value in ((good, 1), (bad, -1)):
            await expect(button).to_have_attribute("aria-pressed", str(value in values).lower())
        ratings = await site.ask("GET", f"/threads/{page.thread}/runs/{run['run_id']}/feedback")
        assert [rating["rating"] for rating in ratings] == list(values)

    await answer.hover()
    await good.click()
    await rated(1)
    await bad.click()
    await rated(-1)
    await page.say("Go on")  # after it, the rating is in the history only
    await page.ended(2)
    await page.page.reload()
    await rated(-1)
    await answer.hover()
    await bad.click()
    await rated()
    await page.page.reload()
    await page.ended(2)
    await rated()


async def test_a_message_an_answer_and_code_are_copied_as_they_were_written(page: Tab) -> None:
    await page.may_copy()
    await page.open("code")
    await page.say("Show *me*\u2026")
    await page.ended()
    await page.page.locator(".person").hover()
    await page.page.get_by_role("button", name="Copy the message").click()
    assert await page.copied() == "Show *me*\u2026"
    await page.page.locator(".answer").hover()
    await page.page.get_by_role("button", name="Copy the answer").click()
    text = await page.copied()
    assert text.startswith("As *this*:\n\n```python\n")
    codes = page.page.get_by_role("button", name="Copy", exact=True)
    await expect(codes).to_have_count(2)
    await codes.first.click()
    assert await page.copied() == "def f(x):\n    return x < 1\n"
    await codes.last.click()
    assert await page.copied() == "plain\n"


@pytest.mark.long
async def test_what_the_browser_does_not_let_copy_is_said(page: Tab) -> None:
    await page.page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined})"  # as it is on a page without TLS
    )
    await page.open("code")
    await page.say("Show me")
    await page.ended()
    await page.page.get_by_role("button", name="Copy", exact=True).first.click()
    await expect(page.page.locator(".toast.error")).to_have_text("The browser does not allow copying here.")


@pytest.mark.long
async def test_conversations_are_grouped_by_day(chromium: Browser, site: Site) -> None:
    """One conversation, as it is listed on the day it was used, and later."""
    async with tab(chromium, site, timezone_id="UTC") as page:
        await page.open("plain")
        await page.say("Remember the day")
        await page.ended()
        used = datetime.fromisoformat((await site.ask("GET", f"/threads/{page.thread}"))["updated_at"])
        noon = used.astimezone(UTC).replace(hour=12, minute=0, second=0)
        groups = {0: "Today", 1: "Yesterday", 2: "Last seven days", 7: "Last seven days", 8: f"{used:%B %Y}"}
        for days, name in groups.items():
            await page.page.clock.set_fixed_time(noon + timedelta(days=days))
            await page.page.reload()
            group = page.page.locator("nav section", has=page.page.locator("li.current"))
            await expect(group.get_by_role("heading")).to_have_text(name)


async def test_deleting_can_be_undone_for_ten_seconds(page: Tab, site: Site) -> None:
    await page.page.clock.install()
    await page.open("plain")
    await page.say("Soon gone")
    await page.ended()
    thread = page.thread
    row = page.page.locator("li.thread", has_text="Soon gone")
    await page.page.locator("li.thread.current").hover()
    await page.page.locator("li.thread.current").get_by_role("button").click()
    delete = page.page.get_by_role("menuitem", name="Delete")
    await expect(delete).to_be_visible()
    await page.page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))
    await delete.click()
    await page.page.clock.run_for(9_900)
    undo = page.page.get_by_role("button", name="Undo")
    await expect(undo).to_be_visible()
    await expect(row).to_have_count(0)
    assert (await site.ask("GET", f"/threads/{thread}"))["thread_id"] == thread
    await page.page.clock.run_for(200)
    await expect(undo).to_have_count(0)
    await wait_for(lambda: gone(site, thread))
    await page.page.clock.resume()
    await page.page.reload()
    await expect(row).to_have_count(0)


@pytest.mark.long
async def test_who_leaves_the_page_deletes_at_once(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Gone with the page")
    await page.ended()
    thread = page.thread
    row = page.page.locator("li.thread.current")
    await row.hover()
    await row.get_by_role("button").click()
    await page.page.get_by_role("menuitem", name="Delete").click()
    await expect(page.page.get_by_role("button", name="Undo")).to_be_visible()
    await page.page.goto(f"{site.server.url}/health")
    await wait_for(lambda: gone(site, thread))


async def gone(site: Site, thread: str) -> bool:
    found = await site.ask("POST", "/threads/search", {"limit": 100})
    return thread not in [one["thread_id"] for one in found]


@pytest.mark.long
async def test_files_are_attached_by_drop(page: Tab, tmp_path: Path) -> None:
    """As a browser drops what comes from the desktop: several, one of which is too large and is named."""
    paths = []
    for name, size in {"one.txt": 10, "two ä.csv": 20, "big.bin": 3_000_000}.items():
        (tmp_path / name).write_bytes(b"0" * size)
        paths.append(str(tmp_path / name))
    await page.open("plain")
    session = await page.page.context.new_cdp_session(page.page)
    data = {"items": [], "files": paths, "dragOperationsMask": 1}

    async def drag(kind: str) -> None:
        await session.send("Input.dispatchDragEvent", {"type": kind, "x": 600, "y": 300, "data": data})

    async def is_over() -> bool:
        await drag("dragOver")  # again and again, as long as something is held over a page
        return await page.page.locator(".composer.dropping").is_visible()

    await drag("dragEnter")
    await wait_for(is_over)
    await drag("drop")
    await expect(page.page.locator(".composer.dropping")).to_have_count(0)
    await expect(page.page.locator(".attachments .file")).to_have_count(3)
    await expect(page.page.locator(".attachments .file.refused")).to_contain_text("big.bin")
    await expect(page.page.locator(".attachments .file.refused").get_by_role("alert")).to_be_visible()
    await page.page.get_by_role("button", name="Remove big.bin").click()
    await page.say("Look at these")
    await page.ended()
    await expect(page.page.locator(".person .file bdi")).to_have_text(["one.txt", "two ä.csv"])


@pytest.mark.long
async def test_a_picture_is_attached_by_paste_and_text_stays_text(page: Tab) -> None:
    await page.may_copy()
    await page.open("plain")
    await page.page.evaluate(
        """async () => {
          const canvas = new OffscreenCanvas(40, 30);
          canvas.getContext("2d").fillRect(0, 0, 20, 20);
          const picture = await canvas.convertToBlob({ type: "image/png" });
          await navigator.clipboard.write([new ClipboardItem({ "image/png": picture })]);
        }"""
    )
    await page.page.focus("#composer")
    await page.page.keyboard.press("Control+v")
    await expect(page.page.locator(".attachments .file")).to_contain_text("image.png")
    await page.page.evaluate("navigator.clipboard.writeText('only words')")
    await page.page.keyboard.press("Control+v")
    await expect(page.page.locator("#composer")).to_have_value("only words")
    await expect(page.page.locator(".attachments .file")).to_have_count(1)
    await page.page.press("#composer", "Enter")
    await page.ended()
    await expect(page.page.locator(".person .file")).to_contain_text("image.png")


PROGRESS = """window.shares = {};
const look = () => {
  for (const bar of document.querySelectorAll('progress'))
    (window.shares[bar.getAttribute('aria-label')] ??= []).push(bar.value);
  requestAnimationFrame(look);
};
look();"""


@pytest.mark.long
async def test_the_progress_of_each_upload_is_seen(page: Tab, tmp_path: Path) -> None:
    """On a slow line: both at once, neither goes back, and nothing is sent before they are there."""
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"0" * 400_000)
    await page.page.add_init_script(PROGRESS)
    await page.open("plain")
    session = await page.page.context.new_cdp_session(page.page)
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 400_000}
    await session.send("Network.enable")
    await session.send("Network.emulateNetworkConditions", slow)
    await page.page.set_input_files("[data-attach]", [str(tmp_path / name) for name in ("a.bin", "b.bin")])
    await page.page.fill("#composer", "Look")
    bars = page.page.get_by_role("progressbar")
    await expect(bars).to_have_count(2)
    await expect(page.page.get_by_role("button", name="Send")).to_be_disabled()
    await expect(bars).to_have_count(0)
    await expect(page.page.get_by_role("button", name="Send")).to_be_enabled()
    shares = await page.page.evaluate("window.shares")
    assert shares.keys() == {"Uploading a.bin", "Uploading b.bin"}
    for values in shares.values():
        assert any(0 < value < 1 for value in values)
        assert values == sorted(values)


async def test_conversations_are_found_renamed_pinned_and_deleted_with_undo(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("The zebra crosses")
    await page.ended()
    thread = page.thread
    row = page.page.locator("li.thread.current")
    await row.hover()
    await row.get_by_role("button").click()
    await page.page.get_by_role("menuitem", name="Rename").click()
    await page.page.locator(".rename input").fill("Stripes")
    await page.page.locator(".rename input").press("Enter")
    await expect(row).to_contain_text("Stripes")
    await row.get_by_role("button").click()
    await page.page.get_by_role("menuitem", name="Pin").click()
    await expect(page.page.get_by_role("heading", name="Pinned")).to_be_visible()
    await page.page.fill("#search", "zebra")
    await expect(page.page.locator("li.thread mark")).to_have_text("zebra", ignore_case=True)
    await page.page.fill("#search", "")
    await page.page.reload()
    await expect(page.page.get_by_role("heading", name="Pinned")).to_be_visible()  # its row is another one before
    await expect(row).to_contain_text("Stripes")
    await row.get_by_role("button").click()
    await page.page.get_by_role("menuitem", name="Delete").click()
    await expect(page.page.locator("li.thread", has_text="Stripes")).to_have_count(0)
    await page.page.get_by_role("button", name="Undo").click()
    await expect(row).to_contain_text("Stripes")
    assert (await site.ask("GET", f"/threads/{thread}"))["thread_id"] == thread


async def test_a_draft_is_kept_for_each_conversation_until_the_server_has_it(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.page.fill("#composer", "A thought")
    await page.page.reload()
    await expect(page.page.locator("#composer")).to_have_value("A thought")
    await page.page.route("**/runs", lambda route: route.abort())
    await page.page.press("#composer", "Enter")
    await expect(page.page.locator(".toast")).to_contain_text("cannot be reached")
    await expect(page.page.locator("#composer")).to_have_value("A thought")
    await page.page.reload()
    await expect(page.page.locator("#composer")).to_have_value("A thought")
    await page.page.unroute("**/runs")
    await page.page.press("#composer", "Enter")
    await page.ended()
    assert await page.shown() == ["A thought", "One two three."]
    await page.page.reload()
    await page.ended()
    await expect(page.page.locator("#composer")).to_have_value("")


async def test_slash_offers_commands_and_skills_and_at_offers_files(page: Tab, site: Site) -> None:
    await page.open("tools")
    await page.say("Make a file")
    await page.ended()
    await page.page.fill("#composer", "/")
    choices = page.page.get_by_role("listbox")
    await expect(choices.get_by_role("option", name="/goal")).to_be_visible()
    await page.page.fill("#composer", "/exp")
    await page.page.press("#composer", "Enter")
    await expect(page.page.get_by_role("dialog", name="Export")).to_be_visible()
    await page.page.keyboard.press("Escape")
    await expect(page.page.get_by_role("dialog")).to_have_count(0)
    await page.page.locator("#composer").press_sequentially("See @a.t")
    await expect(choices.get_by_role("option")).to_have_text("workspace/a.txt")
    await page.page.press("#composer", "Tab")
    await expect(page.page.locator("#composer")).to_have_value("See /mnt/user-data/workspace/a.txt ")


async def test_a_conversation_is_exported_as_markdown_and_as_json(page: Tab) -> None:
    await page.open("tools")
    await page.say("Export this")
    await page.ended()
    texts = {}
    for kind in ("Markdown", "JSON"):
        await page.page.get_by_role("button", name="This conversation").click()
        await page.page.get_by_role("menuitem", name="Export").click()
        async with page.page.expect_download() as waiting:
            await page.page.get_by_role("dialog").get_by_role("button", name=kind).click()
        texts[kind] = Path(await (await waiting.value).path()).read_text()
    assert "## You\n\nExport this" in texts["Markdown"]
    assert "## Sika\n\nAll is done." in texts["Markdown"]
    types = [message["type"] for message in json.loads(texts["JSON"])["messages"]]
    assert types.count("tool") >= 5


@pytest.mark.long
async def test_a_goal_is_in_view(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Begin")
    await page.ended()
    await page.page.fill("#composer", "/goal")
    await page.page.press("#composer", "Enter")
    await page.page.get_by_role("dialog").get_by_role("textbox").fill("All tests are green")
    await page.page.get_by_role("dialog").get_by_role("button", name="Save").click()
    await expect(page.page.locator(".goal")).to_contain_text("All tests are green")


async def test_todos_and_what_runs_elsewhere_are_in_view(page: Tab, site: Site) -> None:
    await page.open("plans")
    await page.say("Plan")
    await expect(page.page.locator(".todos-line")).to_contain_text("1 of 2 done")
    await expect(page.page.locator(".todos-line")).to_contain_text("Write it down")
    planning = page.page.locator("li.thread", has=page.page.locator(f"a[href='#/t/{page.thread}']"))
    await page.page.get_by_role("link", name="Sika").click()
    await expect(page.page.locator(".working-now")).to_contain_text("at work")
    await expect(planning.locator(".mark.busy")).to_be_visible()
    await planning.click()
    await expect(page.page.locator(".todos-line")).to_contain_text("1 of 2 done")
    site.models.release("plans")
    await page.ended()


async def test_everything_is_done_by_keys_and_the_keys_are_named(page: Tab) -> None:
    await page.open("plain")
    await expect(page.page.locator("#composer")).to_be_focused()
    await page.page.keyboard.press("Escape")
    await page.page.locator("main").click(position={"x": 600, "y": 5})
    await page.page.keyboard.press("?")
    dialog = page.page.get_by_role("dialog", name="Keys")
    await expect(dialog).to_be_visible()
    await page.page.keyboard.press("Escape")
    await expect(page.page.locator("dialog")).to_have_count(0)
    await page.page.keyboard.press("Control+k")
    await expect(page.page.locator("#search")).to_be_focused()
    await page.page.locator("body").press("Control+b")
    await expect(page.page.locator("nav.sidebar")).to_have_count(0)
    chooser = page.page.get_by_role("button", name="Mode: Pro")
    await chooser.focus()
    await page.page.keyboard.press("ArrowDown")
    await expect(page.page.get_by_role("menuitemradio", name="Pro")).to_be_focused()
    await page.page.keyboard.press("ArrowDown")
    await page.page.keyboard.press("Enter")
    await expect(page.page.get_by_role("button", name="Mode: Ultra")).to_be_focused()


async def test_on_a_slow_machine_the_focus_does_not_go_back_to_where_it_was_before_a_dialog(page: Tab) -> None:
    """Who goes on at once after a dialog stays where they went."""
    await page.open("plain")
    devtools = await page.page.context.new_cdp_session(page.page)
    await devtools.send("Emulation.setCPUThrottlingRate", {"rate": 12})
    await page.page.locator("main").click(position={"x": 600, "y": 5})
    await page.page.keyboard.press("?")
    await expect(page.page.get_by_role("dialog", name="Keys")).to_be_visible()
    await page.page.keyboard.press("Escape")
    await expect(page.page.locator("dialog")).to_have_count(0)
    await page.page.keyboard.press("Control+k")
    search = page.page.locator("#search")
    await expect(search).to_be_focused()
    for _ in range(20):
        await page.page.evaluate("new Promise(requestAnimationFrame)")
    await expect(search).to_be_focused(timeout=1)


@pytest.mark.long
async def test_chinese_is_spoken(chromium: Browser, site: Site) -> None:
    async with tab(chromium, site, viewport={"width": 390, "height": 800}) as page:
        await page.open("plain", language="zh")
        await expect(page.page.locator("html")).to_have_attribute("lang", "zh-CN")
        await page.say("你好")
        await page.ended()
        assert await page.shown() == ["你好", "One two three."]
        wide = await page.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide


@pytest.mark.long
async def test_nothing_is_lost_when_two_say_something_at_once(page: Tab, site: Site) -> None:
    await working(page, "pairs")
    await site.ask(
        "POST",
        f"/threads/{page.thread}/runs",
        {
            "input": {"messages": [{"role": "user", "content": "From elsewhere"}]},
            "context": {"model_name": "plain"},
            "multitask_strategy": "enqueue",
        },
    )
    await expect(page.page.locator(".queue")).to_contain_text("From elsewhere")
    site.models.release("pairs")
    await page.ended(2)

    async def same() -> bool:
        return await page.shown() == await site.texts(page.thread)

    await wait_for(same)


@pytest.mark.long
async def test_a_dialog_that_follows_another_at_once_stays(page: Tab) -> None:
    """The browser tells that a dialog was closed later than it closes it."""
    await page.open()
    await page.say("Speak")
    await page.ended()
    await page.say("/export")
    await expect(page.page.get_by_role("dialog", name="Export")).to_be_visible()
    await page.page.evaluate(
        """async () => {
          const closed = new Promise((resolve) => document.querySelector('dialog').addEventListener('close', resolve));
          document.querySelector('dialog').close();
          document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '?', bubbles: true}));
          await closed;
          await new Promise((resolve) => requestIdleCallback(resolve));
        }"""
    )
    await expect(page.page.get_by_role("dialog", name="Keys")).to_be_visible()
