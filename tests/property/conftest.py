"""Laws take as long as they take: a busy machine must not fail them."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("laws", deadline=None, max_examples=int(os.environ.get("SIKA_EXAMPLES", "100")))
settings.load_profile("laws")
