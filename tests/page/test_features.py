"""What people meet beside messages: suggestions, subagents, agents of their own, costs, retries, goals."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.servers import serving
from tests.page.site import Site, Tab, bash, gated
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

TASK = {"description": "Count the cities", "prompt": "How many are there?", "subagent_type": "general-purpose"}
BUSY = Failure(status=429, message="Too many requests", headers={"retry-after": "0"})
SCRIPTS: dict[str, Script | list[Turn]] = {
    "plain": [Turn(text="One two three.")],
    "suggests": [Turn(text=json.dumps(["And of Graz?", "<b>And of Bern?</b>"]))],
    "delegates": [Turn(tool_calls=(ToolCall("task", TASK),)), Turn(text="There are two.")],
    "counts": [
        Turn(text="I list them.", tool_calls=(bash("printf 'Bern\\nGraz\\n'"),)),
        Turn(text="**Two** cities are in the list.", gate="counts", gate_after=2),
    ],
    "priced": [Turn(text="Dear.", prompt_tokens=1_000_000)],
    "retried": [],
    "steered": Script(tuple(gated("steered")), count="total"),
    "judges": [Turn(text='{"verdict": "met", "reason": "It is done."}')],
}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("features")
    async with ModelServer(SCRIPTS) as models:
        price = {"input_per_million": 2.5, "output_per_million": 10, "currency": "EUR"}
        entry = {"base_url": models.url, "api_key": "none", "model": "priced"}
        settings: dict[str, Any] = {
            "more_models": [{**entry, "name": "dear", "pricing": price}],
            "suggestions": {"model_name": "suggests"},
            "goals": {"model_name": "judges"},
            "subagents": {"agents": {"general-purpose": {"model": "counts"}}},
            "agents_api": {"enabled": True},
            "http": {"heartbeat_seconds": 1},
        }
        config = configure(path / "config.yaml", models, **settings)
        async with serving(path / "home", config) as server:
            site = Site(server, models)
            await site.ask("POST", "/agents", {"name": "poet", "description": "Rhymes", "soul": "You only rhyme."})
            yield site


async def test_what_may_come_next_is_suggested_to_those_who_said_something(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("How many people live in Wien?")
    await page.ended()
    group = page.page.get_by_role("group", name="What you may ask next")
    await expect(group.get_by_role("button")).to_have_text(["And of Graz?", "<b>And of Bern?</b>"])
    await page.page.reload()
    await group.get_by_role("button", name="And of Graz?").click()
    await page.ended(2)
    assert (await page.shown())[2:] == ["And of Graz?", "One two three."]
    await expect(group.get_by_role("button")).to_have_count(2)
    await site.run(page.thread, "From a program", "plain")
    await page.ended(3)
    await expect(group).to_have_count(0)


async def test_a_subagent_is_a_card_that_opens_into_its_conversation(page: Tab, site: Site) -> None:
    await page.open("delegates")
    await page.page.get_by_role("button", name="Mode: Pro").click()
    await page.page.get_by_role("menuitemradio", name="Ultra").click()
    await page.say("Count")
    card = page.page.locator(".subagent-card")
    await expect(card).to_contain_text("Count the cities")
    await expect(card.locator("small")).to_have_text(re.compile("^Two cities"))  # while it is written, without marks
    await expect(card.locator(".step-state")).not_to_have_text(re.compile("Done"))
    assert await page.page.locator(".answer.growing").count() <= 1, "it is no answer of the conversation"
    site.models.release("counts")
    await page.ended()
    await expect(card.locator("small")).to_have_text("Two cities are in the list.")
    await expect(card.locator(".step-state")).to_have_text(re.compile("Done"))
    await card.click()
    dialog = page.page.get_by_role("dialog", name="Count the cities")
    await expect(dialog.locator(".person")).to_contain_text("How many are there?")
    await expect(dialog.locator(".answer strong")).to_have_text("Two")
    await dialog.locator(".step-line").click()
    await expect(dialog.locator(".step-details")).to_contain_text("Graz")
    await page.page.keyboard.press("Escape")
    await expect(card).to_be_focused()
    await page.page.reload()
    await expect(card).to_contain_text("Two cities are in the list.")


async def test_an_agent_that_was_made_answers_when_it_is_chosen(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.page.get_by_role("button", name="Agent: ").click()
    await page.page.get_by_role("menuitemradio", name="poet").click()
    await page.page.reload()
    await expect(page.page.get_by_role("button", name="Agent: poet")).to_be_visible()
    await page.say("Speak")
    await page.ended()
    [requested] = [
        one for one in await site.ask("GET", f"/threads/{page.thread}/log") if one["type"] == "run.requested"
    ]
    assert requested["context"]["agent_name"] == "poet"


async def test_what_a_run_used_and_cost_is_said_at_once_and_after_a_reload(page: Tab) -> None:
    await page.open("dear")
    await page.say("Spend")
    await page.ended()
    end = page.page.locator(".run-end")
    await expect(end).to_contain_text("€2.50")
    await expect(end).to_contain_text("1M tokens")
    text = await end.inner_text()
    await page.page.reload()
    await expect(end).to_have_text(text)
    await expect(page.page.locator(".context")).to_contain_text("1M")


@pytest.mark.long
async def test_of_a_model_without_price_or_window_only_tokens_are_said(page: Tab) -> None:
    await page.open("plain")
    await page.say("Spend")
    await page.ended()
    end = page.page.locator(".run-end")
    await expect(end.locator("span")).to_have_text(re.compile(r"^plain · .* · \d+ tokens$"))
    await expect(page.page.locator(".context")).to_have_attribute("title", re.compile(r"^\d+ tokens of context used$"))
    text = await page.page.inner_text("main")
    for wrong in ("%", "$", "€", "null", "NaN", "undefined"):
        assert wrong not in text
    await page.page.get_by_role("button", name="Model: plain").click()
    entry = page.page.get_by_role("menuitemradio", name="plain")
    assert (await entry.inner_text()).strip() == "plain"


async def test_a_retry_is_announced_until_its_answer_comes(page: Tab, site: Site) -> None:
    requests: list[Any] = []
    again = asyncio.Event()

    async def retried(request: dict[str, Any]) -> Turn:
        requests.append(request)
        if len(requests) == 1:
            return Turn(error=BUSY)
        await again.wait()
        return gated("retried")[0]

    site.models.live["retried"] = retried
    await page.open("retried")
    await page.say("Try")
    now = page.page.locator(".now")
    await expect(now).to_contain_text("1 of")
    again.set()
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    await expect(now).to_have_count(0)
    site.models.release("retried")
    await page.ended()
    assert len(requests) == 2
    await expect(now).to_have_count(0)


async def test_control_enter_steers_at_once(page: Tab, site: Site) -> None:
    await page.open("steered")
    await page.say("Go slowly")
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    await page.page.fill("#composer", "Be brief")
    await page.page.press("#composer", "Control+Enter")
    await expect(page.page.locator(".queue")).to_contain_text("Be brief")
    site.models.release("steered")
    await page.ended()
    assert [(await page.shown())[place] for place in (0, 2, 3)] == ["Go slowly", "Be brief", "Understood."]


async def test_a_goal_is_in_view_until_it_is_reached(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Begin")
    await page.ended()
    await page.page.fill("#composer", "/goal")
    await page.page.press("#composer", "Enter")
    await page.page.get_by_role("dialog").get_by_role("textbox").fill("All is said")
    await page.page.get_by_role("dialog").get_by_role("button", name="Save").click()
    await expect(page.page.locator(".goal")).to_contain_text("All is said")
    await page.say("Say it")
    await page.ended(2)
    await expect(page.page.locator(".goal")).to_have_count(0)
    note = page.page.locator(".note")
    await expect(note).to_have_text("The goal is reached. It is done.")
    await page.page.reload()
    await expect(note).to_have_text("The goal is reached. It is done.")


@pytest.mark.long
async def test_a_goal_is_set_changed_and_given_up(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Begin")
    await page.ended()
    goal = page.page.locator(".goal")
    dialog = page.page.get_by_role("dialog", name="Goal")
    for text in ("All tests are green", "All tests are green, and fast"):
        await page.page.fill("#composer", "/goal")
        await page.page.press("#composer", "Enter")
        await dialog.get_by_role("textbox").fill(text)
        await dialog.get_by_role("button", name="Save").click()
        await expect(goal).to_contain_text(text)
    await page.page.reload()
    await expect(goal).to_contain_text("and fast")
    await page.page.fill("#composer", "/goal")
    await page.page.press("#composer", "Enter")
    await dialog.get_by_role("button", name="Give the goal up").click()
    await expect(goal).to_have_count(0)
    assert (await site.ask("GET", f"/threads/{page.thread}/goal"))["goal"] is None
