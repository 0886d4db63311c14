"""What a call of a model got, as far as the log has it: the system prompt, the tools, the parameters, the conversation.

Policies put reminders around it at the call (of todos, memories, the time) and hold tools back that are of no use yet.
That is made of the same facts, and not recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import anyio.to_thread
import msgspec

from core.errors import Invalid
from core.events import Message, ModelCompleted, ModelFailed, Record, RunStarted
from core.replay import causes
from core.replay.causes import SEQUENCE
from core.replay.recorded import read_of
from core.replay.source import Source
from core.runs import prompts
from core.thread.fold import fold
from core.thread.state import ThreadState

if TYPE_CHECKING:
    from core.log.reader import Read


class Request(msgspec.Struct, frozen=True):
    """A request to a model. `missing` says, by part, why one of the first three is not there."""

    prompt: str | None
    tools: Sequence[Any] | None
    """Schemas of functions, as OpenAI's protocol has them, by name."""
    model: Any
    """The parameters of the models that were to answer, the first one first."""
    messages: Sequence[Message]
    notes: Sequence[Message]
    """Remarks of policies after the conversation."""
    missing: Mapping[str, str]


class Difference(msgspec.Struct, frozen=True):
    """A part of a request that is not as in the one before. `before`: as it was there, left out if it was not."""

    part: Literal["prompt", "tool", "model", "message", "note"]
    name: str
    """The name of a tool, the id of a message, the number of a note or a model, from 0."""
    change: Literal["added", "removed", "changed"]
    before: Any = msgspec.UNSET


class Sent(msgspec.Struct, frozen=True):
    """The request of the call that ended with the event `seq`, and what changed since the call `before` in its thread
    (None: there was none). Parts that are missing in either are not compared.
    """

    seq: int
    request: Request
    before: int | None = None
    changes: list[Difference] = []


StateAt = Callable[[int], Awaitable[ThreadState]]
EARLIER = 20
"""Runs that are looked at for the call before one: those that were stopped before a model answered are few."""


async def request_of(source: Source, records: Sequence[Record], place: str) -> Request:
    """Returns the request of a call of a model, by its answer or its failure (`causes.find`) in a log.

    Raises `NotFound`, and `Invalid` for another event.
    """
    record = causes.find(records, place, records[0].aggregate)
    at = records.index(record)
    if not isinstance(record.event, ModelCompleted | ModelFailed):
        calls = (n for n, other in enumerate(records, 1) if isinstance(other.event, ModelCompleted | ModelFailed))
        raise Invalid(f"event {at + 1} is {record.type}; models were called in {', '.join(map(str, calls)) or 'none'}")
    starts = [other.event for other in records[:at] if other.run == record.run and isinstance(other.event, RunStarted)]
    return await _request(read_of(source), starts[-1] if starts else None, fold(records[:at]), record)


async def sent_at(read: Read, contents: Read, state_at: StateAt, record: Record) -> Sent:
    """Returns the request of the call that ended with `record`, and what changed since the one before. Reads the log at
    few places, and those of contents by `contents`. `state_at`: the thread after the last event up to a sequence.

    Raises `Invalid` for another event, and `Unavailable`.
    """
    if not isinstance(record.event, ModelCompleted | ModelFailed):
        raise Invalid(f"event {SEQUENCE}{record.seq} is {record.type}, and no answer or failure of a model")
    state = await state_at(record.seq - 1)
    request = await _request(contents, await _start(read, state, record), state, record)
    before = await _call_before(read, state, record)
    if before is None:
        return Sent(record.seq, request)
    then = await state_at(before.seq - 1)
    earlier = await _request(contents, await _start(read, then, before), then, before)
    return Sent(record.seq, request, before.seq, await anyio.to_thread.run_sync(_changed, earlier, request))


async def _start(read: Read, state: ThreadState, record: Record) -> RunStarted | None:
    """Returns the last start of the run of a call."""
    run, start = state.runs.get(record.run or ""), None
    if run is None or run.started_seq is None:
        return None
    upto = run.started_seq if run.attempt == 1 else record.seq - 1
    async with aclosing(read(record.aggregate, after=run.started_seq - 1, upto=upto)) as records:
        async for other in records:
            if other.run == run.id and isinstance(other.event, RunStarted):
                start = other.event
    return start


async def _call_before(read: Read, state: ThreadState, record: Record) -> Record | None:
    """Returns the end of the call before one: the last turn of its run or of one of the `EARLIER` runs before."""
    begun = (run for run in state.runs.newest_first(record.seq) if run.started_seq is not None and run.turn_seq)
    for run in islice(begun, EARLIER):
        assert run.started_seq is not None
        after = run.turn_seq - 1 if run.attempt == 1 else run.started_seq - 1
        last = None
        async with aclosing(read(record.aggregate, after=after, upto=run.turn_seq)) as records:
            async for other in records:
                if other.run == run.id and isinstance(other.event, ModelCompleted | ModelFailed):
                    last = other
        if last is not None:
            return last
    return None


async def _request(read: Read, start: RunStarted | None, state: ThreadState, record: Record) -> Request:
    """Returns the request of a call in a run that began with `start`; `state` is that before the call."""
    parts: dict[str, str] = {}
    missing: dict[str, str] = {}
    for part in prompts.PARTS:
        sha256 = start.setup.get(part) if start else None
        content = await prompts.content(read, sha256, start.setup_thread) if start and sha256 else None
        if isinstance(content, str):
            parts[part] = content
        else:
            missing[part] = content.reason if content else "it was not recorded"
    run = state.runs.get(record.run or "")
    return Request(
        prompt=parts.get("prompt"),
        tools=msgspec.json.decode(parts["tools"]) if "tools" in parts else None,
        model=msgspec.json.decode(parts["model"]) if "model" in parts else None,
        messages=state.messages,
        notes=run.notes if run else (),
        missing=missing,
    )


def _changed(before: Request, now: Request) -> list[Difference]:
    """Returns what changed between two requests, in the order of the newer one; what was removed comes last."""
    missing = {_PART.get(part, part) for part in (*before.missing, *now.missing)}
    old, new = (dict(_parts(request, missing)) for request in (before, now))
    changes = [
        Difference(part, name, "changed", old[part, name]) if (part, name) in old else Difference(part, name, "added")
        for (part, name), value in new.items()
        if (part, name) not in old or old[part, name] != value
    ]
    return [*changes, *(Difference(*key, "removed", value) for key, value in old.items() if key not in new)]


_PART = {"tools": "tool"}
_Key = tuple[Literal["prompt", "tool", "model", "message", "note"], str]


def _parts(request: Request, missing: set[str]) -> Iterator[tuple[_Key, Any]]:
    if "prompt" not in missing:
        yield ("prompt", ""), request.prompt
    if "tool" not in missing:
        for tool in request.tools or ():
            yield ("tool", str(tool.get("name"))), tool
    if "model" not in missing:
        for number, model in enumerate(request.model if isinstance(request.model, list) else [request.model]):
            yield ("model", str(number)), model
    for message in request.messages:
        yield ("message", str(message.get("id"))), message
    for number, note in enumerate(request.notes):
        yield ("note", str(number)), note
