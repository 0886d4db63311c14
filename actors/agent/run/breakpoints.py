"""Pauses a run at its breakpoints (`interrupt_before`, `interrupt_after`), which name the agent's nodes."""

from __future__ import annotations

from core.events import RunRequested
from core.runs.journal import Paused

EVERYWHERE = "*"


class Breakpoints:
    """Checks each step of one attempt at a run. A resumed run does not pause again before its first step."""

    def __init__(self, request: RunRequested) -> None:
        self._before = frozenset(request.interrupt_before)
        self._after = frozenset(request.interrupt_after)
        self._passing = request.input is None

    def before_model(self, *, after_tools: bool) -> None:
        """Raises `Paused` at a breakpoint before this call, or after the tools that just ran."""
        passing, self._passing = self._passing, False
        if not passing and (self._names("model", self._before) or (after_tools and self._names("tools", self._after))):
            raise Paused(["model"])

    def after_model(self) -> None:
        """Raises `Paused` at a breakpoint after this call, or before the tools that it calls."""
        if self._names("model", self._after) or self._names("tools", self._before):
            raise Paused(["tools"])

    def resumed(self) -> None:
        """Notes that the first step is the tools."""
        self._passing = False

    @staticmethod
    def _names(node: str, breakpoints: frozenset[str]) -> bool:
        return node in breakpoints or EVERYWHERE in breakpoints
