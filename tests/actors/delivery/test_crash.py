"""The power of the account's process goes off before and after each of its facts; another one takes over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import anyio
import pytest

from actors.delivery import delivering, job
from actors.delivery.outlet import Outlet
from core.chat.facts import Artifact, Target
from core.errors import Unavailable
from core.events import RunCompleted
from tests.actors.delivery.conftest import DEADLINE, HERE, Side
from tests.crash.place import Mode, cuts
from tests.support.chat_platform import Fault, Kind, Store, serving, store
from tests.support.workers import Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=5)]
GROUP = Target("G1", topic="t7", kind="group")
PARTS = ["one", "two", "three", "a.txt"]
FACTS = 16
"""Facts of the account in `converse`, with the topics of its messages: of a draft, three texts, a file, a notice."""


async def converse(side: Side, platform: Store) -> None:
    """A run whose answer grows, ends, and is delivered; then a notice."""
    previewer = side.system.pump.message("r1", "ai-1", after=await side.begin("r1", GROUP))
    await previewer.add("text", "o")
    await previewer.flush()
    await side.until(lambda state: state.drafts.get("r1") or platform.died.is_set(), GROUP)
    await say(side)
    await side.done(GROUP)


async def say(side: Side) -> None:
    if "r1" in (await side.state(GROUP)).plans:
        return
    await side.run("r1", RunCompleted())
    artifacts = (Artifact("/mnt/user-data/outputs/a.txt", "a.txt"),)
    await side.plan(
        "r1", "one\n\ntwo\n\nthree", purpose="answer", target=GROUP, artifacts=artifacts, thread="t1", user="ada"
    )
    await side.plan("q", "next", target=GROUP, purpose="push")


async def until(platform: Store, holds: Callable[[], bool]) -> None:
    """Waits until something holds; it is looked at after each call of the platform."""
    with anyio.fail_after(DEADLINE):
        while not holds():
            platform.called = anyio.Event()
            await platform.called.wait()


def outputs(side: Side, *names: str) -> None:
    folder = side.home / "users/ada/threads/t1/user-data/outputs"
    folder.mkdir(parents=True)
    for name in names or ("a.txt",):
        (folder / name).write_text("aaa")


CUTS = [(True, *cut) for cut in [(0, "later"), *cuts(range(1, FACTS + 1), "unheard", "later")]]
CUTS += [(False, *cut) for cut in [(0, "later"), *cuts(range(1, FACTS - 4), "later", "unheard")]]
"""With `findable`, which has more facts."""


@pytest.mark.parametrize(("findable", "last", "mode"), CUTS)
async def test_a_power_cut(side: Side, findable: bool, last: int, mode: Mode) -> None:
    outputs(side)
    platform = store(findable=findable, topics=findable)
    power = Power(last, mode)
    async with serving(side.endpoint, side.home, platform, wire=power.wire), anyio.create_task_group() as tasks:

        async def talk() -> None:
            await converse(side, platform)
            power.off.set()

        tasks.start_soon(talk)
        with anyio.fail_after(DEADLINE):
            await power.off.wait()
        tasks.cancel_scope.cancel()

    async with serving(side.endpoint, side.home, platform):
        await say(side)
        await side.plan("after", "after", target=GROUP, purpose="push")
        state = await side.done(GROUP)
    check(state.plans["r1"].failed, state.plans["q"].failed, platform, findable, drafts=1 if last else 2)


@pytest.mark.parametrize("findable", [True, False])
@pytest.mark.parametrize("method", ["finish", "post", "upload"])
async def test_a_process_that_dies_in_a_call(side: Side, findable: bool, method: str) -> None:
    """The platform has the part, and nobody was told."""
    outputs(side)
    platform = store(findable=findable, topics=findable)
    platform.fail(method, Fault("death"))
    async with serving(side.endpoint, side.home, platform), anyio.create_task_group() as tasks:
        tasks.start_soon(converse, side, platform)
        with anyio.fail_after(DEADLINE):
            await platform.died.wait()
        tasks.cancel_scope.cancel()
    async with serving(side.endpoint, side.home, platform):
        await say(side)
        await side.plan("after", "after", target=GROUP, purpose="push")
        state = await side.done(GROUP)
    failed = state.plans["r1"].failed
    assert failed == ("" if findable or method != "upload" else "unknown")
    check(failed, "", platform, findable, drafts=1)


@pytest.mark.parametrize(("findable", "keyed"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("kind", ["death", "lost", "missed", "defect"])
async def test_files_of_one_message_are_there_once(side: Side, findable: bool, keyed: bool, kind: Kind) -> None:
    """Five files, three of which a message carries; of the first message, nobody is told what became of it."""
    names = [f"{number}.txt" for number in range(5)]
    outputs(side, *names)
    platform = store(findable=findable, keyed=keyed, bundles=True)
    platform.fail("upload_bundle", Fault(kind))
    async with serving(side.endpoint, side.home, platform), anyio.create_task_group() as tasks:
        artifacts = tuple(Artifact(f"/mnt/user-data/outputs/{name}", name) for name in names)
        tasks.start_soon(partial(side.plan, "p", "one", purpose="push", artifacts=artifacts, thread="t1", user="ada"))
        if kind == "death":
            with anyio.fail_after(DEADLINE):
                await platform.died.wait()
        else:
            await until(platform, lambda: len(platform.made("upload_bundle")) > findable)
            await side.done()
        tasks.cancel_scope.cancel()
    async with serving(side.endpoint, side.home, platform):
        await side.plan("after", "after")
        state = await side.done()
    sent = [text for text in platform.texts() if ".txt" in text]
    if findable:
        assert (state.plans["p"].failed, state.plans["p"].parts, len(state.plans["p"].messages)) == ("", 6, 6)
        assert sent == ["0.txt 1.txt 2.txt", "3.txt 4.txt"]
    else:
        assert state.plans["p"].failed == "unknown"
        assert sent == (["0.txt 1.txt 2.txt"] if kind != "missed" else [])
    assert not platform.violations


@pytest.mark.parametrize("keyed", [True, False])
async def test_an_answer_without_a_draft_that_was_posted_is_not_posted_again(side: Side, keyed: bool) -> None:
    platform = store(keyed=keyed)
    async with serving(side.endpoint, side.home, platform):
        await side.plan("before", "before")  # so the process knows that it is the first to work on the answer
        await side.done()
        platform.fail("post", Fault("death"))
        await side.begin("r1")
        await until(platform, lambda: bool(platform.working[HERE.chat]))
        await side.run("r1", RunCompleted())
        await side.plan("r1", "one", purpose="answer")
        with anyio.fail_after(DEADLINE):
            await platform.died.wait()
    async with serving(side.endpoint, side.home, platform):
        await side.plan("after", "after")
        state = await side.done()
    assert state.plans["r1"].failed == ""
    assert platform.texts() == ["before", "one", "after"]


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_draft_that_could_not_be_recorded_is_known_once_it_becomes_the_answer(
    side: Side, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refusing(*arguments: object) -> None:
        raise Unavailable("the log is out of reach")

    platform = store(keyed=keyed)
    platform.fail("finish", Fault("death"))
    async with serving(side.endpoint, side.home, platform):
        monkeypatch.setattr(Outlet, "drafted", refusing)
        previewer = side.system.pump.message("r1", "ai-1", after=await side.begin("r1"))
        await previewer.add("text", "o")
        await previewer.flush()
        await until(platform, lambda: bool(platform.messages))
        await side.run("r1", RunCompleted())
        await side.plan("r1", "one", purpose="answer")
        with anyio.fail_after(DEADLINE):
            await platform.died.wait()
    monkeypatch.undo()
    async with serving(side.endpoint, side.home, platform):
        await side.plan("after", "after")
        await side.done()
    assert platform.texts() == ["one", "after"]


async def test_a_log_out_of_reach(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent meanwhile is recorded later, by the process that knows."""
    monkeypatch.setattr(job, "PAUSES", (0.05,))
    platform = store(findable=False)
    async with serving(side.endpoint, side.home, platform) as system:
        append, refusals = system.log.append, iter(range(3))

        async def refusing(*arguments: object, **options: object) -> object:
            if arguments[1][0].__class__.__name__ == "DeliverySent" and next(refusals, None) is not None:  # type: ignore[index]
                raise Unavailable("the log is out of reach")
            return await append(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(system.log, "append", refusing)
        monkeypatch.setattr("core.runtime.system.PAUSES", (0.05, 0.05, 0.05, 0.05))
        await side.plan("p", "one\n\ntwo")
        await side.done()
    assert platform.texts() == ["one", "two"]
    assert await side.ends() == [("p", 0), ("p", 1)]


def once(texts: Sequence[str]) -> list[str]:
    """Returns the texts without those that are marked as perhaps said before."""
    left: list[str] = []
    for text in texts:
        marked = bool(left) and left[-1] == delivering.AGAIN
        if marked:
            left.pop()
        if not (marked and left[-1:] == [text]):
            left.append(text)
    return left


def check(answer: str, notice: str, platform: Store, findable: bool, drafts: int) -> None:
    """Every part once and in order; or its plan is marked, and what it may have sent is there once at most.

    `drafts`: how many messages the answer may have grown in. A second one is begun where the first was not recorded
    and cannot be looked for.
    """
    texts = [text for text in platform.texts() if text != delivering.UNKNOWN]
    assert (delivering.UNKNOWN in platform.texts()) == bool(answer or notice)
    assert texts[-1] == "after"
    assert platform.violations == []
    if findable:
        assert (answer, notice) == ("", "")
        assert texts == [*PARTS, "next", "after"]
        return
    orphans = [text for text in texts if text == "o"]
    said = once([text for text in texts if text != "o"])
    assert len(orphans) < drafts or answer, texts
    assert {answer, notice} <= {"", "unknown"}
    assert said == [text for text in [*PARTS, "next", "after"] if text in said], "in order, none twice"
    expected = [] if answer else PARTS
    assert [text for text in said if text in PARTS] == expected or answer
    assert notice or "next" in said
