"""The overview for operators, section by section, on two servers of one cluster: what it shows and does, and who sees
nothing of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.async_api import Browser, Locator, Request, expect

from channels.web import assets
from core.bus import embedded
from tests.e2e.servers import Server, serving
from tests.page.site import Site, Tab, bash, tab, violations
from tests.page.test_hostile import POLICY, PROVOKE
from tests.support.model_server import Failure, ModelServer, Script, Turn
from tests.support.workers import configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.long(keep=4)]

README = Path(__file__).parents[2] / "README.md"
PICTURE = Path(assets.__file__).parent / "pictures/operate.png"
LARGEST = 150_000
PASSWORD = "correct horse battery"
ROOT, ADA = "root@example.org", "ada@example.org"
SECRET = "sk-the-key-of-the-file-4711"
MARKUP = "<img src=x onerror=canary()>\u202ereversed"
STATUSES = {"refused": (401, "invalid_api_key"), "absent": (404, "model_not_found"), "broken": (400, "bad_request")}
SCRIPTS: dict[str, Script | list[Turn]] = {
    "plain": [Turn(text="One two three.")],
    "works": [Turn(tool_calls=(bash("sleep 0.2"),)), Turn(text="Done.")],
    "held": [Turn(text="One two three four.", gate="held", gate_after=1)],
    **{
        name: [Turn(error=Failure(status=status, message=f"{name} {MARKUP}", code=code))]
        for name, (status, code) in STATUSES.items()
    },
}
SECTIONS = {
    "now": ".tiles",
    "failures": ".groups > li",
    "letters": ".letters > li",
    "processes": ".process table",
    "speed": "table",
    "usage": ".chart",
    "health": ".checks > li",
    "changes": "table",
}
"""By the part of the address, what a section shows."""
ROUTES = [
    *[("GET", f"operations/{name}") for name in ("now", "failures", "calls", "changes")],
    *[("GET", path) for path in ("dlq", "doctor", "actors", "console/usage?all_users=true")],
    *[("POST", f"dlq/{name}") for name in ("redrive", "discard")],
]
ASK = """async ([method, path, body]) => {
  const token = decodeURIComponent(document.cookie.match(/csrf_token=([^;]*)/)?.[1] ?? '');
  const headers = { 'content-type': 'application/json', 'X-CSRF-Token': token };
  const response = await fetch('/api/' + path, { method, headers, ...(body ? { body: JSON.stringify(body) } : {}) });
  const text = await response.text();
  return { status: response.status, body: text ? JSON.parse(text) : null };
}"""


SETTLED = """() => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = resolve;
  port2.postMessage(0);
})"""
"""Waits for what the browser has to do, without a timer."""


class Place(NamedTuple):
    """Two servers that are one, and what the browsers keep of people who are signed in."""

    site: Site
    other: Server
    people: dict[str, Any]


class Operator:
    """A tab that shows a section."""

    def __init__(self, opened: Tab) -> None:
        self.tab, self.page, self.section = opened, opened.page, opened.page.locator(".operate-section")

    async def go(self, section: str) -> None:
        await self.page.goto(f"{self.tab.site.server.url}/#/operate/{section}")
        await expect(self.page.locator(".operate nav [aria-current]")).to_have_attribute("href", f"#/operate/{section}")
        await expect(self.section.locator(SECTIONS[section]).first).to_be_visible()

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """The answer of a route to the person who is signed in."""
        answer = await self.page.evaluate(ASK, [method, path, body])
        assert answer["status"] == status, (path, answer)
        return answer["body"]

    async def thread(self, title: str = "", poison: str = "") -> str:
        thread_id = str((await self.ask("POST", "threads", {}))["thread_id"])
        if title:
            await self.ask("POST", f"threads/{thread_id}/state", {"values": {"title": title}})
        if poison:
            await self.ask("PATCH", f"threads/{thread_id}", {"metadata": {"poison": poison}})
        return thread_id

    async def run(self, model: str, title: str = "", *, ended: bool = True) -> str:
        """Runs a model in a conversation of its own, to its end."""
        thread_id = await self.thread(title)
        body = {"input": {"messages": [{"role": "user", "content": "Go"}]}, "context": {"model_name": model}}
        run = (await self.ask("POST", f"threads/{thread_id}/runs", body))["run_id"]
        if ended:
            await self.page.evaluate(f"fetch('/api/threads/{thread_id}/runs/{run}/join').then(r => r.text())")
        return thread_id

    def tile(self, name: str) -> Locator:
        return self.section.locator(".tiles li", has_text=name).locator("strong")

    def letter(self, text: str) -> Locator:
        return self.section.locator(".letters > li", has_text=text)


@asynccontextmanager
async def signed_in(
    chromium: Browser, place: Place, email: str, language: str = "en", **more: Any
) -> AsyncIterator[Operator]:
    """A tab of somebody. It shows no secret, and no text of others runs."""
    async with tab(chromium, place.site, storage_state=place.people[email], **more) as opened:
        opened.expected += POLICY
        await opened.page.expose_binding("canary", lambda source, *words: opened.complaints.append("ran"))
        await opened.open(language=language)
        yield Operator(opened)
        assert SECRET not in await opened.page.content()


@pytest.fixture(scope="module")
async def place(
    tmp_path_factory: pytest.TempPathFactory, chromium: Browser, anyio_backend: str
) -> AsyncIterator[Place]:
    path: Path = tmp_path_factory.mktemp("operate")
    async with ModelServer(SCRIPTS) as models, embedded.start(path / "nats") as nats:
        settings: dict[str, Any] = {
            "auth": {"enabled": True, "registration": True},
            "http": {"heartbeat_seconds": 1},
            "nats": {"url": nats.url, "token": nats.token},
            "actors": ["tests.page.poison:Taster"],
        }
        prices = {"currency": "EUR", "input_per_million": 5000, "output_per_million": 5000}
        priced = {"name": "priced", "model": "plain", "base_url": models.url, "api_key": SECRET, "pricing": prices}
        config = configure(path / "config.yaml", models, more_models=[priced], **settings)
        async with serving(path / "home", config, name="a") as a, serving(path / "home", config, name="b") as b:
            site, kept = Site(a, models), dict[str, Any]()
            for how, email in (("initialize", ROOT), ("register", ADA)):
                async with tab(chromium, site) as opened:
                    url, who = f"{a.url}/api/v1/auth/{how}", {"email": email, "password": PASSWORD}
                    assert (await opened.page.context.request.post(url, data=who)).ok
                    kept[email] = await opened.page.context.storage_state()
            yield Place(site, b, kept)


@pytest.fixture
async def root(chromium: Browser, place: Place) -> AsyncIterator[Operator]:
    async with signed_in(chromium, place, ROOT) as operator:
        yield operator


async def test_a_member_sees_nothing_of_it(chromium: Browser, place: Place) -> None:
    async with signed_in(chromium, place, ADA) as ada:
        await ada.page.locator(".sidebar-foot [aria-haspopup=menu]").last.click()
        await expect(ada.page.get_by_role("menuitem", name="Settings")).to_be_visible()
        await expect(ada.page.get_by_role("menuitem", name="Operations")).to_have_count(0)
        await ada.page.goto(f"{place.site.server.url}/#/operate/letters")
        await expect(ada.page.locator(".operate.gone")).to_have_text("Only administrators see this.")
        await expect(ada.page.locator(".operate-section, .operate nav")).to_have_count(0)
        for method, path in ROUTES:
            await ada.ask(method, path, {"letters": []} if method == "POST" else None, status=403)


async def test_the_chat_loads_nothing_of_it(root: Operator) -> None:
    urls: list[str] = []

    def note(request: Request) -> None:
        urls.append(request.url.rpartition("/")[2].partition("-")[0])

    root.page.on("request", note)
    await root.page.reload()
    await expect(root.page.locator(".try")).to_have_count(4)
    assert not [url for url in urls if "operate" in url]
    await root.page.locator(".sidebar-foot [aria-haspopup=menu]").last.click()
    await root.page.get_by_role("menuitem", name="Operations").click()
    await expect(root.section.locator(".tiles")).to_be_visible()
    assert urls.count("operate") == 2, "its script and its style"


async def test_what_runs_now_by_state_age_and_user(root: Operator, place: Place) -> None:
    await root.go("now")
    await expect(root.tile("running")).to_have_text("0")
    await root.run("held", MARKUP, ended=False)
    await expect(root.tile("running")).to_have_text("1")
    row = root.section.locator("tr", has_text="held")
    await expect(row).to_contain_text("<img src=x onerror=canary()>[U+202E]reversed")
    await expect(row).to_contain_text(ROOT)
    await root.page.evaluate(PROVOKE, ["main", True])
    place.site.models.release("held")
    await expect(root.tile("running")).to_have_text("0")


async def test_runs_that_fail_are_grouped_by_their_reason_and_lead_to_their_conversation(root: Operator) -> None:
    for model in ("refused", "refused", "absent", "broken"):
        thread_id = await root.run(model, f"{model} {MARKUP}")
    await root.go("failures")
    groups = root.section.locator(".groups > li")
    await expect(groups).to_have_count(len(STATUSES))
    await expect(groups.first).to_contain_text("2 runs · 1 user · refused")
    await root.page.evaluate(PROVOKE, ["main", True])
    broken = root.section.locator(".groups > li", has_text="· broken ·")
    await broken.get_by_role("link", name="timeline").click()
    await root.page.wait_for_url(f"**/#/timeline/{thread_id}")
    await expect(root.page.locator("#main")).not_to_be_empty()
    await root.go("failures")
    await broken.locator(".examples a").first.click()
    await expect(root.page.locator(".error-card")).to_be_visible()
    assert root.tab.thread == thread_id


async def test_a_poisoned_event_is_a_dead_letter_that_is_sent_again_by_a_click(root: Operator, place: Place) -> None:
    poisoned = await root.thread(poison=f"{MARKUP} {SECRET}")
    await root.go("letters")
    letter = root.letter("cannot swallow")
    await expect(letter).to_have_count(1)
    await expect(letter).to_contain_text("<img src=x onerror=canary()>[U+202E]reversed ***")
    await expect(letter).to_contain_text(f"thread/{poisoned}")
    await root.page.evaluate(PROVOKE, ["main", True])
    place.site.server.ledger.with_name("antidote").touch()
    await letter.get_by_role("button", name="Send again").click()
    await letter.get_by_role("button", name="Really send it again?").click()
    await expect(letter).to_have_count(0)

    async def swallowed() -> bool:
        return poisoned in place.site.server.signed()

    await wait_for(swallowed)
    place.site.server.ledger.with_name("antidote").unlink()
    await root.go("changes")
    row = root.section.locator("tr", has_text="letter.redriven")
    await expect(row).to_contain_text(ROOT)
    await expect(row).to_contain_text(f"wakes: taster, about: thread/{poisoned}")


async def test_a_dead_letter_is_discarded_unless_that_is_undone(root: Operator) -> None:
    thread_id = await root.thread(poison="discarded")
    await root.go("letters")
    letter = root.letter(thread_id)
    await letter.get_by_role("button", name="Discard").click()
    await expect(letter).to_have_count(0)
    await root.page.locator(".toast").get_by_role("button", name="Undo").click()
    await expect(letter).to_have_count(1)
    assert thread_id in str(await root.ask("GET", "dlq"))
    await letter.get_by_role("button", name="Discard").click()
    await root.page.reload()  # who leaves means it

    async def gone() -> bool:
        return thread_id not in str(await root.ask("GET", "dlq"))

    await wait_for(gone)
    changes = await root.ask("GET", "operations/changes?limit=1")
    assert [(one["type"], one["by_name"]) for one in changes["changes"]] == [("letter.discarded", ROOT)]


async def test_each_process_is_shown_with_its_load(root: Operator, place: Place) -> None:
    await root.go("processes")
    await expect(root.section.locator(".process")).to_have_count(2)
    for server in (place.site.server, place.other):
        process = root.section.locator(".process", has_text=f"pid {server.process.pid}")
        load = await process.locator(".process-load").inner_text()
        assert re.fullmatch(r"[\d.]+ ?MB, [\d.]+ % of a processor", load)
        await expect(process.locator("tr", has_text="taster")).to_have_count(1)


@pytest.mark.long
async def test_queue_depth_and_lag_by_actor(root: Operator, place: Place) -> None:
    antidote = place.site.server.ledger.with_name("antidote")
    eaten = [await root.thread(poison="tough") for _ in range(40)]
    await root.go("processes")
    queue = root.section.get_by_role("region", name="Wake-ups in the queue").locator("tr", has_text="taster")
    await expect(queue).to_have_count(1)

    async def deep() -> bool:
        waiting, at_work, lag = await backlog(queue)
        return (
            int(waiting) > 0 and int(waiting) + int(at_work) <= len(eaten) and bool(re.match(r"[\d.]+ (ms|s|min)", lag))
        )

    await wait_for(deep)
    antidote.touch()
    await expect(queue).to_have_count(0)
    antidote.unlink()


async def backlog(row: Locator) -> list[str]:
    """How many wake-ups of an actor wait, how many are at work, and for how long the first one waits."""
    return await row.locator("td").all_inner_texts() or ["0", "0", ""]


async def test_slow_tools_and_models(root: Operator) -> None:
    await root.run("works")
    await root.go("speed")
    tool = root.section.get_by_role("region", name="Tools").locator("tr", has_text="bash")
    await expect(tool).to_have_count(1)
    assert (await tool.locator("td").all_inner_texts())[4:] == ["1", "0"]
    await expect(root.section.get_by_role("region", name="Models").locator("tr", has_text="works")).to_have_count(1)


async def test_tokens_and_cost_by_day_model_user_and_agent(root: Operator) -> None:
    await root.run("priced")
    await root.go("usage")
    for name, row in (("By user", ROOT), ("By model", "priced"), ("By agent", "lead_agent")):
        await expect(root.section.get_by_role("region", name=name).locator("tr", has_text=row)).to_contain_text("€")
    await expect(root.section.locator(".chart rect")).to_have_count(2 * 30)
    await root.section.get_by_text("As a table").click()
    await expect(root.section.get_by_role("region", name="Tokens by day").locator("tbody tr")).to_have_count(30)
    await root.section.get_by_role("button", name="7 days").click()
    await expect(root.section.locator(".chart rect")).to_have_count(2 * 7)


async def test_health_as_the_doctor_says_it(root: Operator) -> None:
    await root.go("health")
    for name in ("Python", "configuration", "data directory", "sandbox"):
        await expect(root.section.locator(".checks li strong", has_text=name).first).to_be_visible()
    await expect(root.section.locator(".check-fail, .check-warn").locator(".remedy").first).to_be_visible()


async def test_what_was_configured_when(root: Operator) -> None:
    await root.go("changes")
    row = root.section.locator("tr", has_text="configuration.applied").first
    await expect(row).to_contain_text('actors: ["tests.page.poison:Taster"]')
    await expect(row).to_contain_text('api_key: "***"')
    await expect(root.section.locator("tr", has_text="account.created")).to_have_count(2)


@pytest.mark.long
async def test_every_section_shows_what_others_changed_when_it_is_looked_at_again(root: Operator) -> None:
    await root.page.add_init_script(
        "{ const real = setTimeout; window.setTimeout = (act, ms = 0) => (ms < 1000 ? real(act, ms) : 0); }"
    )  # nothing is asked again but by somebody
    await root.page.reload()
    for name in SECTIONS:
        async with root.tab.asking() as first:
            await root.page.goto(f"{root.tab.site.server.url}/#/operate/{name}")
            here = root.page.locator(".operate nav [aria-current]")
            await expect(here).to_have_attribute("href", f"#/operate/{name}")
            await expect(root.section.locator(".quiet", has_text="Loading")).to_have_count(0)
        mine = {path for path in first if path.startswith(("operations/", "dlq", "actors", "doctor", "console/"))}
        assert mine, name
        await root.tab.asks_again(mine)


async def test_no_route_answers_a_secret(root: Operator) -> None:
    await root.thread(poison=f"again {SECRET}")

    async def buried() -> bool:
        return "again ***" in str(await root.ask("GET", "dlq"))

    await wait_for(buried)
    for method, path in ROUTES:
        if method == "GET":
            assert SECRET not in str(await root.ask(method, path)), path


async def test_what_is_shown_stays_while_the_server_is_out_of_reach(root: Operator) -> None:
    await root.go("now")
    await root.page.context.set_offline(True)
    await expect(root.section.get_by_role("alert").first).to_contain_text("What is shown is of")
    await expect(root.tile("running")).to_have_text("0")
    await root.page.context.set_offline(False)
    await expect(root.section.get_by_role("alert")).to_have_count(0)


async def test_it_asks_less_and_less_often_while_nothing_answers(root: Operator) -> None:
    """By the page's clock, which the test sets."""
    page = root.page
    await page.add_init_script(
        "window.asked = []; const sent = window.fetch; window.fetch = (...request) => {"
        " if (String(request[0]).includes('operations/now')) window.asked.push(Date.now());"
        " return sent(...request); };"
    )
    await page.clock.install()
    await page.reload()
    await root.go("now")
    await page.context.route("**/operations/now", lambda route: route.abort())
    for _ in range(60):
        await page.clock.fast_forward(2000)
        await page.evaluate(SETTLED)
    asked = await page.evaluate("window.asked")
    pauses = [(later - earlier) / 1000 for earlier, later in pairwise(asked)][1:]
    assert pauses[:3] == sorted(set(pauses[:3])), pauses
    assert min(pauses) >= 5
    assert len(asked) < 12
    await page.context.unroute("**/operations/now")
    await page.clock.fast_forward(60_000)
    await expect(root.section.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize(
    ("language", "more"),
    [
        ("en", {"color_scheme": "light"}),
        ("zh", {"color_scheme": "dark"}),
        pytest.param("en", {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}, marks=pytest.mark.long),
    ],
    ids=["light", "dark-zh", "narrow"],
)
async def test_each_section_keeps_the_rules(
    chromium: Browser, place: Place, language: str, more: dict[str, Any]
) -> None:
    async with signed_in(chromium, place, ROOT, language, **more) as operator:
        await operator.thread(poison="rules")
        await operator.run("refused")
        broken = {}
        for section in SECTIONS:
            await operator.go(section)
            if found := await violations(operator.tab):
                broken[section] = found
            sideways = "document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
            assert not await operator.page.evaluate(sideways), section
            keys = await operator.page.evaluate("document.body.innerText.match(/operate\\.\\w+/g)")
            assert keys is None, "texts that are missing"
        assert broken == {}


async def test_it_is_seen_in_the_readme(chromium: Browser, place: Place, tmp_path: Path) -> None:
    async with signed_in(chromium, place, ROOT, viewport={"width": 1120, "height": 700}) as operator:
        for model, title in (("priced", "Compare our cities"), ("works", "Tidy up"), ("priced", "Read the report")):
            await operator.run(model, title)
        await operator.go("usage")
        await expect(operator.section.locator(".chart")).to_be_visible()
        picture = await operator.page.screenshot(
            path=PICTURE if os.environ.get("SIKA_PICTURES") else tmp_path / "operate.png"
        )
    assert len(picture) < LARGEST
    assert f"({PICTURE.relative_to(README.parent)})" in README.read_text()
    assert PICTURE.read_bytes().startswith(b"\x89PNG")
