"""The routes by which people connect with a chat platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.chat.connections import CONNECTIONS, MOST_PENDING, Connections
from core.config.load import ConfigSource
from core.runtime.system import System
from tests.channels.http.conftest import Api, services_of
from tests.support.nats import read

ACCOUNTS = {
    "office": {"enabled": True, "use": "tests.actors.chat.office", "token": "xyz-123456"},
    "world": {"use": "tests.actors.chat.world", "accounts": {"work": {"enabled": True, "token": "xyz-123456"}}},
}
PROVIDERS = {"office": {"enabled": True}, "world": {"enabled": True, "bot_username": "@the_bot"}}


@pytest.fixture
def sections() -> dict[str, Any]:
    return {"channels": ACCOUNTS, "channel_connections": {"enabled": True, **PROVIDERS}}


@pytest.fixture
def services(system: System, sections: dict[str, Any], tmp_path: Path) -> Any:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(sections))
    return services_of(system, ConfigSource(file).current, tmp_path)


async def shown(api: Api, provider: str) -> dict[str, Any]:
    answer = await api.ask("GET", "/channels/providers")
    [found] = [each for each in answer["providers"] if each["provider"] == provider]
    assert isinstance(found, dict)
    return found


async def test_a_person_connects_and_ends_it(api: Api, system: System) -> None:
    before = await shown(api, "office")
    assert before == {
        "provider": "office",
        "display_name": "Office",
        "enabled": True,
        "configured": True,
        "connectable": True,
        "auth_mode": "binding_code",
        "connection_status": "not_connected",
        "credential_fields": [{"name": "token", "label": "Token", "type": "password", "required": True}],
        "credential_values": {},
    }
    begun = await api.ask("POST", "/channels/office/connect")
    code = begun["code"]
    assert (begun["provider"], begun["mode"], begun["expires_in"], "url" in begun) == (
        "office",
        "binding_code",
        600,
        False,
    )
    assert begun["instruction"].endswith(f"/connect {code}")
    assert all(code.encode() not in record.raw for record in await read(system.log, CONNECTIONS))
    assert (await api.ask("GET", "/channels/connections")) == {"connections": []}
    bound = await Connections(system.log, actor="chat").bind(code, "office", "U1", "Ada")
    assert bound is not None
    [connection] = (await api.ask("GET", "/channels/connections"))["connections"]
    assert (connection["external_account_id"], connection["external_account_name"]) == ("U1", "Ada")
    assert (connection["provider"], connection["account"], connection["status"]) == ("office", "office", "connected")
    assert (await shown(api, "office"))["connection_status"] == "connected"
    await api.ask("DELETE", f"/channels/connections/{connection['id']}", status=204)
    await api.ask("DELETE", f"/channels/connections/{connection['id']}", status=404)
    assert (await shown(api, "office"))["connection_status"] == "not_connected"


async def test_a_link_opens_the_bot(api: Api) -> None:
    begun = await api.ask("POST", "/channels/world/connect")
    assert (begun["mode"], begun["url"]) == ("deep_link", f"https://world.test/the_bot?start={begun['code']}")


async def test_unused_codes_are_few(api: Api) -> None:
    for _ in range(MOST_PENDING):
        await api.ask("POST", "/channels/office/connect")
    assert (await api.ask("POST", "/channels/office/connect", status=429))["code"] == "too_many_codes"


@pytest.mark.parametrize(
    ("change", "provider", "status", "reason"),
    [
        ({"channel_connections": {"enabled": False, **PROVIDERS}}, "office", 409, "connections are off"),
        ({"channel_connections": {"enabled": True}}, "office", 409, "connections are off"),
        (
            {"channels": {"office": {"use": "tests.actors.chat.office", "token": "xyz-123456"}}},
            "office",
            409,
            "no credentials, or is not enabled",
        ),
        ({}, "whistle", 404, "not found"),
    ],
)
async def test_where_nobody_can_connect(
    api: Api, sections: dict[str, Any], tmp_path: Path, change: Any, provider: str, status: int, reason: str
) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps({**sections, **change}))
    answer = await api.ask("POST", f"/channels/{provider}/connect", status=status)
    assert reason in answer["detail"]
