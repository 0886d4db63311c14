"""Markdown for Slack: a `markdown` block, mrkdwn, and where to split.

The `markdown` block takes Markdown as models write it and shows headings, nested lists and tables; mrkdwn, the format
of `text`, has none of them, and is what notifications and old clients show. Slack takes at most 12 000 characters in
all `markdown` blocks of a message; messages with other blocks beside them were refused from some 10 000 on (research
im-platforms §2.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from channels.markup.flow import Piece, Pre, Run, flow, is_quoted, with_quote_marks
from channels.markup.parse import Mark, parse
from channels.markup.split import split
from channels.markup.write import Dialect

LIMIT = 10_000
_INVISIBLE = "\u200b"
_FENCE = re.compile("``(?=`)")
_PING = re.compile(r"@(?=(channel|here|everyone|group)\b)", re.IGNORECASE)
_REFERENCE = re.compile(r"<(?=![a-z]+[|>^]|[@#][A-Z0-9]+[|>])")
_MARK_AT_WORD = re.compile(r"(?<!\w)[*_~`](?=\S)")
_LINE = re.compile(r"(?m)\S(.*\S)?")
_MARKS: dict[Mark, str] = {"strong": "*", "emphasis": "_", "strike": "~"}


def blocks(source: str) -> list[dict[str, Any]]:
    """Returns the Block Kit blocks of a part: one `markdown` block. None if there is nothing to see."""
    text = markdown(source)
    return [{"type": "markdown", "text": text}] if text else []


def markdown(source: str) -> str:
    """Returns the Markdown of `markdown` blocks and of native streams (`markdown_text`). It mentions nobody."""
    return _DIALECT.write(parse(source))


def mrkdwn(source: str) -> str:
    """Returns the same in Slack's own format, for `text`. It mentions nobody."""
    groups = groupby(flow(parse(source)), is_quoted)
    return with_quote_marks((quoted, "".join(_runs(pieces))) for quoted, pieces in groups)


def parts(source: str, limit: int = LIMIT) -> list[str]:
    """Splits Markdown into parts of which both `markdown` and `mrkdwn` have at most `limit` characters."""
    return split(source, lambda part: len(markdown(part)) <= limit and len(mrkdwn(part)) <= limit)


class _Slack(Dialect):
    line_break = "  \n"
    indent = 4

    def escape(self, char: str) -> str:
        return {"<": "&lt;", "&": "&amp;"}.get(char, f"\\{char}")

    def text(self, text: str) -> str:
        return _without_pings(super().text(text))

    def code(self, text: str) -> str:
        return super().code(_without_references(text))

    def fence(self, language: str, text: str) -> str:
        return super().fence(language, _without_references(text))

    def rule(self) -> str:
        return "---"


_DIALECT = _Slack()


def _without_pings(text: str) -> str:
    return _PING.sub(f"@{_INVISIBLE}", text)


def _without_references(text: str) -> str:
    """Returns code that refers to nobody: an invisible character breaks `<!channel>` and `<@U…>`. Other code is copied
    as it is."""
    return _without_pings(_REFERENCE.sub(f"<{_INVISIBLE}", text))


def _runs(pieces: Iterable[Piece]) -> Iterator[str]:
    for style, group in groupby(pieces, _style):
        text = "".join(piece.text for piece in group)
        if isinstance(style, Run):
            yield _run(style, text)
        else:
            code = _FENCE.sub(rf"\g<0>{_INVISIBLE}", _escaped(text))
            yield f"```\n{code}\n```"


def _style(piece: Piece) -> Run | int:
    return id(piece) if isinstance(piece, Pre) else piece._replace(text="")


def _run(style: Run, text: str) -> str:
    """Returns a text in mrkdwn. Marks count only at the edges of words, so something invisible is around them."""
    core = text.strip()
    if not core:
        return text
    if style.href:
        href = style.href.replace("&", "&amp;")
        label = _escaped(core).replace("|", "¦").replace("`", "ˋ").replace("\n", " ")
        shown = f"<{href}>" if core == style.href else f"<{href}|{label}>"
    elif style.code:
        shown = f"`{_escaped(core).replace('`', 'ˋ')}`"
    else:
        shown = _MARK_AT_WORD.sub(rf"\g<0>{_INVISIBLE}", _escaped(core))
    for mark in sorted(style.marks):
        shown = _LINE.sub(rf"{_MARKS[mark]}\g<0>{_MARKS[mark]}", shown)
    if style.marks or style.code:
        shown = f"{_INVISIBLE}{shown}{_INVISIBLE}"
    return text.replace(core, shown)


def _escaped(text: str) -> str:
    return _without_pings(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
