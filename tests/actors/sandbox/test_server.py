"""A whole server on a provider that starts machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.wiring import compose, sandboxes
from tests.support.machines import Processes, alive
from tests.support.workers import wait_for


async def test_a_server_sweeps_at_its_start_and_ends_its_machines_if_it_is_to(
    home: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def provider(*_: Any) -> Processes:
        return processes

    monkeypatch.setattr(sandboxes, "provider_for", provider)
    config = home / "config.yaml"
    config.write_text(json.dumps({"sandbox": {"stop_on_exit": True}}))
    stray = await processes.start("ada", "nobody")
    async with compose.serve(compose.Options(home=home, config=config, port=0)):

        async def swept() -> bool:
            return not alive(int(stray.id))

        await wait_for(swept)
        late = await processes.start("ada", "late")
    assert not alive(int(late.id))
    assert processes.notes("end") == [int(stray.id), int(late.id)]
