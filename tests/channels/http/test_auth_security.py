"""What must not work: forged, borrowed, stolen and outdated ways in; other people's things; too many tries."""

from __future__ import annotations

import ast
import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

import channels.http
from channels.http.accounts.access import Gate
from channels.http.endpoints.table import all_routes
from channels.http.server.routes import Form, Route
from core.config.settings import Auth, Http, Secret
from core.events import Aggregate, thread
from core.identity import accounts, keys, lockout, sessions
from core.ids import uuid7
from core.runtime.system import System
from tests.channels.http.people import ADA, ADMIN, AUTH, BOB, PASSWORD, Answer, Browser, Place, WithAccounts, place
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here
from tests.support.nats import eventually
from tests.support.oidc import by_hand

# ── nobody gets in without a credential ──────────────────────────────────────────────────────────────────────────────

PUBLIC = {
    "/mcp/oauth/client.json",  # read by authorisation servers
   
    "/ok", "/info", "/health", "/ready", "/docs", "/redoc", "/openapi.json", "/", "/shared", "/page/{name}",
    "/asyncapi.json", "/.well-known/oauth-protected-resource/mcp",
    *(f"/v1/auth/{name}" for name in ("login/local", "register", "initialize", "logout", "setup-status", "providers")),
    "/v1/auth/oauth/{provider}", "/v1/auth/callback/{provider}", "/channels/files/{token}",
    "/views/{token}/{path:.+}",  # signed addresses of an hour, for frames without cookies
    *(f"/shared/{{token}}{rest}" for rest in ("", "/files/{path:.+}", "/view/{path:.+}")),  # what somebody shared
}  # fmt: skip


def protected() -> list[Route]:
    return [route for route in all_routes() if not route.public]


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_what_is_public_is_meant_to_be() -> None:
    found = {route.path for route in all_routes() if route.public}
    assert {path for path in found - PUBLIC if not path.startswith("/docs/")} == set()


def test_every_scope_can_be_granted() -> None:
    for route in protected():
        if route.scope:
            assert accounts.scopes(route.scope.split()) == route.scope.split(), named(route)


def forged(here: Place, what: str, user: str) -> str:
    now, own = int(time.time()), here.installation.sessions
    claims = {"sub": user, "ver": 1, "iat": now, "exp": now + 60}
    good = sessions.sign(claims, own)
    head, _, signature = good.split(".")
    match what:
        case "good":
            return good
        case "alg none":
            return by_hand({"alg": "none"}, claims, b"")
        case "alg none, with the signature of a good one":
            return by_hand({"alg": "none"}, claims, b"") + signature
        case "signed with another key":
            return sessions.sign(claims, Secret("x" * 48))
        case "signed with an empty key":
            return by_hand({"alg": "HS256"}, claims, b"")
        case "another algorithm":
            return jwt.encode({"alg": "HS512"}, claims, OctKey.import_key(own.reveal()), algorithms=["HS512"])
        case "another body":
            other = sessions.sign({**claims, "sub": "somebody-else"}, own).split(".")[1]
            return ".".join((head, other, signature))
        case "signed for another purpose":
            return sessions.sign(claims, here.installation.derived("oidc"))
        case "expired":
            return sessions.sign({**claims, "exp": now - 1}, own)
        case "without end":
            return sessions.sign({"sub": user, "ver": 1, "iat": now}, own)
        case "an older version":
            return sessions.sign({**claims, "ver": 0}, own)
        case "a version that is no number":
            return sessions.sign({**claims, "ver": "1"}, own)
        case "of nobody":
            return sessions.sign({**claims, "sub": uuid7()}, own)
        case "too long":
            return good + "A" * 5000
    return what


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("good", ""),
        ("alg none", "token_invalid"),
        ("alg none, with the signature of a good one", "token_invalid"),
        ("signed with another key", "token_invalid"),
        ("signed with an empty key", "token_invalid"),
        ("another algorithm", "token_invalid"),
        ("another body", "token_invalid"),
        ("signed for another purpose", "token_invalid"),
        ("expired", "token_expired"),
        ("without end", "token_invalid"),
        ("an older version", "token_invalid"),
        ("a version that is no number", "token_invalid"),
        ("of nobody", "user_not_found"),
        ("too long", "token_invalid"),
        ("a.b.c", "token_invalid"),
        ("x", "token_invalid"),
        ("..", "token_invalid"),
    ],
)
async def test_sessions(here: Place, what: str, code: str) -> None:
    user = (await (await here.person(ADA)).me()).body["id"]
    token = forged(here, what, user)
    for header in ({"Cookie": f"access_token={token}"}, {"Authorization": f"Bearer {token}"}):
        answer = await here.browser().ask("GET", f"{AUTH}/me", headers=header)
        assert (answer.status, answer.body.get("detail", {}).get("code", "")) == (401 if code else 200, code)
        assert token not in answer.raw.decode()


