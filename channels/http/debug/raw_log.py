"""Our own routes: the log of a thread as it is, and the rebuilding of read models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, Literal, NamedTuple

import msgspec
from aiohttp import web

from channels.http.endpoints.call import Call, OwnedLog
from channels.http.endpoints.endpoint import Accepted, Endless, Header, Routes
from channels.http.server.live import Outlet
from channels.http.server.routes import SSE
from channels.http.streams import sse
from core.events import Json, Record, thread
from core.phrases import Language
from core.runs.follow import Speaker, Stopping
from core.runs.moments import Voice
from core.runs.previews import Progress, RunPreview
from core.thread.fold import Folding
from core.thread.state import ThreadState
from core.wording import Narration, name_of

ROUTES = Routes()
_encode = msgspec.json.Encoder().encode
MOST_VOICES = 8
"""Subagents whose text is shown while it is made: a batch may have hundreds at work, and nobody reads so many."""


@ROUTES("GET", "/threads/{thread_id}/log", "threads:read", answers={204: None})
async def get_log(
    call: Call,
    owned: OwnedLog,
    *,
    after: Annotated[int, msgspec.Meta(ge=0), "Only events after this sequence"] = 0,
    since: Annotated[
        Literal["turn"] | None, "Of SSE: from the request of the oldest run at work on, or else of the newest run"
    ] = None,
    follow: Annotated[bool, "Without end, as SSE", Endless("it follows the thread")] = False,
    previews: Annotated[bool, "With `follow`: also the text of messages and the output of tools as they come"] = False,
    lang: Annotated[
        Language | None, "Each event with a `phrase` in this language: the `name` of its type, and its `text`"
    ] = None,
    last: Annotated[str, Header("Last-Event-ID"), "Of SSE: the same as `after`, if it is a number"] = "",
) -> Annotated[web.StreamResponse, list[Json], SSE]:
    """A thread's raw events: a JSON array (each with its `seq`), or SSE with that as id; `follow=1`: without end.

    Frames of `previews=1` have no id. `preview`: `text` at `offset` characters of the message's line, which is
    its reasoning, its text and its tool calls' arguments; it is void if a start, an answer or a failure of the `run`
    comes after the event `after`. Of a subagent, `run` is its id, and `after` counts in its own log. `progress`: the
    newest output of a tool call, in place of the one before.
    """
    if not follow and SSE not in call.request.headers.get("Accept", ""):
        return await _array(call, owned.id, after, lang)
    if last.isascii() and last.isdigit() and len(last) < 19:
        after, since = int(last), None
        if not follow and after >= await owned.last():
            return web.Response(
                status=204, headers={"Content-Type": SSE}
            )  # at which an `EventSource` does not come again
    state = await owned.state() if since == "turn" or (follow and previews) else None
    after = _before_turn(state) if state and since == "turn" else after
    log = _Log(after, state if follow and previews else None, lang)
    return await _stream(call, owned.id, log, follow)


@ROUTES("POST", "/projections/rebuild", role="admin")
async def rebuild(call: Call) -> Accepted[Json]:
    """Have the search index built again from the log."""
    await call.services.views.rebuild()
    return {"status": "rebuilding"}


async def _array(call: Call, thread_id: str, after: int, lang: Language | None) -> web.StreamResponse:
    """Sends the array in pieces: a thread may hold more than is good to have in memory."""
    outlet, words = Outlet(call.request, "application/json", {}), _Words(lang)
    records = call.live.reading.read(thread(thread_id), after=after)
    first = await anext(records, None)  # what fails before it is an error of the request
    async with sse.sending(outlet, "log", thread=thread_id):
        await outlet.write(b"[" + (_item(first, words) if first else b""))
        async for piece in sse.gathered(b"," + _item(record, words) async for record in records):
            await outlet.write(piece)
        await outlet.write(b"]")
    return outlet.response


def _item(record: Record, words: _Words) -> bytes:
    return b'{"seq":%d,' % record.seq + words.whole(record)[1:]


class _Words:
    """The phrases of events in a language; None: without."""

    def __init__(self, language: Language | None) -> None:
        self._language, self._narration = language, Narration()

    def whole(self, record: Record) -> bytes:
        """Returns an event as it is stored, after its phrase."""
        if self._language is None:
            return record.raw
        text = self._narration.text(record, self._language)
        phrase = _encode({"name": name_of(record.event, self._language), "text": text})
        return b'{"phrase":%b,%b' % (phrase, record.raw[1:])


def _before_turn(state: ThreadState) -> int:
    """Returns the sequence after which the oldest open run, or else the newest run, was requested. A run that answers
    what another one asked belongs to that one's turn.
    """
    runs = [*state.runs.open()] or [*islice(state.runs.newest_first(), 1)]
    begin = min((run.requested_seq for run in runs), default=state.seq + 1)
    for run in state.runs.newest_first():
        if run.requested_seq <= begin:
            begin = run.requested_seq
            if run.request.resume is None:
                break
    return begin - 1


async def _stream(call: Call, thread_id: str, log: _Log, follow: bool) -> web.StreamResponse:
    outlet = Outlet(call.request, sse.CONTENT_TYPE, sse.rhythm(call.config.http))
    async with sse.sending(outlet, "log stream", thread=thread_id), call.live.follow(thread_id) as follower:
        with suppress(Stopping):  # clients go on after the last id
            batches = follower.since(log.begin, log.audible) if follow else follower.past(log.begin)
            await sse.play(outlet, log, batches)
    return outlet.response


class _Event(NamedTuple):
    record: Record
    data: bytes

    def encoded(self) -> bytes:
        record = self.record
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (record.seq, record.type.encode(), self.data)


class _Preview(NamedTuple):
    item: RunPreview

    def encoded(self) -> bytes:
        preview = self.item.preview
        event = "progress" if isinstance(preview, Progress) else "preview"
        return sse.Frame(event, b'%b,"run":%b}' % (_encode(preview)[:-1], _encode(self.item.run))).encoded()


class _Log:
    """The log as it is, after an event. With a state of the thread, also the previews of the runs that are open, and of
    their subagents.
    """

    ended = False

    def __init__(self, after: int, state: ThreadState | None = None, lang: Language | None = None) -> None:
        self._after, self._words = after, _Words(lang)
        self._folding = Folding(state) if state is not None else None
        self.begin = min(after, state.seq) if state is not None else after
        """The event after which it has to be fed: what the state lacks, it must see."""

    def audible(self) -> Iterable[Speaker]:
        """Returns the runs whose previews are shown, and their subagents at work, `MOST_VOICES` of each at most."""
        runs = list(self._folding.state.runs.open()) if self._folding else []
        at_work = [Voice(name) for run in runs for name, part in run.subagents.items() if not part.ended]
        return [*runs, *at_work[-MOST_VOICES:]]

    def fact(self, record: Record) -> Sequence[_Event]:
        if self._folding and record.seq > self._folding.state.seq:
            self._folding.apply(record)
        return [_Event(record, self._words.whole(record))] if record.seq > self._after else []

    def run_preview(self, item: RunPreview) -> Sequence[_Preview]:
        return [_Preview(item)]
