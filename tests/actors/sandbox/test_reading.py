"""What read_file answers, against the bytes of the file."""

from __future__ import annotations

import io
import re
import tracemalloc
import zipfile
from pathlib import Path

import openpyxl  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from actors.sandbox import Sandbox, reading
from actors.sandbox.reading import answer
from adapters.documents.local import LocalDocuments
from adapters.tools.read_file import read_file
from core.config.sandbox import Sandbox as Limits
from core.errors import Invalid
from core.ports.documents import KINDS, TEXTS, WHOLE, Selection
from tests.actors.sandbox.test_actor import Asking
from tests.adapters.sandboxes.conftest import provider_of
from tests.support import documents

pytestmark = pytest.mark.anyio
GERMAN = "Straße in München, schöne Grüße"
LONG = "long lines are cut: look at them with a command (cut -c, jq)"
texts = st.lists(st.text(st.sampled_from("ab ä\u2028\x0c"), max_size=8), min_size=1, max_size=12).map("\n".join)


def read(
    content: bytes, first: int | None = None, last: int | None = None, limit: int = 0, numbered: bool = False
) -> str:
    return answer("a", content, (first, last), limit, numbered=numbered)


@given(
    text=texts.filter(bool),
    first=st.none() | st.integers(-1, 12),
    last=st.none() | st.integers(1, 14),
    limit=st.integers(0, 40),
)
def test_lines_are_those_of_the_file(text: str, first: int | None, last: int | None, limit: int) -> None:
    """Whatever the cut, reading on from the line that it names gives the whole range."""
    lines = text.removesuffix("\n").split("\n")
    start, end = max(1, first or 1), min(last or len(lines), len(lines))
    expected, collected, begin = lines[start - 1 : end], list[str](), first
    if start > len(lines) or end < start:
        with pytest.raises(Invalid, match=f"the file has {len(lines)} lines"):
            read(text.encode(), first, last, limit)
        return
    while True:
        result = read(text.encode(), begin, last, limit, numbered=True)
        body, _, note = result.partition("\n\n[")
        collected += [line.split("\t", 1)[1] for line in body.split("\n")]
        more = re.search(r"read on with start_line=(\d+)", note)
        if more is None:
            break
        begin = int(more[1])
    assert [line.partition(" … [")[0] for line in collected] == [line[: limit or None] for line in expected]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "(empty)"),
        (b"a\nb\n", "a\nb"),
        (b"a\r\nb\r\n", "a\nb\n\n[lines end with CRLF]"),
        ("größe".encode("utf-16"), "größe\n\n[encoded in utf-16-le]"),
        (GERMAN.encode("cp1252"), f"{GERMAN}\n\n[encoded in cp1252]"),
        (b"x" * 6000, f"{'x' * 5000} … [1000 more characters in this line]\n\n[{LONG}]"),
    ],
)  # fmt: skip
def test_texts(content: bytes, expected: str) -> None:
    assert read(content) == expected


def test_chinese_text_is_decoded_and_its_encoding_named() -> None:
    text = "数据分析报告,销售金额,产品名称,客户地址\n北京,上海,广州,深圳\n" * 5
    result = read(text.encode("gbk"))
    assert result.startswith(text.rstrip("\n"))
    assert re.search(r"encoded in (gb\w+)", result)


def _image(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (31, 17)).save(file, kind)
    return file.getvalue()


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("b/c.txt", "12345")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (_image("png"), "a picture: PNG, 31 × 17 pixels"),
        (_image("jpeg"), "a picture: JPEG, 31 × 17 pixels"),
        (_image("gif"), "a picture: GIF, 31 × 17 pixels"),
        (_image("webp"), "a picture: WebP"),
        (b"\x89PNG\r\n\x1a\n\0", "a picture: PNG, 9 bytes"),
        (b"\xff\xd8\xff\xe0\0", "a picture: JPEG, 5 bytes"),
        (_zip(), "a ZIP archive of 1 file, "),
        (_zip(), "b/c.txt (5 bytes)"),
        (_zip()[:30] + b"\0" * 9, "a ZIP archive, 39 bytes, damaged or not complete"),
        (b"\x1f\x8b\x08\0\0\0", "a gzip file, 6 bytes: unpacked a text of at least 0 bytes"),
        (b"\0\1\2\xff", "is binary, 4 bytes; it begins with 00 01 02 ff"),
    ],
)
def test_what_is_no_text_is_described(content: bytes, words: str) -> None:
    assert words in read(content)


def test_a_few_lines_of_a_large_file_take_little_memory() -> None:
    content = b"ab\n" * (8 << 20)
    tracemalloc.start()
    try:
        assert read(content, 2, 3).startswith("ab\nab\n\n[lines 2 to 3 of 8388608,")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(content)
    finally:
        tracemalloc.stop()


