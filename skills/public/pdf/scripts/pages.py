"""Draws pages as PNG files: python3 pages.py report.pdf --out shots/ [--pages 3] [--dpi 110]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import MISSING, Problem, ended, numbers, opened

try:
    import pypdfium2
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pypdfium2 pillow", file=sys.stderr)
    sys.exit(MISSING)

MOST_PAGES, MOST_PIXELS = 50, 40_000_000


def drawn(path: Path, pages: list[int], out: Path, dpi: int, password: str | None) -> list[Path]:
    document = pypdfium2.PdfDocument(path, password=password)
    document.init_forms()  # so that the contents of fields are drawn
    out.mkdir(parents=True, exist_ok=True)
    targets = []
    for index in pages:
        page = document[index]
        width, height = page.get_size()
        scale = min(dpi / 72, (MOST_PIXELS / max(width * height, 1)) ** 0.5)
        targets.append(out / f"{path.stem}-{index + 1}.png")
        page.render(scale=scale, may_draw_forms=True).to_pil().save(targets[-1])
    return targets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--pages", help="as 1-3,7")
    parser.add_argument("--dpi", type=int, default=110)
    parser.add_argument("--password")
    options = parser.parse_args()
    try:
        pages = numbers(options.pages, len(opened(options.file, options.password).pages))
        if len(pages) > MOST_PAGES:
            raise Problem(f"--pages: {len(pages)} pages are too many at once (at most {MOST_PAGES})")
        if not 20 <= options.dpi <= 600:
            raise Problem("--dpi: 20 to 600")
        for target in drawn(options.file, pages, options.out, options.dpi, options.password):
            print(target)
    except Problem as problem:
        return ended(problem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
