"""Answers that grow: native drafts, placeholders, and their end."""

from __future__ import annotations

import anyio
import pytest

from channels.telegram.drafts import KEPT_SECONDS
from channels.telegram.platform import Telegram
from core.chat.facts import Button, Target
from core.chat.port import ChatGone, Content, FateUnknown, RateLimited
from core.errors import Unavailable
from tests.channels.telegram.conftest import until
from tests.channels.telegram.server import TelegramServer

pytestmark = pytest.mark.anyio


def _shown(server: TelegramServer, target: Target) -> list[tuple[str, bool]]:
    """The texts in a chat, and whether they are drafts."""
    return [(shown.text, shown.drafted) for shown in server.seen(int(target.chat))]


async def test_a_native_draft_grows_and_gives_way_to_the_answer(
    server: TelegramServer, platform: Telegram, ann: Target
) -> None:
    draft = platform.draft(ann, "run-1")
    await draft.show("", "")
    await draft.show("Once", "reading")
    await draft.show("Once **upon**", "")
    assert _shown(server, ann) == [("Once upon", True)]
    assert (draft.message, server.made("sendMessage")) == ("", [])
    message = await draft.finish(Content("Once **upon** a time"), "k")
    assert _shown(server, ann) == [("Once upon a time", False)]
    assert message == str(server.seen(int(ann.chat))[0].id)
    assert {call.parameters["draft_id"] for call in server.made("sendMessageDraft")} != {0}