async def test_documents_are_read_by_their_text(tmp_path: Path) -> None:
    provider = provider_of("bubblewrap", tmp_path)
    await provider.acquire("ada", "t1")
    folder = tmp_path / "home/users/ada/threads/t1/user-data/workspace"
    (folder / "a.pdf").write_bytes(documents.pdf("First page", "Second page"))
    (folder / "b.docx").write_bytes(documents.docx("One paragraph"))
    (folder / "c.xlsx").write_bytes(b"no workbook")
    ask = Asking(Sandbox(provider, Limits(), documents=LocalDocuments(tmp_path / "home", unconfined=lambda: True)))
    text = await ask.use(read_file, path="a.pdf")
    assert text.startswith("First page")
    assert text.endswith("[text of a document of 2 pages]")
    assert "Second page" in await ask.use(read_file, path="a.pdf", start_line=2)
    assert await ask.use(read_file, path="b.docx") == "One paragraph\n\n[text of a document]"
    with pytest.raises(Invalid, match=r"c\.xlsx is not"):
        await ask.use(read_file, path="c.xlsx")


UPLOADS = "/mnt/user-data/uploads"
PAGES, SHEET = Selection("2-3"), Selection(sheet="Costs")


@pytest.mark.parametrize(
    ("path", "only", "convert", "converted"),
    [
        *((f"a{suffix}", WHOLE, None, True) for suffix in KINDS if KINDS[suffix] not in ("html", "csv")),
        *((f"a{suffix}", WHOLE, True, True) for suffix in KINDS),
        *((f"a{suffix}", PAGES, None, True) for suffix in KINDS),
        *((f"a{suffix}", WHOLE, False, KINDS[suffix] not in TEXTS) for suffix in KINDS),
        ("a.html", WHOLE, None, False),
        (f"{UPLOADS}/a.HTML", WHOLE, None, True),
        (f"{UPLOADS}/a.html", WHOLE, False, False),
        ("/mnt//user-data/./uploads/d/a.htm", WHOLE, None, True),
        (f"{UPLOADS}/a.csv", WHOLE, None, False),
        ("a.py", WHOLE, True, False),
        ("a.xlsx", SHEET, False, True),
    ],
)
def test_which_files_are_read_by_their_conversion(
    path: str, only: Selection, convert: bool | None, converted: bool
) -> None:
    assert reading.is_converted(path, only, convert) == converted


@pytest.mark.parametrize("only", [PAGES, SHEET])
def test_a_file_without_pages_has_none(only: Selection) -> None:
    with pytest.raises(Invalid, match=r"a\.py: has no pages or sheets; name lines"):
        reading.is_converted("a.py", only, None)


MAIL = b"From: ada@example.org\nSubject: The plan\nContent-Type: text/html\n\n<p>We meet at <b>nine</b>.</p>\n"


async def test_parts_of_documents_and_their_sources(tmp_path: Path) -> None:
    provider = provider_of("bubblewrap", tmp_path)
    await provider.acquire("ada", "t1")
    folder = tmp_path / "home/users/ada/threads/t1/user-data/workspace"
    (folder / "a.pdf").write_bytes(documents.pdf("First page", "Second page", "Third page"))
    (folder / "b.eml").write_bytes(MAIL)
    (folder / "c.html").write_text("<html><body><h1>Heading</h1></body></html>")
    book = openpyxl.Workbook()
    book.active.title = "Costs"
    book.active.append(["rent", 1200])
    book.create_sheet("Other").append(["secret", 1])
    book.save(folder / "d.xlsx")
    ask = Asking(Sandbox(provider, Limits(), documents=LocalDocuments(tmp_path / "home", unconfined=lambda: True)))

    async def shown(path: str, **more: object) -> str:
        return str(await ask.use(read_file, path=path, **more))

    part = await shown("a.pdf", pages="2-")
    assert ("First" in part, "Second page" in part, "Third page" in part) == (False, True, True)
    assert part.endswith("[pages 2- of a document of 3 pages]")
    assert "Third page" in await shown("a.pdf", pages=3)
    with pytest.raises(Invalid, match="has 3 pages"):
        await shown("a.pdf", pages="9")
    sheet = await shown("d.xlsx", sheet="costs")
    assert ("rent" in sheet, "secret" in sheet) == (True, False)
    with pytest.raises(Invalid, match=r"Costs, Other"):
        await shown("d.xlsx", sheet="Income")
    mail = await shown("b.eml")
    assert ("<b>" in mail, "The plan" in mail, "nine" in mail) == (False, True, True)
    assert "convert=false reads the source" in mail
    assert "<b>nine</b>" in await shown("b.eml", convert=False)
    assert await shown("c.html") == "<html><body><h1>Heading</h1></body></html>"
    assert (await shown("c.html", convert=True)).startswith("# Heading")
