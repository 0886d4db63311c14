"""Conversations taken up elsewhere: threads copied, branched off an answer; answers asked for again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.langgraph import dumps
from channels.http.langgraph.grafts import Step, graft, line, whole
from channels.http.langgraph.threads import thread_object
from channels.http.live import Live
from channels.http.routes import API, Route
from channels.http.shapes import Thread
from core.errors import Invalid, NotFound, Refused
from core.events import Json, Message, ThreadCreated, ThreadForked
from core.ids import checkpoint_id, uuid7
from core.paths import thread_root
from core.previews import text_of
from core.rows import known_by
from core.state import ThreadState
from core.usage import SUMMARY, is_summary, messages_of

log = structlog.get_logger("sika.http")

MOST_TITLE = 256
"""Characters of a branch's title."""


class BranchBody(msgspec.Struct):
    message_id: str
    message_ids: list[str] = []
    title: str | None = None


class Branch(msgspec.Struct):
    """`workspace_clone_mode`: whether the files came along, which are only known as they are now."""

    thread_id: str
    parent_thread_id: str
    parent_checkpoint_id: str
    branched_from_message_id: str
    workspace_clone_mode: Literal["current_thread_best_effort", "skipped_historical_turn"]
    history_seed_mode: Literal["seeded", "skipped_empty", "failed"]


class RegenerateBody(msgspec.Struct):
    message_id: str


class EditBody(msgspec.Struct):
    human_message_id: str
    replacement_text: str


class Start(msgspec.Struct):
    """A checkpoint to start a run from."""

    thread_id: str
    checkpoint_id: str
    checkpoint_ns: str
    checkpoint_map: Json | None


class Prepared(msgspec.Struct):
    """What to start a run with (`runs/stream`), and the run whose outcome it takes the place of."""

    input: Json
    checkpoint: Start
    metadata: Json
    target_run_id: str | None


class PreparedEdit(Prepared):
    replacement_human_message_id: str
    source_message_ids: list[str]


async def copy(request: web.Request) -> web.Response:
    """Copy a thread: its metadata, all its checkpoints with their branches, its files. Runs stay where they were."""
    thread_id, state = await alive.owned(request)
    live, made = alive.of(request), uuid7()
    copied = await _graft(live, thread_id, state, made, _metadata(state), whole(state))
    await _copy_files(live, state.user, thread_id, made)
    return plain(thread_object(made, copied))


async def branch(request: web.Request) -> web.Response:
    """Branch a new thread off an answer: the conversation up to the end of that answer's turn. The files come along if
    it is the latest turn.
    """
    wanted = await body(request, BranchBody)
    if wanted.title is not None and len(wanted.title) > MOST_TITLE:
        raise Invalid(f"title: at most {MOST_TITLE} characters")
    thread_id, state = await alive.owned(request)
    _at_rest(thread_id, state)
    messages = _conversation(state, wanted.message_id)
    begin, end = _turn(messages, _place(messages, wanted.message_id, "ai"))
    for other in wanted.message_ids:
        if not begin <= _place(messages, other) < end:
            raise Invalid(f"message_ids: {other[:80]!r} is not of the turn of {wanted.message_id[:80]!r}")
    index = _brought(state, str(messages[end - 1].get("id")))
    live, made, latest = alive.of(request), uuid7(), messages is state.messages and end == len(messages)
    steps = line(state, state.head if latest else index)
    title = wanted.title or state.values.get("title")
    if wanted.title or (title and not latest):
        steps.append(Step({"title": title}, steps[-1].node, "update", len(steps) - 1))
    parent = checkpoint_id(state.commits[state.head if latest else index].seq)
    origin = {
        "branch_parent_thread_id": thread_id,
        "branch_parent_checkpoint_id": parent,
        "branch_parent_message_id": wanted.message_id,
    }
    await _graft(live, thread_id, state, made, {**_metadata(state), **origin}, steps)
    if latest:
        await _copy_files(live, state.user, thread_id, made)
    return plain(
        {
            "thread_id": made,
            "parent_thread_id": thread_id,
            "parent_checkpoint_id": parent,
            "branched_from_message_id": wanted.message_id,
            "workspace_clone_mode": "current_thread_best_effort" if latest else "skipped_historical_turn",
            "history_seed_mode": "seeded",
        }
    )


