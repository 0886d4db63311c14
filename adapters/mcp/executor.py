"""A session with an MCP server: commands in, replies out. Part of `adapters.mcp.host`."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import anyio
import httpx
import mcp.types as protocol
import msgspec
from langchain_core.tools import ToolException
from langchain_mcp_adapters.interceptors import MCPToolCallRequest
from langchain_mcp_adapters.tools import convert_mcp_tool_to_langchain_tool
from mcp import ClientSession, McpError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from adapters.mcp import stdio
from adapters.mcp.lists import MOST_OFFERS, MOST_TOOLS, Raw, entries, most_of, others_of, tools_of
from adapters.mcp.results import TEXT, described, outcome_of, prompt_parts, resource_parts, result_of
from core.errors import Invalid
from core.ports.mcp_frames import Ask, Command, Listing, Offer, Outcome, Problem, Reply, Setup

LISTING_BYTES = 4 << 20
PROGRESS_SECONDS = 0.2
LONGEST_SECONDS = 3000.0
MOST_ASKED = 20
"""Limit of open requests of the server."""
ASK_BYTES = 1 << 20
"""Limit of a request of the server."""
GRACE_SECONDS = 1.0
"""Time for an answer after a line that is not a message."""

_encode = msgspec.json.encode


class Call:
    """A command being executed."""

    def __init__(self, command: Command, report: Callable[[str], None]) -> None:
        self.command, self.report = command, report
        self.signs = 0
        self.result: Any = None

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.signs += 1
        self.report(message or (f"{progress:g} of {total:g}" if total else f"{progress:g}"))


current: ContextVar[Call] = ContextVar("current")


class Session(ClientSession):
    """A session that tells the server of cancelled requests, reports progress, and passes on what the server asks."""

    ask: Callable[[str, Any], Awaitable[Any]]

    async def send_request(self, request: Any, *arguments: Any, **named: Any) -> Any:
        number = self._request_id
        try:
            return await super().send_request(request, *arguments, **named)
        except asyncio.CancelledError:
            if not isinstance(request.root, protocol.InitializeRequest):
                with anyio.CancelScope(shield=True), anyio.move_on_after(1), suppress(Exception):
                    about = protocol.CancelledNotificationParams(requestId=number, reason="cancelled")
                    notification = protocol.CancelledNotification(params=about)
                    await self.send_notification(protocol.ClientNotification(notification))
            raise

    @property
    def is_closed(self) -> bool:
        """Tells whether the transport has ended. Servers use its error code for errors of their own."""
        return self._read_stream.statistics().open_send_streams == 0

    async def call_tool(self, name: str, arguments: Any = None, *rest: Any, **named: Any) -> Any:
        """Calls a tool. Returns its result with the parts that the protocol has; others become text."""
        params = protocol.CallToolRequestParams(name=name, arguments=arguments)
        request = protocol.ClientRequest(protocol.CallToolRequest(params=params))
        return result_of(await self.send_request(request, Raw, progress_callback=current.get().progress))

    async def _received_request(self, responder: Any) -> None:
        """Takes a request. What waits for people or models has a task of its own: others must not wait for it."""
        match responder.request.root:
            case protocol.ElicitRequest() | protocol.CreateMessageRequest():
                self._task_group.start_soon(self._answer, responder)
            case _:
                await super()._received_request(responder)

    async def _answer(self, responder: Any) -> None:
        with responder:
            request = responder.request.root
            kind = "elicit" if isinstance(request, protocol.ElicitRequest) else "sample"
            response = await self.ask(kind, request.params.model_dump(by_alias=True, mode="json", exclude_none=True))
            await responder.respond(response)

    async def _validate_tool_result(self, name: str, result: Any) -> None:
        """Takes every result: the effect has happened, and checking it costs what the server's schema makes it cost."""


