"""Checks a finished docx, pptx, xlsx or pdf: python3 check.py FILE. Prints its outline and its problems.

Exit code 0: no problem. 1: problems. 2: it is not a readable document.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import pypdfium2
    from docx import Document
    from openpyxl import load_workbook
    from pptx import Presentation
except ModuleNotFoundError as error:
    print(
        f"missing Python package {error.name}. Fix: pip install python-docx openpyxl python-pptx pypdfium2",
        file=sys.stderr,
    )
    sys.exit(3)

LEFTOVER = re.compile(r"\{\{.*?\}\}|lorem ipsum|\bTODO\b|\bTBD\b|\bXXX\b|\[insert|click to add", re.IGNORECASE)
ERRORS = ("#REF!", "#NAME?", "#VALUE!", "#DIV/0!", "#N/A", "#NUM!")
_FUNCTION = re.compile(r"([A-Z][A-Z0-9.]+)\(")
_REFERENCE = re.compile(r"(?:'([^']+)'|([A-Za-z_]\w*))!")
MIN_POINTS = 10

Report = Iterator[tuple[str, str]]
"""Pairs of a kind (`outline` or `problem`) and a line."""


def leftovers(text: str, place: str) -> Report:
    for match in LEFTOVER.finditer(text):
        yield "problem", f"{place}: leftover {match[0]!r}"


def docx(path: Path) -> Report:
    document = Document(str(path))
    level = 0
    for number, paragraph in enumerate(document.paragraphs, start=1):
        name = paragraph.style.name or ""
        yield from leftovers(paragraph.text, f"paragraph {number}")
        if name.startswith("Heading "):
            here = int(name.split()[1])
            yield "outline", "  " * here + paragraph.text
            if not paragraph.text.strip():
                yield "problem", f"paragraph {number}: an empty heading"
            if here > level + 1:
                yield "problem", f"paragraph {number}: heading {paragraph.text!r} skips a level ({level} to {here})"
            level = here
    for number, table in enumerate(document.tables, start=1):
        yield "outline", f"table {number}: {len(table.rows)} rows, {len(table.columns)} columns"
        for row in table.rows:
            yield from leftovers(" ".join(cell.text for cell in row.cells), f"table {number}")
    for shape in document.inline_shapes:
        if not shape._inline.docPr.get("descr"):
            yield "problem", "an image has no alternative text"
        room = document.sections[0].page_width - document.sections[0].left_margin - document.sections[0].right_margin
        if shape.width > room:
            yield "problem", "an image is wider than the text"
    if not document.core_properties.title:
        yield "problem", "the document has no title in its properties"


def pptx(path: Path) -> Report:
    deck = Presentation(str(path))
    titles: set[str] = set()
    for number, slide in enumerate(deck.slides, start=1):
        title = slide.shapes.title.text_frame.text if slide.shapes.title is not None else ""
        yield "outline", f"{number}. {title or '(no title)'}"
        if not title.strip():
            yield "problem", f"slide {number}: no title"
        elif title in titles:
            yield "problem", f"slide {number}: the title {title!r} is there twice"
        titles.add(title)
        for shape in slide.shapes:
            yield from _shape(shape, deck, f"slide {number}")


def _shape(shape: Any, deck: Any, place: str) -> Report:
    right, bottom = (shape.left or 0) + (shape.width or 0), (shape.top or 0) + (shape.height or 0)
    if (shape.left or 0) < 0 or (shape.top or 0) < 0 or right > deck.slide_width or bottom > deck.slide_height:
        yield "problem", f"{place}: {shape.name!r} reaches over the edge"
    if shape.shape_type == 13 and not shape._element.nvPicPr.cNvPr.get("descr"):
        yield "problem", f"{place}: an image has no alternative text"
    if not shape.has_text_frame:
        return
    text = shape.text_frame.text
    yield from leftovers(text, place)
    if shape.is_placeholder and not text.strip():
        yield "problem", f"{place}: the placeholder {shape.name!r} is empty"
    sizes = [p.font.size for p in shape.text_frame.paragraphs if p.font.size]
    if sizes and min(sizes).pt < MIN_POINTS:
        yield "problem", f"{place}: text of {min(sizes).pt:g} points cannot be read"
    if sizes and (need := _height(shape, max(sizes).pt)) > shape.height:
        yield "problem", f"{place}: {text[:40]!r} does not fit (needs about {need / shape.height:.1f} times its box)"


def _height(shape: Any, points: float) -> float:
    """Returns the estimated height of the text. A letter is half as wide as it is high."""
    per_line = max(1, int((shape.width - 182_880) / (points * 12_700 * 0.5)))
    lines = sum(max(1, -(-len(p.text) // per_line)) for p in shape.text_frame.paragraphs)
    return lines * points * 12_700 * 1.2


def xlsx(path: Path) -> Report:
    book, results = load_workbook(path), load_workbook(path, data_only=True)
    formulas, cached = 0, 0
    for sheet in book.worksheets:
        yield "outline", f"{sheet.title}: {sheet.dimensions}, {len(sheet._charts)} charts"
        if sheet.max_row == 1 and sheet.max_column == 1 and sheet["A1"].value is None:
            yield "problem", f"{sheet.title}: is empty"
        for row in sheet.iter_rows():
            for cell in row:
                place = f"{sheet.title}!{cell.coordinate}"
                if isinstance(cell.value, str):
                    yield from leftovers(cell.value, place)
                    if cell.value in ERRORS:
                        yield "problem", f"{place}: {cell.value}"
                if cell.data_type == "f":
                    formulas += 1
                    result = results[sheet.title][cell.coordinate].value
                    cached += result is not None
                    if result in ERRORS:
                        yield "problem", f"{place}: {cell.value} is {result}"
                    yield from _formula(str(cell.value), place, book)
    if formulas:
        note = "" if cached else " (not calculated yet: a spreadsheet program does that when it opens the file)"
        yield "outline", f"{formulas} formulas{note}"


def _formula(formula: str, place: str, book: Any) -> Report:
    if formula.count("(") != formula.count(")"):
        yield "problem", f"{place}: {formula} has unbalanced brackets"
    for match in _REFERENCE.finditer(formula):
        if (name := match[1] or match[2]) not in book.sheetnames:
            yield "problem", f"{place}: {formula} names the sheet {name!r}, which is not there"
    for name in _FUNCTION.findall(formula):
        from openpyxl.utils import FORMULAE

        if name not in FORMULAE and not name.startswith("_XLFN"):
            yield "problem", f"{place}: {name} is not a function of every Excel"


def pdf(path: Path) -> Report:
    document = pypdfium2.PdfDocument(str(path))
    yield "outline", f"{len(document)} pages"
    for entry in document.get_toc():
        yield "outline", "  " * (entry.level + 1) + (entry.get_title() or "")
    for number in range(len(document)):
        text = document[number].get_textpage().get_text_range()
        yield from leftovers(text, f"page {number + 1}")
        pictures = any(item.type == 3 for item in document[number].get_objects())
        if len(text.split()) < 5 and not pictures:
            yield "problem", f"page {number + 1}: is almost empty"
        if "�" in text:
            yield "problem", f"page {number + 1}: has characters without a glyph"


READERS = {".docx": docx, ".pptx": pptx, ".xlsx": xlsx, ".pdf": pdf}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        print(f"{path}: {path.suffix or 'no ending'} is not one of {', '.join(READERS)}", file=sys.stderr)
        return 2
    try:
        lines = list(reader(path))
    except Exception as error:  # any of four libraries, on a file of any origin
        print(f"{path}: is not a readable {path.suffix[1:]}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    problems = [line for kind, line in lines if kind == "problem"]
    print("\n".join(line for kind, line in lines if kind == "outline"))
    print(
        "\n".join(["", f"{len(problems)} problems", *(f"- {line}" for line in problems)])
        if problems
        else "\nno problems"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
