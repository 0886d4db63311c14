"""A model server that answers from a recording, and one that makes a recording (OpenAI's chat completions)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from adapters.programs_only import programs_only
from core.config.redaction import redactor
from core.errors import Invalid
from core.events import Json
from core.replay.exchanges import Answer, Mismatch, Recording, Turn, conversation_of, to_line
from core.replay.exports.format import ExchangeLine

BODY_BYTES = 32 << 20
"""Limit of a request."""
ANSWER_BYTES = 64 << 20
"""Limit of an answer of the model that is recorded."""
MODEL_SECONDS = 600.0
"""Timeout of an answer of the model that is recorded."""
PIECE = 24
"""Characters of a streamed piece."""
PATHS = ("/v1/chat/completions", "/chat/completions")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Keep = Callable[[ExchangeLine], Awaitable[None]]
"""Called with each exchange of a new recording."""


@asynccontextmanager
async def serving(handler: Handler, host: str, port: int) -> AsyncIterator[str]:
    """Serves until the block ends; yields the base URL of the models. Raises `Invalid` if the port is taken."""
    app = web.Application(client_max_size=BODY_BYTES, middlewares=[programs_only()])
    app.add_routes([web.post(path, handler) for path in PATHS])
    app.add_routes([web.get(path, _models) for path in ("/v1/models", "/models")])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise Invalid(f"{host}:{port}: {error.strerror}") from error
        yield f"http://{host}:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def answering(recording: Recording) -> Handler:
    """Returns a handler that answers from a recording: 409 with the nearest difference if it has no such exchange."""

    async def handle(request: web.Request, body: Json, conversation: list[Turn]) -> web.StreamResponse:
        answer = recording.answer(conversation)
        if isinstance(answer, Mismatch):
            text = f"the recording has no such conversation; {answer.place} differs at message {answer.message}"
            return _error(409, text, "recording_mismatch", msgspec.to_builtins(answer))
        model = str(body.get("model", "recorded"))
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return await _stream(request, model, answer, usage)
        return web.json_response(_completion(model, answer))

    return _handler(handle)


def recording(upstream: str, keep: Keep) -> Handler:
    """Returns a handler that asks the model at `upstream` (the URL before `/chat/completions`), and keeps exchanges.

    The client's own authorization is passed on, and is not kept. Secrets in force are redacted in what is kept.
    """

    async def handle(request: web.Request, body: Json, conversation: list[Turn]) -> web.StreamResponse:
        headers = {name: value for name in ("Authorization",) if (value := request.headers.get(name))}
        sent = {**body, "stream": False}
        sent.pop("stream_options", None)
        try:
            async with (
                ClientSession(timeout=ClientTimeout(total=MODEL_SECONDS)) as session,
                session.post(f"{upstream}/chat/completions", json=sent, headers=headers) as response,
            ):
                raw, status = await response.content.read(ANSWER_BYTES), response.status
        except (ClientError, TimeoutError, OSError) as error:
            return _error(502, redactor.text(f"the model does not answer: {type(error).__name__}"), "upstream")
        if status != 200:
            return web.Response(status=status, body=raw, content_type="application/json")
        try:
            answer = _answer(_body(raw))
        except Invalid as error:
            return _error(502, f"the model's answer: {error}", "upstream")
        await keep(to_line([redactor.struct(one) for one in conversation], redactor.struct(answer)))
        model = str(body.get("model", "recorded"))
        if body.get("stream"):
            return await _stream(request, model, answer, bool((body.get("stream_options") or {}).get("include_usage")))
        return web.Response(body=raw, content_type="application/json")

    return _handler(handle)


def _handler(complete: Callable[[web.Request, Json, list[Turn]], Awaitable[web.StreamResponse]]) -> Handler:
    """Returns a handler that reads requests for `complete`: 400 for one that has no conversation."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = _body(await request.read())
            conversation = conversation_of(body.get("messages"))
        except Invalid as error:
            return _error(400, str(error), "invalid_request_error")
        return await complete(request, body, conversation)

    return handle


def _body(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Invalid(f"not a JSON object: {error}") from error


def _answer(body: Json) -> Answer:
    """Returns the answer of a completion. Raises `Invalid`."""
    try:
        message = body["choices"][0]["message"]
        calls = [
            (str(call["id"]), str(call["function"]["name"]), str(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        usage = {key: value for key, value in (body.get("usage") or {}).items() if isinstance(value, int)}
        return Answer(str(message.get("content") or ""), calls, usage)
    except (LookupError, TypeError, AttributeError) as error:
        raise Invalid(f"no chat completion: {error!r}") from error


async def _models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "recorded", "object": "model", "owned_by": "sika"}]})


def _error(status: int, text: str, kind: str, nearest: Json | None = None) -> web.Response:
    error: Json = {"message": text, "type": kind, "code": kind, **({"nearest": nearest} if nearest else {})}
    return web.json_response({"error": error}, status=status)


def _completion(model: str, answer: Answer) -> Json:
    calls = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        for identity, name, arguments in answer.calls
    ]
    message: Json = {"role": "assistant", "content": answer.text or None, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": _reason(answer)}
    return {**_head(model, "chat.completion"), "choices": [choice], "usage": answer.usage}


async def _stream(request: web.Request, model: str, answer: Answer, with_usage: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    head = _head(model, "chat.completion.chunk")
    for delta, reason in _deltas(answer):
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        await response.write(_frame({**head, "choices": [choice]}))
    if with_usage:
        await response.write(_frame({**head, "choices": [], "usage": answer.usage}))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _deltas(answer: Answer) -> Iterator[tuple[Json, str | None]]:
    """Yields the pieces of a streamed answer; the last one with the reason of its end."""
    yield {"role": "assistant", "content": ""}, None
    for start in range(0, len(answer.text), PIECE):
        yield {"content": answer.text[start : start + PIECE]}, None
    for index, (identity, name, arguments) in enumerate(answer.calls):
        function = {"name": name, "arguments": arguments}
        yield {"tool_calls": [{"index": index, "id": identity, "type": "function", "function": function}]}, None
    yield {}, _reason(answer)


def _reason(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _head(model: str, kind: str) -> Json:
    return {"id": "chatcmpl-recorded", "object": kind, "created": int(time.time()), "model": model}


def _frame(chunk: Json) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
