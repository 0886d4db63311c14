"""Feishu on loopback: the long connection, REST, CardKit, and the people on the other side, written from the platform's
public documentation. It refuses what the platform refuses, with the platform's codes,
records every call, and makes the mistakes that `Faults` names.

    async with FeishuServer() as server:
        ann = server.person("ann")
        platform = connect(server.settings)
        …
        message = ann.says("hello")
        server.seen(ann.chat)
"""

from __future__ import annotations

import asyncio
import base64
import html
import json
import random
import re
import time
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from aiohttp import WSMsgType, web

from tests.channels.feishu import frames
from tests.channels.feishu.frames import Frame

SCOPES = frozenset(
    (
        "im:message",
        "im:message.p2p_msg:readonly",
        "im:message.group_at_msg:readonly",
        "im:resource",
        "cardkit:card:write",
        "contact:contact.base:readonly",
        "contact:user.base:readonly",
    )
)
KEY_SECONDS = 3600
STREAM_SECONDS = 600
LARGEST_CARD = 30_000
TABLES = 3
EMOJI = frozenset(("Typing", "OK", "DONE", "THUMBSUP"))
FILE_TYPES = frozenset(("opus", "mp4", "pdf", "doc", "xls", "ppt", "stream"))
PROPERTIES = {
    "markdown": frozenset(("tag", "element_id", "content", "text_size", "text_align", "margin", "icon")),
    "hr": frozenset(("tag", "element_id", "margin")),
    "table": frozenset(("tag", "element_id", "columns", "rows", "page_size")),
    "column_set": frozenset(("tag", "element_id", "columns", "flex_mode", "horizontal_spacing", "margin")),
    "column": frozenset(("tag", "element_id", "width", "weight", "elements", "padding")),
    "button": frozenset(("tag", "element_id", "text", "type", "size", "behaviors", "disabled", "confirm", "name")),
}
MESSAGE_KINDS = {"image": "image_key", "file": "file_key", "audio": "file_key", "media": "file_key"}

Json = dict[str, Any]


class Call(NamedTuple):
    """A call as it arrived, and its outcome. `code`: None if the answer was lost or was no JSON."""

    at: float
    method: str
    path: str
    body: Json
    status: int
    code: int | None


class Button(NamedTuple):
    label: str
    value: Json


@dataclass
class Card:
    id: str
    data: Json
    sequence: int = 0
    opened: float = 0.0
    shown: list[str] = field(default_factory=list)
    """The texts of `answer`, as they followed each other."""


@dataclass
class Message:
    """A message as people see it now."""

    id: str
    chat: str
    sender: str
    kind: str
    content: Json
    created: int
    root: str = ""
    parent: str = ""
    key: str = ""
    card: Card | None = None
    changes: int = 0
    reactions: dict[str, str] = field(default_factory=dict)
    """By id."""
    deleted: bool = False
    file: bytes = b""

    @property
    def by_bot(self) -> bool:
        return self.sender.startswith("cli_")

    @property
    def body(self) -> Json:
        return self.card.data if self.card is not None else self.content

    @property
    def text(self) -> str:
        if self.kind != "interactive":
            return str(self.content.get("text", ""))
        return html.unescape("\n".join(element["content"] for element in self._markdown(quiet=False)))

    @property
    def status(self) -> str:
        text = html.unescape("\n".join(element["content"] for element in self._markdown(quiet=True)))
        return text.strip("\u200b")

    def _markdown(self, *, quiet: bool) -> Iterator[Json]:
        for element in _elements(self.body):
            if element.get("tag") == "markdown" and (element.get("text_size") == "notation") is quiet:
                yield element

    @property
    def growing(self) -> bool:
        return bool(self.body.get("config", {}).get("streaming_mode"))

    @property
    def buttons(self) -> list[Button]:
        return [
            Button(element["text"]["content"], element["behaviors"][0]["value"])
            for element in _elements(self.body)
            if element.get("tag") == "button"
        ]


@dataclass
class Chat:
    id: str
    people: list[str]
    private: bool
    has_bot: bool = True


