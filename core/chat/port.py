"""The port of chat platforms: one account's connection, and what it can say and show.

`channels/<platform>/platform.py` has a class that implements `Platform`; `channels/<platform>/traits.py`, which imports
no SDK, a `TRAITS` and the keys of its settings. A platform translates and decides nothing: what to say, to whom and in
which order, when to try again, and what was said already is the business of its callers.

Texts are Markdown. A platform splits them (`parts`) and renders each part in its own format.

Errors of `Platform` and `Draft`: `RateLimited`, `FateUnknown`, `ChatGone`, `Rejected`, `CredentialsDead`; and
`Unavailable` if certainly nothing was sent. Any other exception is a defect, after which the fate is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from core.chat.facts import STOP, Attachment, Button, ChatReceived, Target
from core.errors import Invalid, Unavailable

Receive = Callable[[ChatReceived], Awaitable[None]]
"""Takes custody of a message: returns when it is in the log, or when it was there before. Raises `Unavailable`: then
the platform must not be told that it has arrived."""


class RateLimited(Unavailable):
    """The platform refused a call for now: nothing was sent. `seconds` is how long it asks to wait."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


class FateUnknown(Unavailable):
    """The call may have had its effect: it left, and no answer came."""


class ChatGone(Invalid):
    """The chat, or the message, is not there any more, or the bot was thrown out or blocked."""

    code = "chat_gone"


class Rejected(Invalid):
    """The platform does not take this content; the same again will not help."""

    code = "chat_rejected"


class CredentialsDead(Invalid):
    """The platform does not accept the credentials: a person must replace them."""

    code = "credentials_dead"


class Pace(NamedTuple):
    """The rates that a platform permits."""

    edit_seconds: float
    """Least time between edits of a message, in a private chat."""
    group_edit_seconds: float
    send_seconds: float
    """Least time between messages in a chat."""
    group_per_minute: int
    per_second: int
    """Most calls in a second over all chats of the account."""


class Credential(NamedTuple):
    """A key of the settings that a person gets from the platform."""

    key: str
    label: str
    secret: bool = True


class Step(NamedTuple):
    """A step of the way to an account on a platform. `key`: the setting that a person then pastes; empty: there is
    nothing to paste. `form`: a pattern of what is pasted. A step with `optional` may be left empty."""

    text: str
    key: str = ""
    form: str = ""
    optional: bool = False


class Traits(NamedTuple):
    """Properties of a platform, for code that must not import its SDK."""

    name: str
    title: str
    credentials: Sequence[Credential]
    pace: Pace
    answers_can_be_found: bool
    """`find` works, so a message of unknown fate need not be marked as such."""
    open_to_the_world: bool = False
    """Anybody can write to the bot: without a list of people it answers nobody."""
    replies_are_topics: bool = False
    """In groups, a reply goes on in the conversation of the message that it replies to."""
    topics_are_rooms: bool = False
    """Many people talk in a topic about many things: taking part in one does not make the next message the bot's."""
    deep_link: str = ""
    """The address at which a person connects with a code, with `{code}` and names of settings in it."""
    edits_are_free: bool = True
    """A message that was sent can be changed later."""
    largest_file: int = 20 << 20
    """Bytes."""
    bundles: bool = False
    """A message carries several files: it is a `Bundling`, too."""
    rates_answers: bool = False
    """Answers have buttons with which people say what they think of them (`GOOD`, `BAD`)."""
    whispers: bool = False
    """It can say something to one person of a group: it is a `Whispering`, too."""
    setup: Sequence[Step] = ()
    """A step of `sika channels setup`: where to click, and what to paste."""
    resumes: bool = False
    """It goes on after a restart where it stopped: it is a `Resuming`, too."""
    buttonless_seconds: float = 0.0
    """Time for which a draft has no button that stops its run. At such intervals it is shown though nothing changes."""


class Content(msgspec.Struct, frozen=True):
    """The content of a message. `text`: one part, in Markdown. `status`: a quiet line below, as the tool at work."""

    text: str
    status: str = ""
    buttons: tuple[Button, ...] = ()
    plan: str = ""
    """Comes back with a pressed button (`Choice.plan`)."""


DRAFT = "/draft"
"""End of the key of a draft."""


def unfinished(text: str, status: str, key: str) -> Content:
    """Returns the content of a draft with a key, with the button that stops its run."""
    return Content(text, status, (STOP,), key.removesuffix(DRAFT))


