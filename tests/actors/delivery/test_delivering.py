"""Delivery: each part once, in order, whatever the platform answers, or does not."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.delivery import delivering, job
from actors.delivery.delivering import Delivery
from actors.delivery.plain import plain
from core.actor import Retries
from core.chat.facts import Artifact, Button, DeliveryAttempted, DeliveryDrafted, Target, TopicNoted, sent_message
from core.chat.port import Pace
from tests.actors.delivery.conftest import HERE, Side
from tests.support.chat_platform import ACCOUNT, Fault, ScriptedPlatform, Store, serving, store

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("findable", [True, False])
TEXT = "one\n\ntwo\n\nthree"
THREE = ["one", "two", "three"]
GROUP = Target("G1", topic="t7", kind="group")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PAUSES", (0.05,))


@BOTH
async def test_a_plan_is_said_in_parts(side: Side, findable: bool) -> None:
    platform = store(findable=findable)
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", TEXT, buttons=(Button("y", "Yes"),))
        state = await side.done()
    assert platform.texts() == THREE
    assert [call.key for call in platform.made("post")] == ["p/0", "p/1", "p/2"]
    assert [len(message.buttons) for message in platform.messages.values()] == [0, 0, 1]
    assert state.plans["p"].messages == ("m1", "m2", "m3")
    assert state.plans["p"].parts == 3
    types = [record.type for record in await side.facts()]
    assert types[1:] == ["delivery.attempted", "delivery.sent"] * 3
    assert platform.made("find") == []


async def test_a_plan_that_is_given_up_is_missed_aloud_and_the_next_one_is_said(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Delivery._step

    async def poisoned(delivery: Delivery, conversation: str, plan_id: str, *more: Any) -> float:
        if plan_id == "p":
            raise MemoryError
        return await step(delivery, conversation, plan_id, *more)

    monkeypatch.setattr(Delivery, "_step", poisoned)
    monkeypatch.setattr(Delivery, "retries", Retries(attempts=1))
    platform = store()
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", TEXT, purpose="answer")
        await side.plan("q", "next", purpose="push")
        state = await side.until(lambda state: len(platform.texts()) == 2)
    assert state.plans["p"].failed == "unknown"
    assert sorted(platform.texts()) == sorted([delivering.UNKNOWN, "next"])


async def test_a_text_is_split_once_and_a_long_one_in_a_thread(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    split = ScriptedPlatform.parts

    def parts(self: ScriptedPlatform, text: str) -> Sequence[str]:
        threads.append(threading.current_thread().name)
        return split(self, text)

    monkeypatch.setattr(ScriptedPlatform, "parts", parts)
    platform, long = store(), "\n\n".join(f"{number} {'x' * 700}" for number in range(3))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("short", TEXT)
        await side.done()
        await side.plan("long", long)
        await side.done()
    assert platform.texts() == [*THREE, *long.split("\n\n")]
    short_one, long_one = threads
    assert short_one == threading.current_thread().name != long_one


async def test_plans_are_executed_in_order(side: Side) -> None:
    platform = store()
    for number in range(5):
        await side.plan(f"early{number}", f"early {number}")
    async with serving(side.endpoint, side.home, platform):
        await side.plan("late", "late")  # what is new wakes the account for what was there before
        await side.done()
    assert platform.texts() == [f"early {number}" for number in range(5)] + ["late"]


async def test_a_conversation_does_not_wait_for_another(side: Side) -> None:
    platform = store()
    platform.fail("post", Fault("limit", 3600))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p1", "blocked")
        with anyio.fail_after(60):
            await platform.called.wait()
        await side.plan("p2", "free", target=Target("C2"))
        await side.done(Target("C2"))
        assert (await side.state()).plans["p1"].open
    assert platform.texts() == ["free"]
    assert platform.violations == []


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
@pytest.mark.parametrize("kind", ["down", "dead", "limit"])
async def test_what_was_not_sent_is_sent_again(
    side: Side, findable: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "CREDENTIALS_SECONDS", 0.05)
    platform = store(findable=findable)
    platform.fail("post", Fault("slow"), Fault(kind, 0.3), Fault(kind, 0.1))  # type: ignore[arg-type]
    async with serving(side.endpoint, side.home, platform):
        await side.plan("before", "zero")
        await side.done()
        platform.calls.clear()
        await side.plan("p", TEXT)
        await side.done()
    assert platform.texts() == ["zero", *THREE]
    assert platform.violations == []
    assert platform.made("find") == []


async def test_a_new_connection_says_at_once_what_waits_for_credentials(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "CREDENTIALS_SECONDS", 1000.0)
    platform = store()
    platform.fail("post", Fault("dead"))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "one")
        with anyio.fail_after(60):
            await platform.called.wait()
    async with serving(side.endpoint, side.home, platform):
        await side.done()
    assert platform.texts() == ["one"]


@pytest.mark.parametrize("kind", ["down", "dead", "limit"])
async def test_a_plan_that_could_not_be_sent_for_long_is_given_up(
    side: Side, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "LONGEST_SECONDS", 0.0)
    platform = store()
    platform.fail("post", Fault(kind, 0.1))  # type: ignore[arg-type]
    async with serving(side.endpoint, side.home, platform):
        await side.plan("old", TEXT)
        await side.done()
        await side.plan("p", "next")
        await side.done()
    assert (await side.state()).plans["old"].failed == "refused"
    assert platform.texts()[-1:] == ["next"]


@BOTH
async def test_a_long_pause_is_a_timer(side: Side, findable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler has ended meanwhile, and a restart does not matter."""
    monkeypatch.setattr(delivering, "PATIENCE_SECONDS", 0.2)
    platform = store(findable=findable)
    platform.fail("post", Fault("limit", 1.5))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", TEXT)
        with anyio.fail_after(60):
            await platform.called.wait()
        await side.plan("q", "next")
        await side.done()
    assert platform.texts() == [*THREE, "next"]
    assert platform.violations == []


