"""Where a run is to pause (`interrupt_before`, `interrupt_after`), in the names of the agent's nodes."""

from __future__ import annotations

from core.events import RunRequested
from core.thread.run import Paused

EVERYWHERE = "*"


class Breakpoints:
    """Asked at each step of one attempt at a run. A run that goes on does not pause again before its first step."""

    def __init__(self, request: RunRequested) -> None:
        self._before = frozenset(request.interrupt_before)
        self._after = frozenset(request.interrupt_after)
        self._passing = request.input is None

    def before_model(self, *, after_tools: bool) -> None:
        """Raises `Paused` if the run is to stop before this call, or after the tools that were just called."""
        passing, self._passing = self._passing, False
        if not passing and (self._names("model", self._before) or (after_tools and self._names("tools", self._after))):
            raise Paused(["model"])

    def after_model(self) -> None:
        """Raises `Paused` if the run is to stop before the tools that were just asked for."""
        if self._names("model", self._after) or self._names("tools", self._before):
            raise Paused(["tools"])

    def resumed(self) -> None:
        """The first step is the tools."""
        self._passing = False

    @staticmethod
    def _names(node: str, wanted: frozenset[str]) -> bool:
        return node in wanted or EVERYWHERE in wanted
