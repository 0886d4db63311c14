"""Accounts over HTTP: the contract's routes, cookies and errors."""

from __future__ import annotations

import asyncio
import base64
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.http.endpoints.shapes import Unauthorized
from core.config.settings import Auth, Http
from core.errors import Invalid
from core.runtime.system import System
from tests.channels.http.people import ADA, ADMIN, AUTH, BOB, PASSWORD, Place, WithAccounts, place
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here
from tests.support.nats import eventually


def cookie(answer: Any, name: str) -> str:
    """The Set-Cookie header of a cookie; "" if it is not set."""
    return next((line for line in answer.headers.getall("Set-Cookie", []) if line.startswith(f"{name}=")), "")


# ── the way of a person ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_from_the_first_administrator_to_signing_out(here: Place) -> None:
    browser = here.browser()
    assert (await browser.ask("GET", f"{AUTH}/setup-status")).body == {"needs_setup": True, "registration": True}
    made = await browser.initialize()
    assert (made.status, made.body["email"], made.body["system_role"], made.body["needs_setup"]) == (
        201, ADMIN, "admin", False,
    )  # fmt: skip
    shown = (await browser.me()).body
    assert shown.pop("expires_at")
    assert shown.pop("has_password")
    assert shown == made.body
    assert (await browser.ask("GET", f"{AUTH}/setup-status")).body == {"needs_setup": False, "registration": True}
    thread = await browser.ask("POST", "/api/threads", {})
    assert thread.status == 200
    out = await browser.ask("POST", f"{AUTH}/logout")
    assert (out.status, set(out.body)) == (200, {"message"})
    assert "access_token" not in browser.cookies
    gone = await browser.me()
    assert (gone.status, gone.code) == (401, "not_authenticated")
    back = await browser.sign_in(f" {ADMIN.upper()} ")
    assert (back.status, back.body) == (200, {"expires_in": 7 * 24 * 3600, "needs_setup": False})
    assert (await browser.ask("GET", f"/api/threads/{thread.body['thread_id']}")).status == 200


async def test_only_the_first_becomes_an_administrator(here: Place) -> None:
    await here.admin()
    late = await here.browser().initialize("late@example.org")
    assert (late.status, late.code) == (409, "system_already_initialized")
    assert (await (await here.person(ADA)).me()).body["system_role"] == "user"


async def test_registration(here: Place, config: WithAccounts) -> None:
    ada = await here.person(ADA)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}", (await ada.me()).body["id"])
    again = await here.browser().register(ADA.upper())
    assert (again.status, again.code) == (400, "email_already_exists")
    config.auth = Auth(enabled=True)
    closed = await here.browser().register(BOB)
    assert (closed.status, closed.code) == (403, "registration_closed"), "by default"
    assert "ask an administrator" in closed.body["detail"], "a text: DeerFlow's page shows no other form of this code"
    assert (await here.admin()).cookies["access_token"], "which is not in the way of the first administrator"


async def test_accounts_are_not_made_in_series(here: Place, config: WithAccounts) -> None:
    """From one address; what is refused before any work does not count, what tells of an account does."""
    config.http = Http(trusted_proxies=("127.0.0.1",))

    async def register(email: str, password: str = PASSWORD, ip: str = "192.0.2.1") -> tuple[int, str]:
        answer = await here.browser(**{"X-Real-IP": ip}).register(email, password)
        return answer.status, "" if answer.status == 201 else answer.code

    for _ in range(6):
        assert (await register(ADA, "short"))[0] == 422
    statuses = await asyncio.gather(*(register(f"{n}@example.org") for n in range(8)))
    assert sorted(statuses) == [(201, "")] * 5 + [(429, "too_many_attempts")] * 3
    assert await register(ADA, ip="198.51.100.7") == (201, "")
    assert [await register(ADA, ip="198.51.100.7") for _ in range(5)] == [(400, "email_already_exists")] * 4 + [
        (429, "too_many_attempts")
    ]
    assert (await here.browser(**{"X-Real-IP": "192.0.2.1"}).sign_in(ADA)).status == 200


