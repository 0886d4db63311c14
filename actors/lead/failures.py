"""What a failed model call means: worth another try, and after which pause (contract runtime §5.5)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRIABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
RETRIABLE_CLASSES = frozenset(
    {"APITimeoutError", "APIConnectionError", "InternalServerError", "ReadError", "RemoteProtocolError", "ReadTimeout"}
)
QUOTA_WORDS = ("insufficient_quota", "quota exceeded", "billing", "余额不足", "额度")
AUTH_WORDS = ("invalid api key", "invalid_api_key", "unauthorized", "authentication", "permission denied")
BUSY_WORDS = ("overloaded", "busy", "too many requests", "rate limit", "繁忙", "稍后")
BASE_MS = 1000
CAP_MS = 8000
LONGEST_MS = 120_000
"""A provider's own wish is followed up to this."""


def classify(error: BaseException) -> tuple[str, bool]:
    """`quota`, `auth`, `transient`, `busy` or `generic`, and whether another try may help."""
    text = str(error).lower()
    if any(word in text for word in QUOTA_WORDS):
        return "quota", False
    if any(word in text for word in AUTH_WORDS) or _status(error) in (401, 403):
        return "auth", False
    names = {cls.__name__ for cls in type(error).__mro__}
    busy = any(word in text for word in BUSY_WORDS)
    if _status(error) in RETRIABLE_STATUS or names & RETRIABLE_CLASSES:
        return "busy" if busy else "transient", True
    return ("busy", True) if busy else ("generic", False)


def pause_ms(error: BaseException, attempt: int) -> int:
    """The pause before the next try: what the provider asks for, else doubling from one second to eight."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    wished = _wished_ms(headers.get("retry-after-ms"), headers.get("retry-after"))
    if wished is not None and not math.isnan(wished):
        return int(min(max(wished, 0), LONGEST_MS))
    return int(min(BASE_MS * 2 ** (attempt - 1), CAP_MS))


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _wished_ms(milliseconds: str | None, after: str | None) -> float | None:
    """`retry-after-ms`, or `retry-after` in seconds or as an HTTP date (RFC 9110 §10.2.3)."""
    try:
        if milliseconds is not None:
            return float(milliseconds)
        if after is None:
            return None
        if after.strip().replace(".", "", 1).isdigit():
            return float(after) * 1000
        return (parsedate_to_datetime(after) - datetime.now(UTC)).total_seconds() * 1000
    except (ValueError, TypeError):
        return None
