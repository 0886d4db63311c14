"""Reasons of failures in words, for people: in place of the names of Python's classes and the text of libraries."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Sequence, Set
from typing import Any

_CONNECTIONS: Sequence[tuple[type[BaseException] | tuple[()], Set[int], str]] = (
    (socket.gaierror, set(), "its name is not known"),
    (ssl.SSLCertVerificationError, set(), "its certificate is not accepted"),
    (ssl.SSLError, set(), "no secure connection can be made"),
    (TimeoutError, {errno.ETIMEDOUT}, "it does not answer in time"),
    (ConnectionRefusedError, {errno.ECONNREFUSED}, "it refuses connections"),
    (ConnectionError, {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED}, "the connection broke"),
    ((), {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}, "there is no way to it in the network"),
)
"""Errors of connections, by class or number, in words. The first that fits counts."""
_KINDS: Sequence[tuple[type[Any] | tuple[type[Any], ...], str]] = (
    (bool, "true or false"),
    (str, "a string"),
    ((int, float), "a number"),
    (list, "a list"),
    (dict, "an object"),
    (type(None), "null"),
)


def of_connection(error: BaseException) -> str | None:
    """Returns why a server could not be reached or was lost; None if the error and its causes do not say so."""
    causes = [error]
    while (cause := _cause(causes[-1])) is not None:
        causes.append(cause)
    for cause in reversed(causes):
        for kind, numbers, text in _CONNECTIONS:
            if isinstance(cause, kind) or (isinstance(cause, OSError) and cause.errno in numbers):
                return text
    return None


def _cause(error: BaseException) -> BaseException | None:
    """Returns the error that led to another one. httpcore has it among the arguments only."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else error.args
    return error.__cause__ or next((each for each in inner if isinstance(each, BaseException)), None)


def lost(error: BaseException) -> str:
    """Returns why a connection failed, in general words if nothing better is known."""
    return of_connection(error) or "the connection failed"


def of_file(error: BaseException) -> str:
    """Returns why a file could not be read as text."""
    if isinstance(error, UnicodeError):
        return "is no text in UTF-8"
    return getattr(error, "strerror", None) or "cannot be read"


def kind_of(value: object) -> str:
    """Returns what a value of a JSON document is."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "something else")
