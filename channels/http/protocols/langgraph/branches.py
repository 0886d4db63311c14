"""Conversations taken up elsewhere: threads copied, branched off an answer; answers asked for again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import structlog

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Routes
from channels.http.endpoints.shapes import Thread
from channels.http.protocols.langgraph.threads import thread_object
from channels.http.runs.messages import full
from channels.http.runs.run_request import Regenerate
from channels.http.server.live import Live
from channels.http.server.routes import API
from core.errors import Invalid, Refused
from core.events import Json
from core.files.paths import thread_root
from core.ids import checkpoint_id, uuid7
from core.thread import turns
from core.thread.messages import text_of
from core.thread.state import ThreadState

log = structlog.get_logger("sika.http")
T = TypeVar("T")


class BranchBody(msgspec.Struct):
    message_id: str
    message_ids: list[str] = []
    title: Annotated[str, msgspec.Meta(max_length=256)] | None = None


class Branch(msgspec.Struct):
    """`workspace_clone_mode`: whether the files came along, which are only known as they are now."""

    thread_id: str
    parent_thread_id: str
    parent_checkpoint_id: str
    branched_from_message_id: str
    workspace_clone_mode: Literal["current_thread_best_effort", "skipped_historical_turn"]
    history_seed_mode: Literal["seeded", "skipped_empty", "failed"]


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
    """The body to start a run with (`runs/stream`), and the run that it replaces."""

    input: Json
    checkpoint: Start
    metadata: Json
    target_run_id: str | None


class PreparedEdit(Prepared):
    replacement_human_message_id: str
    source_message_ids: list[str]


ROUTES = Routes()
_T = "/threads/{thread_id}"
_PREPARE: Any = {"errors": (409,), "mounts": API}


@ROUTES("POST", f"{_T}/copy", "threads:write", errors=(404,))
async def copy(call: Call) -> Annotated[Json, Thread]:
    """Copy a thread: its metadata, all its checkpoints with their branches, its files. Runs stay where they were."""
    new_id = uuid7()
    copied = await _making(call.live, call.user, new_id, call.services.commands.copy(call.user, call.thread_id, new_id))
    await _copy_files(call, new_id)
    return thread_object(new_id, copied)


@ROUTES("POST", f"{_T}/branches", "threads:write", errors=(404, 409), mounts=API)
async def branch(call: Call, body: BranchBody) -> Branch:
    """Branch a new thread off an answer: the conversation up to the end of that answer's turn. The files come along if
    it is the latest turn.
    """
    thread_id, new_id = call.thread_id, uuid7()
    branching = call.services.commands.branch(
        call.user, thread_id, new_id, body.message_id, body.message_ids, body.title
    )
    parent, latest = await _making(call.live, call.user, new_id, branching)
    if latest:
        await _copy_files(call, new_id)
    cloned: Literal["current_thread_best_effort", "skipped_historical_turn"]
    cloned = "current_thread_best_effort" if latest else "skipped_historical_turn"
    return Branch(new_id, thread_id, parent, body.message_id, cloned, "seeded")


@ROUTES("POST", f"{_T}/runs/regenerate/prepare", "runs:create", **_PREPARE)
async def regenerate(thread: OwnedThread, body: Regenerate) -> Prepared:
    """Prepare asking again for the latest answer. Nothing changes until a run is started with what is returned. A run
    whose body has `regenerate` needs no preparation.
    """
    return regenerated(thread.id, thread.state, body.message_id)


@ROUTES("POST", f"{_T}/runs/edit-regenerate/prepare", "runs:create", **_PREPARE)
async def edit(thread: OwnedThread, body: EditBody) -> PreparedEdit:
    """Prepare asking the latest question in other words. Nothing changes until a run is started with what is returned;
    files and other effects of the first answer stay. A run whose body has `edit` needs no preparation.
    """
    return edited(thread.id, thread.state, body.human_message_id, body.replacement_text)


def regenerated(thread_id: str, state: ThreadState, message_id: str) -> Prepared:
    """Returns what a run starts with that gives the latest answer again. Raises `Refused`, `NotFound`, `Invalid`."""
    turns.at_rest(thread_id, state)
    begin, end = turns.turn_of(state.messages, turns.index_of(state.messages, message_id, "ai"))
    if end != len(state.messages):
        raise Refused(f"message_id: {message_id[:80]!r} is not of the latest turn")
    if state.messages[begin]["type"] != "human":
        raise Refused("message_id: nobody asked for this answer")
    question = turns.question(state, state.messages[begin])
    start, input = turns.before(state, question, question)
    run = state.commits[turns.commit_of(state, message_id)].run
    metadata = {"regenerate_from_message_id": message_id, "regenerate_checkpoint_id": checkpoint_id(start)}
    return Prepared(*_prepared(thread_id, start, input, run, metadata))


def edited(thread_id: str, state: ThreadState, message_id: str, replacement: str) -> PreparedEdit:
    """Returns what a run starts with that asks the latest question in other words. Raises as `regenerated` does."""
    text = replacement.strip()
    if not text:
        raise Invalid("replacement_text: is empty")
    turns.at_rest(thread_id, state)
    messages = turns.conversation(state, message_id)
    begin, latest = (
        turns.index_of(messages, message_id, "human"),
        turns.turn_of(state.messages, len(state.messages) - 1),
    )
    question = messages[begin]
    if not state.messages or question["id"] != turns.question(state, state.messages[latest[0]]).get("id"):
        raise Refused(f"human_message_id: {message_id[:80]!r} is not of the latest turn")
    replaced = {**question, "id": uuid7(), "content": _reworded(question.get("content"), text)}
    start, input = turns.before(state, question, replaced)
    since = [str(message.get("id")) for message in (*messages[begin:], *state.messages[latest[0] + 1 :])]
    source = list(dict.fromkeys(since))
    run = next((run for message_id in source[1:] if (run := turns.run_of(state, message_id))), None)
    metadata = {
        "edit_from_message_id": str(question["id"]),
        "edit_replacement_message_id": replaced["id"],
        "regenerate_checkpoint_id": checkpoint_id(start),
    }
    prepared = _prepared(thread_id, start, input, run or turns.run_of(state, str(question["id"])), metadata)
    return PreparedEdit(*prepared, replaced["id"], source)


def answered_again(thread_id: str, state: ThreadState, message_id: str) -> Prepared:
    """Returns what a run starts with that gives an answer again: of any turn, on any branch. Raises as `regenerated`
    does.
    """
    turns.at_rest(thread_id, state)
    end = turns.newest_with(state, message_id)
    messages = state.values_at(end)["messages"]
    begin, _ = turns.turn_of(messages, turns.index_of(messages, message_id, "ai"))
    if messages[begin]["type"] != "human":
        raise Refused("message_id: nobody asked for this answer")
    question = turns.question(state, messages[begin], end)
    start, input = turns.before(state, question, question, end)
    metadata = {"regenerate_from_message_id": message_id, "regenerate_checkpoint_id": checkpoint_id(start)}
    return Prepared(*_prepared(thread_id, start, input, state.commits[end].run, metadata))


def asked_otherwise(thread_id: str, state: ThreadState, message_id: str, replacement: str) -> Prepared:
    """Returns what a run starts with that asks a question in other words: of any turn, on any branch. Raises as
    `regenerated` does.
    """
    text = replacement.strip()
    if not text:
        raise Invalid("text: is empty")
    turns.at_rest(thread_id, state)
    end = turns.newest_with(state, message_id)
    messages = state.values_at(end)["messages"]
    question = messages[turns.index_of(messages, message_id, "human")]
    replaced = {**question, "id": uuid7(), "content": _reworded(question.get("content"), text)}
    start, input = turns.before(state, question, replaced, end)
    metadata = {
        "edit_from_message_id": message_id,
        "edit_replacement_message_id": replaced["id"],
        "regenerate_checkpoint_id": checkpoint_id(start),
    }
    return Prepared(*_prepared(thread_id, start, input, state.commits[end].run, metadata))


# ── what a run is prepared with ─────────────────────────────────────────────────────────────────────────────────────


def _reworded(content: Any, text: str) -> Any:
    """Other words in the same form: what is no text (images, files) stays."""
    if not isinstance(content, list):
        return text
    others = [block for block in content if isinstance(block, dict) and not text_of([block])]
    return [{"type": "text", "text": text}, *others]


def _prepared(
    thread_id: str, start: int, input: Json, run: str | None, metadata: Json
) -> tuple[Json, Start, Json, str | None]:
    if run is not None:
        metadata = {**metadata, "regenerate_from_run_id": run}
    messages = [message if message["type"] == "remove" else full(message) for message in input["messages"]]
    return {**input, "messages": messages}, Start(thread_id, checkpoint_id(start), "", None), metadata, run


# ── making the new thread ───────────────────────────────────────────────────────────────────────────────────────────


async def _making(live: Live, user: str, new_id: str, work: Awaitable[T]) -> T:
    """Waits until a new thread is made. One that could not be finished is erased again."""
    try:
        return await work
    except BaseException:
        await live.to_its_end(live.services.intake.erase(new_id, by=user))
        raise


async def _copy_files(call: Call, new_id: str) -> None:
    """Best effort: what cannot be copied is left out."""
    source = call.thread_id
    old, new = (thread_root(call.services.home, call.user, thread_id) / "user-data" for thread_id in (source, new_id))
    try:
        await asyncio.to_thread(_copy_tree, old, new)
    except OSError as error:  # `shutil.Error` too: it names what could not be copied
        log.warning("files not copied, or not all", source=source, thread=new_id, error=str(error)[:500])


def _copy_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