@dataclass
class Fault:
    """What goes wrong with the next `times` calls whose `METHOD path` matches."""

    pattern: str
    kind: str
    times: int = 1
    status: int = 200
    code: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class Faults:
    """The mistakes that the server makes. Patterns are regular expressions for `METHOD path`."""

    def __init__(self, server: FeishuServer) -> None:
        self._server = server
        self.calls: list[Fault] = []
        self.endpoint: deque[int] = deque()
        """Codes with which the next requests for a connection are refused."""
        self.handshakes: deque[tuple[int, str]] = deque()
        """Codes and reasons with which the next handshakes are refused."""
        self.duplicates = 0
        """How many more times each event is delivered after its acknowledgement."""
        self.reorder = 0
        """How many of the next events are held and then delivered in reverse."""
        self.mute = False
        """Half-open: the server neither reads nor answers on its sockets."""

    def fail(self, pattern: str, status: int, times: int = 1, **headers: str) -> None:
        """Answers with a page of the gateway: HTML."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.calls.append(Fault(pattern, "page", times, status, headers=named))

    def fail_done(self, pattern: str, status: int, times: int = 1) -> None:
        """The call has its effect, and its answer is a page of the gateway."""
        self.calls.append(Fault(pattern, "done", times, status))

    def refuse(self, pattern: str, code: int, times: int = 1, status: int = 400, **headers: str) -> None:
        """Refuses with a code of the platform."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.calls.append(Fault(pattern, "refuse", times, status, code, named))

    def lose(self, pattern: str, times: int = 1) -> None:
        """The call has its effect, and its answer does not arrive."""
        self.calls.append(Fault(pattern, "lose", times))

    def hang_up(self, pattern: str, times: int = 1) -> None:
        """The connection is cut before the call has an effect."""
        self.calls.append(Fault(pattern, "cut", times))

    def drop_sockets(self) -> None:
        """Cuts every long connection, without a closing frame."""
        for socket in list(self._server.sockets):
            assert socket.transport is not None
            socket.transport.abort()

    async def close_sockets(self) -> None:
        """Closes every long connection in order."""
        for socket in list(self._server.sockets):
            await socket.ws.close()

    def kill_tokens(self) -> None:
        """Tokens given until now are refused from here on (99991663)."""
        self._server.tokens.clear()

    def waits(self, pattern: str) -> bool:
        """Tells whether a fault waits for a call."""
        return any(fault.pattern == pattern for fault in self.calls)

    def take(self, call: str) -> Fault | None:
        for fault in self.calls:
            if re.search(fault.pattern, call):
                fault.times -= 1
                if fault.times <= 0:
                    self.calls.remove(fault)
                return fault
        return None


@dataclass(eq=False)
class Socket:
    ws: web.WebSocketResponse
    transport: asyncio.Transport | None
    unmute: asyncio.Event = field(default_factory=asyncio.Event)


class Person:
    """Somebody with a private chat with the bot, `chat`."""

    def __init__(self, server: FeishuServer, name: str) -> None:
        self._server = server
        self.name = name
        self.id = f"ou_{name}"
        server.people[self.id] = name.capitalize()
        self.chat = server.add_chat(f"oc_private_{name}", [self.id], private=True)

    def says(self, text: str, chat: str = "", *, mention: bool = False, reply_to: str = "", at: float = 0) -> str:
        """Writes a text. `mention`: of the bot, at its beginning. `at`: seconds after now, by the server's clock.
        Returns the message's id."""
        content = {"text": f"@_user_1 {text}" if mention else text}
        return self.sends("text", content, chat, mention=mention, reply_to=reply_to, at=at)

    def sends(
        self,
        kind: str,
        content: Json,
        chat: str = "",
        *,
        mention: bool = False,
        reply_to: str = "",
        at: float = 0,
        mentions: Sequence[Json] = (),
        sender_type: str = "user",
    ) -> str:
        """Writes a message of any kind. Returns its id."""
        server = self._server
        bot = {"key": "@_user_1", "id": {"open_id": server.bot}, "name": "Sika", "tenant_key": "t"}
        message = server.add_message(chat or self.chat, self.id, kind, content, reply_to=reply_to, at=at)
        server.deliver(
            "im.message.receive_v1",
            {
                "sender": {"sender_id": {"open_id": self.id}, "sender_type": sender_type, "tenant_key": "t"},
                "message": {
                    "message_id": message.id,
                    **({"root_id": message.root, "parent_id": message.parent} if message.root else {}),
                    "create_time": str(message.created),
                    "update_time": str(message.created),
                    "chat_id": message.chat,
                    "chat_type": "p2p" if server.chats[message.chat].private else "group",
                    "message_type": kind,
                    "content": json.dumps(content, ensure_ascii=False),
                    "mentions": [*([bot] if mention else []), *mentions],
                },
            },
        )
        return message.id

    def sends_file(self, name: str, data: bytes, chat: str = "", *, kind: str = "file", at: float = 0) -> str:
        """Sends a file or an `image`. Returns the message's id."""
        key = self._server.store(data, name)
        content = {"image_key": key} if kind == "image" else {"file_key": key, "file_name": name}
        return self.sends(kind, content, chat, at=at)

    def recalls(self, id_: str) -> None:
        """Deletes an own message."""
        message = self._server.messages[id_]
        message.deleted = True
        about = {"message_id": id_, "chat_id": message.chat, "recall_type": "message_owner"}
        self._server.deliver("im.message.recalled_v1", {**about, "recall_time": str(message.created + 1000)})

    def presses(self, message: Message, label: str) -> asyncio.Task[Json | None]:
        """Presses a button. The task returns what the platform shows then; None if the bot did not acknowledge."""
        button = next(button for button in message.buttons if button.label == label)
        return self._server.deliver(
            "card.action.trigger",
            {
                "operator": {"open_id": self.id, "tenant_key": "t"},
                "token": f"c-{uuid.uuid4().hex}",
                "action": {"value": button.value, "tag": "button"},
                "host": "im_message",
                "context": {"open_message_id": message.id, "open_chat_id": message.chat},
            },
            again=False,
        )


