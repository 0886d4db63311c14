"""Tells what a PDF is before anybody reads it: python3 inspect_pdf.py report.pdf [--password TEXT]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from common import Problem, ended, opened
from pypdf import PageObject, PdfReader

FEW = 40
"""Characters below which a page with a picture counts as scanned."""
MOST = 60
MILLIMETRES = 25.4 / 72


def about(reader: PdfReader, path: Path) -> Iterator[str]:
    yield f"{path.name}: {len(reader.pages)} pages, {path.stat().st_size:,} bytes" + (
        ", encrypted" if reader.is_encrypted else ""
    )
    for name, value in (reader.metadata or {}).items():
        yield f"{name.removeprefix('/')}: {str(value)[:200]}"
    fields = reader.get_fields() or {}
    if fields:
        signed = [name for name, field in fields.items() if field.get("/FT") == "/Sig"]
        yield f"form: {len(fields)} fields (form.py list)" + (f", signatures: {', '.join(signed)}" if signed else "")
    if "/XFA" in (reader.root_object.get("/AcroForm") or {}):
        yield "form: XFA, which cannot be filled here"
    if reader.attachments:
        yield f"attachments: {', '.join(reader.attachments)}"
    yield from _outline(reader, reader.outline)


def _outline(reader: PdfReader, entries: list[object], level: int = 0) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, list):
            yield from _outline(reader, entry, level + 1)
        elif level < 3:
            number = reader.get_destination_page_number(entry)  # type: ignore[arg-type]
            yield f"outline: {'  ' * level}{entry.title} (page {(number or 0) + 1})"  # type: ignore[attr-defined]


def line(page: PageObject, number: int) -> tuple[str, bool]:
    """Returns a row about a page, and whether it is scanned."""
    text = len("".join((page.extract_text() or "").split()))
    pictures = len(page.images)
    scanned = pictures > 0 and text < FEW
    width, height = (float(side) * MILLIMETRES for side in (page.mediabox.width, page.mediabox.height))
    turned = f", turned by {page.rotation}°" if page.rotation else ""
    kind = "scanned" if scanned else "empty" if not text and not pictures else ""
    return f"| {number} | {width:.0f} x {height:.0f} mm{turned} | {text} | {pictures} | {kind} |", scanned


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--password")
    options = parser.parse_args()
    try:
        reader = opened(options.file, options.password)
        print("\n".join(about(reader, options.file)))
        print("\n| page | size | characters | pictures | |\n|--:|---|--:|--:|---|")
        rows = [line(page, number) for number, page in enumerate(reader.pages, 1)]
    except Problem as problem:
        return ended(problem)
    print("\n".join(row for row, _ in rows[:MOST]))
    if len(rows) > MOST:
        print(f"({MOST} of {len(rows)} pages)")
    if scanned := [number for number, (_, is_scanned) in enumerate(rows, 1) if is_scanned]:
        print(f"\n{len(scanned)} of {len(rows)} pages are scanned, the first is {scanned[0]}: use ocr.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
