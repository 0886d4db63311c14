"""LangChain's `ChatOpenAI` for any OpenAI-compatible endpoint: with reasoning, and at lower cost for long threads."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, NamedTuple, cast

import httpx2
import msgspec
import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, InvalidToolCall, ToolCall, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI, StreamChunkTimeoutError
from openai import AsyncStream
from openai._base_client import make_request_options
from pydantic import PrivateAttr, SecretStr, model_validator

from adapters.models import connections
from adapters.models.chunks import Delta, Garbled, Refused
from adapters.models.reader import Empty, Reader
from core.ports.models import CallPiece, Piece

_WAYS = frozenset({"http_client", "http_async_client", "http_socket_options", "openai_proxy"})
"""Arguments about connections."""
CACHED_CHARACTERS = 32 << 20
"""Limit of the text of the messages whose wire form is cached."""
MESSAGE_CHARACTERS = 1000
"""Characters that a message counts for besides its text."""
TURN_EVENTS = 200
"""Events that are taken in a row, should they be there already; then other tasks have their turn."""
NOTHING = "The model's server answered with an empty body."


class OpenAICompatible(ChatOpenAI):
    """`ChatOpenAI` on connections that all models share (see `connections`), and with these differences in chat
    completions; the Responses API and requests with a `response_format` are unchanged.

    Messages in wire form are encoded as they are: the SDK transforms each part by its type, at about 6 µs a part. A
    message is converted to wire form once, not once per request. Answers are read by our own `reader`, whole ones, too.
    Reasoning is stored as `reasoning_content`, and a refusal as `refusal`.
    """

    _wires: _Wires = PrivateAttr(default_factory=lambda: _Wires())
    _pattern: _Pattern | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _connect(cls, arguments: Any) -> Any:
        if isinstance(arguments, dict) and not os.environ.get("OPENAI_PROXY") and _WAYS.isdisjoint(arguments):
            return {**arguments, "http_async_client": connections.shared(), "http_socket_options": ()}
        return arguments

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        if self._use_responses_api({**self._default_params, **kwargs}):
            return super()._get_request_payload(input_, stop=stop, **kwargs)
        payload: dict[str, Any] = super()._get_request_payload([], stop=stop, **kwargs)
        messages = self._convert_input(input_).to_messages()
        return payload | {"messages": self._wires.of(messages, self._convert)}

    def _is_plain(self, kwargs: Mapping[str, Any]) -> bool:
        """Tells whether the request is one for a chat completion that is read here."""
        if "response_format" in kwargs or self.include_response_headers or self._uses_gateway:
            return False
        return not self._use_responses_api({**self._default_params, **kwargs})

    def _convert(self, message: BaseMessage) -> dict[str, Any]:
        """Returns the message in wire form."""
        [wire] = super()._get_request_payload([message])["messages"]
        if isinstance(message, ToolMessage) and isinstance(message.content, list) and _is_marked(message.content):
            wire["content"] = message.content
        return cast(dict[str, Any], wire)

    async def _post(self, payload: Mapping[str, Any]) -> httpx2.Response:
        """Sends a request. Returns the response, whose body is not read.

        The SDK builds the first request. Later ones are made of that one, as they differ in their bodies only: building
        costs as much as sending.
        """
        fields = {name: value for name, value in payload.items() if name not in _OPTIONS}
        content = msgspec.json.encode({**fields, **(payload.get("extra_body") or {})}, enc_hook=_encoded)
        extras = {name: payload[name] for name in _OPTIONS if name in payload and name != "extra_body"}
        client = cast(openai.AsyncOpenAI, self.async_client._client)
        if extras or client.max_retries or not isinstance(self.openai_api_key, SecretStr):
            return await _first(client, content, extras)
        if self._pattern is not None and self._pattern.client is client:
            return await self._pattern.send(content)
        response = await _first(client, content, {})
        if not response.history:
            self._pattern = _Pattern.of(client, response.request)
        return response

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def in_pieces(self, settings: Mapping[str, Any]) -> bool:
        """Tells whether `pieces` can answer (`core.ports.models.Pieces`)."""
        return self.output_version != "v1" and self._is_plain(settings)

    def pieces(self, messages: Sequence[Any], *, stop: list[str] | None = None, **kwargs: Any) -> AsyncGenerator[Piece]:
        """Yields the pieces of an answer (`core.ports.models.Pieces`)."""
        if self._should_stream_usage(kwargs.pop("stream_usage", None), **kwargs):
            kwargs["stream_options"] = {"include_usage": True}
        return self._exchange(self._get_request_payload(messages, stop=stop, **{**kwargs, "stream": True}))

    async def _exchange(self, payload: Mapping[str, Any]) -> AsyncGenerator[Piece]:
        """Sends a request and reads its answer. One to a streamed request that is empty is asked for once more, whole:
        some servers refuse what is too long so, and say why only then.
        """
        try:
            async with aclosing(self._answer(payload)) as pieces:
                async for piece in pieces:
                    yield piece
        except Empty:
            pass
        else:
            return
        whole = {name: value for name, value in payload.items() if name != "stream_options"} | {"stream": False}
        try:
            async with aclosing(self._answer(whole)) as pieces:
                async for piece in pieces:
                    yield piece
        except Empty as error:
            raise _broken(NOTHING, None) from error

    async def _answer(self, payload: Mapping[str, Any]) -> AsyncGenerator[Piece]:
        response = await self._post(payload)
        reader, turn = Reader(self._extras), TURN_EVENTS
        with errors_of_the_sdk(response):
            async with aclosing(self._timed(response, reader)) as blocks:
                async for block in blocks:
                    for piece in joined(reader.feed(block)):
                        yield piece
                        if reader.events > turn:
                            await asyncio.sleep(0)
                            turn = reader.events + TURN_EVENTS
            for piece in reader.end():
                yield piece

    async def _timed(self, response: httpx2.Response, reader: Reader) -> AsyncGenerator[bytes]:
        """Yields the body. Raises `StreamChunkTimeoutError` if no event ends within `stream_chunk_timeout`: comments,
        which keep a connection open, are none.
        """
        limit, clock = self.stream_chunk_timeout or None, asyncio.get_running_loop().time
        since, events = clock(), 0
        try:
            async with aclosing(connections.blocks(response)) as body:
                while True:
                    if reader.events != events:
                        since, events = clock(), reader.events
                    try:
                        async with asyncio.timeout_at(since + limit if limit else None) as deadline:
                            block = await anext(body, b"")
                    except TimeoutError as error:
                        if not deadline.expired():
                            raise
                        raise StreamChunkTimeoutError(
                            limit or 0, model_name=self.model_name, chunks_received=events
                        ) from error
                    if not block:
                        return
                    yield block
        finally:
            await response.aclose()

    def _extras(self, delta: Delta) -> Mapping[str, Any]:
        """Returns the `additional_kwargs` of a delta, but for its reasoning."""
        return {"refusal": delta.refusal} if delta.refusal else {}

    # ── LangChain's ways ────────────────────────────────────────────────────────────────────────────────────────────

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        plain = self._is_plain(kwargs)
        stream = self._plain_stream(*args, **kwargs) if plain else super()._astream(*args, **kwargs)
        async with aclosing(cast(Any, stream)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _plain_stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with aclosing(self.pieces(messages, stop=stop, **kwargs)) as pieces:
            async for piece in pieces:
                chunk = ChatGenerationChunk(message=_chunk(piece), generation_info=dict(piece.about) or None)
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if not self._is_plain(kwargs):
            return await super()._agenerate(messages, stop, run_manager, **kwargs)
        payload = self._get_request_payload(messages, stop=stop, **{**kwargs, "stream": False})
        pieces = [piece async for piece in self._exchange(payload)]
        return ChatResult(generations=[ChatGeneration(message=_message(pieces))])


_OPTIONS = ("extra_headers", "extra_query", "extra_body", "timeout")
"""Arguments of the SDK's methods that are no fields of the request."""


