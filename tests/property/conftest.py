"""Laws take as long as they take: a busy machine must not fail them."""

from __future__ import annotations

import os

from hypothesis import settings

EXAMPLES = int(os.environ.get("SIKA_EXAMPLES", "25"))
"""Of each law; a thorough run sets 100 and more."""

settings.register_profile("laws", deadline=None, max_examples=EXAMPLES)
settings.load_profile("laws")
