"""Texts of others beside messages: to-dos, the queue, a subagent and its conversation, suggestions, changes of files,
what a search finds. Each payload of the table is on each of them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect

from core.ids import uuid7
from tests.e2e.servers import serving
from tests.page.site import Site, Tab, bash
from tests.page.test_hostile import FINDINGS, HIDDEN, MARKDOWN, MARKUP, PROVOKE, TEXTS, TURNED, watched, written
from tests.page.test_hostile_dialogs import READ
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import configure, reaching, wait_for

pytestmark = pytest.mark.anyio

PAYLOADS = list(
    dict.fromkeys((*MARKUP, *MARKDOWN, *TEXTS, f"{TEXTS[0]}{TURNED}", "\x1b[31mred", "tag\U000e0041\U000e0042"))
)
OF_FILES = [payload.replace("/", "⁄").replace("\n", " ")[:80] for payload in PAYLOADS]
"""Payloads that can name a file."""
AT_ONCE = 5
"""Suggestions of one answer."""
HITS = 30
"""Conversations that a search shows."""
FILES = base64.b64encode(json.dumps(dict(zip(OF_FILES, PAYLOADS, strict=True))).encode()).decode()
WRITE = (
    "python3 -c \"import base64, json, pathlib; [pathlib.Path('/mnt/user-data/outputs', name).write_text(text)"
    f" for name, text in json.loads(base64.b64decode('{FILES}')).items()]\""
)
TODOS = ToolCall("write_todos", {"todos": [{"content": payload, "status": "in_progress"} for payload in PAYLOADS]})
EVERY = " ".join(PAYLOADS)
DELEGATE = ToolCall("task", {"description": EVERY, "prompt": EVERY, "subagent_type": "general-purpose"})


def parts(size: int) -> list[Sequence[str]]:
    return [PAYLOADS[start : start + size] for start in range(0, len(PAYLOADS), size)]


def worked() -> Iterator[Turn]:
    """What the subagent says and calls: each payload as its words, and as an argument."""
    for n, payload in enumerate(PAYLOADS):
        args = {"description": payload, "path": f"/mnt/user-data/workspace/{n}.txt", "content": payload}
        yield Turn(text=f"{payload}\n\nend{n}", tool_calls=(ToolCall("write_file", args),))
    yield Turn(text=EVERY)


def suggested(messages: Sequence[dict[str, Any]]) -> Turn:
    """The suggestions of the part that the conversation asks for; of the first, if it asks for none."""
    numbers = re.findall(r"part (\d+)", json.dumps(messages)) or ["0"]
    return Turn(text=json.dumps(parts(AT_ONCE)[int(numbers[-1])]))


SCRIPTS: dict[str, Any] = {
    "plans": [Turn(tool_calls=(TODOS,)), Turn(text="Planned.", gate="plans")],
    "queues": [Turn(text="Later.", gate="queues")],
    "delegates": [Turn(tool_calls=(DELEGATE,)), Turn(text="Done.")],
    "works": list(worked()),
    "writes": [Turn(tool_calls=(bash(WRITE),)), Turn(text="Written.")],
    "suggests": suggested,
}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("beside")
    async with ModelServer(SCRIPTS) as models:
        settings: dict[str, Any] = {
            "suggestions": {"model_name": "suggests", "max_suggestions": AT_ONCE},
            "subagents": {"agents": {"general-purpose": {"model": "works", "max_turns": 2 * len(PAYLOADS)}}},
            "http": {"heartbeat_seconds": 1},
        }
        async with serving(path / "home", configure(path / "config.yaml", models, **settings)) as server:
            yield Site(server, models)


@pytest.fixture
async def page(chromium: Browser, site: Site) -> AsyncIterator[Tab]:
    async with watched(chromium, site) as opened:
        yield opened


async def harmless(page: Tab) -> None:
    """What is on the screen runs nothing, brings no element or attribute, and has no character that nobody sees."""
    await page.page.evaluate(PROVOKE, ["#page", True])
    assert await page.page.evaluate(FINDINGS) == []
    values: str = await page.page.evaluate(READ)
    assert HIDDEN.findall(values) == []


def readable(text: str) -> str:
    """The text as the page shows it where it is only a text."""
    return HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)


async def shows(place: Locator, texts: Sequence[str]) -> None:
    """Each of the elements gets its text, letter by letter."""
    await expect(place).to_have_count(len(texts))

    async def wrong() -> Sequence[tuple[str, str]]:
        contents = await place.evaluate_all("all => all.map((element) => element.textContent)")
        pairs = zip_longest(texts, contents, fillvalue="")
        return [(text, content) for text, content in pairs if readable(text) not in content]

    await reaching(wrong, lambda pairs: not pairs)


async def test_to_dos(page: Tab, site: Site) -> None:
    await page.open("plans")
    await page.say("Plan")
    await expect(page.page.locator(".todos-now")).to_have_text(PAYLOADS[0])
    await page.page.locator(".todos-line").click()
    await shows(page.page.locator(".todos li"), PAYLOADS)
    await harmless(page)
    site.models.release("plans")


async def test_the_queue(page: Tab, site: Site) -> None:
    await page.open("queues")
    await page.say("Wait")
    await page.page.wait_for_url("**/#/t/*")
    for payload in PAYLOADS:
        message = {"type": "human", "content": payload}
        body = {"input": {"messages": [message]}, "context": {"model_name": "queues"}, "multitask_strategy": "enqueue"}
        await site.ask("POST", f"/threads/{page.thread}/runs", body)
    await shows(page.page.locator(".queue li"), PAYLOADS)
    await harmless(page)


@pytest.mark.long
async def test_a_subagent_and_its_conversation(page: Tab) -> None:
    await page.open("delegates")
    await page.page.get_by_role("button", name="Mode: Pro").click()
    await page.page.get_by_role("menuitemradio", name="Ultra").click()
    await page.say("Delegate")
    card = page.page.locator(".subagent-card")
    await expect(card.locator("strong")).to_contain_text(PAYLOADS[0])
    await harmless(page)
    await page.ended()
    await card.click()
    dialog = page.page.get_by_role("dialog")
    await shows(dialog.locator(".person .bubble"), [EVERY])
    await expect(dialog.locator(".answer .markdown")).to_have_count(len(PAYLOADS) + 1)
    await expect(dialog.locator(".step-line")).to_have_count(len(PAYLOADS))
    await harmless(page)
    await expect(dialog.locator(".step-details")).to_have_count(len(PAYLOADS))
    await harmless(page)


@pytest.mark.long
async def test_suggestions(page: Tab, site: Site) -> None:
    thread = await written(site, [{"type": "human", "content": "x"}, {"type": "ai", "content": "y"}])
    await page.open(place=f"t/{thread}")
    group = page.page.get_by_role("group", name="What you may ask next")
    for number, part in enumerate(parts(AT_ONCE)):
        body = {"messages": [{"role": "user", "content": f"part {number}"}], "n": AT_ONCE}
        await site.ask("POST", f"/threads/{thread}/suggestions", body)
        lines = [" ".join(text.split()) for text in part]
        await expect(group.get_by_role("button").first).to_have_text(readable(lines[0]))
        await shows(group.get_by_role("button"), lines)
        await harmless(page)


@pytest.mark.long
async def test_changes_of_files(page: Tab, site: Site) -> None:
    await page.open("writes")
    await page.say(TEXTS[0])
    await page.ended()
    [run] = await site.ask("GET", f"/threads/{page.thread}/runs")

    async def looked_at() -> bool:
        path = f"/threads/{page.thread}/runs/{run['run_id']}/workspace-changes"
        return bool((await site.ask("GET", path))["available"])

    await wait_for(looked_at)
    await page.page.goto(f"{site.server.url}/#/files/{page.thread}")
    room = page.page.locator(".files-room")
    await expect(room.get_by_role("link", name=readable(OF_FILES[0])).first).to_be_visible()
    await harmless(page)
    await room.get_by_role("button", name="Changes").click()
    await expect(room.locator("summary")).to_contain_text(TEXTS[0])
    await expect(room.locator(".change")).to_have_count(len(set(OF_FILES)))
    names = await room.locator(".change bdi").evaluate_all("all => all.map((element) => element.textContent)")
    assert {readable(name) for name in OF_FILES} <= {name.rpartition("/")[2] for name in names}
    await harmless(page)


async def test_what_a_search_finds(page: Tab, site: Site) -> None:
    for number, part in enumerate(parts(HITS)):
        for payload in part:
            said = [{"id": str(uuid7()), "type": "human", "content": f"needle{number} {payload}"}]
            await written(site, said, payload)
    await page.open()
    for number, part in enumerate(parts(HITS)):
        await page.page.fill("#search", f"needle{number}")
        await expect(page.page.locator("li.thread")).to_have_count(len(part))
        await expect(page.page.locator("li.thread small mark").first).to_have_text(f"needle{number}")
        await shows(page.page.locator("li.thread .thread-title"), list(reversed(part)))
        await harmless(page)
