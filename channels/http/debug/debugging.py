"""Debugging of a thread over HTTP: the questions of `core.replay.queries`, forks, exports, and what-ifs as streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import anyio
import anyio.to_thread
import msgspec
import structlog
from aiohttp import web

from channels.http.accounts import access
from channels.http.accounts.share_links import VisibleLog
from channels.http.debug.readable import Readable
from channels.http.endpoints.call import Call, OwnedLog
from channels.http.endpoints.endpoint import Created, Limit, Routes
from channels.http.endpoints.endpoint import Header as HeaderOf
from channels.http.server.errors import Forbidden
from channels.http.server.live import Outlet
from channels.http.server.routes import API, SSE
from channels.http.server.weights import language_of
from channels.http.streams import sse
from core.config.redaction import redactor
from core.errors import Invalid, Refused, SikaError, Unavailable, ungrouped
from core.events import Record, thread
from core.files.paths import thread_root
from core.ids import now, uuid7
from core.phrases import Language
from core.replay import queries
from core.replay.breakpoints import Breakpoint
from core.replay.comparing import compare_pasts
from core.replay.exports.exporting import LogReader, Scope, lines
from core.replay.exports.format import FORMAT, Header
from core.replay.exports.redact import Redaction
from core.replay.find import Query
from core.replay.fork import Forked
from core.replay.moments import files, moment, places, requests
from core.replay.moments.files import KnownFiles
from core.replay.moments.models import RunModels
from core.replay.moments.requests import Sent
from core.replay.money import Prices
from core.replay.queries import Cause, Comparison, EventPage, Side
from core.replay.tree import Span, bounded_tree
from core.replay.whatif.running import Changes, Experiment, Point, Result
from core.runs.prompts import release
from core.thread import usage
from core.thread.state import ThreadState
from core.wording import Narration, name_of

log = structlog.get_logger("sika.http")

EXPERIMENTS = 2
"""What-ifs that a process executes at the same time."""
MOST_SAMPLES = 20
"""Limit over HTTP: a stream that lives for less than a working day."""
ROUTES = Routes(mounts=API, tag="debugging")

_PATH = re.compile(r"[\w.\[\]*\-\"]{1,500}")
"""Names, indexes and `[*]`: functions and lists of expressions can make much of little."""

Place = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
PlaceText = "An event: its number, `seq:` with its sequence, the beginning of its id, or the id of a call"


TURNS: web.AppKey[asyncio.Semaphore] = web.AppKey("what-ifs", asyncio.Semaphore)


class EventPhrase(msgspec.Struct):
    """An event in people's words: the name of its type (`Run failed`), and what it says, on one line."""

    name: str
    text: str


class LoggedEvent(msgspec.Struct, omit_defaults=True):
    """An event as stored, its sequence in the stream, and its phrase."""

    seq: int
    event: msgspec.Raw
    phrase: EventPhrase | None = None


class LoggedPage(msgspec.Struct):
    """Events of a log. The next page begins after (of the newest first: before) the sequence `next`; null: there is no
    more.
    """

    events: list[LoggedEvent]
    next: int | None


# ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────────


