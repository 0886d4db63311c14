"""A Docker engine of the tests' own, and images that need no registry. Both need root, `dockerd` and `busybox`."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # every process of tests imports this file
    import docker

IMAGE, GNU_IMAGE, PYTHON_IMAGE = "sika-test-busybox", "sika-test-gnu", "sika-test-python"
REMOTE_IMAGE = "sika-test-remote"
"""With the tools by which files are copied."""
ATTEMPTS = 4
"""An engine that follows a killed one fails at first."""
START_SECONDS = 120.0
_GNU = (
    *("bash", "dash", "env", "kill", "mkdir", "mkfifo", "sleep", "tail", "tee", "wc", "cat", "seq", "setsid", "ls"),
    *("head", "tr", "rm", "touch", "id", "grep", "ln", "yes", "busybox"),
)

_COPYING = ("base64", "chmod", "dirname", "du", "find", "gzip", "tar", "xargs", "cksum", "mv", "cp")
_PYTHON_TOOLS = ("curl", "cp", "chmod", "chown", "mount", "find", "mknod", "nohup", "getent", "mv", "dd", "stat")
_UNUSED = {"test", "idlelib", "ensurepip", "lib2to3", "dist-packages", "tkinter", "turtledemo"}


class TestEngine:
    """An engine with folders and a socket of its own: no bridge, no firewall rules."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.host = f"unix://{folder}/sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for _ in range(ATTEMPTS):
            self._launch()
            if self._answers():
                return
            self.stop()
        log = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"no Docker engine can be started here: {log}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
        (self._folder / "pid").unlink(missing_ok=True)
        self._end_containerd()

    def _end_containerd(self) -> None:
        """Ends the containerd that a killed engine leaves. The next engine would remove its socket, take it for its
        own, and wait for an answer for a minute, during which it does not hear SIGTERM. Containers run on without it.
        """
        record = self._folder / "exec/containerd/containerd.pid"
        with contextlib.suppress(OSError, ValueError):
            process = Path("/proc", str(int(record.read_text())))
            deadline = time.monotonic() + START_SECONDS
            while str(self._folder).encode() in (process / "cmdline").read_bytes() and time.monotonic() < deadline:
                os.kill(int(process.name), signal.SIGKILL)
                time.sleep(0.01)
        record.unlink(missing_ok=True)

    def admit_everybody(self) -> None:
        """Lets servers of every user reach the engine, as the group `docker` does."""
        self._folder.chmod(0o711)
        (self._folder / "sock").chmod(0o666)

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.APIClient]:
        import docker

        with contextlib.closing(docker.APIClient(base_url=self.host, timeout=60)) as client:
            yield client

    def remove_containers(self, image: str) -> None:
        with self.client() as client:
            for container in client.containers(all=True, filters={"ancestor": image}):
                client.remove_container(container["Id"], force=True, v=True)

    def close(self) -> None:
        """Ends the containers, the engine and its containerd, and deletes the folders."""
        with contextlib.suppress(Exception), self.client() as client:
            for container in client.containers(all=True):
                client.remove_container(container["Id"], force=True)
        self.stop()
        for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            place = mount.split()[1]
            if place.startswith(f"{self._folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _launch(self) -> None:
        folder = self._folder
        words = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "-H", self.host]
        words += ["--pidfile", f"{folder}/pid", "--iptables=false", "--bridge=none", "--group", str(os.getgid())]
        with open(folder / "log", "ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def _answers(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(Exception), self.client() as client:
                client.ping()
                return True
            time.sleep(0.1)
        return False


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[TestEngine]:
    """An engine with both images, one per session. Skips where none can be started."""
    if reason := problem():
        pytest.skip(reason)
    with engine() as running:
        yield running


@pytest.fixture(scope="session")
def python_image(docker_engine: TestEngine) -> str:
    """The name of an image with this system's Python and curl. Skips where there is none."""
    if reason := no_python():
        pytest.skip(reason)
    return python_in(docker_engine)


def python_in(running: TestEngine) -> str:
    """Imports the image with Python, and returns its name."""
    import_images(running, {PYTHON_IMAGE: _python})
    return PYTHON_IMAGE


def no_python() -> str | None:
    """Returns why there is no image with Python here."""
    found = Path("/usr/bin/python3").resolve()
    standard = Path("/usr/lib") / found.name / "socket.py"
    return None if standard.exists() and shutil.which("curl") else "an image with Python needs the system's, and curl"


def problem() -> str | None:
    """Returns why no engine can be started here."""
    missing = [name for name in ("dockerd", "containerd", "runc", "busybox") if shutil.which(name) is None]
    if missing:
        return f"a Docker engine of the tests' own needs {', '.join(missing)}"
    return None if os.geteuid() == 0 else "a Docker engine of the tests' own needs root"


@contextlib.contextmanager
def engine() -> Iterator[TestEngine]:
    # Not in memory, where folders of tests are: overlay file systems need a disk. Socket paths are short.
    running = TestEngine(Path(tempfile.mkdtemp(prefix="sika-engine-", dir="/tmp")))
    try:
        running.start()
        import_images(running, {IMAGE: add_busybox, GNU_IMAGE: _gnu, REMOTE_IMAGE: _remote})
        yield running
    finally:
        running.close()


def import_images(running: TestEngine, images: Mapping[str, Callable[[tarfile.TarFile], None]]) -> None:
    with tempfile.TemporaryDirectory() as folder, running.client() as client:
        for name, write in images.items():
            tar = Path(folder) / f"{name}.tar"
            with tarfile.open(tar, "w", dereference=True) as archive:
                write(archive)
            client.import_image_from_file(str(tar), repository=name, tag="latest")


def add_busybox(archive: tarfile.TarFile) -> None:
    binary = str(shutil.which("busybox"))
    archive.add(binary, "bin/busybox")
    for applet in subprocess.check_output([binary, "--list"], text=True).split():
        if applet != "busybox":
            add_link(archive, f"bin/{applet}", "busybox")


def _gnu(archive: tarfile.TarFile) -> None:
    """This system's shells and tools, with their libraries."""
    _programs(archive, _GNU)
    add_link(archive, "bin/sh", "dash")


def _remote(archive: tarfile.TarFile) -> None:
    _programs(archive, (*_GNU, *_COPYING))
    add_link(archive, "bin/sh", "dash")


def _python(archive: tarfile.TarFile) -> None:
    """This system's Python with its standard library, and curl, beside the tools."""
    python = Path("/usr/bin/python3").resolve()
    standard = f"/usr/lib/{python.name}"
    _programs(archive, (*_PYTHON_TOOLS, *_GNU, python.name), [str(path) for path in Path(standard).rglob("*.so")])
    for name, target in (("bin/sh", "dash"), ("bin/python3", python.name), ("usr/bin", "../bin")):
        add_link(archive, name, target)
    _text(archive, "etc/passwd", "root:x:0:0:root:/:/bin/sh\nagent:x:1000:1000:agent:/:/bin/sh\n")
    archive.add(
        standard, standard.lstrip("/"), filter=lambda entry: None if _UNUSED & set(entry.name.split("/")) else entry
    )


def _programs(archive: tarfile.TarFile, names: Iterable[str], modules: Iterable[str] = ()) -> None:
    """Adds programs, and the libraries of these and of modules."""
    paths = {name: str(shutil.which(name, path="/usr/bin:/bin")) for name in names}
    words = subprocess.run(["ldd", *paths.values(), *modules], capture_output=True, text=True, check=False).stdout
    for name, path in paths.items():
        archive.add(path, f"bin/{name}")
    for library in {word for word in words.split() if word.startswith("/") and not word.endswith(":")}:
        archive.add(library, library.lstrip("/"))


def add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)


def _text(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text)
    archive.addfile(entry, io.BytesIO(text.encode()))
