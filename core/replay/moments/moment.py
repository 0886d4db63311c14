"""A thread at a moment: its log folded up to a sequence, and a part of that state by a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jmespath
import jmespath.exceptions

from core.errors import Invalid, NotFound
from core.events import Record
from core.thread.fold import fold
from core.thread.state import ThreadState


def at(records: Sequence[Record], seq: int | None) -> ThreadState:
    """Returns the state after the event `seq`, or the last before it; None: after all. Raises `NotFound` if none is."""
    upto = [record for record in records if seq is None or record.seq <= seq]
    if not upto:
        begins = f"; the log begins with {records[0].seq}" if records else ""
        raise NotFound(f"no event up to {seq}{begins}")
    return fold(upto)


def part(value: Any, path: str) -> Any:
    """Returns the part of a JSON value at a path such as `messages[-1].content` (JMESPath).

    Raises `Invalid` for what is no path, and `NotFound` where nothing is.
    """
    try:
        result = jmespath.search(path, value)
    except jmespath.exceptions.JMESPathError as error:
        raise Invalid(f"path {path!r}: {' '.join(str(error).split())}") from error
    if result is None:
        keys = f"; there are {', '.join(value)}" if isinstance(value, dict) else ""
        raise NotFound(f"path {path!r}: nothing there{keys}")
    return result
