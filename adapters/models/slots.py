"""How many requests a provider gets at once from this process; who comes later waits for a place, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import cache
from types import new_class
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

_placed: ContextVar[bool] = ContextVar("placed", default=False)
"""Whether this request has its place: some models generate by streaming from themselves, or the other way round."""


class Slots:
    """The places at one provider. Everybody says how many there are: an entry may have changed while others wait."""

    def __init__(self) -> None:
        self.used = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @asynccontextmanager
    async def place(self, limit: int) -> AsyncIterator[None]:
        await self._take(limit)
        try:
            yield
        finally:
            self._free()

    async def _take(self, limit: int) -> None:
        if self.used < limit and not self._waiting:
            self.used += 1
            return
        waiting = (asyncio.get_running_loop().create_future(), limit)
        self._waiting.append(waiting)
        try:
            await waiting[0]
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._admit()
            else:  # cancelled in the moment it was given the place
                self._free()
            raise

    def _free(self) -> None:
        self.used -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.used < self._waiting[0][1]:
            future, _ = self._waiting.popleft()
            if not future.done():  # else it is just being cancelled, and goes by `_take`
                future.set_result(None)
            self.used += 1


_known: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Slots]] = WeakKeyDictionary()


def of(provider: str) -> Slots:
    """The places at a provider for the requests of the running loop."""
    return _known.setdefault(asyncio.get_running_loop(), {}).setdefault(provider, Slots())


@cache
def bounded(model_class: type[BaseChatModel]) -> type[BaseChatModel]:
    """The class, its asynchronous requests bounded once `set_bound` was called."""
    methods: dict[str, Any] = {"_agenerate": _generating(model_class)}
    if model_class._astream is not BaseChatModel._astream or model_class._stream is not BaseChatModel._stream:
        methods["_astream"] = _streaming(model_class)
    methods |= {"__module__": model_class.__module__, "__qualname__": model_class.__qualname__}
    methods |= {"__annotations__": {"_bound": tuple[str, int]}, "_bound": PrivateAttr(default=("", 1))}
    return new_class(model_class.__name__, (model_class,), exec_body=lambda body: body.update(methods))


def set_bound(model: BaseChatModel, provider: str, limit: int) -> None:
    cast(Any, model)._bound = (provider, limit)


def _generating(model_class: type[BaseChatModel]) -> Any:
    async def _agenerate(self: Any, *args: Any, **kwargs: Any) -> ChatResult:
        if _placed.get():
            return await model_class._agenerate(self, *args, **kwargs)
        provider, limit = self._bound
        async with of(provider).place(limit):
            token = _placed.set(True)
            try:
                return await model_class._agenerate(self, *args, **kwargs)
            finally:
                _placed.reset(token)

    return _agenerate


def _streaming(model_class: type[BaseChatModel]) -> Any:
    async def _astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        if _placed.get():
            async for chunk in model_class._astream(self, *args, **kwargs):
                yield chunk
            return
        provider, limit = self._bound
        stream = cast(Any, model_class._astream(self, *args, **kwargs))
        async with of(provider).place(limit), aclosing(stream):
            while True:
                token = _placed.set(True)
                try:
                    chunk = await anext(stream)
                except StopAsyncIteration:
                    return
                finally:
                    _placed.reset(token)  # what the caller does between two chunks is not this request
                yield chunk

    return _astream
