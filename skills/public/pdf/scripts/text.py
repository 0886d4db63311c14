"""Prints the text of a PDF: python3 text.py report.pdf [--pages 1-5] [--layout] [--out FILE]."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from common import MISSING, Problem, ended, numbers, opened

try:
    import pypdfium2
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pypdfium2", file=sys.stderr)
    sys.exit(MISSING)

LIGATURES = str.maketrans({"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\u00ad": ""})


def mended(text: str) -> str:
    """Returns text with ligatures as letters, and words that were parted at a line's end whole."""
    text = text.replace("\r\n", "\n").replace("\ufffe", "-").translate(LIGATURES)
    return re.sub(r"(?<=[^\W\d_])-\n(?=[a-zà-ÿ])", "", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--pages", help="as 1-3,7")
    parser.add_argument("--layout", action="store_true", help="with the places of the words")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--password")
    options = parser.parse_args()
    try:
        reader = opened(options.file, options.password)
        document = pypdfium2.PdfDocument(options.file, password=options.password)
        parts, empty = [], []
        for index in numbers(options.pages, len(reader.pages)):
            if options.layout:
                text = reader.pages[index].extract_text(extraction_mode="layout")
            else:
                text = mended(document[index].get_textpage().get_text_range())
            parts.append(f"=== page {index + 1} ===\n{text.strip()}\n")
            empty += [] if text.strip() else [index + 1]
    except Problem as problem:
        return ended(problem)
    output = "\n".join(parts)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(output, encoding="utf-8")
        print(f"wrote {options.out}: {len(parts)} pages, {len(output):,} characters")
    else:
        print(output)
    if empty:
        print(f"no text on {len(empty)} pages, the first is {empty[0]}: scanned? (ocr.py, pages.py)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
