"""The MCP servers: lists what they offer where nobody knows it, and calls their tools in this process's sessions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Never

import msgspec
import structlog

from actors.mcp.calls import Call, Calls, HeldCall, Request, Use
from core.actor import Actor, Progress
from core.bus.peers import Peers
from core.config.mcp import McpServer
from core.config.redaction import redactor
from core.errors import NotFound, SikaError
from core.events import Event
from core.ids import stamp
from core.log.store import EventLog
from core.mcp.authorisation import NeedsLogin
from core.mcp.servers import PAUSES, SCOPE, Directory, McpFailed, McpListed, config_of
from core.ports.mcp import Broken, Caller, McpSessions, Place
from core.ports.mcp_frames import Command, Listing, Part, Reply

log = structlog.get_logger("sika.mcp")

MOST_TEXT = 400_000
"""Limit of a result's text, in characters: it fits a message of the bus."""
MOST_FILES = 50


class List(Request, frozen=True, kw_only=True, tag="list"):
    """Asks that servers be listed which were not yet, or all again. The answer has a reason for each that failed."""

    servers: Sequence[str] | None = None
    user: str = ""
    """The user whose account is used, where each person has one."""
    again: bool = False


class Read(Use, frozen=True, kw_only=True, tag="read"):
    """Asks for a resource."""

    uri: str


class Prompt(Use, frozen=True, kw_only=True, tag="prompt"):
    """Asks for the text of a prompt."""

    name: str
    arguments: Mapping[str, str] = {}


AnyRequest = List | Call | Read | Prompt


