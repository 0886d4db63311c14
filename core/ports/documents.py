"""The port of document conversion: what can be converted, and what comes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from core.files.folder import Text

KINDS: Mapping[str, str] = {
    ".pdf": "pdf",
    ".docx": "docx",
    ".docm": "docx",
    ".dotx": "docx",
    ".pptx": "pptx",
    ".pptm": "pptx",
    ".ppsx": "pptx",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".xltx": "xlsx",
    ".xls": "xls",
    ".xlt": "xls",
    ".odt": "odt",
    ".ott": "odt",
    ".ods": "ods",
    ".ots": "ods",
    ".odp": "odp",
    ".otp": "odp",
    ".rtf": "rtf",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".csv": "csv",
    ".tsv": "csv",
    ".epub": "epub",
    ".msg": "msg",
    ".eml": "eml",
    ".ipynb": "ipynb",
    ".doc": "doc",
    ".dot": "doc",
    ".ppt": "ppt",
    ".pps": "ppt",
    ".pot": "ppt",
}
"""Kinds of files that can be converted, by extension. The content decides: a `.doc` may be RTF, a `.xls` a page of
HTML. A `.doc` of Word needs a program that may be installed; a `.ppt` is refused, with the format to save it as.
"""
TEXTS = frozenset({"html", "csv", "eml", "ipynb"})
"""Kinds that are texts by themselves."""


class Selection(msgspec.Struct, frozen=True):
    """A part of a document. `pages`: numbers and ranges from 1, such as "3", "2-5", "7-" or "1,4-6": pages of a PDF,
    slides, sheets of a workbook, chapters of a book. `sheet`: the name of a sheet. Both empty: all of it.
    """

    pages: str = ""
    sheet: str = ""


WHOLE = Selection()


UNCONFINED = (
    "cannot be converted on this server: converters of documents need bubblewrap, which does not work here "
    "(`sika doctor` says why; uploads.convert_unconfined does without)"
)
"""The reason of a rejection that is the server's, not the file's: the next try may end otherwise."""


class Converted(msgspec.Struct, frozen=True):
    """The text of the content `sha256` lies in the uploads."""

    sha256: str
    text: Text
    pages: int | None = None


class Rejected(msgspec.Struct, frozen=True):
    """`reason` follows the file's name: "is empty"."""

    sha256: str
    reason: str


Outcome = Converted | Rejected


class Documents(Protocol):
    """Guarantees: converting the same content again is harmless; no document stops the server or reads its files."""

    async def convert(
        self, user: str, thread: str, name: str, own: Text | None, progress: Callable[[str], Awaitable[None]]
    ) -> Outcome:
        """Convert a file of the uploads. `own`: the Markdown file it has from an earlier time, to be replaced unless a
        person has put another one in its place. Raises `NotFound` if there is no such file, `Invalid` if it is a link
        or no file.
        """
        ...

    async def read(
        self, user: str, thread: str, path: str, progress: Callable[[str], Awaitable[None]]
    ) -> tuple[str, int | None]:
        """Returns the Markdown of a file of a thread, by the path under which agents see it, and the number of its
        pages if the format has any. Nothing is stored. Raises `NotFound`, and `Invalid` with the reason.
        """
        ...

    async def discard(self, user: str, thread: str, text: Text) -> None:
        """Remove a Markdown file that was made, unless a person has put another one in its place."""
        ...


class Texts(Protocol):
    """Guarantees: no document stops the server or reads its files."""

    async def text(
        self,
        name: str,
        content: bytes,
        progress: Callable[[str], Awaitable[None]],
        only: Selection = WHOLE,
    ) -> tuple[str, int | None]:
        """Returns the Markdown of a document or a part of it, and the number of its pages if the format has any. Raises
        `Invalid` with the reason; where nothing is selected, that is what there is to select.
        """
        ...
