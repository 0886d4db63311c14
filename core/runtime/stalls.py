"""Stalls: code that keeps the event loop from everything else (`time.sleep`, a library that waits, a long computation).

Theory of operation
-------------------
The loop sets a time every `BEAT_SECONDS`; a thread looks at it as often. If it is older than `LIMIT_SECONDS` the thread
reads the stack of the loop's thread, and once more a beat later: a machine that is merely short of time is elsewhere by
then. The innermost frame below which a tool, policy, actor or model works says whose code it is. A cause is logged
once, with the stack, and once more when it is over, with its time; stalls by third-party code are noticed by
`/ready` and the doctor for an hour after the last. Nothing is done per event or token; both sides together take
about 0.1 % of a processor.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from sys import _current_frames
from types import FrameType
from typing import Any, NamedTuple

import structlog

from core.actor import Actor
from core.errors import is_foreign, is_of_python
from core.log.notices import Notices
from core.policy import Policy

log = structlog.get_logger("sika.stalls")

BEAT_SECONDS = 0.25
LIMIT_SECONDS = 1.0
"""Age of the loop's time from which it is stalled."""
MOST_CAUSES = 100
"""Causes that are logged; of all other causes only the notice is kept."""
STACK_FRAMES = 30
_ROLES: dict[type, tuple[str, str]] = {Actor: ("actor", "name"), Policy: ("policy", "name")}
_RUNNERS = ("asyncio.runners", "asyncio.base_events", "anyio._backends._asyncio")
"""Modules whose frames call the loop, or are it."""


def register(cls: type, role: str, attribute: str = "name") -> None:
    """Has the functions whose first argument is a `cls` named as `role` and the value of its attribute."""
    _ROLES[cls] = (role, attribute)


class Culprit(NamedTuple):
    """The code that holds the loop. `by`: a part (`tool count_words`), else a module; `at`: its innermost line."""

    by: str
    at: str
    foreign: bool
    """It is third-party code."""


class Stalls:
    """The stalls of one event loop."""

    def __init__(self) -> None:
        self.notices = Notices()
        """Sentences about stalls by third-party code."""
        self._beat = time.monotonic()
        self._causes: set[str] = set()

    async def run(self) -> None:
        """Watches the loop that runs it, for as long as it runs."""
        self._beat = time.monotonic()
        with self._watched(threading.get_ident()):
            while True:
                self._beat = time.monotonic()
                await asyncio.sleep(BEAT_SECONDS)

    @contextmanager
    def _watched(self, loop: int) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(loop, ended), name="stalls", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()

    def _watch(self, loop: int, ended: threading.Event) -> None:
        """Looks at the loop's time. `loop`: the ident of its thread."""
        suspect: Culprit | None = None
        logged, looked = False, time.monotonic()
        while not ended.wait(BEAT_SECONDS):
            before, looked, beat = looked, time.monotonic(), self._beat
            if looked - before > 2 * BEAT_SECONDS:
                suspect = None  # the process was stopped, or has no processor: both threads were
            if looked - beat < LIMIT_SECONDS:
                suspect, logged = None, False
                continue
            stack = _stack(_current_frames().get(loop))
            culprit = culprit_of(stack)
            if culprit is None or logged:
                continue
            if suspect is not None and suspect.by == culprit.by:
                logged = True
                self._log_stall(culprit, stack, beat, ended)
            suspect = culprit

    def _log_stall(self, culprit: Culprit, stack: Sequence[FrameType], beat: float, ended: threading.Event) -> None:
        """Logs a stall, waits for its end, and logs that."""
        is_new = culprit.by not in self._causes and len(self._causes) < MOST_CAUSES
        if is_new:
            self._causes.add(culprit.by)
            frames = traceback.StackSummary.extract(((frame, frame.f_lineno) for frame in stack), limit=-STACK_FRAMES)
            text = "".join(frames.format())
            log.warning("the event loop stands still", by=culprit.by, at=culprit.at, stack=text)
        while self._beat == beat and not ended.wait(BEAT_SECONDS):
            pass
        seconds = round(time.monotonic() - beat, 1)
        if culprit.foreign:
            where = "see `the event loop stands still` in the server's log"
            self.notices.note(f"{culprit.by} held up everything else for a second or longer; {where}")
        if is_new:
            log.warning("the event loop goes on", by=culprit.by, stood_still_seconds=seconds)


def _stack(frame: FrameType | None) -> Sequence[FrameType]:
    """Returns the frames that the loop calls, outermost first; none if it waits."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__") not in _RUNNERS:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def culprit_of(stack: Sequence[FrameType]) -> Culprit | None:
    """Returns whose code a stack is, None if it is only Python's own: the loop waits for something to happen."""
    own = [frame for frame in stack if not is_of_python(_module(frame))]
    if not own:
        return None
    at = f"{own[-1].f_code.co_filename.rpartition('/')[2]}:{own[-1].f_lineno}, in {own[-1].f_code.co_name}"
    ours = None
    for frame in reversed(own):
        if (role := _role(frame)) is not None:
            if is_foreign(_module(frame)):
                return Culprit(role, at, True)
            ours = ours or role
    return Culprit(ours or _module(own[-1]), at, False)


def _role(frame: FrameType) -> str | None:
    """Returns the name of the part whose function a frame is."""
    code = frame.f_code
    if not code.co_argcount:
        return None
    first: Any = frame.f_locals.get(code.co_varnames[0])
    for cls in type(first).__mro__:
        if cls in _ROLES:
            role, attribute = _ROLES[cls]
            return f"{role} {getattr(first, attribute, None) or type(first).__name__}"
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
