"""Handlers at the root of an invocation: when there are any, what they are told, and that it arrives."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import langsmith
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers import LangChainTracer
from langsmith.utils import get_env_var, tracing_is_enabled

from adapters.tracing import asked, callbacks
from adapters.tracing.asked import LangfuseTarget, LangSmithTarget
from core.config.load import parse
from core.config.redaction import redactor
from core.config.settings import Config, Langfuse, LangSmith, Secret, Tracing
from core.errors import Invalid
from tests.adapters.tracing.conftest import Receiver
from tests.support.nats import eventually

PREFIXES = ("LANGSMITH_", "LANGCHAIN_", "LANGFUSE_", "DEER_FLOW_", "ENVIRONMENT")
ABOUT: dict[str, Any] = {"thread": "t", "run": "r", "user": "u"}


def forget() -> None:
    """What LangSmith remembers of the environment."""
    remembered: Any = get_env_var
    remembered.cache_clear()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variables of the developer's, and nothing left behind."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(callbacks, "_clients", {})
    monkeypatch.setattr(callbacks, "_in_force", None)
    forget()
    yield
    for client in callbacks._clients.values():
        if isinstance(client, langsmith.Client):
            client.close()
    langsmith.configure(enabled=None, client=None, project_name=None)
    forget()


def config(**sections: Any) -> Config:
    return Config(tracing=Tracing(**sections))


# ── what was asked for ───────────────────────────────────────────────────────────────────────────────────────────────

KEY = {"LANGSMITH_API_KEY": "k"}
TARGET = LangSmithTarget("k", "deer-flow", "https://api.smith.langchain.com")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        (KEY, None),
        *(({name: "true", **KEY}, TARGET) for name in asked.LANGSMITH_SWITCHES),
        *(({"LANGSMITH_TRACING": value, **KEY}, TARGET) for value in ("1", "TRUE", " yes ", "on")),
        *(({"LANGSMITH_TRACING": value, **KEY}, None) for value in ("0", "false", "no", "maybe")),
        ({"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "true", **KEY}, None),
        ({"LANGSMITH_TRACING": "", "LANGCHAIN_TRACING_V2": "true", **KEY}, TARGET),
        (
            {"LANGCHAIN_TRACING": "1", "LANGCHAIN_API_KEY": "l", "LANGCHAIN_PROJECT": "p", "LANGCHAIN_ENDPOINT": "e"},
            LangSmithTarget("l", "p", "e"),
        ),
        (
            {"LANGSMITH_TRACING": "true", **KEY, "LANGSMITH_PROJECT": "p", "LANGSMITH_ENDPOINT": "e"},
            LangSmithTarget("k", "p", "e"),
        ),
    ],
)  # fmt: skip
async def test_langsmith_by_environment(environ: Mapping[str, str], expected: LangSmithTarget | None) -> None:
    assert asked.langsmith(LangSmith(), environ) == expected


async def test_langsmith_by_configuration() -> None:
    settings = LangSmith(enabled=True, api_key=Secret("mine"), project="p", endpoint="e")
    environ = {"LANGSMITH_TRACING": "false", "LANGSMITH_API_KEY": "k", "LANGSMITH_PROJECT": "x"}
    assert asked.langsmith(settings, environ) == LangSmithTarget("mine", "p", "e")
    assert asked.langsmith(LangSmith(enabled=False), {"LANGSMITH_TRACING": "true"}) is None


FUSE = {"LANGFUSE_TRACING": "true", "LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"}


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        (Langfuse(), {}, None),
        (Langfuse(), {**FUSE, "LANGFUSE_TRACING": "0"}, None),
        (Langfuse(), FUSE, LangfuseTarget("pk", "sk", "https://cloud.langfuse.com")),
        (Langfuse(), {**FUSE, "LANGFUSE_BASE_URL": "http://l"}, LangfuseTarget("pk", "sk", "http://l")),
        (Langfuse(enabled=False), FUSE, None),
        (
            Langfuse(enabled=True, public_key="a", secret_key=Secret("b"), base_url="c"),
            FUSE,
            LangfuseTarget("a", "b", "c"),
        ),
    ],
)
async def test_langfuse(settings: Langfuse, environ: Mapping[str, str], expected: LangfuseTarget | None) -> None:
    assert asked.langfuse(settings, environ) == expected


@pytest.mark.parametrize(
    ("sections", "missing"),
    [
        ({"langsmith": LangSmith(enabled=True)}, "LANGSMITH_API_KEY"),
        ({"langfuse": Langfuse(enabled=True)}, "LANGFUSE_PUBLIC_KEY.*LANGFUSE_SECRET_KEY"),
        ({"langfuse": Langfuse(enabled=True, public_key="p")}, r"no secret_key \(LANGFUSE_SECRET_KEY\)$"),
        ({"langfuse": Langfuse(enabled=True, public_key="p", secret_key=Secret("s"))}, "pip install langfuse"),
    ],
)
async def test_on_and_incomplete(sections: dict[str, Any], missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langfuse", None)
    with pytest.raises(Invalid, match=missing):
        callbacks.callbacks(config(**sections))


async def test_off() -> None:
    assert callbacks.callbacks(Config()) == []
    assert callbacks.invocation(Config(), **ABOUT) == {}
    assert not tracing_is_enabled()


async def test_off_is_off_for_langchain_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look at the environment by itself."""
    monkeypatch.setenv("LANGCHAIN_TRACING_V2", "true")
    forget()
    assert tracing_is_enabled()
    assert callbacks.callbacks(config(langsmith=LangSmith(enabled=False))) == []
    assert not tracing_is_enabled()


