"""Workbooks of old versions of Excel: binary ones by xlrd, and those of 2003 in XML."""

from __future__ import annotations

from typing import Any, BinaryIO

import xlrd  # type: ignore[import-untyped]
from xlrd.biffh import error_text_from_code  # type: ignore[import-untyped]

from adapters.documents import numbers
from adapters.documents.job import Job, Rejected, joined, note
from adapters.documents.package import parsed
from adapters.documents.tables import grid

_EMPTY, _TEXT, _NUMBER, _DATE, _BOOLEAN, _ERROR, _BLANK = range(7)
"""Kinds of cells of xlrd."""


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    content, notes = document.read(), list[str]()
    try:
        book = _opened(content, notes)
    except xlrd.XLRDError as error:
        encrypted = "encrypt" in str(error).lower()
        raise Rejected("is protected by a password" if encrypted else "is damaged, or not complete") from None
    names = book.sheet_names()
    parts = list[str]()
    for _, number in job.chosen(range(book.nsheets), "sheets", names):
        parts.append(_sheet(book, number))
        book.unload_sheet(number)
        if job.late:
            parts.append(note("the rest of the workbook: the time for a document is over"))
            break
    return joined([*parts, *notes]), None


def _opened(content: bytes, notes: list[str]) -> Any:
    """Returns the workbook, without its formats if they cannot be read. Raises `XLRDError`."""
    options = {"file_contents": content, "on_demand": True, "logfile": _Silent(), "ragged_rows": True}
    try:
        return xlrd.open_workbook(formatting_info=True, **options)
    except Exception as error:  # any: the library meets bytes that nobody checked
        if "encrypt" in str(error).lower():
            raise xlrd.XLRDError(str(error)) from None
    try:
        notes.append(note("the formats of numbers are damaged"))
        return xlrd.open_workbook(**options)
    except Exception as error:
        raise xlrd.XLRDError(str(error)) from None


class _Silent:
    def write(self, text: str) -> None: ...
    def flush(self) -> None: ...


def _sheet(book: Any, number: int) -> str:
    name = book.sheet_names()[number]
    try:
        sheet = book.sheet_by_index(number)
    except Exception as error:
        return f"## {name}\n{note(f'this sheet is damaged ({type(error).__name__})')}"
    covered = {
        (row, column)
        for top, bottom, left, right in sheet.merged_cells[:10_000]
        for row in range(top, min(bottom, top + 1000))
        for column in range(left, right)
        if (row, column) != (top, left)
    }
    cells = dict[int, dict[int, str]]()
    for row in range(sheet.nrows):
        for column in range(sheet.row_len(row)):
            if (row, column) not in covered and (text := _text(book, sheet, row, column)):
                cells.setdefault(row + 1, {})[column + 1] = text
    hidden = " (hidden)" if sheet.visibility else ""
    return f"## {name}{hidden}\n{grid(cells)}"


def _text(book: Any, sheet: Any, row: int, column: int) -> str:
    kind, value = sheet.cell_type(row, column), sheet.cell_value(row, column)
    match kind:
        case 1:
            return str(value)
        case 2 | 3:
            return numbers.formatted(repr(value), _code(book, sheet, row, column, kind), from_1904=bool(book.datemode))
        case 4:
            return "TRUE" if value else "FALSE"
        case 5:
            return str(error_text_from_code.get(value, "#ERROR"))
    return ""


def _code(book: Any, sheet: Any, row: int, column: int, kind: int) -> str:
    try:
        style = book.xf_list[sheet.cell_xf_index(row, column)]
        return str(book.format_map[style.format_key].format_str)
    except (IndexError, KeyError, xlrd.XLRDError, AttributeError):
        return "yyyy-mm-dd" if kind == _DATE else ""


# ── XML of 2003 ─────────────────────────────────────────────────────────────────────────────────────────────────────


def read_2003(document: BinaryIO, job: Job) -> tuple[str, None]:
    root, reason = parsed(document.read())
    if root is None:
        raise Rejected("is damaged, or not complete")
    sheets = list(root.iter("{*}Worksheet"))
    names = [_attribute(sheet, "Name") for sheet in sheets]
    codes = {_attribute(style, "ID"): _code_2003(style) for style in root.iter("{*}Style")}
    parts = list[str]()
    for number, sheet in job.chosen(sheets, "sheets", names):
        hidden = any((element.text or "").startswith("Sheet") for element in sheet.iter("{*}Visible"))
        mark = " (hidden)" if hidden else ""
        parts.append(f"## {names[number - 1]}{mark}\n{grid(_cells_2003(sheet, codes))}")
    return joined([*parts, note(reason) if reason else ""]), None


def _cells_2003(sheet: Any, codes: dict[str, str]) -> dict[int, dict[int, str]]:
    cells = dict[int, dict[int, str]]()
    row = 0
    for element in sheet.iter("{*}Row"):
        row, column = _index(element, row + 1), 0
        for cell in element.iterchildren("{*}Cell"):
            column = _index(cell, column + 1)
            if (content := cell.find("{*}Data")) is not None and row <= 1 << 20 and column <= 1 << 14:
                cells.setdefault(row, {})[column] = _text_2003(content, codes.get(_attribute(cell, "StyleID"), ""))
            column += _count(cell, "MergeAcross")
        row += _count(element, "Span")
    return cells


def _text_2003(content: Any, code: str) -> str:
    text = "".join(content.itertext())
    match _attribute(content, "Type"):
        case "Number":
            return numbers.formatted(text.strip(), code)
        case "Boolean":
            return "TRUE" if text.strip() == "1" else "FALSE"
        case "DateTime":
            return text.strip().removesuffix(".000").removesuffix("T00:00:00").replace("T", " ")
    return text


_NAMED = {"Percent": "0%", "Fixed": "0.00", "Standard": "#,##0.00", "Currency": "#,##0.00", "Scientific": "0.00E+00"}


def _code_2003(style: Any) -> str:
    found = style.find("{*}NumberFormat")
    code = _attribute(found, "Format") if found is not None else ""
    return _NAMED.get(code, "yyyy-mm-dd" if code.endswith("Date") else code)


def _index(element: Any, default: int) -> int:
    return _count(element, "Index") or default


def _count(element: Any, name: str) -> int:
    text = _attribute(element, name)
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def _attribute(element: Any, name: str) -> str:
    return next((str(value) for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")
