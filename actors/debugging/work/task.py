"""Tasks of the work evaluation: what a person writes, the files that are there, and a checker of the result."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from core.events import Json

WORKSPACE = "/mnt/user-data/workspace"
OUTPUTS = "/mnt/user-data/outputs"
UPLOADS = "/mnt/user-data/uploads"


class Turn(NamedTuple):
    """A message of a person. `new_thread`: it begins a conversation, when the memory has read the ones before."""

    text: str
    person: str = ""
    new_thread: bool = False


class CommandResult(NamedTuple):
    """The result of a command of a checker."""

    text: str
    exit_code: int


class Result(NamedTuple):
    """The input of a checker. Its text is the model's: nothing in it is trusted."""

    answers: Sequence[str]
    """The last answer to each turn."""
    calls: Sequence[tuple[str, Json]]
    facts: Sequence[str]
    """The facts in the person's memory."""
    run: Callable[[str], Awaitable[CommandResult]]
    """Runs a command in the sandbox of the last thread."""

    @property
    def answer(self) -> str:
        return self.answers[-1]

    def says(self, expression: str) -> None:
        """Fails unless the last answer has the expression."""
        assert re.search(expression, self.answer, re.IGNORECASE), f"{expression!r} is not in {self.answer[:200]!r}"

    def counts(self, number: int) -> None:
        """Fails unless the last answer has the number, with or without separators of thousands."""
        assert str(number) in re.sub(r"(?<=\d)[ ,.'\u202f](?=\d{3})", "", self.answer), (
            f"{number}: {self.answer[:200]!r}"
        )

    async def text(self, path: str) -> str:
        """Returns the text of a file. Fails if there is none."""
        shown = await self.run(f"cat -- '{path}'")
        assert shown.exit_code == 0, f"{path}: {shown.text[:200]}"
        return shown.text

    async def prints(self, command: str, expected: str) -> None:
        """Fails unless a command ends well, with this text in its output."""
        shown = await self.run(command)
        assert shown.exit_code == 0, f"{command[:80]}: {shown.text[-300:]}"
        assert expected in shown.text, f"{command[:80]}: {shown.text[-300:]!r} without {expected!r}"

    async def python(self, code: str) -> None:
        """Fails unless Python code runs in the workspace: its assertions are the checks."""
        await self.prints(f"cd {WORKSPACE} && python3 -B - <<'CHECK'\n{code}\nprint('checked')\nCHECK", "checked")


Check = Callable[[Result], Awaitable[None]]


class Task(NamedTuple):
    """A task. Its checker raises `AssertionError` with the reason of a failure."""

    name: str
    kind: str
    turns: Sequence[Turn]
    files: Mapping[str, str]
    """Texts by path."""
    setup: str
    """A command that prepares the thread."""
    check: Check


TASKS: dict[str, Task] = {}


def task(
    kind: str, *turns: str | Turn, files: Mapping[str, str] | None = None, setup: str = ""
) -> Callable[[Check], Check]:
    """Registers a task under the name of its checker."""

    def register(check: Check) -> Check:
        name = check.__name__
        conversation = [Turn(turn) if isinstance(turn, str) else turn for turn in turns]
        assert name not in TASKS, f"task {name}: there are two"
        TASKS[name] = Task(name, kind, conversation, files or {}, setup, check)
        return check

    return register