async def _first(client: openai.AsyncOpenAI, content: bytes, extras: Mapping[str, Any]) -> httpx2.Response:
    """Sends a request that the SDK builds."""
    response: Any = await client.post(
        "/chat/completions",
        content=content,
        options=make_request_options(**extras, security={"bearer_auth": True}),
        cast_to=httpx2.Response,
        stream=True,
        stream_cls=AsyncStream[Any],
    )
    return cast(httpx2.Response, response)


class _Pattern(NamedTuple):
    """A request that the SDK has built, but for its body."""

    client: openai.AsyncOpenAI
    method: str
    url: httpx2.URL
    headers: Sequence[tuple[bytes, bytes]]
    timeout: Mapping[str, float | None]

    @classmethod
    def of(cls, client: openai.AsyncOpenAI, request: httpx2.Request) -> _Pattern:
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        return cls(client, request.method, request.url, headers, request.extensions.get("timeout", {}))

    async def send(self, content: bytes) -> httpx2.Response:
        """Sends a request with another body, past what the SDK's HTTP client does with each: its headers are those of
        the first. Its errors are those of the SDK.
        """
        extensions = {"timeout": self.timeout}
        request = httpx2.Request(self.method, self.url, headers=self.headers, content=content, extensions=extensions)
        try:
            response = await self.client._client._transport_for_url(self.url).handle_async_request(request)
        except httpx2.TimeoutException as error:
            raise openai.APITimeoutError(request=request) from error
        except (httpx2.RequestError, ssl.SSLError) as error:
            raise openai.APIConnectionError(request=request) from error
        if response.is_success:
            return response
        if response.has_redirect_location:
            await response.aclose()
            return await _first(self.client, content, {})
        await response.aread()
        raise self.client._make_status_error_from_response(response)


