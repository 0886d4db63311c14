"""Packages of Office and OpenDocument: their parts, each read as far as it can be, and mended copies for libraries."""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from lxml import etree  # type: ignore[import-untyped]

from adapters.documents.job import Rejected, note

RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_STRICT = (
    (b"http://purl.oclc.org/ooxml/officeDocument/relationships", RELATIONS.encode()),
    (
        b"http://purl.oclc.org/ooxml/wordprocessingml/main",
        b"http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    ),
    (b"http://purl.oclc.org/ooxml/spreadsheetml/main", b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"),
    (b"http://purl.oclc.org/ooxml/presentationml/main", b"http://schemas.openxmlformats.org/presentationml/2006/main"),
    (b"http://purl.oclc.org/ooxml/drawingml/main", b"http://schemas.openxmlformats.org/drawingml/2006/main"),
    (b"http://purl.oclc.org/ooxml/drawingml/chart", b"http://schemas.openxmlformats.org/drawingml/2006/chart"),
)
"""Namespaces of ISO 29500 Strict, and what everybody else calls them."""
_TYPES = {
    "rels": "application/vnd.openxmlformats-package.relationships+xml",
    "xml": "application/xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "gif": "image/gif",
}
_OFFICE = "application/vnd.openxmlformats-officedocument."
_PARTS = (
    (r"word/document\d*\.xml", f"{_OFFICE}wordprocessingml.document.main+xml"),
    (r"word/(styles|numbering|footnotes|endnotes|comments|settings)\.xml", _OFFICE + r"wordprocessingml.\1+xml"),
    (r"ppt/presentation\.xml", f"{_OFFICE}presentationml.presentation.main+xml"),
    (r"ppt/slides/slide\d+\.xml", f"{_OFFICE}presentationml.slide+xml"),
    (r"ppt/slideLayouts/slideLayout\d+\.xml", f"{_OFFICE}presentationml.slideLayout+xml"),
    (r"ppt/slideMasters/slideMaster\d+\.xml", f"{_OFFICE}presentationml.slideMaster+xml"),
    (r"ppt/notesSlides/notesSlide\d+\.xml", f"{_OFFICE}presentationml.notesSlide+xml"),
    (r"ppt/notesMasters/notesMaster\d+\.xml", f"{_OFFICE}presentationml.notesMaster+xml"),
    (r"ppt/theme/theme\d+\.xml", "application/vnd.openxmlformats-officedocument.theme+xml"),
    (r"ppt/charts/chart\d+\.xml", "application/vnd.openxmlformats-officedocument.drawingml.chart+xml"),
)
"""Content types of parts by their usual names, for a package that does not say them."""
BAD_ZIP = (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError)


class Relation(NamedTuple):
    """A relation of a part. `kind` is the last word of its type; `target` a part's name, or an address outside."""

    kind: str
    target: str
    external: bool = False


class Package:
    """Guarantees: a part that is damaged or missing costs that part, and a note."""

    def __init__(self, document: BinaryIO) -> None:
        try:
            self._zip = zipfile.ZipFile(document)
        except BAD_ZIP:
            raise Rejected("is damaged, or not complete") from None
        self._members = {_normal(member.filename): member for member in self._zip.infolist()}
        self._lower = {name.lower(): name for name in self._members}
        self.notes: dict[str, str] = {}
        """Notes by the names of parts."""

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._lower

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def damaged(self, name: str, reason: str) -> None:
        self.notes.setdefault(name, note(f"{name}: {reason}"))

    def stream(self, name: str) -> BinaryIO | None:
        """Returns a part for reading."""
        known = self._lower.get(name.lower())
        try:
            return self._zip.open(self._members[known]) if known is not None else None  # type: ignore[return-value]
        except BAD_ZIP as error:
            self.damaged(name, f"damaged ({error})")
            return None

    def content(self, name: str) -> bytes:
        """Returns a part as far as it can be unpacked; b"" if it is not there."""
        parts = list[bytes]()
        if (stream := self.stream(name)) is None:
            return b""
        with stream:
            stream._expected_crc = None  # type: ignore[attr-defined]  # or the end of a damaged part would not be given
            try:
                while chunk := stream.read(1 << 16):
                    parts.append(chunk)
            except BAD_ZIP as error:
                self.damaged(name, f"damaged ({error}); what could be read of it is there")
        content = b"".join(parts)
        if zlib.crc32(content) != self._members[self._lower[name.lower()]].CRC:
            self.damaged(name, "damaged (wrong checksum); what could be read of it is there")
        if b"http://purl.oclc.org/ooxml/" in content:
            for strict, usual in _STRICT:
                content = content.replace(strict, usual)
        return content

    def xml(self, name: str) -> Any:
        """Returns the root of a part, as far as it can be read; None if there is none."""
        if not (content := self.content(name)):
            return None
        root, reason = parsed(content)
        if reason:
            self.damaged(name, f"is not well-formed ({reason}); what could be read of it is there")
        return root

    def main(self, kind: str = "officeDocument") -> str:
        """Returns the name of the main part, "" if there is none."""
        return next((target for target in self.related("", kind)), "")

    def relations(self, name: str) -> Mapping[str, Relation]:
        """Returns the relations of a part by id; "" is the package."""
        folder, file = posixpath.split(name)
        root = self.xml(posixpath.join(folder, "_rels", f"{file}.rels"))
        relations = dict[str, Relation]()
        for element in root.iter("{*}Relationship") if root is not None else ():
            target, external = element.get("Target") or "", element.get("TargetMode") == "External"
            kind = (element.get("Type") or "").rpartition("/")[2]
            target = target if external else self.known(posixpath.join(folder, target))
            relations[element.get("Id") or ""] = Relation(kind, target, external)
        return relations

    def related(self, name: str, kind: str) -> list[str]:
        """Returns the parts that are there, and related to a part in this way."""
        relations = self.relations(name).values()
        return [
            found.target for found in relations if found.kind == kind and not found.external and found.target in self
        ]

    def known(self, name: str) -> str:
        """Returns the name of a part as the package writes it."""
        name = _normal(unquote(name) if unquote(name).lower() in self._lower else name)
        return self._lower.get(name.lower(), name)


def completed(targets: Sequence[str], parts: Sequence[str], *, damaged: bool) -> list[str]:
    """Returns targets, with the parts that none leads to in the places of those that lead nowhere ("").

    Only where there is one for each, or what names them is damaged: then those that are left come at the end.
    """
    left = [part for part in parts if part not in targets]
    if not damaged and len(left) != sum(not target for target in targets):
        return list(targets)
    free = iter(left)
    return [*(target or next(free, "") for target in targets), *(free if damaged else ())]


def parsed(content: bytes) -> tuple[Any, str]:
    """Returns the root of XML, without its entities, and why it is not whole, "" if it is."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, recover=True, remove_comments=True, remove_pis=True
    )
    try:
        root = etree.fromstring(content, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        return None, str(error)[:200]
    if root is None:
        return None, "it holds no XML"
    fatal = next((entry for entry in parser.error_log if entry.level_name in ("FATAL", "ERROR")), None)
    doctype = root.getroottree().docinfo.internalDTD
    if doctype is not None and any(True for _ in doctype.iterentities()):
        return root, "it declares entities, which are not expanded"
    return root, fatal.message[:200] if fatal is not None else ""


def mended(package: Package) -> BinaryIO:
    """Returns a copy that libraries can open: parts that are well-formed, relations that lead somewhere, types of
    content. Media are left empty.
    """
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as archive:
        for name in package:
            if name.endswith("/") or name == "[Content_Types].xml":
                continue
            content = b"" if _is_media(name) else package.content(name)
            if name.endswith((".xml", ".rels")):
                root, reason = parsed(content)
                if root is None:
                    package.damaged(name, f"cannot be read ({reason})")
                    continue
                if name.endswith(".rels"):
                    _mend_relations(package, name, root)
                if reason or name.endswith(".rels"):
                    if reason:
                        package.damaged(name, f"is not well-formed ({reason}); what could be read of it is there")
                    content = etree.tostring(root, xml_declaration=True, encoding="UTF-8", standalone=True)
            archive.writestr(name, content)
        archive.writestr("[Content_Types].xml", _content_types(package))
    copy.seek(0)
    return copy


def _mend_relations(package: Package, name: str, root: Any) -> None:
    """Removes relations to parts that are not there."""
    folder, file = posixpath.split(name)
    base = posixpath.dirname(folder)
    for element in list(root.iter("{*}Relationship")):
        target = element.get("Target") or ""
        if element.get("TargetMode") == "External" or target.startswith("#"):
            continue
        part = package.known(posixpath.join(base, target))
        if part not in package or not (element.get("Id") and element.get("Type")):
            package.damaged(part, f"is missing, though {file.removesuffix('.rels') or 'the document'} names it")
            element.getparent().remove(element)
        elif part != _normal(posixpath.join(base, target)):
            element.set("Target", f"/{part}")


def _content_types(package: Package) -> bytes:
    """Returns the types of content as the package says them, completed by the usual names of parts."""
    root = package.xml("[Content_Types].xml")
    if root is None or etree.QName(root).localname != "Types":
        package.damaged("[Content_Types].xml", "is missing, or cannot be read")
        root = etree.Element(f"{{{PACKAGE}/content-types}}Types")
    space = etree.QName(root).namespace
    known = {_normal(element.get("PartName") or "").lower() for element in root.iter("{*}Override")}
    endings = {(element.get("Extension") or "").lower() for element in root.iter("{*}Default")}
    for ending in {name.rpartition(".")[2].lower() for name in package} - endings:
        kind = _TYPES.get(ending, "application/octet-stream")
        etree.SubElement(root, f"{{{space}}}Default", Extension=ending, ContentType=kind)
    for name in package:
        for pattern, kind in _PARTS:
            if name.lower() not in known and (match := re.fullmatch(pattern, name)):
                etree.SubElement(root, f"{{{space}}}Override", PartName=f"/{name}", ContentType=match.expand(kind))
    return etree.tostring(root, xml_declaration=True, encoding="UTF-8", standalone=True)  # type: ignore[no-any-return]


def _is_media(name: str) -> bool:
    return bool(re.match(r"(word|ppt|xl)/(media|embeddings|fonts)/", name))


def _normal(name: str) -> str:
    """Returns the name of a part with slashes, and without a leading one."""
    return posixpath.normpath(name.replace("\\", "/")).lstrip("/") if name else ""
