"""Tools: a typed async function, its description, and the rule for retries."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from core.errors import Invalid

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ARGUMENT = re.compile(r" {4}(\w+)(?: \([^)]*\))?: ?(.*)")
"""The first line of an argument in a docstring, after `inspect.getdoc`."""
Effect = Literal["pure", "idempotent", "once"]
"""The rule for a call whose outcome is unknown after a crash.

`pure`        reads only: run it again.
`idempotent`  safe to repeat under the same call id (the sandbox keeps a record per call id).
`once`        must never be repeated: the model is told that the outcome is unknown.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a tool call to a person. `step` identifies it within the call, and is shown below the text."""

    text: str
    step: Mapping[str, Any]
    form: Mapping[str, Any] | None = None
    """The fields to be filled in, as JSON schema (`core.forms`). None: yes or no."""
    seconds: float | None = None
    """Time for the answer."""


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a question. `accepted` is None if nobody answered in time, or nobody could be asked."""

    accepted: bool | None
    content: Mapping[str, Any] = field(default_factory=dict)
    """The fields that were filled in."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request to the run's model, beside the conversation."""

    messages: Sequence[tuple[str, str]]
    """Roles (`user`, `assistant`) and texts."""
    system: str = ""
    max_tokens: int = 1000
    stop: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. `model` is its configured name, `reason` why it ended, as its provider says."""

    text: str
    model: str
    reason: str = ""


class Files(Protocol):
    """The files of the thread, wherever its sandbox has them.

    Paths are those of the agent: absolute (`/mnt/user-data/uploads/a.csv`), or relative to `/mnt/user-data` if they
    begin with `uploads`, `outputs` or `workspace`, else to the workspace. Finished results for the person belong into
    `outputs`. Every refusal is `Invalid` with a text for the model.
    """

    async def read(self, path: str) -> bytes:
        """Returns the content of a file. Raises `Invalid` if there is none, or more than 16 MB."""
        ...

    async def write(self, path: str, content: bytes | str) -> str:
        """Writes a file of at most 16 MB, also in place of another one, and makes its directories. Returns its absolute
        path. More than 400 kB are written in parts, which readers may see.
        """
        ...

    async def list(self, path: str = "") -> Sequence[str]:
        """Returns the absolute paths of the files below a directory, at most 1000."""
        ...


MOST_BYTES = 16 << 20
"""Limit of a file that tools read or write as a whole."""


class RunContext(Protocol):
    """The run in which a tool or a policy is called."""

    @property
    def thread(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def run(self) -> str: ...
    @property
    def subagent(self) -> str | None:
        """The id of the subagent that does the run. None: the thread's own agent."""
        ...


