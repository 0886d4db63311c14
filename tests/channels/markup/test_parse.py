"""The tree of Markdown, where it differs from CommonMark's."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given

from channels.markup.parse import (
    Code,
    Heading,
    Item,
    Items,
    Link,
    Paragraph,
    Quote,
    Style,
    Text,
    content_of,
    parse,
)
from tests.channels.markup import texts


def _strong(text: str) -> Style:
    return Style("strong", (Text(text),))


@pytest.mark.parametrize(
    ("source", "nodes"),
    [
        ("**重要：**的", (_strong("重要："), Text("的"))),
        ("这是**“引号”**的", (Text("这是"), _strong("“引号”"), Text("的"))),
        ("**Note:**value", (Text("**Note:**value"),)),
        ("a **b** c", (Text("a "), _strong("b"), Text(" c"))),
        ("**a **b****", (_strong("a b"),)),
        ("snake_case_name", (Text("snake_case_name"),)),
        ("`a`**`b`**", (Code("a"), Style("strong", (Code("b"),)))),
    ],
)
def test_emphasis(source: str, nodes: tuple[object, ...]) -> None:
    assert parse(source) == (Paragraph(nodes),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "nodes"),
    [
        ("![alt](https://e.com/i.png)", (Link("https://e.com/i.png", (Text("alt"),)),)),
        ("[![b](https://i)](https://e.com)", (Link("https://e.com", (Text("b"),)),)),
        ("[x](javascript:alert(1))", (Text("x (javascript:alert(1))"),)),
        ("[x](docs/y.md)", (Text("x (docs/y.md)"),)),
        ("<b>x</b>", (Text("<b>x</b>"),)),
        (
            "见https://e.com/a_b，好",
            (Text("见"), Link("https://e.com/a_b", (Text("https://e.com/a_b"),)), Text("，好")),
        ),
        ("(https://e.com/a.)", (Text("("), Link("https://e.com/a", (Text("https://e.com/a"),)), Text(".)"))),
        ("[a](https://e.com/b_(c))", (Link("https://e.com/b_%28c%29", (Text("a"),)),)),
    ],
)
def test_links(source: str, nodes: tuple[object, ...]) -> None:
    assert parse(source) == (Paragraph(nodes),)  # type: ignore[arg-type]


def test_task_lists() -> None:
    items = (Item(True, (Paragraph((Text("a"),)),)), Item(False, (Paragraph((Text("b"),)),)))
    assert parse("- [x] a\n- [ ] b") == (Items(None, True, items),)
    assert parse("- \\[x] a") == (Items(None, True, (Item(None, (Paragraph((Text("[x] a"),)),)),)),)


def test_numbers_of_lists() -> None:
    assert [block.start for block in parse("0. a\n\n<!-- -->\n\n7) b") if isinstance(block, Items)] == [0, 7]


def test_what_is_nested_too_deeply_is_text() -> None:
    assert content_of(">" * 500 + " deep").endswith(">> deep")
    assert content_of("".join("  " * depth + "- x\n" for depth in range(200))).count("x") == 200


def test_empty_blocks_are_left_out() -> None:
    assert parse("# \n\n```py\n```\n\n>\n\n[]()\n\n**  **x") == (Paragraph((Text("**  **x"),)),)
    assert parse("> # a") == (Quote((Heading(1, (Text("a"),)),)),)


@given(texts.noise)
def test_any_text_can_be_read(source: str) -> None:
    content_of(source).encode()


def test_the_cost_of_nested_marks_follows_their_number() -> None:
    def calls(marks: int) -> int:
        count = 0

        def counted(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counted)
        try:
            parse("*" * marks + "a" + "*" * marks)
        finally:
            sys.setprofile(None)
        return count

    assert calls(4000) < 5 * calls(1000)
