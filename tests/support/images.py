"""Base images for the compose file, made of this machine's own programs: they need no registry.

The image of Python has the packages of the lock installed already, so the build of Sika's image finds every requirement
in place and needs no index. The image of NATS is the server of the development environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.support.engine import TestEngine, add_busybox, add_link

PYTHON_IMAGE, NATS_IMAGE = "sika-test-python", "sika-test-nats"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_NOT_NEEDED = re.compile(r"(mypy|ruff|hypothesis|schemathesis|jsonschema_rs|sika|_+editable_|pytest)(\b|[-_.]).*")
"""Packages: tools of the tests, and Sika itself."""
_LEFT_OUT = re.compile(r"site-packages|test|idlelib|config-.*")
"""Directories of the standard library."""


def add_images(running: TestEngine) -> None:
    for name, write, entry in ((PYTHON_IMAGE, _python, []), (NATS_IMAGE, _nats, ['ENTRYPOINT ["nats-server"]'])):
        with tempfile.NamedTemporaryFile(dir="/tmp", suffix=".tar") as file:
            with tarfile.open(fileobj=file, mode="w", dereference=True) as archive:
                add_busybox(archive)
                write(archive)
            file.flush()
            with running.client() as client:
                client.import_image_from_file(file.name, repository=name, tag="latest", changes=entry)


def _python(archive: tarfile.TarFile) -> None:
    """Python below /usr/local, whatever its place here."""
    binary = Path(sys.executable).resolve()
    library, packages = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    archive.add(binary, f"usr/local/bin/{_VERSION}")
    for name in ("python", "python3"):
        add_link(archive, f"usr/local/bin/{name}", _VERSION)
    archive.add(Path(sys.executable).with_name("uv"), "usr/local/bin/uv")
    folder = f"usr/local/lib/{_VERSION}"
    for source, target, left_out in ((library, folder, _LEFT_OUT), (packages, f"{folder}/site-packages", _NOT_NEEDED)):
        for entry in sorted(source.iterdir()):
            if not left_out.fullmatch(entry.name):
                archive.add(entry, f"{target}/{entry.name}", filter=_of_root)
    temporary = tarfile.TarInfo("tmp")
    temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
    archive.addfile(temporary)
    _libraries(archive, [binary, *library.glob("lib-dynload/*.so"), *packages.rglob("*.so")])


def _nats(archive: tarfile.TarFile) -> None:
    server = Path(sys.executable).with_name("nats-server")
    archive.add(server, "bin/nats-server")
    _libraries(archive, [server])


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    return None if entry.name.endswith("/tests") else entry


def _libraries(archive: tarfile.TarFile, programs: Iterable[Path]) -> None:
    """Adds the system's libraries of programs to /lib, and the loader to its place."""
    text = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    paths = {Path(word) for word in text.split() if word.startswith("/") and not word.endswith(":")}
    for path in sorted(path for path in paths if "site-packages" not in path.parts):
        loader = path.name.startswith("ld-")
        archive.add(path, str(path).lstrip("/") if loader else f"lib/{path.name}")
