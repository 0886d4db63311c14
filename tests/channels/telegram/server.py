"""A local server of the Bot API, from its public documentation.

    async with TelegramServer() as server:
        ann = server.person("ann")
        ann.says("hello")
        server.seen(ann.chat)          # the messages of a chat as people see them now

It refuses what Telegram refuses, with Telegram's descriptions. `server.faults` breaks calls, `server.calls` records
them, `server.violations` are broken rules about rates (checked if `rates` is set, on `server.clock`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from aiohttp import BodyPartReader, web

TOKEN = "123456789:AAtest-token_of_the-local-server-00000"
BOT = 123456789
BOT_NAME = "sika_test_bot"
PRIVATE_DEFAULT = ("message", "edited_message", "callback_query")
ENTITIES = frozenset(
    (
        *(
            "mention",
            "hashtag",
            "cashtag",
            "bot_command",
            "url",
            "email",
            "phone_number",
            "bold",
            "italic",
            "underline",
        ),
        *("strikethrough", "spoiler", "blockquote", "expandable_blockquote", "code", "pre", "text_link"),
        *("text_mention", "custom_emoji", "date_time"),
    )
)
CODE = frozenset({"code", "pre"})
QUOTES = frozenset({"blockquote", "expandable_blockquote"})
DRAFT_SECONDS = 30.0
FILES = {"photo": 10_000_000, "document": 50_000_000}

Json = dict[str, Any]
FaultKind = Literal["drop", "lose", "hang", "status", "done", "html", "flood", "gone"]


class Refused(Exception):
    """An error of the Bot API."""

    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status = status
        self.body: Json = {"ok": False, "error_code": status, "description": description}
        if parameters:
            self.body["parameters"] = parameters


def bad(description: str, **parameters: Any) -> Refused:
    return Refused(400, f"Bad Request: {description}", **parameters)


@dataclass
class Shown:
    """A message as people see it now. `drafted`: a draft, which has no id."""

    id: int
    by: str
    text: str
    entities: list[Json] = field(default_factory=list)
    buttons: list[Json] = field(default_factory=list)
    reply_to: int | None = None
    thread: int | None = None
    file: str = ""
    kind: str = ""
    content: bytes = b""
    edits: int = 0
    drafted: bool = False
    raw: Json = field(default_factory=dict)

    @property
    def by_bot(self) -> bool:
        return self.by == BOT_NAME


@dataclass
class Call:
    """A request. `status`: of the response; 0 if there was none."""

    method: str
    parameters: Json
    at: float
    status: int = 0


@dataclass
class Fault:
    """`drop`: the connection ends before the call has its effect; `lose`: after it; `hang`: no answer at all;
    `status`: an HTML page with that status; `html`: one with status 200; `flood`: 429 with `seconds`; `gone`: a
    JSON error with `status` and `description`."""

    method: str
    kind: FaultKind
    times: int
    status: int
    seconds: int
    description: str
    chat: int | None
    parameters: Json


class Faults:
    """Faults in force, each for the next calls of a method (`*`: of all)."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.without_drafts: set[int] = set()
        """Chats that refuse drafts."""
        self.refused_files: set[str] = set()
        """Names."""
        self.duplicates = False
        """Polls also repeat the last update that was confirmed."""
        self.reordered = False
        """Polls answer the newest update first."""

    def add(
        self,
        method: str,
        kind: FaultKind,
        times: int = 1,
        *,
        status: int = 502,
        seconds: int = 1,
        description: str = "",
        chat: int | None = None,
        **parameters: Any,
    ) -> None:
        self._faults.append(Fault(method, kind, times, status, seconds, description, chat, parameters))

    def clear(self) -> None:
        self._faults.clear()

    def waits(self, method: str) -> bool:
        """Tells whether a fault waits for a call of a method."""
        return any(fault.times and fault.method in (method, "*") for fault in self._faults)

    def take(self, method: str, parameters: Json) -> Fault | None:
        for fault in self._faults:
            if fault.times and fault.method in (method, "*"):
                if fault.chat is not None and parameters.get("chat_id") != fault.chat:
                    continue
                fault.times -= 1
                return fault
        return None


