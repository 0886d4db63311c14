"""Variables that a person sets for the commands of a thread: facts of it, the values of secrets sealed."""

from __future__ import annotations

import re
from collections.abc import Mapping

import structlog

from core.config.redaction import is_secret_variable, redactor
from core.errors import Invalid
from core.events import VariableSet
from core.identity.seal import Seal, Unsealable

log = structlog.get_logger("sika.sandbox")

MAX_VALUE = 4096
"""Limit of a value, in bytes: all of them together are far below what a command can have (128 KiB each, 2 MiB)."""
RESERVED = ("SIKA_", "DEERFLOW_")
"""Beginnings of names that the server sets itself."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def variable_set(seal: Seal, thread: str, name: str, value: str, *, secret: bool, by: str) -> VariableSet:
    """Returns the fact that a variable is set. The value of a secret is sealed for its thread and name, and redacted
    from now on: of one that is called secret, and of one that looks like it. Raises `Invalid`.
    """
    if not _NAME.fullmatch(name):
        raise Invalid(f"name: {name[:100]!r} is no name of a variable: letters, digits and _, at most 100")
    if name.startswith(RESERVED):
        raise Invalid(f"name: {name} is the server's: names do not begin with {' or '.join(RESERVED)}")
    if not value or "\0" in value or len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE:
        raise Invalid(f"value: 1 to {MAX_VALUE} bytes, without NUL; to remove a variable, delete it")
    if secret or looks_secret(name, value):
        redactor.add(value)
        return VariableSet(name=name, sealed=seal.seal(value, _purpose(thread, name)), by=by)
    return VariableSet(name=name, value=value, by=by)


def looks_secret(name: str, value: str) -> bool:
    """Tells whether a variable holds a secret, by its name or because its value has the form of one."""
    pair = f"{name}={value}"
    return is_secret_variable(name) or redactor.text(pair) != pair


def opened(seal: Seal, thread: str, variables: Mapping[str, VariableSet]) -> dict[str, str]:
    """Returns the values for a command. One that was sealed by another installation is left out."""
    values: dict[str, str] = {}
    for name, variable in variables.items():
        try:
            values[name] = seal.open(variable.sealed, _purpose(thread, name)) if variable.sealed else variable.value
        except Unsealable as error:
            log.warning("a variable of a thread cannot be read", thread=thread, name=name, error=str(error))
    return values


def _purpose(thread: str, name: str) -> str:
    return f"variable {thread} {name}"
