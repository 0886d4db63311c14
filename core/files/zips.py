"""Zip archives of strangers: their table of contents is bounded before `zipfile` reads it as a whole.

What an archive says of that table stands twice, in 32 and in 64 bits, and readers differ in which they believe. So
the bytes are counted as they are read.
"""

from __future__ import annotations

import io

from core.errors import Invalid

MOST_CONTENTS = 1 << 20
"""Limit of a table of contents, in bytes: some 20 000 files."""


class TooLong(Invalid):
    """The table of contents of an archive is too long. Nothing of it was unpacked."""


class Frugal(io.FileIO):
    """A file for `zipfile.ZipFile` of which at most `MOST_CONTENTS` bytes are read at a time. Raises `TooLong`."""

    def read(self, size: int | None = -1, /) -> bytes:
        limit = MOST_CONTENTS + 1 if size is None or size < 0 else size
        data = super().read(min(limit, MOST_CONTENTS + 1)) or b""
        if len(data) > MOST_CONTENTS:
            raise TooLong(f"the archive's table of contents is larger than {MOST_CONTENTS} bytes")
        return data
