"""PDF files, page by page: by markitdown, with its tables, and by PDFium where that fails or the time is short."""

from __future__ import annotations

import io
import time
from typing import Any, BinaryIO

import pypdfium2  # type: ignore[import-untyped]
from markitdown import StreamInfo
from markitdown.converters import PdfConverter
from pdfplumber.page import Page

from adapters.documents.job import Job, Rejected, joined, note

SLOW_SHARE = 0.6
"""Share of the time for a document that pages with their tables may take; the rest of them is read as plain text."""


def read(document: BinaryIO, job: Job) -> tuple[str, int]:
    try:
        pdf = pypdfium2.PdfDocument(document)
    except pypdfium2.PdfiumError as error:
        encrypted = "password" in str(error).lower()
        raise Rejected("is protected by a password" if encrypted else "is damaged, or not complete") from None
    count = len(pdf)
    if not count:
        raise Rejected("is damaged, or not complete")
    slow_until = time.process_time() + SLOW_SHARE * job.left
    texts, bad, plain = list[str](), list[int](), list[int]()
    for number, index in job.chosen(range(count), "pages"):
        text, exact = _page(pdf, index, tables=time.process_time() < slow_until)
        if text is None:
            bad.append(number)
        elif not exact:
            plain.append(number)
        texts.append(text or "")
        job.progress(number, count)
        if job.late:
            texts.append(note(f"pages {number + 1} to {count}: the time for a document is over"))
            break
    notes = [note(f"{_pages(bad)}: damaged")] if bad else []
    if plain:
        notes.append(f"> [{_pages(plain).capitalize()}: as plain text, without tables]")
    return (joined([*texts, *notes]) if any(text.strip() for text in texts) else ""), count


def _page(pdf: Any, index: int, *, tables: bool) -> tuple[str | None, bool]:
    """Returns the text of a page, None if it cannot be read, and whether its tables are in it."""
    if tables:
        try:
            page, buffer = pypdfium2.PdfDocument.new(), io.BytesIO()
            try:
                page.import_pages(pdf, [index])
                page.save(buffer)
            finally:
                page.close()
            buffer.seek(0)
            return _with_pipes(PdfConverter().convert(buffer, StreamInfo(extension=".pdf")).markdown.strip()), True
        except MemoryError:
            raise
        except Exception:  # any of three libraries; the next one may cope
            pass
    try:
        opened = pdf[index]
        try:
            return str(opened.get_textpage().get_text_range()).replace("\r\n", "\n").strip(), False
        finally:
            opened.close()
    except (pypdfium2.PdfiumError, ValueError):
        return None, False


_PIPE = "\ue0f0"
"""Stands for a pipe of the text until it is known whether it is in a table. Of the private use area."""
_words = Page.extract_words


def _marked(page: Any, *arguments: Any, **options: Any) -> Any:
    """Returns the words of a page for tables, with their pipes marked."""
    words = _words(page, *arguments, **options)
    return [word | {"text": word["text"].replace("|", _PIPE)} for word in words]


Page.extract_words = _marked  # type: ignore[method-assign, assignment]  # in a process that reads one document, and ends


def _with_pipes(text: str) -> str:
    lines = (line.replace(_PIPE, "\\|" if line.startswith("|") else "|") for line in text.split("\n"))
    return "\n".join(lines)


def _pages(numbers: list[int]) -> str:
    """Returns "page 3" or "pages 3, 5 and 6 more"."""
    if len(numbers) == 1:
        return f"page {numbers[0]}"
    shown = ", ".join(map(str, numbers[:10]))
    return f"pages {shown}{f' and {len(numbers) - 10} more' if len(numbers) > 10 else ''}"
