"""What is refused, and the exception that the SDK makes of it."""

from __future__ import annotations

import importlib
import uuid
from typing import Any

import httpx
from langgraph_sdk.client import get_client

from tests.conformance.python.lab import AGENT, Lab, case, raises, table

try:
    errors: Any = importlib.import_module("langgraph_sdk.errors")
except ImportError:  # older releases have none of their own
    errors = None

ENTRIES = ("create", "stream", "wait")


async def entered(lab: Lab, entry: str, thread: str | None, agent: str = AGENT, **more: Any) -> Any:
    """A run by one of the three ways."""
    match entry:
        case "create":
            return await lab.client.runs.create(thread, agent, **more)
        case "wait":
            return await lab.client.runs.wait(thread, agent, **more)
        case _:
            return [part async for part in lab.client.runs.stream(thread, agent, **more)]


async def refused(lab: Lab, entry: str, status: int, thread: str | None, agent: str = AGENT, **more: Any) -> None:
    error = await raises(httpx.HTTPStatusError, entered(lab, entry, thread, agent, **more))
    assert error.response.status_code == status, error.response.text


@table(*((entry,) for entry in ENTRIES))
async def an_unknown_thread(lab: Lab, entry: str) -> None:
    await refused(lab, entry, 404, str(uuid.uuid4()), **lab.asked())


@table(*((entry,) for entry in ENTRIES))
async def an_unknown_graph(lab: Lab, entry: str) -> None:
    thread = await lab.thread()
    await refused(lab, entry, 422, thread, "nobody", **lab.asked())
    assert await lab.client.runs.list(thread) == []


@table(*((entry,) for entry in ENTRIES))
async def an_unknown_assistant(lab: Lab, entry: str) -> None:
    thread = await lab.thread()
    await refused(lab, entry, 404, thread, str(uuid.uuid4()), **lab.asked())
    assert await lab.client.runs.list(thread) == []


@table(*((entry,) for entry in ENTRIES))
async def an_unknown_checkpoint_leaves_no_run(lab: Lab, entry: str) -> None:
    thread = await lab.thread()
    error = await raises(
        httpx.HTTPStatusError,
        entered(lab, entry, thread, checkpoint_id="1f1e0000-0000-6000-8000-000000000000", **lab.asked()),
    )
    assert error.response.status_code in (404, 422)
    assert await lab.client.runs.list(thread) == []


@table(
    ("stream_mode", "tools"),
    ("stream_mode", "lifecycle"),
    ("stream_mode", "sometimes"),
    ("stream_mode", ["values", "sometimes"]),
    ("multitask_strategy", "sometimes"),
    ("on_disconnect", "sometimes"),
    ("on_completion", "sometimes"),
    ("if_not_exists", "sometimes"),
    ("input", "no object"),
    ("config", []),
    ("metadata", 1),
    ("after_seconds", "soon"),
)
async def a_wrong_field(lab: Lab, name: str, value: Any) -> None:
    thread = await lab.thread()
    for path in (f"/threads/{thread}/runs", f"/threads/{thread}/runs/stream", f"/threads/{thread}/runs/wait"):
        problem = await lab.ask("POST", path, {"assistant_id": AGENT, **lab.asked(), name: value}, status=422)
        assert isinstance(problem["detail"], str)
        assert name in problem["detail"]
    assert await lab.client.runs.list(thread) == []


@table(("",), ("/stream",), ("/wait",))
async def broken_json(lab: Lab, entry: str) -> None:
    thread = await lab.thread()
    headers = {"Content-Type": "application/json"}
    await lab.ask("POST", f"/threads/{thread}/runs{entry}", status=422, content=b'{"assistant_id":', headers=headers)


@table(*((entry,) for entry in ENTRIES))
async def resume_without_a_thread(lab: Lab, entry: str) -> None:
    await refused(lab, entry, 400, None, command={"resume": "yes"})


@case
async def the_classes_of_the_sdk(lab: Lab) -> None:
    """Each names what the server said, where the release has such."""
    thread = await lab.thread()
    for kind, status, work in (
        ("NotFoundError", 404, lab.client.threads.get(str(uuid.uuid4()))),
        ("UnprocessableEntityError", 422, lab.client.threads.search(sort_by="colour")),
        ("ConflictError", 409, lab.client.threads.create(thread_id=thread, if_exists="raise")),
        ("BadRequestError", 400, lab.client.runs.create(None, AGENT, command={"resume": 1})),
    ):
        error = await raises(getattr(errors, kind) if errors else httpx.HTTPStatusError, work)
        assert error.response.status_code == status
        detail = error.response.json()["detail"]
        assert detail
        assert errors is None or detail in str(error)


@case
async def unknown_fields_are_ignored(lab: Lab) -> None:
    """Every new release of a client adds some."""
    thread = await lab.thread()
    more = {
        "strict_resume": True,
        "langsmith_tracer": {"project_name": "p"},
        "checkpoint_during": True,
        "durability": "async",
        "raise_error": True,
        "to_come": {"a": [1]},
    }
    body = {"assistant_id": AGENT, **lab.asked(), **more}
    assert (await lab.ask("POST", f"/threads/{thread}/runs/wait", body))["messages"]
    assert isinstance(await lab.ask("POST", "/threads/search", {"to_come": 1, "limit": 1}), list)
    await lab.ask("POST", "/threads", {"to_come": 1})
    await lab.ask("POST", f"/threads/{thread}/state", {"values": {"title": "T"}, "to_come": 1})
    await lab.ask("POST", f"/threads/{thread}/history", {"select": ["values"], "to_come": 1})


@case
async def a_key_that_nobody_asked_for(lab: Lab) -> None:
    """The client sends one whenever it finds one in the environment."""
    client = get_client(url=f"{lab.urls[0]}/api", api_key="lsv2_pt_of_something_else")
    thread = (await client.threads.create())["thread_id"]
    values: Any = await client.runs.wait(thread, AGENT, **lab.asked())
    assert values["messages"]
    await client.http.client.aclose()


@case
async def is_it_well(lab: Lab) -> None:
    assert await lab.ask("GET", "/ok") == {"ok": True}
    assert "version" in await lab.ask("GET", "/info")
