"""Conversations taken up elsewhere: threads copied, branched off an answer; answers asked for again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import structlog
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.langgraph.threads import thread_object
from channels.http.live import Live
from channels.http.routes import API, Route
from channels.http.shapes import Thread
from core.errors import Invalid, Refused
from core.events import Json
from core.ids import checkpoint_id, uuid7
from core.paths import thread_root
from core.thread import turns
from core.thread.previews import text_of

log = structlog.get_logger("sika.http")
T = TypeVar("T")

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
    live, user, thread_id, made = alive.of(request), alive.user(request), alive.thread_id(request), uuid7()
    copied = await _making(live, user, made, live.services.commands.copy(user, thread_id, made))
    await _copy_files(live, user, thread_id, made)
    return plain(thread_object(made, copied))


async def branch(request: web.Request) -> web.Response:
    """Branch a new thread off an answer: the conversation up to the end of that answer's turn. The files come along if
    it is the latest turn.
    """
    wanted = await body(request, BranchBody)
    if wanted.title is not None and len(wanted.title) > MOST_TITLE:
        raise Invalid(f"title: at most {MOST_TITLE} characters")
    live, user, thread_id, made = alive.of(request), alive.user(request), alive.thread_id(request), uuid7()
    branching = live.services.commands.branch(
        user, thread_id, made, wanted.message_id, wanted.message_ids, wanted.title
    )
    parent, latest = await _making(live, user, made, branching)
    if latest:
        await _copy_files(live, user, thread_id, made)
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
    turns.at_rest(thread_id, state)
    begin, end = turns.turn_of(state.messages, turns.index_of(state.messages, wanted.message_id, "ai"))
    if end != len(state.messages):
        raise Refused(f"message_id: {wanted.message_id[:80]!r} is not of the latest turn")
    if state.messages[begin]["type"] != "human":
        raise Refused("message_id: nobody asked for this answer")
    asked = turns.question(state, state.messages[begin])
    start, input = turns.before(state, asked, asked)
    run = state.commits[turns.commit_of(state, wanted.message_id)].run
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
    turns.at_rest(thread_id, state)
    messages = turns.conversation(state, wanted.human_message_id)
    begin, latest = (
        turns.index_of(messages, wanted.human_message_id, "human"),
        turns.turn_of(state.messages, len(state.messages) - 1),
    )
    asked = messages[begin]
    if not state.messages or asked["id"] != turns.question(state, state.messages[latest[0]]).get("id"):
        raise Refused(f"human_message_id: {wanted.human_message_id[:80]!r} is not of the latest turn")
    replaced = {**asked, "id": uuid7(), "content": _reworded(asked.get("content"), text)}
    start, input = turns.before(state, asked, replaced)
    since = [str(message.get("id")) for message in (*messages[begin:], *state.messages[latest[0] + 1 :])]
    source = list(dict.fromkeys(since))
    run = next((run for one in source[1:] if (run := turns.run_of(state, one))), None)
    metadata = {
        "edit_from_message_id": wanted.human_message_id,
        "edit_replacement_message_id": replaced["id"],
        "regenerate_checkpoint_id": checkpoint_id(start),
    }
    found = _prepared(thread_id, start, input, run or turns.run_of(state, str(asked["id"])), metadata)
    return plain({**found, "replacement_human_message_id": replaced["id"], "source_message_ids": source})


# ── what a run is prepared with ─────────────────────────────────────────────────────────────────────────────────────


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


async def _making(live: Live, user: str, made: str, work: Awaitable[T]) -> T:
    """Waits until a new thread is made. One that could not be finished is erased again."""
    try:
        return await work
    except BaseException:
        await live.to_its_end(live.services.intake.erase(made, by=user))
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
