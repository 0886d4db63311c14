"""Documents of Word 6 to 2003, by programs that may be installed: antiword, else catdoc."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import BinaryIO

from adapters.documents.job import Job, Rejected, joined

PROGRAMS = (
    ("antiword", "-m", "UTF-8.txt", "-w", "0", "-"),
    ("catdoc", "-s", "cp1252", "-d", "utf-8", "-w"),
)
"""Each reads standard input. antiword knows tables, links and notes, and refuses texts of few characters."""
ABSENT = "is of an old format; save it as .docx, or have `antiword` and `catdoc` installed on the server, which read it"
_LINK = re.compile(r'\s*HYPERLINK "[^"]*"\s*')
"""The instruction of a link, which catdoc takes for text."""
_DRAWN = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)
"""A table as antiword draws it: a cell may have several lines."""


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    job.whole()
    content = document.read()
    installed = [(path, *arguments) for name, *arguments in PROGRAMS if (path := shutil.which(name))]
    for command in installed:
        ended = subprocess.run(command, input=content, capture_output=True, check=False)
        text = ended.stdout.decode("utf-8", "replace")
        if ended.returncode == 0 and text.strip():
            return _markdown(text), None
    raise Rejected("is damaged, or not complete" if installed else ABSENT)


def _markdown(text: str) -> str:
    text = _LINK.sub(" ", re.sub(r"[^\S\n]+$", "", text, flags=re.MULTILINE))
    drawn = _DRAWN.sub(lambda table: f"\n```\n{table[0]}```\n", f"{text}\n")
    return joined(re.split(r"\n{2,}", drawn))
