"""Books (EPUB): the chapters in the order of the spine."""

from __future__ import annotations

import posixpath
from typing import Any, BinaryIO
from urllib.parse import unquote

from adapters.documents.job import Job, Rejected, joined, note
from adapters.documents.package import Package
from adapters.documents.web import html_of, markdown

_ABOUT = ("title", "creator", "language", "publisher", "date", "description", "identifier")


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    package = Package(document)
    container = package.xml("META-INF/container.xml")
    entry = next(container.iter("{*}rootfile"), None) if container is not None else None
    main = (entry.get("full-path") or "") if entry is not None else ""
    main = main if main in package else next((name for name in package if name.endswith(".opf")), "")
    book = package.xml(main) if main else None
    chapters = _chapters(package, posixpath.dirname(main), book)
    if not chapters:
        raise Rejected("is damaged, or not complete")
    parts = [] if book is None or job.is_partial else ["\n".join(_about(book))]
    for number, chapter in job.chosen(chapters, "chapters"):
        parts.append(_chapter(package, chapter))
        if job.late:
            parts.append(note(f"chapters after {number}: the time for a document is over"))
            break
    return joined([*parts, *package.notes.values()]), None


def _about(book: Any) -> list[str]:
    lines = list[str]()
    for name in _ABOUT:
        texts = [" ".join("".join(element.itertext()).split()) for element in book.iter(f"{{*}}{name}", name)]
        if text := ", ".join(filter(None, dict.fromkeys(texts))):
            lines.append(f"**{'Authors' if name == 'creator' else name.capitalize()}:** {text}")
    return lines


def _chapters(package: Package, folder: str, book: Any) -> list[str]:
    """Returns the parts of the chapters in their order; all pages by their names if the book does not say them."""
    if book is not None:
        targets = {item.get("id"): item.get("href") or "" for item in book.iter("{*}item", "item")}
        order = [targets.get(item.get("idref")) for item in book.iter("{*}itemref", "itemref")]
        if chapters := [package.known(posixpath.join(folder, _decoded(target))) for target in order if target]:
            return chapters
    return sorted(name for name in package if name.lower().endswith((".xhtml", ".html", ".htm")))


def _decoded(target: str) -> str:
    return unquote(target.partition("#")[0])


def _chapter(package: Package, part: str) -> str:
    if part not in package:
        return note(f"{part} is missing in the file")
    try:
        return markdown(html_of(package.content(part)))
    except Rejected:
        return note(f"{part} is no page of text")
    except RecursionError:
        return note(f"{part} lies too deep")
