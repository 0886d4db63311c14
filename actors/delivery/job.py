"""A plan of delivery at work: its fact, how far it is, and what this process knows beyond the log."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from actors.delivery.outlet import CALL_SECONDS
from core.chat.facts import DeliveryPlanned
from core.chat.port import Draft
from core.chat.state import Plan

PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)
"""Seconds after a failure before a part is tried again."""


class Ended(Exception):
    """A plan ends here. `silent`: the person misses nothing."""

    def __init__(self, fate: Literal["refused", "gone", "unknown"], reason: str, *, silent: bool = False) -> None:
        super().__init__(reason)
        self.fate = fate
        self.reason = reason
        self.silent = silent


@dataclass(slots=True)
class Execution:
    """The execution of a plan by this process, as far as the log does not tell."""

    sent: dict[int, str] = field(default_factory=dict)
    """Messages of parts that the platform has, and the log not yet."""
    unsent: set[int] = field(default_factory=set)
    """Parts that the platform certainly does not have."""
    doubts: dict[int, int] = field(default_factory=dict)
    """Calls of unknown fate in this process, by part."""
    failures: int = 0
    """Calls in a row that the platform did not take."""
    defects: int = 0
    plain: bool = False
    """The platform refused the formatted text of this part."""
    draft: Draft | None = None
    draft_known: bool = False
    """`draft` is the plan's, or there is none."""
    unfindable: bool = False
    """The platform does not permit to look for its messages."""
    anew: bool = False
    """The message that was to be changed is not there any more: the text is posted."""
    texts: Sequence[str] | None = None
    """The text of the plan in parts; None before it was split."""
    folder: tempfile.TemporaryDirectory[str] | None = None
    files: dict[int, Path | str] = field(default_factory=dict)
    """Copies of artifacts, or the texts instead of them, by part."""
    alone: int = 0
    """The parts before it go alone: the platform refused them as one message."""

    def pause(self) -> float:
        """Returns the seconds until the next try."""
        self.failures += 1
        return PAUSES[min(self.failures, len(PAUSES)) - 1]

    def close(self) -> None:
        """Removes copies of files and texts; they are made again."""
        self.texts = None
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None
            self.files = {part: file for part, file in self.files.items() if isinstance(file, str)}


class Job(NamedTuple):
    """A plan at work: its fact, how far it is, and its texts."""

    conversation: str
    id: str
    plan: Plan
    event: DeliveryPlanned
    at: datetime
    texts: Sequence[str]
    own: Execution

    @property
    def part(self) -> int:
        """The next part."""
        return len(self.plan.messages)

    @property
    def parts(self) -> int:
        return len(self.texts) + len(self.event.artifacts)

    @property
    def key(self) -> str:
        return f"{self.id}/{self.part}"

    @property
    def group(self) -> bool:
        return self.event.target.kind == "group"


class Way(NamedTuple):
    """The way to say a part, or several (`parts`). `repeatable`: doing it again changes the same message, or does no
    harm. `posts`: it may make a new one. `marked`: done again, it makes a second message that says so. `beside`: it
    makes none in the chat, whose pace does not count then. `call` returns the id of the message of each part.
    """

    call: Callable[[], Awaitable[str | tuple[str, ...]]]
    parts: int = 1
    repeatable: bool = False
    marked: bool = False
    posts: bool = True
    beside: bool = False
    seconds: float = CALL_SECONDS