@BOTH
@pytest.mark.parametrize("kind", ["lost", "missed", "defect"])
async def test_an_unknown_fate(side: Side, findable: bool, kind: str) -> None:
    """Is found out, or the part is said again with a mark; the next plan is not held up."""
    platform = store(findable=findable)
    platform.fail("post", Fault("slow"), Fault(kind))  # type: ignore[arg-type]
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", TEXT, purpose="answer")
        await side.plan("q", "next", purpose="push")
        await side.done()
    first, *rest = THREE
    before = [] if findable or kind == "missed" else [rest[0]]
    again = [] if findable else [*before, delivering.AGAIN]
    assert platform.texts() == [first, *again, *rest, "next"]
    assert await side.ends() == [("p", 0), ("p", 1), ("p", 2), ("q", 0)]


async def test_a_text_that_may_not_be_looked_for_is_said_again(side: Side) -> None:
    """As on Slack without the scope for it."""
    platform = store(findable=True)
    platform.fail("post", Fault("missed"))
    platform.fail("find", Fault("reject"))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "one", purpose="push")
        await side.done()
    assert platform.texts() == [delivering.AGAIN, "one"]


@pytest.mark.parametrize("purpose", ["answer", "notice"])
async def test_a_text_that_never_gets_an_answer(side: Side, purpose: str) -> None:
    """Replies of the system itself are repeated without a mark; both have a bound."""
    tries = delivering.DOUBTS if purpose == "notice" else delivering.DOUBLES
    platform = store(findable=False)
    platform.fail("post", *[Fault("missed")] * tries)
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "one", purpose=purpose)
        await side.done()
    assert (await side.state()).plans["p"].failed == "unknown"
    posts = [call.key for call in platform.made("post") if call.key.startswith("p/0")]
    assert len(posts) == tries


async def test_an_unknown_fate_that_stays_unknown(side: Side) -> None:
    platform = store()
    platform.fail("post", *[Fault("missed")] * delivering.DOUBTS)
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "one")
        await side.plan("q", "next")
        await side.done()
    assert await side.ends() == [("p", 0, "unknown"), ("q", 0)]
    assert platform.texts() == ["next"]


@BOTH
async def test_a_chat_that_is_gone(side: Side, findable: bool) -> None:
    platform = store(findable=findable)
    platform.fail("post", Fault("slow"), Fault("gone"))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", TEXT)
        await side.plan("q", "next")
        await side.done()
    assert await side.ends() == [("p", 0), ("p", 1, "gone"), ("q", 0)]


@BOTH
async def test_a_text_that_is_refused_is_sent_plain(side: Side, findable: bool) -> None:
    platform = store(findable=findable)
    platform.fail("post", Fault("reject"))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "**one** [two](http://x)\n\nthr*ee*")
        await side.done()
    assert platform.texts() == ["one two \\(http://x\\)", "thr*ee*"]


@BOTH
async def test_a_text_that_is_refused_twice_ends_its_plan(side: Side, findable: bool) -> None:
    platform = store(findable=findable)
    platform.fail("post", Fault("reject"), Fault("reject"))
    outputs(side)
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "one", artifacts=(artifact("a.txt"),), thread="t1", user="ada")
        await side.plan("q", "next")
        await side.done()
    assert await side.ends() == [("p", 0, "refused"), ("q", 0)]
    assert platform.texts() == ["next"], "no file without its text"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title\n\nText", "Title\n\nText"),
        ("```py\nx = 1\n```\n", "x \\= 1\n"),
        ("![cat](c.png) `a_b`", "cat \\(c\\.png\\) a\\_b"),
        ("1. one\n- two", "1\\. one\n\\- two"),
    ],
)
def test_plain(text: str, expected: str) -> None:
    assert plain(text) == expected


