"""Accounts and keys of everybody over HTTP: by administrators only, by a session, with who did it in the log."""

from __future__ import annotations

from typing import Any

import pytest

from core.identity.accounts import ACCOUNTS
from tests.channels.http.people import ADA, BOB, Browser, Place
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here

pytestmark = pytest.mark.anyio
NEW = "new@example.org"
ROUTES = [
    ("GET", "/api/users", None),
    ("POST", "/api/users", {"email": NEW}),
    ("PATCH", "/api/users/USER", {"role": "admin"}),
    ("POST", "/api/users/USER/reset-password", None),
    ("GET", "/api/keys", None),
    ("POST", "/api/keys", {"user": ADA}),
    ("DELETE", "/api/keys/USER", None),
]


async def facts(here: Place) -> list[tuple[str, str | None]]:
    """The types of the accounts' facts, with who did it."""
    return [(record.type, getattr(record.event, "by", None)) async for record in here.system.log.read(ACCOUNTS)]


async def ask(person: Browser, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await person.ask(method, f"/api{path}", body)
    assert answer.status == status, (method, path, answer.status, answer.body)
    return answer.body


async def test_the_life_of_an_account(here: Place) -> None:
    root = await here.admin()
    me = (await root.me()).body["id"]
    made = await ask(root, "POST", "/users", {"email": "New@Example.org "}, 201)
    password, user = made.pop("password"), made["id"]
    assert (made["email"], made["system_role"], made["needs_setup"], made["verified"]) == (NEW, "user", True, True)
    assert made in (await ask(root, "GET", "/users"))["users"]
    person = here.browser()
    assert (await person.sign_in(NEW, password)).status == 200
    assert (await ask(root, "PATCH", f"/users/{user}", {"role": "admin"}))["system_role"] == "admin"
    assert (await ask(root, "PATCH", f"/users/{user}", {"disabled": True}))["disabled"] is True
    assert (await person.me()).status == 401
    assert (await ask(root, "PATCH", f"/users/{user}", {"disabled": False, "role": "user"}))["system_role"] == "user"
    other = (await ask(root, "POST", f"/users/{user}/reset-password"))["password"]
    assert (await person.sign_in(NEW, password)).status == 401
    assert (await person.sign_in(NEW, other)).status == 200
    assert (await facts(here))[2:] == [
        ("account.created", me),
        ("password.set", me),
        ("account.appointed", me),
        ("account.disabled", me),
        ("account.appointed", me),
        ("account.enabled", me),
        ("password.set", me),
    ]


async def test_the_life_of_a_key(here: Place) -> None:
    root, ada = await here.admin(), await here.person(ADA)
    me = (await root.me()).body["id"]
    made = await ask(root, "POST", "/keys", {"user": ADA, "scopes": ["threads"], "expires_in_days": 3}, 201)
    text = made.pop("key")
    assert (made["email"], made["scopes"], made["own"]) == (ADA, ["threads"], False)
    assert (await ask(root, "GET", "/keys"))["keys"] == [made]
    program = here.browser(**{"X-Api-Key": text})
    assert (await program.ask("POST", "/api/threads/search", {}, csrf=None)).status == 200
    assert (await ada.ask("DELETE", f"/api/keys/{made['id']}")).status == 403
    await ask(root, "DELETE", f"/keys/{made['id']}", status=204)
    assert (await program.ask("POST", "/api/threads/search", {}, csrf=None)).status == 401
    assert (await ask(root, "GET", "/keys"))["keys"] == []
    assert [fact for fact in await facts(here) if fact[0].startswith("key.")] == [
        ("key.created", me),
        ("key.revoked", me),
    ]
    raw = b"".join([record.raw async for record in here.system.log.read(ACCOUNTS)])
    assert text.split("-", 2)[2].encode() not in raw


async def test_a_member_gets_403_and_a_key_of_an_administrator_changes_no_account(here: Place) -> None:
    root, ada = await here.admin(), await here.person(ADA)
    user = (await ada.me()).body["id"]
    program = here.browser(**{"X-Api-Key": await here.key("admin@example.org")})
    before = len(await facts(here))
    for method, path, body in ROUTES:
        path = path.replace("USER", user)
        assert (await ada.ask(method, path, body)).status == 403, path
        assert (await here.browser().ask(method, path, body, csrf=None)).status == 401, path
        if method != "GET":
            assert (await root.ask(method, path, body, csrf=None)).code == "csrf", path
        if method in ("POST", "PATCH"):
            assert (await program.ask(method, path, body, csrf=None)).status == 403, path
    assert len(await facts(here)) == before


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/users", {"email": "no address"}, 422, "email: expected an address"),
        ("POST", "/users", {"email": BOB, "role": "god"}, 422, "role"),
        ("POST", "/users", {"email": "admin@example.org"}, 409, "an account with this address already"),
        ("PATCH", "/users/nobody", {"role": "admin"}, 404, "no such account"),
        ("PATCH", "/users/ME", {"role": "user"}, 409, "last administrator"),
        ("PATCH", "/users/ME", {"disabled": True}, 409, "last administrator"),
        ("POST", "/users/nobody/reset-password", None, 404, "no such account"),
        ("POST", "/keys", {"user": "nobody"}, 404, "no such account"),
        ("POST", "/keys", {"user": "admin@example.org", "scopes": ["everything"]}, 422, "scopes: "),
        ("POST", "/keys", {"user": "admin@example.org", "expires_in_days": 0}, 422, "expires_in_days"),
        ("DELETE", "/keys/none", None, 404, "no such key"),
    ],
)
async def test_what_is_refused(here: Place, method: str, path: str, body: Any, status: int, text: str) -> None:
    root = await here.admin()
    me = (await root.me()).body["id"]
    before = len(await facts(here))
    assert text in (await ask(root, method, path.replace("ME", me), body, status))["detail"]
    assert len(await facts(here)) == before
