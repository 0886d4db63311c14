"""All cases. Importing a module declares its own."""

from __future__ import annotations

from tests.conformance.python import (
    assistants,
    crons,
    errors,
    interrupts,
    multitask,
    runs,
    states,
    store,
    streams,
    synchronous,
    threads,
)
from tests.conformance.python.lab import CASES

MODULES = (assistants, crons, errors, interrupts, multitask, runs, states, store, streams, synchronous, threads)
__all__ = ["CASES", "MODULES"]
