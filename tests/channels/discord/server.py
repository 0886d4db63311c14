"""A local Discord: its gateway, REST, interactions and files, as its documentation describes them, with faults.

What no client should do is in `problems`: calls before the end of a pause, second identifications, pings, answers to
interactions after 3 seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import anyio
from aiohttp import WSMsgType, web

TOKEN = "MTIz.bot.token"
BOT, APP, GUILD = "9000", "9001", "7000"
DEADLINE = 120.0
CONTENT_INTENT = 1 << 15
NONCE_SECONDS = 300.0
INTERACTION_SECONDS = 3.0
LIMITS = {"POST": (5, 1.0), "PATCH": (5, 1.0)}
"""Calls of a route in so many seconds: the real ones have 5."""


Files = Sequence[tuple[str, bytes]]
FILE, REQUEST = 10 << 20, 25 << 20
"""Bytes of a file, and of a request."""


class Seen(NamedTuple):
    """A message as people see it."""

    id: str
    text: str
    buttons: Sequence[str]
    files: Sequence[bytes]
    by_bot: bool
    reply_to: str = ""


class Call(NamedTuple):
    method: str
    path: str


class Socket:
    def __init__(self, ws: web.WebSocketResponse) -> None:
        self.ws = ws
        self.session = ""
        self.closing = False
        """The server has closed it: the client's answer ends no session."""


class Session:
    def __init__(self, intents: int) -> None:
        self.intents = intents
        self.events: list[dict[str, Any]] = []
        self.socket: Socket | None = None


class Person:
    def __init__(self, server: DiscordServer, name: str, identity: str) -> None:
        self.server, self.name, self.id = server, name, identity

    @property
    def user(self) -> dict[str, Any]:
        return {"id": self.id, "username": self.name, "global_name": self.name.title()}

    def says(
        self,
        text: str,
        group: str = "",
        *,
        bot: bool = True,
        reply_to: str = "",
        files: Mapping[str, tuple[str, bytes]] | None = None,
        mentions: Sequence[Person] = (),
        **more: Any,
    ) -> str:
        """Writes a message, in a group with the mention of the bot. Returns its id."""
        channel = self.server.channel(group, self)
        mentioned = [person.user for person in mentions]
        if group and bot:
            text, mentioned = f"<@{BOT}> {text}", [*mentioned, self.server.user]
        message = self.server.message(channel, self.user, text)
        message |= {"mentions": mentioned, "attachments": self.server.attached(files or {}), **more}
        if reply_to:
            message |= {"type": 19, "referenced_message": self.server.messages[channel][reply_to]}
        self.server.dispatch("MESSAGE_CREATE", self.server.sent(message, self.user))
        return str(message["id"])

    def edits(self, message: str, text: str, group: str = "") -> None:
        channel = self.server.channel(group, self)
        known = self.server.messages[channel][message]
        known |= {"content": text, "edited_timestamp": datetime.now(UTC).isoformat()}
        self.server.dispatch("MESSAGE_UPDATE", self.server.sent(known, self.user))

    def deletes(self, message: str, group: str = "") -> None:
        channel = self.server.channel(group, self)
        del self.server.messages[channel][message]
        guild = {key: value for key, value in self.server.channels[channel].items() if key == "guild_id"}
        self.server.dispatch("MESSAGE_DELETE", {"id": message, "channel_id": channel, **guild})

    def commands(self, text: str, group: str = "") -> str:
        """Gives the slash command. Returns the interaction's id."""
        options = [{"name": "text", "type": 3, "value": text}] if text else []
        data = {"name": "sika", "options": options}
        return self.server.interact(self, self.server.channel(group, self), 2, data, None)

    def presses(self, label: str, group: str = "", message: str = "") -> str:
        """Presses the newest button with a label. Returns the interaction's id."""
        channel = self.server.channel(group, self)
        for known in reversed(list(self.server.messages[channel].values())):
            for button in _buttons(known):
                if button["label"] == label and message in ("", known["id"]):
                    data = {"custom_id": button["custom_id"], "component_type": 2}
                    return self.server.interact(self, channel, 3, data, known)
        raise AssertionError(f"no button {label}")


