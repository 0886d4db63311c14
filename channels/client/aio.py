"""The client, for programs with an event loop; `blocking` has it for those without."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import quote
from weakref import WeakSet

import anyio
from anyio import to_thread

from channels.client.errors import ClientError, Invalid, NotFound, RunFailed, closed, unexpected
from channels.client.events import INTERRUPT, Json, StreamEvent, Translator
from channels.client.local import Lease, lease
from channels.client.turn import Turn
from channels.client.wire import Place, Wire
from core.ids import uuid7

CANCEL_SECONDS = 5.0
"""How long the end of a stream waits for its run to be cancelled."""
ARTIFACT_SECONDS = 600.0
PAGE = 100
"""Checkpoints in one request for a thread's history."""
AT_ONCE = 8
"""Requests for the threads of one list at the same time."""
SKILL = ".skill"
ASSISTANT = "lead_agent"


class Overrides(TypedDict, total=False):
    """What one run may have otherwise than the client, and what only runs have."""

    model_name: str | None
    thinking_enabled: bool
    subagent_enabled: bool
    plan_mode: bool
    agent_name: str | None
    available_skills: Collection[str] | None
    environment: str | None
    reasoning_effort: str | None
    recursion_limit: int
    metadata: Mapping[str, Any]
    """Kept with the run."""
    multitask_strategy: Literal["reject", "enqueue", "interrupt", "rollback"]
    """What to do if the thread is at work; by default the run is refused."""
    on_disconnect: Literal["cancel", "continue"]
    """What becomes of the run if its stream is closed before the end; by default it is cancelled."""


