"""What was configured, in words: facts of the installation whose text is their own fields, without secrets."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import msgspec

from core.config.redaction import ENVELOPE, is_secret, redactor
from core.events import Record, catalogue

NAMELESS = frozenset(
    {
        "account.configured",
        "account.renamed",
        "account.reset",
        "mcp.configured",
        "mcp.forgotten",
        "subject.linked",
    }
)
"""Types of changes that do not name who made them."""
OF_THREADS = frozenset({"thread", "workspace"})
"""Kinds whose facts are about conversations, whoever made them."""
TEXT_CHARACTERS = 1000
_LEFT_OUT = ENVELOPE | {"by", "digest", "hash", "subject"}


def is_change(record: Record) -> bool:
    """Tells whether an event changed how the installation works, or who may do what in it: those that name who made
    them (`by`), and a few others.
    """
    kind, of = record.head.kind, record.type
    return kind not in OF_THREADS and (of in NAMELESS or _is_signed(of))


@functools.lru_cache(maxsize=1024)
def _is_signed(type_name: str) -> bool:
    cls = catalogue().get(type_name)
    return cls is not None and "by" in cls.__struct_fields__


def words_of(record: Record) -> tuple[str, str]:
    """Returns who did it (a user if the event says so, or else the part of Sika that recorded it), and what, without
    secrets: of what has a secret name only that it was set.
    """
    fields = msgspec.json.decode(record.raw)
    by = fields.get("by")
    values = fields.get("changed") if record.type == "configuration.applied" else None
    shown = values if isinstance(values, dict) else {n: value for n, value in fields.items() if n not in _LEFT_OUT}
    text = ", ".join(_values(shown) if shown is values else _pairs(shown))
    return str(by if isinstance(by, str) else record.head.actor), redactor.text(text)[:TEXT_CHARACTERS]


def _values(changed: dict[str, Any]) -> Iterator[str]:
    """Yields what a configuration says now; of its secrets the event has none."""
    for key, value in changed.items():
        yield f"{key}: –" if value is None else f"{key}: {value}"


def _pairs(fields: dict[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, dict | list):
            yield f"{name}: {' '.join(map(_name_of, value))}"
        elif is_secret(name) and name != "key":
            yield f"{name}: ***"
        else:
            yield f"{name}: {value}"


def _name_of(item: Any) -> str:
    """Returns what stands for an item of a list: of one with fields its name, as others may be sealed."""
    return str(item.get("name", "")) if isinstance(item, dict) else str(item)
