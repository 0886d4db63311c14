"""Conversations that are read by an address: which one a token means, and copies of the files that were presented.

The log holds a hash of the token, so nobody finds the address there. The copies lie in the thread's folder beside what
sandboxes see, and go with it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from core.errors import Invalid, NotFound, Refused
from core.events import SharedFile
from core.files.folder import Folder
from core.files.zips import Frugal
from core.thread.state import Share

MOST_FILES = 200
MOST_BYTES = 200 << 20
"""Limits of the files of one share."""
CHUNK_BYTES = 1 << 20


def share_of(shares: Iterable[Share], token: str) -> Share | None:
    """Returns the share of a thread that a token opens; None if there is none (any more)."""
    mark = digest(token)
    return next((share for share in shares if hmac.compare_digest(share.fact.digest, mark)), None)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def keep(folder: Folder, share: str, paths: Iterable[str]) -> tuple[SharedFile, ...]:
    """Copies files of a thread for a share; those that are gone, or lead elsewhere, are left out. Blocks. Raises
    `Refused` if they are too many, or too large.
    """
    kept: list[SharedFile] = []
    try:
        for path in dict.fromkeys(paths):
            if (source := _opened(folder, path)) is not None:
                with source:
                    left = MOST_BYTES - sum(file.size for file in kept)
                    if len(kept) >= MOST_FILES or os.fstat(source.fileno()).st_size > left:
                        raise Refused(f"{path[:200]}: a share has at most {MOST_FILES} files, of {MOST_BYTES} bytes")
                    kept.append(SharedFile(path, _copy(source, folder, _place(folder, share) / str(len(kept)))))
    except BaseException:
        drop(folder, share)
        raise
    return tuple(kept)


def kept_file(folder: Folder, share: Share, path: str) -> Frugal:
    """Opens the copy of a file that is shared. Blocks. Raises `NotFound`."""
    for number, file in enumerate(share.fact.files):
        if file.path == path:
            with suppress(FileNotFoundError):
                return Frugal(_place(folder, share.fact.share) / str(number), "rb")
    raise NotFound(f"{path[:200]}: not found")


def drop(folder: Folder, share: str) -> None:
    """Removes the copies of a share, if there are any. Blocks."""
    shutil.rmtree(_place(folder, share), ignore_errors=True)


def _place(folder: Folder, share: str) -> Path:
    return folder.root / "shares" / share


def _opened(folder: Folder, path: str) -> BinaryIO | None:
    """Opens a regular file of the thread; None if there is none."""
    with suppress(Invalid, OSError), folder.tree().open(path) as opened:
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return os.fdopen(os.dup(opened), "rb")
    return None


def _copy(source: BinaryIO, folder: Folder, target: Path) -> int:
    """Copies what the file holds now, also if it grows meanwhile. Returns its size."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    left = os.fstat(source.fileno()).st_size
    with closing(folder.draft()) as draft, _directory(target.parent) as place:
        while data := source.read(min(CHUNK_BYTES, left - draft.size)):
            draft.write(data)
        draft.seal()
        draft.publish_new(place, target.name)
        return draft.size


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)
