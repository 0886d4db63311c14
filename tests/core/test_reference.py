"""The configuration reference says what is in force: every key, with its type, its default and a text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from core.config.load import parse
from core.config.reference import NOT_SET, REQUIRED, Key, all_keys, matching
from core.config.settings import Config

EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"
ENVIRON = {"TAVILY_API_KEY": "two", "WEBHOOK_SECRET": "four"} | {
    f"{name}_TOKEN": "three" for name in ("SLACK_BOT", "SLACK_APP", "TELEGRAM_BOT", "DISCORD_BOT")
}
ENVIRON |= {f"{name}_API_KEY": "one" for name in ("OPENAI", "ANTHROPIC", "GOOGLE", "AZURE")}


def entry(path: str) -> Key:
    [entry] = [key for key in all_keys() if key.path == path]
    return entry


def test_every_key_has_a_text() -> None:
    unexplained = [key.path for key in all_keys() if not re.search(r"[A-Z`/].*[.`]$", key.text, re.DOTALL)]
    assert unexplained == [], "a sentence is expected below the field"


def test_the_defaults_are_those_in_force() -> None:
    defaults: dict[str, Any] = {}
    absent = tuple(f"{key.path}." for key in all_keys() if key.section and key.default == NOT_SET)
    for key in all_keys():
        if (
            "[]" in key.path
            or ".*" in key.path
            or key.path.startswith(absent)
            or key.default in ("", NOT_SET, REQUIRED)
        ):
            continue
        section = defaults
        *above, name = key.path.split(".")
        for part in above:
            section = section.setdefault(part, {})
        section[name] = json.loads(key.default)
    config = parse(yaml.safe_dump(defaults), environ={})
    assert msgspec.structs.replace(config, hash="", warnings=()) == Config()


def test_types_are_words() -> None:
    types = {path: entry(path).type for path in ("http.port", "runs.lease_seconds", "budgets.warn", "nats.token")}
    assert types == {
        "http.port": "integer ≥ 0 and ≤ 65535",
        "runs.lease_seconds": "integer ≥ 2 and ≤ 60",
        "budgets.warn": "number > 0 and ≤ 1",
        "nats.token": "secret text",
    }
    assert entry("models").type == "list of sections"
    assert entry("approvals[].match").type == "text, or mapping of names to text"
    assert entry("tool_output.overrides").type == "mapping of names to integer ≥ 0"
    assert entry("log_level").type == "one of critical, debug, error, info, warning"


def test_keys_that_need_a_restart_are_marked() -> None:
    assert [entry(path).restart for path in ("http.port", "sandbox.mounts[].host_path", "tracing.otlp.endpoint")] == [
        True
    ] * 3
    assert [entry(path).restart for path in ("http", "http.docs", "models[].name", "log_level")] == [
        False,
        False,
        False,
        True,
    ]


def test_a_section_is_explained_by_its_docstring_and_shared_ones_where_they_stand() -> None:
    assert entry("http").text == "The HTTP server."
    assert entry("read_before_write").text != entry("command_audit").text


def test_keys_are_looked_up_by_path_section_and_part() -> None:
    assert [key.path for key in matching("http.port")] == ["http.port"]
    assert [key.path for key in matching("models[].pricing")] == [key.path for key in matching("models.pricing")]
    assert {"circuit_breaker", "circuit_breaker.failure_threshold"} <= {key.path for key in matching("circuit")}
    assert matching("no_such_key") == []
    assert matching("") == list(all_keys())


def test_the_example_is_valid_with_and_without_its_options() -> None:
    text = EXAMPLE.read_text()
    options = re.sub(r"(?m)^( *)#(?=[\w-])", r"\1", text)
    plain, full = parse(text, environ=ENVIRON), parse(options, environ=ENVIRON)
    assert (plain.warnings, full.warnings) == ((), ())
    assert (len(plain.tools), len(full.tools), len(full.approvals), full.budgets.run.tokens) == (0, 2, 1, 500_000)
    assert msgspec.structs.replace(plain, hash="", models=()) == Config()
