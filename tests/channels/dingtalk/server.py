"""A local DingTalk: the stream gateway, the robot, card and file routes, as their public documentation has them.

It refuses what DingTalk would refuse, with DingTalk's errors; keeps messages as people see them; records every call;
and breaks on request (`faults`). Undocumented: the answer of the streaming route for unknown and finished cards. Users
report 500, so it is 500 here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from aiohttp import WSMsgType, web

ROBOT = "/v1.0/im/bot/messages/get"
CARD = "/v1.0/card/instances/callback"
ANSWER_TEMPLATE = "answer.schema"
BUTTON_TEMPLATE = "1366a1eb-bc54-4859-ac88-517c56a9acb1.schema"
STOPPABLE_TEMPLATE = "stoppable.schema"
"""As `ANSWER_TEMPLATE`, with buttons."""
TEMPLATES = {
    ANSWER_TEMPLATE: {"content"},
    STOPPABLE_TEMPLATE: {"content", "sys_full_json_obj"},
    BUTTON_TEMPLATE: {"markdown", "tips", "title", "logo", "sys_full_json_obj"},
}
KEYS = {
    "sampleText": {"content"},
    "sampleMarkdown": {"title", "text"},
    "sampleImageMsg": {"photoURL"},
    "sampleFile": {"mediaId", "fileName", "fileType"},
}
SEND, CARD_WRITE, CARD_STREAM = "qyapi_robot_sendmsg", "Card.Instance.Write", "Card.Streaming.Write"
LARGEST_UPLOAD = 20 << 20
UNDER_WAY_SECONDS = 0.25
"""Calls that come so soon after a refusal may have been sent before it arrived."""
Fault = Literal["limited", "qps", "html", "done_html", "lost", "cut", "token", "refused"]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Call(NamedTuple):
    method: str
    path: str
    body: Mapping[str, Any]
    at: float


class Seen(NamedTuple):
    """A message of the bot as people see it now. `buttons`: ids by label. `streaming`: a card that is being written."""

    id: str
    text: str
    title: str = ""
    buttons: Mapping[str, str] = {}
    file: str = ""
    data: bytes = b""
    streaming: bool = False


@dataclass
class _Card:
    chat: str
    template: str
    variables: dict[str, str]
    guids: set[str] = field(default_factory=set)
    finished: bool = False
    expired: bool = False


@dataclass
class _Envelope:
    topic: str
    data: Mapping[str, Any]
    id: str
    acked: bool = False
    deliveries: int = 0


class Refusal(Exception):
    """An error in DingTalk's form."""

    def __init__(self, status: int, code: str, message: str = "", scopes: tuple[str, ...] = ()) -> None:
        super().__init__(code)
        body: dict[str, Any] = {"code": code, "message": message or code, "requestid": "0C0FFEE0-0000"}
        if scopes:
            body["accessdenieddetail"] = {"requiredScopes": list(scopes)}
        self.body = body
        self.status = status

    def response(self, headers: Mapping[str, str] | None = None) -> web.Response:
        return web.json_response(self.body, status=self.status, headers=headers)


class Faults:
    """What goes wrong next."""

    def __init__(self, server: DingTalkServer) -> None:
        self._server = server
        self._next: dict[str, deque[Fault]] = defaultdict(deque)
        self.refused_handshakes = 0
        self.retry_after = 1
        self.twice = False
        """Each message is delivered twice: in the same envelope, and in another one."""
        self.reversed = False
        """Messages wait until two are there, and come the wrong way round."""
        self.deaf = False
        """Sockets stay open, but pings get no answer and frames are not read."""

    def next(self, path: str, *faults: Fault) -> None:
        """Breaks the next calls of a route (a part of its path), one fault each."""
        self._next[path].extend(faults)

    def clear(self) -> None:
        self._next.clear()

    def waits(self, path: str) -> bool:
        """Tells whether a fault waits for a call."""
        return bool(self._next[path])

    def take(self, path: str) -> Fault | None:
        for part, queue in self._next.items():
            if part in path and queue:
                return queue.popleft()
        return None

    def cut(self) -> None:
        """Drops all sockets without a word."""
        for socket in [*self._server.sockets]:
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()

    async def close(self) -> None:
        for socket in [*self._server.sockets]:
            await socket.close()

    async def disconnect(self) -> None:
        """Asks the clients to reconnect, as before a deployment."""
        for socket in [*self._server.sockets]:
            await socket.send_json(
                _frame("SYSTEM", "disconnect", "sys-1", {"reason": "persistent connection is expired"})
            )

    def expire_tokens(self) -> None:
        self._server.tokens.clear()

    def expire_streams(self) -> None:
        for card in self._server.cards.values():
            card.expired = True


