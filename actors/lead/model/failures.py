"""Classifies failed model calls, computes pauses before retries, and breaks circuits (contract runtime §5.5)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

RETRIABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
RETRIABLE_TYPES = ("server_error", "InternalServerError")
"""Types of errors of the server within a stream, which have no status, at OpenAI and vLLM."""
RETRIABLE_CLASSES = frozenset(
    {"APITimeoutError", "APIConnectionError", "InternalServerError", "ReadError", "RemoteProtocolError"}
    | {"ReadTimeout", "ConnectError", "ConnectTimeout", "StreamChunkTimeoutError"}
)
"""The first line is the contract's; the second has the equivalents of other clients."""
QUOTA_WORDS = (
    *("insufficient_quota", "quota exceeded", "exceeded your current quota", "billing", "insufficient balance"),
    *("insufficient credit", "payment required", "余额不足", "额度", "欠费", "超出限额"),
)
AUTH_WORDS = (
    *("invalid api key", "invalid_api_key", "incorrect api key", "unauthorized", "authentication"),
    *("permission denied", "permission_denied", "access denied", "forbidden", "无权", "未授权", "鉴权失败"),
)
CONTEXT_WORDS = (
    *("context_length_exceeded", "context length", "context window", "context size", "prompt is too long"),
    *("input is too long", "input token count", "上下文长度"),
)
BUSY_WORDS = (
    *("overloaded", "busy", "too many requests", "rate limit", "rate_limit", "high demand", "temporarily unavailable"),
    *("try again later", "繁忙", "稍后", "负载较高", "请求过多"),
)
_STATUS = re.compile("[1-5][0-9][0-9]")
BASE_MS = 1000
CAP_MS = 8000
LONGEST_MS = 120_000
"""Limit of a pause that a provider requests."""


def classify(error: BaseException) -> tuple[str, bool]:
    """Returns `quota`, `auth`, `transient`, `context`, `busy` or `generic`, and whether a retry may help."""
    text = _text(error)
    if any(word in text for word in QUOTA_WORDS):
        return "quota", False
    if any(word in text for word in AUTH_WORDS) or status_of(error) in (401, 403):
        return "auth", False
    if status_of(error) in RETRIABLE_STATUS or getattr(error, "type", None) in RETRIABLE_TYPES:
        return "transient", True
    if {cls.__name__ for cls in type(error).__mro__} & RETRIABLE_CLASSES:
        return "transient", True
    if any(word in text for word in CONTEXT_WORDS):
        return "context", False
    return ("busy", True) if any(word in text for word in BUSY_WORDS) else ("generic", False)


def address(error: BaseException, model: object) -> str:
    """Returns the provider's name of the model, and the URL of the request without credentials and query."""
    named = (getattr(model, name, None) for name in ("model_name", "model"))
    name = next((text for text in named if isinstance(text, str) and text), "")
    requests = (getattr(error, "request", None), getattr(getattr(error, "response", None), "request", None))
    urls = (
        *(getattr(request, "url", None) for request in requests),
        *(getattr(model, name, None) for name in ("openai_api_base", "anthropic_api_url", "base_url")),
    )
    url = urlsplit(next((str(url) for url in urls if url), ""))
    origin = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if url.netloc else ""
    return " at ".join(part for part in (name, origin) if part)


def pause_ms(error: BaseException, attempt: int) -> int:
    """Returns the pause before the next attempt: as the provider requests, else 1, 2, 4, then 8 seconds."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    values = {str(name).lower(): str(value) for name, value in headers.items()} if isinstance(headers, Mapping) else {}
    requested = _requested_ms(values.get("retry-after-ms"), values.get("retry-after"))
    if requested is not None and not math.isnan(requested):
        return int(min(max(requested, 0), LONGEST_MS))
    return int(min(BASE_MS * 2 ** (attempt - 1), CAP_MS))


Admission = Literal["call", "probe"]


@dataclass(slots=True)
class Breaker:
    """The circuit breaker of one model. Times are seconds of a monotonic clock.

    Closed, it admits every call; open, none; then, half-open, one call at a time until one succeeds or fails. Each
    admitted call ends with `succeeded`, `failed` or `freed`.
    """

    threshold: int = 5
    recovery_seconds: float = 60
    failures: int = 0
    opened_at: float | None = None
    probing: bool = False

    def state(self, now: float) -> Literal["closed", "open", "half-open"]:
        if self.opened_at is None:
            return "closed"
        return "open" if now < self.opened_at + self.recovery_seconds else "half-open"

    def admit(self, now: float) -> Admission | None:
        """Admits a call, or returns None. A `probe` takes the only slot of a half-open circuit."""
        match self.state(now):
            case "closed":
                return "call"
            case "half-open" if not self.probing:
                self.probing = True
                return "probe"
            case _:
                return None

    def wait_seconds(self, now: float) -> float:
        """Returns the seconds until the next call may be admitted."""
        return 0.0 if self.opened_at is None else max(0.0, self.opened_at + self.recovery_seconds - now)

    def succeeded(self, admission: Admission) -> None:
        """Closes the circuit."""
        self.failures, self.opened_at, self.probing = 0, None, False

    def failed(self, admission: Admission, now: float, *, retriable: bool) -> None:
        """Counts a call that failed after all its attempts, and opens the circuit at the threshold.

        Errors that are not retriable do not count, nor calls that began before the circuit opened.
        """
        if not retriable:
            self.freed(admission)
        elif admission == "probe" and self.probing:
            self.opened_at, self.probing = now, False
        elif self.opened_at is None:
            self.failures += 1
            if self.failures >= self.threshold:
                self.opened_at = now

    def freed(self, admission: Admission) -> None:
        """Returns the slot of a call without an outcome: cancelled, paused, or failed through no fault of the model."""
        if admission == "probe":
            self.probing = False


def _text(error: BaseException) -> str:
    """Returns an error's text and codes in lower case."""
    codes = (getattr(error, name, None) for name in ("message", "code", "error_code", "type"))
    return " ".join([str(error), *(code for code in codes if isinstance(code, str))]).lower()


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status of the response, or of an error within a stream, whose code OpenAI's SDK makes a text."""
    response, code = getattr(error, "response", None), getattr(error, "code", None)
    named: tuple[Any, ...] = (
        *(getattr(error, name, None) for name in ("status_code", "status")),
        *(getattr(response, name, None) for name in ("status_code", "status")),
        int(code) if isinstance(code, str) and _STATUS.fullmatch(code) else code,
    )
    return next((int(value) for value in named if isinstance(value, int) and not isinstance(value, bool)), None)


def _requested_ms(milliseconds: str | None, after: str | None) -> float | None:
    """Reads `retry-after-ms`, or `retry-after` in seconds or as an HTTP date (RFC 9110 §10.2.3)."""
    requested = _number(milliseconds)
    if requested is not None:
        return requested
    seconds = _number(after)
    return _until_ms(after) if seconds is None else seconds * 1000


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _until_ms(date: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime(date or "")
    except (ValueError, TypeError):
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds() * 1000