async def regenerate(request: web.Request) -> web.Response:
    """Prepare asking again for the latest answer. Nothing changes until a run is started with what is returned."""
    wanted = await body(request, RegenerateBody)
    thread_id, state = await alive.owned(request)
    _at_rest(thread_id, state)
    begin, end = _turn(state.messages, _place(state.messages, wanted.message_id, "ai"))
    if end != len(state.messages):
        raise Refused(f"message_id: {wanted.message_id[:80]!r} is not of the latest turn")
    if state.messages[begin]["type"] != "human":
        raise Refused("message_id: nobody asked for this answer")
    asked = _asked(state, state.messages[begin])
    start, input = _before(state, asked, asked)
    run = state.commits[_brought(state, wanted.message_id)].run
    metadata = {"regenerate_from_message_id": wanted.message_id, "regenerate_checkpoint_id": checkpoint_id(start)}
    return plain(_prepared(thread_id, start, input, run, metadata))


async def edit(request: web.Request) -> web.Response:
    """Prepare asking the latest question in other words. Nothing changes until a run is started with what is returned;
    files and other effects of the first answer stay.
    """
    wanted = await body(request, EditBody)
    text = wanted.replacement_text.strip()
    if not text:
        raise Invalid("replacement_text: is empty")
    thread_id, state = await alive.owned(request)
    _at_rest(thread_id, state)
    messages = _conversation(state, wanted.human_message_id)
    begin, latest = _place(messages, wanted.human_message_id, "human"), _turn(state.messages, len(state.messages) - 1)
    asked = messages[begin]
    if not state.messages or asked["id"] != _asked(state, state.messages[latest[0]]).get("id"):
        raise Refused(f"human_message_id: {wanted.human_message_id[:80]!r} is not of the latest turn")
    replaced = {**asked, "id": uuid7(), "content": _reworded(asked.get("content"), text)}
    start, input = _before(state, asked, replaced)
    since = [str(message.get("id")) for message in (*messages[begin:], *state.messages[latest[0] + 1 :])]
    source = list(dict.fromkeys(since))
    run = next((run for one in source[1:] if (run := _run_of(state, one))), None)
    metadata = {
        "edit_from_message_id": wanted.human_message_id,
        "edit_replacement_message_id": replaced["id"],
        "regenerate_checkpoint_id": checkpoint_id(start),
    }
    found = _prepared(thread_id, start, input, run or _run_of(state, str(asked["id"])), metadata)
    return plain({**found, "replacement_human_message_id": replaced["id"], "source_message_ids": source})


# ── what a turn is ──────────────────────────────────────────────────────────────────────────────────────────────────


def _at_rest(thread_id: str, state: ThreadState) -> None:
    if state.status == "busy":
        raise Refused(f"Thread {thread_id} has an active run; wait for its end")


def _conversation(state: ThreadState, message_id: str) -> Sequence[Message]:
    """The conversation as it is; if a message went into a summary, as it was before that."""
    for index in state.chain(state.head) if message_id not in state.places else ():
        if is_summary(state.commits[index].patch):
            messages: list[Message] = state.values_at(state.commits[index].parent).get("messages", [])
            if any(message.get("id") == message_id for message in messages):
                return messages
    return state.messages


def _place(messages: Sequence[Message], message_id: str, kind: str | None = None) -> int:
    place = next((at for at, message in enumerate(messages) if message.get("id") == message_id), None)
    if place is None:
        raise NotFound(f"Message {message_id[:80]!r} not found")
    found = messages[place]["type"]
    if kind is not None and found != kind:
        raise Invalid(f"{message_id[:80]!r} is a message of type {found}, expected {kind}")
    return place


def _turn(messages: Sequence[Message], place: int) -> tuple[int, int]:
    """Where the turn of a message begins (with what was asked, if anything was) and ends."""
    begin = next((at for at in range(place, -1, -1) if messages[at]["type"] == "human"), 0)
    end = next((at for at in range(place + 1, len(messages)) if messages[at]["type"] == "human"), len(messages))
    return begin, end


def _asked(state: ThreadState, first: Message) -> Message:
    """What a turn that begins with this message answers: if that is a summary, what was asked last before it."""
    if first.get("name") != SUMMARY:
        return first
    brought = (messages_of(state.commits[index].patch)[::-1] for index in state.chain(state.head))
    return next((message for found in brought for message in found if message["type"] == "human"), first)


