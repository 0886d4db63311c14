"""Both local providers on an empty home, and the means to wait without sleeping for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from adapters.sandboxes.bubblewrap import Bubblewrap, BubblewrapSandbox
from adapters.sandboxes.host.sandbox import Host, HostSandbox
from core.files.paths import Mount
from core.ports.sandbox import ExecResult, SandboxSetup, ShellCommand

if TYPE_CHECKING:  # servers that tests start import this file, and Docker's and Kubernetes' packages take two seconds
    from adapters.sandboxes.docker.sandbox import DockerSandbox
    from tests.support.aio_image import Container

Local: TypeAlias = "BubblewrapSandbox | DockerSandbox | HostSandbox"
SECRET = "the-server-knows-this"
KEY = "the-key-of-the-provisioner"


def settings(tmp_path: Path) -> dict[str, Any]:
    home, skills, readonly, shared = (tmp_path / name for name in ("home", "skills", "readonly", "shared"))
    for directory in (home, skills / "demo", readonly, shared):
        directory.mkdir(parents=True, exist_ok=True)
    (skills / "demo" / "SKILL.md").write_text("a skill")
    (readonly / "fixed.txt").write_text("fixed")
    return {
        "home": home,
        "skills": {"demo": skills / "demo"},
        "mounts": (
            Mount(readonly, "/mnt/readonly"),
            Mount(shared, "/mnt/shared", writable=True),
            Mount(tmp_path / ("x" * 300), "/mnt/unreadable"),  # the name is too long to be looked at
        ),
        "environment": {"CONFIGURED": "yes"},
        "network": False,
        "memory_mb": 1024,
        "max_processes": 100,
        "max_file_mb": 8,
        "quota": {"thread_bytes": 64 << 20, "thread_files": 5000, "user_bytes": 96 << 20, "user_files": 8000},
    }


def provider_of(kind: str, tmp_path: Path) -> Bubblewrap | Host:
    if kind == "bubblewrap":
        return Bubblewrap(SandboxSetup(**settings(tmp_path)))
    return Host(SandboxSetup(**settings(tmp_path), allow_host_bash=True))


@pytest.fixture(params=["bubblewrap", "host"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Bubblewrap | Host:
    return provider_of(request.param, tmp_path)


@pytest.fixture
async def sandbox(provider: Bubblewrap | Host) -> Local:
    return await provider.acquire("ada", "t1")


@pytest.fixture
async def jail(tmp_path: Path) -> BubblewrapSandbox:
    return await Bubblewrap(SandboxSetup(**settings(tmp_path))).acquire("ada", "t1")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "home/users/ada/threads/t1/user-data/workspace"


async def run(sandbox: Local, command: str, call_id: str = "c1", timeout: float = 60) -> ExecResult:
    return await sandbox.exec(call_id, ShellCommand(command, timeout), lambda text: None)


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def running(mark: str) -> list[int]:
    """Processes that have a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def aio_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Container]]:
    """Starts stand-ins of the all-in-one image, one of each kind."""
    from tests.support.aio_image import image

    running: dict[bool, Container] = {}
    with ExitStack() as stack:

        def start(old: bool) -> Container:
            if old not in running:
                root = tmp_path_factory.mktemp("aio") / "mnt"
                root.mkdir()
                running[old] = stack.enter_context(image(root, old=old))
            return running[old]

        yield start


@pytest.fixture(scope="module")
def provisioner_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Container, str]]:
    """Runs our provisioner, the Kubernetes stand-in below it, and the container that its pods lead to."""
    from tests.support.aio_image import image
    from tests.support.kubernetes import service

    root = tmp_path_factory.mktemp("pods") / "mnt"
    root.mkdir()
    with image(root) as container, service(int(container.url.rpartition(":")[2]), KEY) as url:
        yield container, url
