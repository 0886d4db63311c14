"""The chat platforms as places where many people talk to one bot, for `tests.chaos.chats`: the local servers of
`tests/channels`, driven in one way."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol, TypeVar

import aiohttp

from tests.channels.dingtalk.server import ANSWER_TEMPLATE, BUTTON_TEMPLATE, DingTalkServer, Fault
from tests.channels.discord.server import DiscordServer
from tests.channels.feishu.server import FeishuServer
from tests.channels.slack.server import SlackServer
from tests.channels.telegram.server import BOT_NAME, FaultKind, TelegramServer
from tests.channels.webhook.server import Program
from tests.support.workers import wait_for

T = TypeVar("T")
CALLS = 0.4
"""Part of the faults that befall a call."""
REDELIVERY = (0.3, 1.0, 2.0, *100 * (4.0,))
"""Seconds before each further delivery of a message that was not acknowledged: over several minutes, as platforms do it
over hours, since all that was killed must come back in time on a busy machine."""


class Town(Protocol):
    """A platform's server. People are numbered; each has a private chat with the bot. Those who are in a `room`, a
    group, mention the bot there."""

    name: str
    cut: int
    """Characters at which the platform's clients cut what people paste."""
    takes_files: bool
    """Files can be sent to the bot."""

    @property
    def server(self) -> AbstractAsyncContextManager[Any]: ...

    def settings(self) -> Mapping[str, Any]:
        """Returns the settings of the account."""
        ...

    async def say(self, person: int, text: str, room: str = "") -> None: ...

    async def send(self, person: int, name: str, content: bytes) -> None: ...

    def answers(self, person: int, room: str = "") -> Sequence[str]:
        """Returns what the bot has said to a person, or in a room, as it looks now."""
        ...

    def has_button(self, person: int, text: str, label: str) -> bool:
        """Tells whether a message with a text has a button."""
        ...

    async def press(self, person: int, text: str, label: str) -> None:
        """Presses that button."""
        ...

    def disturb(self, dice: random.Random) -> str:
        """Brings a fault about, which passes. At most one waits for the next call of a kind: else they pile up
        while the client waits after each. Returns its name, empty if there is none now."""
        ...

    def problems(self) -> Sequence[str]:
        """Returns what no client should have done, and what was lost."""
        ...

    def connected(self) -> bool: ...

    def connections(self) -> int:
        """Returns the most connections at a time."""
        ...


class Slack:
    name, cut, takes_files = "slack", 4000, True

    def __init__(self) -> None:
        self.server = SlackServer(redelivery=REDELIVERY, ack_seconds=3)

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings

    async def say(self, person: int, text: str, room: str = "") -> None:
        await self.server.person(f"p{person}").says(text, room, mention=bool(room))

    async def send(self, person: int, name: str, content: bytes) -> None:
        await self.server.person(f"p{person}").says("", files={name: ("text/plain", content)})

    def answers(self, person: int, room: str = "") -> Sequence[str]:
        return [seen.text for seen in self.server.answers(room or f"@p{person}")]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return any(text in seen.text and label in seen.buttons for seen in self.server.answers(f"@p{person}"))

    async def press(self, person: int, text: str, label: str) -> None:
        self.server.person(f"p{person}").presses(f"@p{person}", label)

    def disturb(self, dice: random.Random) -> str:
        faults, calls = self.server.faults, ("chat.postMessage", "chat.update", "chat.appendStream", "chat.stopStream")
        kinds = {
            "reset": "cut",
            "reset when done": "lose",
            "502": "html",
            "502 when done": "done_html",
            "limit": "rate:1",
        }
        others = {
            "connections reset": lambda: _reset(self.server),
            "sockets cut": self.server.drop,
            "asked to reconnect": lambda: self.server.disconnect("warning"),
            "duplicates": lambda: setattr(faults, "duplicate", 3),
            "handshakes refused": lambda: setattr(faults, "refuse_handshakes", 1),
        }
        return _one(dice, calls, kinds, lambda call: bool(faults.calls[call]), faults.add, others)

    def problems(self) -> Sequence[str]:
        return [*self.server.problems, *(f"abandoned {envelope.id}" for envelope in self.server.abandoned)]

    def connected(self) -> bool:
        return bool(self.server.sockets)

    def connections(self) -> int:
        return self.server.most_sockets


