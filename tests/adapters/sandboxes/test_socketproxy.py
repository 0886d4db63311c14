"""The socket proxy's rules: what the provider sends passes, and every way to more than a sandbox is refused."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from adapters.sandboxes.docker.creation import Refused, Rules, permitted_body
from adapters.sandboxes.docker.socketproxy import Proxy

pytestmark = pytest.mark.anyio

LABELS = {"sika.installation": "x"}
CONTAINER = "a" * 64


def rules(data: Path) -> Rules:
    return Rules(data, "/volumes/sika/_data", "sika", "sandbox-image", "runsc")


def body(data: Path) -> dict[str, Any]:
    """Returns what the package `docker` sends for a container of the provider."""
    (data / "users/u/workspace").mkdir(parents=True, exist_ok=True)
    mount = {"Target": "/mnt/user-data/workspace", "Source": f"{data}/users/u/workspace", "Type": "bind"}
    host = {
        **{"Memory": 7, "MemorySwap": 7, "ShmSize": 5, "IpcMode": "private", "OomScoreAdj": 1000, "NanoCpus": 5},
        **{"ReadonlyRootfs": True, "NetworkMode": "none", "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"]},
        **{"Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}], "PidsLimit": 5, "Init": True, "Runtime": "runsc"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
        "Tmpfs": {"/tmp": "size=1,mode=1777,nosuid,nodev"},
        "Mounts": [mount | {"ReadOnly": False}],
    }
    empty: dict[str, Any] = {name: None for name in ("Volumes", "ExposedPorts", "NetworkingConfig", "Healthcheck")}
    texts = {"Image": "sandbox-image", "User": "1000:1000", "Hostname": "sandbox", "WorkingDir": "/"}
    lists = {"Env": ["A=b"], "Cmd": [], "Entrypoint": ["/bin/sh"]}
    return {**empty, **texts, **lists, "AttachStdout": True, "Tty": False, "Labels": LABELS, "HostConfig": host}


def changed(original: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(original)
    *parents, last = path.split(".")
    target: Any = result
    for name in parents:
        target = target[int(name) if isinstance(target, list) else name]
    target[last] = value
    return result


def test_a_container_of_the_provider_passes_with_its_mounts_as_the_engine_sees_them(tmp_path: Path) -> None:
    result = permitted_body(body(tmp_path), rules(tmp_path))
    assert result["HostConfig"]["Mounts"] == [
        {"Target": "/mnt/user-data/workspace", "Source": "/volumes/sika/_data/users/u/workspace", "Type": "bind"}
    ]
    assert result["Labels"] == LABELS | {"sika.socketproxy": "sika"}
    assert result["User"] == "1000:1000"
    assert result["HostConfig"]["CapDrop"] == ["ALL"]


MOUNT = "HostConfig.Mounts.0"
REFUSED: list[tuple[str, Any]] = [
    ("Image", "debian"),
    *(("User", user) for user in ("", "root", "0", "0:0", "0:1000", "1000:0", "1000", "1000:1000\n0")),
    *(("Entrypoint", value) for value in ("sh", [1])),
    ("NetworkingConfig", {"EndpointsConfig": {"host": {}}}),
    ("Volumes", {"/host": {}}),
    ("hostconfig", {"Privileged": True}),
    ("HostConfig", None),
    ("HostConfig.Privileged", True),
    ("HostConfig.privileged", True),
    ("HostConfig.Binds", ["/:/host"]),
    ("HostConfig.VolumesFrom", ["sika"]),
    ("HostConfig.CapAdd", ["SYS_ADMIN"]),
    *(("HostConfig.CapDrop", value) for value in (None, [], ["NET_RAW"])),
    ("HostConfig.Devices", [{"PathOnHost": "/dev/sda"}]),
    ("HostConfig.DeviceCgroupRules", ["b *:* rwm"]),
    ("HostConfig.DeviceRequests", [{"Count": -1}]),
    *(("HostConfig.NetworkMode", mode) for mode in (None, "", "host", "bridge", "default", "container:sika", "sika")),
    *(("HostConfig.PidMode", mode) for mode in ("host", "container:sika")),
    *(("HostConfig.IpcMode", mode) for mode in ("host", "container:sika", "shareable")),
    ("HostConfig.UTSMode", "host"),
    ("HostConfig.UsernsMode", "host"),
    ("HostConfig.CgroupnsMode", "host"),
    ("HostConfig.CgroupParent", "/"),
    ("HostConfig.Cgroup", "container:sika"),
    *(("HostConfig.SecurityOpt", value) for value in (None, [], ["seccomp=unconfined", "no-new-privileges"])),
    *(("HostConfig.SecurityOpt", [f"{value}"]) for value in ("no-new-privileges=false", "label=disable")),
    ("HostConfig.MaskedPaths", []),
    ("HostConfig.ReadonlyPaths", []),
    *(("HostConfig.ReadonlyRootfs", value) for value in (None, False, "true", 1)),
    *(("HostConfig.Memory", value) for value in (None, 0, -1, "7", True)),
    *(("HostConfig.MemorySwap", value) for value in (-1, 8)),
    *(("HostConfig.PidsLimit", value) for value in (None, 0, -1)),
    ("HostConfig.NanoCpus", 0),
    ("HostConfig.OomScoreAdj", -1000),
    ("HostConfig.OomKillDisable", True),
    ("HostConfig.Sysctls", {"kernel.core_pattern": "|/bin/sh"}),
    ("HostConfig.Runtime", "other"),
    ("HostConfig.LogConfig", {"Type": "syslog"}),
    ("HostConfig.RestartPolicy", {"Name": "always"}),
    ("HostConfig.PortBindings", {"22/tcp": [{"HostPort": "22"}]}),
    ("HostConfig.GroupAdd", ["0"]),
    ("HostConfig.Links", ["sika"]),
    ("HostConfig.ExtraHosts", ["a:1.1.1.1"]),
    ("HostConfig.StorageOpt", {"size": "1"}),
    *(("HostConfig.Tmpfs", value) for value in ({"/etc": "size=1,nosuid,nodev"}, {"/tmp": ""}, {"/tmp": "size=1,dev"})),
    (f"{MOUNT}.Type", "volume"),
    (f"{MOUNT}.Type", "npipe"),
    (f"{MOUNT}.BindOptions", {"Propagation": "rshared"}),
    (f"{MOUNT}.ReadOnly", "no"),
    *((f"{MOUNT}.Target", path) for path in ("/", "", "tmp", "/proc/x", "/etc", "//etc", "/usr/bin", "/mnt/../etc")),
    *(
        (f"{MOUNT}.Source", path)
        for path in ("/", "", "/etc", "/var/run/docker.sock", "DATA", "DATA/../..", "DATA/none")
    ),
    *(
        (f"{MOUNT}.Source", path)
        for path in ("DATA/link", "DATA/link/etc", "DATA/users/../link", "DATA/file", "DATA/\0")
    ),
    ("HostConfig.Mounts", [{}] * 65),
    ("HostConfig.Mounts", {"Type": "bind"}),
]


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=[f"{field}={value}"[:60] for field, value in REFUSED])
def test_a_container_that_is_more_than_a_sandbox_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "file").touch()
    value = value.replace("DATA", str(tmp_path)) if isinstance(value, str) else value
    with pytest.raises(Refused) as error:
        permitted_body(changed(body(tmp_path), field, value), rules(tmp_path))
    name = field.removeprefix(f"{MOUNT}.")
    assert name.rpartition(".")[2] in str(error.value)


def test_a_second_spelling_of_a_field_changes_nothing(tmp_path: Path) -> None:
    result = permitted_body(changed(body(tmp_path), "HostConfig.readonlyrootfs", False), rules(tmp_path))
    assert "readonlyrootfs" not in result["HostConfig"]
    assert result["HostConfig"]["ReadonlyRootfs"] is True


class Engine:
    """A socket that answers like an engine, and keeps what reached it."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.labels = {"sika.socketproxy": "sika"}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[16:]) for line in head.split("\r\n") if line.startswith("Content-Length: ")), 0)
        text = (await reader.readexactly(length)).decode()
        self.requests.append(head.split("\r\n")[0] + text)
        answer = json.dumps({"ContainerID": CONTAINER, "Config": {"Labels": self.labels}}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + answer)
        writer.close()


