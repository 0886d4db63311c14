"""The four platforms as places where people talk to one bot, in groups, too: the local servers of `tests/channels`,
driven in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tests.channels.telegram.server import BOT_NAME
from tests.chaos import towns


class Seat(Protocol):
    """A platform's server. People and groups have names."""

    name: str
    server: Any

    def settings(self) -> Mapping[str, Any]: ...

    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        """Writes to the bot, in a group with its mention (`bot`). `mentions`: a person, who stands for `{}` in the
        text. Returns the message's id."""
        ...

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        """Returns what the bot has said in a chat, as it looks now."""
        ...

    def id_of(self, person: str) -> str: ...

    async def presses(self, person: str, label: str, group: str = "") -> None:
        """Presses the newest button with a label."""
        ...

    def files(self, person: str) -> Sequence[str]:
        """Returns the content of the files that the bot has sent to a person."""
        ...

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        """Tells whether a message of the bot has a button with a label."""
        ...

    async def edits(self, person: str, message: str, text: str) -> None:
        """Changes a message of a private chat."""
        ...

    def whispered(self, person: str, group: str) -> Sequence[str]:
        """Returns what only this person has seen in a group, and what was said to them alone."""
        ...


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

    def files(self, person: str) -> Sequence[str]:
        sent = [file for m in self.server.chat(f"@{person}").messages.values() for file in m.get("files", ())]
        return [self.server.contents[file["id"]].decode() for file in sent]

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        return any(label in seen.buttons for seen in self.server.answers(group or f"@{person}"))

    def whispered(self, person: str, group: str) -> Sequence[str]:
        return self.server.whispered.get((self.server.chat(group).id, self.id_of(person)), ())


class Telegram(towns.Telegram):
    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, int] = {}

    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        text = text.format(f"@{mentions}_test")
        text = f"@{BOT_NAME} {text}" if group and bot else text
        message = self.server.person(person).says(text, self._chat(person, group))
        await self.server.wake()
        return str(message)

    def _chat(self, person: str, group: str) -> int:
        if not group:
            return self.server.person(person).chat
        if group not in self.groups:
            self.groups[group] = self.server.group(group)
        return self.groups[group]

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
        shown = self.server.seen(self._chat(person, ""))
        return [each.content.decode() for each in shown if each.by_bot and each.file]

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        shown = self.server.seen(self._chat(person, group))
        return any(label in [button["text"] for button in each.buttons] for each in shown)

    def whispered(self, person: str, group: str) -> Sequence[str]:
        return self.server.popups


class Feishu(towns.Feishu):
    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, str] = {}
        self.toasts: list[str] = []

    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        other = {"key": "@_user_2", "id": {"open_id": self.id_of(mentions)}, "name": mentions.title()}
        content = {"text": f"{'@_user_1 ' if group and bot else ''}{text.format('@_user_2')}"}
        about: Any = {"mention": bool(group) and bot, "mentions": [other] if mentions else []}
        return self.server.person(person).sends("text", content, self._chat(person, group), **about)

    def _chat(self, person: str, group: str) -> str:
        if not group:
            return self.server.person(person).chat
        if group not in self.groups:
            self.groups[group] = self.server.group(self.server.person(person))
        return self.groups[group]

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        return [message.text for message in self.server.seen(self._chat(person, group)) if not message.growing]

    def id_of(self, person: str) -> str:
        return self.server.person(person).id if person else ""

    async def presses(self, person: str, label: str, group: str = "") -> None:
        seen = self.server.seen(self._chat(person, group))
        shown = [each for each in seen if label in [button.label for button in each.buttons]]
        answer = await self.server.person(person).presses(shown[-1], label)
        self.toasts.append(answer["toast"]["content"] if answer else "")

    async def edits(self, person: str, message: str, text: str) -> None:
        raise NotImplementedError("the app takes no events of changes")

    def files(self, person: str) -> Sequence[str]:
        return [each.file.decode() for each in self.server.seen(self._chat(person, "")) if each.file]

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        seen = self.server.seen(self._chat(person, group))
        return any(label in [button.label for button in each.buttons] for each in seen)

    def whispered(self, person: str, group: str) -> Sequence[str]:
        return self.toasts


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

    async def edits(self, person: str, message: str, text: str) -> None:
        raise NotImplementedError("the platform tells of no changes")

    def files(self, person: str) -> Sequence[str]:
        return [each.data.decode() for each in self.server.seen(person) if each.file]

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        return any(label in each.buttons for each in self.server.seen(group or person))

    def whispered(self, person: str, group: str) -> Sequence[str]:
        return self.shown(person)


class DingTalkWithNames(DingTalk):
    takes_mentions_out = False


SEATS: Mapping[str, Callable[[], Seat]] = {
    "slack": Slack,
    "telegram": Telegram,
    "feishu": Feishu,
    "dingtalk": DingTalk,
}
