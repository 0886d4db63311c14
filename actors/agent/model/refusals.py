"""Reads what a provider says of a failed request: its status, codes, message, pause, and the size of its window."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

MESSAGE_CHARACTERS = 500
"""Limit of the provider's message beside the error's own text."""
BODY_CHARACTERS = 100_000
DEPTH = 5
"""Limits of a body that is read."""
_MESSAGES = (
    *("message", "msg", "error", "errors", "error_msg", "error_message", "errormessage", "detail", "description"),
    *("title", "metadata", "raw"),
)
"""Keys of a body under which providers put their message, or an object with it."""
_CODES = ("code", "type", "status", "reason", "error_code", "errorcode", "quotaid")
_STATUS = re.compile("[1-5][0-9][0-9]")
_TAGS = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_WINDOWS = tuple(
    re.compile(pattern.replace("#", r"\(?(\d[\d,_]*)"), re.IGNORECASE)
    for pattern in (
        r"(?:>|<=|cannot exceed|at most) ?#",
        r"max(?:imum)? (?:context|prompt|model|input|sequence) (?:length|size|window)(?: is| of|:)* ?#",
        r"max(?:imum)? (?:number of )?(?:input )?(?:tokens|size)(?: allowed| is|:)* ?#",
        r"(?:token limit|limit)(?: is| of|:)? #,? (?:used \d+, )?requested",
        r"(?:token limit|limit)(?: is| of|:) ?#",
        r"input length should be \[ ?\d+, ?#",
        r"# maximum context",
        r"context (?:length|size|window)(?: is| of| only|:)* ?#",
    )
)
"""Wordings of the window, the surest first."""
SMALLEST_WINDOW, LARGEST_WINDOW = 256, 100_000_000
"""Other numbers in a message are no context windows."""
_PAUSE = re.compile(
    r"(?:try(?:ing)? again|retry(?:ing)?|wait|available again)\b[^.\d]{0,30}?"
    r"((?:\d+(?:\.\d+)?\s?(?:ms|[hms])[a-z]*\s?)+)|(\d+(?:\.\d+)?)\s?秒后",
    re.IGNORECASE,
)
_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s?(ms|h|m|s|$)", re.IGNORECASE)
_UNITS = {"ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0, "": 1000.0}


_SECONDS, _MILLISECONDS = 1e9, 1e12
"""Larger numbers are moments, not durations."""


class Refusal(NamedTuple):
    """A failed request. `codes` are in lower case, the first text is that of the error itself."""

    status: int | None
    codes: frozenset[str]
    text: str
    pause_ms: float | None
    """The pause that the provider asks for."""
    reset_ms: float | None = None
    """The time until the limit that is used up begins anew, as headers say that are there with every answer."""

    @property
    def words(self) -> str:
        """The text in lower case."""
        return self.text.lower()


def read(error: BaseException) -> Refusal:
    """Reads an error as any provider's client raises it."""
    inner = _of_sdk(error)
    body = _body(inner)
    codes = {code.lower() for code in (*_own_codes(inner), *_codes(body, DEPTH))}
    text = text_of_error(error, body)
    headers = _headers(inner)
    return Refusal(status_of(error), frozenset(codes), text, _pause_ms(headers, body, text), _reset_ms(headers))


def text_of_error(error: BaseException, body: Any = None) -> str:
    """Returns an error's text with the provider's message, in which form ever it came, up to `MESSAGE_CHARACTERS`."""
    own = str(error) or type(error).__name__
    body = _body(_of_sdk(error)) if body is None else body
    more: list[str] = []
    for text in _messages(body, DEPTH):
        if text not in own and not any(text in other for other in more):
            more.append(text)
    return f"{own} - {'; '.join(more)[:MESSAGE_CHARACTERS]}" if more else own


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status of the response, or of an error within a stream, whose code OpenAI's SDK makes a text.
    The response of such a stream has a status, too: 200.
    """
    error = _of_sdk(error)
    response, code = getattr(error, "response", None), getattr(error, "code", None)
    if isinstance(response, Mapping):
        return _amazons(response).get("HTTPStatusCode")
    named: tuple[Any, ...] = (
        *(getattr(error, name, None) for name in ("status_code", "status")),
        *(getattr(response, name, None) for name in ("status_code", "status")),
        int(code) if isinstance(code, str) and _STATUS.fullmatch(code) else code,
    )
    values = (int(value) for value in named if isinstance(value, int) and not isinstance(value, bool))
    return next((value for value in values if value >= 400), None)


def _of_sdk(error: BaseException) -> BaseException:
    """Returns the error of the provider's SDK, which has the response: Google's class for LangChain raises its own
    instead of it.
    """
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and len(chain) < DEPTH:
        chain.append(cause)
    return next((link for link in chain if getattr(link, "response", None) is not None), error)


def window_named(text: str) -> int | None:
    """Returns the context window in tokens that a refusal names, None if it names none."""
    numbers = (int(re.sub("[,_]", "", match[1])) for pattern in _WINDOWS for match in pattern.finditer(text))
    return next((number for number in numbers if SMALLEST_WINDOW <= number <= LARGEST_WINDOW), None)


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _body(error: BaseException) -> Any:
    """Returns the response's body, or what the client made of it."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # boto's
        return response
    try:
        text = getattr(response, "text", None)
    except Exception:  # the body was not read, or is no text
        text = None
    if isinstance(text, str) and text:
        return _decoded(text[:BODY_CHARACTERS])
    body = getattr(error, "body", None)
    return getattr(error, "details", None) if body is None else body


