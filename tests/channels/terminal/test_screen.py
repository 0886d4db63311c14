"""What a talk writes, on a terminal and elsewhere: nothing that others wrote commands the terminal."""

from __future__ import annotations

import io
import re

import pytest

from channels.terminal.console.screen import ANSWER, FAILURE, OUTPUT, Blocks, Screen

MARKDOWN = """\
# Title

Hello **world**, see [the page](http://example.org/x).

1. one

2. two

   more of it

```python
print("a")


print("b")
```

| a | b |
|---|---|
| 1 | 2 |

The end."""
HOSTILE = [
    "\x1b]0;owned\x07title",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[1;1Hcursor",
    "\x1b]52;c;aGVsbG8=\x07clipboard",
    "\x9b31mc1",
    "real\rfake",
    "[red]markup[/red] [link=http://evil.example]x[/link] [@click=app.bell]y[/]",
    "[a](javascript:alert(1)) [b](http://evil.example/\x1b]0;t\x07) ![c](http://evil.example/i.png)",
    "<b>bold</b> <script>alert(1)</script>",
    "```\x1b]0;t\x07\n\x1b[2Jcode\n```",
    "user\u202eexe.txt",
]
_OURS = re.compile(r"\x1b\[[\d;]*m|\x1b\[\d*[AK]|\x1b\[\?25[lh]|\r")
"""Colours, and what the line below the text needs: erasing lines, the cursor up, hidden and shown."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


def written(out: io.StringIO, texts: list[str], size: int = 7) -> str:
    screen = Screen(out, out)
    with screen.working():
        for number, text in enumerate(texts):
            screen.begin("call", text)
            for form in (ANSWER, OUTPUT, FAILURE):
                for start in range(0, len(text), size):
                    screen.write(f"{number}", text[start : start + size], form)
            screen.line(text, "yellow")
            screen.notice(text, "red")
            screen.end("call")
        screen.settle()
    screen.table([("1", text) for text in texts])
    return out.getvalue()


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_others_does_not_command_the_terminal(text: str, size: int) -> None:
    left = {c for c in _OURS.sub("", written(Terminal(), [text], size)) if c < " " or "\x7f" <= c < "\xa0"}
    assert left <= {"\n"}
    plain = written(io.StringIO(), [text], size)
    assert {c for c in plain if c < " " or "\x7f" <= c < "\xa0"} <= {"\n"}
    assert "\u202e" not in plain


def test_markup_html_and_addresses_are_shown_as_they_are() -> None:
    screen = Screen(out := Terminal(), out)
    for text in HOSTILE:
        screen.write("m", f"{text}\n\n")
    screen.settle()
    shown = _OURS.sub("", out.getvalue())
    for words in ("[red]markup[/red]", "<b>bold</b>", "<script>alert(1)</script>", "(http://evil.example/"):
        assert words in shown


def test_markdown_is_rendered_on_a_terminal_only() -> None:
    plain, screen = io.StringIO(), Screen(terminal := Terminal(), io.StringIO())
    Screen(plain, plain).write("m", f"{MARKDOWN}\n")
    assert plain.getvalue() == f"{MARKDOWN}\n"
    screen.write("m", MARKDOWN)
    screen.settle()
    shown = _OURS.sub("", terminal.getvalue())
    assert "# Title" not in shown
    assert "**world**" not in shown
    lines = [line.strip() for line in shown.splitlines()]
    assert {"Title", 'print("a")', "1 one", "2 two"} <= set(lines)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_it_is_not_wanted(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    screen = Screen(out := Terminal(), out)
    screen.write("m", MARKDOWN)
    screen.line("red", "red")
    screen.settle()
    codes = {code for codes in re.findall(r"\x1b\[([\d;]*)m", out.getvalue()) for code in codes.split(";")}
    assert not {code for code in codes if code[:1] in ("3", "4", "9") and len(code) > 1}


def test_a_notice_does_not_cut_the_answer() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err)
    screen.write("m", "Hel")
    screen.notice("connection lost")
    screen.write("m", "lo\n")
    assert (out.getvalue(), err.getvalue()) == ("Hello\n", "connection lost\n")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_blocks_are_cut_between_blocks_only(size: int) -> None:
    blocks = Blocks(whole_lines=False)
    cut: list[str] = []
    for start in range(0, len(MARKDOWN), size):
        cut += blocks.feed(MARKDOWN[start : start + size])
    assert "".join(cut) + blocks.rest == MARKDOWN
    assert [block.split("\n")[0] for block in cut] == [
        "# Title",
        "Hello **world**, see [the page](http://example.org/x).",
        "1. one",
        "```python",
    ]
    assert blocks.rest.startswith("| a | b |"), "its end is not known before the next line is whole"
    assert all(block.count("```") in (0, 2) for block in cut)
