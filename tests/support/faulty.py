"""Documents with faults, generated: which values each must still have, and whether it may be refused whole."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from tests.support import documents as build
from tests.support import office

VALUE = re.compile(r"V\d{4}V")
"""The values of the documents: a text with any other one was changed."""


class Faulty(NamedTuple):
    """`values` must be in the text; no others than `possible` may. `refusal`: a part of the reason for which it may be
    refused, "" if it must not be.
    """

    name: str
    content: bytes
    values: frozenset[str]
    possible: frozenset[str]
    refusal: str = ""
    fault: str = ""


class Base(NamedTuple):
    """A document with values in several of its parts. `main` is the part without which there is no text."""

    name: str
    content: bytes
    main: str = ""


def bases() -> list[Base]:
    return [
        Base("book.xlsx", _book()),
        Base("text.docx", _text(), "word/document.xml"),
        Base("talk.pptx", _talk()),
        Base("novel.epub", build.epub(*(f"V500{n}V chapter" for n in range(4)))),
        Base("letter.odt", office.odf("text", "".join(f"<text:p>V600{n}V</text:p>" for n in range(4))), "content.xml"),
    ]


def _book() -> bytes:
    def fill(workbook: Any) -> None:
        for sheet in range(3):
            page = workbook.active if sheet == 0 else workbook.create_sheet()
            page.append([f"V1{sheet}{row}0V" for row in range(9)])
            page.append([1234.5, True, None, "007"])

    return office.book(fill)()


def _text() -> bytes:
    def fill(document: Any) -> None:
        for number in range(6):
            document.add_paragraph(f"V200{number}V")
        document.add_paragraph("V2100V", style="List Bullet")
        document.add_picture(io.BytesIO(office.PICTURE))
        document.sections[0].footer.paragraphs[0].text = "V2200V"

    return office.words(fill)()


def _talk() -> bytes:
    def fill(presentation: Any) -> None:
        for number in range(3):
            page = office.slide(presentation, 1, f"V300{number}V")
            page.placeholders[1].text_frame.text = f"V310{number}V"
            page.notes_slide.notes_text_frame.text = f"V320{number}V"

    return office.deck(fill)()


Part = tuple[str, bytes]
Change = Callable[[Random, str, bytes], bytes | None]
_LAUGH = b'<!DOCTYPE x [<!ENTITY a "V9999V">' + b"".join(
    b'<!ENTITY a%d "%b">' % (n, b"&a%b;" % (b"%d" % (n - 1) if n > 1 else b"") * 10) for n in range(1, 10)
) + b"]>"  # fmt: skip


def _entities(_: Random, name: str, content: bytes) -> bytes:
    start = content.find(b"?>") + 2 if content.startswith(b"<?xml") else 0
    end = content.rfind(b"</")
    return content[:start] + _LAUGH + content[start:end] + b"&a9;" + content[end:]


def _deep(_: Random, name: str, content: bytes) -> bytes:
    end = content.rfind(b"</")
    return content[:end] + b"<x>" * 20_000 + b"</x>" * 20_000 + content[end:]


PARTS: Mapping[str, Change] = {
    "missing": lambda random, name, content: None,
    "cut": lambda random, name, content: content[: random.randrange(1, max(2, len(content)))],
    "garbage": lambda random, name, content: random.randbytes(300),
    "empty": lambda random, name, content: b"",
    "entities": _entities,
    "deep": _deep,
    "wrong encoding": lambda random, name, content: re.sub(rb'encoding="[^"]*"', b'encoding="utf-16"', content),
    "control characters": lambda random, name, content: content.replace(b"<", b"\x01<", 3),
    "unescaped": lambda random, name, content: content.replace(b">V", b">& <V", 2),
    "other ids": lambda random, name, content: re.sub(rb'Id="rId(\d)"', rb'Id="x\1"', content),
    "other targets": lambda random, name, content: re.sub(rb'Target="[^"]*"', b'Target="no/where.xml"', content),
    "absurd numbers": lambda random, name, content: re.sub(rb'="\d+"', lambda m: b'="99999999999999999999"', content),
    "negative numbers": lambda random, name, content: re.sub(rb'="\d+"', lambda m: b'="-1"', content),
    "words for numbers": lambda random, name, content: re.sub(rb'="\d+"', lambda m: b'="many"', content),
}
"""Faults of one part."""
WHOLE = ("truncated", "bomb", "other extension", "password", "bad checksum", "nested", "far cells")


def generate(number: int) -> Faulty:
    random = Random(number)
    base = random.choice(bases())
    kinds = [*PARTS, *PARTS, *WHOLE]
    kind = kinds[number % len(kinds)]
    if kind in PARTS:
        return _with_part(random, base, kind)
    return _whole(random, base, kind)


def _values(content: bytes) -> frozenset[str]:
    return frozenset(VALUE.findall(content.decode("utf-8", "replace")))


def _with_part(random: Random, base: Base, kind: str) -> Faulty:
    with zipfile.ZipFile(io.BytesIO(base.content)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    whole = frozenset[str]().union(*map(_values, contents.values()))
    name = random.choice([name for name in contents if name != "mimetype"])
    content = PARTS[kind](random, name, contents[name])
    shared = name == "xl/sharedStrings.xml" or name.startswith("xl/worksheets/")
    lost = _values(contents[name]) - (_values(content) if content is not None and kind not in _TAKING else frozenset())
    values = whole - lost
    if shared and kind != "other targets":
        values = frozenset()  # texts lie in one part and are named in another
    if kind in _RENAMING or name.endswith(".rels"):
        values = values & _reachable(base, name, values)
    refusal = "" if name != base.main else "is damaged|holds no text"
    faulty = office.replaced(base.content, {name: content})
    return Faulty(base.name, faulty, values, whole, refusal, f"{kind} in {name}")


_TAKING = ("cut", "garbage", "deep", "wrong encoding", "control characters", "unescaped", "entities")
"""Faults that may cost all of their part."""


_RENAMING = ("absurd numbers", "negative numbers", "words for numbers", "other ids", "other targets")


def _reachable(base: Base, name: str, values: frozenset[str]) -> frozenset[str]:
    """The values that are there whatever relations and numbers say: those of a text's main part."""
    if name.endswith(".rels") or name == "[Content_Types].xml":
        main = {"text.docx": "V20", "letter.odt": "V60", "book.xlsx": "V1", "talk.pptx": "V30"}.get(base.name, "none")
        return frozenset(value for value in values if value.startswith(main) and "slides/_rels" not in name)
    return values if name.startswith(("docProps", "META-INF")) else frozenset()