def _decoded(text: str) -> Any:
    try:
        value = json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        value = text
    return value


def _messages(value: Any, depth: int) -> Iterator[str]:
    """Yields the messages in a body, outermost first."""
    if isinstance(value, str):
        inner = _decoded(value[:BODY_CHARACTERS])
        if isinstance(inner, str):
            if text := " ".join((_TAGS.sub(" ", inner) if inner.lstrip()[:1] == "<" else inner).split()):
                yield text
            return
        value = inner
    if depth and isinstance(value, Mapping):
        lower = {str(name).lower(): part for name, part in value.items()}
        for name in _MESSAGES:
            yield from _messages(lower.get(name), depth - 1)
    elif depth and isinstance(value, list):
        for part in value[:DEPTH]:
            yield from _messages(part, depth - 1)


def _codes(value: Any, depth: int) -> Iterator[str]:
    """Yields the codes in a body, at any depth."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if str(name).lower() in _CODES and isinstance(part, str | int) and len(str(part)) <= MESSAGE_CHARACTERS:
                yield str(part)
            elif depth:
                yield from _codes(_decoded(part) if str(name) == "raw" and isinstance(part, str) else part, depth - 1)
    elif isinstance(value, list) and depth:
        for part in value[:DEPTH]:
            yield from _codes(part, depth - 1)


def _amazons(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what Amazon's SDK keeps of a response besides its body."""
    about = response.get("ResponseMetadata")
    return about if isinstance(about, Mapping) else {}


def _own_codes(error: BaseException) -> Iterator[str]:
    for name in ("code", "error_code", "type", "status"):
        value = getattr(error, name, None)
        if isinstance(value, str):
            yield value


# ── pauses ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _headers(error: BaseException) -> dict[str, str]:
    response = getattr(error, "response", None)
    headers = _amazons(response).get("HTTPHeaders") if isinstance(response, Mapping) else None
    headers = headers or getattr(response, "headers", None) or {}
    return {str(name).lower(): str(value) for name, value in headers.items()} if isinstance(headers, Mapping) else {}


def _reset_ms(headers: Mapping[str, str]) -> float | None:
    """Returns the longest time until a limit begins anew of which nothing remains, or nothing is said to remain."""
    times = []
    for name, value in headers.items():
        if "ratelimit" in name and "reset" in name:
            remaining = _number(headers.get(name.replace("reset", "remaining")))
            until = _moment_ms(value)
            if until is not None and not remaining:
                times.append(until)
    return max(times, default=None)


def _moment_ms(value: str) -> float | None:
    """Reads "6m0s", seconds, a moment in seconds or milliseconds since 1970, or one as RFC 3339 or HTTP have it."""
    number, now = _number(value), datetime.now(UTC).timestamp()
    if number is None:
        try:
            moment = datetime.fromisoformat(value).timestamp()
        except ValueError:
            return _duration_ms(value) if value[:1].isdigit() else _until_ms(value)
        return max((moment - now) * 1000, 0)
    if number > _MILLISECONDS:
        return max(number - now * 1000, 0)
    return max((number - now) * 1000, 0) if number > _SECONDS else number * 1000


def _pause_ms(values: Mapping[str, str], body: Any, text: str) -> float | None:
    """Returns the pause of the headers, of the body's `retryDelay`, or of the message."""
    requested = _header_ms(values.get("retry-after-ms"), values.get("retry-after"))
    if requested is not None and requested == requested:
        return requested
    delay = _delay(body, DEPTH)
    if delay is not None:
        return _duration_ms(delay)
    match = _PAUSE.search(text)
    return _duration_ms(match[1] or match[2]) if match else None


def _delay(value: Any, depth: int) -> str | None:
    """Returns the `retryDelay` of Google's `RetryInfo`, as "2s"."""
    if isinstance(value, Mapping):
        if isinstance(delay := value.get("retryDelay"), str):
            return delay
        value = list(value.values())
    if not isinstance(value, list) or not depth:
        return None
    return next((found for part in value if (found := _delay(part, depth - 1)) is not None), None)


def _duration_ms(text: str) -> float | None:
    """Reads "4.2s", "1m30s", "350ms" or a bare number of seconds."""
    pieces = _PIECE.findall(text.strip())
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in pieces) if pieces else None


def _header_ms(milliseconds: str | None, after: str | None) -> float | None:
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
