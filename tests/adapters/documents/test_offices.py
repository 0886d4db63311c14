"""The text of a document is what the document says: files of many makers, each with its whole text."""

from __future__ import annotations

import importlib
import io
from pathlib import PurePath

import pytest

from adapters.documents.convert import READERS
from adapters.documents.job import Job, Rejected
from adapters.documents.kinds import kind_of
from core.ports.documents import KINDS
from tests.support.office import OFFICES

pytestmark = pytest.mark.long(keep=3)


def text_of(name: str, content: bytes, **selection: str) -> str:
    """The text of a document, by its reader in this process: without limits."""
    document = io.BytesIO(content)
    module, function = READERS[kind_of(KINDS[PurePath(name).suffix], document)]
    job = Job(seconds=1e9, **selection)  # type: ignore[arg-type]
    text, _ = getattr(importlib.import_module(f"adapters.documents.{module}"), function)(document, job)
    return str(text).strip()


@pytest.mark.parametrize("name", OFFICES)
def test_the_text_is_what_the_document_says(name: str) -> None:
    make, text = OFFICES[name]
    assert text_of(name, make()) == text


@pytest.mark.parametrize(
    ("name", "selection", "text"),
    [
        ("talk.pptx", {"pages": "2"}, "<!-- Slide number: 2 -->\n\n> [This slide is hidden.]\n\n# Spare"),
        ("hidden.xlsm", {"sheet": "hidden"}, "## Hidden (hidden)\n| hidden |\n| --- |"),
        ("hidden.xlsm", {"pages": "1"}, "## Seen\n| x |\n| --- |"),
        ("old.xls", {"sheet": "Kept"}, "## Kept (hidden)\n| NA |\n| --- |"),
        ("pages.pdf", {"pages": "2-"}, "007 NA"),
        ("book.epub", {"pages": "-1"}, "One"),
    ],
)
def test_a_part_of_a_document(name: str, selection: dict[str, str], text: str) -> None:
    assert text_of(name, OFFICES[name][0](), **selection) == text


@pytest.mark.parametrize(
    ("name", "selection", "reason"),
    [
        ("talk.pptx", {"pages": "3"}, "has 2 slides, and not 3"),
        ("hidden.xlsm", {"sheet": "None"}, "has 3 sheets (Seen, Hidden, Very), and not None"),
        ("pages.pdf", {"pages": "x"}, "pages: a number or a range such as 2-5 is expected, not x"),
        ("structure.docx", {"pages": "1"}, "has no pages or sheets to choose from; read it whole"),
    ],
)
def test_a_part_that_is_not_there(name: str, selection: dict[str, str], reason: str) -> None:
    with pytest.raises(Rejected) as refused:
        text_of(name, OFFICES[name][0](), **selection)
    assert str(refused.value) == reason


@pytest.mark.parametrize("name", ["ids.xlsx", "plain.csv", "talk.pptx", "pages.pdf", "old.xls"])
def test_a_document_whose_time_is_over_says_so(name: str) -> None:
    """What was read until then is there."""
    document = io.BytesIO(OFFICES[name][0]() if name != "plain.csv" else b"a,b\n" * 3000)
    module, function = READERS[kind_of(KINDS[PurePath(name).suffix], document)]
    text, _ = getattr(importlib.import_module(f"adapters.documents.{module}"), function)(document, Job(seconds=0))
    if name != "ids.xlsx":  # its only row is the last one
        assert "> [Not converted: " in text
        assert "time for a document is over" in text


def test_there_are_sixty() -> None:
    assert len(OFFICES) >= 60