@pytest.mark.parametrize(
    ("fault", "text"), [("lost", delivering.UNKNOWN), ("reject", delivering.REFUSED), ("gone", None)]
)
async def test_an_answer_that_failed_is_told_of(side: Side, fault: str, text: str | None) -> None:
    """Once, and not where nobody could read it."""
    platform = store(findable=False)
    platform.fail("post", *[Fault(fault)] * 4)  # type: ignore[arg-type]
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "one", purpose="answer")
        await side.done()
        platform.faults.clear()
        await side.plan("q", "one", purpose="answer")
        times = {"reject": 2, "lost": delivering.DOUBLES}.get(fault, 1)
        platform.fail("post", *[Fault(fault)] * times)  # type: ignore[arg-type]
        await side.done()
    plans = (await side.state()).plans
    assert list(plans) == ["p", *(["p/failed"] if text else []), "q", *(["q/failed"] if text else [])]
    assert platform.texts()[-1:] == ([text] if text else [])


@pytest.mark.parametrize("text", ["", "\n\n"])
async def test_nothing_to_say(side: Side, text: str) -> None:
    platform = store()
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", text)
        await side.plan("q", "next")
        await side.done()
    assert await side.ends() == [("p", 0, "refused"), ("q", 0)]


# ── changes of messages ─────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
@pytest.mark.parametrize("fault", [None, "lost", "missed", "down", "gone", "reject"])
async def test_a_question_that_was_decided(side: Side, findable: bool, fault: str | None) -> None:
    """Its message is changed; where that is gone, a new one says so."""
    platform = store(findable=findable)
    if fault:
        platform.fail("edit", *[Fault(fault)] * (2 if fault == "reject" else 1))  # type: ignore[arg-type]
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "Sure?", purpose="question", buttons=(Button("y", "Yes"),))
        await side.plan("q", "Sure. (Ada)", replaces="p")
        await side.done()
    anew = fault in ("gone", "reject")
    assert platform.texts() == (["Sure?", "Sure. (Ada)"] if anew else ["Sure. (Ada)"])
    assert platform.messages["m1"].buttons == ((Button("y", "Yes"),) if anew else ())


@BOTH
@pytest.mark.parametrize("sent", [True, False])
async def test_a_change_of_a_notice_that_was_not_sent_is_not_said(side: Side, findable: bool, sent: bool) -> None:
    """It was over when its turn came."""
    platform = store(findable=findable)
    if not sent:
        await side.plan("p", "I am at work.", unless_answered="a run that is answered")
    async with serving(side.endpoint, side.home, platform):
        if sent:
            await side.plan("p", "I am at work.")
        await side.plan("q", "I was at work.", replaces="p")
        await side.done()
    assert platform.texts() == (["I was at work."] if sent else [])


@BOTH
@pytest.mark.parametrize("there", [True, False])
async def test_a_notice_of_unknown_fate_that_is_over_is_looked_for_and_changed(
    side: Side, findable: bool, there: bool
) -> None:
    """Else people would read that the agent is at work when it is not. Where nobody can look for it, its fate is
    unknown, and it is not said again."""
    platform = store(findable=findable)
    await side.plan("p", "I am at work.", unless_answered="a run that is answered")
    await side.append(DeliveryAttempted(plan="p", part=0))
    if there:
        platform.add(HERE, "p/0", "I am at work.")
    async with serving(side.endpoint, side.home, platform):
        await side.plan("q", "I was at work.", replaces="p")
        state = await side.done()
    assert platform.texts() == ([] if not there else ["I was at work."] if findable else ["I am at work."])
    assert state.plans["p"].failed == ("unknown" if not findable else "" if there else "refused")


@BOTH
async def test_an_answer_takes_the_place_of_its_draft(side: Side, findable: bool) -> None:
    """One that a process before has begun."""
    platform = store(findable=findable)
    draft = platform.add(HERE, "run1/draft", "o…", status="bash")
    await side.append(DeliveryDrafted(plan="run1", message=draft.id))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("run1", TEXT, purpose="answer")
        state = await side.done()
    assert platform.texts() == THREE
    assert state.plans["run1"].messages[0] == draft.id
    assert platform.messages[draft.id].status == ""


@BOTH
@pytest.mark.parametrize("fault", ["lost", "missed", "gone", "reject"])
async def test_a_draft_that_does_not_become_the_answer(side: Side, findable: bool, fault: str) -> None:
    platform = store(findable=findable)
    draft = platform.add(HERE, "run1/draft", "o…")
    platform.fail("finish", *[Fault(fault)] * (2 if fault == "reject" else 1))  # type: ignore[arg-type]
    await side.append(DeliveryDrafted(plan="run1", message=draft.id))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("run1", TEXT, purpose="answer")
        await side.done()
    assert platform.texts() == (["o…", *THREE] if fault in ("gone", "reject") else THREE)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def outputs(side: Side) -> Path:
    folder = side.home / "users/ada/threads/t1/user-data/outputs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("aaa")
    (folder / "sub/b.txt").write_text("bbb")
    (folder.parent / "workspace").mkdir()
    (folder.parent / "workspace/secret.txt").write_text("secret")
    return folder


