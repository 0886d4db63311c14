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
from tests.support.errors import caused
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
SHOWN = {
    "channels/cli/checks.py": "for the operator: errors of any library, beside their text",
    "channels/cli/admin/accounts.py": "names of entries, which are ours",
    "channels/http/accounts/auth.py": "names of entries, which are ours",
}
"""Files of channels that make texts of class names, and why they may."""


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


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "is no text in UTF-8"),
        (ValueError("x"), "cannot be read"),
    ],
)
def test_files_that_cannot_be_read(error: Exception, words: str) -> None:
    assert reasons.of_file(error) == words


POSITIONS = "the place in JSON or YAML that somebody wrote"
SENTENCES = {
    "channels/cli/extend/mcp.py": POSITIONS,
    "channels/cli/extend/mcp_serve.py": POSITIONS,
    "channels/cli/extend/skill.py": POSITIONS,
    "channels/terminal/chat/questions.py": POSITIONS,
    "channels/cli/checks.py": "of a model's library and of a check that broke, for the operator",
}
"""Files for people at a terminal that show sentences of libraries, and why they may."""
OURS = {"SikaError", "ClientError", "Invalid", "NotFound", "Refused", "RunFailed", "Unavailable", "Unauthenticated"}


def sentences_of_libraries(tree: ast.AST) -> Iterator[int]:
    """Yields lines of handlers of other errors than ours that make a text of the error itself."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None or handler.type is None:
            continue
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if {ast.unparse(kind).rpartition(".")[2] for kind in kinds} <= OURS:
            continue
        for node in ast.walk(ast.Module(handler.body, [])):
            shown = node.value if isinstance(node, ast.FormattedValue) else None
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and node.args:
                shown = node.args[0]
            if shown is not None and ast.unparse(shown) == handler.name:
                yield shown.lineno


def test_no_terminal_shows_sentences_of_libraries() -> None:
    files = [file for room in ("cli", "terminal", "client", "acp") for file in (ROOT / "channels" / room).rglob("*.py")]
    assert len(files) > 80
    named = {str(file.relative_to(ROOT)) for file in files if [*sentences_of_libraries(ast.parse(file.read_text()))]}
    assert named == SENTENCES.keys()
