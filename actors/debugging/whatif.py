"""What-if (`core.replay.whatif`): the agent's loop, live, from a fork point on, in a copy of the thread's files."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio
import anyio.to_thread
import msgspec
import structlog
import yaml

from actors.agent.run.attempt import no_progress
from actors.agent.setup.plan import RunSetup
from actors.lead import Lead
from actors.sandbox import Sandbox
from actors.wiring.options import Options
from actors.wiring.parts import Toolset, library
from actors.wiring.sandboxes import provider_for
from adapters import guardrails
from adapters.models.configured import Configured
from adapters.restoring import restored
from adapters.workspace import LocalWorkspace
from core.actor import Progress
from core.config.load import Config, ConfigSource
from core.errors import Invalid, Refused, SikaError, sentence_of
from core.events import (
    ModelCompleted,
    Record,
    RunCompleted,
    RunFailed,
    ToolCompleted,
    ToolRequested,
)
from core.files.folder import Folder
from core.files.paths import make_home
from core.files.undo import later_changes, later_uploads
from core.files.workspace import Entry, FileChange
from core.replay.moments.files import later_scans, uploads_after
from core.replay.recorded import RecordedLog, read_of
from core.replay.source import Source
from core.replay.whatif import results as whatif_results
from core.replay.whatif.journal import SANDBOXED, SampleJournal
from core.replay.whatif.running import MOST_SAMPLES, Changes, Estimate, Point, Result, Sample, fork_point
from core.runs.journal import CallRef, Failed, Journal, Paused
from core.thread.fold import fold
from core.thread.state import ThreadState
from core.thread.usage import Price, price
from core.tools import Effect

if TYPE_CHECKING:
    from core.log.reader import Hold
    from core.log.store import EventLog

log = structlog.get_logger("sika.whatif")

RUN_SECONDS = 3600.0
"""Deadline of one sample."""
Ask = Callable[[str, Mapping[str, Any], Callable[[str], Awaitable[None]]], Awaitable[Any]]


class Adjusted(ConfigSource):
    """The configuration with some values set."""

    def __init__(self, options: Options, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        self._adjusted: tuple[Config | None, Config | None] = None, None
        super().__init__(options.config, options.additions)
        self.current()

    def current(self) -> Config:
        config = super().current()
        if self._adjusted[0] is not config or self._adjusted[1] is None:
            changed = config
            for key, text in self._settings.items():
                changed = _with(changed, key, key.split("."), text)
            self._adjusted = config, changed
        assert self._adjusted[1] is not None
        return self._adjusted[1]


def _with(section: Any, key: str, names: Sequence[str], text: str) -> Any:
    """Returns the section with a value set. Raises `Invalid` with the key for one that is unknown, or a wrong value."""
    name, rest = names[0], names[1:]
    fields = {field.encode_name: field for field in msgspec.structs.fields(section)} if _is_struct(section) else {}
    if name not in fields:
        raise Invalid(f"--set {key}: unknown key {name!r}; there are: {', '.join(fields) or 'none'}")
    field = fields[name]
    try:
        if rest:
            value = _with(getattr(section, field.name), key, rest, text)
        else:
            value = msgspec.convert(yaml.safe_load(text), field.type, strict=False)
        return msgspec.structs.replace(section, **{field.name: value})
    except (ValueError, yaml.YAMLError) as error:  # of the value, or of what it does not fit to
        raise Invalid(f"--set {key}: {error}") from None


def _is_struct(value: Any) -> bool:
    return isinstance(value, msgspec.Struct)


class WhatIf:
    """Executes what-ifs of the threads of a source. `log`: holds agents, skills and memories, if not the source."""

    def __init__(
        self,
        source: Source,
        options: Options,
        changes: Changes,
        *,
        log: EventLog | None = None,
        allow_effects: bool = False,
        call: Ask | None = None,
    ) -> None:
        self._read, self._options, self._changes = read_of(source), options, changes
        self._config = Adjusted(options, changes.settings)
        self._log = log or cast("EventLog", RecordedLog(source))
        self._allowed, self._call = allow_effects, call
        config = self._config.current()
        if changes.model and config.models and changes.model not in {model.name for model in config.models}:
            raise Invalid(f"model {changes.model!r}: there are: {', '.join(model.name for model in config.models)}")
        self._toolset = Toolset(config)

    async def point(self, thread_id: str, at: int, hold: Hold = lambda record: None) -> Point:
        """Returns the fork point; `hold` is told each event that is held. Raises `NotFound` and `Invalid`."""
        return await fork_point(self._read, thread_id, at, self._changes, hold)

    def estimate(self, point: Point) -> Estimate:
        """Estimates the usage of one sample."""
        return whatif_results.estimated(point, self._changes.model, self._price)

    async def run(
        self,
        point: Point,
        samples: int = 1,
        progress: Callable[[int], None] = lambda number: None,
        watch: Callable[[Record], None] = lambda record: None,
    ) -> Result:
        """Executes the samples one after the other; `progress` is called after each, `watch` with each event."""
        if not 1 <= samples <= MOST_SAMPLES:
            raise Invalid(f"samples: 1 to {MOST_SAMPLES}, got {samples}")
        thread_id, results, missing = point.thread.id, list[Sample](), list[str]()
        started = next((r.seq for r in point.before), point.at)  # a scan follows a run: files are those before it
        scans = await later_scans(self._read, thread_id, min(started, point.at))
        for number in range(samples):
            sample, missing = await self._sample(point, scans, watch)
            results.append(sample)
            progress(number + 1)
        upto = point.after[-1].seq if point.after else point.at
        state = fold([*point.before, *point.after])
        run = (point.after[0].run if point.after else None) or point.run
        changed, _ = later_changes([r for r in scans if _upto(r) <= upto], point.at)
        recorded = whatif_results.future(state, run, point.after, self._price, files=changed)
        return Result(
            thread=thread_id,
            run=run,
            at=point.at,
            changes=self._changes.lines(),
            recorded=recorded,
            samples=results,
            not_restored=missing,
        )

    def _price(self, used: Mapping[str, Any]) -> Price:
        models = self._config.current().models
        return price(used, {model.name: model.pricing for model in models if model.pricing is not None})

    # ── one sample ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _sample(
        self, point: Point, scans: Sequence[Record], watch: Callable[[Record], None]
    ) -> tuple[Sample, list[str]]:
        journal = SampleJournal(point, self._changes, self._allowed)
        journal.watch = watch
        tools = {tool.name: tool for tool in self._toolset(self._config.current())}

        def leaves(name: str, effect: Effect) -> bool:
            tool = tools.get(name)
            return name not in SANDBOXED and (effect != "pure" or (tool is not None and tool.group == "web"))

        journal.leaves = leaves
        async with self._copied(point, journal.state, scans) as copy:
            begun = await copy.scan()
            go_on = _on_journals(self._changes.prompt, **self._parts(copy))
            await self._perform(go_on, journal, copy)
            files = await copy.changed(*begun)
        future = whatif_results.future(
            journal.state, journal.id, journal.records, self._price, calls=journal.made, files=files
        )
        return Sample(future, whatif_results.beside(point, journal.records)), copy.missing

    async def _perform(self, go_on: GoOn, journal: SampleJournal, copy: _Copy) -> None:
        try:
            async with asyncio.timeout(RUN_SECONDS):
                await go_on(journal, partial(self._answered, copy))
            journal.append(RunCompleted())
        except (Paused, Failed) as end:
            journal.append(end.event)
        except Exception as error:  # of a model, a tool, a policy: this sample failed
            log.info("a sample failed", error=f"{type(error).__name__}: {error}")
            journal.append(RunFailed(error=type(error).__name__, text=sentence_of(error)))

    async def _answered(self, copy: _Copy, actor: str, request: Mapping[str, Any], progress: Progress) -> Any:
        """Answers the request of a tool: the sandbox actor works in the copy, others only with effects allowed.

        Subagents never: they would write to the logs of the thread itself.
        """
        if actor == Sandbox.name:
            return await copy.sandbox.answer(request, progress)
        if self._allowed and self._call is not None and actor != "subagents":
            return await self._call(actor, request, progress)
        raise Refused(f"blocked in what-if: the {actor} actor is outside the copy of the sandbox")

    def _parts(self, copy: _Copy) -> dict[str, Any]:
        home = self._options.home
        return {
            "config": self._config,
            "models": Configured(self._config),
            "tools": self._toolset,
            "call": partial(self._answered, copy),
            "log": self._log,
            "home": home,
            "guardrails": guardrails.load,
            "skills": library(self._log, self._config, home),
        }

    @asynccontextmanager
    async def _copied(self, point: Point, state: ThreadState, scans: Sequence[Record]) -> AsyncIterator[_Copy]:
        """Yields a sandbox with the files as they were at the fork point."""
        thread_id, config = point.thread.id, self._config
        with tempfile.TemporaryDirectory(prefix="sika-whatif-", ignore_cleanup_errors=True) as directory:
            home = Path(directory)
            await anyio.to_thread.run_sync(make_home, home)
            origin, target = Folder(self._options.home, state.user, thread_id), Folder(home, state.user, thread_id)
            started = next((r.seq for r in point.before), point.at)  # a scan follows a run: files are those before it
            changes, incomplete = later_changes(scans, started)
            uploads = later_uploads(await uploads_after(self._read, point.thread, point.at), point.at)
            work = partial(restored, origin, target, changes, uploads, incomplete=incomplete, folder=state.folder)
            missing = await anyio.to_thread.run_sync(_own_skills, origin, target)
            missing += await anyio.to_thread.run_sync(work)
            provider = await provider_for(home, config.current(), config.project)
            sandbox = Sandbox(provider, config.current().sandbox)
            copy = _Copy(sandbox, LocalWorkspace(home), state.user, thread_id, missing)
            copy.missing.extend([text async for text in _repeated(copy, point)])
            yield copy


def _own_skills(origin: Folder, copy: Folder) -> list[str]:
    """Puts the user's own skills beside the copy; a sandbox mounts them read-only. Blocks. Returns what it lacks."""
    skills, place = (folder.root.parent.parent / "skills" for folder in (origin, copy))
    if not skills.is_dir():
        return ["the user's own skills: their directory is not here"]
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.symlink_to(skills.resolve(), target_is_directory=True)
    return []