def _encoded(value: Any) -> Any:
    """Returns a value of a request that is no JSON: a model of pydantic."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"a request cannot have a {type(value).__name__}")


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yields pieces; neighbours with nothing but text, or nothing but reasoning, as one, as each costs the same on its
    way to clients. What came before an error comes before it.
    """
    waiting: Piece | None = None
    texts: list[str] = []
    try:
        for piece in pieces:
            plain = bool(piece.text) != bool(piece.reasoning) and not any(piece[2:])
            if waiting and not (plain and bool(waiting.text) == bool(piece.text)):
                whole, waiting, texts = _whole(waiting, texts), None, []
                yield whole
            if not plain:
                yield piece
                continue
            waiting = waiting or piece
            texts.append(piece.text or piece.reasoning)
    finally:
        if waiting:
            yield _whole(waiting, texts)


def _whole(first: Piece, texts: Sequence[str]) -> Piece:
    text = "".join(texts)
    return Piece(text) if first.text else Piece(reasoning=text)


@contextmanager
def errors_of_the_sdk(response: httpx2.Response) -> Iterator[None]:
    """Raises what went wrong with a body as the error that the SDK has for it."""
    request = response.request
    try:
        yield
    except Refused as error:
        inner = error.body.get("error") if isinstance(error.body, Mapping) else None
        raise openai.APIError(str(error), request, body=inner if isinstance(inner, Mapping) else error.body) from None
    except Garbled as error:
        raise _broken(str(error), request) from None
    except httpx2.TimeoutException as error:
        raise openai.APITimeoutError(request=request) from error
    except (httpx2.RequestError, httpx2.StreamError) as error:
        raise _broken("The connection broke before the answer was whole.", request) from error


def _broken(text: str, request: httpx2.Request | None) -> openai.APIConnectionError:
    return openai.APIConnectionError(message=text, request=cast(httpx2.Request, request))


