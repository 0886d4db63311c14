"""`.skill` archives: zip files of strangers, unpacked into an empty folder or refused.

Nothing that an archive says of itself is trusted: bytes are counted as they come, and paths are built of checked parts.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from core.control import JOINERS, UNSEEN
from core.errors import Invalid
from core.files.zips import Frugal
from core.skills.folders import content
from core.skills.format import FILE, problems, read

SUFFIX = ".skill"
MOST_BYTES = 512 << 20
"""Limit of the files of a skill together (DeerFlow's limit)."""
MOST_PACKED = 128 << 20
"""Limit of an archive."""
MOST_ENTRIES = 10_000
"""Limit of what an archive lists, with what is left out: folders, hidden files, and those that macOS adds."""
TAKEN = frozenset(("custom",))
"""Names that the routes of skills use."""
MOST_FILES, MOST_DEPTH, MOST_PART, MOST_PATH = 2000, 12, 200, 800
MOST_RATIO, RATIO_FROM = 200, 16 << 20
"""Limit of the ratio of a file's size to its packed size, for files above `RATIO_FROM` bytes."""
_CHUNK = 256 * 1024
_BAD_PART = re.compile(rf"[\x00-\x1f\x7f<>:\"|?*{UNSEEN}{JOINERS}]")
_IGNORED = ("__MACOSX",)


def unpack(archive: Path, target: Path, folder: str | None = None) -> str:
    """Unpacks a skill into a new folder, and returns its name. Blocks: call it in a thread.

    Links, devices, and hidden files are left out. Raises `Invalid` with the reason if the archive is not acceptable.
    `folder`: that of the skill below the only folder at the top, in the archive of a repository.
    """
    target.mkdir(exist_ok=True)
    try:
        with Frugal(archive, "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_PACKED:
                raise Invalid(f"the archive is larger than {MOST_PACKED >> 20} MiB")
            with zipfile.ZipFile(file) as opened:
                _extract(opened, target, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, UnicodeDecodeError) as error:
        raise Invalid(f"not a valid archive: {str(error)[:200] or type(error).__name__}") from None
    except RuntimeError as error:  # as zipfile reports what is encrypted
        raise Invalid(f"not a readable archive: {str(error)[:200]}") from None
    return check(target)


def check(folder: Path, name: str | None = None) -> str:
    """Returns the name of an unpacked skill that may be installed. Raises `Invalid`. `name`: the expected one."""
    if not (folder / FILE).is_file():
        raise Invalid(f"there is no {FILE} at the top of the skill")
    nested = [path for path in folder.rglob("*") if path.name.lower() == FILE.lower() and path != folder / FILE]
    if nested:
        raise Invalid(f"{nested[0].relative_to(folder)}: a skill has one {FILE}, at its top")
    text = content(folder / FILE)
    if wrong := problems(text, name):
        raise Invalid(f"{FILE}: {'; '.join(wrong)}")
    if (own := read(text).name) in TAKEN:
        raise Invalid(f"{FILE}: name: a skill cannot be called {own}: GET /api/skills/{own} is something else")
    return own


def safe_path(path: str) -> str:
    """Returns the path of a file in a skill. Raises `Invalid` for what could lead out of it, or could not be shown."""
    plain = unicodedata.normalize("NFC", path.replace("\\", "/"))
    parts = plain.removesuffix("/").split("/")
    if plain.startswith("/") or re.match(r"[A-Za-z]:", plain) or ".." in parts:
        raise Invalid(f"{path[:80]!r}: leads out of the skill")
    if "" in parts or "." in parts or any(_BAD_PART.search(part) or part != part.strip() for part in parts):
        raise Invalid(f"{path[:80]!r}: is not a plain path")
    if any(len(part.encode()) > MOST_PART for part in parts) or len(plain.encode()) > MOST_PATH:
        raise Invalid(f"{path[:80]!r}: is too long")
    if len(parts) > MOST_DEPTH:
        raise Invalid(f"{path[:80]!r}: more than {MOST_DEPTH} levels")
    return "/".join(parts)


def unpack_file(file: Path, target: Path, *, otherwise: str) -> str:
    """Takes a lone `SKILL.md` as a skill in a new folder, and returns its name. Blocks. Raises `Invalid`: for what is
    no such text with the sentence `otherwise`.
    """
    try:
        text = content(file)
    except Invalid:
        text = ""
    if not text.startswith("---"):
        raise Invalid(f"this is no skill; {otherwise}")
    target.mkdir(exist_ok=True)
    (target / FILE).write_text(text)
    return check(target)


def _extract(archive: zipfile.ZipFile, target: Path, folder: str | None) -> None:
    if len(archive.infolist()) > MOST_ENTRIES:
        raise Invalid(f"the archive lists more than {MOST_ENTRIES} files and folders")
    below = "" if folder is None else _folder(archive, folder)
    members = list(_members(archive, below))
    if len(members) > MOST_FILES:
        raise Invalid(f"the archive has more than {MOST_FILES} files")
    root, taken, room = _root([path for path, _ in members]), dict[str, str](), MOST_BYTES
    for path, member in members:
        inner = path.removeprefix(root)
        _claim(inner, taken)
        place = target / inner
        place.parent.mkdir(parents=True, exist_ok=True)
        room -= _write(archive, member, place, room)


def _folder(archive: zipfile.ZipFile, folder: str) -> str:
    """Returns the prefix of the files of a folder in the archive of a repository. Raises `Invalid`."""
    tops = {member.orig_filename.partition("/")[0] for member in archive.infolist()}
    prefix = "/".join(part for part in (*tops, folder.strip("/")) if part) + "/"
    if len(tops) != 1 or f"{prefix}{FILE}" not in archive.namelist():
        raise Invalid(f"there is no {FILE} in {folder or 'the repository'}: give the address of the skill's folder")
    return prefix


def _members(archive: zipfile.ZipFile, below: str) -> Iterator[tuple[str, zipfile.ZipInfo]]:
    for member in archive.infolist():
        if not member.orig_filename.startswith(below) or member.orig_filename == below:
            continue
        path = safe_path(member.orig_filename.removeprefix(below))
        kind = stat.S_IFMT(member.external_attr >> 16)
        hidden = any(part.startswith(".") or part in _IGNORED for part in path.split("/"))
        if member.is_dir() or hidden or kind not in (0, stat.S_IFREG):
            continue
        if member.flag_bits & 1:
            raise Invalid(f"{path}: is encrypted")
        yield path, member


def _root(paths: Sequence[str]) -> str:
    """Returns the prefix of all paths: the only folder at the top, or "" if the files are there themselves."""
    if FILE in paths:
        return ""
    tops = {path.partition("/")[0] for path in paths}
    if len(tops) != 1 or f"{(top := tops.pop())}/{FILE}" not in paths:
        raise Invalid(f"there is no {FILE}, neither at the top nor in the only folder there")
    return f"{top}/"


def _claim(path: str, taken: dict[str, str]) -> None:
    """Refuses names that are the same on some system, and files that are folders of other files."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        folder = "/".join(parts[:depth])
        if taken.setdefault(folder.casefold(), f"{folder}/") != f"{folder}/":
            raise Invalid(f"{path}: the archive has the name {folder} twice")
    if path.casefold() in taken:
        raise Invalid(f"{path}: the archive has this name twice")
    taken[path.casefold()] = path


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, place: Path, room: int) -> int:
    """Writes a file of at most `room` bytes. Returns its size."""
    size, mode = 0, 0o755 if member.external_attr >> 16 & 0o111 else 0o644
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as out, archive.open(member) as source:
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            if size > room:
                raise Invalid(f"the files are larger than {MOST_BYTES >> 20} MiB together")
            if size > RATIO_FROM and size > MOST_RATIO * max(member.compress_size, 1):
                raise Invalid(f"{place.name}: is packed more than {MOST_RATIO}:1")
            out.write(chunk)
    return size