class Person:
    def __init__(self, server: DingTalkServer, name: str, staff: str) -> None:
        self._server = server
        self.name = name
        self.staff = staff

    async def says(self, text: str, chat: str = "", *, others: Sequence[str] = (), **more: Any) -> str:
        """Writes to the bot: privately, or in a group, where its mention is added and taken away. `others`: ids of
        those who are mentioned, too. Returns the id."""
        content = f" {text} " if chat else text
        body = {"msgtype": "text", "text": {"content": content}, **more}
        return await self._server.receive(self, chat, body, others)

    async def sends(self, name: str, data: bytes, kind: str = "file", **content: Any) -> str:
        """Sends a file, picture, audio or video. `content`: further fields."""
        code = self._server.keep(name, data)
        named = {"fileName": name} if kind == "file" else {}
        return await self._server.receive(
            self, "", {"msgtype": kind, "content": {"downloadCode": code, **named, **content}}
        )

    async def writes(self, *pieces: str | bytes, chat: str = "") -> str:
        """Sends texts and pictures in one message."""
        rich = [
            {"text": piece}
            if isinstance(piece, str)
            else {"type": "picture", "downloadCode": self._server.keep("image.png", piece)}
            for piece in pieces
        ]
        return await self._server.receive(self, chat, {"msgtype": "richText", "content": {"richText": rich}})

    async def presses(self, message: Seen, label: str) -> None:
        await self._server.press(self, message, label)


