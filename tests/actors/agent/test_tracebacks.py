"""What code of authors raises leaves its traceback in the server's log, and its line in the refusals of what cannot be
loaded. Secrets are masked, and models read the sentence only.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult

from actors.agent.loop.chain import of_entry
from actors.wiring.discovery import not_built
from adapters import guardrails, toolbox
from adapters.models.factory import _construct as model_of
from core import plugins
from core.actor import Actor, Context
from core.config.redaction import redactor
from core.config.settings import MiddlewareEntry, ToolEntry
from core.errors import Invalid, SikaError, place_of
from core.events import Message, RunCompleted, RunFailed
from core.observe import logs
from core.policy import Policy, Refuse, ToolCall, View
from core.testing import acting
from core.tools import ToolContext, tool
from tests.actors.agent.fakes import Fake
from tests.support import model_server
from tests.support.model_server import Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

HERE = "tests.actors.agent.test_tracebacks"
KEY = "sk-hunter2hunter2hunter2"


class Panic(BaseException):
    """What libraries in Rust raise."""


def deep_down(kind: type[BaseException] = LookupError) -> Any:
    """Fails, below the code that is called."""
    raise kind(f"no bridge with {KEY}")


@pytest.fixture
def server_log() -> Iterator[Callable[[], list[Mapping[str, Any]]]]:
    """The lines of the server's log that have a traceback."""
    before, handlers = structlog.get_config(), list(logging.getLogger().handlers)
    stream = io.StringIO()
    logs.configure("info", stream)
    structlog.configure(cache_logger_on_first_use=False)
    redactor.add(KEY)
    yield lambda: [line for line in map(json.loads, stream.getvalue().splitlines()) if "exception" in line]
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers


# ── in a run ────────────────────────────────────────────────────────────────────────────────────────────────────────


@tool(effect="pure")
async def dig(ctx: ToolContext) -> str:
    """Dig."""
    return str(deep_down())


@tool(effect="pure")
async def panic(ctx: ToolContext) -> str:
    """Dig until it panics."""
    return str(deep_down(Panic))


@tool(effect="pure")
async def rest(ctx: ToolContext) -> str:
    """Rest."""
    return "rested"


@tool(effect="pure")
async def refuse(ctx: ToolContext) -> str:
    """Refuse."""
    raise Invalid("where: not on Sundays")


class Before(Policy):
    async def before_tool(self, view: View, call: ToolCall) -> Refuse | None:
        deep_down()
        return None


class After(Policy):
    async def after_model(self, view: View, answer: Message) -> None:
        deep_down()


class Hook(AgentMiddleware[Any, Any, Any]):
    async def abefore_model(self, state: Any, runtime: Any) -> None:
        deep_down()


class Guardrail:
    name = "guardrail"

    def __init__(self, framework: str = "") -> None: ...

    async def aevaluate(self, request: Any) -> Any:
        deep_down()


class Model(Fake):
    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=deep_down())


IN_A_RUN: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, str]]] = {
    "tool": ("dig", {}, {"event": "tool failed", "tool": "dig"}),
    "panic": ("panic", {}, {"event": "tool failed", "tool": "panic"}),
    "policy": ("rest", {"middlewares": [f"{HERE}:Before"]}, {"event": "policy failed", "policy": "before"}),
    "policy of answers": ("rest", {"middlewares": [f"{HERE}:After"]}, {"policy": "after", "hook": "after_model"}),
    "middleware": ("rest", {"middlewares": [f"{HERE}:Hook"]}, {"event": "run failed"}),
    "guardrail": (
        "rest",
        {"guardrails": {"enabled": True, "provider": {"use": f"{HERE}:Guardrail"}}},
        {"event": "no answer of the guardrail", "tool": "rest"},
    ),
    "model": ("", {}, {"event": "model failed", "model": "own"}),
}
"""For each kind of plug-in code: the tool that the model calls, the configuration, and what the line says."""


@pytest.mark.parametrize("kind", IN_A_RUN)
async def test_a_defect_in_a_run_is_logged_with_its_traceback(
    kind: str, tmp_path: Path, server_log: Callable[[], list[Mapping[str, Any]]]
) -> None:
    name, sections, expected = IN_A_RUN[kind]
    turns = [Turn(tool_calls=(model_server.ToolCall(name, {}),)), Turn(text="Done.")]
    own = {"name": "own", "model": "own", "use": f"{HERE}:Model"}
    tools = [dig, panic, rest]
    async with site(tmp_path, {"m": turns}, tools=tools, more_models=[own], **sections) as (client, models):
        run = await client.ask(await client.thread(), "Go", "own" if kind == "model" else "m")
        await client.ended("t1", run)
        told = json.dumps([request.body["messages"] for request in models.requests])
    [line] = server_log()
    assert line.items() >= expected.items()
    assert f", in {deep_down.__name__}\n" in line["exception"]
    assert "Traceback" in line["exception"]
    assert KEY not in json.dumps(line)
    assert line["thread"] == "t1"
    assert line["run"]
    assert "Traceback" not in told
    assert KEY not in told


