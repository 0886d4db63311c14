"""What models get besides the conversation: the system prompt, the tools, the model's parameters.

A content is an event, and `RunStarted.setup` names it by its SHA-256. One without anything of a user is stored once for
all, as the only event of the log `setup/<sha256>`. One that holds something of a user lies in the log
`thread_setup/<thread>` of the thread that the run works for, and is erased with it (decision 27). So the prompts of two
runs can be compared word by word, and a request can be made again. What is stored has been redacted, and the hash is
that of the redacted text. `core.runs.setups` stores contents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import aclosing
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from core.errors import Invalid
from core.events import Aggregate, RunStarted, SetupErased, SetupRecorded

if TYPE_CHECKING:
    from core.log.reader import Read

SETUP = "setup"
"""Kind of the logs with one content each."""
OF_THREAD = "thread_setup"
"""Kind of the logs with the contents that hold something of a thread's user."""
Part = Literal["prompt", "tools", "model"]
PARTS: tuple[Part, ...] = ("prompt", "tools", "model")


class Missing(NamedTuple):
    """A content that cannot be shown. `reason` is fit for people."""

    reason: str


def logs_of(started: RunStarted) -> Iterator[Aggregate]:
    """Yields the logs that hold the contents of a run."""
    if started.setup_thread:
        yield Aggregate(OF_THREAD, started.setup_thread)
    for sha256 in started.setup.values():
        yield Aggregate(SETUP, sha256)


async def content(read: Read, sha256: str, thread: str = "") -> str | Missing:
    """Returns a stored content of a run that works for `thread`, and holds no other one. Raises `Invalid` if it does
    not match its hash.
    """
    logs = [Aggregate(OF_THREAD, thread)] if thread else []
    mismatched = erased = False
    for log in (*logs, Aggregate(SETUP, sha256)):
        async with aclosing(read(log)) as records:
            async for record in records:
                event, mismatched = record.event, mismatched or log.kind == SETUP
                if isinstance(event, SetupRecorded) and _sha256(event.content) == sha256:
                    return event.content
                erased = erased or isinstance(event, SetupErased)
    if mismatched:
        raise Invalid(f"{SETUP} {sha256}: the content does not match its hash")
    if erased:
        return Missing("it was erased, with its thread or with earlier events of it")
    return Missing("it is not in the log, or not in the file")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Difference(NamedTuple):
    """A content that two runs do not share."""

    part: Part
    before: str | Missing
    after: str | Missing


async def differences(read: Read, left: RunStarted | None, right: RunStarted | None) -> list[Difference]:
    """Returns the contents that two runs do not share. Raises `Invalid`."""
    if left is None or right is None:
        return []
    shared = [part for part in PARTS if part in left.setup and part in right.setup]
    return [
        Difference(part, *[await content(read, run.setup[part], run.setup_thread) for run in (left, right)])
        for part in shared
        if left.setup[part] != right.setup[part]
    ]


@lru_cache(maxsize=1)
def release() -> str:
    """Returns the version of Sika; empty where it is not installed as a package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sika")
    except PackageNotFoundError:
        return ""