class Faults:
    def __init__(self) -> None:
        self.calls: deque[tuple[str, str, float]] = deque()
        self.mute = False
        """The gateway answers no heartbeat and sends nothing."""
        self.refuse_handshakes = 0
        self.duplicate = False
        self.refused_files: set[str] = set()
        """Names."""

    def add(self, route: str, kind: str, seconds: float = 0.0) -> None:
        """Has the next call of a route (a pattern of `METHOD path`) fail: `lose` (applied), `cut`, `502`,
        `done_502` (applied), `refused`, `rate`, `global`."""
        self.calls.append((route, kind, seconds))

    def waits(self, route: str) -> bool:
        """Tells whether a fault waits for a call."""
        return any(fault[0] == route for fault in self.calls)

    def take(self, call: str) -> tuple[str, float]:
        for fault in self.calls:
            if re.match(fault[0], call):
                self.calls.remove(fault)
                return fault[1:]
        return "", 0.0


class DiscordServer:
    def __init__(self) -> None:
        self.faults = Faults()
        self.limits: Mapping[str, tuple[int, float]] = LIMITS
        """Calls of a method in one channel, in how many seconds."""
        self.problems: list[str] = []
        self.token = TOKEN
        self.unauthorised = 0
        """Calls and connections that were refused for their token."""
        self.content_intent = True
        self.sessions: dict[str, Session] = {}
        self.sockets: list[Socket] = []
        self.most_sockets = self.identified = self.resumed = 0
        self.heartbeat_ms = 10_000
        self.messages: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.channels: dict[str, dict[str, Any]] = {}
        self.people: dict[str, Person] = {}
        self.contents: dict[str, bytes] = {}
        self.whispers: dict[tuple[str, str], list[str]] = defaultdict(list)
        """What one person alone has seen, by channel and person."""
        self.interactions: dict[str, dict[str, Any]] = {}
        self.calls: list[Call] = []
        self.commands: list[Any] = []
        self.typing: set[str] = set()
        self._nonces: dict[tuple[str, str], tuple[float, str]] = {}
        self._ids = itertools.count(int((time.time() - 1_420_070_400) * 1000) << 22)
        self._recent: dict[str, deque[float]] = defaultdict(deque)
        self._refused_until: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=30 << 20)
        app.router.add_get("/gateway", self._gateway)
        app.router.add_get("/cdn/{file}", self._file)
        app.router.add_route("*", "/api/{path:.*}", self._call)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for socket in list(self.sockets):
            self._abort(socket)
        await self._runner.cleanup()

    @property
    def settings(self) -> dict[str, Any]:
        return {"bot_token": self.token, "base_url": f"http://127.0.0.1:{self.port}/api", "allow_everyone": True}

    @property
    def user(self) -> dict[str, Any]:
        return {"id": BOT, "username": "sika", "bot": True}

    def person(self, name: str) -> Person:
        if name not in self.people:
            self.people[name] = Person(self, name, str(500 + len(self.people)))
        return self.people[name]

    def channel(self, group: str, person: Person) -> str:
        """Returns the channel of a group, of a thread (`group/thread`), or of a private chat."""
        name = group or f"@{person.name}"
        known = next((key for key, channel in self.channels.items() if channel["name"] == name), "")
        if known:
            return known
        identity = str(next(self._ids))
        parent, _, thread = group.partition("/")
        kind: dict[str, Any] = {"type": 1} if not group else {"type": 0, "guild_id": GUILD}
        if thread:
            kind = {"type": 11, "guild_id": GUILD, "parent_id": self.channel(parent, person)}
        self.channels[identity] = {"id": identity, "name": name, **kind}
        return identity

    def message(self, channel: str, author: Mapping[str, Any], text: str) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat()
        message: dict[str, Any] = {"id": str(next(self._ids)), "channel_id": channel, "author": dict(author), "type": 0}
        message |= {"content": text, "timestamp": now, "edited_timestamp": None, "mentions": [], "attachments": []}
        self.messages[channel][message["id"]] = message
        return message

    def sent(self, message: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message as the gateway sends it."""
        channel = self.channels[message["channel_id"]]
        more: dict[str, Any] = {"channel_type": channel["type"]}
        if "guild_id" in channel:
            more |= {"guild_id": channel["guild_id"], "member": {"nick": None}}
        return {**message, **more}

    def attached(self, files: Mapping[str, tuple[str, bytes]]) -> list[dict[str, Any]]:
        attachments = []
        for name, (mime, content) in files.items():
            identity = str(next(self._ids))
            self.contents[identity] = content
            attachments.append({"id": identity, "filename": name, "content_type": mime, "size": len(content)})
        return attachments

    def seen(self, channel: str) -> list[Seen]:
        shown = []
        for message in self.messages[channel].values():
            if message.get("loading"):
                continue
            files = [self.contents[each["id"]] for each in message["attachments"]]
            labels = [button["label"] for button in _buttons(message)]
            reply = (message.get("message_reference") or {}).get("message_id", "")
            by_bot = message["author"]["id"] == BOT
            shown.append(Seen(message["id"], message["content"], labels, files, by_bot, reply))
        return shown

    async def until(self, condition: Callable[[], Any]) -> Any:
        with anyio.fail_after(DEADLINE):
            while not (value := condition()):
                self._changed.clear()
                with anyio.move_on_after(0.05):
                    await self._changed.wait()
        return value

    def _note(self) -> None:
        self._changed.set()

    # ── the gateway ─────────────────────────────────────────────────────────────────────────────────────────────────

    def dispatch(self, name: str, data: Mapping[str, Any]) -> None:
        """Sends an event to each session, and keeps it for those that are resumed."""
        for session in self.sessions.values():
            event = dict(data)
            if name in ("MESSAGE_CREATE", "MESSAGE_UPDATE") and not self._may_read(session, event):
                event |= {"content": "", "attachments": [], "components": []}
            frame = {"op": 0, "t": name, "s": len(session.events) + 1, "d": event}
            session.events.append(frame)
            if session.socket is not None and not self.faults.mute:
                self._send(session.socket, frame)
                if self.faults.duplicate:
                    again = {**frame, "s": len(session.events) + 1}
                    session.events.append(again)
                    self._send(session.socket, again)

    def _may_read(self, session: Session, message: Mapping[str, Any]) -> bool:
        named = any(user["id"] == BOT for user in message.get("mentions") or ())
        own = message["author"].get("id") == BOT
        return bool(session.intents & CONTENT_INTENT) or "guild_id" not in message or named or own

    def _send(self, socket: Socket, frame: Mapping[str, Any]) -> None:
        async def send() -> None:
            with suppress(ConnectionError, RuntimeError):
                await socket.ws.send_str(json.dumps(frame))

        task = asyncio.get_running_loop().create_task(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop(self) -> None:
        """Cuts the connections."""
        for socket in list(self.sockets):
            self._abort(socket)

    def _abort(self, socket: Socket) -> None:
        transport = socket.ws._req.transport if socket.ws._req is not None else None
        if transport is not None:
            transport.abort()

    def say(self, op: int, data: Any = None) -> None:
        """Sends a frame other than an event: 7 asks to connect again, 9 ends the session."""
        for socket in self.sockets:
            if op == 9 and not data:
                self.sessions.pop(socket.session, None)
            self._send(socket, {"op": op, "d": data})

    async def close(self, code: int) -> None:
        """Closes the connections with a code; those that end a session do."""
        for socket in list(self.sockets):
            if code in (1000, 1001, 4003, 4007, 4009):
                self.sessions.pop(socket.session, None)
            socket.closing = True
            await socket.ws.close(code=code)

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        if self.faults.refuse_handshakes:
            self.faults.refuse_handshakes -= 1
            return web.Response(status=503)
        if request.query.get("v") != "10" or request.query.get("encoding") != "json":
            self.problems.append(f"gateway without version: {request.query_string}")
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        socket = Socket(ws)
        self.sockets.append(socket)
        self.most_sockets = max(self.most_sockets, len(self.sockets))
        try:
            await ws.send_json({"op": 10, "d": {"heartbeat_interval": self.heartbeat_ms}})
            async for frame in ws:
                if frame.type is WSMsgType.TEXT:
                    await self._heard(socket, json.loads(frame.data))
        finally:
            self.sockets.remove(socket)
            if (session := self.sessions.get(socket.session)) is not None and session.socket is socket:
                session.socket = None
            self._note()
        if ws.close_code in (1000, 1001) and not socket.closing:
            self.sessions.pop(socket.session, None)
        return ws

    async def _heard(self, socket: Socket, frame: Mapping[str, Any]) -> None:
        if self.faults.mute:
            return
        match frame["op"]:
            case 1:
                await socket.ws.send_json({"op": 11})
            case 2:
                await self._identify(socket, frame["d"])
            case 6:
                await self._resume(socket, frame["d"])
        self._note()

    async def _identify(self, socket: Socket, data: Mapping[str, Any]) -> None:
        if socket.session:
            self.problems.append("identified twice")
        if data["token"] != self.token:
            self.unauthorised += 1
            await socket.ws.close(code=4004)
        elif data["intents"] & CONTENT_INTENT and not self.content_intent:
            await socket.ws.close(code=4014)
        else:
            socket.session = f"s{len(self.sessions)}-{next(self._ids)}"
            session = self.sessions[socket.session] = Session(data["intents"])
            self.identified += 1
            ready = {"session_id": socket.session, "resume_gateway_url": self._url, "user": self.user, "v": 10}
            frame = {"op": 0, "t": "READY", "s": 1, "d": ready}
            session.events.append(frame)
            await socket.ws.send_json(frame)
            session.socket = socket

    async def _resume(self, socket: Socket, data: Mapping[str, Any]) -> None:
        session = self.sessions.get(data["session_id"])
        if data["token"] != self.token:
            self.unauthorised += 1
            await socket.ws.close(code=4004)
            return
        if session is None:
            await socket.ws.send_json({"op": 9, "d": False})
            return
        socket.session = data["session_id"]
        for frame in session.events[data["seq"] or 0 :]:
            await socket.ws.send_json(frame)
        session.socket = socket
        self.resumed += 1
        session.events.append({"op": 0, "t": "RESUMED", "s": len(session.events) + 1, "d": {}})
        await socket.ws.send_json(session.events[-1])

    @property
    def _url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/gateway"

    # ── interactions ────────────────────────────────────────────────────────────────────────────────────────────────

    def interact(
        self, person: Person, channel: str, kind: int, data: Mapping[str, Any], message: Mapping[str, Any] | None
    ) -> str:
        identity = str(next(self._ids))
        token = f"interaction-{identity}-{'t' * 60}"
        interaction: dict[str, Any] = {"id": identity, "application_id": APP, "type": kind, "token": token}
        interaction |= {"data": dict(data), "channel": self.channels[channel], "channel_id": channel}
        if "guild_id" in self.channels[channel]:
            interaction |= {"guild_id": GUILD, "member": {"user": person.user, "nick": None}}
        else:
            interaction["user"] = person.user
        if message is not None:
            interaction["message"] = dict(message)
        known = {"at": time.monotonic(), "channel": channel, "person": person.id, "answered": False, "original": ""}
        self.interactions[token] = known
        self.dispatch("INTERACTION_CREATE", interaction)
        return identity

    def answered(self) -> bool:
        """Tells whether each interaction has been acknowledged."""
        return all(known["answered"] for known in self.interactions.values())

    def _callback(self, token: str, body: Mapping[str, Any]) -> web.Response:
        known = self.interactions.get(token)
        if known is None:
            return _refusal(404, 10062, "Unknown interaction")
        if known["answered"]:
            return _refusal(400, 40060, "Interaction has already been acknowledged")
        if time.monotonic() - known["at"] > INTERACTION_SECONDS:
            self.problems.append("an interaction was answered late")
            return _refusal(404, 10062, "Unknown interaction")
        known["answered"] = True
        if body["type"] == 5:
            message = self.message(known["channel"], self.user, "")
            message["loading"] = True
            known["original"] = message["id"]
        return web.json_response({"interaction": {"id": token, "response_message_id": known["original"] or None}})

    def _original(self, token: str, body: Mapping[str, Any]) -> web.Response:
        known = self.interactions[token]
        message = self.messages[known["channel"]][known["original"]]
        message |= {"content": body["content"], "loading": False}
        return web.json_response(message)

    def _followup(self, token: str, body: Mapping[str, Any]) -> web.Response:
        known = self.interactions[token]
        if not known["answered"]:
            return _refusal(404, 10015, "Unknown webhook")
        if not body.get("flags", 0) & 64:
            self.problems.append("a follow-up that everybody sees")
        self.whispers[known["channel"], known["person"]].append(body["content"])
        return web.json_response({"id": str(next(self._ids))})

    # ── REST ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        call = f"{request.method} {path}"
        self.calls.append(Call(request.method, path))
        body, files = await _body(request)
        fault, seconds = self.faults.take(call)
        if fault == "cut":
            return self._cut(request)
        if fault == "502":
            return _bad_gateway()
        if fault == "refused":
            return _refusal(400, 50035, "Invalid Form Body")
        if refusal := self._limit(request.method, path, fault, seconds):
            return refusal
        answer = self._answer(request, path, body, files)
        self._note()
        if fault == "lose":
            return self._cut(request)
        if fault == "done_502":
            return _bad_gateway()
        answer.headers.update(self._headers(request.method, path))
        return answer

    def _cut(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    def _limit(self, method: str, path: str, fault: str, seconds: float) -> web.Response | None:
        """Refuses a call that is one too many."""
        now, route = time.monotonic(), _bucket(method, path)
        if self._refused_until.get(route, 0.0) > now + 0.05 or self._refused_until.get("", 0.0) > now + 0.05:
            self.problems.append(f"{method} {path} before the end of a pause")
        recent, (most, span) = self._recent[route], self.limits.get(method, (1000, 1.0))
        while recent and recent[0] < now - span:
            recent.popleft()
        if fault in ("rate", "global"):
            self._refused_until["" if fault == "global" else route] = now + seconds
            return _limited(seconds, of_all=fault == "global", bucket=route)
        if len(recent) >= most:
            self.problems.append(f"{method} {path} beyond its limit")
            return _limited(span, of_all=False, bucket=route)
        recent.append(now)
        return None

    def _headers(self, method: str, path: str) -> dict[str, str]:
        route = _bucket(method, path)
        most, span = self.limits.get(method, (1000, 1.0))
        recent = self._recent[route]
        after = max(0.0, span - (time.monotonic() - recent[0])) if recent else span
        return {
            "X-RateLimit-Limit": str(most),
            "X-RateLimit-Remaining": str(max(0, most - len(recent))),
            "X-RateLimit-Reset-After": f"{after:.3f}",
            "X-RateLimit-Bucket": route.partition(" ")[0],
        }

    def _answer(self, request: web.Request, path: str, body: Any, files: Files) -> web.Response:
        parts = path.strip("/").split("/")
        match request.method, parts:
            case "POST", ["interactions", _, token, "callback"]:
                return self._callback(token, body)
            case "PATCH", ["webhooks", _, token, "messages", "@original"]:
                return self._original(token, body)
            case "POST", ["webhooks", _, token]:
                return self._followup(token, body)
        if request.headers.get("Authorization") != f"Bot {self.token}":
            self.unauthorised += 1
            return _refusal(401, 0, "401: Unauthorized")
        match request.method, parts:
            case "GET", ["users", "@me"]:
                return web.json_response(self.user)
            case "GET", ["users", "@me", "guilds"]:
                return web.json_response([{"id": GUILD}])
            case "GET", ["applications", "@me"]:
                return web.json_response({"id": APP, "flags": (1 << 19) if self.content_intent else 0})
            case "POST", ["applications", _, "commands"]:
                self.commands.append(body)
                return web.json_response(body, status=201)
            case "GET", ["gateway", "bot"]:
                return web.json_response({"url": self._url, "shards": 1, "session_start_limit": {"remaining": 999}})
            case method, ["channels", channel, *rest]:
                if channel not in self.channels:
                    return _refusal(404, 10003, "Unknown Channel")
                return self._in_channel(method, channel, rest, body, files, request.query)
        return _refusal(404, 0, "404: Not Found")

    def _in_channel(
        self,
        method: str,
        channel: str,
        rest: Sequence[str],
        body: Any,
        files: Files,
        query: Mapping[str, str],
    ) -> web.Response:
        messages = self.messages[channel]
        match method, list(rest):
            case "GET", []:
                return web.json_response(self.channels[channel])
            case "POST", ["typing"]:
                self.typing.add(channel)
                return web.Response(status=204)
            case "POST", ["messages"]:
                return self._posted(channel, body, files)
            case "GET", ["messages"]:
                later = [each for key, each in messages.items() if int(key) > int(query.get("after", 0))]
                return web.json_response(later[::-1][: int(query["limit"])])
            case _, ["messages", message] if message not in messages:
                return _refusal(404, 10008, "Unknown Message")
            case "GET", ["messages", message]:
                return web.json_response(self._with_addresses(messages[message]))
            case "PATCH", ["messages", message]:
                if refusal := self._refused(body):
                    return refusal
                messages[message] |= {key: body[key] for key in ("content", "components") if key in body}
                return web.json_response(messages[message])
            case "DELETE", ["messages", message]:
                del messages[message]
                return web.Response(status=204)
        return _refusal(405, 0, "405: Method Not Allowed")

    def _posted(self, channel: str, body: Any, files: Files) -> web.Response:
        if refusal := self._refused(body, files):
            return refusal
        nonce = str(body.get("nonce", ""))
        if len(nonce) > 25:
            return _refusal(400, 50035, "Invalid Form Body")
        at, known = self._nonces.get((channel, nonce), (0.0, ""))
        if body.get("enforce_nonce") and known in self.messages[channel] and time.monotonic() - at < NONCE_SECONDS:
            return web.json_response(self.messages[channel][known])
        message = self.message(channel, self.user, body.get("content", ""))
        message |= {key: body[key] for key in ("components", "message_reference") if key in body}
        for name, content in files:
            message["attachments"] += self.attached({name: ("application/octet-stream", content)})
        self._nonces[channel, nonce] = (time.monotonic(), message["id"])
        self.dispatch("MESSAGE_CREATE", self.sent(message, self.user))
        return web.json_response(message)

    def _refused(self, body: Any, files: Files = ()) -> web.Response | None:
        """Refuses what Discord does not take; notes what would ping."""
        if (body.get("allowed_mentions") or {}).get("parse") != []:
            self.problems.append("a message that may ping people")
        content = body.get("content", "")
        if len(content) > 2000:
            return _refusal(400, 50035, "Invalid Form Body")
        if sum(len(data) for _, data in files) > REQUEST:
            return _refusal(413, 40005, "Request entity too large")
        if len(files) > 10 or any(len(data) > FILE for _, data in files):
            return _refusal(400, 50035, "Invalid Form Body")
        if any(name in self.faults.refused_files for name, _ in files):
            return _refusal(400, 50035, "Invalid Form Body")
        if not content and not files:
            return _refusal(400, 50006, "Cannot send an empty message")
        for row in body.get("components") or ():
            if len(row["components"]) > 5:
                return _refusal(400, 50035, "Invalid Form Body")
            if any(len(each["custom_id"]) > 100 or len(each["label"]) > 80 for each in row["components"]):
                return _refusal(400, 50035, "Invalid Form Body")
        return None

    def _with_addresses(self, message: Mapping[str, Any]) -> dict[str, Any]:
        until = int(time.time()) + 3600
        addresses = [
            {**file, "url": f"http://127.0.0.1:{self.port}/cdn/{file['id']}?ex={until}"}
            for file in message["attachments"]
        ]
        return {**message, "attachments": addresses}

    async def _file(self, request: web.Request) -> web.Response:
        if int(request.query.get("ex", 0)) < time.time():
            return web.Response(status=404, text="This content is no longer available.")
        if "Authorization" in request.headers:
            self.problems.append("the token was sent to the files' host")
        return web.Response(body=self.contents[request.match_info["file"]])


def _bad_gateway() -> web.Response:
    return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")


def _buttons(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for row in message.get("components") or ():
        yield from row["components"]


def _bucket(method: str, path: str) -> str:
    """Returns the limit of a call: a name, and the channel that it counts for."""
    parts = path.strip("/").split("/")
    major = parts[1] if parts[0] in ("channels", "webhooks", "interactions") else ""
    kind = re.sub(r"\d+", "*", "/".join(parts[2:3]))
    return f"{method.lower()}-{parts[0]}-{kind} {major}"


async def _body(request: web.Request) -> tuple[Any, Files]:
    if not request.content_type.startswith("multipart/"):
        text = await request.text()
        return json.loads(text) if text else {}, ()
    body: Any = {}
    files = []
    form = await request.post()
    for name, value in form.items():
        if name == "payload_json":
            body = json.loads(value if isinstance(value, bytearray | bytes) else str(value))
        elif isinstance(value, web.FileField):
            files.append((value.filename, value.file.read()))
    return body, files


def _refusal(status: int, code: int, message: str) -> web.Response:
    return web.json_response({"message": message, "code": code}, status=status)


def _limited(seconds: float, *, of_all: bool, bucket: str) -> web.Response:
    body = {"message": "You are being rate limited.", "retry_after": seconds, "global": of_all}
    headers = {"Retry-After": f"{seconds:g}", "X-RateLimit-Scope": "global" if of_all else "user"}
    headers |= {"X-RateLimit-Global": "true"} if of_all else {"X-RateLimit-Bucket": bucket.partition(" ")[0]}
    return web.json_response(body, status=429, headers=headers)
