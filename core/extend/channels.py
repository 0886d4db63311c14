"""The imports of a package with a chat platform; installed, this is called `sika.channels`. See `core.chat.port`."""

from __future__ import annotations

from core.chat.facts import Attachment, Button, ChatReceived, Choice, Quoted, Target
from core.chat.port import (
    ChatGone,
    Content,
    Credential,
    CredentialsDead,
    Draft,
    FateUnknown,
    Finding,
    Pace,
    Platform,
    RateLimited,
    Receive,
    Rejected,
    Report,
    Traits,
)

__all__ = [
    "Attachment",
    "Button",
    "ChatGone",
    "ChatReceived",
    "Choice",
    "Content",
    "Credential",
    "CredentialsDead",
    "Draft",
    "FateUnknown",
    "Finding",
    "Pace",
    "Platform",
    "Quoted",
    "RateLimited",
    "Receive",
    "Rejected",
    "Report",
    "Target",
    "Traits",
]
