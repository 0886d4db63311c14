"""LangChain's `ChatOpenAI` for any OpenAI-compatible endpoint: keeps reasoning, sends long conversations cheaply."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI

_READY = ("messages", "tools")
"""Parts of a request that are plain JSON already."""
_REASONING = ("reasoning_content", "reasoning")
"""Names that endpoints give to the reasoning in a delta (DeepSeek and others; vLLM)."""


class OpenAICompatible(ChatOpenAI):
    """`ChatOpenAI` with two differences in chat completions; the Responses API is left alone.

    The SDK walks through every part of a request to bring it into wire form, about 6 µs for each, again for each
    request; what is in wire form already goes by `extra_body`, which it takes as it is. And what an endpoint says in
    a delta's `reasoning_content` is kept.
    """

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        payload: dict[str, Any] = super()._get_request_payload(input_, stop=stop, **kwargs)
        if "messages" in payload and "response_format" not in payload:
            ready = {name: payload.pop(name) for name in _READY if name in payload}
            payload |= {"messages": [], "extra_body": {**(payload.get("extra_body") or {}), **ready}}
        return payload

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        generation = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        if generation is None or not isinstance(generation.message, AIMessageChunk):
            return generation
        choices = chunk.get("choices") or [{}]
        delta = choices[0].get("delta") or {}
        for name in _REASONING:
            if text := delta.get(name):
                generation.message.additional_kwargs["reasoning_content"] = text
                break
        return generation
