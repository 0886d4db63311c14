"""What counts as an image that can be looked at."""

from __future__ import annotations

import hashlib

import pytest

from core.errors import Invalid
from core.ports.images import MAX_BYTES, Image, image_of, kind_of, place_of

PNG = b"\x89PNG\r\n\x1a\n" + b"x"
JPEG = b"\xff\xd8\xff\xe0" + b"x"
WEBP = b"RIFF\x10\0\0\0WEBPVP8 "
OF = {"png": PNG, "jpg": JPEG, "jpeg": JPEG, "webp": WEBP}
MIME = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp"}


@pytest.mark.parametrize("suffix", OF)
def test_images(suffix: str) -> None:
    content = OF[suffix]
    sha256 = hashlib.sha256(content).hexdigest()
    for path in (f"/a.{suffix}", f"/a.b.{suffix.upper()}"):
        assert image_of(path, content) == Image(path, MIME[suffix], len(content), sha256)


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("/a.png", JPEG, "the content is image/jpeg, and the name"),
        ("/a.jpg", PNG, "the content is image/png, and the name"),
        ("/a.webp", b"RIFF\x10\0\0\0WAVEfmt ", "not a JPEG, PNG or WebP image"),
        ("/a.png", b"GIF89a", "not a JPEG, PNG or WebP image"),
        ("/a.png", b"", "not a JPEG, PNG or WebP image"),
        ("/a.png", PNG + bytes(MAX_BYTES), "larger than 20 MB"),
    ],
    ids=["jpeg", "png", "sound", "gif", "empty", "large"],
)
def test_refusals(path: str, content: bytes, problem: str) -> None:
    with pytest.raises(Invalid, match=problem) as error:
        image_of(path, content)
    assert str(error.value).startswith(f"{path}: ")


def test_the_largest() -> None:
    assert image_of("/a.png", PNG + bytes(MAX_BYTES - len(PNG))).size == MAX_BYTES


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"\xff\xd8", b"RIFF", b"RIFFWEBP"])
def test_a_beginning_is_not_enough(content: bytes) -> None:
    assert kind_of(content) is None


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/mnt/user-data/uploads/a.png", "/mnt/user-data/uploads/a.png"),
        ("/mnt/user-data//outputs/./b/A.JPG", "/mnt/user-data/outputs/b/A.JPG"),
        ("a.webp", "/mnt/user-data/workspace/a.webp"),
    ],
)
def test_places(path: str, place: str) -> None:
    assert place_of(path) == place


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/mnt/skills/a.png", "only"),
        ("/mnt/user-data/a.png", "only"),
        ("/mnt/user-data/other/a.png", "only"),
        ("/mnt/user-data/outputs.png", "only"),
        ("/etc/a.png", "only"),
        ("/mnt/user-data/outputs/../a.png", "not allowed"),
        ("a.gif", "not an image"),
        ("png", "not an image"),
        (".png", "not an image"),
        ("", "is empty"),
    ],
)
def test_no_places(path: str, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        place_of(path)
