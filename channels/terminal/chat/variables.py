"""`/env`: the variables of the agent's commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from channels.client import AsyncSikaClient
from channels.terminal.text import one_line
from core.errors import Invalid

NONE = "no variables; /env NAME=VALUE sets one for the agent's commands"

Secret = Callable[[str], Awaitable[str | None]]
"""Asks for a text that is not shown."""


async def changed(client: AsyncSikaClient, thread: str, words: str, secret: Secret) -> Sequence[str]:
    """Does what follows `/env`: nothing, `NAME=VALUE`, `NAME=` or `NAME`. Returns the variables afterwards, as lines.
    Raises `Invalid`.
    """
    name, separator, value = words.partition("=")
    if not words:
        return lines(await client.get_variables(thread))
    if separator and value:
        return lines(await client.set_variable(thread, name, value))
    if separator:
        return lines(await client.remove_variable(thread, name))
    if not (value := await secret(f"{one_line(name, 100)} (not shown): ") or ""):
        raise Invalid(f"/env: {name} is as it was")
    return lines(await client.set_variable(thread, name, value, secret=True))


def lines(listing: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    shown = [(str(each["name"]), "***" if each["secret"] else str(each["value"])) for each in listing]
    return [one_line(f"{name}={value}", 300) for name, value in shown] or [NONE]
