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

from core.config import searching
from core.config.load import ConfigSource, parse
from core.config.mcp import McpServer
from core.config.redaction import GRACE_SECONDS, Redactor, Stream, is_secret, redactor
from core.config.settings import Secret
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


TELLING = (
    "key api_key apiKey signing-keys keyring token bot_token token_secret secrets client_secret password authorization"
)
PLAIN = "keywords keyword keyboard keynote keyframes tokens max_tokens tokenizer secretary secretariat author"


@pytest.mark.parametrize(("names", "secret"), [(TELLING, True), (PLAIN, False)])
def test_names_that_tell_of_secrets(names: str, secret: bool) -> None:
    assert {name: is_secret(name) for name in names.split()} == dict.fromkeys(names.split(), secret)


def test_words_by_which_tools_are_found_are_no_secrets() -> None:
    """DeerFlow's routing of MCP servers."""
    routing = {"keywords": ["quarterly revenue report"], "tools": {"query": {"keywords": ["the table of orders"]}}}
    text = "Write the quarterly revenue report from the table of orders"
    made = Redactor()
    made.learn(parse(json.dumps({"mcp": {"servers": {"a": {"command": "x", "routing": routing}}}})))
    assert made.text(text) == text


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


# ── secrets that come and go ────────────────────────────────────────────────────────────────────────────────────────


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_was_issued_for_a_time_is_forgotten_after_it() -> None:
    clock = Clock()
    known = Redactor(clock)
    known.add("always-here-1234")
    for number in range(300):
        known.add(f"token-number-{number:06}", seconds=60)
        clock.now += 1
    for number in range(300, 400):  # a few are forgotten with each that is added
        known.add(f"token-number-{number:06}", seconds=60)
        clock.now += 1
    assert known.known("always-here-1234") == "***"
    assert known.known("token-number-000399") == "***"
    assert known.known("token-number-000200") == "token-number-000200"
    assert len(known._until) < 70
    assert len(known._texts._sorted) == len(known._uses) == len(known._texts._short._of)


def test_a_value_that_is_used_again_stays() -> None:
    clock = Clock()
    known = Redactor(clock)
    for _ in range(10):
        known.add("token-in-use-1", seconds=60)
        clock.now += 40
        known.add("another-value", seconds=1)
        assert known.known("token-in-use-1") == "***"
    known.add("token-in-use-1")
    clock.now += 1e6
    known.add("another-value", seconds=1)
    assert known.known("token-in-use-1") == "***"


def test_what_a_configuration_withdraws_is_forgotten_after_a_day() -> None:
    clock, old, new = Clock(), "key-of-yesterday", "key-of-today-12"
    known = Redactor(clock)
    for owner in ("a.yaml", "b.yaml"):
        known.learn({"api_key": Secret(old)}, owner=owner)
    known.learn({"api_key": Secret(new)}, owner="a.yaml")
    clock.now += 2 * GRACE_SECONDS
    known.add("something-else", seconds=1)
    assert known.known(f"{old} {new}") == "*** ***"  # the other configuration has it still
    known.learn({"api_key": Secret(new)}, owner="b.yaml")
    clock.now += GRACE_SECONDS / 2
    known.add("something-else", seconds=1)
    assert known.known(old) == "***"
    clock.now += GRACE_SECONDS
    known.add("something-else", seconds=1)
    assert known.known(f"{old} {new}") == f"{old} ***"


@given(
    st.lists(st.text("ab", min_size=8, max_size=14), max_size=12),
    st.text("ab", max_size=60),
    st.integers(1, 5),
    st.integers(1, 15),
)
def test_segments_hide_what_one_automaton_hides(secrets: list[str], text: str, size: int, head: int) -> None:
    """And no secret is left, whichever segments they are in, and whether they have a head; nor by a stream."""
    whole, parts = searching.Texts(), searching.Texts()
    forms = [secret.encode() for secret in secrets]
    whole.add(forms)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SEGMENT", size), ("MERGED", 2), ("HEAD", head)):
            patch.setattr(searching, name, value)
        for form in forms:
            parts.add([form])
        _hide_the_same(whole, parts, forms, text.encode())
        parts.remove(forms)
    assert not parts
    assert parts.matches(text.encode()) == []


def _hide_the_same(whole: searching.Texts, parts: searching.Texts, forms: list[bytes], raw: bytes) -> None:
    hidden = {index for start, end in parts.matches(raw) for index in range(start, end)}
    assert hidden >= {index for start, end in whole.matches(raw) for index in range(start, end)}
    opens = [n for n in range(len(raw)) if any(len(f) > len(raw) - n and f.startswith(raw[n:]) for f in forms)]
    assert parts.open(raw, 0) == (opens[0] if opens else len(raw))


ARGUMENTS = {
    "after an option": (["serve", "--api-key", OTHER], [OTHER]),
    "behind its sign": ([f"--token={OTHER}"], [OTHER]),
    "a variable": ([f"API_KEY={OTHER}"], [OTHER]),
    "an option follows": (["--password", "--verbose", "quietly-please"], []),
    "a path": (["--key-file", "/etc/keys/of-mine"], []),
    "another option": (["--name", "somebody-else", "--max-tokens=123456789"], []),
}


@pytest.mark.parametrize(("arguments", "secrets"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_secrets_among_the_arguments_of_a_program_are_known(arguments: list[str], secrets: list[str]) -> None:
    made = Redactor()
    made.learn(McpServer(command="program", args=tuple(arguments)))
    said = " and ".join([*arguments, OTHER])
    assert [word for word in (OTHER, "quietly-please", "of-mine", "somebody-else") if word not in made.known(said)] == (
        secrets + [word for word in ("quietly-please", "of-mine", "somebody-else") if word not in said]
    )


def test_what_is_no_secret_stays_where_secrets_are_replaced() -> None:
    text = 'GET /x?page=2&token=abcdef-1 {"author": "Ann", "password": "hunter-22"} max=5'
    replaced = Redactor().replaced(text, lambda secret: f"<{len(secret)}>")
    assert replaced == 'GET /x?page=2&token=<8> {"author": "Ann", "password": "<9>"} max=5'