class _Copy(NamedTuple):
    """A copy of a thread's files, and the sandbox that works in it. `missing`: what it lacks, in words."""

    sandbox: Sandbox
    workspace: LocalWorkspace
    user: str
    thread: str
    missing: list[str]

    async def scan(self) -> tuple[Mapping[str, Entry], float]:
        """Returns the files, and the time of the scan."""
        seen = (await self.workspace.scan(self.user, self.thread, {}, {}, 0, time.time())).seen
        return seen, time.time()

    async def changed(self, files: Mapping[str, Entry], since: float) -> Sequence[FileChange]:
        """Returns the changes since a scan."""
        scan = await self.workspace.scan(self.user, self.thread, files, files, since, time.time())
        return scan.changes


async def _repeated(copy: _Copy, point: Point) -> AsyncIterator[str]:
    """Repeats the calls by which the run changed files before the fork point. Yields those with another outcome."""
    called: dict[str, tuple[str, dict[str, Any], int]] = {}
    begun: set[str] = set()
    for record in point.before:
        match record.event:
            case ModelCompleted() as answer:
                for call in answer.message.get("tool_calls") or ():
                    called[str(call["id"])] = str(call["name"]), dict(call.get("args") or {}), record.seq
            case ToolRequested(call_id=call_id, name=name) as intent if call_id in called:
                begun.add(call_id)  # a call that a policy refused has no intent, and is not made here either
                before = called[call_id]
                called[call_id] = name, before[1] if intent.args is None else intent.args, before[2]
            case ToolCompleted() as outcome if outcome.call_id in begun:
                name, args, answered = called[outcome.call_id]
                if (request := _request(name, args)) is None:
                    continue
                about = {"user": copy.user, "thread": copy.thread, "run": point.run}
                key = CallRef(point.run, answered, outcome.call_id).key
                try:
                    response = await copy.sandbox.answer({**request, **about, "call_id": key}, no_progress)
                    text = response.get("error", "") if isinstance(response, Mapping) else str(response)
                except SikaError as error:
                    text = str(error)
                if name == "bash" and text != str(outcome.message.get("content", "")).removeprefix("Error: "):
                    yield f"bash at {record.seq} had another output when it was repeated: its files may differ"


