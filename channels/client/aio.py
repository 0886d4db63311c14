"""The client for programs with an event loop; `blocking` has the one for other programs."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack
from urllib.parse import quote
from weakref import WeakSet

import anyio
from anyio import to_thread

from channels.client.answers import age, checkpoint_of, folder_of, goal_of, object_of, rows_of, run_path, thread_path
from channels.client.errors import ClientError, NotFound, RunFailed, closed
from channels.client.events import Json, StreamEvent, Translator
from channels.client.memory import MemoryMethods
from channels.client.options import Defaults, Overrides, body_of, check, check_names, files_of, human_message
from channels.client.sse import value_of
from channels.client.turn import RunStream
from channels.client.wire import OnOutage, Target, Transport
from core.ids import uuid7

if TYPE_CHECKING:
    from channels.client.local import Lease

CANCEL_SECONDS = 5.0
"""Timeout of what is done at the end in any case: to cancel the run of a stream, to delete the thread of an archive."""
ARTIFACT_SECONDS = 600.0
PAGE = 100
"""Limit of checkpoints in a request for a thread's history."""
AT_ONCE = 8
"""Limit of concurrent requests for the threads of a list."""
ROW = ("thread_id", "created_at", "updated_at")
"""The fields of each thread in a list of threads."""


class AsyncSikaClient(MemoryMethods):
    """A client of the server at `url`, or of a server in this process that uses the data directory `home`.

    A server in the process is configured by `config_path`, as `sika serve --config` is, and ends with its last client.
    If a server runs in the data directory already, it is used, with its own configuration. `user` owns the client's
    threads; at a `url`, the `api_key` determines the user. `timeout` is in seconds per request; streams have no
    timeout, but may not be silent. `locate` returns the new URL of a server that comes back elsewhere. `on_outage` is
    called with the error when a server goes away, and with None when it answers again.

    An `environment` is stored in the metadata of the runs. A `checkpointer` or `middlewares` are refused: the log is
    the checkpointer, and a server's middlewares are its configuration.

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
        middlewares: Sequence[Any] | None = None,
        timeout: float = 30.0,
        locate: Callable[[], str | None] = lambda: None,
        on_outage: OnOutage = lambda _: None,
        **defaults: Unpack[Defaults],
    ) -> None:
        check(
            checkpointer=checkpointer,
            middlewares=middlewares,
            url=url,
            api_key=api_key,
            own=config_path or home or user,
        )
        check_names(defaults, Defaults.__optional_keys__)
        self._config = Path(config_path) if config_path is not None else None
        self._home = Path(home) if home is not None else None
        self._user = user
        headers = {"X-Api-Key": api_key} if api_key is not None else {}
        self._elsewhere = Target(url.rstrip("/"), headers, locate) if url is not None else None
        self._timeout = timeout
        self._on_outage = on_outage
        self._defaults: Defaults = {"thinking_enabled": True, **defaults}
        self._opening = anyio.Lock()
        self._opened: Transport | None = None
        self._leasing = threading.Lock()
        self._lease: Lease | None = None
        self._runs: set[RunStream] = set()
        """Runs to be cancelled if their streams are closed before the end."""
        self._streams: WeakSet[AsyncGenerator[StreamEvent, None]] = WeakSet()
        self._closed = False

    async def __aenter__(self) -> AsyncSikaClient:
        try:
            await self._transport()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections, and the server if it is in this process without other clients. May be repeated."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._opening:
                for run in list(self._runs):
                    await self._abandon(run)
                for events in list(self._streams):
                    with suppress(RuntimeError):  # a reader waits for its next event, and gets the error
                        await events.aclose()
                if self._opened is not None:
                    await self._opened.close()
                    self._opened = None
                await to_thread.run_sync(self._release)

    # ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────

    def stream(
        self, message: str | Mapping[str, Any], *, thread_id: str | None = None, **overrides: Unpack[Overrides]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Sends a message and yields the events of its run; without a `thread_id`, on a new thread (see the events).

        Reconnects as needed: no event is lost or repeated. Closing the generator cancels the run and waits for its
        end, unless `on_disconnect` is `continue`. Raises `RunFailed` at the end of a run that failed.
        """
        body = {"input": {"messages": [human_message(message)]}, "if_not_exists": "create"}
        return self._begin(thread_id or uuid7(), body, overrides)

    def resume(self, thread_id: str, answer: Any, **overrides: Unpack[Overrides]) -> AsyncGenerator[StreamEvent, None]:
        """Answers the `interrupts` of a run's last `values`, and yields the events of the run that goes on."""
        return self._begin(thread_id, {"command": {"resume": answer}}, overrides)

    def join(self, thread_id: str, run_id: str) -> AsyncGenerator[StreamEvent, None]:
        """Yields the events of an existing run, from its beginning. Closing the generator does not cancel the run."""
        return self._registered(thread_id, {}, run_id, cancels=False)

    async def chat(
        self, message: str | Mapping[str, Any], *, thread_id: str | None = None, **overrides: Unpack[Overrides]
    ) -> str:
        """Sends a message, and returns the text of the last answer."""
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
        """Sends the agent a message during its run: `{run_id, message_id}`."""
        path = f"{run_path(thread_id, run_id)}/steer"
        return object_of(await self._json("POST", path, {"message": human_message(message)}, safe=True))

    async def cancel(
        self,
        thread_id: str,
        run_id: str,
        *,
        action: Literal["interrupt", "rollback"] = "interrupt",
        wait: bool = False,
    ) -> None:
        """Stops a run, and keeps or undoes its work. With `wait`, returns when it has ended."""
        query = {"action": action, "wait": wait}
        await self._json("POST", f"{run_path(thread_id, run_id)}/cancel", query=query, safe=True)
        self._runs = {run for run in self._runs if run.run_id != run_id}

    async def get_run(self, thread_id: str, run_id: str) -> Json:
        """Returns `{run_id, status, metadata, …}`; the status is `pending` or `running` until the run has ended."""
        return object_of(await self._json("GET", run_path(thread_id, run_id)))

    async def list_runs(self, thread_id: str, limit: int = 10) -> list[Json]:
        """Returns the runs of a thread, the latest first."""
        return rows_of(await self._json("GET", f"{thread_path(thread_id)}/runs", query={"limit": limit}))

    async def decide(self, thread_id: str, approval_id: str, decision: Mapping[str, Any]) -> Json:
        """Approves, rejects or edits a tool call that waits for it: `{decision, message?, args?}`. Returns the
        approval, with the `run_id` of the run that goes on.
        """
        path = f"{thread_path(thread_id)}/approvals/{quote(approval_id, safe='')}"
        return object_of(await self._json("POST", path, dict(decision), safe=True))

    async def get_goal(self, thread_id: str) -> Json | None:
        """Returns the goal of a thread: `{objective, status, continuation_count, max_continuations, …}`; None if it has
        none, or has reached it.
        """
        return goal_of(await self._json("GET", f"{thread_path(thread_id)}/goal"))

    async def set_goal(self, thread_id: str, objective: str, *, max_continuations: int | None = None) -> Json | None:
        """Sets the goal of a thread, which may be new. It counts from the thread's next run on: send a message."""
        body = {"objective": objective, "max_continuations": max_continuations}
        return goal_of(await self._json("PUT", f"{thread_path(thread_id)}/goal", body, safe=True))

    async def clear_goal(self, thread_id: str) -> None:
        """Gives the goal of a thread up."""
        await self._json("DELETE", f"{thread_path(thread_id)}/goal", safe=True)

    async def get_folder(self, thread_id: str) -> Json | None:
        """Returns the folder of the server's machine that a thread works on: `{path, access, show, mounted}`; None if
        there is none.
        """
        return folder_of(await self._json("GET", f"{thread_path(thread_id)}/folder"))

    async def attach_folder(
        self, thread_id: str, path: str, access: str = "read-write", *, show: Sequence[str] = ()
    ) -> Json | None:
        """Lets a thread, which may be new, work on a folder of the server's machine: `read-write` or `read-only`.
        `show`: patterns of files that the agent may read although they look like secrets.
        """
        body = {"path": path, "access": access, "show": list(show)}
        return folder_of(await self._json("PUT", f"{thread_path(thread_id)}/folder", body, safe=True))

    async def detach_folder(self, thread_id: str) -> None:
        """Lets a thread work on its folder no more."""
        await self._json("DELETE", f"{thread_path(thread_id)}/folder", safe=True)

    async def get_variables(self, thread_id: str) -> list[Json]:
        """Returns the variables of a thread's commands: `{name, value, secret}`; `value` is None for a secret."""
        return _variables(await self._json("GET", f"{thread_path(thread_id)}/variables"))

    async def set_variable(self, thread_id: str, name: str, value: str, *, secret: bool = False) -> list[Json]:
        """Sets a variable for the commands of a thread, which may be new. Returns all of them."""
        body = {"value": value, "secret": secret}
        path = f"{thread_path(thread_id)}/variables/{quote(name, safe='')}"
        return _variables(await self._json("PUT", path, body, safe=True))

    async def remove_variable(self, thread_id: str, name: str) -> list[Json]:
        """Removes a variable of a thread's commands. Returns those that are left."""
        path = f"{thread_path(thread_id)}/variables/{quote(name, safe='')}"
        return _variables(await self._json("DELETE", path, safe=True))

    async def get_changes(self, thread_id: str, run_id: str) -> Json:
        """Returns what a run changed of files: `{available, files: [{path, status, diff, …}], summary, undone, …}`."""
        return object_of(await self._json("GET", f"{run_path(thread_id, run_id)}/workspace-changes"))

    async def undo(self, thread_id: str, run_id: str) -> list[str]:
        """Takes back what a run changed of files, all or nothing. Returns their paths. Raises `Refused`."""
        answer = object_of(await self._json("POST", f"{run_path(thread_id, run_id)}/undo", {}))
        return [str(path) for path in answer["paths"]]

    async def reset_agent(self) -> None:
        """Does nothing: every run uses the current configuration of its agent."""

    # ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_threads(self, limit: int = 10) -> Json:
        """Returns `{thread_list: [{thread_id, created_at, updated_at, latest_checkpoint_id, title}]}`, the latest
        first.
        """
        threads = await self.search_threads(limit, {"title": "values.title"})
        checkpoints: list[Json | None] = [None] * len(threads)
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def look(number: int, thread_id: str) -> None:
            async with limiter:
                with suppress(NotFound):  # deleted meanwhile
                    query = {"select": "checkpoint_id"}
                    checkpoints[number] = await self._json("GET", f"{thread_path(thread_id)}/state", query=query)

        try:
            async with anyio.create_task_group() as tasks:
                for number, thread in enumerate(threads):
                    tasks.start_soon(look, number, thread["thread_id"])
        except BaseExceptionGroup as group:
            raise _first(group) from None
        return {
            "thread_list": [
                {key: thread[key] for key in ROW}
                | {"latest_checkpoint_id": checkpoint.get("checkpoint_id"), "title": thread["extracted"]["title"]}
                for thread, checkpoint in zip(threads, checkpoints, strict=True)
                if checkpoint is not None
            ]
        }

    async def search_threads(self, limit: int = 10, extract: Mapping[str, str] | None = None) -> list[Json]:
        """Returns `[{thread_id, created_at, updated_at, extracted}]`, the latest first. `extract` names parts of the
        state by their paths, as `{"title": "values.title"}`.
        """
        body = {"limit": limit, "sort_by": "updated_at", "select": ROW, "extract": dict(extract or {})}
        return rows_of(await self._json("POST", "/api/threads/search", body, safe=True))

    async def create_thread(self, thread_id: str, metadata: Mapping[str, Any]) -> Json:
        """Creates a thread with metadata. An existing one stays as it is."""
        body = {"thread_id": thread_id, "metadata": dict(metadata), "if_exists": "do_nothing"}
        return object_of(await self._json("POST", "/api/threads", body, safe=True))

    async def describe_thread(self, thread_id: str) -> Json:
        """Returns the current `{thread_id, status, metadata, values, interrupts, …}` of a thread."""
        return object_of(await self._json("GET", thread_path(thread_id)))

    async def get_thread(self, thread_id: str) -> Json:
        """Returns `{thread_id, checkpoints: [{checkpoint_id, parent_checkpoint_id, ts, metadata, values,
        pending_writes}]}`, the oldest first.
        """
        states: list[Json] = []
        body: Json = {"limit": PAGE}
        while True:
            page = rows_of(await self._json("POST", f"{thread_path(thread_id)}/history", body, safe=True))
            ids = {state["checkpoint_id"] for state in states}
            new = [state for state in page if state["checkpoint_id"] not in ids]
            states += new
            if len(page) < PAGE or not new:
                break
            body["before"] = str(min(page, key=age)["checkpoint_id"])
        states.sort(key=age)
        return {"thread_id": thread_id, "checkpoints": [checkpoint_of(state) for state in states]}

    # ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_models(self) -> Json:
        """Returns `{models: [{name, model, display_name, …}], token_usage: {enabled}}`, the default model first."""
        return object_of(await self._json("GET", "/api/models"))

    async def list_skills(self, enabled_only: bool = False) -> Json:
        """Returns `{skills: [{name, description, category, enabled, …}], skipped: [{path, reason}]}`: your skills; also
        those that are off, unless `enabled_only`.
        """
        listing = object_of(await self._json("GET", "/api/skills"))
        if enabled_only:
            listing["skills"] = [skill for skill in listing["skills"] if skill["enabled"]]
        return listing

    async def get_skill(self, name: str) -> Json | None:
        """Returns a skill; None for an unknown name."""
        return await self._optional(_skill_path(name))

    async def update_skill(self, name: str, *, enabled: bool) -> Json:
        """Turns a skill on or off, and returns it: yours for you, others, as an administrator, for everybody."""
        return object_of(await self._json("PUT", _skill_path(name), {"enabled": enabled}, safe=True))

    async def install_skill(self, path: str | PathLike[str]) -> Json:
        """Installs a `.skill` archive of this machine as a skill of yours, by a thread that is deleted afterwards:
        `{success, skill_name, message}`. Its content is checked.
        """
        thread_id = uuid7()
        await self.create_thread(thread_id, {})
        try:
            [archive] = (await self.upload_files(thread_id, [path]))["files"]
            body = {"thread_id": thread_id, "path": archive["virtual_path"]}
            return object_of(await self._json("POST", "/api/skills/install", body))
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_SECONDS):
                await self._json("DELETE", thread_path(thread_id), safe=True)

    async def get_mcp_config(self) -> Json:
        """Returns `{mcp_servers: {name: {…}}}`, without secrets."""
        return object_of(await self._json("GET", "/api/mcp/config"))

    async def update_mcp_config(self, mcp_servers: Mapping[str, Mapping[str, Any]]) -> Json:
        """Replaces the MCP servers, and returns them as `get_mcp_config` does. A secret that is sent as it was returned
        stays as it is.
        """
        return object_of(await self._json("PUT", "/api/mcp/config", {"mcp_servers": mcp_servers}, safe=True))

    async def list_agents(self) -> Json:
        """Returns `{agents: [{name, description, model, …}]}`: your agents and the shared ones."""
        return object_of(await self._json("GET", "/api/agents"))

    async def get_model(self, name: str) -> Json | None:
        """Returns a model; None for an unknown name."""
        return await self._optional(f"/api/models/{quote(name, safe='')}")

    async def readiness(self) -> Json:
        """Returns `{status, missing: [{part, reason}]}`, the parts of the server that do not work as configured. Empty
        if the server has no readiness.
        """
        try:
            response = await (await self._transport()).fetch("GET", "/ready", accept=(503,))
        except NotFound:
            return {}
        return object_of(value_of(response.body.decode(errors="replace")))

    async def rebuild_projections(self) -> None:
        """Makes the server rebuild its read models from the log."""
        await self._json("POST", "/api/projections/rebuild", safe=True)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def upload_files(self, thread_id: str, files: Sequence[str | PathLike[str]]) -> Json:
        """Uploads files of this machine to a thread, which need not exist yet: `{success, files, message,
        skipped_files}`. All files are checked before any is sent; a folder is refused.
        """
        paths = await to_thread.run_sync(files_of, files)
        transport = await self._transport()
        return object_of(await transport.send_files(f"{thread_path(thread_id)}/uploads", "files", paths))

    async def get_usage(self, thread_id: str) -> Json:
        """Returns `{total_input_tokens, total_output_tokens, total_cost, currency, context_usage, …}` of a thread's
        ended runs. `total_cost` is null where a model has no price.
        """
        return object_of(await self._json("GET", f"{thread_path(thread_id)}/token-usage"))

    async def list_uploads(self, thread_id: str) -> Json:
        """Returns `{files: [{filename, size, path, virtual_path, artifact_url, extension, modified}], count}`."""
        return object_of(await self._json("GET", f"{thread_path(thread_id)}/uploads/list"))

    async def delete_upload(self, thread_id: str, filename: str) -> Json:
        """Deletes an upload and its converted text: `{success, message}`."""
        return object_of(await self._json("DELETE", f"{thread_path(thread_id)}/uploads/{quote(filename, safe='')}"))

    async def get_artifact(self, thread_id: str, path: str) -> tuple[bytes, str]:
        """Returns content and media type of a file of a thread, by its virtual path."""
        url = f"{thread_path(thread_id)}/artifacts/{quote(path.lstrip('/'))}"
        response = await (await self._transport()).fetch("GET", url, timeout=ARTIFACT_SECONDS)
        return response.body, response.headers.get("Content-Type", "").partition(";")[0]

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(
        self, thread_id: str, body: Mapping[str, Any], overrides: Overrides
    ) -> AsyncGenerator[StreamEvent, None]:
        check_names(overrides, Overrides.__optional_keys__)
        options: Overrides = {**self._defaults, **overrides}
        cancels = options.get("on_disconnect") != "continue"
        return self._registered(thread_id, {**body, **body_of(options)}, cancels=cancels)

    def _registered(
        self, thread_id: str, body: Mapping[str, Any], run_id: str = "", *, cancels: bool
    ) -> AsyncGenerator[StreamEvent, None]:
        events = self._events(thread_id, body, run_id, cancels)
        self._streams.add(events)
        return events

    async def _events(
        self, thread_id: str, body: Mapping[str, Any], run_id: str, cancels: bool
    ) -> AsyncGenerator[StreamEvent, None]:
        run = RunStream(await self._transport(), thread_id, body, run_id)
        translator = Translator(thread_id)
        if cancels:
            self._runs.add(run)
        try:
            async with aclosing(run.frames()) as frames:
                async for frame in frames:
                    for event in translator.take(frame):
                        yield event
            self._runs.discard(run)
        finally:
            await self._abandon(run)
        if (failure := translator.failure) is not None:
            text, name = str(failure.get("message") or "the run failed"), failure.get("name") or failure.get("error")
            raise RunFailed(text, str(name or "Error"), thread_id, translator.run_id, translator.usage)

    async def _abandon(self, run: RunStream) -> None:
        """Cancels the run of a closed stream, unless it shall continue."""
        if run in self._runs:
            self._runs.discard(run)
            with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_SECONDS), suppress(ClientError):
                await run.cancel()

    # ── accounts at MCP servers ─────────────────────────────────────────────────────────────────────────────────────

    async def list_mcp_access(self) -> list[Json]:
        """Returns `[{server, state, reason, expires_at, scope, issuer, personal}]`: your access to MCP servers."""
        return rows_of(object_of(await self._json("GET", "/api/mcp/oauth"))["servers"])

    async def begin_mcp_login(self, server: str, *, register: bool = False) -> str:
        """Returns the address at which to log in to an MCP server. `register`: as a new client, for servers that have
        forgotten the last one.
        """
        path = f"/api/mcp/oauth/{quote(server, safe='')}/login"
        return str(object_of(await self._json("POST", path, {"register": register}))["authorization_url"])

    async def end_mcp_login(self, server: str) -> Json:
        """Gives your access to an MCP server up: `{revoked, reason}`."""
        return object_of(await self._json("DELETE", f"/api/mcp/oauth/{quote(server, safe='')}", safe=True))

    async def _json(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, safe: bool = False
    ) -> Any:
        return await (await self._transport()).ask(method, path, body, query=query, safe=safe)

    async def _optional(self, path: str) -> Json | None:
        try:
            return object_of(await self._json("GET", path))
        except NotFound:
            return None

    async def _transport(self) -> Transport:
        """Returns the connections. The first call opens them, and starts the server if it is in this process."""
        async with self._opening:
            if self._closed:
                raise closed()
            if self._opened is None:
                target = self._elsewhere
                if target is None:
                    target = await to_thread.run_sync(self._acquire)
                self._opened = Transport(target, self._timeout, self._on_outage)
            return self._opened

    def _acquire(self) -> Target:
        """Returns the server in this process. The caller may be cancelled meanwhile: `_release` releases it."""
        from channels.client.local import lease  # brings a whole server

        with self._leasing:
            if self._lease is None:
                self._lease = lease(self._home, self._config, self._user)
            return self._lease.target

    def _release(self) -> None:
        with self._leasing:
            if self._lease is not None:
                self._lease.release()
                self._lease = None


def _skill_path(name: str) -> str:
    return f"/api/skills/{quote(name, safe='')}"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _variables(answer: Any) -> list[Json]:
    return [object_of(each) for each in object_of(answer)["variables"]]
