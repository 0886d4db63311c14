"""Skills: what there is, what is enabled, and the custom skills of the user with their history."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated, Any

import anyio.to_thread
import msgspec

from channels.http.deerflow.uploads import receive_one
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import BadRequest, Forbidden
from channels.http.server.live import ACTOR
from channels.http.server.routes import API, Form
from core.errors import Invalid, NotFound, Unavailable
from core.files.folder import Draft
from core.ids import safe_id
from core.skills import trees
from core.skills.archive import MOST_PACKED
from core.skills.facts import Version, scope_of
from core.skills.folders import Listing, content
from core.skills.folders import Skill as Known

WRITER = "skills"
FIELD = "file"
"""The field of a form that has an archive."""
GRACE_SECONDS = 30.0
"""Time for a change beyond that of the check by a model."""
FETCH_SECONDS = 60.0
"""Time beyond that for a skill that is fetched."""
MOST_SHOWN = 64_000
"""Characters of a file in an entry of a history."""


class Skill(msgspec.Struct):
    """`path`: of its `SKILL.md`, as agents see it. `editable`: whether it is yours to change."""

    name: str
    description: str
    license: str | None
    category: str
    enabled: bool
    editable: bool
    path: str


class CustomSkill(Skill):
    content: str


class Skipped(msgspec.Struct):
    """A skill that is not used, and why."""

    path: str
    reason: str


class Skills(msgspec.Struct):
    skills: list[Skill]
    skipped: list[Skipped]


class SwitchBody(msgspec.Struct):
    enabled: bool


class InstallBody(msgspec.Struct):
    """`path` as agents see it: `/mnt/user-data/outputs/x.skill`."""

    thread_id: str
    path: Annotated[str, msgspec.Meta(max_length=4096)]


class UrlBody(msgspec.Struct):
    """`url`: of a `.skill` or zip archive, of a `SKILL.md`, or of a skill's folder at GitHub (`…/tree/REF/PATH`)."""

    url: Annotated[str, msgspec.Meta(max_length=4096)]


class Installed(msgspec.Struct):
    success: bool
    skill_name: str
    message: str


class Uploaded(Installed):
    """`verdict`: what the check by a model said, and why; empty if skills are not checked."""

    verdict: dict[str, Any]


class EditBody(msgspec.Struct):
    content: Annotated[str, msgspec.Meta(max_length=256 * 1024)]


class RollbackBody(msgspec.Struct):
    """`history_index`: the entry before which the skill was as it shall be again."""

    history_index: int = -1


class Done(msgspec.Struct):
    success: bool = True


class Entry(msgspec.Struct):
    ts: str
    action: str
    author: str
    thread_id: str | None
    file_path: str
    prev_content: str | None
    new_content: str | None
    scanner: dict[str, Any]


class History(msgspec.Struct):
    history: list[Entry]


ROUTES = Routes(mounts=API)
_READ, _WRITE = "skills:read", "skills:write"


@ROUTES("GET", "/skills", _READ)
async def get_list(call: Call) -> Skills:
    """All skills, enabled or not, and those that cannot be used with the reason."""
    return _skills(await call.services.skills.of(call.user))


@ROUTES("POST", "/skills/reload", _WRITE, role="admin")
async def reload(call: Call) -> Skills:
    """Look for changed skills now. Runs do so themselves."""
    return _skills(await call.services.skills.of(call.user))


@ROUTES("POST", "/skills/install", _WRITE, errors=(400, 403, 404, 409))
async def install(call: Call, body: InstallBody) -> Installed:
    """Install a `.skill` archive from the files of a thread as a custom skill of yours. Its content is checked."""
    thread = safe_id(body.thread_id, "thread_id")
    await call.services.commands.state(call.user, thread)
    name = str(await _ask(call, {"op": "install", "thread": thread, "path": body.path}))
    return Installed(True, name, f"Skill '{name}' installed successfully")


@ROUTES("POST", "/skills/upload", _WRITE, body=Form(files=(FIELD,)), errors=(400, 409, 413))
async def upload(call: Call) -> Uploaded:
    """Install a `.skill` archive, or a zip with a skill in it, from the form field `file` as a custom skill of yours.
    Its content is checked.
    """
    with trees.staged(call.services.home, call.user) as staging, closing(Draft(staging)) as draft:
        await receive_one(call.request, FIELD, draft, MOST_PACKED)
        name = str(await _ask(call, {"op": "install_staged", "staged": f"{staging.name}/{draft.name}"}))
    return await _installed(call, name, f"Skill '{name}' installed successfully")


@ROUTES("POST", "/skills/install/url", _WRITE, errors=(400, 409, 503))
async def install_url(call: Call, body: UrlBody) -> Uploaded:
    """Install a skill from an address as a custom skill of yours. Its content is checked. It is off until you turn it
    on. The server connects to public addresses by https only, unless `skills.allow_private` is set.
    """
    name = str(await _ask(call, {"op": "install_url", "url": body.url}, FETCH_SECONDS))
    return await _installed(call, name, f"Skill '{name}' installed successfully; it is off until you turn it on")


