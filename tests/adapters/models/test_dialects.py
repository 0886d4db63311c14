"""What endpoints want back of their own messages, over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage

from actors.agent.messages.convert import dump, load
from adapters.models import factory
from adapters.models.chunks import Call, Delta, Function
from adapters.models.dialects import VLLM, DeepSeek, Signed
from adapters.models.factory import build
from adapters.models.openai_compatible import OpenAICompatible
from adapters.models.reader import reasoning_of
from core.errors import Invalid
from tests.support.model_server import ModelServer, ToolCall, Turn

pytestmark = pytest.mark.anyio

VLLM_USE = "deerflow.models.vllm_provider:VllmChatModel"
CALLS = (ToolCall("ls", {"path": "/"}),)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_built", {})
    for name in ("OPENAI_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    turns = {
        name: [
            Turn(reasoning="I must look.", reasoning_field=name, tool_calls=CALLS),
            Turn(text="Empty.", reasoning="Nothing there.", reasoning_field=name),
        ]
        for name in ("reasoning", "reasoning_content")
    }
    async with ModelServer(turns) as running:
        yield running
    await factory.close()


async def conversation(model: Any, *, stream: bool, over: bool) -> list[Any]:
    """Two turns with a tool call between; `over`: the messages come out of the log in between."""
    history: list[Any] = [HumanMessage("What is there?")]
    for _ in range(2):
        if stream:
            chunks = [chunk async for chunk in model.astream(history)]
            merged: AIMessageChunk = chunks[0] + chunks[1:]
            answer = load(dump(merged)) if over else merged
        else:
            answer = await model.ainvoke(history)
        assert isinstance(answer, AIMessage)
        history.append(answer)
        history += [ToolMessage("nothing", tool_call_id=str(call["id"])) for call in answer.tool_calls]
    return history


@pytest.mark.parametrize(("stream", "over"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_vllm_keeps_its_reasoning_and_gets_it_back(
    server: ModelServer, name: str, stream: bool, over: bool
) -> None:
    model = build({"use": VLLM_USE, "model": name, "base_url": server.url, "api_key": "k"})
    assert isinstance(model, VLLM)
    said = await conversation(model, stream=stream, over=over)
    kept = [m.additional_kwargs for m in said if isinstance(m, AIMessage)]
    assert [k["reasoning"] for k in kept] == ["I must look.", "Nothing there."]
    assert [k["reasoning_content"] for k in kept] == ["I must look.", "Nothing there."]
    [assistant] = [m for m in server.requests[1].body["messages"] if m["role"] == "assistant"]
    assert assistant["reasoning"] == "I must look."
    assert assistant["tool_calls"][0]["function"]["name"] == "ls"


@pytest.mark.parametrize(
    ("use", "field"),
    [
        ("deerflow.models.patched_deepseek:PatchedChatDeepSeek", "reasoning_content"),
        ("langchain_openai:ChatOpenAI", ""),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_goes_back_where_it_is_wanted(server: ModelServer, use: str, field: str, stream: bool) -> None:
    model = build({"use": use, "model": "reasoning_content", "api_base": server.url, "api_key": "k"})
    said = await conversation(model, stream=stream, over=False)
    assert said[1].additional_kwargs["reasoning_content"] == "I must look."
    [assistant] = [m for m in server.requests[1].body["messages"] if m["role"] == "assistant"]
    assert {name for name in assistant if "reasoning" in name} == ({field} if field else set())


async def test_reasoning_goes_back_with_structured_output_too(server: ModelServer) -> None:
    model = build({"use": VLLM_USE, "model": "reasoning", "base_url": server.url, "api_key": "k"})
    said = AIMessage("Hm", additional_kwargs={"reasoning_content": "so"})
    payload = model._get_request_payload(  # type: ignore[attr-defined]
        [HumanMessage("Hi"), said], response_format={"type": "json_object"}
    )
    assert payload["messages"][1] == {"role": "assistant", "content": "Hm", "reasoning": "so"}


@pytest.mark.parametrize(
    ("template", "sent"),
    [
        ({"thinking": True}, {"enable_thinking": True}),
        ({"thinking": True, "enable_thinking": False, "x": 1}, {"enable_thinking": False, "x": 1}),
        ({"enable_thinking": True}, {"enable_thinking": True}),
    ],
)
async def test_the_old_switch_of_vllm_means_the_new_one(
    server: ModelServer, template: dict[str, Any], sent: dict[str, Any]
) -> None:
    entry: dict[str, Any] = {"use": VLLM_USE, "model": "reasoning", "base_url": server.url, "api_key": "k"}
    entry |= {"supports_thinking": True, "when_thinking_enabled": {"extra_body": {"chat_template_kwargs": template}}}
    await build(entry).ainvoke("Hi")
    await build(entry, thinking=False).ainvoke("Hi")
    on, off = [record.body["chat_template_kwargs"] for record in server.requests]
    assert on == sent
    assert off["enable_thinking"] is False
    assert "thinking" not in off


@pytest.mark.parametrize(
    ("reasoning", "text"),
    [
        ([{"type": "text", "text": "a"}, {"content": "b"}, "c"], "abc"),
        ({"text": "a"}, "a"),
        ({"reasoning": {"text": "a"}}, "a"),
        ([{"type": "encrypted"}], None),
        (7, None),
    ],
)
def test_reasoning_of_any_shape_is_kept(reasoning: Any, text: str | None) -> None:
    model = VLLM(model="m", base_url="http://127.0.0.1:1/v1", api_key="k")  # type: ignore[arg-type]
    delta = Delta(reasoning=reasoning)
    kept = dict(model._extras(delta))
    assert (kept, reasoning_of(delta) or None) == ({"reasoning": reasoning}, text)
    wire = model._convert(AIMessage("", additional_kwargs=kept))
    assert wire["reasoning"] == reasoning


def test_signatures_of_calls_go_back() -> None:
    model = Signed(model="m", base_url="http://127.0.0.1:1/v1", api_key="k")  # type: ignore[arg-type]
    signed: Any = {"id": "a", "extra_content": {"google": {"thought_signature": "s"}}}
    function = Function("ls", "{}")
    kept = dict(model._extras(Delta(tool_calls=[Call(function, 0, **signed), Call(function, 1, "b")])))
    calls: list[Any] = [{"name": "ls", "args": {}, "id": identity} for identity in ("a", "b")]
    wire = model._convert(AIMessage("", tool_calls=calls, additional_kwargs=kept))
    assert [call.get("extra_content") for call in wire["tool_calls"]] == [signed["extra_content"], None]


def test_deepseek_is_asked_at_its_own_address_with_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"use": "langchain_deepseek:ChatDeepSeek", "model": "deepseek-reasoner"}
    monkeypatch.setenv("OPENAI_API_KEY", "of somebody else")
    with pytest.raises(Invalid, match="DEEPSEEK_API_KEY"):
        build(entry)
    monkeypatch.setenv("DEEPSEEK_API_KEY", "mine")
    model = build(entry)
    assert isinstance(model, DeepSeek)
    assert (str(model.root_async_client.base_url), model.root_async_client.api_key) == (
        "https://api.deepseek.com/v1/",
        "mine",
    )


def test_only_messages_of_the_model_carry_reasoning() -> None:
    for model_class in (VLLM, DeepSeek, Signed, OpenAICompatible):
        model = model_class(model="m", base_url="http://127.0.0.1:1/v1", api_key="k")  # type: ignore[arg-type]
        message = HumanMessage("Hi", additional_kwargs={"reasoning": "x", "reasoning_content": "x"})
        assert model._convert(message) == {"role": "user", "content": "Hi"}
