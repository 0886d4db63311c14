"""Answers that are too long for messages: their beginning, the headings of what follows, and a file with all of it.

A summary by a model would be one more call, which the person waits for and pays, and which may say what the answer does
not. The first paragraphs and the headings are the author's own, and there at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from core.chat.facts import Artifact, DeliveryPlanned

MOST_PARTS, MOST_CHARACTERS = 4, 12_000
"""A text of more than both goes into a file: nobody scrolls through twenty messages."""
WHOLE = "answer.md"
"""Name of that file. Its artifact has no path."""
LEAD = 1_200
"""Limit of the characters before the headings."""
MOST_HEADINGS = 12
MOST_HEADING = 80
IN_A_FILE = "📎 _The answer goes on. All of it, {count} characters, is in the file `{name}` below._"
FOLLOWS = "**What follows:**"
_HEADING = re.compile(r" {0,3}(#{1,3})\s+(.*?)\s*#*\s*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")

Split = Callable[[str], Sequence[str]]
"""Returns a text in parts that are a message each."""


def is_long(texts: Sequence[str], text: str) -> bool:
    return len(texts) > MOST_PARTS and len(text) > MOST_CHARACTERS


def in_a_file(texts: Sequence[str], event: DeliveryPlanned, split: Split) -> tuple[Sequence[str], DeliveryPlanned]:
    """Returns the two messages of a long text, and the plan with all of it as its first file."""
    note = IN_A_FILE.format(count=len(event.text), name=WHOLE)
    lead, headings = opening(event.text)
    contents = "\n".join([FOLLOWS, *headings, "", note])
    if lead and len(headings) > 1 and len(split(lead)) == len(split(contents)) == 1:
        texts, note = [lead], contents
    artifacts = (Artifact("", WHOLE), *event.artifacts)
    return [texts[0], note], msgspec.structs.replace(event, artifacts=artifacts)


def opening(text: str) -> tuple[str, Sequence[str]]:
    """Returns the paragraphs before the first section of a text, and the headings after them as a list."""
    lines, fence, ends = text.split("\n"), "", 0
    headings: list[tuple[int, int, str]] = []
    length = 0
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) else fence
        elif mark:
            fence = mark[1]
        elif heading := _HEADING.fullmatch(line):
            headings.append((number, len(heading[1]), heading[2][:MOST_HEADING]))
            if ends > 0 and any(line.strip() for line in lines[:ends] if not _HEADING.fullmatch(line)):
                length = LEAD + 1
        elif not line.strip() and length <= LEAD:
            ends = number
        length += len(line) + 1
    numbers = {number for number, *_ in headings}
    while ends and (ends - 1 in numbers or not lines[ends - 1].strip()):
        ends -= 1
    after = [(level, words) for number, level, words in headings if number >= ends and words]
    top = min((level for level, _ in after), default=1)
    listed = [f"{'  ' * (level - top)}- {words}" for level, words in after[:MOST_HEADINGS]]
    return "\n".join(lines[:ends]).strip(), [*listed, *(["- …"] if len(after) > MOST_HEADINGS else [])]
