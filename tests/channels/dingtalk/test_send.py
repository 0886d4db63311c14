"""What the bot says on DingTalk: messages, answers that grow, questions, files, and what each failure means."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from aiohttp import web

from channels.dingtalk import card
from channels.dingtalk.platform import DingTalk
from core.chat.facts import Attachment, Button, Target
from core.chat.port import ChatGone, Content, CredentialsDead, FateUnknown, Platform, RateLimited, Rejected
from core.errors import Unavailable
from tests.channels.dingtalk.server import (
    ANSWER_TEMPLATE,
    BUTTON_TEMPLATE,
    CARD_STREAM,
    CARD_WRITE,
    SEND,
    DingTalkServer,
    Fault,
)

pytestmark = pytest.mark.anyio

ANN = Target("staff-ann", reply_to="msg1==", sender="staff-ann")
TEAM = Target("cid-team==", "msg2==", "group", reply_to="msg2==", sender="staff-ann")
CARDS = {"card_template_id": ANSWER_TEMPLATE, "button_template_id": BUTTON_TEMPLATE}
BATCH = "oToMessages/batchSend"
STREAMING = "/v1.0/card/streaming"
CREATE = "createAndDeliver"
T = TypeVar("T")
BUTTONS = (Button("yes", "Yes"), Button("no", "No"))


@asynccontextmanager
async def connected(**settings: str) -> AsyncIterator[tuple[DingTalkServer, DingTalk]]:
    async with DingTalkServer() as server:
        server.person("ann")
        platform = DingTalk({**server.settings, **settings})
        try:
            yield server, platform
        finally:
            await platform.close()


def texts(server: DingTalkServer, chat: str = "ann") -> list[str]:
    return [message.text for message in server.seen(chat)]


def calls(server: DingTalkServer, path: str) -> int:
    return len([call for call in server.calls if path in call.path])


async def test_the_class_is_a_platform() -> None:
    async with connected() as (_, platform):
        port: Platform = platform
        assert port.traits.name == "dingtalk"


async def again(call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Calls until it works, if each failure is one after which that is safe."""
    for _ in range(4):
        try:
            return await call(*arguments)
        except FateUnknown:
            raise
        except Unavailable:
            continue
    return await call(*arguments)


# Messages


async def test_a_message_goes_to_a_person_or_a_group_and_its_id_is_the_query_key() -> None:
    async with connected() as (server, platform):
        private = await platform.post(ANN, Content("Hello **Ann**"), "k1")
        group = await platform.post(TEAM, Content("Hello team"), "k2")
        assert [(message.id, message.text) for message in server.seen("ann")] == [(private, "Hello **Ann**")]
        assert server.seen("ann")[0].title == "Hello Ann"
        assert [(message.id, message.text) for message in server.seen("team")] == [(group, "Hello team")]


async def test_no_part_is_larger_than_a_message_may_be_and_nothing_is_lost() -> None:
    text = "\n".join(f'{n}. "row" \\ 你好 ' + "😀" * (n % 60) for n in range(200))
    async with connected() as (server, platform):
        parts = platform.parts(text)
        assert len(parts) > 1
        for n, part in enumerate(parts):
            await platform.post(TEAM, Content(part), f"k{n}")
        shown = "".join(texts(server, "team"))
        assert all(f"{n}. " in shown for n in range(200))
        assert platform.parts("") == []


async def test_the_token_is_asked_for_once_and_again_before_it_expires() -> None:
    async with connected() as (server, platform):
        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(platform.post, ANN, Content(f"{n}"), f"k{n}")
        assert server.tokens_issued == 1
        assert sorted(texts(server)) == [f"{n}" for n in range(10)]


async def test_a_token_that_is_refused_is_replaced_and_the_call_made_once() -> None:  # D4
    async with connected() as (server, platform):
        await platform.post(ANN, Content("one"), "k1")
        server.faults.expire_tokens()
        await platform.post(ANN, Content("two"), "k2")
        server.faults.next(BATCH, "token")
        await platform.post(ANN, Content("three"), "k3")
        assert texts(server) == ["one", "two", "three"]
        assert server.tokens_issued == 3
        server.client_secret = "another"
        server.faults.expire_tokens()
        with pytest.raises(CredentialsDead) as error:
            await platform.post(ANN, Content("four"), "k4")
        assert "planted" not in str(error.value)


