"""What the process says of itself: JSON lines, or lines for people; and what it never says."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog

from core.config import is_secret
from core.settings import Secret

HIDDEN = "***"
_NAMES = frozenset({"keys"})
"""What looks like the name of a secret, and is none."""
_ALSO = re.compile(r"cookie$|signature$|^sig$|^auth$", re.IGNORECASE)
_TOKEN = re.compile(
    r"""
    (?P<scheme>\b(?i:bearer\s+))[\w.~+/=-]{6,}
    | (?P<basic>\b(?i:basic\s+))(?=[\w+/]*[A-Z0-9=])[\w+/]{8,}={0,2}
    | (?<=://)[^/\s"']+(?=@)
    | \bsk[-_][\w-]{8,}
    | \b(?:gsk|hf|xai|nvapi|tvly|lsv2|glpat|github_pat|gh[opsu]|xox[a-z])[-_](?=[\w-]*\d)[\w-]{8,}
    | \b(?:AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)
    """,
    re.VERBOSE,
)
"""Keys by their looks: authorization headers, credentials in URLs, providers' prefixes, JSON Web Tokens."""
_PAIR = re.compile(
    r"""
    (?P<before>[?&]?)(?<![\w.%-])(?P<name>[\w.%-]++)
    (?P<is>=|\\?["']\s*:\s*)
    (?P<value>
        b?"(?:[^"\\]|\\.)*"? | b?'(?:[^'\\]|\\.)*'? | \\".*?(?:\\"|$) | \\'.*?(?:\\'|$) | [^\s"'&#,;)}\]]+
    )
    """,
    re.VERBOSE | re.DOTALL,
)
"""`name=value` and `"name": value`, as in queries, forms, JSON and what Python prints."""


def configure(level: str, stream: TextIO) -> None:
    """Have everything be said on `stream`, from `level` on: for people on a terminal, JSON otherwise. Warnings of
    libraries, too.
    """
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
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    if not any(isinstance(one, _Libraries) for one in root.handlers):
        root.addHandler(_Libraries(logging.WARNING))


def covered(logger: Any, method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """A processor of structlog: the line without its secrets, in whatever they are."""
    return {key: _value(value, _telling(key)) for key, value in line.items()}


def text(said: str) -> str:
    """A text without what looks like a secret."""
    return _PAIR.sub(_pair, _TOKEN.sub(_token, said))


def _value(value: Any, hidden: bool) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case Secret():
            return HIDDEN
        case str() | bytes() if hidden:
            return HIDDEN
        case str():
            return text(value)
        case Mapping():
            return {text(str(key)): _value(item, hidden or _telling(str(key))) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_value(item, hidden) for item in value]
        case _:
            return HIDDEN if hidden else text(repr(value))


def _telling(name: str) -> bool:
    return name not in _NAMES and (is_secret(name) or bool(_ALSO.search(name)))


def _token(found: re.Match[str]) -> str:
    return (found["scheme"] or found["basic"] or "") + HIDDEN


def _pair(found: re.Match[str]) -> str:
    secret = _telling(found["name"]) or (found["before"] and found["name"] == "code")
    return found["before"] + found["name"] + found["is"] + HIDDEN if secret else found[0]


class _Libraries(logging.Handler):
    """What libraries say through `logging`, said as we say it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            log = structlog.get_logger(record.name)
            say = log.error if record.levelno >= logging.ERROR else log.warning
            say(record.getMessage(), logger=record.name, exc_info=record.exc_info)
        except Exception:
            self.handleError(record)