@ROUTES("GET", "/skills/custom", _READ)
async def get_custom_list(call: Call) -> Skills:
    """Your custom skills, and those of everybody."""
    listing = await call.services.skills.of(call.user)
    custom = {name: skill for name, skill in listing.skills.items() if skill.category == "custom"}
    return _skills(listing._replace(skills=custom))


@ROUTES("GET", "/skills/custom/{name}", _READ, errors=(404,))
async def get_custom(call: Call, name: str) -> CustomSkill:
    """A custom skill with the text of its `SKILL.md`."""
    skill = await call.services.skills.get(call.user, name)
    if skill.category != "custom":
        raise NotFound(f"Custom skill '{name}' not found")
    text = await anyio.to_thread.run_sync(skill.text, abandon_on_cancel=True)
    return CustomSkill(**msgspec.structs.asdict(_skill(skill)), content=text)


@ROUTES("PUT", "/skills/custom/{name}", _WRITE, errors=(400, 404, 409))
async def edit(call: Call, name: str, body: EditBody) -> CustomSkill:
    """Replace the `SKILL.md` of a custom skill of yours. Its content is checked."""
    await _ask(call, {"op": "edit", "name": name, "content": body.content})
    return await get_custom(call, name)


@ROUTES("DELETE", "/skills/custom/{name}", _WRITE, errors=(400, 404))
async def delete(call: Call, name: str) -> Done:
    """Remove a custom skill of yours. A rollback brings it back."""
    await _ask(call, {"op": "remove", "name": name})
    return Done()


@ROUTES("GET", "/skills/custom/{name}/history", _READ, errors=(404,))
async def history(call: Call, name: str) -> History:
    """The last 20 changes of a custom skill of yours, oldest first."""
    scope = await call.services.skills.scopes.load(scope_of(call.user))
    if not (versions := scope.versions.get(name)):
        raise NotFound(f"Custom skill '{name}' not found, and has no history")
    return History(await anyio.to_thread.run_sync(lambda: [_entry(call, version) for version in versions]))


@ROUTES("POST", "/skills/custom/{name}/rollback", _WRITE, errors=(400, 404, 409))
async def rollback(call: Call, name: str, body: RollbackBody) -> CustomSkill:
    """Put a custom skill of yours back to what it was before a change. Its content is checked again."""
    await _ask(call, {"op": "rollback", "name": name, "index": body.history_index})
    return await get_custom(call, name)


@ROUTES("GET", "/skills/{name}", _READ, errors=(404,))
async def get(call: Call, name: str) -> Skill:
    """A skill."""
    return _skill(await call.services.skills.get(call.user, name))


@ROUTES("PUT", "/skills/{name}", _WRITE, errors=(403, 404))
async def switch(call: Call, name: str, body: SwitchBody) -> Skill:
    """Turn a skill on or off: yours for you; others, which an administrator may, for everybody."""
    library = call.services.skills
    skill = await library.get(call.user, name)
    if not skill.own and not call.principal.is_admin:
        raise Forbidden("Only an administrator may turn the skills of everybody on or off")
    return _skill(await library.switch(call.user, skill, body.enabled, actor=ACTOR, by=call.user))


async def _installed(call: Call, name: str, message: str) -> Uploaded:
    """Returns the answer to an installation, with the verdict."""
    scope = await call.services.skills.scopes.load(scope_of(call.user))
    newest = next(iter(scope.versions.get(name, ())[-1:]), None)
    return Uploaded(True, name, message, newest.checked if newest else {})


async def _ask(call: Call, request: Mapping[str, Any], more_seconds: float = 0) -> Any:
    """Asks for a change. What is wrong with a skill is 400, as in DeerFlow."""
    seconds = call.config.skill_evolution.timeout_seconds + GRACE_SECONDS + more_seconds
    try:
        async with asyncio.timeout(seconds):
            return await call.services.call(WRITER, {"user": call.user, **request})
    except TimeoutError:
        raise Unavailable(f"skills: no answer in {seconds:g} s") from None
    except Invalid as error:
        raise BadRequest(str(error)) from None


def _skills(listing: Listing) -> Skills:
    skipped = [Skipped(entry.path, entry.reason) for entry in listing.skipped]
    return Skills([_skill(skill) for skill in listing.skills.values()], skipped)


def _skill(skill: Known) -> Skill:
    return Skill(skill.name, skill.description, skill.license, skill.category, skill.enabled, skill.own, skill.path)


def _entry(call: Call, version: Version) -> Entry:
    """Returns an entry with the file as it was before and after. Blocks: call it in a thread."""

    def text(tree: str | None) -> str | None:
        if tree is None:
            return None
        try:
            return content(trees.tree_of(call.services.home, call.user, tree) / version.path)[:MOST_SHOWN]
        except Invalid:
            return None

    before, after = text(version.before), text(version.tree)
    return Entry(
        version.at, version.action, version.actor, version.thread, version.path, before, after, version.checked
    )