def _brought(state: ThreadState, message_id: str, end: int | None = None) -> int:
    """Index of the last commit, on the way to `end` (the head), that brought a message: not of a summary that left
    it.
    """
    for index in state.chain(state.head if end is None else end):
        if any(m.get("id") == message_id for m in messages_of(state.commits[index].patch)):
            return index
    raise NotFound(f"Message {message_id[:80]!r} not found")


def _first(state: ThreadState, message_id: str) -> int:
    """Index of the commit that brought a message where there was none: those after it brought it again."""
    index = _brought(state, message_id)
    while (before := state.commits[index].parent) >= 0:
        if not any(m.get("id") == message_id for m in state.values_at(before).get("messages", ())):
            break
        index = _brought(state, message_id, before)
    return index


def _run_of(state: ThreadState, message_id: str) -> str | None:
    return state.commits[_brought(state, message_id)].run


def _messages(patch: Mapping[str, Any]) -> list[Message]:
    found = patch.get("messages")
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def _before(state: ThreadState, asked: Message, instead: Message) -> tuple[int, Json]:
    """The checkpoint before a question, and the input that asks another one there; what came with the question comes
    again. The first question of a thread has no checkpoint before it: there it is replaced.
    """
    commit = state.commits[_first(state, str(asked["id"]))]
    given = [instead if message.get("id") == asked["id"] else message for message in _messages(commit.patch)]
    if commit.parent >= 0:
        return state.commits[commit.parent].seq, {**commit.patch, "messages": [_shown(message) for message in given]}
    removed = [] if instead["id"] == asked["id"] else [{"type": "remove", "id": asked["id"]}]
    return commit.seq, {"messages": [*removed, _shown(instead)]}


def _shown(message: Message) -> Message:
    return message if message["type"] == "remove" else dumps.full(message)


def _reworded(content: Any, text: str) -> Any:
    """Other words in the same form: what is no text (images, files) stays."""
    if not isinstance(content, list):
        return text
    others = [block for block in content if isinstance(block, dict) and not text_of([block])]
    return [{"type": "text", "text": text}, *others]


def _prepared(thread_id: str, start: int, input: Json, run: str | None, metadata: Json) -> Json:
    checkpoint = {
        "thread_id": thread_id,
        "checkpoint_id": checkpoint_id(start),
        "checkpoint_ns": "",
        "checkpoint_map": None,
    }
    if run is not None:
        metadata = {**metadata, "regenerate_from_run_id": run}
    return {"input": input, "checkpoint": checkpoint, "metadata": metadata, "target_run_id": run}


# ── making the new thread ───────────────────────────────────────────────────────────────────────────────────────────


def _metadata(state: ThreadState) -> Json:
    first = next(iter(state.runs.values()), None)
    return {**(known_by(first.request.assistant) if first else {}), **state.metadata}


async def _graft(
    live: Live, source: str, state: ThreadState, made: str, metadata: Json, steps: Sequence[Step]
) -> ThreadState:
    """The new thread. One that could not be finished is erased again."""
    first = [
        ThreadCreated(user=state.user, metadata=metadata),
        ThreadForked(source=source, source_seq=state.seq, patches=[]),
    ]
    try:
        return await graft(live.services.threads, made, ThreadState(), first, steps)
    except BaseException:
        await live.to_its_end(live.services.intake.erase(made, by=state.user))
        raise


async def _copy_files(live: Live, user: str, source: str, made: str) -> None:
    """Best effort: what cannot be copied is left out."""
    old, new = (thread_root(live.services.home, user, one) / "user-data" for one in (source, made))
    try:
        await asyncio.to_thread(_copy_tree, old, new)
    except OSError as error:  # `shutil.Error` too: it names what could not be copied
        log.warning("files not copied, or not all", source=source, thread=made, error=str(error)[:500])


def _copy_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


_T = "/threads/{thread_id}"
_PREPARE: Any = {"errors": (404, 409), "scope": "runs:create", "mounts": API, "tag": "branches"}
ROUTES = (
    Route("POST", f"{_T}/copy", copy, {200: Thread}, errors=(404,), scope="threads:write"),
    Route(
        "POST",
        f"{_T}/branches",
        branch,
        {200: Branch},
        BranchBody,
        errors=(404, 409),
        scope="threads:write",
        mounts=API,
    ),
    Route("POST", f"{_T}/runs/regenerate/prepare", regenerate, {200: Prepared}, RegenerateBody, **_PREPARE),
    Route("POST", f"{_T}/runs/edit-regenerate/prepare", edit, {200: PreparedEdit}, EditBody, **_PREPARE),
)
