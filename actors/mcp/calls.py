"""Calls of tools that may ask: held while a person is asked, and answered in whichever process the answer arrives.

Theory of operation
-------------------
A call is one piece of work in the process that took it. It ends with its outcome, with its run, or at a deadline. What
the server asks meanwhile is returned to the caller as `asks`; the caller sends the request again with the answer. An
answer for a person's question comes after a pause of the run, perhaps in another process: that one asks the holder
(`core.bus.peers`). If nobody holds the call any more, a `once` call is reported as unknown, and another is made again;
its questions are the same, so the recorded answers are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import anyio
import msgspec
import structlog

from core.actor import Progress
from core.bus.peers import Peers, name_of
from core.config.mcp import McpServer
from core.errors import Invalid, SikaError, Unavailable
from core.events import (
    Aggregate,
    Record,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    ThreadErased,
    thread,
)
from core.log.kinds import SUBAGENT
from core.log.store import EventLog
from core.mcp import asking
from core.ports.mcp import McpSessions
from core.ports.mcp_frames import Ask
from core.tools import Completion, Response

log = structlog.get_logger("sika.mcp")

MOST_HELD = 200
"""Limit of calls that wait for people in this process."""
MOST_PROGRESS = 1000
"""Limit of texts of progress that are kept for the next request."""
SAMPLE_SECONDS = 600.0
"""Time for a model's answer, after the person's."""
KEPT_SECONDS = 3600.0
"""Time that an outcome is kept for a run that is paused."""
Ends = RunCancelled | RunCancelRequested | RunCompleted | RunFailed | RunPaused
LOST = (
    "the server stopped while a person was asked, so the outcome of the call is unknown. It was not repeated. "
    "Check what it did before you repeat the call."
)


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    pass


class Use(Request, frozen=True, kw_only=True):
    """A request to one server, for somebody."""

    server: str
    user: str
    thread: str = ""


class Call(Use, frozen=True, kw_only=True, tag="call"):
    """The call of a tool. `once: true` in a request says that it is not asked again (`System.call`)."""

    tool: str
    arguments: Mapping[str, Any] = {}
    effect: Literal["pure", "idempotent", "once"] = "once"
    run: str = ""
    subagent: str | None = None
    once: bool = False
    key: str = ""
    """The name of the call within its thread. Empty: nobody can be asked during it."""
    resumed: bool = False
    """True: the call has asked something before."""
    answers: Mapping[str, Any] = {}
    """Answers to what it has asked, by id."""


class HeldCall:
    """A call being made. Implements `core.ports.mcp.Caller`."""

    def __init__(self, call: Call, server: McpServer, has_room: Callable[[], bool]) -> None:
        self.call, self._server, self._has_room = call, server, has_room
        self.run, self.paused = call.run, False
        self.outcome: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self.watched, self.ended, self.taken, self.asked, self.over = (asyncio.Event() for _ in range(5))
        self._waiting: dict[str, tuple[Mapping[str, Any], asyncio.Future[Any]]] = {}
        self._news = asyncio.Event()
        self._progress: list[str] = []
        self._count = self._samples = 0

    @property
    def place(self) -> tuple[str, str]:
        return self.call.user, self.call.thread

    @property
    def waiting(self) -> bool:
        """Tells whether something was asked whose answer is missing."""
        return bool(self._waiting)

    async def show(self, text: str) -> None:
        """Keeps progress for the request that is being answered."""
        if len(self._progress) < MOST_PROGRESS:
            self._progress.append(text)
            self._news.set()

    def begin_again(self) -> None:
        """Numbers the questions anew, as the call is made again."""
        self._count = self._samples = 0

    def end(self, outcome: Mapping[str, Any] | SikaError) -> None:
        """States the outcome. Where it is `taken`, the work is to be cancelled, and the questions end after it."""
        if not self.outcome.done():
            if isinstance(outcome, SikaError):
                self.outcome.set_exception(outcome)
                self.outcome.exception()  # it may be that nobody waits
            else:
                self.outcome.set_result(outcome)
        self.ended.set()
        self._news.set()

    def end_questions(self) -> None:
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)

    async def next(self, answers: Mapping[str, Any], progress: Progress) -> Mapping[str, Any]:
        """Returns the next question, or the outcome."""
        for identity, answer in answers.items():
            if (known := self._waiting.get(identity)) and not known[1].done():
                known[1].set_result(answer)
        while True:
            self._news.clear()
            if self._progress:
                texts, self._progress = self._progress, []
                await progress("".join(texts))
            if self.outcome.done():
                self.taken.set()
                return self.outcome.result()
            if asks := next((asks for asks, answer in self._waiting.values() if not answer.done()), None):
                return {"asks": asks}
            await self._news.wait()

    # ── questions of the server ─────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, ask: Ask) -> Mapping[str, Any] | None:
        if self.outcome.done():
            return None
        try:
            return await (self._elicit(ask) if ask.kind == "elicit" else self._sample(ask))
        except Invalid as error:
            return {"error": f"refused: {error}"}

    async def _elicit(self, ask: Ask) -> Mapping[str, Any] | None:
        self._count += 1
        seconds = self._server.elicitation_timeout
        question = asking.question(self.call.server, self._count, ask.params, seconds)
        if not self.call.key or self.call.subagent is not None:
            return {"action": "decline"}
        answer = await self._answered({"kind": "elicit", "question": question}, seconds)
        return answer and asking.elicited(question, msgspec.convert(answer, Response))

    async def _sample(self, ask: Ask) -> Mapping[str, Any] | None:
        self._samples += 1
        self._count += 1
        limits = self._server.sampling
        if limits is None or not self.call.key:
            return {"error": "sampling is off"}
        if self._samples > limits.max_requests:
            return {"error": f"more than {limits.max_requests} requests of a call (sampling.max_requests)"}
        sample = asking.sample(ask.params, limits)
        seconds = self._server.elicitation_timeout
        question = asking.permission(self.call.server, self._count, sample, seconds) if limits.approval else None
        asks = {"kind": "sample", "sample": sample, "question": question, "server": self.call.server}
        answer = await self._answered(asks, seconds + SAMPLE_SECONDS)
        if answer is None or "error" in answer:
            return answer
        return asking.sampled(msgspec.convert(answer, Completion))

    async def _answered(self, asks: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Returns the caller's answer; None if the call ended. After `seconds` it is that nobody answered."""
        if not self.asked.is_set() and not self._has_room():
            log.warning("too many calls wait for people", most=MOST_HELD)
            return {"accepted": None, "error": "too many calls wait for people"}
        await self.watched.wait()  # so that the pause of the run is not missed
        identity, answer = str(self._count), asyncio.get_running_loop().create_future()
        self._waiting[identity] = {**asks, "id": identity}, answer
        self.asked.set()
        self._news.set()
        try:
            async with asyncio.timeout(seconds):
                return await answer  # type: ignore[no-any-return]
        except TimeoutError:
            return {"accepted": None, "error": f"not answered within {seconds:g} s"}
        finally:
            del self._waiting[identity]
            self._news.set()


