"""Sign-in at an identity provider: a real one on a real port, which may lie."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
import pytest
from joserfc.jwk import RSAKey

from channels.http.accounts import oidc
from core.config.settings import Auth, OidcProvider, Secret
from core.identity import sessions
from tests.channels.http.people import ADA, AUTH, Answer, Browser, Place, WithAccounts
from tests.channels.http.people import fixture_here as fixture_here
from tests.support.oidc import CLIENT, SECRET, Provider, provider


@pytest.fixture
async def idp() -> AsyncIterator[Provider]:
    async with provider() as idp:
        yield idp


def known(idp: Provider, **more: Any) -> OidcProvider:
    return OidcProvider(name="company", issuer=idp.url, client_id=CLIENT, client_secret=Secret(SECRET), **more)


@pytest.fixture
def config(idp: Provider) -> WithAccounts:
    return WithAccounts(auth=Auth(enabled=True, registration=True, oidc=(known(idp, display_name="The company"),)))


async def begin(browser: Browser, after: str = "") -> str:
    """Where the provider sends the person back to, once they agreed."""
    asked = await browser.ask("GET", f"{AUTH}/oauth/company{after}")
    assert asked.status == 302, asked
    async with browser.session.get(asked.headers["Location"], allow_redirects=False) as response:
        return response.headers["Location"].removeprefix(browser.url)


async def sign_in(browser: Browser) -> Answer:
    return await browser.ask("GET", await begin(browser))


async def test_the_whole_way(here: Place, idp: Provider) -> None:
    browser = here.browser()
    found = await browser.ask("GET", f"{AUTH}/providers")
    assert found.body == {"providers": [{"id": "company", "display_name": "The company", "type": "oidc"}]}
    back = await begin(browser, "?next=/workspace/chats?x=1%23y")
    pending = next(c for c in browser.session.cookie_jar if c.key == "oidc_pending")
    assert (pending["httponly"], pending["samesite"], pending["path"]) == (True, "Lax", f"{AUTH}/callback")
    done = await browser.ask("GET", back)
    assert (done.status, done.headers["Location"]) == (302, "/workspace/chats?x=1#y")
    assert "oidc_pending" not in browser.cookies
    me = await browser.me()
    assert (me.body["email"], me.body["system_role"]) == (ADA, "user")
    assert (await browser.ask("POST", "/api/threads", {})).status == 200, "the CSRF cookie is there, too"
    other = here.browser()
    assert (await sign_in(other)).status == 302
    assert (await other.me()).body["id"] == me.body["id"]
    assert (await other.sign_in(ADA, "")).status == 422
    assert (await other.sign_in(ADA, "any password")).status == 401, "an account without a password has none"


async def test_the_secret_may_be_sent_in_the_body(here: Place, idp: Provider) -> None:
    idp.methods = ["client_secret_post"]
    assert (await sign_in(here.browser())).status == 302


@pytest.mark.parametrize(
    "after",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/%09/evil.example",
        "evil.example",
        "/%0d%0aX:1",
        "",
    ],
)
async def test_nobody_is_sent_to_another_site(here: Place, after: str) -> None:
    browser = here.browser()
    back = await begin(browser, f"?next={after}")
    assert (await browser.ask("GET", back)).headers["Location"] == "/"


async def test_who_waits_for_a_provider_that_does_not_answer_waits_once(
    here: Place, config: WithAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "ASK_SECONDS", 2.0)
    browsers, opened, over = [here.browser() for _ in range(4)], 0, asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await over.wait()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        entry = OidcProvider(name="company", issuer=issuer, client_id=CLIENT, client_secret=Secret(SECRET))
        config.auth = Auth(enabled=True, registration=True, oidc=(entry,))
        answers = await asyncio.gather(*(browser.ask("GET", f"{AUTH}/oauth/company") for browser in browsers))
        over.set()
    assert [answer.status for answer in answers] == [503] * 4
    assert opened == 1


# ── forged returns ───────────────────────────────────────────────────────────────────────────────────────────────────


def with_query(back: str, **changed: str | None) -> str:
    parts = urlsplit(back)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()} | changed
    return f"{parts.path}?{urlencode({key: value for key, value in query.items() if value is not None})}"


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "forged"},
        {"state": None},
        {"code": "forged"},
        {"code": None},
        {"error": "access_denied"},
    ],
)
async def test_forged_parameters(here: Place, changed: dict[str, str | None]) -> None:
    browser = here.browser()
    answer = await browser.ask("GET", with_query(await begin(browser), **changed))
    assert (answer.status, answer.code) == (401, "invalid_credentials")
    assert "access_token" not in browser.cookies


async def test_a_return_is_for_the_browser_that_began(here: Place) -> None:
    """Or somebody could be signed in as somebody else by a link."""
    attacker, victim = here.browser(), here.browser()
    back = await begin(attacker)
    assert (await victim.ask("GET", back)).status == 401
    await begin(victim)
    assert (await victim.ask("GET", back)).status == 401
    assert "access_token" not in victim.cookies


async def test_a_return_is_good_once(here: Place) -> None:
    browser = here.browser()
    back = await begin(browser)
    pending = browser.cookies["oidc_pending"]
    assert (await browser.ask("GET", back)).status == 302
    browser.session.cookie_jar.clear()
    assert (await browser.ask("GET", back, headers={"Cookie": f"oidc_pending={pending}"})).status == 401


@pytest.mark.parametrize("what", ["signed as a session", "expired", "of another provider", "garbage"])
async def test_forged_cookies(here: Place, what: str) -> None:
    browser = here.browser()
    back = await begin(browser)
    state = parse_qs(urlsplit(back).query)["state"][0]
    home = here.installation
    pending = oidc.Pending("company", state, "n", "v", "/", int(time.time()) + 60)
    tokens = {
        "signed as a session": (pending, home.sessions),
        "expired": (msgspec.structs.replace(pending, exp=1), home.derived("oidc")),
        "of another provider": (msgspec.structs.replace(pending, provider="other"), home.derived("oidc")),
    }
    token = sessions.sign(*tokens[what]) if what in tokens else what
    browser.session.cookie_jar.clear()
    assert (await browser.ask("GET", back, headers={"Cookie": f"oidc_pending={token}"})).status == 401


# ── lying providers ──────────────────────────────────────────────────────────────────────────────────────────────────

NOW = int(time.time())


@pytest.mark.long(keep=3)
@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": [CLIENT, "another-client"]},
        {"aud": [CLIENT, "another-client"], "azp": "another-client"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"exp": NOW - 3600},
        {"exp": None},
        {"exp": "tomorrow"},
        {"iat": NOW + 3600},
        {"nbf": NOW + 3600},
        {"sub": None},
        {"sub": ""},
        {"sub": 42},
        {"email": None},
        {"email": "not an address"},
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "false"},
        {"email_verified": 1},
    ],
)
async def test_wrong_claims(here: Place, idp: Provider, claims: dict[str, Any]) -> None:
    idp.claims = claims
    browser = here.browser()
    answer = await sign_in(browser)
    assert (answer.status, answer.code) == (401, "invalid_credentials"), answer
    assert "access_token" not in browser.cookies


def _another_key(idp: Provider) -> None:
    idp.sign_with = RSAKey.generate_key(2048)


def _unsigned(idp: Provider) -> None:
    idp.algorithm = "none"


def _signed_with_the_public_key(idp: Provider) -> None:
    """As if it were a shared secret."""
    idp.algorithm = "HS256"


@pytest.mark.parametrize("lie", [_another_key, _unsigned, _signed_with_the_public_key])
async def test_wrong_signatures(here: Place, idp: Provider, lie: Callable[[Provider], None]) -> None:
    assert (await sign_in(here.browser())).status == 302
    lie(idp)
    assert (await sign_in(here.browser())).status == 401


async def test_another_issuer(here: Place, idp: Provider) -> None:
    idp.issuer = "https://evil.example"
    assert (await here.browser().ask("GET", f"{AUTH}/oauth/company")).status == 503


async def test_new_keys_are_fetched(here: Place, idp: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "KEYS_SECONDS", 0)
    assert (await sign_in(here.browser())).status == 302
    idp.rotate()
    assert (await sign_in(here.browser())).status == 302


async def test_keys_are_not_fetched_for_every_forgery(here: Place, idp: Provider) -> None:
    _another_key(idp)
    for _ in range(3):
        assert (await sign_in(here.browser())).status == 401
    assert idp.asked == ["discovery", "keys"]


async def test_a_provider_that_does_not_answer(here: Place, config: WithAccounts) -> None:
    dead = OidcProvider(name="dead", issuer="http://127.0.0.1:9", client_id="x")
    config.auth = Auth(enabled=True, registration=True, oidc=(dead,))
    answer = await here.browser().ask("GET", f"{AUTH}/oauth/dead")
    assert (answer.status, answer.code) == (503, "unavailable")
    for path in ("oauth", "callback"):
        unknown = await here.browser().ask("GET", f"{AUTH}/{path}/nobody")
        assert (unknown.status, unknown.code) == (404, "provider_not_found")


# ── whose account it is ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_account_made_by_registering_is_not_given_away(here: Place) -> None:
    """Who registered with somebody else's address must not share an account with them."""
    attacker, victim = await here.person(ADA), here.browser()
    answer = await sign_in(victim)
    assert (answer.status, answer.code) == (400, "email_already_exists")
    assert (await attacker.me()).body["email"] == ADA