def _chunk(piece: Piece) -> AIMessageChunk:
    calls = [
        tool_call_chunk(name=call.name or None, args=call.arguments, id=call.id or None, index=call.number)
        for call in piece.calls
    ]
    return AIMessageChunk(
        content=piece.text,
        additional_kwargs=_additional(piece),
        usage_metadata=cast(Any, piece.usage or None),
        tool_call_chunks=calls,
    )


def _additional(piece: Piece) -> dict[str, Any]:
    reasoning = {"reasoning_content": piece.reasoning} if piece.reasoning else {}
    return {**reasoning, **piece.extras}


def _message(pieces: Sequence[Piece]) -> AIMessage:
    """Returns a whole answer."""
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    extras: dict[str, Any] = {}
    for call in _joined(pieces):
        _parse(call, calls, invalid)
    for piece in pieces:
        for name, value in _additional(piece).items():
            extras[name] = extras.get(name, "") + value if isinstance(value, str) else value
    return AIMessage(
        content="".join(piece.text for piece in pieces),
        additional_kwargs=extras,
        response_metadata={name: value for piece in pieces for name, value in piece.about.items()},
        usage_metadata=cast(Any, next((piece.usage for piece in pieces if piece.usage), None)),
        tool_calls=calls,
        invalid_tool_calls=invalid,
    )


def _joined(pieces: Sequence[Piece]) -> list[CallPiece]:
    """Returns whole calls: a fragment without a name belongs to the call of its number, else to the last one."""
    calls: list[CallPiece] = []
    for fragment in (call for piece in pieces for call in piece.calls):
        places = [place for place, call in enumerate(calls) if fragment.number in (None, call.number)]
        if fragment.name or not places:
            calls.append(fragment)
        else:
            call = calls[places[-1]]
            calls[places[-1]] = call._replace(arguments=call.arguments + fragment.arguments)
    return calls


def _parse(piece: CallPiece, calls: list[ToolCall], invalid: list[InvalidToolCall]) -> None:
    raw = {"id": piece.id or None, "function": {"name": piece.name, "arguments": piece.arguments}}
    try:
        calls.append(cast(ToolCall, parse_tool_call(raw)))
    except (OutputParserException, TypeError) as error:
        invalid.append(make_invalid_tool_call(raw, str(error)))


def _is_marked(content: list[Any]) -> bool:
    """Tells whether a block is marked for a prompt cache: LangChain drops the mark in results of tools."""
    return any(isinstance(block, dict) and "cache_control" in block for block in content)


class _Wires:
    """Wire forms by message object. A message whose parts were replaced since is converted again."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[BaseMessage, Any, Any, Any, dict[str, Any], int]] = {}
        self._size = 0

    def of(
        self, messages: Sequence[BaseMessage], convert: Callable[[BaseMessage], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Returns the wire forms. Makes no call for a cached message, as it runs over the whole thread per request."""
        cache, wires = self._cache, []
        for message in messages:
            calls = message.tool_calls if type(message) is AIMessage else None
            content, extras = message.content, message.additional_kwargs
            entry = cache.get(id(message))
            if not (entry and entry[0] is message and entry[1] is content and entry[2] is calls and entry[3] is extras):
                entry = self._add(message, content, calls, extras, convert(message))
            wires.append(entry[4])
        while self._size > CACHED_CHARACTERS and cache:
            self._size -= cache.pop(next(iter(cache)))[5]
        return wires

    def _add(self, message: BaseMessage, content: Any, calls: Any, extras: Any, wire: dict[str, Any]) -> Any:
        outdated = self._cache.pop(id(message), None)
        size = MESSAGE_CHARACTERS + (len(content) if isinstance(content, str) else len(msgspec.json.encode(wire)))
        self._size += size - (outdated[5] if outdated else 0)
        entry = self._cache[id(message)] = (message, content, calls, extras, wire, size)
        return entry
