"""What is said arrives once, or an error tells what is certain."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from channels.feishu.platform import connect
from core.chat.facts import Attachment, Target
from core.chat.port import ChatGone, Content, CredentialsDead, FateUnknown, RateLimited, Rejected
from core.errors import Invalid, Unavailable
from tests.channels.feishu import platform_cards
from tests.channels.feishu.account import account, listening
from tests.channels.feishu.server import FeishuServer

pytestmark = pytest.mark.anyio
POST = "POST .*/(reply|messages)$"


async def test_an_answer_is_a_reply() -> None:
    async with FeishuServer() as server, account(server) as bot:
        ann = server.person("ann")
        team = server.group(ann)
        asked = server.add_message(team, ann.id, "text", {"text": "?"})
        target = Target(team, asked.id, "group", reply_to=asked.id)
        first = await bot.platform.post(target, Content("**yes**", status="2 files"), "k1")
        await bot.platform.post(Target(team, asked.id, "group"), Content("of the topic"), "k2")
        await bot.platform.post(Target(team), Content("of nothing"), "k3")
        seen = server.seen(team)
        assert [message.root for message in seen] == [asked.id, asked.id, ""]
        assert (seen[0].id, seen[0].text, seen[0].status) == (first, "**yes**", "2 files")


async def test_a_lost_answer_is_asked_for_with_the_same_key() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        server.faults.lose(POST)
        started = datetime.now(UTC)
        with pytest.raises(FateUnknown):
            await bot.platform.post(target, Content("once"), "k")
        assert await bot.platform.find(target, "k", started) is None
        message = await bot.platform.post(target, Content("once"), "k")
        assert [seen.id for seen in server.seen(target.chat)] == [message]


async def test_after_an_hour_the_chat_is_asked() -> None:
    async with FeishuServer() as server, account(server) as bot:
        ann = server.person("ann")
        target, long_ago = Target(ann.chat), datetime.now(UTC) - timedelta(hours=2)
        for number in range(60):
            server.add_message(ann.chat, ann.id, "text", {"text": str(number)})
        assert await bot.platform.find(target, "k", long_ago) is None
        await bot.platform.post(target, Content("another"), "another")
        draft = bot.platform.draft(target, "grown/draft")
        await draft.show("so", "")
        await draft.finish(Content("so it grew"), "grown/0")
        assert await bot.platform.find(target, "k", long_ago) is None
        server.faults.lose(POST)
        with pytest.raises(FateUnknown):
            await bot.platform.post(target, Content("this one"), "k")
        assert await bot.platform.find(target, "k", long_ago) == server.seen(ann.chat)[-1].id


async def test_a_chat_without_an_end_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.feishu.platform.PAGES", 1)
    async with FeishuServer() as server, account(server) as bot:
        ann = server.person("ann")
        for number in range(60):
            server.add_message(ann.chat, ann.id, "text", {"text": str(number)})
        with pytest.raises(Unavailable, match="more than 1 pages"):
            await bot.platform.find(Target(ann.chat), "k", datetime.now(UTC) - timedelta(hours=2))


async def test_an_old_message_that_cannot_be_told_from_others_is_not_looked_for(tmp_path: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    async with FeishuServer() as server, account(server) as bot:
        ann = server.person("ann")
        team = server.group(ann)
        with pytest.raises(Rejected, match="99991672"):
            await bot.platform.find(Target(team, kind="group"), "k", long_ago)
        (tmp_path / "a.txt").write_text("hello")
        await bot.platform.upload(Target(ann.chat), tmp_path / "a.txt", "a.txt", "another")
        with pytest.raises(Rejected):
            await bot.platform.find(Target(ann.chat), "k", long_ago)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, 230002, ChatGone),
        (400, 230011, ChatGone),
        (400, 231003, ChatGone),
        (400, 230013, ChatGone),
        (400, 230053, ChatGone),
        (400, 230001, Rejected),
        (400, 99991672, Rejected),
        (400, 230049, FateUnknown),
        (500, 2200, FateUnknown),
        (400, 230020, RateLimited),
        (429, 99991400, RateLimited),
    ],
)
async def test_refusals(status: int, code: int, error: type[Exception]) -> None:
    async with FeishuServer() as server, account(server) as bot:
        server.faults.refuse(POST, code, status=status, x_ogw_ratelimit_reset="3")
        with pytest.raises(error) as raised:
            await bot.platform.post(Target(server.person("ann").chat), Content("hello"), "k")
        assert str(code) in str(raised.value)
        if isinstance(raised.value, RateLimited):
            assert raised.value.seconds == 3
        assert len(server.called(POST)) == 1  # nothing was sent again


async def test_a_bot_that_was_removed_has_no_chat() -> None:
    async with FeishuServer() as server, account(server) as bot:
        team = server.group(server.person("ann"))
        server.chats[team].has_bot = False
        with pytest.raises(ChatGone):
            await bot.platform.post(Target(team, kind="group"), Content("hello"), "k")
        with pytest.raises(ChatGone):
            await bot.platform.draft(Target(team, kind="group"), "k").show("hello", "")


async def test_a_gateways_page_is_no_answer() -> None:
    """F7."""
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        server.faults.fail(POST, 502)
        server.faults.fail(POST, 429, Retry_After="12")
        server.faults.fail(POST, 404)
        with pytest.raises(FateUnknown):
            await bot.platform.post(target, Content("hello"), "k")
        with pytest.raises(RateLimited) as limited:
            await bot.platform.post(target, Content("hello"), "k")
        assert limited.value.seconds == 12
        with pytest.raises(Rejected):
            await bot.platform.post(target, Content("hello"), "k")


async def test_without_a_connection_nothing_was_sent() -> None:
    async with FeishuServer() as server:
        settings, chat = server.settings, server.person("ann").chat
    bot = connect(settings)
    with pytest.raises(Unavailable) as error:
        await bot.post(Target(chat), Content("hello"), "k")
    assert type(error.value) is Unavailable
    assert settings["app_secret"] not in str(error.value)
    await bot.close()


async def test_a_dead_token_is_replaced_once_for_all() -> None:
    """F3: the SDK would use it for two hours."""
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        await bot.platform.post(target, Content("one"), "k0")
        server.faults.kill_tokens()
        async with anyio.create_task_group() as tasks:
            for number in range(1, 6):
                tasks.start_soon(bot.platform.post, target, Content("more"), f"k{number}")
        assert len(server.seen(target.chat)) == 6
        assert len(server.called("tenant_access_token")) == 2


async def test_a_dead_secret_is_named() -> None:
    async with FeishuServer() as server, account(server) as bot:
        server.secret_is_dead = True
        with pytest.raises(CredentialsDead) as error:
            await bot.platform.post(Target("c"), Content("hello"), "k")
        assert server.app_secret not in str(error.value)


async def test_a_lost_token_is_no_unknown_fate() -> None:
    async with FeishuServer() as server, account(server) as bot:
        server.faults.hang_up("tenant_access_token")
        server.faults.fail("tenant_access_token", 502)
        for _ in range(2):
            with pytest.raises(Unavailable) as error:
                await bot.platform.post(Target("c"), Content("hello"), "k")
            assert type(error.value) is Unavailable


async def test_a_question_is_changed_when_it_is_decided() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        message = await bot.platform.post(target, platform_cards.question("p"), "k")
        (seen,) = server.seen(target.chat)
        assert [button.label for button in seen.buttons] == ["Yes", "No"]
        await bot.platform.edit(target, message, Content("Really? Yes, says Ann."))
        assert (seen.text, seen.buttons) == ("Really? Yes, says Ann.", [])
        server.messages[message].deleted = True
        with pytest.raises(ChatGone):
            await bot.platform.edit(target, message, Content("Really?"))


async def test_an_answer_that_grew_can_be_changed_later() -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        draft = bot.platform.draft(target, "k")
        await draft.show("So", "")
        message = await draft.finish(Content("So it is."), "k")
        await bot.platform.edit(target, message, Content("It is not."))
        assert [seen.text for seen in server.seen(target.chat)] == ["It is not."]


async def test_all_of_a_long_text_is_taken() -> None:
    row = "| ä | **b** | `c` |\n"
    table = "| a | b | c |\n|---|---|---|\n" + row * 30
    text = "\n\n".join(
        [
            *(f"{table}\n\n<at id=all></at> *{number}* 漢字😀" for number in range(8)),
            "```py\n" + "x = 1\n" * 6000 + "```",
        ]
    )
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        parts = bot.platform.parts(text)
        for number, part in enumerate(parts):
            await bot.platform.post(target, Content(part), f"k{number}")
        seen = server.seen(target.chat)
        assert len(seen) == len(parts) > 2
        assert sum(message.text.count("x = 1") for message in seen) == 6000
        assert not any("<at" in json.dumps(message.content) for message in seen)


async def test_files_arrive_below_what_they_answer(tmp_path: Path) -> None:
    async with FeishuServer() as server, account(server) as bot:
        ann = server.person("ann")
        asked = server.add_message(ann.chat, ann.id, "text", {"text": "?"})
        target = Target(ann.chat, reply_to=asked.id)
        for name in ("a.png", "b.pdf", "c.bin", "d.opus", "e.mp4"):
            file = tmp_path / name
            file.write_bytes(name.encode())
            await bot.platform.upload(target, file, name, f"k/{name}")
        seen = server.seen(ann.chat)
        assert [message.kind for message in seen] == ["image", "file", "file", "audio", "media"]
        assert [message.file for message in seen] == [b"a.png", b"b.pdf", b"c.bin", b"d.opus", b"e.mp4"]
        assert {message.root for message in seen} == {asked.id}
        kinds = [call.body["file_type"] for call in server.called("POST .*/files$")]
        assert kinds == ["pdf", "stream", "opus", "mp4"]


async def test_a_file_whose_answer_was_lost_arrives_once(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("hello")
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        server.faults.lose("POST .*/files$")
        with pytest.raises(Unavailable) as error:
            await bot.platform.upload(target, file, "a.txt", "k")
        assert type(error.value) is Unavailable  # nobody has seen it
        server.faults.lose(POST)
        with pytest.raises(FateUnknown):
            await bot.platform.upload(target, file, "a.txt", "k")
        await bot.platform.upload(target, file, "a.txt", "k")
        assert len(server.seen(target.chat)) == 1


async def test_files_that_the_platform_refuses(tmp_path: Path) -> None:
    async with FeishuServer() as server, account(server) as bot:
        target = Target(server.person("ann").chat)
        empty, large = tmp_path / "empty", tmp_path / "large"
        empty.touch()
        with large.open("wb") as file:
            file.truncate((30 << 20) + 1)
        for path in (empty, large):
            with pytest.raises(Rejected):
                await bot.platform.upload(target, path, path.name, "k")
        assert not server.seen(target.chat)


@pytest.mark.parametrize("kind", ["file", "image"])
async def test_a_file_is_fetched(kind: str, tmp_path: Path) -> None:
    """F8: with its name, from the event."""
    async with FeishuServer() as server, listening(server) as bot:
        data = b"\x00" * 200_000
        server.person("ann").sends_file("a b.json", data, kind=kind)
        event = await bot.inbox.one()
        (attachment,) = event.attachments
        await bot.platform.fetch(attachment, event.message, tmp_path / "into", len(data))
        assert (tmp_path / "into").read_bytes() == data
        with pytest.raises(Rejected, match="the most that can be taken"):
            await bot.platform.fetch(attachment, event.message, tmp_path / "into", len(data) - 1)


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    async with FeishuServer() as server, listening(server) as bot:
        server.person("ann").sends_file("a.html", b"<html>mine</html>")
        event = await bot.inbox.one()
        (attachment,) = event.attachments
        await bot.platform.fetch(attachment, event.message, tmp_path / "own", 100)  # a page that is a file

        server.file_page = ("text/html", b"<html>Sign in</html>")
        with pytest.raises(Rejected, match="text/html"):
            await bot.platform.fetch(attachment, event.message, tmp_path / "page", 100)
        server.file_page = None
        server.faults.fail("GET .*/resources/", 302)
        with pytest.raises(Rejected):
            await bot.platform.fetch(attachment, event.message, tmp_path / "page", 100)
        server.faults.fail("GET .*/resources/", 502)
        with pytest.raises(Unavailable):
            await bot.platform.fetch(attachment, event.message, tmp_path / "page", 100)
        server.faults.kill_tokens()
        await bot.platform.fetch(attachment, event.message, tmp_path / "again", 100)
        server.files.clear()
        with pytest.raises(Rejected, match="234042"):
            await bot.platform.fetch(attachment, event.message, tmp_path / "gone", 100)
        with pytest.raises(Rejected, match="234003"):
            await bot.platform.fetch(Attachment("another", "a"), event.message, tmp_path / "gone", 100)


async def test_the_working_sign_is_a_reaction() -> None:
    async with FeishuServer() as server, account(server) as bot:
        ann = server.person("ann")
        asked = server.add_message(ann.chat, ann.id, "text", {"text": "?"})
        target = Target(ann.chat, reply_to=asked.id)
        for _ in range(3):
            await bot.platform.working(target, True)
        assert list(asked.reactions.values()) == ["Typing"]
        await bot.platform.working(target, False)
        assert not asked.reactions

        await bot.platform.working(target, True)
        again = connect(server.settings)  # after a restart
        await again.working(target, False)
        await again.close()
        assert not asked.reactions


async def test_check_says_what_is_missing() -> None:
    async with FeishuServer() as server, account(server) as bot:
        assert all(finding.ok for finding in await bot.platform.check())

        server.scopes -= {"cardkit:card:write", "im:message.p2p_msg:readonly"}
        server.faults.endpoint.append(1000040345)
        wrong = [finding for finding in await bot.platform.check() if not finding.ok]
        assert [finding.what for finding in wrong] == [
            "permission for messages in private chats",
            "permission for answers that grow",
            "long connection",
        ]
        assert "im:message.p2p_msg:readonly" in wrong[0].advice

        server.faults.refuse("GET .*/bot/v3/info", 11205)
        assert not next(finding for finding in await bot.platform.check() if finding.what == "bot").ok

        server.secret_is_dead = True
        server.faults.kill_tokens()
        other = connect(server.settings)
        (finding,) = await other.check()
        await other.close()
        assert not finding.ok
        assert server.app_secret not in str(finding)


@pytest.mark.parametrize("wrong", [{"app_id": ""}, {"app_secret": None}, {"domain": "feishu.cn"}])
def test_wrong_settings_are_named(wrong: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=next(iter(wrong))):
        connect({"app_id": "cli_a", "app_secret": "s", **wrong})