# ── browsers that are tricked ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("csrf", "status"),
    [("own", 200), (None, 403), ("", 403), ("forged", 403), ("0" * 32 + "." + "0" * 32, 403)],
)
async def test_csrf(here: Place, csrf: str | None, status: int) -> None:
    ada = await here.person(ADA)
    answer = await ada.ask("POST", "/api/threads", {}, csrf=csrf)
    assert answer.status == status
    if status == 403:
        assert ("missing" in answer.body["detail"]) == (not csrf)
        assert ("mismatch" in answer.body["detail"]) == bool(csrf)


async def test_a_planted_token_is_worth_nothing(here: Place) -> None:
    """Another site of the same domain can set cookies: also its own user's real token."""
    ada, mallory = await here.person(ADA), await here.person("mallory@example.org")
    planted = mallory.cookies["csrf_token"]
    ada.plant("csrf_token", planted)
    answer = await ada.ask("POST", "/api/threads", {}, csrf=planted)
    assert (answer.status, answer.body["code"]) == (403, "csrf")


async def test_signing_in_makes_new_tokens(here: Place) -> None:
    """Whoever knew the old ones knows nothing (fixation)."""
    await here.person(ADA)
    browser = here.browser()
    browser.plant("access_token", "known")
    browser.plant("csrf_token", "known")
    seen: set[str] = {"known"}
    for _ in range(2):
        await browser.sign_in(ADA)
        for name in ("access_token", "csrf_token"):
            assert browser.cookies[name] not in seen or name == "access_token"
            seen.add(browser.cookies[name])
    assert "known" not in browser.cookies.values()


@pytest.mark.parametrize("path", ["login/local", "register", "initialize", "logout"])
@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://evil.example", 403), ("null", 403), ("http://127.0.0.1:1", 403), ("same", 0), ("https://ui.example", 0)],
)
async def test_cross_origin_sign_in(here: Place, config: WithAccounts, path: str, origin: str, status: int) -> None:
    config.http = Http(cors_origins=("https://ui.example",))
    await here.person(ADA)
    headers = {"Origin": here.url if origin == "same" else origin}
    form = {"data": {"username": ADA, "password": PASSWORD}}
    given: dict[str, Any] = form if path == "login/local" else {"json": {"email": BOB, "password": PASSWORD}}
    answer = await here.browser().ask("POST", f"{AUTH}/{path}", headers=headers, csrf=None, **given)
    assert answer.status == status or (not status and answer.status in (200, 201)), answer
    assert ("Set-Cookie" in answer.headers) == (not status)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("?action=rollback", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("?action=rollback", {"Sec-Fetch-Site": "same-origin"}, 403),  # without the token
        ("", {"Sec-Fetch-Site": "cross-site"}, 404),
        ("", {"Origin": "https://evil.example"}, 404),
        ("?action=rollback", {"Origin": "https://evil.example"}, 403),
        ("", {"Origin": "https://evil.example", "Upgrade": "websocket"}, 403),
    ],
)
async def test_reading_may_change_something(here: Place, path: str, headers: dict[str, str], status: int) -> None:
    """GET of a stream may cancel its run: no other site may send one's browser there."""
    ada = await here.person(ADA)
    assert (await ada.ask("GET", f"/api/threads/t/runs/r/stream{path}", headers=headers)).status == status


# ── who may do what ──────────────────────────────────────────────────────────────────────────────────────────────────

EVIL = "https://evil.example"
OUTSIDE, SITE, TOKEN, ROLE, SCOPE, IN = (
    "asked who it is",
    "another site",
    "no token",
    "no administrator",
    "no scope",
    "in",
)