Work = Callable[[HeldCall], Awaitable[Mapping[str, Any]]]


class Calls:
    """The calls that this process holds."""

    def __init__(self, log: EventLog, sessions: McpSessions, peers: Peers, work: Work) -> None:
        self._log, self._sessions, self._peers, self._work = log, sessions, peers, work
        self._held: dict[str, HeldCall] = {}

    async def advance(self, call: Call, server: McpServer, progress: Progress) -> Mapping[str, Any]:
        """Begins a call, or goes on with it. Returns what it asks, or its outcome."""
        name = name_of("mcp", call.user, call.thread, call.subagent or "", call.key)
        held = self._held.get(name) if call.key else None
        if held is None and call.resumed:
            with suppress(Unavailable):
                return await self._peers.ask(name, msgspec.to_builtins(call), progress)  # type: ignore[no-any-return]
            if call.effect == "once":
                return {"text": f"{call.server}: {LOST}", "failed": True}
        if held is None:
            held = self._begin(name, call, server)
        return await self._next(held, call, progress)

    async def _next(self, held: HeldCall, call: Call, progress: Progress) -> Mapping[str, Any]:
        held.run, held.paused = call.run, False
        try:
            return await held.next(call.answers, progress)
        except asyncio.CancelledError:
            if not held.asked.is_set():
                held.end(Unavailable("the request was cancelled"))
                held.taken.set()
            raise

    def _begin(self, name: str, call: Call, server: McpServer) -> HeldCall:
        held = HeldCall(call, server, lambda: sum(other.waiting for other in self._held.values()) < MOST_HELD)
        if call.key:
            self._held[name] = held
        self._sessions.start(self._hold(name, held))
        return held

    async def _hold(self, name: str, held: HeldCall) -> None:
        """Makes a call, until its outcome is taken, or nobody will."""
        try:
            async with anyio.create_task_group() as serving:
                serving.start_soon(self._serve, name, held)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._until_stopped, held)
                    tasks.start_soon(self._do, held)
                    await held.ended.wait()
                    with anyio.move_on_after(KEPT_SECONDS):
                        await held.taken.wait()
                    tasks.cancel_scope.cancel()
                held.end_questions()  # after the server was told that the call is cancelled: it would answer the call
                held.over.set()
                held.asked.set()
        except Exception:
            log.exception("a call failed", server=held.call.server)
        finally:
            held.end(Unavailable(f"{held.call.server}: the call was given up"))
            held.end_questions()
            if self._held.get(name) is held:
                del self._held[name]

    async def _do(self, held: HeldCall) -> None:
        try:
            held.end(await self._work(held))
        except SikaError as error:
            held.end(error)
        held.end_questions()

    async def _serve(self, name: str, held: HeldCall) -> None:
        """Answers the other processes, from the first question to the end."""
        await held.asked.wait()
        if held.over.is_set():
            return

        async def answer(request: Mapping[str, Any], progress: Progress) -> Mapping[str, Any]:
            return await self._next(held, msgspec.convert(request, Call), progress)

        await self._peers.serve(name, answer, held.over.wait)

    async def _until_stopped(self, held: HeldCall) -> None:
        """Ends a call with its run. A pause is no end for a call that has asked a person, but a new turn is."""
        call = held.call
        if not call.run or not call.thread:
            held.watched.set()
            return
        aggregate = Aggregate(SUBAGENT, call.subagent) if call.subagent else thread(call.thread)
        tip = await self._log.tip(aggregate)
        held.watched.set()
        async for record in self._log.follow(aggregate, after=tip):
            held.paused = held.paused or (record.run == held.run and isinstance(record.event, RunPaused))
            if _ends(record, held):
                held.end(Invalid("the run was stopped, and the call with it"))
                held.taken.set()
                return


def _ends(record: Record, held: HeldCall) -> bool:
    match record.event:
        case ThreadErased():
            return True
        case RunRequested(resume=None):
            return held.paused
        case RunPaused():
            return record.run == held.run and not held.asked.is_set()
    return record.run == held.run and isinstance(record.event, Ends)
