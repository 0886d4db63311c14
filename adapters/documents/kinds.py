"""The kind of a document, by its content. A name only says what people expect: exports of many systems are called
`.xls`, and are pages of HTML or lines of text.
"""

from __future__ import annotations

import io
import re
import zipfile
from typing import BinaryIO

from adapters.documents.job import Rejected
from adapters.documents.package import BAD_ZIP

MAX_MEMBERS = 10_000
MAX_UNPACKED = 1 << 30
"""Limit of an archive's unpacked bytes, as its directory states them; no reader goes beyond that."""
MAX_RATIO = 200
"""Limit of an archive's compression ratio. XML reaches about 20, tables of equal cells 100."""
FREE_BYTES = 16 << 20
"""Unpacked bytes up to which any ratio is allowed."""
HEAD = 8192
"""Bytes that are checked to tell text from binary data (as many as DeerFlow's artifacts)."""

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
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
    "eml": "e-mail message",
    "odt": "OpenDocument text",
    "ods": "OpenDocument spreadsheet",
    "odp": "OpenDocument presentation",
    "rtf": "RTF document",
    "ipynb": "notebook",
    "doc": "Word document",
    "ppt": "PowerPoint presentation",
}
_MAIN = (
    (r"word/document\d*\.xml", "docx"),
    (r"ppt/presentation\d*\.xml", "pptx"),
    (r"xl/workbook\d*\.(xml|bin)", "xlsx"),
    (r"META-INF/container\.xml|.*\.opf", "epub"),
    (r"content\.xml", "odt"),
)
"""Members by which an archive is recognised."""
_OPEN_DOCUMENT = {
    b"application/vnd.oasis.opendocument.text": "odt",
    b"application/vnd.oasis.opendocument.spreadsheet": "ods",
    b"application/vnd.oasis.opendocument.presentation": "odp",
}
_STREAMS = (
    ("EncryptedPackage", "encrypted"),
    ("__properties_version1.0", "msg"),
    ("Workbook", "xls"),
    ("Book", "xls"),
    ("WordDocument", "doc"),
    ("PowerPoint Document", "ppt"),
)
"""Streams by which a container of the old format is recognised."""
_ARCHIVE = re.compile(r"\.(zip|gz|tgz|bz2|xz|7z|rar|tar|jar|docx|pptx|xlsx|epub)\Z", re.IGNORECASE)
_EMBEDDINGS = re.compile(r"\A(word|ppt|xl)/embeddings/|\AObject ")
"""Folders of the workbooks behind Office's charts. No converter opens them."""
_HTML = re.compile(rb"<(!doctype\s+html|html|head|body|table|div|meta|p|h1)[\s>]", re.IGNORECASE)
_SHEETS_2003 = b"urn:schemas-microsoft-com:office:spreadsheet"
_SEPARATED = re.compile(rb"\A[^\n]*[\t;,]")
_HEADER = re.compile(
    rb"\A(From |(Received|Return-Path|MIME-Version|Date|From|To|Subject|Message-ID|X-[\w-]+|Delivered-To):)",
    re.IGNORECASE,
)


def kind_of(expected: str, document: BinaryIO) -> str:
    """Returns the kind whose reader fits the content. Raises `Rejected` for a document that is empty, not what its name
    says nor anything else with a text, encrypted, or an archive bomb.
    """
    head = document.read(HEAD)
    document.seek(0)
    if not head:
        raise Rejected("is empty")
    if head.startswith(OLE):
        return _container(expected, document)
    if head.startswith(ZIP):
        return _archive(expected, document)
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{\\rtf"):
        return "rtf"
    if _is_text(head):
        return _text(expected, head)
    raise _other(expected)


def _other(expected: str) -> Rejected:
    return Rejected(f"is not a readable {WORDS[expected]}, whatever its name says")


def _is_text(head: bytes) -> bool:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" not in head:
        return True
    wide = max(head[::2].count(0), head[1::2].count(0))  # UTF-16 without a mark
    return wide > 0.35 * len(head)


def _text(expected: str, head: bytes) -> str:
    """Returns the kind of a text. Those that need a format of their own are refused without it."""
    plain = head.replace(b"\0", b"")
    if _SHEETS_2003 in plain:
        return "sheets2003"
    if expected in ("html", "csv", "ipynb"):
        return expected
    if expected == "eml" or (expected == "msg" and _HEADER.match(plain)):
        return "eml" if _HEADER.match(plain.lstrip(b"\xef\xbb\xbf\r\n")) else _refused(expected)
    if _HTML.search(plain[:2048]) and expected in ("xls", "xlsx", "doc", "docx"):
        return "html"
    if expected in ("xls", "xlsx") and not plain.startswith(b"<") and _SEPARATED.search(plain):
        return "csv"
    return _refused(expected)


def _refused(expected: str) -> str:
    raise _other(expected)


def _container(expected: str, document: BinaryIO) -> str:
    import olefile  # type: ignore[import-untyped]

    kind = ""
    try:
        with olefile.OleFileIO(document) as container:
            kind = next((kind for stream, kind in _STREAMS if container.exists(stream)), "")
    except (OSError, ValueError, IndexError, TypeError):
        kind = ""
    document.seek(0)
    if kind == "encrypted":
        raise Rejected("is protected by a password")
    kind = kind or expected
    if kind == "ppt":
        raise Rejected("is of an old format that cannot be converted; save it as .pptx")
    if kind not in ("xls", "msg", "doc"):
        raise _other(expected)
    return kind


def _archive(expected: str, document: BinaryIO) -> str:
    """Checks the directory of an archive. Returns the kind by its members. Raises `Rejected`."""
    try:
        archive = zipfile.ZipFile(document)
        members = archive.infolist()
    except BAD_ZIP:
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
    kind = _package(archive, [name.replace("\\", "/") for name in names])
    document.seek(0)
    if not kind:
        raise _other(expected)
    return kind


def _package(archive: zipfile.ZipFile, names: list[str]) -> str:
    """Returns the kind of a package: by its type, its main part, or the folder that its parts are in."""
    try:
        kind = _OPEN_DOCUMENT.get(re.split(rb"-(?:template|master)", archive.read("mimetype").strip())[0])
    except (KeyError, *BAD_ZIP):
        kind = None
    if kind:
        try:
            manifest = archive.read("META-INF/manifest.xml")
        except (KeyError, *BAD_ZIP):
            manifest = b""
        if b"encryption-data" in manifest:
            raise Rejected("is protected by a password")
        return kind
    for pattern, known in _MAIN:
        if any(re.fullmatch(pattern, name, re.IGNORECASE) for name in names):
            return known
    folders = {"word": "docx", "ppt": "pptx", "xl": "xlsx"}
    kinds = (folders.get(name.partition("/")[0].lower()) for name in names if name.endswith(".xml"))
    return next((known for known in kinds if known), "")
