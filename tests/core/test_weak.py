"""Secrets that are too short to be hidden are named, and nothing else is."""

from __future__ import annotations

import pytest

from core.config.load import parse

WEAK = {
    "skills:\n  secrets: {weather: {PIN: '48291375'}}": "skills.secrets.weather.PIN",
    "skills:\n  secrets: {weather: {PIN: '4829'}}": "is not hidden in texts",
    "models: [{name: m, model: m, api_key: hunter22}]": "models[0].api_key",
}
STRONG = (
    "models: [{name: m, model: m, api_key: sk-0123456789abcdefABCDEF}]",
    "models: [{name: m, model: m, api_key: not-needed}]",
    "models: [{name: m, model: m, api_key: none}]",
    "mcp: {servers: {s: {command: uvx, env: {MODE: '1', LEVEL: '22'}}}}",
)


@pytest.mark.parametrize("text", WEAK)
def test_weak_secrets_are_named(text: str) -> None:
    [warning] = [warning for warning in parse(text).warnings if "so short" in warning]
    assert WEAK[text] in warning
    assert not any(value in warning for value in ("4829", "hunter22"))


@pytest.mark.parametrize("text", STRONG)
def test_others_are_not(text: str) -> None:
    assert [warning for warning in parse(text).warnings if "so short" in warning] == []
