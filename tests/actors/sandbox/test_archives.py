"""What read_file says of archives, against what Python's own libraries put into them; and archives that are attacks."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.sandbox import archives
from actors.sandbox.archives import described

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    " (gzip)": gzip.compress,
    " (bzip2)": bz2.compress,
    " (xz)": lzma.compress,
}
FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT, "ustar": tarfile.USTAR_FORMAT}
LONG = "long/" * 30 + "name.txt"
parts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n\\/"), min_size=1, max_size=30)
names = st.lists(parts.map(lambda part: f"d/{part}e"), max_size=8, unique=True)


def tar(files: dict[str, bytes], form: str = "gnu") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=FORMATS[form]) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def packed(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def text_of(content: bytes) -> str:
    text = described("a", content)
    assert text is not None
    return text


def listed(content: bytes) -> list[str]:
    return text_of(content).split("\n")[1:]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("packer", PACKERS)
def test_the_members_of_a_tar_archive(form: str, packer: str) -> None:
    files = {"a.txt": b"1", LONG: b"x" * 1000, "ä/ü.bin": b"", "last": b"y" * 513}
    content = PACKERS[packer](tar(files, form))
    heading, *lines = text_of(content).split("\n")
    assert heading == f"a is a tar archive{packer} of 4 files, {len(content)} bytes:"
    assert lines == [f"{name} ({len(data)} bytes)" for name, data in files.items()]


@given(names, st.sampled_from(["gnu", "pax"]))
def test_any_names_are_those_of_the_archive(files: list[str], form: str) -> None:
    contents = {name: name.encode() for name in files}
    shown = [f"{archives._printable_name(name)} ({len(name.encode())} bytes)" for name in files]
    assert listed(packed(contents)) == shown
    if contents:
        assert listed(tar(contents, form)) == shown


def test_a_compressed_file_that_is_no_archive() -> None:
    assert "unpacked a text of 6 bytes. Look at it with a command (zcat)" in text_of(gzip.compress(b"a text"))
    assert "unpacked 4 bytes. Look at it with a command (bzcat)" in text_of(bz2.compress(b"\0\1\2\3"))
    assert described("a", b"no archive") is None


def test_several_members_of_gzip_are_at_least_the_first() -> None:
    assert "unpacked a text of at least 3 bytes" in text_of(gzip.compress(b"one") + gzip.compress(b"two"))


def test_many_members_are_counted_and_some_named() -> None:
    for content in (packed(dict.fromkeys(map(str, range(300)), b"")), tar(dict.fromkeys(map(str, range(300)), b""))):
        assert " of 300 files" in text_of(content)
        assert listed(content)[-2:] == ["199 (0 bytes)", "… and 100 more"]


def test_names_that_deceive_are_shown_as_what_they_are() -> None:
    files = dict.fromkeys(
        ("../../etc/cron.d/x", "/home/ada/.ssh/authorized_keys", "a/../b", "new\nline", "\x1b[31mred"), b""
    )
    for content in (packed(files), tar(files)):
        lines = listed(content)
        assert len(lines) == 5
        assert sum("[leads out of the archive]" in line for line in lines) == 3
        assert not [line for line in lines if not line.isprintable()]


def _entry(name: bytes, size: int) -> bytes:
    lengths = len(name), 0, 0
    return struct.pack("<4s4B4H3I5H2I", b"PK\x01\x02", *bytes(4), 0, 0, 0, 0, 0, 0, size, *lengths, 0, 0, 0, 0) + name


def _directory(entries: bytes, size: int, start: int) -> bytes:
    return b"PK\x03\x04" + entries + b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 1, 1, size, start, 0)


def _header(size: bytes, name: bytes = b"a", kind: bytes = b"0") -> bytes:
    field = name.ljust(124, b"\0") + size.ljust(12, b"\0")
    return (field.ljust(156, b"\0") + kind).ljust(257, b"\0") + b"ustar\0" + bytes(512 - 263)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a bomb": lambda: gzip.compress(bytes(128 << 20), 1),
    "a bomb of bombs": lambda: gzip.compress(gzip.compress(bytes(64 << 20), 1) * 100, 1),
    "a bomb of tar": lambda: gzip.compress(tar({"a": bytes(128 << 20)}), 1),
    "xz that wants memory": lambda: lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 128 << 20}]),
    "a tar file that goes back": lambda: _header(b"\xff" * 12) * 4,
    "a tar file of a huge size": lambda: _header(b"\x80" + b"\xff" * 11) * 4,
    "a tar file without a number": lambda: _header(b"zzz"),
    "a negative number": lambda: _header(b"-777"),
    "a header that is longer than the file": lambda: _header(b"77777777777", kind=b"x"),
    "many long names": lambda: _header(b"0", kind=b"L") * 100_000,
    "a ZIP file whose directory is before it": lambda: _directory(b"", 0xFFFFFFF0, 0xFFFFFFF0),
    "a ZIP file without entries": lambda: _directory(b"", 0, 4),
    "a million entries": lambda: _directory(_entry(b"a", 1) * 1_000_000, 47 * 1_000_000, 4),
    "nothing else": lambda: b"PK\x05\x06",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_cost_little(name: str) -> None:
    content = HOSTILE[name]()
    tracemalloc.start()
    try:
        text = text_of(content)
        assert tracemalloc.get_traced_memory()[1] < 3 * archives.MAX_UNPACKED
    finally:
        tracemalloc.stop()
    assert len(text) < 50_000


def test_headers_that_name_nothing_are_not_all_read() -> None:
    assert text_of(HOSTILE["many long names"]()).startswith("a is a tar archive of at least 0 files")


WHOLE = [tar({"a": b"1" * 600, LONG: b"2"}), packed({"a": b"1" * 600, LONG: b"2"})]
WHOLE += [pack(WHOLE[0]) for pack in list(PACKERS.values())[1:]]


@given(st.sampled_from(WHOLE), st.data())
def test_damaged_archives_are_described_all_the_same(content: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(content) - 1))
    changed = content[:place] + data.draw(st.binary(max_size=4)) + content[place + data.draw(st.integers(0, 4)) :]
    for damaged in (changed, content[:place]):
        text = described("a", damaged)
        assert text is None or text.startswith("a is ")


def test_a_cut_archive_says_that_there_may_be_more() -> None:
    content = gzip.compress(tar({"a": b"1", "b": bytes(range(256)) * 4000}))
    assert " of at least 2 files" in text_of(content[: len(content) - 200])
    assert listed(content[: len(content) - 200])[-1] == "… and at least 0 more"
