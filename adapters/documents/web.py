"""HTML as Markdown, by markitdown: what it would change is prepared before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from bs4 import BeautifulSoup, Tag
from markitdown.converters import HtmlConverter

from adapters.documents.job import Job, Rejected
from core.files.encodings import decoded

_PIPE, _BREAK = "\ue0f0", "\ue0f1"
"""Stand for a pipe and a line break in a cell until the page is Markdown. Of the private use area."""
_BREAKS = re.compile(rf"(?<=\S)[ \t]*{_BREAK}[ \t]*")
_DECLARED = re.compile(rb"""<(?:meta[^>]*charset|\?xml[^>]*encoding)\s*=\s*["']?([\w-]+)""", re.IGNORECASE)
_PICTURE = re.compile(r"!\[([^\]]*)\]\(data:[^)]*\)")
MOST_SPAN = 100
"""Limit of the rows or columns of one cell."""


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    job.whole()
    return markdown(html_of(document.read())), None


def html_of(content: bytes) -> str:
    """Returns the text of a page: by its mark, as UTF-8, or as it declares or seems to be encoded."""
    text = decoded(content)
    if text is None:
        raise Rejected("is not a readable HTML page, whatever its name says")
    if not text.mark and text.encoding != "utf-8" and (declared := _DECLARED.search(content[:4096])):
        try:
            return content.decode(declared[1].decode())
        except (LookupError, UnicodeDecodeError):
            pass
    return text.text


def markdown(html: str) -> str:
    """Returns a page as Markdown. Tables keep their columns, and texts their characters."""
    soup = BeautifulSoup(html, "html.parser")
    for cell in soup(["td", "th"]):
        _prepare(cell)
    for table in soup("table"):
        _spread(soup, table)
        _head(table)
    body = soup.find("body") or soup
    for script in body(["script", "style", "template"]):
        script.extract()
    options: dict[str, Any] = {"escape_underscores": False, "escape_asterisks": False}
    text = HtmlConverter().convert_string(str(body), **options).markdown
    text = _PICTURE.sub(lambda match: f"[picture: {match[1]}]" if match[1] else "[picture]", text)
    return _BREAKS.sub("<br>", text.replace(_PIPE, "\\|"))


def _prepare(cell: Tag) -> None:
    """Marks the pipes and line breaks of a cell, which end a cell and a row of Markdown."""
    for text in list(cell.find_all(string=True)):
        if "|" in text:
            text.replace_with(text.replace("|", _PIPE))
    for line in cell("br"):
        line.replace_with(_BREAK)
    if not cell.get_text().replace(_BREAK, "").strip() and not cell("img"):
        cell.clear()
    while (first := next(iter(cell.contents), None)) is not None and str(first).strip() in ("", _BREAK):
        first.extract()
    while cell.contents and str(cell.contents[-1]).strip() in ("", _BREAK):
        cell.contents[-1].extract()
    paragraphs = [child for child in cell.find_all(["p", "div", "li"]) if isinstance(child, Tag)]
    for paragraph in paragraphs[1:]:
        if paragraph.get_text(strip=True):
            paragraph.insert(0, _BREAK)


def _spread(soup: BeautifulSoup, table: Tag) -> None:
    """Puts an empty cell where a cell of a row above, or one to the left, reaches: Markdown has no such cells."""
    below = dict[int, int]()
    for row in _rows(table):
        column = 0
        for cell in list(row.find_all(["td", "th"], recursive=False)):
            while below.get(column, 0) > 0:
                below[column] -= 1
                cell.insert_before(soup.new_tag("td"))
                column += 1
            width, height = _span(cell, "colspan"), _span(cell, "rowspan")
            for _ in range(width - 1):
                cell.insert_after(soup.new_tag("td"))
            for number in range(column, column + width):
                below[number] = height - 1
            column += width
        for number in sorted(number for number in below if number >= column and below[number] > 0):
            below[number] -= 1
            row.append(soup.new_tag("td"))


def _head(table: Tag) -> None:
    """Makes the first row the head, which each table of Markdown has."""
    for part in table(["colgroup", "col", "caption"]):
        if part.name != "caption" and part.find_parent("table") is table:
            part.extract()
    if (row := next(_rows(table), None)) is not None:
        for cell in row.find_all("td", recursive=False):
            cell.name = "th"


def _rows(table: Tag) -> Iterator[Tag]:
    for row in table.find_all("tr"):
        if row.find_parent("table") is table:
            yield row


def _span(cell: Tag, name: str) -> int:
    text = str(cell.attrs.pop(name, "1")).strip()
    return min(int(text), MOST_SPAN) if text.isdecimal() and len(text) < 10 and int(text) > 0 else 1