class AsyncSikaClient:
    """A client of the server at `url`, or of one in this process that works in the data directory `home`.

    A server in the process is configured by `config_path`, as `sika serve --config` is, and ends with its last client.
    If one runs in the data directory already, that one is used, with its own configuration. `user` is whose things the
    client works with; at a `url`, the `api_key` says that. `timeout`: seconds for a request; streams have no end, but
    may not be silent.

    An `environment` is kept in the metadata of the runs. A `checkpointer` or `middlewares` are refused: the log is the
    checkpointer, and a server's middlewares are its configuration.

    Errors are `ClientError`s. One client belongs to one event loop.
    """

    def __init__(
        self,
        config_path: str | PathLike[str] | None = None,
        checkpointer: None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        home: str | PathLike[str] | None = None,
        user: str | None = None,
        model_name: str | None = None,
        thinking_enabled: bool = True,
        subagent_enabled: bool = False,
        plan_mode: bool = False,
        agent_name: str | None = None,
        available_skills: Collection[str] | None = None,
        middlewares: Sequence[Any] | None = None,
        environment: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        if checkpointer is not None:
            raise Invalid("checkpointer: must be None; the server's log is the checkpointer")
        if middlewares:
            raise Invalid("middlewares: must be None; middlewares are part of the server's configuration")
        if url is not None and (config_path or home or user):
            raise Invalid("url: a server elsewhere has its own config_path and home, and knows the user by the api_key")
        if url is None and api_key is not None:
            raise Invalid("api_key: goes with a url; a server in this process is told the user")
        self._config = Path(config_path) if config_path is not None else None
        self._home = Path(home) if home is not None else None
        self._user = user
        self._url = url.rstrip("/") if url is not None else None
        self._headers = {"X-Api-Key": api_key} if api_key is not None else {}
        self._timeout = timeout
        self._defaults = Overrides(
            model_name=model_name,
            thinking_enabled=thinking_enabled,
            subagent_enabled=subagent_enabled,
            plan_mode=plan_mode,
            agent_name=agent_name,
            available_skills=available_skills,
            environment=environment,
        )
        self._opening = anyio.Lock()
        self._opened: Wire | None = None
        self._leasing = threading.Lock()
        self._lease: Lease | None = None
        self._turns: set[Turn] = set()
        """Those to be cancelled if they are not followed to their end."""
        self._streams: WeakSet[AsyncGenerator[StreamEvent, None]] = WeakSet()
        self._closed = False

    async def __aenter__(self) -> AsyncSikaClient:
        try:
            await self._wire()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End connections, and the server if it is in this process and nobody else uses it. Twice is fine."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._opening:
                for turn in list(self._turns):
                    await self._abandon(turn)
                for events in list(self._streams):
                    with suppress(RuntimeError):  # somebody waits for its next event, and will be told
                        await events.aclose()
                if self._opened is not None:
                    await self._opened.close()
                    self._opened = None
                await to_thread.run_sync(self._release)

    # ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────

    def stream(
        self, message: str | Mapping[str, Any], *, thread_id: str | None = None, **overrides: Unpack[Overrides]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Say something, and follow the run that answers; without a `thread_id` on a new thread, which the events name.

        Broken connections are mended: no event is lost or told twice. Closing the generator cancels the run and
        waits for its end, unless `on_disconnect` is `continue`. Raises `RunFailed` at the end of a run that failed.
        """
        body = {"input": {"messages": [_said(message)]}, "if_not_exists": "create"}
        return self._followed(thread_id or uuid7(), body, overrides)

    def resume(self, thread_id: str, answer: Any, **overrides: Unpack[Overrides]) -> AsyncGenerator[StreamEvent, None]:
        """Answer what a run asked (`interrupts` of its last `values`), and follow it on."""
        return self._followed(thread_id, {"command": {"resume": answer}}, overrides)

    async def chat(
        self, message: str | Mapping[str, Any], *, thread_id: str | None = None, **overrides: Unpack[Overrides]
    ) -> str:
        """Say something; the text of the last answer."""
        texts: dict[str, str] = {}
        last = ""
        async with aclosing(self.stream(message, thread_id=thread_id, **overrides)) as events:
            async for event in events:
                data = event.data
                if event.type == "messages-tuple" and data["type"] == "ai" and data["content"]:
                    last = str(data["id"])
                    texts[last] = texts.get(last, "") + data["content"]
        return texts.get(last, "")

    async def steer(self, thread_id: str, run_id: str, message: str | Mapping[str, Any]) -> Json:
        """Tell the agent something while it is at work: `{run_id, message_id}`."""
        path = f"{_run_of(thread_id, run_id)}/steer"
        return _object(await self._json("POST", path, {"message": _said(message)}, safe=True))

    async def cancel(
        self,
        thread_id: str,
        run_id: str,
        *,
        action: Literal["interrupt", "rollback"] = "interrupt",
        wait: bool = False,
    ) -> None:
        """Stop a run: keep what it did, or undo it. `wait`: until it has ended."""
        query = {"action": action, "wait": wait}
        await self._json("POST", f"{_run_of(thread_id, run_id)}/cancel", query=query, safe=True)

    async def reset_agent(self) -> None:
        """Nothing: every run has the agent of the configuration as it then is."""

    # ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_threads(self, limit: int = 10) -> Json:
        """`{thread_list: [{thread_id, created_at, updated_at, latest_checkpoint_id, title}]}`, the latest first."""
        select, extract = ["thread_id", "created_at", "updated_at"], {"title": "values.title"}
        wanted = {"limit": limit, "sort_by": "updated_at", "select": select, "extract": extract}
        found = _rows(await self._json("POST", "/api/threads/search", wanted, safe=True))
        places: list[Json | None] = [None] * len(found)
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def look(number: int, thread_id: str) -> None:
            async with limiter:
                with suppress(NotFound):  # deleted meanwhile
                    places[number] = await self._json(
                        "GET", f"{_thread(thread_id)}/state", query={"select": "checkpoint_id"}
                    )

        try:
            async with anyio.create_task_group() as tasks:
                for number, thread in enumerate(found):
                    tasks.start_soon(look, number, thread["thread_id"])
        except BaseExceptionGroup as group:
            raise _first(group) from None
        return {
            "thread_list": [
                {key: thread[key] for key in select}
                | {"latest_checkpoint_id": place.get("checkpoint_id"), "title": thread["extracted"]["title"]}
                for thread, place in zip(found, places, strict=True)
                if place is not None
            ]
        }

    async def get_thread(self, thread_id: str) -> Json:
        """`{thread_id, checkpoints: [{checkpoint_id, parent_checkpoint_id, ts, metadata, values, pending_writes}]}`,
        the oldest first.
        """
        found: list[Json] = []
        before: str | None = None
        while True:
            wanted = {"limit": PAGE, **({"before": before} if before else {})}
            page = _rows(await self._json("POST", f"{_thread(thread_id)}/history", wanted, safe=True))
            known = {state["checkpoint_id"] for state in found}
            new = [state for state in page if state["checkpoint_id"] not in known]
            found += new
            if len(page) < PAGE or not new:
                break
            before = str(min(page, key=_age)["checkpoint_id"])
        found.sort(key=_age)
        return {"thread_id": thread_id, "checkpoints": [_checkpoint(state) for state in found]}

    # ── models, tools, skills ───────────────────────────────────────────────────────────────────────────────────────

    async def list_models(self) -> Json:
        """`{models: [{name, model, display_name, …}], token_usage: {enabled}}`; the first model is the default."""
        return _object(await self._json("GET", "/api/models"))

    async def get_model(self, name: str) -> Json | None:
        """One model; None if there is none of this name."""
        return await self._known(f"/api/models/{quote(name, safe='')}")

    async def get_mcp_config(self) -> Json:
        """The MCP servers: `{mcp_servers: {name: …}}`."""
        return _object(await self._json("GET", "/api/mcp/config"))

    async def update_mcp_config(self, mcp_servers: Mapping[str, Any]) -> Json:
        """Have these MCP servers, and no others."""
        return _object(await self._json("PUT", "/api/mcp/config", {"mcp_servers": dict(mcp_servers)}, safe=True))

    async def list_skills(self, enabled_only: bool = False) -> Json:
        """`{skills: [{name, description, enabled, …}]}`."""
        found = _object(await self._json("GET", "/api/skills"))
        if enabled_only:
            found["skills"] = [skill for skill in found["skills"] if skill["enabled"]]
        return found

    async def get_skill(self, name: str) -> Json | None:
        """One skill; None if there is none of this name."""
        return await self._known(f"/api/skills/{quote(name, safe='')}")

    async def update_skill(self, name: str, *, enabled: bool) -> Json:
        """Turn a skill on or off."""
        return _object(await self._json("PUT", f"/api/skills/{quote(name, safe='')}", {"enabled": enabled}, safe=True))

    async def install_skill(self, path: str | PathLike[str]) -> Json:
        """Install a skill from an archive (`.skill`) on this machine."""
        (archive,) = await to_thread.run_sync(_files, [path])
        if archive.suffix != SKILL:
            raise Invalid(f"{archive}: the name of a skill's archive ends with {SKILL}")
        thread_id = uuid7()  # the archive goes by way of a thread, which goes with it
        await self._json("POST", "/api/threads", {"thread_id": thread_id, "if_exists": "do_nothing"}, safe=True)
        try:
            sent = await self.upload_files(thread_id, [archive])
            if not sent["files"]:
                raise Invalid(f"{archive}: {sent['message']}")
            body = {"thread_id": thread_id, "path": sent["files"][0]["virtual_path"]}
            return _object(await self._json("POST", "/api/skills/install", body))
        finally:
            with anyio.CancelScope(shield=True), suppress(ClientError):
                await self._json("DELETE", _thread(thread_id), safe=True)

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def get_memory(self) -> Json:
        """What is remembered across conversations."""
        return _object(await self._json("GET", "/api/memory"))

    async def reload_memory(self) -> Json:
        """What is remembered, read anew."""
        return _object(await self._json("POST", "/api/memory/reload", safe=True))

    async def clear_memory(self) -> Json:
        """Forget everything."""
        return _object(await self._json("DELETE", "/api/memory", safe=True))

    async def export_memory(self) -> Json:
        """Everything that is remembered, to be imported elsewhere."""
        return _object(await self._json("GET", "/api/memory/export"))

    async def import_memory(self, memory: Mapping[str, Any]) -> Json:
        """Remember this instead."""
        return _object(await self._json("POST", "/api/memory/import", dict(memory), safe=True))

    async def get_memory_config(self) -> Json:
        """How memory is configured."""
        return _object(await self._json("GET", "/api/memory/config"))

    async def get_memory_status(self) -> Json:
        """How memory is configured, and what is in it."""
        return _object(await self._json("GET", "/api/memory/status"))

    async def create_memory_fact(self, content: str, category: str = "context", confidence: float = 0.5) -> Json:
        """Remember something; `confidence` is from 0 to 1."""
        body = {"content": content, "category": category, "confidence": confidence}
        return _object(await self._json("POST", "/api/memory/facts", body))

    async def update_memory_fact(
        self, fact_id: str, content: str | None = None, category: str | None = None, confidence: float | None = None
    ) -> Json:
        """Correct something; None: as it is."""
        given = {"content": content, "category": category, "confidence": confidence}
        body = {key: value for key, value in given.items() if value is not None}
        return _object(await self._json("PATCH", f"/api/memory/facts/{quote(fact_id, safe='')}", body, safe=True))

    async def delete_memory_fact(self, fact_id: str) -> Json:
        """Forget something."""
        return _object(await self._json("DELETE", f"/api/memory/facts/{quote(fact_id, safe='')}", safe=True))

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def upload_files(self, thread_id: str, files: Sequence[str | PathLike[str]]) -> Json:
        """Upload files of this machine to a thread, which need not exist yet: `{success, files, message,
        skipped_files}`. All are looked at before any is sent; a folder is refused.
        """
        found = await to_thread.run_sync(_files, files)
        return _object(await (await self._wire()).send_files(f"{_thread(thread_id)}/uploads", "files", found))

    async def list_uploads(self, thread_id: str) -> Json:
        """`{files: [{filename, size, path, virtual_path, artifact_url, extension, modified}], count}`."""
        return _object(await self._json("GET", f"{_thread(thread_id)}/uploads/list"))

    async def delete_upload(self, thread_id: str, filename: str) -> Json:
        """Remove an upload, and the text that was made of it: `{success, message}`."""
        return _object(await self._json("DELETE", f"{_thread(thread_id)}/uploads/{quote(filename, safe='')}"))

    async def get_artifact(self, thread_id: str, path: str) -> tuple[bytes, str]:
        """A file of a thread by the path under which the agent sees it: its content and its media type."""
        place = f"{_thread(thread_id)}/artifacts/{quote(path.lstrip('/'))}"
        answer = await (await self._wire()).fetch("GET", place, timeout=ARTIFACT_SECONDS)
        return answer.body, answer.headers.get("Content-Type", "").partition(";")[0]

    # ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _followed(
        self, thread_id: str, body: Mapping[str, Any], overrides: Overrides
    ) -> AsyncGenerator[StreamEvent, None]:
        events = self._run(thread_id, body, self._wanted(overrides))
        self._streams.add(events)
        return events

    async def _run(
        self, thread_id: str, body: Mapping[str, Any], wanted: Overrides
    ) -> AsyncGenerator[StreamEvent, None]:
        turn = Turn(await self._wire(), thread_id, {**body, **_body(wanted)})
        translator = Translator(thread_id)
        if wanted.get("on_disconnect") != "continue":
            self._turns.add(turn)
        try:
            async with aclosing(turn.frames()) as frames:
                async for frame in frames:
                    for event in translator.take(frame):
                        yield event
            self._turns.discard(turn)
        finally:
            await self._abandon(turn)
        if (failure := translator.failure) is not None:
            text, name = str(failure.get("message") or "the run failed"), str(failure.get("name") or "Error")
            raise RunFailed(text, name, thread_id, translator.run_id, translator.usage)

    async def _abandon(self, turn: Turn) -> None:
        """Cancel the run of a stream that was closed, if it is to be."""
        if turn in self._turns:
            self._turns.discard(turn)
            with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_SECONDS), suppress(ClientError):
                await turn.cancel()

    def _wanted(self, overrides: Overrides) -> Overrides:
        if unknown := overrides.keys() - Overrides.__annotations__.keys():
            raise TypeError(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(Overrides.__annotations__)}")
        return {**self._defaults, **overrides}

    async def _json(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, safe: bool = False
    ) -> Any:
        return await (await self._wire()).ask(method, path, body, query=query, safe=safe)

    async def _known(self, path: str) -> Json | None:
        try:
            return _object(await self._json("GET", path))
        except NotFound:
            return None

    async def _wire(self) -> Wire:
        """The connections; the first to ask opens them, and starts the server if it is to be in this process."""
        async with self._opening:
            if self._closed:
                raise closed()
            if self._opened is None:
                if self._url is not None:
                    place = Place(self._url, self._headers)
                else:
                    place = await to_thread.run_sync(self._take)
                self._opened = Wire(place, self._timeout)
            return self._opened

    def _take(self) -> Place:
        """The server in this process. Whoever waited for it may be gone when it is there: `_release` finds it."""
        with self._leasing:
            if self._lease is None:
                self._lease = lease(self._home, self._config, self._user)
            return self._lease.place

    def _release(self) -> None:
        with self._leasing:
            if self._lease is not None:
                self._lease.release()
                self._lease = None


def _body(wanted: Overrides) -> Json:
    """What the wire has for the options of a run."""
    skills, environment = wanted.get("available_skills"), wanted.get("environment")
    context = {
        "model_name": wanted.get("model_name"),
        "thinking_enabled": wanted.get("thinking_enabled"),
        "subagent_enabled": wanted.get("subagent_enabled"),
        "is_plan_mode": wanted.get("plan_mode"),
        "agent_name": wanted.get("agent_name"),
        "available_skills": sorted(skills) if skills is not None else None,
        "reasoning_effort": wanted.get("reasoning_effort"),
    }
    return {
        "assistant_id": ASSISTANT,
        "context": {key: value for key, value in context.items() if value is not None},
        "config": {"recursion_limit": wanted["recursion_limit"]} if "recursion_limit" in wanted else {},
        "metadata": {**wanted.get("metadata", {}), **({"environment": environment} if environment else {})},
        "multitask_strategy": wanted.get("multitask_strategy", "reject"),
    }


def _said(message: str | Mapping[str, Any]) -> Json:
    """A message of the user, with an id: sent twice it is still one."""
    given = {"content": message} if isinstance(message, str) else dict(message)
    return {"type": "human", "id": uuid7(), **given}


def _checkpoint(state: Json) -> Json:
    asked = [(task["id"], task["interrupts"]) for task in state["tasks"] if task.get("interrupts")]
    return {
        "checkpoint_id": state["checkpoint_id"],
        "parent_checkpoint_id": state["parent_checkpoint_id"],
        "ts": state["created_at"],
        "metadata": state["metadata"],
        "values": state["values"],
        "pending_writes": [{"task_id": task, "channel": INTERRUPT, "value": value} for task, value in asked],
    }


def _age(state: Json) -> tuple[int, str]:
    """Ids of checkpoints are numbers, or texts of one length."""
    identity = str(state["checkpoint_id"])
    return len(identity), identity


def _files(given: Sequence[str | PathLike[str]]) -> list[Path]:
    """Files to be sent. Raises `Invalid` if one is anything else."""
    found = [Path(path) for path in given]
    for path in found:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        if not path.is_file():
            raise Invalid(f"{path}: not a file")
    if not found:
        raise Invalid("files: none are named")
    return found


def _object(answer: Any) -> Json:
    if not isinstance(answer, dict):
        raise unexpected(answer)
    return answer


def _rows(answer: Any) -> list[Json]:
    if not isinstance(answer, list):
        raise unexpected(answer)
    return [_object(row) for row in answer]


def _thread(thread_id: str) -> str:
    return f"/api/threads/{quote(thread_id, safe='')}"


def _run_of(thread_id: str, run_id: str) -> str:
    return f"{_thread(thread_id)}/runs/{quote(run_id, safe='')}"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
