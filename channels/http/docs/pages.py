"""The documentation in words, at `/docs/<name>`: the Markdown files of this folder, and the generated references."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Annotated

import anyio.to_thread
from aiohttp import web

from channels.http.docs import asyncapi
from channels.http.docs.openapi import PAGE_HEADERS, require_docs
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import ROOT
from core.config import deerflow
from core.config.reference import Key, all_keys
from core.errors import NotFound

CONTENTS = "contents"
"""The name of the generated page that lists the others."""
CONFIGURATION = "configuration"
"""The name of the page that the generated reference is added to."""
OTHER_LANGUAGES = "other-languages"
"""The name of the page that the description of the bus is added to."""

_FOLDER = Path(__file__).parent
_OPENING = re.compile(r"# (.+)\n+([^\n].*(?:\n.+)*)")


ROUTES = Routes(public=True, mounts=ROOT, tag="documentation", errors=(404,))


@ROUTES("GET", "/docs/{page}")
async def get_text(call: Call, page: str) -> Annotated[web.Response, "text/html"]:
    """A page of the documentation in words. `contents` lists them."""
    require_docs(call)
    if page not in (CONTENTS, *_names()):
        raise NotFound(f"no such page: {page[:80]!r}; /docs/{CONTENTS} lists them")
    body = await anyio.to_thread.run_sync(_page, page, call.config.nats.prefix)
    return web.Response(body=body, content_type="text/html", charset="utf-8", headers=PAGE_HEADERS)


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.md")))


@functools.cache
def _page(name: str, prefix: str) -> bytes:
    """The whole page as HTML. It stays as it is while the process lives."""
    from channels.http.server import markdown  # imports a parser that a server without readers does not need

    text = _source(name, prefix)
    entries = [(CONTENTS, "Contents"), *((other, _opening(_file(other))[0]) for other in _names())]
    links = "".join(f'      <a href="{other}">{escape(title)}</a>\n' for other, title in entries)
    template = Template((_FOLDER / "text.html").read_text(encoding="utf-8"))
    page = template.substitute(title=escape(_opening(text)[0]), pages=links, text=markdown.rendered(text))
    return page.encode()


def _source(name: str, prefix: str) -> str:
    """The Markdown of a page. `prefix`: of subjects."""
    if name == CONTENTS:
        return "\n".join(_contents())
    if name == OTHER_LANGUAGES:
        return "\n".join([_file(name), *asyncapi.words(prefix)])
    return "\n".join([_file(name), *_reference()]) if name == CONFIGURATION else _file(name)


def _file(name: str) -> str:
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")


def _contents() -> Iterator[str]:
    yield "# Documentation\n"
    yield "The pages that explain Sika. The [HTTP API](../docs) has a page of its own, where you can try it.\n"
    for name in _names():
        title, text = _opening(_file(name))
        yield f"* **[{title}]({name}.md)**: {text}"


def _opening(text: str) -> tuple[str, str]:
    """The title of a page, and its first paragraph. Raises `ValueError` if it does not begin so."""
    match = _OPENING.match(text)
    if match is None:
        raise ValueError(f"a title and a paragraph are expected at the beginning, got {text[:80]!r}")
    return match[1], " ".join(match[2].split())


# ── the configuration reference ──────────────────────────────────────────────────────────────────────────────────────


def _reference() -> Iterator[str]:
    """Every section with its keys as a table; first the keys that stand alone."""
    sections = [(name, list(keys)) for name, keys in groupby(all_keys(), _section)]
    yield "## All keys\n"
    yield "Sections: " + ", ".join(f"[{name}](#{name})" for name, keys in sections if len(keys) > 1) + ".\n"
    yield "Keys without a section:\n"
    yield from _table([key for _, keys in sections for key in keys if len(keys) == 1])
    for name, keys in sections:
        if len(keys) > 1:
            yield f"### {name}\n\n{keys[0].text}\n"
            yield from _table(keys[1:])
    yield from _deerflow()


def _section(key: Key) -> str:
    return re.split(r"\W", key.path, maxsplit=1)[0]


def _table(keys: Sequence[Key]) -> Iterator[str]:
    yield "| key | type | default | |\n|---|---|---|---|"
    for key in keys:
        text = " ".join(key.text.split()) + (" **Restart.**" if key.restart else "")
        default = f"`{key.default}`" if key.default else ""
        yield "| " + " | ".join(part.replace("|", r"\|") for part in (f"`{key.path}`", key.type, default, text)) + " |"
    yield ""


def _deerflow() -> Iterator[str]:
    yield "## Keys of DeerFlow\n"
    yield "A `config.yaml` of DeerFlow is read, too. A line at the start names each set key that has no effect.\n"
    yield "| key | here |\n|---|---|"
    for old, new in sorted(deerflow.RENAMED.items()):
        yield f"| `{old}` | `{new}` |"
    for key, remark in sorted(deerflow.WITHOUT_EFFECT.items()):
        yield f"| `{key}` | {remark} |"
