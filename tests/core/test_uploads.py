"""The outline of a text."""

from __future__ import annotations

import pytest

from core.files.uploads import LINE_CHARACTERS, MOST_HEADINGS, Outline, outline


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# One", "One"),
        ("###### Six ##", "Six"),
        ("## **Bold** words", "Bold words"),
        ("  ## Indented", "Indented"),
        ("**ITEM 1A. Risk factors**", "ITEM 1A. Risk factors"),
        ("**Part II**", "Part II"),
        ("**Section 3.2: Otters**", "Section 3.2: Otters"),
        ("**Appendix B**", "Appendix B"),
        ("**1.** **Introduction**", "1. Introduction"),
        ("**2.1**  **Methods  used**", "2.1 Methods used"),
        ("#hashtag", None),
        ("####### seven", None),
        ("# ", None),
        ("text # not", None),
        ("**Part of it is bold**", None),
        ("**Important** **words**", None),
        ("**ITEM 1** and more", None),
        ("# " + "x" * 3 * LINE_CHARACTERS, None),
    ],
)
def test_headings(line: str, title: str | None) -> None:
    found = outline(["", line])
    assert [(heading.line, heading.title) for heading in found.headings] == ([(2, title)] if title else [])
    assert bool(found.preview) == (title is None and bool(line.strip()))


def test_code_has_no_headings() -> None:
    found = outline(["```", "# comment", "```", "# Heading"])
    assert [heading.line for heading in found.headings] == [4]


def test_no_more_headings_than_are_shown() -> None:
    lines = [f"# {number}" for number in range(MOST_HEADINGS)]
    assert not outline(lines).more
    assert len(outline([*lines, "# one more"]).headings) == MOST_HEADINGS
    assert outline([*lines, "# one more"]).more


def test_without_headings_its_first_lines() -> None:
    found = outline(["", "a", " ", *"bcdefg", "x" * 900])
    assert found == Outline(preview=list("abcde"))
    assert outline(["x" * 900]).preview == ["x" * LINE_CHARACTERS]
    assert outline([]) == Outline(preview=[])
