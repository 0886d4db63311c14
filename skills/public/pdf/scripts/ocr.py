"""Reads scanned pages with tesseract: python3 ocr.py scan.pdf [--lang deu+eng] [--pages 1-3] [--out FILE]."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common import MISSING, Problem, ended, numbers, opened
from pages import drawn

DPI = 300
SECONDS = 120
"""Time for a page."""


def languages(program: str) -> set[str]:
    listed = subprocess.run([program, "--list-langs"], capture_output=True, text=True, timeout=SECONDS, check=False)
    return set(listed.stdout.split("\n")[1:]) - {""}


def read(program: str, picture: Path, lang: str) -> str:
    command = [program, str(picture), "stdout", "-l", lang, "--psm", "3"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Problem(f"{picture.name}: tesseract was not done after {SECONDS} seconds") from None
    if process.returncode:
        raise Problem(f"{picture.name}: tesseract: {process.stderr.strip()[-300:]}")
    return process.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--lang", default="eng", help="languages of the text, as deu+eng")
    parser.add_argument("--pages", help="as 1-3,7")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--password")
    options = parser.parse_args()
    program = shutil.which("tesseract")
    if program is None:
        print(
            "tesseract is not here, so no picture can be read as text. Fix: install tesseract-ocr (and its language "
            "packs), or draw the pages (pages.py) and look at them",
            file=sys.stderr,
        )
        return MISSING
    try:
        pages = numbers(options.pages, len(opened(options.file, options.password).pages))
        if missing := set(options.lang.split("+")) - (there := languages(program)):
            raise Problem(f"--lang: no {', '.join(sorted(missing))}; there are: {', '.join(sorted(there))}", MISSING)
        parts = []
        with tempfile.TemporaryDirectory() as folder:
            for index in pages:
                [picture] = drawn(options.file, [index], Path(folder), DPI, options.password)
                parts.append(f"=== page {index + 1} ===\n{read(program, picture, options.lang)}\n")
                picture.unlink()
    except Problem as problem:
        return ended(problem)
    text = "\n".join(parts)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
        print(f"wrote {options.out}: {len(parts)} pages, {len(text):,} characters")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
