"""A server with accounts, and people with browsers and programs with keys who use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from multidict import CIMultiDict
from yarl import URL

from channels.http.app import serve
from core.config.load import Config
from core.config.settings import Auth, Http, Limits
from core.identity.directory import Directory
from core.identity.installation import Installation
from core.runtime.system import System
from tests.channels.http.conftest import services_of

PASSWORD = "correct horse battery"
AUTH = "/api/v1/auth"
ADMIN, ADA, BOB = "admin@example.org", "ada@example.org", "bob@example.org"


@dataclass
class WithAccounts:
    """The configuration in force; tests may change it while the server runs."""

    http: Http = field(default_factory=lambda: Http(heartbeat_seconds=0.2, max_body_bytes=100_000))
    auth: Auth = field(default_factory=lambda: Auth(enabled=True, registration=True))
    limits: Limits = field(default_factory=Limits)

    def __call__(self) -> Config:
        return Config(http=self.http, auth=self.auth, limits=self.limits)


class Answer(NamedTuple):
    status: int
    body: Any
    headers: CIMultiDict[str]
    raw: bytes

    @property
    def code(self) -> str:
        """Of an error, in either form."""
        found = self.body["detail"]["code"] if isinstance(self.body["detail"], dict) else self.body["code"]
        return str(found)


class Browser:
    """Keeps cookies and sends the CSRF token, as DeerFlow's web UI does."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url = url
        self.headers = headers
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.key: cookie.value for cookie in self.session.cookie_jar}

    def plant(self, name: str, value: str) -> None:
        self.session.cookie_jar.update_cookies({name: value}, URL(self.url))

    async def ask(self, method: str, path: str, body: Any = None, *, csrf: str | None = "own", **more: Any) -> Answer:
        headers = {**self.headers, **more.pop("headers", {})}
        token = self.cookies.get("csrf_token") if csrf == "own" else csrf
        if token and method not in ("GET", "HEAD"):
            headers.setdefault("X-CSRF-Token", token)
        given = {} if body is None else {"json": body}
        url = URL(self.url + path, encoded=True)
        async with self.session.request(
            method, url, headers=headers, allow_redirects=False, **given, **more
        ) as response:
            raw = await response.read()
            is_json = response.content_type == "application/json" and raw
            found = msgspec.json.decode(raw) if is_json else None
            return Answer(response.status, found, CIMultiDict(response.headers), raw)

    async def sign_in(self, email: str, password: str = PASSWORD, **more: Any) -> Answer:
        return await self.ask(
            "POST", f"{AUTH}/login/local", data={"username": email, "password": password}, csrf=None, **more
        )

    async def register(self, email: str, password: str = PASSWORD, **more: Any) -> Answer:
        return await self.ask("POST", f"{AUTH}/register", {"email": email, "password": password}, csrf=None, **more)

    async def initialize(self, email: str = ADMIN, password: str = PASSWORD) -> Answer:
        return await self.ask("POST", f"{AUTH}/initialize", {"email": email, "password": password}, csrf=None)

    async def me(self) -> Answer:
        return await self.ask("GET", f"{AUTH}/me")


class Place:
    """A running server, and who knows it."""

    def __init__(self, url: str, system: System, home: Path) -> None:
        self.url = url
        self.system = system
        self.home = home
        self.installation = Installation(home, {})
        self.directory = Directory(system.log, self.installation)
        """Of another process, which only shares the log and the data directory."""
        self._browsers: list[Browser] = []

    def browser(self, **headers: str) -> Browser:
        browser = Browser(self.url, **headers)
        self._browsers.append(browser)
        return browser

    async def person(self, email: str) -> Browser:
        """Somebody who registered and is signed in."""
        browser = self.browser()
        assert (await browser.register(email)).status == 201
        return browser

    async def admin(self) -> Browser:
        browser = self.browser()
        assert (await browser.initialize()).status == 201
        return browser

    async def key(self, name: str, scopes: Sequence[str] | None = None, expires: datetime | None = None) -> str:
        """An API key of somebody who has an account."""
        _, text = await self.directory.create_key(name, scopes, expires, actor="test")
        return text.reveal()

    async def close(self) -> None:
        for browser in self._browsers:
            await browser.session.close()


@pytest.fixture(name="config")
def fixture_config() -> WithAccounts:
    return WithAccounts()


@pytest.fixture(name="here")
async def fixture_here(system: System, config: WithAccounts, tmp_path: Path) -> AsyncIterator[Place]:
    async with place(system, config, tmp_path / "home") as here:
        yield here


@asynccontextmanager
async def place(system: System, config: WithAccounts, home: Path) -> AsyncIterator[Place]:
    async with serve(services_of(system, config, home), "127.0.0.1", 0) as port:
        found = Place(f"http://127.0.0.1:{port}", system, home)
        try:
            yield found
        finally:
            await found.close()
