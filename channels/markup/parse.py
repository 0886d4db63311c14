"""Markdown as a small tree, which the renderers and `split` share.

The dialect is CommonMark with tables, strikethrough, task lists and bare web addresses. It differs in these points:

* Next to Chinese, Japanese and Korean characters, emphasis marks need no spaces (`**注意：**的`).
* Raw HTML is text. Images are links. A target that is no web or mail address stands as text behind its label.
* A line break in a paragraph is a line break, as people in chats expect.
* Blocks nested deeper than `DEPTH` levels are text: nothing is lost, and no input exhausts the stack.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.common.normalize_url import normalizeLink
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token
from markdown_it.utils import EnvType

DEPTH = 20
"""Most levels of nested blocks: a list and its item are two, a quote is one."""

Mark = Literal["strong", "emphasis", "strike"]


class Text(NamedTuple):
    text: str


class Code(NamedTuple):
    text: str


class Break(NamedTuple):
    """A line break."""


class Style(NamedTuple):
    mark: Mark
    children: tuple[Inline, ...]


class Link(NamedTuple):
    """A web or mail address. A bare one has itself as its label."""

    href: str
    children: tuple[Inline, ...]


class Paragraph(NamedTuple):
    children: tuple[Inline, ...]


class Heading(NamedTuple):
    level: int
    children: tuple[Inline, ...]


class Fence(NamedTuple):
    """A block of code. `text` does not end with a line break. `language`: empty if what stands there is no name."""

    language: str
    text: str


class Quote(NamedTuple):
    children: tuple[Block, ...]


class Item(NamedTuple):
    checked: bool | None
    """True if an item of a task list is done; None in other lists."""
    children: tuple[Block, ...]


class Items(NamedTuple):
    """A list. `start`: the number of the first item, None if they have none."""

    start: int | None
    tight: bool
    items: tuple[Item, ...]


class Table(NamedTuple):
    aligns: tuple[str, ...]
    """`left`, `center`, `right` or empty, one for each column."""
    header: tuple[tuple[Inline, ...], ...]
    rows: tuple[tuple[tuple[Inline, ...], ...], ...]


class Rule(NamedTuple):
    """A horizontal line."""


Inline: TypeAlias = "Text | Code | Break | Style | Link"
Block: TypeAlias = "Paragraph | Heading | Fence | Quote | Items | Table | Rule"

_REMEMBERED = 50_000
"""Characters of a text whose tree is kept for the next renderer, at most."""
_MARKS: dict[str, Mark] = {"strong_open": "strong", "em_open": "emphasis", "s_open": "strike"}
_SCHEMES = re.compile(r"(https?://[^/?#\s]|mailto:[^\s@]+@)", re.IGNORECASE)
# As in GitHub's autolinks, without other scripts: Chinese text follows an address without a space.
_ADDRESS = re.compile(r"https?://[a-z0-9\[][-a-z0-9._~:/?#\[\]@!$&'()*+,;=%|]*", re.IGNORECASE)
_SCHEME_BEFORE = re.compile(r"(?<![a-z0-9])https?$", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w+#.-]{1,32}(?=\s|$)", re.ASCII)
_TASK = re.compile(r"\[([ xX])\](?=\s|$)")
# Controls but tab and line feed, and halves of surrogate pairs: no platform takes them, and nobody sees them.
_UNPRINTABLE = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u303f\u3040-\u318f\u31a0-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\ufe30-\ufe4f\uff00-\uffef\U0001aff0-\U0001b16f\U0001f200-\U0001f2ff\U00020000-\U0003ffff]"
)


def parse(source: str) -> tuple[Block, ...]:
    """Returns the blocks of a Markdown text. Empty blocks are left out."""
    source = _UNPRINTABLE.sub("", source)
    return _parse(source) if len(source) <= _REMEMBERED else _blocks(iter(_PARSER.parse(source)))


@lru_cache(maxsize=4)
def _parse(source: str) -> tuple[Block, ...]:
    """Parses a text which several renderers of one message are about to read."""
    return _blocks(iter(_PARSER.parse(source)))


def content_of(source: str) -> str:
    """Returns the text that a reader sees, without marks, numbers of lists and targets of links: a line for each block,
    item, row and line break."""
    return "\n".join(line for block in parse(source) for line in _content(block))


def inlines_of(source: str) -> tuple[Inline, ...]:
    """Returns the inline nodes of a paragraph's Markdown."""
    return _inlines(_PARSER.parseInline(source)[0].children or [])


