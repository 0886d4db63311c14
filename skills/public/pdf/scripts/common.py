"""Opens PDF files, and reads which pages are meant."""

from __future__ import annotations

import re
import sys
from pathlib import Path

try:
    from pypdf import PasswordType, PdfReader
    from pypdf.errors import PyPdfError
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pypdf pdfplumber pypdfium2", file=sys.stderr)
    sys.exit(3)

MISTAKE, MISSING, LOCKED = 2, 3, 4
"""Exit codes: a mistake in the request or the file, something that is not installed, a password."""


class Problem(Exception):
    """A mistake in the request or the file, with its place."""

    def __init__(self, text: str, code: int = MISTAKE) -> None:
        super().__init__(text)
        self.code = code


def opened(path: Path, password: str | None = None) -> PdfReader:
    if not path.is_file():
        raise Problem(f"{path}: no such file")
    try:
        reader = PdfReader(path)
        if reader.is_encrypted and reader.decrypt(password or "") == PasswordType.NOT_DECRYPTED:
            raise Problem(f"{path}: needs {'another' if password else 'a'} password (--password)", LOCKED)
        len(reader.pages)
    except (PyPdfError, OSError, ValueError, KeyError, RecursionError) as error:
        raise Problem(f"{path}: cannot be read as a PDF: {error}") from None
    return reader


def numbers(text: str | None, count: int) -> list[int]:
    """Returns the indices of pages in a text as `1-3,7,10-`, in its order; all without a text."""
    if not text:
        return list(range(count))
    chosen: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*(-)\s*(\d+)?)?\s*", part)
        if match is None:
            raise Problem(f"pages: {part!r} is not a number or a range as 3-5")
        first = int(match[1])
        last = int(match[3] or count) if match[2] else first
        if not 1 <= first <= count or not 1 <= last <= count:
            raise Problem(f"pages: {part.strip()}: there are only the pages 1 to {count}")
        step = 1 if last >= first else -1
        chosen += range(first - 1, last - 1 + step, step)
    return chosen


def ended(problem: Problem) -> int:
    print(problem, file=sys.stderr)
    return problem.code
