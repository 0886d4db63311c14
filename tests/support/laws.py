"""Hypothesis: laws take as long as they take, and a busy machine must not fail them."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("SIKA_EXAMPLES", "25"))
"""Of each law; a thorough run sets 100 and more."""


def use() -> None:
    """Sets the number of examples, and no limit of time, for all tests by hypothesis."""
    patient = [HealthCheck.too_slow]
    settings.register_profile("laws", deadline=None, max_examples=EXAMPLES, suppress_health_check=patient)
    settings.load_profile("laws")
