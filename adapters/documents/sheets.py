"""Workbooks of Excel (XLSX, XLSM): each sheet as a table of what its cells show.

Read part by part, sparse, and without openpyxl's model of a workbook: that refuses a workbook for a font that it does
not know, and makes a row of every number up to the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, BinaryIO, NamedTuple

from lxml import etree  # type: ignore[import-untyped]
from openpyxl.utils.cell import column_index_from_string, coordinate_from_string, range_boundaries  # type: ignore[import-untyped]
from openpyxl.utils.escape import unescape  # type: ignore[import-untyped]
from openpyxl.utils.exceptions import CellCoordinatesException  # type: ignore[import-untyped]

from adapters.documents import numbers
from adapters.documents.job import Job, Rejected, joined, note
from adapters.documents.package import BAD_ZIP, Package, completed
from adapters.documents.tables import grid

MOST_CELLS = 4_000_000
_SHEET = re.compile(r"xl/worksheets/[^/]+\.xml")
_LAST_COLUMN, _LAST_ROW = 16_384, 1_048_576


class Book(NamedTuple):
    """What the cells of all sheets refer to. `codes`: formats of numbers by style."""

    strings: list[str]
    codes: list[str]
    from_1904: bool


class Sheet(NamedTuple):
    name: str
    state: str
    part: str


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    package = Package(document)
    main = package.main() or "xl/workbook.xml"
    root = package.xml(main)
    if root is None and not any(name.startswith("xl/worksheets/") for name in package):
        raise Rejected("is damaged, or not complete")
    sheets = list(_sheets(package, main, root))
    flag = next(root.iter("{*}workbookPr"), None) if root is not None else None
    from_1904 = flag is not None and flag.get("date1904") in ("1", "true", "on")
    book = Book(_strings(package, main), _codes(package, main), from_1904)
    parts = list[str]()
    for _, sheet in job.chosen(sheets, "sheets", [sheet.name for sheet in sheets]):
        parts.append(_section(package, book, sheet, job))
        if job.late:
            parts.append(note("the rest of the workbook: the time for a document is over"))
            break
    return joined([*parts, *package.notes.values()]), None


def _sheets(package: Package, main: str, root: Any) -> Iterator[Sheet]:
    """Yields the sheets in their order. Parts that the workbook does not name are in the order of names."""
    relations = package.relations(main)
    elements = list(root.iter("{*}sheet")) if root is not None else []
    identities = [next((value for key, value in one.attrib.items() if key.endswith("}id")), "") for one in elements]
    targets = [relations[identity].target if identity in relations else "" for identity in identities]
    named = [target if target in package else "" for target in targets]
    parts = sorted((name for name in package if _SHEET.fullmatch(name)), key=lambda name: (len(name), name))
    damaged = not elements or main in package.notes
    for element, part in zip_longest(elements, completed(named, parts, damaged=damaged)):
        name, state = (element.get("name"), element.get("state")) if element is not None else ("", "")
        yield Sheet(name or str(part).rpartition("/")[2].removesuffix(".xml"), state or "", part)


def _section(package: Package, book: Book, sheet: Sheet, job: Job) -> str:
    hidden = " (hidden)" if sheet.state in ("hidden", "veryHidden") else ""
    title = f"## {sheet.name}{hidden}"
    if not sheet.part or sheet.part not in package:
        return f"{title}\n{note('this sheet is missing in the file')}"
    if sheet.part.startswith("xl/chartsheets/"):
        return f"{title}\n{note('this sheet is a chart')}"
    notes = list[str]()
    cells = _cells(package, book, sheet.part, job, notes)
    return "\n".join([title, *notes, grid(cells)])


def _cells(package: Package, book: Book, part: str, job: Job, notes: list[str]) -> Mapping[int, Mapping[int, str]]:
    cells = dict[int, dict[int, str]]()
    merged = list[str]()
    row = count = missing = 0
    try:
        for element in _elements(package, part, "row", "mergeCell"):
            if element.tag.endswith("mergeCell"):
                merged.append(element.get("ref") or "")
                continue
            row = _number(element.get("r"), row + 1)
            column = 0
            for cell in element:
                column = _column(cell.get("r"), column + 1)
                text = _text(cell, book)
                if text is None:
                    missing += 1
                elif text and row <= _LAST_ROW and column <= _LAST_COLUMN:
                    cells.setdefault(row, {})[column] = text
                    count += 1
            if job.late or count > MOST_CELLS:
                notes.append(note(f"rows below {row}: the limit of time or cells of a document is reached"))
                break
    except (etree.XMLSyntaxError, *BAD_ZIP) as error:
        notes.append(note(f"rows below {row}: the sheet is damaged ({error})"))
    if missing:
        notes.append(note(f"{missing} cells whose formulas have neither a text nor a stored result"))
    for reference in merged:
        _hide_merged(cells, reference)
    return cells


def _elements(package: Package, part: str, *tags: str) -> Iterator[Any]:
    """Yields elements of a part one after the other, and forgets them. Raises `XMLSyntaxError` where it is damaged."""
    if (stream := package.stream(part)) is None:
        return
    with stream:
        names = [f"{{*}}{tag}" for tag in tags]
        options: dict[str, Any] = {"resolve_entities": False, "no_network": True, "huge_tree": True}
        for _, element in etree.iterparse(stream, events=("end",), tag=names, **options):
            yield element
            element.clear()
            while element.getprevious() is not None:
                del element.getparent()[0]


def _strings(package: Package, main: str) -> list[str]:
    part = next(iter(package.related(main, "sharedStrings")), "xl/sharedStrings.xml")
    strings = list[str]()
    try:
        for element in _elements(package, part, "si"):
            strings.append(_rich(element))
    except (etree.XMLSyntaxError, *BAD_ZIP) as error:
        package.damaged(part, f"texts of cells are damaged ({error})")
    return strings


def _rich(element: Any) -> str:
    """Returns a text without its formats, and without the readings above Japanese characters."""
    texts = (item.text or "" for item in element.iter("{*}t") if not item.getparent().tag.endswith("}rPh"))
    return _unescaped("".join(texts))


def _unescaped(text: str) -> str:
    return str(unescape(text)) if "_x" in text else text


def _codes(package: Package, main: str) -> list[str]:
    """Returns the format of numbers of each style."""
    root = package.xml(next(iter(package.related(main, "styles")), "xl/styles.xml"))
    if root is None:
        return []
    own = {element.get("numFmtId"): element.get("formatCode") or "" for element in root.iter("{*}numFmt")}
    styles = next(root.iter("{*}cellXfs"), ())
    identities = [style.get("numFmtId") or "0" for style in styles]
    return [own[name] if name in own else numbers.builtin(_number(name, 0)) for name in identities]


def _text(cell: Any, book: Book) -> str | None:
    """Returns what a cell shows; None if nobody knows, as its formula was never calculated."""
    kind = cell.get("t") or "n"
    if kind == "inlineStr":
        return _rich(cell)
    value = formula = None
    for child in cell:
        if child.tag.endswith("}v"):
            value = child.text
        elif child.tag.endswith("}f"):
            formula = child.text or ""
    if value is None:
        return "" if formula is None else f"={formula}" if formula else None
    match kind:
        case "s":
            number = _number(value, -1)
            return book.strings[number] if 0 <= number < len(book.strings) else f"[text {value} is missing]"
        case "b":
            return "TRUE" if value.strip() in ("1", "true") else "FALSE"
        case "str":
            return _unescaped(value)
        case "e":
            return str(value)
        case "d":
            return str(value).replace("T00:00:00", "").replace("T", " ")
    style = _number(cell.get("s"), 0)
    code = book.codes[style] if 0 <= style < len(book.codes) else ""
    return numbers.formatted(value.strip(), code, from_1904=book.from_1904)


def _hide_merged(cells: dict[int, dict[int, str]], reference: str) -> None:
    """Removes what lies below a merged cell, which shows the first of its texts."""
    try:
        left, top, right, bottom = range_boundaries(reference)
    except (ValueError, TypeError):
        return
    for row in [row for row in cells if top <= row <= bottom]:
        line = cells[row]
        for column in [column for column in line if left <= column <= right and (row, column) != (top, left)]:
            del line[column]


def _column(reference: str | None, default: int) -> int:
    if not reference:
        return default
    try:
        return int(column_index_from_string(coordinate_from_string(reference)[0]))
    except (ValueError, CellCoordinatesException):
        return default


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.strip().isdecimal() and len(text) < 12 else default
