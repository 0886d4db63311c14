"""Edits of files against the bytes that they should give, and refusals that help."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.sandboxes.files.edits import edited
from adapters.sandboxes.files.operations import Files
from core.errors import Invalid
from core.files.encodings import Decoded, decoded
from core.files.paths import WORKSPACE, Mount, Tree
from core.ports.sandbox import Edit

pytestmark = pytest.mark.anyio
LINES = ["def f():", "    return 1", "", "def g():", "    return 1", ""]


def apply(content: bytes, *edits: tuple[str, str], every: bool = False) -> tuple[bytes, list[list[int]]]:
    file = decoded(content)
    assert file is not None
    return edited("a", file, [Edit(path="a", old=old, new=new, every=every) for old, new in edits])


texts = st.text(st.sampled_from("ab\nä "), max_size=30)


@given(before=texts, old=texts.filter(bool), after=texts, new=texts, crlf=st.booleans())
def test_an_edit_changes_its_place_and_nothing_else(before: str, old: str, after: str, new: str, crlf: bool) -> None:
    text = before + old + after
    if crlf:
        text, before, after = (part.replace("\n", "\r\n") for part in (text, before, after))
    plain = text.replace("\r\n", "\n")
    places = [place for place in range(len(plain)) if plain.startswith(old, place)]  # they may overlap
    if len(places) > 1:
        with pytest.raises(Invalid, match=f"is in {len(places)} places"):
            apply(text.encode(), (old, new))
        return
    content, [lines] = apply(text.encode(), (old, new))
    ending = "\r\n" if "\r\n" in text else "\n"
    assert content.decode() == before + new.replace("\n", ending) + after
    assert lines == [before.count("\n") + 1]


@given(text=texts, old=texts.filter(bool), new=texts)
def test_every_place_is_replaced(text: str, old: str, new: str) -> None:
    if old not in text:
        with pytest.raises(Invalid, match="not found"):
            apply(text.encode(), (old, new), every=True)
        return
    content, [lines] = apply(text.encode(), (old, new), every=True)
    assert content.decode() == text.replace(old, new)
    assert len(lines) == text.count(old)


def test_lines_are_those_afterwards() -> None:
    content, lines = apply(b"a\nx\nb\nx\nc\n", ("x", "1\n2"), ("c", "d"), every=True)
    assert (content, lines) == (b"a\n1\n2\nb\n1\n2\nd\n"[: len(content)], [[2, 5], [7]])


@pytest.mark.parametrize(
    ("content", "old", "new", "result"),
    [
        (b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\nthree\r\n"),
        (b"one\r\ntwo\r\n", "one", "1\n2", b"1\r\n2\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2", b"1\r\n2\r\n"),
        (b"one\ntwo\n", "one\r\ntwo", "1\r\n2", b"1\n2\n"),
        (b"one\r\ntwo\nthree\n", "two\nthree", "2\n3", b"one\r\n2\n3\n"),
        (b"one\r\ntwo\r\nthree\n", "one\ntwo", "1\n2", b"1\r\n2\r\nthree\n"),
        (b"\xef\xbb\xbfone\n", "one", "zwei ü", b"\xef\xbb\xbfzwei \xc3\xbc\n"),
        ("größe\n".encode("utf-16"), "größe", "grün", "grün\n".encode("utf-16")),
        (b"ok \xff\nline\n", "line", "row", b"ok \xff\nrow\n"),
        ("Straße in München, schöne Grüße, Käse und Öl\n".encode("cp1252"), "Käse", "Brötchen",
         "Straße in München, schöne Grüße, Brötchen und Öl\n".encode("cp1252")),
    ],
)  # fmt: skip
def test_endings_and_encodings_stay(content: bytes, old: str, new: str, result: bytes) -> None:
    assert apply(content, (old, new))[0] == result


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("return 1", "x", "the text is in 2 places, at lines 2, 5. Nothing was changed."),
        ("", "x", "old_str is empty"),
        ("def f():\n  return 1", "x", "At line 1 it stands with other blanks:\ndef f():\n    return 1"),
        ("def f():\n    return 2", "x", "Its first line is at line 1; what follows is different there."),
        ("def ff():", "x", "The nearest to its first line is line 1: def f():"),
        ("zzzzzzzz", "x", "No line is like its first one."),
        ("1\tdef f():\n2\t    return 1", "x", "It begins with line numbers"),
        ("f():  # a", "def g():\n    return 1", "The new text is there already, at line 4."),
    ],
)
def test_a_refusal_helps(old: str, new: str, reason: str) -> None:
    with pytest.raises(Invalid) as refusal:
        apply("\n".join(LINES).encode(), (old, new))
    assert reason in str(refusal.value)


def test_a_character_that_the_encoding_does_not_have() -> None:
    with pytest.raises(Invalid, match="is encoded in cp1252, which has no '数'"):
        edited("a", Decoded("Käse", "cp1252"), [Edit(path="a", old="Käse", new="数")])


async def test_a_file_that_cannot_be_written_takes_the_others_back(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "ro").mkdir()
    for folder in ("w", "ro"):
        (tmp_path / folder / "a").write_text("text")
    mounts = [Mount(tmp_path / "w", WORKSPACE, writable=True), Mount(tmp_path / "ro", "/mnt/ro")]
    files = Files(tmp_path, Tree(mounts), 1024)
    with pytest.raises(Invalid, match="read-only"):
        await files.edit([Edit(path=path, old="text", new="x") for path in ("a", "/mnt/ro/a")], call_id="c1")
    assert (tmp_path / "w/a").read_text() == "text"


async def test_binary_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text\0\x01")
    files = Files(tmp_path, Tree([Mount(tmp_path, WORKSPACE, writable=True)]), 1024)
    with pytest.raises(Invalid, match="is not a text file"):
        await files.edit([Edit(path="a", old="text", new="x")])


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"", "utf-8"),
        ("größe".encode(), "utf-8"),
        ("größe".encode("utf-8-sig"), "utf-8"),
        ("größe".encode("utf-16"), "utf-16-le"),
        ("plain".encode("utf-16-be"), "utf-16-be"),
        ("数据分析报告,销售金额,产品名称,客户地址\n北京,上海,广州,深圳\n".encode("gbk"), "gb18030"),
        ("Straße in München, schöne Grüße, Käse und Öl\n".encode("cp1252"), "cp1252"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", None),
        (b"\0" * 100, None),
    ],
)
def test_encodings(content: bytes, encoding: str | None) -> None:
    file = decoded(content)
    if encoding == "gb18030":
        assert file is not None
        assert file.text.startswith("数据分析报告")
        return
    assert (file.encoding if file else None) == encoding
    assert file is None or file.encoded(file.text) == content
