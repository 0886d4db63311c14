"""Whatever happens to the previews of a message, what a reader has seen in the end is its line, once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from core.events import Json, Message
from core.runs.previews import Piece, Preview, Reader, call_text, line_of, rest_of
from tests.support.records import ai, call

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
Shown = list[tuple[str, int, str]]
"""What a reader was shown: part, index, text."""


@st.composite
def lines(draw: st.DrawFn) -> tuple[Message, dict[str, str]]:
    """A finished message with some reasoning, some text and some tool calls."""
    calls: list[Json] = [call(f"c{n}", name=f"t{n}", a=draw(TEXT)) for n in range(draw(st.integers(0, 3)))]
    message = ai("m", draw(TEXT), calls)
    if reasoning := draw(TEXT):
        message["additional_kwargs"] = {"reasoning_content": reasoning}
    raw = {c["id"]: f' {{ "a":{n} }}' for n, c in enumerate(calls) if draw(st.booleans())}
    return message, raw


def previews(line: Sequence[Piece], cuts: set[int], message: str = "m") -> list[Preview]:
    """The line as the writer sends it, cut at these places and between its parts; a call begins by its announcement."""
    found, offset = [], 0
    for piece in line:
        start = 0
        inside = [cut - offset for cut in sorted(cuts) if offset < cut < offset + len(piece.text)]
        for end in [*inside, len(piece.text)]:
            first = start == 0
            found.append(
                Preview(
                    message=message,
                    after=0,
                    offset=offset + start,
                    text=piece.text[start:end],
                    part=piece.part,
                    index=piece.index,
                    call_id=piece.call_id if first else None,
                    name=piece.name if first else None,
                )
            )
            start = end
        offset += len(piece.text)
    return found


def text_of(line: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in line)


def places(line: Sequence[Piece]) -> Shown:
    """Every character with the part it belongs to."""
    return [(piece.part, piece.index, character) for piece in line for character in piece.text]


def shown(piece: Piece | Preview) -> Shown:
    return [(piece.part, piece.index, character) for character in piece.text]


@st.composite
def deliveries(draw: st.DrawFn, sent: Sequence[Preview]) -> list[Preview]:
    """What comes of what was sent: some are lost, some come twice, some in another order."""
    arrived = [p for p in sent if draw(st.integers(0, 5))]
    arrived += draw(st.lists(st.sampled_from(sent), max_size=4)) if sent else []
    if draw(st.booleans()):
        return draw(st.permutations(arrived))
    return sorted(arrived, key=lambda p: p.offset)


@given(lines(), st.data())
def test_every_reader_sees_the_line_once(made: tuple[Message, dict[str, str]], data: st.DataObject) -> None:
    line = line_of(*made)
    whole = text_of(line)
    cuts = data.draw(st.sets(st.integers(0, len(whole))))
    start = data.draw(st.just(0) | st.integers(0, len(whole)))
    reader = Reader(None if not start or data.draw(st.booleans()) else "m", start)

    seen = places(line)[:start]
    announced: list[str] = []
    for preview in data.draw(deliveries(previews(line, cuts))):
        before = reader.offset
        if (new := reader.take(preview)) is not None:
            assert (new.offset, new.offset + len(new.text)) == (before, reader.offset)
            assert new.text
            seen += shown(new)
            announced += [new.call_id] if new.call_id else []
    for end, piece in rest_of(line, reader.offset):
        seen += shown(piece)
        announced += [piece.call_id] if piece.call_id else []
        assert end <= len(whole)
    assert seen == places(line)
    assert len(announced) == len(set(announced))
    if not start:
        assert announced == [piece.call_id for piece in line if piece.call_id]


@given(lines())
def test_without_loss_nothing_is_left(made: tuple[Message, dict[str, str]]) -> None:
    line, reader = line_of(*made), Reader()
    taken = [new for preview in previews(line, set()) if (new := reader.take(preview)) is not None]
    assert "".join(p.text for p in taken) == text_of(line)
    assert text_of([piece for _, piece in rest_of(line, reader.offset)]) == ""


@given(st.lists(lines(), min_size=2, max_size=3), st.data())
def test_the_next_message_begins_anew(made: list[tuple[Message, dict[str, str]]], data: st.DataObject) -> None:
    """Previews of one message end, those of the next begin; of each, what came without a gap is seen."""
    reader = Reader()
    for number, (message, raw) in enumerate(made):
        line, name = line_of(message, raw), f"m{number}"
        sent = previews(line, data.draw(st.sets(st.integers(0, 12))), name)
        seen = ""
        for preview in (p for p in sent if data.draw(st.integers(0, 3))):
            new = reader.take(preview)
            seen += new.text if new else ""
        offset = reader.offset if reader.message == name else 0
        assert seen + text_of([piece for _, piece in rest_of(line, offset)]) == text_of(line)


@given(lines(), st.integers(0, 60))
def test_the_rest_tells_where_each_piece_ends(made: tuple[Message, dict[str, str]], offset: int) -> None:
    line = line_of(*made)
    for end, piece in rest_of(line, offset):
        assert text_of(line)[end - len(piece.text) : end] == piece.text


def test_the_order_of_a_line() -> None:
    message = ai("m", "text", [call("c1", "t1", a=1), call("c2", "t2")])
    message["additional_kwargs"] = {"reasoning_content": "why"}
    assert line_of(message, {"c2": "{ }"}) == [
        Piece("reasoning", "why"),
        Piece("text", "text"),
        Piece("call", '{"a":1}', 0, "c1", "t1"),
        Piece("call", "{ }", 1, "c2", "t2"),
    ]
    assert call_text({"a": [1, "ü"]}) == '{"a":[1,"ü"]}'
    blocks = [{"type": "text", "text": "a"}, "b", {"type": "image"}]
    assert line_of({"type": "ai", "id": "m", "content": blocks}, {}) == [Piece("text", "ab")]
    assert line_of({"type": "ai", "id": "m", "content": ""}, {}) == []