class Telegram:
    name, cut, takes_files = "telegram", 4096, True

    def __init__(self) -> None:
        self.server = TelegramServer()
        self.groups: dict[str, int] = {}

    def settings(self) -> Mapping[str, Any]:
        return {"bot_token": self.server.token, "base_url": self.server.url, "allow_everyone": True}

    async def say(self, person: int, text: str, room: str = "") -> None:
        name = f"p{person}"
        self.server.person(name).says(f"@{BOT_NAME} {text}" if room else text, self._chat(name, room))
        await self.server.wake()

    def _chat(self, person: str, group: str) -> int:
        if not group:
            return self.server.person(person).chat
        if group not in self.groups:
            self.groups[group] = self.server.group(group)
        return self.groups[group]

    async def send(self, person: int, name: str, content: bytes) -> None:
        self.server.person(f"p{person}").sends(content, name, mime="text/plain")
        await self.server.wake()

    def answers(self, person: int, room: str = "") -> Sequence[str]:
        seen = self.server.seen(self._chat(f"p{person}", room))
        return [shown.text for shown in seen if shown.by_bot and not shown.drafted]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return self._with_button(person, text, label) is not None

    async def press(self, person: int, text: str, label: str) -> None:
        if (message := self._with_button(person, text, label)) is not None:
            self.server.person(f"p{person}").presses(message, label)
            await self.server.wake()

    def _with_button(self, person: int, text: str, label: str) -> int | None:
        shown = self.server.seen(self.server.person(f"p{person}").chat)
        labels = {each.id: [button["text"] for button in each.buttons] for each in shown if text in each.text}
        return next((message for message, buttons in labels.items() if label in buttons), None)

    def disturb(self, dice: random.Random) -> str:
        faults, calls = self.server.faults, ("sendMessage", "editMessageText", "sendMessageDraft", "getUpdates")
        kinds: Mapping[str, FaultKind] = {
            "reset": "drop",
            "reset when done": "lose",
            "502": "status",
            "502 when done": "done",
            "page": "html",
            "limit": "flood",
        }
        others = {
            "connections reset": lambda: _reset(self.server),
            "duplicates": lambda: setattr(faults, "duplicates", not faults.duplicates),
        }
        return _one(dice, calls, kinds, faults.waits, faults.add, others)

    def problems(self) -> Sequence[str]:
        return self.server.violations

    def connected(self) -> bool:
        return self.server.pollers > 0

    def connections(self) -> int:
        return self.server.most_pollers


class Feishu:
    name, cut, takes_files = "feishu", 4000, True

    def __init__(self) -> None:
        self.server = FeishuServer()
        self.groups: dict[str, str] = {}
        self.server.redelivery = REDELIVERY

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings

    async def say(self, person: int, text: str, room: str = "") -> None:
        self._person(person).says(text, self._chat(f"p{person}", room), mention=bool(room))

    def _chat(self, person: str, group: str) -> str:
        if not group:
            return self.server.person(person).chat
        if group not in self.groups:
            self.groups[group] = self.server.group(self.server.person(person))
        return self.groups[group]

    async def send(self, person: int, name: str, content: bytes) -> None:
        self._person(person).sends_file(name, content)

    def _person(self, person: int) -> Any:
        return self.server.person(f"p{person}")

    def answers(self, person: int, room: str = "") -> Sequence[str]:
        seen = self.server.seen(self._chat(f"p{person}", room))
        return [message.text for message in seen if not message.growing]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return bool(self._with_button(person, text, label))

    async def press(self, person: int, text: str, label: str) -> None:
        for message in self._with_button(person, text, label):
            self._person(person).presses(message, label)

    def _with_button(self, person: int, text: str, label: str) -> Sequence[Any]:
        seen = self.server.seen(f"oc_private_p{person}")
        return [each for each in seen if text in each.text and label in (button.label for button in each.buttons)]

    def disturb(self, dice: random.Random) -> str:
        faults = self.server.faults
        calls = ("POST .*messages", "PUT .*content", "PUT .*cards/[^/]*$", "PATCH ", "POST .*cards")
        kinds: Mapping[str, Callable[[str], object]] = {
            "reset": faults.hang_up,
            "reset when done": faults.lose,
            "502": lambda call: faults.fail(call, 502),
            "502 when done": lambda call: faults.fail_done(call, 502),
        }
        others = {
            "connections reset": lambda: _reset(self.server),
            "sockets cut": faults.drop_sockets,
            "tokens expired": faults.kill_tokens,
            "duplicates": lambda: setattr(faults, "duplicates", 1),
            "no duplicates": lambda: setattr(faults, "duplicates", 0),
        }
        return _one(dice, calls, kinds, faults.waits, lambda call, way: way(call), others)

    def problems(self) -> Sequence[str]:
        return [f"given up {event}" for event in self.server.lost]

    def connected(self) -> bool:
        return bool(self.server.sockets)

    def connections(self) -> int:
        return self.server.most_sockets


