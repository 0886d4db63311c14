"""Writes the tree of `parse` as Markdown again: for the parts of a split text, and in the dialects of platforms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from channels.markup.parse import (
    Block,
    Break,
    Code,
    Fence,
    Heading,
    Inline,
    Item,
    Items,
    Link,
    Mark,
    Paragraph,
    Quote,
    Rule,
    Style,
    Table,
    Text,
    inlines_of,
    is_bare,
    text_of,
)

_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_MARKS: dict[Mark, str] = {"strong": "**", "emphasis": "*", "strike": "~~"}
_LAST_NUMBER = 999_999_999
"""CommonMark has no numbers of more than 9 digits."""
_HAIR_SPACE = "\u200a"
_ENTITY = re.compile(r"&(#\d|#[xX]|\w)")
_LINE_START = re.compile(r"\d{1,9}(?=[.)](\s|$))|(?=#{1,6}(\s|$)|[-+](\s|$)|>|[=-]+\s*$|[|:-][\s|:-]*$)")


class Markdown:
    """Markdown that `parse` reads as the same tree."""

    line_break = "\n"
    indent = 0
    """Least number of spaces before what is inside an item: some platforms need more than CommonMark does."""

    def write(self, blocks: Sequence[Block], tight: bool = False) -> str:
        """Returns blocks as Markdown. Two lists in a row have different marks, or they would be one."""
        texts: list[str] = []
        previous: Block | None = None
        other = False
        for block in blocks:
            other = isinstance(block, Items) and isinstance(previous, Items) and not other
            text = self.items(block, other) if isinstance(block, Items) else self.block(block)
            if previous is not None:
                texts.append("\n" if tight and isinstance(previous, Paragraph) and _may_follow(block) else "\n\n")
            texts.append(text)
            previous = block
        return "".join(texts)

    def block(self, block: Block) -> str:
        match block:
            case Paragraph(children):
                return self.line_break.join(self.line(line) for line in self.paragraph(children).split("\n"))
            case Heading(level, children):
                return self.heading(level, children)
            case Fence(language, text):
                return self.fence(language, text)
            case Quote(children):
                return prefixed(self.write(children), "> ", "> ")
            case Items():
                return self.items(block, other=False)
            case Table():
                return self.table(block)
            case Rule():
                return self.rule()

    def heading(self, level: int, children: Sequence[Inline]) -> str:
        return f"{'#' * level} {self.paragraph(children).replace(chr(10), ' ')}"

    def fence(self, language: str, text: str) -> str:
        longest = max((len(run) for run in re.findall("`+", text)), default=0)
        marks = "`" * max(3, longest + 1)
        return f"{marks}{re.sub('[`~]', '', language)}\n{text}\n{marks}"

    def rule(self) -> str:
        return "___"

    def items(self, items: Items, other: bool) -> str:
        texts = []
        for index, item in enumerate(items.items):
            if items.start is None:
                mark = "*" if other else "-"
            else:
                mark = f"{min(items.start + index, _LAST_NUMBER)}{')' if other else '.'}"
            texts.append(self.item(mark, item, items.tight))
        return ("\n" if items.tight else "\n\n").join(texts)

    def item(self, mark: str, item: Item, tight: bool) -> str:
        task = "" if item.checked is None else self.task(item.checked)
        if task and item.children and not isinstance(item.children[0], Paragraph):
            task += "\n\n"
        text = task + self.write(item.children, tight)
        indent = max(self.indent, len(mark) + 1)
        return prefixed(text, f"{mark} " if text else mark, " " * indent)

    def task(self, checked: bool) -> str:
        return "[x] " if checked else "[ ] "

    def table(self, table: Table) -> str:
        rows = [self.row(self.cell(cell) for cell in row) for row in (table.header, *table.rows)]
        marks = {"left": ":---", "right": "---:", "center": ":---:"}
        return "\n".join([rows[0], self.row(marks.get(align, "---") for align in table.aligns), *rows[1:]])

    def row(self, cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def cell(self, children: Sequence[Inline]) -> str:
        return self.paragraph(children).replace("\n", " ").replace("|", "\\|")

    def line(self, line: str) -> str:
        """Returns a line of a paragraph so that it does not look like the beginning of a block."""
        return line

    def paragraph(self, children: Sequence[Inline]) -> str:
        """Returns inline nodes; without their styles, if the marks of those could not be told from each other."""
        text = self.inlines(children)
        if _has_styles(children) and _squeezed(text_of(inlines_of(text))) != _squeezed(text_of(children)):
            return self.inlines(_without_styles(children))
        return text

    def inlines(self, children: Sequence[Inline]) -> str:
        texts = ["" if isinstance(node, Style) else self.inline(node) for node in children]
        for index, node in enumerate(children):
            if isinstance(node, Style):
                after = texts[index + 1] if index + 1 < len(texts) else " "
                texts[index] = self.style(node, texts[index - 1][-1:] if index else " ", after[:1] or "*")
        return "".join(texts)

    def inline(self, node: Inline) -> str:
        match node:
            case Text(text):
                return self.text(text)
            case Code(text):
                return self.code(text)
            case Break():
                return "\n"
            case Style():
                return self.style(node, " ", " ")
            case Link():
                return self.link(node)

    def text(self, text: str) -> str:
        """Returns a text in which nothing is markup."""
        return _PUNCTUATION.sub(r"\\\g<0>", text)

    def code(self, text: str) -> str:
        runs = {len(run) for run in re.findall("`+", text)}
        marks = "`" * next(count for count in range(1, len(runs) + 2) if count not in runs)
        edge = text[0] in " `" or text[-1] in " `"
        return f"{marks} {text} {marks}" if edge else f"{marks}{text}{marks}"

    def style(self, style: Style, before: str, after: str) -> str:
        """Returns a styled text. `before` and `after` are the characters next to it."""
        mark = _MARKS[style.mark]
        return f"{mark}{self.inlines(style.children)}{mark}"

    def link(self, link: Link) -> str:
        if is_bare(link):
            return f"<{link.href}>"
        return f"[{self.inlines(link.children)}]({link.href.replace('&', '&amp;')})"


class Dialect(Markdown):
    """Markdown as platforms show it: with few escapes, as not all of them know every escape."""

    def escape(self, char: str) -> str:
        """Returns a character that is no markup."""
        return f"\\{char}"

    def task(self, checked: bool) -> str:
        return "☑ " if checked else "☐ "

    def line(self, line: str) -> str:
        start = _LINE_START.match(line)
        if not start:
            return line
        return line[: start.end()] + self.escape(line[start.end()]) + line[start.end() + 1 :]

    def paragraph(self, children: Sequence[Inline]) -> str:
        return self.inlines(children)

    def text(self, text: str) -> str:
        chars = [
            self.escape(char) if char in "`*_~[]<&\\" and _is_markup(text, index, char) else char
            for index, char in enumerate(text)
        ]
        return "".join(chars)

    def style(self, style: Style, before: str, after: str) -> str:
        """Returns a styled text, with a hair space where CommonMark would not take its marks for marks."""
        mark = _MARKS[style.mark]
        text = self.inlines(style.children)
        opens = before.isspace() or (before not in "*~" and (_is_punctuation(before) or not _is_punctuation(text[0])))
        closes = after.isspace() or (after not in "*~" and (_is_punctuation(after) or not _is_punctuation(text[-1])))
        return f"{'' if opens else _HAIR_SPACE}{mark}{text}{mark}{'' if closes else _HAIR_SPACE}"

    def link(self, link: Link) -> str:
        return link.href if is_bare(link) else f"[{self.inlines(link.children)}]({link.href})"


def _may_follow(block: Block) -> bool:
    """Tells whether a block is a list that may begin right below a paragraph (CommonMark, "Paragraphs")."""
    return isinstance(block, Items) and block.start in (None, 1) and bool(block.items[0].children)


def _is_markup(text: str, index: int, char: str) -> bool:
    """Tells whether a character of a text could be taken for markup. Beyond the text's ends may be anything."""
    before, after = text[index - 1 : index], text[index + 1 : index + 2]
    match char:
        case "`":
            return True
        case "*":
            return not (before.isspace() and after.isspace())
        case "_":
            return not (before.isspace() and after.isspace()) and not (before.isalnum() and after.isalnum())
        case "~":
            return "~" in (before, after) or not before or not after
        case "[":
            return False
        case "]":
            return not after or after in "([:"
        case "<":
            return not after or after.isalpha() or after in "/!?@#"
        case "&":
            return bool(_ENTITY.match(text, index)) or not after
        case _:
            return not after or bool(_PUNCTUATION.match(after))


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def _has_styles(children: Sequence[Inline]) -> bool:
    return any(isinstance(node, Style) or (isinstance(node, Link) and _has_styles(node.children)) for node in children)


def _without_styles(children: Sequence[Inline]) -> tuple[Inline, ...]:
    nodes: list[Inline] = []
    for node in children:
        match node:
            case Style(_, inner):
                nodes.extend(_without_styles(inner))
            case Link(href, inner):
                nodes.append(Link(href, _without_styles(inner)))
            case _:
                nodes.append(node)
    return tuple(nodes)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def prefixed(text: str, first: str, others: str) -> str:
    """Returns a text with a prefix before each line, without spaces at the ends of empty lines."""
    lines = text.split("\n")
    return "\n".join([first + lines[0], *(others + line if line else others.rstrip(" ") for line in lines[1:])])


CANONICAL = Markdown()
