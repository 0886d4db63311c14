"""The client for programs without an event loop: each method waits for the method of the same name in `aio`."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio

from channels.client.aio import AsyncSikaClient
from channels.client.background import Background
from channels.client.errors import ClientError, closed
from channels.client.events import StreamEvent

P = ParamSpec("P")
T = TypeVar("T")


def _constructed(
    like: Callable[P, AsyncSikaClient],
) -> Callable[[Callable[..., None]], Callable[Concatenate[SikaClient, P], None]]:
    """Decorates a constructor with the signature of another."""

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[SikaClient, P], None]:
        of = inspect.signature(like)
        self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        init.__signature__ = of.replace(parameters=[self, *of.parameters.values()])  # type: ignore[attr-defined]
        return init

    return decorate


def _waiting(
    method: Callable[Concatenate[AsyncSikaClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SikaClient, P], T]:
    @functools.wraps(method)
    def wait(self: SikaClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop().call(partial(method, self._core, *args, **kwargs))

    return wait


def _following(
    method: Callable[Concatenate[AsyncSikaClient, P], AsyncGenerator[StreamEvent, None]],
) -> Callable[Concatenate[SikaClient, P], Generator[StreamEvent, None, None]]:
    @functools.wraps(method)
    def follow(self: SikaClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[StreamEvent, None, None]:
        loop, lock = self._loop(), anyio.Lock()
        events = method(self._core, *args, **kwargs)

        async def step() -> StreamEvent | None:
            async with lock:  # an interrupted step ends before the generator is closed
                return await anext(events, None)

        async def close() -> None:
            async with lock:
                await events.aclose()

        try:
            while (event := loop.call(step)) is not None:
                yield event
        finally:
            with suppress(ClientError):  # the client was closed, and with it the stream
                loop.settle(close)

    return follow


class SikaClient:
    """Like `AsyncSikaClient`, but waiting. May be used by several threads at once."""

    @_constructed(AsyncSikaClient)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._core = AsyncSikaClient(*args, **kwargs)
        self._starting = threading.Lock()
        self._background: Background | None = None
        self._closed = False

    def __enter__(self) -> SikaClient:
        try:
            self._loop().call(self._core.__aenter__)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections, streams, and the server if it is in this process without other clients. May be
        repeated.
        """
        with self._starting:
            self._closed = True
            background, self._background = self._background, None
        if background is not None:
            background.stop()

    def _loop(self) -> Background:
        with self._starting:
            if self._closed:
                raise closed()
            if self._background is None:
                self._background = Background("sika-client", self._core.close, daemon=True)
            return self._background

    stream = _following(AsyncSikaClient.stream)
    resume = _following(AsyncSikaClient.resume)
    join = _following(AsyncSikaClient.join)
    chat = _waiting(AsyncSikaClient.chat)
    steer = _waiting(AsyncSikaClient.steer)
    cancel = _waiting(AsyncSikaClient.cancel)
    get_run = _waiting(AsyncSikaClient.get_run)
    list_runs = _waiting(AsyncSikaClient.list_runs)
    decide = _waiting(AsyncSikaClient.decide)
    get_goal = _waiting(AsyncSikaClient.get_goal)
    set_goal = _waiting(AsyncSikaClient.set_goal)
    clear_goal = _waiting(AsyncSikaClient.clear_goal)
    get_folder = _waiting(AsyncSikaClient.get_folder)
    attach_folder = _waiting(AsyncSikaClient.attach_folder)
    detach_folder = _waiting(AsyncSikaClient.detach_folder)
    get_variables = _waiting(AsyncSikaClient.get_variables)
    set_variable = _waiting(AsyncSikaClient.set_variable)
    remove_variable = _waiting(AsyncSikaClient.remove_variable)
    get_changes = _waiting(AsyncSikaClient.get_changes)
    undo = _waiting(AsyncSikaClient.undo)
    reset_agent = _waiting(AsyncSikaClient.reset_agent)

    list_threads = _waiting(AsyncSikaClient.list_threads)
    search_threads = _waiting(AsyncSikaClient.search_threads)
    create_thread = _waiting(AsyncSikaClient.create_thread)
    describe_thread = _waiting(AsyncSikaClient.describe_thread)
    get_thread = _waiting(AsyncSikaClient.get_thread)

    get_memory = _waiting(AsyncSikaClient.get_memory)
    reload_memory = _waiting(AsyncSikaClient.reload_memory)
    export_memory = _waiting(AsyncSikaClient.export_memory)
    import_memory = _waiting(AsyncSikaClient.import_memory)
    clear_memory = _waiting(AsyncSikaClient.clear_memory)
    create_memory_fact = _waiting(AsyncSikaClient.create_memory_fact)
    update_memory_fact = _waiting(AsyncSikaClient.update_memory_fact)
    delete_memory_fact = _waiting(AsyncSikaClient.delete_memory_fact)
    get_memory_source = _waiting(AsyncSikaClient.get_memory_source)
    get_memory_config = _waiting(AsyncSikaClient.get_memory_config)
    get_memory_settings = _waiting(AsyncSikaClient.get_memory_settings)
    set_memory_settings = _waiting(AsyncSikaClient.set_memory_settings)
    get_memory_status = _waiting(AsyncSikaClient.get_memory_status)

    list_models = _waiting(AsyncSikaClient.list_models)
    list_skills = _waiting(AsyncSikaClient.list_skills)
    get_skill = _waiting(AsyncSikaClient.get_skill)
    update_skill = _waiting(AsyncSikaClient.update_skill)
    install_skill = _waiting(AsyncSikaClient.install_skill)
    get_mcp_config = _waiting(AsyncSikaClient.get_mcp_config)
    update_mcp_config = _waiting(AsyncSikaClient.update_mcp_config)
    list_agents = _waiting(AsyncSikaClient.list_agents)
    get_usage = _waiting(AsyncSikaClient.get_usage)
    get_model = _waiting(AsyncSikaClient.get_model)
    readiness = _waiting(AsyncSikaClient.readiness)
    rebuild_projections = _waiting(AsyncSikaClient.rebuild_projections)

    list_mcp_access = _waiting(AsyncSikaClient.list_mcp_access)
    begin_mcp_login = _waiting(AsyncSikaClient.begin_mcp_login)
    end_mcp_login = _waiting(AsyncSikaClient.end_mcp_login)

    upload_files = _waiting(AsyncSikaClient.upload_files)
    list_uploads = _waiting(AsyncSikaClient.list_uploads)
    delete_upload = _waiting(AsyncSikaClient.delete_upload)
    get_artifact = _waiting(AsyncSikaClient.get_artifact)
