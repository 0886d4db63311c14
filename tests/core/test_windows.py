"""Context windows: by name, by configuration, and as providers named them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core.config import load as configuration
from core.config.settings import Config
from core.config.windows import MOST, Window, plain_name, table_of, window_in_table, window_of
from core.events import Record
from core.runs.windows import KEPT, Learned, WindowLearned, address_of, fold
from tests.support.records import record


def config(**entry: Any) -> Config:
    models = [{"name": "m", "model": "gpt-4o", **entry}]
    return configuration.parse(msgspec.json.encode({"models": models}).decode())


@pytest.mark.parametrize(
    ("name", "plainly"),
    [
        ("openai/GPT-5.4-2026-03-05", "gpt-5-4"),
        ("anthropic/claude-opus-4.6", "claude-opus-4-6"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("claude-opus-4-5@20251101", "claude-opus-4-5"),
        ("deepseek/deepseek-chat:free", "deepseek-chat"),
        ("models/gemini-3-pro-preview", "gemini-3-pro"),
        ("qwen3:8b", "qwen3:8b"),
    ],
)
def test_a_name_without_provider_date_and_version(name: str, plainly: str) -> None:
    assert plain_name(name) == plainly


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("gpt-4o", 128_000),
        ("openai/gpt-4o-2024-11-20", 128_000),
        ("gpt-4", 8192),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("gpt-5.4-some-variant", 272_000),
        ("claude-of-next-year-9", 200_000),
        ("gemini-99-ultra", 1_000_000),
        ("deepseek/deepseek-chat", 100_000),
    ],
)
def test_known_models(model: str, least: int) -> None:
    window = window_in_table(model)
    assert window is not None
    assert window[0] >= least


def test_a_short_name_is_no_family() -> None:
    assert window_in_table("my-own-model") is None
    assert window_in_table("claudette") is None
    assert window_in_table("gpt-4")[0] == 8192, "a longer entry does not count"  # type: ignore[index]


@pytest.mark.parametrize(
    ("entry", "learned", "expected"),
    [
        ({}, None, Window(128_000, 0, "table")),
        ({"model": "mine"}, None, Window(128_000, 0, "assumed")),
        ({"context_window": 9000}, None, Window(9000, 0, "configured")),
        ({"num_ctx": 4096}, None, Window(4096, 0, "configured")),
        ({"context_window": 9000, "num_ctx": 4096}, None, Window(4096, 0, "configured")),
        ({"context_window": 3000, "num_ctx": 4096}, None, Window(3000, 0, "configured")),
        ({"num_ctx": "4096"}, None, Window(128_000, 0, "table")),
        ({"num_ctx": True}, None, Window(128_000, 0, "table")),
        ({"context_window": 9000}, 8000, Window(8000, 0, "learned")),
        ({"context_window": 9000}, 10_000, Window(9000, 0, "configured")),
        ({}, 8000, Window(8000, 0, "learned")),
        ({}, 200_000, Window(200_000, 0, "learned")),
        ({"max_tokens": 4000}, None, Window(128_000, 4000, "table")),
        (
            {"model": "claude-sonnet-4-5", "use": "langchain_anthropic:ChatAnthropic"},
            None,
            Window(200_000, 64_000, "table"),
        ),
    ],
)
def test_which_window_counts(entry: dict[str, Any], learned: int | None, expected: Window) -> None:
    assert window_of(config(**entry), "m", learned) == expected


@pytest.mark.parametrize(
    ("window", "limit"),
    [
        (Window(100_000), 80_000),
        (Window(100_000, 10_000), 80_000),
        (Window(100_000, 40_000), 60_000),
        (Window(100_000, 90_000), 50_000),
        (Window(10_000_000), MOST),
    ],
)
def test_what_a_conversation_may_take(window: Window, limit: int) -> None:
    assert window.limit == limit


def test_the_table_prefers_the_models_own_provider() -> None:
    table = {
        "azure/gpt-9": {"mode": "chat", "max_input_tokens": 5, "max_output_tokens": 1},
        "gpt-9": {"mode": "chat", "max_input_tokens": 9, "max_output_tokens": 2},
        "mistral/large-latest": {"mode": "chat", "max_input_tokens": 7},
        "a/open-1": {"mode": "chat", "max_input_tokens": 3},
        "b/open-1": {"mode": "chat", "max_input_tokens": 4},
        "c/open-1": {"mode": "chat", "max_input_tokens": 4},
        "embed": {"mode": "embedding", "max_input_tokens": 4},
    }
    assert table_of(table) == {"gpt-9": [9, 2], "large": [7, 0], "open-1": [4, 0]}


# ── what is learnt ──────────────────────────────────────────────────────────────────────────────────────────────────


def learned(seq: int, tokens: int, model: str = "m") -> Record:
    return record(seq, WindowLearned(model=model, address="a", tokens=tokens), None)


def test_the_newest_counts_and_the_oldest_go() -> None:
    state = fold([learned(1, 5), learned(2, 4)], {})
    assert state["a", "m"].tokens == 4
    many = fold([learned(n, n, f"m{n}") for n in range(3, KEPT + 3)], state)
    assert len(many) == KEPT
    assert ("a", "m") not in many
    assert state == {("a", "m"): Learned(4, state["a", "m"].at)}, "the state before does not change"


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ({"base_url": "https://me:secret@api.example/v1?key=secret"}, "https://api.example/v1"),
        ({}, "langchain_openai:ChatOpenAI"),
    ],
)
def test_an_address_has_no_secrets(entry: dict[str, Any], address: str) -> None:
    assert address_of(config(**entry).models[0]) == address
