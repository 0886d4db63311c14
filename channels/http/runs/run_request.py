"""A run as a client asks for it, checked and brought into the form of the log."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from channels.http.runs import inputs
from channels.http.server.errors import BadRequest
from channels.http.server.parsing import check
from core import reasons
from core.chat.push import Push
from core.config.load import Config
from core.config.redaction import redactor
from core.errors import Invalid
from core.events import Json, Resume, RunRequested
from core.ids import stamp
from core.lifecycle import DELIVER
from core.skills.library import Library
from core.skills.selection import known
from core.user.agents import Effort
from core.user.assistants import NOT_FROM_CLIENTS, Assistant, applied
from core.user.schedules import Multitask

MODES = ("values", "updates", "messages", "messages-tuple", "custom", "tasks", "checkpoints", "debug", "events")
"""The stream modes."""
MOST_SECONDS = 366 * 86_400
DEMO = "demo"
"""The model that answers offline when none is configured."""
VARIABLES = "PUT /api/threads/{thread_id}/variables/{name}"
NODES = ("*", "model", "tools")
"""Where a run can pause: the nodes of the agent's graph, as `GET /assistants/{id}/graph` shows them."""


OPTIONS: Mapping[str, Any] = {
    "model_name": str | None,
    "model": str | None,
    "mode": Literal["", "flash", "thinking", "pro", "ultra"] | None,
    "reasoning_effort": Effort | Literal[""] | None,
    "available_skills": list[str] | None,
    "agent_name": str | None,
    "thinking_enabled": bool | None,
    "is_plan_mode": bool | None,
    "subagent_enabled": bool | None,
    "is_bootstrap": bool | None,
    "max_concurrent_subagents": int | None,
    "max_total_subagents": int | None,
    "unattended": bool | None,
}
"""Options of a run in its context (DeerFlow's names). Other keys are the client's own."""
METADATA: Mapping[str, Any] = {DELIVER: Push | None}
"""Metadata of a run that have an effect. Other keys are the client's own."""
CONFIG: Mapping[str, Any] = {"recursion_limit": float | None, "tags": list[str] | None, "run_name": str | None}


