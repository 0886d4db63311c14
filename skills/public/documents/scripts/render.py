"""Draws pages as images: python3 render.py FILE.pdf --out pages/ [--pages 1-3]. Other formats need LibreOffice."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import pypdfium2
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pypdfium2 pillow", file=sys.stderr)
    sys.exit(3)

MAX_PAGES = 40
SECONDS = 120


def as_pdf(path: Path, folder: str) -> Path:
    office = shutil.which("soffice") or shutil.which("libreoffice")
    if office is None:
        print(
            f"{path}: only a PDF can be drawn here. Fix: install LibreOffice, or check the file with check.py",
            file=sys.stderr,
        )
        sys.exit(3)
    words = [
        office,
        f"-env:UserInstallation=file://{folder}/profile",
        "--headless",
        "--convert-to",
        "pdf",
        "--outdir",
        folder,
        str(path),
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=SECONDS)
    return Path(folder) / f"{path.stem}.pdf"


def chosen(pages: str | None, count: int) -> range:
    if pages is None:
        return range(min(count, MAX_PAGES))
    first, _, last = pages.partition("-")
    return range(int(first) - 1, min(int(last or first), count))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--pages", help="as 3 or 2-5")
    parser.add_argument("--dpi", type=int, default=80)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = options.file if options.file.suffix.lower() == ".pdf" else as_pdf(options.file, folder)
            document = pypdfium2.PdfDocument(str(path))
            pages = chosen(options.pages, len(document))
        except (pypdfium2.PdfiumError, OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"{options.file}: cannot be drawn: {error}", file=sys.stderr)
            return 2
        options.out.mkdir(parents=True, exist_ok=True)
        for number in pages:
            target = options.out / f"{options.file.stem}-{number + 1:02}.png"
            document[number].render(scale=options.dpi / 72).to_pil().save(target)
            print(target)
        if len(pages) < len(document):
            print(f"{len(pages)} of {len(document)} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