class Chat:
    """A chat and its messages."""

    def __init__(self, identity: int, kind: str, title: str) -> None:
        self.id = identity
        self.kind = kind
        self.title = title
        self.messages: dict[int, Shown] = {}
        self.next = itertools.count(1)
        self.topics: set[int] = set()
        self.blocked = ""
        """Why the bot may not write here: the description of a 403."""
        self.moved_to = 0
        self.drafts: dict[int, tuple[Shown, float]] = {}
        self.sent: deque[tuple[float, bool]] = deque(maxlen=100)
        self.minute: deque[float] = deque(maxlen=100)
        self.flooded_until = 0.0

    @property
    def json(self) -> Json:
        name = {"first_name": self.title} if self.kind == "private" else {"title": self.title}
        forum = {"is_forum": True} if self.topics else {}
        return {"id": self.id, "type": self.kind, **name, **forum}


class Person:
    """Somebody who writes to the bot. Methods return the id of the message."""

    def __init__(self, server: TelegramServer, identity: int, name: str, *, is_bot: bool = False) -> None:
        self._server = server
        self.id = identity
        self.name = name
        self.is_bot = is_bot

    @property
    def chat(self) -> int:
        """The private chat with the bot."""
        return self.id

    @property
    def json(self) -> Json:
        return {"id": self.id, "is_bot": self.is_bot, "first_name": self.name, "username": f"{self.name}_test"}

    def says(
        self,
        text: str,
        chat: int | None = None,
        *,
        reply_to: int | None = None,
        thread: int | None = None,
        entities: Iterable[Json] = (),
        **fields: Any,
    ) -> int:
        marks = [*entities, *_marks(text)]
        return self._server.write(self, chat or self.id, reply_to, thread, text=text, entities=marks, **fields)

    def sends(
        self,
        content: bytes,
        name: str = "file.bin",
        chat: int | None = None,
        *,
        kind: str = "document",
        caption: str = "",
        mime: str = "application/octet-stream",
        album: str = "",
        reply_to: int | None = None,
        size: int | None = None,
    ) -> int:
        """Sends a file. `size`: what the server says of it instead of the truth."""
        handle = self._server.store(content, name, size)
        fields: Json = {"caption": caption, "caption_entities": _marks(caption)} if caption else {}
        file: Any = {"file_id": handle, "file_unique_id": f"u-{handle}", "file_size": size or len(content)}
        if kind == "photo":
            small = self._server.store(content[:1], "small.jpg", None)
            sizes = {"width": 90, "height": 90}
            file = [
                {"file_id": small, "file_unique_id": f"u-{small}", "file_size": 1, **sizes},
                {**file, "width": 1280, "height": 1280},
            ]
        elif kind in ("voice", "video", "audio"):
            file |= {"mime_type": mime, "duration": 3}
            file |= {"width": 10, "height": 10} if kind == "video" else {}
        else:
            file |= {"mime_type": mime, "file_name": name}
        fields[kind] = file
        if album:
            fields["media_group_id"] = album
        return self._server.write(self, chat or self.id, reply_to, None, **fields)

    def edits(self, message: int, text: str, chat: int | None = None) -> None:
        self._server.rewrite(self, chat or self.id, message, text)

    def presses(self, message: int, button: str, chat: int | None = None) -> str:
        """Presses the button with a label. Returns the id of the press."""
        return self._server.press(self, chat or self.id, message, button)

    def stops(self, draft: int | None = None) -> None:
        """Presses the stop button of a draft: of the only one if none is named."""
        self._server.stop_draft(self, draft)

    def blocks(self) -> None:
        self._server.chat(self.id).blocked = "Forbidden: bot was blocked by the user"


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _marks(text: str) -> list[Json]:
    """The entities that Telegram finds by itself: mentions and commands."""
    marks: list[Json] = []
    position = 0
    for word in text.split(" "):
        stripped = word.rstrip(".,:;!?")
        kind = {"@": "mention", "/": "bot_command"}.get(stripped[:1])
        if kind and len(stripped) > 1:
            marks.append({"type": kind, "offset": _units(text[:position]), "length": _units(stripped)})
        position += len(word) + 1
    return marks


