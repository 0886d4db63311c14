"""LangChain's `ChatOpenAI` for any OpenAI-compatible endpoint: keeps reasoning, sends and reads long things cheaply."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import msgspec
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr, model_validator

from adapters.models import connections
from adapters.models.chunks import Chunk, read_lean

_WAYS = frozenset({"http_client", "http_async_client", "http_socket_options", "openai_proxy"})
"""Arguments that say how to connect."""
KEPT = 10_000
"""Messages whose wire form is remembered."""


class OpenAICompatible(ChatOpenAI):
    """`ChatOpenAI` on connections that all models share (see `connections`), and with four differences in chat
    completions; the Responses API is left alone.

    What is in wire form already goes by `extra_body`, which the SDK takes as it is; otherwise it walks through
    every part of every request, at about 6 µs a part. A message is brought into wire form once, not once per
    request: on a thread of 2 000 messages both together are the difference between 100 ms and 10 ms before a
    request is sent. The usual chunk of a stream is read without the SDK's models (see `chunks`). And what an
    endpoint says in `reasoning_content` (DeepSeek and others) or `reasoning` (vLLM) is kept, as `reasoning_content`.
    """

    _wires: _Wires = PrivateAttr(default_factory=lambda: _Wires())

    @model_validator(mode="before")
    @classmethod
    def _connect(cls, given: Any) -> Any:
        if isinstance(given, dict) and not os.environ.get("OPENAI_PROXY") and _WAYS.isdisjoint(given):
            return {**given, "http_async_client": connections.shared(), "http_socket_options": ()}
        return given

    @model_validator(mode="after")
    def _read_lean(self) -> Self:
        if self.root_async_client is not None:
            read_lean(self.root_async_client)
        return self

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        if self._use_responses_api({**self._default_params, **kwargs}):
            return super()._get_request_payload(input_, stop=stop, **kwargs)
        payload: dict[str, Any] = super()._get_request_payload([], stop=stop, **kwargs)
        messages = self._convert_input(input_).to_messages()
        wires = self._wires.of(messages, self._convert)
        if "response_format" in kwargs:  # the SDK has work to do on such a request, and wants all of it
            return payload | {"messages": wires}
        ready: dict[str, Any] = {"messages": wires}
        if "tools" in payload:
            ready["tools"] = payload.pop("tools")
        return payload | {"messages": [], "extra_body": {**(payload.get("extra_body") or {}), **ready}}

    def _convert(self, message: BaseMessage) -> dict[str, Any]:
        """The message in wire form."""
        [wire] = super()._get_request_payload([message])["messages"]
        return cast(dict[str, Any], wire)

    def _kept(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """What a message keeps, in `additional_kwargs`, of what LangChain drops of a delta or an answer."""
        for name in ("reasoning_content", "reasoning"):
            if text := said.get(name):
                return {"reasoning_content": text}
        return {}

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        choices = response["choices"] if isinstance(response, dict) else response.choices
        for generation, choice in zip(result.generations, choices, strict=False):
            if not isinstance(choice, dict):
                choice = choice.model_dump(exclude={"message": {"parsed"}}, warnings=False)
            generation.message.additional_kwargs.update(self._kept(choice["message"]))
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: Any, default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        if type(chunk) is Chunk:
            if default_chunk_class is AIMessageChunk and chunk.usage is None and chunk.choices:
                return self._generation(chunk, base_generation_info)
            chunk = msgspec.to_builtins(chunk)
        generation = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        if generation is None or not isinstance(generation.message, AIMessageChunk):
            return generation
        choices = chunk.get("choices") or [{}]
        generation.message.additional_kwargs.update(self._kept(choices[0].get("delta") or {}))
        return generation

    def _generation(self, chunk: Chunk, base: dict[str, Any] | None) -> ChatGenerationChunk:
        """The same as `super()._convert_chunk_to_generation_chunk` makes of it."""
        choice, delta = chunk.choices[0], chunk.choices[0].delta
        info = dict(base or {})
        if choice.finish_reason:
            about = {"model_name": chunk.model, "system_fingerprint": chunk.system_fingerprint}
            about |= {"finish_reason": choice.finish_reason, "service_tier": chunk.service_tier}
            info.update((name, value) for name, value in about.items() if value)
        metadata = {"model_provider": "openai"}
        if self.output_version == "v1":
            metadata["output_version"] = "v1"
        calls = [
            tool_call_chunk(name=call.function.name, args=call.function.arguments, id=call.id, index=call.index)
            for call in delta.tool_calls or ()
        ]
        reasons = {"reasoning_content": delta.reasoning_content, "reasoning": delta.reasoning}
        message = AIMessageChunk(
            content=delta.content or "",
            additional_kwargs=self._kept(reasons) if any(reasons.values()) else {},
            response_metadata=metadata,
            tool_call_chunks=calls,
        )
        return ChatGenerationChunk(message=message, generation_info=info or None)


class _Wires:
    """Wire forms by message object. One whose parts were replaced since is another message."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[BaseMessage, Any, Any, Any, dict[str, Any]]] = {}

    def of(
        self, messages: Sequence[BaseMessage], convert: Callable[[BaseMessage], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """A loop without calls for what is known: it runs over the whole conversation for each request."""
        known, wires = self._known, []
        for message in messages:
            calls = message.tool_calls if type(message) is AIMessage else None
            content, extras = message.content, message.additional_kwargs
            found = known.get(id(message))
            if not (found and found[0] is message and found[1] is content and found[2] is calls and found[3] is extras):
                found = known[id(message)] = (message, content, calls, extras, convert(message))
            wires.append(found[4])
        while len(known) > KEPT:
            del known[next(iter(known))]
        return wires