async def test_the_configuration_is_read() -> None:
    text = """
    tracing:
      environment: staging
      langsmith: {enabled: true, api_key: $K, project: p, endpoint: "http://l"}
      langfuse: {enabled: false, public_key: pk, secret_key: $K, base_url: "http://l"}
      otlp: {endpoint: "http://c:4318", headers: {Authorization: $K}, service_name: s}
    """
    found = parse(text, environ={"K": "hidden"})
    assert not found.warnings
    assert asked.langsmith(found.tracing.langsmith, {}) == LangSmithTarget("hidden", "p", "http://l")
    assert found.tracing.otlp.headers["Authorization"].reveal() == "hidden"
    assert "hidden" not in repr(found)
    with pytest.raises(Invalid, match=r"tracing\.otlp: endpoint"):
        parse("tracing: {otlp: {endpoint: 'collector:4318'}}", environ={})


# ── metadata ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_metadata() -> None:
    found = callbacks.metadata(config(environment="prod"), **ABOUT, assistant="writer", model="main")
    assert found == {
        "langfuse_session_id": "t",
        "langfuse_user_id": "u",
        "langfuse_trace_name": "writer",
        "langfuse_tags": ["env:prod", "model:main"],
        "thread_id": "t",
        "run_id": "r",
        "user_id": "u",
        "assistant_id": "writer",
        "model_name": "main",
    }


async def test_metadata_of_the_agent() -> None:
    """As the agent's factory has it (DeerFlow's names); the caller does not say how it was made."""
    made = {
        "agent_name": "default",
        "thinking_enabled": True,
        "reasoning_effort": "high",
        "is_plan_mode": False,
        "subagent_enabled": False,
        "tool_groups": None,
        "available_skills": ["a", "b"],
    }
    found = callbacks.metadata(Config(), **ABOUT, model="main", options=made, extra={"agent_name": "x", "note": "n"})
    assert {name: found[name] for name in (*made, "model_name", "note")} == {**made, "model_name": "main", "note": "n"}


