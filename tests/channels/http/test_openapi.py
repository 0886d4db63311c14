"""The document says of every route what it takes and gives, once, and is itself valid; the page needs nobody else."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import anyio
import jsonschema_rs
import msgspec
import pytest
import schemathesis
from aiohttp import web

from actors.agent.run import options
from channels.http.docs.openapi import DIALECT, document, operation_id
from channels.http.endpoints.table import all_routes
from channels.http.runs.run_request import RunBody, run_spec
from channels.http.server.routes import API, BYTES, MOUNTS, PAGING, ROOT, SSE, Form, Param, Route
from core.config import load as configuration
from core.events import Json, RunRequested
from core.user.assistants import Settings as Assistant
from core.user.assistants import built_in
from tests.channels.http.conftest import Api, Settings

ROUTES = all_routes()
_VARIABLE = re.compile(r"\{[^{}]*\}")


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.fixture(scope="module")
def described() -> Json:
    return made(*ROUTES)


def made(*routes: Route) -> Json:
    """The document as it is sent."""
    found: Json = msgspec.json.decode(msgspec.json.encode(document(routes, "1.2.3")))
    return found


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_routes_are_declared(route: Route) -> None:
    text = inspect.getdoc(route.handler)
    assert text, "the handler's docstring is the route's documentation"
    assert text[0].isupper()
    assert text.partition("\n\n")[0].rstrip().endswith((".", "!", "?", ")"))
    assert all(100 <= status < 600 for status in (*route.answers, *route.errors))
    assert not set(route.errors) & set(route.answers)
    assert re.fullmatch(r"([a-z]+(:[a-z]+)?( [a-z]+:[a-z]+)?)?", route.scope)
    assert not (route.public and (route.scope or route.role)), "whoever may call it needs no permission"
    assert route.role in ("", "admin")
    assert {param.where for param in route.query} <= {"query", "header"}


async def test_every_route_is_there_once() -> None:
    shapes = [(route.method, mount + _VARIABLE.sub("{}", route.path)) for route in ROUTES for mount in route.mounts]
    assert [shape for shape in shapes if shapes.count(shape) > 1] == []
    ids = [operation_id(route) for route in ROUTES]
    assert [one for one in ids if ids.count(one) > 1] == []


# ── the document ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_document_is_valid(described: Json) -> None:
    schemathesis.openapi.from_dict(described).validate()
    for schema in _schemas(described):
        jsonschema_rs.meta.validate({"$schema": DIALECT, **schema})
    for reference in _references(described):
        found: Any = described
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        assert found
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert len(operations) == len(ROUTES)
    assert {tag for one in operations for tag in one["tags"]} == {tag["name"] for tag in described["tags"]}
    assert all(tag["description"] for tag in described["tags"])


async def test_document_is_the_same_every_time(described: Json) -> None:
    assert msgspec.json.encode(made(*reversed(ROUTES))) == msgspec.json.encode(described)


async def test_struct_names_are_short(described: Json) -> None:
    assert [name for name in described["components"]["schemas"] if not re.fullmatch(r"\w+", name)] == []


def _schemas(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict):
        yield from (value for key, value in thing.items() if key == "schema")
        for key, value in thing.items():
            yield from value.values() if key == "schemas" else _schemas(value)
    elif isinstance(thing, list):
        for item in thing:
            yield from _schemas(item)


def _references(thing: Any) -> Iterator[str]:
    if isinstance(thing, dict):
        if isinstance(thing.get("$ref"), str):
            yield thing["$ref"]
        for value in thing.values():
            yield from _references(value)
    elif isinstance(thing, list):
        for item in thing:
            yield from _references(item)


# ── one route ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Wish(msgspec.Struct):
    """What is wished for."""

    name: str
    count: Annotated[int, msgspec.Meta(ge=0)] = 3
    kind: Literal["a", "b"] | None = None


class Note(msgspec.Struct):
    note: str | None = None


async def handle(request: web.Request) -> web.Response:
    """Grants a wish. Not every
    wish is granted.

    Twice is too often.
    """
    raise NotImplementedError


def operation(method: str = "GET", path: str = "/x", answers: Any = None, **more: Any) -> Json:
    paths = made(Route(method, path, handle, answers or {200: Json}, **more))["paths"]
    [[found]] = [list(methods.values()) for methods in paths.values()]
    return dict(found)


async def test_texts() -> None:
    found = operation("POST", "/a/{x_id}/b-c", scope="runs:read", role="admin")
    assert found["operationId"] == "post_a_x_id_b_c"
    assert found["summary"] == "Grants a wish"
    assert found["description"].startswith("Not every\nwish is granted.\n\nTwice is too often.\n\n")
    for said in ("`runs:read`", "`admin`", "`/api/langgraph`"):
        assert said in found["description"]
    assert found["tags"] == ["test_openapi"]
    assert operation(tag="t")["tags"] == ["t"]


@pytest.mark.parametrize(
    ("mounts", "path"), [(MOUNTS, "/api/x"), (API, "/api/x"), (ROOT, "/x"), (("", *MOUNTS), "/api/x")]
)
async def test_mounts(mounts: tuple[str, ...], path: str) -> None:
    assert list(made(Route("GET", "/x", handle, {200: Json}, mounts=mounts))["paths"]) == [path]


@pytest.mark.parametrize(
    ("path", "params", "expected"),
    [
        ("/{x_id}", (), {"name": "x_id", "in": "path", "required": True, "pattern": "^[A-Za-z0-9_-]{1,128}$"}),
        ("/{name}", (), {"name": "name", "in": "path", "required": True, "minLength": 1}),
        ("/{rest:.+}", (), {"name": "rest", "in": "path", "required": True, "minLength": 1}),
        ("/", (Param("limit", int, "Up to 9"),), {"in": "query", "type": "integer", "description": "Up to 9"}),
        ("/", (Param("q", required=True),), {"in": "query", "type": "string", "required": True}),
        ("/", (Param("If-Match", where="header"),), {"in": "header", "name": "If-Match"}),
        ("/", (Param("m", Literal["a", "b"]),), {"enum": ["a", "b"]}),
        ("/", (Param("m", list[str]),), {"type": "array", "items": {"type": "string"}}),
        ("/", (Param("f", bool, endless="it follows"),), {"type": "boolean", "x-endless": "it follows"}),
    ],
)
async def test_parameters(path: str, params: tuple[Param, ...], expected: Json) -> None:
    [found] = operation(path=path, query=params)["parameters"]
    flat = {**found, **found["schema"]}
    assert {key: flat[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("body", "media", "required", "fields", "needed"),
    [
        (Wish, "application/json", True, {"name", "count", "kind"}, ["name"]),
        (Note, "application/json", False, {"note"}, []),
        (Form(("files",), ("note",)), "multipart/form-data", True, {"files", "note"}, ["files"]),
        (
            Form(fields=("user", "password", "otp"), media="application/x-www-form-urlencoded", required=("user",)),
            "application/x-www-form-urlencoded",
            True,
            {"user", "password", "otp"},
            ["user"],
        ),
    ],
)
async def test_bodies(body: Any, media: str, required: bool, fields: set[str], needed: list[str]) -> None:
    found = made(Route("POST", "/x", handle, {200: Json}, body))
    given = found["paths"]["/api/x"]["post"]["requestBody"]
    schema = given["content"][media]["schema"]
    schema = found["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    assert (given["required"], set(schema["properties"]), schema["required"]) == (required, fields, needed)
    assert {"408", "413", "415"} <= set(found["paths"]["/api/x"]["post"]["responses"])


@pytest.mark.parametrize(
    ("answer", "media"),
    [
        (None, []),
        (Wish, ["application/json"]),
        (SSE, [SSE]),
        (BYTES, [BYTES]),
        ((list[Wish], SSE), ["application/json", SSE]),
    ],
)
async def test_answers(answer: Any, media: list[str]) -> None:
    assert list(operation(answers={200: answer})["responses"]["200"].get("content", {})) == media


async def test_errors() -> None:
    found = operation(errors=(404,), headers=PAGING)
    assert set(found["responses"]) == {"200", "401", "403", "404", "422", "429", "500", "503"}
    assert set(found["responses"]["200"]["headers"]) == {"X-Pagination-Total", "X-Pagination-Next"}
    assert "401" not in operation(public=True)["responses"]
    components = made(Route("GET", "/x", handle, {200: Json}))["components"]
    assert set(components["responses"]["429"]["headers"]) == {"Retry-After"}
    refusal = components["responses"]["401"]["content"]["application/json"]["schema"]
    assert refusal == {"$ref": "#/components/schemas/Unauthorized"}


@pytest.mark.parametrize(
    ("method", "more", "expected"),
    [
        ("GET", {"public": True}, []),
        ("GET", {"scope": "a:b"}, [{"bearer": ["a:b"]}, {"key": ["a:b"]}, {"session": []}]),
        ("POST", {}, [{"bearer": []}, {"key": []}, {"session": [], "csrf": []}]),
    ],
)
async def test_security(method: str, more: Json, expected: list[Json]) -> None:
    assert operation(method, **more)["security"] == expected


async def test_structs_of_one_name_are_told_apart() -> None:
    other = msgspec.defstruct("Wish", [("x", int)], module="somewhere.big_wishes")
    found = made(Route("POST", "/x", handle, {200: Wish}, other))["components"]["schemas"]
    assert {"TestOpenapiWish", "BigWishesWish"} <= set(found)


async def test_the_defaults_of_a_run_are_told(described: Json) -> None:
    """Those that the texts name are in force; so is every key of the context."""
    fields = described["components"]["schemas"]["RunBody"]["properties"]
    assert [name for name, field in fields.items() if not field.get("description")] == []
    made = run_spec(RunBody(), built_in(Assistant(graph_id="lead_agent", name="lead_agent")), "ada").request
    for name, value in (
        ("multitask_strategy", made.multitask),
        ("on_disconnect", made.on_disconnect),
        ("stream_mode", made.stream_modes[0]),
        ("assistant_id", made.assistant),
    ):
        assert re.search(rf"`{value}`[^`]*default", fields[name]["description"]), name
    modes = set(options.MODES)
    keys = set(re.findall(r"`(\w+)`", fields["context"]["description"])) - modes - {"config", "context", "configurable"}
    assert len(keys) == 12
    for key in keys:
        said = [options.options(RunRequested(context={key: value})) for value in (True, 5, "ultra", ["pdf"])]
        assert any(one != options.Options() for one in said), key


async def test_every_group_is_one_of_the_subject(described: Json) -> None:
    assert "pending" not in {tag["name"] for tag in described["tags"]}


# ── as it is served ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_document_is_served(api: Api, described: Json) -> None:
    async with api.session.get(f"{api.url}/openapi.json") as response:
        assert response.content_type == "application/json"
        assert (await response.json())["paths"] == described["paths"]


async def test_page_needs_nobody_else(api: Api) -> None:
    async with api.session.get(f"{api.url}/docs") as response:
        page = await response.text()
        policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
        assert response.content_type == "text/html"
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    parts = re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', page)
    words = {"docs/contents", "docs/other-languages"}
    assert set(parts) == {"docs/page.js", "docs/page.css", "openapi.json", "asyncapi.json", *words}
    texts = [page]
    for part in set(parts) - words:
        async with api.session.get(f"{api.url}/{part}") as response:
            assert response.status == 200
            texts.append(await response.text() if part != "openapi.json" else "")
    for text in texts:
        assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE), "an address elsewhere"
        assert not re.search(r"innerHTML|\beval\b|<script>|style=|\son\w+=", text), "what the policy forbids"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_the_page_sets_code_apart(api: Api) -> None:
    async with api.session.get(f"{api.url}/docs/page.js") as response:
        [prose] = [line for line in (await response.text()).splitlines() if line.startswith("const prose =")]
    script = (
        f"const make = (name, _, text) => ({{[name]: text}}); {prose} console.log(JSON.stringify(prose('a `b` c')))"
    )
    result = await anyio.run_process(["node", "-e", script])
    assert msgspec.json.decode(result.stdout) == ["a ", {"code": "b"}, " c"]


@pytest.mark.parametrize("path", ["/docs/", "/redoc"])
async def test_where_people_look_for_the_page(api: Api, path: str) -> None:
    async with api.session.get(f"{api.url}{path}") as response:
        assert (response.status, str(response.url)) == (200, f"{api.url}/docs")


@pytest.mark.parametrize("docs", ["true", "false"])
async def test_the_root_is_the_page_for_people(api: Api, config: Settings, docs: str) -> None:
    config.http = configuration.parse(f"http: {{docs: {docs}}}").http
    async with api.session.get(f"{api.url}/") as response:
        assert (response.status, response.content_type) == (200, "text/html")
        policy = response.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        text = await response.text()
    for path in re.findall(r'(?:href|src)="(page/[^"]+)"', text):
        async with api.session.get(f"{api.url}/{path}") as response:
            assert response.status == 200
            assert "immutable" in response.headers["Cache-Control"]
            assert response.headers["Content-Encoding"] == "gzip"
    async with api.session.get(f"{api.url}/page/none.js") as response:
        assert response.status == 404


@pytest.mark.parametrize("path", ["/docs/", "/redoc", "/openapi.json", "/docs", "/docs/page.js", "/docs/operations"])
async def test_docs_can_be_switched_off(api: Api, config: Settings, path: str) -> None:
    config.http = configuration.parse("http: {docs: false}").http
    async with api.session.get(f"{api.url}{path}") as response:
        assert response.status == 404
        assert set(await response.json()) == {"detail", "code"}
