"""The platforms as seats of the contract (`actors.contracts`): the local servers of `tests/channels`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Protocol

from actors.contracts.seat import Disconnecting, Duplicating, Failing, Revoking, WithFiles, WithSigns, WithWhispers
from tests.channels.telegram.server import BOT_NAME
from tests.chaos import towns


class Slack(towns.Slack):
    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        mentioned = f"<@{self.id_of(mentions)}>" if mentions else ""
        return await self.server.person(person).says(text.format(mentioned), group, mention=bool(group) and bot)

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        return [seen.text for seen in self.server.answers(group or f"@{person}")]

    def id_of(self, person: str) -> str:
        return self.server.person(person).id

    async def presses(self, person: str, label: str, group: str = "") -> None:
        self.server.person(person).presses(group or f"@{person}", label)

    async def edits(self, person: str, message: str, text: str) -> None:
        self.server.person(person).edits("", message, text)

    async def deletes(self, person: str, message: str) -> None:
        self.server.person(person).deletes("", message)

    def files(self, person: str) -> Sequence[str]:
        return list(chain(*self.bundles(person)))

    def bundles(self, person: str) -> Sequence[Sequence[str]]:
        sent = [message["files"] for message in self.server.chat(f"@{person}").messages.values() if "files" in message]
        return [[self.server.contents[file["id"]].decode() for file in files] for files in sent]

    def refuses(self, name: str) -> None:
        self.server.faults.refused_files.add(name)

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        return any(label in seen.buttons for seen in self.server.answers(group or f"@{person}"))

    def whispered(self, person: str, group: str) -> Sequence[str]:
        return self.server.whispered.get((self.server.chat(group).id, self.id_of(person)), ())

    async def sends(self, person: str, name: str, content: bytes) -> None:
        await self.server.person(person).says("", files={name: ("text/plain", content)})

    def duplicates(self, on: bool) -> None:
        self.server.faults.duplicate = 1000 if on else 0

    def fails(self, how: str) -> None:
        faults = {"gateway": "html", "reset": "cut", "limited": "rate:1", "refused": "invalid_blocks", "lost": "lose"}
        self.server.faults.calls.clear()
        for method in ("chat.postMessage", "chat.update", "files.completeUploadExternal") if how else ():
            self.server.faults.add(method, faults[how])

    def revoke(self) -> Mapping[str, Any]:
        """The socket, which the app token opened, stays."""
        self.server.bot_token += "-new"
        return {"bot_token": self.server.bot_token}

    def refused(self) -> int:
        return self.server.unauthorised

    def hang_up(self) -> None:
        self.server.drop()

    def wire(self, person: str) -> Sequence[str]:
        chat = self.server.chat(f"@{person}").id
        kinds = {"reactions.add": "on", "reactions.remove": "off", "chat.postMessage": "text", "chat.update": "text"}
        return [
            kinds[call.method] for call in self.server.calls if call.method in kinds and call.body["channel"] == chat
        ]


class Telegram(towns.Telegram):
    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        text = text.format(f"@{mentions}_test")
        text = f"@{BOT_NAME} {text}" if group and bot else text
        message = self.server.person(person).says(text, self._chat(person, group))
        await self.server.wake()
        return str(message)

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        seen = self.server.seen(self._chat(person, group))
        return [shown.text for shown in seen if shown.by_bot and not shown.drafted]

    def id_of(self, person: str) -> str:
        return str(self.server.person(person).id)

    async def presses(self, person: str, label: str, group: str = "") -> None:
        chat = self._chat(person, group)
        shown = [each for each in self.server.seen(chat) if label in [button["text"] for button in each.buttons]]
        self.server.person(person).presses(shown[-1].id, label, chat)
        await self.server.wake()

    async def edits(self, person: str, message: str, text: str) -> None:
        self.server.person(person).edits(int(message), text)
        await self.server.wake()

    def files(self, person: str) -> Sequence[str]:
        return list(chain(*self.bundles(person)))

    def bundles(self, person: str) -> Sequence[Sequence[str]]:
        shown = [each for each in self.server.seen(self._chat(person, "")) if each.by_bot and each.file]
        albums = groupby(shown, lambda each: each.raw.get("media_group_id", each.id))
        return [[each.content.decode() for each in album] for _, album in albums]

    def refuses(self, name: str) -> None:
        self.server.faults.refused_files.add(name)

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        shown = self.server.seen(self._chat(person, group))
        return any(label in [button["text"] for button in each.buttons] for each in shown)

    def whispered(self, person: str, group: str) -> Sequence[str]:
        return self.server.popups

    async def sends(self, person: str, name: str, content: bytes) -> None:
        self.server.person(person).sends(content, name, mime="text/plain")
        await self.server.wake()

    def duplicates(self, on: bool) -> None:
        self.server.faults.duplicates = on

    def fails(self, how: str) -> None:
        self.server.faults.clear()
        for method in ("sendMessage", "editMessageText", "sendMediaGroup") if how else ():
            match how:
                case "refused":
                    self.server.faults.add(method, "gone", status=400, description="Bad Request: can't parse entities")
                case _:
                    kinds: Any = {"gateway": "status", "reset": "drop", "limited": "flood", "lost": "lose"}
                    self.server.faults.add(method, kinds[how])

    def revoke(self) -> Mapping[str, Any]:
        self.server.token += "-new"
        return {"bot_token": self.server.token}

    def refused(self) -> int:
        return self.server.unauthorised

    def hang_up(self) -> None:
        towns._reset(self.server)

    def wire(self, person: str) -> Sequence[str]:
        """A message ends the platform's own sign."""
        kinds = {"sendChatAction": "on", "sendMessage": "text", "editMessageText": "text"}
        chat = self.server.person(person).chat
        calls = [call.method for call in self.server.calls if str(call.parameters.get("chat_id")) == str(chat)]
        return _ended([kinds[method] for method in calls if method in kinds])


