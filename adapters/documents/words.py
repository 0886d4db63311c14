"""Documents of Word (DOCX, DOCM) by mammoth, from a copy without what stops it; the plain text where that fails."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import mammoth  # type: ignore[import-untyped]
from lxml import etree  # type: ignore[import-untyped]
from markitdown.converter_utils.docx.pre_process import pre_process_docx

from adapters.documents.job import Job, Rejected, joined, note
from adapters.documents.package import Package, Relation, mended, parsed
from adapters.documents.tables import table
from adapters.documents.web import markdown

_STYLES = "u => u\np[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => h2:fresh"
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_STORIES = ("document", "footnotes", "endnotes", "comments")
_NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes", "commentReference": "comments"}
"""Kinds of references, and the parts whose notes they refer to."""


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    job.whole()
    package = Package(document)
    main = package.main() or next((name for name in package if name.startswith("word/document")), "")
    if (root := package.xml(main)) is None:
        raise Rejected("is damaged, or not complete")
    try:
        text = _formatted(package, main)
    except Exception as error:  # any: the library stops at the first thing that it does not know
        package.damaged(main, f"its formatting could not be read ({type(error).__name__}), only its text")
        text = joined(_blocks(next(root.iter("{*}body"), root)))
    return joined([text, *_margins(package, main), *package.notes.values()]), None


def _formatted(package: Package, main: str) -> str:
    copy = _repaired(package, mended(package), main)
    html = mammoth.convert_to_html(pre_process_docx(copy), style_map=_STYLES, include_embedded_style_map=False).value
    return markdown(html)


def _repaired(package: Package, copy: BinaryIO, main: str) -> BinaryIO:
    """Returns the copy without references of texts to what is not there."""
    parts = {name: part for name in _STORIES[1:] for part in package.related(main, name)}
    notes = {name: _ids(package, part) for name, part in parts.items()}
    made = io.BytesIO()
    with zipfile.ZipFile(copy) as before, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as after:
        for name in before.namelist():
            content = before.read(name)
            if name == main or name in parts.values():
                content = _without_loose_ends(package, content, name, notes)
            elif name.endswith("numbering.xml"):
                content = _without_loose_numbers(content)
            after.writestr(name, content)
    made.seek(0)
    return made


def _ids(package: Package, part: str) -> set[str]:
    root = package.xml(part)
    return {element.get(f"{_W}id") or "" for element in root} if root is not None else set()


def _without_loose_ends(package: Package, content: bytes, name: str, notes: Mapping[str, set[str]]) -> bytes:
    root, _ = parsed(content)
    if root is None:
        return content
    relations = package.relations(name)
    missing = set[str]()
    for element in list(root.iter()):
        if not isinstance(element.tag, str):
            continue
        local = etree.QName(element).localname
        if local in _NOTES and element.get(f"{_W}id") not in notes.get(_NOTES[local], ()):
            missing.add(f"a {local.removesuffix('Reference')} that it refers to")
            _drop(element)
        elif key := next(
            (
                key
                for key in element.attrib
                if key.rpartition("}")[2] in ("embed", "id", "link", "pict") and "/relationships}" in key
            ),
            None,
        ):
            if _is_there(package, relations.get(element.get(key) or "")):
                continue
            missing.add("a link" if local == "hyperlink" else "a picture or an object")
            if local == "hyperlink":
                del element.attrib[key]
            else:
                _drop(_picture(element))
    for text in sorted(missing):
        package.notes.setdefault(f"{name}: {text}", note(f"{text} is missing in the file"))
    return etree.tostring(root, xml_declaration=True, encoding="UTF-8", standalone=True)  # type: ignore[no-any-return]


def _is_there(package: Package, relation: Relation | None) -> bool:
    return relation is not None and (relation.external or relation.target in package)


def _picture(element: Any) -> Any:
    """Returns the drawing that an element belongs to."""
    around = next((parent for parent in element.iterancestors() if parent.tag.endswith(("}drawing", "}pict"))), element)
    texts = any(True for _ in around.iter(f"{_W}t"))
    return element if texts else around  # text boxes are drawings, too


def _drop(element: Any) -> None:
    if (parent := element.getparent()) is not None:
        parent.remove(element)


def _without_loose_numbers(content: bytes) -> bytes:
    """Returns the numberings without those that refer to none."""
    root, _ = parsed(content)
    if root is None:
        return content
    known = {element.get(f"{_W}abstractNumId") for element in root.iter(f"{_W}abstractNum")}
    for number in list(root.iter(f"{_W}num")):
        reference = next(number.iter(f"{_W}abstractNumId"), None)
        if reference is None or reference.get(f"{_W}val") not in known:
            _drop(number)
    return etree.tostring(root, xml_declaration=True, encoding="UTF-8", standalone=True)  # type: ignore[no-any-return]


def _margins(package: Package, main: str) -> list[str]:
    """Returns the texts of headers and footers, each once."""
    texts = dict[str, str]()
    for kind in ("header", "footer"):
        usual = [name for name in package if re.fullmatch(rf"word/{kind}\d*\.xml", name)]
        for part in package.related(main, kind) or usual:
            root = package.xml(part)
            text = " ".join(joined(_blocks(root)).split()) if root is not None else ""
            if text:
                texts.setdefault(text, f"> [{kind.capitalize()} of pages: {text}]")
    return list(texts.values())


def _blocks(parent: Any) -> list[str]:
    """Returns the paragraphs and tables below an element as plain text."""
    blocks = list[str]()
    for element in parent:
        match etree.QName(element).localname if isinstance(element.tag, str) else "":
            case "p":
                blocks.append(_text(element))
            case "tbl":
                rows = [[_text(cell) for cell in row.iterchildren("{*}tc")] for row in element.iterchildren("{*}tr")]
                blocks.append(table(rows))
            case "sdt" | "sdtContent" | "customXml" | "ins":
                blocks += _blocks(element)
    return blocks


def _text(parent: Any) -> str:
    parts = list[str]()
    for element in parent.iter("{*}t", "{*}tab", "{*}br", "{*}p"):
        local = etree.QName(element).localname
        if local == "p":
            parts.append("\n" if parts else "")
        else:
            parts.append((element.text or "") if local == "t" else "\t" if local == "tab" else "\n")
    return "".join(parts).strip()