class Asker(NamedTuple):
    """A column of the table: who asks, how, and what each route is expected to answer."""

    browser: Browser
    expected: Callable[[Route], str]
    headers: Mapping[str, str] = {}
    csrf: str | None = "own"


def outcome(answer: Answer) -> str:
    text, code = str(answer.body), answer.status
    if code == 401:
        return OUTSIDE
    if code == 403:
        codes = {"origin_not_allowed": SITE, "'csrf'": TOKEN, "needs an administrator": ROLE, "was not granted": SCOPE}
        return next((meaning for mark, meaning in codes.items() if mark in text), IN)
    return IN


def of_member(route: Route) -> str:
    return ROLE if route.role == "admin" else IN


def of_key(*granted: str) -> Callable[[Route], str]:
    """What a key of an administrator is answered that was granted some scopes."""
    reads = {f"{scope.removesuffix(':write')}:read" for scope in granted if scope.endswith(":write")}

    def expected(route: Route) -> str:
        if route.role == "admin" and "admin" not in granted:
            return ROLE
        return IN if set(route.scope.split()) <= {*granted, *reads} else SCOPE

    return expected


async def askers(here: Place) -> Mapping[str, Asker]:
    admin = await here.admin()
    ada, bob, eve = await here.person(ADA), await here.person(BOB), await here.person("eve@example.org")
    keys = {
        email: here.browser(**{"X-Api-Key": await here.key(email)}) for email in (ADMIN, ADA, BOB, "eve@example.org")
    }
    eves = here.browser(Authorization=f"Bearer {eve.cookies['access_token']}")
    for role in ("admin", "user"):
        await here.directory.appoint(BOB, role, actor="test")

        async def known(role: str = role) -> bool:
            return bool((await bob.me()).body["system_role"] == role)

        await eventually(known)
    await here.directory.disable("eve@example.org", actor="test")
    await until(eve, 401)
    internal = here.browser(**{"X-Sika-Internal-Token": here.installation.internal.reveal()})

    def alone(meaning: str) -> Callable[[Route], str]:
        return lambda route: meaning if route.method != "GET" else IN

    return {
        "nobody": Asker(here.browser(), lambda _: OUTSIDE),
        "member": Asker(ada, of_member),
        "member, key": Asker(keys[ADA], of_member),
        "admin": Asker(admin, lambda _: IN),
        "admin, key": Asker(keys[ADMIN], lambda _: IN),
        "admin, other site": Asker(admin, alone(SITE), {"Origin": EVIL}),
        "admin, no token": Asker(admin, alone(TOKEN), csrf=None),
        "demoted": Asker(bob, of_member),
        "demoted, key": Asker(keys[BOB], of_member),
        "disabled": Asker(eve, lambda _: OUTSIDE),
        "disabled, bearer": Asker(eves, lambda _: OUTSIDE),
        "disabled, key": Asker(keys["eve@example.org"], lambda _: OUTSIDE),
        "own process": Asker(internal, of_member),
    }


async def walk(name: str, asker: Asker, record_property: Callable[[str, object], None]) -> Counter[str]:
    """Sends a request to each protected route, and sees it answered as expected. Returns how often there was what."""
    row: Counter[str] = Counter()
    surprises: list[tuple[str, ...]] = []
    for route in protected():
        expected = asker.expected(route)
        if expected == IN and (route.endless or route.path.endswith("/logout-all")):
            continue  # a stream that is open to everybody, and the end of the session that walks
        for mount in route.mounts if name in ("nobody", "admin, other site") else route.mounts[:1]:
            body = sample(route, broken=True)
            path = mount + filled(route)
            answer = await asker.browser.ask(route.method, path, body, headers=asker.headers, csrf=asker.csrf)
            row[result := outcome(answer)] += 1
            if result != expected:
                surprises.append((named(route), expected, str(answer)[:200]))
    print(line := f"{name:<24}" + "  ".join(f"{what} {count}" for what, count in row.items()))
    record_property("who may do what", line)
    assert surprises == [], name
    return row


async def test_who_may_do_what(here: Place, record_property: Callable[[str, object], None]) -> None:
    """Iterates the table of routes, at each of their mounts, for each role and kind of credential: a new route is
    covered. What is let in does nothing, as its body is no JSON object.
    """
    for name, asker in (await askers(here)).items():
        row = await walk(name, asker, record_property)
        assert row[IN] or asker.expected(protected()[0]) == OUTSIDE


