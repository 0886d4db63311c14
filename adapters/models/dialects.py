"""Dialects of endpoints that require fields back with their messages which LangChain's `ChatOpenAI` drops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.utils import secret_from_env
from pydantic import Field, SecretStr

from adapters.models.chunks import Delta
from adapters.models.openai_compatible import OpenAICompatible


class VLLM(OpenAICompatible):
    """vLLM: `reasoning` is stored unchanged and sent back, and as `reasoning_content` for other readers."""

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Returns the payload with `chat_template_kwargs.enable_thinking` for the older name `thinking`."""
        payload = super()._get_request_payload(input_, stop=stop, **kwargs)
        extra = payload.get("extra_body") or {}
        template = extra.get("chat_template_kwargs")
        if isinstance(template, Mapping) and "thinking" in template:
            others = {name: value for name, value in template.items() if name != "thinking"}
            renamed = {"enable_thinking": template["thinking"], **others}
            payload["extra_body"] = {**extra, "chat_template_kwargs": renamed}
        return payload

    def _extras(self, delta: Delta) -> Mapping[str, Any]:
        reasoning = delta.reasoning or delta.reasoning_content
        return {"reasoning": reasoning} if reasoning else {}

    def _convert(self, message: BaseMessage) -> dict[str, Any]:
        wire = super()._convert(message)
        extras = message.additional_kwargs
        reasoning = extras.get("reasoning") or extras.get("reasoning_content")
        return {**wire, "reasoning": reasoning} if reasoning and isinstance(message, AIMessage) else wire


class DeepSeek(OpenAICompatible):
    """DeepSeek, which requires the `reasoning_content` of messages with tool calls back."""

    openai_api_base: str | None = Field(default="https://api.deepseek.com/v1", alias="base_url")
    openai_api_key: SecretStr = Field(default_factory=secret_from_env("DEEPSEEK_API_KEY"), alias="api_key")

    def _convert(self, message: BaseMessage) -> dict[str, Any]:
        wire = super()._convert(message)
        reasoning = message.additional_kwargs.get("reasoning_content")
        return {**wire, "reasoning_content": reasoning} if reasoning and isinstance(message, AIMessage) else wire


class Signed(OpenAICompatible):
    """Gemini behind an OpenAI-compatible gateway: calls come signed, in `extra_content`, and must go back so."""

    def _extras(self, delta: Delta) -> Mapping[str, Any]:
        signed = {str(call.id): call.extra_content for call in delta.tool_calls or () if call.id and call.extra_content}
        return {**super()._extras(delta), **({"extra_contents": signed} if signed else {})}

    def _convert(self, message: BaseMessage) -> dict[str, Any]:
        wire = super()._convert(message)
        signed = message.additional_kwargs.get("extra_contents")
        if not signed or "tool_calls" not in wire:
            return wire
        calls = [
            {**call, "extra_content": signed[call["id"]]} if call["id"] in signed else call
            for call in wire["tool_calls"]
        ]
        return {**wire, "tool_calls": calls}