class DingTalk:
    name, cut, takes_files = "dingtalk", 4000, True

    def __init__(self) -> None:
        self.server = DingTalkServer()
        self.server.redelivery_seconds = 4.0

    def settings(self) -> Mapping[str, Any]:
        return {
            **self.server.settings,
            "card_template_id": ANSWER_TEMPLATE,
            "button_template_id": BUTTON_TEMPLATE,
        }

    async def say(self, person: int, text: str, room: str = "") -> None:
        await self.server.person(f"p{person}").says(text, room)

    async def send(self, person: int, name: str, content: bytes) -> None:
        await self.server.person(f"p{person}").sends(name, content)

    def answers(self, person: int, room: str = "") -> Sequence[str]:
        return [seen.text for seen in self.server.seen(room or f"p{person}") if not seen.streaming]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return bool(self._with_button(person, text, label))

    async def press(self, person: int, text: str, label: str) -> None:
        for message in self._with_button(person, text, label):
            await self.server.person(f"p{person}").presses(message, label)

    def _with_button(self, person: int, text: str, label: str) -> Sequence[Any]:
        return [seen for seen in self.server.seen(f"p{person}") if text in seen.text and label in seen.buttons]

    def disturb(self, dice: random.Random) -> str:
        faults = self.server.faults
        calls = ("streaming", "createAndDeliver", "card/instances", "batchSend", "groupMessages")
        kinds: Mapping[str, Fault] = {
            "reset": "cut",
            "reset when done": "lost",
            "502": "html",
            "502 when done": "done_html",
            "limit": "limited",
            "limit without a time": "qps",
            "token refused": "token",
        }
        others = {
            "connections reset": lambda: _reset(self.server),
            "sockets cut": faults.cut,
            "tokens expired": faults.expire_tokens,
            "duplicates": lambda: setattr(faults, "twice", not faults.twice),
            "handshakes refused": lambda: setattr(faults, "refused_handshakes", 1),
        }
        return _one(dice, calls, kinds, faults.waits, faults.next, others)

    def problems(self) -> Sequence[str]:
        return self.server.violations  # a process that was killed does not know how long it was to wait

    def connected(self) -> bool:
        return bool(self.server.sockets)

    def connections(self) -> int:
        return self.server.peak


