"""Speaking on Slack: posts, drafts, files, and what is certain when calls fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.chat.calls import Waits
from channels.slack.platform import SlackPlatform
from core.chat.facts import Attachment, Button, Choice, Target
from core.chat.port import ChatGone, Content, CredentialsDead, FateUnknown, RateLimited, Rejected
from core.errors import Unavailable
from tests.channels.slack.server import SlackServer
from tests.channels.slack.support import account, direct, listening, thread_in

pytestmark = pytest.mark.anyio

LONG_AGO = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


async def test_an_answer_goes_to_the_thread_of_its_question() -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await thread_in(server)
        id_ = await slack.post(target, Content("**bold** & `code`"), "key")
        [answer] = server.answers("general", target.topic)
        assert (answer.ts, answer.thread, answer.text) == (id_, target.topic, "**bold** & `code`")
        ann = await direct(server)
        await slack.post(ann, Content("here"), "key")
        assert [(answer.text, answer.thread) for answer in server.answers("@ann")] == [("here", "")]


async def test_nobody_is_pinged_and_nothing_is_refused() -> None:
    text = (
        "<!channel> @here <@U0ANN> <script>\n\n| a | b |\n|---|---|\n| 你好**粗** | 👩‍👩‍👧 |\n\n```\n<!here>\n"
        + "x" * 20_000
    )
    async with SlackServer() as server, account(server) as slack:
        target = await thread_in(server)
        parts = slack.parts(text)
        for number, part in enumerate(parts):
            await slack.post(target, Content(part), str(number))
        assert sum(answer.text.count("x") for answer in server.answers("general")) == 20_000
        assert server.problems == []


async def test_workspaces_without_markdown_blocks_get_sections() -> None:
    async with SlackServer() as server, account(server) as slack:
        server.markdown_blocks = False
        target = await direct(server)
        id_ = await slack.post(target, Content("**bold** " * 800), "key")
        assert server.answers("@ann")[0].text.count("*bold*") == 800
        await slack.edit(target, id_, Content("changed"))
        assert server.answers("@ann")[0].text == "changed"


async def test_a_lost_answer_is_one_post_that_can_be_looked_up() -> None:
    async with SlackServer() as server, account(server) as slack:
        for target in (await thread_in(server), await direct(server)):
            for fault in ("lose", "done_html", "internal_error", "cut", "html"):
                server.faults.add("chat.postMessage", fault)
                with pytest.raises(FateUnknown):
                    await slack.post(target, Content(fault), f"key-{fault}")
            sent = {answer.text: answer.ts for answer in server.seen(target.chat) if answer.author == "sika"}
            assert set(sent) == {"lose", "done_html"}
            assert await slack.find(target, "key-lose", now() - LONG_AGO) == sent["lose"]
            assert await slack.find(target, "key-done_html", now() - LONG_AGO) == sent["done_html"]
            assert await slack.find(target, "key-cut", now() - LONG_AGO) is None


async def test_find_looks_through_pages_and_does_not_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.slack.platform.PAGE", 2)
    monkeypatch.setattr("channels.slack.platform.PAGES", 3)
    async with SlackServer() as server, account(server) as slack:
        target = await direct(server)
        first = await slack.post(target, Content("first"), "first")
        for number in range(3):
            await slack.post(target, Content(str(number)), str(number))
        assert await slack.find(target, "first", now() - LONG_AGO) == first
        for number in range(3):
            await slack.post(target, Content(str(number)), str(number))
        with pytest.raises(Unavailable, match="more than 6 messages"):
            await slack.find(target, "first", now() - LONG_AGO)
        server.faults.add("conversations.history", "lose")
        with pytest.raises(Unavailable) as caught:
            await slack.find(target, "first", now() - LONG_AGO)
        assert not isinstance(caught.value, FateUnknown)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("channel_not_found", ChatGone),
        ("not_in_channel", ChatGone),
        ("token_revoked", CredentialsDead),
        ("account_inactive", CredentialsDead),
        ("msg_too_long", Rejected),
        ("missing_scope", Rejected),
        ("service_unavailable", Unavailable),
        ("fatal_error", FateUnknown),
    ],
)
async def test_refusals(code: str, error: type[Exception]) -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await direct(server)
        server.faults.add("chat.postMessage", code)
        with pytest.raises(error, match=f"^chat.postMessage: {code}") as caught:
            await slack.post(target, Content("text"), "key")
        assert type(caught.value) is error
        assert server.answers("@ann") == []


async def test_a_server_that_is_not_there_has_received_nothing() -> None:
    async with SlackServer() as server:
        target = await direct(server)
    async with account(server) as slack:
        with pytest.raises(Unavailable) as caught:
            await slack.post(target, Content("text"), "key")
        assert type(caught.value) is Unavailable
        assert "127.0.0.1" not in str(caught.value)


async def test_a_rate_limit_says_how_long_and_is_kept() -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await direct(server)
        server.faults.add("chat.postMessage", "rate:3600")
        for _ in range(2):  # nobody waits within the call
            with pytest.raises(RateLimited) as caught:
                await slack.post(target, Content("text"), "key")
            assert 3000 < caught.value.seconds <= 3600
        await slack.post(await direct(server, "bob"), Content("another channel"), "key")
        assert [call.result for call in server.called("chat.postMessage")] == ["ratelimited", "ok"]
        assert server.problems == []


async def test_the_local_server_notices_a_call_before_the_end_of_a_pause() -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await direct(server)
        server.faults.add("chat.postMessage", "rate:60")
        with pytest.raises(RateLimited):
            await slack.post(target, Content("text"), "key")
        async with account(server) as beside:  # a process that knows nothing of the pause
            await beside.post(target, Content("text"), "key")
        assert server.problems == []
        slack.web._waits = Waits()
        await slack.post(target, Content("text"), "key")
        assert server.problems == ["chat.postMessage was called before Retry-After ended"]


async def test_the_local_server_notices_an_edit_that_changes_nothing() -> None:
    async with SlackServer() as server:
        async with account(server) as slack:
            target = await direct(server)
            message = await slack.post(target, Content("text"), "key")
            await slack.edit(target, message, Content("other"))
        async with account(server) as beside:  # a process that need not know of the edit
            await beside.edit(target, message, Content("other"))
            server.faults.add("chat.update", "done_html")
            with pytest.raises(FateUnknown):
                await beside.edit(target, message, Content("third"))
            await beside.edit(target, message, Content("third"))
            assert server.problems == []
            await beside.edit(target, message, Content("third"))
            assert server.problems == ["an identical edit"]


async def test_drafts_leave_room_for_answers_in_the_limits_of_the_workspace() -> None:
    async with SlackServer(enforce_rates=True) as server, account(server) as slack:
        drafts = []
        for number in range(30):
            target = await (direct(server, f"p{number}") if number % 2 else thread_in(server, f"c{number}"))
            drafts.append(slack.draft(target, f"{number}/draft"))
        for text in ("a", "ab", "abc", "abcd", "abcde", "abcdef"):
            for draft in drafts:
                await draft.show(text, "")
        for number, draft in enumerate(drafts):
            await draft.finish(Content(f"answer {number}"), f"{number}/0")
        assert {call.result for call in server.calls} == {"ok"}
        # Fifteen drafts have begun, and seven of them cannot be streams.
        assert len(server.called("chat.startStream")) == 8
        assert len(server.called("chat.update")) == 30 + 15


async def test_buttons_come_back_with_who_pressed_them() -> None:
    async with SlackServer() as server, listening(server) as (slack, inbox):
        target = await thread_in(server)
        content = Content(
            "May I?", buttons=(Button("yes", "Allow", "primary"), Button("no", "Deny", "danger")), plan="p1"
        )
        card = await slack.post(target, content, "p1/0")
        assert server.answers("general")[0].buttons == ("Allow", "Deny")
        await inbox.until(events=2)
        for name in ("ann", "bob"):
            server.person(name).presses("general", "Deny")
        await inbox.until(events=4)
        first, second = inbox.events[2:]
        assert first.choice == second.choice == Choice("p1", "no")
        assert first.target == Target(target.chat, target.topic, "group", reply_to=card, sender=first.sender)
        assert (first.sender_name, second.sender_name) == ("ann", "bob")
        # A second person's press is another one: the first may not have been allowed to decide.
        assert first.message != second.message
        await slack.edit(target, card, Content("Denied by bob."))
        [answer] = server.answers("general")
        assert (answer.text, answer.buttons) == ("Denied by bob.", ())


async def test_edits_of_what_is_gone() -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await direct(server)
        with pytest.raises(ChatGone):
            await slack.edit(target, "1.000000", Content("text"))
        server.chat("@ann").bot_is_member = False
        with pytest.raises(ChatGone):
            await slack.post(target, Content("text"), "key")


async def test_native_stream() -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await thread_in(server)
        draft = slack.draft(target, "run/draft")
        await draft.show("", "searching")
        assert (draft.message, server.statuses) == ("", {(target.chat, target.topic): "searching"})
        for text in (
            "Hello",
            "Hello, **wor",
            "Hello, **world** @",
            "Hello, **world** @channel `<!h",
            "Hello, **world**",
        ):
            await draft.show(text, "")
        assert len({draft.message, *(answer.ts for answer in server.answers("general"))}) == 1
        assert await draft.finish(Content("Hello, **world**. Done."), "run/0") == draft.message
        [answer] = server.answers("general", target.topic)
        assert answer.text == "Hello, **world**. Done."
        assert [call.result for call in server.called("chat.appendStream")] == ["ok"] * 3
        assert await slack.find(target, "run/0", now() - LONG_AGO) == answer.ts
        assert server.problems == []


@pytest.mark.parametrize("when", ["growing", "finishing"])
async def test_a_stream_that_expires(when: str) -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await thread_in(server)
        draft = slack.draft(target, "run/draft")
        await draft.show("one", "")
        server.expire_streams()
        if when == "growing":
            await draft.show("one two", "thinking")
            [answer] = server.answers("general")
            assert (answer.text, answer.status) == ("one two", "thinking")
        await draft.finish(Content("one two three"), "run/0")
        assert [answer.text for answer in server.answers("general")] == ["one two three"]


@pytest.mark.parametrize("streams", [True, False])
async def test_drafts_that_are_updated(streams: bool) -> None:
    async with SlackServer(streams=streams) as server, account(server) as slack:
        # A direct conversation without threads has no streams; elsewhere the workspace may not.
        target = await (direct(server) if streams else thread_in(server))
        draft = slack.draft(target, "run/draft")
        for text, status in (("", "searching"), ("one", "searching"), ("one", "searching"), ("one two", "")):
            await draft.show(text, status)
        [answer] = server.answers(target.chat)
        assert (answer.text, answer.status) == ("one two", "")
        # In a thread, what it does before the first words is its status.
        assert len(server.called("chat.update")) == (2 if streams else 1)
        await draft.finish(Content("all"), "run/0")
        assert [answer.text for answer in server.answers(target.chat)] == ["all"]
        await slack.draft(target, "another").show("x", "")
        assert len(server.called("chat.startStream")) == (0 if streams else 1)
        assert server.problems == []


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("fault", ["lose", "cut"])
async def test_a_draft_whose_beginning_was_lost_can_be_looked_up(streams: bool, fault: str) -> None:
    async with SlackServer(streams=streams) as server, account(server) as slack:
        target = await thread_in(server)
        await slack.post(target, Content("an earlier answer"), "earlier/0")
        other = slack.draft(target, "other/draft")
        await other.show("another draft", "")
        server.faults.add("chat.startStream" if streams else "chat.postMessage", fault)
        draft = slack.draft(target, "run/draft")
        with pytest.raises(FateUnknown):
            await draft.show("one", "")
        message = await slack.find(target, "run/draft", now() - LONG_AGO)
        assert (message is None) == (fault == "cut")
        draft = slack.draft(target, "run/draft", message or "")
        await draft.show("one two", "")
        await draft.finish(Content("all"), "run/0")
        await other.finish(Content("another answer"), "other/0")
        texts = {answer.text for answer in server.answers("general")}
        assert texts == {"an earlier answer", "another answer", "all"}
        assert await slack.find(target, "run/draft", now() - LONG_AGO) is None


@pytest.mark.parametrize("fault", ["lose", "cut", "html"])
async def test_a_look_whose_answer_was_lost_is_no_end_of_what_was_looked_for(fault: str) -> None:
    """A stream is found by closing it, and may be closed when the answer does not arrive."""
    async with SlackServer() as server, account(server) as slack:
        target = await thread_in(server)
        server.faults.add("chat.startStream", "lose")
        with pytest.raises(FateUnknown):
            await slack.draft(target, "run/draft").show("one", "")
        server.faults.add("chat.stopStream", fault)
        with pytest.raises(FateUnknown):
            await slack.find(target, "run/draft", now() - LONG_AGO)
        [message] = server.answers("general")
        assert await slack.find(target, "run/draft", now() - LONG_AGO) == message.ts
        assert await slack.find(target, "another/draft", now() - LONG_AGO) is None


@pytest.mark.parametrize("scopes", ["all", "without metadata"])
async def test_the_draft_of_a_process_that_ended_can_be_looked_up(scopes: str) -> None:
    async with SlackServer() as server:
        if scopes != "all":
            server.scopes = server.scopes.replace("metadata.message:read,", "")
        target = await thread_in(server)
        async with account(server) as slack:
            await slack.post(target, Content("an earlier answer"), "earlier/0")
            await slack.draft(target, "run/draft").show("one", "")
        async with account(server) as slack:
            # A draft is no answer: only a part may have been shown.
            if scopes == "all":
                assert await slack.find(target, "run/0", now() - LONG_AGO) is None
            else:
                with pytest.raises(Rejected, match=r"the scope metadata\.message:read is missing"):
                    await slack.find(target, "run/0", now() - LONG_AGO)
            message = await slack.find(target, "run/draft", now() - LONG_AGO)
            assert message is not None
            await slack.draft(target, "run/draft", message).finish(Content("all"), "run/0")
        assert [answer.text for answer in server.answers("general")] == ["an earlier answer", "all"]


async def test_a_draft_whose_message_was_noted_is_taken_over() -> None:
    async with SlackServer() as server:
        target = await thread_in(server)
        async with account(server) as slack:
            draft = slack.draft(target, "run/draft")
            await draft.show("one", "")
        async with account(server) as slack:
            await slack.draft(target, "run/draft", draft.message).finish(Content("all"), "run/0")
        assert [(answer.ts, answer.text) for answer in server.answers("general")] == [(draft.message, "all")]


@pytest.mark.parametrize("fault", ["lose", "cut", "html"])
async def test_finishing_again_is_the_same(fault: str) -> None:
    async with SlackServer() as server, account(server) as slack:
        draft = slack.draft(await thread_in(server), "run")
        await draft.show("one", "")
        server.faults.add("chat.update", fault)
        with pytest.raises(FateUnknown):
            await draft.finish(Content("all"), "run/0")
        await draft.finish(Content("all"), "run/0")
        assert [answer.text for answer in server.answers("general")] == ["all"]
        assert server.problems == []


@pytest.mark.parametrize("code", ["msg_too_long", "edit_window_closed", "message_not_found"])
async def test_an_answer_replaces_a_draft_that_cannot_be_changed(code: str) -> None:
    async with SlackServer() as server, account(server) as slack:
        draft = slack.draft(await direct(server), "run")
        await draft.show("one", "")
        server.faults.add("chat.update", code)
        assert await draft.finish(Content("all"), "run/0") == server.answers("@ann")[0].ts
        assert [answer.text for answer in server.answers("@ann")] == ["all"]


async def test_a_lost_append_is_replaced() -> None:
    async with SlackServer() as server, account(server) as slack:
        draft = slack.draft(await thread_in(server), "run")
        await draft.show("one ", "")
        server.faults.add("chat.appendStream", "lose", "rate:0.01")
        with pytest.raises(FateUnknown):
            await draft.show("one two ", "")
        await draft.show("one two three", "")
        assert [answer.text for answer in server.answers("general")] == ["one two three"]


async def test_a_draft_is_dropped() -> None:
    async with SlackServer() as server, account(server) as slack:
        for target in (await thread_in(server), await direct(server)):
            draft = slack.draft(target, "run/draft")
            await draft.show("one", "")
            await draft.drop()
            await draft.drop()
            assert [seen for seen in server.seen(target.chat) if seen.author == "sika"] == []
            assert draft.message == ""


async def test_signs_of_work() -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await thread_in(server)
        for _ in range(3):
            await slack.working(target, True)
        assert server.statuses == {(target.chat, target.topic): "is working…"}
        assert len(server.called("assistant.threads.setStatus")) == 1
        await slack.working(target, False)
        assert server.statuses == {(target.chat, target.topic): ""}
        server.scopes = server.scopes.replace("assistant:write,", "")
        for place in (await thread_in(server), await direct(server)):
            message = server.chat(place.chat).messages[place.reply_to]
            for _ in range(3):
                await slack.working(place, True)
            assert message["reactions"] == ["eyes"]
            await slack.working(place, False)
            assert message["reactions"] == []
        assert len(server.called("reactions.add")) == 2


async def test_a_sign_of_work_is_taken_away_where_there_is_no_room_for_others() -> None:
    async with SlackServer() as server, account(server) as slack:
        target, other = await thread_in(server), await thread_in(server)
        await slack.working(target, True)
        while slack.web.has_room("assistant.threads.setStatus"):
            await slack.show_status(target, "is writing…")
        await slack.working(other, True)
        assert (other.chat, other.topic) not in server.statuses
        await slack.working(target, False)
        assert server.statuses == {(target.chat, target.topic): ""}


async def test_files_go_to_the_thread(tmp_path: Path) -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await thread_in(server)
        file = tmp_path / "x"
        file.write_bytes(b"a" * 300_000)
        assert await slack.upload(target, file, "report.pdf", "run/1") == ""
        [answer] = server.answers("general", target.topic)
        assert answer.files == ("report.pdf",)
        assert [len(content) for content in server.contents.values()] == [300_000]
        assert await slack.find(target, "run/1", now() - LONG_AGO) == answer.ts


async def test_a_file_whose_answer_was_lost_can_be_looked_up(tmp_path: Path) -> None:
    async with SlackServer() as server, account(server) as slack:
        target = await direct(server)
        (file := tmp_path / "x").write_bytes(b"content")
        server.faults.add("files.getUploadURLExternal", "lose")
        with pytest.raises(Unavailable) as caught:
            await slack.upload(target, file, "a.txt", "run/1")
        # Nobody sees a file before it is completed.
        assert not isinstance(caught.value, FateUnknown)
        assert await slack.find(target, "run/1", now() - LONG_AGO) is None
        server.faults.add("files.completeUploadExternal", "lose")
        with pytest.raises(FateUnknown):
            await slack.upload(target, file, "a.txt", "run/1")
        assert await slack.find(target, "run/1", now() - LONG_AGO) == server.answers("@ann")[0].ts


async def _received_file(server: SlackServer, slack: SlackPlatform, mime: str = "application/pdf") -> Attachment:
    ts = await server.person("ann").says("", files={"a": (mime, b"0123456789" * 1000)})
    [file] = server.chat("@ann").messages[ts]["files"]
    return Attachment(file["id"], file["name"], mime=mime, size=file["size"])


async def test_files_are_fetched(tmp_path: Path) -> None:
    async with SlackServer() as server, account(server) as slack:
        for mime in ("application/pdf", "text/html"):
            await slack.fetch(await _received_file(server, slack, mime), "1.0", tmp_path / "a", 10_000)
            assert (tmp_path / "a").read_bytes() == b"0123456789" * 1000


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    async with SlackServer() as server, account(server) as slack:
        for mime in ("application/pdf", "text/html"):
            server.faults.add("download", "signin")
            with pytest.raises(Rejected, match="a page to sign in"):
                await slack.fetch(await _received_file(server, slack, mime), "1.0", tmp_path / "a", 10_000)
        pdf = await _received_file(server, slack)
        with pytest.raises(Rejected, match=r"the most that can|at most"):
            await slack.fetch(pdf, "1.0", tmp_path / "a", 9_999)
        server.files[pdf.id]["size"] = 0
        with pytest.raises(Rejected, match="more than"):
            await slack.fetch(pdf, "1.0", tmp_path / "a", 9_999)
        server.files[pdf.id]["mode"] = "tombstone"
        with pytest.raises(Rejected, match="a file that Slack does not hold"):
            await slack.fetch(pdf, "1.0", tmp_path / "a", 10_000)
        with pytest.raises(Rejected, match="file_not_found"):
            await slack.fetch(Attachment("F404", "a"), "1.0", tmp_path / "a", 10_000)


@pytest.mark.parametrize("fault", ["cut", "html"])
async def test_a_download_that_fails_can_be_repeated(fault: str, tmp_path: Path) -> None:
    async with SlackServer() as server, account(server) as slack:
        pdf = await _received_file(server, slack)
        server.faults.add("download", fault)
        with pytest.raises(Unavailable):
            await slack.fetch(pdf, "1.0", tmp_path / "a", 10_000)
        await slack.fetch(pdf, "1.0", tmp_path / "a", 10_000)
        assert (tmp_path / "a").stat().st_size == 10_000
