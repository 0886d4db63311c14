"""The files of the page as they are served: names with hashes, whole and compressed, made once by each process."""

from __future__ import annotations

import functools
import gzip
import hashlib
import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from channels.web import catalogue, join, views
from core.errors import NotFound

FOLDER = Path(__file__).parent
ENTRY = "main.js"
ROOMS = "rooms.js"
SMALLEST = 1024
"""Bytes from which on a file is compressed."""
PRELOADED = ("vendor/preact.js",)
"""Libraries that the browser preloads before it has read the script that needs them."""
_FRAME = ("diagram/frame.html", "diagram/frame.js")
"""The document of the sandboxed frame that draws diagrams, and its script."""
_MEDIA = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file. `compressed`: by gzip, None if that is not worth it."""

    media: str
    body: bytes
    compressed: bytes | None


@functools.cache
def document() -> Asset:
    """Returns the page's document."""
    names = _names()
    links = [f'<link rel="modulepreload" href="page/{names[path]}" />' for path in (*PRELOADED, ENTRY)]
    page = Template(_text("index.html")).substitute(
        style=names["style.css"], script=names[ENTRY], preloads="\n    ".join(links), views=_views()
    )
    return _asset(".html", page.encode())


@functools.cache
def asset(name: str) -> Asset:
    """Returns a file by its name with its hash. Raises `NotFound`."""
    if name in (added := views.files().bodies):
        return _asset(Path(name).suffix, added[name])
    path = {name: path for path, name in _names().items()}.get(name)
    if path is None:
        raise NotFound(f"no such file of the page: {name[:80]!r}")
    return _asset(Path(path).suffix, _body(path))


def name_of(path: str) -> str:
    """Returns the name under which a file of the folder is served."""
    return _names()[path]


def _views() -> str:
    """The views of installed packages, as an attribute of the document."""
    return html.escape(json.dumps([view._asdict() for view in views.files().views], ensure_ascii=False))


def _asset(suffix: str, body: bytes) -> Asset:
    small = gzip.compress(body, 9, mtime=0) if len(body) >= SMALLEST else None
    return Asset(_MEDIA[suffix], body, small)


# ── what there is ────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _names() -> dict[str, str]:
    """The name of each file as it is served, by its path. Own scripts have one hash: they name each other."""
    vendor = [f"vendor/{file.name}" for file in sorted((FOLDER / "vendor").glob("*.js"))]
    names = {path: _hashed(path, _text(path).encode()) for path in vendor}
    files = _modules()
    modules = {path: module for file in files.values() for path, module in file.items()}
    alone = join.standing_of(modules)
    own = sorted({*modules, *alone, *_FRAME})
    build = hashlib.sha256(json.dumps([*names.values(), *((path, _text(path)) for path in own)]).encode())
    names |= {path: _stamped(path, build.hexdigest()) for path in (*files, *alone, *_FRAME)}
    names["style.css"] = _hashed("style.css", _style())
    return names


def _hashed(path: str, body: bytes) -> str:
    return _stamped(path, hashlib.sha256(body).hexdigest())


def _stamped(path: str, digest: str) -> str:
    file = Path(path)
    return f"{file.stem}-{digest[:12]}{file.suffix}"


@functools.cache
def _modules() -> dict[str, dict[str, join.Module]]:
    """The modules of each script: what is needed at once, what rooms need, and the rooms with files of their own."""
    eager = join.ordered([ENTRY], _text)
    rooms = join.rooms_of(eager, _text)
    return {ENTRY: eager, ROOMS: rooms} | join.own_files_of({**eager, **rooms}, _text)


def _body(path: str) -> bytes:
    files = _modules()
    if path in files:
        return join.joined(files[path], name_of, _file_of).encode()
    if path == "style.css":
        return _style()
    if path.endswith(".css"):
        return _without_comments(_text(path))
    if path.endswith(".html"):
        return re.sub(r'src="([^"]+)"', _framed, _text(path)).encode()
    if path.startswith(join.VENDOR):
        return _text(path).encode()
    return join.standing(join.Module(path, _text(path)), name_of).encode()


def _file_of(path: str) -> str:
    """The name of the script that has a module."""
    return name_of(next(name for name, modules in _modules().items() if path in modules))


def _framed(match: re.Match[str]) -> str:
    return f'src="{name_of(match[1].removeprefix("../"))}"'


def _style() -> bytes:
    """All style sheets but those that modules name as one: those of `style/` first, then each folder's."""
    named = set(join.standing_of({path: module for file in _modules().values() for path, module in file.items()}))
    base = sorted((FOLDER / "style").glob("*.css"))
    others = sorted(file for file in FOLDER.glob("*/*.css") if file.parent.name not in ("style", "vendor"))
    files = [file for file in (*base, *others) if file.relative_to(FOLDER).as_posix() not in named]
    return _without_comments("\n".join(file.read_text(encoding="utf-8") for file in files))


def _without_comments(style: str) -> bytes:
    return re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL).encode()


@functools.cache
def _text(path: str) -> str:
    if path == catalogue.PATH:
        return catalogue.module()
    file = FOLDER / path
    if not file.resolve().is_relative_to(FOLDER.resolve()) or not file.is_file():
        raise NotFound(f"no such file of the page: {path[:80]!r}")
    return file.read_text(encoding="utf-8")