async def test_metadata_of_the_caller() -> None:
    given = {"langfuse_session_id": "mine", "user_id": "somebody", "run_id": "x", "note": "n", "deep": {"a": 1}}
    found = callbacks.metadata(Config(), **ABOUT, extra=given)
    assert (found["langfuse_session_id"], found["note"]) == ("mine", "n")
    assert (found["user_id"], found["run_id"]) == ("u", "r")
    assert (found["langfuse_trace_name"], found["langfuse_tags"]) == ("lead-agent", [])
    assert "deep" not in found


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        (None, {}, None),
        (None, {"ENVIRONMENT": "e"}, "e"),
        (None, {"ENVIRONMENT": "e", "DEER_FLOW_ENV": "d"}, "d"),
        ("c", {"DEER_FLOW_ENV": "d"}, "c"),
    ],
)
async def test_environment(settings: str | None, environ: Mapping[str, str], expected: str | None) -> None:
    assert asked.environment(Tracing(environment=settings), environ) == expected


# ── on their way ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_langsmith_is_told_once(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the oldest of the switches, which LangChain by itself takes for a mistake."""
    monkeypatch.setenv("LANGCHAIN_TRACING", "1")
    forget()
    settings = config(langsmith=LangSmith(api_key=Secret("k"), project="p", endpoint=receiver.url), environment="test")
    redactor.add("abc-123-def")
    model = FakeListChatModel(responses=["hello, by abc-123-def"])

    async def answer(text: str) -> Any:
        return await model.ainvoke(text)

    agent = RunnableLambda(answer)
    given = callbacks.invocation(settings, **ABOUT, assistant="writer", model="main")
    handlers = given["callbacks"]
    assert isinstance(handlers, list)
    assert [isinstance(handler, LangChainTracer) for handler in handlers] == [True]
    await agent.ainvoke("hi", config=given)
    await callbacks.close()

    async def there() -> list[bytes]:
        return [one.body for one in receiver.requests if one.path.startswith("/runs")]

    sent = b"".join(await eventually(there))
    for said in (b'"writer"', b'"FakeListChatModel"', b'"env:test"', b'"langfuse_session_id":"t"', b'"p"'):
        assert said in sent
    assert b"hello, by ***" in sent
    assert b"abc-123-def" not in sent
    posted = {one.headers.get("x-api-key", one.headers.get("X-Api-Key")) for one in receiver.requests}
    assert posted == {"k"}
    told = set(re.findall(rb'name="post\.([0-9a-f-]+)"', sent))
    assert len(told) == 2, "the agent and its model, each by one handler"


async def test_clients_are_shared_and_handlers_are_not() -> None:
    settings = config(langsmith=LangSmith(enabled=True, api_key=Secret("k"), endpoint="http://127.0.0.1:1"))
    [one], [two] = callbacks.callbacks(settings), callbacks.callbacks(settings)
    assert isinstance(one, LangChainTracer)
    assert isinstance(two, LangChainTracer)
    assert one is not two
    assert one.client is two.client
    assert one.project_name == "deer-flow"


async def test_langfuse_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a package that stands in for the real one, which is not installed."""
    made: list[Any] = []

    class Client:
        def __init__(self, mask: Callable[..., Any], **settings: str) -> None:
            assert mask(data={"content": ["by abc-123-def"]}) == {"content": ["by ***"]}
            made.append(settings)

        def flush(self) -> None:
            made.append("flushed")

    class Handler(BaseCallbackHandler):
        def __init__(self, *, public_key: str) -> None:
            self.public_key = public_key

    package, handlers = ModuleType("langfuse"), ModuleType("langfuse.langchain")
    vars(package)["Langfuse"], vars(handlers)["CallbackHandler"] = Client, Handler
    monkeypatch.setitem(sys.modules, "langfuse", package)
    monkeypatch.setitem(sys.modules, "langfuse.langchain", handlers)
    for name, value in FUSE.items():
        monkeypatch.setenv(name, value)
    redactor.add("abc-123-def")
    for _ in range(2):
        [handler] = callbacks.callbacks(Config())
        assert isinstance(handler, Handler)
        assert handler.public_key == "pk"
    await callbacks.close()
    assert made == [{"public_key": "pk", "secret_key": "sk", "host": "https://cloud.langfuse.com"}, "flushed"]
    assert not tracing_is_enabled()
