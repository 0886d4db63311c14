"""Serves skills: their installation and changes for people, `skill_search` and `skill_manage` for agents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Never

import msgspec

from actors.agent.setup.plan import Models, Planner, Toolset
from actors.agent.setup.skills import usable
from actors.skills.writer import Downloads, Writer
from core.actor import Actor, Progress
from core.config.load import ConfigSource
from core.errors import Invalid, NotFound
from core.files.folder import Folder
from core.files.paths import OUTPUTS
from core.log.store import EventLog
from core.mcp.tools import Catalogue
from core.runs.intake import Intake
from core.skills import trees
from core.skills.archive import SUFFIX
from core.skills.format import FILE
from core.skills.library import Library
from core.skills.search import search
from core.thread.entries import Run
from core.thread.state import ThreadState
from core.thread.threads import Threads
from core.user import agents

Name = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
Content = Annotated[str, msgspec.Meta(max_length=1 << 20)]


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="op"):
    user: str


class Install(Request, frozen=True, kw_only=True, tag="install"):
    """Installs an archive from the files of a thread. The answer is the skill's name."""

    thread: str
    path: str


class InstallStaged(Request, frozen=True, kw_only=True, tag="install_staged"):
    """Installs an archive that lies in a staged folder of the user's skills. The answer is the skill's name."""

    staged: str


class InstallUrl(Request, frozen=True, kw_only=True, tag="install_url"):
    """Fetches a skill from an address, and installs it, off. The answer is the skill's name."""

    url: Annotated[str, msgspec.Meta(max_length=4096)]


class Edit(Request, frozen=True, kw_only=True, tag="edit"):
    """Replaces the `SKILL.md` of a skill."""

    name: Name
    content: Content


class Remove(Request, frozen=True, kw_only=True, tag="remove"):
    name: Name


class Rollback(Request, frozen=True, kw_only=True, tag="rollback"):
    name: Name
    index: int = -1


class OfRun(Request, frozen=True, kw_only=True):
    """A request of an agent. The run says who it is and what it may use."""

    thread: str
    run: str
    subagent: str | None = None


class Search(OfRun, frozen=True, kw_only=True, tag="search"):
    """Searches the skills of the run. The answer is a list of texts."""

    query: Annotated[str, msgspec.Meta(max_length=2000)]


class Manage(OfRun, frozen=True, kw_only=True, tag="manage"):
    """Writes a skill of the run's user. The answer is a text."""

    action: Literal["create", "edit", "patch", "delete", "write_file", "remove_file"]
    name: Name
    content: Content | None = None
    path: str | None = None
    find: str | None = None
    replace: str | None = None
    expected_count: Annotated[int, msgspec.Meta(ge=1)] = 1


AnyRequest = Install | InstallStaged | InstallUrl | Edit | Remove | Rollback | Search | Manage


class Skills(Actor[Never]):
    name = "skills"

    def __init__(
        self,
        config: ConfigSource,
        models: Models,
        tools: Toolset,
        log: EventLog,
        home: Path,
        threads: Threads,
        subagents: Intake,
        skills: Library,
        downloads: Downloads,
    ) -> None:
        self._config, self._home, self._downloads = config, home, downloads
        self._threads, self._subagents = threads, subagents.threads
        self._planner = Planner(config, models, tools, agents.aggregates(log), home, skills, Catalogue(log))
        self._writer = Writer(skills, models, config, actor=self.name)

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Any:
        command: AnyRequest = self.parse(request, AnyRequest)
        user = command.user
        match command:
            case Install(thread=thread, path=path):
                return await self._install(user, thread, path)
            case InstallStaged(staged=staged):
                return await self._writer.install(user, trees.staged_file(self._home, user, staged))
            case InstallUrl(url=url):
                return await self._writer.install_from(user, url, self._downloads)
            case Edit(name=name, content=content):
                return await self._writer.edit(user, name, FILE, lambda _: content, "edit")
            case Remove(name=name):
                return await self._writer.remove(user, name)
            case Rollback(name=name, index=index):
                return await self._writer.rollback(user, name, index)
            case Search():
                return await self._search(command)
            case Manage():
                return await self._manage(command)

    async def _install(self, user: str, thread: str, path: str) -> str:
        virtual = path if path.startswith("/") else f"/{path}"
        if not virtual.endswith(SUFFIX) or not virtual.startswith(f"{OUTPUTS.rpartition('/')[0]}/"):
            raise Invalid(f"path: a file of the thread that ends in {SUFFIX} is expected, got {path[:200]!r}")
        try:
            with Folder(self._home, user, thread).tree().open(virtual) as descriptor:
                return await self._writer.install(user, Path(f"/proc/self/fd/{descriptor}"), thread=thread)
        except FileNotFoundError:
            raise NotFound(f"{path}: not found") from None

    async def _search(self, request: Search) -> list[str]:
        """Returns the skills that fit, of those whose tools the run has."""
        state, run = await self._run(request)
        kind = run.request.context.get("subagent_type") if request.subagent else None
        role = await self._planner.role(request.user, str(kind)) if kind else None
        setup = await self._planner.plan(run.request, request.user, run.model, role, folder=state.folder)
        tools = {tool.name for tool in setup.tools}
        hits = search((skill for skill in setup.skills.skills.values() if usable(skill, tools)), request.query)
        return [f"{skill.name}: {skill.description} [{skill.path}]" for skill in hits]

    async def _run(self, request: OfRun) -> tuple[ThreadState, Run]:
        """Returns the run that asks, and its thread. Raises `Invalid` if it is not the user's."""
        threads, identity, run = self._threads, request.thread, request.run
        if request.subagent is not None:
            threads, identity, run = self._subagents, request.subagent, request.subagent
        state = await threads.load(identity)
        if state.user != request.user or run not in state.runs:
            raise Invalid(f"Run {run} not found")
        return state, state.runs[run]

    async def _manage(self, request: Manage) -> str:
        await self._run(request)
        if not self._config.current().skill_evolution.enabled:
            raise Invalid("skill_manage is off (skill_evolution.enabled)")
        user, name, writer = request.user, request.name, self._writer
        thread, path = request.thread, request.path or FILE
        match request.action:
            case "create":
                await writer.create(user, name, _required(request.content, "content"), thread=thread)
            case "delete":
                await writer.remove(user, name, thread=thread)
            case "edit" | "write_file":
                if request.action == "write_file":
                    _required(request.path, "path")
                content = _required(request.content, "content")
                await writer.edit(user, name, path, lambda _: content, request.action, thread=thread)
            case "patch":
                await writer.edit(user, name, path, partial(_patched, request), "patch", thread=thread)
            case "remove_file":
                if _required(request.path, "path") == FILE:
                    raise Invalid(f"path: {FILE} is the skill itself; use delete")
                await writer.edit(user, name, path, _removed, "remove_file", thread=thread)
        return f"Done: {request.action} of {name}. It takes effect at the person's next message."


def _required(value: str | None, name: str) -> str:
    if value is None:
        raise Invalid(f"{name}: is needed for this action")
    return value


def _patched(request: Manage, content: str | None) -> str:
    """Returns a file with a text replaced. Raises `Invalid` unless the text is there `expected_count` times."""
    old, new = _required(request.find, "find"), _required(request.replace, "replace")
    if content is None:
        raise Invalid(f"path: there is no file {request.path or FILE}")
    count = content.count(old) if old else 0
    if count != request.expected_count:
        raise Invalid(f"find: the text is there {count} times, expected_count is {request.expected_count}")
    return content.replace(old, new)


def _removed(content: str | None) -> None:
    if content is None:
        raise Invalid("path: there is no such file")
