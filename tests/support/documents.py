"""Documents for tests: small real ones of every kind, and hostile ones. Builders give the bytes of a file."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def pdf(*pages: str, filler: int = 0) -> bytes:
    """A page for each text. `filler`: bytes of an object that no page uses."""
    with io.BytesIO() as file:
        write_pdf(file, pages, filler)
        return file.getvalue()


def write_pdf(file: IO[bytes], pages: tuple[str, ...], filler: int = 0) -> None:
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(pages):
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {font} /Contents {5 + 2 * n} 0 R >>"
        drawn = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode()
        objects += [page.encode(), b"<< /Length %d >>\nstream\n%b\nendstream" % (len(drawn), drawn)]
    places = []
    file.write(b"%PDF-1.7\n")
    for number, content in enumerate(objects, 1):
        places.append(file.tell())
        file.write(b"%d 0 obj\n%b\nendobj\n" % (number, content))
    if filler:
        places.append(file.tell())
        file.write(b"%d 0 obj\n<< /Length %d >>\nstream\n" % (len(objects) + 1, filler))
        file.seek(filler, io.SEEK_CUR)
        file.write(b"\nendstream\nendobj\n")
    xref = file.tell()
    file.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1))
    for place in places:
        file.write(b"%010d 00000 n \n" % place)
    file.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(places) + 1, xref))


def locked_pdf() -> bytes:
    """Says that it is encrypted by a password that nobody knows."""
    whole = pdf("secret")
    lock = b"<< /Filter /Standard /V 1 /R 2 /O <%b> /U <%b> /P -4 >>" % (b"11" * 32, b"22" * 32)
    root = b"/Root 1 0 R"
    return whole.replace(root, root + b" /Encrypt " + lock + b" /ID [<00> <00>]")


def packed(members: Mapping[str, str | bytes]) -> bytes:
    """A ZIP archive."""
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return file.getvalue()


def _parts(main: str, kind: str) -> dict[str, str]:
    types = (
        f'{_XML}<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/><Override PartName="/{main}" ContentType="{kind}"/>'
    )
    relation = f'<Relationship Id="r1" Type="{_OFFICE}/relationships/officeDocument" Target="{main}"/>'
    return {
        "[Content_Types].xml": f"{types}</Types>",
        "_rels/.rels": f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{relation}</Relationships>',
    }


def docx(*paragraphs: str, more: Mapping[str, str | bytes] | None = None) -> bytes:
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    members = _parts("word/document.xml", kind)
    members["word/document.xml"] = f"{_XML}<w:document {space}><w:body>{body}</w:body></w:document>"
    return packed({**members, **(more or {})})


def xlsx(*rows: tuple[str, ...], more: Mapping[str, str | bytes] | None = None) -> bytes:
    import openpyxl  # type: ignore[import-untyped]

    book, made = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    book.save(made)
    return _with(made.getvalue(), more)


def pptx(*titles: str, more: Mapping[str, str | bytes] | None = None) -> bytes:
    from pptx import Presentation

    show, made = Presentation(), io.BytesIO()
    for title in titles:
        shapes = show.slides.add_slide(show.slide_layouts[5]).shapes
        assert shapes.title is not None
        shapes.title.text = title
    show.save(made)
    return _with(made.getvalue(), more)


def _with(archive: bytes, more: Mapping[str, str | bytes] | None) -> bytes:
    """The archive with more members."""
    file = io.BytesIO(archive)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as opened:
        for name, content in (more or {}).items():
            opened.writestr(name, content)
    return file.getvalue()


def epub(*chapters: str) -> bytes:
    container = '<container><rootfiles><rootfile full-path="book.opf"/></rootfiles></container>'
    items = "".join(f'<item id="c{n}" href="c{n}.xhtml"/>' for n in range(len(chapters)))
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    title = '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Book</dc:title></metadata>'
    book = f"<package>{title}<manifest>{items}</manifest><spine>{spine}</spine></package>"
    pages = {f"c{n}.xhtml": f"<html><body><p>{text}</p></body></html>" for n, text in enumerate(chapters)}
    members = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "book.opf": book}
    return packed({**members, **pages})


def html(text: str) -> bytes:
    return f"<html><head><script>evil()</script></head><body><h1>{text}</h1></body></html>".encode()


def csv(*rows: tuple[str, ...]) -> bytes:
    return "".join(",".join(row) + "\r\n" for row in rows).encode()


def zeros(size: int) -> bytes:
    """What an archive member of so many zero bytes is compressed to (raw deflate)."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block, parts = bytes(1 << 20), []
    for _ in range(size >> 20):
        parts.append(packer.compress(block))
    return b"".join(parts) + packer.flush()


