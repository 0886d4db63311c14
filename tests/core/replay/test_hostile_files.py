"""Files of strangers: what is nested too deeply, or would make a huge file of a few bytes, is refused with its line."""

from __future__ import annotations

import msgspec
import pytest

from core.errors import Invalid
from core.nesting import FACT_LEVELS
from core.replay.exports.format import FORMAT, Checker, FileLine, Header, Writer, _sum_of
from core.replay.exports.importing import _replaced

HEADER = Header(format=FORMAT, sika="x", thread="t")


def read(*lines: bytes) -> None:
    checker = Checker("stranger.jsonl")
    for line in lines:
        checker.line(line)


@pytest.mark.parametrize(
    "pieces",
    [[(1 << 42, b"abc")], [(0, b"ab"), (3, b"c")], [(0, b"ab"), (0, b"c")], [(-1, b"a")]],
    ids=["far", "a hole", "over what is there", "negative"],
)
def test_a_file_has_no_holes(pieces: list[tuple[int, bytes]]) -> None:
    writer = Writer()
    lines = [writer.line(HEADER)]
    lines += [writer.line(FileLine(path="outputs/a", offset=at, data=data)) for at, data in pieces]
    with pytest.raises(Invalid, match=rf"stranger.jsonl, line {len(lines)}: file 'outputs/a': a piece is at"):
        read(*lines)


def test_pieces_in_order_are_read() -> None:
    writer = Writer()
    whole = [(0, b"ab"), (2, b"c")]
    files = [FileLine(path=path, offset=at, data=data) for path in ("outputs/a", "outputs/b") for at, data in whole]
    left_out = FileLine(path="outputs/c", offset=5, data=b"", left_out="too long")
    read(writer.line(HEADER), *map(writer.line, [*files, left_out]))


@pytest.mark.parametrize("levels", [700, 5000, 100_000])
def test_deep_nesting_is_refused(levels: int) -> None:
    writer = Writer()
    header = writer.line(HEADER)
    body = b'{"line":"blob","sha256":"x","body":' + b"[" * levels + b"]" * levels
    total = _sum_of(writer._sum, body)
    with pytest.raises(Invalid, match=f"line 2: nested too deeply, more than {FACT_LEVELS} levels"):
        read(header, body + b',"sum":"' + total.encode() + b'"}\n')


def test_the_deepest_fact_is_imported() -> None:
    value: object = "old"
    for _ in range(590):
        value = {"a": [value]} if isinstance(value, str) else {"a": value}
    assert msgspec.json.encode(_replaced(value, {"old": "new"})).count(b"new") == 1
