"""Reads pages without a provider: no third party learns the URLs. Addresses inside the network cannot be read."""

from __future__ import annotations

import asyncio
import codecs
import re
from pathlib import Path
from typing import NamedTuple

import aiohttp
import anyio
import msgspec
from anyio import to_thread
from yarl import URL

from adapters.bodies import read_at_most
from adapters.documents.local import LocalDocuments
from adapters.egress import MAX_REDIRECTS, PublicResolver, following
from adapters.web import address, page
from adapters.web.ports import Page
from adapters.web.settings import Settings
from core.errors import Invalid, Unavailable
from core.phrases import counted

MAX_BYTES = 4 << 20
"""Limit of bytes of a page; the rest is not read."""
MAX_PDF = 32 << 20
"""Limit of bytes of a PDF, which cannot be read in part."""
CONVERT_SECONDS = 20.0
AT_ONCE = 2
"""Limit of concurrent conversions: they keep a processor busy."""
HEAD = 2048
"""Bytes in which a page may declare its encoding."""
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Sika)",
    "Accept": "text/html,application/xhtml+xml,text/markdown,text/plain;q=0.9,application/json;q=0.8,*/*;q=0.1",
    "Accept-Language": "en,*;q=0.5",
}
_PDF = "application/pdf"
_UNKNOWN = ("application/octet-stream", "binary/octet-stream", "application/x-pdf")
"""Types by which servers send PDFs, too."""
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = re.compile(r"text/[\w.+-]+|application/(?:[\w.+-]+\+)?(?:json|xml|yaml|javascript)|application/x-ndjson")
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s{0,9}=\s{0,9}[\"']?([\w-]{1,40})", re.IGNORECASE)
_ENCODINGS_OF_NAMES = ("idna", "punycode")
"""Encodings of Python that no page has: the time to decode them grows with the square of the text."""


class Direct:
    """Reads pages. Guarantees: each address, also of redirects, is checked, and connections go to checked addresses
    only. Non-guarantees: pages that are made by scripts are empty.
    """

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.timeout
        self._private = settings.allow_private_addresses
        self._limiter = anyio.CapacityLimiter(AT_ONCE)
        self._documents = LocalDocuments(Path())

    async def fetch(self, url: str) -> Page:
        target = address.parse(url, private=self._private)
        try:
            async with asyncio.timeout(self._seconds):
                target, kind, content = await self._get(target)
        except TimeoutError:
            raise Unavailable(f"{target.host} did not send the page within {self._seconds:g} s. {_ELSE}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = _reason(error)
            raise Unavailable(f"{target.host} cannot be reached: {reason}. {_ELSE}") from None
        if kind == _PDF:
            return await self._pdf(content)
        return await self._page(content, kind, str(target))

    async def _pdf(self, content: Content) -> Page:
        """Returns the text of a PDF, which a confined process converts."""
        if len(content.raw) >= MAX_PDF:
            raise Invalid(f"This is a PDF of more than {MAX_PDF >> 20} MB. {_ELSE}")
        text, pages = await self._documents.text("page.pdf", content.raw, _silent)
        return Page(f"PDF of {counted(pages, 'page')}" if pages else "PDF", text)

    async def _page(self, content: Content, kind: str, url: str) -> Page:
        text, whole = _decoded(content.raw, content.charset, html=kind in _HTML), len(content.raw) < MAX_BYTES
        page = await self._read(text, url) if kind in _HTML else Page("", text)
        return msgspec.structs.replace(page, whole=page.whole and whole)

    async def _get(self, target: URL) -> tuple[URL, str, Content]:
        """Returns the final URL of the page, its type, and its content."""

        def redirected(url: URL, location: str) -> URL:
            return address.parse(_redirected(url, location), private=self._private)

        connector = aiohttp.TCPConnector(resolver=None if self._private else PublicResolver())
        async with (
            aiohttp.ClientSession(connector=connector, headers=_HEADERS) as session,
            following(session, target, redirected) as response,
        ):
            if response is None:
                raise Unavailable(f"The page is behind more than {MAX_REDIRECTS} redirects. {_ELSE}")
            return response.real_url, *await _content(response)

    async def _read(self, html: str, url: str) -> Page:
        try:
            with anyio.fail_after(CONVERT_SECONDS):
                return await to_thread.run_sync(page.read, html, url, limiter=self._limiter, abandon_on_cancel=True)
        except TimeoutError:
            raise Unavailable(f"The page is too complicated to be read. {_ELSE}") from None


_ELSE = "Look for another page, or go on without it."


def _redirected(target: URL, location: str) -> str:
    try:
        return str(target.join(URL(location)))
    except ValueError:
        raise Unavailable(f"{target.host} redirects to something that is not a URL. {_ELSE}") from None


class Content(NamedTuple):
    """The content of a page, and the charset that its response names."""

    raw: bytes
    charset: str | None


async def _silent(_: str) -> None: ...


async def _content(response: aiohttp.ClientResponse) -> tuple[str, Content]:
    """Returns the type and the content of a page."""
    host = response.url.host
    if not 200 <= response.status < 300:
        raise Unavailable(f"{host} answers HTTP {response.status} for this page. Check the URL. {_ELSE}")
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind and kind not in (*_HTML, _PDF, *_UNKNOWN) and not _TEXT.fullmatch(kind):
        raise Invalid(f"This is not a page of text but {kind[:80]}. {_ELSE}")
    raw = await read_at_most(response, MAX_PDF if kind in (_PDF, *_UNKNOWN) else MAX_BYTES)
    if raw.startswith(b"%PDF-"):
        return _PDF, Content(raw, None)
    if kind in (_PDF, *_UNKNOWN):
        raise Invalid(f"This is not a page of text but {kind[:80]}. {_ELSE}")
    if not kind:
        kind = "text/html" if raw.lstrip()[:1] == b"<" else "text/plain"
    if b"\0" in raw[:HEAD] and not raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Invalid(f"This is not a page of text, though its type is {kind[:80]}. {_ELSE}")
    return kind, Content(raw, response.charset)


def _decoded(raw: bytes, charset: str | None, *, html: bool) -> str:
    """Decodes a page by its byte order mark, by the response's charset, by the page's own, else as UTF-8."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        charset = "utf-16"
    elif raw.startswith(codecs.BOM_UTF8):
        charset = "utf-8-sig"
    elif charset is None and html and (match := _CHARSET.search(raw[:HEAD])):
        charset = match[1].decode("ascii")
    try:
        name = codecs.lookup(charset or "utf-8").name
        return raw.decode("utf-8" if name in _ENCODINGS_OF_NAMES else name, "replace")
    except (LookupError, UnicodeError):
        return raw.decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    """Returns the reason of an error, without the address."""
    inner = getattr(error, "os_error", None) or error
    text = str(inner) if isinstance(inner, OSError) and inner.errno is None else getattr(inner, "strerror", None)
    return text if text and "://" not in text else type(inner).__name__
