"""Checks the private code of installed packages that the models rely on."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

_METHODS: Mapping[str, tuple[str, ...]] = {
    "openai:AsyncOpenAI.post": ("self", "path", "cast_to", "content", "options", "stream", "stream_cls"),
    "openai._base_client:make_request_options": ("extra_headers", "extra_query", "timeout", "security"),
    "langchain_openai:ChatOpenAI._get_request_payload": ("self", "input_", "stop", "kwargs"),
    "langchain_openai:ChatOpenAI._use_responses_api": ("self", "payload"),
    "langchain_openai:ChatOpenAI._should_stream_usage": ("self", "stream_usage", "kwargs"),
    "langchain_openai:ChatOpenAI._convert_input": ("self",),
    "langchain_openai.chat_models.base:_create_usage_metadata": ("oai_token_usage", "service_tier"),
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
