"""Any Markdown, rendered for any platform: the platform has nothing to refuse, and a reader misses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from channels.markup import dingtalk, discord, feishu, slack, telegram
from channels.markup.parse import content_of
from tests.channels.markup import lint, texts

pytestmark = pytest.mark.long(keep=3)

Render = Callable[[str], tuple[str, list[str]]]
"""Returns what is shown, and what is wrong with it."""


def _telegram(source: str) -> tuple[str, list[str]]:
    text, entities = telegram.entities(source)
    return text, list(lint.telegram(text, entities))


def _blocks(source: str) -> tuple[str, list[str]]:
    blocks = slack.blocks(source)
    return "".join(block["text"] for block in blocks), list(lint.slack_blocks(blocks))


def _mrkdwn(source: str) -> tuple[str, list[str]]:
    text = slack.mrkdwn(source)
    return text.replace("¦", "|").replace("ˋ", "`"), list(lint.slack_mrkdwn(text))


def _feishu(source: str) -> tuple[str, list[str]]:
    elements = feishu.elements(source)
    return "".join(element["content"] for element in elements), list(lint.feishu(elements))


def _dingtalk(source: str) -> tuple[str, list[str]]:
    text = dingtalk.markdown(source)
    return text, list(lint.dingtalk(text))


def _card(source: str) -> tuple[str, list[str]]:
    text = dingtalk.card(source)
    return text, list(lint.dingtalk_card(text))


def _discord(source: str) -> tuple[str, list[str]]:
    sent = [discord.markdown(part) for part in discord.parts(source)]
    return discord.markdown(source), [problem for text in sent for problem in lint.discord(text)]


RENDERERS = {
    "telegram": (_telegram, telegram.parts),
    "blocks": (_blocks, slack.parts),
    "mrkdwn": (_mrkdwn, slack.parts),
    "feishu": (_feishu, feishu.parts),
    "dingtalk": (_dingtalk, dingtalk.parts),
    "card": (_card, dingtalk.parts),
    "discord": (_discord, discord.parts),
}
each = pytest.mark.parametrize(("render", "parts"), RENDERERS.values(), ids=RENDERERS)
quick = settings(suppress_health_check=[HealthCheck.too_slow])


def _check(render: Render, source: str, in_order: bool) -> None:
    content = content_of(source)
    shown, complaints = render(source)
    if texts.visible(content):
        assert complaints == [], render
    assert texts.is_complete(content, shown, in_order), (render, content, shown)


def _check_all(source: str, in_order: bool) -> None:
    """With all renderers: to think of a text takes longer than to render it."""
    for render, _ in RENDERERS.values():
        _check(render, source, in_order)


@quick
@given(source=texts.documents)
def test_any_document(source: str) -> None:
    _check_all(source, in_order=True)


@quick
@given(source=st.one_of(texts.with_tables, texts.noise))
@example(source="```\n- `````")
@example(source="> a`b `")  # a space of the code ends the quote
def test_any_tables_and_any_noise(source: str) -> None:
    _check_all(source, in_order=False)


@quick
@given(source=texts.with_tables, data=st.data())
def test_any_beginning_of_a_text_that_grows(source: str, data: st.DataObject) -> None:
    _check_all(source[: data.draw(st.integers(0, len(source)))], in_order=False)


@cache
def _long_parts(parts: Callable[[str], list[str]]) -> list[str]:
    return parts(texts.long_document())


@each
def test_a_long_document_in_parts(render: Render, parts: Callable[[str], list[str]]) -> None:
    source = texts.long_document()
    assert len(source) > 20_000
    pieces = _long_parts(parts)
    for piece in pieces:
        _check(render, piece, in_order=False)
    shown = "".join(render(piece)[0] for piece in pieces)
    assert texts.is_complete(content_of(source), shown, in_order=False)


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.split("\n"))


def test_slack_escapes_before_it_converts() -> None:
    assert (
        slack.mrkdwn("1 < 2 & **3 > 2** <!channel>").replace("\u200b", "")
        == "1 &lt; 2 &amp; *3 &gt; 2* &lt;!channel&gt;"
    )
    assert slack.mrkdwn("[a|b](https://e.com/?x=1&y=2)") == "<https://e.com/?x=1&amp;y=2|a¦b>"
    assert slack.mrkdwn("> q\n\n```py\na < b\n```") == "> q\n\n```\na &lt; b\n```"


def test_slack_blocks_are_markdown() -> None:
    assert slack.blocks("# T\n\n**注意：**的 @channel") == [
        {"type": "markdown", "text": "# T\n\n**注意：**\u200a的 @\u200bchannel"}
    ]
    assert slack.blocks(" \n") == []


def test_telegram_counts_utf_16_units() -> None:
    assert telegram.entities("😀 **b** [l](https://e.com) `c`") == (
        "😀 b l c",
        [
            {"type": "bold", "offset": 3, "length": 1},
            {"type": "text_link", "url": "https://e.com", "offset": 5, "length": 1},
            {"type": "code", "offset": 7, "length": 1},
        ],
    )


def test_telegram_entities_nest_and_do_not_overlap() -> None:
    text, entities = telegram.entities("[a **b**](https://e.com)**c `d`**\n> q `e`\n>\n> > r")
    assert (text, list(lint.telegram(text, entities))) == ("a bc d\n\nq e\n\nr", [])


def test_telegram_shows_small_tables_aligned_and_others_as_lists() -> None:
    text, entities = telegram.entities("|键|v|\n|-|-:|\n|重要|1|\n")
    assert (text, entities) == ("键    v\n────  ─\n重要  1", [{"type": "pre", "offset": 0, "length": len(text)}])
    text, _ = telegram.entities("|a|b|\n|-|-|\n|[x](https://e.com)|1|\n|y|2|\n")
    assert text == "• a: x\n   b: 1\n• a: y\n   b: 2"


def test_feishu_shows_three_tables_and_mentions_nobody() -> None:
    source = "\n\n".join(["| a |\n|---|\n| 1 |"] * 4) + "\n\n<at id=all></at> `<at id=all>` 2 * 3 *4"
    text = feishu.markdown(source)
    assert text.count("| --- |") == 3
    assert text.endswith("```\na\n─\n1\n```\n\n&#60;at id=all>&#60;/at> `<\u200bat id=all>` 2 * 3 &#42;4")
    assert [feishu.markdown(part).count("| --- |") for part in feishu.parts(source)] == [3, 1]


def test_dingtalk_has_neither_tables_nor_code() -> None:
    source = "Use `x`.\n\n| n | v |\n|---|---|\n| a | 1 |\n| b | 2 |\n\n```py\nif a:\n    # b\n```\n\n---"
    assert list(_lines(dingtalk.markdown(source))) == [
        *("Use **x**.", "", "> **n**: a", "> **v**: 1", ">", "> **n**: b", "> **v**: 2", ""),
        *("> **py**", "> if a:", "> \u00a0\u00a0\u00a0\u00a0# b", "", "─" * 12),
    ]
    assert "| n | v |" in dingtalk.card(source)
    assert dingtalk.title("# Der *Titel*\n\nund mehr") == "Der Titel und mehr"


def test_discord_has_no_tables_and_small_headings_are_bold() -> None:
    source = "#### T\n\n| n | v |\n|---|--:|\n| a | 1 |\n\n> a\n> > b\n\n-# x ||y|| <@1>\n\n---"
    assert discord.markdown(source) == (
        "**T**\n\n```\nn  v\n─  ─\na  1\n```\n\n> a\n>\n> b\n\n\\-# x \\|\\|y\\|\\| \\<@1>\n\n" + "─" * 12
    )
    wide = f"| n | v |\n|---|---|\n| a | {'w ' * 40} |"
    assert discord.markdown(wide).startswith("- **n:** a\n")


@pytest.mark.parametrize("code", ["#include <stdio.h>", "if (a<b) {}", "<!-- a -->", "<!DOCTYPE html>"])
def test_code_that_mentions_nobody_can_be_copied(code: str) -> None:
    for source in (f"```\n{code}\n```", f"`{code}`"):
        assert code in slack.markdown(source)
        assert code in feishu.markdown(source)


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("a <!x> b", 1),
        ("a <b>c</b>", 1),
        ("`#include <stdio.h>` and `a<!b`", 0),
        ("```\n#include <stdio.h>\n```", 0),
        ("`<!channel>` and `<at id=all>`", 1),
        ("\\`<b>\\`", 1),
    ],
)
def test_the_lint_finds_what_platforms_misread(text: str, complaints: int) -> None:
    """In code, only what mentions people."""
    wrong = [*lint.slack_blocks([{"type": "markdown", "text": text}])] if "!" in text else []
    wrong += (
        [*lint.feishu([{"tag": "markdown", "content": text}])] if "!channel" not in text and "<!x" not in text else []
    )
    assert len(wrong) == complaints, wrong