@pytest.mark.long(keep=5)
@pytest.mark.parametrize("scope", sorted({scope for route in protected() for scope in route.scope.split()}))
async def test_what_a_key_may_do(here: Place, scope: str, record_property: Callable[[str, object], None]) -> None:
    await here.admin()
    key = here.browser(**{"X-Api-Key": await here.key(ADMIN, [scope])})
    row = await walk(f"key: {scope}", Asker(key, of_key(scope)), record_property)
    assert row[IN]
    assert row[SCOPE]
    assert row[ROLE] or scope == "admin"


async def test_a_narrow_key_does_not_become_its_person(here: Place) -> None:
    """Who sends the code of a connection to the bot is the account there: no other scope begins or ends one."""
    await here.person(ADA)
    others = sorted({scope for route in protected() for scope in route.scope.split()} - {"connections:write", "admin"})
    program = here.browser(**{"X-Api-Key": await here.key(ADA, others)})
    for method, path in (("POST", "/api/channels/slack/connect"), ("DELETE", "/api/channels/connections/x")):
        assert outcome(await program.ask(method, path)) == SCOPE


# ── API keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_keys(here: Place) -> None:
    await here.person(ADA)
    key = await here.key(ADA)
    for headers in ({"X-Api-Key": key}, {"Authorization": f"Bearer {key}"}, {"authorization": f"bearer {key}"}):
        browser = here.browser()
        assert (await browser.ask("POST", "/api/threads", {}, headers=headers)).status == 200, "no CSRF token needed"
        assert (await browser.ask("GET", f"{AUTH}/me", headers=headers)).body["email"] == ADA


async def test_keys_in_addresses_are_ignored(here: Place) -> None:
    await here.person(ADA)
    key = await here.key(ADA)
    for name in ("api_key", "x-api-key", "key", "access_token", "token", "authorization"):
        assert (await here.browser().ask("GET", f"{AUTH}/me?{name}={key}")).status == 401


def other_secret(key: str) -> str:
    kind, identity, _ = key.split("-", 2)
    return f"{kind}-{identity}-{'A' * 43}"


@pytest.mark.parametrize(
    "change",
    [
        other_secret,
        lambda key: key[:-1],
        lambda key: key + "A",
        lambda key: keys.make()[2].reveal(),
        lambda key: "sk-",
        lambda key: "",
        lambda key: key.removeprefix("sk-"),
        lambda key: "sk-" + "0" * 16 + "-" + "A" * 43,
    ],
)
async def test_wrong_keys(here: Place, change: Callable[[str], str]) -> None:
    """Also beside a session that would do: whoever shows a key is meant to use it."""
    ada = await here.person(ADA)
    wrong = change(await here.key(ADA))
    for headers in ({"X-Api-Key": wrong}, {"Authorization": f"Bearer {wrong}"}):
        answer = await ada.ask("GET", f"{AUTH}/me", headers=headers)
        assert (answer.status, answer.code) == (401, "token_invalid")
        assert answer.body["detail"]["message"] == "The API key is not valid"
        assert not wrong or wrong not in answer.raw.decode()


