"""A stand-in of the Kubernetes API: pods, services and network policies of any namespace.

Objects are validated with the published OpenAPI schemas, and by the rules of the API server that no schema has: names,
label values, quantities, ports. `started` stands for the kubelet: it gives the address at which a pod answers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import kubernetes_validate
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from tests.support.applications import running

VERSION = "1.31"
Object = dict[str, Any]
_DNS_1123 = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_DNS_1035 = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?\Z")
_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?\Z")
_KINDS = {"pods": "Pod", "services": "Service", "networkpolicies": "NetworkPolicy"}


class Kubernetes:
    def __init__(self, started: Callable[[Object], int] = lambda pod: 30000) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.requests: list[tuple[str, str]] = []
        self._started, self._version = started, 0
        self.slow_delete = False
        """True: a deleted pod stays for a while, with `deletionTimestamp`."""

    def app(self) -> web.Application:
        app = web.Application()
        for group in ("/api/v1", "/apis/networking.k8s.io/v1"):
            app.router.add_post(group + "/namespaces/{namespace}/{kind}", self._create)
            app.router.add_get(group + "/namespaces/{namespace}/{kind}", self._list)
            app.router.add_get(group + "/namespaces/{namespace}/{kind}/{name}", self._get)
            app.router.add_delete(group + "/namespaces/{namespace}/{kind}/{name}", self._delete)
        return app

    def of(self, kind: str) -> list[Object]:
        return [thing for (_, of_kind, _), thing in self.objects.items() if of_kind == kind]

    async def _create(self, request: web.Request) -> web.Response:
        thing = await request.json()
        key = self._key(request, thing.get("metadata", {}).get("name", ""))
        if problem := _problem(thing, *key):
            return _status(422, "Invalid", problem)
        if key in self.objects:
            return _status(409, "AlreadyExists", f'{key[1]} "{key[2]}" already exists')
        self._version += 1
        thing["metadata"] |= {"uid": str(uuid4()), "resourceVersion": str(self._version)}
        thing["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        if thing["kind"] == "Pod":
            thing["status"] = {"phase": "Running"}
        if thing["kind"] == "Service" and thing["spec"]["type"] == "NodePort":
            pod = self.objects.get((key[0], "pods", key[2]), {})
            thing["spec"]["ports"][0]["nodePort"] = self._started(pod)
        self.objects[key] = thing
        return web.json_response(thing, status=201)

    async def _get(self, request: web.Request) -> web.Response:
        key = self._key(request, request.match_info["name"])
        if key not in self.objects:
            return _status(404, "NotFound", f'{key[1]} "{key[2]}" not found')
        return web.json_response(self.objects[key])

    async def _list(self, request: web.Request) -> web.Response:
        namespace, kind, _ = self._key(request, "")
        wanted = dict(part.split("=") for part in request.query.get("labelSelector", "").split(",") if part)
        items = [
            thing
            for (of_namespace, of_kind, _), thing in sorted(self.objects.items(), key=lambda item: item[0])
            if (of_namespace, of_kind) == (namespace, kind)
            and wanted.items() <= thing["metadata"].get("labels", {}).items()
        ]
        first, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or 500)
        metadata = {"resourceVersion": str(self._version)}
        if len(items) > first + limit:
            metadata["continue"] = str(first + limit)
        page = items[first : first + limit]
        return web.json_response({"kind": f"{_KINDS[kind]}List", "metadata": metadata, "items": page})

    async def _delete(self, request: web.Request) -> web.Response:
        key = self._key(request, request.match_info["name"])
        if key not in self.objects:
            return _status(404, "NotFound", f'{key[1]} "{key[2]}" not found')
        thing = self.objects[key]
        if key[1] == "pods" and self.slow_delete:
            thing["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return web.json_response(thing)
        del self.objects[key]
        for other in [k for k, owned in self.objects.items() if _owned(owned, thing)]:  # the garbage collector
            del self.objects[other]
        return web.json_response(thing)

    def _key(self, request: web.Request, name: str) -> tuple[str, str, str]:
        self.requests.append((request.method, request.path))
        return request.match_info["namespace"], request.match_info["kind"], name


def _owned(thing: Object, owner: Object) -> bool:
    return any(
        reference["uid"] == owner["metadata"]["uid"] for reference in thing["metadata"].get("ownerReferences", [])
    )


def _problem(thing: Object, namespace: str, kind: str, name: str) -> str:
    """Returns what the API server would refuse."""
    try:
        kubernetes_validate.validate(thing, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    metadata, spec = thing["metadata"], thing["spec"]
    if thing["kind"] != _KINDS[kind] or metadata.get("namespace", namespace) != namespace:
        return "kind or namespace: not those of the path"
    if not (_DNS_1035 if kind == "services" else _DNS_1123).match(name):
        return f"metadata.name: {name!r} is no DNS label"
    for key, value in metadata.get("labels", {}).items():
        if not _KEY.match(key) or not _LABEL.match(value):
            return f"metadata.labels: {key}={value!r}"
    if any(not _KEY.match(key) for key in metadata.get("annotations", {})):
        return "metadata.annotations"
    return _pod(spec) if kind == "pods" else _ports(spec.get("ports", []), "port")


def _pod(spec: Object) -> str:
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for volume in spec.get("volumes", []):
        if not _QUANTITY.match(volume["emptyDir"]["sizeLimit"]):
            return "spec.volumes: quantity"
    for container in spec["containers"]:
        if not _DNS_1123.match(container["name"]):
            return "spec.containers.name"
        quantities = [value for part in container["resources"].values() for value in part.values()]
        if any(not _QUANTITY.match(value) for value in quantities):
            return "spec.containers.resources: quantity"
        if {mount["name"] for mount in container["volumeMounts"]} - volumes:
            return "spec.containers.volumeMounts: no such volume"
        if problem := _ports(container["ports"], "containerPort"):
            return problem
    return ""


def _ports(ports: list[Object], name: str) -> str:
    return "" if all(0 < port[name] < 65536 for port in ports) else "spec.ports: out of range"


def _status(code: int, reason: str, message: str) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return web.json_response(status | {"code": code}, status=code)


@contextlib.contextmanager
def service(port: int, key: str) -> Iterator[str]:
    """Runs our provisioner as `sika provisioner` does, in a thread; every pod answers at the node's port."""
    from adapters.provisioner.app import Routes
    from adapters.provisioner.cluster import Cluster
    from adapters.provisioner.objects import Settings

    @contextlib.asynccontextmanager
    async def both() -> AsyncIterator[str]:
        settings = Settings(image="image:1", node_port=True, node_host="127.0.0.1")
        async with (
            running(Kubernetes(lambda pod: port).app()) as api,
            running(Routes(Cluster(api, settings, account=None), key).app()) as url,
        ):
            yield url

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(both()) as url:
        yield url
