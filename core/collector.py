"""The pace at which Python looks for reference cycles.

Importing what a server needs makes some 100 000 objects, and a run some 10 000, hardly any in cycles: looking for them
at every 700, as Python does, takes a sixth of a start and a tenth of a run. Only for processes of our own.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (20_000, 20, 20)
"""See `gc.set_threshold`."""


def relax() -> None:
    """Makes the collector look seldom. Call it before the big imports."""
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def paused() -> Iterator[None]:
    """Stops the collector until `settle`, or the end of the block: at a server's start it takes 0.15 s to find 2 MB."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settle() -> None:
    """Has the collector pass over what is there, when everything is imported, and look seldom at the rest. The cycles
    in it stay: 1.5 MB, for which it would have to look at everything, which takes 0.13 s.
    """
    gc.freeze()
    relax()
    gc.enable()
