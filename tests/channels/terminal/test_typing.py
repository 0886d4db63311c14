"""What a person types: at a terminal, and through a pipe."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from channels.terminal.chat.attachments import named
from channels.terminal.chat.chat import COMMANDS
from channels.terminal.console import lines, prompt
from channels.terminal.console.lines import Piped, piped
from channels.terminal.console.prompt import Completions
from core.errors import Invalid
from tests.channels.terminal.talks import Place
from tests.channels.terminal.terminals import Terminal, on_terminal


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


async def test_lines_come_from_a_pipe(pipe: tuple[int, int]) -> None:
    read, write = pipe
    lines = Piped(read)
    with anyio.move_on_after(0.01):
        await lines.line("> ")
    os.write(write, "Grüße\n\nlast".encode())
    assert [await lines.line("> "), await lines.answer("? ")] == ["Grüße", ""]
    os.close(write)
    assert [await lines.line("> "), await lines.line("> ")] == ["last", None]


async def test_a_pipe_goes_with_a_message(pipe: tuple[int, int], tmp_path: Path) -> None:
    read, write = pipe
    os.write(write, b"one\ntwo\n")
    os.close(write)
    assert await piped(read) == "one\ntwo\n"
    (tmp_path / "file").write_text("of a file")
    for path, text in ((tmp_path / "file", "of a file"), (Path(os.devnull), "")):
        with path.open() as file:
            assert await piped(file.fileno()) == text


async def test_a_silent_pipe_is_not_waited_for_and_a_huge_one_is_refused(
    pipe: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lines, "PIPE_SECONDS", 0.05)
    assert await piped(pipe[0]) == ""
    assert capsys.readouterr().err == "standard input is silent for 0.05 s: the message goes without it\n"
    os.close(pipe[1])
    (tmp_path / "huge").write_bytes(bytes(lines.MAX_PIPED_BYTES + 1))
    with (tmp_path / "huge").open() as file, pytest.raises(Invalid, match="@file"):
        await piped(file.fileno())


def test_named_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b c.txt", "d"):
        Path(name).touch()
    Path("folder").mkdir()
    text = 'see @a.txt, (@d) @"b c.txt" mail@a.txt @folder @nobody @a.txt.'
    assert named(text) == [Path("a.txt"), Path("b c.txt")]


async def completed(text: str) -> list[str]:
    names = {
        "/threads": [("t1", "One\x1b[2J"), ("u2", "")],
        "/": [("/data-analysis", "Works on tables")],
        "/model": [("small", "thinks")],
    }

    async def words(command: str) -> list[tuple[str, str]]:
        return names.get(command, [])

    completions: AsyncIterator[Any] = Completions(COMMANDS, words).get_completions_async(
        Document(text), CompleteEvent(completion_requested=True)
    )
    return [completion.text async for completion in completions]


async def test_completions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.md").touch()
    assert await completed("/th") == ["/threads"]
    assert await completed("/threads ") == ["t1", "u2"]
    assert await completed("/threads u") == ["u2"]
    assert await completed("/da") == ["/data-analysis"]
    assert await completed("/model ") == ["small"]
    assert await completed("/model small ") == []
    assert await completed("read @no") == ["tes.md"]
    assert await completed("read /th") == []


async def keep_typing(terminal: Terminal, keys: bytes) -> None:
    while True:
        terminal.type(keys)
        await anyio.sleep(0.1)


async def test_a_talk_on_a_terminal_has_a_history(place: Place, tmp_path: Path) -> None:
    history = tmp_path / "chat_history"

    async def first(terminal: Terminal) -> None:
        await terminal.prompt()
        terminal.type(b"/hel\x7flp\r")
        await terminal.until("/new ")
        await terminal.prompt()
        terminal.type(b"/he\x1b\rlp\r")
        await terminal.until("did you mean")
        await terminal.prompt()
        terminal.type(b"\x04")
        assert await terminal.ended() == 0

    async def second(terminal: Terminal) -> None:
        await terminal.prompt()
        async with anyio.create_task_group() as tasks:  # the history is read while one types
            tasks.start_soon(keep_typing, terminal, b"\x1b[A")
            await terminal.until("/he")
            tasks.cancel_scope.cancel()
        terminal.type(b"\r")
        await terminal.until("did you mean")
        await terminal.prompt()
        terminal.type(b"/quit\r")
        assert await terminal.ended() == 0

    command = ("chat", "--url", place.url, "--home", str(tmp_path))
    await on_terminal(first, *command)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+/help\n" in history.read_text()
    assert "+/he\n+lp\n" in history.read_text()
    await on_terminal(second, *command)


def test_a_history_that_cannot_be_written_stays_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = prompt._history(path)
    path.unlink()
    path.mkdir()
    history.append_string("hello")
    assert history.get_strings() == ["hello"]


def test_a_long_history_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "MAX_HISTORY_BYTES", 400)
    path = tmp_path / "history"
    path.write_text("".join(f"\n# 2026\n+message {n}\n" for n in range(100)))
    kept = list(prompt._history(path).load_history_strings())
    assert kept[0] == "message 99"
    assert kept[-1] == f"message {100 - len(kept)}"
    assert path.stat().st_size < 400


def test_the_history_holds_no_values_of_variables(tmp_path: Path) -> None:
    history = prompt._history(tmp_path / "history")
    for line in ("/env", "/env A", "/env A=canary", "hello", "/environment = x"):
        history.append_string(line)
    stored = (tmp_path / "history").read_text()
    assert "canary" not in stored
    assert all(f"+{line}\n" in stored for line in ("/env", "/env A", "hello", "/environment = x"))