class Discord:
    name, cut, takes_files = "discord", 2000, True

    def __init__(self) -> None:
        self.server = DiscordServer()

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings

    async def say(self, person: int, text: str, room: str = "") -> None:
        await self.server.until(lambda: self.server.sessions)  # before its first one, a bot misses what is written
        self._person(person).says(text, room)

    async def send(self, person: int, name: str, content: bytes) -> None:
        self._person(person).says("", files={name: ("text/plain", content)})

    def _person(self, person: int) -> Any:
        return self.server.person(f"p{person}")

    def _seen(self, person: int, room: str = "") -> Sequence[Any]:
        channel = self.server.channel(room, self._person(person))
        return [seen for seen in self.server.seen(channel) if seen.by_bot]

    def answers(self, person: int, room: str = "") -> Sequence[str]:
        return [seen.text for seen in self._seen(person, room)]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return any(text in seen.text and label in seen.buttons for seen in self._seen(person))

    async def press(self, person: int, text: str, label: str) -> None:
        for seen in self._seen(person):
            if text in seen.text and label in seen.buttons:
                self._person(person).presses(label, message=seen.id)

    def disturb(self, dice: random.Random) -> str:
        faults, calls = self.server.faults, ("POST /channels/.*/messages", "PATCH /channels/")
        kinds = {"reset": "cut", "reset when done": "lose", "502": "502", "502 when done": "done_502", "limit": "rate"}
        others = {
            "connections reset": lambda: _reset(self.server),
            "sockets cut": self.server.drop,
            "asked to reconnect": lambda: self.server.say(7),
            "handshakes refused": lambda: setattr(faults, "refuse_handshakes", 1),
            "duplicates": lambda: setattr(faults, "duplicate", not faults.duplicate),
        }
        return _one(dice, calls, kinds, faults.waits, lambda call, kind: faults.add(call, kind, 1.0), others)

    def problems(self) -> Sequence[str]:
        excused = ("pause", "limit", "late")  # of processes that were killed
        return [each for each in self.server.problems if not any(word in each for word in excused)]

    def connected(self) -> bool:
        return bool(self.server.sockets)

    def connections(self) -> int:
        return self.server.most_sockets


class Webhook:
    """Programs have neither buttons nor files for the bot, and try until a message is taken."""

    name, cut, takes_files = "webhook", 4000, False

    def __init__(self) -> None:
        self.server = Program()
        self._numbers = itertools.count()

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings

    async def say(self, person: int, text: str, room: str = "") -> None:
        name, number = f"p{person}", next(self._numbers)
        message = {"id": f"m{number}", "chat": room or name, "sender": name, "text": text, "group": bool(room)}

        async def taken() -> bool:
            with suppress(aiohttp.ClientError):
                return await self.server.sends(message) == 202
            return False

        await wait_for(taken, sum(REDELIVERY), every=0.3)

    async def send(self, person: int, name: str, content: bytes) -> None:
        raise NotImplementedError

    def answers(self, person: int, room: str = "") -> Sequence[str]:
        chat = room or f"p{person}"
        return [each["text"] for each in self.server.messages.values() if each.get("chat") == chat]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return False

    async def press(self, person: int, text: str, label: str) -> None:
        raise NotImplementedError

    def disturb(self, dice: random.Random) -> str:
        kinds = {"reset": "reset", "reset when done": "lose", "502": "502", "502 when done": "done", "limit": "429"}
        others = {"connections reset": lambda: _reset(self.server)}
        queue = self.server.next
        return _one(dice, ["post"], kinds, lambda _: bool(queue), lambda _, kind: queue.append(kind), others)

    def problems(self) -> Sequence[str]:
        return self.server.problems

    def connected(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.sika), 1.0):
            return True
        return False

    def connections(self) -> int:
        return 1  # a second listener would not get the port


TOWNS: Mapping[str, Callable[[], Town]] = {
    town.name: town for town in (Slack, Telegram, Feishu, DingTalk, Discord, Webhook)
}


def _reset(server: object) -> None:
    """Resets the connections, also those on which no request was read yet."""
    runner = getattr(server, "_runner", None)
    for connection in runner.server.connections if runner is not None else ():
        if connection.transport is not None:
            connection.transport.abort()


def _one(
    dice: random.Random,
    calls: Sequence[str],
    kinds: Mapping[str, T],
    waits: Callable[[str], bool],
    fail: Callable[[str, T], object],
    others: Mapping[str, Callable[[], object]],
) -> str:
    """Brings one fault about: one of `kinds` for the next of one of the `calls` unless one waits for it, or one of
    `others`. Returns its name; empty if there is none."""
    if dice.random() < CALLS:
        name, call = dice.choice([*kinds]), dice.choice(calls)
        if waits(call):
            return ""
        fail(call, kinds[name])
        return name
    name = dice.choice([*others])
    others[name]()
    return name