class FeishuServer:
    """One app on the platform. `settings` are those of the account."""

    def __init__(self) -> None:
        suffix = uuid.uuid4().hex[:12]  # the SDK caches by app (F4)
        self.app_id, self.app_secret, self.bot = f"cli_{suffix}", f"secret-{suffix}", "ou_bot"
        self.secret_is_dead = False
        self.scopes = set(SCOPES)
        self.ping_seconds = 1
        self.ack_seconds = 3.0
        self.redelivery: Sequence[float] = (0.3, 1, 3, 10, 30, 60)
        """Seconds before each further delivery of an event; the platform's are 15, 300, 3 600 and 21 600."""
        self.frame_bytes = 1 << 20
        """Events of more bytes arrive in several frames."""
        self.enforce_rates = False
        self.skew = 0.0
        """Seconds by which the server's clock is ahead."""
        self.faults = Faults(self)
        self.calls: list[Call] = []
        self.refusals: Counter[int] = Counter()
        """How often each code was the answer."""
        self.tokens: set[str] = set()
        self.unauthorised = 0
        """Calls that were refused for their app_secret."""
        self.sockets: list[Socket] = []
        self.handshakes = 0
        self.most_sockets = 0
        self.delivered: Counter[str] = Counter()
        """Deliveries of each event."""
        self.acknowledged: dict[str, int] = {}
        """The last acknowledgement of each event."""
        self.lost: list[str] = []
        """Events that were given up."""
        self.people: dict[str, str] = {}
        """Names by open id."""
        self.chats: dict[str, Chat] = {}
        self.messages: dict[str, Message] = {}
        self.cards: dict[str, Card] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.file_page: tuple[str, bytes] | None = None
        """Type and body of the answer to downloads, instead of the file."""
        self._keys: dict[str, tuple[float, str]] = {}
        self._tickets: set[str] = set()
        self._acks: dict[str, asyncio.Future[Json]] = {}
        self._rates: dict[str, deque[float]] = {}
        self._held: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._numbers = iter(range(1, 1 << 30))
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/callback/ws/endpoint", self._endpoint)
        app.router.add_get("/ws", self._socket)
        app.router.add_post("/open-apis/auth/v3/tenant_access_token/internal", self._token)
        app.router.add_route("*", "/open-apis/{path:.*}", self._call)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.faults.drop_sockets()
        for socket in self.sockets:
            socket.unmute.set()
        await self._runner.cleanup()

    @property
    def settings(self) -> dict[str, Any]:
        return {"app_id": self.app_id, "app_secret": self.app_secret, "domain": self.url}

    def person(self, name: str) -> Person:
        return Person(self, name)

    def group(self, *people: Person) -> str:
        """Makes a group with the bot in it. Returns the chat."""
        return self.add_chat(f"oc_group_{next(self._numbers)}", [person.id for person in people], private=False)

    def add_chat(self, chat: str, people: list[str], *, private: bool) -> str:
        self.chats[chat] = Chat(chat, people, private)
        return chat

    def seen(self, chat: str, *, by_bot: bool = True) -> list[Message]:
        """Returns the messages of a chat as they are now; `by_bot`: only the bot's."""
        messages = [message for message in self.messages.values() if message.chat == chat and not message.deleted]
        return [message for message in messages if message.by_bot] if by_bot else messages

    def called(self, pattern: str) -> list[Call]:
        """Returns the calls whose `METHOD path` matches."""
        return [call for call in self.calls if re.search(pattern, f"{call.method} {call.path}")]

    async def until(self, condition: Callable[[], Any], seconds: float = 120.0) -> None:
        """Waits until something is true, of this server or of who talks to it."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.05)

    def now(self) -> float:
        return time.time() + self.skew

    def store(self, data: bytes, name: str) -> str:
        key = f"file_v3_{next(self._numbers)}"
        self.files[key] = (name, data)
        return key

    def add_message(
        self, chat: str, sender: str, kind: str, content: Json, *, reply_to: str = "", at: float = 0
    ) -> Message:
        id_ = f"om_{next(self._numbers):06d}_{uuid.uuid4().hex[:8]}"
        parent = self.messages.get(reply_to)
        root = (parent.root or parent.id) if parent is not None else ""
        message = Message(id_, chat, sender, kind, content, int((self.now() + at) * 1000), root, reply_to)
        self.messages[id_] = message
        self._changed.set()
        return message

    # The long connection

    def deliver(self, kind: str, event: Json, *, again: bool = True) -> asyncio.Task[Json | None]:
        """Delivers an event to one of the connections, until it is acknowledged (`again`). The task returns the data of
        the acknowledgement."""
        header = {"event_id": uuid.uuid4().hex, "event_type": kind, "app_id": self.app_id, "tenant_key": "t"}
        header["create_time"] = str(int(self.now() * 1000))
        body = {"schema": "2.0", "header": header, "event": event}
        ready = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._delivering(body, again, ready))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.faults.reorder > 0:
            self.faults.reorder -= 1
            self._held.append(ready.set)
        else:
            ready.set()
        if self.faults.reorder == 0:
            for release in reversed(self._held):
                release()
            self._held.clear()
        return task

    async def _delivering(self, body: Json, again: bool, ready: asyncio.Event) -> Json | None:
        await ready.wait()
        event = body["header"]["event_id"]
        name = body["event"].get("message", {}).get("message_id") or event
        for pause in (*(self.redelivery if again else ()), None):
            answer = await self._deliver_once(body, name)
            if answer is not None and answer.get("code") == 200:
                for _ in range(self.faults.duplicates):
                    await self._deliver_once(body, name)
                data = answer.get("data")
                return json.loads(base64.b64decode(data)) if data else {}
            if pause is not None:
                await asyncio.sleep(pause)
        if again:
            self.lost.append(name)
        return None

    async def _deliver_once(self, body: Json, name: str) -> Json | None:
        """Returns the acknowledgement, None if none came in time."""
        if not self.sockets:
            return None
        socket = random.choice(self.sockets)
        id_ = uuid.uuid4().hex
        payload = json.dumps(body, ensure_ascii=False).encode()
        pieces = [payload[at : at + self.frame_bytes] for at in range(0, len(payload), self.frame_bytes)]
        self._acks[id_] = asyncio.get_running_loop().create_future()
        self.delivered[name] += 1
        try:
            async with asyncio.timeout(self.ack_seconds):
                for number, piece in enumerate(pieces):
                    headers = {"type": "event", "message_id": id_, "trace_id": id_, "sum": str(len(pieces))}
                    frame = Frame(frames.DATA, {**headers, "seq": str(number)}, piece)
                    await socket.ws.send_bytes(frames.encode(frame))
                answer = await self._acks[id_]
        except (TimeoutError, ConnectionError):
            return None
        finally:
            self._acks.pop(id_, None)
        self.acknowledged[name] = answer["code"]
        self._changed.set()
        return answer

    async def _endpoint(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        fault = self.faults.take(f"POST {request.path}")
        if fault is not None and fault.kind != "lose":
            return self._faulty(request, fault)
        code = self.faults.endpoint.popleft() if self.faults.endpoint else 0
        if not code and self._wrong_secret(body.get("AppID"), body.get("AppSecret")):
            code = 1000040344
        self._record(request, body, 200, code)
        if code:
            return web.json_response({"code": code, "msg": "refused"})
        ticket = uuid.uuid4().hex
        self._tickets.add(ticket)
        url = f"{self.url.replace('http', 'ws')}/ws?device_id=d1&service_id=7&ticket={ticket}"
        settings = {
            "ReconnectCount": -1,
            "ReconnectInterval": 120,
            "ReconnectNonce": 30,
            "PingInterval": self.ping_seconds,
        }
        return web.json_response({"code": 0, "msg": "", "data": {"URL": url, "ClientConfig": settings}})

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        self.handshakes += 1
        if self.faults.handshakes:
            code, reason = self.faults.handshakes.popleft()
            self._changed.set()
            named = {"handshake-status": str(code), "handshake-msg": reason, "handshake-autherrcode": "0"}
            return web.Response(status=400, headers=named)
        if request.query.get("ticket") not in self._tickets:
            return web.Response(status=400, headers={"handshake-status": "514", "handshake-msg": "ticket is invalid"})
        self._tickets.discard(request.query["ticket"])
        ws = web.WebSocketResponse(autoping=False)
        await ws.prepare(request)
        socket = Socket(ws, request.transport)
        self.sockets.append(socket)
        self.most_sockets = max(self.most_sockets, len(self.sockets))
        self._changed.set()
        try:
            async for message in ws:
                if self.faults.mute:
                    await socket.unmute.wait()
                    break
                if message.type is WSMsgType.PING:
                    await ws.pong(message.data)
                elif message.type is WSMsgType.BINARY:
                    await self._frame(ws, frames.decode(message.data))
        except ConnectionError:
            pass
        finally:
            self.sockets.remove(socket)
            self._changed.set()
        return ws

    async def _frame(self, ws: web.WebSocketResponse, frame: Frame) -> None:
        if frame.method == frames.CONTROL:
            assert frame.headers["type"] == "ping"
            settings = {
                "ReconnectCount": -1,
                "ReconnectInterval": 120,
                "ReconnectNonce": 30,
                "PingInterval": self.ping_seconds,
            }
            await ws.send_bytes(frames.encode(Frame(frames.CONTROL, {"type": "pong"}, json.dumps(settings).encode())))
            return
        assert "biz_rt" in frame.headers
        answer = json.loads(frame.payload)
        waiting = self._acks.get(frame.headers["message_id"])
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    # REST

    async def _token(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        fault = self.faults.take(f"POST {request.path}")
        if fault is not None and fault.kind != "lose":
            return self._faulty(request, fault)
        code = self._wrong_secret(body.get("app_id"), body.get("app_secret"))
        self._record(request, {}, 200, code)
        if code:
            return web.json_response({"code": code, "msg": "app secret invalid"})
        token = f"t-{uuid.uuid4().hex}"
        self.tokens.add(token)
        return web.json_response({"code": 0, "msg": "ok", "tenant_access_token": token, "expire": 7200})

    def _wrong_secret(self, app_id: Any, app_secret: Any) -> int:
        if app_id != self.app_id:
            return 10003
        if app_secret != self.app_secret or self.secret_is_dead:
            self.unauthorised += 1
            return 10014
        return 0

    async def _call(self, request: web.Request) -> web.StreamResponse:
        body: Json = {}
        if request.content_type == "application/json" and request.can_read_body:
            body = await request.json()
        elif request.content_type.startswith("multipart/"):
            form = await request.post()
            body = {
                name: value.file.read() if isinstance(value, web.FileField) else value for name, value in form.items()
            }
            body["file_size"] = max((len(value) for value in body.values() if isinstance(value, bytes)), default=0)
        fault = self.faults.take(f"{request.method} {request.path}")
        if fault is not None and fault.kind not in ("lose", "done"):
            self._record(request, body, fault.status, fault.code or None)
            return self._faulty(request, fault)
        try:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self.tokens:
                raise Refusal(99991663, "Invalid access token for authorization.", 401)
            result = await self._route(request, body)
        except Refusal as refusal:
            self._record(request, body, refusal.status, refusal.code)
            named = {"x-ogw-ratelimit-reset": "1"} if refusal.code == 99991400 else {}
            return web.json_response({"code": refusal.code, "msg": refusal.text}, status=refusal.status, headers=named)
        if isinstance(result, web.StreamResponse):
            self._record(request, body, 200, 0)
            return result
        if fault is not None:
            self._record(request, body, fault.status, None)
            return self._cut(request) if fault.kind == "lose" else self._faulty(request, fault)
        self._record(request, body, 200, 0)
        return web.json_response({"code": 0, "msg": "success", **result})

    async def _route(self, request: web.Request, body: Json) -> Json | web.Response:
        call = f"{request.method} {request.match_info['path']}"
        for pattern, handler in ROUTES:
            if match := re.fullmatch(pattern, call):
                self._limit(pattern, 50, 1.0, 99991400)
                self._limit(f"{pattern} in a minute", 1000, 60.0, 99991400)
                return await handler(self, request, body, *match.groups())
        raise Refusal(404, f"no method {call}", 404)

    def _record(self, request: web.Request, body: Json, status: int, code: int | None) -> None:
        self.calls.append(Call(self.now(), request.method, request.path, body, status, code))
        if code:
            self.refusals[code] += 1
        self._changed.set()

    def _faulty(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.kind == "cut":
            return self._cut(request)
        if fault.kind == "refuse":
            answer = {"code": fault.code, "msg": "refused"}
            return web.json_response(answer, status=fault.status, headers=fault.headers)
        page = "<html><body>Bad gateway</body></html>"
        return web.Response(status=fault.status, text=page, content_type="text/html", headers=fault.headers)

    def _cut(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _limit(self, what: str, times: int, seconds: float, code: int) -> None:
        """Refuses more than `times` in `seconds` on the server's clock."""
        if not self.enforce_rates:
            return
        past = self._rates.setdefault(what, deque())
        now = self.now()
        while past and past[0] <= now - seconds:
            past.popleft()
        if len(past) >= times:
            raise Refusal(code, f"too many requests: {what}")
        past.append(now)

    def need(self, *scopes: str) -> None:
        if not self.scopes & set(scopes):
            raise Refusal(99991672, f"Access denied. One of the following scopes is required: {list(scopes)}")

    def may_read(self, chat: str) -> None:
        self.need("im:message", "im:message:readonly")
        if not self.chats[chat].private:
            self.need("im:message.group_msg")

    def message_of(self, id_: str) -> Message:
        message = self.messages.get(id_)
        if message is None:
            raise Refusal(231003, "The message is not found")
        if message.deleted:
            raise Refusal(230011, "The message was withdrawn")
        return message

    def own_message(self, id_: str) -> Message:
        message = self.message_of(id_)
        if message.sender != self.app_id:
            raise Refusal(230012, "Bot is NOT the sender of the message")
        return message

    def card_of(self, id_: str) -> Card:
        self.need("cardkit:card:write")
        if id_ not in self.cards:
            raise Refusal(300301, "card not found")
        self._limit(f"card {id_}", 10, 1.0, 99991400)
        return self.cards[id_]

    def sequence(self, card: Card, body: Json) -> None:
        sequence = body.get("sequence")
        if not isinstance(sequence, int) or not 0 < sequence < 1 << 31 or sequence <= card.sequence:
            raise Refusal(300317, "sequence number compare failed")
        card.sequence = sequence

    def send(self, chat: str, body: Json, reply_to: str = "") -> Json:
        """Posts a message of the bot: once for a key within an hour."""
        self.need("im:message", "im:message:send_as_bot")
        key = body.get("uuid", "")
        if len(key) > 50:
            raise Refusal(230001, "Your request contains an invalid request parameter, ext=uuid is too long")
        known = self._keys.get(key)
        if known is not None and self.now() - known[0] < KEY_SECONDS:
            return self._posted(self.messages[known[1]])
        if not self.chats[chat].has_bot:
            raise Refusal(230002, "The bot can not be outside the group.")
        if not isinstance(body.get("content"), str):
            raise Refusal(230001, "Your request contains an invalid request parameter, ext=content is no string")
        self._limit(f"chat {chat}", 5, 1.0, 230020)
        kind, content, card = body["msg_type"], json.loads(body["content"]), None
        file = b""
        if kind == "interactive":
            if content.get("type") == "card":
                card = self.cards.get(content["data"]["card_id"])
                if card is None:
                    raise Refusal(230099, "Failed to create card content, ext=ErrCode: 200621")
            else:
                check(content)
        elif kind in MESSAGE_KINDS:
            if content.get(MESSAGE_KINDS[kind]) not in self.files:
                raise Refusal(230055, "The type of file does not match")
            file = self.files[content[MESSAGE_KINDS[kind]]][1]
        elif kind != "text":
            raise Refusal(230001, f"msg_type {kind}")
        message = self.add_message(chat, self.app_id, kind, content, reply_to=reply_to)
        message.card, message.key, message.file = card, key, file
        if key:
            self._keys[key] = (self.now(), message.id)
        return self._posted(message)

    @staticmethod
    def _posted(message: Message) -> Json:
        return {
            "data": {
                "message_id": message.id,
                "chat_id": message.chat,
                "create_time": str(message.created),
                **{name: value for name, value in (("root_id", message.root), ("parent_id", message.parent)) if value},
            }
        }


