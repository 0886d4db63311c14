"""Access to MCP servers, against a real authorisation server: over restarts, processes, rotation and outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest

from adapters.mcp.oauth_http import OAuthHttp
from core.config.mcp_oauth import OAuth
from core.config.settings import Secret
from core.errors import Invalid, NotFound, Refused, Unavailable
from core.events import Aggregate
from core.identity.seal import Seal
from core.log.store import EventLog
from core.mcp import authorisation, grants, oauth
from core.mcp.authorisation import Authorisation, NeedsLogin, Server
from core.mcp.login import Logins
from tests.support.nats import Nats, bus_on, eventually, log_on
from tests.support.oauth import CLIENT, SECRET, AuthorizationServer, authorization_server

REDIRECT = "http://localhost:2026/api/mcp/oauth/callback"
BACK = {"refresh_skew_seconds": 0}


class Process:
    """What one process of the installation has."""

    def __init__(self, log: EventLog, home: Path, there: AuthorizationServer, oauth: OAuth | None) -> None:
        self.later = timedelta()
        self.server = Server("notes", there.server, oauth)
        self.authorisation = Authorisation(log, Seal(home, {}), OAuthHttp(), self._server, clock=self._now)
        self.logins = Logins(self.authorisation)
        self.log, self.there = log, there

    async def _server(self, name: str, user: str) -> Server:
        if name != self.server.name:
            raise NotFound(f"no MCP server {name}")
        return self.server

    def _now(self) -> datetime:
        return datetime.now(UTC) + self.later

    async def headers(self, user: str = "ada", **more: Any) -> Mapping[str, str]:
        return await self.authorisation.bearer("notes", user, **more)

    async def log_in(self, user: str = "ada", **more: Any) -> None:
        back = await self.there.agree(await self.logins.begin("notes", user, REDIRECT, **more))
        assert await self.logins.finish(user, back) == "notes"

    async def status(self, user: str = "ada") -> tuple[str, str]:
        status = await self.logins.status(self.server, user)
        return status.state, status.reason

    async def is_admitted(self, user: str = "ada") -> bool:
        return self.there.admits((await self.headers(user))["Authorization"])


@pytest.fixture
async def there() -> AsyncIterator[AuthorizationServer]:
    async with authorization_server() as server:
        yield server


@pytest.fixture
def process(log: EventLog, tmp_path: Path, there: AuthorizationServer) -> Callable[..., Process]:
    return lambda oauth=None: Process(log, tmp_path, there, oauth)


@pytest.fixture
async def other(
    single: Nats, prefix: str, tmp_path: Path, there: AuthorizationServer
) -> AsyncIterator[Callable[..., Process]]:
    """Makes processes with a connection and a memory of their own."""
    async with bus_on(single, prefix) as bus, log_on(bus) as log:
        yield lambda oauth=None: Process(log, tmp_path, there, oauth)


# ── login ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_login_is_finished_by_another_process_than_began_it(
    process: Callable[..., Process], other: Callable[..., Process], there: AuthorizationServer
) -> None:
    """State, verifier and client are facts: neither a restart nor another replica loses a login."""
    here = process()
    assert await here.headers() == {}, "nothing says yet that the server demands a login"
    back = await there.agree(await here.logins.begin("notes", "ada", REDIRECT))
    assert (await here.status())[0] == "pending"
    assert await other().logins.finish("ada", back) == "notes"
    assert await here.is_admitted()
    assert (await here.status())[0] == "connected"
    assert there.codes == {}
    assert there.forms[0]["resource"] == there.server
    with pytest.raises(Invalid, match="not a login that you have begun"):
        await here.logins.finish("ada", back)
    assert await here.headers("bob") == {}, "each person has an account of their own"


async def test_no_secret_enters_the_log_in_clear(process: Callable[..., Process], there: AuthorizationServer) -> None:
    there.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_basic"]
    here = process()
    await here.log_in()
    family = there.families[0]
    secret = there.clients[family.client]
    raw = b"".join(
        [
            r.raw
            for kind, name in ((grants.PERSONS, "ada"), (grants.SERVERS, grants.EVERYBODY))
            async for r in here.log.read(Aggregate(kind, name))
        ]
    )
    assert secret
    assert b"grant.issued" in raw
    for text in (family.access, family.refresh, secret, there.forms[0]["code_verifier"], there.forms[0]["code"]):
        assert text.encode() not in raw


async def test_the_client_is_registered_once(process: Callable[..., Process], there: AuthorizationServer) -> None:
    here = process()
    await here.log_in("ada")
    await here.log_in("bob")
    assert there.calls["register"] == 1
    await here.log_in("bob", register=True)
    assert there.calls["register"] == 2


async def test_the_address_of_a_document_is_the_client_id(
    process: Callable[..., Process], there: AuthorizationServer
) -> None:
    """Where the issuer takes one, and can read it: not on this machine."""
    there.metadata = {"client_id_metadata_document_supported": True}
    public = "https://sika.example.com/api/mcp/oauth/callback"
    address = await process().logins.begin("notes", "ada", public)
    document = oauth.document(public)
    assert parse_qs(urlsplit(address).query)["client_id"] == [document["client_id"]]
    assert document["client_id"] == "https://sika.example.com/api/mcp/oauth/client.json"
    assert document["redirect_uris"] == [public]
    assert there.calls["register"] == 0
    await process().logins.begin("notes", "ada", REDIRECT)
    assert there.calls["register"] == 1


async def test_a_forgotten_client_is_registered_again(
    process: Callable[..., Process], there: AuthorizationServer
) -> None:
    here = process()
    back = await there.agree(await here.logins.begin("notes", "ada", REDIRECT))
    there.clients.clear()
    with pytest.raises(Refused, match="invalid_client"):
        await here.logins.finish("ada", back)
    await here.log_in()
    assert there.calls["register"] == 2
    assert await here.is_admitted()


async def test_a_configured_client_is_not_registered(
    process: Callable[..., Process], there: AuthorizationServer
) -> None:
    here = process(OAuth(grant_type="authorization_code", client_id=CLIENT, client_secret=Secret(SECRET), scope="s"))
    with pytest.raises(NeedsLogin, match=r"needs login: notes: nobody has logged in yet; .*sika mcp login notes"):
        await here.headers()
    await here.log_in()
    assert there.calls["register"] == 0
    assert await here.is_admitted()


FOREIGN = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("resource", "metadata", "reason"),
    [
        ({"resource": f"{FOREIGN}/mcp"}, {}, "that of another resource"),
        ({}, {"issuer": FOREIGN}, "that of another issuer"),
        ({}, {"code_challenge_methods_supported": ["plain"]}, "does not offer PKCE with S256"),
        ({}, {"code_challenge_methods_supported": None}, "does not offer PKCE with S256"),
        ({}, {"registration_endpoint": None}, "registers no clients: register one there .* oauth.client_id"),
        ({}, {"authorization_endpoint": "javascript:alert(1)"}, "expected an https URL"),
        ({}, {"token_endpoint": "file:///etc/passwd"}, "expected an https URL"),
        ({}, {"token_endpoint": 7}, "cannot be read"),
        ({"authorization_servers": [FOREIGN]}, {}, "127.0.0.1:1 does not answer"),
    ],
)
async def test_metadata_that_cannot_be_trusted(
    resource: dict[str, Any],
    metadata: dict[str, Any],
    reason: str,
    process: Callable[..., Process],
    there: AuthorizationServer,
) -> None:
    there.resource, there.metadata = resource, metadata
    with pytest.raises((Invalid, Unavailable), match=reason):
        await process().logins.begin("notes", "ada", REDIRECT)
    assert there.calls["register"] == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/t", "https://localhost/t", "https://169.254.169.254/t"])
async def test_a_public_server_leads_nobody_inside_the_network(url: str) -> None:
    from core.mcp.oauth import Request

    with pytest.raises(Invalid, match=r"oauth\.allow_private lifts this"):
        await OAuthHttp().send(Request("GET", url), private=False)
    assert not Server("n", "https://mcp.example.com/mcp").private
    assert Server("n", "http://10.0.0.1/mcp").private


@pytest.mark.parametrize(
    ("answer", "deny", "reason"),
    [
        ({"iss": FOREIGN}, "", "another issuer"),
        ({}, "access_denied", "gives no access: access_denied"),
        ({"code": "guessed"}, "", "invalid_grant"),
    ],
)
async def test_a_return_without_access(
    answer: dict[str, str], deny: str, reason: str, process: Callable[..., Process], there: AuthorizationServer
) -> None:
    here = process()
    there.answer, there.deny = answer, deny
    back = await there.agree(await here.logins.begin("notes", "ada", REDIRECT))
    with pytest.raises(Refused, match=reason):
        await here.logins.finish("ada", back)
    state, why = await here.status()
    assert state == "none"
    assert reason in why
    assert await here.headers() == {}


async def test_the_return_of_somebody_else_and_one_that_is_late(
    process: Callable[..., Process], there: AuthorizationServer
) -> None:
    here = process()
    back = await there.agree(await here.logins.begin("notes", "ada", REDIRECT))
    with pytest.raises(Invalid, match="not a login that you have begun"):
        await here.logins.finish("bob", back)
    here.later = timedelta(minutes=11)
    with pytest.raises(Invalid, match="took too long"):
        await here.logins.finish("ada", back)
    assert there.calls["token"] == 0


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_of_two_processes_renews(
    process: Callable[..., Process], other: Callable[..., Process], there: AuthorizationServer
) -> None:
    """A second request with the same refresh token would revoke the whole family."""
    here, beside = process(), other()
    await here.log_in()
    here.later = beside.later = timedelta(hours=2)
    there.gate = anyio.Event()
    calls = [asyncio.create_task(p.headers()) for p in (here, beside) for _ in range(5)]
    await eventually(_true(lambda: there.calls["token"] == 2))
    there.gate.set()
    answers = await asyncio.gather(*calls)
    assert there.calls["token"] == 2, "one login, one renewal"
    assert {answer["Authorization"] for answer in answers} == {f"Bearer {there.families[0].access}"}
    assert not there.families[0].revoked


async def test_a_token_that_is_valid_is_used_while_another_process_renews_it(
    process: Callable[..., Process], other: Callable[..., Process], there: AuthorizationServer
) -> None:
    here, beside = process(), other()
    await here.log_in()
    before = await here.headers()
    here.later = beside.later = timedelta(seconds=3580)
    there.gate = anyio.Event()
    renewing = asyncio.create_task(here.headers())
    await eventually(_true(lambda: there.calls["token"] == 2))
    assert await beside.headers() == before
    there.gate.set()
    assert await renewing != before


async def test_rotation_survives_restarts(process: Callable[..., Process], there: AuthorizationServer) -> None:
    here = process()
    await here.log_in()
    for hours in (2, 4, 6):
        after = process()  # nothing is known but the facts
        after.later = timedelta(hours=hours)
        assert await after.is_admitted()
    assert there.calls["token"] == 4
    assert not there.families[0].revoked


async def test_renewals_do_not_pile_up(
    process: Callable[..., Process], there: AuthorizationServer, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorisation, "MOST_EVENTS", 8)
    here = process()
    await here.log_in()
    await here.logins.begin("notes", "ada", REDIRECT)
    for _ in range(6):
        await here.headers(rejected=await here.headers())
        here.later += timedelta(hours=2)
    left = [record async for record in log.read(Aggregate(grants.PERSONS, "ada"))]
    assert len(left) <= 8
    assert isinstance(left[0].event, grants.GrantsKept)
    again = process()
    again.later = here.later
    assert await again.is_admitted()
    assert len((await again.authorisation.persons.load("ada")).logins) == 1


async def _renewing(here: Process, there: AuthorizationServer) -> tuple[asyncio.Task[Mapping[str, str]], anyio.Event]:
    """Returns a call whose token is being renewed, and what lets the server answer."""
    await here.log_in()
    here.later = timedelta(hours=2)
    there.gate = gate = anyio.Event()
    call = asyncio.create_task(here.headers())
    await eventually(_true(lambda: there.calls["token"] == 2))
    return call, gate


async def test_a_renewal_whose_caller_leaves_is_recorded(
    process: Callable[..., Process], there: AuthorizationServer
) -> None:
    here = process()
    call, gate = await _renewing(here, there)
    call.cancel()
    gate.set()
    await asyncio.gather(call, return_exceptions=True)
    assert await here.is_admitted()
    assert there.calls["token"] == 2


async def test_a_revoked_family_demands_a_login(process: Callable[..., Process], there: AuthorizationServer) -> None:
    here = process()
    await here.log_in()
    there.families[0].revoked = True
    here.later = timedelta(hours=2)
    for _ in range(3):
        with pytest.raises(NeedsLogin, match="invalid_grant: the token was revoked"):
            await here.headers()
    assert there.calls["token"] == 2, "asked once, not at each call"
    assert (await here.status())[0] == "needs_login"
    await here.log_in()
    here.later = timedelta()
    assert await here.is_admitted()


async def test_a_token_endpoint_that_is_down(process: Callable[..., Process], there: AuthorizationServer) -> None:
    """The present token is used while it is valid; then the reason is raised at once, and tried again after a pause."""
    here = process()
    await here.log_in()
    there.down = True
    here.later = timedelta(seconds=3580)
    assert await here.is_admitted()
    here.later = timedelta(hours=2)
    for _ in range(3):
        with pytest.raises(Unavailable, match="the token endpoint answers 503"):
            await here.headers()
    assert there.calls["token"] == 3, "the login, the renewal that was early, the one that was due"
    assert (await here.status())[0] == "failing"
    there.down = False
    here.later = timedelta(hours=3)
    assert await here.is_admitted()


async def test_a_server_whose_clock_is_ahead(process: Callable[..., Process], there: AuthorizationServer) -> None:
    """It refuses a token that is valid here: that is renewed, once."""
    here = process()
    await here.log_in()
    old = await here.headers()
    here.later = timedelta(minutes=5)
    new = await here.headers(rejected=old)
    assert new != old
    assert await here.headers(rejected=old) == new, "the next one who comes with the old one gets the new one"
    assert there.calls["token"] == 2


async def test_a_server_that_refuses_every_token(process: Callable[..., Process], there: AuthorizationServer) -> None:
    here = process()
    await here.log_in()
    headers = await here.headers()
    renewed = await here.headers(rejected=headers)
    for rejected in (renewed, None):
        with pytest.raises(NeedsLogin, match="refuses the access token"):
            await here.headers(rejected=rejected)
    assert there.calls["token"] == 2, "what was renewed for this reason is not renewed again"


async def test_an_anonymous_call_that_is_refused(process: Callable[..., Process]) -> None:
    here = process()
    assert await here.headers() == {}
    with pytest.raises(NeedsLogin, match="nobody has logged in yet"):
        await here.headers(rejected={})
    assert (await here.status())[0] == "needs_login"
    with pytest.raises(NeedsLogin):
        await here.headers()


async def test_a_disconnect_revokes(process: Callable[..., Process], there: AuthorizationServer) -> None:
    here = process()
    await here.log_in()
    assert await here.logins.disconnect("notes", "ada") == ""
    assert there.families[0].revoked
    assert (await here.status())[0] == "none"
    with pytest.raises(NotFound):
        await here.logins.disconnect("notes", "ada")


async def test_a_disconnect_during_a_renewal(process: Callable[..., Process], there: AuthorizationServer) -> None:
    """Access that was given up does not come back with the answer that was on its way."""
    here = process()
    call, gate = await _renewing(here, there)
    await here.logins.disconnect("notes", "ada")
    gate.set()
    assert await call == {}
    assert there.families[0].revoked
    assert (await here.status())[0] == "none"


async def test_a_disconnect_whose_issuer_cannot_be_told(
    process: Callable[..., Process], there: AuthorizationServer
) -> None:
    there.metadata["revocation_endpoint"] = None
    here = process()
    await here.log_in()
    assert "offers no revocation" in await here.logins.disconnect("notes", "ada")
    assert (await here.status())[0] == "none"


# ── tokens without a person ──────────────────────────────────────────────────────────────────────────────────────────


def _configured(there: AuthorizationServer, **more: Any) -> OAuth:
    fields: dict[str, Any] = {"client_id": CLIENT, "client_secret": Secret(SECRET), "token_url": f"{there.url}/token"}
    return OAuth(**{**fields, **more})


async def test_client_credentials(
    process: Callable[..., Process], other: Callable[..., Process], there: AuthorizationServer
) -> None:
    settings = _configured(there, scope="a b", audience="x", extra_token_params={"tenant": "t"})
    here, beside = process(settings), other(settings)
    answers = await asyncio.gather(*(p.headers(user) for p in (here, beside) for user in ("ada", "bob")))
    assert {answer["Authorization"] for answer in answers} == {f"Bearer {there.families[0].access}"}
    assert there.forms == [
        {
            "grant_type": "client_credentials",
            "client_id": CLIENT,
            "client_secret": SECRET,
            "scope": "a b",
            "audience": "x",
            "tenant": "t",
        }
    ]
    with pytest.raises(Refused, match="nothing to log in to"):
        await here.logins.begin("notes", "ada", REDIRECT)
    await process(_configured(there, scope="a")).headers()
    assert len(there.forms) == 2, "a token of other settings is not used"


@pytest.mark.parametrize(("expires", "seconds"), [(None, 3600), ("120", 120), ("soon", 3600), (1e300, 315_360_000)])
async def test_lifetimes(
    expires: Any, seconds: float, process: Callable[..., Process], there: AuthorizationServer
) -> None:
    there.expires_in = expires
    here = process(_configured(there))
    began = datetime.now(UTC)
    await here.headers()
    grant = (await here.authorisation.clients.load(grants.EVERYBODY)).servers["notes"]
    assert grant.token is not None
    assert grant.token.expires_at is not None
    lifetime = datetime.fromisoformat(grant.token.expires_at) - began
    assert timedelta(seconds=seconds) <= lifetime < timedelta(seconds=seconds + 30)


async def test_a_configured_refresh_token_rotates(process: Callable[..., Process], there: AuthorizationServer) -> None:
    first = Secret(there.first_refresh_token())
    settings = _configured(there, grant_type="refresh_token", refresh_token=first)
    for hours in (0, 2, 4):
        here = process(settings)
        here.later = timedelta(hours=hours)
        assert await here.is_admitted()
    assert not there.families[0].revoked, "the first one was used once"


async def test_other_fields_of_a_token_response(there: AuthorizationServer, process: Callable[..., Process]) -> None:
    fields = {"token_field": "refresh_token", "token_type_field": "kind", "default_token_type": "Token"}
    first = Secret(there.first_refresh_token())
    settings = _configured(there, grant_type="refresh_token", refresh_token=first, **fields)
    headers = await process(settings).headers()
    assert headers == {"Authorization": f"Token {there.families[0].refresh}"}


async def test_a_configured_client_that_is_refused_is_tried_again_later(
    process: Callable[..., Process], there: AuthorizationServer
) -> None:
    here = process(_configured(there, client_secret=Secret("wrong")))
    for _ in range(3):
        with pytest.raises(Unavailable, match="no access token: the token endpoint refuses: invalid_client"):
            await here.headers()
    assert there.calls["token"] == 1
    there.clients[CLIENT] = "wrong"
    here.later = timedelta(minutes=1)
    assert await here.is_admitted()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"client_id": "c", "client_secret": Secret("s")},
        {"grant_type": "refresh_token", "token_url": "https://a.example/t"},
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"needed for grant_type"):
        OAuth(**settings)


def _true(probe: Callable[[], bool]) -> Callable[[], Any]:
    async def result() -> bool:
        return probe()

    return result
