"""The pace at which Python looks for reference cycles.

Importing what a server needs makes some 100 000 objects, and a run some 10 000, hardly any in cycles: looking for them
at every 700, as Python does, takes a sixth of a start and a tenth of a run. Only for processes of our own.
"""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 20, 20)
"""See `gc.set_threshold`."""


def relax() -> None:
    """Makes the collector look seldom. Call it before the big imports."""
    gc.set_threshold(*THRESHOLDS)


def settle() -> None:
    """Has the collector pass over what is there, when everything is imported, and look seldom at the rest."""
    gc.collect()
    gc.freeze()
    relax()
