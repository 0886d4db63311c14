"""The messages between the server and the process that keeps one MCP session, and how they are framed.

A frame is the length of its body (four bytes), and the body: one message as MessagePack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from core.errors import Invalid
from core.tools import Effect

MOST_BYTES = 24 << 20
"""Limit of a frame's body."""
NOT_ACCEPTED, NOT_REACHED = "it did not accept the request", "it cannot be reached"
"""Beginnings of the reasons for which a server over HTTP has not taken a request."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame: what to start or to connect to."""

    transport: str
    argv: Sequence[str] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    files: Sequence[bytes] = ()
    """Contents of the command's descriptors from `FIRST_FD` on."""
    url: str = ""
    headers: Mapping[str, str] = {}
    server: str = ""
    start_seconds: float = 60
    memory_bytes: int = 1 << 30
    roots: Sequence[str] = ()
    interceptors: Sequence[str] = ()
    asks: Sequence[str] = ()
    """The kinds of requests that the server may make (`Ask.kind`)."""


FIRST_FD = 100


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command to the session; `id` names it in the replies."""

    id: int
    op: str
    """`list`, `call`, `read` (a resource), `prompt`, `cancel` (the command `id`) or `answer` (the request `id` of the
    server, with the answer as `arguments`).
    """
    name: str = ""
    arguments: Mapping[str, Any] = {}
    seconds: float = 60


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool, resource or prompt that a server offers."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = {}
    """The arguments as JSON schema."""
    read_only: bool = False
    idempotent: bool = False
    uri: str = ""
    mime_type: str = ""

    @property
    def effect(self) -> Effect:
        """The rule for retries of the tool. The hints are the server's word."""
        return "pure" if self.read_only else "idempotent" if self.idempotent else "once"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong with a tool of a server, or with its lists (no `tool`). `left_out`: the tool is not offered, else
    it is, without what was wrong.
    """

    tool: str = ""
    reason: str
    left_out: bool = False


class Listing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The offers of a server, each in the order of its names, and what is wrong with them."""

    tools: Sequence[Offer] = ()
    resources: Sequence[Offer] = ()
    prompts: Sequence[Offer] = ()
    problems: Sequence[Problem] = ()
    instructions: str = ""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a result: text, or the bytes of a file, or a link to a resource."""

    text: str | None = None
    data: bytes | None = None
    mime_type: str = ""
    uri: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a call."""

    parts: Sequence[Part] = ()
    structured: Any = None
    failed: bool = False


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the server, which is to be answered by its `number`."""

    number: int
    kind: Literal["elicit", "sample"]
    params: Mapping[str, Any]
    """As the protocol writes them."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the session. Id 0 is no command's: `ready`, `changed` (its lists), `ended` (with the reason), `asks`
    (the server asks something) or `withdrawn` (it does not any more).
    """

    id: int = 0
    kind: str
    """Those of id 0, `progress`, `listing`, `outcome`, `error` (refused), `lost` (outcome unknown),
    `closed` (that, and the session is over) or `gone` (not taken, and the session is over).
    """
    text: str = ""
    listing: Listing | None = None
    outcome: Outcome | None = None
    ask: Ask | None = None


_encode = msgspec.msgpack.Encoder().encode


def framed(message: msgspec.Struct) -> bytes:
    """Returns a message as a frame. Raises `Invalid` if it is too large."""
    body = _encode(message)
    if len(body) > MOST_BYTES:
        raise Invalid(f"{len(body)} bytes, more than {MOST_BYTES}")
    return len(body).to_bytes(4, "big") + body


def length_of(head: bytes) -> int:
    """Returns the length of the body that follows these four bytes. Raises `Invalid` if it is too large."""
    length = int.from_bytes(head, "big")
    if length > MOST_BYTES:
        raise Invalid(f"a frame of {length} bytes, more than {MOST_BYTES}")
    return length
