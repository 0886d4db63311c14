"""Files of messages: on the bus once, whole, or with the reason why not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from actors.delivery import fetcher
from core.chat.facts import Attachment, ChatFetched, ChatRouted, Fetched, conversation
from core.chat.objects import Objects
from core.config.load import ConfigSource
from core.errors import NotFound
from tests.actors.delivery.conftest import HERE, Side
from tests.support.chat_platform import ACCOUNT, Fault, ScriptedPlatform, received, serving, store

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "PAUSES", (0.01, 0.01))


async def fetched(side: Side, message: str) -> tuple[Fetched, ...]:
    state = await side.until(lambda state: state.heard[message].files is not None)
    return state.heard[message].files or ()


async def content(side: Side, name: str) -> bytes:
    return b"".join([chunk async for chunk in Objects(side.system.bus).chunks(name)])


async def test_the_files_of_a_message(side: Side) -> None:
    platform, image = store(), os.urandom(300_000)
    platform.attachments = {"f1": image, "f2": b"text", "f3": b""}
    async with serving(side.endpoint, side.home, platform):
        attachments = (Attachment("f1", "a.png"), Attachment("f2", "b", mime="text/plain"), Attachment("f3", "c.txt"))
        await side.append(received("1", *attachments))
        files = await fetched(side, "1")
    assert [(file.name, file.mime, file.size, file.error) for file in files] == [
        ("a.png", "image/png", 300_000, ""),
        ("b", "text/plain", 4, ""),
        ("c.txt", "text/plain", 0, ""),
    ]
    assert [await content(side, file.object) for file in files] == [image, b"text", b""]
    await side.system.log.erase(conversation(ACCOUNT, HERE.chat))
    with pytest.raises(NotFound):
        await content(side, files[0].object)


async def test_what_a_killed_process_was_fetching_is_removed(side: Side) -> None:
    left = side.home / "transfers" / ACCOUNT / "tmp1"
    left.mkdir(parents=True)
    (left / "file").write_bytes(b"half")
    async with serving(side.endpoint, side.home, store()):
        assert not left.exists()


async def test_files_of_people_who_may_not_talk_are_not_fetched(side: Side, tmp_path: Path) -> None:
    account = {"enabled": True, "use": "tests.actors.chat.office", "allowed_users": ["U2"]}
    (tmp_path / "config.yaml").write_text(json.dumps({"channels": {ACCOUNT: account}}))
    platform = store()
    platform.attachments = {"f1": b"x"}
    async with serving(side.endpoint, side.home, platform, source=ConfigSource(tmp_path / "config.yaml")):
        await side.append(received("1", Attachment("f1", "a.txt")))
        [stranger] = await fetched(side, "1")
        await side.append(msgspec.structs.replace(received("2", Attachment("f1", "a.txt")), sender="U2"))
        [friend] = await fetched(side, "2")
    assert (stranger.error, stranger.object) == (fetcher.NOT_ADMITTED, "")
    assert friend.object
    assert len(platform.made("fetch")) == 1


async def test_what_cannot_be_fetched_is_said(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(fetcher, "AT_ONCE", 1)
    platform = store()
    platform.attachments = dict.fromkeys(["f1", "f2", "f3", "f4"], b"x") | {"f5": b"x" * 2000}
    platform.fail("fetch", Fault("reject"), Fault("dead"), *[Fault("down")] * 3, Fault("lost"), Fault("slow"))
    async with serving(side.endpoint, side.home, platform):
        await side.append(received("1", *(Attachment(f"f{number}", f"{number}") for number in range(1, 6))))
        files = await fetched(side, "1")
    assert [(file.error, bool(file.object)) for file in files] == [
        ("cannot parse", False),
        ("invalid token", False),
        ("connection refused", False),
        ("", True),
        ("larger than 1000 bytes", False),
    ]


async def test_files_are_fetched_once(side: Side) -> None:
    """Also by a process that takes over; not for a message without files, or one that was decided without them."""
    platform = store()
    platform.attachments = {"f1": b"1", "f2": b"2"}
    platform.fail("fetch", Fault("death"))
    async with serving(side.endpoint, side.home, platform):
        await side.append(received("1", Attachment("f1", "1")))
        await platform.died.wait()
    await side.append(received("2", Attachment("f2", "2")), received("3"))
    await side.append(ChatRouted(message="2", outcome="refused"))
    async with serving(side.endpoint, side.home, platform):
        assert [file.error for file in await fetched(side, "1")] == [""]
        await side.append(received("4", Attachment("f1", "1")))
        await fetched(side, "4")
    facts = [record.event for record in await side.facts() if isinstance(record.event, ChatFetched)]
    assert [fact.message for fact in facts] == ["1", "4"]
    assert [call.key for call in platform.made("fetch")] == ["f1", "f1", "f1"]


async def test_many_files_of_one_do_not_hold_up_those_of_others(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the one's files ends before the other's is there."""
    platform, release, fetch = store(), anyio.Event(), ScriptedPlatform.fetch
    platform.attachments = {**{f"f{number}": b"1" for number in range(100)}, "other": b"2"}

    async def held(self: ScriptedPlatform, attachment: Attachment, *about: Any) -> None:
        if attachment.id != "other":
            await release.wait()
        await fetch(self, attachment, *about)

    monkeypatch.setattr(ScriptedPlatform, "fetch", held)
    async with serving(side.endpoint, side.home, platform):
        await side.append(*(received(f"{number}", Attachment(f"f{number}", "a")) for number in range(100)))
        await side.append(msgspec.structs.replace(received("other", Attachment("other", "b")), sender="U2"))
        [file] = await fetched(side, "other")
        assert file.object
        assert sum(heard.files is not None for heard in (await side.state()).heard.values()) == 1
        release.set()
        state = await side.until(lambda state: all(heard.files is not None for heard in state.heard.values()))
    assert [file.error for heard in state.heard.values() for file in heard.files or ()] == [""] * 101