async def test_a_lost_answer_leaves_the_fate_unknown_and_nothing_is_sent_again() -> None:
    async with connected() as (server, platform):
        faults: tuple[Fault, ...] = ("lost", "cut", "html")
        for fault in faults:
            server.faults.next(BATCH, fault)
            with pytest.raises(FateUnknown):
                await platform.post(ANN, Content(fault), "k1")
        assert texts(server) == ["lost"]
        assert calls(server, BATCH) == 3


async def test_what_certainly_was_not_sent_is_told_apart() -> None:
    async with connected() as (server, platform):
        await platform.post(ANN, Content("one"), "k1")  # with a token
        url = server.url
    platform = DingTalk({"client_id": "dingtest", "client_secret": "s", "base_url": url})
    with pytest.raises(Unavailable) as error:
        await platform.post(ANN, Content("two"), "k2")
    assert not isinstance(error.value, FateUnknown)
    await platform.close()


@pytest.mark.parametrize(("fault", "seconds"), [("limited", 12.0), ("qps", 1.0)])
async def test_a_refusal_for_the_rate_says_how_long_to_wait(fault: Fault, seconds: float) -> None:
    async with connected() as (server, platform):
        server.faults.retry_after = 12
        server.faults.next(BATCH, fault)
        with pytest.raises(RateLimited) as error:
            await platform.post(ANN, Content("one"), "k1")
        assert error.value.seconds == seconds
        assert texts(server) == []
        assert calls(server, BATCH) == 1


async def test_the_server_counts_what_is_too_fast_or_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.dingtalk.api.THROTTLE_SECONDS", 0.0)
    async with connected() as (server, platform):
        now = 0.0
        server.clock = lambda: now
        server.limits = (3, 20)
        for n in range(20):
            now += 1
            await platform.post(TEAM, Content(f"{n}"), f"k{n}")
        assert server.violations == []
        with pytest.raises(RateLimited):
            await platform.post(TEAM, Content("20"), "k20")
        for n in range(3):
            await platform.post(ANN, Content(f"{n}"), f"a{n}")
        with pytest.raises(RateLimited):
            await platform.post(ANN, Content("3"), "a3")
        assert server.violations == ["cid-team==: more than 20 a minute", f"/v1.0/robot/{BATCH}: more than 3 a second"]
        now += 100
        server.faults.next(BATCH, "limited")
        for _ in range(2):
            with pytest.raises(RateLimited):
                await platform.post(ANN, Content("4"), "a4")
        assert server.early == []
        now += 0.5
        other = DingTalk(server.settings)
        await other.post(ANN, Content("4"), "a4")
        await other.close()
        assert server.early == [f"/v1.0/robot/{BATCH}"]


async def test_a_refusal_for_the_rate_holds_for_all_chats_and_is_one_failure_of_cards() -> None:
    async with connected(**CARDS) as (server, platform):
        server.faults.retry_after = 60
        server.faults.next(CREATE, "limited")
        for n in range(2 * card.FAILURES):
            with pytest.raises(RateLimited) as error:
                await platform.draft(ANN, f"run-{n}").show("Hel", "")
            assert 50 < error.value.seconds <= 60
        assert calls(server, CREATE) == 1
        await platform.post(ANN, Content("another route"), "k1")
        assert texts(server) == ["another route"]


async def test_people_and_groups_that_are_gone_are_named_inside_an_answer_of_200_too() -> None:
    async with connected() as (server, platform):
        server.blocked.add("ann")
        server.removed.add("team")
        for target in (ANN, TEAM, Target("staff-nobody")):
            with pytest.raises(ChatGone):
                await platform.post(target, Content("one"), "k1")
        server.blocked.clear()
        server.held.add("ann")
        with pytest.raises(RateLimited):
            await platform.post(ANN, Content("one"), "k1")
        server.scopes.discard(SEND)
        with pytest.raises(Rejected, match=SEND):
            await platform.post(TEAM, Content("one"), "k1")
        assert texts(server) == []


