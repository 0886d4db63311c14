"""Parts of Markdown: they fit, they are whole, and together they say what the source says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from channels.markup import telegram
from channels.markup.parse import Link, Paragraph, content_of, parse
from channels.markup.split import split
from channels.markup.write import CANONICAL
from tests.channels.markup import texts
from tests.channels.markup.texts import plain

pytestmark = pytest.mark.long(keep=3)

quick = settings(suppress_health_check=[HealthCheck.too_slow])


def _content(*sources: str) -> str:
    return "".join(texts.visible(content_of(source)) for source in sources)


def _split(source: str, limit: int) -> list[str]:
    return split(source, lambda part: len(plain(part)) <= limit)


@quick
@given(source=st.one_of(texts.documents, texts.noise))
def test_what_is_written_reads_the_same(source: str) -> None:
    assert _content(CANONICAL.write(parse(source))) == _content(source)


LONG_LABEL = "[1[]`](https://e.com/x) " + 20 * "<!channel> " + "[11`](https://e.com/x)"
"""A link: its label holds code, in which there seem to be links."""


@quick
@given(source=texts.documents, limit=st.integers(120, 400))
@example(source=LONG_LABEL, limit=120)
def test_parts_fit_and_say_what_the_source_says(source: str, limit: int) -> None:
    parts = _split(source, limit)
    assert all(len(plain(part)) <= limit for part in parts)
    if all(len(plain(CANONICAL.write([Paragraph((link,))]))) <= limit // 2 for link in _links(parse(source))):
        assert _content(*parts) == _content(source)
    else:
        assert _without_addresses(*parts) == _without_addresses(source)


def _links(node: object) -> Iterator[Link]:
    """Yields the links of a tree."""
    if isinstance(node, Link):
        yield node
    elif isinstance(node, tuple):
        for child in node:
            yield from _links(child)


def _without_addresses(*sources: str) -> str:
    """A link that does not fit alone becomes text: its label, and its address, which was not seen before."""
    return re.sub(r"\(https?://[^()]*\)", "", _content(*sources))


@quick
@given(source=st.one_of(texts.inlines, texts.noise))
@example(source="`&#42;`")  # a part of it looks like another entity
def test_parts_that_cannot_fit_still_say_everything(source: str) -> None:
    shown = iter(texts.printed("".join(content_of(part) for part in _split(source, 3))))
    assert all(char in shown for char in texts.printed(content_of(source)))


@quick
@given(source=st.lists(texts.tables, min_size=1, max_size=3).map("\n\n".join), limit=st.integers(120, 400))
def test_tables_repeat_their_headers_only(source: str, limit: int) -> None:
    def without_headers(*sources: str) -> str:
        return re.sub(r"ʰ\d:?", "", _content(*sources))

    parts = _split(source, limit)
    assert all(len(plain(part)) <= limit for part in parts)
    assert without_headers(*parts) == without_headers(source)


def test_code_is_closed_and_opened_again() -> None:
    source = "Intro:\n\n```python\n" + "".join(f"print({i})\n" for i in range(40)) + "```\n\nEnd"
    parts = _split(source, 150)
    codes = [part for part in parts if "```" in part]
    assert len(codes) > 2
    assert all(part.count("```python\n") == 1 and part.count("\n```") == 1 for part in codes)
    assert "\n".join(line for part in parts for line in part.split("\n") if "print" in line) == "\n".join(
        f"print({i})" for i in range(40)
    )


def test_lists_go_on_with_their_numbers() -> None:
    source = "".join(f"{i}. item {i} with words\n" for i in range(7, 40))
    shown = "\n".join(plain(part) for part in _split(source, 100))
    assert shown == "\n".join(f"{i}. item {i} with words" for i in range(7, 40))


def test_a_cut_list_in_a_list_stays_in_it() -> None:
    parts = _split("4. a\n" + "".join(f"   - item {i}\n" for i in range(30)) + "5. b\n", 100)
    assert re.match(r"4\. ◦ item \d+\n   ◦ item", plain(parts[1]))
    assert plain(parts[-1]).endswith("\n5. b")


def test_tables_repeat_their_headers() -> None:
    source = "| a | b |\n|---|---|\n" + "".join(f"| {i} | x |\n" for i in range(60))
    parts = _split(source, 120)
    assert len(parts) > 3
    assert all(part.startswith("| a | b |\n| --- | --- |\n") for part in parts)


def test_texts_are_cut_at_lines_then_sentences_then_words() -> None:
    assert _split("one two three\nfour five six seven", 20)[0] == "one two three"
    assert plain(_split("One two four. Three five six.", 20)[0]) == "One two four."
    assert [plain(part) for part in _split("aaaa bbbb cccc dddd", 12)] == ["aaaa bbbb", "cccc dddd"]


def test_headings_are_not_left_at_the_end_of_a_part() -> None:
    parts = _split("word " * 15 + "\n\n# Title\n\n" + "text " * 15, 90)
    assert [part.startswith("# Title") for part in parts] == [False, True]


def test_what_readers_see_as_one_character_is_not_cut() -> None:
    family = "👩‍👩‍👧‍👦"
    parts = split(family * 100, lambda part: telegram.units(plain(part)) <= 50)
    assert {plain(part).replace(family, "") for part in parts} == {""}
    assert split(family * 3, lambda part: False) == [family] * 3


def test_links_are_not_cut_unless_one_alone_does_not_fit() -> None:
    source = "word " * 10 + "[a long label of a link](https://example.com/path) and more words " * 3
    links = [part.count("](https://example.com/path)") for part in _split(source, 60)]
    assert sum(links) == 3
    long = "[" + "label " * 40 + f"](https://example.com/{'x' * 200})"
    shown = "".join(plain(part) for part in _split(long, 80))
    assert "x" * 200 in shown.replace("\n", "")


def test_nothing_to_see_has_no_parts() -> None:
    assert split(" \n\n\u200b", lambda part: True) == []
    assert split("[]()", lambda part: True) == []


def test_large_texts_take_few_measurements() -> None:
    """The cost of a part does not depend on how much follows it."""
    sources = ("x" * 100_000, "```py\nprint(1)\n```\n\n" * 1_000, "- item\n" * 3_000)
    for source in sources:
        measured = 0

        def fits(part: str) -> bool:
            nonlocal measured
            measured += len(part)
            return len(part) <= 4_000

        parts = split(source, fits)
        assert _content(*parts) == _content(source)
        assert measured < 12 * len(source)
