"""What may come in an event of a provider's stream, and what it becomes: the table of forms.

The usual chunk is decoded by msgspec into a `Chunk` at once. Everything else goes through `mended`, one row of the
table after the other, and ends as the same `Chunk`, as nothing, or as a `Refused` with the provider's words:

| in the event | becomes |
|---|---|
| `error` of any form, `event: error`, `object: error`, `success: false`, `base_resp` with a code | `Refused` |
| no `choices`, but a message under any usual key | `Refused` |
| no `choices`, no message (a ping, filter results) | nothing; its `usage`, `x_groq.usage` count |
| several objects in one event, a list of chunks | one chunk each |
| `choices` of another index than 0 | left out: one answer was asked for |
| `message` instead of `delta` | the delta, unless deltas came before |
| `content` in parts | its texts; parts of thinking are reasoning |
| `tool_calls` as one object, or with null in it | a list without null |
| a call without `function`; `function_call` | a call |
| `arguments` as an object | its JSON |
| `id`, `index` of another type | a text, a number |
| `finish_reason` that is empty or `"null"` | none |
| counts of `usage` as floats, texts or null | numbers; what is no number is left out |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

QUOTED = 500
"""Characters of an event that are quoted in an error."""
_WORDS = ("msg", "message", "detail", "error_msg", "error_message", "errors", "title", "description")
"""Keys of a message in an event without choices."""


class Refused(Exception):
    """The provider sent an error, in whatever form. `body` is its JSON, or its text."""

    def __init__(self, body: Any) -> None:
        super().__init__(text_in(body) or str(body)[:QUOTED])
        self.body = body


class Garbled(Exception):
    """What came is no event of a stream of chat completions."""


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    function: Function
    index: int | None = None
    id: str | None = None
    extra_content: Any = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    function_call: None = None


class Choice(msgspec.Struct):
    """Without a default of `delta`: a choice with a `message` is not the usual one."""

    delta: Delta
    finish_reason: str | None = None
    index: int | None = None
    message: None = None


class Chunk(msgspec.Struct):
    """The usual chunk. Fields of type `None` must be absent in it."""

    choices: list[Choice]
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    usage: dict[str, Any] | None = None
    x_groq: None = None
    error: None = None
    base_resp: None = None


_decode = msgspec.json.Decoder(Chunk).decode


def read(data: bytes, *, failed: bool = False, fresh: bool = True) -> Iterable[Chunk]:
    """Returns the chunks of an event's data. `failed`: the event is called an error. `fresh`: no delta came before.

    Raises `Refused` and `Garbled`, also while one goes through them.
    """
    if not failed:
        try:
            return (_decode(data),)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    return _unusual(data, failed=failed, fresh=fresh)


def _unusual(data: bytes, *, failed: bool, fresh: bool) -> Iterator[Chunk]:
    for value in _values(data):
        if failed:
            raise Refused(value)
        yield from mended(value, fresh=fresh)


def _values(data: bytes) -> Iterator[Any]:
    """Yields the JSON values of an event: one, or one a line."""
    text = data.decode("utf-8", "replace").strip()
    if not text:
        return
    try:
        values = [json.loads(text, strict=False)]
    except (ValueError, RecursionError):
        values = [_value(line) for line in text.splitlines() if line.strip()]
    yield from values


def _value(line: str) -> Any:
    try:
        return json.loads(line, strict=False)
    except (ValueError, RecursionError):
        raise Garbled(f"The stream has an event that is not JSON: {line[:QUOTED]}") from None


def mended(value: Any, *, fresh: bool = True) -> Iterator[Chunk]:
    """Yields the chunks of a decoded event that is not the usual one. Raises `Refused` and `Garbled`."""
    if value is None:
        return
    if isinstance(value, list):
        for part in value:
            yield from mended(part, fresh=fresh)
        return
    if not isinstance(value, Mapping):
        raise Garbled(f"The stream has an event that is no object: {str(value)[:QUOTED]}")
    if (error := _error(value)) is not None:
        raise Refused(error)
    choices = value.get("choices")
    choice = _choice(choices if isinstance(choices, list) else [choices], fresh=fresh)
    groq = value.get("x_groq")
    usage = value.get("usage") or (groq.get("usage") if isinstance(groq, Mapping) else None)
    yield Chunk(
        choices=[choice] if choice else [],
        model=_text(value.get("model")),
        system_fingerprint=_text(value.get("system_fingerprint")),
        service_tier=_text(value.get("service_tier")),
        usage=dict(usage) if isinstance(usage, Mapping) else None,
    )


def _error(value: Mapping[str, Any]) -> Any:
    """Returns the error in an event; None if there is none."""
    if value.get("error"):
        return value["error"] if isinstance(value["error"], Mapping) and "choices" in value else value
    status = value.get("base_resp")
    if isinstance(status, Mapping) and status.get("status_code"):
        return {"code": status["status_code"], "message": status.get("status_msg")}
    if value.get("choices"):
        return None
    named = value.get("success") is False or "error" in (value.get("object"), value.get("type"))
    return value if named or (not value.get("usage") and any(_filled(value.get(name)) for name in _WORDS)) else None


def _filled(value: Any) -> bool:
    return isinstance(value, str | Mapping | list) and bool(value)


def _choice(choices: list[Any], *, fresh: bool) -> Choice | None:
    """Returns the first answer of several; None if none of it came."""
    mine = (choice for choice in choices if isinstance(choice, Mapping) and not _number(choice.get("index")))
    choice = next(mine, None)
    if choice is None:
        return None
    delta = choice.get("delta")
    if not delta and fresh:
        delta = choice.get("message") or ({"content": choice["text"]} if choice.get("text") else None)
    reason = _text(choice.get("finish_reason"))
    return Choice(_delta(delta) if isinstance(delta, Mapping) else Delta(), None if reason == "null" else reason)


def _delta(delta: Mapping[str, Any]) -> Delta:
    content, thoughts = _content(delta.get("content"))
    calls = delta.get("tool_calls")
    calls = calls if isinstance(calls, list) else [calls]
    if not any(calls) and isinstance(function := delta.get("function_call"), Mapping):
        calls = [{"index": 0, "function": function}]
    return Delta(
        content=content,
        reasoning_content=delta.get("reasoning_content") or thoughts or None,
        reasoning=delta.get("reasoning"),
        refusal=_text(delta.get("refusal")),
        tool_calls=[_call(call) for call in calls if isinstance(call, Mapping)],
    )


def _content(content: Any) -> tuple[str, str]:
    """Returns the text and the thoughts of a content of any form."""
    if isinstance(content, str):
        return content, ""
    texts, thoughts = [], []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, Mapping) and part.get("thinking"):
            thoughts.append(text_of(part["thinking"]))
        elif part is not None:
            texts.append(text_of(part))
    return "".join(texts), "".join(thoughts)


def text_of(value: Any) -> str:
    """Returns the text in a value of any form."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        names = ("text", "content", "reasoning", "summary")
        return next((text_of(value[name]) for name in names if value.get(name)), "")
    return "".join(text_of(part) for part in value) if isinstance(value, list) else ""


