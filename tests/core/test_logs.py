"""What the process says: lines of JSON, and no secrets in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from core.config.redaction import HIDDEN, redactor
from core.config.settings import Secret
from core.observe import logs

text = redactor.text
TEXTS = {
    "Bearer abcdef123456": "Bearer ***",
    "authorization: bearer abc.def-123_x": "authorization: bearer ***",
    "Authorization: Basic dXNlcjpwYXNz": "Authorization: Basic ***",
    "with sk-proj-abcdefgh1234 in it": "with *** in it",
    "ghp_abcdefgh12345678, hf_abcdEFGH1234": "***, ***",
    "eyJhbGciOiJI.eyJzdWIi.abc-d": "***",
    "nats://user:p@ss@h:4222,nats://t0ken@h2": "nats://***@h:4222,nats://***@h2",
    "https://h/x?api_key=abc&page=2#f": "https://h/x?api_key=***&page=2#f",
    "https://h/x?page=2&X-Amz-Signature=ab": "https://h/x?page=2&X-Amz-Signature=***",
    "https://h/cb?code=99&state=1": "https://h/cb?code=***&state=1",
    "password=hunter2, next": "password=***, next",
    "{'api_key': 'a b c', 'n': 1}": "{'api_key': ***, 'n': 1}",
    '{"password": "x\\"y", "n": 1}': '{"password": ***, "n": 1}',
    '"{\\"token\\": \\"x y\\", \\"n\\": 1}"': '"{\\"token\\": ***, \\"n\\": 1}"',
    "{'key': b'abc'}": "{'key': ***}",
    "Client(secret='a\\'b\nc')": "Client(secret=***)",
    "{'Cookie': 'session=a'}": "{'Cookie': ***}",
}
HARMLESS = [
    "", "task-12345678 failed", "KeyError: 'foo'", "JetStream code=10071", "tokens=3 max_tokens=4", "hf_hub_download",
    "mail to a@b.c, see http://h/x?page=2", "Basic authentication failed", "a bearer of news", "{'model': 'gpt-5'}",
]  # fmt: skip


@pytest.mark.parametrize(("said", "shown"), TEXTS.items(), ids=range(len(TEXTS)))
def test_texts(said: str, shown: str) -> None:
    assert text(said) == shown
    assert text(shown) == shown


@pytest.mark.parametrize("said", HARMLESS, ids=range(len(HARMLESS)))
def test_texts_without_secrets(said: str) -> None:
    assert text(said) == said


VALUES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "a telling name": ({"api_key": "abc", "password": b"abc"}, {"api_key": HIDDEN, "password": HIDDEN}),
    "a name that only looks like it": ({"keys": ["tools", "nats"]}, {"keys": ["tools", "nats"]}),
    "what is no secret under any name": (
        {"key": None, "token_count": 5, "secret": True, "n": 0.5},
        {"key": None, "token_count": 5, "secret": True, "n": 0.5},
    ),
    "a secret": ({"value": Secret("abc"), "all": [Secret("abc")]}, {"value": HIDDEN, "all": [HIDDEN]}),
    "deep": (
        {"given": {"headers": {"Authorization": ["abc"], "Accept": "text"}, "n": (1, "x?token=abc")}},
        {"given": {"headers": {"Authorization": [HIDDEN], "Accept": "text"}, "n": [1, "x?token=***"]}},
    ),
    "all that stands under a telling name": ({"secrets": {"a": ["abc"]}}, {"secrets": {"a": [HIDDEN]}}),
    "an error": ({"error": ValueError("nats://u:p@h")}, {"error": "ValueError('nats://***@h')"}),
    "a path": ({"path": Path("/a")}, {"path": repr(Path("/a"))}),
}


@pytest.mark.parametrize(("line", "shown"), VALUES.values(), ids=VALUES)
def test_values(line: dict[str, Any], shown: Mapping[str, Any]) -> None:
    assert logs.covered(None, "info", line) == shown


@given(st.text(), st.text())
def test_in_any_text(before: str, after: str) -> None:
    assert "abcdefgh1234" not in text(f"{before} sk-abcdefgh1234 {after}")


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40), st.sampled_from("'\""))
def test_what_is_quoted_is_hidden_as_a_whole(secret: str, quote: str) -> None:
    escaped = secret.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    assert text(f"{{{quote}password{quote}: {quote}{escaped}{quote}}}") == f"{{{quote}password{quote}: {HIDDEN}}}"


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before, handlers = structlog.get_config(), list(logging.getLogger().handlers)
    yield
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers


def fail(password: str) -> None:
    raise ValueError(f"no way in with {password} at http://u:{password}@h")


def test_json_lines() -> None:
    stream = io.StringIO()
    logs.configure("info", stream)
    log = structlog.get_logger("sika.test")
    with structlog.contextvars.bound_contextvars(thread="t", run="r", event_id="e"):
        log.debug("not said")
        log.info("said", url="http://u:hunter2@h")
        try:
            fail("sk-hunter2hunter2")
        except ValueError:
            log.exception("failed")
    said, failed = map(json.loads, stream.getvalue().splitlines())
    assert said.pop("timestamp").endswith("Z")
    assert said == {
        "event": "said", "level": "info", "thread": "t", "run": "r", "event_id": "e", "url": "http://***@h",
    }  # fmt: skip
    assert "ValueError: no way in with *** at http://***@h" in failed["exception"]
    assert "hunter2" not in stream.getvalue()


def test_lines_for_people() -> None:
    stream = Terminal()
    logs.configure("warning", stream)
    log = structlog.get_logger("sika.test")
    log.info("not said")
    try:
        fail("sk-hunter2hunter2")
    except ValueError:
        log.exception("failed", api_key="abc")
    shown = stream.getvalue()
    assert "not said" not in shown
    assert "Traceback" in shown
    assert "no way in with *** at" in shown
    assert "abc" not in shown


def test_a_stream_that_cannot_be_written_to_harms_nobody() -> None:
    full = open("/dev/full", "w")  # noqa: SIM115
    logs.configure("info", full)
    structlog.get_logger("full").info("nobody reads this")
    with suppress(OSError):
        full.close()


def test_libraries() -> None:
    stream = io.StringIO()
    for _ in range(2):
        logs.configure("warning", stream)
    library = logging.getLogger("some.library")
    library.info("not said")
    library.warning("retrying %s", "http://u:p@h")
    try:
        fail("sk-hunter2hunter2")
    except ValueError:
        library.exception("failed")
    retrying, failed = map(json.loads, stream.getvalue().splitlines())
    assert (retrying["event"], retrying["level"], retrying["logger"]) == (
        "retrying http://***@h",
        "warning",
        "some.library",
    )
    assert failed["level"] == "error"
    assert "no way in with ***" in failed["exception"]