def _whole(random: Random, base: Base, kind: str) -> Faulty:
    whole = frozenset[str]()
    match kind:
        case "truncated":
            cut = base.content[: random.randrange(1, len(base.content) - 30)]
            return Faulty(base.name, cut, whole, whole, "is damaged|is not a readable", kind)
        case "bomb":
            return Faulty(base.name, build.bomb(base.content), whole, whole, "packed too densely", kind)
        case "nested":
            content = office.replaced(base.content, {"more.zip": build.packed({"a": "b"})})
            return Faulty(base.name, content, whole, whole, "holds other archives", kind)
        case "password":
            content = office.compound({"EncryptedPackage": b"x", "EncryptionInfo": b"x"})
            return Faulty("secret.xlsx", content, whole, whole, "protected by a password", kind)
        case "bad checksum":
            return _flipped(random, base)
        case "far cells":
            return _far(random)
    values = frozenset(value for value in _all(base) if not value.startswith(("V22", "V32")))
    other = random.choice([name for name in (".xlsx", ".docx", ".pptx", ".xls") if not base.name.endswith(name)])
    return Faulty(f"other{other}", base.content, values, _all(base), "", kind)


def _all(base: Base) -> frozenset[str]:
    with zipfile.ZipFile(io.BytesIO(base.content)) as archive:
        return frozenset[str]().union(*(_values(archive.read(name)) for name in archive.namelist()))


def _flipped(random: Random, base: Base) -> Faulty:
    """A byte of a member is another one: its checksum is wrong, or it cannot be unpacked."""
    with zipfile.ZipFile(io.BytesIO(base.content)) as archive:
        member = random.choice([member for member in archive.infolist() if member.compress_size > 20])
    start = member.header_offset + 30 + len(member.filename.encode())
    place = start + random.randrange(member.compress_size - 1)
    content = bytearray(base.content)
    content[place] ^= 0xFF
    return Faulty(
        base.name,
        bytes(content),
        frozenset(),
        _all(base),
        "is damaged|holds no text" if member.filename == base.main else "",
        f"bad checksum of {member.filename}",
    )


def _far(random: Random) -> Faulty:
    row, column = random.choice(
        [(1_048_576, "A"), (1, "XFD"), (1_048_576, "XFD"), (200_000, "AMJ"), (9_999_999_999, "A")]
    )
    extra = f'<row r="{row}"><c r="{column}{row}" t="str"><v>V7001V</v></c></row>'
    near = '<row r="1"><c r="A1" t="str"><v>V7000V</v></c></row>'
    ranges = "".join(f'<mergeCell ref="A2:XFD{n}"/>' for n in (1_048_576, 99_999_999))
    after = f"<mergeCells>{ranges}</mergeCells>" if random.random() < 0.3 and row > 1 else ""
    content = office.sheet_xml(near + extra, after=after)
    return Faulty(
        "far.xlsx", content, frozenset({"V7000V"}), frozenset({"V7000V", "V7001V"}), "", f"far cell {column}{row}"
    )
