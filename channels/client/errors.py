"""Errors of the client, one class for each reaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.client.sse import value_of
from core import errors


class ClientError(Exception):
    """Base of all errors. `code` is stable; `status` is the HTTP status, None without a response."""

    def __init__(self, text: str, code: str = "error", status: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.status = status


class Invalid(ClientError, ValueError):
    """An argument is wrong. The text says what and where."""


class Unauthenticated(ClientError):
    """The API key is missing, wrong or revoked."""


class Forbidden(ClientError):
    """The user lacks the permission."""


class NotFound(ClientError, LookupError):
    """The resource does not exist, or belongs to another user."""


class Refused(ClientError):
    """The state does not allow it now, such as a run on a busy thread."""


class TooLarge(Invalid):
    """The request exceeds the server's limit."""


class TooMany(ClientError):
    """A limit is exceeded. Retry after `retry_after` seconds, if it is set."""

    retry_after: float | None = None


class Unavailable(ClientError):
    """The server cannot be reached, or cannot answer now. Retry later (after `retry_after` seconds, if it is set)."""

    retry_after: float | None = None


class Unsupported(Unavailable):
    """The server does not implement a known feature. `code` names it: `skills_unavailable`."""


class RunFailed(ClientError):
    """A run ended with an error; `code` is its name. The run's work until then stays in the thread."""

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


def of_response(status: int, headers: Mapping[str, str], raw: bytes) -> ClientError:
    """Returns the error of a response: `{"detail", "code"}`, where `detail` may be `{"code", "message"}`."""
    decoded = value_of(raw.decode(errors="replace"))
    problem: dict[str, Any] = decoded if isinstance(decoded, dict) else {"detail": decoded}
    detail = problem.get("detail")
    if isinstance(detail, dict):
        problem, detail = {**problem, **detail}, detail.get("message")
    code = str(problem.get("code") or f"http_{status}")
    kind = _OF_STATUS.get(status, Unavailable if status >= 500 else ClientError)
    if status == 503 and code.endswith("_unavailable"):
        kind = Unsupported
    error = kind(str(detail or f"status {status}")[:2000], code, status)
    retry_after = headers.get("Retry-After", "")
    if isinstance(error, TooMany | Unavailable) and retry_after.isascii() and retry_after.isdigit():  # else a date
        error.retry_after = float(retry_after)
    return error


def of_core(error: errors.SikaError) -> ClientError:
    """Returns the error that kept a server in this process from starting."""
    kind = next((_OF_CORE[cls] for cls in type(error).__mro__ if cls in _OF_CORE), ClientError)
    return kind(str(error), error.code)


def unexpected(response: Any) -> ClientError:
    """Returns the error of a response that is not Sika's."""
    return ClientError(f"this is no answer of Sika: {str(response)[:200]}", "unexpected")


def closed() -> ClientError:
    return ClientError("the client is closed", "closed")
