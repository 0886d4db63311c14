"""The Kubernetes API by plain HTTP: the requests that a sandbox's objects need."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import hdrs

from adapters.bodies import read_whole
from adapters.provisioner import objects
from adapters.provisioner.objects import Object, Settings
from core.errors import Invalid, NotFound, Unavailable

CALL_SECONDS = 15.0
ANSWER_BYTES = 32 << 20
PAGE = 200
"""Objects of one answer to a list."""
PAGES = 1000
"""Pages of a list that are read."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has its account (Kubernetes' convention)."""
_ENDED = ("Succeeded", "Failed")


class NameTaken(Unavailable):
    """An object of this name exists."""


class Cluster:
    """Guarantees: each method returns or raises within some times `CALL_SECONDS`. `create` may be repeated, also by two
    at once and after a crash between two objects. Raises `Unavailable` with the API's reason.
    """

    def __init__(self, url: str, settings: Settings, account: Path | None = ACCOUNT) -> None:
        self._url, self._settings, self._account = url.rstrip("/"), settings, account
        namespace = settings.namespace
        self._paths = {
            "Pod": f"/api/v1/namespaces/{namespace}/pods",
            "Service": f"/api/v1/namespaces/{namespace}/services",
            "NetworkPolicy": f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
        }

    async def create(self, sandbox_id: str, user: str, thread: str) -> Object:
        """Returns the sandbox, made if there is none. One that has ended is replaced."""
        desired = objects.pod(sandbox_id, user, thread, self._settings)
        pod = await self._ensure(desired)
        if _ended(pod):
            await self.delete(sandbox_id)
            pod = await self._ensure(desired)
        if _ended(pod):
            raise Unavailable(f"the pod {pod['metadata']['name']} is still being deleted")
        annotations = pod["metadata"].get("annotations", {})
        if annotations | desired["metadata"]["annotations"] != annotations:
            raise Invalid(f"sandbox_id: {sandbox_id} is the sandbox of another thread")
        # Before the service: nobody reaches the pod without its policy.
        await self._ensure(objects.policy(sandbox_id, self._settings, pod))
        service = await self._ensure(objects.service(sandbox_id, self._settings, pod))
        return self._described(pod, service)

    async def get(self, sandbox_id: str) -> Object:
        """Returns a sandbox. Raises `NotFound`."""
        name = objects.name_of(sandbox_id)
        pod = await self._call(hdrs.METH_GET, f"{self._paths['Pod']}/{name}")
        try:
            service = await self._call(hdrs.METH_GET, f"{self._paths['Service']}/{name}")
        except NotFound:
            return self._described(pod, None)
        return self._described(pod, service)

    async def listed(self) -> list[Object]:
        """Returns all sandboxes."""
        pods = await self._list("Pod")
        services = {service["metadata"]["name"]: service for service in await self._list("Service")}
        return [self._described(pod, services.get(pod["metadata"]["name"])) for pod in pods]

    async def delete(self, sandbox_id: str) -> None:
        """Deletes a sandbox. The garbage collector would delete what the pod owns, later; a repeated create is faster.
        Raises `NotFound` if there was no pod.
        """
        name = objects.name_of(sandbox_id)
        for kind in ("Service", "NetworkPolicy"):
            try:
                await self._call(hdrs.METH_DELETE, f"{self._paths[kind]}/{name}")
            except NotFound:
                continue
        await self._call(hdrs.METH_DELETE, f"{self._paths['Pod']}/{name}", params={"gracePeriodSeconds": "0"})

    async def _ensure(self, desired: Object) -> Object:
        """Returns the object of this name, created if there is none."""
        path, name = self._paths[desired["kind"]], desired["metadata"]["name"]
        try:
            return await self._call(hdrs.METH_POST, path, json=desired)
        except NameTaken:
            pass
        present = await self._call(hdrs.METH_GET, f"{path}/{name}")
        owners = desired["metadata"].get("ownerReferences")
        if owners and present["metadata"].get("ownerReferences") != owners:  # of a pod that is gone
            await self._call(hdrs.METH_DELETE, f"{path}/{name}")
            return await self._call(hdrs.METH_POST, path, json=desired)
        return present

    async def _list(self, kind: str) -> list[Object]:
        items: list[Object] = []
        params = {"labelSelector": f"{objects.LABEL}={objects.APP}", "limit": str(PAGE)}
        for _ in range(PAGES):
            page = await self._call(hdrs.METH_GET, self._paths[kind], params=params)
            items += page["items"]
            if not (token := page.get("metadata", {}).get("continue")):
                return items
            params = {**params, "continue": token}
        raise Unavailable(f"the cluster lists {kind}s without an end: more than {PAGES} pages")

    def _described(self, pod: Object, service: Object | None) -> Object:
        metadata = pod["metadata"]
        phase = "Terminating" if metadata.get("deletionTimestamp") else pod.get("status", {}).get("phase", "Pending")
        notes = metadata.get("annotations", {})
        return {
            "sandbox_id": metadata["labels"][f"{objects.PART}/sandbox"],
            "sandbox_url": self._address(service),
            "status": phase if service or phase != "Running" else "Pending",
            "user_id": notes.get(f"{objects.PART}/user", ""),
            "thread_id": notes.get(f"{objects.PART}/thread", ""),
        }

    def _address(self, service: Object | None) -> str:
        if service is None:
            return ""
        if self._settings.node_port:
            return f"http://{self._settings.node_host}:{service['spec']['ports'][0].get('nodePort', '')}"
        return f"http://{service['metadata']['name']}.{self._settings.namespace}.svc:{objects.PORT}"

    async def _call(self, method: str, path: str, **options: Any) -> Object:
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=5.0)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers()) as session,
                session.request(
                    method, self._url + path, ssl=self._trust(), allow_redirects=False, **options
                ) as answer,
            ):
                text = await read_whole(answer, ANSWER_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the Kubernetes API at {self._url} does not answer: {reason}") from error
        try:
            data: Object = msgspec.json.decode(text, type=dict)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the Kubernetes API answers {answer.status} without JSON") from error
        if answer.status < 300:
            return data
        reason = f"the Kubernetes API answers {answer.status}: {str(data.get('message', ''))[:500]}"
        if answer.status == 404 and data.get("reason") == "NotFound":
            raise NotFound(reason)
        raise NameTaken(reason) if data.get("reason") == "AlreadyExists" else Unavailable(reason)

    def _headers(self) -> Mapping[str, str]:
        """Returns the account's token, read anew: Kubernetes replaces it each hour."""
        if self._account is None or not (self._account / "token").exists():
            return {}
        return {hdrs.AUTHORIZATION: f"Bearer {(self._account / 'token').read_text().strip()}"}

    def _trust(self) -> ssl.SSLContext | bool:
        if self._account is None or not (self._account / "ca.crt").exists():
            return True
        return ssl.create_default_context(cafile=self._account / "ca.crt")


def in_cluster() -> str:
    """Returns the address of the API for a pod. Raises `Invalid` elsewhere."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise Invalid("this is not a pod of Kubernetes: name its API with --kubernetes, as `kubectl proxy` has it")
    return f"https://{f'[{host}]' if ':' in host else host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"


def _ended(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or pod.get("status", {}).get("phase") in _ENDED