def _request(name: str, args: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the request to the sandbox of a call that changes files."""
    match name:
        case "bash":
            return {"op": "exec", "command": args.get("command", "")}
        case "write_file":
            fields = {"path": args.get("path", ""), "content": args.get("content", "")}
            return {"op": "write", **fields, "append": bool(args.get("append", False))}
        case "str_replace":
            fields = {"path": args.get("path", ""), "old": args.get("old_str", ""), "new": args.get("new_str", "")}
            return {"op": "replace", **fields, "every": bool(args.get("replace_all", False))}
        case "edit_files":
            return {"op": "edit", "edits": [_edit(edit) for edit in args.get("edits", ()) if isinstance(edit, Mapping)]}
    return None


def _edit(edit: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"path": edit.get("path", ""), "old": edit.get("old_str", ""), "new": edit.get("new_str", "")}
    return {**fields, "every": bool(edit.get("replace_all", False))}


GoOn = Callable[[Journal, Ask], Awaitable[None]]


def _on_journals(prompt: str | None, **parts: Any) -> GoOn:
    """Returns a function that works on a run from its folded state to its end, by a lead with this prompt."""

    class OnJournals(Lead):  # not in the module: the actors of a server are the classes that it finds there
        async def _setup(self, journal: Journal) -> RunSetup:
            setup = await super()._setup(journal)
            return setup if prompt is None else replace(setup, prompt=prompt)

        async def go_on(self, journal: Journal, call: Ask) -> None:
            setup = await self._setup(journal)
            await self._work(self._attempt_at(setup, journal, call), setup)

    return OnJournals(**parts).go_on


def _upto(record: Record) -> int:
    return int(getattr(record.event, "upto", 0))
