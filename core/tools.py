"""What a tool is: one typed async function, its description, and what a retry of it may do."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from core.errors import Invalid

Effect = Literal["pure", "idempotent", "once"]
"""What may be done with a call whose outcome is unknown after a crash.

`pure`        reads only: run it again.
`idempotent`  safe to repeat under the same call id (the sandbox keeps a record per call id).
`once`        must never be repeated: the model is told that the outcome is unknown.
"""


class ToolContext(Protocol):
    """What a running tool may know and do. Passed as the first argument, invisible to the model."""

    @property
    def thread(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def run(self) -> str: ...
    @property
    def call_id(self) -> str:
        """Unique per run; the idempotency key of the call. A retry after a crash has the same one."""
        ...

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        """Ask an actor a question. Its progress is shown to the user while it works.

        Raises `Invalid` with the actor's own words if it refuses, `Unavailable` if no actor answers.
        """
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool may return instead of a text: what the model is told, what changes in the thread's state (through
    the reducers of its fields), and what programs are told (`artifact`).
    """

    text: str
    update: Mapping[str, Any] = field(default_factory=dict)
    artifact: Any = None


ToolFunction = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as found in `adapters/tools/`. `function(context, **arguments)` returns the result for the model."""

    name: str
    description: str
    function: ToolFunction
    effect: Effect = "once"
    group: str | None = None
    deferred: bool = False
    """With `tool_search`: the model has to look it up before it can call it."""


def tool(*, effect: Effect = "once", group: str | None = None) -> Callable[[ToolFunction], Tool]:
    """Declare an async function as a tool. Its name and docstring are what the model sees.

    Raises `Invalid` if the function has no docstring: a model cannot use what is not described.
    """

    def declare(function: ToolFunction) -> Tool:
        description = inspect.getdoc(function)
        name = getattr(function, "__name__", repr(function))
        if not description:
            raise Invalid(f"tool {name}: the docstring is its description and must not be empty")
        return Tool(name, description, function, effect, group)

    return declare
