"""Renders the prompts of a batch: as they are listed, or a template over the lines, rows or files of an input."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Literal

import msgspec
from anyio import to_thread

from core.errors import Invalid
from core.ports.batches import BatchFiles

MAX_BYTES = 8_000_000
"""Limit of bytes of all prompts of a batch."""
_PLACEHOLDER = re.compile(r"\{(\w[\w .-]*)\}")
Over = Literal["lines", "rows", "files"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts, or a template and its input."""

    prompts: list[str] | None = None
    template: str | None = None
    input: str | None = None
    over: Over | None = None


async def rendered(source: Source, files: BatchFiles, user: str, thread: str, most: int) -> list[str]:
    """Returns the prompts. Raises `Invalid`, naming the argument."""
    prompts = await _prompts(source, files, user, thread, most)
    if not prompts:
        raise Invalid(f"{source.input or 'prompts'}: is empty; there is nothing to do")
    if len(prompts) > most:
        raise Invalid(f"{source.input or 'prompts'}: more than {most} items; make batches of at most {most}")
    if (empty := next((n for n, prompt in enumerate(prompts) if not prompt.strip()), None)) is not None:
        raise Invalid(f"prompts[{empty}]: is empty")
    if (size := sum(len(prompt.encode("utf-8", "replace")) for prompt in prompts)) > MAX_BYTES:
        raise Invalid(
            f"prompts: {size} bytes in all, more than {MAX_BYTES}; shorten the template, or make smaller batches"
        )
    return prompts


async def _prompts(source: Source, files: BatchFiles, user: str, thread: str, most: int) -> list[str]:
    if source.prompts is not None:
        if source.template or source.input or source.over:
            raise Invalid("prompts: goes without template, input and over; give the one or the others")
        return source.prompts
    if not (source.template and source.input and source.over):
        raise Invalid("prompts: is missing; or else template, input and over are needed, all three")
    if source.over == "files":
        paths = await files.glob(user, thread, source.input, most + 1)
        return list(_filled(source.template, ({"item": path} for path in paths), {"item"}))
    data = await files.read(user, thread, source.input)
    items = _lines if source.over == "lines" else _rows
    return await to_thread.run_sync(partial(items, source.template, data, source.input, most))


def _lines(template: str, data: bytes, path: str, most: int) -> list[str]:
    lines = (line for line in _text(data, path).splitlines() if line.strip())
    return list(islice(_filled(template, ({"item": line} for line in lines), {"item"}), most + 1))


def _rows(template: str, data: bytes, path: str, most: int) -> list[str]:
    rows = csv.DictReader(io.StringIO(_text(data, path), newline=""), restkey="", strict=True)
    try:
        columns = set(rows.fieldnames or ())
        return list(islice(_filled(template, _complete(rows, path), columns), most + 1))
    except csv.Error as error:
        raise Invalid(f"{path}: line {rows.line_num}: {error}") from error


def _complete(rows: csv.DictReader[str], path: str) -> Iterator[Mapping[str, str]]:
    for row in rows:
        if "" in row or None in row.values():
            raise Invalid(f"{path}: line {rows.line_num}: has not as many fields as the header")
        yield row


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"{path}: is not UTF-8 text (byte {error.start})") from error


def _filled(template: str, items: Iterable[Mapping[str, str]], names: set[str]) -> Iterator[str]:
    """Yields the template with the values of each item. Text in braces that names nothing is an error."""
    used = set(_PLACEHOLDER.findall(template))
    known = ", ".join(f"{{{name}}}" for name in sorted(names)) or "none"
    if unknown := sorted(used - names):
        raise Invalid(f"template: unknown placeholder {{{unknown[0]}}}; there are: {known}")
    if not used:
        raise Invalid(f"template: has no placeholder, so all prompts would be the same; there are: {known}")
    parts = _PLACEHOLDER.split(template)  # text and names by turns
    for item in items:
        yield "".join(item[part] if number % 2 else part for number, part in enumerate(parts))
