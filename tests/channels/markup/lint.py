"""What platforms refuse or misread, written from their documentation. Returns complaints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from markdown_it import MarkdownIt

_TYPES = {"bold", "italic", "strikethrough", "code", "pre", "text_link", "blockquote"}
_PINGS = re.compile(r"<[!@#]|@(channel|here|everyone|group)\b", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z]")
_PINGS_IN_CODE = re.compile(r"<![a-z]+[|>^]|<[@#][A-Z0-9]+[|>]|@(?i:channel|here|everyone|group)\b")
_TAG_IN_CODE = re.compile(r"</?(?:at|person)\b", re.IGNORECASE)
"""Code is left as it is, but for what mentions people there, too."""
_SPAN = re.compile(r"\\.|(?<!`)(`+)(?!`)(.*?[^`])\1(?!`)", re.DOTALL)


def telegram(text: str, entities: list[dict[str, Any]]) -> Iterator[str]:
    data = text.encode("utf-16-le")
    if not text.strip():
        yield "message text is empty"
    if len(data) // 2 > 4096:
        yield "message is too long"
    if len(entities) > 100:
        yield "entities beyond the hundredth are ignored"
    for index, entity in enumerate(entities):
        start, end = entity["offset"], entity["offset"] + entity["length"]
        if entity["type"] not in _TYPES:
            yield f"unknown entity {entity}"
        if not 0 <= start < end <= len(data) // 2:
            yield f"entity outside of the text: {entity}"
        if entity["type"] == "text_link" and not re.match(r"https?://[^\s<>]+$", entity["url"]):
            yield f"link {entity}"
        for edge in (start, end):
            if data[2 * edge : 2 * edge + 2] and 0xDC <= data[2 * edge + 1] <= 0xDF:
                yield f"entity cuts a surrogate pair: {entity}"
        for other in entities[index + 1 :]:
            yield from _together(entity, other)


def _together(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    a, b = one["offset"], one["offset"] + one["length"]
    c, d = other["offset"], other["offset"] + other["length"]
    if min(b, d) <= max(a, c):
        return
    if not ((a <= c and d <= b) or (c <= a and b <= d)):
        yield f"entities overlap: {one} {other}"
    kinds = {one["type"], other["type"]}
    if one["type"] == other["type"]:
        yield f"entities of one type inside each other: {one} {other}"
    if "pre" in kinds or ("code" in kinds and "blockquote" not in kinds):
        yield f"code with another entity: {one} {other}"


def slack_blocks(blocks: list[dict[str, Any]]) -> Iterator[str]:
    if len(blocks) > 50:
        yield "more than 50 blocks"
    if sum(len(block["text"]) for block in blocks) > 12_000:
        yield "markdown blocks over 12 000 characters"
    for block in blocks:
        if block["type"] != "markdown" or not block["text"].strip():
            yield f"block {block}"
        if ping := _PINGS.search(_without_code(block["text"])) or _PINGS_IN_CODE.search(block["text"]):
            yield f"mentions: {ping[0]}"


def slack_mrkdwn(text: str) -> Iterator[str]:
    if len(text) > 40_000:
        yield "text is truncated"
    if ping := _PINGS.search(re.sub(r"<(https?://|mailto:)[^<>|]+", "<", text)):
        yield f"mentions: {ping[0]}"
    if re.search(r"&(?!(amp|lt|gt);)", text):
        yield "an unescaped &"
    if re.search(r"[<>]", re.sub(r"(?m)^> ?", "", re.sub(r"<(https?://|mailto:)[^<>|\s]+(\|[^<>|\n]*)?>", "", text))):
        yield "an unescaped < or >"
    if text.count("```") % 2:
        yield "an open block of code"


def feishu(elements: list[dict[str, Any]]) -> Iterator[str]:
    if len(json.dumps(elements, ensure_ascii=False).encode()) > 30_000:
        yield "card over 30 KB"
    if len(elements) > 200:
        yield "more than 200 elements"
    tables = 0
    for element in elements:
        if element["tag"] != "markdown" or not element["content"].strip():
            yield f"element {element}"
        if tag := _TAG.search(_without_code(element["content"])) or _TAG_IN_CODE.search(element["content"]):
            yield f"a tag: {tag[0]}"
        tables += sum(token.type == "table_open" for token in _markdown.parse(element["content"]))
    if tables > 3:
        yield f"{tables} tables"


def discord(text: str) -> Iterator[str]:
    if len(text) > 2000:
        yield "over 2000 characters"
    if not text.strip():
        yield "empty"
    for token in _markdown.parse(text):
        if token.type == "table_open":
            yield "a table"
        if token.type == "blockquote_open" and token.level:
            yield "a quote that does not begin its line"


def _without_code(text: str) -> str:
    """Returns the text of a Markdown source outside of code."""
    inline = [token.content for token in _markdown.parse(text) if token.type == "inline"]
    return "\n".join(_SPAN.sub(lambda span: "" if span[1] else span[0], content) for content in inline)


def dingtalk_card(text: str) -> Iterator[str]:
    if len(text.encode()) > 20_000:
        yield "over 20 000 bytes"
    if not text.strip():
        yield "empty"
    if tag := _TAG.search(_without_code(text)):
        yield f"a tag: {tag[0]}"


def dingtalk(text: str) -> Iterator[str]:
    yield from dingtalk_card(text)
    if len(text) > 3_500:
        yield "over 3 500 characters: shown without format"
    for token in _markdown.parse(text):
        if token.type in ("fence", "code_block", "table_open"):
            yield f"no such block: {token.type}"
        if any(child.type == "code_inline" for child in token.children or ()):
            yield "no inline code"


_markdown = MarkdownIt("js-default", {"html": False, "maxNesting": 100})
