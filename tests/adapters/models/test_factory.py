"""Building models from configuration entries."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from adapters.models import factory
from adapters.models.demo import DemoChatModel
from adapters.models.factory import build
from core.errors import Invalid


class Recorder(DemoChatModel):
    """Takes the arguments of all dialects, and shows them."""

    model: str = ""
    thinking: dict[str, Any] | None = None
    extra_body: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    temperature: float | None = None


USE = f"{__name__}:Recorder"


@dataclass(frozen=True)
class Secret:
    value: str

    def reveal(self) -> str:
        return self.value


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_built", {})
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def recorded(entry: dict[str, Any], **choice: Any) -> dict[str, Any]:
    model = build({"name": "m", "use": USE, "model": "x", **entry}, **choice)
    assert isinstance(model, Recorder)
    return model.model_dump(include={"thinking", "extra_body", "reasoning_effort", "temperature"}, exclude_none=True)


def test_openai_is_the_default_with_our_defaults() -> None:
    key = Secret("sk-1")
    model = build(
        {"name": "m", "model": "gpt-x", "api_key": key, "base_url": "http://localhost:1/v1", "temperature": 0.5}
    )
    assert isinstance(model, ChatOpenAI)
    assert (model.model_name, model.temperature) == ("gpt-x", 0.5)
    assert (model.max_retries, model.stream_usage) == (0, True)
    assert model.openai_api_key is not None
    assert model.openai_api_key.get_secret_value() == "sk-1"  # type: ignore[union-attr]
    assert model.root_async_client.max_retries == 0


def test_given_values_win_over_defaults() -> None:
    entry = {"model": "x", "api_key": "k", "max_retries": 3, "stream_usage": False, "use_responses_api": True}
    model = build(entry | {"output_version": "responses/v1"})
    assert isinstance(model, ChatOpenAI)
    assert (model.max_retries, model.stream_usage) == (3, False)
    assert (model.use_responses_api, model.output_version) == (True, "responses/v1")


def test_keys_of_ours_are_not_passed_on() -> None:
    about = {
        "display_name": "M",
        "description": "d",
        "supports_vision": True,
        "pricing": {"in": 1},
        "context_window": 9,
    }
    assert recorded({**about, "temperature": None}) == {}


def test_equal_entries_share_a_model() -> None:
    entry = {"name": "m", "model": "x", "api_key": Secret("k")}
    assert build(entry) is build({**entry, "api_key": Secret("k")})
    assert build(entry) is not build({**entry, "api_key": Secret("other")})
    assert "k" not in factory._built


def test_models_of_one_endpoint_share_connections() -> None:
    entry: dict[str, Any] = {"name": "m", "model": "o", "api_key": "k", "base_url": "http://localhost:1/v1"}
    entry["supports_reasoning_effort"] = True
    low, high = build(entry, reasoning_effort="low"), build(entry, reasoning_effort="high")
    assert isinstance(low, ChatOpenAI)
    assert isinstance(high, ChatOpenAI)
    assert low is not high
    assert low.root_async_client._client is high.root_async_client._client


def test_thinking_on_merges_its_settings() -> None:
    entry = {
        "supports_thinking": True,
        "extra_body": {"safe": True},
        "when_thinking_enabled": {"extra_body": {"thinking": {"type": "enabled"}}, "temperature": 1.0},
    }
    expected = {"extra_body": {"safe": True, "thinking": {"type": "enabled"}}, "temperature": 1.0}
    assert recorded(entry) == expected
    assert recorded({"supports_thinking": True, "thinking": {"type": "enabled", "budget_tokens": 9}}) == {
        "thinking": {"type": "enabled", "budget_tokens": 9}
    }


def test_thinking_settings_need_support() -> None:
    with pytest.raises(Invalid, match=r"models\[m\].*supports_thinking"):
        recorded({"thinking": {"type": "enabled"}})
    assert recorded({}, thinking=True) == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"when_thinking_disabled": {"temperature": 0.0}}, {"temperature": 0.0}),
        (
            {"when_thinking_enabled": {"extra_body": {"thinking": {"type": "enabled"}}}},
            {"extra_body": {"thinking": {"type": "disabled"}}, "reasoning_effort": "minimal"},
        ),
        (
            {"when_thinking_enabled": {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}},
            {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"thinking": {"type": "disabled"}}),
        ({}, {}),
    ],
)
def test_thinking_off(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    supported = {"supports_thinking": True, "supports_reasoning_effort": True}
    assert recorded({**supported, **settings}, thinking=False) == expected


def test_reasoning_effort_only_if_supported() -> None:
    assert recorded({}, reasoning_effort="high") == {}
    assert recorded({"reasoning_effort": "low"}) == {}
    assert recorded({"supports_reasoning_effort": True, "reasoning_effort": "low"}) == {"reasoning_effort": "low"}
    assert recorded({"supports_reasoning_effort": True}, reasoning_effort="high") == {"reasoning_effort": "high"}


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("langchain_nowhere:ChatNowhere", r"models\[m\]\.use: .*uv pip install langchain-nowhere"),
        ("langchain_openai.nowhere:Chat", r"models\[m\]\.use: there is no module 'langchain_openai.nowhere'"),
        ("langchain_openai:ChatNothing", r"models\[m\]\.use: langchain_openai has no chat model class 'ChatNothing'"),
        ("json:loads", r"models\[m\]\.use: json has no chat model class"),
        ("langchain_openai.ChatOpenAI", r'models\[m\]\.use: .* not of the form "module:Class"'),
    ],
)
def test_a_bad_class_is_named(use: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        build({"name": "m", "use": use})


def test_refused_arguments_are_named_without_their_values() -> None:
    with pytest.raises(Invalid, match=r"models\[m\]: temperature: ") as caught:
        build({"name": "m", "use": USE, "temperature": "sk-secret"})
    assert "sk-secret" not in str(caught.value)


def test_a_missing_key_is_the_callers_fault() -> None:
    with pytest.raises(Invalid, match=r"models\[m\]: .*OPENAI_API_KEY"):
        build({"name": "m", "model": "x"})


def test_imports_are_lazy() -> None:
    code = "import sys, adapters.models.factory; sys.exit('openai' in sys.modules or 'langchain_openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