def _call(call: Mapping[str, Any]) -> Call:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else call
    arguments = function.get("arguments", function.get("parameters"))
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    index = call.get("index")
    return Call(
        Function(_text(function.get("name")), arguments),
        None if index is None else _number(index),
        _text(call.get("id")),
        call.get("extra_content"),
    )


def _text(value: Any) -> str | None:
    """Returns an id, a name or a reason as a text."""
    if isinstance(value, str):
        return value
    return None if value is None or isinstance(value, bool | list | Mapping) else str(value)


def _number(value: Any) -> int | None:
    """Returns a count or an index as a number; None if it is none."""
    try:
        return None if isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a usage with numbers only, at any depth."""
    numbers: dict[str, Any] = {}
    for name, value in usage.items():
        if isinstance(value, Mapping):
            numbers[name] = counts(value)
        elif (number := _number(value)) is not None:
            numbers[name] = max(number, 0)
    return numbers


def text_in(body: Any) -> str:
    """Returns the message in an error of any form; empty if there is none."""
    if isinstance(body, str):
        return body[:QUOTED]
    if isinstance(body, list):
        return next((text for part in body if (text := text_in(part))), "")
    if not isinstance(body, Mapping):
        return ""
    return next((text for name in ("error", *_WORDS) if (text := text_in(body.get(name)))), "")