async def test_a_plain_message_can_neither_be_changed_nor_asked_for() -> None:
    async with connected() as (_, platform):
        message = await platform.post(ANN, Content("one"), "k1")
        with pytest.raises(Rejected, match="not a card"):
            await platform.edit(ANN, message, Content("two"))
        with pytest.raises(Rejected):
            await platform.find(ANN, "k1", datetime.now(UTC))
        assert not platform.traits.answers_can_be_found
        assert not platform.traits.edits_are_free


# Answers that grow


async def test_an_answer_grows_in_one_card() -> None:
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(TEAM, "run-1")
        assert draft.message == ""
        await draft.show("Hel", "reading")
        assert texts(server, "team") == ["Hel\n\n> reading"]
        contents = [call.body["content"] for call in server.calls if call.path == STREAMING]
        assert contents[0] == ""  # ends the skeleton
        await draft.show("Hello", "")
        await draft.show("Hello", "")
        assert calls(server, STREAMING) == 3
        assert await draft.finish(Content("Hello world"), "run-1") == draft.message
        (seen,) = server.seen("team")
        assert (seen.id, seen.text, seen.streaming) == (draft.message, "Hello world", False)
        assert calls(server, "groupMessages") == 0


async def test_tables_and_code_stay_in_cards() -> None:
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(ANN, "run-1")
        await draft.show("| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1", "")
        assert "|" in texts(server)[0]
        assert "```python" in texts(server)[0]
        await draft.finish(Content("```python\nx = 1\n```"), "run-1")
        assert "```python" in texts(server)[0]


async def test_after_a_crash_the_same_card_is_finished_as_often_as_needed() -> None:
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(ANN, "run-1")
        await draft.show("Hel", "")
        for _ in range(2):  # the second time, the first one's fact was lost
            again = platform.draft(ANN, "run-1", draft.message)
            assert await again.finish(Content("Hello"), "run-1") == draft.message
        assert texts(server) == ["Hello"]
        assert not server.seen("ann")[0].streaming


@pytest.mark.parametrize("path", [CREATE, STREAMING])
@pytest.mark.parametrize("fault", ["lost", "cut", "html", "token"])
async def test_calls_of_a_draft_are_made_again_without_a_second_message(path: str, fault: Fault) -> None:
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(ANN, "run-1")
        server.faults.next(path, fault)
        await again(draft.show, "Hel", "")
        assert texts(server) == ["Hel"]
        server.faults.next("/v1.0/card", fault, fault)
        assert await again(draft.finish, Content("Hello"), "run-1") == draft.message
        assert texts(server) == ["Hello"]
        assert not server.seen("ann")[0].streaming


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_card_whose_creation_had_no_answer_goes_on_growing(refuses: bool) -> None:
    async with connected(**CARDS) as (server, platform):
        server.refuses_repetitions = refuses
        for n in range(card.FAILURES + 1):
            draft = platform.draft(ANN, f"run-{n}")
            server.faults.next(CREATE, "lost")
            with pytest.raises(Unavailable):
                await draft.show("Hel", "")
            await draft.show("Hello", "")
            assert texts(server)[-1] == "Hello"
            assert await draft.finish(Content("Hello, Ann"), f"run-{n}") == draft.message
        assert texts(server) == ["Hello, Ann"] * (card.FAILURES + 1)


async def test_calls_without_an_answer_pause_cards_in_their_chat_only() -> None:
    async with connected(**CARDS) as (server, platform):
        server.person("bob")
        for n in range(card.FAILURES):
            server.faults.next(CREATE, "cut")
            with pytest.raises(Unavailable):
                await platform.draft(ANN, f"run-{n}").show("Hel", "")
        before = calls(server, CREATE)
        await platform.draft(ANN, "run-8").show("Hel", "")
        assert calls(server, CREATE) == before
        await platform.draft(Target("staff-bob", sender="staff-bob"), "run-9").show("Hel", "")
        assert texts(server, "bob") == ["Hel"]


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_card_whose_creation_had_no_answer_gets_the_answer_without_a_second_message(refuses: bool) -> None:
    async with connected(**CARDS) as (server, platform):
        server.refuses_repetitions = refuses
        draft = platform.draft(ANN, "run-1")
        server.faults.next(CREATE, "lost")
        with pytest.raises(Unavailable):
            await draft.show("Hel", "")
        await draft.finish(Content("Hello"), "run-1")
        assert texts(server) == ["Hello"]


