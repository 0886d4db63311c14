"""Puts pages together: python3 arrange.py --out new.pdf a.pdf b.pdf:3-5 c.pdf:9,1 d.pdf:2@90 [--protect PASSWORD]."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from common import Problem, ended, numbers, opened
from pypdf import PdfReader, PdfWriter

_PART = re.compile(r"(?P<file>.+?\.[pP][dD][fF])(?::(?P<pages>[\d,\- ]+))?(?:@(?P<turn>-?\d+))?")


def arranged(parts: list[str], password: str | None) -> tuple[PdfWriter, list[str]]:
    """Returns the new document, and what is lost."""
    writer, lost = PdfWriter(), []
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None:
            raise Problem(f"{part}: expected FILE.pdf, FILE.pdf:1-3 or FILE.pdf:2@90")
        path, turn = Path(match["file"]), int(match["turn"] or 0)
        if turn % 90:
            raise Problem(f"{part}: pages turn by 90, 180 or 270 degrees")
        reader = opened(path, password)
        chosen = numbers(match["pages"], len(reader.pages))
        writer.append(reader, pages=chosen, import_outline=match["pages"] is None)
        for page in writer.pages[len(writer.pages) - len(chosen) :]:
            page.rotate(turn)
        lost += _lost(reader, path)
    return writer, lost


def _lost(reader: PdfReader, path: Path) -> list[str]:
    fields = reader.get_fields() or {}
    signed = any(field.get("/FT") == "/Sig" and field.get("/V") for field in fields.values())
    return [f"{path.name}: was signed; the signature does not hold for the new file"] if signed else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="FILE.pdf[:PAGES][@DEGREES]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--password", help="opens the files")
    parser.add_argument("--protect", metavar="PASSWORD", help="the new file needs it")
    options = parser.parse_args()
    try:
        writer, lost = arranged(options.parts, options.password)
    except Problem as problem:
        return ended(problem)
    if options.protect:
        writer.encrypt(options.protect, algorithm="AES-256")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    writer.write(options.out)
    print(f"wrote {options.out}: {len(writer.pages)} pages")
    for line in lost:
        print(line, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
