"""Plans of schedules, made of what clients ask for: crons and scheduled tasks are two faces of them."""

from __future__ import annotations

from typing import Literal

from channels.http.endpoints.call import Call
from channels.http.runs.json_limits import storable
from channels.http.runs.run_request import RunBody, check_options, check_skills, model_names, run_spec
from core.egress import check_url
from core.events import Json
from core.ids import assistant_id
from core.user import schedules
from core.user.assistants import DEFAULT
from core.user.schedules import Plan, Timing


async def planned(
    call: Call,
    before: Plan | None,
    *,
    timing: Timing,
    thread_id: str | None,
    options: Json,
    run_input: Json | None = None,
    metadata: Json | None = None,
    overlap: Literal["skip", "allow"],
    title: str | None = None,
) -> Plan:
    """Returns a plan whose run is checked as if it were asked for now. `options`: the fields of a client's request
    other than the input and the metadata. What it leaves out stays as it is in the plan `before`.
    """
    if before is not None:
        options, overlap, title = {**before.asked, **options}, before.overlap, title or before.title
        run_input = before.job.input if run_input is None else run_input
        metadata = before.job.metadata if metadata is None else metadata
    metadata = metadata or {}
    for what, name in ((run_input, "input"), (metadata, "metadata"), (options, "the run")):
        storable(what, name)
    assistant = await call.services.assistants.resolve(call.user, options.get("assistant_id"))
    fields = {name: value for name, value in options.items() if name in RunBody.__struct_fields__}
    body = RunBody(**{**fields, "assistant_id": DEFAULT, "input": run_input, "metadata": metadata})
    check_options(body.config, body.context, metadata, model_names(call.config))
    await check_skills(call.services.skills, call.user, body.config, body.context)
    run = run_spec(body, call.services.assistants.default, call.user).request
    if run.webhook is not None:
        check_url(run.webhook, "webhook", private=call.config.webhooks.allow_private)
    return Plan(
        timing=timing,
        job=schedules.job(
            run,
            assistant,
            multitask=body.multitask_strategy or "enqueue",
            on_completion="delete" if thread_id is None and options.get("on_run_completed") != "keep" else "keep",
        ),
        thread=thread_id,
        assistant=assistant.id if assistant.own else None,
        overlap=overlap,
        title=title,
        asked=options,
    )


def shown_assistant(plan: Plan) -> str:
    """The id of the assistant whose runs are asked for."""
    return assistant_id(plan.assistant or plan.job.assistant)
