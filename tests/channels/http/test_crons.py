"""Crons over HTTP: kept, shown and changed as the SDK expects it. When they come is tested with the scheduler."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import NotFoundError, UnprocessableEntityError

from core.identity.principal import LOCAL
from core.ids import assistant_id, uuid7
from core.runtime.system import System
from core.user import schedules
from core.user.launch import Launch
from tests.channels.http.conftest import Api

pytestmark = pytest.mark.anyio

LEAD = assistant_id("lead_agent")
INPUT: Any = {"messages": [{"role": "user", "content": "hi", "id": "given"}]}


@pytest.mark.parametrize("mount", ["/api", "/api/langgraph"])
async def test_with_the_sdk(url: str, mount: str) -> None:
    end = datetime.now(UTC) + timedelta(days=400)
    async with get_client(url=url + mount) as client:
        made: Any = await client.crons.create(
            "lead_agent",
            schedule="0 9 * * 1",
            input=INPUT,
            metadata={"team": "a"},
            config={"recursion_limit": 5},
            context={"model_name": "demo"},
            interrupt_before=["tools"],
            interrupt_after="*",
            multitask_strategy="interrupt",
            timezone=ZoneInfo("Europe/Berlin"),
            end_time=end,
            stream_mode=["values", "updates"],
            durability="async",
        )
        assert made["assistant_id"] == LEAD
        assert (made["thread_id"], made["on_run_completed"], made["enabled"]) == (None, "delete", True)
        assert (made["schedule"], made["timezone"]) == ("0 9 * * 1", "Europe/Berlin")
        assert datetime.fromisoformat(made["end_time"]) == end
        due = datetime.fromisoformat(made["next_run_date"]).astimezone(ZoneInfo("Europe/Berlin"))
        assert (due.weekday(), due.hour, due.minute) == (0, 9, 0)
        payload = made["payload"]
        assert payload["input"] == {"messages": [{"type": "human", "content": "hi"}]}
        assert (payload["config"], payload["context"]) == ({"recursion_limit": 5}, {"model_name": "demo"})
        assert (payload["interrupt_before"], payload["interrupt_after"]) == (["tools"], "*")
        cron_id = made["cron_id"]

        paused: Any = await client.crons.update(cron_id, enabled=False)
        assert (paused["enabled"], paused["next_run_date"]) == (False, None)
        changed: Any = await client.crons.update(
            cron_id,
            schedule="30 8 * * *",
            enabled=True,
            end_time=None,
            timezone="UTC",
            context={"reasoning_effort": "low"},
        )
        assert (changed["schedule"], changed["end_time"], changed["enabled"]) == ("30 8 * * *", None, True)
        assert datetime.fromisoformat(changed["next_run_date"]).strftime("%H:%M") == "08:30"
        assert changed["payload"]["context"] == {"reasoning_effort": "low"}
        assert changed["payload"]["config"] == {"recursion_limit": 5}
        assert changed["payload"]["input"] == payload["input"]
        assert changed["created_at"] == made["created_at"] < changed["updated_at"]

        found: Any = await client.crons.search(assistant_id="lead_agent", metadata={"team": "a"}, enabled=True)
        assert found == [changed]
        assert await client.crons.count(assistant_id=LEAD) == 1
        assert await client.crons.count(metadata={"team": "b"}) == 0
        await client.crons.delete(cron_id)
        with pytest.raises(NotFoundError):
            await client.crons.delete(cron_id)
        with pytest.raises(UnprocessableEntityError):
            await client.crons.create("lead_agent", schedule="* * * * * *")
        with pytest.raises(NotFoundError):
            await client.crons.create_for_thread("unknown", "lead_agent", schedule="* * * * *")


async def test_on_a_thread(api: Api, system: System) -> None:
    thread = await api.thread()
    cron = await api.ask("POST", f"/threads/{thread}/runs/crons", {"schedule": "0 0 1 1 *", "input": INPUT})
    assert (cron["thread_id"], cron["on_run_completed"], cron["timezone"]) == (thread, None, "UTC")
    assert [one["cron_id"] for one in await api.ask("POST", "/runs/crons/search", {"thread_id": thread})] == [
        cron["cron_id"]
    ]
    assert await api.ask("POST", "/runs/crons/count", {"thread_id": "other"}) == 0
    fired = await Launch(system.log, system.threads, system.intake).trigger(
        LOCAL.user, cron["cron_id"], uuid7(), actor="test"
    )
    run = await api.ask("GET", f"/threads/{thread}/runs/{fired.run}")
    assert (run["multitask_strategy"], run["status"], run["assistant_id"]) == ("enqueue", "pending", LEAD)
    assert run["metadata"]["schedule_id"] == cron["cron_id"]
    message = run["kwargs"]["input"]["messages"][0]
    assert (message["content"], message["id"] != "given") == ("hi", True)
    assert run["kwargs"]["context"]["user_id"] == LOCAL.user


@pytest.mark.parametrize(("wish", "kept"), [({}, "delete"), ({"on_run_completed": "keep"}, "keep")])
async def test_a_thread_of_its_own(api: Api, system: System, wish: Any, kept: str) -> None:
    cron = await api.ask("POST", "/runs/crons", {"schedule": "0 0 1 1 *", "input": INPUT, **wish})
    fired = await Launch(system.log, system.threads, system.intake).trigger(
        LOCAL.user, cron["cron_id"], uuid7(), actor="test"
    )
    state = await system.threads.load(fired.thread or "")
    assert state.metadata == {"graph_id": "lead_agent", "assistant_id": LEAD, "schedule_id": cron["cron_id"]}
    assert [run.request.on_completion for run in state.runs.values()] == [kept]


async def test_of_an_assistant_of_ones_own(api: Api, system: System) -> None:
    made = await api.ask(
        "POST", "/assistants", {"graph_id": "lead_agent", "context": {"tone": "dry", "reasoning_effort": "low"}}
    )
    name = made["assistant_id"]
    body = {"assistant_id": name, "schedule": "0 0 1 1 *", "input": INPUT, "context": {"model": "demo"}}
    cron = await api.ask("POST", "/runs/crons", body)
    assert cron["assistant_id"] == name
    await api.ask("PATCH", f"/assistants/{name}", {"context": {"tone": "warm"}})
    fired = await Launch(system.log, system.threads, system.intake).trigger(
        LOCAL.user, cron["cron_id"], uuid7(), actor="test"
    )
    run = await api.ask("GET", f"/threads/{fired.thread}/runs/{fired.run}")
    assert run["assistant_id"] == name
    assert run["kwargs"]["context"] == {"tone": "warm", "model": "demo", "user_id": LOCAL.user}
    await api.ask("DELETE", f"/assistants/{name}", status=204)
    assert (await api.ask("PATCH", f"/runs/crons/{cron['cron_id']}", {"enabled": False}))["enabled"] is False
    await api.ask("PATCH", f"/runs/crons/{cron['cron_id']}", {"schedule": "* * * * *"}, status=404)


async def test_search(api: Api) -> None:
    for minute in (10, 30, 20):
        await api.ask("POST", "/runs/crons", {"schedule": f"{minute} 0 1 1 *", "enabled": minute != 20})

    async def shown(**body: Any) -> list[str]:
        return [one["schedule"].split()[0] for one in await api.ask("POST", "/runs/crons/search", body)]

    assert await shown() == ["20", "30", "10"]
    assert await shown(sort_by="created_at", sort_order="asc") == ["10", "30", "20"]
    assert await shown(sort_by="next_run_date", sort_order="asc") == ["20", "10", "30"]
    assert await shown(enabled=False) == ["20"]
    assert await shown(limit=1, offset=1) == ["30"]
    selected = await api.ask("POST", "/runs/crons/search", {"select": ["schedule", "now"], "limit": 1})
    assert set(selected[0]) == {"schedule", "now"}
    async with api.session.post(f"{api.url}/api/runs/crons/search", json={"limit": 2}) as response:
        assert (response.headers["X-Pagination-Total"], response.headers["X-Pagination-Next"]) == ("3", "2")
    await api.ask("POST", "/runs/crons/search", {"sort_by": "what"}, status=422)


@pytest.mark.parametrize(
    ("body", "place", "status"),
    [
        ({"schedule": "every day"}, "schedule: five fields", 422),
        ({"schedule": "0 0 31 2 *"}, "schedule: ", 422),
        ({"timezone": "Mars/Base"}, "timezone: ", 422),
        ({"end_time": "soon"}, "end_time: ", 422),
        ({"input": {"messages": [{"role": "king", "content": "x"}]}}, "input.messages[0]", 400),
        ({"assistant_id": "nobody"}, "assistant_id: ", 422),
        ({"assistant_id": str(uuid.uuid4())}, "not found", 404),
        ({"interrupt_before": ["nowhere"]}, "interrupt_before: ", 422),
        ({"stream_mode": "what"}, "stream_mode: ", 422),
        ({"context": {"model_name": "nobody"}}, "context.model_name: no model 'nobody'", 400),
        ({"context": {"available_skills": ["none"]}}, "context.available_skills[0]: no skill 'none'", 422),
        ({"webhook": "http://127.0.0.1/x"}, "webhook: ", 422),
        ({"metadata": {"deliver": {"channel": "slack"}}}, "metadata.deliver: object missing required field chat", 422),
        ({"on_run_completed": "what"}, "$.on_run_completed", 422),
        ({"multitask_strategy": "what"}, "$.multitask_strategy", 422),
    ],
)
async def test_what_is_refused(api: Api, body: Any, place: str, status: int) -> None:
    whole = {"schedule": "* * * * *", **body}
    assert place in (await api.ask("POST", "/runs/crons", whole, status=status))["detail"]
    cron = await api.ask("POST", "/runs/crons", {"schedule": "0 0 1 1 *"})
    assert place in (await api.ask("PATCH", f"/runs/crons/{cron['cron_id']}", body, status=status))["detail"]
    assert await api.ask("GET", f"/runs/crons/{cron['cron_id']}") == cron


async def test_the_query_of_a_webhook_is_not_shown(api: Api, system: System) -> None:
    body = {"schedule": "0 0 1 1 *", "webhook": "https://hooks.example.com/x?token=secret"}
    cron = await api.ask("POST", "/runs/crons", body)
    assert cron["payload"]["webhook"] == "https://hooks.example.com/x"
    patched = await api.ask("PATCH", f"/runs/crons/{cron['cron_id']}", {"metadata": {"a": 1}})
    assert patched["payload"]["webhook"] == "https://hooks.example.com/x"
    kept = (await schedules.aggregates(system.log).load(LOCAL.user))[cron["cron_id"]]
    assert kept.plan.job.webhook == body["webhook"]


async def test_there_is_a_limit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MOST_SCHEDULES", 1)
    await api.ask("POST", "/runs/crons", {"schedule": "* * * * *"})
    await api.ask("POST", "/runs/crons", {"schedule": "* * * * *"}, status=409)


async def test_two_changes_at_once_are_both_heard_of(api: Api) -> None:
    """Each says what it changes of what it saw: neither undoes the other without a word."""
    cron = await api.ask("POST", "/runs/crons", {"schedule": "0 0 1 1 *"})
    path = f"{api.url}/api/runs/crons/{cron['cron_id']}"
    wishes: list[Any] = [{"schedule": "1 1 1 1 *"}, {"metadata": {"a": 1}}, {"context": {"b": 2}}]

    async def change(wish: Any) -> int:
        async with api.session.patch(path, json=wish) as response:
            return response.status

    statuses = await asyncio.gather(*map(change, wishes))
    now = await api.ask("GET", f"/runs/crons/{cron['cron_id']}")
    shown = [now["schedule"] == "1 1 1 1 *", now["metadata"] == {"a": 1}, now["payload"].get("context") == {"b": 2}]
    assert [status == 200 for status in statuses] == shown
    assert set(statuses) <= {200, 409}
