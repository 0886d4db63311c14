"""Event streams, cut anywhere."""

from __future__ import annotations

import pytest

from channels.client.sse import Frame, Parser

STREAM = (
    ': heartbeat\r\n\r\nevent: metadata\r\ndata: {"run_id":"r"}\r\nid: 1\r\n\r\n'
    'event: messages\ndata: [{"content":"ü🙂"}]\nid: 2-3-0\n\n'
    ": heartbeat\n\n"
    "data: first\ndata: second\n\n"
    "event: end\ndata: null\n\n"
    "event: values\ndata: {"
)
FRAMES = [
    Frame("metadata", {"run_id": "r"}, "1"),
    Frame("messages", [{"content": "ü🙂"}], "2-3-0"),
    Frame("message", "first\nsecond"),
    Frame("end", None),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_frames_do_not_depend_on_the_cuts(size: int) -> None:
    raw, parser = STREAM.encode(), Parser()
    found = [frame for start in range(0, len(raw), size) for frame in parser.feed(raw[start : start + size])]
    assert found == FRAMES
