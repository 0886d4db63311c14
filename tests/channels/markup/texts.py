"""Markdown of all kinds for the tests of rendering: strategies, and a document with every element."""

from __future__ import annotations

import html
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from hypothesis import strategies as st

from channels.markup.flow import Piece, Pre, flow
from channels.markup.parse import parse

HOSTILE = (
    "<!channel>",
    "<@U0123|you>",
    "@everyone",
    "@here",
    "<script>alert(1)</script>",
    "<at id=all></at>",
    "<font color=red>",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "שלום",
    "e\u0301",
    "**重要：**的",
    "**“引号”**后",
    "&amp;",
    "&#42;",
    "a\\*b",
    "snake_case_name",
    "2 * 3 * 4",
    "```",
    "|",
    "[x](javascript:alert(1))",
    "[y](docs/z.md)",
    "![alt](https://e.com/i.png)",
    "https://e.com/a_b_(c)?x=1&y=2",
    "[l](<https://e.com/a b>)",
    "***x** y*",
    "__z__w",
    "\u202eabc",
    "\x07",
    "\ud800",
)

_words = st.one_of(
    st.sampled_from(HOSTILE),
    st.text("abc中文 ：.,!1*_`~[]()<>#|\\&\u200b-+", min_size=1, max_size=8),
    st.sampled_from(("word", "文字", "and", "1.")),
)


def _marked(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    marks = st.sampled_from(("**{}**", "*{}*", "~~{}~~", "`{}`", "[{}](https://e.com/x)", "_{}_", "<b>{}</b>"))
    return st.builds(lambda mark, text: mark.replace("{}", text), marks, inner)


inlines = st.lists(st.recursive(_words, _marked, max_leaves=3), min_size=1, max_size=6).map(" ".join)
_lines = st.lists(inlines, min_size=1, max_size=3).map("\n".join)


def _indented(text: str, first: str, others: str) -> str:
    return first + text.replace("\n", "\n" + others)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.lists(inner, min_size=1, max_size=4)
    bullets = items.map(lambda texts: "\n".join(_indented(text, "- ", "  ") for text in texts))
    tasks = items.map(lambda texts: "\n".join(_indented(text, "- [x] ", "  ") for text in texts))
    numbers = st.builds(
        lambda start, texts: "\n".join(_indented(text, f"{start + i}. ", "     ") for i, text in enumerate(texts)),
        st.integers(0, 1200),
        items,
    )
    return st.one_of(bullets, tasks, numbers, inner.map(lambda text: _indented(text, "> ", "> ")))


_cells = inlines.map(lambda text: text.replace("|", "\\|").replace("\n", " "))


def _table(columns: int, rows: list[list[str]]) -> str:
    lines = [[f"ʰ{i}" for i in range(columns)], ["---"] * columns, *rows]
    return "\n".join(f"| {' | '.join((*line, *[''] * columns)[:columns])} |" for line in lines)


tables = st.builds(_table, st.integers(1, 4), st.lists(st.lists(_cells, max_size=4), max_size=4))
_fences = st.builds(
    lambda mark, language, text, end: f"{mark}{language}\n{text}\n{end and mark}",
    st.sampled_from(("```", "~~~", "````")),
    st.sampled_from(("", "python", "c++", "<script>")),
    st.text("abc \n\t`<>@*#|中", max_size=40),
    st.booleans(),
)
_plain_blocks = st.one_of(
    _lines,
    st.builds(lambda level, text: f"{'#' * level} {text}", st.integers(1, 6), inlines),
    _fences,
    st.sampled_from(("---", "    code\n    more", "Title\n===")),
)
blocks = st.recursive(_plain_blocks, _nested, max_leaves=4)
documents = st.lists(blocks, min_size=1, max_size=6).map("\n\n".join)
"""Without tables, so the order of what a reader sees is the same everywhere."""
with_tables = st.lists(st.one_of(blocks, tables), min_size=1, max_size=8).map("\n\n".join)
noise = st.text("ab中：1. \n\t*_`~[]()<>#|\\&-+!\u200d👩:/h", max_size=80)
"""Characters of markup in any order."""


def long_document() -> str:
    """Returns 20 000 characters and more of everything that was ever garbled."""
    table = "| Name | Wert |\n|:--|--:|\n" + "".join(f"| **键 {i}** | `v{i}` & <b> |\n" for i in range(12))
    code = "```python\n" + "".join(f"    print('line {i} < 中文 `x`')\n" for i in range(60)) + "```"
    nested = "".join(
        f"{i}. Punkt {i} mit [Link {i}](https://e.com/a_{i}?x=1&y=2)\n   - unter **fett：**的\n     - tiefer 👩‍👩‍👧‍👦\n"
        for i in range(1, 31)
    )
    prose = "Ein Satz mit *Betonung*, <!channel>, <script>, @everyone und **重要：**的 Wörtern. " * 12
    sections = [f"## Teil {i}\n\n{prose}\n\n{table}\n\n{nested if i % 3 == 0 else code}" for i in range(6)]
    return "\n\n".join(sections)


def visible(text: str) -> str:
    """Returns a text without spaces, invisible characters and entities, to compare contents."""
    while text != (text := html.unescape(text)):
        pass
    return printed(text)


def printed(text: str) -> str:
    """Returns a text without spaces and invisible characters."""
    return "".join(char for char in text if not char.isspace() and unicodedata.category(char) != "Cf")


def is_complete(content: str, shown: str, in_order: bool) -> bool:
    """Tells whether all characters of a content are shown, and in their order."""
    content, shown = visible(content), visible(shown)
    if not in_order:
        return not Counter(content) - Counter(shown)
    rest = iter(shown)
    return all(char in rest for char in content)


def plain(source: str) -> str:
    """The text that a reader sees, without quote marks. Links are followed by their address, tables are aligned."""
    return "".join(_with_address(href, run) for href, run in groupby(flow(parse(source)), _href)).strip()


def _href(piece: Piece) -> str:
    return "" if isinstance(piece, Pre) else piece.href


def _with_address(href: str, pieces: Iterable[Piece]) -> str:
    text = "".join(piece.text for piece in pieces)
    return f"{text} ({href})" if href and href != text else text
