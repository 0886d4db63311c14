"""LangChain's `ChatOpenAI` for any OpenAI-compatible endpoint: with reasoning, and at lower cost for long threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import msgspec
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from openai.resources.chat.completions import AsyncCompletions
from pydantic import PrivateAttr, model_validator

from adapters.models import connections
from adapters.models.chunks import Chunk, read_lean
from adapters.models.requests import Completions

_WAYS = frozenset({"http_client", "http_async_client", "http_socket_options", "openai_proxy"})
"""Arguments about connections."""
CACHED_CHARACTERS = 32 << 20
"""Limit of the text of the messages whose wire form is cached."""
MESSAGE_CHARACTERS = 1000
"""Characters that a message counts for besides its text."""


class OpenAICompatible(ChatOpenAI):
    """`ChatOpenAI` on connections that all models share (see `connections`), and with these differences in chat
    completions; the Responses API is unchanged.

    Messages in wire form go by `extra_body`, which the SDK does not transform, at about 6 µs a part. A message is
    converted to wire form once, not once per request. A streamed request is encoded by msgspec, and its chunks are
    timed, without a task for each (see `requests`). The usual chunk of a stream is read without the SDK's models (see
    `chunks`). Reasoning in `reasoning_content` (DeepSeek and others) or `reasoning`
    (vLLM) is stored as `reasoning_content`, and a streamed refusal as `refusal`, as LangChain stores a whole one. A
    `function_call`, which older endpoints answer with, is a tool call.
    """

    _wires: _Wires = PrivateAttr(default_factory=lambda: _Wires())

    @model_validator(mode="before")
    @classmethod
    def _connect(cls, arguments: Any) -> Any:
        if isinstance(arguments, dict) and not os.environ.get("OPENAI_PROXY") and _WAYS.isdisjoint(arguments):
            return {**arguments, "http_async_client": connections.shared(), "http_socket_options": ()}
        return arguments

    @model_validator(mode="after")
    def _read_lean(self) -> Self:
        if self.root_async_client is not None:
            read_lean(self.root_async_client)
        return self

    @model_validator(mode="after")
    def _send_lean(self) -> Self:
        if isinstance(self.async_client, AsyncCompletions):
            self.async_client = Completions(self.async_client)
        return self

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        if self._use_responses_api({**self._default_params, **kwargs}):
            return super()._get_request_payload(input_, stop=stop, **kwargs)
        payload: dict[str, Any] = super()._get_request_payload([], stop=stop, **kwargs)
        messages = self._convert_input(input_).to_messages()
        wires = self._wires.of(messages, self._convert)
        if "response_format" in kwargs:  # the SDK transforms such a request as a whole
            return payload | {"messages": wires}
        ready: dict[str, Any] = {"messages": wires}
        if "tools" in payload:
            ready["tools"] = payload.pop("tools")
        return payload | {"messages": [], "extra_body": {**(payload.get("extra_body") or {}), **ready}}

    def _convert(self, message: BaseMessage) -> dict[str, Any]:
        """Returns the message in wire form."""
        [wire] = super()._get_request_payload([message])["messages"]
        if isinstance(message, ToolMessage) and isinstance(message.content, list) and _is_marked(message.content):
            wire["content"] = message.content
        return cast(dict[str, Any], wire)

    def _extras(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the `additional_kwargs` for fields of a delta or a message that LangChain drops."""
        fields = {"reasoning_content": delta.get("reasoning_content") or delta.get("reasoning")}
        fields["refusal"] = delta.get("refusal")
        return {name: text for name, text in fields.items() if text}

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        choices = response["choices"] if isinstance(response, dict) else response.choices
        for generation, choice in zip(result.generations, choices, strict=False):
            if not isinstance(choice, dict):
                choice = choice.model_dump(exclude={"message": {"parsed"}}, warnings=False)
            generation.message.additional_kwargs.update(self._extras(choice["message"]))
            _call_tool(generation.message)
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: Any, default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        if type(chunk) is Chunk:
            if default_chunk_class is AIMessageChunk and chunk.usage is None and chunk.choices:
                return self._generation(chunk, base_generation_info)
            chunk = msgspec.to_builtins(chunk)
        elif chunk.get("choices"):
            chunk = {**chunk, "choices": [_with_tool_call(choice) for choice in chunk["choices"]]}
        generation = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        if generation is None or not isinstance(generation.message, AIMessageChunk):
            return generation
        choices = chunk.get("choices") or [{}]
        generation.message.additional_kwargs.update(self._extras(choices[0].get("delta") or {}))
        return generation

    def _generation(self, chunk: Chunk, base: dict[str, Any] | None) -> ChatGenerationChunk:
        """Returns the same as `super()._convert_chunk_to_generation_chunk`."""
        choice, delta = chunk.choices[0], chunk.choices[0].delta
        info = dict(base or {})
        if choice.finish_reason:
            fields = {"model_name": chunk.model, "system_fingerprint": chunk.system_fingerprint}
            fields |= {"finish_reason": choice.finish_reason, "service_tier": chunk.service_tier}
            info.update((name, value) for name, value in fields.items() if value)
        metadata = {"model_provider": "openai"}
        if self.output_version == "v1":
            metadata["output_version"] = "v1"
        calls = [
            tool_call_chunk(name=call.function.name, args=call.function.arguments, id=call.id, index=call.index)
            for call in delta.tool_calls or ()
        ]
        names = ("reasoning_content", "reasoning", "refusal")
        extras = {name: text for name in names if (text := getattr(delta, name))}
        message = AIMessageChunk(
            content=delta.content or "",
            additional_kwargs=self._extras(extras) if extras else {},
            response_metadata=metadata,
            tool_call_chunks=calls,
        )
        return ChatGenerationChunk(message=message, generation_info=info or None)


def _is_marked(content: list[Any]) -> bool:
    """Tells whether a block is marked for a prompt cache: LangChain drops the mark in results of tools."""
    return any(isinstance(block, dict) and "cache_control" in block for block in content)


def _with_tool_call(choice: dict[str, Any]) -> dict[str, Any]:
    """Returns the choice of a chunk with its `function_call` as a tool call; the run gives that an id."""
    delta = choice.get("delta") or {}
    if not isinstance(function := delta.get("function_call"), dict) or delta.get("tool_calls"):
        return choice
    call = {"index": 0, "id": None, "function": function}
    return {**choice, "delta": {**delta, "function_call": None, "tool_calls": [call]}}


def _call_tool(message: BaseMessage) -> None:
    """Makes the `function_call` of a whole answer its tool call."""
    if not isinstance(message, AIMessage) or message.tool_calls or message.invalid_tool_calls:
        return
    if function := message.additional_kwargs.pop("function_call", None):
        call = {"id": None, "function": {"name": "", "arguments": "", **function}}
        try:
            message.tool_calls = [cast(ToolCall, parse_tool_call(call))]
        except (OutputParserException, TypeError) as error:
            message.invalid_tool_calls = [make_invalid_tool_call(call, str(error))]


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
