"""The tools of `/mcp`: conversations with the agent, and what lies in them."""

from __future__ import annotations

import asyncio
import base64
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from importlib.metadata import version
from typing import Annotated, Any, Literal, ParamSpec, TypeVar
from urllib.parse import quote, unquote

import msgspec
import structlog
from anyio import to_thread
from mcp.server.fastmcp import FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.lowlevel import Server
from mcp.types import (
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import AnyUrl, BaseModel, Field

from channels.http.accounts.access import demand, request_run
from channels.http.deerflow import artifacts
from channels.http.endpoints.call import Call
from channels.http.protocols.mcp.arguments import problem_of
from channels.http.protocols.mcp.server import CALL
from channels.http.runs.idempotency import fingerprint, new_id, repeated
from core.config.redaction import redactor
from core.errors import Invalid, SikaError
from core.events import (
    Json,
    MessageAdded,
    ModelCompleted,
    Record,
    Resume,
    RunRequested,
    ToolCompleted,
)
from core.ids import assistant_id, safe_id, uuid7
from core.lifecycle import END_TYPES
from core.runs.follow import Follower
from core.thread import approvals
from core.thread.messages import text_of
from core.thread.runs import shown_run
from core.thread.state import ThreadState
from core.thread.values import tool_calls
from core.user.assistants import DEFAULT

log = structlog.get_logger("sika.mcp")
P = ParamSpec("P")
R = TypeVar("R")

WAIT_SECONDS, MOST_WAIT_SECONDS = 50.0, 600.0
"""Clients end a request after 60 seconds, by default."""
PROGRESS_SECONDS = 5.0
MOST_CHARACTERS = 60_000
"""Limit of the texts in an answer; the rest is read from the answer's position on."""
MOST_BYTES = 1 << 20
"""Limit of a file in an answer."""
LAST = END_TYPES | {"thread.erased"}
"""The types of the events after which nothing of a run follows."""

ThreadId = Annotated[str, Field(description="Id of a thread")]
Wait = Annotated[float, Field(ge=0, le=MOST_WAIT_SECONDS, description="Seconds to wait for the end of the run")]
After = Annotated[int, Field(ge=0, description="Only messages after this position")]


class Message(BaseModel):
    role: Literal["person", "agent", "tool", "system"]
    text: str
    calls: list[str] = []
    """Names of the tools that the agent calls with it."""


class Question(BaseModel):
    """A question of the agent, or a tool call that waits for approval."""

    id: str
    value: Any


class Turn(BaseModel):
    """A run, as far as it has come. Read on with `chat_read` from `position`."""

    thread_id: str
    run_id: str
    status: str = Field(description="pending, running, waiting (for answers), success, error, interrupted")
    position: int
    messages: list[Message] = []
    more: bool = Field(False, description="There are more messages already: read on")
    questions: list[Question] = []
    advice: str = ""


class ThreadLine(BaseModel):
    thread_id: str
    title: str
    status: str
    updated_at: str


class ThreadList(BaseModel):
    threads: list[ThreadLine]
    total: int


class Thread(BaseModel):
    thread_id: str
    title: str
    status: str
    messages: list[Message]
    total: int = Field(description="The number of messages; read on with `offset`")
    questions: list[Question] = []


INSTRUCTIONS = """Sika is an agent with tools of its own. `chat` gives it a message and waits for its answer. Long
work goes on without a reader: read it later with `chat_read`, from the position of the last answer. If it asks a
question, answer with `chat_answer`. Files that it makes are listed by `artifacts_list`."""


def _server() -> FastMCP[Any]:
    """Returns the server, which configures the process's logging when it is made: that is undone."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    server: FastMCP[Any] = FastMCP("sika", instructions=INSTRUCTIONS)
    server._mcp_server.version = version("sika")  # else it is shown as of the library's version
    root.handlers[:] = handlers
    root.setLevel(level)
    return server


SIKA = _server()


@functools.cache
def server() -> Server[Any, Any]:
    from channels.http.protocols.mcp import agent_tools as mcp_agent_tools

    mcp_agent_tools.install(SIKA._mcp_server, _problem_of)
    return SIKA._mcp_server


def _problem_of(params: CallToolRequestParams) -> str | None:
    tool = SIKA._tool_manager.get_tool(params.name)
    return problem_of(tool, params.arguments or {}) if tool is not None else None


def current_call() -> Call:
    """Returns the HTTP request behind the request of the protocol that is being answered."""
    request = SIKA.get_context().request_context.request
    if request is None:
        raise ToolError("there is no request")
    call: Call = request.scope[CALL]
    return call


def _guarded(scope: str) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Demands a scope of the key. Errors are for the caller, without secrets."""

    def wrap(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                demand(current_call().principal, scope)
                return await function(*args, **kwargs)
            except SikaError as error:
                raise ToolError(redactor.text(str(error))) from None
            except Exception as error:
                log.exception("tool failed", tool=function.__name__, error=str(error))
                raise ToolError("a defect of the server; its log says more") from None

        return guarded

    return wrap


def _tool(scope: str, hints: ToolAnnotations) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    def declare(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        SIKA.add_tool(_guarded(scope)(function), name=function.__name__, annotations=hints)
        tool = SIKA._tool_manager.get_tool(function.__name__)
        assert tool is not None
        tool.parameters["additionalProperties"] = False
        return function

    return declare


_READS = ToolAnnotations(readOnlyHint=True, openWorldHint=False)
_ACTS = ToolAnnotations(readOnlyHint=False, destructiveHint=False, openWorldHint=False)
_STOPS = ToolAnnotations(readOnlyHint=False, destructiveHint=False, idempotentHint=True, openWorldHint=False)


# ── chat ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@_tool("runs:create", _ACTS)
async def chat(
    message: Annotated[str, Field(min_length=1, max_length=200_000)],
    thread_id: Annotated[str | None, Field(description="The conversation to go on with; a new one by default")] = None,
    agent: Annotated[str | None, Field(description="A custom agent's name")] = None,
    wait_seconds: Wait = WAIT_SECONDS,
) -> Turn:
    """Give the agent a message, and wait for its answer. With `wait_seconds: 0` it only starts; the work goes on
    without a reader.
    """
    call = current_call()
    body = msgspec.json.encode([message, agent])
    thread_id = safe_id(thread_id, "thread_id") if thread_id else new_id(call, "", "thread")
    state = await call.services.commands.state_or_empty(call.user, thread_id)
    if not state.exists:
        metadata = {"graph_id": DEFAULT, "assistant_id": assistant_id(DEFAULT), "client": "mcp"}
        await call.services.intake.create_thread(thread_id, user=call.user, metadata=metadata, again=True)
    run_input = {"messages": [{"type": "human", "id": uuid7(), "content": message}]}
    request = RunRequested(input=run_input, context=_context(call, agent))
    return await run_turn(call, thread_id, request, wait_seconds, body)


@_tool("runs:create", _ACTS)
async def chat_answer(
    thread_id: ThreadId,
    answer: Annotated[Any, Field(description="A text; for several questions an object, by their ids")],
    wait_seconds: Wait = WAIT_SECONDS,
) -> Turn:
    """Answer the questions at which a run has stopped, and wait for the run that goes on. A tool call that waits for
    approval is answered with `{"decision": "approve"}` or `{"decision": "reject", "message": "why"}`.
    """
    call = current_call()
    state = await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    body = msgspec.json.encode(answer, order="deterministic")
    if await repeated(call, thread_id, state, body):
        return await run_turn(call, thread_id, state.runs[new_id(call, thread_id)].request, wait_seconds, body)
    if state.paused is None:
        raise Invalid(f"Thread {thread_id} asks nothing")
    paused = approvals.resuming(state, {})
    context = {**paused.context, **_context(call, None)}
    request = msgspec.structs.replace(paused, resume=Resume(value=answer), context=context)
    return await run_turn(call, thread_id, request, wait_seconds, body)


@_tool("threads:read", _READS)
async def chat_read(thread_id: ThreadId, run_id: str, after: After = 0, wait_seconds: Wait = WAIT_SECONDS) -> Turn:
    """Read a run's messages after a position, and wait for its end. It can be read from the beginning at any time."""
    call = current_call()
    state = await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    after = max(after, shown_run(state, run_id).requested_seq)
    async with call.live.follow(thread_id) as follower:
        return await _turn(call, follower, thread_id, run_id, after, wait_seconds)


@_tool("runs:cancel", _STOPS)
async def chat_cancel(thread_id: ThreadId, run_id: str) -> Turn:
    """Stop a run. Its work stays."""
    call = current_call()
    state = await call.services.intake.cancel(safe_id(thread_id, "thread_id"), run_id, user=call.user)
    return _turn_of(thread_id, run_id, state, state.seq, [])


def _context(call: Call, agent: str | None) -> Json:
    return {"user_id": call.user, **({"agent_name": agent} if agent else {})}


async def run_turn(call: Call, thread_id: str, request: RunRequested, wait_seconds: float, body: bytes) -> Turn:
    """Requests a run and waits for what it says. `body`: what a client that repeats the call sends again."""
    run_id = new_id(call, thread_id)
    async with call.live.follow(thread_id) as follower:
        request = msgspec.structs.replace(request, fingerprint=fingerprint(call, body))
        _, record = await request_run(call, thread_id, run_id, request)
        return await _turn(call, follower, thread_id, run_id, record.seq, wait_seconds)


async def _turn(call: Call, follower: Follower, thread_id: str, run_id: str, after: int, wait_seconds: float) -> Turn:
    """Collects a run's messages: those that are there, and until its end, the time, or the limit of an answer."""
    turn = Collected(run_id, after)
    await _take_past(turn, follower)
    state = await call.services.commands.state(call.user, thread_id)
    if wait_seconds and not turn.over and _is_open(state, run_id):
        progress = Progress()
        await progress.report()
        beats = asyncio.create_task(progress.run())
        try:
            async with asyncio.timeout(wait_seconds), aclosing(follower.since(turn.position)) as batches:
                async for batch in batches:
                    if turn.take(batch):
                        break
                    progress.note(turn.messages)
        except TimeoutError:
            pass  # it goes on
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
        state = await call.services.commands.state(call.user, thread_id)
    if not turn.over and not _is_open(state, run_id):
        await _take_past(turn, follower)  # it has ended since
    return _turn_of(thread_id, run_id, state, turn.position, turn.messages, more=turn.full)


async def _take_past(turn: Collected, follower: Follower) -> None:
    """Takes what the log has by now."""
    async with aclosing(follower.past(turn.position)) as batches:
        async for batch in batches:
            if turn.take(batch):
                break


def _is_open(state: ThreadState, run_id: str) -> bool:
    run = state.runs.get(run_id)
    return run is not None and run.open


class Collected:
    """The messages of a run after a position. Pure."""

    def __init__(self, run_id: str, after: int) -> None:
        self.position, self.messages, self.done = after, list[Message](), False
        self._run, self._size = run_id, 0

    @property
    def full(self) -> bool:
        return self._size > MOST_CHARACTERS

    @property
    def over(self) -> bool:
        """True if nothing more fits, or comes."""
        return self.done or self.full

    def take(self, batch: Sequence[object]) -> bool:
        """Takes what is followed in. Returns whether it is `over`."""
        for item in batch:
            if isinstance(item, Record) and not self.over:
                self.position = item.seq
                if item.run == self._run and (message := _message(item)) is not None:
                    self.messages.append(message)
                    self._size += len(message.text)
                self.done = item.run in (self._run, None) and item.type in LAST
        return self.over


class Progress:
    """Tells a client that asked for it how the run goes on, and that its call lives."""

    def __init__(self) -> None:
        self._context, self._count, self._known = SIKA.get_context(), 0, 0
        self._text, self._news = "the agent is at work", asyncio.Event()

    async def report(self) -> None:
        self._count += 1
        await self._context.report_progress(self._count, message=self._text)

    async def run(self) -> None:
        """Reports what is noted, and every `PROGRESS_SECONDS` without news, until it is cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_SECONDS):
                    await self._news.wait()
            self._news.clear()
            await self.report()

    def note(self, messages: Sequence[Message]) -> None:
        """Takes the messages of the run so far."""
        if len(messages) > self._known:
            self._known = len(messages)
            calls = messages[-1].calls
            self._text = f"the agent calls {', '.join(calls)}" if calls else "the agent is at work"
            self._news.set()


def _message(record: Record) -> Message | None:
    match record.event:
        case ModelCompleted(message=message) | ToolCompleted(message=message):
            return _of(message)
        case MessageAdded(messages=[message, *_]):
            return _of(message)
    return None


def _of(message: Json) -> Message:
    roles: Mapping[str, Any] = {"human": "person", "ai": "agent", "tool": "tool"}
    calls = [str(call["name"]) for call in tool_calls(message)] if message["type"] == "ai" else []
    return Message(role=roles.get(message["type"], "system"), text=text_of(message.get("content", "")), calls=calls)


def _turn_of(
    thread_id: str, run_id: str, state: ThreadState, position: int, messages: list[Message], *, more: bool = False
) -> Turn:
    run = state.runs.get(run_id)
    turn = Turn(
        thread_id=thread_id,
        run_id=run_id,
        status=run.status if run is not None else "unknown",
        position=position,
        messages=messages,
        more=more,
    )
    if run is not None and run.open:
        turn.advice = f"It goes on. Read on: chat_read(thread_id={thread_id!r}, run_id={run_id!r}, after={position})"
    elif run is not None and run.error is not None:
        turn.advice = run.error.text
    elif state.paused is not None and (questions := _questions(state)):
        turn.questions, turn.status = questions, "waiting"
        turn.advice = f"Thread {thread_id} waits for an answer: chat_answer(thread_id={thread_id!r}, answer=…)"
    return turn


def _questions(state: ThreadState) -> list[Question]:
    return [Question(id=str(q["id"]), value=q["value"]) for several in state.interrupts.values() for q in several]


# ── threads and artifacts ────────────────────────────────────────────────────────────────────────────────────────────


@_tool("threads:read", _READS)
async def threads_list(
    query: Annotated[str | None, Field(description="Words in the messages or the title", max_length=1000)] = None,
    limit: Annotated[int, Field(ge=1, le=100)] = 20,
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0,
) -> ThreadList:
    """List your conversations, the latest first."""
    call = current_call()
    await call.services.views.current()
    rows, total = await call.services.views.search(user=call.user, query=query or None, limit=limit, offset=offset)
    lines = [
        ThreadLine(thread_id=r.thread_id, title=r.title or "", status=r.status, updated_at=r.updated_at) for r in rows
    ]
    return ThreadList(threads=lines, total=total)


@_tool("threads:read", _READS)
async def thread_read(
    thread_id: ThreadId,
    offset: Annotated[int, Field(ge=0)] = 0,
    limit: Annotated[int, Field(ge=1, le=200)] = 50,
) -> Thread:
    """Read the messages of a conversation, the oldest first."""
    call = current_call()
    state = await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    shown, size = list[Message](), 0
    for message in state.messages[offset : offset + limit]:
        shown.append(_of(message))
        if (size := size + len(shown[-1].text)) > MOST_CHARACTERS:
            break
    return Thread(
        thread_id=thread_id,
        title=str(state.values.get("title") or state.title),
        status=state.status,
        messages=shown,
        total=len(state.messages),
        questions=_questions(state),
    )


@_tool("files:read", _READS)
async def artifacts_list(thread_id: ThreadId) -> CallToolResult:
    """List the files that the agent has presented in a conversation, as links to resources."""
    call = current_call()
    state = await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    paths = [str(path) for path in state.values.get("artifacts") or ()]
    links = [
        ResourceLink(type="resource_link", name=path.rpartition("/")[2], uri=_uri(thread_id, path)) for path in paths
    ]
    text = TextContent(type="text", text="\n".join(paths) or "There are no files.")
    return CallToolResult(content=[text, *links])


@_tool("files:read", _READS)
async def artifact_read(thread_id: ThreadId, path: str) -> CallToolResult:
    """Read a file of a conversation, by the path under which the agent sees it."""
    data, kind = await _file(current_call(), thread_id, path)
    uri = _uri(thread_id, path)
    contents: TextResourceContents | BlobResourceContents
    try:
        contents = TextResourceContents(uri=uri, mimeType=kind, text=data.decode())
    except UnicodeDecodeError:
        contents = BlobResourceContents(uri=uri, mimeType=kind, blob=base64.b64encode(data).decode())
    return CallToolResult(content=[EmbeddedResource(type="resource", resource=contents)])


@SIKA.resource("sika://threads/{thread_id}/artifacts/{path}", name="artifact")
@_guarded("files:read")
async def artifact(thread_id: str, path: str) -> str | bytes:
    """A file of a conversation. `path` is percent-encoded."""
    data, _ = await _file(current_call(), thread_id, unquote(path))
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


async def _file(call: Call, thread_id: str, path: str) -> tuple[bytes, str]:
    await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    content = await to_thread.run_sync(artifacts.content_of, call.services.home, call.user, thread_id, path)
    try:
        if content.size > MOST_BYTES:
            raise Invalid(
                f"{path}: {content.size} bytes are too many here; GET /api/threads/{thread_id}/artifacts{path}"
            )
        return await to_thread.run_sync(content.read, 0, content.size), artifacts.type_of(content)
    finally:
        content.close()


def _uri(thread_id: str, path: str) -> AnyUrl:
    return AnyUrl(f"sika://threads/{thread_id}/artifacts/{quote(path.lstrip('/'), safe='')}")
