"""Logging of the process: JSON lines, or lines for people, without secrets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

from core.config.redaction import HIDDEN, redactor, telling
from core.config.settings import Secret


def configure(level: str, stream: TextIO) -> None:
    """Logs to `stream`, from `level` on: for people on a terminal, JSON otherwise. Includes warnings of libraries."""
    people = stream.isatty()
    # Never with local variables: they hold secrets.
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if people else "iso", utc=not people),
            structlog.processors.format_exc_info,
            covered,
            console if people else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lossy(stream))),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    if not any(isinstance(handler, _Libraries) for handler in root.handlers):
        root.addHandler(_Libraries(logging.WARNING))


class _Lossy:
    """A stream that ignores failures: its disk may be full, or its reader closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def covered(logger: Any, method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Redacts the secrets of a line, at any depth: a processor of structlog."""
    return {key: _value(value, telling(key)) for key, value in line.items()}


def _value(value: Any, hidden: bool) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case Secret():
            return HIDDEN
        case str() | bytes() if hidden:
            return HIDDEN
        case str():
            return redactor.text(value)
        case Mapping():
            return {redactor.text(str(key)): _value(item, hidden or telling(str(key))) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_value(item, hidden) for item in value]
        case _:
            return HIDDEN if hidden else redactor.text(repr(value))


class _Libraries(logging.Handler):
    """Forwards records of `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            log = structlog.get_logger(record.name)
            write = log.error if record.levelno >= logging.ERROR else log.warning
            write(record.getMessage(), logger=record.name, exc_info=record.exc_info)
        except Exception:
            self.handleError(record)