class Finding(NamedTuple):
    """The result of one check of an account: `sika channels test`."""

    ok: bool
    what: str
    advice: str = ""


class Report(Protocol):
    """Takes notice of an account's connection: called by `Platform.listen`."""

    def connected(self) -> None: ...

    def heard(self) -> None:
        """A frame or an answer arrived: the connection lives."""
        ...

    def disconnected(self, reason: str) -> None: ...


class Draft(Protocol):
    """A message that grows, one for each answer. It is shown at the pace of its caller."""

    @property
    def message(self) -> str:
        """The platform's id of it; empty before the first `show`, and of drafts that have none."""
        ...

    async def show(self, text: str, status: str) -> None:
        """Shows the whole answer so far: more than fits is cut at its beginning or end. The same as before is not sent
        again."""
        ...

    async def finish(self, content: Content, key: str) -> str:
        """Replaces what was shown by the first part of the answer, also where the stream has expired. Returns the id of
        the message once the platform has confirmed it.
        """
        ...

    async def drop(self) -> None:
        """Takes back what was shown, if that can be done."""
        ...


class Platform(Protocol):
    """One account's connection. All methods are coroutines of one event loop; a blocking SDK runs in threads."""

    traits: Traits

    async def check(self) -> Sequence[Finding]:
        """Asks the platform about credentials and permissions, and says which are missing."""
        ...

    async def listen(self, receive: Receive, report: Report) -> None:
        """Takes messages until cancelled; reconnects by itself, with growing pauses. Returns never. Raises
        `CredentialsDead`, and `Unavailable` if it is better begun anew."""
        ...

    def parts(self, text: str) -> Sequence[str]:
        """Splits Markdown into parts that each fit a message once rendered. Loses nothing; none for an empty text.
        Called in threads, too."""
        ...

    def draft(self, target: Target, key: str, message: str = "") -> Draft:
        """Returns a draft, or the one that was begun before with `message`. Its `key` ends with `DRAFT`, no other
        does, and `find` knows it until the draft is finished."""
        ...

    async def post(self, target: Target, content: Content, key: str) -> str:
        """Posts a message once: where the platform knows keys, `key` is one, else it is not sent again by itself.
        Returns the id of the message, empty if there is none."""
        ...

    async def edit(self, target: Target, message: str, content: Content) -> None:
        """Changes a message that was posted. Idempotent."""
        ...

    async def find(self, target: Target, key: str, since: datetime) -> str | None:
        """Returns the id of the message that was posted with a key; None if the platform does not have it."""
        ...

    async def upload(self, target: Target, file: Path, name: str, key: str) -> str:
        """Posts a file. Returns the id of the message, empty if there is none."""
        ...

    async def fetch(self, attachment: Attachment, message: str, into: Path, limit: int) -> None:
        """Writes an attachment into a file. Raises `Rejected` if it is over `limit` bytes, or is no file (a page that
        asks to sign in)."""
        ...

    async def working(self, target: Target, on: bool) -> None:
        """Shows that somebody is at work, in the platform's own way. Called every few seconds; failures are ignored."""
        ...

    async def close(self) -> None: ...


class Resuming(Protocol):
    """A platform whose connection is to go on in the next process where it stopped, as it does not deliver again by
    itself."""

    def resume(self, notes: Path) -> None:
        """Names the file in which it keeps what it needs for that. Called once, before `listen`."""
        ...


class File(NamedTuple):
    """A file to be posted."""

    path: Path
    name: str
    size: int
    """Bytes."""


class Bundling(Protocol):
    """A platform of which one message carries several files."""

    def bundle(self, files: Sequence[File]) -> int:
        """Returns how many of the files one message carries, from the first on. Their sizes add up to no more than
        `Traits.largest_file`, but for a single one."""
        ...

    async def upload_bundle(self, target: Target, files: Sequence[File], key: str) -> Sequence[str]:
        """Posts files as one message, all or none of them; `find` knows it by its key. Returns the id of the message of
        each file. Raises `Rejected` if one of them is refused."""
        ...


class Whispering(Protocol):
    """A platform that can say something that only one person sees."""

    async def whisper(self, target: Target, text: str) -> None:
        """Says something to `target.sender` alone: beside the message that they wrote, or the button that they pressed.
        May be repeated. Raises the errors of the port: `Rejected` if it is impossible here."""
        ...