async def test_expired_keys(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.person(ADA)
    key = await here.key(ADA, expires=datetime.now(UTC) + timedelta(milliseconds=300))
    probe = here.browser(**{"X-Api-Key": key})

    async def expired() -> bool:
        answer = await probe.me()
        return answer.status == 401 and answer.code == "token_expired"

    assert (await probe.me()).status == 200
    await eventually(expired)


# ── our own processes ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("header", ["X-Sika-Internal-Token", "X-DeerFlow-Internal-Token"])
async def test_processes_of_ours_act_for_users(here: Place, header: str) -> None:
    ada = await here.person(ADA)
    user = (await ada.me()).body["id"]
    token = here.installation.internal.reveal()
    made = await here.browser().ask("POST", "/api/threads", {}, headers={header: token, "X-Sika-User": user})
    assert (await ada.ask("GET", f"/api/threads/{made.body['thread_id']}")).status == 200
    for wrong in ("", "x", token + "x", token[:-1], "\u00e9"):
        answer = await here.browser().ask("GET", f"{AUTH}/me", headers={header: wrong})
        assert (answer.status, answer.code) == (401, "token_invalid")
    assert (await ada.ask("GET", f"{AUTH}/me", headers={"X-Sika-User": "default"})).body["id"] == user
    assert (await here.browser().ask("GET", f"{AUTH}/me", headers={header: token, "X-Sika-User": "../x"})).status == 422
    await here.directory.disable(user, actor="test")
    await until(here.browser(**{header: token, "X-Sika-User": user}), 401)


# ── revocation ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def until(browser: Browser, status: int) -> None:
    async def probe() -> bool:
        return (await browser.me()).status == status

    await eventually(probe)


async def disabled(here: Place, _: str) -> None:
    await here.directory.disable(ADA, actor="test")


async def password(here: Place, _: str) -> None:
    await here.directory.set_password(ADA, "another good one", temporary=True, actor="test")


async def revoked(here: Place, key: str) -> None:
    await here.directory.revoke_key(key.split("-")[1], actor="test")


@pytest.mark.parametrize(("happens", "ends"), [(disabled, "both"), (password, "session"), (revoked, "key")])
async def test_what_is_revoked_elsewhere_ends_here(
    here: Place, happens: Callable[[Place, str], Any], ends: str
) -> None:
    """Requests, and streams that are open."""
    ada = await here.person(ADA)
    key = await here.key(ADA)
    program = here.browser(**{"X-Api-Key": key})
    bearer = here.browser(Authorization=f"Bearer {ada.cookies['access_token']}")
    thread_id = (await ada.ask("POST", "/api/threads", {})).body["thread_id"]
    ended = [one for name, one in (("session", ada), ("session", bearer), ("key", program)) if ends in (name, "both")]
    others = [one for one in (ada, bearer, program) if one not in ended]
    opened = []
    for browser in (ada, bearer, program):
        stream = await browser.session.get(f"{here.url}/api/threads/{thread_id}/log?follow=1", headers=browser.headers)
        assert stream.status == 200
        opened.append((browser, stream))
    await happens(here, key)
    for browser, stream in opened:
        if browser in ended:
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(stream.read(), 120)
        stream.close()
    for browser in ended:
        await until(browser, 401)
    for browser in others:
        assert (await browser.me()).status == 200


async def test_whatever_ends_the_watch_revocation_goes_on(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = await here.person(ADA)
    thread_id = (await ada.ask("POST", "/api/threads", {})).body["thread_id"]
    sweep, failures = Gate._sweep, 1

    async def failing(gate: Gate) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise RuntimeError("a defect")
        await sweep(gate)

    async with ada.session.get(f"{here.url}/api/threads/{thread_id}/log?follow=1") as stream:
        assert stream.status == 200
        monkeypatch.setattr(Gate, "_sweep", failing)
        await here.directory.disable(ADA, actor="test")
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(stream.read(), 120)


async def test_a_disabled_account_comes_back_without_its_old_sessions(here: Place) -> None:
    ada, admin = await here.person(ADA), await here.admin()
    key = await here.key(ADA)
    await here.directory.disable(ADA, actor="test")
    await until(ada, 401)
    refused = await here.browser().sign_in(ADA)
    assert (refused.status, refused.code) == (401, "invalid_credentials")
    await here.directory.enable(ADA, actor="test")
    await until(here.browser(**{"X-Api-Key": key}), 200)
    assert (await ada.me()).status == 401
    assert (await here.browser().sign_in(ADA)).status == 200
    assert (await admin.me()).status == 200


# ── too many tries ───────────────────────────────────────────────────────────────────────────────────────────────────


async def fails(browser: Browser, email: str, times: int, **more: Any) -> list[int]:
    return [(await browser.sign_in(email, "wrong", **more)).status for _ in range(times)]


@pytest.mark.parametrize("email", [ADA, "nobody@example.org"])
async def test_five_failures_lock_an_account_from_everywhere(
    system: System, here: Place, config: WithAccounts, tmp_path: Path, email: str
) -> None:
    """Whether it exists or not; on every replica; also for the right password."""
    config.http = Http(trusted_proxies=("127.0.0.1",))
    await here.person(ADA)
    statuses = [await fails(here.browser(**{"X-Real-IP": f"192.0.2.{n}"}), email, 1) for n in range(5)]
    assert statuses == [[401]] * 5
    async with place(system, config, tmp_path / "home") as other:
        for somewhere in (here, other):
            locked = await somewhere.browser(**{"X-Real-IP": "198.51.100.7"}).sign_in(email)
            assert (locked.status, locked.code) == (429, "too_many_attempts")
            assert 0 < int(locked.headers["Retry-After"]) <= 301
    assert (await here.browser(**{"X-Real-IP": "198.51.100.7"}).sign_in(BOB, "wrong")).status == 401


async def test_five_failures_lock_an_address_for_all_accounts(here: Place, config: WithAccounts) -> None:
    config.http = Http(trusted_proxies=("127.0.0.1",))
    await here.person(ADA)
    attacker = here.browser(**{"X-Real-IP": "2001:db8::1"})
    for n in range(5):
        assert await fails(attacker, f"{n}@example.org", 1) == [401]
    assert (await attacker.sign_in(ADA)).status == 429
    assert (await here.browser(**{"X-Real-IP": "2001:db8::2"}).sign_in(ADA)).status == 429, "of one network"
    assert (await here.browser(**{"X-Real-IP": "2001:db8:1::1"}).sign_in(ADA)).status == 200


async def test_a_forged_address_does_not_help(here: Place) -> None:
    await here.person(ADA)
    for n in range(5):
        headers = {"X-Real-IP": f"192.0.2.{n}", "X-Forwarded-For": f"192.0.2.{n}", "Forwarded": f"for=192.0.2.{n}"}
        assert await fails(here.browser(**headers), f"{n}@example.org", 1) == [401]
    assert (await here.browser(**{"X-Real-IP": "192.0.2.99"}).sign_in(ADA)).status == 429


async def test_guessing_at_once_does_not_help(here: Place) -> None:
    """The right one among many is not told from the others."""
    await here.person(ADA)
    guesses = [f"guess number {n}" for n in range(24)] + [PASSWORD]
    answers = await asyncio.gather(*(here.browser().sign_in(ADA, guess) for guess in guesses))
    statuses = [answer.status for answer in answers]
    assert statuses.count(401) == 5
    assert set(statuses[:-1]) <= {401, 429, 503}, "503: on a busy machine not all are looked at"
    assert statuses[-1] in (429, 503, 200), "200 if it was among the first"


async def test_guessing_the_current_password_locks_too(here: Place) -> None:
    ada = await here.person(ADA)
    body = {"current_password": "wrong", "new_password": "another good one"}
    statuses = [(await ada.ask("POST", f"{AUTH}/change-password", body)).status for _ in range(6)]
    assert statuses == [400] * 5 + [429]


async def test_little_is_kept_of_failures(here: Place) -> None:
    await fails(here.browser(), ADA, 8)
    for name in (lockout.of_account(ADA), lockout.of_address("127.0.0.1")):
        aggregate = Aggregate(lockout.KIND, name)
        assert [record.type async for record in here.system.log.read(aggregate)] == ["signin.locked"]


# ── where requests come from ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200),
        ("localhost", 200),
        ("192.0.2.7:2026", 200),
        ("[2001:db8::1]:2026", 200),
        ("sika.example", 200),
        ("SIKA.example:443", 200),
        ("sika.example:444", 403),
        ("ui.example:8080", 200),
        ("ui.example", 403),
        ("evil.example", 403),
        ("sika.example.evil.example", 403),
        ("evil", 403),
        ("", 403),
        ("sika.example@evil.example", 403),
        ("sika.example:99999999999999999999", 403),
    ],
)
async def test_hosts(here: Place, config: WithAccounts, host: str, status: int) -> None:
    config.http = Http(public_url="https://sika.example", cors_origins=("http://ui.example:8080",))
    assert (await here.browser().ask("GET", "/health", headers={"Host": host})).status == status


