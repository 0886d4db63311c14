"""The variables of a thread's commands: shown, set, removed. Values of secrets are never shown."""

from __future__ import annotations

from typing import Annotated

import msgspec
from anyio import to_thread

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.events import VariableSet
from core.identity.seal import Seal
from core.sandbox.variables import MAX_VALUE, variable_set
from core.thread.state import ThreadState


class VariableBody(msgspec.Struct):
    """`secret`: seal the value, and never show it. Values that look like secrets are sealed in any case."""

    value: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_VALUE)]
    secret: bool = False


class Variable(msgspec.Struct):
    """`value` is null for a secret."""

    name: str
    value: str | None
    secret: bool


class Variables(msgspec.Struct):
    variables: list[Variable]


ROUTES = Routes(mounts=API, tag="variables")
_PATH = "/threads/{thread_id}/variables"


@ROUTES("GET", _PATH, "threads:read")
async def get(thread: OwnedThread) -> Variables:
    """The variables that are set for the commands of a thread, by name."""
    return _answer(thread.state)


@ROUTES("PUT", f"{_PATH}/{{name}}", "threads:write", errors=(409,))
async def put(call: Call, body: VariableBody, name: str) -> Variables:
    """Set a variable for all commands of a thread, which is created if it does not exist.

    Its agent gets it from the next run on, and so do its subagents; other threads, copies and imports of the thread do
    not. A secret is sealed in the log and masked in what commands print; the agent can use it. Commands that get
    secrets of a skill get no variables.
    """
    commands, thread_id = call.services.commands, call.thread_id
    await commands.state_or_empty(call.user, thread_id)
    seal = Seal(call.services.home)
    fact = await to_thread.run_sync(
        lambda: variable_set(seal, thread_id, name, body.value, secret=body.secret, by=call.user)
    )
    return _answer(await commands.set_variable(call.user, thread_id, fact))


@ROUTES("DELETE", f"{_PATH}/{{name}}", "threads:write", errors=(409,))
async def delete(call: Call, thread: OwnedThread, name: str) -> Variables:
    """Remove a variable. Of one that is not set, nothing happens."""
    return _answer(await call.services.commands.remove_variable(call.user, thread.id, name))


def _answer(state: ThreadState) -> Variables:
    return Variables([_without_secret(variable) for _, variable in sorted(state.variables.items())])


def _without_secret(variable: VariableSet) -> Variable:
    secret = bool(variable.sealed)
    return Variable(variable.name, None if secret else variable.value, secret)