@pytest.mark.parametrize(
    ("email", "password", "said"),
    [
        (ADA, "short", "8 to 1024"),
        (ADA, "Password123", "choose another"),
        (ADA, "aaaaaaaaaaaa", "choose another"),
        (ADA, "x" * 1025, "8 to 1024"),
        ("nobody", PASSWORD, "email"),
        ("a@b@c", PASSWORD, "email"),
        ("a b@c.example", PASSWORD, "email"),
        ("a\u202e@c.example", PASSWORD, "email"),
        (f"{'a' * 300}@c.example", PASSWORD, "email"),
        ("", PASSWORD, "email"),
    ],
)
async def test_bad_addresses_and_passwords(here: Place, email: str, password: str, said: str) -> None:
    for path in ("register", "initialize"):
        answer = await here.browser().ask("POST", f"{AUTH}/{path}", {"email": email, "password": password})
        assert (answer.status, said in answer.body["detail"]) == (422, True), answer.body
        assert password not in answer.raw.decode() or not password


@pytest.mark.parametrize(
    "form",
    [
        {"data": {"username": ADA}},
        {"data": {"password": "x"}},
        {"json": {"username": ADA, "password": PASSWORD}},
        {"data": b"\xff\xfe=&&%%%", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {"data": b"a=b", "headers": {"Content-Type": "application/x-www-form-urlencoded; charset=klingon"}},
        {"data": b"--x\r\nbroken", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        {"data": b"--x", "headers": {"Content-Type": "multipart/form-data"}},
    ],
)
async def test_bad_forms(here: Place, form: dict[str, Any]) -> None:
    assert (await here.browser().ask("POST", f"{AUTH}/login/local", **form)).status == 422


async def test_a_changed_password_ends_all_other_sessions(here: Place) -> None:
    one, other = await here.person(ADA), here.browser()
    await other.sign_in(ADA)
    assert (await other.me()).status == 200
    wrong = await one.ask(
        "POST", f"{AUTH}/change-password", {"current_password": "wrong one", "new_password": "another good one"}
    )
    assert (wrong.status, wrong.code) == (400, "invalid_credentials")
    changed = await one.ask(
        "POST",
        f"{AUTH}/change-password",
        {"current_password": PASSWORD, "new_password": "another good one", "new_email": BOB},
    )
    assert (changed.status, set(changed.body)) == (200, {"message"})
    assert (await one.me()).body["email"] == BOB
    ended = await other.me()
    assert (ended.status, ended.code) == (401, "token_invalid")
    assert (await other.sign_in(BOB)).status == 401
    assert (await other.sign_in(ADA, "another good one")).status == 401
    assert (await other.sign_in(BOB, "another good one")).status == 200


async def test_an_address_is_not_taken_over(here: Place) -> None:
    await here.person(ADA)
    bob = await here.person(BOB)
    body = {"current_password": PASSWORD, "new_password": "another good one", "new_email": ADA}
    taken = await bob.ask("POST", f"{AUTH}/change-password", body)
    assert (taken.status, taken.code) == (400, "email_already_exists")
    assert (await bob.sign_in(BOB)).status == 200, "and the password is as it was"


async def test_signing_out_ends_the_session(system: System, here: Place, config: WithAccounts, tmp_path: Path) -> None:
    """Whoever has a copy of its token, and on every replica; the person's other sessions go on."""
    ada, other = await here.person(ADA), here.browser()
    await other.sign_in(ADA)
    copy = here.browser(Authorization=f"Bearer {ada.cookies['access_token']}")
    async with place(system, config, tmp_path / "home") as replica:
        there = replica.browser(Authorization=copy.headers["Authorization"])
        assert ((await copy.me()).status, (await there.me()).status) == (200, 200)
        assert (await ada.ask("POST", f"{AUTH}/logout")).status == 200

        async def ended() -> bool:
            answer = await there.me()
            return (answer.status, answer.status == 401 and answer.code) == (401, "token_invalid")

        assert (await copy.me()).code == "token_invalid"
        await eventually(ended)
        assert (await other.me()).status == 200
        for browser, status in ((ada, 200), (copy, 200)):
            assert (await browser.ask("POST", f"{AUTH}/logout")).status == status, "it is over already"


async def test_signing_out_by_token(here: Place) -> None:
    ada = await here.person(ADA)
    program = here.browser(Authorization=f"Bearer {ada.cookies['access_token']}")
    assert (await program.ask("POST", f"{AUTH}/logout")).status == 200
    assert (await ada.me()).code == "token_invalid"


async def test_only_people_change_passwords(here: Place) -> None:
    """Keys may not, and outlive it: only the operator makes them."""
    ada = await here.person(ADA)
    program = here.browser(**{"X-Api-Key": await here.key(ADA)})
    body = {"current_password": PASSWORD, "new_password": "another good one"}
    refused = await program.ask("POST", f"{AUTH}/change-password", body)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert (await ada.ask("POST", f"{AUTH}/change-password", body)).status == 200
    assert (await program.me()).status == 200


# ── cookies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


PLAIN, HTTPS, NEXT = (
    {"X-Forwarded-Host": "192.0.2.7"},
    {"X-Forwarded-Proto": "https"},
    {"X-Forwarded-Host": "localhost"},
)


@pytest.mark.parametrize(
    ("headers", "secure", "lasting"),
    [({}, False, True), (NEXT, False, True), (PLAIN, False, False), (HTTPS, True, True)],
)
async def test_cookies(here: Place, config: WithAccounts, headers: dict[str, str], secure: bool, lasting: bool) -> None:
    """Over https, as a trusted proxy says, they are Secure; they last there and on this machine."""
    config.http = Http(trusted_proxies=("127.0.0.1",) if headers is HTTPS else ())
    browser = here.browser(**headers)
    answer = await browser.register(ADA)
    session, csrf = cookie(answer, "access_token"), cookie(answer, "csrf_token")
    assert "HttpOnly" in session
    assert "SameSite=Lax" in session
    assert "HttpOnly" not in csrf
    assert "SameSite=Strict" in csrf
    for found in (session, csrf):
        assert "Path=/" in found
        assert ("Secure" in found, "Max-Age=604800" in found) == (secure, lasting)
    assert answer.headers["Cache-Control"] == "no-store"
    again = await browser.sign_in(ADA)
    assert ("Max-Age" in cookie(again, "access_token"), again.body["expires_in"]) == (lasting, 604_800)


async def test_sessions_that_are_not_kept(here: Place) -> None:
    """However they begin; a new password leaves it as it was, and they end after a day."""
    ada, admin, bob = here.browser(), here.browser(), here.browser()
    forget = {"password": PASSWORD, "remember_me": False}
    made = [
        await ada.ask("POST", f"{AUTH}/register", {"email": ADA, **forget}),
        await admin.ask("POST", f"{AUTH}/initialize", {"email": ADMIN, **forget}),
        await bob.ask("POST", f"{AUTH}/login/local", data={"username": ADA, **forget, "remember_me": "false"}),
        await ada.ask(
            "POST", f"{AUTH}/change-password", {"current_password": PASSWORD, "new_password": "another one of mine"}
        ),
    ]
    assert made[2].body["expires_in"] == 24 * 3600
    ada.plant("csrf_token", "lost")
    made.append(await ada.me())
    for answer in made:
        assert answer.status in (200, 201)
        assert cookie(answer, "csrf_token")
        assert "Max-Age" not in cookie(answer, "access_token") + cookie(answer, "csrf_token")
    claims = msgspec.json.decode(base64.urlsafe_b64decode(ada.cookies["access_token"].split(".")[1] + "==="))
    assert claims["exp"] - claims["iat"] == 24 * 3600
    body = {"current_password": "another one of mine", "new_password": "yet another one", "remember_me": True}
    kept = await ada.ask("POST", f"{AUTH}/change-password", body)
    assert "Max-Age=604800" in cookie(kept, "access_token")


async def test_a_lost_csrf_token_is_given_again(here: Place) -> None:
    ada = await here.person(ADA)
    token = ada.cookies["csrf_token"]
    assert not cookie(await ada.me(), "csrf_token"), "not as long as it is good"
    ada.plant("csrf_token", "of.somebody-else")
    assert (await ada.ask("POST", "/api/threads", {})).status == 403
    assert cookie(await ada.me(), "csrf_token")
    assert ada.cookies["csrf_token"] != token
    assert (await ada.ask("POST", "/api/threads", {})).status == 200


# ── without accounts ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_without_accounts_everybody_is_the_local_user(
    system: System, config: WithAccounts, tmp_path: Path
) -> None:
    config.auth = Auth()
    async with place(system, config, tmp_path / "home") as here:
        browser = here.browser()
        me = await browser.me()
        assert (me.status, me.body["id"], me.body["system_role"]) == (200, "default", "admin")
        assert (await browser.ask("GET", f"{AUTH}/setup-status")).body == {"needs_setup": False, "registration": False}
        assert (await browser.ask("GET", f"{AUTH}/providers")).body == {"providers": []}
        assert (await browser.ask("POST", f"{AUTH}/logout")).status == 200
        for answer in (await browser.sign_in(ADA), await browser.register(ADA), await browser.initialize()):
            assert (answer.status, answer.code) == (409, "auth_disabled")
        assert (await browser.ask("POST", "/api/threads", {}, headers={"X-Api-Key": "whatever"})).status == 200
        assert not (tmp_path / "home").exists(), "and no secret is made"


async def test_accounts_are_turned_on_at_once_and_off_by_a_restart(
    system: System, config: WithAccounts, tmp_path: Path
) -> None:
    config.auth = Auth()
    async with place(system, config, tmp_path / "home") as here:
        config.auth = Auth(enabled=True)
        assert (await here.browser().me()).status == 401
    async with place(system, config, tmp_path / "home") as here:
        config.auth = Auth()
        assert (await here.browser().me()).status == 401


async def test_a_server_does_not_start_with_secrets_that_others_can_read(
    system: System, config: WithAccounts, tmp_path: Path
) -> None:
    async with place(system, config, tmp_path / "home"):
        secret = tmp_path / "home" / "secrets" / "jwt_secret"
        secret.chmod(0o644)
    with pytest.raises(Invalid, match="jwt_secret"):
        async with place(system, config, tmp_path / "home"):
            pass


async def test_what_fails_has_the_form_that_is_documented(here: Place) -> None:
    answer = await here.browser().me()
    assert msgspec.convert(answer.body, Unauthorized).detail.code == "not_authenticated"
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_me_says_when_the_session_ends(here: Place) -> None:
    ada = await here.person(ADA)
    ends = datetime.fromisoformat((await ada.me()).body["expires_at"])
    claims = jwt_claims(ada.cookies["access_token"])
    assert int(ends.timestamp()) == claims["exp"]
    program = here.browser(**{"X-Api-Key": await here.key(ADA)})
    assert (await program.me()).body["expires_at"] is None


async def test_all_sessions_of_one_person_end(here: Place) -> None:
    ada, bob = await here.person(ADA), await here.person(BOB)
    other = here.browser()
    await other.sign_in(ADA)
    program = here.browser(**{"X-Api-Key": await here.key(ADA)})
    old = ada.cookies["access_token"]
    assert (await program.ask("POST", f"{AUTH}/logout-all")).status == 403, "a key that was found somewhere"
    assert (await ada.ask("POST", f"{AUTH}/logout-all", csrf=None)).status == 403
    assert (await ada.ask("POST", f"{AUTH}/logout-all")).status == 200
    assert not ada.cookies.get("access_token")
    for browser in (other, here.browser(Authorization=f"Bearer {old}")):
        assert (await browser.me()).status == 401
    assert (await bob.me()).status == 200
    assert (await program.me()).status == 200, "keys stay"
    assert (await ada.sign_in(ADA)).status == 200
    assert (await ada.me()).status == 200


def jwt_claims(token: str) -> Any:
    payload = token.split(".")[1]
    return msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