class Feishu(towns.Feishu):
    def __init__(self) -> None:
        super().__init__()
        self.toasts: list[str] = []

    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        other = {"key": "@_user_2", "id": {"open_id": self.id_of(mentions)}, "name": mentions.title()}
        content = {"text": f"{'@_user_1 ' if group and bot else ''}{text.format('@_user_2')}"}
        about: Any = {"mention": bool(group) and bot, "mentions": [other] if mentions else []}
        return self.server.person(person).sends("text", content, self._chat(person, group), **about)

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        return [message.text for message in self.server.seen(self._chat(person, group)) if not message.growing]

    def id_of(self, person: str) -> str:
        return self.server.person(person).id if person else ""

    async def presses(self, person: str, label: str, group: str = "") -> None:
        seen = self.server.seen(self._chat(person, group))
        shown = [each for each in seen if label in [button.label for button in each.buttons]]
        answer = await self.server.person(person).presses(shown[-1], label)
        self.toasts.append(answer["toast"]["content"] if answer else "")

    def files(self, person: str) -> Sequence[str]:
        return [each.file.decode() for each in self.server.seen(self._chat(person, "")) if each.file]

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        seen = self.server.seen(self._chat(person, group))
        return any(label in [button.label for button in each.buttons] for each in seen)

    def whispered(self, person: str, group: str) -> Sequence[str]:
        return self.toasts

    async def sends(self, person: str, name: str, content: bytes) -> None:
        self.server.person(person).sends_file(name, content)

    async def deletes(self, person: str, message: str) -> None:
        self.server.person(person).recalls(message)

    def duplicates(self, on: bool) -> None:
        self.server.faults.duplicates = int(on)

    def fails(self, how: str) -> None:
        faults = self.server.faults
        faults.calls.clear()
        for pattern in ("POST .*messages", "PUT .*content", "PATCH ", "POST .*cards") if how else ():
            match how:
                case "gateway":
                    faults.fail(pattern, 502)
                case "reset":
                    faults.hang_up(pattern)
                case "lost":
                    faults.lose(pattern)
                case "limited":
                    faults.refuse(pattern, 99991400, x_ogw_ratelimit_reset="1")
                case _:
                    faults.refuse(pattern, 230099)

    def revoke(self) -> Mapping[str, Any]:
        """The socket stays."""
        self.server.app_secret += "-new"
        self.server.faults.kill_tokens()
        return {"app_secret": self.server.app_secret}

    def refused(self) -> int:
        return self.server.unauthorised

    def hang_up(self) -> None:
        self.server.faults.drop_sockets()

    def wire(self, person: str) -> Sequence[str]:
        """The sign is a reaction to a message of the person."""
        own = [message.id for message in self.server.messages.values() if message.sender == self.id_of(person)]
        signs = [call for call in self.server.calls if any(f"/{id_}/" in call.path for id_ in own)]
        kinds = {("POST", True): "on", ("DELETE", True): "off", ("POST", False): "text"}
        wire = [kinds.get((call.method, "/reactions" in call.path), "") for call in signs]
        return [kind for kind in wire if kind]