@ROUTES("GET", "/shares/{token}/log/events", "threads:read", tag="shares")
@ROUTES("GET", "/threads/{thread_id}/log/events", "threads:read")
async def get_events(
    visible: VisibleLog,
    *,
    type: Annotated[Sequence[str], "Types of events, or patterns such as `tool.*`"] = (),
    text: Annotated[str, "A text that occurs in the stored event, in any case"] = "",
    tool: Annotated[str, "Calls of this tool"] = "",
    errors: Annotated[bool, "Only what failed, also commands, and answers by which a policy stopped the run"] = False,
    model: Annotated[str, "The configured name of the model of the run, or of the answer"] = "",
    run: Annotated[str, "The id of the run, or its beginning"] = "",
    since: Annotated[str, "ISO 8601 in UTC; this and later"] = "",
    until: Annotated[str, "ISO 8601 in UTC; this and earlier"] = "",
    seconds: Annotated[float, msgspec.Meta(ge=0), "It took at least so long"] = 0.0,
    stop: Annotated[Sequence[str], "Breakpoints, one of which it meets: `model.completed message.content~sorry`"] = (),
    after: Annotated[int, msgspec.Meta(ge=0), "Only events after this sequence: `next` of the page before"] = 0,
    before: Annotated[
        int | None,
        msgspec.Meta(ge=0),
        "The newest first, only those before this sequence (0: from the end): `next` of the page before",
    ] = None,
    limit: Limit = 100,
    phrases: Annotated[bool, "Each with its phrase"] = True,
    lang: Annotated[Language | None, "Of the phrases; by `Accept-Language`, or else English"] = None,
    accepted: Annotated[str, HeaderOf("Accept-Language"), "The language of the phrases, unless `lang` names it"] = "",
) -> LoggedPage:
    """Return a page of the events that meet all conditions. A page may be empty and have a next one."""
    query = Query.of(
        re.escape(text),
        types=tuple(type),
        tool=tool,
        errors=errors,
        model=model,
        run=run,
        since=since,
        until=until,
        seconds=seconds,
        stops=tuple(map(Breakpoint.of, stop)),
    )
    models = RunModels(await visible.state(), visible.read) if model else None
    records: AsyncIterator[Record] = visible.read(thread(visible.id), after=after)
    if before is not None:
        records = _after(visible.back(thread(visible.id), before=before), after)
    page = await queries.events(records, query, models, limit=limit)
    language = (lang or language_of(accepted)) if phrases else None
    return await anyio.to_thread.run_sync(_logged, page, language)


def _logged(page: EventPage, language: Language | None) -> LoggedPage:
    """Returns a page with the phrases of its events in a language; None: without."""
    events = [LoggedEvent(entry.seq, entry.event) for entry in page.events]
    if language:
        narration = Narration()
        for event in sorted(events, key=lambda event: event.seq):
            record = Record(event.seq, bytes(event.event))
            event.phrase = EventPhrase(name_of(record.event, language), narration.text(record, language))
    return LoggedPage(events, page.next)


async def _after(records: AsyncGenerator[Record], after: int) -> AsyncIterator[Record]:
    """Yields records, newest first, down to a sequence."""
    async with aclosing(records):
        async for record in records:
            if record.seq <= after:
                return
            yield record


@ROUTES("GET", "/shares/{token}/log/state", "threads:read", tag="shares")
@ROUTES("GET", "/threads/{thread_id}/log/state", "threads:read")
async def get_state(
    visible: VisibleLog,
    *,
    at: Annotated[str, PlaceText] = "",
    path: Annotated[str, "A part of the values, such as `messages[-1].content`: names, indexes and `[*]`"] = "",
    runs: Annotated[int, msgspec.Meta(ge=0, le=1000), "So many runs, the newest; `older_runs` counts the others"] = 20,
    messages: Annotated[
        int | None, msgspec.Meta(ge=0), "So many messages of the values, the newest; `messages` counts all"
    ] = None,
) -> Any:
    """Return the state after an event (`Moment`), or a part of its values."""
    if path and not _PATH.fullmatch(path):
        raise Invalid(f"path {path[:80]!r}: names, indexes and [*] are expected")
    state = await _state_at(visible, at)
    if path:
        return await anyio.to_thread.run_sync(lambda: moment.part(msgspec.to_builtins(state.values), path))
    return await anyio.to_thread.run_sync(lambda: queries.moment_of(visible.id, state, runs=runs, messages=messages))


async def _state_at(visible: OwnedLog, at: str) -> ThreadState:
    """Returns the thread after the event at a place, or as it stands."""
    if not at:
        return await visible.state()
    return await visible.at((await places.record_at(visible.read, thread(visible.id), at)).seq)


