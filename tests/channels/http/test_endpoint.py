"""What the signature of an endpoint says is what is read, refused, answered and documented."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Accepted, Created, Depends, Endless, Header, Page, Reply, Routes
from channels.http.server import errors, guard
from channels.http.server.routes import API, PAGING, SSE, mount
from core.config.settings import Http
from core.errors import NotFound
from core.events import Json

pytestmark = pytest.mark.anyio


class Thing(msgspec.Struct):
    name: str
    size: Annotated[int, msgspec.Meta(ge=0)] = 0


async def _known(call: Call) -> Thing:
    if call.request.match_info["thing_id"] != "1":
        raise NotFound("Thing not found")
    return Thing("one")


Known = Annotated[Thing, Depends(_known, (404, 409))]
ROUTES = Routes(mounts=API, errors=(400,))


@ROUTES("GET", "/query")
async def query(
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=9), "How many"] = 3,
    since: int | None = None,
    kind: Literal["a", "b"] | None = None,
    full: bool = False,
    names: Sequence[str] = (),
    kinds: Sequence[Literal["a", "b"]] = (),
    follow: Annotated[bool, Endless("it follows")] = False,
    after: Annotated[str | None, Header("Last-Event-ID")] = None,
) -> list[Any]:
    """What was read."""
    return [limit, since, kind, full, names, kinds, follow, after]


@ROUTES("GET", "/needed")
async def needed(*, name: str) -> str:
    """The name."""
    return name


@ROUTES("GET", "/things/{thing_id}", "things:read")
@ROUTES("GET", "/others/{thing_id}", answers={206: None})
async def get(thing: Known, thing_id: str) -> Reply[Thing]:
    """A thing."""
    return Reply(thing, 206, {"X-Thing": thing_id})


@ROUTES("POST", "/things")
async def create(body: Thing) -> Created[Thing]:
    """Make a thing."""
    return body


@ROUTES("POST", "/jobs")
async def begin() -> Accepted[None]:
    """Begin a job."""


@ROUTES("DELETE", "/things")
async def delete() -> None:
    """Remove all."""


@ROUTES("GET", "/pages")
async def pages(*, offset: int = 0) -> Page[int]:
    """A page of numbers."""
    return Page([1, 2], 5, offset)


@ROUTES("GET", "/nothing")
async def nothing() -> Thing | None:
    """Null."""
    return None


@ROUTES("GET", "/stream")
async def stream() -> Annotated[web.Response, Json, SSE]:
    """A response of its own."""
    return web.Response(text="x")


@pytest.fixture
async def url() -> AsyncIterator[str]:
    app = web.Application(middlewares=[errors.middleware(guard.Rules(Http), 1000)])
    mount(app.router, ROUTES)
    async with TestServer(app) as server:
        yield str(server.make_url("/api"))


async def ask(url: str, method: str, path: str, **more: Any) -> tuple[int, Any, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url + path, **more) as response:
        raw = await response.read()
        return response.status, msgspec.json.decode(raw) if raw else None, response.headers


NONE: list[Any] = [3, None, None, False, [], [], False, None]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ("?limit=9&since=-2&kind=b", {0: 9, 1: -2, 2: "b"}),
        ("?full=1&follow=no", {3: True}),
        ("?full=True&follow=ON", {3: True, 6: True}),
        ("?limit=&since=&kind=&full=&names=", {}),
        ("?names=a&names=b&kinds=b", {4: ["a", "b"], 5: ["b"]}),
        ('?names=["a","b"]&names=c&other=1', {4: ["a", "b", "c"]}),
    ],
)
async def test_what_is_read(url: str, text: str, read: dict[int, Any]) -> None:
    expected = [read.get(index, value) for index, value in enumerate(NONE)]
    assert (await ask(url, "GET", f"/query{text}"))[:2] == (200, expected)


async def test_headers_are_read(url: str) -> None:
    _, answer, _ = await ask(url, "GET", "/query", headers={"Last-Event-ID": "7"})
    assert answer[7] == "7"


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/query?limit=10", "limit: expected int <= 9, got '10'"),
        ("/query?limit=x", "limit: expected int, got 'x'"),
        ("/query?kind=c", "kind: one of a, b, got 'c'"),
        ("/query?kinds=a&kinds=c", "kinds: one of a, b, got \"['a', 'c']\""),
        ("/query?full=maybe", "full: expected bool, got 'maybe'"),
        ("/query?names=[1]", "Expected str, got int - at $[0]"),
        ("/needed", "query: object missing required field name"),
        ("/needed?name=", "query: object missing required field name"),
    ],
)
async def test_what_is_refused(url: str, path: str, detail: str) -> None:
    assert (await ask(url, "GET", path))[:2] == (422, {"detail": detail, "code": "invalid"})


async def test_what_depends_on_the_call(url: str) -> None:
    status, answer, headers = await ask(url, "GET", "/things/1")
    assert (status, answer, headers["X-Thing"]) == (206, {"name": "one", "size": 0}, "1")
    assert (await ask(url, "GET", "/others/2"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "answer"),
    [
        ("POST", "/things", {"name": "x", "more": 1}, 201, {"name": "x", "size": 0}),
        ("POST", "/things", {"name": "x", "size": -1}, 422, None),
        ("POST", "/jobs", None, 202, None),
        ("DELETE", "/things", None, 204, None),
        ("GET", "/nothing", None, 200, None),
    ],
)
async def test_answers(url: str, method: str, path: str, body: Any, status: int, answer: Any) -> None:
    found, told, _ = await ask(url, method, path, **({"json": body} if body else {}))
    assert found == status
    assert status >= 400 or told == answer


@pytest.mark.parametrize(("offset", "following"), [(0, "2"), (2, "4"), (3, None)])
async def test_pages_say_what_follows(url: str, offset: int, following: str | None) -> None:
    _, answer, headers = await ask(url, "GET", f"/pages?offset={offset}")
    assert (answer, headers["X-Pagination-Total"], headers.get("X-Pagination-Next")) == ([1, 2], "5", following)


async def test_the_table_is_made_of_the_types() -> None:
    routes = {f"{route.method} {route.path}": route for route in ROUTES}
    read = {param.name: param for param in routes["GET /query"].query}
    assert list(read) == ["limit", "since", "kind", "full", "names", "kinds", "follow", "Last-Event-ID"]
    assert (read["limit"].text, read["limit"].default, read["since"].type) == ("How many", 3, int)
    assert (read["follow"].endless, read["Last-Event-ID"].where) == ("it follows", "header")
    assert [param.required for param in routes["GET /needed"].query] == [True]
    assert routes["POST /things"].body is Thing
    assert {name: dict(route.answers) for name, route in routes.items()} == {
        "GET /query": {200: list[Any]},
        "GET /needed": {200: str},
        "GET /things/{thing_id}": {200: Thing},
        "GET /others/{thing_id}": {200: Thing, 206: None},
        "POST /things": {201: Thing},
        "POST /jobs": {202: None},
        "DELETE /things": {204: None},
        "GET /pages": {200: list[int]},
        "GET /nothing": {200: Thing | None},
        "GET /stream": {200: (Json, SSE)},
    }
    assert routes["GET /pages"].headers == PAGING
    assert set(routes["GET /things/{thing_id}"].errors) == {400, 404, 409}
    assert routes["GET /things/{thing_id}"].scope == "things:read"
    assert routes["GET /query"].mounts == API
