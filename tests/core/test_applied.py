"""The configuration in force as facts: by key, without secrets, once for all processes that have the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config.load import ConfigSource
from core.events import Aggregate
from core.log.store import EventLog
from core.runtime import applied
from core.runtime.applied import ID, KIND, ConfigurationApplied, keep_record, values_of
from tests.support.nats import eventually, read, running_tasks

pytestmark = pytest.mark.anyio

SECRET = "sk-" + "Zq9" * 12
FILE = f"""
models:
  - name: main
    model: gpt-5.4
    api_key: {SECRET}
  - name: spare
    model: gpt-5
    api_key: $SPARE_KEY
log_level: debug
sandbox: {{environment: {{REGION: north, PASSWORD: "{SECRET}2"}}}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(applied, "LOOK_SECONDS", 0.02)
    monkeypatch.setenv("SPARE_KEY", "a-key-of-the-environment-1")
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    return path


async def changes(log: EventLog) -> list[ConfigurationApplied]:
    records = await read(log, Aggregate(KIND, ID))
    return [record.event for record in records if isinstance(record.event, ConfigurationApplied)]


def test_values_are_named_by_their_keys_and_secrets_are_hidden(file: Path) -> None:
    assert values_of(ConfigSource(file)) == {
        "models[0].name": '"main"',
        "models[0].model": '"gpt-5.4"',
        "models[0].api_key": '"***"',
        "models[1].name": '"spare"',
        "models[1].model": '"gpt-5"',
        "models[1].api_key": '"***"',
        "log_level": '"debug"',
        "sandbox.environment": '{"REGION": "***", "PASSWORD": "***"}',
    }


async def test_what_changed_is_recorded_once_for_all_processes(log: EventLog, file: Path) -> None:
    one, other = ConfigSource(file), ConfigSource(file)
    async with running_tasks(lambda: keep_record(log, one, "one"), lambda: keep_record(log, other, "other")):

        async def recorded() -> bool:
            return len(await changes(log)) == 1

        await eventually(recorded)
        file.write_text(FILE.replace("log_level: debug\n", "").replace("gpt-5\n", "gpt-5-mini\n"))

        async def again() -> bool:
            return len(await changes(log)) == 2

        await eventually(again)
    first, second = await changes(log)
    assert (first.file, first.changed["log_level"]) == ("config.yaml", '"debug"')
    assert second.changed == {"log_level": None, "models[1].model": '"gpt-5-mini"'}
    assert SECRET not in str([record.raw for record in await read(log, Aggregate(KIND, ID))])
    async with running_tasks(lambda: keep_record(log, ConfigSource(file), "restarted")):
        await eventually(lambda: log.last())
    assert len(await changes(log)) == 2
