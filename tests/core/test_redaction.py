"""Secrets in force are replaced, in whatever form and however they are cut; what is none stays."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.load import ConfigSource, parse
from core.config.redaction import Redactor, Stream, redactor
from core.events import ThreadAnnotated, encode, written

KEY = 'Kq7/vT"2+zW9 ä\\Y4m'
OTHER = "other-key-12345"
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n"


def knowing(*values: str) -> Redactor:
    made = Redactor()
    made.add(*values)
    return made


def in_basic(user: str) -> str:
    return base64.b64encode(f"{user}:{KEY}:end".encode()).decode()


FORMS = {
    "plain": KEY,
    "json": json.dumps(KEY)[1:-1],
    "json in utf-8": json.dumps(KEY, ensure_ascii=False)[1:-1],
    "json in json": json.dumps(json.dumps(KEY))[3:-3],
    "percent": quote(KEY, safe=""),
    "percent in small letters": re.sub("%..", lambda match: match[0].lower(), quote(KEY, safe="")),
    "path": quote(KEY),
    "form": quote_plus(KEY),
    "html": html.escape(KEY),
    "base64 0": in_basic("ab"),
    "base64 1": in_basic("a"),
    "base64 2": in_basic(""),
    "base64 for URLs": in_basic("abc").replace("+", "-").replace("/", "_"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms(form: str) -> None:
    clean = knowing(KEY).known(f"before {form} after")
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert "***" in clean
    assert len(clean) < len(form)


def test_a_key_of_several_lines_is_known_by_each() -> None:
    assert knowing(PEM).known("  MIIEvQIBADANBgkq |") == "  *** |"


def test_events_keep_their_envelope_and_their_schema() -> None:
    event = ThreadAnnotated(metadata={"a": [f"x{KEY}y", 1, None], KEY: {"n": 0.5}, "number": 12345678901})
    envelope = written(event, id="12345678901", kind="thread", aggregate_id="t", actor="http", at="now")
    body = encode(event, envelope)
    known = knowing(KEY, "12345678901")
    stored = json.loads(known.event(body))
    assert stored["metadata"] == {"a": ["x***y", 1, None], "***": {"n": 0.5}, "number": 12345678901}
    assert stored["id"] == "12345678901"
    assert known.struct(event).metadata == stored["metadata"]
    harmless = encode(ThreadAnnotated(metadata={"a": 1}), envelope)
    assert knowing(KEY).event(harmless) is harmless


@given(
    st.lists(st.one_of(st.sampled_from([KEY, OTHER, KEY[:5], OTHER[:9], "ä"]), st.text(max_size=5)), max_size=8),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_a_stream_shows_what_the_whole_shows(parts: list[str], cuts: list[int]) -> None:
    known, text = knowing(KEY, OTHER, KEY + "longer"), "".join(parts)
    stream, shown, at = Stream(known), "", 0
    while at < len(text):
        shown += stream.feed(text[at : at + cuts[at % len(cuts)]])
        assert known.known(text).startswith(shown)
        at += cuts[at % len(cuts)]
    assert shown + stream.end() == known.known(text)


def test_nothing_is_held_back_without_need() -> None:
    stream = Stream(knowing(OTHER))
    assert stream.feed("a text, other") == "a text, "
    assert stream.feed(" than that") == "other than that"
    assert stream.feed(f"{OTHER}!") == "***!"


CONFIG: dict[str, Any] = {
    "models": [
        {
            "name": "m",
            "model": "m",
            "api_key": "$MODEL",
            "base_url": "http://user:pw-8f3kd92jq@h/v1?token=qu3ry-t0ken",
            "default_headers": {"Authorization": "Bearer header-t0ken"},
        },
        {"name": "local", "model": "l", "api_key": "not-needed"},
        {"name": "short", "model": "s", "api_key": "k3y"},
    ],
    "sandbox": {"environment": {"DEPLOY_TOKEN": "dt_5f2c9e1b", "MODE": "production-eu-1", "KEY_FILE": "/etc/keys/one"}},
    "webhooks": {"secret": "a long passphrase"},
    "tracing": {"otlp": {"headers": {"x-team": "team-k3y-1234"}}},
    "nats": {"password": "nats-pa55word"},
}
SECRET = [
    "env-model-k3y", "pw-8f3kd92jq", "qu3ry-t0ken", "header-t0ken", "dt_5f2c9e1b", "a long passphrase",
    "team-k3y-1234", "nats-pa55word",
]  # fmt: skip
OPEN = ["not-needed", "k3y", "production-eu-1", "/etc/keys/one", "user", "http://", "Bearer", "local"]


def test_what_a_configuration_makes_secret() -> None:
    known = Redactor()
    known.learn(parse(json.dumps(CONFIG), environ={"MODEL": "env-model-k3y"}))
    assert [known.known(text) for text in SECRET] == ["***"] * len(SECRET)
    assert [known.known(text) for text in OPEN] == OPEN


def test_what_the_environment_makes_secret() -> None:
    known = Redactor()
    environ = {
        "OPENAI_API_KEY": "env-k3y-1234", "HTTPS_PROXY": "http://me:pr0xy-pass@p:8", "PATH": "/usr/bin:/usr/local/bin",
        "SSH_KEY": "/home/me/.ssh/id", "MONKEY_ISLAND": "a-game-from-1990", "THING": "ghp_abcdefgh12345678",
    }  # fmt: skip
    known.learn_environment(environ)
    hidden = ["env-k3y-1234", "pr0xy-pass", "ghp_abcdefgh12345678"]
    shown = ["/usr/bin:/usr/local/bin", "/home/me/.ssh/id", "a-game-from-1990"]
    assert [known.known(text) for text in hidden] == ["***"] * 3
    assert [known.known(text) for text in shown] == shown


def test_a_key_that_was_replaced_stays_secret(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("nats: {token: first-t0ken}")
    source = ConfigSource(path)
    assert redactor.known("first-t0ken") == "***"
    path.write_text("nats: {token: second-t0ken}")
    source.current()
    assert redactor.known("first-t0ken second-t0ken") == "*** ***"
