"""Models beside the configuration file, over HTTP: by administrators only, and no key comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core.models.added import MODELS
from tests.channels.http.people import ADA, Browser, Place
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here

pytestmark = pytest.mark.anyio
KEY = "sk-of-an-added-model-4713"
MODEL: dict[str, Any] = {"model": "small", "provider": "custom", "base_url": "http://127.0.0.1:9/v1", "api_key": KEY}
ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/api/model-settings", None),
    ("POST", "/api/model-settings/try", {**MODEL, "name": "mine"}),
    ("PUT", "/api/model-settings/models/mine", MODEL),
    ("DELETE", "/api/model-settings/models/mine", None),
    ("POST", "/api/model-settings/models/mine/try", None),
    ("PUT", "/api/model-settings/roles/lead", {"models": []}),
]


async def facts(here: Place) -> list[Any]:
    return [record async for record in here.system.log.read(MODELS)]


async def ask(person: Browser, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await person.ask(method, path, body)
    assert answer.status == status, (method, path, answer.status, answer.body)
    assert KEY not in msgspec.json.encode(answer.body).decode()
    return answer.body


async def test_a_member_gets_403(here: Place) -> None:
    await here.admin()
    ada = await here.person(ADA)
    for method, path, body in ROUTES:
        await ask(ada, method, path, body, 403)
        assert (await here.browser().ask(method, path, body, csrf=None)).status == 401
    assert await facts(here) == []


async def test_every_change_names_who_did_it_and_no_key_comes_back(here: Place) -> None:
    root = await here.admin()
    me = (await root.me()).body["id"]
    providers = (await ask(root, "PUT", "/api/model-settings/models/mine", MODEL))["providers"]
    assert {"openai", "custom"} <= {provider["name"] for provider in providers}
    assert [provider["name"] for provider in providers if provider["own_address"]] == ["azure", "custom"]
    await ask(root, "PUT", "/api/model-settings/models/mine", {**MODEL, "api_key": None, "display_name": "Mine"})
    await ask(root, "DELETE", "/api/model-settings/models/mine")
    records = await facts(here)
    assert [record.event.by for record in records] == [me] * 3
    assert not any(KEY.encode() in record.raw for record in records)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("models/mine", {**MODEL, "provider": "nobody"}, "provider: 'nobody' unknown; there are: openai"),
        ("models/mine", {**MODEL, "base_url": None}, "base_url: the address is needed, as http://localhost:8000/v1"),
        ("models/mine", {**MODEL, "base_url": "file:///etc/passwd"}, "base_url"),
        ("models/mine", {**MODEL, "model": ""}, "model"),
        ("models/%3Cb%3E", MODEL, "name: "),
        ("roles/king", {"models": []}, "role: 'king' is none"),
        ("roles/lead", {"models": ["none"]}, "models: 'none' is none of the models"),
    ],
)
async def test_what_is_refused_names_the_field(here: Place, path: str, body: Any, text: str) -> None:
    root = await here.admin()
    assert text in (await ask(root, "PUT", f"/api/model-settings/{path}", body, 422))["detail"]
    assert await facts(here) == []