class TelegramServer:
    """The server of one bot. Restarting it (`stop`, `start`) keeps its state and its port."""

    def __init__(self, *, rates: bool = False, privacy: bool = True, native_drafts: bool = True) -> None:
        self.token = TOKEN
        self.unauthorised = 0
        """Calls that were refused for their token."""
        self.rates = rates
        self.privacy = privacy
        self.native_drafts = native_drafts
        self.clock: Callable[[], float] = time.monotonic
        self.faults = Faults()
        self.calls: list[Call] = []
        self.violations: list[str] = []
        self.commands: list[Json] = []
        self.answered: list[str] = []
        """Presses that were acknowledged."""
        self.popups: list[str] = []
        """Texts that were shown to who pressed a button."""
        self.actions: Counter[int] = Counter()
        """Chat actions, by chat."""
        self.webhook = ""
        self._polling: dict[int, web.Request] = {}
        self.most_pollers = 0
        self.conflicts = 0
        self.url = ""
        self.confirmed = 0
        """The highest offset that was asked for."""
        self._people: dict[str, Person] = {}
        self._chats: dict[int, Chat] = {}
        self._updates: deque[Json] = deque()
        self._last_confirmed: Json | None = None
        self._allowed: tuple[str, ...] = PRIVATE_DEFAULT
        self._numbers = itertools.count(1000)
        self._poll = 0
        self._news = asyncio.Condition()
        self._files: dict[str, tuple[bytes, str, int]] = {}
        self.pages: set[str] = set()
        """Handles whose download is a web page."""
        self.expired: set[str] = set()
        self._presses: set[str] = set()
        self._sent: deque[float] = deque(maxlen=100)
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._closing = asyncio.Event()
        self._handlers: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=100 << 20)
        app.router.add_route("*", "/bot{token}/{method}", self._called)
        app.router.add_get("/file/bot{token}/{path:.*}", self._download)
        self._closing.clear()
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        host, self._port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{self._port}"

    async def stop(self) -> None:
        self._closing.set()
        await self.wake()
        if self._runner:
            await self._runner.cleanup()

    async def wake(self) -> None:
        async with self._news:
            self._news.notify_all()

    # What people do

    def person(self, name: str, *, is_bot: bool = False) -> Person:
        """Returns somebody, with a private chat with the bot."""
        if name not in self._people:
            identity = 5_000_000 + len(self._people)
            self._people[name] = Person(self, identity, name, is_bot=is_bot)
            self._chats[identity] = Chat(identity, "private", name)
        return self._people[name]

    def group(self, title: str = "team", *, forum: bool = False, kind: str = "supergroup") -> int:
        """Returns the id of a new group with the bot in it."""
        identity = -1_001_000_000_000 - len(self._chats) if kind == "supergroup" else -1000 - len(self._chats)
        chat = self._chats[identity] = Chat(identity, kind, title)
        if forum:
            self.topic(chat.id, "General chat")
        return identity

    def topic(self, chat: int, name: str) -> int:
        """Returns the id of a new topic of a forum."""
        forum = self._chats[chat]
        number = next(forum.next)
        forum.topics.add(number)
        return number

    def chat(self, chat: int) -> Chat:
        return self._chats[chat]

    def upgrade(self, chat: int) -> int:
        """Makes a supergroup of a group. Returns its new id."""
        fresh = self.group(self._chats[chat].title)
        self._chats[chat].moved_to = fresh
        return fresh

    def remove_bot(self, chat: int) -> None:
        self._chats[chat].blocked = "Forbidden: bot was kicked from the supergroup chat"

    def seen(self, chat: int, thread: int | None = None) -> list[Shown]:
        """Returns the messages of a chat, and drafts that have not vanished, as people see them now."""
        known = self._chats[chat]
        self._vanish(known)
        shown = [*known.messages.values(), *(draft for draft, _ in known.drafts.values())]
        return [message for message in shown if thread is None or message.thread == thread]

    def answers(self, chat: int) -> list[str]:
        """Returns the texts of the bot's messages."""
        return [message.text for message in self.seen(chat) if message.by_bot and not message.drafted]

    def write(self, person: Person, chat: int, reply_to: int | None, thread: int | None, **fields: Any) -> int:
        known = self._chats[chat]
        number = next(known.next)
        message: Json = {"message_id": number, "date": 1_760_000_000 + number, "chat": known.json, "from": person.json}
        if thread:
            message |= {"message_thread_id": thread, "is_topic_message": True}
            message["reply_to_message"] = self._topic_message(known, thread)
        answered = known.messages.get(reply_to or 0)
        if answered:
            message["reply_to_message"] = answered.raw
        message |= {name: value for name, value in fields.items() if value not in ("", [], None)}
        text = fields.get("text") or fields.get("caption") or ""
        known.messages[number] = Shown(number, person.name, text, reply_to=reply_to, thread=thread, raw=message)
        if known.kind == "private" or not self.privacy or self._concerns_bot(message, answered):
            self.update("message", message)
        return number

    def _topic_message(self, chat: Chat, thread: int) -> Json:
        created = {"name": "topic", "icon_color": 0x6FB9F0}
        sender = {"id": BOT, "is_bot": True, "first_name": "Sika", "username": BOT_NAME}
        return {
            "message_id": thread,
            "date": 1_760_000_000,
            "chat": chat.json,
            "from": sender,
            "forum_topic_created": created,
        }

    def _concerns_bot(self, message: Json, answered: Shown | None) -> bool:
        """Privacy mode: commands, mentions and replies."""
        text = message.get("text") or message.get("caption") or ""
        return text.startswith("/") or f"@{BOT_NAME}" in text.lower() or (answered is not None and answered.by_bot)

    def rewrite(self, person: Person, chat: int, message: int, text: str) -> None:
        shown = self._chats[chat].messages[message]
        shown.text = text
        shown.edits += 1
        raw = {**shown.raw, "text": text, "entities": _marks(text), "edit_date": 1_760_001_000 + shown.edits}
        shown.raw = raw
        self.update("edited_message", raw)

    def press(self, person: Person, chat: int, message: int, label: str) -> str:
        shown = self._chats[chat].messages[message]
        data = next(button["callback_data"] for button in shown.buttons if button["text"] == label)
        identity = str(4_382_000_000_000_000_000 + next(self._numbers))
        self._presses.add(identity)
        query = {
            "id": identity,
            "from": person.json,
            "message": shown.raw,
            "chat_instance": f"i{chat}",
            "data": data,
        }
        self.update("callback_query", query)
        return identity

    def stop_draft(self, person: Person, draft: int | None) -> None:
        drafts = self._chats[person.id].drafts
        number = draft if draft is not None else next(iter(drafts))
        drafts.pop(number, None)
        self.update("stopped_message_generation", {"chat": self._chats[person.id].json, "draft_id": number})

    def store(self, content: bytes, name: str, size: int | None) -> str:
        handle = f"BQACAgIAAx-{next(self._numbers)}"
        self._files[handle] = (content, name, size or len(content))
        return handle

    def update(self, kind: str, content: Json) -> None:
        """Queues an update, if the bot has asked for its kind."""
        if kind in self._allowed:
            self._updates.append({"update_id": next(self._numbers), kind: content})
            with suppress(RuntimeError):
                task = asyncio.get_running_loop().create_task(self.wake())
                self._handlers.add(task)
                task.add_done_callback(self._handlers.discard)

    def waiting(self) -> int:
        """Returns the number of updates that were not confirmed."""
        return len(self._updates)

    def made(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    # What the bot does

    async def _called(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        parameters = await _parameters(request)
        call = Call(method, {**parameters}, self.clock())
        if method == "getUpdates":
            self._polling[id(request)] = request
            self.most_pollers = max(self.most_pollers, self.pollers)
            try:
                return await self._respond(request, method, parameters, call)
            finally:
                del self._polling[id(request)]
        return await self._respond(request, method, parameters, call)

    @property
    def pollers(self) -> int:
        """The polls at work. One of a process that was killed goes on, but has no connection."""
        return sum(poll.transport is not None and not poll.transport.is_closing() for poll in self._polling.values())

    async def _respond(self, request: web.Request, method: str, parameters: Json, call: Call) -> web.StreamResponse:
        self.calls.append(call)
        fault = self.faults.take(method, parameters)
        if fault and fault.kind == "hang":
            await self._closing.wait()
        if fault and fault.kind in ("drop", "hang"):
            return self._cut(request)
        response = await self._answer(request, method, parameters, fault)
        if fault and fault.kind == "lose":
            return self._cut(request)
        if fault and fault.kind == "done":
            response = _page(request, fault.status)
        call.status = response.status
        return response

    async def _answer(self, request: web.Request, method: str, parameters: Json, fault: Fault | None) -> web.Response:
        if fault and fault.kind in ("status", "html"):
            return _page(request, 200 if fault.kind == "html" else fault.status)
        try:
            if fault and fault.kind == "flood":
                self._flood(parameters, fault.seconds)
                raise Refused(429, f"Too Many Requests: retry after {fault.seconds}", retry_after=fault.seconds)
            if fault and fault.kind == "gone":
                raise Refused(fault.status, fault.description, **fault.parameters)
            if request.match_info["token"] != self.token:
                self.unauthorised += 1
                raise Refused(401, "Unauthorized") if ":" in request.match_info["token"] else Refused(404, "Not Found")
            handler = getattr(self, f"_do_{method}", None)
            if handler is None:
                raise Refused(404, "Not Found")
            result = handler(parameters)
            if asyncio.iscoroutine(result):
                result = await result
            return web.json_response({"ok": True, "result": result})
        except Refused as error:
            return web.json_response(error.body, status=error.status)

    @staticmethod
    def _cut(request: web.Request) -> web.Response:
        if request.transport:
            request.transport.abort()
        return web.Response()

    def _do_getMe(self, _: Json) -> Json:
        return {
            "id": BOT,
            "is_bot": True,
            "first_name": "Sika",
            "username": BOT_NAME,
            "can_join_groups": True,
            "can_read_all_group_messages": not self.privacy,
            "supports_inline_queries": False,
        }

    async def _do_getUpdates(self, parameters: Json) -> list[Json]:
        """A poll ends the one before it, which gets the 409."""
        if self.webhook:
            raise Refused(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook")
        if "allowed_updates" in parameters:
            self._allowed = tuple(parameters["allowed_updates"]) or PRIVATE_DEFAULT
        offset = int(parameters.get("offset", 0))
        self.confirmed = max(self.confirmed, offset)
        while self._updates and offset > self._updates[0]["update_id"]:
            self._last_confirmed = self._updates.popleft()
        self._poll += 1
        mine = self._poll
        deadline = time.monotonic() + float(parameters.get("timeout", 0))
        async with self._news:
            self._news.notify_all()
            while not self._updates and not self._closing.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                        await self._news.wait()
                if mine != self._poll:
                    self.conflicts += 1
                    raise Refused(
                        409,
                        "Conflict: terminated by other getUpdates request; "
                        "make sure that only one bot instance is running",
                    )
                if time.monotonic() >= deadline:
                    break
        updates = list(itertools.islice(self._updates, int(parameters.get("limit", 100))))
        if self.faults.duplicates and self._last_confirmed:
            updates = [self._last_confirmed, *updates]
        return updates[::-1] if self.faults.reordered else updates

    def _do_getWebhookInfo(self, _: Json) -> Json:
        return {"url": self.webhook, "has_custom_certificate": False, "pending_update_count": len(self._updates)}

    def _do_setMyCommands(self, parameters: Json) -> bool:
        for command in parameters["commands"]:
            name = command["command"]
            if not (1 <= len(name) <= 32 and all(letter in "abcdefghijklmnopqrstuvwxyz0123456789_" for letter in name)):
                raise bad("BOT_COMMAND_INVALID")
            if not 1 <= len(command["description"]) <= 256:
                raise bad("BOT_COMMAND_DESCRIPTION_INVALID")
        self.commands = parameters["commands"]
        return True

    def _do_sendMessage(self, parameters: Json) -> Json:
        chat = self._writable(parameters)
        text, marks = _checked_text(parameters)
        self._paced(chat, "sendMessage")
        return self._posted(chat, parameters, text=text, entities=marks)

    def _do_editMessageText(self, parameters: Json) -> Json:
        chat = self._writable(parameters)
        shown = chat.messages.get(int(parameters["message_id"]))
        if shown is None:
            raise bad("message to edit not found")
        if not shown.by_bot:
            raise bad("message can't be edited")
        text, marks = _checked_text(parameters)
        buttons = _checked_buttons(parameters)
        if (text, marks, buttons) == (shown.text, shown.entities, shown.buttons):
            raise bad(
                "message is not modified: specified new message content and reply markup are exactly the same as a "
                "current content and reply markup of the message"
            )
        self._paced(chat, "editMessageText")
        shown.text, shown.entities, shown.buttons = text, marks, buttons
        shown.edits += 1
        shown.raw = {**shown.raw, "text": text, "entities": marks, "edit_date": 1_760_002_000}
        return shown.raw

    def _do_sendMessageDraft(self, parameters: Json) -> bool:
        if not self.native_drafts:
            raise Refused(404, "Not Found")
        chat = self._writable(parameters)
        if chat.kind != "private" or chat.id in self.faults.without_drafts:
            raise bad("TEXTDRAFT_PEER_INVALID")
        number = int(parameters.get("draft_id", 0))
        if not number:
            raise bad("RANDOM_ID_INVALID")
        text, marks = _checked_text(parameters)
        self._paced(chat, "sendMessageDraft")
        before = chat.drafts.get(number)
        edits = before[0].edits + 1 if before else 0
        chat.drafts[number] = (Shown(0, BOT_NAME, text, marks, drafted=True, edits=edits), self.clock())
        return True

    def _do_deleteMessage(self, parameters: Json) -> bool:
        chat = self._writable(parameters)
        if chat.messages.pop(int(parameters["message_id"]), None) is None:
            raise bad("message to delete not found")
        return True

    def _do_sendChatAction(self, parameters: Json) -> bool:
        self.actions[self._writable(parameters).id] += 1
        return True

    def _do_answerCallbackQuery(self, parameters: Json) -> bool:
        if len(str(parameters.get("text") or "")) > 200:
            raise bad("MESSAGE_TOO_LONG")
        press = str(parameters["callback_query_id"])
        if press not in self._presses:
            raise bad("query is too old and response timeout expired or query ID is invalid")
        self.answered.append(press)
        if text := str(parameters.get("text") or ""):
            self.popups.append(text)
        return True

    def _do_sendPhoto(self, parameters: Json) -> Json:
        return self._file(parameters, "photo")

    def _do_sendDocument(self, parameters: Json) -> Json:
        return self._file(parameters, "document")

    def _do_sendMediaGroup(self, parameters: Json) -> list[Json]:
        """All are posted, or none."""
        chat, media = self._writable(parameters), parameters["media"]
        if not 2 <= len(media) <= 10:
            raise bad("too many messages to send as an album" if media[10:] else "there are no messages to send")
        kinds = {item["type"] for item in media}
        if len(kinds) > 1 and kinds & {"document", "audio"}:
            raise bad("documents and audio files are in albums of their own")
        files = [parameters[item["media"].removeprefix("attach://")] for item in media]
        if sum(len(content) for _, content in files) > FILES["document"]:
            raise Refused(413, "Request Entity Too Large")
        for number, (item, (name, content)) in enumerate(zip(media, files, strict=True), 1):
            try:
                self._check_file(item["type"], name, content)
            except Refused as error:
                reason = error.body["description"].removeprefix("Bad Request: ")
                raise bad(f'failed to send message #{number} with the error message "{reason}"') from None
        self._paced(chat, "sendMediaGroup", len(media))
        album = {"media_group_id": str(next(self._numbers))}
        posted = [
            self._posted(chat, parameters, file=name, kind=item["type"], content=content)
            for item, (name, content) in zip(media, files, strict=True)
        ]
        for message in posted:
            chat.messages[message["message_id"]].raw |= album
        return [message | album for message in posted]

    def _file(self, parameters: Json, kind: str) -> Json:
        chat = self._writable(parameters)
        name, content = parameters[kind]
        self._check_file(kind, name, content)
        self._paced(chat, f"send{kind.title()}")
        return self._posted(chat, parameters, file=name, kind=kind, content=content)

    def _check_file(self, kind: str, name: str, content: bytes) -> None:
        if not content:
            raise bad("file must be non-empty")
        if len(content) > FILES[kind]:
            raise Refused(413, "Request Entity Too Large")
        if kind == "photo" and not content.startswith((b"\xff\xd8\xff", b"\x89PNG", b"RIFF")):
            raise bad("IMAGE_PROCESS_FAILED")
        if name in self.faults.refused_files:
            raise bad("DOCUMENT_INVALID")

    def _do_getFile(self, parameters: Json) -> Json:
        handle = str(parameters["file_id"])
        if handle not in self._files or handle in self.expired:
            raise bad("wrong file_id or the file is temporarily unavailable")
        _, name, size = self._files[handle]
        if size > 20_000_000:
            raise bad("file is too big")
        path = f"documents/{handle}/{name}"
        return {"file_id": handle, "file_unique_id": f"u-{handle}", "file_size": size, "file_path": path}

    async def _download(self, request: web.Request) -> web.StreamResponse:
        handle = request.match_info["path"].split("/")[1]
        fault = self.faults.take("download", {})
        if fault and fault.kind == "drop":
            return self._cut(request)
        if fault:
            return web.Response(status=fault.status, text="<html></html>", content_type="text/html")
        if request.match_info["token"] != self.token or handle not in self._files:
            return web.json_response({"ok": False, "error_code": 404, "description": "Not Found"}, status=404)
        if handle in self.pages:
            return web.Response(text="<html>Sign in</html>", content_type="text/html")
        return web.Response(body=self._files[handle][0], content_type="application/octet-stream")

    # Rules

    def _writable(self, parameters: Json) -> Chat:
        chat = self._chats.get(int(parameters["chat_id"]))
        if chat is None:
            raise bad("chat not found")
        if chat.moved_to:
            raise bad("group chat was upgraded to a supergroup chat", migrate_to_chat_id=chat.moved_to)
        if chat.blocked:
            raise Refused(403, chat.blocked)
        return chat

    def _posted(self, chat: Chat, parameters: Json, **shown: Any) -> Json:
        thread = parameters.get("message_thread_id")
        if thread is not None and int(thread) not in chat.topics:
            raise bad("message thread not found")
        reply = parameters.get("reply_parameters", {})
        reply_to = reply.get("message_id")
        if reply_to is not None and reply_to not in chat.messages:
            if not reply.get("allow_sending_without_reply"):
                raise bad("message to be replied not found")
            reply_to = None
        buttons = _checked_buttons(parameters)
        number = next(chat.next)
        sender = {"id": BOT, "is_bot": True, "first_name": "Sika", "username": BOT_NAME}
        raw: Json = {"message_id": number, "date": 1_760_000_000 + number, "chat": chat.json, "from": sender}
        if thread is not None:
            raw |= {"message_thread_id": int(thread), "is_topic_message": True}
        text = {"text": shown["text"], "entities": shown["entities"]} if "text" in shown else {}
        shown.setdefault("text", "")
        chat.messages[number] = Shown(
            number, BOT_NAME, buttons=buttons, reply_to=reply_to, thread=thread, raw=raw | text, **shown
        )
        chat.drafts.clear()
        return raw | text

    def _vanish(self, chat: Chat) -> None:
        for number, (_, at) in list(chat.drafts.items()):
            if self.clock() - at > DRAFT_SECONDS:
                del chat.drafts[number]

    def _flood(self, parameters: Json, seconds: float) -> None:
        if chat := self._chats.get(int(parameters.get("chat_id", 0))):
            chat.flooded_until = self.clock() + seconds

    def _paced(self, chat: Chat, method: str, messages: int = 1) -> None:
        """One message and one edit a second in a chat, of which bursts of four are let through; 20 messages a minute in
        a group, each item of an album one of them, 30 calls a second over all; no call before the end of a pause that
        was asked for. Windows are a little shorter than Telegram's, as calls do not take equally long to arrive."""
        now = self.clock()
        if now < chat.flooded_until:
            self.violations.append(f"{method} in {chat.id} came {chat.flooded_until - now:.2f} s early")
        shows = method in ("editMessageText", "sendMessageDraft")
        chat.sent.append((now, shows))
        chat.minute.extend([now] * messages)
        self._sent.append(now)
        if not self.rates:
            return
        second = sum(now - at < 0.95 for at in self._sent)
        burst = sum(now - at < 2.9 and kind == shows for at, kind in chat.sent)
        minute = sum(now - at < 58.0 for at in chat.minute)
        if second > 30 or burst > 4 or (chat.id < 0 and minute > 20):
            self.violations.append(f"{method} in {chat.id}: {second} in 1 s, {burst} in 3 s, {minute} in 1 min")
            seconds = 3
            chat.flooded_until = now + seconds
            raise Refused(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)


def _checked_text(parameters: Json) -> tuple[str, list[Json]]:
    """Returns text and entities as Telegram keeps them."""
    text = str(parameters.get("text", ""))
    if parameters.get("parse_mode"):
        raise bad(f"can't parse entities: {parameters['parse_mode']} is not spoken here")
    if not text.strip():
        raise bad("message text is empty")
    if _units(text) > 4096:
        raise bad("MESSAGE_TOO_LONG")
    marks = parameters.get("entities", [])
    if len(marks) > 100:
        marks = marks[:100]
    for mark in marks:
        if mark["type"] not in ENTITIES:
            raise bad(f"can't parse entities: unsupported type {mark['type']}")
        if mark["offset"] < 0 or mark["length"] <= 0 or mark["offset"] + mark["length"] > _units(text):
            raise bad("can't parse entities: ENTITY_BOUNDS_INVALID")
    for one, other in itertools.combinations(marks, 2):
        kinds = {one["type"], other["type"]}
        if not _overlap(one, other):
            continue
        if not (_within(one, other) or _within(other, one)):
            raise bad("can't parse entities: entities overlap")
        if kinds & CODE and not kinds & QUOTES:
            raise bad("can't parse entities: code and pre are in no style and no link")
        if kinds <= QUOTES or kinds <= CODE or kinds == {"text_link"}:
            raise bad("can't parse entities: quotes, code and links are not nested in themselves")
    return text, marks


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    latest = max(one["offset"], other["offset"])
    return bool(latest < min(one["offset"] + one["length"], other["offset"] + other["length"]))


def _within(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    begins = other["offset"] <= one["offset"]
    return bool(begins and one["offset"] + one["length"] <= other["offset"] + other["length"])


def _checked_buttons(parameters: Json) -> list[Json]:
    buttons: list[Json] = []
    for row in (parameters.get("reply_markup") or {}).get("inline_keyboard", []):
        for button in row:
            if not 1 <= len(str(button.get("callback_data", "")).encode()) <= 64:
                raise bad("BUTTON_DATA_INVALID")
            if button.get("style") not in (None, "danger", "success", "primary"):
                raise bad("BUTTON_STYLE_INVALID")
            buttons.append(button)
    return buttons


async def _parameters(request: web.Request) -> Json:
    """Reads form, multipart or JSON: nested values of forms are JSON."""
    values: Json = dict(request.query)
    if request.content_type == "application/json":
        values |= await request.json()
        return values
    if not request.content_type.startswith("multipart/"):
        values |= dict(await request.post())
        return {name: _nested(name, value) for name, value in values.items()}
    reader = await request.multipart()
    attached: dict[str, tuple[str, bytes]] = {}
    async for part in reader:
        assert isinstance(part, BodyPartReader)
        name = part.name or ""
        content = bytes(await part.read())
        if part.filename is not None:
            attached[name] = (part.filename, content)
        else:
            values[name] = _nested(name, content.decode())
    for name, value in list(values.items()):
        if isinstance(value, str) and value.startswith("attach://"):
            values[name] = attached.pop(value.removeprefix("attach://"))
    return values | attached


def _page(request: web.Request, status: int) -> web.Response:
    page = f"<html>The requested URL {request.path} was not found on this server.</html>"
    return web.Response(status=status, text=page, content_type="text/html")


def _nested(name: str, value: Any) -> Any:
    """Returns JSON objects and lists, and numbers, as such. Texts stay texts."""
    if not isinstance(value, str) or name in ("text", "caption"):
        return value
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        return int(value)
    if value.startswith(("{", "[")):
        with suppress(ValueError):
            return json.loads(value)
    return value
