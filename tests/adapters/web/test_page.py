"""Pages of HTML to Markdown: what is read, what is left out, and what a hostile page costs."""

from __future__ import annotations

import pytest

from adapters.web import page
from adapters.web.ports import Page

URL = "https://example.com/docs/page"
LONG = "This sentence is here to be read by somebody. " * 6


def body(html: str) -> str:
    return page.read(f"<html><head><title>T</title></head><body>{html}</body></html>", URL).text


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<h1>One</h1><p>Some <b>bold</b> text</p>", "# One\n\nSome **bold** text"),
        ("<ul><li>a</li><li>b</li></ul>", "- a\n- b"),
        ("<pre>x = 1\ny = 2</pre>", "```\nx = 1\ny = 2\n```"),
        ("<p><a href='../up'>up</a></p>", "[up](https://example.com/up)"),
        ("<p><a href='javascript:alert(1)'>run</a></p>", "run"),
        ("<p><a href='#part'>part</a></p>", "part"),
        ("<p><a href='http://[bad'>bad</a></p>", "bad"),
        ("<p>see <img src='data:image/png;base64,AAAA' alt='a graph'> here</p>", "see a graph here"),
        ("<table><tr><th>a</th></tr><tr><td colspan='99999999'>b</td></tr></table>", "| a |\n| --- |\n| b |"),
        ("<script>x()</script><style>p{}</style><nav>menu</nav><footer>c</footer><p>text</p>", "text"),
        ("<p hidden>h1</p><p aria-hidden='true'>h2</p><p style='Display : none'>h3</p><p>seen</p>", "seen"),
        ("<!-- comment --><?pi x?><p>text</p>", "text"),
        ("<p>a_b * c &lt;system-reminder&gt;</p>", "a_b * c <system-reminder>"),
        ("<header>brand</header><p>text</p>", "text"),
        ("<header><h1>Name</h1></header><p>text</p>", "# Name\n\ntext"),
        (f"<div>around</div><main><p>{LONG}</p></main>", LONG.strip()),
        (f"<div>around</div><article><p>{LONG}</p></article>", LONG.strip()),
        ("<div>around</div><main><p>short</p></main>", "around\n\nshort"),
        (f"<article><p>{LONG}</p></article><article><p>two</p></article>", f"{LONG.strip()}\n\ntwo"),
        ("no element at all", "no element at all"),
    ],
)
def test_markdown(html: str, markdown: str) -> None:
    assert body(html) == markdown


def test_the_title_is_told_apart() -> None:
    assert page.read("<title> A\n page </title><p>text", URL) == Page("A page", "text")


@pytest.mark.parametrize("html", ["", "   ", "<!-- -->", "<?xml version='1.0' encoding='utf-16'?>"])
def test_nothing_in_it(html: str) -> None:
    assert page.read(html, URL) == Page("", "")


SIZE = 1 << 20


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * (SIZE // 5) + "x",
        "<blockquote>" * 90 + "<p>x " * (SIZE // 5),
        "<ul><li>" * (SIZE // 8),
        "<b><i>" * (SIZE // 6),
        "<table><tr><td>" * (SIZE // 15),
        "<" * SIZE,
        "<!--" * (SIZE // 4),
        "<a href='" * (SIZE // 9),
        "<p>" + "word " * (SIZE // 5),
        "<p>x</p>" * (SIZE // 8),
        "<p style='" + "display : " * (SIZE // 10) + "'>x",
    ],
    ids=range(11),
)
def test_a_hostile_page_is_small_in_the_end(html: str) -> None:
    assert len(page.read(html, URL).text) <= page.MAX_TEXT


def test_what_is_nested_too_deep_becomes_text() -> None:
    deep = "<div>" * 150 + "inside" + "</div>" * 150
    assert body(f"<p>before</p>{deep}") == "before\ninside"


def test_what_comes_late_is_not_read() -> None:
    assert body("<p>early</p>" + "<p></p>" * page.MAX_ELEMENTS + "<p>late</p>") == "early"
    assert "late" not in body("<p>" + "word " * page.MAX_TEXT + "</p><p>late</p>")


def test_lists_are_indented_only_so_far() -> None:
    lines = [line for line in body("<ul><li>x" * 20).splitlines() if line.strip()]
    assert len(lines) == 20
    assert max(len(line) - len(line.lstrip()) for line in lines) <= 2 * page.MAX_INDENT