async def test_a_refusal_is_no_defect(tmp_path: Path, server_log: Callable[[], list[Mapping[str, Any]]]) -> None:
    """The author has raised it for the model."""
    turns = [Turn(tool_calls=(model_server.ToolCall("refuse", {}),)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns}, tools=[refuse]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    assert messages[2]["content"] == "Error: where: not on Sundays"
    assert server_log() == []


# ── actors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Diver(Actor[RunCompleted]):
    name = "diver"

    async def handle(self, event: RunCompleted, ctx: Context) -> None:
        deep_down()

    async def answer(self, request: Mapping[str, Any], progress: Any) -> Any:
        return deep_down()


@pytest.mark.parametrize("how", ["handle", "answer"])
async def test_a_defect_of_an_actor_is_logged_with_its_traceback(
    how: str, tmp_path: Path, server_log: Callable[[], list[Mapping[str, Any]]]
) -> None:
    async with acting(Diver(), home=tmp_path) as stage:
        if how == "handle":
            await stage.given_run()
            with pytest.raises(LookupError):
                await stage.appended()
        else:
            with pytest.raises(SikaError):
                await stage.ask({})
    line = server_log()[0]
    assert line["actor"] == "diver"
    assert f", in {deep_down.__name__}\n" in line["exception"]
    assert KEY not in json.dumps(line)


# ── what cannot be loaded ───────────────────────────────────────────────────────────────────────────────────────────


def broken_tool(settings: Mapping[str, Any]) -> Any:
    return deep_down()


class Unbuilt(Policy):
    def __init__(self) -> None:
        deep_down()


class Unmade(AgentMiddleware[Any, Any, Any]):
    def __init__(self) -> None:
        deep_down()


class Unasked(Fake):
    def __init__(self, **arguments: Any) -> None:
        deep_down()


def _raised() -> Exception:
    try:
        deep_down()
    except LookupError as error:
        return error
    raise AssertionError


LOADED: Mapping[str, Callable[[], Any]] = {
    "tool": lambda: toolbox.of_entry(ToolEntry(name="broken", use=f"{HERE}:broken_tool"), 0),
    "policy": lambda: of_entry(MiddlewareEntry(use=f"{HERE}:Unbuilt"), "middlewares[0]"),
    "middleware": lambda: of_entry(MiddlewareEntry(use=f"{HERE}:Unmade"), "middlewares[0]"),
    "guardrail": lambda: guardrails._construct(lambda framework="": deep_down(), {}),
    "model": lambda: model_of(Unasked, {}, "own"),
    "actor": lambda: _refused(not_built("diver", _raised())),
    "import": lambda: plugins._imported(deep_down),
}


def _refused(text: str) -> None:
    raise Invalid(text)


@pytest.mark.parametrize("kind", LOADED)
def test_what_cannot_be_loaded_names_its_line(kind: str) -> None:
    line = deep_down.__code__.co_firstlineno + 2
    with pytest.raises(Invalid) as refusal:
        LOADED[kind]()
    assert f"(test_tracebacks.py:{line}, in deep_down)" in str(refusal.value)


def test_the_line_of_a_library_is_not_the_author_s() -> None:
    """The innermost line of the author counts, below which Python's own code failed."""
    with pytest.raises(json.JSONDecodeError) as failure:
        json.loads("{")
    assert place_of(failure.value).startswith(" (test_tracebacks.py:")
    assert place_of(ValueError()) == ""


def test_a_function_that_is_awaited_is_refused_at_its_declaration() -> None:
    """A plain one would fail at its first call, without its line."""
    with pytest.raises(Invalid, match=r"^test_tracebacks.py:\d+: .*Plain.handle: .* write `async def`"):

        class Plain(Actor[RunCompleted]):
            def handle(self, event: RunCompleted, ctx: Context) -> None:  # type: ignore[override]
                """Awaited."""

    with pytest.raises(Invalid, match=r"Hasty.before_tool: .* write `async def`"):

        class Hasty(Policy):
            def before_tool(self, view: View, call: ToolCall) -> None:  # type: ignore[override]
                """Awaited."""


class Wordy(Policy):
    async def before_tool(self, view: View, call: ToolCall) -> Any:
        return "no"


async def test_a_policy_that_returns_something_else_is_named(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(model_server.ToolCall("rest", {}),)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns}, tools=[rest], middlewares=[f"{HERE}:Wordy"]) as (client, _):
        await client.ended("t1", await client.ask(await client.thread(), "Go"))
        [failure] = [record.event for record in await client.records("t1", RunFailed)]
    assert isinstance(failure, RunFailed)
    assert failure.text == "policy wordy: before_tool: it returned str; Refuse or None is expected"