def artifact(path: str) -> Artifact:
    return Artifact(f"/mnt/user-data/outputs/{path}", path.rpartition("/")[2])


@BOTH
async def test_files_come_after_the_text(side: Side, findable: bool) -> None:
    outputs(side)
    platform = store(findable=findable)
    async with serving(side.endpoint, side.home, platform):
        artifacts = (artifact("a.txt"), artifact("sub/b.txt"))
        await side.plan("p", "one", artifacts=artifacts, thread="t1", user="ada")
        await side.done()
    assert platform.texts() == ["one", "a.txt", "b.txt"]
    assert [message.file for message in platform.messages.values()] == [None, b"aaa", b"bbb"]


@pytest.mark.parametrize("kind", ["lost", "missed", "down", "limit"])
async def test_an_upload_that_fails_is_found_or_repeated(side: Side, kind: str) -> None:
    outputs(side)
    platform = store()
    platform.fail("upload", Fault(kind, 0.1))  # type: ignore[arg-type]
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "one", artifacts=(artifact("a.txt"),), thread="t1", user="ada")
        await side.done()
    assert platform.texts() == ["one", "a.txt"]
    assert platform.violations == []


async def test_a_file_that_cannot_be_sent_is_named(side: Side) -> None:
    folder = outputs(side)
    (folder / "large.bin").write_bytes(b"x" * 200)
    (folder / "link.txt").symlink_to(folder.parent / "workspace/secret.txt")
    (folder / "out.txt").symlink_to("../workspace/secret.txt")
    (folder / "inner").symlink_to(folder.parent / "workspace")
    paths = ["large.bin", "link.txt", "out.txt", "inner/secret.txt", "../workspace/secret.txt", "sub", "no", "a.txt"]
    artifacts = (*map(artifact, paths), Artifact("/etc/passwd", "passwd"))
    platform = store(largest_file=100)
    platform.fail("upload", Fault("reject"))
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", "one", artifacts=(*artifacts, artifact("sub/b.txt")), thread="t1", user="ada")
        await side.done()
    assert {message.file for message in platform.messages.values()} == {None, b"bbb"}
    notes = platform.texts()[1:-1]
    names = ["large.bin", "link.txt", "out.txt", "secret.txt", "secret.txt", "sub", "no", "a.txt", "passwd"]
    assert [re.findall("`(.+?)`", note)[0] for note in notes] == names
    assert "200 bytes" in notes[0]


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("topics", "target"), [(True, GROUP), (True, HERE), (False, GROUP)])
async def test_replies_to_our_messages_are_known(side: Side, topics: bool, target: Target) -> None:
    platform = store(topics=topics)
    async with serving(side.endpoint, side.home, platform):
        await side.plan("p", TEXT, target=target)
        await side.done(target)
    noted = [await side.read(sent_message(ACCOUNT, target.chat, f"m{number}")) for number in (1, 2, 3)]
    expected = [TopicNoted(topic="t7")] if topics and target is GROUP else []
    assert [[record.event for record in records] for records in noted] == [expected] * 3


# ── pace ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_fifty_chats_within_their_limits(side: Side) -> None:
    """The platform measures; each chat's plans come in order."""
    platform = store(pace=Pace(0.0, 0.0, 0.05, 20, 100))
    chats = [Target(f"C{number}", kind="group" if number % 2 else "private") for number in range(50)]
    platform.fail("post", *[Fault("slow", 0.01), Fault("limit", 0.2), Fault("down"), Fault("slow", 0.02)] * 10)
    async with serving(side.endpoint, side.home, platform):
        for chat in chats:
            await side.plan("p", "1\n\n2", target=chat)
            await side.plan("q", "3", target=chat)
        for chat in chats:
            await side.done(chat)
    assert platform.violations == []
    for chat in chats:
        assert platform.texts(chat.chat) == ["1", "2", "3"], chat


def test_the_store_notices_what_breaks_its_rules() -> None:
    """Otherwise the test before could not fail."""
    strict: Store = store(pace=Pace(1.0, 3.0, 1.0, 2, 3))
    group = Target("G", kind="group")
    draft = strict.add(group, "k", "text")
    for method in ("post", "post", "show", "post"):
        strict.arrive(method, group, "k", draft)
    about = " ".join(strict.violations)
    assert "too soon after the last message" in about
    assert "too soon after the last edit" in about
    assert "in a minute" in about
    assert "in a second" in about