async def test_renaming_oneself_catches_nobody(here: Place, idp: Provider) -> None:
    idp.person["email"] = "mallory@example.org"
    mallory = here.browser()
    await sign_in(mallory)
    user = (await mallory.me()).body["id"]
    await here.directory.set_password(user, "correct horse battery", temporary=False, actor="test")
    await mallory.sign_in("mallory@example.org")
    body = {"current_password": "correct horse battery", "new_password": "another good one", "new_email": ADA}
    assert (await mallory.ask("POST", f"{AUTH}/change-password", body)).status == 200
    idp.person = {"sub": "43", "email": ADA, "email_verified": True}
    answer = await sign_in(here.browser())
    assert (answer.status, answer.code) == (400, "email_already_exists")


async def test_an_account_of_the_operators_is_linked_and_follows_the_subject(here: Place, idp: Provider) -> None:
    made = await here.directory.create(ADA, None, role="admin", verified=True)
    browser = here.browser()
    assert (await sign_in(browser)).status == 302
    assert (await browser.me()).body["id"] == made.id
    idp.person["email"] = "ada.new@example.org"
    again = here.browser()
    assert (await sign_in(again)).status == 302
    assert (await again.me()).body["id"] == made.id
    await here.directory.create("other@example.org", None, role="admin")
    await here.directory.disable(made.id, actor="test")
    refused = await sign_in(here.browser())
    assert (refused.status, refused.code) == (401, "user_not_found")


@pytest.mark.parametrize(
    ("registration", "domains", "status"),
    [(True, (), 302), (False, (), 403), (False, ("EXAMPLE.org",), 302), (True, ("elsewhere.example",), 401)],
)
async def test_who_may_come(
    here: Place, idp: Provider, config: WithAccounts, registration: bool, domains: tuple[str, ...], status: int
) -> None:
    entry = known(idp, allowed_domains=domains)
    config.auth = Auth(enabled=True, registration=registration, oidc=(entry,))
    assert (await sign_in(here.browser())).status == status
