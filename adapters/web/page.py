"""What a page of HTML says, as Markdown: its main part, without what is there for the eyes or for machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from adapters.web.ports import Page

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag
    from bs4.element import PageElement

MAX_TEXT = 40_000
"""Characters of text that are converted; what is shown of a page is far less."""
MAX_NODES = 20_000
MAX_DEPTH = 100
"""Deeper than any page that somebody wrote. What is nested deeper becomes plain text, which takes no recursion."""
MAX_INDENT = 6
"""Lists and quotations in one another; each indents every line of what it holds."""
LEAST = 200
"""A main part with less text is none."""
_NOT_TEXT = (
    "script", "style", "noscript", "template", "svg", "math", "canvas", "iframe", "object", "embed", "audio", "video",
    "map", "nav", "footer", "aside", "dialog", "menu", "button", "select", "input", "textarea",
)  # fmt: skip
_INDENTED = ("blockquote", "ul", "ol")
_HIDDEN = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_MANY_LINES = re.compile(r"[ \t]*\n(?:[ \t]*\n){2,}")


def read(html: str, url: str) -> Page:
    """The page at that URL; links in it become absolute. Takes as long as the HTML is large, whatever it says."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html, "lxml")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    if _too_deep(soup):
        return Page(title, soup.get_text("\n", strip=True)[:MAX_TEXT])
    for tag in soup.find_all(_unwanted):
        tag.extract()
    part = _main(soup)
    _cut(part)
    _flatten(part)
    _resolve(part, url)
    return Page(title, _MANY_LINES.sub("\n\n", _markdown(part)).strip()[:MAX_TEXT])


def _too_deep(soup: BeautifulSoup) -> bool:
    depths: dict[int, int] = {id(soup): 0}
    for element in soup.find_all(True):
        depths[id(element)] = depth = depths.get(id(element.parent), 0) + 1
        if depth > MAX_DEPTH:
            return True
    return False


def _unwanted(tag: Tag) -> bool:
    if tag.name in _NOT_TEXT or tag.has_attr("hidden"):
        return True
    return tag.get("aria-hidden") == "true" or bool(_HIDDEN.search(str(tag.get("style") or "")))


def _main(soup: BeautifulSoup) -> Tag:
    """`<main>`, else the one `<article>`, else the body without the headers around it."""
    for found in (soup.select("main, [role=main]"), soup.find_all("article")):
        if len(found) == 1 and len(found[0].get_text(strip=True)) >= LEAST:
            return found[0]
    for header in soup.find_all("header"):
        if header.find_parent(["main", "article"]) is None and header.find("h1") is None:
            header.extract()
    return soup.body or soup


def _cut(part: Tag) -> None:
    """Leave out everything behind the first `MAX_TEXT` characters or `MAX_NODES` elements."""
    from bs4.element import NavigableString

    text = 0
    behind: list[PageElement] = []
    for number, node in enumerate(part.descendants):
        if text > MAX_TEXT or number > MAX_NODES:
            behind.append(node)
        elif isinstance(node, NavigableString):
            text += len(node)
    for node in behind:
        node.extract()


def _flatten(part: Tag) -> None:
    for tag in part.find_all(_INDENTED):
        if len(tag.find_parents(_INDENTED, limit=MAX_INDENT)) == MAX_INDENT:
            tag.unwrap()


def _resolve(part: Tag, url: str) -> None:
    """Links to pages as they are from outside; other links, and pictures, as their text."""
    for link in part.find_all("a"):
        target = _absolute(url, str(link.get("href") or ""))
        if target is None:
            link.unwrap()
        else:
            link.attrs = {"href": target}
    for picture in part.find_all("img"):
        picture.replace_with(str(picture.get("alt") or ""))


def _absolute(base: str, target: str) -> str | None:
    if not target or target.startswith("#"):
        return None
    try:
        found = urljoin(base, target.strip())
    except ValueError:
        return None
    return found if found.startswith(("http://", "https://")) else None


def _markdown(part: Tag) -> str:
    from markdownify import MarkdownConverter

    converter = MarkdownConverter(heading_style="atx", bullets="-", escape_asterisks=False, escape_underscores=False)
    return str(converter.convert_soup(part))
