"""A local Slack: Socket Mode and the Web API, as publicly documented, over loopback.

    async with SlackServer() as server:
        ts = await server.person("ann").says("hello", chat="general", mention=True)
        server.seen("general")      # messages as people see them now

What Slack would refuse is refused with its error code. `faults` breaks calls and deliveries, `calls` has every call,
`problems` what no client should do: an identical edit, a call before `Retry-After` ended, a ping of everybody, a
preview of an address.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from aiohttp import WSMsgType, web

BOT_TOKEN = "xoxb-local-0123456789-abcdef"
APP_TOKEN = "xapp-local-0123456789-abcdef"
TEAM = "T0LOCAL"
BOT_USER = "U0BOT"
BOT = "B0BOT"
BLOCK_TYPES = frozenset({"actions", "context", "context_actions", "divider", "header", "markdown", "section"})
ALL_SCOPES = (
    "app_mentions:read,assistant:write,channels:history,chat:write,commands,files:read,files:write,groups:history,"
    "im:history,metadata.message:read,mpim:history,reactions:write,users:read"
)
NEEDED = {
    "assistant.threads.setStatus": "assistant:write",
    "assistant.threads.setSuggestedPrompts": "assistant:write",
    "assistant.threads.setTitle": "assistant:write",
    "chat.appendStream": "chat:write",
    "chat.delete": "chat:write",
    "chat.postEphemeral": "chat:write",
    "chat.postMessage": "chat:write",
    "chat.startStream": "chat:write",
    "chat.stopStream": "chat:write",
    "chat.update": "chat:write",
    "conversations.history": "channels:history",
    "conversations.replies": "channels:history",
    "files.completeUploadExternal": "files:write",
    "files.getUploadURLExternal": "files:write",
    "files.info": "files:read",
    "reactions.add": "reactions:write",
    "reactions.remove": "reactions:write",
    "users.info": "users:read",
}
PER_MINUTE = {"chat.update": 50, "chat.appendStream": 100, "chat.startStream": 20, "chat.stopStream": 20}
"""Tiers 2, 3 and 4. `chat.postMessage` has a rule of its own: one a second for each channel, and short bursts."""
BURST = 5
PINGS = re.compile(r"<!(channel|here|everyone)[|>]|<@U\w+>|(?<![\w`])@(channel|here|everyone)\b")


class Refused(Exception):
    """A call is answered with an error code."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.body = {"ok": False, "error": error, **more}


class Call(NamedTuple):
    """A call of the Web API. `result`: `ok`, an error code, or the fault that hit it."""

    method: str
    body: Mapping[str, Any]
    result: str
    at: float


@dataclass
class Link:
    """A connection to the Web API: when it made its first call, and when its last one was answered."""

    opened: float
    answered: float = 0.0


class Limit(NamedTuple):
    """A refusal with `Retry-After`. A client knows it that calls on a connection of that time which was answered since;
    other calls may have been under way, or be those of a process that does not know it."""

    at: float
    until: float


class Seen(NamedTuple):
    """A message as people see it."""

    ts: str
    author: str
    text: str
    thread: str = ""
    files: tuple[str, ...] = ()
    buttons: tuple[str, ...] = ()
    status: str = ""


@dataclass
class Chat:
    """A channel or a direct conversation."""

    id: str
    kind: str
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    archived: bool = False
    bot_is_member: bool = True


@dataclass
class Faults:
    """What goes wrong next. Entries of `calls` are used up one by one, by method: `lose` (done, but the answer is cut),
    `cut` (cut before it is done), `html` (503 with a page), `done_html` (done, and 503), an error code, `rate:<s>`, or
    empty for none."""

    calls: defaultdict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))
    refuse_handshakes: int = 0
    """Connections that are refused with HTTP 502."""
    no_hello: int = 0
    """Connections on which nothing is ever sent."""
    duplicate: int = 0
    """Events that are delivered twice, with the same `event_id`."""
    refused_files: set[str] = field(default_factory=set)
    """Names."""
    hold: bool = False
    """Events wait for `SlackServer.release`, which may reorder them."""

    def add(self, method: str, *faults: str) -> None:
        self.calls[method].extend(faults)


@dataclass(eq=False)
class Socket:
    """A connection of the app."""

    ws: web.WebSocketResponse
    request: web.Request
    half_open: bool = False


@dataclass(eq=False)
class Envelope:
    """An envelope, and how often it was sent."""

    id: str
    body: dict[str, Any]
    attempt: int = 0
    timer: asyncio.TimerHandle | None = None


