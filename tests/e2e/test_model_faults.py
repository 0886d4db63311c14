"""A model that fails, beside a whole server: its provider's words stand where people look, until it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.servers import browser, serving
from tests.e2e.test_secrets import command
from tests.support.model_server import Failure, ModelServer, Turn
from tests.support.workers import configure, reaching

pytestmark = [pytest.mark.anyio, pytest.mark.long]

KEY = "sk-proj-aBcD1234eFgH5678iJkL9012"
SPENT = Failure(status=402, message="The wallet of acme-team is empty.", code="insufficient_balance")
REVOKED = f"Incorrect API key provided: {KEY}, at "
BUSY = Failure(status=503, message="The shard is moving.", headers={"retry-after-ms": "1"})


async def test_the_last_failure_of_each_model(tmp_path: Path) -> None:
    """`spent` and `revoked` fail for good, `spare` stands in for them, `passing` answers after a retry."""

    def denied(_: Any) -> Turn:
        return Turn(error=Failure(status=401, message=REVOKED + models.url, code="invalid_api_key"))

    scripts: dict[str, Any] = {"revoked": denied, "spare": [Turn(text="Here.")]}
    scripts |= {"spent": [Turn(error=SPENT, times=1, text="Paid.")]}
    scripts |= {"passing": [Turn(error=BUSY, times=1, text="Moved.")]}
    async with ModelServer(scripts) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models, model_roles={"lead": ["revoked", "spare"]})
        async with serving(tmp_path / "home", config) as server:
            assert {name: model["last_failure"] for name, model in (await listed(client, server)).items()} == (
                dict.fromkeys(scripts)
            )
            ends = [await asked(client, server, name) for name in ("spent", "passing", "revoked")]
            failed = await listed(client, server)
            one = await client.get(server, "/models/spent")
            report = (await command(server, config, "doctor")).decode()
            assert await asked(client, server, "spent") == "success"
            mended = await listed(client, server)
    assert ends == ["success"] * 3
    assert failed["passing"]["last_failure"] is failed["spare"]["last_failure"] is None
    spent, revoked = failed["spent"]["last_failure"], failed["revoked"]["last_failure"]
    assert one["last_failure"] == spent
    assert (spent["reason"], revoked["reason"]) == ("quota", "auth")
    assert "The wallet of acme-team is empty." in spent["text"]
    assert "Incorrect API key provided: " in revoked["text"]
    for text in (revoked["text"], report):
        assert KEY not in text
    assert "127.0.0.1" not in spent["text"] + revoked["text"]
    assert "spent: its last call failed (quota)" in report
    assert "The wallet of acme-team is empty." in report
    assert "revoked: its last call failed (auth)" in report
    assert "passing: its last call failed" not in report
    assert mended["spent"]["last_failure"] is None
    assert mended["revoked"]["last_failure"] == revoked


async def asked(client: Any, server: Any, model: str) -> str:
    """Returns how a run of a model ended."""
    thread = await client.thread(server)
    run = await client.run(server, thread, "Go", model)
    await reaching(lambda: client.status(server, thread, run), lambda status: status in ("success", "error"))
    return str(await client.status(server, thread, run))


async def listed(client: Any, server: Any) -> dict[str, Any]:
    await client.post(server, "/threads/search", {})  # waits until the views have what was written
    return {model["name"]: model for model in (await client.get(server, "/models"))["models"]}