def _says(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class RunFields(msgspec.Struct, kw_only=True):
    """The fields of a request for a run, now or by a schedule."""

    assistant_id: Annotated[str | None, _says("An assistant's id, or its name; `lead_agent` by default.")] = None
    input: Annotated[
        dict[str, Any] | None,
        _says('The state to write before the run, as `{"messages": [{"role": "user", "content": "Hi"}]}`.'),
    ] = None
    stream_mode: Annotated[
        str | list[str] | None,
        _says(
            "One or several of `values` (the default), `updates`, `messages`, `messages-tuple`, `custom`, `tasks`, "
            "`checkpoints`, `debug`, `events`."
        ),
    ] = None
    stream_subgraphs: Annotated[bool | None, _says("Whether to stream what subagents do, too; false by default.")] = (
        None
    )
    config: Annotated[
        dict[str, Any] | None,
        _says("`configurable` and `context` (see the latter), and `recursion_limit`, the most model calls."),
    ] = None
    context: Annotated[
        dict[str, Any] | None,
        _says(
            "Options of the agent: `model_name`, `mode` (`flash`, `thinking`, `pro`, `ultra`), `thinking_enabled`, "
            "`reasoning_effort`, `is_plan_mode`, `subagent_enabled`, `max_concurrent_subagents` (1 to 4), "
            "`max_total_subagents` (1 to 200), `agent_name`, `available_skills` (names of the only ones), "
            "`is_bootstrap`, and `unattended`: nobody answers, so the agent decides (by default so with a webhook, in "
            "schedules and without a thread). `is_plan_mode` and `subagent_enabled` are true unless a mode or you say "
            "otherwise. Other keys go on to tools; secrets are refused, as all this stands in the log. What "
            "`config` says in `context`, or else in `configurable`, counts more."
        ),
    ] = None
    metadata: Annotated[
        dict[str, Any] | None,
        _says(
            "What the run is annotated with. `deliver` names a chat to which its outcome goes, too: "
            '`{"channel": "slack", "chat": "C0123456789"}`.'
        ),
    ] = None
    interrupt_before: Annotated[
        str | list[str] | None, _says("Nodes before which to pause, or `*`; none by default.")
    ] = None
    interrupt_after: Annotated[
        str | list[str] | None, _says("Nodes after which to pause, or `*`; none by default.")
    ] = None
    webhook: Annotated[str | None, _says("An address that is sent the run when it has ended.")] = None
    feedback_keys: Annotated[
        list[str] | None, _says("Names of ratings: after a success, `feedback` in the stream says where to send each.")
    ] = None
    durability: Annotated[
        Literal["sync", "async", "exit"] | None, _says("Without effect: every step is a checkpoint at once.")
    ] = None
    checkpoint_during: Annotated[bool | None, _says("Without effect, as `durability`.")] = None
    stream_resumable: Annotated[bool | None, _says("Without effect: every stream can be resumed.")] = None
    langsmith_tracer: Annotated[
        dict[str, Any] | None, _says("Without effect: where traces go is decided by the server's configuration.")
    ] = None


class RunBody(RunFields, kw_only=True):
    """`config.tags` and `config.run_name` are kept and shown with the run; they change nothing."""

    command: Annotated[Command | None, _says("Instead of an input: answers an interrupt, or writes to the state.")] = (
        None
    )
    checkpoint: Annotated[dict[str, Any] | None, _says("`checkpoint_id` within an object, as the SDKs send it.")] = None
    checkpoint_id: Annotated[str | None, _says("The checkpoint to go on from; by default the newest.")] = None
    multitask_strategy: Annotated[
        Multitask | None,
        _says(
            "What to do if the thread has a run at work: `reject` this one (409, the default unless the configuration "
            "says another, `runs.multitask_strategy`), `enqueue` it, or end the other by `interrupt` or `rollback`."
        ),
    ] = None
    on_disconnect: Annotated[
        Literal["cancel", "continue"] | None,
        _says("Whether the run ends with the client's connection (`cancel`) or not (`continue`, the default)."),
    ] = None
    on_completion: Annotated[
        Literal["delete", "keep"] | None,
        _says("Whether the thread of a run without one stays (`keep`) or goes with it (`delete`, the default)."),
    ] = None
    if_not_exists: Annotated[
        Literal["reject", "create"] | None,
        _says("What a run on a thread does if there is none: `reject` (404, the default), or `create` it."),
    ] = None
    regenerate: Annotated[
        Regenerate | None, _says("Instead of an input: gives an answer again, beside the one that is there.")
    ] = None
    edit: Annotated[
        Edit | None, _says("Instead of an input: asks a question in other words, beside what is there.")
    ] = None
    after_seconds: Annotated[float | None, _says("How long to wait before the run begins; 0 by default.")] = None


class Regenerate(msgspec.Struct):
    """`message_id`: a message of an answer, on any branch."""

    message_id: str


class Edit(msgspec.Struct):
    """`message_id`: a question, on any branch; `text`: the words in its place. Its pictures and files stay."""

    message_id: str
    text: str


class Command(msgspec.Struct):
    """LangGraph's `Command`, as far as it makes sense from outside: answer an interrupt, or write to the state."""

    resume: Any = msgspec.UNSET
    update: dict[str, Any] | list[tuple[str, Any]] | None = None
    goto: Any = None


class RunSpec(NamedTuple):
    """A run to be requested, and what only the channel needs to know about it."""

    request: RunRequested
    create: bool
    keep: bool
    thread_id: str | None
    """The thread a stateless run names."""
    metadata: Json
    """Metadata of a thread that is created for this run."""

    @property
    def modes(self) -> Sequence[str]:
        return self.request.stream_modes

    @property
    def cancel(self) -> bool:
        return self.request.on_disconnect == "cancel"


def run_spec(body: RunBody, assistant: Assistant, user: str, strategy: Multitask = "reject") -> RunSpec:
    """A run of an assistant; `strategy`: the default of the configuration. Raises `Invalid`, `BadRequest`."""
    config = body.config or {}
    configurable = _mapping(config.get("configurable"), "config.configurable")
    resume, input = _command(body)
    request = RunRequested(
        assistant=assistant.name,
        input=input,
        base=_base(body, configurable),
        config={key: value for key, value in config.items() if key != "context"},
        context=_context(config, configurable, body.context or {}, user),
        metadata=body.metadata or {},
        multitask=body.multitask_strategy or strategy,
        stream_modes=modes(body.stream_mode),
        subgraphs=bool(body.stream_subgraphs),
        on_disconnect=body.on_disconnect or "continue",
        not_before=_not_before(body.after_seconds),
        on_completion="delete" if body.on_completion == "delete" else "keep",
        interrupt_before=_nodes(body.interrupt_before, "interrupt_before"),
        interrupt_after=_nodes(body.interrupt_after, "interrupt_after"),
        resume=resume,
        webhook=body.webhook,
        feedback_keys=body.feedback_keys or [],
    )
    named = configurable.get("thread_id")
    return RunSpec(
        applied(assistant, request),
        create=body.if_not_exists == "create",
        keep=body.on_completion == "keep",
        thread_id=named if isinstance(named, str) and named else None,
        metadata={"graph_id": assistant.graph_id, "assistant_id": assistant.id},
    )


def check_options(config: Json | None, context: Json | None, metadata: Json | None, models: Collection[str]) -> None:
    """Tells whether options, and metadata that have an effect, are of their type, and the model is one of these.
    Raises `Invalid`, `BadRequest`, by place; also for `secrets`, which would stand in the log.
    """
    config = config or {}
    check(config, CONFIG, "config")
    check(metadata or {}, METADATA, "metadata")
    for where, options in _sections(config, context):
        check(options, OPTIONS, where)
        if options.get("secrets"):
            raise Invalid(f"{where}.secrets: would stand in the log; set them as variables of the thread: {VARIABLES}")
        for name in ("model_name", "model"):
            if options.get(name) and options[name] not in models:
                raise BadRequest(f"{where}.{name}: no model {options[name][:80]!r}; there are: {', '.join(models)}")


async def check_skills(skills: Library, user: str, config: Json | None, context: Json | None) -> None:
    """Raises `Invalid`, by place, if `available_skills` names a skill that the user does not have."""
    for where, options in _sections(config or {}, context):
        if options.get("available_skills"):
            known(await skills.of(user), options["available_skills"], f"{where}.available_skills")


def _sections(config: Json, context: Json | None) -> Iterator[tuple[str, Json]]:
    """Yields the places of options, and what each has."""
    yield "context", _mapping(context, "context")
    for name in ("configurable", "context"):
        yield f"config.{name}", _mapping(config.get(name), f"config.{name}")


def model_names(config: Config) -> list[str]:
    """Names of the models that clients may ask for, by default the first; `demo` if none is configured."""
    return [redactor.known(model.name) for model in config.models] or [DEMO]


def modes(named: str | list[str] | None) -> list[str]:
    """The stream modes, each once; `values` if none is named."""
    chosen = [named] if isinstance(named, str) else named or ["values"]
    for mode in chosen:
        if mode not in MODES:
            raise Invalid(f"stream_mode: one of {', '.join(MODES)}, got {mode[:40]!r}")
    return list(dict.fromkeys(chosen))


def checkpoint_seq(value: Any, where: str) -> int | None:
    """A checkpoint id as a log sequence."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    raise Invalid(f"{where}: not a checkpoint of this thread: {str(value)[:40]!r}")


def _command(body: RunBody) -> tuple[Resume | None, Json | None]:
    """The answer to an interrupt, and the state to write first."""
    input = None if body.input is None else inputs.with_messages(body.input, "input")
    command = body.command
    if command is None:
        return None, input
    if command.goto:
        raise Invalid("command.goto: this agent goes where its messages lead; it cannot be sent to a node")
    if command.update:
        update = inputs.with_messages(dict(command.update), "command.update")
        if input is not None:
            raise Invalid("command.update: a run takes an input or an update, not both")
        input = update
    if command.resume is msgspec.UNSET:
        return None, input
    if input is not None and input.get("messages"):
        raise Invalid("command.resume: an interrupted run goes on; it cannot be given new messages as well")
    return Resume(value=command.resume), input


def _nodes(named: str | list[str] | None, where: str) -> list[str]:
    """`*`, or names of nodes; what no node is called pauses nothing, so it is refused."""
    nodes = [named] if isinstance(named, str) else named or []
    for node in nodes:
        if node not in NODES:
            raise Invalid(f"{where}: one of {', '.join(NODES)}, got {node[:40]!r}")
    return list(dict.fromkeys(nodes))


def _base(body: RunBody, configurable: Json) -> int | None:
    named = (
        (body.checkpoint_id, "checkpoint_id"),
        ((body.checkpoint or {}).get("checkpoint_id"), "checkpoint.checkpoint_id"),
        (configurable.get("checkpoint_id"), "config.configurable.checkpoint_id"),
    )
    return next((seq for value, where in named if (seq := checkpoint_seq(value, where)) is not None), None)


def _context(config: Json, configurable: Json, context: Json, user: str) -> Json:
    """One context for the agent: the body's, under what `config` says in `context`, or else in `configurable`."""
    caller = _mapping(config["context"], "config.context") if "context" in config else configurable
    merged = {key: value for key, value in {**context, **caller}.items() if key not in NOT_FROM_CLIENTS}
    return {**merged, "user_id": user}


def _mapping(value: Any, where: str) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Invalid(f"{where}: expected an object, got {reasons.kind_of(value)}")
    return value


def _not_before(seconds: float | None) -> str | None:
    if not seconds:
        return None
    if not 0 <= seconds <= MOST_SECONDS:
        raise Invalid(f"after_seconds: must be from 0 to {MOST_SECONDS}, got {seconds:g}")
    return stamp(datetime.now(UTC) + timedelta(seconds=seconds))
