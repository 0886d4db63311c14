"""Writes a report, letter or paper from Markdown: python3 write_text.py report.md --out report.docx (or .pdf)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import blocks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("markdown", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the file to write: .docx or .pdf")
    parser.add_argument("--template", type=Path, help="a .docx whose styles, margins, header and footer are used")
    options = parser.parse_args()
    try:
        document = blocks.read(options.markdown)
        match options.out.suffix.lower():
            case ".docx":
                import to_docx as writer
            case ".pdf":
                import to_pdf as writer  # type: ignore[no-redef]
            case suffix:
                raise blocks.Problem(f"--out: {suffix or 'no ending'} is not .docx or .pdf")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        writer.write(document, options.out, options.template)
    except (blocks.Problem, OSError, blocks.yaml.YAMLError) as error:
        print(f"{options.markdown}: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.out} ({options.out.stat().st_size} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
