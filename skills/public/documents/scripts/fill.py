"""Fills {{placeholders}} of a docx, pptx or xlsx: python3 fill.py template.docx values.yaml --out letter.docx.

A table row with {{items.name}} is repeated for each entry of the list `items` (docx and xlsx). `--list` shows the
placeholders of a template.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

try:
    import yaml
    from docx import Document
    from openpyxl import load_workbook
    from pptx import Presentation
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install python-docx openpyxl python-pptx", file=sys.stderr)
    sys.exit(3)

PLACEHOLDER = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")


class Problem(Exception):
    """A mistake in the template or the values."""


class Values:
    """The values, and the names of those that are missing or were not used."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self.missing: set[str] = set()
        self.used: set[str] = set()

    def text(self, template: str, row: dict[str, Any] | None = None) -> str:
        return PLACEHOLDER.sub(lambda match: self._one(match[1], row), template)

    def entries(self, text: str) -> list[dict[str, Any]] | None:
        """Returns the entries for which a row is repeated, None if it is a plain row."""
        for name in PLACEHOLDER.findall(text):
            top = name.split(".")[0]
            if isinstance(self._values.get(top), list):
                return [{top: entry} for entry in self._values[top]]
        return None

    def unused(self) -> list[str]:
        return sorted(set(self._values) - self.used)

    def _one(self, name: str, row: dict[str, Any] | None) -> str:
        value: Any = {**self._values, **(row or {})}
        self.used.add(name.split(".")[0])
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                self.missing.add(name)
                return "{{" + name + "}}"
            value = value[part]
        return "" if value is None else str(value)


def fill_runs(paragraph: Any, change: Callable[[str], str]) -> None:
    """Fills placeholders that an editor has cut into several runs; the first run's format stays."""
    runs, offset = list(paragraph.runs), 0
    while match := PLACEHOLDER.search("".join(run.text for run in runs), offset):
        new = change(match[0])
        offset = match.start() + len(new)  # a value is not a template
        position = 0
        for run in runs:
            start, end = position, position + len(run.text)
            position = end
            low, high = max(match.start(), start), min(match.end(), end)
            if low < high:
                run.text = run.text[: low - start] + (new if low == match.start() else "") + run.text[high - start :]


def fill_docx(path: Path, values: Values) -> Any:
    document = Document(str(path))
    parts = [document, *(part for s in document.sections for part in (s.header, s.footer))]
    for part in parts:
        for table in part.tables:
            _fill_table(table, values)
        for paragraph in part.paragraphs:
            fill_runs(paragraph, values.text)
    return document


def _fill_table(table: Any, values: Values) -> None:
    for row in list(table.rows):
        text = "\n".join(cell.text for cell in row.cells)
        entries = values.entries(text)
        if entries is None:
            for cell in row.cells:
                for paragraph in cell.paragraphs:
                    fill_runs(paragraph, values.text)
            continue
        for entry in entries:
            clone = copy.deepcopy(row._tr)
            row._tr.addprevious(clone)
            new = next(candidate for candidate in table.rows if candidate._tr is clone)
            for cell in new.cells:
                for paragraph in cell.paragraphs:
                    fill_runs(paragraph, lambda text, entry=entry: values.text(text, entry))
        row._tr.getparent().remove(row._tr)


def fill_pptx(path: Path, values: Values) -> Any:
    deck = Presentation(str(path))
    for paragraph in _paragraphs(deck):
        fill_runs(paragraph, values.text)
    return deck


def _paragraphs(deck: Any) -> Iterator[Any]:
    for slide in deck.slides:
        for shape in _shapes(slide.shapes):
            if shape.has_text_frame:
                yield from shape.text_frame.paragraphs
            if getattr(shape, "has_table", False) and shape.has_table:
                yield from (p for row in shape.table.rows for cell in row.cells for p in cell.text_frame.paragraphs)
        if slide.has_notes_slide:
            yield from slide.notes_slide.notes_text_frame.paragraphs


def _shapes(shapes: Iterable[Any]) -> Iterator[Any]:
    for shape in shapes:
        if shape.shape_type == 6:  # a group
            yield from _shapes(shape.shapes)
        else:
            yield shape


def fill_xlsx(path: Path, values: Values) -> Any:
    book = load_workbook(path)
    for sheet in book.worksheets:
        for row in sorted({cell.row for line in sheet.iter_rows() for cell in line if _has(cell)}, reverse=True):
            cells = [cell for cell in sheet[row] if _has(cell)]
            entries = values.entries(" ".join(cell.value for cell in cells))
            _fill_cells(sheet, row, entries, values)
    return book


def _has(cell: Any) -> bool:
    return isinstance(cell.value, str) and PLACEHOLDER.search(cell.value) is not None


def _fill_cells(sheet: Any, row: int, entries: list[dict[str, Any]] | None, values: Values) -> None:
    if (
        entries
        and len(entries) > 1
        and any("=" in str(c.value) for line in sheet.iter_rows(min_row=row + 1) for c in line if c.data_type == "f")
    ):
        raise Problem(
            f"{sheet.title}!{row}: formulas stand below the list and would keep their old places; put them above"
        )
    templates = [(cell.column, cell.value, copy.copy(cell._style)) for cell in sheet[row]]
    if entries is not None and len(entries) > 1:
        sheet.insert_rows(row + 1, len(entries) - 1)
    for offset, entry in enumerate([None] if entries is None else entries):
        for column, template, style in templates:
            cell = sheet.cell(row + offset, column)
            cell._style = copy.copy(style)
            cell.value = _number(values.text(template, entry)) if isinstance(template, str) else template
            if cell.data_type == "f" and isinstance(template, str) and not template.startswith("="):
                cell.data_type = "s"  # text of others never becomes a formula


def _number(text: str) -> Any:
    """Returns a number where the whole cell is a plain one, so that Excel calculates with it."""
    return (
        float(text)
        if re.fullmatch(r"-?(0|[1-9]\d*)\.\d+", text)
        else int(text)
        if re.fullmatch(r"-?(0|[1-9]\d{0,14})", text)
        else text
    )


FILLERS = {".docx": fill_docx, ".pptx": fill_pptx, ".xlsx": fill_xlsx}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("template", type=Path)
    parser.add_argument("values", type=Path, nargs="?", help="YAML or JSON")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true", help="show the placeholders and stop")
    options = parser.parse_args()
    try:
        filler = FILLERS.get(options.template.suffix.lower())
        if filler is None:
            raise Problem(f"{options.template.suffix or 'no ending'} is not one of {', '.join(FILLERS)}")
        if options.list:
            values = Values({})
            filler(options.template, values)
            print("\n".join(sorted(values.missing)) or "no placeholders")
            return 0
        if options.values is None or options.out is None:
            raise Problem("values and --out are needed")
        content = yaml.safe_load(options.values.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise Problem(f"{options.values}: is not a mapping")
        values = Values(content)
        result = filler(options.template, values)
        if values.missing:
            raise Problem(f"values are missing: {', '.join(sorted(values.missing))}; nothing was written")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        result.save(str(options.out))
    except (Problem, OSError, yaml.YAMLError) as error:
        print(f"{options.template}: {error}", file=sys.stderr)
        return 2
    if unused := values.unused():
        print(f"not in the template: {', '.join(unused)}", file=sys.stderr)
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
