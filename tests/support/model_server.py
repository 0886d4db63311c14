"""A scripted OpenAI-compatible model server: real HTTP, no state, little CPU.

The `model` of a request chooses the behaviour:

* `tokens-<n>` or `tokens-<n>-delay-<ms>` answers with n words;
* a name with a `Live` coroutine is answered by it: it is sent the whole request, and may take its time;
* any other name is a `Script`: a list of turns. The turn to play is found by counting the assistant messages of the
  request, so that a repeated request, or one sent after a restart, gets the same answer. Where summaries take messages
  away, a marker counts instead: after the last `step-<n>` in the messages comes turn n + 1; let turn n say `step-<n>`.
  The one exception is `Turn.times`, which lets a fault strike a limited number of times, for tests of retries.

Nothing needs sleeping: a turn can wait at a named gate, tests wait until a request is there (`reached`) and open it
(`release`). Every request is recorded, with its outcome.

In a test: `async with ModelServer({"hello": Script([Turn(text="Hi")])}) as server: server.url`.
As a process: `python -m tests.support.model_server --port 0 --scripts file.json` prints the URL as its first line.

Speed: one `asyncio.Protocol`, no framework. Answers of `tokens-<n>` are rendered once and sent with one write, as one
HTTP chunk per token, so that the client has the same parsing to do as with a provider that flushes every token.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

import msgspec

Result = TypeVar("Result")

_CREATED = 1_700_000_000
_WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "brew"]
_TOKENS = re.compile(r"tokens-(\d+)(?:-delay-(\d+(?:\.\d+)?))?")
_MARKER = re.compile(rb"step-(\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ARGUMENT_PIECE = 7
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call of the model; its arguments are streamed in pieces."""

    name: str
    args: dict[str, Any] = {}
    id: str = ""
    """By default it is made of the position of the request and the number of the call."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP error instead of an answer."""

    status: int
    message: str = "scripted failure"
    code: str = "scripted_failure"
    headers: dict[str, str] = {}


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. Sent in the order reasoning, text, tool calls; a *token* is any streamed piece of these."""

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    """How the reasoning is called on the wire; vLLM says `reasoning`."""
    tool_calls: tuple[ToolCall, ...] = ()
    delay_ms: float = 0
    """Before each token."""
    error: Failure | None = None
    disconnect_after: int | None = None
    """Close the connection after this many tokens (not streaming: instead of the answer)."""
    times: int | None = None
    """How often `error` or `disconnect_after` strikes before the turn succeeds; None = always."""
    gate: str = ""
    """Wait here until the gate is released. An open gate stays open."""
    gate_after: int = 0
    """Tokens sent before waiting at the gate; at 0 not even the status line is sent."""
    piece: int = _ARGUMENT_PIECE
    """Characters of arguments in a token."""
    prompt_tokens: int | None = None
    """Reported input tokens; None = the number of messages: cheap and easy to predict in a test."""


class Script(msgspec.Struct, frozen=True):
    """Turns, chosen by the number of assistant messages after the last user message, or in the whole request; or by
    the last marker in the messages.
    """

    turns: tuple[Turn, ...]
    count: Literal["since_user", "total", "marker"] = "since_user"


Answer = Callable[[Sequence[dict[str, Any]]], Turn]
"""Decides on the turn by the messages that it is sent."""
Live = Callable[[dict[str, Any]], Coroutine[Any, Any, Turn]]
"""Decides on the turn by the whole request."""


class _Role(msgspec.Struct):
    role: str


class _Marked(msgspec.Struct):
    messages: msgspec.Raw

    def turn(self) -> int:
        """The one after the last marker; the first if there is none."""
        found = _MARKER.findall(self.messages)
        return int(found[-1]) + 1 if found else 0


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Request(msgspec.Struct):
    model: str
    messages: list[_Role]
    stream: bool = False
    stream_options: _StreamOptions | None = None

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def assistants(self, count: Literal["since_user", "total"] = "total") -> int:
        roles = [message.role for message in self.messages]
        if count == "since_user" and "user" in roles:
            roles = roles[len(roles) - roles[::-1].index("user") :]
        return roles.count("assistant")


class Record(msgspec.Struct):
    """One request as received. `position` counts all its assistant messages (with markers it is the turn), `turn` is
    the turn that was played.
    """

    model: str
    position: int
    turn: int
    body: dict[str, Any]
    outcome: Literal["open", "answered", "failed", "disconnected", "abandoned"] = "open"
    """`answered` is what a provider would bill; `abandoned` means that the client left first."""
    at: float = msgspec.field(default_factory=time.time)
    """When it came, in Unix seconds."""


def words(count: int) -> str:
    """The text that `tokens-<count>` answers."""
    return " ".join(_WORDS[i % len(_WORDS)] for i in range(count))


class ModelServer:
    """The server; use it as an async context manager. `record=False` keeps only counts, for benchmarks."""

    def __init__(
        self,
        scripts: Mapping[str, Script | Sequence[Turn] | Answer] | None = None,
        *,
        live: Mapping[str, Live] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        record: bool = True,
    ) -> None:
        self.scripts = {
            name: script if callable(script) else _script(script) for name, script in (scripts or {}).items()
        }
        self.live = dict(live or {})
        self.requests: list[Record] = []
        self.counts: Counter[str] = Counter()
        self.url = ""
        """What `base_url` needs, with `/v1`. All paths, also `/control/…`, are served with and without that prefix."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections: set[_Connection] = set()
        self._host, self._port = host, port
        self._record = record
        self._gates: dict[str, _Gate] = {}
        self._strikes: Counter[tuple[str, int]] = Counter()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), self._host, self._port, backlog=1024
        )
        self.url = f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.transport.abort()
        await self._server.wait_closed()

    def release(self, gate: str) -> None:
        """Open a gate for all who wait there or come later."""
        self._gate(gate).open.set()

    async def reached(self, gate: str) -> None:
        """Return when a request waits at this (closed) gate."""
        await self._gate(gate).occupied.wait()

    def answered(self, model: str) -> list[int]:
        """Positions of the requests to this model that got their whole answer: twice the same one was paid twice."""
        return [r.position for r in self.requests if r.model == model and r.outcome == "answered"]

    def _gate(self, name: str) -> _Gate:
        return self._gates.setdefault(name, _Gate())

    def handle(self, connection: _Connection, method: str, path: str, body: bytes) -> None:
        """Answer at once or start a task that does. Called with one request at a time per connection."""
        match method, path.removeprefix("/v1").strip("/").split("/"):
            case "POST", ["chat", "completions"]:
                self._complete(connection, body)
            case "GET", ["models"]:
                names = ["tokens-50", *self.scripts, *self.live]
                connection.send_json(200, {"object": "list", "data": [{"id": n, "object": "model"} for n in names]})
            case "GET", ["control", "requests"]:
                connection.send_json(
                    200, {"count": self.counts.total(), "by_model": self.counts, "requests": self.requests}
                )
            case "GET", ["control", "waiting"]:
                connection.send_json(200, {name: gate.waiting for name, gate in self._gates.items() if gate.waiting})
            case "GET", ["control", "waiting", gate]:
                connection.start(self._report_reached(connection, gate))
            case "POST", ["control", "release", gate]:
                self.release(gate)
                connection.send_json(200, {"released": gate})
            case _:
                connection.send_json(404, _problem(f"no route {method} {path}", "not_found"))

    async def _report_reached(self, connection: _Connection, gate: str) -> None:
        """`GET /control/waiting/<gate>` answers when a request waits there: how another process synchronises."""
        await self.reached(gate)
        connection.send_json(200, {gate: self._gate(gate).waiting})

    def _complete(self, connection: _Connection, body: bytes) -> None:
        try:
            request = msgspec.json.decode(body, type=_Request)
        except msgspec.DecodeError as error:
            connection.send_json(400, _problem(str(error), "invalid_request"))
            return
        self.counts[request.model] += 1
        turn = _tokens_turn(request.model)
        if turn is None:
            self._play_script(connection, request, body)
            return
        record = self._remember(request, request.assistants(), 0, body)
        if turn.delay_ms or not request.stream:
            connection.start(_play(connection, request, turn, record))
            return
        usage = _usage(request, len(_tokens_frames(request.model))) if request.with_usage else b""
        connection.transport.write(_tokens_answer(request.model) + usage + _STREAM_END)
        record.outcome = "answered"

    def _play_script(self, connection: _Connection, request: _Request, body: bytes) -> None:
        if (live := self.live.get(request.model)) is not None:
            connection.start(self._converse(connection, request, body, live))
            return
        script = self.scripts.get(request.model)
        if script is None:
            connection.send_json(404, _problem(f"no model {request.model!r}", "model_not_found"))
            return
        if callable(script):
            record = self._remember(request, request.assistants(), request.assistants(), body)
            connection.start(_play(connection, request, script(msgspec.json.decode(body)["messages"]), record))
            return
        if script.count == "marker":
            index = position = msgspec.json.decode(body, type=_Marked).turn()
        else:
            index, position = request.assistants(script.count), request.assistants()
        record = self._remember(request, position, index, body)
        if index >= len(script.turns):
            record.outcome = "failed"
            connection.send_json(400, _problem(f"script {request.model!r} has no turn {index}", "script_exhausted"))
            return
        turn = self._strike(script.turns[index], record)
        connection.start(_play(connection, request, turn, record, self._gate(turn.gate) if turn.gate else None))

    async def _converse(self, connection: _Connection, request: _Request, body: bytes, live: Live) -> None:
        record = self._remember(request, request.assistants(), request.assistants(), body)
        try:
            turn = await live(msgspec.json.decode(body))
        except asyncio.CancelledError:
            record.outcome = "abandoned"
            raise
        await _play(connection, request, turn, record, self._gate(turn.gate) if turn.gate else None)

    def _remember(self, request: _Request, position: int, turn: int, body: bytes) -> Record:
        record = Record(request.model, position, turn, msgspec.json.decode(body) if self._record else {})
        if self._record:
            self.requests.append(record)
        return record

    def _strike(self, turn: Turn, record: Record) -> Turn:
        """The turn without its fault once the fault has struck often enough."""
        if turn.times is None:
            return turn
        key = (record.model, record.position)
        self._strikes[key] += 1
        if self._strikes[key] <= turn.times:
            return turn
        return msgspec.structs.replace(turn, error=None, disconnect_after=None)


