"""The bus as an AsyncAPI document, for actors in other languages; and in words, for the page about them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated

import msgspec
from aiohttp import web

from channels.http.docs.openapi import require_docs
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.endpoints.shapes import Json
from channels.http.server.routes import ROOT
from core.runtime.asyncapi import document

ROUTES = Routes(public=True, mounts=ROOT, tag="documentation", errors=(404,))


@ROUTES("GET", "/asyncapi.json")
async def get_asyncapi(call: Call) -> Annotated[web.Response, Json]:
    """The bus: subjects, headers, events, and how to be an actor in any language. AsyncAPI 3 in JSON."""
    require_docs(call)
    return web.Response(body=_encoded(call.services.version, call.config.nats.prefix), content_type="application/json")


@functools.cache
def _encoded(version: str, prefix: str) -> bytes:
    return msgspec.json.encode(document(version, prefix))


def words(prefix: str) -> Iterator[str]:
    """Yields the document as Markdown: its text, the channels, and the fields of each event."""
    api = document("", prefix)
    yield api["info"]["description"]
    yield "## Channels\n\n| channel | subject | |\n|---|---|---|"
    for name, channel in api["channels"].items():
        yield f"| `{name}` | `{channel['address'] or 'an inbox'}` | {channel['description']} |"
    yield "\n## Operations\n\n| operation | | channel | |\n|---|---|---|---|"
    for name, operation in api["operations"].items():
        channel = operation["channel"]["$ref"].rpartition("/")[2]
        yield f"| `{name}` | {operation['action']} | `{channel}` | {operation['summary']} |"
    yield "\n## Events\n"
    for name, message in api["channels"]["log"]["messages"].items():
        if ref := message["payload"]["allOf"][1].get("$ref"):
            yield from _event(name, api["components"]["schemas"][ref.rpartition("/")[2]])


def _event(name: str, schema: Json) -> Iterator[str]:
    yield f"### {name}\n\n{schema.get('description', '')}\n"
    fields = {field: shape for field, shape in schema["properties"].items() if field != "type"}
    if fields:
        yield "| field | |\n|---|---|"
    for field, shape in fields.items():
        mark = " (required)" if field in schema.get("required", ()) else ""
        yield f"| `{field}`{mark} | {' '.join(shape.get('description', _kind(shape)).split()).replace('|', '/')} |"
    yield ""


def _kind(shape: Json) -> str:
    """Returns the type of a field that its documentation says nothing about."""
    if "anyOf" in shape:
        return " or ".join(_kind(part) for part in shape["anyOf"])
    return str(shape.get("type") or shape.get("$ref", "any").rpartition("/")[2])
