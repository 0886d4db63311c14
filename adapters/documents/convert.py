"""Converts one document to Markdown, in a process of its own that is thrown away afterwards.

Run as a file: `python -I convert.py <kind> <limits as JSON>`. The document is standard input, the Markdown goes to
standard output, and what happens meanwhile to standard error, one JSON object a line: `{"page", "of"}` on the way, then
one of `{"converted": {"pages"}}`, `{"rejected": reason}` (in words for people) and `{"failed": error}` (for the log).

Every document is taken for an attack on the library that reads it. So its outside is looked at first (what it is, what
an archive says it holds), and the limits of this process hold whatever comes then.
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
"""Bytes an archive may hold when unpacked, by its own word; no reader goes beyond that."""
MAX_RATIO = 200
"""How many times smaller than its content an archive may be. XML gets to 20 or so, tables of equal cells to 100."""
FREE_BYTES = 16 << 20
"""Up to here the ratio does not matter."""
HEAD = 8192
"""Bytes that are looked at to tell text from other things (contract runtime §19)."""

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
"""The member that makes an archive what it is."""
READERS = {
    "pandas": ("xlsx", "xls"),
    "pdfminer": ("pdf",),
    "pdfplumber": ("pdf",),
    "pptx": ("pptx",),
    "mammoth": ("docx",),
    "olefile": ("msg",),
}
"""The libraries that markitdown loads if they are there, and the kinds of documents each is for. All of them together
take six times as long to load as what a web page needs.
"""
_ARCHIVE = re.compile(r"\.(zip|gz|tgz|bz2|xz|7z|rar|tar|jar|docx|pptx|xlsx|epub)\Z", re.IGNORECASE)
_EMBEDDINGS = re.compile(r"\A(word|ppt|xl)/embeddings/")
"""Where Office keeps the workbooks behind its charts. Nothing here opens them."""


class Rejected(Exception):
    """In words for people; they follow the name of the file."""


def main(kind: str, limits: dict[str, int]) -> None:
    words, out = os.fdopen(os.dup(2), "w", encoding="utf-8"), os.dup(1)
    void = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(void, fd)  # what libraries print is for nobody
    restrict(limits)

    def say(**what: Any) -> None:
        words.write(json.dumps(what) + "\n")
        words.flush()

    try:
        with open(0, "rb") as document:
            inspect(kind, document)
            text, pages = convert(kind, document, lambda page, of: say(page=page, of=of))
        save(text, out, limits["FSIZE"])
        say(converted={"pages": pages})
    except Rejected as reason:
        say(rejected=str(reason))
    except MemoryError:
        say(rejected="needs more memory to be converted than is allowed")
    except BaseException as error:
        say(failed=f"{type(error).__name__}: {error}"[:1000])


def restrict(limits: dict[str, int]) -> None:
    """RLIMIT_… names and values; `WALL` is the clock on the wall, should nobody be there to keep it."""
    os.nice(10)
    signal.alarm(limits["WALL"])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for name in ("AS", "CPU", "FSIZE", "NOFILE"):
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
        resource.setrlimit(number, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def save(text: str, out: int, most: int) -> None:
    data = text.strip().encode("utf-8", "replace")
    if not data:
        raise Rejected("holds no text; perhaps its pages are pictures")
    if len(data) >= most:
        raise Rejected(f"holds more than {most >> 20} MB of text")
    with open(out, "wb") as file:
        file.write(data + b"\n")


# ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────────────


def inspect(kind: str, document: BinaryIO) -> None:
    """Raises `Rejected` for what is empty, not of its kind, locked, or packed to explode."""
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
                raise _locked(document) or other
            if not head.startswith(ZIP):
                raise other
            unpacked(kind, document)
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


def unpacked(kind: str, document: BinaryIO) -> None:
    """Look at the table of contents of an archive."""
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


def _locked(document: BinaryIO) -> Rejected | None:
    """Office wraps what is protected by a password into its old container format."""
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


# ── what it says ────────────────────────────────────────────────────────────────────────────────────────────────────


def convert(kind: str, document: BinaryIO, progress: Callable[[int, int], None]) -> tuple[str, int | None]:
    """The Markdown, and how many pages there were, if it has such."""
    # The kind is known. The model by which markitdown would guess it takes a second and a half to load.
    guesser = types.ModuleType("magika")
    guesser.Magika = object  # type: ignore[attr-defined]
    sys.modules["magika"] = guesser
    for library, kinds in READERS.items():
        if kind not in kinds:
            sys.modules[library] = None  # type: ignore[assignment]  # an import of it fails, as if it were not there
    from markitdown import StreamInfo, converters

    info = StreamInfo(extension=f".{kind}", charset=_charset(document) if kind in ("html", "csv") else None)
    made = {
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
        texts = [made.convert(page, info).markdown.strip() for page in pages_of(document, progress)]
        return "\n\n".join(text for text in texts if text), len(texts)
    try:
        return made.convert(document, info).markdown, None
    except Exception as error:
        if "encrypted" in str(error).lower():
            raise Rejected("is protected by a password") from error
        raise


def pages_of(document: BinaryIO, progress: Callable[[int, int], None]) -> Iterator[BinaryIO]:
    """A PDF page by page, each as a document: it can be said how far it is, and no page costs the memory of all."""
    import pypdfium2  # type: ignore[import-untyped]

    try:
        whole = pypdfium2.PdfDocument(document)
    except pypdfium2.PdfiumError as error:
        locked = "password" in str(error).lower()
        raise Rejected("is protected by a password" if locked else "is damaged, or not complete") from None
    for number in range(len(whole)):
        page, buffer = pypdfium2.PdfDocument.new(), io.BytesIO()
        page.import_pages(whole, [number])
        page.save(buffer)
        page.close()
        buffer.seek(0)
        yield buffer
        progress(number + 1, len(whole))


def _charset(document: BinaryIO) -> str | None:
    """UTF-8 if it is that; else the converter guesses."""
    try:
        document.read().decode("utf-8")
    except UnicodeDecodeError:
        return None
    finally:
        document.seek(0)
    return "utf-8"


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
