"""Slack's assistant pane and its thumbs: whole uses, with the agent itself at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from channels.http.app import Services, serve
from channels.slack.platform import MOST_PROMPTS, PROMPTS, connect
from core.chat.connections import Connections
from core.chat.facts import BAD, GOOD, conversation
from core.config.load import ConfigSource
from core.errors import Invalid
from core.events import FeedbackGiven, thread
from tests.channels.contract.seats import Slack
from tests.channels.contract.test_memory import team
from tests.channels.slack.server import SlackServer
from tests.channels.slack.support import listening

pytestmark = pytest.mark.anyio


async def test_a_conversation_in_the_pane_from_its_first_question_to_the_thumbs(tmp_path: Path) -> None:
    async with team(Slack(), tmp_path, channel_connections={"enabled": True}) as here:
        server = cast(SlackServer, here.seat.server)
        ann, chat = server.person("ann"), server.chat("@ann").id
        connections = Connections(here.system.log, actor="test")
        await connections.bind(await connections.offer("default", "slack"), "slack", ann.id, "Ann")

        topic = ann.opens("general")
        await server.until(lambda: (chat, topic) in server.prompts)
        await ann.picks(topic, PROMPTS[0])
        ann.looks_at(topic, "random")
        await server.until(lambda: _has_thumbs(server, "@ann"))
        assert [seen.text for seen in server.answers("@ann", topic) if seen.ts != topic] == ["Noted."]
        assert server.titles[chat, topic] == PROMPTS[0]
        shown = [call.body["status"] for call in server.called("assistant.threads.setStatus")]
        assert shown[0], "a status before the answer"
        assert not server.statuses.get((chat, topic)), "and none after it"
        [prompt] = [record.body["messages"] for record in here.models.requests]
        assert "New Assistant Thread" not in str(prompt), "Slack's own message is nobody's"

        place = conversation("slack", chat, topic)
        state = await here.system.chats.load(place.id)
        [run] = [heard.run for heard in state.heard.values()]
        path = f"/api/threads/{state.thread}/runs/{run}/feedback"
        services = Services.of(here.system, ConfigSource(tmp_path / "config.yaml").current, tmp_path)
        async with serve(services, "127.0.0.1", 0) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            for button, count in ((GOOD, 1), (BAD, 2)):
                ann.presses("@ann", button.label)
                await server.until(lambda count=count: len(server.whispered.get((chat, ann.id), ())) == count)
                async with http.get(path) as response:
                    [opinion] = await response.json()
                assert (opinion["rating"], opinion["user_id"]) == ({GOOD: 1, BAD: -1}[button], "default")
        log = [record.event async for record in here.system.log.read(thread(state.thread))]
        assert [event.rating for event in log if isinstance(event, FeedbackGiven)] == [1, -1]
        assert not server.problems


async def test_each_person_of_a_group_has_an_opinion_of_an_answer(tmp_path: Path) -> None:
    async with team(Slack(), tmp_path) as here:
        server = cast(SlackServer, here.seat.server)
        topic = await server.person("ann").says("hello", chat="general", mention=True)
        await server.until(lambda: _has_thumbs(server, "general"))
        for name, button in (("ann", GOOD), ("bob", BAD), ("bob", BAD)):
            known = len(server.whispered.get((server.chat("general").id, server.person(name).id), ()))
            server.person(name).presses("general", button.label)
            await server.until(
                lambda name=name, known=known: (
                    len(server.whispered.get((server.chat("general").id, server.person(name).id), ())) > known
                )
            )
        state = await here.system.chats.load(conversation("slack", server.chat("general").id, topic).id)
        feedback = (await here.system.threads.load(state.thread)).feedback.values()
        ratings = {each.user: each.rating for each in feedback}
        assert sorted(ratings.values()) == [-1, 1]
        assert len(feedback) == 2


async def test_a_conversation_in_the_pane_that_another_process_saw_begin_quotes_nothing() -> None:
    async with SlackServer() as server:
        topic = server.person("ann").opens()
        async with listening(server) as (_, inbox):
            await server.person("ann").says("hello", thread=topic)
            await inbox.until(events=1)
            assert (inbox.events[0].text, inbox.events[0].quoted) == ("hello", None)


async def test_the_pane_may_be_without_first_questions() -> None:
    settings: dict[str, Any] = {"bot_token": "xoxb-1", "app_token": "xapp-1"}
    connect({**settings, "suggested_prompts": []})
    for mistaken in ("text", [1], [""], ["a"] * (MOST_PROMPTS + 1)):
        with pytest.raises(Invalid, match="suggested_prompts"):
            connect({**settings, "suggested_prompts": mistaken})


def _has_thumbs(server: SlackServer, chat: str) -> bool:
    blocks = [block for message in server.chat(chat).messages.values() for block in message.get("blocks", ())]
    return any(block["type"] == "context_actions" for block in blocks)
