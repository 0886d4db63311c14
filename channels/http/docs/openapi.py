"""The API as an OpenAPI 3.1 document, made of the route table and the types it names, and a page to read it with."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import msgspec
from aiohttp import web

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.endpoints.shapes import Error, Frame, Json, Unauthorized
from channels.http.endpoints.table import all_routes
from channels.http.server.routes import API, BYTES, ROOT, SSE, Form, Param, Route
from core.errors import NotFound

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ID: Json = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}
"""The form that `core.ids.safe_id` accepts: path variables whose names end in `_id`."""
_TEXT: Json = {"type": "string", "minLength": 1}

_METHODS = ("GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH")
_WRITING = frozenset({"PUT", "POST", "DELETE", "PATCH"})
_REF = "#/components/schemas/{name}"
_VARIABLE = re.compile(r"\{(\w+)(?::[^{}]+)?\}")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n")

_ERRORS: Mapping[int, str] = {
    400: "The input is wrong; `detail` says where",
    401: "Not signed in, or not any more. Only where accounts are enabled",
    403: "Not allowed: the scope, the role, the origin or the CSRF token",
    404: "There is no such thing, or it is somebody else's",
    405: "The route has no such method",
    408: "The body did not arrive in time",
    409: "The state of the thing forbids it",
    410: "It was there once",
    412: "A condition of the request does not hold",
    413: "The body is too large",
    415: "The body is of a kind that is not accepted here",
    416: "The range lies outside",
    422: "The input is malformed; `detail` says where",
    429: "Too much; try again after `Retry-After` seconds",
    500: "A defect of the server",
    502: "A server behind this one failed",
    503: "A part of the system does not answer; try again after `Retry-After` seconds",
}
_ALWAYS = (403, 422, 429, 500, 503)
"""Error statuses of every route; 401 comes with those that are not public."""
_WITH_BODY = (408, 413, 415)
"""Error statuses of routes that take a body."""
_RETRYING = frozenset({429, 503})

_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or the token of a session"},
    "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "An API key"},
    "session": {"type": "apiKey", "in": "cookie", "name": "access_token", "description": "Set by signing in"},
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "The value of the cookie `csrf_token`; needed with the cookie by requests that change something",
    },
}

_INTRODUCTION = """\
Threads, runs and everything about them. LangGraph's routes are under `/api` and also under `/api/langgraph`; they are
named once here. An error is `{"detail", "code"}`: `detail` is for people, `code` for programs; about signing in it is
`{"detail": {"code", "message"}}`. A server without accounts asks for no credentials and listens on loopback only."""


# ── the document ─────────────────────────────────────────────────────────────────────────────────────────────────────


def document(routes: Iterable[Route], version: str) -> Json:
    """The OpenAPI document. The same routes give the same document, whatever their order."""
    ordered = sorted(routes, key=lambda route: (_path(route), _METHODS.index(route.method)))
    schemas = _Schemas(ordered)
    paths: Json = {}
    for route in ordered:
        paths.setdefault(_path(route), {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": DIALECT,
        "info": {"title": "Sika", "version": version, "description": _INTRODUCTION},
        "servers": [{"url": "/", "description": "This server; a base address of clients is its `/api`"}],
        "tags": _tags(ordered),
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": {str(status): _error(status, schemas) for status in _all_errors(ordered)},
            "securitySchemes": _SECURITY,
        },
    }


def _operation(route: Route, schemas: _Schemas) -> Json:
    summary, description = _texts(route)
    operation: Json = {"operationId": operation_id(route), "tags": [tag(route)], "summary": summary}
    if description:
        operation["description"] = description
    if parameters := _parameters(route, schemas):
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = _body(route.body, schemas)
    operation["responses"] = _answers(route, schemas)
    operation["security"] = [] if route.public else _security(route)
    if route.endless:
        operation["x-endless"] = route.endless
    return operation


def operation_id(route: Route) -> str:
    """Method and path as one word; it stays as long as they do."""
    words = re.findall(r"\w+", _VARIABLE.sub(r"\1", route.path))
    slash = ("slash",) if route.path.endswith("/") else ()
    return "_".join((route.method.lower(), *words, *slash))


def tag(route: Route) -> str:
    return route.tag or route.handler.__module__.rpartition(".")[2]


def _path(route: Route) -> str:
    return _mount(route) + _VARIABLE.sub(r"{\1}", route.path)


def _mount(route: Route) -> str:
    """The one that is shown."""
    return API[0] if API[0] in route.mounts else route.mounts[0]


def _texts(route: Route) -> tuple[str, str]:
    """Summary and description."""
    first, *rest = _SENTENCE.split(inspect.getdoc(route.handler) or "", maxsplit=1)
    notes = " ".join(rest).split("\n")
    others = [f"`{mount or '/'}`" for mount in route.mounts if mount != _mount(route)]
    if route.role:
        notes += ["", f"Only for the role `{route.role}`."]
    if route.scope:
        scopes = " and ".join(f"`{scope}`" for scope in route.scope.split())
        notes += ["", f"API keys need the scope {scopes}."]
    if others:
        notes += ["", f"Also under {' and '.join(others)}."]
    return first.rstrip(".").replace("\n", " "), "\n".join(notes).strip()


def _tags(routes: Sequence[Route]) -> list[Json]:
    """Returns the used tags, with the first line of their module's docstring."""
    texts: dict[str, str] = {}
    for route in routes:
        module = sys.modules[route.handler.__module__]
        texts.setdefault(tag(route), (module.__doc__ or "").partition("\n")[0])
    return [{"name": name, "description": texts[name]} for name in sorted(texts)]


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────────


