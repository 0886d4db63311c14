"""Files of messages: fetched, put into the uploads, named to the agent; and turns of several messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from actors.chat import files, turns
from actors.chat.person import person_user
from actors.chat.turns import FETCHING, FILES, Message, turns_of
from core.chat.facts import Attachment, ChatFetched, ChatReceived, Fetched, Target, key_of
from core.chat.objects import Objects
from core.errors import NotFound
from core.files.folder import Folder, uploads
from core.files.paths import thread_root
from tests.actors.chat.site import Account, account
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio
AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW = timedelta(0)


async def fetched(office: Account, event: ChatReceived, *files: tuple[str, bytes | str]) -> list[str]:
    """What the process of the account does: files with content, or with an error. Returns the objects."""
    objects = Objects(office.stage.system.log.bus)
    found = []
    for number, (name, content) in enumerate(files):
        if isinstance(content, str):
            found.append(Fetched(name, error=content))
            continue
        path = office.home / f"sent-{event.message}-{number}"
        path.write_bytes(content)
        found.append(Fetched(name, object=await objects.put(office.place(), name, path), size=len(content)))
    await office.stage.given(ChatFetched(message=key_of(event), files=tuple(found)), aggregate=office.place())
    return [file.object for file in found]


async def routed(office: Account, event: ChatReceived) -> Any:
    """What became of a message, once a timer has fired."""

    async def probe() -> bool:
        return bool((await office.chats.load(office.place().id)).heard[key_of(event)].outcome)

    await eventually(probe)
    return await office.outcome(event)


def attached(*names: str) -> tuple[Attachment, ...]:
    return tuple(Attachment(f"id-{name}", name) for name in names)


async def test_files_are_uploads_of_the_thread(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        event = await office.hears("look", attachments=attached("a.txt", "../b.txt"))
        objects = await fetched(office, event, ("a.txt", b"one"), ("../b.txt", b"two"))
        outcome = await routed(office, event)
        run = await office.run(event)
        [message] = run.request.input["messages"]  # type: ignore[index]
        assert message["content"] == "look"
        assert [(file["filename"], file["size"]) for file in message["additional_kwargs"]["files"]] == [
            ("a.txt", 3),
            ("b.txt", 3),
        ]
        folder = thread_root(tmp_path, person_user("office", "U1"), outcome.thread) / "user-data" / "uploads"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a.txt": b"one", "b.txt": b"two"}
        known = await uploads(office.stage.system.log).load(outcome.thread)
        assert set(known.files) == {"a.txt", "b.txt"}
        for name in objects:
            with pytest.raises(NotFound):
                [chunk async for chunk in Objects(office.stage.system.log.bus).chunks(name)]


async def test_files_of_the_same_name_do_not_replace_each_other(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        names = []
        for number in range(2):
            event = await office.hears("look", attachments=attached("image.png"), chat="C1")
            await fetched(office, event, ("image.png", f"{number}".encode()))
            await routed(office, event)
            [message] = (await office.run(event)).request.input["messages"]  # type: ignore[index]
            names += [file["filename"] for file in message["additional_kwargs"]["files"]]
        assert names == ["image.png", "image_1.png"]


async def test_a_file_that_was_replaced_meanwhile_is_no_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = files._publish

    def replaced(folder: Folder, *arguments: Any) -> Any:
        taken = publish(folder, *arguments)
        (folder.root / "user-data" / "uploads" / "a.txt").write_bytes(b"of somebody else")
        return taken

    monkeypatch.setattr(files, "_publish", replaced)
    async with account(tmp_path) as office:
        event = await office.hears("look", attachments=attached("a.txt"))
        await fetched(office, event, ("a.txt", b"one"))
        outcome = await routed(office, event)
        assert (await uploads(office.stage.system.log).load(outcome.thread)).files == {}


async def test_a_file_that_failed_is_told(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        event = await office.hears("look", attachments=attached("a.txt", "b.txt"))
        await fetched(office, event, ("a.txt", "too large"), ("b.txt", b"two"))
        await routed(office, event)
        [message] = (await office.run(event)).request.input["messages"]  # type: ignore[index]
        assert message["content"] == "look\n\n(A file could not be taken: a.txt: too large)"
        assert "a.txt: too large" in (await office.said())[0]


async def test_files_within_a_second_are_one_turn(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        words = ("see", "", "")
        events = [
            await office.hears(text, attachments=attached(f"{n}.txt"), settle=False, album="a")
            for n, text in enumerate(words)
        ]
        after = await office.hears("and these?", sender="U2", settle=False)
        await routed(office, after)
        for n, event in enumerate(events):
            await fetched(office, event, (f"{n}.txt", b"x"))
        outcomes = [await routed(office, event) for event in (*events, after)]
        assert [outcome.outcome for outcome in outcomes] == ["run", "merged", "merged", "run"]
        state = await office.state(outcomes[0])
        assert list(state.runs) == [outcomes[0].run_id], "another person has a thread of their own"
        [message] = state.runs[outcomes[0].run_id].request.input["messages"]  # type: ignore[index]
        assert len(message["additional_kwargs"]["files"]) == 3


async def test_a_mention_alone_is_about_the_file_before_it(tmp_path: Path) -> None:
    async with account(tmp_path, settings={"require_mention": False, "gather_seconds": 1}) as office:
        file = await office.hears("", attachments=attached("a.txt"), kind="group", settle=False)
        mention = await office.hears("", mentioned=True, kind="group", settle=False)
        await fetched(office, file, ("a.txt", b"one"))
        assert [(await routed(office, event)).outcome for event in (file, mention)] == ["asked", "asked"]
        assert await office.said() == ["What shall I do with `a.txt`?"]


async def test_a_turn_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "FETCHING", timedelta(seconds=1.5))
    async with account(tmp_path) as office:
        event = await office.hears("look", attachments=attached("a.txt"))
        await routed(office, event)
        [message] = (await office.run(event)).request.input["messages"]  # type: ignore[index]
        assert "a.txt: it took too long" in message["content"]


async def test_what_was_said_in_a_voice_message_is_its_text(tmp_path: Path) -> None:
    async with account(tmp_path) as office:
        voice = Attachment("v", "voice.ogg", kind="voice", transcript="hello there")
        event = await office.hears("", attachments=(voice,))
        await fetched(office, event, ("voice.ogg", b"x"))
        await routed(office, event)
        [message] = (await office.run(event)).request.input["messages"]  # type: ignore[index]
        assert message["content"] == "hello there"


def message(
    seconds: float, *, files: bool = True, sender: str = "U1", album: str = "", there: bool = True, text: str = ""
) -> Message:
    event = ChatReceived(
        message="m",
        target=Target("C"),
        sender=sender,
        text=text,
        album=album,
        attachments=attached("a") if files else (),
    )
    return Message("m", "id", 1, AT + timedelta(seconds=seconds), event, () if there and files else None)


def is_chat(event: ChatReceived) -> bool:
    return not event.text.startswith("/")


@pytest.mark.parametrize(
    ("messages", "sizes"),
    [
        ([message(0), message(0.9), message(1.8)], [3]),
        ([message(0), message(1.1)], [1, 1]),
        ([message(0, album="a"), message(5, album="a")], [2]),
        ([message(0), message(0.1, sender="U2")], [1, 1]),
        ([message(0), message(0.9), message(1.8, files=False), message(1.9, files=False)], [3, 1]),
        ([message(0), message(1.1, files=False)], [1, 1]),
        ([message(0), message(0.1, files=False, text="/status")], [1, 1]),
        ([message(0, files=False), message(0.1, files=False)], [1, 1]),
    ],
)
def test_which_messages_are_a_turn(messages: list[Message], sizes: list[int]) -> None:
    assert [len(turn.messages) for turn in turns_of(messages, is_chat, NOW)] == sizes


def test_when_a_turn_may_begin() -> None:
    assert turns_of([message(0, files=False)], is_chat, NOW)[0].ready_at(NOW) == AT
    assert turns_of([message(0), message(0.5)], is_chat, NOW)[0].ready_at(NOW) == AT + timedelta(seconds=0.5) + FILES
    assert turns_of([message(0), message(0.5, there=False)], is_chat, NOW)[0].ready_at(NOW) == AT + FETCHING
