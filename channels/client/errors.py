"""What can go wrong, told apart by what one does about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.client.sse import value_of
from core import errors


class ClientError(Exception):
    """Base of all. `code` is stable; `status` is that of the HTTP answer, None if there was none."""

    def __init__(self, text: str, code: str = "error", status: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.status = status


class Invalid(ClientError, ValueError):
    """What was given is wrong. The text says what and where."""


class Unauthenticated(ClientError):
    """The server does not know who asks: the API key is missing, wrong or revoked."""


class Forbidden(ClientError):
    """Whoever asks may not do this."""


class NotFound(ClientError, LookupError):
    """There is no such thing, or it is somebody else's."""


class Refused(ClientError):
    """Not now: as a run on a thread that is at work."""


class TooLarge(Invalid):
    """More than the server takes."""


class TooMany(ClientError):
    """More than is granted. Ask again after `retry_after` seconds, if it says so."""

    retry_after: float | None = None


class Unavailable(ClientError):
    """The server cannot be reached, or cannot answer now. Try again later (`retry_after` seconds, if it says so)."""

    retry_after: float | None = None


class Unsupported(Unavailable):
    """The server knows of this, and does not have it. `code` names it: `skills_unavailable`."""


class RunFailed(ClientError):
    """A run ended with an error; `code` is its name. What the run did until then is kept in the thread."""

    def __init__(self, text: str, code: str, thread_id: str, run_id: str, usage: Mapping[str, int]) -> None:
        super().__init__(text, code)
        self.thread_id = thread_id
        self.run_id = run_id
        self.usage = usage


_OF_STATUS: Mapping[int, type[ClientError]] = {
    400: Invalid,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Refused,
    413: TooLarge,
    422: Invalid,
    429: TooMany,
}
_OF_CORE: Mapping[type[errors.SikaError], type[ClientError]] = {
    errors.Invalid: Invalid,
    errors.Refused: Refused,
    errors.Unavailable: Unavailable,
}


def of_answer(status: int, headers: Mapping[str, str], raw: bytes) -> ClientError:
    """An error that the server answered: `{"detail", "code"}`, where `detail` may be `{"code", "message"}`."""
    answer = value_of(raw.decode(errors="replace"))
    found: dict[str, Any] = answer if isinstance(answer, dict) else {"detail": answer}
    detail = found.get("detail")
    if isinstance(detail, dict):
        found, detail = {**found, **detail}, detail.get("message")
    code = str(found.get("code") or f"http_{status}")
    kind = _OF_STATUS.get(status, Unavailable if status >= 500 else ClientError)
    if status == 503 and code.endswith("_unavailable"):
        kind = Unsupported
    error = kind(str(detail or f"status {status}")[:2000], code, status)
    wait = headers.get("Retry-After", "")
    if isinstance(error, TooMany | Unavailable) and wait.isascii() and wait.isdigit():  # else a date
        error.retry_after = float(wait)
    return error


def of_core(error: errors.SikaError) -> ClientError:
    """What kept a server in this process from starting."""
    kind = next((_OF_CORE[cls] for cls in type(error).__mro__ if cls in _OF_CORE), ClientError)
    return kind(str(error), error.code)


def unexpected(answer: Any) -> ClientError:
    """A server of another kind."""
    return ClientError(f"this is no answer of Sika: {str(answer)[:200]}", "unexpected")


def closed() -> ClientError:
    return ClientError("the client is closed", "closed")
