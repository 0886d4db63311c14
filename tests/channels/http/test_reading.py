"""No GET changes anything, unless it shows that its person means it: a walk over the table of routes.

A page of another site can send one's browser to any address of ours, with the cookie (`SameSite=Lax` travels with
navigations), also from another port or subdomain. So whatever a GET can do by its parameters is tried as such a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from channels.http.endpoints.table import all_routes
from channels.http.server.routes import Param, Route
from core.identity.activity import KIND
from core.ids import uuid7
from tests.channels.http.people import ADA, Place
from tests.channels.http.people import fixture_config as fixture_config
from tests.channels.http.people import fixture_here as fixture_here
from tests.channels.http.test_auth_security import filled, named

LOGINS = {
    "GET /mcp/oauth/callback",
    "GET /v1/auth/callback/{provider}",
    "GET /v1/auth/oauth/{provider}",
}
"""Steps of a login at another server. They end at a state that the same browser began (`test_auth_oidc`)."""
FOREIGN = ("cross-site", "same-site")


def reads() -> list[Route]:
    return [route for route in all_routes() if route.method == "GET" and named(route) not in LOGINS]


def value(param: Param) -> str:
    """Returns a value that switches a parameter on."""
    kind = get_args(param.type)[0] if get_origin(param.type) is Annotated else param.type
    if kind is bool:
        return "true"
    if kind is int:
        return "1"
    if get_origin(kind) is Literal:
        return str(get_args(kind)[-1])
    if get_origin(kind) is Sequence:
        return value(Param("", get_args(kind)[0]))
    return "x"


def complete(route: Route, **variables: str) -> str:
    """Returns the path with all parameters, but those with which the answer never ends."""
    params = [param for param in route.query if param.where == "query" and not param.endless]
    query = "&".join(f"{param.name}={value(param)}" for param in params)
    return filled(route, **variables).partition("?")[0] + (f"?{query}" if query else "")


async def own_run(here: Place, browser: Any) -> tuple[str, str]:
    thread_id = uuid7()
    assert (await browser.ask("POST", "/api/threads", {"thread_id": thread_id})).status == 200
    body = {"input": {"messages": [{"role": "user", "content": "hello"}]}}
    answer = await browser.ask("POST", f"/api/threads/{thread_id}/runs", body)
    return thread_id, answer.body["run_id"]


@pytest.mark.parametrize("site", FOREIGN)
async def test_a_get_of_a_foreign_page_changes_nothing(here: Place, site: str) -> None:
    """With the cookie, and all parameters: what may change something is refused, the rest appends no event."""
    ada = await here.person(ADA)
    thread_id, run_id = await own_run(here, ada)
    refused = set[str]()
    for route in reads():
        if route.endless or ("text/event-stream" in str(route.answers) and not flags(route)):
            continue
        before = await here.system.log.last()
        path = route.mounts[0] + complete(route, thread_id=thread_id, run_id=run_id)
        answer = await ada.ask("GET", path, headers={"Sec-Fetch-Site": site}, csrf=None)
        if answer.status == 403 and answer.body["code"] == "origin_not_allowed":
            refused.add(named(route))
        assert await appended(here, before) == [], named(route)
    assert refused == {named(route) for route in reads() if flags(route)}


async def test_a_get_that_changes_something_wants_the_token(here: Place) -> None:
    """Without a header that names the site, as from an older browser, the cookie alone is not enough."""
    ada = await here.person(ADA)
    thread_id, run_id = await own_run(here, ada)
    for route in reads():
        for flag in flags(route):
            path = filled(route, thread_id=thread_id, run_id=run_id)
            for mount in route.mounts:
                url = f"{mount}{path}?{flag.name}={value(flag)}"
                answer = await ada.ask("GET", url, csrf=None)
                assert (answer.status, answer.body["code"]) == (403, "csrf"), url
    assert (await ada.ask("GET", f"/api/threads/{thread_id}/runs/{run_id}")).body["status"] == "pending"


@pytest.mark.parametrize("off", ["", "0", "false", "False", "no"])
async def test_a_flag_that_is_off_changes_nothing(here: Place, off: str) -> None:
    """The JavaScript SDK sends `cancel_on_disconnect=0` with each join."""
    ada = await here.person(ADA)
    path = f"/api/threads/t/runs/r/join?cancel_on_disconnect={off}"
    assert (await ada.ask("GET", path, headers={"Sec-Fetch-Site": "cross-site"}, csrf=None)).status == 404


async def test_the_token_opens_what_changes_something(here: Place) -> None:
    ada = await here.person(ADA)
    thread_id, run_id = await own_run(here, ada)
    path = f"/api/threads/{thread_id}/runs/{run_id}/stream?action=interrupt&wait=true"
    headers = {"X-CSRF-Token": ada.cookies["csrf_token"], "Sec-Fetch-Site": "same-origin"}
    assert (await ada.ask("GET", path, headers=headers)).status == 204
    assert (await ada.ask("GET", f"/api/threads/{thread_id}/runs/{run_id}")).body["status"] == "interrupted"


def flags(route: Route) -> list[Param]:
    return [param for param in route.query if param.changes]


async def appended(here: Place, after: int) -> list[str]:
    """Returns the types of the events after a position, but for the refusals that are recorded."""
    log = here.system.log
    records = [record async for record in log.between(after, await log.last())]
    return [record.type for record in records if record.aggregate.kind != KIND]