async def test_the_answer_of_a_long_run_is_a_message_whose_fate_does_not_matter(
    server: TelegramServer, platform: Telegram, ann: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = platform.draft(ann, "run-1")
    await draft.show("Once", "")
    assert draft.message == ""
    monkeypatch.setattr("channels.telegram.drafts.LONG_SECONDS", 0.0)
    await draft.show("Once upon", "reading")
    assert [text for text, drafted in _shown(server, ann) if not drafted] == ["Once upon\n\nreading"]
    message = draft.message
    server.faults.add("editMessageText", "lose")
    with pytest.raises(Unavailable):
        await draft.finish(Content("Once upon a time"), "k")
    assert await draft.finish(Content("Once upon a time"), "k") == message
    assert [text for text, drafted in _shown(server, ann) if not drafted] == ["Once upon a time"]


async def test_the_same_is_not_shown_again(
    server: TelegramServer, platform: Telegram, ann: Target, team: Target
) -> None:
    for target, method in ((ann, "sendMessageDraft"), (team, "editMessageText")):
        draft = platform.draft(target, "run-1")
        for text in ("Once", "Once upon", "Once upon", "Once upon"):
            await draft.show(text, "reading")
        assert len(server.made(method)) == (2 if target is ann else 1)


async def test_a_draft_is_kept_from_vanishing(
    server: TelegramServer, platform: Telegram, ann: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Telegram lets it vanish after 30 s, and a tool may take longer."""
    draft = platform.draft(ann, "run-1")
    await draft.show("Once", "")
    await platform.working(ann, True)
    assert len(server.made("sendMessageDraft")) == 1
    monkeypatch.setattr("channels.telegram.drafts.KEPT_SECONDS", -1.0)
    assert KEPT_SECONDS < 30
    await platform.working(ann, True)
    assert len(server.made("sendMessageDraft")) == 2
    await draft.finish(Content("Once upon a time"), "k")
    await platform.working(ann, True)
    assert _shown(server, ann) == [("Once upon a time", False)]


async def test_an_expired_draft_does_not_matter_to_the_answer(
    server: TelegramServer, platform: Telegram, ann: Target
) -> None:
    draft = platform.draft(ann, "run-1")
    await draft.show("Once", "")
    clock = server.clock
    server.clock = lambda: clock() + 31
    assert _shown(server, ann) == []
    await draft.finish(Content("Once upon a time"), "k")
    assert _shown(server, ann) == [("Once upon a time", False)]


@pytest.mark.parametrize("old_server", [True, False])
async def test_a_refused_draft_becomes_a_message_and_the_chat_is_remembered(
    server: TelegramServer, platform: Telegram, ann: Target, old_server: bool
) -> None:
    server.native_drafts = not old_server
    server.faults.without_drafts.add(int(ann.chat))
    for run in ("run-1", "run-2"):
        draft = platform.draft(ann, run)
        await draft.show("Once", "reading")
        await draft.show("Once upon", "")
        assert draft.message
        await draft.finish(Content(f"Once upon a time, {run}"), "k")
    assert len(server.made("sendMessageDraft")) == 1
    assert _shown(server, ann) == [("Once upon a time, run-1", False), ("Once upon a time, run-2", False)]


async def test_a_group_gets_one_message_that_is_edited(
    server: TelegramServer, platform: Telegram, team: Target
) -> None:
    draft = platform.draft(team, "run-1")
    await draft.show("", "thinking")
    assert _shown(server, team) == [("thinking", False)]
    await draft.show("Once", "reading")
    assert _shown(server, team) == [("Once\n\nreading", False)]
    buttons = Content("Once upon a time", buttons=(Button("more", "More"),), plan="p")
    assert await draft.finish(buttons, "k") == draft.message
    assert _shown(server, team) == [("Once upon a time", False)]
    assert server.seen(int(team.chat))[0].buttons


async def test_an_answer_that_is_shown_already_loses_its_button_only(
    server: TelegramServer, platform: Telegram, team: Target
) -> None:
    draft = platform.draft(team, "run-1")
    await draft.show("", "thinking")
    await draft.show("The **end**", "")
    assert await draft.finish(Content("The **end**"), "k") == draft.message
    shown = [call.parameters for call in server.made("editMessageText")]
    assert [each["text"] for each in shown] == ["The end"] * 2
    assert [bool(each.get("reply_markup")) for each in shown] == [True, False]
    again = platform.draft(team, "run-1", draft.message)  # of another process, which does not know what is shown
    assert await again.finish(Content("The **end**"), "k") == draft.message
    assert [call.status for call in server.made("editMessageText")] == [200, 200, 400]


async def test_another_process_finishes_the_message(server: TelegramServer, platform: Telegram, team: Target) -> None:
    first = platform.draft(team, "run-1")
    await first.show("Once", "")
    second = platform.draft(team, "run-1", first.message)
    await second.show("Once upon", "")
    for _ in range(2):  # a crash after the edit has it done again
        assert await platform.draft(team, "run-1", first.message).finish(Content("The end"), "k") == first.message
    assert _shown(server, team) == [("The end", False)]


async def test_the_end_is_edited_in_also_when_an_answer_got_lost(
    server: TelegramServer, platform: Telegram, team: Target
) -> None:
    """An edit is no second message: its caller may repeat it."""
    draft = platform.draft(team, "run-1")
    await draft.show("Once", "")
    server.faults.add("editMessageText", "lose")
    with pytest.raises(Unavailable) as caught:
        await draft.finish(Content("The end"), "k")
    assert not isinstance(caught.value, FateUnknown)
    await draft.finish(Content("The end"), "k")
    assert _shown(server, team) == [("The end", False)]


async def test_a_show_without_an_answer_leaves_in_doubt_what_is_shown(
    server: TelegramServer, platform: Telegram, team: Target
) -> None:
    draft = platform.draft(team, "run-1")
    await draft.show("", "thinking")
    await draft.show("The end", "")
    server.faults.add("editMessageText", "lose")
    with pytest.raises(Unavailable):
        await draft.show("The end", "reading")
    await draft.finish(Content("The end"), "k")
    assert _shown(server, team) == [("The end", False)]


async def test_a_deleted_placeholder_is_not_shown_again(
    server: TelegramServer, platform: Telegram, team: Target
) -> None:
    draft = platform.draft(team, "run-1")
    await draft.show("Once", "")
    server.chat(int(team.chat)).messages.clear()
    with pytest.raises(ChatGone):
        await draft.show("Once upon", "")
    await draft.show("Once upon a", "")
    assert _shown(server, team) == []
    with pytest.raises(ChatGone, match="Message to edit not found"):
        await draft.finish(Content("The end"), "k")
    assert len(server.made("sendMessage")) == 1  # a post is its caller's decision: it does not repeat like an edit


async def test_a_placeholder_of_unknown_fate_is_not_sent_again(
    server: TelegramServer, platform: Telegram, team: Target
) -> None:
    draft = platform.draft(team, "run-1")
    server.faults.add("sendMessage", "lose")
    with pytest.raises(FateUnknown):
        await draft.show("Once", "")
    await draft.show("Once upon", "")
    assert len(server.made("sendMessage")) == 1
    await draft.finish(Content("The end"), "k")
    assert [text for text, _ in _shown(server, team)] == ["…", "The end"]


async def test_a_cancelled_placeholder_is_not_sent_again(
    server: TelegramServer, platform: Telegram, team: Target
) -> None:
    draft = platform.draft(team, "run-1")
    server.faults.add("sendMessage", "hang")
    async with anyio.create_task_group() as group:
        group.start_soon(draft.show, "thinking", "")
        await until(lambda: server.made("sendMessage"))
        group.cancel_scope.cancel()
    await draft.show("Once", "")
    assert len(server.made("sendMessage")) == 1


async def test_a_flood_is_told_and_a_later_show_goes_on(
    server: TelegramServer, platform: Telegram, team: Target
) -> None:
    draft = platform.draft(team, "run-1")
    server.faults.add("sendMessage", "flood", seconds=7)
    with pytest.raises(RateLimited) as caught:
        await draft.show("Once", "")
    assert caught.value.seconds == 7
    await platform.working(team, True)
    assert server.actions == {}  # the sign keeps the pause, too
    await draft.show("Once", "")
    await draft.show("Once", "")
    assert _shown(server, team) == [("Once", False)]


async def test_a_draft_that_is_too_long_shows_its_end(
    server: TelegramServer, platform: Telegram, ann: Target, team: Target
) -> None:
    text = "\n\n".join(f"Paragraph {n} 😀" for n in range(1000))
    for target in (ann, team):
        draft = platform.draft(target, "run-1")
        await draft.show("", "writing")
        await draft.show(text, "writing")
        assert "Paragraph 999 😀" in _shown(server, target)[-1][0]
    line = platform.draft(team, "run-3")
    await line.show("", "writing")
    await line.show("x" * 9000 + "\n", "")
    assert _shown(server, team)[-1][0].startswith("xxx")
    draft = platform.draft(team, "run-2")
    await draft.show("", "writing")
    await draft.show("Code:\n```python\n" + "x = 1\n" * 2000, "")
    assert [mark["type"] for mark in server.seen(int(team.chat))[-1].entities] == ["pre"]


async def test_a_dropped_draft_leaves_nothing(
    server: TelegramServer, platform: Telegram, ann: Target, team: Target
) -> None:
    for target in (ann, team):
        draft = platform.draft(target, "run-1")
        await draft.show("Once", "")
        await draft.drop()
        await draft.show("Once upon", "")
    assert _shown(server, team) == []
    assert _shown(server, ann) == [("Once", True)]  # it vanishes by itself


async def test_a_blocked_bot_cannot_finish(server: TelegramServer, platform: Telegram, ann: Target) -> None:
    draft = platform.draft(ann, "run-1")
    await draft.show("Once", "")
    server.person("ann").blocks()
    with pytest.raises(ChatGone):
        await draft.show("Once upon", "")
    with pytest.raises(ChatGone):
        await draft.finish(Content("The end"), "k")


HOSTILE = """# Heading 😀 with **bold *and italic* text**

| a | b |
|---|---|
| `x` | **重要**的 |
| @everyone | <script>alert(1)</script> |

> quote with [a link](https://example.org/?q=1&r=2) and `code`
>> nested ~~gone~~

1. one
   - two ***three***
     ```python
     def f(): return "```"  # 👩‍👩‍👧
     ```
2. <b>raw</b> &amp; \\_escaped\\_ __init__ a_b_c

![image](javascript:alert(1)) مرحبا [x](tg://user?id=1)

~~~
never closed **here**
"""


async def test_no_prefix_of_a_hostile_answer_is_refused(
    server: TelegramServer, platform: Telegram, ann: Target, team: Target
) -> None:
    for target in (ann, team):
        draft = platform.draft(target, "run-1")
        for end in range(0, len(HOSTILE), 9):
            await draft.show(HOSTILE[:end], f"reading {end}")
        for part in platform.parts(HOSTILE):
            await draft.finish(Content(part), "k")
    assert {call.status for call in server.calls} == {200}
    assert "重要的" in server.answers(int(ann.chat))[0]
