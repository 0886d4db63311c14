"""Writes the tables of a PDF as CSV: python3 tables.py report.pdf --out tables/ [--pages 3] [--lines text].

A table that goes on over the next page under the same header becomes one file.
"""

from __future__ import annotations

import argparse
import csv
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

from common import MISSING, Problem, ended, numbers, opened

try:
    import pdfplumber
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install pdfplumber", file=sys.stderr)
    sys.exit(MISSING)

Row = list[str]


@dataclass
class Table:
    pages: list[int]
    rows: list[Row] = field(default_factory=list)


def found(path: Path, pages: list[int], lines: str, password: str | None) -> list[Table]:
    logging.getLogger("pdfminer").setLevel(logging.ERROR)
    settings = {"vertical_strategy": lines, "horizontal_strategy": lines}
    tables: list[Table] = []
    with pdfplumber.open(path, password=password or "") as document:
        for index in pages:
            page = document.pages[index]
            for number, rows in enumerate(page.extract_tables(settings)):
                clean = [[_cell(cell) for cell in row] for row in rows]
                clean = [row for row in clean if any(row)]
                if len(clean) > 1 or (clean and len(clean[0]) > 1):
                    _add(tables, clean, index + 1, first=number == 0)
            page.close()
    return tables


def _cell(cell: str | None) -> str:
    return " ".join((cell or "").split())


def _add(tables: list[Table], rows: list[Row], page: int, *, first: bool) -> None:
    """Appends a table, or joins it to the last one that it goes on with."""
    last = tables[-1] if tables else None
    if last and first and last.pages[-1] == page - 1 and rows[0] == last.rows[0]:
        last.pages.append(page)
        last.rows += rows[1:]
    else:
        tables.append(Table([page], rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--pages", help="as 1-3,7")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--lines", choices=("lines", "text"), default="lines", help="what parts the cells")
    parser.add_argument("--password")
    options = parser.parse_args()
    try:
        pages = numbers(options.pages, len(opened(options.file, options.password).pages))
        tables = found(options.file, pages, options.lines, options.password)
    except Problem as problem:
        return ended(problem)
    if not tables:
        hint = " Try --lines text, or look at the pages (pages.py)." if options.lines == "lines" else ""
        print(f"no tables on {len(pages)} pages.{hint}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables, 1):
        target = options.out / f"table-{number}.csv"
        with target.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table.rows)
        where = f"page {table.pages[0]}" + (f"-{table.pages[-1]}" if len(table.pages) > 1 else "")
        uneven = len({len(row) for row in table.rows}) > 1
        print(f"{target}: {where}, {len(table.rows)} rows, {len(table.rows[0])} columns{', UNEVEN' * uneven}")
        print(f"    {' | '.join(table.rows[0])[:150]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
