"""Frames of Feishu's long connection: protocol buffers by hand, as the server's own check
of what the SDK writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

CONTROL, DATA = 0, 1


class Frame(NamedTuple):
    method: int
    headers: Mapping[str, str]
    payload: bytes = b""
    service: int = 1


def encode(frame: Frame) -> bytes:
    parts = [_number(1, 0), _number(2, 0), _number(3, frame.service), _number(4, frame.method)]
    parts += [_bytes(5, _bytes(1, key.encode()) + _bytes(2, value.encode())) for key, value in frame.headers.items()]
    return b"".join([*parts, _bytes(8, frame.payload)])


def decode(data: bytes) -> Frame:
    """Raises `ValueError` for a frame without one of the required fields."""
    numbers: dict[int, int] = {}
    headers: dict[str, str] = {}
    payload = b""
    for field, value in _fields(data):
        if isinstance(value, int):
            numbers[field] = value
        elif field == 5:
            pair = dict(_fields(value))
            headers[_text(pair[1])] = _text(pair[2])
        elif field == 8:
            payload = value
    if not {1, 2, 3, 4} <= numbers.keys():
        raise ValueError(f"a frame with the fields {sorted(numbers)} only")
    return Frame(numbers[4], headers, payload, numbers[3])


def _text(value: int | bytes) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError(f"wire type {tag & 7}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _number(field: int, value: int) -> bytes:
    return _written(field << 3) + _written(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _written(field << 3 | 2) + _written(len(value)) + value


def _written(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
