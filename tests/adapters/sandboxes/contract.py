"""The sandboxes that the contract suite runs against: one entry of `KINDS` each.

A kind makes a provider on a place (a folder of the test) as often as it is asked: a second one stands for a server that
was started again.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.confine.confinement import binary
from adapters.sandboxes.docker.provider import Docker
from adapters.sandboxes.host.sandbox import Host
from adapters.sandboxes.remote.docker_engine import RemoteDocker
from adapters.sandboxes.remote.provider import Aio
from adapters.sandboxes.remote.provisioner import Provisioner
from core.ports.sandbox import SandboxProvider, SandboxSetup
from tests.adapters.sandboxes.conftest import KEY, settings
from tests.support.engine import GNU_IMAGE, IMAGE, REMOTE_IMAGE


class Kind(ABC):
    """A way to have sandboxes. `name` is that of the test's parameter."""

    name: str
    confined = True
    """False if commands are refused that name paths outside."""

    @abstractmethod
    def provider(self, place: Path) -> SandboxProvider:
        """Returns a new provider."""

    def prepare(self, request: pytest.FixtureRequest) -> Path:
        """Returns the test's place, and starts what its providers need. Skips the test where that cannot be started."""
        place: Path = request.getfixturevalue("tmp_path")
        return place


class OnHost(Kind):
    name = "host"
    confined = False

    def provider(self, place: Path) -> SandboxProvider:
        return Host(SandboxSetup(**settings(place), allow_host_bash=True))


class InBubblewrap(Kind):
    name = "bubblewrap"

    def provider(self, place: Path) -> SandboxProvider:
        return Bubblewrap(SandboxSetup(**settings(place)))


class InDocker(Kind):
    """One engine per session and one place per file of tests, so that the tests of a file share containers."""

    def __init__(self, name: str, image: str) -> None:
        self.name, self._image = name, image
        self._host = ""

    def prepare(self, request: pytest.FixtureRequest) -> Path:
        self._host = request.getfixturevalue("docker_engine").host
        place: Path = request.getfixturevalue("shared_place") / self.name
        empty(place)
        return place

    def provider(self, place: Path) -> Docker:
        options = {"host": self._host, "image": self._image}
        return Docker(SandboxSetup(**settings(place), settings=options))


class InRemoteDocker(Kind):
    """The engine of the session, used as one that does not see the files of this machine."""

    name = "docker-remote"
    _host = ""

    def prepare(self, request: pytest.FixtureRequest) -> Path:
        engine = request.getfixturevalue("docker_engine")
        self._host = engine.host
        engine.remove_containers(REMOTE_IMAGE)
        place: Path = request.getfixturevalue("tmp_path")
        return place

    def provider(self, place: Path) -> RemoteDocker:
        options = {"host": self._host, "image": REMOTE_IMAGE, "remote": True}
        return RemoteDocker(SandboxSetup(**settings(place), settings=options))


class InImage(Kind):
    """One stand-in of the all-in-one image per file of tests; `old`: of an image that has shells only."""

    def __init__(self, name: str, old: bool = False) -> None:
        self.name, self._old = name, old
        self._url = ""

    def prepare(self, request: pytest.FixtureRequest) -> Path:
        if binary() is None:
            pytest.skip("the stand-in of the image needs bubblewrap")
        container = request.getfixturevalue("aio_images")(self._old)
        self._url = container.url
        place: Path = request.getfixturevalue("shared_place") / self.name
        shutil.rmtree(place, ignore_errors=True)
        container.clear()
        return place

    def provider(self, place: Path) -> Aio:
        return Aio(SandboxSetup(**settings(place), settings={"url": self._url}))


class OfProvisioner(Kind):
    """Our provisioner on a stand-in of Kubernetes, whose only node has one container of the image."""

    name = "provisioner"
    _url = ""

    def prepare(self, request: pytest.FixtureRequest) -> Path:
        if binary() is None:
            pytest.skip("the stand-in of the image needs bubblewrap")
        container, self._url = request.getfixturevalue("provisioner_service")
        place: Path = request.getfixturevalue("shared_place") / self.name
        shutil.rmtree(place, ignore_errors=True)
        container.clear()
        return place

    def provider(self, place: Path) -> Provisioner:
        return Provisioner(SandboxSetup(**settings(place), settings={"url": self._url, "api_key": KEY}))


KINDS: tuple[Kind, ...] = (
    OnHost(),
    InBubblewrap(),
    InDocker("docker-busybox", IMAGE),
    InDocker("docker-gnu", GNU_IMAGE),
    InRemoteDocker(),
    InImage("aio"),
    OfProvisioner(),
)


def empty(place: Path) -> None:
    """Deletes what a test left, but not the folders that containers have mounted."""
    kept = ("shared", "home/users/*/threads/*/user-data/*", "home/users/*/threads/*/machines/*")
    for folder in (folder for pattern in kept for folder in place.glob(pattern)):
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for thread in place.glob("home/users/*/threads/*"):
        shutil.rmtree(thread / "calls", ignore_errors=True)
        (thread / "usage").unlink(missing_ok=True)
