"""Sessions that do not come through yet, by reason: take a name out with the mend of its cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BY_REASON: Mapping[str, Sequence[str]] = {}
GAPS = {name: reason for reason, names in BY_REASON.items() for name in names}
