"""A platform as a place where people talk to one bot: what the tests of a contract ask of its local server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class Seat(Protocol):
    """A platform's server. People and groups have names; those of a group without a name are private chats."""

    name: str
    """The platform's, in the configuration."""

    @property
    def server(self) -> AbstractAsyncContextManager[Any]: ...

    def settings(self) -> Mapping[str, Any]:
        """Returns the settings of the account. Called inside `server`."""
        ...

    def id_of(self, person: str) -> str:
        """Returns the platform's id of a person (`ChatReceived.sender`)."""
        ...

    async def writes(self, person: str, text: str, group: str = "", *, mentions: str = "", bot: bool = True) -> str:
        """Writes to the bot, in a group with its mention (`bot`). `mentions`: a person, who stands for `{}` in the
        text. Returns the message's id."""
        ...

    def shown(self, person: str, group: str = "") -> Sequence[str]:
        """Returns what the bot has said in a chat, oldest first, as it looks now. Drafts do not count."""
        ...


class Duplicating(Seat, Protocol):
    """A platform that delivers again what it does not know to have arrived."""

    def duplicates(self, on: bool) -> None:
        """Has each event delivered twice from here on, or not any more."""
        ...


class Failing(Seat, Protocol):
    """A platform whose calls fail."""

    def fails(self, how: str) -> None:
        """Has the next message of the bot fail once: `gateway` (HTTP 502 or 503 with a page), `reset` (the connection
        ends), `limited` (429), `refused` (its content); nothing was done. `lost`: it is there, but no answer
        comes. Empty: not any more. It is a text, or files."""
        ...


class Disconnecting(Seat, Protocol):
    """A platform to which the account holds a connection."""

    def hang_up(self) -> None:
        """Ends the connection without a word."""
        ...


class Revoking(Seat, Protocol):
    """A platform that takes credentials back."""

    def revoke(self) -> Mapping[str, Any]:
        """Has the account's credentials refused from here on. Returns the settings with new ones."""
        ...

    def refused(self) -> int:
        """Returns how many calls and connections were refused for their credentials."""
        ...


class WithSigns(Seat, Protocol):
    """A platform that shows that the bot is at work, and takes that away."""

    def wire(self, person: str) -> Sequence[str]:
        """Returns the calls of the bot in a private chat, in their order: `on`, `off` for the sign, `text` for what
        people read."""
        ...


class WithButtons(Seat, Protocol):
    """A platform whose messages have buttons."""

    async def presses(self, person: str, label: str, group: str = "") -> None:
        """Presses the newest button with a label."""
        ...

    def has_label(self, person: str, label: str, group: str = "") -> bool:
        """Tells whether a message of the bot has a button with a label."""
        ...


class WithFiles(Seat, Protocol):
    """A platform on which files go to and fro."""

    async def sends(self, person: str, name: str, content: bytes) -> None:
        """Sends a file to the bot, without words."""
        ...

    def files(self, person: str) -> Sequence[str]:
        """Returns the content of the files that the bot has sent to a person."""
        ...


class WithBundles(WithFiles, Failing, Protocol):
    """A platform of which one message carries several files."""

    def bundles(self, person: str) -> Sequence[Sequence[str]]:
        """Returns the content of the files that the bot has sent to a person, those of a message together."""
        ...

    def refuses(self, name: str) -> None:
        """Has messages with a file of this name refused from here on."""
        ...


class WithWhispers(WithButtons, Protocol):
    """A platform that can say something to one person alone."""

    def whispered(self, person: str, group: str) -> Sequence[str]:
        """Returns what only this person has seen in a group, and what was said to them alone."""
        ...


class WithDeletions(Seat, Protocol):
    """A platform that tells of messages that people delete."""

    async def deletes(self, person: str, message: str) -> None:
        """Deletes a message of a private chat."""
        ...


class WithEdits(WithButtons, Protocol):
    """A platform that tells of messages that people change."""

    async def edits(self, person: str, message: str, text: str) -> None:
        """Changes a message of a private chat."""
        ...
