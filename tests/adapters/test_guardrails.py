"""Guardrails as configured: found by name, made with their settings; and the built-in list."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.guardrails import AllowList, load
from core.config import load as config
from core.config import settings
from core.errors import Invalid
from core.ports.guardrails import Decision, Request

HERE = "tests.adapters.test_guardrails"
OURS = [
    "adapters.guardrails:AllowList",
    "deerflow.guardrails.builtin:AllowlistProvider",
    "adapters.guardrails.AllowList",
]


class Given:
    """Keeps what it was made with."""

    name = "given"

    def __init__(self, **given: Any) -> None:
        self.given = given

    def evaluate(self, request: Request) -> Decision:
        return Decision(True)


class Named(Given):
    def __init__(self, key: str = "", *, framework: str = "none") -> None:
        super().__init__(key=key, framework=framework)


class Plain(Given):
    def __init__(self, key: str = "") -> None:
        super().__init__(key=key)


class Sealed(Given):
    def __init__(self, key: str) -> None:
        raise ValueError(f"no key is like {key}")


class Silent:
    name = "silent"


ODD = 3


def named(use: str, values: Mapping[str, Any] | None = None) -> settings.Guardrails:
    return settings.Guardrails(enabled=True, provider=settings.Provider(use=use, config=values or {}))


def asked(tool: str) -> Request:
    return Request(tool_name=tool, tool_input={}, agent_id=None, thread_id="t", is_subagent=False, timestamp="")


@pytest.mark.parametrize(
    ("allowed", "denied", "tool", "code"),
    [
        (None, (), "bash", "oap.allowed"),
        (None, ["bash"], "bash", "oap.tool_not_allowed"),
        (None, ["bash"], "ls", "oap.allowed"),
        (["ls"], (), "ls", "oap.allowed"),
        (["ls"], (), "bash", "oap.tool_not_allowed"),
        (["ls"], ["ls"], "ls", "oap.tool_not_allowed"),
        ([], (), "ls", "oap.tool_not_allowed"),
        (["ls"], (), "", "oap.tool_not_allowed"),
        (None, None, "", "oap.allowed"),
    ],
)
async def test_the_list(allowed: list[str] | None, denied: Any, tool: str, code: str) -> None:
    provider = AllowList(allowed, denied)
    for decision in (provider.evaluate(asked(tool)), await provider.aevaluate(asked(tool))):
        assert [reason.code for reason in decision.reasons] == [code]
        assert decision.allow == (code == "oap.allowed")


@pytest.mark.parametrize("use", OURS)
def test_the_list_by_its_names(use: str) -> None:
    provider = load(named(use, {"denied_tools": ["bash"]}))
    assert isinstance(provider, AllowList)
    assert not provider.evaluate(asked("bash")).allow


@pytest.mark.parametrize(
    ("class_name", "given"),
    [
        ("Given", {"framework": "deerflow", "key": "k"}),
        ("Named", {"framework": "deerflow", "key": "k"}),
        ("Plain", {"key": "k"}),
    ],
)
@pytest.mark.parametrize("dot", [":", "."])
def test_what_a_provider_is_made_with(class_name: str, given: dict[str, str], dot: str) -> None:
    provider = load(named(f"{HERE}{dot}{class_name}", {"key": "k"}))
    assert provider is not None
    assert provider.given == given  # type: ignore[attr-defined]


def test_the_configuration_counts_more_than_our_name() -> None:
    provider = load(named(f"{HERE}:Named", {"framework": "other"}))
    assert provider is not None
    assert provider.given == {"key": "", "framework": "other"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("use", "values", "complaint"),
    [
        ("nothing", {}, r"provider\.use: nothing: not of the form"),
        (":Class", {}, r"provider\.use: :Class: not of the form"),
        (
            "no_such_module:Class",
            {},
            r"provider\.use: .*there is no module no_such_module; .* pip install no-such-module",
        ),
        (f"{HERE}:NoClass", {}, r"provider\.use: .*no attribute 'NoClass'"),
        (f"{HERE}:ODD", {}, r"provider\.use: .*is no class"),
        (f"{HERE}:Silent", {}, r"provider\.use: .*neither evaluate nor aevaluate"),
        (f"{HERE}:Plain", {"other": 1}, r"provider\.config: TypeError: .*'other'"),
        (f"{HERE}:Sealed", {"key": "k"}, r"provider\.config: ValueError: no key is like k"),
        (
            "adapters.guardrails:AllowList",
            {"denied_tools": "bash"},
            r"provider\.config: .*denied_tools: expected a list",
        ),
    ],
)
def test_what_cannot_be_loaded_is_named(use: str, values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=rf"^guardrails\.{complaint}"):
        load(named(use, values))


def test_a_module_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guardrail_that_fails.py").write_text("1 / 0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(Invalid, match=r"^guardrails\.provider\.use: .*cannot be imported: ZeroDivisionError"):
        load(named("guardrail_that_fails:Class"))


def test_secrets_are_given_and_not_shown() -> None:
    def configured(class_name: str) -> settings.Guardrails:
        provider = {"use": f"{HERE}:{class_name}", "config": {"key": "$GUARD_KEY"}}
        text = msgspec.json.encode({"guardrails": {"enabled": True, "provider": provider}}).decode()
        return config.parse(text, environ={"GUARD_KEY": "hush"}).guardrails

    provider = load(configured("Plain"))
    assert provider is not None
    assert provider.given == {"key": "hush"}  # type: ignore[attr-defined]
    with pytest.raises(Invalid) as error:
        load(configured("Sealed"))
    assert str(error.value) == "guardrails.provider.config: ValueError (test_guardrails.py:51, in __init__)"


@pytest.mark.parametrize(
    "wanted",
    [
        settings.Guardrails(),
        settings.Guardrails(provider=settings.Provider(use="no_such_module:Class")),
    ],
    ids=["off", "off, but named"],
)
def test_no_provider(wanted: settings.Guardrails) -> None:
    assert load(wanted) is None