async def test_an_expired_stream_still_gets_the_answer() -> None:
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(ANN, "run-1")
        await draft.show("Hel", "")
        server.faults.expire_streams()
        assert await again(draft.finish, Content("Hello"), "run-1") == draft.message
        assert texts(server) == ["Hello"]


async def test_a_final_update_waits_when_the_rate_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.dingtalk.api.THROTTLE_SECONDS", 0.0)
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(ANN, "run-1")
        await draft.show("Hel", "")
        server.faults.next(STREAMING, "qps")
        with pytest.raises(RateLimited):
            await draft.finish(Content("Hello"), "run-1")
        assert calls(server, "/card/instances") == calls(server, CREATE)  # not by another route
        await draft.finish(Content("Hello"), "run-1")
        assert texts(server) == ["Hello"]


@pytest.mark.parametrize("cause", ["template", "permission", "blocked inside 200"])
async def test_a_card_that_is_refused_becomes_a_message(cause: str) -> None:  # D1
    template = "unpublished.schema" if cause == "template" else ANSWER_TEMPLATE
    async with connected(card_template_id=template) as (server, platform):
        if cause == "permission":
            server.scopes.discard(CARD_WRITE)
        if cause == "blocked inside 200":
            server.blocked.add("ann")
        draft = platform.draft(ANN, "run-1")
        await draft.show("Hel", "")
        await draft.show("Hello", "")
        assert draft.message == ""
        assert calls(server, CREATE) == 1
        server.blocked.clear()
        assert await draft.finish(Content("Hello"), "run-1") == server.seen("ann")[0].id
        assert texts(server) == ["Hello"]


async def test_a_card_that_cannot_be_finished_says_so_and_posts_nothing_by_itself() -> None:
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(ANN, "run-1")
        await draft.show("Hel", "")
        server.scopes -= {CARD_STREAM, CARD_WRITE}
        with pytest.raises(Rejected, match=CARD_WRITE):
            await draft.finish(Content("Hello"), "run-1")
        assert texts(server) == ["Hel"]


@pytest.mark.parametrize(("seconds", "shown"), [(1800.0, ["Hello"]), (0.0, ["Hello", "Hel"])])
async def test_repeated_failures_pause_cards_for_a_while(
    monkeypatch: pytest.MonkeyPatch, seconds: float, shown: list[str]
) -> None:
    monkeypatch.setattr(card, "COOL_DOWN_SECONDS", seconds)
    monkeypatch.setattr("channels.dingtalk.api.THROTTLE_SECONDS", 0.0)
    async with connected(**CARDS) as (server, platform):
        for n in range(card.FAILURES):
            server.faults.next(CREATE, "qps")
            with pytest.raises(RateLimited):
                await platform.draft(ANN, f"run-{n}").show("Hel", "")
        await platform.post(ANN, Content("Hello"), "k1")
        await platform.draft(ANN, "run-9").show("Hel", "")
        assert texts(server) == shown


async def test_without_a_template_an_answer_is_one_message_at_the_end() -> None:
    async with connected() as (server, platform):
        draft = platform.draft(ANN, "run-1")
        await draft.show("Hel", "thinking")
        assert draft.message == ""
        assert server.calls == []
        await draft.finish(Content("Hello"), "run-1")
        await draft.drop()
        assert texts(server) == ["Hello"]


async def test_a_dropped_card_is_not_left_in_the_making() -> None:
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(ANN, "run-1")
        await draft.show("a * b", "reading")
        await draft.drop()
        (seen,) = server.seen("ann")
        assert (seen.text, seen.streaming) == ("a * b", False)