@pytest.mark.parametrize(
    ("proxies", "headers", "secure"),
    [
        ((), {"X-Forwarded-Proto": "https"}, False),
        ((), {"Forwarded": "proto=https"}, False),
        (("192.0.2.1",), {"X-Forwarded-Proto": "https"}, False),
        (("127.0.0.0/8",), {"X-Forwarded-Proto": "https"}, True),
        (("127.0.0.1",), {"X-Forwarded-Proto": "http, https"}, True),
        (("127.0.0.1",), {"X-Forwarded-Proto": "https, http"}, False),
        (("127.0.0.1",), {"Forwarded": "for=192.0.2.1;proto=https;host=sika.example"}, True),
        (("127.0.0.1",), {"Forwarded": "proto=https", "X-Forwarded-Proto": "http"}, False),
        (("127.0.0.1",), {"Forwarded": "%%%,,;;=", "X-Forwarded-Proto": "gopher"}, False),
    ],
)
async def test_the_scheme_is_what_trusted_proxies_say(
    here: Place, config: WithAccounts, proxies: tuple[str, ...], headers: dict[str, str], secure: bool
) -> None:
    config.http = Http(trusted_proxies=proxies, public_url="https://sika.example")
    answer = await here.browser(**headers).register(ADA)
    assert answer.status == 201
    assert all(("Secure" in line) == secure for line in answer.headers.getall("Set-Cookie"))