class _Disconnect(Exception):
    """The script wants the connection to break here."""


class _Gate:
    """A place where requests wait until a test lets them go on."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.occupied = asyncio.Event()
        self.waiting = 0

    async def passed(self) -> None:
        if self.open.is_set():
            return
        self.waiting += 1
        self.occupied.set()
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
            if not self.waiting:
                self.occupied.clear()


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one request at a time. A task in progress is cancelled when the client leaves."""

    transport: asyncio.Transport

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._task:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        while self._task is None and (request := self._take()):
            self._server.handle(self, *request)

    def _take(self) -> tuple[str, str, bytes] | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self._buffer[:end])
        length = _LENGTH.search(head)
        stop = end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < stop:
            return None
        body = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        method, path, _ = head.split(b" ", 2)
        return method.decode(), path.decode(), body

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer by a coroutine; the next request of this connection waits for its end."""
        self._task = asyncio.get_running_loop().create_task(work)
        self._server.tasks.add(self._task)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._server.tasks.discard(task)
        self._task = None
        if task.cancelled():
            return
        if error := task.exception():
            self.transport.abort()
            raise error
        if not self.transport.is_closing():
            self._next()

    def send_json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        body = msgspec.json.encode(value)
        fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
        self.transport.write(f"HTTP/1.1 {status} Scripted\r\n{head}\r\n".encode() + body)


async def _play(
    connection: _Connection, request: _Request, turn: Turn, record: Record, gate: _Gate | None = None
) -> None:
    """Send one answer, with its pauses and faults, and note in the record how it ended."""
    try:
        if gate and turn.gate_after == 0:
            await gate.passed()
        if turn.error:
            connection.send_json(turn.error.status, _problem(turn.error.message, turn.error.code), turn.error.headers)
            record.outcome = "failed"
        elif request.stream:
            await _stream(connection.transport.write, request, turn, record.position, gate)
            record.outcome = "answered"
        else:
            answer = _completion(turn, request, record.position)
            await asyncio.sleep(turn.delay_ms * answer["usage"]["completion_tokens"] / 1000)
            connection.send_json(200, answer)
            record.outcome = "answered"
    except _Disconnect:
        record.outcome = "disconnected"
        connection.transport.close()
    except asyncio.CancelledError:
        record.outcome = "abandoned"
        raise


async def _stream(
    write: Callable[[bytes], None], request: _Request, turn: Turn, position: int, gate: _Gate | None
) -> None:
    frames = _frames(turn, request.model, position)
    write(_STREAM_HEAD + _frame(request.model, {"role": "assistant", "content": ""}))
    for place in range(len(frames) + 1):
        if gate and place == min(turn.gate_after, len(frames)):
            await gate.passed()
        if turn.disconnect_after is not None and place >= turn.disconnect_after:
            raise _Disconnect
        if place < len(frames):
            if turn.delay_ms:
                await asyncio.sleep(turn.delay_ms / 1000)
            write(frames[place])
    if turn.disconnect_after is not None:
        raise _Disconnect
    usage = _usage(request, len(frames), turn.prompt_tokens) if request.with_usage else b""
    write(_frame(request.model, {}, _finish(turn)) + usage + _STREAM_END)


def _script(script: Script | Sequence[Turn]) -> Script:
    return script if isinstance(script, Script) else Script(tuple(script))


@lru_cache(maxsize=256)
def _tokens_turn(model: str) -> Turn | None:
    match = _TOKENS.fullmatch(model)
    return Turn(text=words(int(match[1])), delay_ms=float(match[2] or 0)) if match else None


@cache
def _tokens_frames(model: str) -> list[bytes]:
    turn = _tokens_turn(model)
    assert turn is not None
    return _frames(turn, model, 0)


@cache
def _tokens_answer(model: str) -> bytes:
    """Everything of a `tokens-<n>` answer that is the same for all requests."""
    first, last = _frame(model, {"role": "assistant", "content": ""}), _frame(model, {}, "stop")
    return b"".join([_STREAM_HEAD, first, *_tokens_frames(model), last])


def _frames(turn: Turn, model: str, position: int) -> list[bytes]:
    """One frame per token."""
    deltas: list[dict[str, Any]] = [{turn.reasoning_field: piece} for piece in _split(turn.reasoning)]
    deltas += [{"content": piece} for piece in _split(turn.text)]
    for index, call in enumerate(turn.tool_calls):
        deltas += _call_deltas(index, call, position, turn.piece)
    return [_frame(model, delta) for delta in deltas]


def _call_deltas(index: int, call: ToolCall, position: int, piece: int) -> list[dict[str, Any]]:
    """The head of a tool call, then its arguments in pieces, as providers stream them."""
    arguments = msgspec.json.encode(call.args).decode()
    pieces = [arguments[i : i + piece] for i in range(0, len(arguments), piece)]
    opening = {"index": index, **_tool_call(index, call, position, "")}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
    return [{"tool_calls": [delta]} for delta in (opening, *rest)]


def _tool_call(index: int, call: ToolCall, position: int, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id or f"call_{position}_{index}", "type": "function", "function": function}


def _split(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)


def _finish(turn: Turn) -> str:
    return "tool_calls" if turn.tool_calls else "stop"


def _frame(model: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _chunk(model, {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _usage(request: _Request, tokens: int, prompt: int | None = None) -> bytes:
    return _chunk(request.model, {"choices": [], "usage": _usage_counts(request, tokens, prompt)})


def _usage_counts(request: _Request, tokens: int, prompt: int | None) -> dict[str, int]:
    prompt = len(request.messages) if prompt is None else prompt
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def _chunk(model: str, fields: dict[str, Any]) -> bytes:
    """An SSE event in an HTTP chunk of its own."""
    common = {"id": f"chatcmpl-{model}", "object": "chat.completion.chunk", "created": _CREATED, "model": model}
    event = b"data: " + msgspec.json.encode(common | fields) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _completion(turn: Turn, request: _Request, position: int) -> dict[str, Any]:
    """The answer to a request without streaming."""
    if turn.disconnect_after is not None:
        raise _Disconnect
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.reasoning:
        message[turn.reasoning_field] = turn.reasoning
    if turn.tool_calls:
        message["tool_calls"] = [
            _tool_call(index, call, position, msgspec.json.encode(call.args).decode())
            for index, call in enumerate(turn.tool_calls)
        ]
    return {
        "id": f"chatcmpl-{request.model}",
        "object": "chat.completion",
        "created": _CREATED,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(turn)}],
        "usage": _usage_counts(request, len(_frames(turn, request.model, position)), turn.prompt_tokens),
    }


def _problem(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run`, on uvloop where it is installed: what Sika itself runs on. All parts of a benchmark use it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(port: int, scripts: dict[str, Script], record: bool) -> None:
    async with ModelServer(scripts, port=port, record=record) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted OpenAI-compatible model server.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--scripts", type=Path, help='JSON: {"name": {"turns": [...], "count": "since_user"}}')
    parser.add_argument("--count-only", action="store_true", help="do not keep requests, for benchmarks")
    options = parser.parse_args()
    scripts = msgspec.json.decode(options.scripts.read_bytes(), type=dict[str, Script]) if options.scripts else {}
    try:
        run(_serve(options.port, scripts, not options.count_only))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
