"""The shapes of what is sent, for the OpenAPI document. Handlers build dicts; tests hold them against these."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Json = dict[str, Any]
RunStatus = Literal["pending", "running", "success", "error", "timeout", "interrupted"]
ThreadStatus = Literal["idle", "busy", "interrupted", "error"]


def part_of(kind: type[msgspec.Struct], name: str, text: str, **more: Any) -> type[msgspec.Struct]:
    """A struct of which any field may be left out: what `select` leaves of it. `more`: further fields."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)} | more
    optional = [(field, of | msgspec.UnsetType, msgspec.UNSET) for field, of in fields.items()]
    return msgspec.defstruct(name, optional, namespace={"__doc__": text})


class Error(msgspec.Struct):
    """Every error: `detail` is for people, `code` for programs."""

    detail: str
    code: str


class Refusal(msgspec.Struct):
    code: str
    message: str


class Unauthorized(msgspec.Struct):
    """Nobody is signed in, as DeerFlow's web UI expects to hear it."""

    detail: Refusal


class Frame(msgspec.Struct):
    """One server-sent event of a stream. Comments (`: heartbeat`) come between them.

    `data` is JSON; `id` is what `Last-Event-ID` takes to go on after it.
    """

    event: str
    data: str
    id: str | msgspec.UnsetType = msgspec.UNSET


class Interrupt(msgspec.Struct):
    id: str
    value: Any


class Problem(msgspec.Struct):
    """An event that is passed over, by its sequence in the log, and why: it cannot be read, or may not follow."""

    seq: int
    text: str


class Thread(msgspec.Struct):
    thread_id: str
    created_at: str
    updated_at: str
    state_updated_at: str
    metadata: Json
    status: ThreadStatus
    config: Json
    values: Json
    interrupts: dict[str, list[Interrupt]]
    error: Json | None
    problems: list[Problem] | msgspec.UnsetType = msgspec.UNSET
    """Events of the thread's log that cannot be read, if any: they are skipped."""


class Checkpoint(msgspec.Struct):
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str


class Task(msgspec.Struct):
    id: str
    name: str
    path: list[str | int]
    error: str | None
    interrupts: list[Interrupt]
    checkpoint: Json | None
    state: Json | None
    result: Any


class State(msgspec.Struct):
    values: Json
    next: list[str]
    tasks: list[Task]
    metadata: Json
    created_at: str | None
    checkpoint: Checkpoint | None
    parent_checkpoint: Checkpoint | None
    checkpoint_id: str | None
    parent_checkpoint_id: str | None
    interrupts: list[Interrupt]


class Updated(State):
    """A state that was just written; `configurable` names it as older clients expect."""

    configurable: Checkpoint | None


class Place(msgspec.Struct):
    ahead: int
    """Runs that start before it. Of other users' runs nothing else is shown."""
    since: str


class Run(msgspec.Struct):
    run_id: str
    thread_id: str
    assistant_id: str
    status: RunStatus
    metadata: Json
    created_at: str
    updated_at: str
    multitask_strategy: Literal["reject", "enqueue", "interrupt", "rollback"]
    kwargs: Json
    error: Json | msgspec.UnsetType = msgspec.UNSET
    """The error of a failed run: `error` (a class name) and `message`."""
    queue: Place | msgspec.UnsetType = msgspec.UNSET
    """Its place in the queue, while it waits there because the server is at its bound."""


class AssistantVersion(msgspec.Struct):
    assistant_id: str
    graph_id: str
    name: str
    description: str | None
    config: Json
    context: Json
    metadata: Json
    version: int
    created_at: str


class Assistant(AssistantVersion):
    updated_at: str
