"""Answers are compressed for those who accept it: whole ones, of text, without a secret in them."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from channels.http.docs.openapi import document
from channels.http.endpoints.table import all_routes
from channels.http.server import compression
from channels.http.server.routes import SSE
from core.config.settings import Auth, Http, OidcProvider
from core.runtime.system import System
from tests.channels.http.conftest import Api, Settings, Worker
from tests.channels.http.people import AUTH, WithAccounts, place

LONG = "many words " * 500
SECRET_FIELD = re.compile(r"(?:access_|csrf_|api_)?token|secret|password|code|authorization_url|share_url", re.I)


@pytest.fixture
async def plain() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that shows what was sent."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


async def get(
    session: aiohttp.ClientSession, url: str, accept: str | None = "gzip", method: str = "GET", **headers: str
) -> tuple[aiohttp.ClientResponse, bytes]:
    sent = {**headers, **({"Accept-Encoding": accept} if accept is not None else {})}
    skip = () if accept is not None else ("Accept-Encoding",)
    async with session.request(method, url, headers=sent, skip_auto_headers=skip) as response:
        return response, await response.read()


@pytest.mark.parametrize(
    ("accept", "compressed"),
    [
        ("gzip", True),
        ("br, gzip;q=0.8", True),
        ("GZIP", True),
        ("*", True),
        ("*;q=0.1, identity", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0, *", False),
        ("gzip;q=x", False),
        ("identity", False),
        ("deflate, br", False),
        ("notgzip", False),
        ("", False),
        (None, False),
    ],
)
async def test_who_gets_it_compressed(
    api: Api, plain: aiohttp.ClientSession, accept: str | None, compressed: bool
) -> None:
    thread = (await api.ask("POST", "/threads", {"metadata": {"text": LONG}}))["thread_id"]
    response, body = await get(plain, f"{api.url}/api/threads/{thread}", accept)
    assert (response.headers.get("Content-Encoding") == "gzip") is compressed
    assert "Accept-Encoding" in response.headers["Vary"], "a shared cache must know"
    text = gzip.decompress(body) if compressed else body
    assert msgspec.json.decode(text)["metadata"]["text"] == LONG
    assert len(body) < len(LONG) / 10 if compressed else len(body) > len(LONG)
    assert int(response.headers["Content-Length"]) == len(body)


async def test_short_answers_and_other_media_stay(api: Api, plain: aiohttp.ClientSession) -> None:
    short, body = await get(plain, f"{api.url}/health")
    assert "Content-Encoding" not in short.headers
    assert len(body) < 1024
    for path in ("/openapi.json", "/docs/page.js", "/docs/page.css", "/docs", "/docs/streams"):
        response, body = await get(plain, f"{api.url}{path}")
        assert response.headers["Content-Encoding"] == "gzip", path
        _, same = await get(plain, f"{api.url}{path}", None)
        assert gzip.decompress(body) == same, path


async def test_streams_stay_as_they_are(api: Api, worker: Worker, plain: aiohttp.ClientSession) -> None:
    thread = await api.thread()
    run = await api.run(thread, stream_mode=["values"])
    await worker.perform(thread, run, LONG)
    url = f"{api.url}/api/threads/{thread}"
    for path in (f"runs/{run}/stream", "log"):
        response, body = await get(plain, f"{url}/{path}", "gzip", Accept=SSE, **{"Last-Event-ID": "-1"})
        assert response.status == 200
        assert "Content-Encoding" not in response.headers
        assert b"many words" in body


async def test_head_says_the_same_length(api: Api, plain: aiohttp.ClientSession) -> None:
    _, body = await get(plain, f"{api.url}/openapi.json", "gzip")
    head, nothing = await get(plain, f"{api.url}/openapi.json", "gzip", "HEAD")
    assert not nothing
    assert head.headers["Content-Encoding"] == "gzip"
    assert int(head.headers["Content-Length"]) == len(body)


async def test_errors_and_foreign_origins(api: Api, config: Settings, plain: aiohttp.ClientSession) -> None:
    config.http = Http(cors_origins=("https://page.example",))
    response, _ = await get(plain, f"{api.url}/openapi.json", "gzip", Origin="https://page.example")
    assert response.headers["Content-Encoding"] == "gzip"
    assert {part.strip() for part in response.headers["Vary"].split(",")} == {"Origin", "Accept-Encoding"}


# ── beside a secret ──────────────────────────────────────────────────────────────────────────────────────────────────


def _fields(schema: Any, schemas: Any, seen: set[str]) -> Iterator[str]:
    """Names of fields that can hold a secret: one that only tells whether something is secret cannot."""
    match schema:
        case {"$ref": str(reference)}:
            name = reference.rsplit("/", 1)[1]
            if name not in seen:
                seen.add(name)
                yield from _fields(schemas[name], schemas, seen)
        case dict():
            fields = schema.get("properties", {})
            yield from (name for name, field in fields.items() if field.get("type") != "boolean")
            for value in schema.values():
                yield from _fields(value, schemas, seen)
        case list():
            for value in schema:
                yield from _fields(value, schemas, seen)


def test_routes_that_give_a_secret_say_so() -> None:
    """By the fields of what they answer: whoever adds such a route learns it here."""
    silent = []
    for route in all_routes():
        described = document([route], "1")
        schemas = described["components"]["schemas"]
        [operation] = [operation for methods in described["paths"].values() for operation in methods.values()]
        contents = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        if not route.secret and any(SECRET_FIELD.fullmatch(name) for name in _fields(contents, schemas, set())):
            silent.append(f"{route.method} {route.path}")
    assert silent == []
    assert sum(route.secret for route in all_routes()) >= 12, "signing in, codes, logins elsewhere"


async def test_answers_about_signing_in_are_not_compressed(
    system: System, tmp_path: Path, plain: aiohttp.ClientSession
) -> None:
    providers = [OidcProvider(name=f"provider{n}", issuer=f"https://{n}.example", client_id="c") for n in range(100)]
    config = WithAccounts(auth=Auth(enabled=True, registration=True, oidc=tuple(providers)))
    async with place(system, config, tmp_path / "home") as here:
        response, body = await get(plain, f"{here.url}{AUTH}/providers", "gzip")
    assert len(msgspec.json.decode(body)["providers"]) == 100
    assert "Content-Encoding" not in response.headers
    assert response.headers["Cache-Control"] == "no-store"


async def test_what_sets_a_cookie_or_may_not_be_kept_is_not_compressed(plain: aiohttp.ClientSession) -> None:
    async def handle(request: web.Request) -> web.Response:
        response = web.Response(text=LONG)
        match request.path:
            case "/cookie":
                response.set_cookie("name", "value")
            case "/header":
                response.headers["Set-Cookie"] = "name=value"
            case "/store":
                response.headers["Cache-Control"] = "private, no-store"
            case "/transform":
                response.headers["Cache-Control"] = "no-transform"
            case "/encoded":
                response.headers["Content-Encoding"] = "br"
            case "/picture":
                response.content_type = "image/png"
            case "/part":
                response.set_status(206)
            case "/tag":
                response.headers["ETag"] = '"1"'
        return response

    app = web.Application(middlewares=[compression.middleware()])
    app.router.add_get("/{name}", handle)
    async with TestServer(app) as server:
        for name in ("cookie", "header", "store", "transform", "encoded", "picture", "part", "plain", "tag"):
            response, _ = await get(plain, str(server.make_url(f"/{name}")), "gzip")
            compressed = response.headers.get("Content-Encoding") == "gzip"
            assert compressed is (name in ("plain", "tag")), name
        assert response.headers["ETag"] == 'W/"1"', "the same text in other bytes"
