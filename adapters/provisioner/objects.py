"""The objects of a sandbox in Kubernetes: Pod, Service and NetworkPolicy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from core.errors import Invalid

PORT = 8080
APP = "sika-sandbox"
LABEL, PART = "app.kubernetes.io/name", "sika.dev"
_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?\Z")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")

Object = dict[str, Any]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the pods of sandboxes."""

    image: str
    namespace: str = "sika-sandboxes"
    cpu: str = "1"
    memory: str = "2Gi"
    storage: str = "4Gi"
    """Size of the files of a sandbox, as a quantity of Kubernetes."""
    seconds: int = 86_400
    """Lifetime of a pod, after which Kubernetes ends it."""
    uid: int = 1000
    runtime_class: str = ""
    network: bool = False
    """True if sandboxes reach the internet, but no private addresses."""
    read_only_root: bool = True
    node_port: bool = False
    """True for a port on every node, for a server outside of the cluster (DeerFlow's way)."""
    node_host: str = ""
    """The host under which the node ports are reached."""
    client: Mapping[str, str] = msgspec.field(default_factory=lambda: {LABEL: "sika"})
    """Labels of the pods that may connect to sandboxes."""

    def __post_init__(self) -> None:
        for name in ("cpu", "memory", "storage"):
            if not _QUANTITY.match(getattr(self, name)):
                raise Invalid(f"{name}: {getattr(self, name)!r} is not a quantity of Kubernetes, as 500m or 2Gi")
        if not _ID.match(self.namespace):
            raise Invalid(f"namespace: {self.namespace!r} is not a name of Kubernetes")
        if self.node_port and not self.node_host:
            raise Invalid("node_host: is needed with node ports")


def name_of(sandbox_id: str) -> str:
    """Returns the name of a sandbox's objects. Raises `Invalid` for an id that cannot be in one."""
    if not _ID.match(sandbox_id):
        raise Invalid(f"sandbox_id: {sandbox_id[:80]!r} is not a name (a-z, 0-9 and '-', at most 40 characters)")
    return f"sika-{sandbox_id}"


def labels(sandbox_id: str) -> dict[str, str]:
    return {LABEL: APP, f"{PART}/sandbox": sandbox_id}


def notes(user: str, thread: str) -> dict[str, str]:
    """Returns who a sandbox is for. Annotations, because a label has at most 63 characters."""
    for label, value in (("user_id", user), ("thread_id", thread)):
        if not _PLAIN.match(value):
            raise Invalid(f"{label}: {value[:80]!r} is not an id (letters, digits, '_' and '-')")
    return {f"{PART}/user": user, f"{PART}/thread": thread}


def pod(sandbox_id: str, user: str, thread: str, settings: Settings) -> Object:
    limits = {"cpu": settings.cpu, "memory": settings.memory, "ephemeral-storage": settings.storage}
    volumes = [("files", "/mnt", settings.storage), ("home", "/home", "1Gi"), ("tmp", "/tmp", "1Gi")]
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": settings.seconds,
        "terminationGracePeriodSeconds": 5,
        "hostname": "sandbox",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.uid,
            "runAsGroup": settings.uid,
            "fsGroup": settings.uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "sandbox",
                "image": settings.image,
                "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
                "env": [{"name": "HOME", "value": "/home"}],
                "resources": {"limits": limits, "requests": {**limits, "cpu": "100m", "memory": "256Mi"}},
                "readinessProbe": {"httpGet": {"path": "/v1/sandbox", "port": PORT}, "periodSeconds": 2},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "privileged": False,
                    "readOnlyRootFilesystem": settings.read_only_root,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": name, "mountPath": path} for name, path, _ in volumes],
            }
        ],
        "volumes": [{"name": name, "emptyDir": {"sizeLimit": size}} for name, _, size in volumes],
    }
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    metadata = _metadata(sandbox_id, settings) | {"annotations": notes(user, thread)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def service(sandbox_id: str, settings: Settings, owner: Object) -> Object:
    spec = {
        "type": "NodePort" if settings.node_port else "ClusterIP",
        "selector": labels(sandbox_id),
        "ports": [{"name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(sandbox_id, settings, owner), "spec": spec}


def policy(sandbox_id: str, settings: Settings, owner: Object) -> Object:
    """Returns a policy: nothing goes in or out but the server's requests, with `network` the internet and names."""
    peers: list[Object] = (
        [] if settings.node_port else [{"podSelector": {"matchLabels": dict(settings.client)}, "namespaceSelector": {}}]
    )
    ingress: Object = {"ports": [{"protocol": "TCP", "port": PORT}]} | ({"from": peers} if peers else {})
    private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "127.0.0.0/8"]
    names: Object = {
        "to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
        "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
    }
    egress = [names, {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": private}}]}] if settings.network else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(sandbox_id, settings, owner),
        "spec": {
            "podSelector": {"matchLabels": labels(sandbox_id)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [ingress],
            "egress": egress,
        },
    }


def _metadata(sandbox_id: str, settings: Settings, owner: Object | None = None) -> Object:
    metadata: Object = {
        "name": name_of(sandbox_id),
        "namespace": settings.namespace,
        "labels": labels(sandbox_id),
    }
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner["metadata"]["name"]}
        metadata["ownerReferences"] = [reference | {"uid": owner["metadata"]["uid"]}]
    return metadata
