"""Conversations that are read by an address, by anybody: shared, listed, revoked; and read.

What is shared is the conversation and the presented files as they were at that moment. Whoever shares has read up to
there; what comes later, and the answers to it, was never agreed to be read by others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from aiohttp import web
from anyio import to_thread

from channels.http.accounts import view_links
from channels.http.accounts.access import GATE
from channels.http.deerflow import journal
from channels.http.deerflow.artifacts import (
    ANYTHING,
    Content,
    content_in,
    media_type,
    send_saved,
    send_view,
)
from channels.http.deerflow.journal import Cursor, Row
from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Created, Header, Reply, Routes
from channels.http.server.guard import SEEN
from channels.http.server.routes import API
from core.errors import NotFound, Refused
from core.events import Message, ThreadShared
from core.events import thread as events_of
from core.files.folder import Folder
from core.identity import sessions
from core.identity.errors import Unauthenticated
from core.identity.installation import Installation
from core.ids import stamp, uuid7
from core.thread import shares
from core.thread.messages import UPLOADS_BLOCK, text_of
from core.thread.state import Share, ThreadState
from core.thread.usage import SUMMARY
from core.thread.values import CLARIFICATION

PATH = f"{API[0]}/shared"
PAGE = "/shared"
"""The page that shows a share. The token stands in the fragment, which browsers send to nobody."""
DAY = 86_400
FOREVER = 253_402_300_799
"""Unix seconds at the end of the last year that dates have."""
_PURPOSE = "shares"
PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Robots-Tag": "noindex, nofollow"}


class ShareBody(msgspec.Struct):
    """`tool_arguments`: show what tools were called with, too. `expires_in_days`: by default it does not end."""

    tool_arguments: bool = False
    expires_in_days: Annotated[int, msgspec.Meta(ge=1, le=3660)] | None = None


class SharedFile(msgspec.Struct):
    """A file that was presented, by its path as the agent saw it."""

    path: str
    name: str
    size: int
    media_type: str | None


class ShareAnswer(msgspec.Struct):
    share_id: str
    created_at: str
    title: str
    files: list[SharedFile]
    tool_arguments: bool
    expires_at: str | None
    shared_by: str


class NewShare(ShareAnswer):
    """`url`: of the page that shows it. It and the `token` are shown this once."""

    token: str
    url: str


class Shares(msgspec.Struct):
    shares: list[ShareAnswer]


class SharedCall(msgspec.Struct):
    """A tool call. `arguments`: null unless they are shared, too."""

    id: str
    name: str
    arguments: dict[str, Any] | None


class SharedMessage(msgspec.Struct):
    """A message. `text` is Markdown; that of a tool is empty, unless it asks the person something."""

    id: str
    seq: int
    at: str
    type: Literal["human", "ai", "tool"]
    text: str
    tool_calls: list[SharedCall]
    tool_call_id: str | None
    name: str | None
    status: Literal["success", "error"] | None


class Shared(msgspec.Struct):
    """A page of a shared conversation. `next_after_seq`: the `after_seq` of the next page, null on the last."""

    title: str
    shared_at: str
    expires_at: str | None
    tool_arguments: bool
    messages: list[SharedMessage]
    next_after_seq: int | None
    files: list[SharedFile]


ROUTES = Routes(mounts=API, tag="shares")
_PATH = "/threads/{thread_id}/share"


@ROUTES("POST", _PATH, "threads:write", errors=(409,), secret=True)
async def post(call: Call, thread: OwnedThread, body: ShareBody) -> Created[NewShare]:
    """Make an address by which anybody may read the conversation and the files that were presented, as they are now.

    Nothing else is shown: no reasoning, no output of tools, no other files, nothing that comes later. The address is
    known to whoever gets this answer, and to nobody else: the log has a hash. It leads nowhere once it is revoked, or
    has ended, the thread or its past is deleted, or the account is disabled.
    """
    state = thread.state
    if not state.messages:
        raise Refused(f"Thread {thread.id} has no messages yet: there is nothing to share")
    expires = int(time.time()) + body.expires_in_days * DAY if body.expires_in_days else FOREVER
    token = await to_thread.run_sync(make_token, call.services.home, thread.id, expires)
    share = await call.live.to_its_end(_share(call, thread, body, token, expires))
    shown = msgspec.structs.asdict(_answer(share))
    return NewShare(**shown, token=token, url=f"{PAGE}#{token}")


@ROUTES("GET", _PATH, "threads:read")
async def get_list(thread: OwnedThread) -> Shares:
    """The addresses by which a thread may be read, newest first, without their tokens."""
    return Shares([_answer(share) for share in reversed([*thread.state.shares.values()])])


@ROUTES("DELETE", f"{_PATH}/{{share_id}}", "threads:write", errors=(404,))
async def delete(call: Call, share_id: str) -> None:
    """Revoke an address: it leads nowhere any more, and the copies of the files are removed."""
    await call.services.commands.unshare(call.user, call.thread_id, share_id)
    folder = Folder(call.services.home, call.user, call.thread_id)
    await to_thread.run_sync(shares.drop, folder, share_id)


async def _share(call: Call, thread: OwnedThread, body: ShareBody, token: str, expires: int) -> Share:
    """Copies the files, then records the share. If the process dies in between, the copies go with the thread."""
    state, identity = thread.state, uuid7()
    folder = Folder(call.services.home, call.user, thread.id)
    presented = [str(path) for path in state.values.get("artifacts") or ()]
    files = await to_thread.run_sync(shares.keep, folder, identity, presented)
    fact = ThreadShared(
        share=identity,
        by=call.user,
        upto=state.commits[state.head].seq,
        digest=shares.digest(token),
        title=str(state.values.get("title") or ""),
        files=files,
        arguments=body.tool_arguments,
        expires_at=stamp(datetime.fromtimestamp(expires, UTC)) if body.expires_in_days else None,
    )
    try:
        return await call.services.commands.share(call.user, thread.id, fact)
    except BaseException:
        await to_thread.run_sync(shares.drop, folder, identity)
        raise


def _answer(share: Share) -> ShareAnswer:
    fact = share.fact
    return ShareAnswer(fact.share, share.at, fact.title, _files(fact), fact.arguments, fact.expires_at, fact.by)


def _files(fact: ThreadShared) -> list[SharedFile]:
    return [_file(file.path, file.size) for file in fact.files]


def _file(path: str, size: int) -> SharedFile:
    name = path.rpartition("/")[2]
    return SharedFile(path, name, size, media_type(name))


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Link(msgspec.Struct, frozen=True):
    """What a token says: where to look, something that nobody can guess, and when it ends (Unix seconds)."""

    thread: str
    nonce: str
    exp: int


def make_token(home: Path, thread_id: str, expires: int = FOREVER) -> str:
    """Returns a new token for a thread. Blocks: the first one makes the secret that signs it."""
    link = Link(thread_id, secrets.token_urlsafe(32), expires)
    return sessions.sign(link, Installation(home).derived(_PURPOSE))


def thread_of(home: Path, token: str) -> str:
    """Returns the thread that a token names. Raises `NotFound` for one that was not made here, or has ended."""
    try:
        return sessions.read(token, Installation(home).derived(_PURPOSE), Link).thread
    except Unauthenticated:
        raise NotFound(view_links.GONE) from None


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Address:
    """The share that the token of the path leads to. `NotFound` whatever is wrong with it, or with what it led to."""

    thread: str
    state: ThreadState
    share: Share
    errors: ClassVar = (404,)

    @classmethod
    async def of_call(cls, call: Call) -> Self:
        call.request.app[GATE].limits.admit_stranger(call.request[SEEN].ip)
        token = call.request.match_info["token"]
        thread_id = await to_thread.run_sync(thread_of, call.services.home, token)
        state = await call.services.threads.load(thread_id)
        share = shares.share_of(state, token)
        if share is None or await _locked(call, state.user):
            raise NotFound(view_links.GONE)
        return cls(thread_id, state, share)

    def file(self, home: Path, path: str) -> Content:
        """Opens the copy of a file, by its path without the first slash. Blocks. Raises `NotFound`."""
        file = shares.kept_file(Folder(home, self.state.user, self.thread), self.share, f"/{path}")
        return content_in(file, path.rpartition("/")[2])


async def _locked(call: Call, user: str) -> bool:
    """Tells whether an account may not show anything: it is disabled, or not there (any more)."""
    account = await view_links.account_of(call, user)
    return call.request.app[GATE].accounts if account is None else account.disabled


_READ = "/shared/{token}"
_PUBLIC: Any = {"public": True, "tag": "shares"}


@ROUTES("GET", _READ, **_PUBLIC)
async def read(
    call: Call,
    address: Address,
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=200), "How many rows at most"] = 50,
    after_seq: Annotated[int, msgspec.Meta(ge=0, le=journal.LAST), "Only rows after this `seq`"] = 0,
) -> Reply[Shared]:
    """Read a shared conversation, oldest messages first. Needs no account."""
    state, fact = address.state, address.share.fact
    steps = journal.of_branch(state, state.commit_at(fact.upto))
    cursor = Cursor(limit, None, after_seq)
    rows, more = await journal.page(call.live.reading.read, events_of(address.thread), state, steps, cursor)
    gone = journal.removed(state, steps) if rows else {}
    shown = [message for row in journal.left(rows, gone) if (message := _message(row, fact.arguments)) is not None]
    following = rows[-1].seq if more else None
    shared = Shared(fact.title, address.share.at, fact.expires_at, fact.arguments, shown, following, _files(fact))
    return Reply(shared, headers=PRIVATE)


@ROUTES("GET", f"{_READ}/files/{{path:.+}}", answers={302: None, 416: None}, **_PUBLIC)
async def file(
    call: Call,
    address: Address,
    path: str,
    *,
    view: Annotated[Literal["sandbox"] | None, "`sandbox`: redirects to where it can be shown in a frame"] = None,
) -> Annotated[web.StreamResponse, ANYTHING]:
    """Read a file of a shared conversation, to be saved. With `view=sandbox` it can be shown in a frame of this
    server's pages, where it has no rights.
    """
    content = await to_thread.run_sync(address.file, call.services.home, path)
    if view is None:
        return await send_saved(call.request, content, PRIVATE)
    content.close()
    raw = call.request.rel_url.raw_path
    return web.Response(status=302, headers={**PRIVATE, "Location": raw.replace("/files/", "/view/", 1)})


@ROUTES("GET", f"{_READ}/view/{{path:.+}}", answers={206: ANYTHING}, errors=(416,), **_PUBLIC)
async def show(
    call: Call,
    address: Address,
    token: str,
    path: str,
    *,
    range: Annotated[str, Header("Range"), "One range of bytes"] = "",
) -> Annotated[web.StreamResponse, ANYTHING]:
    """Show a file of a shared conversation on an origin of its own. It finds the other files that are shared, too.
    Scripts run in a frame of this server's pages only.
    """
    content = await to_thread.run_sync(address.file, call.services.home, path)
    policy = view_links.policy(call.request, f"{token}/view", PATH)
    return await send_view(call.request, content, policy, range, PRIVATE)


# ── what is shown of a message ──────────────────────────────────────────────────────────────────────────────────────


def _message(row: Row, arguments: bool) -> SharedMessage | None:
    """Returns what others may see of a message; None for one that people are not shown."""
    message: Message = row.content
    extra, kind = message.get("additional_kwargs") or {}, message.get("type")
    if extra.get("hide_from_ui") or message.get("name") == SUMMARY or kind not in ("human", "ai", "tool"):
        return None
    calls = [_call(call, arguments) for call in message.get("tool_calls") or ()] if kind == "ai" else []
    tool = kind == "tool"
    return SharedMessage(
        id=str(message.get("id") or ""),
        seq=row.seq,
        at=row.created_at,
        type=kind,
        text=_text(message, extra),
        tool_calls=calls,
        tool_call_id=str(message.get("tool_call_id") or "") if tool else None,
        name=str(message.get("name") or "") if tool else None,
        status=("error" if message.get("status") == "error" else "success") if tool else None,
    )


def _text(message: Message, extra: Mapping[str, Any]) -> str:
    """Returns the text of a message: without reasoning, what the server wrote before it, and what a tool put out."""
    if message.get("type") == "tool" and not str(message.get("id")).startswith(CLARIFICATION):
        return ""
    content, written = message.get("content"), extra.get(UPLOADS_BLOCK)
    blocks: Sequence[Any] = content if isinstance(content, list) else [content]
    text = text_of([block for block in blocks if not isinstance(block, dict) or block.get("type") == "text"])
    return text[written:].lstrip() if isinstance(written, int) and message.get("type") == "human" else text


def _call(call: Mapping[str, Any], arguments: bool) -> SharedCall:
    args = call.get("args")
    shown = args if arguments and isinstance(args, dict) else None
    return SharedCall(str(call.get("id") or ""), str(call.get("name") or ""), shown)
