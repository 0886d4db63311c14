"""The opening of a long answer: its first paragraphs, and the headings after them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.delivery.long import FOLLOWS, LEAD, MOST_HEADING, MOST_HEADINGS, WHOLE, in_a_file, opening
from core.chat.facts import DeliveryPlanned, Target

PAGE = "words " * 500


@pytest.mark.parametrize(
    ("text", "lead", "headings"),
    [
        (f"Short.\n\n## One\n\n{PAGE}\n\n### Two ##\n\n{PAGE}", "Short.", ["- One", "  - Two"]),
        (f"# Title\n\nShort.\n\n{PAGE}\n\n# One\n\nx\n\n# Two", "# Title\n\nShort.", ["- One", "- Two"]),
        (f"# Title\n\n{PAGE}\n\n## One", "", ["- Title", "  - One"]),
        (f"a\n\n```\n# no heading\n\n{PAGE}\n```\n\n# One\n\nx", "a", ["- One"]),
        (f"a\n\n~~~~\n~~~\n# no heading\n\n{PAGE}\n~~~~\n\n# One", "a", ["- One"]),
        (f"a\n\n## \n\n{PAGE}\n\n#hash\n\n#### Deep", "a", []),
        (PAGE, "", []),
        ("", "", []),
    ],
)
def test_the_opening(text: str, lead: str, headings: Sequence[str]) -> None:
    assert opening(text) == (lead, headings)


def test_headings_are_bounded() -> None:
    _, headings = opening("a\n\n" + "\n\n".join([PAGE, *(f"# {n} {'x' * 200}" for n in range(40))]))
    assert (len(headings), headings[-1]) == (MOST_HEADINGS + 1, "- …")
    assert all(len(heading) <= MOST_HEADING + 2 for heading in headings)


@given(st.lists(st.sampled_from(["# One", "text", "", "```", "~~~~", PAGE]), max_size=12))
def test_the_lead_is_a_beginning_that_ends_outside_of_code(lines: list[str]) -> None:
    text = "\n".join(lines)
    lead, _ = opening(text)
    assert text.strip().startswith(lead)
    assert len(lead) <= LEAD


@pytest.mark.parametrize(("parts", "contents"), [(1, True), (2, False)])
def test_what_does_not_fit_into_a_message_is_left_out(parts: int, contents: bool) -> None:
    """There are two messages in any case: a plan that an earlier release began goes on."""
    event = DeliveryPlanned(plan="p", purpose="answer", target=Target("C"), text=f"a\n\n{PAGE}\n\n# One\n\n# Two")
    texts, planned = in_a_file(["first", "second"], event, lambda text: [text] * parts)
    assert (len(texts), texts[0], FOLLOWS in texts[1]) == (2, "a" if contents else "first", contents)
    assert WHOLE in texts[1]
    assert [artifact.name for artifact in planned.artifacts] == [WHOLE]