@pytest.mark.parametrize(
    ("proxies", "forwarded", "status"),
    [((), "evil.example", 200), (("127.0.0.1",), "evil.example", 403), (("127.0.0.1",), "sika.example", 200)],
)
async def test_the_host_is_what_trusted_proxies_say(
    here: Place, config: WithAccounts, proxies: tuple[str, ...], forwarded: str, status: int
) -> None:
    config.http = Http(trusted_proxies=proxies, public_url="https://sika.example")
    headers = {"X-Forwarded-Host": forwarded}
    assert (await here.browser().ask("GET", "/health", headers=headers)).status == status


# ── other people's things ────────────────────────────────────────────────────────────────────────────────────────────

SECRET_WORDS = "the swordfish of ada"
VARIABLE = re.compile(r"\{(\w+)(?::[^{}]+)?\}")


def filled(route: Route, **values: str) -> str:
    """The path with its variables filled; a query where one is needed."""
    path = VARIABLE.sub(lambda found: values.get(found[1], "x"), route.path)
    needed = [param for param in route.query if param.required and param.where == "query"]
    return path + ("?" + "&".join(f"{param.name}=x" for param in needed) if needed else "")


def sample(route: Route, *, broken: bool = False) -> Any:
    """A body that the route accepts, or for `broken` one that does nothing if it should be let in."""
    if route.body is None or isinstance(route.body, Form):
        return None
    return 3 if broken else msgspec.to_builtins(instance(msgspec.inspect.type_info(route.body)))


def instance(kind: msgspec.inspect.Type) -> Any:
    """The smallest value of a type."""
    match kind:
        case msgspec.inspect.StructType(fields=fields):
            return {field.encode_name: instance(field.type) for field in fields if field.required}
        case msgspec.inspect.UnionType(types=types):
            return instance(types[0])
        case msgspec.inspect.LiteralType(values=values):
            return values[0]
        case msgspec.inspect.StrType():
            return "x"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 1
        case msgspec.inspect.BoolType():
            return False
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return [instance(kind.item_type)]
        case msgspec.inspect.NoneType():
            return None
    return {}


async def test_threads_of_others_do_not_exist(here: Place) -> None:
    """Every route with a thread in its path answers somebody else 404; it tells nothing and changes nothing. Iterates
    the table of routes: a new one is covered.
    """
    ada, bob = await here.person(ADA), await here.person(BOB)
    user = (await ada.me()).body["id"]
    thread_id = uuid7()
    await here.system.intake.create_thread(thread_id, user=user, metadata={"about": SECRET_WORDS})
    body = {"input": {"messages": [{"role": "user", "content": SECRET_WORDS}]}}
    run_id = (await ada.ask("POST", f"/api/threads/{thread_id}/runs", body)).body["run_id"]
    tip = await here.system.log.tip(thread(thread_id))
    routes = [route for route in protected() if "{thread_id}" in route.path and named(route) not in SOCKETS]
    for route in routes:
        for mount in route.mounts:
            path = mount + filled(route, thread_id=thread_id, run_id=run_id)
            answer = await bob.ask(route.method, path, **given(route))
            assert answer.status == 404, (named(route), answer)
            assert "swordfish" not in answer.raw.decode(errors="replace"), named(route)
        assert await here.system.log.tip(thread(thread_id)) == tip, named(route)
    assert len(routes) > 50
    assert (await ada.ask("GET", f"/api/threads/{thread_id}/runs/{run_id}")).status == 200


