"""Our provisioner against a stand-in of the Kubernetes API that validates its objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from adapters.provisioner.app import Routes
from adapters.provisioner.cluster import Cluster
from adapters.provisioner.objects import Settings
from core.errors import Invalid
from tests.support.kubernetes import Kubernetes

pytestmark = pytest.mark.anyio
KEY = "a-bearer-key"
BODY = {"sandbox_id": "aa11", "thread_id": "T_1", "user_id": "ada"}
Client = TestClient[web.Request, web.Application]


@pytest.fixture
def kubernetes() -> Kubernetes:
    return Kubernetes()


@asynccontextmanager
async def serving(kubernetes: Kubernetes, **options: Any) -> AsyncIterator[Client]:
    async with TestServer(kubernetes.app()) as api:
        cluster = Cluster(str(api.make_url("")), Settings(image="image:1", **options), account=None)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with TestClient(TestServer(Routes(cluster, KEY).app()), headers=headers) as client:
            yield client


@pytest.fixture
async def client(kubernetes: Kubernetes) -> AsyncIterator[Client]:
    async with serving(kubernetes) as client:
        yield client


async def create(client: Client, **changes: str) -> tuple[int, Any]:
    async with client.post("/api/sandboxes", json={**BODY, **changes}) as response:
        return response.status, await response.json()


async def test_a_sandbox_is_created_once(client: Client, kubernetes: Kubernetes) -> None:
    answers = []

    async def one() -> None:
        answers.append(await create(client))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(one)
    expected = {
        "sandbox_id": "aa11",
        "sandbox_url": "http://sika-aa11.sika-sandboxes.svc:8080",
        "status": "Running",
        "user_id": "ada",
        "thread_id": "T_1",
    }
    assert answers == [(200, expected)] * 4
    assert [len(kubernetes.of(kind)) for kind in ("pods", "services", "networkpolicies")] == [1, 1, 1]
    async with client.get("/api/sandboxes/aa11") as response:
        assert await response.json() == expected
    async with client.get("/api/sandboxes") as response:
        assert await response.json() == {"sandboxes": [expected], "count": 1}


async def test_a_create_goes_on_where_a_crash_left_it(client: Client, kubernetes: Kubernetes) -> None:
    await create(client)
    kubernetes.objects = {key: thing for key, thing in kubernetes.objects.items() if key[1] == "pods"}
    async with client.get("/api/sandboxes/aa11") as response:
        assert (await response.json())["status"] == "Pending"
    assert (await create(client))[1]["status"] == "Running"
    assert len(kubernetes.of("networkpolicies")) == 1


async def test_a_pod_that_ended_is_replaced(client: Client, kubernetes: Kubernetes) -> None:
    await create(client)
    pod = kubernetes.of("pods")[0]
    before = pod["metadata"]["uid"]
    pod["status"]["phase"] = "Failed"
    assert (await create(client))[1]["status"] == "Running"
    assert kubernetes.of("pods")[0]["metadata"]["uid"] != before
    owner = kubernetes.of("services")[0]["metadata"]["ownerReferences"][0]
    assert owner["uid"] == kubernetes.of("pods")[0]["metadata"]["uid"]


async def test_a_pod_that_is_being_deleted_is_not_given_out(client: Client, kubernetes: Kubernetes) -> None:
    await create(client)
    kubernetes.slow_delete = True
    async with client.delete("/api/sandboxes/aa11") as response:
        assert response.status == 200
    status, answer = await create(client)
    assert status == 503
    assert "deleted" in answer["detail"]


async def test_delete_takes_everything_along(client: Client, kubernetes: Kubernetes) -> None:
    await create(client)
    statuses = []
    for _ in range(2):
        async with client.delete("/api/sandboxes/aa11") as response:
            statuses.append(response.status)
    assert (statuses, kubernetes.objects) == ([200, 404], {})
    async with client.get("/api/sandboxes/aa11") as response:
        assert response.status == 404


async def test_lists_have_pages(client: Client, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.provisioner.cluster.PAGE", 2)
    for number in range(5):
        await create(client, sandbox_id=f"s{number}")
    async with client.get("/api/sandboxes") as response:
        assert [one["sandbox_id"] for one in (await response.json())["sandboxes"]] == [f"s{n}" for n in range(5)]


async def test_a_list_without_an_end_is_given_up(
    client: Client, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.provisioner.cluster.PAGE", 2)
    monkeypatch.setattr("adapters.provisioner.cluster.PAGES", 1)
    for number in range(3):
        await create(client, sandbox_id=f"s{number}")
    async with client.get("/api/sandboxes") as response:
        assert (response.status, "without an end" in await response.text()) == (503, True)


async def test_the_pod_is_confined(client: Client, kubernetes: Kubernetes) -> None:
    """Research sandboxes §5."""
    await create(client)
    spec = kubernetes.of("pods")[0]["spec"]
    container = spec["containers"][0]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert set(container["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
    policy = kubernetes.of("networkpolicies")[0]["spec"]
    assert (policy["egress"], policy["policyTypes"]) == ([], ["Ingress", "Egress"])
    assert policy["ingress"][0]["from"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "sika"}}


async def test_with_a_network_private_addresses_stay_closed(kubernetes: Kubernetes) -> None:
    async with serving(kubernetes, network=True, runtime_class="gvisor") as client:
        await create(client)
    block = kubernetes.of("networkpolicies")[0]["spec"]["egress"][1]["to"][0]["ipBlock"]
    assert "169.254.0.0/16" in block["except"]
    assert kubernetes.of("pods")[0]["spec"]["runtimeClassName"] == "gvisor"


@pytest.mark.parametrize(
    "changes",
    [
        {"sandbox_id": "UPPER"},
        {"sandbox_id": "a/../b"},
        {"sandbox_id": "x" * 41},
        {"thread_id": "a b"},
        {"user_id": ""},
    ],
)
async def test_ids_that_are_no_names_are_refused(
    client: Client, kubernetes: Kubernetes, changes: dict[str, str]
) -> None:
    status, answer = await create(client, **changes)
    assert status == 400
    assert next(iter(changes)) in answer["detail"]
    assert kubernetes.requests == []


async def test_an_id_belongs_to_one_thread(client: Client) -> None:
    await create(client)
    assert (await create(client, thread_id="other"))[0] == 400


async def test_without_the_key_only_health_answers(client: Client) -> None:
    async with ClientSession() as stranger:
        for path, expected in (("/health", 200), ("/api/sandboxes", 401), ("/api/sandboxes/aa11", 401)):
            async with stranger.get(client.make_url(path), headers={"Authorization": "Bearer wrong"}) as response:
                assert response.status == expected


@pytest.mark.parametrize("change", [{"memory": "lots"}, {"namespace": "Upper"}, {"node_port": True}])
def test_wrong_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(change)).split("_")[0]):
        Settings(image="image", **change)


async def test_an_api_that_does_not_answer_is_named() -> None:
    cluster = Cluster("http://127.0.0.1:1", Settings(image="image:1"), account=None)
    async with TestClient(TestServer(Routes(cluster, "").app())) as client:
        status, answer = await create(client)
    assert status == 503
    assert "http://127.0.0.1:1 does not answer" in answer["detail"]
