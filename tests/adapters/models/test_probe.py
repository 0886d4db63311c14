"""Where the installed packages have another shape, LangChain's own class stands in, and works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog.testing
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI

from adapters.models import factory, probe
from core.errors import Invalid
from tests.support.model_server import ModelServer, ToolCall, Turn

pytestmark = pytest.mark.anyio

ENTRY = {"name": "m", "model": "m", "api_key": "k"}
DEEPSEEK = "langchain_deepseek:ChatDeepSeek"


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A `ChatOpenAI` whose private method takes other parameters than ours passes."""
    build: Any = ChatOpenAI._get_request_payload
    monkeypatch.setattr(factory, "_built", {})
    monkeypatch.setattr(ChatOpenAI, "_get_request_payload", lambda self, *parts, **more: build(self, *parts, **more))
    probe.problem.cache_clear()
    yield
    probe.problem.cache_clear()


def test_the_locked_packages_fit() -> None:
    probe.problem.cache_clear()
    assert probe.problem() is None


@pytest.mark.usefixtures("changed")
async def test_plain_chat_openai_stands_in_and_works() -> None:
    turns = [Turn(text="Once upon a time."), Turn(tool_calls=(ToolCall("ls", {"path": "/"}),))]
    async with ModelServer({"m": turns}) as server:
        with structlog.testing.capture_logs() as logs:
            model = factory.build({**ENTRY, "base_url": server.url})
        assert type(model) is ChatOpenAI
        chunks = [chunk async for chunk in model.astream("Tell me")]
        answer = await model.ainvoke(["Tell me", AIMessage("Once upon a time.")])
    assert "".join(str(chunk.text) for chunk in chunks) == "Once upon a time."
    assert [call["name"] for call in answer.tool_calls] == ["ls"]
    [line] = logs
    assert line["log_level"] == "warning"
    assert "takes no input_, stop" in line["changed"]


@pytest.mark.usefixtures("changed")
def test_a_key_does_not_go_to_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-deepseek")
    model = factory.build({"name": "m", "model": "m", "use": DEEPSEEK})
    assert isinstance(model, ChatOpenAI)
    assert model.openai_api_base == "https://api.deepseek.com/v1"
    assert model.openai_api_key is not None
    assert model.openai_api_key.get_secret_value() == "sk-deepseek"  # type: ignore[union-attr]
    monkeypatch.delenv("DEEPSEEK_API_KEY")
    with pytest.raises(Invalid, match=r"^models\[m\]: the environment variable DEEPSEEK_API_KEY is not set"):
        factory.build({"name": "m", "model": "m", "use": DEEPSEEK})
