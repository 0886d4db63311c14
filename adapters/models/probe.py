"""Checks the private code of installed packages that the models rely on."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

_METHODS: Mapping[str, tuple[str, ...]] = {
    "openai:AsyncOpenAI._make_sse_decoder": ("self",),
    "openai:AsyncOpenAI._process_response_data": ("self", "data"),
    "openai._streaming:SSEDecoder.decode": ("self", "line"),
    "openai._streaming:ServerSentEvent.__init__": ("self", "event", "data", "id", "retry"),
    "openai._streaming:ServerSentEvent.json": ("self",),
    "langchain_openai:ChatOpenAI._get_request_payload": ("self", "input_", "stop", "kwargs"),
    "langchain_openai:ChatOpenAI._create_chat_result": ("self", "response", "generation_info"),
    "langchain_openai:ChatOpenAI._convert_chunk_to_generation_chunk": (
        *("self", "chunk", "default_chunk_class", "base_generation_info"),
    ),
    "langchain_openai:ChatOpenAI._use_responses_api": ("self", "payload"),
    "langchain_openai:ChatOpenAI._convert_input": ("self",),
    "httpx2:AsyncClient._transport_for_url": ("self", "url"),
}
"""Overridden or called methods, with the parameters that are passed."""


@cache
def problem() -> str | None:
    """Returns the first incompatibility; None if there is none."""
    try:
        for path, parameters in _METHODS.items():
            there = inspect.signature(_resolve(path)).parameters
            if missing := [name for name in parameters if name not in there]:
                return f"{path} takes no {', '.join(missing)}"
        client = _resolve("openai:DefaultAioHttpClient")()
        for transport in {client._transport, *client._mounts.values()} - {None}:
            for name in ("client", "limits", "ssl_context", "aclose"):
                getattr(transport, name)
    except (ImportError, AttributeError, TypeError) as error:
        return str(error)
    return None


def _resolve(path: str) -> Callable[..., Any]:
    module, _, names = path.partition(":")
    value: Any = importlib.import_module(module)
    for name in names.split("."):
        value = getattr(value, name)
    callable_: Callable[..., Any] = value
    return callable_