@asynccontextmanager
async def proxied(data: Path) -> AsyncIterator[tuple[Engine, Path]]:
    engine = Engine()
    with TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        place = Path(folder)
        server = await asyncio.start_unix_server(engine.answer, str(place / "engine"))
        proxy = Proxy(str(place / "engine"), rules(data))
        front = await asyncio.start_unix_server(proxy._answer, str(place / "proxy"), limit=1 << 16)
        async with server, front:
            yield engine, place / "proxy"


async def sent(socket: Path, words: str, content: bytes = b"", headers: str = "") -> tuple[int, str]:
    """Returns the status and the body of an answer."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(f"{words} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode() + content)
    async with asyncio.timeout(120):
        head, _, text = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), text


OTHERS = [
    *("GET /containers/x/archive?path=/etc", "PUT /containers/x/archive", "POST /containers/x/update", "POST /build"),
    *(
        "POST /images/create?fromImage=a",
        "POST /volumes/create",
        "GET /volumes",
        "GET /networks",
        "POST /networks/create",
    ),
    *("POST /containers/x/attach", "GET /containers/x/export", "POST /containers/x/rename?name=y", "POST /commit"),
    *("GET /secrets", "POST /swarm/init", "POST /plugins/pull", "GET /events", "POST /session", "GET /system/df"),
    *(
        "GET /v1.41/../containers/json",
        "GET /containers/..%2f..%2finfo/json",
        "GET /images/other/json",
        "DELETE /images/x",
    ),
    *(
        "POST /containers/create",
        "POST /containers/create?name=other",
        "POST /containers/create?name=sika-x&platform=y",
    ),
    "GET /containers/json?filters={%22status%22:[%22exited%22]}",
]


@pytest.mark.parametrize("words", OTHERS)
async def test_requests_that_no_sandbox_needs_never_reach_the_engine(words: str, tmp_path: Path) -> None:
    async with proxied(tmp_path) as (engine, socket):
        status, reason = await sent(socket, words)
    assert status in (403, 404)
    assert json.loads(reason)["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    "words",
    ["GET /containers/x/json", "POST /containers/x/start", "DELETE /containers/x", f"POST /exec/{CONTAINER}/start"],
)
async def test_containers_of_others_cannot_be_seen_or_touched(words: str, tmp_path: Path) -> None:
    async with proxied(tmp_path) as (engine, socket):
        engine.labels = {"sika.installation": "x"}
        status, _ = await sent(socket, words)
        assert status == 404
        assert all(request.startswith("GET ") and request.endswith("HTTP/1.0") for request in engine.requests)
        engine.labels = {"sika.socketproxy": "sika"}
        assert (await sent(socket, words))[0] == 200
    assert engine.requests[-1].startswith(words)


async def test_a_list_has_the_proxys_own_containers_only(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (engine, socket):
        await sent(socket, "GET /v1.41/containers/json?all=1&filters={%22label%22:[%22a=b%22]}")
    assert "sika.socketproxy%3Dsika" in engine.requests[0]
    assert "a%3Db" in engine.requests[0]


@pytest.mark.parametrize(
    "fields",
    [{"Cmd": ["/bin/bash"]}, {"Cmd": ["/bin/sh", "-c", "id"]}, {"Privileged": True}, {"User": "0"}, {"Env": [1]}],
)
async def test_a_shell_in_a_container_is_that_of_its_user(fields: dict[str, Any], tmp_path: Path) -> None:
    async with proxied(tmp_path) as (engine, socket):
        status, _ = await sent(socket, "POST /containers/x/exec", json.dumps({"Cmd": ["/bin/sh"], **fields}).encode())
        assert status == 403
        assert not any("POST" in request for request in engine.requests)
        assert (await sent(socket, "POST /containers/x/exec", b'{"Cmd": ["/bin/sh"]}'))[0] == 200


@pytest.mark.parametrize(
    ("words", "content", "headers", "status"),
    [
        ("POST /containers/create?name=sika-x", b"", "Transfer-Encoding: chunked\r\n", 411),
        ("POST /containers/create?name=sika-x", b"", "Content-Length: 99999999999\r\n", 413),
        ("GET /info", b"", f"X: {'x' * 70_000}\r\n", 431),
        ("POST /containers/create?name=sika-x", b"{", "", 502),
        ("POST /containers/create?name=sika-x", b"[]", "", 403),
    ],
)
async def test_what_is_no_request_is_refused(
    words: str, content: bytes, headers: str, status: int, tmp_path: Path
) -> None:
    async with proxied(tmp_path) as (engine, socket):
        assert (await sent(socket, words, content, headers))[0] == status
        assert engine.requests == []
        assert (await sent(socket, "GET /_ping"))[0] == 200
