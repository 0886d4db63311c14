"""The errors of the core; each demands a different reaction from its caller."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_OURS = ("actors", "adapters", "channels", "core", "anyio")
_COROUTINE = 0x80
"""The flag of the code of `async def` (`inspect.CO_COROUTINE`, whose module is large)."""


class SikaError(Exception):
    """Base of every error raised on purpose. `code` is stable and safe to show to clients."""

    code = "internal"


class Internal(SikaError):
    """A defect of the part that was called (HTTP 500). The caller can do nothing; the server's log says more."""


class Invalid(SikaError):
    """The caller's fault: wrong input, named with its place. Do not retry; fix the input."""

    code = "invalid"


class NotFound(SikaError):
    """The named thing does not exist (or is not the caller's)."""

    code = "not_found"


class Refused(SikaError):
    """The request is well-formed but the state of the aggregate forbids it (HTTP 409)."""

    code = "conflict"


class Conflict(SikaError):
    """Another writer appended first. Re-read the aggregate and decide again."""

    code = "write_conflict"

    def __init__(self, aggregate: str, expected: int) -> None:
        super().__init__(f"{aggregate}: not at sequence {expected} any more")
        self.aggregate = aggregate
        self.expected = expected


class OwnershipLost(SikaError):
    """Another worker has claimed this run. Stop at once: start no effect, append nothing, ack nothing."""

    code = "ownership_lost"


class Divergence(SikaError):
    """A re-execution made another request than the log recorded. `recorded` and `now` are both sides, if known."""

    code = "divergence"

    def __init__(self, text: str, recorded: Any = None, now: Any = None) -> None:
        super().__init__(text)
        self.recorded = recorded
        self.now = now


class Unavailable(SikaError):
    """A part of the system does not answer in time. Nothing is decided; try again later."""

    code = "unavailable"


class Overloaded(Unavailable):
    """So much waits already that one more would be no use. `seconds`: when there will be room for it, as things go."""

    code = "overloaded"

    def __init__(self, text: str, seconds: int) -> None:
        super().__init__(text)
        self.seconds = seconds


class Exited(SikaError):
    """Third-party code called `sys.exit`, or panicked: that is its failure, and must not end the process."""

    code = "exited"


def sentence_of(error: BaseException) -> str:
    """Returns what an error says, in words: errors of Python say only a key, or nothing."""
    text = str(error).strip().removeprefix("None")  # so says a `SyntaxError` without a text
    match error:
        case KeyError():
            return f"it needs {text}, which is not there" if text else "it needs a key that is not there"
        case TimeoutError() if not text:
            return "it was not done in time"
    return text or "it gives no reason; the server's own log has more"


def is_defect(error: BaseException) -> bool:
    """Tells whether an error was not raised on purpose: its author needs the traceback."""
    return not isinstance(error, SikaError) or isinstance(error, Exited)


def refuse_sync(cls: type, names: Iterable[str]) -> None:
    """Raises `Invalid`, with the line, if a class overrides one of these coroutine functions by a plain function."""
    for name in names:
        function = cls.__dict__.get(name)
        if isinstance(function, types.FunctionType) and not function.__code__.co_flags & _COROUTINE:
            code = function.__code__
            place = f"{_file(code)}:{code.co_firstlineno}: {cls.__qualname__}.{name}"
            raise Invalid(f"{place}: is called with await; write `async def`")


def place_of(error: BaseException) -> str:
    """Returns where third-party code raised an error, as ` (words.py:12, in make)`: the innermost line of the first
    package that is neither Python's nor ours. Empty if there is none.
    """
    package, place = "", ""
    step = error.__traceback__
    while step is not None:
        frame, line, step = step.tb_frame, step.tb_lineno, step.tb_next
        module = str(frame.f_globals.get("__name__", ""))
        if not is_foreign(module):
            continue
        root = module.partition(".")[0]
        package = package or root
        if root == package:
            place = f" ({_file(frame.f_code)}:{line}, in {frame.f_code.co_name})"
    return place


def line_of(error: BaseException) -> str:
    """Returns a line about a defect: the error's class, its text, and where third-party code raised it."""
    return f"{type(error).__name__}: {error}{place_of(error)}"


def is_of_python(module: str) -> bool:
    """Tells whether a module is one of Python's own library."""
    return module.partition(".")[0] in sys.stdlib_module_names


def is_foreign(module: str) -> bool:
    """Tells whether a module is neither Python's nor ours."""
    return bool(module) and module.partition(".")[0] not in _OURS and not is_of_python(module)


def _file(code: types.CodeType) -> str:
    return code.co_filename.rpartition("/")[2]


BY_CODE: Mapping[str, type[SikaError]] = {cls.code: cls for cls in (Invalid, NotFound, Refused, Unavailable, Internal)}
"""The errors that keep their class over the bus: a caller in another process reacts to each differently."""


def family_of(error: SikaError) -> type[SikaError]:
    """Returns the class of `BY_CODE` that the error belongs to.

    Other errors (`Conflict`, `OwnershipLost` …) are for the code that appends: in a response they are a defect.
    """
    return next((cls for cls in type(error).__mro__ if cls in BY_CODE.values()), Internal)


class _Contained:
    """A block of third-party code. Made once: it is entered for each layer of each call."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, Exception):
            return
        from asyncio import CancelledError  # seldom needed by the command line, and large

        if isinstance(error, CancelledError | GeneratorExit | KeyboardInterrupt):
            return
        if isinstance(error, SystemExit):
            raise Exited(f"tried to end the process ({error.code})") from error
        raise Exited(f"failed: {sentence_of(error)}") from error


_CONTAINED = _Contained()


def contained() -> AbstractContextManager[None]:
    """Runs third-party code (tools, policies, handlers).

    A `SystemExit` in a task would end the event loop. What else is no `Exception`, such as a panic of a library in
    Rust, would end every task group.
    """
    return _CONTAINED


@contextmanager
def ungrouped(*others: type[Exception]) -> Iterator[None]:
    """Unwraps the error that a caller can act on from the exception group of a task group: a `SikaError`, or an error
    of a class in `others`."""
    kinds: tuple[type[Exception], ...] = (SikaError, *others)
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException | None = group.subgroup(kinds)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, kinds):
            raise error from None
        raise