class Executor:
    """Executes the commands of the server in one session, and passes on what the MCP server asks."""

    def __init__(self, setup: Setup, send: Callable[[Reply], None]) -> None:
        self._setup, self._send = setup, send
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tools: dict[str, Offer] | None = None
        self._problems: list[Problem] = []
        self._unbuilt: list[Problem] = []
        """Interceptors that cannot be loaded."""
        self._loading = asyncio.Lock()
        self._broken: asyncio.TimerHandle | None = None
        self._interceptors: list[Any] = [_keep]
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Any]] = {}
        """Requests of the server that wait for their answers."""
        self._answers = 0
        self.session: Session

    async def run(self, commands: AsyncIterator[Command]) -> None:
        for path in self._setup.interceptors:
            try:
                self._interceptors.append(await _built(path))
            except Invalid as error:
                self._unbuilt.append(Problem(reason=f"{error}; calls are made without it"))
        async with transport(self._setup) as streams:
            callbacks: dict[str, Any] = {"message_handler": self._on_message}
            if self._setup.roots:
                callbacks["list_roots_callback"] = self._roots
            for kind, name in (("elicit", "elicitation_callback"), ("sample", "sampling_callback")):
                if kind in self._setup.asks:
                    callbacks[name] = _declared
            client = protocol.Implementation(name="sika", version="0.1.0")
            async with Session(streams[0], streams[1], client_info=client, **callbacks) as self.session:
                self.session.ask = self._ask
                async with asyncio.timeout(self._setup.start_seconds):
                    self._about = await self.session.initialize()
                self._send(Reply(kind="ready"))
                try:
                    async for command in commands:
                        self._begin(command)
                finally:
                    tasks = list(self._tasks.values())
                    for task in tasks:
                        task.cancel()
                    if tasks:
                        await asyncio.wait(tasks, timeout=2)

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, Exception):
            if self._broken is None:
                loop = asyncio.get_running_loop()
                self._broken = loop.call_later(GRACE_SECONDS, self._fail_open, set(self._tasks), str(message))
            return
        kind = getattr(getattr(message, "root", None), "method", "")
        if kind.endswith("/list_changed") and not kind.startswith("notifications/roots"):
            self._tools = None
            self._send(Reply(kind="changed"))

    def _fail_open(self, numbers: set[int], reason: str) -> None:
        """Fails the commands that were open when the server sent what is not a message."""
        self._broken = None
        for number in numbers & self._tasks.keys():
            self._send(Reply(id=number, kind="lost", text=f"the server sent what is not a message: {reason[:200]}"))
            self._tasks[number].cancel()

    async def _roots(self, _: Any) -> Any:
        roots = [protocol.Root(uri=uri, name="workspace") for uri in self._setup.roots]  # type: ignore[arg-type]
        return protocol.ListRootsResult(roots=roots)

    async def _ask(self, kind: Any, params: Any) -> Any:
        """Returns the answer to a request of the server: a result of the protocol, or an error."""
        if kind not in self._setup.asks:
            return protocol.ErrorData(code=protocol.METHOD_NOT_FOUND, message=f"{kind}: is not supported")
        if len(self._questions) >= MOST_ASKED or len(_encode(params)) > ASK_BYTES:
            return protocol.ErrorData(code=protocol.INVALID_REQUEST, message="too many or too large requests")
        ask = Ask(number=next(self._numbers), kind=kind, params=params)
        future = self._questions[ask.number] = asyncio.get_running_loop().create_future()
        self._send(Reply(kind="asks", ask=ask))
        try:
            answer = await future
        except asyncio.CancelledError:
            self._send(Reply(kind="withdrawn", ask=Ask(number=ask.number, kind=kind, params={})))
            raise
        finally:
            self._questions.pop(ask.number, None)
            self._answers += 1
        if "error" in answer:
            return protocol.ErrorData(code=protocol.INVALID_REQUEST, message=str(answer["error"]))
        model = protocol.ElicitResult if kind == "elicit" else protocol.CreateMessageResult
        return protocol.ClientResult(model.model_validate(answer))

    def _begin(self, command: Command) -> None:
        if command.op == "answer":
            if (future := self._questions.get(command.id)) and not future.done():
                future.set_result(command.arguments)
            return
        if command.op == "cancel":
            if task := self._tasks.get(command.id):
                task.cancel()
            return
        task = asyncio.create_task(self._answer(command))
        self._tasks[command.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(command.id, None))

    async def _answer(self, command: Command) -> None:
        last = 0.0

        def report(text: str) -> None:
            nonlocal last
            now = asyncio.get_running_loop().time()
            if now - last >= PROGRESS_SECONDS:
                last = now
                self._send(Reply(id=command.id, kind="progress", text=text[:TEXT]))

        call = Call(command, report)
        current.set(call)
        self._send(await self._limited(call))  # nobody waits for what is cancelled

    async def _limited(self, call: Call) -> Reply:
        """Executes a command within its time, which progress and answers to the server extend. The time does not pass
        while an answer is waited for: that has a limit of its own.
        """
        number, seconds = call.command.id, call.command.seconds
        work = asyncio.ensure_future(self._execute(call))
        begin, signs = asyncio.get_running_loop().time(), -1
        try:
            while not work.done() and (self._questions or call.signs + self._answers > signs):
                signs = call.signs + self._answers
                begin = asyncio.get_running_loop().time() if self._questions else begin
                left = begin + LONGEST_SECONDS - asyncio.get_running_loop().time()
                await asyncio.wait([work], timeout=min(seconds, left))
                if not work.done() and not self._questions and call.signs + self._answers == signs:
                    return Reply(id=number, kind="lost", text=f"no answer within {seconds:g} s; it was cancelled")
            result = work.result()
            return msgspec.structs.replace(result, id=number)
        except asyncio.CancelledError:
            if work.done() and work.cancelled():  # nobody cancelled it but the SDK
                return Reply(id=number, kind="closed", text="the connection was lost")
            raise
        except McpError as error:
            if error.error.code == protocol.CONNECTION_CLOSED and self.session.is_closed:
                return Reply(id=number, kind="closed", text="the connection was closed")
            if "session terminated" in str(error).lower():
                return Reply(id=number, kind="gone", text=str(error))
            return Reply(id=number, kind="error", text=str(error)[:TEXT])
        except (ToolException, Invalid, ValueError) as error:
            return Reply(id=number, kind="error", text=str(error)[:TEXT])
        except Exception as error:
            kind = "gone" if isinstance(error, httpx.ConnectError) else "lost"
            return Reply(id=number, kind=kind, text=described(error))
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work], timeout=2)

    async def _execute(self, call: Call) -> Reply:
        command = call.command
        match command.op:
            case "list":
                return Reply(kind="listing", listing=await self._list())
            case "read":
                read = protocol.ReadResourceRequestParams(uri=command.name)  # type: ignore[arg-type]
                request = protocol.ClientRequest(protocol.ReadResourceRequest(params=read))
                answer = await self.session.send_request(request, Raw)
                return Reply(kind="outcome", outcome=Outcome(parts=resource_parts(answer)))
            case "prompt":
                arguments = {key: str(value) for key, value in command.arguments.items()}
                get = protocol.GetPromptRequestParams(name=command.name, arguments=arguments or None)
                prompt = await self.session.send_request(
                    protocol.ClientRequest(protocol.GetPromptRequest(params=get)), Raw
                )
                return Reply(kind="outcome", outcome=Outcome(parts=prompt_parts(prompt)))
        return Reply(kind="outcome", outcome=await self._call(call))

    async def _call(self, call: Call) -> Outcome:
        name, arguments = call.command.name, dict(call.command.arguments)
        offer = (await self._loaded()).get(name)
        if offer is None:
            raise Invalid(f"the server has no tool {name!r} any more")
        if "runtime" in arguments:  # the adapters have an argument of this name
            _keep_result(await self.session.call_tool(name, arguments))
        else:
            described = protocol.Tool(name=name, inputSchema=dict(offer.schema))
            around: Any = self._interceptors
            tool: Any = convert_mcp_tool_to_langchain_tool(
                self.session, described, tool_interceptors=around, server_name=self._setup.server
            )
            with suppress(ToolException):
                await tool.coroutine(**arguments)
        return outcome_of(call.result)

    # ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _loaded(self) -> dict[str, Offer]:
        async with self._loading:
            if self._tools is None:
                self._problems = []
                listed = await entries(self.session.send_request, "tools", MOST_TOOLS, self._problems)
                offers = tools_of(listed, self._problems)
                self._tools = {offer.name: offer for offer in offers}
            return self._tools

    async def _list(self) -> Listing:
        able = self._about.capabilities
        self._tools = None
        tools = list((await self._loaded()).values()) if able.tools else []
        problems = [*(self._problems if able.tools else ()), *self._unbuilt]
        resources = await self._others("resources", problems) if able.resources else []
        prompts = await self._others("prompts", problems) if able.prompts else []
        listing = Listing(
            tools=tools,
            resources=resources,
            prompts=prompts,
            problems=problems,
            instructions=(self._about.instructions or "")[:TEXT],
        )
        return _bounded(listing)

    async def _others(self, field: str, problems: list[Problem]) -> list[Offer]:
        """Returns the resources or prompts. Some servers declare a list and refuse it: what else they offer stays."""
        try:
            return others_of(field, await entries(self.session.send_request, field, MOST_OFFERS, problems), problems)
        except McpError as error:
            problems.append(Problem(reason=f"the list of its {field} was refused: {error}"[:TEXT]))
            return []


