"""Notices: problems that were met, which `/ready` shows to anybody: so no names, and nothing of what people wrote."""

from __future__ import annotations

import time
from collections import OrderedDict

SHOWN_SECONDS = 60.0
"""Time for which something counts as met lately."""
LIMIT = 100
"""Most texts that are remembered."""


class Notices:
    """Texts, each with the time at which it was last noted."""

    def __init__(self, seconds: float = SHOWN_SECONDS) -> None:
        self._seconds = seconds
        self._noted: OrderedDict[str, float] = OrderedDict()

    def note(self, text: str) -> None:
        self._noted[text] = time.monotonic()
        self._noted.move_to_end(text)
        if len(self._noted) > LIMIT:
            self._noted.popitem(last=False)

    def shown(self) -> list[str]:
        """Returns the texts of the last `seconds`, the newest last."""
        since = time.monotonic() - self._seconds
        return [text for text, at in self._noted.items() if at >= since]