def text_of(children: Iterable[Inline], *, link: str | None = None) -> str:
    """Returns the text of inline nodes. `link`: what stands for a link, in place of its text."""
    parts = []
    for node in children:
        match node:
            case Text(text) | Code(text):
                parts.append(text)
            case Break():
                parts.append("\n")
            case Link() if link is not None:
                parts.append(link)
            case Style(_, inner) | Link(_, inner):
                parts.append(text_of(inner, link=link))
    return "".join(parts)


def is_bare(link: Link) -> bool:
    """Tells whether a link's label is its own address."""
    return link.children == (Text(link.href),)


def is_blank(text: str) -> bool:
    """Tells whether a text shows nothing: spaces, and invisible characters."""
    return all(char.isspace() or unicodedata.category(char) in ("Cf", "Cc") for char in text)


def _content(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(children) | Heading(_, children):
            yield text_of(children)
        case Fence(_, text):
            yield text
        case Quote(children):
            for child in children:
                yield from _content(child)
        case Items(_, _, items):
            for item in items:
                for child in item.children:
                    yield from _content(child)
        case Table(_, header, rows):
            for row in (header, *rows):
                yield " ".join(text_of(cell) for cell in row)
        case Rule():
            pass


def _blocks(tokens: Iterator[Token], end: str = "") -> tuple[Block, ...]:
    """Reads blocks up to the token of type `end`."""
    blocks: list[Block] = []
    for token in tokens:
        if token.type == end:
            break
        if (block := _block(token, tokens)) is not None:
            blocks.append(block)
    return tuple(blocks)


def _block(token: Token, tokens: Iterator[Token]) -> Block | None:
    match token.type:
        case "paragraph_open":
            children = _inlines_up_to(tokens, "paragraph_close")
            return Paragraph(children) if children else None
        case "heading_open":
            children = _inlines_up_to(tokens, "heading_close")
            return Heading(int(token.tag[1]), children) if children else None
        case "fence" | "code_block":
            text = token.content.removesuffix("\n")
            language = _LANGUAGE.match(token.info.strip())
            return None if is_blank(text) else Fence(language[0] if language else "", text)
        case "blockquote_open":
            blocks = _blocks(tokens, "blockquote_close")
            return Quote(blocks) if blocks else None
        case "bullet_list_open":
            return _items(tokens, "bullet_list_close", None)
        case "ordered_list_open":
            return _items(tokens, "ordered_list_close", int(token.attrGet("start") or 0 if token.attrs else 1))
        case "table_open":
            return _table(tokens)
        case "hr":
            return Rule()
        case _:
            raise AssertionError(f"a token of Markdown that is not expected here: {token.type}")


def _inlines_up_to(tokens: Iterator[Token], end: str) -> tuple[Inline, ...]:
    children: tuple[Inline, ...] = ()
    for token in tokens:
        if token.type == end:
            break
        if token.type == "inline":
            children = _inlines(token.children or [])
    return children


def _items(tokens: Iterator[Token], end: str, start: int | None) -> Items | None:
    items: list[Item] = []
    tight = True
    for token in tokens:
        if token.type == end:
            break
        inner = list(_item_tokens(tokens))
        tight = tight and all(
            token.hidden for token in inner if token.level == inner[0].level and "paragraph" in token.type
        )
        items.append(_item(inner))
    return Items(start, tight, tuple(items)) if items else None


def _item_tokens(tokens: Iterator[Token]) -> Iterator[Token]:
    """Yields the tokens inside an item and reads its closing one."""
    depth = 1
    for token in tokens:
        depth += {"list_item_open": 1, "list_item_close": -1}.get(token.type, 0)
        if not depth:
            return
        yield token


def _item(tokens: list[Token]) -> Item:
    """Returns an item, with the mark of a task taken from its text."""
    task = _TASK.match(tokens[1].content) if len(tokens) > 1 and tokens[0].type == "paragraph_open" else None
    blocks = _blocks(iter(tokens))
    if not task:
        return Item(None, blocks)
    paragraph = blocks[0]
    assert isinstance(paragraph, Paragraph)
    text = paragraph.children[0]
    assert isinstance(text, Text)
    children = trimmed((Text(text.text[3:]), *paragraph.children[1:]))
    return Item(task[1] != " ", (Paragraph(children), *blocks[1:]) if children else blocks[1:])


def _table(tokens: Iterator[Token]) -> Table:
    aligns: list[str] = []
    rows: list[list[tuple[Inline, ...]]] = []
    for token in tokens:
        match token.type:
            case "table_close":
                break
            case "tr_open":
                rows.append([])
            case "th_open" | "td_open":
                if token.type == "th_open":
                    aligns.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
                rows[-1].append(_inlines_up_to(tokens, token.type.replace("open", "close")))
            case _:
                pass
    return Table(tuple(aligns), tuple(rows[0]), tuple(tuple(row) for row in rows[1:]))


def _inlines(tokens: Sequence[Token]) -> tuple[Inline, ...]:
    """Returns the nodes of a paragraph: without spaces at the ends of its lines, and without empty nodes."""
    root: list[Inline] = []
    stack: list[tuple[Token, list[Inline]]] = []
    around: Counter[str] = Counter()
    nodes = root
    for token in tokens:
        if token.nesting == 1:
            stack.append((token, nodes))
            around[token.type] += 1
            nodes = []
        elif token.nesting == -1:
            opening, outer = stack.pop()
            around[opening.type] -= 1
            outer.extend(_wrapped(opening, nodes, inside_itself=around[opening.type] > 0))
            nodes = outer
        else:
            nodes.extend(_leaf(token, in_link=around["link_open"] > 0))
    return trimmed(root)


def _leaf(token: Token, in_link: bool) -> Iterator[Inline]:
    match token.type:
        case "text" | "text_special":
            if text := _UNPRINTABLE.sub("", re.sub(r"[\r\n]", " ", token.content)):
                yield Text(text)
        case "softbreak" | "hardbreak":
            yield Break()
        case "code_inline":
            yield Text(token.content) if is_blank(token.content) else Code(token.content)
        case "image":
            label = text_of(_inlines(token.children or []))
            target = str(token.attrGet("src") or "")
            if in_link:
                yield Text(label or target)
            else:
                yield from _linked(target, [Text(label)] if label else [])
        case _:
            raise AssertionError(f"a token of Markdown that is not expected here: {token.type}")


def _wrapped(opening: Token, nodes: list[Inline], *, inside_itself: bool) -> Sequence[Inline]:
    """Returns nodes in their style or link. A style inside itself, and one of nothing visible, is none."""
    if opening.type == "link_open":
        return _linked(str(opening.attrGet("href") or ""), nodes)
    mark = _MARKS[opening.type]
    if inside_itself or is_blank(text_of(nodes)):
        return nodes
    # Spaces at the edges stay outside: marks next to spaces are not marks.
    text = text_of(nodes)
    before = [Text(" ")] if text[0].isspace() else []
    after = [Text(" ")] if text[-1].isspace() else []
    return [*before, Style(mark, trimmed(nodes)), *after]


def _linked(target: str, label: list[Inline]) -> list[Inline]:
    """Returns a link, or its text if its target is no address."""
    children = trimmed(label)
    if _SCHEMES.match(target):
        href = _quoted(target)
        if is_blank(text_of(children)):
            return [Link(href, (Text(href),))]
        return [Link(href, (Text(href),) if text_of(children) in (href, target) else children)]
    if is_blank(text_of(children)):
        return [Text(target)] if target else []
    if not target or text_of(children) == target or target.startswith("#"):
        return list(children)
    return [*children, Text(f" ({target})")]


def _quoted(target: str) -> str:
    """Returns an address in characters that no platform's syntax of links uses."""
    with contextlib.suppress(ValueError):
        target = normalizeLink(target)
    return re.sub(r"[()<>\[\]{}|\\^`*\"'\s\x00-\x1f]", lambda char: f"%{ord(char[0]):02X}", target)


def trimmed(nodes: Sequence[Inline]) -> tuple[Inline, ...]:
    """Joins neighbouring texts, and removes spaces at the ends of lines and empty nodes."""
    joined: list[Inline] = []
    for node in nodes:
        previous = joined[-1] if joined else None
        if isinstance(node, Text) and isinstance(previous, Text):
            joined[-1] = Text(previous.text + node.text)
        elif isinstance(node, Style) and isinstance(previous, Style) and node.mark == previous.mark:
            joined[-1] = Style(node.mark, trimmed((*previous.children, *node.children)))
        else:
            joined.append(node)
    for index, node in enumerate(joined):
        if isinstance(node, Text):
            text = node.text
            if index == 0 or isinstance(joined[index - 1], Break):
                text = text.lstrip()
            if index == len(joined) - 1 or isinstance(joined[index + 1], Break):
                text = text.rstrip()
            joined[index] = Text(text)
    joined = [node for node in joined if node != Text("")]
    while joined and isinstance(joined[0], Break):
        del joined[0]
    while joined and isinstance(joined[-1], Break):
        del joined[-1]
    return () if is_blank(text_of(joined)) else tuple(joined)


class _State(StateInline):
    """Tells which marks open and close emphasis, as CommonMark does, but not as strictly next to CJK characters: in
    those scripts, no space separates a mark after punctuation from the next word (github.com/commonmark/commonmark-spec
    issue 650)."""

    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:
        scanned = super().scanDelims(start, canSplitWord)
        end = start + scanned.length
        before = self.src[start - 1] if start else " "
        after = self.src[end] if end < self.posMax else " "
        if not canSplitWord or before.isspace() or after.isspace() or not (_CJK.match(before) or _CJK.match(after)):
            return scanned
        opens = _CJK.match(before) or _CJK.match(after) or scanned.can_open
        closes = _CJK.match(before) or _CJK.match(after) or scanned.can_close
        return Scanned(bool(opens), bool(closes), scanned.length)


class _Inline(ParserInline):
    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        state = _State(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


def _bare_address(state: StateInline, silent: bool) -> bool:
    """Reads a web address that stands in the text as it is."""
    if not state.src.startswith("://", state.pos) or state.linkLevel:
        return False
    scheme = _SCHEME_BEFORE.search(state.src[max(0, state.pos - 6) : state.pos])
    if not scheme or not state.pending.endswith(scheme[0]):
        return False
    start = state.pos - len(scheme[0])
    match = _ADDRESS.match(state.src, start, state.posMax)
    if not match:
        return False
    address = _without_punctuation(match[0])
    if len(address) <= len(scheme[0]) + 3:
        return False
    if not silent:
        state.pending = state.pending[: -len(scheme[0])]
        state.push("link_open", "a", 1).attrs = {"href": address}
        state.push("text", "", 0).content = address
        state.push("link_close", "a", -1)
    state.pos = start + len(address)
    return True


def _without_punctuation(address: str) -> str:
    """Cuts off what belongs to the sentence around an address: marks at its end, and unbalanced brackets."""
    while address:
        last = address[-1]
        pairs = {")": "(", "]": "["}
        if last in "?!.,:*_~;'|$&" or (last in pairs and address.count(last) > address.count(pairs[last])):
            address = address[:-1]
        else:
            break
    return address


def _too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Reads blocks that are nested too deeply as one paragraph of text."""
    if silent or state.level < DEPTH:
        return False
    opening = state.push("paragraph_open", "p", 1)
    opening.map = [start, end]
    inline = state.push("inline", "", 0)
    inline.content = state.getLines(start, end, state.blkIndent, False).strip(" \t\n")
    inline.children = []
    state.push("paragraph_close", "p", -1)
    state.line = end
    return True


def _make() -> MarkdownIt:
    parser = MarkdownIt("js-default", {"html": False, "typographer": False, "maxNesting": 2 * DEPTH + 8})
    inline = _Inline()
    inline.ruler.before("newline", "bare_address", _bare_address)
    inline.ruler.disable(["linkify", "html_inline"])
    parser.inline = inline
    parser.block.ruler.before("table", "too_deep", _too_deep)
    # Which targets are links is decided here (`_linked`).
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign]
    parser.normalizeLinkText = lambda link: link  # type: ignore[method-assign]
    return parser


_PARSER = _make()
