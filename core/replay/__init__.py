"""Recorded threads, read and compared: `from core.replay import Archive, state_at, why` (page `debugging-http`).

A name is loaded when it is used: who reads a file loads no bus.

`causes` of a fact, `tree` of what took time, `diff` of runs and states, `comparing` of two threads within bounds
(`cuts`); `queries`: all of these, for whoever shows them. `moments/` is a thread as it was: its state, its files, and
what a model call got. `debugger` and `breakpoints` stop a replay, `replayed` lays it beside its recording. `whatif/`
says how a run goes on under other conditions, `evaluation/` measures many of these. `exports/` writes and reads files
of events, and keeps runs for tests.

Nothing else in core imports this room (decision 40).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.replay.comparing import compare as compare
    from core.replay.exports.archive import Archive as Archive
    from core.replay.find import Query as Query
    from core.replay.moments.moment import part as part
    from core.replay.queries import Cause as Cause
    from core.replay.queries import Compared as Compared
    from core.replay.queries import EventPage as EventPage
    from core.replay.queries import Moment as Moment
    from core.replay.queries import Side as Side
    from core.replay.queries import events as events
    from core.replay.queries import spans as spans
    from core.replay.queries import state_at as state_at
    from core.replay.queries import why as why
    from core.replay.source import LogSource as LogSource
    from core.replay.source import Source as Source
    from core.replay.tree import Span as Span

_PLACES = {
    "comparing": ("compare",),
    "exports.archive": ("Archive",),
    "find": ("Query",),
    "moments.moment": ("part",),
    "queries": ("Cause", "Compared", "EventPage", "Moment", "Side", "events", "spans", "state_at", "why"),
    "source": ("LogSource", "Source"),
    "tree": ("Span",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