async def test_a_text_that_no_message_holds_is_cut_while_it_grows() -> None:
    async with connected(**CARDS) as (server, platform):
        text = "\n\n".join(f"paragraph {n} 你好" for n in range(300))
        draft = platform.draft(ANN, "run-1")
        await draft.show(text, "")
        shown = texts(server)[0].split()
        assert shown == [*text.split()[: len(shown) - 1], "…"]
        assert len(texts(server)[0]) < 4000
        parts = platform.parts(text)
        assert len(parts) > 1
        await draft.finish(Content(parts[0]), "run-1")
        assert [shown.split() for shown in texts(server)] == [parts[0].split()]


# Questions


async def test_a_question_is_a_card_with_buttons_that_shows_the_decision() -> None:
    async with connected(**CARDS) as (server, platform):
        assert platform.traits.edits_are_free
        question = Content("Delete it?", "for Ann", BUTTONS, "plan-1")
        message = await platform.post(ANN, question, "plan-1")
        assert await platform.post(ANN, question, "plan-1") == message  # its creation is idempotent
        (seen,) = server.seen("ann")
        assert (seen.id, seen.text, list(seen.buttons)) == (message, "Delete it?", ["Yes", "No"])
        await platform.edit(ANN, message, Content("Deleted, said Ann."))
        await platform.edit(ANN, message, Content("Deleted, said Ann."))
        (seen,) = server.seen("ann")
        assert (seen.text, seen.buttons) == ("Deleted, said Ann.", {})


async def test_a_question_after_words_has_its_buttons() -> None:
    async with connected(**CARDS) as (server, platform):
        draft = platform.draft(ANN, "run-1")
        await draft.show("Let me see.", "")
        question = Content("Let me see. Delete it?", "", BUTTONS, "run-1")
        message = await draft.finish(question, "run-1/0")
        assert await draft.finish(question, "run-1/0") == message
        words, asked = server.seen("ann")
        assert (words.text, words.streaming) == ("Let me see.", False)
        assert (asked.id, asked.text, list(asked.buttons)) == (message, "Let me see. Delete it?", ["Yes", "No"])


@pytest.mark.parametrize("template", ["", "unpublished.schema"])
@pytest.mark.parametrize("text", ["Delete it?", "Delete it?\n\n  1. Yes\n  2. No"])
async def test_without_a_template_the_options_are_numbered_once(template: str, text: str) -> None:
    async with connected(button_template_id=template) as (server, platform):
        await platform.post(ANN, Content(text, buttons=BUTTONS, plan="plan-1"), "plan-1")
        (seen,) = server.seen("ann")
        assert seen.text.split() == ["Delete", "it?", "1.", "Yes", "2.", "No"]


# Files


async def test_files_are_uploaded_to_the_old_route_and_shown_by_kind(tmp_path: Path) -> None:  # D5
    picture, report = tmp_path / "a", tmp_path / "b"
    picture.write_bytes(b"\x89PNG" * 100)
    report.write_bytes(b"%PDF" * 1000)
    async with connected() as (server, platform):
        await platform.upload(ANN, picture, "chart.png", "k1")
        await platform.upload(TEAM, report, "report.pdf", "k2")
        assert [(seen.file, seen.data) for seen in server.seen("ann")] == [("image", picture.read_bytes())]
        assert [(seen.file, seen.data) for seen in server.seen("team")] == [("report.pdf", report.read_bytes())]
        parameter = json.loads(next(call.body["msgParam"] for call in server.calls if "group" in call.path))
        assert parameter["fileType"] == "pdf"
        server.faults.expire_tokens()
        await platform.upload(ANN, report, "again.pdf", "k3")
        assert server.seen("ann")[1].file == "again.pdf"


async def test_files_that_dingtalk_does_not_take_are_refused_before_they_leave(tmp_path: Path) -> None:
    large, empty = tmp_path / "large.bin", tmp_path / "empty.bin"
    with large.open("wb") as file:
        file.truncate((20 << 20) + 1)
    empty.touch()
    async with connected() as (server, platform):
        for path in (large, empty):
            with pytest.raises(Rejected, match=path.name):
                await platform.upload(ANN, path, path.name, "k1")
        assert server.calls == []


