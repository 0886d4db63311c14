"""The configuration in force for people: sources, lines, texts, and no secret in any form that files may have it in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.config.in_force import KeyInForce, keys_in_force
from core.config.load import ConfigSource
from core.config.reference import all_keys

SECRETS = [f"hunter2-{n}" for n in range(9)]
FILE = f"""\
log_level: $LEVEL
limits: {{requests_per_minute: 5}}
models:
  - name: main
    model: small
    api_key: $MODEL_KEY
    temperature: 0.5
    base_url: https://example.org/v1?api_key={SECRETS[0]}
    default_headers: {{Authorization: "{SECRETS[1]}", X-Tenant: pw1}}
mcp:
  servers:
    files:
      command: npx
      args: [serve, --api-key, "{SECRETS[2]}", --password, pw2]
      env: {{PLACE: "{SECRETS[3]}"}}
      headers: {{X-Any: "{SECRETS[4]}"}}
sandbox: {{environment: {{REGION: "{SECRETS[5]}"}}}}
channels: {{slack: {{bot_token: "{SECRETS[6]}"}}}}
acp_agents: {{other: {{command: other, env: {{ANY: "{SECRETS[7]}"}}}}}}
token_usage: {{enabled: false}}
"""


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, KeyInForce]:
    monkeypatch.setenv("LEVEL", "warning")
    monkeypatch.setenv("MODEL_KEY", SECRETS[8])
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    source = ConfigSource(path)
    entries = keys_in_force(source.current(), source.written())
    assert len(entries) == len({key.path for key in entries})
    return {key.path: key for key in entries}


def test_each_key_says_where_its_value_comes_from(keys: dict[str, KeyInForce]) -> None:
    level, limit, seconds = keys["log_level"], keys["limits.requests_per_minute"], keys["runs.lease_seconds"]
    assert (level.value, level.source, level.line, level.variable) == ('"warning"', "env", 1, "LEVEL")
    assert (limit.value, limit.source, limit.line, limit.variable) == ("5", "file", 2, "")
    assert (seconds.source, seconds.line, seconds.value) == ("default", None, seconds.default)
    assert (keys["models[0].name"].line, keys["models[0].temperature"].value) == (4, "0.5")
    assert (keys["models[0].api_key"].source, keys["models[0].api_key"].variable) == ("env", "MODEL_KEY")
    assert (keys["token_usage.enabled"].source, keys["token_usage.enabled"].value) == ("file", "false")
    assert keys["channels.slack.bot_token"].line == 18
    assert "channels.slack.bot_token" in keys
    assert keys["runs.max_concurrent"].restart


def test_no_secret_is_shown(keys: dict[str, KeyInForce]) -> None:
    text = json.dumps([repr(key) for key in keys.values()])
    assert [secret for secret in (*SECRETS, "pw1", "pw2") if secret in text] == []
    assert keys["models[0].api_key"].value == '"***"'
    assert json.loads(keys["mcp.servers.files.args"].value) == ["serve", "--api-key", "***", "--password", "***"]
    assert json.loads(keys["mcp.servers.files.env"].value) == {"PLACE": "***"}


def test_every_documented_key_has_its_text(keys: dict[str, KeyInForce]) -> None:
    """But for entries of lists and mappings, and for what is in a section that is not set: that one stands there."""
    plain = {key.path: key for key in all_keys() if "[]" not in key.path and "*" not in key.path and not key.section}
    missing = [path for path in plain if path not in keys and path.rpartition(".")[0] not in keys]
    assert missing == []
    assert [path for path, key in plain.items() if path in keys and keys[path].text != key.text] == []
    assert keys["models[0].name"].text == "The name that clients use for it."


def test_without_a_file_everything_is_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = ConfigSource()
    assert {key.source for key in keys_in_force(source.current(), source.written())} == {"default"}


def test_keys_of_deerflow_stand_where_the_file_has_them(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("max_recursion_limit: 77\nsandbox:\n  idle_timeout: 77\n")
    source = ConfigSource(path)
    entries = [key for key in keys_in_force(source.current(), source.written()) if key.value == "77"]
    assert [(key.source, key.line) for key in entries] == [("file", 1), ("file", 3)]
