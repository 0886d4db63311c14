"""Interceptors of calls, as a configuration names them: they run in the process of a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Handler = Callable[[Any], Awaitable[Any]]


def outer() -> Any:
    """Marks the text, and answers `stop` itself."""

    async def intercept(request: Any, handler: Handler) -> Any:
        if request.args.get("text") == "stop":
            raise ValueError("stopped by the outer interceptor")
        return await handler(request.override(args={"text": f"{request.args.get('text')} outer"}))

    return intercept


async def inner() -> Any:
    """Marks the text with the server's name."""

    async def intercept(request: Any, handler: Handler) -> Any:
        return await handler(request.override(args={"text": f"{request.args['text']} inner {request.server_name}"}))

    return intercept


def broken() -> Any:
    raise RuntimeError("no licence")