def _parameters(route: Route, schemas: _Schemas) -> list[Json]:
    variables = [
        {"name": name, "in": "path", "required": True, "schema": ID if name.endswith("_id") else _TEXT}
        for name in _VARIABLE.findall(route.path)
    ]
    return variables + [_parameter(param, schemas) for param in route.query]


def _parameter(param: Param, schemas: _Schemas) -> Json:
    default = {"default": param.default} if param.default else {}
    parameter: Json = {"name": param.name, "in": param.where, "schema": {**schemas.of(param.type), **default}}
    if param.required:
        parameter["required"] = True
    if param.text:
        parameter["description"] = param.text
    if param.endless:
        parameter["x-endless"] = param.endless
    return parameter


def _body(body: Any, schemas: _Schemas) -> Json:
    if isinstance(body, Form):
        return {"required": True, "content": {body.media: {"schema": _form(body)}}}
    return {"required": _needs_something(body), "content": {"application/json": {"schema": schemas.of(body)}}}


def _needs_something(body: Any) -> bool:
    """An empty body counts as `{}`."""
    try:
        msgspec.convert({}, body)
    except msgspec.ValidationError:
        return True
    return False


def _form(body: Form) -> Json:
    file: Json = {"type": "string", "contentMediaType": BYTES, "format": "binary"}
    fields: Json = {name: {"type": "array", "items": file, "minItems": 1} for name in body.files}
    fields |= {name: {"type": "string"} for name in body.fields}
    return {"type": "object", "properties": fields, "required": [*body.files, *body.required]}


def _security(route: Route) -> list[Json]:
    scopes = route.scope.split()
    cookies: Json = {"session": []} | ({"csrf": []} if route.method in _WRITING else {})
    return [{"bearer": scopes}, {"key": scopes}, cookies]


# ── what is answered ─────────────────────────────────────────────────────────────────────────────────────────────────


def _answers(route: Route, schemas: _Schemas) -> Json:
    responses: dict[int, Json] = {status: _answer(route, status, content, schemas) for status, content in _sent(route)}
    responses |= {status: {"$ref": f"#/components/responses/{status}"} for status in _errors(route)}
    return {str(status): responses[status] for status in sorted(responses)}


def _errors(route: Route) -> set[int]:
    common = {*_ALWAYS, *(() if route.public else (401,)), *(_WITH_BODY if route.body is not None else ())}
    return (common | set(route.errors)) - set(route.answers)


def _sent(route: Route) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for status, content in route.answers.items():
        yield status, () if content is None else content if isinstance(content, tuple) else (content,)


def _answer(route: Route, status: int, content: tuple[Any, ...], schemas: _Schemas) -> Json:
    response: Json = {"description": HTTPStatus(status).phrase}
    if status < 400 and route.headers:
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in route.headers.items()
        }
    if content:
        response["content"] = dict(_content(part, schemas) for part in content)
    return response