@ROUTES("GET", "/threads/{thread_id}/log/diff", "threads:read")
async def get_diff(
    call: Call,
    owned: OwnedLog,
    *,
    right: Annotated[str, "`THREAD`, `THREAD#RUN` (from 1), `THREAD@EVENT`; without THREAD: this thread"],
    left: Annotated[str, "`#RUN` or `@EVENT` of this thread; empty: all of it"] = "",
) -> Comparison:
    """Compare two moments of the thread as states, or runs and threads step by step, the first difference named."""
    if left and left[0] not in "#@":
        raise Invalid(f"left: #RUN or @EVENT is expected, got {left[:40]!r}")
    first, second = Side.of(owned.id + left), Side.of(owned.id + right if right[:1] in ("#", "@") else right)
    readable = Readable(owned)
    pasts = await readable.past(owned.id), await readable.past(second.thread)
    async with call.live.reading.whole() as whole:
        taken = pasts[0], first, pasts[1], second
        compared = await compare_pasts(*taken, prices(call), readable.read, whole.spend)
        return await anyio.to_thread.run_sync(queries.comparison, compared)


@ROUTES("GET", "/shares/{token}/log/prompt", "threads:read", tag="shares")
@ROUTES("GET", "/threads/{thread_id}/log/prompt", "threads:read")
async def get_prompt(call: Call, visible: VisibleLog, *, at: Annotated[Place, PlaceText]) -> Sent:
    """Return what a model got in the call that ended with an event, an answer or a failure: the system prompt, the
    tools, the parameters and the messages, and what changed since the call before in the thread.
    """
    record = await places.record_at(visible.read, thread(visible.id), at)
    async with call.live.reading.whole():
        return await requests.sent_at(visible.read, Readable(visible).read, visible.at, record)


@ROUTES("GET", "/shares/{token}/log/files", "threads:read", tag="shares")
@ROUTES("GET", "/threads/{thread_id}/log/files", "threads:read")
async def get_files(visible: VisibleLog, *, at: Annotated[str, PlaceText] = "") -> KnownFiles:
    """Return the files as they were known at an event: by the last scan before it, and what people did after that."""
    seq = (await places.record_at(visible.read, thread(visible.id), at)).seq if at else await visible.last()
    return await files.known_at(visible.read, thread(visible.id), seq)


class ModelTokens(msgspec.Struct):
    """Tokens of calls of a model; `input` includes `cache_read`."""

    input: int
    output: int
    cache_read: int
    calls: int


class UsedSoFar(msgspec.Struct):
    """Usage of the runs up to the event `seq`, with those that were rolled back and with subagents: tokens by model,
    and the cost at the prices of today; null where no model has a price, or they are in several currencies.
    """

    seq: int
    tokens: dict[str, ModelTokens]
    cost: float | None
    currency: str | None


@ROUTES("GET", "/shares/{token}/log/usage", "threads:read", tag="shares")
@ROUTES("GET", "/threads/{thread_id}/log/usage", "threads:read")
async def get_usage(call: Call, visible: VisibleLog, *, at: Annotated[str, PlaceText] = "") -> UsedSoFar:
    """Return the tokens and the cost of the thread up to an event."""
    state = await _state_at(visible, at)
    tokens = await anyio.to_thread.run_sync(usage.tokens_of_thread, state)
    by_model = {model: ModelTokens(*used) for model, used in tokens.items()}
    return UsedSoFar(state.seq, by_model, *usage.price(tokens, prices(call)))


@ROUTES("GET", "/shares/{token}/log/why", "threads:read", tag="shares")
@ROUTES("GET", "/threads/{thread_id}/log/why", "threads:read")
async def get_why(call: Call, visible: VisibleLog, *, event: Annotated[Place, PlaceText]) -> list[Cause]:
    """Return the chain of causes of an event, the first cause first, over runs, subagents and the user's schedules."""
    readable = Readable(visible)
    fact = await readable.record_at(thread(visible.id), event)
    async with call.live.reading.whole():
        return await queries.causes_of(readable, fact)


