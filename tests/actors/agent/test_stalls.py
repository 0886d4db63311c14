"""Code that blocks the event loop is named, with its line and stack: once per cause, in the log and by `/ready`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from core.actor import Actor, Context
from core.config.load import ConfigSource
from core.events import Message, RunCompleted
from core.policy import Policy, View
from core.runtime.readiness import Readiness
from core.testing import acting
from core.tools import ToolContext, tool
from tests.actors.agent.fakes import Fake
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import DEADLINE, site, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]

HERE = "tests.actors.agent.test_stalls"
STILL, ON = "the event loop stands still", "the event loop goes on"
noticed = threading.Event()


@pytest.fixture
def lines() -> Iterator[list[Mapping[str, Any]]]:
    """What is logged of stalls."""
    before = structlog.get_config()
    caught: list[Mapping[str, Any]] = []

    def catch(logger: Any, method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
        if line["event"] in (STILL, ON):
            caught.append(dict(line))
            noticed.set()
        raise structlog.DropEvent

    noticed.clear()
    structlog.configure(processors=[catch], cache_logger_on_first_use=False)
    yield caught
    structlog.configure(**before)


def block() -> None:
    """Holds the thread until that is noticed."""
    until = time.monotonic() + DEADLINE
    while not noticed.is_set() and time.monotonic() < until:
        time.sleep(0.01)


@tool(effect="pure")
async def ponder(ctx: ToolContext) -> str:
    """Ponder."""
    block()
    return "pondered"


@tool(effect="pure")
async def rest(ctx: ToolContext) -> str:
    """Rest."""
    return "rested"


class Slow(Policy):
    async def after_model(self, view: View, answer: Message) -> None:
        block()


class Hook(AgentMiddleware[Any, Any, Any]):
    async def abefore_model(self, state: Any, runtime: Any) -> None:
        block()


class Model(Fake):
    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        block()
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content="Done."))])


KINDS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "tool ponder": ("m", "ponder", {}),
    "policy slow": ("m", "rest", {"middlewares": [f"{HERE}:Slow"]}),
    "middleware Hook": ("m", "rest", {"middlewares": [f"{HERE}:Hook"]}),
    "model Model": ("own", "", {}),
}
"""What is to be named: the model, the tool that it calls, the configuration."""


@pytest.mark.parametrize("name", KINDS)
async def test_what_holds_the_event_loop_is_named(name: str, tmp_path: Path, lines: list[Mapping[str, Any]]) -> None:
    model, called, sections = KINDS[name]
    turns = [Turn(tool_calls=(ToolCall(called, {}),)), Turn(text="Done.")]
    own = {"name": "own", "model": "own", "use": f"{HERE}:Model", "disable_streaming": True}
    async with site(tmp_path, {"m": turns}, tools=[ponder, rest], more_models=[own], **sections) as (client, _):
        ready = Readiness(client.system, ConfigSource(tmp_path / "config.yaml"))
        ready.working = True
        assert "event loop" not in {part.part for part in await ready.missing()}
        await client.said(await client.thread(), "Go", model)

        async def over() -> bool:
            return ON in [line["event"] for line in lines]

        await wait_for(over)
        [standing] = client.system.stalls.notices.shown()
    still, on = lines[:2]
    assert (still["event"], on["event"]) == (STILL, ON)
    assert still["by"] == on["by"] == name
    assert still["at"].startswith("test_stalls.py:")
    assert still["at"].endswith(", in block")
    assert "block()\n" in still["stack"]
    assert standing.startswith(f"{name} held up everything else")


class Sleeper(Actor[RunCompleted]):
    name = "sleeper"

    async def handle(self, event: RunCompleted, ctx: Context) -> None:
        if not noticed.is_set():
            block()
        else:
            time.sleep(2)  # noqa: ASYNC251 - nothing is logged of a known cause that could end this


async def test_a_cause_is_logged_once(tmp_path: Path, lines: list[Mapping[str, Any]]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("log_level: info")
    async with acting(Sleeper(), home=tmp_path) as stage:
        for _ in range(2):
            await stage.given_run()
            await stage.settled()
        ready = Readiness(stage.system, ConfigSource(config))
        ready.working = True
        parts = {part.part: part.reason for part in await ready.missing()}
    assert [line["event"] for line in lines] == [STILL, ON]
    assert lines[0]["by"] == "actor sleeper"
    assert parts["event loop"].startswith("actor sleeper held up everything else")
