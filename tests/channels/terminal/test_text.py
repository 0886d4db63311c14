"""Text for a terminal: nothing in it may command the terminal."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest

from channels.terminal.text import Style, about, age, clean, one_line, style_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("Grüße, 世界 🙂", "Grüße, 世界 🙂"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;aGVsbG8=\x1b\\after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("\x1bcreset", "reset"),
        ("\x9b31mred", "31mred"),
        ("\x1b", ""),
        ("bell\x07 back\x08 del\x7f nul\x00", "bell back del nul"),
        ("real\rfake", "realfake"),
        ("line\r\nnext", "line\nnext"),
        ("user\u202eexe.txt", "userexe.txt"),
        ("a\u2066b\u2069", "ab"),
        ("half \ud800 a pair", "half  a pair"),
    ],
)
def test_control_characters_are_neutralised(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_no_control_character_at_all_gets_through() -> None:
    everything = "".join(map(chr, range(0x0, 0x3000)))
    left = {c for c in clean(everything) if ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0}
    assert left <= {"\n", "\t"}


def test_an_unfinished_sequence_does_not_swallow_the_next_line() -> None:
    assert clean("\x1b]0;never ends\nnext line").endswith("next line")


def test_one_line_is_one_line_and_short() -> None:
    assert one_line("a\n  b\tc", 10) == "a b c"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"description": "look", "command": "ls"}, "look"),
        ({"command": "ls -la"}, "ls -la"),
        ({"path": "/mnt/a", "content": "…"}, "/mnt/a"),
        ({"todos": [{"status": "completed"}, {"status": "pending"}]}, "☑ 1/2"),
        ({"n": 1}, '{"n":1}'),
        ({}, ""),
    ],
)
def test_what_a_call_is_about(args: dict[str, object], shown: str) -> None:
    assert about(args, 60) == shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "colour"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_only_where_they_are_wanted(stream: io.StringIO, environ: dict[str, str], colour: bool) -> None:
    assert style_of(stream, environ).on is colour


def test_nothing_is_painted_without_colour() -> None:
    assert Style(False).red("x") == "x"
    assert Style(True).red("x") == "\x1b[31mx\x1b[0m"


@pytest.mark.parametrize(
    ("seconds", "words"), [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (86400 * 40, "40 d")]
)
def test_ages(seconds: int, words: str) -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)
    assert age((now - timedelta(seconds=seconds)).isoformat(), now) == words
    assert age("", now) == "?"
