"""The chat platforms as places where many people talk to one bot, for `tests.chaos.chats`: the local servers of
`tests/channels`, driven in one way."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from tests.channels.dingtalk.server import ANSWER_TEMPLATE, BUTTON_TEMPLATE, DingTalkServer
from tests.channels.discord.server import DiscordServer
from tests.channels.feishu.server import FeishuServer
from tests.channels.slack.server import SlackServer
from tests.channels.telegram.server import TelegramServer

REDELIVERY = (0.3, 1.0, 2.0, *100 * (4.0,))
"""Seconds before each further delivery of a message that was not acknowledged: over several minutes, as platforms do it
over hours, since all that was killed must come back in time on a busy machine."""


class Town(Protocol):
    """A platform's server. People are numbered; each has a private chat with the bot."""

    name: str

    @property
    def server(self) -> AbstractAsyncContextManager[Any]: ...

    def settings(self) -> Mapping[str, Any]:
        """Returns the settings of the account."""
        ...

    async def say(self, person: int, text: str) -> None: ...

    async def send(self, person: int, name: str, content: bytes) -> None: ...

    def answers(self, person: int) -> Sequence[str]:
        """Returns what the bot has said to a person, as it looks now."""
        ...

    def has_button(self, person: int, text: str, label: str) -> bool:
        """Tells whether a message with a text has a button."""
        ...

    async def press(self, person: int, text: str, label: str) -> None:
        """Presses that button."""
        ...

    def disturb(self, dice: random.Random) -> None:
        """Brings a fault about, which passes."""
        ...

    def problems(self) -> Sequence[str]:
        """Returns what no client should have done, and what was lost."""
        ...

    def connected(self) -> bool: ...

    def connections(self) -> int:
        """Returns the most connections at a time."""
        ...


class Slack:
    name = "slack"

    def __init__(self) -> None:
        self.server = SlackServer(redelivery=REDELIVERY, ack_seconds=3)

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings

    async def say(self, person: int, text: str) -> None:
        await self.server.person(f"p{person}").says(text)

    async def send(self, person: int, name: str, content: bytes) -> None:
        await self.server.person(f"p{person}").says("", files={name: ("text/plain", content)})

    def answers(self, person: int) -> Sequence[str]:
        return [seen.text for seen in self.server.answers(f"@p{person}")]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return any(text in seen.text and label in seen.buttons for seen in self.server.answers(f"@p{person}"))

    async def press(self, person: int, text: str, label: str) -> None:
        self.server.person(f"p{person}").presses(f"@p{person}", label)

    def disturb(self, dice: random.Random) -> None:
        if not self.server.sockets:
            return  # it reconnects, and is let in
        faults, calls = self.server.faults, ("chat.postMessage", "chat.update", "chat.appendStream", "chat.stopStream")
        _one(
            dice,
            *3 * [lambda: faults.add(dice.choice(calls), dice.choice(("lose", "cut", "html", "done_html", "rate:1")))],
            lambda: self.server.drop(),
            lambda: self.server.disconnect("warning"),
            lambda: setattr(faults, "duplicate", 3),
            lambda: setattr(faults, "refuse_handshakes", 1),
        )

    def problems(self) -> Sequence[str]:
        return [*self.server.problems, *(f"abandoned {envelope.id}" for envelope in self.server.abandoned)]

    def connected(self) -> bool:
        return bool(self.server.sockets)

    def connections(self) -> int:
        return self.server.most_sockets


class Telegram:
    name = "telegram"

    def __init__(self) -> None:
        self.server = TelegramServer()

    def settings(self) -> Mapping[str, Any]:
        return {"bot_token": self.server.token, "base_url": self.server.url, "allow_everyone": True}

    async def say(self, person: int, text: str) -> None:
        self.server.person(f"p{person}").says(text)
        await self.server.wake()

    async def send(self, person: int, name: str, content: bytes) -> None:
        self.server.person(f"p{person}").sends(content, name, mime="text/plain")
        await self.server.wake()

    def answers(self, person: int) -> Sequence[str]:
        chat = self.server.person(f"p{person}").chat
        return [shown.text for shown in self.server.seen(chat) if shown.by_bot and not shown.drafted]

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

    def disturb(self, dice: random.Random) -> None:
        faults, calls = self.server.faults, ("sendMessage", "editMessageText", "sendMessageDraft", "getUpdates")

        def fail() -> None:
            method = dice.choice(calls)
            if not faults.waits(method):  # else they pile up while the client waits after each
                faults.add(method, dice.choice(("drop", "lose", "status", "html", "flood")))

        _one(dice, fail, lambda: setattr(faults, "duplicates", not faults.duplicates))

    def problems(self) -> Sequence[str]:
        return self.server.violations

    def connected(self) -> bool:
        return self.server.pollers > 0

    def connections(self) -> int:
        return self.server.most_pollers


