"""Limits of concurrent requests to a provider from this process; further requests wait in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import cache
from types import new_class
from typing import Any, cast
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter
from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from core.ports.models import Piece, Pieces

_admitted: ContextVar[bool] = ContextVar("placed", default=False)
"""True if this request has its slot: some models generate by streaming from themselves, or the other way round."""
_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, CapacityLimiter]] = WeakKeyDictionary()


@asynccontextmanager
async def place(provider: str, limit: int) -> AsyncIterator[None]:
    """Holds one of a provider's `limit` slots on this loop. The newest limit counts for all: the configuration may have
    changed while others wait.
    """
    limiters = _limiters.setdefault(asyncio.get_running_loop(), {})
    limiter = limiters.setdefault(provider, CapacityLimiter(limit))
    if limiter.total_tokens != limit:
        limiter.total_tokens = limit
    borrower = object()  # not the task: streams are also closed by others, and a task may have several
    await limiter.acquire_on_behalf_of(borrower)
    try:
        yield
    finally:
        limiter.release_on_behalf_of(borrower)


@cache
def bounded(model_class: type[BaseChatModel]) -> type[BaseChatModel]:
    """Returns the class with asynchronous requests that are bounded once `set_bound` was called."""
    methods: dict[str, Any] = {"_agenerate": _generating(model_class)}
    if model_class._astream is not BaseChatModel._astream or model_class._stream is not BaseChatModel._stream:
        methods["_astream"] = _streaming(model_class)
    if issubclass(model_class, Pieces):
        methods["pieces"] = _in_pieces(model_class)
    methods |= {"__module__": model_class.__module__, "__qualname__": model_class.__qualname__}
    methods |= {"__annotations__": {"_bound": tuple[str, int]}, "_bound": PrivateAttr(default=("", 1))}
    return new_class(model_class.__name__, (model_class,), exec_body=lambda body: body.update(methods))


def set_bound(model: BaseChatModel, provider: str, limit: int) -> None:
    cast(Any, model)._bound = (provider, limit)


def _generating(model_class: type[BaseChatModel]) -> Any:
    async def _agenerate(self: Any, *args: Any, **kwargs: Any) -> ChatResult:
        if _admitted.get():
            return await model_class._agenerate(self, *args, **kwargs)
        provider, limit = self._bound
        async with place(provider, limit):
            token = _admitted.set(True)
            try:
                return await model_class._agenerate(self, *args, **kwargs)
            finally:
                _admitted.reset(token)

    return _agenerate


def _in_pieces(model_class: Any) -> Any:
    async def pieces(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Piece]:
        if _admitted.get():  # LangChain's stream of the class is made of them
            async for piece in model_class.pieces(self, *args, **kwargs):
                yield piece
            return
        provider, limit = self._bound
        async with place(provider, limit), aclosing(model_class.pieces(self, *args, **kwargs)) as stream:
            async for piece in stream:
                yield piece

    return pieces


def _streaming(model_class: type[BaseChatModel]) -> Any:
    async def _astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        if _admitted.get():
            async for chunk in model_class._astream(self, *args, **kwargs):
                yield chunk
            return
        provider, limit = self._bound
        stream = cast(Any, model_class._astream(self, *args, **kwargs))
        async with place(provider, limit), aclosing(stream):
            while True:
                token = _admitted.set(True)
                try:
                    chunk = await anext(stream)
                except StopAsyncIteration:
                    return
                finally:
                    _admitted.reset(token)  # the caller's work between two chunks is not this request
                yield chunk

    return _astream
