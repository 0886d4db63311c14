"""The routes of chat accounts: what their processes say, restart, and credentials that are entered and never shown."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from actors.wiring import accounts
from core.chat.account import AGGREGATE, AccountConfigured, AccountReset
from core.chat.facts import Artifact, DeliveryPlanned, Target
from core.chat.links import GONE, PATH, Links, Shared
from core.config.load import ConfigSource
from core.config.settings import Http
from core.files.paths import thread_root
from core.runtime.system import System
from tests.actors.accounts.tower import Tower, tower
from tests.channels.http.conftest import Api, services_of
from tests.support.nats import Nats, read, running_tasks

ENTERED = "good-entered-987654"


@pytest.fixture
async def there() -> AsyncIterator[Tower]:
    async with tower() as there:
        yield there


@pytest.fixture
def source(there: Tower, tmp_path: Path) -> ConfigSource:
    bell = {"use": "tests.actors.accounts.bell", "base_url": there.url}
    work = {"enabled": True, "bot_token": "good-0123456789", "base_url": there.url}
    file = tmp_path / "config.yaml"
    file.write_text(
        json.dumps({"runs": {"lease_seconds": 2}, "channels": {"bell": {**bell, "accounts": {"work": work}}}})
    )
    return ConfigSource(file)


@pytest.fixture
def services(system: System, source: ConfigSource, tmp_path: Path) -> Any:
    return services_of(system, source.current, tmp_path)


async def test_a_process_says_what_it_does(
    api: Api, nats: Nats, system: System, source: ConfigSource, there: Tower, tmp_path: Path, url: str
) -> None:
    before = await api.ask("GET", "/channels/")
    assert before["service_running"] is False
    assert {name: each["state"] for name, each in before["channels"].items()} == {
        "bell": "disabled",
        "bell-work": "not running",
    }
    endpoint = nats.endpoint(system.bus.names.prefix)
    async with running_tasks(lambda: accounts.serve("bell-work", tmp_path, source, endpoint)):
        await there.until(lambda: bool(there.open))
        await there.ring("m1")
        await there.until(lambda: there.acked == ["m1"])
        after = await api.ask("GET", "/channels/")
        work = after["channels"]["bell-work"]
        assert (after["service_running"], work["running"], work["state"]) == (True, True, "connected")
        assert (bool(work["connected_since"]), bool(work["last_in"]), work["last_out"]) == (True, True, None)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
            text = await response.text()
        assert 'sika_chat_connected{account="bell-work"} 1.0' in text
        assert 'sika_chat_received{account="bell-work"} 1.0' in text
        restarted = await api.ask("POST", "/channels/bell-work/restart")
        assert restarted["success"] is True
        await there.until(lambda: there.connections == 2)
    await api.ask("POST", "/channels/bell-work/restart", status=503)
    await api.ask("POST", "/channels/bell-home/restart", status=404)


async def test_entered_credentials_are_used_and_not_shown(
    api: Api, nats: Nats, system: System, source: ConfigSource, there: Tower, tmp_path: Path
) -> None:
    entry = await api.ask("POST", "/channels/bell/runtime-config", {"values": {"bot_token": f" {ENTERED} "}})
    assert (entry["enabled"], entry["configured"], entry["runtime"]) == (True, True, True)
    assert entry["credential_fields"] == [{"name": "bot_token", "label": "Token", "type": "password", "set": True}]
    [record] = await read(system.log, AGGREGATE)
    assert ENTERED not in json.dumps([entry, repr(record)])
    endpoint = nats.endpoint(system.bus.names.prefix)

    async def serve() -> None:
        await accounts.serve("bell", tmp_path, source, endpoint)

    async with running_tasks(serve):
        await there.until(lambda: list(there.open.values()) == [ENTERED])
        shown = await api.ask("GET", "/channels/")
        assert ENTERED not in json.dumps(shown)
    after = await api.ask("DELETE", "/channels/bell/runtime-config")
    assert (after["enabled"], after["configured"], after["runtime"]) == (False, False, False)


@pytest.mark.parametrize(
    ("name", "values", "status", "problem"),
    [
        ("bell", {"bot_tken": "x"}, 400, "bot_tken: unknown key; there are: bot_token"),
        ("bell", {"bot_token": " "}, 400, "missing: bot_token"),
        ("bell", {"bot_token": "x" * 5000}, 400, "at most 20 values of at most 4096 characters"),
        ("whistle", {"bot_token": "x"}, 404, "channels.whistle: there is no such platform"),
        ("bell-NO", {"bot_token": "x"}, 400, "'bell-NO' cannot be the name of an account"),
    ],
)
async def test_what_cannot_be_entered(api: Api, name: str, values: Any, status: int, problem: str) -> None:
    answer = await api.ask("POST", f"/channels/{name}/runtime-config", {"values": values}, status=status)
    assert problem in json.dumps(answer)


async def test_an_account_is_tested_as_on_the_command_line(api: Api) -> None:
    assert (await api.ask("POST", "/channels/bell-work/test"))["ok"] is True
    answer = await api.ask("POST", "/channels/bell/test")
    assert answer["ok"] is False
    assert "bot_token" in answer["findings"][0]["what"]
    await api.ask("POST", "/channels/none/test", status=404)


async def test_the_facts_name_who_entered_and_reset_credentials(api: Api, system: System) -> None:
    await api.ask("POST", "/channels/bell/runtime-config", {"values": {"bot_token": ENTERED}})
    await api.ask("DELETE", "/channels/bell/runtime-config")
    facts = [record.event async for record in system.log.read(AGGREGATE)]
    assert facts[-2:] == [
        AccountConfigured(account="bell", values=facts[-2].values, by="default"),  # type: ignore[union-attr]
        AccountReset(account="bell", by="default"),
    ]


async def test_a_link_leads_to_its_file_until_it_expires(
    url: str, source: ConfigSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = thread_root(tmp_path, "ada", "t1") / "user-data" / "outputs"
    outputs.mkdir(parents=True)
    (outputs / "big.html").write_text("<p>much</p>")
    links = Links(tmp_path, lambda: msgspec.structs.replace(source.current(), http=Http(public_url=url)))
    plan = DeliveryPlanned(plan="p", purpose="answer", target=Target(chat="c"), thread="t1", user="ada")
    link = links.link(plan, Artifact("/mnt/user-data/outputs/big.html", "big.html"))
    assert link is not None
    assert links.link(plan, Artifact("/mnt/user-data/uploads/big.html", "big.html")) is None
    assert Links(tmp_path, source.current).link(plan, Artifact("/mnt/user-data/outputs/big.html", "")) is None
    claims, _, signature = link.rpartition("/")[2].partition(".")
    gone = Shared("ada", "t1", "/mnt/user-data/outputs/none", 1 << 40)
    forged = base64.urlsafe_b64encode(msgspec.json.encode(gone)).decode().rstrip("=")
    async with aiohttp.ClientSession() as session:
        async with session.get(link) as response:
            assert (response.status, await response.text()) == (200, "<p>much</p>")
            assert response.headers["Content-Disposition"].startswith("attachment; ")
        for token in (f"{forged}.{signature}", f"{claims}.", claims, f"{claims}.{'0' * 64}"):
            async with session.get(f"{url}{PATH}/{token}") as response:
                assert response.status == 404, token
        (outputs / "big.html").unlink()
        async with session.get(link) as response:
            assert response.status == 404
        (outputs / "big.html").symlink_to("/etc/passwd")
        async with session.get(link) as response:
            assert response.status == 404
        monkeypatch.setattr("core.chat.links.VALID_SECONDS", -1)
        expired = links.link(plan, Artifact("/mnt/user-data/outputs/big.html", "big.html"))
        async with session.get(str(expired)) as response:
            assert (response.status, (await response.json())["detail"]) == (404, GONE)