class Feishu:
    name = "feishu"

    def __init__(self) -> None:
        self.server = FeishuServer()
        self.server.redelivery = REDELIVERY

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings

    async def say(self, person: int, text: str) -> None:
        self._person(person).says(text)

    async def send(self, person: int, name: str, content: bytes) -> None:
        self._person(person).sends_file(name, content)

    def _person(self, person: int) -> Any:
        return self.server.person(f"p{person}")

    def answers(self, person: int) -> Sequence[str]:
        return [message.text for message in self.server.seen(f"oc_private_p{person}") if not message.growing]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return bool(self._with_button(person, text, label))

    async def press(self, person: int, text: str, label: str) -> None:
        for message in self._with_button(person, text, label):
            self._person(person).presses(message, label)

    def _with_button(self, person: int, text: str, label: str) -> Sequence[Any]:
        seen = self.server.seen(f"oc_private_p{person}")
        return [each for each in seen if text in each.text and label in (button.label for button in each.buttons)]

    def disturb(self, dice: random.Random) -> None:
        if not self.server.sockets:
            return  # it reconnects, and is let in
        faults, calls = self.server.faults, ("POST .*messages", "PUT .*content", "PATCH ", "POST .*cards")
        _one(
            dice,
            lambda: dice.choice((faults.lose, faults.hang_up))(dice.choice(calls)),
            lambda: faults.fail(dice.choice(calls), 502),
            lambda: faults.drop_sockets(),
            lambda: faults.kill_tokens(),
            lambda: setattr(faults, "duplicates", 1),
            lambda: setattr(faults, "duplicates", 0),
        )

    def problems(self) -> Sequence[str]:
        return [f"given up {event}" for event in self.server.lost]

    def connected(self) -> bool:
        return bool(self.server.sockets)

    def connections(self) -> int:
        return self.server.most_sockets


class DingTalk:
    name = "dingtalk"

    def __init__(self) -> None:
        self.server = DingTalkServer()
        self.server.redelivery_seconds = 4.0

    def settings(self) -> Mapping[str, Any]:
        return {
            **self.server.settings,
            "card_template_id": ANSWER_TEMPLATE,
            "button_template_id": BUTTON_TEMPLATE,
        }

    async def say(self, person: int, text: str) -> None:
        await self.server.person(f"p{person}").says(text)

    async def send(self, person: int, name: str, content: bytes) -> None:
        await self.server.person(f"p{person}").sends(name, content)

    def answers(self, person: int) -> Sequence[str]:
        return [seen.text for seen in self.server.seen(f"p{person}") if not seen.streaming]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return bool(self._with_button(person, text, label))

    async def press(self, person: int, text: str, label: str) -> None:
        for message in self._with_button(person, text, label):
            await self.server.person(f"p{person}").presses(message, label)

    def _with_button(self, person: int, text: str, label: str) -> Sequence[Any]:
        return [seen for seen in self.server.seen(f"p{person}") if text in seen.text and label in seen.buttons]

    def disturb(self, dice: random.Random) -> None:
        if not self.server.sockets:
            return  # it reconnects, and is let in
        faults, calls = self.server.faults, ("streaming", "createAndDeliver", "batchSend")
        _one(
            dice,
            lambda: faults.next(dice.choice(calls), dice.choice(("limited", "qps", "html", "lost", "cut", "token"))),
            lambda: faults.cut(),
            lambda: faults.expire_tokens(),
            lambda: setattr(faults, "twice", not faults.twice),
            lambda: setattr(faults, "refused_handshakes", 1),
        )

    def problems(self) -> Sequence[str]:
        return self.server.violations  # a process that was killed does not know how long it was to wait

    def connected(self) -> bool:
        return bool(self.server.sockets)

    def connections(self) -> int:
        return self.server.peak


class Discord:
    name = "discord"

    def __init__(self) -> None:
        self.server = DiscordServer()

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings

    async def say(self, person: int, text: str) -> None:
        await self.server.until(lambda: self.server.sessions)  # before its first one, a bot misses what is written
        self._person(person).says(text)

    async def send(self, person: int, name: str, content: bytes) -> None:
        self._person(person).says("", files={name: ("text/plain", content)})

    def _person(self, person: int) -> Any:
        return self.server.person(f"p{person}")

    def _seen(self, person: int) -> Sequence[Any]:
        channel = self.server.channel("", self._person(person))
        return [seen for seen in self.server.seen(channel) if seen.by_bot]

    def answers(self, person: int) -> Sequence[str]:
        return [seen.text for seen in self._seen(person)]

    def has_button(self, person: int, text: str, label: str) -> bool:
        return any(text in seen.text and label in seen.buttons for seen in self._seen(person))

    async def press(self, person: int, text: str, label: str) -> None:
        for seen in self._seen(person):
            if text in seen.text and label in seen.buttons:
                self._person(person).presses(label, message=seen.id)

    def disturb(self, dice: random.Random) -> None:
        if not self.server.sockets:
            return  # it reconnects, and is let in
        faults, calls = self.server.faults, ("POST /channels/.*/messages", "PATCH /channels/")
        _one(
            dice,
            lambda: faults.add(dice.choice(calls), dice.choice(("lose", "cut", "502"))),
            lambda: faults.add(dice.choice(calls), "rate", 1.0),
            lambda: self.server.drop(),
            lambda: self.server.say(7),
            lambda: setattr(faults, "refuse_handshakes", 1),
            lambda: setattr(faults, "duplicate", not faults.duplicate),
        )

    def problems(self) -> Sequence[str]:
        return [each for each in self.server.problems if "pause" not in each and "limit" not in each]

    def connected(self) -> bool:
        return bool(self.server.sockets)

    def connections(self) -> int:
        return self.server.most_sockets


TOWNS: Mapping[str, Callable[[], Town]] = {town.name: town for town in (Slack, Telegram, Feishu, DingTalk, Discord)}


def _one(dice: random.Random, *faults: Callable[[], object]) -> None:
    dice.choice(faults)()
