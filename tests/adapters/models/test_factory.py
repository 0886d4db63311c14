"""Building models from configuration entries."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any

import pytest
from langchain_openai import AzureChatOpenAI, ChatOpenAI
from pydantic import field_validator

from adapters.models import factory
from adapters.models.demo import DemoChatModel
from adapters.models.dialects import VLLM, DeepSeek, Signed
from adapters.models.factory import build
from adapters.models.openai_compatible import OpenAICompatible
from core.config.settings import Secret
from core.errors import Invalid


class Recorder(DemoChatModel):
    """Takes the arguments of all dialects, and shows them."""

    model: str = ""
    thinking: dict[str, Any] | None = None
    extra_body: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    temperature: float | None = None


USE = f"{__name__}:Recorder"


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
        "max_concurrency": 2,
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
    both = {"when_thinking_enabled": {"thinking": {"type": "adaptive", "x": 1}}, "thinking": {"type": "enabled"}}
    assert recorded({"supports_thinking": True, **both}) == {"thinking": {"type": "enabled", "x": 1}}
    assert recorded({"supports_thinking": True, "thinking": {"type": "enabled", "budget_tokens": 9}}) == {
        "thinking": {"type": "enabled", "budget_tokens": 9}
    }


def test_thinking_settings_need_support() -> None:
    for settings in ({"thinking": {"type": "enabled"}}, {"when_thinking_enabled": {"temperature": 1.0}}):
        with pytest.raises(Invalid, match=r"models\[m\].*supports_thinking"):
            recorded(settings)
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
        (
            {"when_thinking_enabled": {"extra_body": {"chat_template_kwargs": {"thinking": True, "x": 1}}}},
            {"extra_body": {"chat_template_kwargs": {"thinking": False}}},
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"thinking": {"type": "disabled"}}),
        ({"when_thinking_enabled": {"thinking": {"type": "adaptive"}}}, {"thinking": {"type": "disabled"}}),
        ({"when_thinking_enabled": {"temperature": 1.0}}, {}),
        ({"when_thinking_enabled": {"extra_body": None, "thinking": None}}, {}),
        ({"thinking": {"type": "enabled"}, "when_thinking_disabled": {}}, {}),
        (
            {
                "extra_body": {"safe": True},
                "when_thinking_enabled": {"extra_body": {"thinking": {"type": "enabled"}}},
                "when_thinking_disabled": {"extra_body": {"thinking": {"type": "off"}}},
            },
            {"extra_body": {"safe": True, "thinking": {"type": "off"}}},
        ),
        ({}, {}),
    ],
)
def test_thinking_off(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    supported = {"supports_thinking": True, "supports_reasoning_effort": True}
    assert recorded({**supported, **settings}, thinking=False) == expected
    unsupported = {key: value for key, value in expected.items() if key != "reasoning_effort"}
    assert recorded(settings, thinking=False) == unsupported


def test_reasoning_effort_only_if_supported() -> None:
    assert recorded({}, reasoning_effort="high") == {}
    assert recorded({"reasoning_effort": "low"}) == {}
    assert recorded({"supports_reasoning_effort": True, "reasoning_effort": "low"}) == {"reasoning_effort": "low"}
    assert recorded({"supports_reasoning_effort": True}, reasoning_effort="high") == {"reasoning_effort": "high"}


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("langchain_nowhere:ChatNowhere", r"models\[m\]\.use: .*pip install langchain-nowhere$"),
        ("google.nowhere:Chat", r"models\[m\]\.use: there is no module 'google.nowhere'"),
        ("vertexai:Chat", r"models\[m\]\.use: vertexai needs .*pip install google-cloud-aiplatform$"),
        ("deerflow.models.claude_provider:ClaudeChatModel", r"models\[m\]\.use: .*no counterpart of deerflow"),
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


class Loud(DemoChatModel):
    """Says what it was given when it fails."""

    model: str = ""
    base_url: str = ""
    token: str = ""
    headers: dict[str, str] | None = None

    def model_post_init(self, context: Any, /) -> None:
        raise RuntimeError(f"no {self.token} for {self.headers} at {self.base_url}")

    @field_validator("token")
    @classmethod
    def _check(cls, token: str) -> str:
        if token == "sk-validated":
            raise ValueError(f"bad token {token}")
        return token


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"token": "sk-plain"}, "no *** for"),
        ({"token": "sk-validated"}, "bad token ***"),
        ({"token": Secret("sk-marked")}, "no *** for"),
        ({"headers": {"Authorization": "Bearer sk-deep"}}, "'Authorization': '***'"),
        ({"headers": {"x": Secret("sk-deep")}}, "'x': '***'"),
        ({"base_url": Secret("https://sk-user@host")}, "at ***"),
        ({"base_url": "https://host"}, "at https://host"),
    ],
)
def test_no_secret_is_told(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid) as caught:
        build({"name": "m", "use": f"{__name__}:Loud", **fields})
    assert text in str(caught.value)
    assert "sk-" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (None, OpenAICompatible),
        ("langchain_openai:ChatOpenAI", OpenAICompatible),
        ("langchain_deepseek:ChatDeepSeek", DeepSeek),
        ("deerflow.models.patched_deepseek:PatchedChatDeepSeek", DeepSeek),
        ("deerflow.models.patched_openai:PatchedChatOpenAI", Signed),
        ("deerflow.models.vllm_provider:VllmChatModel", VLLM),
        ("adapters.models.dialects:VLLM", VLLM),
        ("langchain_openai:AzureChatOpenAI", AzureChatOpenAI),
    ],
)
def test_classes(use: str | None, expected: type) -> None:
    azure = {"azure_endpoint": "https://a", "api_version": "1"} if expected is AzureChatOpenAI else {}
    assert type(build({"model": "x", "api_key": "k", "use": use, **azure})) is expected


class Addressed(DemoChatModel):
    """Knows its address and key by other names."""

    model: str = ""
    api_base: str = ""
    anthropic_api_key: str = ""


@pytest.mark.parametrize("name", ["base_url", "api_base", "openai_api_base", "anthropic_api_url", "endpoint_url"])
def test_an_address_by_any_name(name: str) -> None:
    model = build({"model": "x", "api_key": "k", name: "https://host/v1"})
    assert isinstance(model, ChatOpenAI)
    assert (model.openai_api_base, model.model_kwargs) == ("https://host/v1", {})
    addressed = build({"model": "x", "use": f"{__name__}:Addressed", name: "https://host/v1", "api_key": "k"})
    assert isinstance(addressed, Addressed)
    assert (addressed.api_base, addressed.anthropic_api_key) == ("https://host/v1", "k")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"base_urll": "http://x"},
            "models[m].base_urll: OpenAICompatible has no such argument, did you mean base_url?",
        ),
        (
            {"base_url": "https://one", "api_base": "https://two"},
            "models[m].api_base: OpenAICompatible has no such arg",
        ),
        (
            {"use": USE, "temperatur": 1},
            "models[m].temperatur: Recorder has no such argument, did you mean temperature?",
        ),
    ],
)
def test_an_argument_that_every_request_would_fail_with_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        build({"name": "m", "model": "x", **fields})
    assert str(caught.value).startswith(problem)


def test_what_requests_take_besides_is_passed_on() -> None:
    fields = {"parallel_tool_calls": False, "model_kwargs": {"own": 1}}
    model = build({"name": "m", "model": "x", "api_key": "k", **fields})
    assert isinstance(model, ChatOpenAI)
    assert model.model_kwargs == {"parallel_tool_calls": False, "own": 1}


def test_a_missing_key_is_the_callers_fault() -> None:
    with pytest.raises(Invalid, match=r"models\[m\]: .*OPENAI_API_KEY"):
        build({"name": "m", "model": "x"})


def test_imports_are_lazy() -> None:
    code = "import sys, adapters.models.factory; sys.exit('openai' in sys.modules or 'langchain_openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("claude-sonnet-4-5", "use: langchain_anthropic:ChatAnthropic"),
        ("Gemini-2.5-pro", "use: langchain_google_genai:ChatGoogleGenerativeAI"),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", "use: langchain_aws:ChatBedrockConverse"),
    ],
)
@pytest.mark.parametrize("use", [None, "langchain_openai:ChatOpenAI"])
def test_a_model_of_another_provider_is_not_asked_for_at_openai(
    model: str, line: str, use: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    entry = {"name": "m", "model": model, "api_key": "k", **({"use": use} if use else {})}
    with pytest.raises(Invalid, match=line):
        build(entry)
    assert build({**entry, "base_url": "https://gateway.example/v1"})
    assert build({**entry, "model": "my-claude"})
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example/v1")
    assert build(entry)