class Mcp(Actor[Never]):
    name = "mcp"

    def __init__(self, log: EventLog, sessions: McpSessions, servers: Directory, peers: Peers) -> None:
        self._sessions, self._servers = sessions, servers
        self._calls = Calls(log, sessions, peers, self._repeated)
        self._states = servers.states
        self._listing: dict[str, asyncio.Lock] = {}
        self._resets: int | None = None
        sessions.watch(self.relist)

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Any:
        parsed: AnyRequest = self.parse(request, AnyRequest)
        match parsed:
            case List(servers=names, user=user, again=again):
                return await self._list(names, user, again=again)
            case Call():
                return await self._calls.advance(parsed, await self._servers.server(parsed.server), progress)
            case Read(uri=uri):
                reply = await self._ask(parsed, Command(id=0, op="read", name=uri), progress)
            case Prompt():
                command = Command(id=0, op="prompt", name=parsed.name, arguments=parsed.arguments)
                reply = await self._ask(parsed, command, progress)
        return await self._result(parsed, reply)

    # ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _list(self, names: Sequence[str] | None, user: str, *, again: bool) -> Mapping[str, str]:
        """Lists servers, all at the same time. Returns the reasons of failures by server."""
        await self._reset()
        servers = await self._servers.all()
        for name in names or ():
            if name not in servers:
                raise NotFound(f"there is no MCP server {name!r}; there are: {', '.join(servers) or 'none'}")
        chosen = [name for name, server in servers.items() if server.enabled and (names is None or name in names)]
        places = [Place(name, user if servers[name].sharing == "user" else "") for name in chosen]
        reasons = await asyncio.gather(
            *(self._list_server(place, servers[place.server], again=again) for place in places)
        )
        return {name: reason for name, reason in zip(chosen, reasons, strict=True) if reason}

    async def _list_server(self, place: Place, server: McpServer, *, again: bool) -> str:
        """Lists a server unless its lists are known. Returns why it failed, or an empty text."""
        name = place.server
        async with self._listing.setdefault(name, asyncio.Lock()):
            known = (await self._states.load(SCOPE)).known.get(name)
            config = config_of(server)
            if known is not None and known.config == config and not again:
                if known.failure is None:
                    return ""
                if known.failure.config == config and known.failure.again_at > _now():
                    return known.failure.reason
            try:
                event: Event = await self._ask_for_lists(place, server, config)
            except NeedsLogin as error:  # of one person: others may be logged in
                return str(error)
            except SikaError as error:
                attempt = known.failure.attempt + 1 if known and known.failure else 1
                pause = PAUSES[min(attempt, len(PAUSES)) - 1]
                reason = redactor.text(str(error))[:1000]
                event = McpFailed(server=name, config=config, reason=reason, attempt=attempt, again_at=_now(pause))
                log.warning("MCP server not listed", server=name, reason=reason)
            same = known is not None and known.failure is None and known.config == config
            if known is None or not same or not isinstance(event, McpListed) or known.hash != event.hash:
                await self._append(event)
                await self._named(name)
            return event.reason if isinstance(event, McpFailed) else ""

    async def _named(self, name: str) -> None:
        """Says in the server's log which tools are described otherwise than when somebody looked."""
        seen = (await self._states.load(SCOPE)).seen.get(name)
        if seen is not None and seen.changed:
            log.warning("MCP tools changed since they were seen", server=name, tools=list(seen.changed)[:MOST_FILES])

    async def _ask_for_lists(self, place: Place, server: McpServer, config: str) -> McpListed:
        command = Command(id=0, op="list", seconds=server.session_init_timeout)
        reply = await self._sessions.send(place, server, command, _nothing)
        if reply.listing is None:
            raise Broken(f"{place.server}: {reply.text or reply.kind}")
        return listing_fact(place.server, config, reply.listing)

    async def relist(self, place: Place) -> None:
        """Lists a server whose lists have changed in a session."""
        server = (await self._servers.all()).get(place.server)
        if server is not None and server.enabled:
            await self._list_server(place, server, again=True)

    async def _reset(self) -> None:
        """Ends the sessions of this process if all lists were dropped since the last request."""
        before, self._resets = self._resets, (await self._states.load(SCOPE)).resets
        if before not in (None, self._resets):
            await self._sessions.stop()

    async def _append(self, event: Event) -> None:
        await self._states.decide(SCOPE, lambda _: [event], actor=self.name)

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _repeated(self, held: HeldCall) -> Mapping[str, Any]:
        """Makes a call, and once more if its outcome is unknown and it may be repeated. Returns its result."""
        call = held.call
        command = Command(id=0, op="call", name=call.tool, arguments=call.arguments)
        reply = await self._ask(call, command, held.show, held)
        if reply.kind == "lost" and call.effect != "once":
            log.info("MCP call repeated", server=call.server, tool=call.tool, reason=reply.text)
            held.begin_again()
            reply = await self._ask(call, command, held.show, held)
        return await self._result(call, reply)

    async def _ask(self, use: Use, command: Command, progress: Progress, caller: Caller | None = None) -> Reply:
        await self._reset()
        server = await self._servers.server(use.server)
        place = {
            "server": Place(use.server),
            "user": Place(use.server, use.user),
            "thread": Place(use.server, use.user, use.thread),
        }[server.sharing]
        seconds = server.tool_call_timeout
        command = msgspec.structs.replace(command, seconds=seconds)
        return await self._sessions.send(place, server, command, progress, caller)

    async def _result(self, use: Use, reply: Reply) -> Mapping[str, Any]:
        """Returns what the tool answers: a text, the structured content, and the files that were kept."""
        if reply.outcome is None:
            reason = redactor.text(reply.text)
            if reply.kind == "lost":
                advice = "The outcome of the call is unknown: check it before you repeat the call."
                reason = f"{use.server}: {reason}. {advice}"
            return {"text": reason, "failed": True}
        outcome = reply.outcome
        texts, files = list[str](), list[Mapping[str, str]]()
        for part in outcome.parts:
            if part.data is not None and len(files) < MOST_FILES:
                files.append(await self._stored_as_file(use, part))
                texts.append(files[-1]["text"])
            elif part.data is None:
                texts.append(_text_of(part))
        text = "\n".join(texts)
        if not texts and outcome.structured is not None:
            text = msgspec.json.encode(outcome.structured).decode()
        if len(text) > MOST_TEXT:
            text = f"{text[:MOST_TEXT]}\n... [only {MOST_TEXT} of {len(text)} characters are shown]"
        answer = {"text": text or "(no output)", "failed": outcome.failed, "files": files}
        if outcome.structured is not None and len(msgspec.json.encode(outcome.structured)) <= MOST_TEXT:
            answer["structured"] = outcome.structured
        return answer

    async def _stored_as_file(self, use: Use, part: Part) -> Mapping[str, str]:
        """Keeps the bytes of a result as a file of the thread. Returns the text about it."""
        assert part.data is not None
        kind = part.mime_type or "application/octet-stream"
        what = f"{kind}, {len(part.data)} bytes"
        if not use.thread:
            return {"text": f"[{what}]", "mime_type": kind}
        try:
            path = await self._sessions.save(use.user, use.thread, part.data, kind)
        except (SikaError, OSError) as error:
            return {"text": f"[{what}; it could not be kept: {error}]", "mime_type": kind}
        return {"text": f"[{what}: {path}]", "mime_type": kind, "path": path}


def listing_fact(name: str, config: str, listing: Listing) -> McpListed:
    """Returns the fact of a server's lists."""
    raw = redactor.value(msgspec.to_builtins(listing))
    lists = {key: raw.get(key, []) for key in ("tools", "resources", "prompts", "problems")}
    digest = hashlib.sha256(msgspec.json.encode(lists, order="sorted")).hexdigest()[:12]
    return McpListed(server=name, config=config, hash=digest, **lists)


def _text_of(part: Part) -> str:
    if part.uri and part.text is not None and not part.mime_type:
        return f"[{part.uri}] {part.text}"
    return part.text or part.uri


def _now(later: float = 0) -> str:
    return stamp(datetime.now(UTC) + timedelta(seconds=later))


async def _nothing(_: str) -> None:
    """Nobody looks at the progress of lists."""