class DingTalk(towns.DingTalk):
    takes_mentions_out = True
    """The real platform's texts may have the names of others, or not: it is not known."""

    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        about: Any = {}
        if mentions:
            about["others"] = [self.id_of(mentions)]
        text = text.format("" if self.takes_mentions_out else f"@{mentions.title()}")
        return await self.server.person(person).says(text, group, **about)

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        return [seen.text for seen in self.server.seen(group or person) if not seen.streaming]

    def id_of(self, person: str) -> str:
        return self.server.person(person).staff

    async def presses(self, person: str, label: str, group: str = "") -> None:
        shown = [each for each in self.server.seen(group or person) if label in each.buttons]
        await self.server.person(person).presses(shown[-1], label)

    def files(self, person: str) -> Sequence[str]:
        return [each.data.decode() for each in self.server.seen(person) if each.file]

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        return any(label in each.buttons for each in self.server.seen(group or person))

    def whispered(self, person: str, group: str) -> Sequence[str]:
        return self.shown(person)

    async def sends(self, person: str, name: str, content: bytes) -> None:
        await self.server.person(person).sends(name, content)

    def duplicates(self, on: bool) -> None:
        self.server.faults.twice = on

    def fails(self, how: str) -> None:
        kinds: Any = {"gateway": "html", "reset": "cut", "limited": "limited", "refused": "refused", "lost": "lost"}
        self.server.faults.clear()
        for path in ("batchSend", "createAndDeliver", "card/streaming") if how else ():
            self.server.faults.next(path, kinds[how])

    def revoke(self) -> Mapping[str, Any]:
        """The socket stays."""
        self.server.client_secret += "-new"
        self.server.faults.expire_tokens()
        return {"client_secret": self.server.client_secret}

    def refused(self) -> int:
        return self.server.unauthorised

    def hang_up(self) -> None:
        self.server.faults.cut()

    def wire(self, person: str) -> Sequence[str]:
        chat, staff = f"cid-private-{person}==", self.id_of(person)
        wire = []
        for call in self.server.calls:
            if call.body.get("openConversationId") == chat:
                wire.append("off" if "recall" in call.path else "on")
            card = self.server.cards.get(call.body.get("outTrackId", ""))
            if staff in call.body.get("userIds", ()) or (card is not None and card.chat == person):
                wire.append("text")
        return wire


class DingTalkWithNames(DingTalk):
    takes_mentions_out = False


class Discord(towns.Discord):
    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        others = [self.server.person(mentions)] if mentions else []
        text = text.format(f"<@{others[0].id}>") if others else text
        return self.server.person(person).says(text, group, bot=bot, mentions=others)

    def _said(self, person: str, group: str) -> Sequence[Any]:
        channel = self.server.channel(group, self.server.person(person))
        return [seen for seen in self.server.seen(channel) if seen.by_bot]

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        return [seen.text for seen in self._said(person, group)]

    def id_of(self, person: str) -> str:
        return self.server.person(person).id if person else ""

    async def presses(self, person: str, label: str, group: str = "") -> None:
        self.server.person(person).presses(label, group)

    async def edits(self, person: str, message: str, text: str) -> None:
        self.server.person(person).edits(message, text)

    async def deletes(self, person: str, message: str) -> None:
        self.server.person(person).deletes(message)

    def files(self, person: str) -> Sequence[str]:
        return list(chain(*self.bundles(person)))

    def bundles(self, person: str) -> Sequence[Sequence[str]]:
        return [[file.decode() for file in seen.files] for seen in self._said(person, "") if seen.files]

    def refuses(self, name: str) -> None:
        self.server.faults.refused_files.add(name)

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        return any(label in seen.buttons for seen in self._said(person, group))

    def whispered(self, person: str, group: str) -> Sequence[str]:
        asker = self.server.person(person)
        return self.server.whispers.get((self.server.channel(group, asker), asker.id), ())

    async def sends(self, person: str, name: str, content: bytes) -> None:
        self.server.person(person).says("", files={name: ("text/plain", content)})

    def duplicates(self, on: bool) -> None:
        self.server.faults.duplicate = on

    def fails(self, how: str) -> None:
        faults = {"gateway": "502", "reset": "cut", "limited": "rate", "refused": "refused", "lost": "lose"}
        self.server.faults.calls.clear()
        for route in ("POST /channels/.*/messages", "PATCH /channels/") if how else ():
            self.server.faults.add(route, faults[how], float(how == "limited"))

    def revoke(self) -> Mapping[str, Any]:
        self.server.token += "-new"
        self.server.drop()
        return {"bot_token": self.server.token}

    def refused(self) -> int:
        return self.server.unauthorised

    def hang_up(self) -> None:
        self.server.drop()

    def wire(self, person: str) -> Sequence[str]:
        """A message ends the platform's own sign."""
        channel = self.server.channel("", self.server.person(person))
        calls = [
            call.path.split("/")[3:] for call in self.server.calls if call.path.startswith(f"/channels/{channel}/")
        ]
        return _ended(["on" if path == ["typing"] else "text" for path in calls])


def _ended(wire: Sequence[str]) -> Sequence[str]:
    """Adds the end of a sign that the platform itself takes away: after the last text, as a draft is one, too."""
    return [*wire, "off"] if "text" in wire else wire


class All(Disconnecting, Duplicating, Failing, Revoking, WithFiles, WithSigns, WithWhispers, Protocol):
    """What all have."""


SEATS: Mapping[str, Callable[[], All]] = {
    "slack": Slack,
    "telegram": Telegram,
    "feishu": Feishu,
    "dingtalk": DingTalk,
    "discord": Discord,
}