async def test_an_upload_whose_answer_is_lost_was_seen_by_nobody_but_its_message_may_have_been(tmp_path: Path) -> None:
    report = tmp_path / "report.pdf"
    report.write_bytes(b"%PDF")
    async with connected() as (server, platform):
        server.faults.next("media/upload", "lost")
        with pytest.raises(Unavailable) as error:
            await platform.upload(ANN, report, "report.pdf", "k1")
        assert not isinstance(error.value, FateUnknown)
        server.faults.next(BATCH, "lost")
        with pytest.raises(FateUnknown):
            await platform.upload(ANN, report, "report.pdf", "k1")
        assert len(server.seen("ann")) == 1


async def test_a_file_of_a_person_is_fetched(tmp_path: Path) -> None:
    async with connected() as (server, platform):
        data = bytes(range(256)) * 5000
        attachment = Attachment(server.keep("data.bin", data), "data.bin")
        await platform.fetch(attachment, "msg1==", tmp_path / "a", 50 << 20)
        assert (tmp_path / "a").read_bytes() == data
        page = Attachment(server.keep("page.html", b"<html>mine</html>"), "page.html")
        await platform.fetch(page, "msg1==", tmp_path / "b", 50 << 20)
        assert (tmp_path / "b").read_bytes() == b"<html>mine</html>"


async def test_what_is_no_file_or_too_large_or_expired_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    into = tmp_path / "a"
    async with connected() as (server, platform):
        attachment = Attachment(server.keep("data.bin", b"x" * 1000), "data.bin")
        with pytest.raises(Rejected, match=r"at most 999 bytes|more than 999 bytes"):
            await platform.fetch(attachment, "msg1==", into, 999)
        login = b"<!DOCTYPE html><title>Sign in</title>"
        for content_type in ("text/html", "application/octet-stream"):
            server.download = lambda _, kind=content_type: web.Response(body=login, content_type=kind)
            with pytest.raises(Rejected, match="a page"):
                await platform.fetch(attachment, "msg1==", into, 1 << 20)
        server.download = lambda _: web.Response(status=403)
        with pytest.raises(Rejected, match="not valid any more"):
            await platform.fetch(attachment, "msg1==", into, 1 << 20)
        server.download = lambda _: web.Response(status=503)
        with pytest.raises(Unavailable) as error:
            await platform.fetch(attachment, "msg1==", into, 1 << 20)
        assert "planted" not in str(error.value)
        server.files.clear()
        with pytest.raises(Rejected):
            await platform.fetch(attachment, "msg1==", into, 1 << 20)
        assert not into.exists()


async def test_a_stream_without_length_stops_at_the_limit(tmp_path: Path) -> None:
    async with connected() as (server, platform):

        def chunked(request: web.Request) -> web.StreamResponse:
            response = web.Response(body=b"x" * 100_000, content_type="application/octet-stream")
            response.enable_chunked_encoding()
            return response

        server.download = chunked
        attachment = Attachment(server.keep("data.bin", b""), "data.bin")
        with pytest.raises(Rejected, match="more than 48"):
            await platform.fetch(attachment, "msg1==", tmp_path / "a", 50_000)
        assert not (tmp_path / "a").exists()


# Checks


async def test_a_check_names_each_permission_that_is_missing() -> None:
    async with connected(**CARDS) as (server, platform):
        assert [finding.ok for finding in await platform.check()] == [True] * 5
        assert texts(server) == []
        server.scopes.clear()
        findings = await platform.check()
        assert [finding.ok for finding in findings] == [True, True, False, False, False]
        advice = " ".join(finding.advice for finding in findings)
        assert all(scope in advice for scope in (SEND, CARD_WRITE, CARD_STREAM))
        server.client_secret = "another"
        server.faults.expire_tokens()
        fresh = DingTalk({**server.settings, "client_secret": "wrong"})
        (finding,) = await fresh.check()
        assert not finding.ok
        assert "Client Secret" in finding.advice
        await fresh.close()


async def test_a_check_without_network_says_so() -> None:
    async with DingTalkServer() as server:
        url = server.url
    platform = DingTalk({"client_id": "a", "client_secret": "b", "base_url": url})
    (finding,) = await platform.check()
    assert not finding.ok
    assert "network" in finding.advice
    await platform.close()
