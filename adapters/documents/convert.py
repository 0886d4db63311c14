"""Converts a document to Markdown, in a process of its own that ends afterwards.

Run as a file: `python -I convert.py <kind> <limits as JSON> <selection as JSON>`. The document is standard input and
the Markdown is standard output. Standard error has reports, one JSON object a line: `{"page", "of"}` on the way, then
one of `{"converted": {"pages"}}`, `{"rejected": reason}` (fit for people) and `{"failed": error}` (for the log).

Every document may be an attack on the library that reads it. Its format and the directory of an archive are checked
first, and the limits of this process hold in any case.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from adapters.documents.job import Job

READERS = {
    "pdf": ("pages", "read"),
    "docx": ("words", "read"),
    "pptx": ("slides", "read"),
    "xlsx": ("sheets", "read"),
    "xls": ("old_sheets", "read"),
    "sheets2003": ("old_sheets", "read_2003"),
    "html": ("web", "read"),
    "csv": ("delimited", "read"),
    "epub": ("books", "read"),
    "eml": ("mails", "read"),
    "msg": ("mails", "read_outlook"),
    "odt": ("opendocument", "read"),
    "ods": ("opendocument", "read"),
    "odp": ("opendocument", "read"),
    "rtf": ("rich_text", "read"),
    "doc": ("old_words", "read"),
    "ipynb": ("notebooks", "read"),
}
"""The module and the function that read a kind of document. Only the one that is needed is loaded."""
LIBRARIES = {
    "pdfminer": ("pdf",),
    "pdfplumber": ("pdf",),
    "mammoth": ("docx",),
    "olefile": ("msg", "xls"),
}
"""The optional libraries that markitdown loads, and the kinds of documents each is for."""
NEVER = ("pandas", "pptx", "speech_recognition", "azure")
"""Libraries that markitdown would load, and that no reader uses."""


def main(kind: str, limits: dict[str, int], selection: Mapping[str, str]) -> None:
    reports, out = os.fdopen(os.dup(2), "w", encoding="utf-8"), os.dup(1)
    devnull = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(devnull, fd)  # drops the output of libraries
    restrict(limits)
    from adapters.documents.job import Job, Rejected

    def report(**fields: Any) -> None:
        reports.write(json.dumps(fields) + "\n")
        reports.flush()

    try:
        job = Job(lambda page, of: report(page=page, of=of), seconds=limits["CPU"], **selection)
        with open(0, "rb") as document:
            text, pages = convert(kind, document, job)
        if (reason := why_empty(text)) is not None:
            raise Rejected(reason)
        save(text, out, limits["FSIZE"])
        report(converted={"pages": pages})
    except Rejected as reason:
        report(rejected=str(reason))
    except MemoryError:
        report(rejected="needs more memory to be converted than is allowed")
    except BaseException as error:
        report(failed=f"{type(error).__name__}: {error}"[:1000])


def restrict(limits: dict[str, int]) -> None:
    """Sets limits by RLIMIT_… names. `WALL` is the timeout in seconds, in case the parent has died."""
    os.nice(10)
    signal.alarm(limits["WALL"])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for name in ("AS", "CPU", "FSIZE", "NOFILE"):
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
        # SIGXCPU at the soft limit tells a timeout from a crash. At the hard one it is SIGKILL, and a second later.
        resource.setrlimit(number, (value, value + (name == "CPU" and value != hard)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def convert(expected: str, document: BinaryIO, job: Job) -> tuple[str, int | None]:
    """Returns the Markdown, and the number of pages, if the format has any. Raises `Rejected`."""
    from adapters.documents.kinds import kind_of

    kind = kind_of(expected, document)
    _leave_out(kind)
    module, function = READERS[kind]
    read: Callable[[BinaryIO, Job], tuple[str, int | None]]
    read = getattr(importlib.import_module(f"adapters.documents.{module}"), function)
    return read(document, job)


def _leave_out(kind: str) -> None:
    """Makes imports fail, as if not installed, of libraries that this kind does not need: all of them together take six
    times as long to load as those for a web page.
    """
    # The kind is known. The model by which markitdown would guess it takes a second and a half to load.
    guesser = types.ModuleType("magika")
    guesser.Magika = object  # type: ignore[attr-defined]
    sys.modules["magika"] = guesser
    for library in [*NEVER, *(library for library, kinds in LIBRARIES.items() if kind not in kinds)]:
        if library not in sys.modules:
            sys.modules[library] = None  # type: ignore[assignment]


def why_empty(text: str) -> str | None:
    """Returns why there is no text, None if there is one besides the notes."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return "holds no text; perhaps its pages are pictures"
    if all(line.startswith("> [Not converted: ") for line in lines):
        return f"holds no text that can be read: {lines[0].removeprefix('> [Not converted: ').removesuffix(']')}"
    return None


def save(text: str, out: int, limit: int) -> None:
    """Writes the text, or as much of it as may be."""
    data = text.strip().encode("utf-8", "replace")
    if len(data) >= limit:
        end = f"\n\n> [Not converted: the rest of {len(data) >> 20} MB of text; {limit >> 20} MB is the limit.]"
        data = data[: limit - 200].decode("utf-8", "ignore").rpartition("\n")[0].encode() + end.encode()
    with open(out, "wb") as file:
        file.write(data + b"\n")


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
