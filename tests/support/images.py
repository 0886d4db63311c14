"""Base images for the compose file, made of this machine's own programs: they need no registry.

The image of Python has the packages of the lock installed already, so the build of Sika's image finds every requirement
in place and needs no index. Of large ones that the tests' servers do not import it has what the build looks at only: an
engine needs half a millisecond for each file. The image of NATS is the server of the development environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.engine import TestEngine, add_busybox, add_link

ROOT = Path(__file__).parents[2]
PYTHON_IMAGE, NATS_IMAGE = "sika-test-python", "sika-test-nats"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_TOOLS = ("pip", "uv", "hatchling", "cyclonedx-bom")
"""What the build installs, besides the lock."""
_NOT_IMPORTED = {
    *("pandas", "onnxruntime", "sympy", "matplotlib", "mpl_toolkits", "fontTools", "numpy", "numpy.libs"),
    *("pillow.libs", "kubernetes", "telegram", "textual", "prompt_toolkit", "openpyxl", "docx", "pptx"),
    *("reportlab", "pdfminer"),
}
"""Folders of packages for documents, chat platforms, terminals and other engines: half of all bytes."""
_LEFT_OUT = re.compile(r"site-packages|test|idlelib|lib2to3|tkinter|turtledemo|config-.*")
"""Directories of the standard library."""


def problem() -> str | None:
    """Returns why this Python cannot be the one of an image."""
    if "deb_system" in sysconfig.get_scheme_names():
        return "Debian's own Python looks for packages where no other one has them"
    return None


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
    for entry in sorted(library.iterdir()):
        if not _LEFT_OUT.fullmatch(entry.name):
            archive.add(entry, f"{folder}/{entry.name}", filter=_of_root)
    modules = [path for name in sorted(_installed()) for path in _files(name, packages)]
    for path in modules:
        archive.add(packages / path, f"{folder}/site-packages/{path}", filter=_of_root)
    temporary = tarfile.TarInfo("tmp")
    temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
    archive.addfile(temporary)
    _libraries(
        archive,
        [binary, *library.glob("lib-dynload/*.so"), *(packages / path for path in modules if path.suffix == ".so")],
    )


def _installed() -> set[str]:
    """Returns the names of the packages of the lock and of the tools of the build, with what these need."""
    locked = re.findall(r"^([^ ]+==[^ ]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    wanted = [Requirement(line) for line in (*_TOOLS, *locked)]
    seen: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        for name, extra in {(canonicalize_name(one.name), extra) for extra in ("", *one.extras)} - seen:
            with suppress(PackageNotFoundError):  # for another system
                needs = [Requirement(line) for line in requires(name) or ()]
                wanted += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
                seen.add((name, extra))
    return {name for name, _ in seen}


def _files(name: str, packages: Path) -> Iterator[Path]:
    """Yields the files of an installed package below `site-packages`, and what is compiled of them."""
    for path in (Path(str(path)) for path in files(name) or ()):
        if path.suffix != ".pyc" and path.parts[0] not in {"..", *_NOT_IMPORTED} and "tests" not in path.parts:
            yield path
            compiled = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
            if path.suffix == ".py" and (packages / compiled).exists():
                yield compiled


def _nats(archive: tarfile.TarFile) -> None:
    server = Path(sys.executable).with_name("nats-server")
    archive.add(server, "bin/nats-server")
    _libraries(archive, [server])


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    return None if entry.name.endswith(("/test", "/tests", ".opt-1.pyc", ".opt-2.pyc")) else entry


def _libraries(archive: tarfile.TarFile, programs: Iterable[Path]) -> None:
    """Adds the system's libraries of programs to /lib, and the loader to its place."""
    text = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    paths = {Path(word) for word in text.split() if word.startswith("/") and not word.endswith(":")}
    for path in sorted(path for path in paths if "site-packages" not in path.parts):
        loader = path.name.startswith("ld-")
        archive.add(path, str(path).lstrip("/") if loader else f"lib/{path.name}")
