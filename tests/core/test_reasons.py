"""Failures in words: what is said of connections, and that no channel shows people the names of Python's classes."""

from __future__ import annotations

import ast
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from core import reasons
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
SHOWN = {
    "channels/cli/run/doctor.py": "for the operator: errors of any library, beside their text",
    "channels/cli/admin/accounts.py": "names of entries, which are ours",
    "channels/http/accounts/auth.py": "names of entries, which are ours",
}
"""Files of channels that make texts of class names, and why they may."""


def caused(outer: BaseException, *inner: BaseException) -> BaseException:
    error = outer
    for cause in inner:
        error.__cause__ = cause
        error = cause
    return outer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "10.0.0.5"), "it refuses connections"),
        (OSError(111, "10.0.0.5"), "it refuses connections"),
        (OSError(113, "10.0.0.5"), "there is no way to it in the network"),
        (OSError(104, "10.0.0.5"), "the connection broke"),
        (caused(Exception("10.0.0.5"), Exception(), BrokenPipeError()), "the connection broke"),
        (caused(Exception(), socket.gaierror(-2, "models.corp")), "its name is not known"),
        (ssl.SSLCertVerificationError("models.corp"), "its certificate is not accepted"),
        (ssl.SSLError("WRONG_VERSION_NUMBER"), "no secure connection can be made"),
        (TimeoutError("10.0.0.5"), "it does not answer in time"),
        (aiohttp.ServerTimeoutError("10.0.0.5"), "it does not answer in time"),
        (aiohttp.ServerDisconnectedError(), None),
        (FileNotFoundError(2, "x"), None),
        (ValueError("x"), None),
    ],
)
def test_connections(error: BaseException, words: str | None) -> None:
    assert reasons.of_connection(error) == words
    assert reasons.lost(error) == (words or "the connection failed")


@pytest.mark.anyio
async def test_what_clients_raise_where_nothing_listens() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with aiohttp.ClientSession() as session, httpx.AsyncClient() as client:
        with pytest.raises(aiohttp.ClientConnectorError) as one:
            await session.get(url)
        with pytest.raises(httpx.ConnectError) as other:
            await client.get(url)
    assert reasons.lost(one.value) == reasons.lost(other.value) == "it refuses connections"


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, "true or false"), (1, "a number"), (1.5, "a number"), ("x", "a string"), ([], "a list"), ({}, "an object"),
     (None, "null"), (object(), "something else")],
)  # fmt: skip
def test_kinds(value: Any, kind: str) -> None:
    assert reasons.kind_of(value) == kind


def texts_with_classes(tree: ast.AST) -> Iterator[int]:
    """Yields lines of texts with `type(…).__name__` in them, outside of calls of `log`."""
    for node in ast.iter_child_nodes(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "log":
            continue
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "__name__"
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id == "type"
        ):
            yield node.lineno
        yield from texts_with_classes(node)


def test_no_channel_shows_names_of_classes() -> None:
    files = {str(file.relative_to(ROOT)): file for file in (ROOT / "channels").rglob("*.py")}
    assert len(files) > 100
    named = {name for name, file in files.items() if [*texts_with_classes(ast.parse(file.read_text()))]}
    assert named == SHOWN.keys()