@ROUTES("GET", "/threads/{thread_id}/log/tree", "threads:read")
async def get_tree(
    call: Call,
    owned: OwnedLog,
    *,
    run: Annotated[str, "One run: its number from 1, the beginning of its id, `@last` or `@last-failed`"] = "",
) -> list[Span]:
    """Return the runs as trees of what took time: answers, calls, retries, waits, and the runs of subagents. Long texts
    are cut.
    """
    readable = Readable(owned)
    only = await (await readable.past(owned.id)).run_named(run) if run else None
    async with call.live.reading.whole() as whole:
        return await bounded_tree(readable.read, thread(owned.id), prices(call), whole.spend, only)


def prices(call: Call) -> Prices:
    """Returns the prices of the configured models."""
    return {model.name: model.pricing for model in call.config.models if model.pricing is not None}


# ── exports and forks ───────────────────────────────────────────────────────────────────────────────────────────────


@ROUTES("GET", "/threads/{thread_id}/log/export", "threads:export", answers={200: "application/x-ndjson"})
async def get_export(
    call: Call,
    owned: OwnedLog,
    *,
    redact: Annotated[bool, "Replace secrets, users and addresses by placeholders"] = False,
    blobs: Annotated[bool, "The bodies that are too big for the log, too"] = False,
    files: Annotated[bool, "The files of the thread, too"] = False,
) -> web.StreamResponse:
    """Send the thread, with all that it called, as a file that `sika log` reads; without its last line it is cut off.

    An API key needs the scope `threads:export`.
    """
    folder = thread_root(call.services.home, call.user, owned.id) / "user-data" if files else None
    redaction = Redaction() if redact else None
    scope = Scope(blobs=blobs, files=folder, redaction=redaction)
    identity = await call.services.log.identity()
    header = Header(
        format=FORMAT, sika=release(), thread=owned.id, log=identity, at=now(), redacted=redaction is not None
    )
    name = {"Content-Disposition": f'attachment; filename="{owned.id}.jsonl"'}
    outlet = Outlet(call.request, "application/x-ndjson", name)
    async with sse.sending(outlet, "export", thread=owned.id):
        async for data in sse.gathered(lines(LogReader(call.services.log, call.live.reading.read), header, scope)):
            await outlet.write(data)
    return outlet.response


class ForkBody(msgspec.Struct):
    """`thread_id`: of the fork; a new one by default. The same fork with the same id is made once."""

    at: Place
    thread_id: str | None = None


@ROUTES("POST", "/threads/{thread_id}/log/fork", "threads:write", errors=(409,))
async def post_fork(call: Call, owned: OwnedLog, body: ForkBody) -> Created[Forked]:
    """Make a thread of its own of the thread as it was after an event, with its files as far as they are recorded."""
    if call.services.fork is None:
        raise Refused("this process makes no forks")
    aggregate = thread(owned.id)
    at = (await places.record_at(call.live.reading.read, aggregate, body.at)).seq
    async with call.live.reading.whole():
        return await call.live.to_its_end(call.services.fork(aggregate, at, body.thread_id or uuid7()))


# ── what-if ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class WhatIfBody(msgspec.Struct):
    """A fork point, and the conditions that differ from there on.

    `results`: texts of tool results by call. `settings` (keys of the configuration, values as YAML) and `allow_effects`
    (make calls that act outside the copy of the sandbox, too) are for administrators. `estimate_only`: the stream says
    what a sample would use, and ends; nothing is spent.
    """

    at: Place
    model: str | None = None
    prompt: str | None = None
    message: str | None = None
    results: dict[str, str] = {}
    settings: dict[str, str] = {}
    samples: Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)] = 1
    allow_effects: bool = False
    estimate_only: bool = False


