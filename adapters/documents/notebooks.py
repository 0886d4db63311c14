"""Notebooks of Jupyter: texts, code, and what it printed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from adapters.documents.job import Job, Rejected, joined, note
from core.files.encodings import decoded

MOST_OUTPUT = 10_000
"""Characters of the output of a cell."""


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    job.whole()
    text = decoded(document.read())
    try:
        book = json.loads(text.text if text else "")
    except (ValueError, RecursionError):
        raise Rejected("is damaged, or not complete") from None
    cells = book.get("cells") if isinstance(book, dict) else None
    if cells is None and isinstance(book, dict):  # version 3
        sheets = book.get("worksheets")
        cells = [cell for sheet in sheets for cell in sheet.get("cells", ())] if isinstance(sheets, list) else None
    if not isinstance(cells, list):
        raise Rejected("is not a readable notebook, whatever its name says")
    language = _language(book)
    return joined(part for cell in cells for part in _cell(cell, language)), None


def _language(book: Mapping[str, Any]) -> str:
    metadata = book.get("metadata")
    info = metadata.get("language_info") if isinstance(metadata, dict) else None
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) and name.isidentifier() else "python"


def _cell(cell: Any, language: str) -> Iterator[str]:
    if not isinstance(cell, dict):
        yield note("a cell that is none")
        return
    source = _joined(cell.get("source", cell.get("input")))
    if cell.get("cell_type") != "code":
        yield source
        return
    yield f"```{language}\n{source}\n```" if source.strip() else ""
    outputs = cell.get("outputs")
    text = "".join(_output(output) for output in outputs) if isinstance(outputs, list) else ""
    if text.strip():
        more = f"\n[{len(text) - MOST_OUTPUT} more characters]" if len(text) > MOST_OUTPUT else ""
        yield f"Output:\n\n```\n{text[:MOST_OUTPUT].rstrip()}{more}\n```"


def _output(output: Any) -> str:
    if not isinstance(output, dict):
        return ""
    if output.get("output_type") in ("error", "pyerr"):
        return f"{output.get('ename')}: {output.get('evalue')}\n"
    data = output.get("data")
    text = data.get("text/plain") if isinstance(data, dict) else output.get("text")
    return f"{_joined(text)}\n" if text else ""


def _joined(text: Any) -> str:
    return "".join(part for part in text if isinstance(part, str)) if isinstance(text, list) else str(text or "")