def _bounded(listing: Listing) -> Listing:
    """Returns the lists without the tools that do not fit, the largest first: they take no others with them."""
    tools, problems = list(listing.tools), list(listing.problems)
    sizes = {tool.name: len(_encode(tool)) for tool in tools}
    rest = len(_encode(msgspec.structs.replace(listing, tools=(), problems=())))
    if rest > LISTING_BYTES // 2:
        listing, rest = msgspec.structs.replace(listing, resources=(), prompts=()), 0
        problems.append(Problem(reason="its resources and prompts are too large together; they are left out"))
    for tool in sorted(tools, key=lambda tool: -sizes[tool.name]):
        if rest + sum(sizes.values()) <= LISTING_BYTES:
            break
        del sizes[tool.name]
        reason = f"its lists have more than {LISTING_BYTES} bytes, and it is among the largest"
        problems.append(Problem(tool=tool.name, reason=reason, left_out=True))
    listed = [tool for tool in tools if tool.name in sizes]
    return msgspec.structs.replace(listing, tools=listed, problems=most_of(problems))


async def _declared(*_: Any) -> Any:
    """Has the SDK declare a capability; `Session` answers the requests."""
    raise AssertionError


async def _keep(request: MCPToolCallRequest, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """The outermost interceptor: keeps the result, and returns what the adapters can convert."""
    result = await handler(request)
    _keep_result(result)
    return protocol.CallToolResult(content=[], isError=False)


def _keep_result(result: Any) -> None:
    current.get().result = result


async def _built(path: str) -> Any:
    """Returns the interceptor that `module:builder` builds. Raises `Invalid`."""
    module, _, name = path.partition(":")
    try:
        built = getattr(importlib.import_module(module), name)()
        return await built if inspect.isawaitable(built) else built
    except Exception as error:
        raise Invalid(f"mcp.interceptors: {path}: {type(error).__name__}: {error}") from error


@asynccontextmanager
async def transport(setup: Setup) -> AsyncIterator[Sequence[Any]]:
    """Opens the connection to the MCP server, and yields the SDK's streams: to read from, and to write to."""
    if setup.transport == "stdio":
        async with stdio.server(setup) as streams:
            yield streams
        return
    headers = dict(setup.headers)
    resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_bytes, setup.memory_bytes))
    opened: AbstractAsyncContextManager[Any]
    if setup.transport == "sse":
        opened = sse_client(setup.url, headers, timeout=30, sse_read_timeout=LONGEST_SECONDS)
        async with opened as streams:
            yield streams
        return
    timeout = httpx.Timeout(30, read=LONGEST_SECONDS)
    async with (
        create_mcp_http_client(headers=headers, timeout=timeout) as client,
        streamable_http_client(setup.url, http_client=client) as streams,
    ):
        yield streams