@ROUTES("POST", "/threads/{thread_id}/log/whatif", "runs:create", answers={200: SSE}, errors=(409,))
async def post_whatif(call: Call, owned: OwnedLog, body: WhatIfBody) -> web.StreamResponse:
    """Go on from an event under other conditions, live, in a copy of the files: the events as SSE, then both futures.

    `estimate` is sent first; the events of a sample are those of a thread's log stream, with `SAMPLE-SEQUENCE` as id;
    `result` or `error` is the last one. It ends when the client leaves.
    """
    principal = call.principal
    if (body.settings or body.allow_effects) and not principal.is_admin:
        raise Forbidden("settings and allow_effects need an administrator")
    if call.services.what_if is None:
        raise Refused("this process executes no what-ifs")
    turns = call.request.app[TURNS]
    if turns.locked():
        raise Unavailable(f"{EXPERIMENTS} what-ifs are being executed; try again when one has ended")
    async with turns:
        changes = Changes(
            model=body.model, prompt=body.prompt, settings=body.settings, results=body.results, message=body.message
        )
        experiment = await call.services.what_if(changes, body.allow_effects)
        at = (await places.record_at(call.live.reading.read, thread(owned.id), body.at)).seq
        async with call.live.reading.whole() as whole:
            point = await experiment.point(owned.id, at, whole.hold)
        if not body.estimate_only:
            await call.request.app[access.GATE].limits.admit_run(principal, owned.id, uuid7())
        return await _stream(call, owned.id, experiment, point, 0 if body.estimate_only else body.samples)


async def _stream(call: Call, thread_id: str, experiment: Experiment, point: Point, samples: int) -> web.StreamResponse:
    """Sends the estimate, and executes the samples, if there are any."""
    outlet, feed = Outlet(call.request, sse.CONTENT_TYPE, {}), _Feed()
    async with sse.sending(outlet, "what-if", thread=thread_id):
        await outlet.write(sse.Frame("estimate", msgspec.json.encode(experiment.estimate(point))).encoded())
        if not samples:
            return outlet.response
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(feed.run, experiment, point, samples)
                async for data in feed.frames(call.config.http.heartbeat_seconds):
                    await outlet.write(data)
    return outlet.response


class _Problem(msgspec.Struct):
    detail: str
    code: str


class _Feed:
    """The frames of a what-if. Holds its events until they are sent, which the result holds until its end anyway."""

    def __init__(self) -> None:
        self._frames: list[sse.Frame] = []
        self._more = asyncio.Event()
        self._sample = 1
        self._ended = False

    async def run(self, experiment: Experiment, point: Point, samples: int) -> None:
        """Executes the what-if. Its failure is its last frame."""
        try:
            result: Result = await experiment.run(point, samples, self._next, self._event)
            self._add(sse.Frame("result", msgspec.json.encode(result)))
        except SikaError as error:
            self._add(sse.Frame("error", msgspec.json.encode(_Problem(redactor.text(str(error)), error.code))))
        except Exception:
            log.exception("a what-if failed", thread=point.thread.id)
            self._add(sse.Frame("error", msgspec.json.encode(_Problem("Internal server error", "internal"))))
        finally:
            self._ended = True
            self._more.set()

    async def frames(self, heartbeat: float) -> AsyncIterator[bytes]:
        """Yields what is to be sent, with heartbeats between."""
        while True:
            ready, self._frames = self._frames, []
            if ready:
                yield sse.encoded(ready)
                continue
            if self._ended:
                return
            self._more.clear()
            with anyio.move_on_after(heartbeat):
                await self._more.wait()
            if not self._more.is_set():
                yield sse.HEARTBEAT

    def _next(self, number: int) -> None:
        self._sample = number + 1

    def _event(self, record: Record) -> None:
        self._add(sse.Frame(record.type, record.raw, f"{self._sample}-{record.seq}"))

    def _add(self, frame: sse.Frame) -> None:
        self._frames.append(frame)
        self._more.set()