def bomb(whole: bytes, *, mebibytes: int = 32) -> bytes:
    """The archive with a member that is very small and unpacks to very much."""
    return _with(whole, {"bomb.xml": bytes(mebibytes << 20)})


def lying(whole: bytes, member: str, *, mebibytes: int = 24) -> bytes:
    """The archive with a member whose content is far larger than the archive says."""
    file = io.BytesIO(_with(whole, {}))
    names = zipfile.ZipFile(file).namelist()
    contents = {name: zipfile.ZipFile(file).read(name) for name in names}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content + bytes(mebibytes << 20) if name == member else content)
    true, claimed = len(contents[member]) + (mebibytes << 20), len(contents[member])
    return made.getvalue().replace(true.to_bytes(4, "little"), claimed.to_bytes(4, "little"))


REAL: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "paper.pdf": (lambda: pdf("Hello from page one", "And from page two"), "And from page two"),
    "letter.docx": (lambda: docx("Dear reader", "Yours"), "Dear reader"),
    "table.xlsx": (lambda: xlsx(("name", "age"), ("Ada", "36")), "| Ada | 36 |"),
    "show.pptx": (lambda: pptx("First slide", "Second slide"), "# Second slide"),
    "book.epub": (lambda: epub("It was a dark night", "The end"), "It was a dark night"),
    "page.html": (lambda: html("A heading"), "# A heading"),
    "rows.csv": (lambda: csv(("a", "b"), ("1", "ü")), "| 1 | ü |"),
}
"""A document of each kind, and what its text must hold."""


def _nested() -> bytes:
    return docx("x", more={"word/more.zip": packed({"deeper.zip": packed({"a": "b"})})})


HOSTILE: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "bomb.docx": (lambda: bomb(docx("x")), "packed too densely"),
    "bomb.xlsx": (lambda: bomb(xlsx(("x",))), "packed too densely"),
    "bomb.pptx": (lambda: bomb(pptx("x")), "packed too densely"),
    "bomb.epub": (lambda: bomb(epub("x")), "packed too densely"),
    "nested.docx": (_nested, "holds other archives"),
    "crowded.docx": (lambda: docx("x", more={f"word/{n}": "" for n in range(10_001)}), "more than 10000 files"),
    "climbing.docx": (lambda: docx("x", more={"../../etc/passwd": "x"}), "names that lead out of it"),
    "absolute.pptx": (lambda: pptx("x", more={"/etc/passwd": "x"}), "names that lead out of it"),
    "laughing.docx": (lambda: packed({**_laughing()}), "holds no text"),
    "empty.pdf": (lambda: b"", "is empty"),
    "empty.docx": (lambda: b"", "is empty"),
    "zip.pdf": (lambda: packed({"a": "b"}), "is not a readable PDF file"),
    "text.docx": (lambda: b"just text", "is not a readable Word document"),
    "program.csv": (lambda: b"\x7fELF\0\0\0\0", "is not a readable CSV table"),
    "text.xls": (lambda: b"just text", "is not a readable Excel workbook"),
    "text.msg": (lambda: b"just text", "is not a readable Outlook message"),
    "text.eml": (lambda: b"just text", "is not a readable e-mail message"),
    "text.ipynb": (lambda: b"just text", "is damaged, or not complete"),
    "locked.pdf": (locked_pdf, "is protected by a password"),
    "half.docx": (lambda: docx("x" * 5000)[:400], "is damaged, or not complete"),
    "half.epub": (lambda: epub("x" * 5000)[:400], "is damaged, or not complete"),
    "half.xlsx": (lambda: xlsx(("x",))[:-600], "is damaged, or not complete"),
    "half.pdf": (lambda: b"%PDF-1.7\n1 0 obj\n<< /Type /Cat", "is damaged, or not complete"),
    "blank.pdf": (lambda: pdf(""), "holds no text"),
    "talk.ppt": (lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512), "save it as .pptx"),
}
"""What must be refused, and a part of the reason."""


def _laughing() -> dict[str, str]:
    """Entities that expand to three billion characters."""
    lol = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    members = _parts("word/document.xml", "application/xml")
    doctype = f'<!DOCTYPE x [<!ENTITY l0 "lol">{lol}]>'
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    text = "<w:body><w:p><w:r><w:t>&l9;</w:t></w:r></w:p></w:body>"
    members["word/document.xml"] = f'<?xml version="1.0"?>{doctype}<w:document {space}>{text}</w:document>'
    return members


def large_pdf(path: Path, size: int = 100 << 20) -> Path:
    """A file of a hundred megabytes, nearly all of it a hole; valid, with one page of text."""
    with path.open("wb") as file:
        write_pdf(file, ("Text on the page",), size)
    return path
