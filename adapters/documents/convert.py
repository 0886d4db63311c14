"""Converts a document to Markdown, in a process of its own that ends afterwards.

Run as a file: `python -I convert.py <kind> <limits as JSON>`. The document is standard input and the Markdown is
standard output. Standard error has reports, one JSON object a line: `{"page", "of"}` on the way, then one of
`{"converted": {"pages"}}`, `{"rejected": reason}` (fit for people) and `{"failed": error}` (for the log).

Every document may be an attack on the library that reads it. Its format and the directory of an archive are checked
first, and the limits of this process hold in any case.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

MAX_MEMBERS = 10_000
MAX_UNPACKED = 1 << 30
"""Limit of an archive's unpacked bytes, as its directory states them; no reader goes beyond that."""
MAX_RATIO = 200
"""Limit of an archive's compression ratio. XML reaches about 20, tables of equal cells 100."""
FREE_BYTES = 16 << 20
"""Unpacked bytes up to which any ratio is allowed."""
HEAD = 8192
"""Bytes that are checked to tell text from binary data (contract runtime §19)."""

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
ZIP = b"PK\x03\x04"
WORDS = {
    "pdf": "PDF file",
    "docx": "Word document",
    "pptx": "PowerPoint presentation",
    "xlsx": "Excel workbook",
    "xls": "Excel workbook",
    "html": "HTML page",
    "csv": "CSV table",
    "epub": "EPUB book",
    "msg": "Outlook message",
}
PARTS = {
    "docx": "word/document.xml",
    "pptx": "ppt/presentation.xml",
    "xlsx": "xl/workbook.xml",
    "epub": "META-INF/container.xml",
}
"""The member by which an archive of this kind is recognised."""
READERS = {
    "pandas": ("xlsx", "xls"),
    "pdfminer": ("pdf",),
    "pdfplumber": ("pdf",),
    "pptx": ("pptx",),
    "mammoth": ("docx",),
    "olefile": ("msg",),
}
"""The optional libraries that markitdown loads, and the kinds of documents each is for. All of them together take six
times as long to load as those for a web page.
"""
_ARCHIVE = re.compile(r"\.(zip|gz|tgz|bz2|xz|7z|rar|tar|jar|docx|pptx|xlsx|epub)\Z", re.IGNORECASE)
_EMBEDDINGS = re.compile(r"\A(word|ppt|xl)/embeddings/")
"""Folders of the workbooks behind Office's charts. No converter opens them."""


class Rejected(Exception):
    """The document is rejected. The text is fit for people; it follows the name of the file."""


def main(kind: str, limits: dict[str, int]) -> None:
    reports, out = os.fdopen(os.dup(2), "w", encoding="utf-8"), os.dup(1)
    devnull = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(devnull, fd)  # drops the output of libraries
    restrict(limits)

    def report(**fields: Any) -> None:
        reports.write(json.dumps(fields) + "\n")
        reports.flush()

    try:
        with open(0, "rb") as document:
            inspect(kind, document)
            text, pages = convert(kind, document, lambda page, of: report(page=page, of=of))
        save(text, out, limits["FSIZE"])
        report(converted={"pages": pages})
    except Rejected as reason:
        report(rejected=str(reason))
    except MemoryError:
        report(rejected="needs more memory to be converted than is allowed")
    except BaseException as error:
        report(failed=f"{type(error).__name__}: {error}"[:1000])