class Refusal(Exception):
    def __init__(self, code: int, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.code, self.text, self.status = code, text, status


def check(card: Json) -> None:
    """Refuses what is no card of JSON 2.0, or is too large."""
    problem = ""
    elements = list(_elements(card))
    ids = [element["element_id"] for element in elements if "element_id" in element]
    if card.get("schema") != "2.0" or not card.get("body", {}).get("elements"):
        problem = "ErrCode: 200610; body is nil"
    elif not card.get("config", {}).get("update_multi", True):
        problem = "ErrCode: 200340; the card is not shared"
    elif len(json.dumps(card, ensure_ascii=False).encode()) > LARGEST_CARD:
        raise Refusal(230025, "The length of the message content reaches its limit.")
    elif unknown := [(node.get("tag"), key) for node, keys in _properties(card) for key in node.keys() - keys]:
        problem = f"ErrCode: 200621; unknown property {unknown[0]}"
    elif len(elements) > 200:
        problem = "ErrCode: 300305; element count"
    elif len(set(ids)) != len(ids) or not all(re.fullmatch(r"[A-Za-z]\w{0,19}", id_) for id_ in ids):
        problem = "ErrCode: 300301; element_id"
    elif any(not element["content"] for element in elements if element.get("tag") == "markdown"):
        problem = "ErrCode: 200570; content is empty"
    elif sum(_tables(element) for element in elements) > TABLES:
        problem = "ErrCode: 11310; card table number over limit"
    if problem:
        raise Refusal(230099, f"Failed to create card content, ext={problem}")


def _properties(card: Json) -> Iterator[tuple[Json, frozenset[str]]]:
    """Yields the nodes of a card and the properties that each may have: others are refused since JSON 2.0. Of the
    platform's, those are here that answers need."""
    yield card, frozenset(("schema", "config", "header", "body", "card_link"))
    names = ("update_multi", "width_mode", "streaming_mode", "streaming_config", "summary", "enable_forward", "style")
    yield card["config"], frozenset(names)
    for element in _elements(card):
        yield element, PROPERTIES.get(element.get("tag", ""), frozenset())


def _tables(element: Json) -> int:
    if element.get("tag") == "table":
        return 1
    if element.get("tag") != "markdown":
        return 0
    without_code = re.sub(r"^(```+).*?^\1`*$", "", element["content"], flags=re.MULTILINE | re.DOTALL)
    return len(re.findall(r"^[^\n]*\|[^\n]*\n\s*\|?\s*:?-+:?\s*(?:\||$)", without_code, flags=re.MULTILINE))


def _elements(card: Json) -> Iterator[Json]:
    """Yields the elements of a card, also those in columns."""
    todo = list(card.get("body", {}).get("elements", ()))
    while todo:
        element = todo.pop(0)
        yield element
        todo[:0] = [*element.get("columns", ()), *element.get("elements", ())]


Route = Callable[..., Awaitable[Json | web.Response]]


async def _bot(server: FeishuServer, request: web.Request, body: Json) -> Json:
    return {"bot": {"activate_status": 2, "app_name": "Sika", "open_id": server.bot}}


async def _scopes(server: FeishuServer, request: web.Request, body: Json) -> Json:
    return {"data": {"scopes": [{"scope_name": name, "grant_status": 1} for name in sorted(server.scopes)]}}


async def _person(server: FeishuServer, request: web.Request, body: Json, id_: str) -> Json:
    server.need("contact:contact.base:readonly")
    if request.query.get("user_id_type") != "open_id" or id_ not in server.people:
        raise Refusal(41012, "user id invalid error")
    name = {"name": server.people[id_]} if "contact:user.base:readonly" in server.scopes else {}
    return {"data": {"user": {"open_id": id_, **name}}}


async def _create(server: FeishuServer, request: web.Request, body: Json) -> Json:
    if request.query.get("receive_id_type") != "chat_id" or body.get("receive_id") not in server.chats:
        raise Refusal(230001, "Your request contains an invalid request parameter, ext=invalid receive_id.")
    return server.send(body["receive_id"], body)


async def _reply(server: FeishuServer, request: web.Request, body: Json, id_: str) -> Json:
    return server.send(server.message_of(id_).chat, body, reply_to=id_)


async def _read(server: FeishuServer, request: web.Request, body: Json, id_: str) -> Json:
    message = server.message_of(id_)
    server.may_read(message.chat)
    return {"data": {"items": [_item(message, request)]}}


async def _list(server: FeishuServer, request: web.Request, body: Json) -> Json:
    server.may_read(request.query["container_id"])
    since = int(request.query.get("start_time", "0")) * 1000
    size, first = int(request.query["page_size"]), int(request.query.get("page_token", "0"))
    messages = [m for m in server.seen(request.query["container_id"], by_bot=False) if m.created >= since]
    page = [_item(message, request) for message in messages[first : first + size]]
    more = len(messages) > first + size
    return {"data": {"items": page, "has_more": more, "page_token": str(first + size) if more else ""}}


def _item(message: Message, request: web.Request) -> Json:
    sender = {"id": message.sender, "sender_type": "app" if message.by_bot else "user"}
    content = message.body
    if message.kind == "interactive" and request.query.get("card_msg_content_type") != "user_card_content":
        content = {"title": None, "elements": [[{"tag": "text", "text": message.text}]]}
    return {
        "message_id": message.id,
        "chat_id": message.chat,
        "msg_type": message.kind,
        "sender": sender,
        "body": {"content": json.dumps(content, ensure_ascii=False)},
        "mentions": [{"key": "@_user_1", "id": "ou_bot", "id_type": "open_id", "name": "Sika", "tenant_key": "t"}]
        if "@_user_1" in str(content)
        else [],
    }


async def _patch(server: FeishuServer, request: web.Request, body: Json, id_: str) -> Json:
    server.need("im:message", "im:message:update")
    message = server.own_message(id_)
    if message.kind != "interactive" or message.card is not None:
        raise Refusal(230099, "Failed to create card content, ext=no card of this message")
    server._limit(f"message {id_}", 5, 1.0, 230020)
    card = json.loads(body["content"])
    check(card)
    if not card.get("config", {}).get("update_multi") or not message.content.get("config", {}).get("update_multi"):
        raise Refusal(230099, "Failed to create card content, ext=the card is not shared")
    message.content = card
    message.changes += 1
    return {"data": {}}


async def _delete(server: FeishuServer, request: web.Request, body: Json, id_: str) -> Json:
    server.own_message(id_).deleted = True
    return {"data": {}}


async def _react(server: FeishuServer, request: web.Request, body: Json, id_: str) -> Json:
    emoji = body["reaction_type"]["emoji_type"]
    if emoji not in EMOJI:
        raise Refusal(231001, "reaction type is invalid.")
    reaction = uuid.uuid4().hex
    server.message_of(id_).reactions[reaction] = emoji
    return {"data": {"reaction_id": reaction, "reaction_type": {"emoji_type": emoji}}}


async def _reactions(server: FeishuServer, request: web.Request, body: Json, id_: str) -> Json:
    items = [
        {"reaction_id": key, "operator": {"operator_id": server.app_id, "operator_type": "app"}}
        for key, emoji in server.message_of(id_).reactions.items()
        if emoji == request.query.get("reaction_type")
    ]
    return {"data": {"items": items, "has_more": False}}


async def _unreact(server: FeishuServer, request: web.Request, body: Json, id_: str, reaction: str) -> Json:
    if server.message_of(id_).reactions.pop(reaction, None) is None:
        raise Refusal(231010, "reaction is not found")
    return {"data": {}}


async def _resource(server: FeishuServer, request: web.Request, body: Json, id_: str, key: str) -> Json | web.Response:
    server.need("im:message", "im:message:readonly")
    if server.file_page is not None:
        return web.Response(body=server.file_page[1], content_type=server.file_page[0])
    message = server.message_of(id_)
    if key not in json.dumps(message.content):
        raise Refusal(234003, "File not in msg.")
    if key not in server.files:
        raise Refusal(234042, "The file is expired.")
    if request.query.get("type") != ("image" if "image_key" in json.dumps(message.content) else "file"):
        raise Refusal(234001, "Invalid request param.")
    name, data = server.files[key]
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return web.Response(body=data, content_type="application/octet-stream", headers=disposition)


async def _images(server: FeishuServer, request: web.Request, body: Json) -> Json:
    server.need("im:resource", "im:resource:upload")
    if body.get("image_type") != "message" or not 0 < body["file_size"] <= 10 << 20:
        raise Refusal(234010, "File's size can't be 0, or is over the limit.")
    return {"data": {"image_key": server.store(body["image"], "image")}}


async def _files(server: FeishuServer, request: web.Request, body: Json) -> Json:
    server.need("im:resource", "im:resource:upload")
    if body.get("file_type") not in FILE_TYPES or not body.get("file_name"):
        raise Refusal(234001, "Invalid request param.")
    if not 0 < body["file_size"] <= 30 << 20:
        raise Refusal(234006 if body["file_size"] else 234010, "The file size exceed the max value.")
    return {"data": {"file_key": server.store(body["file"], body["file_name"])}}


async def _new_card(server: FeishuServer, request: web.Request, body: Json) -> Json:
    server.need("cardkit:card:write")
    data = json.loads(body["data"])
    if body.get("type") != "card_json":
        raise Refusal(300301, "type")
    check(data)
    card = Card(f"card_{next(server._numbers)}", data, opened=server.now())
    server.cards[card.id] = card
    return {"data": {"card_id": card.id}}


async def _put_card(server: FeishuServer, request: web.Request, body: Json, id_: str) -> Json:
    card = server.card_of(id_)
    data = json.loads(body["card"]["data"])
    check(data)
    server.sequence(card, body)
    card.data = data
    return {"data": {}}


async def _put_element(server: FeishuServer, request: web.Request, body: Json, id_: str, element_id: str) -> Json:
    card = server.card_of(id_)
    if not card.data["config"].get("streaming_mode") or server.now() - card.opened > STREAM_SECONDS:
        card.data["config"]["streaming_mode"] = False
        raise Refusal(300309, "streaming mode is closed")
    if not isinstance(body.get("content"), str) or not 0 < len(body["content"]) <= 100_000:
        raise Refusal(99992402, "field validation failed")
    changed: Json = json.loads(json.dumps(card.data))
    node = next((node for node in _elements(changed) if node.get("element_id") == element_id), None)
    if node is None:
        raise Refusal(300313, "element not found")
    node["content"] = body["content"]
    check(changed)
    server.sequence(card, body)
    card.data = changed
    if element_id == "answer":
        card.shown.append(body["content"])
    return {"data": {}}


async def _id_convert(server: FeishuServer, request: web.Request, body: Json) -> Json:
    server.need("cardkit:card:write")
    card = server.message_of(body["message_id"]).card
    if card is None:
        raise Refusal(300301, "card not found")
    return {"data": {"card_id": card.id}}


ROUTES: Sequence[tuple[str, Route]] = (
    ("GET bot/v3/info", _bot),
    ("GET application/v6/scopes", _scopes),
    ("GET contact/v3/users/([^/]+)", _person),
    ("POST im/v1/messages", _create),
    ("GET im/v1/messages", _list),
    ("POST im/v1/messages/([^/]+)/reply", _reply),
    ("GET im/v1/messages/([^/]+)", _read),
    ("PATCH im/v1/messages/([^/]+)", _patch),
    ("DELETE im/v1/messages/([^/]+)", _delete),
    ("POST im/v1/messages/([^/]+)/reactions", _react),
    ("GET im/v1/messages/([^/]+)/reactions", _reactions),
    ("DELETE im/v1/messages/([^/]+)/reactions/([^/]+)", _unreact),
    ("GET im/v1/messages/([^/]+)/resources/([^/]+)", _resource),
    ("POST im/v1/images", _images),
    ("POST im/v1/files", _files),
    ("POST cardkit/v1/cards", _new_card),
    ("POST cardkit/v1/cards/id_convert", _id_convert),
    ("PUT cardkit/v1/cards/([^/]+)", _put_card),
    ("PUT cardkit/v1/cards/([^/]+)/elements/([^/]+)/content", _put_element),
)