def _content(content: Any, schemas: _Schemas) -> tuple[str, Json]:
    if not isinstance(content, str):
        return "application/json", {"schema": schemas.of(content)}
    if content == SSE:
        return content, {"schema": schemas.of(Frame)}
    return content, {"schema": {"type": "string"}} if content.startswith("text/") else {}


def _all_errors(routes: Iterable[Route]) -> list[int]:
    return sorted({status for route in routes for status in _errors(route)})


def _error(status: int, schemas: _Schemas) -> Json:
    shape = schemas.of(Unauthorized if status == 401 else Error)
    text = _ERRORS.get(status, HTTPStatus(status).phrase)
    response: Json = {"description": text, "content": {"application/json": {"schema": shape}}}
    if status in _RETRYING:
        response["headers"] = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}}}
    return response


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Schemas:
    """The JSON Schema of every type in the table; structs by reference."""

    def __init__(self, routes: Iterable[Route]) -> None:
        types = [kind for route in routes for kind in _types(route)] + [Error, Frame, Unauthorized]
        schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
        names = {name: _short(name, components) for name in components}
        self._types = types
        self._schemas = [_renamed(schema, names) for schema in schemas]
        renamed: Json = {names[name]: _renamed(schema, names) for name, schema in components.items()}
        self.components = dict(sorted(renamed.items()))

    def of(self, kind: Any) -> Json:
        schema: Json = self._schemas[self._types.index(kind)]
        return schema


def _types(route: Route) -> Iterator[Any]:
    yield from (param.type for param in route.query)
    if route.body is not None and not isinstance(route.body, Form):
        yield route.body
    for _, content in _sent(route):
        yield from (kind for kind in content if not isinstance(kind, str))


def _short(name: str, taken: Mapping[str, Any]) -> str:
    """Structs of the same name come with their modules before it: the last one is enough (`ThreadsSearchBody`)."""
    *_, module, plain = ("", *name.split("."))
    short = module.replace("_", " ").title().replace(" ", "") + plain
    return name if short in taken else short


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_renamed(item, names) for item in schema]
    if not isinstance(schema, dict):
        return schema
    prefix = _REF.format(name="")
    return {
        key: prefix + names[value.removeprefix(prefix)] if key == "$ref" else _renamed(value, names)
        for key, value in schema.items()
    }


# ── the routes ───────────────────────────────────────────────────────────────────────────────────────────────────────

_PAGE = Path(__file__).parent
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
ROUTES = Routes(public=True, mounts=ROOT, tag="documentation", errors=(404,))


@ROUTES("GET", "/openapi.json")
async def get_document(call: Call) -> Annotated[web.Response, Json]:
    """This document: OpenAPI 3.1 in JSON. It is made of the table from which the server routes."""
    require_docs(call)
    return web.Response(body=_encoded(call.services.version), content_type="application/json")


@ROUTES("GET", "/docs")
async def get_page(call: Call) -> Annotated[web.Response, "text/html"]:
    """A page to read the API with, and to try it. It needs no network besides this server."""
    return _file(call, "index.html", "text/html")


@ROUTES("GET", "/docs/", answers={302: None})
@ROUTES("GET", "/redoc", answers={302: None})
async def get_root(call: Call) -> web.Response:
    """Redirects to the page, from where people look for it."""
    require_docs(call)
    return web.Response(status=302, headers={"Location": "../docs" if call.request.path == "/docs/" else "docs"})


@ROUTES("GET", "/docs/page.js")
async def get_script(call: Call) -> Annotated[web.Response, "text/javascript"]:
    """The script of the page."""
    return _file(call, "page.js", "text/javascript")


@ROUTES("GET", "/docs/page.css")
async def get_style(call: Call) -> Annotated[web.Response, "text/css"]:
    """The style of the page."""
    return _file(call, "page.css", "text/css")


@functools.cache
def _encoded(version: str) -> bytes:
    return msgspec.json.encode(document(all_routes(), version))


def _file(call: Call, name: str, media: str) -> web.Response:
    require_docs(call)
    return web.Response(body=_read(name), content_type=media, charset="utf-8", headers=PAGE_HEADERS)


@functools.cache
def _read(name: str) -> bytes:
    return (_PAGE / name).read_bytes()


def require_docs(call: Call) -> None:
    """Raises `NotFound` if the documentation is switched off."""
    if not call.config.http.docs:
        raise NotFound(f"no such route: {call.request.method} {call.request.path}")
