"""Extracts the main part of an HTML page as Markdown, without decoration and scripts.

Every page may be an attack on its reader. So it is first reduced to a small tree of limited depth, in steps that each
take time in proportion to its size. Only that tree goes to the converter, whose time is not proportional.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin

from adapters.web.ports import Page

MAX_TEXT = 200_000
"""Limit of characters that are converted."""
MAX_ELEMENTS = 15_000
MAX_DEPTH = 100
"""Limit of the depth, beyond real pages. Deeper pages become plain text."""
MAX_INDENT = 6
"""Limit of nested lists and quotations; each indents every line in it."""
MINIMUM = 200
"""Minimum of characters in a main part."""
_NOT_TEXT = frozenset(
    (
        "script", "style", "noscript", "template", "svg", "math", "canvas", "iframe", "object", "embed", "audio",
        "video", "map", "nav", "footer", "aside", "dialog", "menu", "button", "select", "input", "textarea",
    )
)  # fmt: skip
_INDENTING = frozenset(("blockquote", "ul", "ol"))
_HIDDEN = re.compile(r"(?:display\s{0,9}:\s{0,9}none|visibility\s{0,9}:\s{0,9}hidden)", re.IGNORECASE)
_MANY_LINES = re.compile(r"\n[ \t]{0,200}\n\s*\n")
Element = Any
"""`lxml.html.HtmlElement`; lxml has no types."""


def read(html: str, url: str) -> Page:
    """Returns the page at that URL; its links become absolute."""
    from lxml import etree  # type: ignore[import-untyped]
    from lxml import html as lxml_html

    parser = lxml_html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True)
    try:
        root = lxml_html.document_fromstring(html.encode("utf-8", "replace"), parser=parser)
    except (etree.LxmlError, ValueError):  # nothing in it
        return Page("", "")
    titles = root.xpath("//head//title")
    title = " ".join(titles[0].text_content().split()) if titles else ""
    for element in [element for element in root.iter() if _is_noise(element)]:
        if element.getparent() is not None:
            element.drop_tree()
    part = _main(root)
    whole = _cut(part)
    if not _shallow(part):
        return Page(title, "\n".join(text.strip() for text in part.itertext() if text.strip())[:MAX_TEXT], whole)
    _simplify(part, url)
    return Page(title, _markdown(etree.tostring(part, encoding="unicode", method="html", with_tail=False)), whole)


def _is_noise(element: Element) -> bool:
    if not isinstance(element.tag, str) or element.tag in _NOT_TEXT:
        return True
    if element.get("hidden") is not None or element.get("aria-hidden") == "true":
        return True
    return bool(_HIDDEN.search(element.get("style") or ""))


def _main(root: Element) -> Element:
    """Returns `<main>`, else the only `<article>`, else the body without the headers around it."""
    for candidates in (root.xpath("//main | //*[@role='main']"), root.xpath("//article")):
        if len(candidates) == 1 and len(candidates[0].text_content()) >= MINIMUM:
            return candidates[0]
    body = root.find("body")
    if body is None:
        return root
    for header in body.xpath(".//header[not(ancestor::main) and not(ancestor::article) and not(.//h1)]"):
        if header.getparent() is not None:
            header.drop_tree()
    return body


def _cut(part: Element) -> bool:
    """Removes all elements after the first `MAX_TEXT` characters or `MAX_ELEMENTS` elements. Tells if none was."""
    text = 0
    for number, element in enumerate(part.iter()):
        text += len(element.text or "") + len(element.tail or "")
        if text > MAX_TEXT or number > MAX_ELEMENTS:
            break
    else:
        return True
    element.text, element.tail = (element.text or "")[:MAX_TEXT], (element.tail or "")[:MAX_TEXT]
    while element is not part:
        for behind in list(element.itersiblings()):
            behind.getparent().remove(behind)
        element = element.getparent()
    return False


def _shallow(part: Element) -> bool:
    depths = {part: 0}
    for element in part.iter():
        if element is not part:
            depths[element] = depths[element.getparent()] + 1
    return max(depths.values()) <= MAX_DEPTH


def _simplify(part: Element, url: str) -> None:
    """Makes links to pages absolute; replaces other links, pictures, and too deep lists by their text."""
    for element in list(part.iter()):
        target = _absolute(url, element.get("href") or "") if element.tag == "a" else None
        words = element.get("alt") or "" if element.tag == "img" else None
        element.attrib.clear()
        if target is not None:
            element.set("href", target)
        elif words is not None:
            element.tag, element.text = "span", words
        elif element.tag == "a":
            element.tag = "span"
        elif element.tag in _INDENTING and _indent(element) > MAX_INDENT:
            element.tag = "div"
        elif element.tag == "li" and element is not part and element.getparent().tag not in _INDENTING:
            element.tag = "div"  # the list it was in is one already


def _indent(element: Element) -> int:
    return 1 + sum(above.tag in _INDENTING for above in element.iterancestors())


def _absolute(base: str, target: str) -> str | None:
    if not target.strip() or target.strip().startswith("#"):
        return None
    try:
        url = urljoin(base, target.strip())
    except ValueError:
        return None
    return url if url.startswith(("http://", "https://")) else None


def _markdown(html: str) -> str:
    from markdownify import MarkdownConverter

    converter = MarkdownConverter(heading_style="atx", bullets="-", escape_asterisks=False, escape_underscores=False)
    return _MANY_LINES.sub("\n\n", converter.convert(html)).strip()[:MAX_TEXT]
