"""Reads the output of a command in the background, which lies in a row of files (`supervisor.Rolling`)."""

from __future__ import annotations

from pathlib import Path

from adapters.sandboxes.process.supervisor import SEGMENT
from core.config.redaction import redactor
from core.ports.sandbox import ExecResult, Output

SHOWN = 256 << 10
"""Limit of bytes that are read at once."""


def rolled(path: Path, after: int, result: ExecResult | None) -> Output:
    """Returns the output of a command in the background from the byte `after` on, without the secrets in force: the
    newest `SHOWN` bytes, and how many are left out before them. `result` is its outcome: its text comes last.
    """
    last = b"" if result is None else result.stderr.encode()
    for _ in range(10):
        try:
            end, data = _newest(path, after)
            break
        except FileNotFoundError:
            continue  # the oldest file was deleted meanwhile
    else:
        end, data = after, b""
    whole = data if result is not None else _whole(data)
    end -= len(data) - len(whole)
    skipped = end - after - len(whole)
    note = f"[... {skipped} bytes skipped ...]\n" if skipped > 0 else ""
    text = redactor.data(whole + (last if after <= end else b"")).decode(errors="replace")
    return Output(note + text, end + 1 if last else end, result)


def _newest(path: Path, after: int) -> tuple[int, bytes]:
    """Returns the length of the whole output, and its newest bytes. Raises `FileNotFoundError`."""
    numbers = sorted(int(file.suffix[1:]) for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdigit())
    if not numbers:
        return after, b""
    end = numbers[-1] * SEGMENT + path.with_name(f"{path.name}.{numbers[-1]}").stat().st_size
    first = max(after, end - SHOWN, numbers[0] * SEGMENT)
    parts = []
    for number in numbers:
        with open(path.with_name(f"{path.name}.{number}"), "rb") as file:
            file.seek(min(max(0, first - number * SEGMENT), SEGMENT))
            parts.append(file.read(SHOWN))
    return end, b"".join(parts)[: max(0, end - first)]


def _whole(data: bytes) -> bytes:
    """Returns the bytes without a character at their end that is not complete."""
    for cut in range(1, min(4, len(data)) + 1):
        lead = data[-cut]
        if lead >= 0xC0:
            length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return data[:-cut] if cut < length else data
        if lead < 0x80:
            return data
    return data