def test_nothing_is_decided_by_the_role_alone() -> None:
    """A key of an administrator that was not granted `admin` is none: `is_admin` knows, `role` does not."""
    folder = Path(channels.http.__file__).parent
    asking = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("principal.role")
    }
    assert asking == {"accounts/auth.py"}, "who one is (`/me`)"


def test_handlers_get_threads_only_where_it_is_known_whose_they_are() -> None:
    """`call.OwnedThread` and its like, and the commands, take the user; `services.threads` does not."""
    folder = Path(channels.http.__file__).parent
    reaching = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("services.threads")
    }
    followed = {f"protocols/langgraph/{name}.py" for name in ("follow", "stream", "wait")}  # opened for an owner
    followed.add("accounts/share_links.py")  # by a token, whoever has it
    # Asks for the owner itself: a subscription outlives who owns the thread.
    followed.add("protocols/langgraph_events/feed.py")
    assert reaching <= {"accounts/access.py", "protocols/langgraph/erasure.py", *followed}


SOCKETS = {"GET /threads/{thread_id}/stream/events"}
"""A WebSocket may wait for its thread; one for the thread of somebody else is closed (`test_thread_events_http`)."""
BODIES: dict[str, Any] = {
    "PUT /threads/{thread_id}/artifacts/{path:.+}": {"content": "x", "expected_sha256": "0" * 64},
    "POST /threads/{thread_id}/commands": {"id": 1, "method": "run.start", "params": {"assistant_id": "lead_agent"}},
}
"""Where the smallest body that fits the type is refused."""


def given(route: Route) -> dict[str, Any]:
    if isinstance(route.body, Form):
        form = aiohttp.FormData()
        for name in route.body.files:
            form.add_field(name, b"x", filename="x.txt")
        for name in route.body.fields:
            form.add_field(name, "x")
        return {"data": form}
    body = BODIES.get(named(route)) or sample(route)
    return {} if body is None else {"body": body}


async def test_searches_find_only_ones_own(here: Place) -> None:
    ada, bob = await here.person(ADA), await here.person(BOB)
    thread_id = (await ada.ask("POST", "/api/threads", {"metadata": {"a": 1}})).body["thread_id"]
    found = [t["thread_id"] for t in (await ada.ask("POST", "/api/threads/search", {})).body]
    assert found == [thread_id]
    for body in ({}, {"metadata": {"a": 1}}, {"ids": [thread_id]}):
        assert (await bob.ask("POST", "/api/threads/search", body)).body == []
        assert (await bob.ask("POST", "/api/threads/count", {k: v for k, v in body.items() if k != "ids"})).body == 0
    assert (await bob.ask("POST", "/api/runs/wait", {"config": {"configurable": {"thread_id": thread_id}}})).status in (
        404,
        409,
    )


# ── nothing is said ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_no_secret_is_in_the_log_or_in_a_line(
    here: Place, capsys: pytest.CaptureFixture[str], config: WithAccounts
) -> None:
    config.auth = Auth(enabled=True, registration=True)
    ada = await here.person(ADA)
    await ada.sign_in(ADA, "a wrong password!")
    key = await here.key(ADA, ["threads"])
    secret = key.split("-", 2)[2]
    await here.browser(**{"X-Api-Key": key}).me()
    await here.browser(**{"X-Api-Key": other_secret(key)}).me()
    own = [PASSWORD, "a wrong password!", secret, *ada.cookies.values()]
    own += [here.installation.sessions.reveal(), here.installation.internal.reveal()]
    stored = [record.raw.decode() async for record in here.system.log.between(0, await here.system.log.last())]
    state = await here.directory.accounts(now=True)
    printed = "".join(capsys.readouterr()) + repr(state) + repr(vars(here.directory)) + str(here.installation)
    for text in own:
        assert text not in "".join(stored)
        assert text not in printed
    assert "argon2" not in printed


def headers_of(answer: Answer) -> Mapping[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in ("Date", "Set-Cookie", "X-Trace-Id")}


async def test_unknown_users_look_like_wrong_passwords(here: Place) -> None:
    """That it takes as long is shown with the passwords."""
    await here.person(ADA)
    one, other = [await here.browser().sign_in(email, "wrong") for email in (ADA, "nobody@example.org")]
    assert (one.status, one.raw, headers_of(one)) == (other.status, other.raw, headers_of(other))