class SlackServer:
    """One workspace with one app. `ack_seconds`: the time for an acknowledgement; `redelivery`: pauses before what was
    not acknowledged comes again. `enforce_rates`: answer 429 by Slack's rate rules."""

    def __init__(
        self,
        *,
        ack_seconds: float = 3.0,
        redelivery: Sequence[float] = (0.0, 60.0, 300.0),
        enforce_rates: bool = False,
        streams: bool = True,
        stream_seconds: float = 300.0,
    ) -> None:
        self.ack_seconds = ack_seconds
        self.redelivery = redelivery
        self.enforce_rates = enforce_rates
        self.streams = streams
        self.stream_seconds = stream_seconds
        self.scopes = ALL_SCOPES
        self.markdown_blocks = True
        self.bot_token = BOT_TOKEN
        self.bot_token_error = ""
        self.unauthorised = 0
        """Calls that were refused for their bot token."""
        self.app_token_error = ""
        self.faults = Faults()
        self.calls: list[Call] = []
        self.whispered: dict[tuple[str, str], list[str]] = {}
        """Ephemeral messages, by channel and person."""
        self.problems: list[str] = []
        self.acked: list[str] = []
        """Ids of acknowledged envelopes, in order."""
        self.abandoned: list[Envelope] = []
        """What was not acknowledged after all deliveries."""
        self.handshakes = 0
        self.most_sockets = 0
        self.sockets: list[Socket] = []
        self.chats: dict[str, Chat] = {}
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        """Of files, by id."""
        self.statuses: dict[tuple[str, str], str] = {}
        self.prompts: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.titles: dict[tuple[str, str], str] = {}
        """Of conversations in the assistant pane, by channel and thread."""
        self.people: dict[str, str] = {BOT_USER: "sika"}
        self._names: dict[str, str] = {}
        self._tickets: set[str] = set()
        self._ids = itertools.count(1)
        self._clock = 0.0
        self._pending: dict[str, Envelope] = {}
        self._waiting: deque[Envelope] = deque()
        self._held: list[Envelope] = []
        self._turn = 0
        self._used: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)
        self._limits: dict[tuple[str, str], Limit] = {}
        self._links: WeakKeyDictionary[Any, Link] = WeakKeyDictionary()
        """By the transport of a connection."""
        self._streams: dict[str, float] = {}
        self._writers: dict[str, Any] = {}
        """The transports over which messages were written last, unless the answer said nothing of it: a client whose
        connection was lost may not know what it did, and do that again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Event()
        """Set at each call and acknowledgement; `until` waits for it."""

    async def __aenter__(self) -> SlackServer:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/api/{method}", self._api)
        app.router.add_get("/link", self._connect)
        app.router.add_post("/upload/{id}", self._upload)
        app.router.add_get("/files/{id}", self._download)
        app.router.add_get("/signin", self._sign_in)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.origin = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        for envelope in self._pending.values():
            if envelope.timer:
                envelope.timer.cancel()
        self.drop()
        await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        """The setting `base_url` for this server."""
        return f"{self.origin}/api/"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of an account of this workspace."""
        return {"bot_token": self.bot_token, "app_token": APP_TOKEN, "base_url": self.base_url}

    # People

    def person(self, name: str) -> Person:
        """Returns a person, who is made if need be."""
        id_ = f"U0{name.upper()}"
        self.people[id_] = name
        return Person(self, id_, name)

    def chat(self, name: str) -> Chat:
        """Returns a chat by name or id: `general` is a channel, `@ann` her conversation with the bot."""
        if name in self.chats:
            return self.chats[name]
        kind = "im" if name.startswith("@") else "channel"
        id_ = self._names.setdefault(name, f"{'D' if kind == 'im' else 'C'}0{name.lstrip('@').upper()}")
        return self.chats.setdefault(id_, Chat(id_, kind))

    def seen(self, chat: str, thread: str | None = None) -> list[Seen]:
        """Returns the messages of a chat as people see them; of one thread, if it is named."""
        messages = sorted(self.chat(chat).messages.values(), key=lambda message: float(message["ts"]))
        return [
            Seen(
                ts=message["ts"],
                author=self.people[message["user"]],
                text=_visible(message),
                thread=message.get("thread_ts", ""),
                files=tuple(file["name"] for file in message.get("files", ())),
                buttons=tuple(
                    element["text"]["text"]
                    for block in message.get("blocks", ())
                    if block["type"] == "actions"
                    for element in block["elements"]
                ),
                status=" ".join(
                    element["text"]
                    for block in message.get("blocks", ())
                    if block["type"] == "context"
                    for element in block["elements"]
                ),
            )
            for message in messages
            if thread is None or thread in (message["ts"], message.get("thread_ts"))
        ]

    def answers(self, chat: str, thread: str | None = None) -> list[Seen]:
        """Returns what the bot said."""
        return [message for message in self.seen(chat, thread) if message.author == "sika"]

    def called(self, method: str) -> list[Call]:
        """Returns the calls of a method."""
        return [call for call in self.calls if call.method == method]

    async def until(self, condition: Any, seconds: float = 120.0) -> None:
        """Waits until a condition holds. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    # Events

    def event(self, event: Mapping[str, Any]) -> None:
        """Delivers an event of the Events API."""
        payload = {
            "type": "event_callback",
            "team_id": TEAM,
            "api_app_id": "A0LOCAL",
            "event_id": f"Ev{next(self._ids)}",
            "event_time": int(time.time()),
            "authorizations": [{"team_id": TEAM, "user_id": BOT_USER, "is_bot": True}],
            "event": dict(event),
        }
        self.deliver("events_api", payload)
        if self.faults.duplicate:
            self.faults.duplicate -= 1
            self.deliver("events_api", payload)

    def deliver(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Delivers a payload of a kind: `events_api`, `slash_commands`, `interactive`."""
        envelope = Envelope(
            f"env-{next(self._ids)}",
            {"type": kind, "payload": payload, "accepts_response_payload": kind != "events_api"},
        )
        if self.faults.hold:
            self._held.append(envelope)
        else:
            self._send(envelope)

    def release(self, *, reverse: bool = False) -> None:
        """Sends what was held back."""
        self.faults.hold = False
        held, self._held = self._held, []
        for envelope in reversed(held) if reverse else held:
            self._send(envelope)

    def _send(self, envelope: Envelope) -> None:
        open_sockets = [socket for socket in self.sockets if not socket.ws.closed]
        if not open_sockets:
            self._waiting.append(envelope)
            return
        self._turn += 1
        socket = open_sockets[self._turn % len(open_sockets)]
        body = dict(envelope.body, envelope_id=envelope.id)
        if body["type"] == "events_api":
            body |= {"retry_attempt": envelope.attempt, "retry_reason": "timeout" if envelope.attempt else ""}
        self._pending[envelope.id] = envelope
        self._write(socket, body)
        loop = asyncio.get_running_loop()
        envelope.timer = loop.call_later(self.ack_seconds, self._unacked, envelope)

    def _write(self, socket: Socket, body: Mapping[str, Any]) -> None:
        if not socket.half_open:
            self._start(self._write_out(socket, body))

    async def _write_out(self, socket: Socket, body: Mapping[str, Any]) -> None:
        with suppress(ConnectionError, RuntimeError):
            await socket.ws.send_str(json.dumps(body))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unacked(self, envelope: Envelope) -> None:
        if self._pending.pop(envelope.id, None) is None:
            return
        if envelope.attempt >= len(self.redelivery):
            self.abandoned.append(envelope)
            return
        pause = self.redelivery[envelope.attempt]
        again = Envelope(f"env-{next(self._ids)}", envelope.body, envelope.attempt + 1)
        again.timer = asyncio.get_running_loop().call_later(pause, self._send, again)
        self._pending[again.id] = again

    # Connections

    def drop(self) -> None:
        """Cuts all connections."""
        for socket in self.sockets:
            if socket.request.transport is not None:
                socket.request.transport.abort()

    def half_open(self) -> None:
        """Lets all connections go silent: nothing is read from them or written to them any more."""
        for socket in self.sockets:
            socket.half_open = True
            if socket.request.transport is not None:
                socket.request.transport.pause_reading()

    async def close_sockets(self) -> None:
        """Closes all connections in order."""
        for socket in list(self.sockets):
            await socket.ws.close()

    def disconnect(self, reason: str) -> None:
        """Sends Slack's own notice: `warning`, `refresh_requested`, `link_disabled`, `too_many_websockets`."""
        for socket in self.sockets:
            self._write(socket, {"type": "disconnect", "reason": reason, "debug_info": {"host": "applink"}})

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        self.handshakes += 1
        ticket = request.query.get("ticket", "")
        if self.faults.refuse_handshakes:
            self.faults.refuse_handshakes -= 1
            return web.Response(status=502, text="<html>Bad Gateway</html>", content_type="text/html")
        if ticket not in self._tickets:
            self.problems.append("a ticket was used twice")
            return web.Response(status=403)
        self._tickets.discard(ticket)
        # Pings are answered by hand, so that a half-open connection can stay silent.
        ws = web.WebSocketResponse(autoping=False)
        await ws.prepare(request)
        socket = Socket(ws, request)
        if self.faults.no_hello:
            self.faults.no_hello -= 1
            socket.half_open = True
        if len(self.sockets) >= 10:
            self._write(socket, {"type": "disconnect", "reason": "too_many_websockets"})
        self.sockets.append(socket)
        self.most_sockets = max(self.most_sockets, len(self.sockets))
        self._write(
            socket,
            {
                "type": "hello",
                "num_connections": len(self.sockets),
                "connection_info": {"app_id": "A0LOCAL"},
                "debug_info": {"host": "applink", "build_number": 1, "approximate_connection_time": 18060},
            },
        )
        while self._waiting:
            self._send(self._waiting.popleft())
        try:
            async for frame in ws:
                if socket.half_open:
                    continue
                if frame.type == WSMsgType.PING:
                    await ws.pong(frame.data)
                elif frame.type == WSMsgType.TEXT:
                    self._ack(json.loads(frame.data))
        except ConnectionError:
            pass
        finally:
            self.sockets.remove(socket)
            self.changed.set()
        return ws

    def _ack(self, frame: Mapping[str, Any]) -> None:
        envelope = self._pending.pop(frame["envelope_id"], None)
        if set(frame) - {"envelope_id", "payload"}:
            self.problems.append(f"an acknowledgement with {sorted(frame)}")
        if envelope is not None:
            if envelope.timer:
                envelope.timer.cancel()
            self.acked.append(envelope.id)
        self.changed.set()

    # Web API

    async def _api(self, request: web.Request) -> web.StreamResponse:
        link = self._links.setdefault(request.transport, Link(time.monotonic()))
        try:
            return await self._call(request, link)
        finally:
            link.answered = time.monotonic()

    async def _call(self, request: web.Request, link: Link) -> web.StreamResponse:
        method = request.match_info["method"]
        body = await _body(request)
        faults = self.faults.calls[method]
        fault = faults.popleft() if faults else ""
        if fault == "cut":
            return self._cut(request, method, body, fault)
        if fault == "html":
            self._record(method, body, fault)
            return web.Response(status=503, text="<html>Service Unavailable</html>", content_type="text/html")
        limited = method, str(body.get("channel")) if method == "chat.postMessage" else ""
        limit = self._limits.get(limited, Limit(0.0, 0.0))
        if time.monotonic() < limit.until and link.opened <= limit.at <= link.answered:
            self.problems.append(f"{method} was called before Retry-After ended")
        rate = float(fault.removeprefix("rate:")) if fault.startswith("rate:") else self._rate(method, body)
        if rate:
            self._limits[limited] = Limit(time.monotonic(), time.monotonic() + rate)
            self._record(method, body, "ratelimited")
            return web.json_response(
                {"ok": False, "error": "ratelimited"}, status=429, headers={"Retry-After": f"{rate:g}"}
            )
        try:
            if fault and fault not in ("lose", "done_html"):
                raise Refused(fault)
            self._authorise(request, method)
            answer = {"ok": True, **self._do(method, body)}
            self._writers[str(answer.get("ts"))] = None if fault == "done_html" else request.transport
            self._record(method, body, fault or "ok")
        except Refused as refused:
            answer = refused.body
            self._record(method, body, answer["error"])
        if fault == "lose":
            return self._cut(request, method, body, "")
        if fault == "done_html":
            return web.Response(status=503, text="<html>Service Unavailable</html>", content_type="text/html")
        return web.json_response(answer, headers={"X-OAuth-Scopes": self.scopes})

    def _cut(self, request: web.Request, method: str, body: Mapping[str, Any], record: str) -> web.StreamResponse:
        if record:
            self._record(method, body, record)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _record(self, method: str, body: Mapping[str, Any], result: str) -> None:
        self.calls.append(Call(method, body, result, time.monotonic()))
        self.changed.set()

    def _rate(self, method: str, body: Mapping[str, Any]) -> float:
        """Returns the seconds to wait, 0 if the call is within the rules."""
        if not self.enforce_rates:
            return 0.0
        now = time.monotonic()
        if method == "chat.postMessage":
            used, most, window = self._used[method, str(body.get("channel"))], BURST, float(BURST)
        elif method in PER_MINUTE:
            used, most, window = self._used[method, ""], PER_MINUTE[method], 60.0
        else:
            return 0.0
        while used and used[0] <= now - window:
            used.popleft()
        if len(used) >= most:
            return max(1.0, round(used[0] + window - now))
        used.append(now)
        return 0.0

    def _authorise(self, request: web.Request, method: str) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if method == "apps.connections.open":
            if self.app_token_error:
                raise Refused(self.app_token_error)
            if token != APP_TOKEN:
                raise Refused("not_allowed_token_type" if token == BOT_TOKEN else "invalid_auth")
            return
        if self.bot_token_error:
            raise Refused(self.bot_token_error)
        if token != self.bot_token:
            self.unauthorised += 1
            raise Refused("not_authed" if not token else "invalid_auth")
        needed = NEEDED.get(method)
        if needed and needed not in self.scopes.split(","):
            raise Refused("missing_scope", needed=needed, provided=self.scopes)

    def _do(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        handler = getattr(self, f"_{method.replace('.', '_')}", None)
        if handler is None:
            raise Refused("unknown_method", req_method=method)
        result: dict[str, Any] = handler(body)
        return result

    def _auth_test(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "url": "https://local.slack.com/",
            "team": "Local",
            "user": "sika",
            "team_id": TEAM,
            "user_id": BOT_USER,
            "bot_id": BOT,
        }

    def _apps_connections_open(self, body: Mapping[str, Any]) -> dict[str, Any]:
        ticket = f"ticket-{next(self._ids)}"
        self._tickets.add(ticket)
        return {"url": f"{self.origin.replace('http', 'ws')}/link?ticket={ticket}&app_id=A0LOCAL"}

    def _users_info(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = self.people.get(body["user"])
        if name is None:
            raise Refused("user_not_found")
        return {"user": {"id": body["user"], "name": name, "profile": {"display_name": name.title()}}}

    def ts(self) -> str:
        """Returns the next timestamp: unique, and never one that goes back."""
        self._clock = max(time.time(), self._clock + 0.000001)
        return f"{self._clock:.6f}"

    def _channel(self, body: Mapping[str, Any], key: str = "channel") -> Chat:
        chat = self.chats.get(str(body.get(key)))
        if chat is None:
            raise Refused("channel_not_found")
        if not chat.bot_is_member:
            raise Refused("not_in_channel")
        if chat.archived:
            raise Refused("is_archived")
        return chat

    def _own(self, chat: Chat, ts: Any) -> dict[str, Any]:
        message = chat.messages.get(str(ts))
        if message is None:
            raise Refused("message_not_found")
        if message["user"] != BOT_USER:
            raise Refused("cant_update_message")
        return message

    def _root(self, chat: Chat, body: Mapping[str, Any]) -> str:
        root = str(body.get("thread_ts") or "")
        if root:
            message = chat.messages.get(root)
            if message is None:
                raise Refused("thread_not_found")
            if message.get("thread_ts", root) != root:
                self.problems.append("an answer was sent to a reply, not to the root of its thread")
            message["thread_ts"] = root
        return root

    def _chat_postEphemeral(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["user"] not in self.people:
            raise Refused("user_not_in_channel")
        text = _visible({"type": "message", **self._content(body, 40_000)})
        self.whispered.setdefault((self._channel(body).id, str(body["user"])), []).append(text)
        return {"message_ts": self.ts()}

    def _chat_postMessage(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat = self._channel(body)
        root = self._root(chat, body)
        for kind in ("unfurl_links", "unfurl_media"):
            if str(body.get(kind)).lower() not in ("false", "0"):
                self.problems.append(f"addresses in an answer are fetched, whoever wrote them: {kind}")
        message = {"type": "message", "user": BOT_USER, "bot_id": BOT, "ts": self.ts(), **self._content(body, 40_000)}
        if root:
            message["thread_ts"] = root
        chat.messages[message["ts"]] = message
        if root:
            self.statuses.pop((chat.id, root), None)
        self.event({**message, "channel": chat.id, "channel_type": chat.kind})
        return {"channel": chat.id, "ts": message["ts"], "message": message}

    def _chat_update(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat = self._channel(body)
        message = self._own(chat, body.get("ts"))
        if self._streaming(message["ts"]):
            raise Refused("streaming_state_conflict")
        if len(str(body.get("text") or "")) > 4_000:
            raise Refused("msg_too_long")
        content = self._content(body, 40_000)
        writer = self._writers.get(message["ts"])
        heard = writer is not None and not writer.is_closing()
        if heard and all(
            message.get(key) == content.get(key, message.get(key)) for key in ("text", "blocks", "metadata")
        ):
            self.problems.append("an identical edit")
        before = dict(message)
        message.update(content)
        if "blocks" not in content:
            message.pop("blocks", None)
        message.pop("streamed", None)
        self.event(
            {
                "type": "message",
                "subtype": "message_changed",
                "hidden": True,
                "channel": chat.id,
                "channel_type": chat.kind,
                "ts": self.ts(),
                "message": {**message, "edited": {"user": BOT_USER, "ts": self.ts()}},
                "previous_message": before,
            }
        )
        return {"channel": chat.id, "ts": message["ts"], "text": message.get("text", "")}

    def _chat_delete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat = self._channel(body)
        message = self._own(chat, body.get("ts"))
        del chat.messages[message["ts"]]
        self.event(
            {
                "type": "message",
                "subtype": "message_deleted",
                "hidden": True,
                "channel": chat.id,
                "deleted_ts": message["ts"],
                "ts": self.ts(),
                "previous_message": message,
            }
        )
        return {"channel": chat.id, "ts": message["ts"]}

    def _chat_startStream(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not self.streams:
            raise Refused("unknown_method", req_method="chat.startStream")
        chat = self._channel(body)
        if not body.get("thread_ts"):
            raise Refused("invalid_arguments")
        if chat.kind != "im" and not (body.get("recipient_user_id") and body.get("recipient_team_id")):
            raise Refused("missing_recipient_user_id")
        root = self._root(chat, body)
        text = self._stream_text(body)
        ts = self.ts()
        message = {"type": "message", "user": BOT_USER, "bot_id": BOT, "ts": ts, "thread_ts": root, "streamed": text}
        chat.messages[ts] = message
        self._streams[ts] = time.monotonic() + self.stream_seconds
        self.statuses.pop((chat.id, root), None)
        return {"channel": chat.id, "ts": ts}

    def _chat_appendStream(self, body: Mapping[str, Any]) -> dict[str, Any]:
        message = self._own(self._channel(body), body.get("ts"))
        if not self._streaming(message["ts"]):
            raise Refused("message_not_in_streaming_state")
        message["streamed"] += self._stream_text(body)
        return {"channel": body["channel"], "ts": message["ts"]}

    def _chat_stopStream(self, body: Mapping[str, Any]) -> dict[str, Any]:
        message = self._own(self._channel(body), body.get("ts"))
        if not self._streaming(message["ts"]):
            raise Refused("message_not_in_streaming_state")
        del self._streams[message["ts"]]
        return {"channel": body["channel"], "ts": message["ts"], "message": message}

    def expire_streams(self) -> None:
        """Closes all open streams, as Slack does after about five minutes."""
        self._streams.clear()

    def _streaming(self, ts: str) -> bool:
        return self._streams.get(ts, 0.0) > time.monotonic()

    def _stream_text(self, body: Mapping[str, Any]) -> str:
        text = str(body.get("markdown_text") or "")
        if not text:
            raise Refused("no_text")
        if len(text) > 12_000:
            raise Refused("msg_too_long")
        self._note_pings(text)
        return text

    def _content(self, body: Mapping[str, Any], most: int) -> dict[str, Any]:
        """Returns what a message has of a call's arguments. Raises `Refused` for what Slack would not take."""
        content: dict[str, Any] = {}
        text, blocks = body.get("text"), body.get("blocks")
        if not text and not blocks:
            raise Refused("no_text")
        if text is not None:
            self._note_pings(text)
            content["text"] = text[:most]
        if blocks is not None:
            self._lint(blocks)
            content["blocks"] = blocks
        if (metadata := body.get("metadata")) is not None:
            if not isinstance(metadata.get("event_type"), str) or not isinstance(metadata.get("event_payload"), dict):
                raise Refused("invalid_metadata_format")
            content["metadata"] = metadata
        return content

    def _lint(self, blocks: Any) -> None:
        """Refuses blocks as Block Kit's reference does."""

        def refuse(reason: str) -> None:
            raise Refused("invalid_blocks", response_metadata={"messages": [f"[ERROR] {reason}"]})

        if not isinstance(blocks, list) or len(blocks) > 50:
            refuse("no more than 50 items allowed")
        if sum(len(block.get("text", "")) for block in blocks if block.get("type") == "markdown") > 12_000:
            raise Refused("msg_blocks_too_long")
        actions: list[str] = []
        for block in blocks:
            kind = block.get("type")
            if kind not in BLOCK_TYPES or (kind == "markdown" and not self.markdown_blocks):
                refuse(f"unsupported block type: {kind}")
            if len(block.get("block_id", "")) > 255:
                refuse("block_id must be less than 256 characters")
            if kind == "markdown":
                if not block.get("text"):
                    refuse("markdown text must be more than 0 characters")
                self._note_pings(block["text"])
            if kind == "section":
                if not 0 < len(block["text"]["text"]) <= 3_000:
                    refuse("section text must be less than 3001 characters")
                self._note_pings(block["text"]["text"])
            if kind == "context" and not 0 < len(block["elements"]) <= 10:
                refuse("context must have 1 to 10 elements")
            if kind == "context" and not all(element.get("text") for element in block["elements"]):
                refuse("context text must be more than 0 characters")
            if kind == "context_actions":
                if not 0 < len(block["elements"]) <= 5:
                    refuse("context_actions must have 1 to 5 elements")
                for element in block["elements"]:
                    sides = (element["positive_button"], element["negative_button"])
                    if element["type"] != "feedback_buttons" or any(len(s["text"]["text"]) > 75 for s in sides):
                        refuse("feedback_buttons have two texts of at most 75 characters")
                    if any(len(side["value"]) > 2_000 for side in sides):
                        refuse("button value must be less than 2001 characters")
                    actions.append(element["action_id"])
            if kind == "actions":
                if not 0 < len(block["elements"]) <= 25:
                    refuse("actions must have 1 to 25 elements")
                for element in block["elements"]:
                    if not 0 < len(element["text"]["text"]) <= 75:
                        refuse("button text must be less than 76 characters")
                    if len(element["value"]) > 2_000 or len(element["action_id"]) > 255:
                        refuse("button value must be less than 2001 characters")
                    if element.get("style") not in (None, "primary", "danger"):
                        refuse("style must be primary or danger")
                    actions.append(element["action_id"])
        if any(count > 1 for count in Counter(actions).values()):
            refuse("action_id already exists")

    def _note_pings(self, text: str) -> None:
        if PINGS.search(text):
            self.problems.append(f"somebody was pinged: {text[:80]!r}")

    def _conversations_history(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat = self._channel(body)
        roots = [m for m in chat.messages.values() if m.get("thread_ts", m["ts"]) == m["ts"]]
        return self._page(sorted(roots, key=lambda m: -float(m["ts"])), body)

    def _conversations_replies(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat, root = self._channel(body), str(body["ts"])
        if root not in chat.messages:
            raise Refused("thread_not_found")
        replies = [m for m in chat.messages.values() if m["ts"] != root and m.get("thread_ts") == root]
        page = self._page(sorted(replies, key=lambda m: float(m["ts"])), body)
        return {**page, "messages": [chat.messages[root], *page["messages"]]}

    def _page(self, messages: Sequence[dict[str, Any]], body: Mapping[str, Any]) -> dict[str, Any]:
        oldest, start = float(body.get("oldest") or 0), int(body.get("cursor") or 0)
        limit = int(body.get("limit") or 100)
        within = [m for m in messages if float(m["ts"]) > oldest]
        shown = [dict(m) for m in within[start : start + limit]]
        if str(body.get("include_all_metadata")).lower() not in ("1", "true") or (
            "metadata.message:read" not in self.scopes
        ):
            for message in shown:
                message.pop("metadata", None)
        more = start + limit < len(within)
        return {
            "messages": shown,
            "has_more": more,
            "response_metadata": {"next_cursor": str(start + limit) if more else ""},
        }

    def _reactions_add(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reactions = self._reacted(body)
        if body["name"] in reactions:
            raise Refused("already_reacted")
        reactions.append(body["name"])
        return {}

    def _reactions_remove(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reactions = self._reacted(body)
        if body["name"] not in reactions:
            raise Refused("no_reaction")
        reactions.remove(body["name"])
        return {}

    def _reacted(self, body: Mapping[str, Any]) -> list[str]:
        message = self._channel(body).messages.get(str(body["timestamp"]))
        if message is None:
            raise Refused("message_not_found")
        reactions: list[str] = message.setdefault("reactions", [])
        return reactions

    def _assistant_threads_setStatus(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat = self._channel(body, "channel_id")
        if str(body["thread_ts"]) not in chat.messages:
            raise Refused("invalid_thread_ts")
        self.statuses[chat.id, str(body["thread_ts"])] = str(body["status"])
        return {}

    def _assistant_threads_setSuggestedPrompts(self, body: Mapping[str, Any]) -> dict[str, Any]:
        pane = self._pane(body)
        if not 0 < len(body["prompts"]) <= 4 or not all(p["title"] and p["message"] for p in body["prompts"]):
            raise Refused("invalid_arguments")
        self.prompts[pane] = [(prompt["title"], prompt["message"]) for prompt in body["prompts"]]
        return {}

    def _assistant_threads_setTitle(self, body: Mapping[str, Any]) -> dict[str, Any]:
        pane = self._pane(body)
        if not body.get("title"):
            raise Refused("invalid_arguments")
        self.titles[pane] = str(body["title"])
        return {}

    def _pane(self, body: Mapping[str, Any]) -> tuple[str, str]:
        """Returns the channel and the thread of a conversation in the assistant pane."""
        chat, thread = self._channel(body, "channel_id"), str(body["thread_ts"])
        if chat.messages.get(thread, {}).get("subtype") != "assistant_app_thread":
            raise Refused("invalid_thread_ts")
        return chat.id, thread

    # Files

    def _files_getUploadURLExternal(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["filename"] in self.faults.refused_files:
            raise Refused("blocked_file_type")
        id_ = f"F{next(self._ids)}"
        self.files[id_] = {"id": id_, "name": body["filename"], "size": int(body["length"]), "mode": "hosted"}
        return {"upload_url": f"{self.origin}/upload/{id_}", "file_id": id_}

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        id_ = request.match_info["id"]
        data = await request.read()
        if len(data) != self.files[id_]["size"]:
            return web.Response(status=400, text="the length is not the announced one")
        self.contents[id_] = data
        return web.Response(text=f"OK - {len(data)}")

    def _files_completeUploadExternal(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat = self._channel(body, "channel_id")
        root = self._root(chat, body)
        files = []
        for entry in body["files"]:
            file = self.files.get(entry["id"])
            if file is None or entry["id"] not in self.contents or "title" in file:
                raise Refused("file_not_found")
            file["title"] = entry.get("title")
            files.append(file)
        if body.get("blocks"):
            self._lint(body["blocks"])
        ts = self.ts()
        message = {"type": "message", "user": BOT_USER, "bot_id": BOT, "ts": ts, "text": "", "files": files}
        message |= {"blocks": body["blocks"]} if body.get("blocks") else {}
        message |= {"thread_ts": root} if root else {}
        chat.messages[ts] = message
        return {"files": [{"id": file["id"], "title": file["title"]} for file in files]}

    def _files_info(self, body: Mapping[str, Any]) -> dict[str, Any]:
        file = self.files.get(body["file"])
        if file is None:
            raise Refused("file_not_found")
        return {"file": {**file, "url_private_download": f"{self.origin}/files/{file['id']}"}}

    async def _download(self, request: web.Request) -> web.StreamResponse:
        id_ = request.match_info["id"]
        content = self.contents[id_]
        faults = self.faults.calls["download"]
        fault = faults.popleft() if faults else ""
        if fault == "html":
            return web.Response(status=503, text="<html></html>", content_type="text/html")
        if request.headers.get("Authorization") != f"Bearer {self.bot_token}" or fault == "signin":
            raise web.HTTPFound("/signin")
        if fault == "cut":
            response = web.StreamResponse(headers={"Content-Length": str(len(content))})
            await response.prepare(request)
            await response.write(content[: len(content) // 2])
            assert request.transport is not None
            request.transport.abort()
            return response
        kind = self.files[id_].get("mimetype") or "application/octet-stream"
        return web.Response(body=content, content_type=kind)

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="<!DOCTYPE html><html>Sign in to Slack</html>", content_type="text/html")


@dataclass(frozen=True)
class Person:
    """Somebody in the workspace."""

    server: SlackServer
    id: str
    name: str

    async def says(
        self,
        text: str,
        chat: str = "",
        *,
        thread: str = "",
        mention: bool = False,
        files: Mapping[str, tuple[str, bytes]] | None = None,
        **more: Any,
    ) -> str:
        """Writes a message: in a chat, or directly to the bot. `files`: type and content by name. `more`: further
        fields of the event. Returns its `ts`."""
        server = self.server
        room = server.chat(chat or f"@{self.name}")
        ts = server.ts()
        shown = f"<@{BOT_USER}> {text}" if mention else text
        message: dict[str, Any] = {"type": "message", "user": self.id, "text": shown, "ts": ts, "team": TEAM}
        if thread:
            root = room.messages[thread]
            root["thread_ts"] = thread
            message |= {"thread_ts": thread, "parent_user_id": root["user"]}
        if files:
            message["files"] = [server_file(server, name, mime, data) for name, (mime, data) in files.items()]
        message |= more
        room.messages[ts] = message
        event = {**message, "channel": room.id, "event_ts": ts}
        subtype = {"subtype": "file_share"} if files and "subtype" not in more else {}
        server.event({**event, **subtype, "channel_type": room.kind})
        if f"<@{BOT_USER}" in shown and room.kind != "im":
            server.event({**event, "type": "app_mention"})
        return ts

    def opens(self, context: str = "") -> str:
        """Begins a conversation in the assistant pane, while a channel is looked at. Returns its thread."""
        server, room, ts = self.server, self.server.chat(f"@{self.name}"), self.server.ts()
        about = {"subtype": "assistant_app_thread", "text": "New Assistant Thread", "bot_id": BOT}
        room.messages[ts] = {"type": "message", "user": BOT_USER, "ts": ts, "thread_ts": ts, **about}
        server.event({"type": "assistant_thread_started", **self._pane(ts, context)})
        return ts

    def looks_at(self, thread: str, channel: str) -> None:
        """Goes to another channel, beside a conversation in the assistant pane."""
        self.server.event({"type": "assistant_thread_context_changed", **self._pane(thread, channel)})

    def _pane(self, thread: str, context: str) -> dict[str, Any]:
        about = {"channel_id": self.server.chat(context).id, "team_id": TEAM} if context else {}
        place = {"user_id": self.id, "channel_id": self.server.chat(f"@{self.name}").id, "thread_ts": thread}
        return {"assistant_thread": {**place, "context": about}, "event_ts": self.server.ts()}

    async def picks(self, thread: str, title: str) -> str:
        """Presses a first question that is offered. Returns the message's `ts`."""
        prompts = dict(self.server.prompts[self.server.chat(f"@{self.name}").id, thread])
        return await self.says(prompts[title], thread=thread)

    def edits(self, chat: str, ts: str, text: str) -> None:
        """Changes an own message."""
        server = self.server
        room = server.chat(chat or f"@{self.name}")
        before = dict(room.messages[ts])
        now = server.ts()
        room.messages[ts] |= {"text": text, "edited": {"user": self.id, "ts": now}}
        server.event(
            {
                "type": "message",
                "subtype": "message_changed",
                "hidden": True,
                "channel": room.id,
                "channel_type": room.kind,
                "ts": now,
                "message": dict(room.messages[ts]),
                "previous_message": before,
            }
        )

    def deletes(self, chat: str, ts: str) -> None:
        """Deletes an own message."""
        server = self.server
        room = server.chat(chat or f"@{self.name}")
        about = {"channel": room.id, "channel_type": room.kind, "hidden": True, "ts": server.ts()}
        before = room.messages.pop(ts)
        server.event(
            {"type": "message", "subtype": "message_deleted", "deleted_ts": ts, "previous_message": before, **about}
        )

    def presses(self, chat: str, label: str) -> None:
        """Presses the newest button with a label."""
        server = self.server
        room = server.chat(chat)
        message, button = next(
            (message, element)
            for message in reversed(list(room.messages.values()))
            for block in message.get("blocks", ())
            if block["type"] in ("actions", "context_actions")
            for element in _pressable(block)
            if element["text"]["text"] == label
        )
        server.deliver(
            "interactive",
            {
                "type": "block_actions",
                "team": {"id": TEAM, "domain": "local"},
                "user": {"id": self.id, "username": self.name, "name": self.name, "team_id": TEAM},
                "channel": {"id": room.id, "name": chat},
                "message": {key: value for key, value in message.items() if key != "reactions"},
                "container": {"type": "message", "message_ts": message["ts"], "channel_id": room.id},
                "trigger_id": f"trigger-{next(server._ids)}",
                "actions": [{**button, "block_id": "b1", "action_ts": server.ts()}],
            },
        )

    def commands(self, command: str, text: str = "", chat: str = "") -> None:
        """Uses a slash command."""
        server = self.server
        room = server.chat(chat or f"@{self.name}")
        server.deliver(
            "slash_commands",
            {
                "command": command,
                "text": text,
                "user_id": self.id,
                "user_name": self.name,
                "channel_id": room.id,
                "channel_name": chat or "directmessage",
                "team_id": TEAM,
                "trigger_id": f"trigger-{next(server._ids)}",
                "response_url": f"{server.origin}/response",
            },
        )


def _pressable(block: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Returns the buttons of a block, as they are in the payload of a press."""
    if block["type"] == "actions":
        return [{**element, "type": "button"} for element in block["elements"]]
    return [
        {"type": "feedback_buttons", "action_id": element["action_id"], **element[side]}
        for element in block["elements"]
        for side in ("positive_button", "negative_button")
    ]


def server_file(server: SlackServer, name: str, mime: str, content: bytes) -> dict[str, Any]:
    """Returns a file that was uploaded to the workspace."""
    id_ = f"F{next(server._ids)}"
    file = {"id": id_, "name": name, "mimetype": mime, "size": len(content), "mode": "hosted"}
    server.files[id_], server.contents[id_] = file, content
    return file


def _visible(message: Mapping[str, Any]) -> str:
    """Returns the text that people see: of blocks, if there are any, and of a stream that was not replaced."""
    if "streamed" in message:
        return str(message["streamed"])
    texts = [
        block["text"] if block["type"] == "markdown" else block["text"]["text"]
        for block in message.get("blocks", ())
        if block["type"] in ("markdown", "section")
    ]
    return "\n".join(texts) if message.get("blocks") else str(message.get("text", ""))


async def _body(request: web.Request) -> dict[str, Any]:
    """Returns the arguments of a call: JSON, a form or a query, whose nested values are JSON."""
    if request.content_type == "application/json":
        return dict(await request.json())
    values = {**request.query, **(await request.post())}
    body: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, str) and key in ("blocks", "files", "metadata", "chunks", "prompts")
        body[key] = json.loads(str(value)) if nested else value
    return body
