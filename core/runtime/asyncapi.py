"""The bus as an AsyncAPI 3 document: all that an actor in another language needs to know.

Direction words are the actor's: `receive` is what it reads, `send` what it publishes. JetStream has no words in the
format, so streams and the rules of appending are extensions (`x-sika-…`). The text is `asyncapi.md`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from core.bus.queue import SET_AT, Hint
from core.bus.subjects import Subjects, stream_configs
from core.events import Aggregate, Envelope, Event, Json, ThreadAnnotated, ThreadTitled, catalogue
from core.lifecycle import CHANNEL, GOAL, TEMPORARY, UNTITLED, USED_TOOLS, WEBHOOK
from core.log.reader import LABELS
from core.log.store import INLINE_BYTES
from core.runs.previews import Preview, Progress
from core.traces import TRACEPARENT

VERSION = "3.0.0"
FOREIGN = r"^x\.[a-z][a-z0-9]*\.[a-z][a-z0-9_]*$"
"""The form of event types of other vendors."""
APPENDED: Sequence[type[Event]] = (ThreadAnnotated, ThreadTitled)
"""Our types that a third-party actor may append."""
_REF = "#/components/schemas/{name}"
_STRING: Json = {"type": "string"}
_SEQUENCE: Json = {"type": "string", "pattern": "^[0-9]+$"}
_LABELS = ", ".join(sorted((WEBHOOK, TEMPORARY, CHANNEL, USED_TOOLS, UNTITLED, GOAL)))
_PARAMETERS: Mapping[str, str] = {
    "kind": "The kind of the aggregate; `thread` for conversations",
    "id": "The id of the aggregate",
    "actor": "The name of an actor",
    "run": "The id of a run",
    "key": "Names the timer: the same key of an aggregate replaces",
}


class DeadLetter(msgspec.Struct):
    """A wake-up or event that could not be handled."""

    actor: str
    aggregate: str
    """`<kind>/<id>`."""
    reason: str
    """Fit for people, without secrets."""
    hint: Hint
    at: str


class Frame(msgspec.Struct, omit_defaults=True):
    """A reply, in which at most one of `progress`, `answer` and `error` is set; a heartbeat has none."""

    progress: str | None = None
    answer: Any = None
    error: list[str] | None = None
    """Code and text."""
    family: str | None = None
    """The code of the error's class, where it is not the error's own."""


def document(version: str, prefix: str = "sika") -> Json:
    """Returns the document. It has the event types that this process knows, those of installed packages among them."""
    names = Subjects(prefix)
    types = dict(sorted(catalogue().items()))
    refs, schemas = _schemas(types)
    messages = {name: _event(name, refs[cls]) for name, cls in types.items()} | {"foreign": _foreign()}
    return {
        "asyncapi": VERSION,
        "info": {"title": "Sika", "version": version, "description": _text(names)},
        "defaultContentType": "application/json",
        "servers": {
            "nats": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "The real address is in `server.json` of the data directory, the token in `secrets`",
                "security": [{"$ref": "#/components/securitySchemes/token"}],
            }
        },
        "channels": _channels(names, messages, refs),
        "operations": _operations(),
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "userPassword", "description": "The token of `secrets/nats_token`; no user name"}
            },
        },
        "x-sika-streams": _streams(names),
        "x-sika-append": _append(names),
        "x-sika-labels": {"header": LABELS, "values": _LABELS.split(", ")},
    }


def _text(names: Subjects) -> str:
    text = (Path(__file__).parent / "asyncapi.md").read_text(encoding="utf-8")
    return text.replace("<prefix>", names.prefix).replace("<stream>", names.stream("log"))


def _streams(names: Subjects) -> Json:
    streams: Json = {
        plane: {key: config[key] for key in ("name", "subjects", "storage")}
        for plane, config in stream_configs(names).items()
    }
    return {**streams, "blobs": {"bucket": names.blobs, "name": names.stream("blobs")}}


def _append(names: Subjects) -> Json:
    return {
        "stream": names.stream("log"),
        "guard": "Nats-Expected-Last-Subject-Sequence",
        "messageId": "Nats-Msg-Id",
        "type": "Sika-Type",
        "conflict": [10071, 10164],
        "noMessage": 10037,
        "maximumBytes": INLINE_BYTES,
        "foreignTypes": FOREIGN,
        "answered": {"actor": "the actor's name", "cause": "the id of the handled event"},
    }


# ── channels and operations ─────────────────────────────────────────────────────────────────────────────────────────


def _channels(names: Subjects, events: Json, refs: Mapping[Any, Json]) -> Json:
    def of(address: str, text: str, messages: Json) -> Json:
        used = re.findall(r"\{(\w+)\}", address)
        parameters = {name: {"description": _PARAMETERS[name]} for name in used}
        return {"address": address, "description": text, "parameters": parameters, "messages": messages}

    def single(kind: type, text: str) -> Json:
        name = kind.__name__
        return {name: {"name": name, "summary": text, "payload": refs[kind]}}

    thing, actor = Aggregate("{kind}", "{id}"), "{actor}"
    live = {"live": {"name": "live", "headers": _live_headers(), "payload": {"type": "object"}}}
    channels: Json = {
        "log": of(names.log(thing), "The facts, for ever: one subject for each aggregate", events),
        "live": of(names.live(thing), "The same bodies as they are stored, without acknowledgement", live),
        "previews": of(
            names.tok("{run}"),
            "Text while it is made: may be lost, and is repeated by the fact that follows",
            single(Preview, "A piece of a message") | single(Progress, "Output of a tool at work"),
        ),
        "wakeups": of(names.cmd(actor, thing), "The work queue of actors", single(Hint, "The event to look at")),
        "timers": of(names.timer(actor, thing, "{key}"), "Wake-ups of the future", {"timer": _timer()}),
        "requests": of(
            names.call(actor),
            "Questions to an actor, which change nothing in the log",
            {"request": {"name": "request", "payload": {"type": "object"}}},
        ),
        "replies": {
            "address": None,
            "description": "The inbox of a request",
            "messages": single(Frame, "Progress, a heartbeat, the answer, or an error"),
        },
        "deadLetters": of(names.dlq(actor, thing), "Kept for 30 days, for people", single(DeadLetter, "Why not")),
    }
    for channel in channels.values():
        if not channel.get("parameters"):
            channel.pop("parameters", None)
    return channels


def _operations() -> Json:
    def of(action: str, channel: str, text: str, messages: Sequence[str] = ()) -> Json:
        operation: Json = {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": text}
        if messages:
            operation["messages"] = [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages]
        return operation

    own = [str(cls.__struct_config__.tag) for cls in APPENDED]
    return {
        "read": of("receive", "log", "Read events with a durable consumer"),
        "append": of("send", "log", "Append, guarded, once for each cause", [*own, "foreign"]),
        "follow": of("receive", "live", "Hear events as they land; what is missed is read from the log"),
        "preview": of("receive", "previews", "Show text while it is made"),
        "beWoken": of("receive", "wakeups", "Handle timers, and dead letters sent again"),
        "wake": of("send", "wakeups", "Wake an actor"),
        "schedule": of("send", "timers", "Be woken at a time; survives restarts"),
        "ask": {
            **of("send", "requests", "Ask an actor"),
            "reply": {"channel": {"$ref": "#/channels/replies"}},
        },
        "bury": of("send", "deadLetters", "Give up on an event, with the reason"),
    }


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _event(name: str, ref: Json) -> Json:
    headers: Json = {
        "Nats-Msg-Id": {**_STRING, "description": "The `id` of the event"},
        "Sika-Type": {"const": name},
        "Nats-Expected-Last-Subject-Sequence": {**_SEQUENCE, "description": "The guard; absent within a batch"},
        LABELS: {**_STRING, "description": f"Of {_LABELS}, joined by commas"},
        TRACEPARENT: {**_STRING, "description": "W3C Trace Context"},
    }
    return {
        "name": name,
        "headers": {"type": "object", "properties": headers, "required": ["Nats-Msg-Id", "Sika-Type"]},
        "payload": {"allOf": [{"$ref": _REF.format(name="Envelope")}, ref]},
    }


def _foreign() -> Json:
    envelope = {"$ref": _REF.format(name="Envelope")}
    kind: Json = {"type": "object", "properties": {"type": {"type": "string", "pattern": FOREIGN}}}
    message = _event("x.vendor.what_happened", kind)
    message["headers"]["properties"]["Sika-Type"] = {"type": "string", "pattern": FOREIGN}
    message |= {"summary": "An event of another vendor, opaque to the server", "payload": {"allOf": [envelope, kind]}}
    message["examples"] = [{"name": "poem", "payload": _ENVELOPE | {"type": "x.acme.poem_written", "lines": 3}}]
    return message


_ENVELOPE: Json = {
    "id": "0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e0",
    "kind": "thread",
    "aggregate": "0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e1",
    "actor": "poet",
    "at": "2026-01-31T12:00:00.000000+00:00",
    "run": "0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e2",
    "cause": "0193f4b2-6f0a-7c66-9d8e-2a1f54c3b7e3",
}


def _live_headers() -> Json:
    properties: Json = {
        "Nats-Sequence": {**_SEQUENCE, "description": "The event's sequence in the stream"},
        "Nats-Last-Sequence": {**_SEQUENCE, "description": "That of the aggregate's event before; a gap is provable"},
        "Nats-Subject": {**_STRING, "description": "The subject in the log"},
    }
    return {"type": "object", "properties": properties, "required": ["Nats-Sequence", "Nats-Subject"]}


def _timer() -> Json:
    properties: Json = {
        "Nats-Schedule": {**_STRING, "pattern": "^@at "},
        "Nats-Schedule-Target": dict(_STRING),
        "Nats-Rollup": {"const": "sub"},
    }
    required = list(properties)
    properties[SET_AT] = {**_STRING, "description": "The sender's time (UTC, ISO 8601): fired if it has not come"}
    headers = {"type": "object", "properties": properties, "required": required}
    return {"name": "timer", "headers": headers, "payload": {"type": "object", "maxProperties": 0}}


def _schemas(types: Mapping[str, type[Event]]) -> tuple[dict[Any, Json], Json]:
    """Returns a reference for each type, and the schemas by name."""
    kinds: list[type] = [Envelope, *types.values(), Preview, Progress, Hint, Frame, DeadLetter]
    refs, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    for cls, ref in zip(kinds, refs, strict=True):
        schemas[ref["$ref"].rpartition("/")[2]].setdefault("title", cls.__name__)
    return dict(zip(kinds, refs, strict=True)), _draft7(dict(sorted(schemas.items())))


def _draft7(schema: Any) -> Any:
    """Returns a schema without OpenAPI's discriminators: those of AsyncAPI have another form."""
    if isinstance(schema, list):
        return [_draft7(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _draft7(value)
        for key, value in schema.items()
        if not (key == "discriminator" and isinstance(value, dict) and "propertyName" in value)
    }
