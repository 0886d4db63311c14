"""Documents of OpenDocument (LibreOffice): texts, spreadsheets and presentations are one format."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, BinaryIO

from lxml import etree  # type: ignore[import-untyped]

from adapters.documents.job import Job, Rejected, joined, note
from adapters.documents.package import Package
from adapters.documents.tables import grid

_SKIPPED = {"tracked-changes", "annotation", "forms", "sequence-decls", "note", "shapes", "desc", "title"}
"""Elements whose text is not that of the body, or is placed elsewhere."""
_COLUMNS, _ROWS = 16_384, 1_048_576
MOST_REPEATED = 1000
"""Rows of equal cells that are shown."""
MOST_DEPTH = 60
_LEVELS = ("1", "2", "3", "4", "5", "6")
"""Levels of headings that Markdown has."""


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    package = Package(document)
    root = package.xml("content.xml")
    if root is None:
        raise Rejected("is damaged, or not complete")
    body = next(root.iter("{*}body"), root)
    notes = package.notes.values
    hidden = {_attribute(style, "name") for style in root.iter("{*}style") if _is_hidden(style)}
    if (book := body.find("{*}spreadsheet")) is not None:
        tables = list(book.iterchildren("{*}table"))
        names = [_attribute(table, "name") for table in tables]
        sheets = [_sheet(table, hidden) for _, table in job.chosen(tables, "sheets", names)]
        return joined([*sheets, *notes()]), None
    if (show := body.find("{*}presentation")) is not None:
        slides = list(show.iterchildren("{*}page"))
        texts = [_slide(number, slide, hidden) for number, slide in job.chosen(slides, "slides")]
        return joined([*texts, *notes()]), None
    job.whole()
    return joined([*_blocks(body, 0), *_footnotes(body), *notes()]), None


def _sheet(table: Any, hidden: Container[str]) -> str:
    mark = " (hidden)" if _attribute(table, "style-name") in hidden else ""
    return f"## {_attribute(table, 'name')}{mark}\n{_table(table)}"


def _slide(number: int, slide: Any, hidden: Container[str]) -> str:
    mark = "> [This slide is hidden.]" if _attribute(slide, "style-name") in hidden else ""
    return joined([f"<!-- Slide number: {number} -->", mark, *_blocks(slide, 0)])


def _is_hidden(style: Any) -> bool:
    """Tells whether a style hides the sheets, or the slides, that have it."""
    return any(
        _attribute(properties, "display") == "false" or _attribute(properties, "visibility") == "hidden"
        for properties in style.iterchildren("{*}table-properties", "{*}drawing-page-properties")
    )


def _blocks(parent: Any, depth: int) -> Iterator[str]:
    """Yields the paragraphs, lists and tables below an element."""
    if depth > MOST_DEPTH:
        yield note("parts that lie too deep")
        return
    for element in parent:
        if not isinstance(element.tag, str):
            continue
        match etree.QName(element).localname:
            case "h":
                level = _attribute(element, "outline-level")
                yield f"{'#' * (int(level) if level in _LEVELS else 1)} {_text(element)}"
            case "p":
                yield _text(element)
                yield from (block for frame in element.iter("{*}text-box") for block in _blocks(frame, depth + 1))
            case "list":
                yield "\n".join(_items(element, 0))
            case "table":
                yield _table(element)
            case "frame" if _attribute(element, "class") == "title":
                yield f"# {' '.join(joined(_blocks(element, depth + 1)).split())}"
            case "notes":
                if text := joined(_blocks(element, depth + 1)):
                    yield f"### Notes:\n{text}"
            case name if name not in _SKIPPED:
                yield from _blocks(element, depth + 1)


def _items(parent: Any, level: int) -> Iterator[str]:
    for item in parent:
        for element in item if level < MOST_DEPTH else ():
            match etree.QName(element).localname if isinstance(element.tag, str) else "":
                case "list":
                    yield from _items(element, level + 1)
                case "p" | "h":
                    yield f"{'  ' * level}- {_text(element)}"


def _footnotes(body: Any) -> Iterator[str]:
    for found in body.iter("{*}note"):
        mark, content = found.find("{*}note-citation"), found.find("{*}note-body")
        if content is not None:
            yield f"[^{_text(mark) if mark is not None else ''}]: {' '.join(joined(_blocks(content, 0)).split())}"


def _text(parent: Any) -> str:
    """Returns the text of a paragraph, with its spaces, tabs and breaks, and the marks of its notes."""
    parts = [parent.text or ""]
    for element in parent:
        name = etree.QName(element).localname if isinstance(element.tag, str) else ""
        count = _attribute(element, "c") if name else ""
        match name:
            case "s":
                parts.append(" " * min(int(count), 1000) if count.isdecimal() and len(count) < 9 else " ")
            case "tab":
                parts.append("\t")
            case "line-break":
                parts.append("\n")
            case "note":
                mark = element.find("{*}note-citation")
                parts.append(f"[^{_text(mark) if mark is not None else ''}]")
            case "frame" | "annotation" | "ruby-text" | "page-number" | "":
                pass
            case _:
                parts.append(_text(element))
        parts.append(element.tail or "")
    return "".join(parts)


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _table(table: Any) -> str:
    cells = dict[int, dict[int, str]]()
    row, cut = 1, 0
    for element in table.iter("{*}table-row"):
        if next(element.iterancestors("{*}table"), table) is not table:
            continue
        line, count = _line(element), _repeated(element, "number-rows-repeated")
        if line:
            shown = min(count, MOST_REPEATED)
            cut += count - shown
            cells |= {number: line for number in range(row, row + shown)}
        row += count
        if row > _ROWS:
            break
    text = grid(cells)
    return f"{note(f'{cut} more rows that are equal to others')}\n\n{text}" if cut else text


def _line(row: Any) -> dict[int, str]:
    line, column = dict[int, str](), 1
    for cell in row:
        if not isinstance(cell.tag, str):
            continue
        count = _repeated(cell, "number-columns-repeated")
        name = etree.QName(cell).localname
        if name == "table-cell" and (text := _cell_text(cell)):
            line |= dict.fromkeys(range(column, min(column + min(count, MOST_REPEATED), _COLUMNS + 1)), text)
        column += count
    return line


def _cell_text(cell: Any) -> str:
    """Returns what a cell shows, which the file has as text; else its value."""
    text = "\n".join(_text(element) for element in cell.iterchildren("{*}p", "{*}h"))
    if not text and cell.find("{*}list") is not None:
        text = "\n".join(line for items in cell.iterchildren("{*}list") for line in _items(items, 0))
    names = ("date-value", "time-value", "string-value", "boolean-value", "value")
    value = next((value for name in names if (value := _attribute(cell, name))), "")
    if not text:
        return value
    return _exact(text, value) if _attribute(cell, "value-type") in ("float", "percentage", "currency") else text


def _exact(text: str, value: str) -> str:
    """Returns the text of a number; with its value, if the text is rounded."""
    digits = "".join(letter for letter in text if letter.isdigit())
    exact = value.partition("E")[0].replace(".", "").lstrip("-0").rstrip("0")
    return text if not digits or exact in digits or not exact else f"{text} ({value})"


def _repeated(element: Any, name: str) -> int:
    text = _attribute(element, name)
    return max(1, int(text)) if text.isdecimal() and len(text) < 9 else 1


def _attribute(element: Any, name: str) -> str:
    return next((str(value) for key, value in element.attrib.items() if etree.QName(key).localname == name), "")
