"""API keys that people make for themselves: by a session and the password, shown once, and gone with the password."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from core.identity.accounts import ACCOUNTS
from tests.channels.http.people import ADA, AUTH, BOB, PASSWORD, Browser, Place
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio
KEYS = f"{AUTH}/keys"


async def make(person: Browser, status: int = 201, **body: Any) -> Any:
    answer = await person.ask("POST", KEYS, {"current_password": PASSWORD, **body})
    assert answer.status == status, answer.body
    assert answer.headers["Cache-Control"] == "no-store"
    return answer.body


async def works(here: Place, key: str, path: str = "/api/threads", method: str = "POST") -> int:
    return (await here.browser(**{"X-Api-Key": key}).ask(method, path, {}, csrf=None)).status


async def listed(person: Browser) -> list[Any]:
    return list((await person.ask("GET", KEYS)).body["keys"])


async def test_the_life_of_a_key(here: Place) -> None:
    ada, bob = await here.person(ADA), await here.person(BOB)
    assert await listed(ada) == []
    made = await make(ada, scopes=["threads:read", "runs"], expires_in_days=7)
    until = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=6, hours=23) < until <= timedelta(days=7)
    assert (made["scopes"], made["own"]) == (["runs", "threads:read"], True)
    text = made.pop("key")
    assert await listed(ada) == [made]
    assert await listed(bob) == []
    assert await works(here, text, method="GET", path=f"{AUTH}/me") == 200
    assert await works(here, text) == 403, "it may do less"
    assert await works(here, (await make(ada))["key"]) == 200
    assert (await bob.ask("DELETE", f"{KEYS}/{made['id']}")).status == 404
    assert (await ada.ask("DELETE", f"{KEYS}/{made['id']}")).status == 204
    assert (await ada.ask("DELETE", f"{KEYS}/{made['id']}")).status == 404
    assert await works(here, text) == 401
    assert len(await listed(ada)) == 1
    raw = b"".join([record.raw async for record in here.system.log.read(ACCOUNTS)])
    assert text.split("-", 2)[2].encode() not in raw


async def test_a_session_and_the_password_are_needed(here: Place) -> None:
    ada = await here.person(ADA)
    key = await here.key(ADA)
    program = here.browser(**{"X-Api-Key": key})
    for method, path in (("POST", KEYS), ("DELETE", f"{KEYS}/{key.split('-')[1]}")):
        assert (await program.ask(method, path, {"current_password": PASSWORD}, csrf=None)).status == 403
        assert (await ada.ask(method, path, {"current_password": PASSWORD}, csrf=None)).code == "csrf"
        assert (await here.browser().ask(method, path, {}, csrf=None)).status == 401
    for wrong in ("", "another password"):
        assert (await make(ada, 400, current_password=wrong))["detail"]["message"] == "The current password is wrong"
    for _ in range(3):
        await make(ada, 400, current_password="guess")
    assert (await ada.ask("POST", KEYS, {"current_password": PASSWORD})).status == 429, "guessing locks the account"
    assert [entry["own"] for entry in await listed(ada)] == [False], "and that of the operator is there"


@pytest.mark.parametrize(
    "body", [{"scopes": []}, {"scopes": ["everything"]}, {"expires_in_days": 0}, {"expires_in_days": "x"}]
)
async def test_what_is_refused(here: Place, body: dict[str, Any]) -> None:
    ada = await here.person(ADA)
    assert (await ada.ask("POST", KEYS, {"current_password": PASSWORD, **body})).status == 422
    assert await listed(ada) == []


async def test_they_end_with_the_password_and_others_stay(here: Place) -> None:
    ada = await here.person(ADA)
    own, operators = (await make(ada))["key"], await here.key(ADA)
    change = {"current_password": PASSWORD, "new_password": "another horse battery"}
    assert (await ada.ask("POST", f"{AUTH}/change-password", change)).status == 200
    assert await works(here, own) == 401
    assert await works(here, operators) == 200
    assert [entry["own"] for entry in await listed(ada)] == [False]
    again = await make(ada, current_password="another horse battery")
    await here.directory.set_password(ADA, "a third horse battery", temporary=False, actor="test")

    async def ended() -> bool:
        return await works(here, again["key"]) == 401

    await eventually(ended)


async def test_at_most_twenty(here: Place) -> None:
    ada = await here.person(ADA)
    first = await make(ada)
    for _ in range(19):
        await make(ada)
    assert "revoke one first" in str(await make(ada, 409))
    assert (await ada.ask("DELETE", f"{KEYS}/{first['id']}")).status == 204
    await make(ada)