class DingTalkServer:
    """One organisation with one app. `clock`: seconds, for the rate rules."""

    def __init__(self, client_id: str = "dingtest", client_secret: str = "planted-secret") -> None:
        self.client_id = client_id
        self.client_secret = client_secret
        self.faults = Faults(self)
        self.calls: list[Call] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.peak = 0
        """Most connections at a time."""
        self.opened = 0
        self.subscriptions: list[Mapping[str, str]] = []
        self.scopes = {SEND, CARD_WRITE, CARD_STREAM}
        self.blocked: set[str] = set()
        """People who have left the organisation, by name."""
        self.held: set[str] = set()
        """People to whom messages are held back, by name."""
        self.removed: set[str] = set()
        """Groups that the bot was thrown out of, by name."""
        self.tokens: dict[str, float] = {}
        self.tokens_issued = 0
        self.unauthorised = 0
        """Calls that were refused for their client_secret."""
        self.token_seconds = 7200
        self.cards: dict[str, _Card] = {}
        self.emotions: dict[str, int] = defaultdict(int)
        """Working signs by message: the signs that are shown now."""
        self.files: dict[str, tuple[str, bytes]] = {}
        self.download: Callable[[web.Request], web.StreamResponse] | None = None
        """Answers downloads instead."""
        self.limits: tuple[int, int] | None = None
        """Calls a second of each route and messages a minute in each group, if they are enforced."""
        self.violations: list[str] = []
        self.early: list[str] = []
        """Calls of a route within the time that it had asked to wait."""
        self.clock: Callable[[], float] = time.monotonic
        self.redelivery_seconds = 60.0
        self.refuses_repetitions = False
        """A card whose id is known is refused. What the real platform does is not documented."""
        self.url = ""
        self._people: dict[str, Person] = {}
        self._messages: dict[str, list[str]] = defaultdict(list)
        self._plain: dict[str, Seen] = {}
        self._media: dict[str, bytes] = {}
        self._tickets: set[str] = set()
        self._pending: list[_Envelope] = []
        self._waiting: dict[str, tuple[float, float]] = {}
        self._numbers = itertools.count(1)
        self._runner: web.AppRunner | None = None
        self._redelivery: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def settings(self) -> dict[str, str]:
        """An account's settings: what a person copies from the app's page, and where this server is."""
        hosts = {"base_url": self.url, "upload_url": self.url}
        return {"client_id": self.client_id, "client_secret": self.client_secret, **hosts}

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._around], client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/v1.0/oauth2/accessToken", self._access_token),
                web.post("/v1.0/gateway/connections/open", self._open),
                web.get("/connect", self._connect),
                web.post("/v1.0/robot/oToMessages/batchSend", self._batch_send),
                web.post("/v1.0/robot/groupMessages/send", self._group_send),
                web.post("/v1.0/robot/emotion/reply", self._emotion(1)),
                web.post("/v1.0/robot/emotion/recall", self._emotion(-1)),
                web.post("/v1.0/robot/messageFiles/download", self._download_address),
                web.get("/download/{code}", self._download),
                web.post("/media/upload", self._upload),
                web.post("/v1.0/card/instances/createAndDeliver", self._create),
                web.put("/v1.0/card/instances", self._update),
                web.put("/v1.0/card/streaming", self._stream),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._redelivery = asyncio.create_task(self._redeliver())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._runner is not None
        assert self._redelivery is not None
        self._redelivery.cancel()
        await asyncio.gather(self._redelivery, return_exceptions=True)
        self.faults.cut()
        await self._runner.cleanup()

    # People

    def person(self, name: str) -> Person:
        return self._people.setdefault(name, Person(self, name, f"staff-{name}"))

    def group(self, name: str) -> str:
        """Returns the id of a group's conversation."""
        return f"cid-{name}=="

    def seen(self, chat: str) -> list[Seen]:
        """Returns what the bot has said in a group, or privately to a person (by name), as it looks now."""
        return [self._now(id_) for id_ in self._messages[chat]]

    async def until(self, holds: Callable[[], bool], seconds: float = 120.0) -> None:
        """Waits until something holds; it is looked at after every call, connection and acknowledgement."""
        async with asyncio.timeout(seconds):
            while not holds():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    def waits(self) -> int:
        """Returns how many messages are not acknowledged."""
        return len(self._pending)

    def _now(self, id_: str) -> Seen:
        card = self.cards.get(id_)
        if card is None:
            return self._plain[id_]
        shown = json.loads(card.variables.get("sys_full_json_obj", "{}")).get("msgButtons", [])
        buttons = {button["text"]: button["id"] for button in shown}
        if card.template == BUTTON_TEMPLATE:
            return Seen(id_, card.variables.get("markdown", ""), buttons=buttons)
        streaming = not (card.finished or card.expired)
        return Seen(id_, card.variables.get("content", ""), buttons=buttons, streaming=streaming)

    def keep(self, name: str, data: bytes) -> str:
        """Keeps a file of a person. Returns its download code."""
        code = f"code-{next(self._numbers)}"
        self.files[code] = (name, data)
        return code

    async def receive(self, person: Person, chat: str, content: Mapping[str, Any], others: Sequence[str] = ()) -> str:
        id_ = f"msg{next(self._numbers)}=="
        data: dict[str, Any] = {
            "conversationId": self.group(chat) if chat else f"cid-private-{person.name}==",
            "conversationType": "2" if chat else "1",
            "chatbotCorpId": "dingcorp",
            "chatbotUserId": "$:LWCP_v1:$bot",
            "msgId": id_,
            "senderNick": person.name.title(),
            "isAdmin": False,
            "senderStaffId": person.staff,
            "senderCorpId": "dingcorp",
            "senderId": f"$:LWCP_v1:${person.name}",
            "createAt": int(time.time() * 1000),
            "sessionWebhook": f"{self.url}/robot/sendBySession?session=planted-session",
            "sessionWebhookExpiredTime": int(time.time() * 1000) + 5_400_000,
            "robotCode": self.client_id,
            **content,
        }
        if chat:
            at = [{"dingtalkId": "$:LWCP_v1:$bot"}]
            at += [{"dingtalkId": f"$:LWCP_v1:${staff}", "staffId": staff} for staff in others]
            data |= {"isInAtList": True, "conversationTitle": chat, "atUsers": at}
        await self._enqueue(ROBOT, {key: value for key, value in data.items() if value is not None})
        return id_

    async def press(self, person: Person, message: Seen, label: str) -> None:
        private = {"actionIds": [message.buttons[label]], "params": {}}
        await self._enqueue(
            CARD,
            {
                "type": "actionCallback",
                "corpId": "dingcorp",
                "userId": person.staff,
                "userIdType": 1,
                "outTrackId": message.id,
                "spaceType": "im",
                "spaceId": "cid-space==",
                "extension": "{}",
                "content": json.dumps({"cardPrivateData": private}),
            },
        )

    # The stream

    async def _enqueue(self, topic: str, data: Mapping[str, Any]) -> None:
        self._pending.append(_Envelope(topic, data, f"envelope-{next(self._numbers)}"))
        if self.faults.reversed:
            fresh = [envelope for envelope in self._pending if not envelope.deliveries]
            if len(fresh) < 2:
                return
            for envelope in reversed(fresh):
                await self._deliver(envelope)
            return
        await self._deliver(self._pending[-1])

    async def _deliver(self, envelope: _Envelope) -> None:
        if not self.sockets or self.faults.deaf:
            return
        socket = self.sockets[next(self._numbers) % len(self.sockets)]
        first = not envelope.deliveries
        envelope.deliveries += 1
        frames = [_frame("CALLBACK", envelope.topic, envelope.id, envelope.data)]
        if self.faults.twice and first:
            frames += [frames[0], _frame("CALLBACK", envelope.topic, f"{envelope.id}-again", envelope.data)]
        for frame in frames:
            try:
                await socket.send_json(frame)
            except ConnectionError:
                return

    async def redeliver(self) -> None:
        """Delivers again, in new envelopes, what was not acknowledged."""
        for envelope in [*self._pending]:
            envelope.id = f"envelope-{next(self._numbers)}"
            await self._deliver(envelope)

    async def _redeliver(self) -> None:
        while True:
            await asyncio.sleep(self.redelivery_seconds)
            await self.redeliver()

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if self.faults.refused_handshakes:
            self.faults.refused_handshakes -= 1
            return web.Response(status=503, text="<html>busy</html>", content_type="text/html")
        if ticket not in self._tickets:
            return web.Response(status=401)
        self._tickets.remove(ticket)
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        self.sockets.append(socket)
        self.peak = max(self.peak, len(self.sockets))
        self.opened += 1
        self._changed.set()
        try:
            await socket.send_json(_frame("SYSTEM", "ping", f"sys-{next(self._numbers)}", {"opaque": "o-1"}))
            await self.redeliver()
            while True:
                frame = await socket.receive()
                if self.faults.deaf and frame.type in (WSMsgType.PING, WSMsgType.TEXT):
                    continue
                if frame.type is WSMsgType.PING:
                    await socket.pong(frame.data)
                elif frame.type is WSMsgType.TEXT:
                    self._acknowledge(json.loads(frame.data))
                elif frame.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                    break
        except ConnectionError:
            pass
        finally:
            self.sockets.remove(socket)
            self._changed.set()
        return socket

    def _acknowledge(self, ack: Mapping[str, Any]) -> None:
        id_ = ack["headers"]["messageId"].removesuffix("-again")
        card = next((envelope for envelope in self._pending if envelope.id == id_ and envelope.topic == CARD), None)
        if card is not None and not isinstance(json.loads(ack["data"]).get("response"), dict):
            self.violations.append("the acknowledgement of a pressed button has no object as its response")
        if ack["code"] == 200:
            self._pending = [envelope for envelope in self._pending if envelope.id != id_]
        self._changed.set()

    # REST

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/connect":
            return await handler(request)
        body = await request.json() if request.content_type == "application/json" else {}
        self.calls.append(Call(request.method, request.path, body, self.clock()))
        since, until = self._waiting.get(request.path, (0.0, 0.0))
        if since + UNDER_WAY_SECONDS <= self.clock() < until:
            self.early.append(request.path)
        fault = self.faults.take(request.path)
        try:
            if fault == "cut":
                return _gone(request)
            if fault == "html":
                return _bad_gateway()
            if fault == "limited":
                self._waiting[request.path] = (self.clock(), self.clock() + self.faults.retry_after)
                return Refusal(429, "TooManyRequests").response({"Retry-After": str(self.faults.retry_after)})
            if fault == "qps":
                raise Refusal(403, "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi")
            if fault == "refused":
                raise Refusal(400, "invalidParameter.msgParam.invalid")
            if fault == "token":
                self.tokens.clear()
            self._limit(request.path, body)
            response = await handler(request)
            if fault == "done_html":
                return _bad_gateway()
            return _gone(request) if fault == "lost" else response
        except Refusal as error:
            return error.response()
        finally:
            self._changed.set()

    def _limit(self, path: str, body: Mapping[str, Any]) -> None:
        if self.limits is None:
            return
        now, (per_second, per_minute) = self.clock(), self.limits
        of_route = [call for call in self.calls if call.path == path]
        if len([call for call in of_route if call.at > now - 1]) > per_second:
            self.violations.append(f"{path}: more than {per_second} a second")
            raise Refusal(403, "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi")
        group = body.get("openConversationId")
        if path.endswith("groupMessages/send"):
            recent = [call for call in of_route if call.at > now - 60 and call.body.get("openConversationId") == group]
            if len(recent) > per_minute:
                self.violations.append(f"{group}: more than {per_minute} a minute")
                raise Refusal(429, "TooManyRequests")

    async def _access_token(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (body.get("appKey"), body.get("appSecret")) != (self.client_id, self.client_secret):
            self.unauthorised += 1
            raise Refusal(400, "invalidClientIdOrSecret", "无效的clientId或者clientSecret")
        token = f"token-{next(self._numbers)}"
        self.tokens[token] = self.clock() + self.token_seconds
        self.tokens_issued += 1
        return web.json_response({"accessToken": token, "expireIn": self.token_seconds})

    async def _open(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (body.get("clientId"), body.get("clientSecret")) != (self.client_id, self.client_secret):
            self.unauthorised += 1
            raise Refusal(401, "authFailed", "clientId or clientSecret is wrong")
        self.subscriptions = body["subscriptions"]
        ticket = f"planted-ticket-{next(self._numbers)}"
        self._tickets.add(ticket)
        return web.json_response({"endpoint": f"ws{self.url.removeprefix('http')}/connect", "ticket": ticket})

    def _check(self, request: web.Request, scope: str = "") -> None:
        token = request.headers.get("x-acs-dingtalk-access-token", "")
        if self.tokens.get(token, 0.0) <= self.clock():
            raise Refusal(401, "InvalidAuthentication", "不合法的access_token")
        if scope and scope not in self.scopes:
            raise Refusal(403, "Forbidden.AccessDenied.AccessTokenPermissionDenied", "no permission", (scope,))

    async def _batch_send(self, request: web.Request) -> web.Response:
        self._check(request, SEND)
        body = await request.json()
        people = body.get("userIds")
        if not people:
            raise Refusal(400, "invalidParameter.userIds.empty")
        if len(people) > 20:
            raise Refusal(400, "invalidParameter.userIds.overMax")
        if body.get("robotCode") != self.client_id:
            raise Refusal(400, "invalidParameter.robotCode.auth")
        show = _shown(body, self._media)
        names = {person.staff: person.name for person in self._people.values()}
        invalid = [id_ for id_ in people if names.get(id_, "") in (*self.blocked, "")]
        held = [id_ for id_ in people if names.get(id_, "") in self.held]
        key = f"key-{next(self._numbers)}="
        for id_ in people:
            if id_ not in invalid and id_ not in held:
                self._say(names[id_], show._replace(id=key))
        answer = {"processQueryKey": key, "invalidStaffIdList": invalid, "flowControlledStaffIdList": held}
        return web.json_response(answer)

    async def _group_send(self, request: web.Request) -> web.Response:
        self._check(request, SEND)
        body = await request.json()
        if body.get("robotCode") != self.client_id:
            raise Refusal(400, "invalidParameter.robotCode.auth")
        if len(body.get("msgParam", "").encode()) > 15_000:
            raise Refusal(400, "invalidParameter.msgParam.invalid", "msgParam is longer than 15000 bytes")
        chat = self._chat_of(body.get("openConversationId", ""))
        key = f"key-{next(self._numbers)}="
        self._say(chat, _shown(body, self._media)._replace(id=key))
        return web.json_response({"processQueryKey": key})

    def _chat_of(self, conversation: str) -> str:
        name = conversation.removeprefix("cid-").removesuffix("==")
        if not conversation.startswith("cid-"):
            raise Refusal(400, "invalid.openConversationId", "无效的openConversationId")
        if name in self.removed:
            raise Refusal(400, "invalidParameter.robotCode.notExsit", "机器人不存在,请检查机器人是否在群内")
        return name

    def _say(self, chat: str, message: Seen) -> None:
        self._plain[message.id] = message
        self._messages[chat].append(message.id)

    def _emotion(self, change: int) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            self._check(request, SEND)
            body = await request.json()
            if not body.get("openMsgId") or not str(body.get("openConversationId", "")).startswith("cid-"):
                raise Refusal(400, "invalidParameter")
            self.emotions[body["openMsgId"]] += change
            return web.json_response({"success": True})

        return handle

    async def _upload(self, request: web.Request) -> web.Response:
        if self.tokens.get(request.query.get("access_token", ""), 0.0) <= self.clock():
            return web.json_response({"errcode": 40014, "errmsg": "不合法的access_token"})
        form = await request.post()
        media = form.get("media")
        if request.query.get("type") not in ("image", "file", "voice", "video") or not isinstance(media, web.FileField):
            return web.json_response({"errcode": 40035, "errmsg": "不合法的参数"})
        data = media.file.read()
        if len(data) > LARGEST_UPLOAD:
            return web.json_response({"errcode": 40006, "errmsg": "不合法的文件大小"})
        id_ = f"@media-{next(self._numbers)}"
        self._media[id_] = data
        return web.json_response({"errcode": 0, "errmsg": "ok", "media_id": id_, "type": request.query["type"]})

    async def _download_address(self, request: web.Request) -> web.Response:
        self._check(request, SEND)
        body = await request.json()
        code = body.get("downloadCode")
        if code not in self.files or body.get("robotCode") != self.client_id:
            raise Refusal(400, "invalidParameter.downloadCode", "the download code has expired")
        return web.json_response({"downloadUrl": f"{self.url}/download/{code}?signature=planted-signature"})

    async def _download(self, request: web.Request) -> web.StreamResponse:
        if self.download is not None:
            return self.download(request)
        return web.Response(body=self.files[request.match_info["code"]][1], content_type="application/octet-stream")

    async def _create(self, request: web.Request) -> web.Response:
        self._check(request, CARD_WRITE)
        body = await request.json()
        for key, code in (("cardTemplateId", "cardTemplateIdEmpty"), ("outTrackId", "outTrackIdEmpty")):
            if not body.get(key):
                raise Refusal(400, f"param.{code}")
        if body["cardTemplateId"] not in TEMPLATES:
            raise Refusal(400, "param.templateUnpublished")
        if body.get("callbackType") != "STREAM" or body.get("userIdType") != 1:
            raise Refusal(400, "param.invalid")
        variables = _variables(body, body["cardTemplateId"])
        space, _, id_ = body.get("openSpaceId", "").removeprefix("dtv1.card//").partition(".")
        error = ""
        chat = ""
        if space == "IM_GROUP" and body.get("imGroupOpenDeliverModel", {}).get("robotCode") == self.client_id:
            try:
                chat = self._chat_of(id_)
            except Refusal as refusal:
                error = str(refusal)
        elif space == "IM_ROBOT" and body.get("imRobotOpenDeliverModel", {}).get("spaceType") == "IM_ROBOT":
            names = {person.staff: person.name for person in self._people.values()}
            chat = names.get(id_, "")
            error = "" if chat and chat not in self.blocked else "param.userIdNotExist"
        else:
            raise Refusal(400, "param.openSpaceModelInvalid")
        track = body["outTrackId"]
        if track in self.cards and self.refuses_repetitions:
            raise Refusal(400, "param.outTrackId.duplicate")
        if not error and track not in self.cards:
            self.cards[track] = _Card(chat, body["cardTemplateId"], variables)
            self._messages[chat].append(track)
        delivery = {"spaceId": id_, "spaceType": space, "success": not error, "errorMsg": error, "carrierId": "c-1"}
        return web.json_response({"success": True, "result": {"outTrackId": track, "deliverResults": [delivery]}})

    async def _update(self, request: web.Request) -> web.Response:
        self._check(request, CARD_WRITE)
        body = await request.json()
        card = self.cards.get(body.get("outTrackId", ""))
        if card is None:
            raise Refusal(400, "param.cardInstanceNotExist")
        variables = _variables(body, card.template)
        by_key = body.get("cardUpdateOptions", {}).get("updateCardDataByKey")
        card.variables = card.variables | variables if by_key else variables
        return web.json_response({"success": True, "result": True})

    async def _stream(self, request: web.Request) -> web.Response:
        self._check(request, CARD_STREAM)
        body = await request.json()
        if not body.get("outTrackId"):
            raise Refusal(400, "param.outTrackIdEmpty")
        card = self.cards.get(body["outTrackId"])
        if card is not None and body.get("guid") in card.guids:
            return web.json_response({"success": True, "result": True})
        if card is None or card.finished or card.expired:
            raise Refusal(500, "unknownError", "card stream is not open")
        if not body.get("guid") or body.get("isFull") is not True or not isinstance(body.get("content"), str):
            raise Refusal(400, "param.invalid")
        if body.get("key") not in TEMPLATES[card.template]:
            raise Refusal(400, "param.keyInvalid")
        card.guids.add(body["guid"])
        card.variables[body["key"]] = body["content"]
        card.finished = body["isFinalize"]
        return web.json_response({"success": True, "result": True})


def _frame(kind: str, topic: str, id_: str, data: Mapping[str, Any]) -> dict[str, Any]:
    headers = {
        "appId": "app-1",
        "connectionId": "connection-1",
        "contentType": "application/json",
        "messageId": id_,
        "time": str(int(time.time() * 1000)),
        "topic": topic,
    }
    return {"specVersion": "1.0", "type": kind, "headers": headers, "data": json.dumps(data, ensure_ascii=False)}


def _variables(body: Mapping[str, Any], template: str) -> dict[str, str]:
    values = body.get("cardData", {}).get("cardParamMap")
    if not isinstance(values, dict) or not values:
        raise Refusal(400, "param.cardPublicDataEmpty")
    if not all(isinstance(value, str) for value in values.values()) or not set(values) <= TEMPLATES[template]:
        raise Refusal(400, "param.cardDataInvalid", "values of variables of the template are strings")
    return values


def _shown(body: Mapping[str, Any], media: Mapping[str, bytes]) -> Seen:
    """Returns a message of the bot. Refuses what is not a message of its kind."""
    if body.get("msgKey") not in KEYS:
        raise Refusal(400, "invalidParameter.msgKey.invalid")
    try:
        content = json.loads(body["msgParam"])
    except (KeyError, ValueError):
        raise Refusal(400, "invalidParameter.msgParam.invalid", "The msgParam must be in JSON format.") from None
    if set(content) != KEYS[body["msgKey"]] or not all(isinstance(value, str) and value for value in content.values()):
        raise Refusal(400, "invalidParameter.param.invalid")
    if body["msgKey"] in ("sampleImageMsg", "sampleFile"):
        id_ = content.get("photoURL") or content.get("mediaId")
        if id_ not in media:
            raise Refusal(400, "invalidParameter.param.invalid", "no such medium")
        return Seen("", "", file=content.get("fileName", "image"), data=media[id_])
    return Seen("", content.get("text") or content.get("content"), title=content.get("title", ""))


def _bad_gateway() -> web.Response:
    return web.Response(status=502, text="<html><h1>Bad Gateway</h1></html>", content_type="text/html")


def _gone(request: web.Request) -> web.Response:
    """Ends the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
