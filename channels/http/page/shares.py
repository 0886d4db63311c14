"""Conversations that are read by an address, by anybody or by people with an account: shared, listed, revoked; read.

What is shared is the conversation and the presented files as they were at a moment, and for people with an account the
log up to there, if that was chosen (`channels.http.debug.debugging`). Whoever shares has read up to there; what comes
later, and the answers to it, was never agreed to be read by others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from aiohttp import web
from anyio import to_thread

from channels.http.accounts import view_links
from channels.http.accounts.access import Gate
from channels.http.accounts.share_links import FOREVER, AccountAddress, Address, Audience, make_token
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
from channels.http.endpoints.call import Call, OwnedLog, OwnedThread
from channels.http.endpoints.endpoint import Created, Header, Reply, Routes
from channels.http.server.routes import API
from core.errors import Invalid, Refused
from core.events import Message, ThreadShared, thread
from core.files.folder import Folder
from core.ids import stamp, uuid7
from core.replay.moments.places import record_at
from core.thread import shares
from core.thread.messages import UPLOADS_BLOCK, text_of
from core.thread.state import Share, ThreadState
from core.thread.usage import SUMMARY
from core.thread.values import CLARIFICATION

PATH = f"{API[0]}/shared"
PAGE = "/shared"
"""The page that shows a share. The token stands in the fragment, which browsers send to nobody."""
DAY = 86_400
PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Robots-Tag": "noindex, nofollow"}


class ShareBody(msgspec.Struct):
    """`tool_arguments`: show what tools were called with, too. `expires_in_days`: by default it does not end.
    `audience`: who may read it with the address; `accounts` are people with an account here. `events`: show these the
    log, too. `at`: an event, as of which the thread is shown; by default as it stands.
    """

    tool_arguments: bool = False
    expires_in_days: Annotated[int, msgspec.Meta(ge=1, le=3660)] | None = None
    audience: Audience = "everybody"
    events: bool = False
    at: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None


class SharedFile(msgspec.Struct):
    """A file that was presented, by its path as the agent saw it."""

    path: str
    name: str
    size: int
    media_type: str | None


class ShareAnswer(msgspec.Struct):
    """`events`: the last event that is shown, with all before it; null: none."""

    share_id: str
    created_at: str
    title: str
    files: list[SharedFile]
    tool_arguments: bool
    expires_at: str | None
    shared_by: str
    audience: Audience
    events: int | None


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


class SharedWithAccounts(Shared):
    """`shared_by`: the address of who shared it. `events`: the last event that is shown, with all before it, by
    `GET /shares/{token}/log/events` and the routes beside it; null: none.
    """

    thread_id: str
    shared_by: str
    events: int | None


ROUTES = Routes(mounts=API, tag="shares")
_PATH = "/threads/{thread_id}/share"


@ROUTES("POST", _PATH, "threads:write", errors=(409,), secret=True)
async def post(call: Call, log: OwnedLog, body: ShareBody) -> Created[NewShare]:
    """Make an address by which others may read the conversation and the files that were presented, as they are now:
    anybody, or people with an account here.

    Nothing else is shown: no reasoning, no output of tools, no other files, nothing that comes later. With `events` the
    log up to there is, as its owner sees it: reasoning, output of tools, prompts with what is remembered of the owner.
    The address is known to whoever gets this answer, and to nobody else: the log has a hash. It leads nowhere once it
    is revoked, or has ended, the thread or its past is deleted, or the account is disabled.
    """
    if body.audience == "accounts":
        await Gate.of_call(call)
    elif body.events:
        raise Invalid("events: the log is shown to people with an account only (audience: accounts)")
    state = await log.state()
    if body.at is not None:
        state = await log.at((await record_at(log.read, thread(log.id), body.at)).seq)
    if not state.messages:
        raise Refused(f"Thread {log.id} has no messages {'there' if body.at else 'yet'}: there is nothing to share")
    expires = int(time.time()) + body.expires_in_days * DAY if body.expires_in_days else FOREVER
    token = await to_thread.run_sync(make_token, call.services.home, log.id, expires)
    share = await call.live.to_its_end(_share(call, log.id, state, body, token, expires))
    shown = msgspec.structs.asdict(_answer(share))
    return NewShare(**shown, token=token, url=_url(share.fact, token))


@ROUTES("GET", _PATH, "threads:read")
async def get_list(owned: OwnedThread) -> Shares:
    """The addresses by which a thread may be read, newest first, without their tokens."""
    return Shares([_answer(share) for share in reversed([*owned.state.shares.values()])])


@ROUTES("DELETE", f"{_PATH}/{{share_id}}", "threads:write", errors=(404,))
async def delete(call: Call, share_id: str) -> None:
    """Revoke an address: it leads nowhere any more, and the copies of the files are removed."""
    await call.services.commands.unshare(call.user, call.thread_id, share_id)
    folder = Folder(call.services.home, call.user, call.thread_id)
    await to_thread.run_sync(shares.drop, folder, share_id)


def _url(fact: ThreadShared, token: str) -> str:
    if fact.audience == "everybody":
        return f"{PAGE}#{token}"
    return f"/#/shared/{token}" + (f"/{fact.events}" if fact.events else "")


async def _share(call: Call, thread_id: str, state: ThreadState, body: ShareBody, token: str, expires: int) -> Share:
    """Copies the files, then records the share. If the process dies in between, the copies go with the thread."""
    identity = uuid7()
    folder = Folder(call.services.home, call.user, thread_id)
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
        audience=body.audience,
        events=state.seq if body.events else 0,
    )
    try:
        return await call.services.commands.share(call.user, thread_id, fact)
    except BaseException:
        await to_thread.run_sync(shares.drop, folder, identity)
        raise


def _answer(share: Share) -> ShareAnswer:
    fact = share.fact
    return ShareAnswer(
        share_id=fact.share,
        created_at=share.at,
        title=fact.title,
        files=_files(fact),
        tool_arguments=fact.arguments,
        expires_at=fact.expires_at,
        shared_by=fact.by,
        audience=fact.audience,
        events=fact.events or None,
    )


def _files(fact: ThreadShared) -> list[SharedFile]:
    return [_file(file.path, file.size) for file in fact.files]


def _file(path: str, size: int) -> SharedFile:
    name = path.rpartition("/")[2]
    return SharedFile(path, name, size, media_type(name))


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_READ, _WITH_ACCOUNT = "/shared/{token}", "/shares/{token}"
_PUBLIC: Any = {"public": True, "tag": "shares"}

PageLimit = Annotated[int, msgspec.Meta(ge=1, le=200), "How many rows at most"]
AfterSeq = Annotated[int, msgspec.Meta(ge=0, le=journal.LAST), "Only rows after this `seq`"]
InFrame = Annotated[Literal["sandbox"] | None, "`sandbox`: redirects to where it can be shown in a frame"]


@ROUTES("GET", _READ, **_PUBLIC)
async def read(address: Address, *, limit: PageLimit = 50, after_seq: AfterSeq = 0) -> Reply[Shared]:
    """Read a shared conversation, oldest messages first. Needs no account."""
    return Reply(await _shared(address, limit, after_seq), headers=PRIVATE)


@ROUTES("GET", _WITH_ACCOUNT, "threads:read")
async def read_with_account(
    address: AccountAddress, *, limit: PageLimit = 50, after_seq: AfterSeq = 0
) -> Reply[SharedWithAccounts]:
    """Read a conversation that is shared with people who have an account here, oldest messages first."""
    page = msgspec.structs.asdict(await _shared(address, limit, after_seq))
    account = await view_links.account_of(address.call, address.user)
    who = account.email if account is not None else ""
    return Reply(
        SharedWithAccounts(**page, thread_id=address.thread, shared_by=who, events=address.fact.events or None),
        headers=PRIVATE,
    )


async def _shared(address: Address, limit: int, after_seq: int) -> Shared:
    """Returns a page of what an address opens."""
    state, fact, call = await address.state(), address.fact, address.call
    steps = journal.of_branch(state, state.commit_at(fact.upto))
    cursor = Cursor(limit, None, after_seq)
    rows, more = await journal.page(call.live.reading.read, thread(address.thread), state, steps, cursor)
    gone = journal.removed(state, steps) if rows else {}
    shown = [message for row in journal.left(rows, gone) if (message := _message(row, fact.arguments)) is not None]
    following = rows[-1].seq if more else None
    return Shared(fact.title, address.share.at, fact.expires_at, fact.arguments, shown, following, _files(fact))


@ROUTES("GET", f"{_READ}/files/{{path:.+}}", answers={302: None, 416: None}, **_PUBLIC)
async def file(
    call: Call, address: Address, path: str, *, view: InFrame = None
) -> Annotated[web.StreamResponse, ANYTHING]:
    """Read a file of a shared conversation, to be saved. With `view=sandbox` it can be shown in a frame of this
    server's pages, where it has no rights.
    """
    content = await _content(address, path)
    if view is None:
        return await send_saved(call.request, content, PRIVATE)
    content.close()
    return _elsewhere(call.request.rel_url.raw_path.replace("/files/", "/view/", 1))


@ROUTES("GET", f"{_WITH_ACCOUNT}/files/{{path:.+}}", "files:read", answers={302: None, 416: None})
async def file_with_account(
    call: Call, address: AccountAddress, path: str, *, view: InFrame = None
) -> Annotated[web.StreamResponse, ANYTHING]:
    """Read a file of a conversation that is shared with people who have an account here, to be saved. With
    `view=sandbox` it can be shown in a frame of this server's pages, where it has no rights.
    """
    content = await _content(address, path)
    if view is None:
        return await send_saved(call.request, content, PRIVATE)
    content.close()
    link = await view_links.of_share(call, address.user, address.thread, address.fact.share)
    return _elsewhere(f"{link}/{quote(path)}")


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
    content = await _content(address, path)
    policy = view_links.policy(call.request, f"{token}/view", PATH)
    return await send_view(call.request, content, policy, range, PRIVATE)


def copy_of(home: Path, user: str, thread_id: str, share: Share, path: str) -> Content:
    """Opens the copy of a file, by its path without the first slash. Blocks. Raises `NotFound`."""
    file = shares.kept_file(Folder(home, user, thread_id), share, f"/{path}")
    return content_in(file, path.rpartition("/")[2])


async def _content(address: Address, path: str) -> Content:
    home = address.call.services.home
    return await to_thread.run_sync(copy_of, home, address.user, address.thread, address.share, path)


def _elsewhere(where: str) -> web.Response:
    return web.Response(status=302, headers={**PRIVATE, "Location": where})


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