class ToolContext(RunContext, Protocol):
    """Context of a tool call. Passed as the first argument, invisible to the model."""

    @property
    def channel_user(self) -> str:
        """The platform's id of the person in a chat from whom the run came; empty for other runs."""
        ...

    @property
    def call_id(self) -> str:
        """Unique per run; the idempotency key of the call. A retry after a crash has the same key."""
        ...

    @property
    def files(self) -> Files:
        """The files of the thread."""
        ...

    async def stage(self, text: str) -> None:
        """Shows people what the call does now, as `downloading 3 of 7`: one line, in place of the one before. It is not
        recorded, and the model does not see it. May be called as often as it changes.
        """
        ...

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        """Sends a request to an actor. Its progress is shown to the user while it works.

        Raises `Invalid` with the actor's message if it refuses, `Unavailable` if no actor answers.
        """
        ...

    async def approved(self, step: Mapping[str, Any], text: str) -> bool:
        """Tells whether a person approves a step of the call. `text` is the question, `step` is shown below it.

        An open question pauses the run, and the call is made again with the answer: what comes before must be
        repeatable. A subagent has nobody to ask: its steps are rejected.
        """
        ...

    async def ask(self, question: Question) -> Response:
        """Asks a person, as `approved` does."""
        ...

    async def complete(self, prompt: Prompt) -> Completion:
        """Asks the run's model, without tools. Its usage is the run's, and recorded.

        Raises `Refused` if a budget of the run is used up, `Unavailable` if no model answers.
        """
        ...

    @property
    def resumed(self) -> bool:
        """True if the call is made again, because it has asked a person."""
        ...

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the run has to begin with its last answer; None where no time is measured."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """Return value of a tool instead of a text: the text for the model, the update of the thread's state (through the
    reducers of its fields), and data for programs (`artifact`). `fields` are shown to clients beside the text.

    All of it is recorded, so it is JSON: for anything else, the call fails.
    """

    text: str
    update: Mapping[str, Any] = field(default_factory=dict)
    artifact: Any = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    failed: bool = False
    exit_code: int | None = None
    """The exit code of the command that it ran."""


ToolFunction = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of `adapters/tools/`. `function(context, **arguments)` returns the result for the model.

    Raises `Invalid`, with the place of the function, if it could not be called or described to a model.
    """

    name: str
    description: str
    function: ToolFunction
    effect: Effect = "once"
    group: str | None = None
    deferred: bool = False
    """With `tool_search`: the model has to look it up before it can call it."""
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    """The arguments as JSON schema, where the function does not say them: it takes `**arguments`."""
    arguments: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Descriptions of the arguments, by their names."""

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise Invalid(f"{declared_at(self.function)}tool {self.name}: {problem}")

    def _problem(self) -> str | None:
        if not _NAME.fullmatch(self.name):
            return "the name goes to models, which take letters, digits, _ and -, at most 64"
        if not self.description:
            return "the docstring is its description and must not be empty"
        if self.effect not in get_args(Effect):
            return f"effect: one of {', '.join(get_args(Effect))} is expected, got {self.effect!r}"
        if not inspect.iscoroutinefunction(self.function):
            return "a tool is an async function; write `async def`"
        parameters = list(inspect.signature(self.function).parameters.values())
        if not parameters or not _takes_context(parameters[0]):
            return "the first parameter is the context of the call; write `ctx: ToolContext`"
        for argument in parameters[1:] if self.schema is None else ():
            if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
                return f"{argument}: models pass arguments by name"
            if argument.annotation is argument.empty:
                return f"{argument.name}: without an annotation, a model does not know what to pass"
        return None


def _takes_context(first: inspect.Parameter) -> bool:
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    annotation = getattr(first.annotation, "__name__", str(first.annotation))
    return annotation.rpartition(".")[2] == ToolContext.__name__ or first.name in ("ctx", "context")


def declared_at(declared: Any) -> str:
    """Returns the source location of a function or class as the prefix of a message; empty if it has none."""
    code = getattr(inspect.unwrap(declared) if callable(declared) else None, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}: " if code else ""


def described(docstring: str) -> tuple[str, Mapping[str, str]]:
    """Returns the description of a docstring, and the texts of the arguments below its line `Args:` (Google's style).
    What is no such section stays in the description.
    """
    before, heading, section = docstring.partition("\nArgs:\n")
    texts: dict[str, str] = {}
    for line in section.splitlines() if heading else ():
        if entry := _ARGUMENT.fullmatch(line):
            texts[entry[1]] = entry[2]
        elif texts and (not line.strip() or line.startswith("     ")):
            last = next(reversed(texts))
            texts[last] = f"{texts[last]} {line.strip()}".strip()
        else:
            return docstring, {}
    return (before.strip(), texts) if texts else (docstring, {})


def tool(
    function: ToolFunction | None = None, /, *, effect: Effect = "once", group: str | None = None
) -> Callable[[ToolFunction], Tool]:
    """Declares an async function as a tool. The model sees its name, its docstring, and below `Args:` in it the texts
    of its arguments.

    Raises `Invalid` for a function that cannot be a tool (see `Tool`), and for `@tool` without brackets.
    """

    def declare(function: ToolFunction) -> Tool:
        name = getattr(function, "__name__", repr(function))
        description, arguments = described(inspect.getdoc(function) or "")
        return Tool(name, description, function, effect, group, arguments=arguments)

    if function is not None:
        name = getattr(function, "__name__", repr(function))
        raise Invalid(f'{declared_at(function)}tool {name}: write the brackets: @tool() or @tool(effect="pure")')
    return declare