def restrict(limits: dict[str, int]) -> None:
    """Sets limits by RLIMIT_… names. `WALL` is the timeout in seconds, in case the parent has died."""
    os.nice(10)
    signal.alarm(limits["WALL"])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for name in ("AS", "CPU", "FSIZE", "NOFILE"):
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
        resource.setrlimit(number, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def save(text: str, out: int, limit: int) -> None:
    data = text.strip().encode("utf-8", "replace")
    if not data:
        raise Rejected("holds no text; perhaps its pages are pictures")
    if len(data) >= limit:
        raise Rejected(f"holds more than {limit >> 20} MB of text")
    with open(out, "wb") as file:
        file.write(data + b"\n")


# ── format ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def inspect(kind: str, document: BinaryIO) -> None:
    """Raises `Rejected` for a document that is empty, of another kind, encrypted, or an archive bomb."""
    head = document.read(HEAD)
    document.seek(0)
    if not head:
        raise Rejected("is empty")
    other = Rejected(f"is not a readable {WORDS[kind]}, whatever its name says")
    match kind:
        case "pdf":
            if b"%PDF-" not in head[:1024]:
                raise other
        case "docx" | "pptx" | "xlsx" | "epub":
            if head.startswith(OLE) and kind != "epub":
                raise _encrypted(document) or other
            if not head.startswith(ZIP):
                raise other
            check_archive(kind, document)
        case "xls":
            if not head.startswith(OLE):
                raise other
        case "msg":
            if not head.startswith(OLE) or not _streams(document, "__properties_version1.0"):
                raise other
        case _:
            if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise other
    document.seek(0)


def check_archive(kind: str, document: BinaryIO) -> None:
    """Checks the directory of an archive. Raises `Rejected`."""
    try:
        members = zipfile.ZipFile(document).infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, EOFError):
        raise Rejected("is damaged, or not complete") from None
    names = [member.filename for member in members]
    if len(members) > MAX_MEMBERS:
        raise Rejected(f"is an archive of more than {MAX_MEMBERS} files")
    if len(set(names)) != len(names):
        raise Rejected("is an archive that holds two files of one name")
    if any(name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) for name in names):
        raise Rejected("is an archive with names that lead out of it")
    if any(_ARCHIVE.search(name) and not _EMBEDDINGS.match(name) for name in names):
        raise Rejected("is an archive that holds other archives")
    size, packed = sum(m.file_size for m in members), max(1, sum(m.compress_size for m in members))
    real = document.seek(0, io.SEEK_END)
    if size > MAX_UNPACKED or (size > FREE_BYTES and size > MAX_RATIO * min(packed, real)):
        raise Rejected(f"is packed too densely: {real} bytes that claim to unpack to {size}")
    if any(member.flag_bits & 1 for member in members):
        raise Rejected("is protected by a password")
    if PARTS[kind] not in names:
        raise Rejected(f"is not a readable {WORDS[kind]}, whatever its name says")


def _encrypted(document: BinaryIO) -> Rejected | None:
    """Returns the rejection of an encrypted document, which Office wraps into its old container format."""
    return Rejected("is protected by a password") if _streams(document, "EncryptedPackage") else None


def _streams(document: BinaryIO, name: str) -> bool:
    import olefile  # type: ignore[import-untyped]

    try:
        with olefile.OleFileIO(document) as container:
            return bool(container.exists(name))
    except (OSError, ValueError, IndexError):
        return False
    finally:
        document.seek(0)


# ── content ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def convert(kind: str, document: BinaryIO, progress: Callable[[int, int], None]) -> tuple[str, int | None]:
    """Returns the Markdown, and the number of pages, if the format has any."""
    # The kind is known. The model by which markitdown would guess it takes a second and a half to load.
    guesser = types.ModuleType("magika")
    guesser.Magika = object  # type: ignore[attr-defined]
    sys.modules["magika"] = guesser
    for library, kinds in READERS.items():
        if kind not in kinds:
            sys.modules[library] = None  # type: ignore[assignment]  # an import of it fails, as if not installed
    from markitdown import StreamInfo, converters

    info = StreamInfo(extension=f".{kind}", charset=_charset(document) if kind in ("html", "csv") else None)
    converter = {
        "pdf": converters.PdfConverter,
        "docx": converters.DocxConverter,
        "pptx": converters.PptxConverter,
        "xlsx": converters.XlsxConverter,
        "xls": converters.XlsConverter,
        "html": converters.HtmlConverter,
        "csv": converters.CsvConverter,
        "epub": converters.EpubConverter,
        "msg": converters.OutlookMsgConverter,
    }[kind]()
    if kind == "pdf":
        texts = [converter.convert(page, info).markdown.strip() for page in pages_of(document, progress)]
        return "\n\n".join(text for text in texts if text), len(texts)
    try:
        return converter.convert(document, info).markdown, None
    except Exception as error:
        if "encrypted" in str(error).lower():
            raise Rejected("is protected by a password") from error
        raise


def pages_of(document: BinaryIO, progress: Callable[[int, int], None]) -> Iterator[BinaryIO]:
    """Yields a PDF page by page, each as a document, for progress and for memory."""
    import pypdfium2  # type: ignore[import-untyped]

    try:
        pdf = pypdfium2.PdfDocument(document)
    except pypdfium2.PdfiumError as error:
        encrypted = "password" in str(error).lower()
        raise Rejected("is protected by a password" if encrypted else "is damaged, or not complete") from None
    for number in range(len(pdf)):
        page, buffer = pypdfium2.PdfDocument.new(), io.BytesIO()
        page.import_pages(pdf, [number])
        page.save(buffer)
        page.close()
        buffer.seek(0)
        yield buffer
        progress(number + 1, len(pdf))


def _charset(document: BinaryIO) -> str | None:
    """Returns `utf-8` if the document decodes as that; else None, and the converter guesses."""
    try:
        document.read().decode("utf-8")
    except UnicodeDecodeError:
        return None
    finally:
        document.seek(0)
    return "utf-8"


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
