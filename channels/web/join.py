"""The page's own modules in two files: what is needed at once, and the rooms that are loaded when they are entered.

Theory of operation
-------------------
The page is written as plain ES modules, one thing in each. A browser would ask for them one by one, level by level, so
the server joins them when it starts: each module becomes a function with the same text, in which only the lines of
`import` and the word `export` are others. Lines stay where they are, so that a line in the browser's debugger is the
line of the file; comments that take whole lines are left blank. There is no parser, hence rules, and what breaks one is
`Invalid` with its file and line:

* `import { a, b as c } from "./file.js";` or `import * as a from "./file.js";`, at the beginning of a line;
* `export` before `function`, `async function`, `class` or `const`, at the beginning of a line. What is exported
  never changes;
* modules do not import each other in a circle;
* `import("./place/view.js")` is a room, in the second file with all that only rooms need; `import("./place/room.js")`
  is a room with a file of its own, `place.js`, that has what neither of the two has; `import("./vendor/lib.js")` is a
  library;
* `new URL("./file.js", import.meta.url)` is the address of a file that runs by itself (a worker), and
  `new URL("./place.css", import.meta.url)` that of a style sheet that is not in the one of all.

A library (`vendor/`) is a file of its own, under a name with its hash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from posixpath import dirname, join, normpath

from core.errors import Invalid

_IMPORT = re.compile(r'^import\s+(?:\{([^}]*)\}|\*\s+as\s+(\w+))\s+from\s+"(\.[^"]+)";', re.MULTILINE)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?function\*?|class|const)\s+(\w+)", re.MULTILINE)
_LEFT = re.compile(r"^(import\b(?!\s*\()|export\b).*", re.MULTILINE)
_LAZY = re.compile(r'\bimport\("(\.[^"]+)"\)')
_URL = re.compile(r'new URL\("(\.[^"]+)", import\.meta\.url\)')
_COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/[ \t]*)$", re.MULTILINE | re.DOTALL)
VENDOR = "vendor/"
OWN_FILE = "/room.js"
"""The end of the path of a room that has a file of its own."""


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the page: what it imports (by path), at once and later, and what it exports."""

    path: str
    text: str
    imports: tuple[str, ...] = field(init=False)
    rooms: tuple[str, ...] = field(init=False)
    exports: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "imports", tuple(self.at(place) for _, _, place in _IMPORT.findall(self.text)))
        lazy = (self.at(place) for place in _LAZY.findall(self.text))
        object.__setattr__(self, "rooms", tuple(path for path in lazy if not path.startswith(VENDOR)))
        object.__setattr__(self, "exports", tuple(name for _, name in _EXPORT.findall(self.text)))

    def at(self, place: str) -> str:
        """Returns the path of what the module names by a relative address."""
        return normpath(join(dirname(self.path), place))


Read = Callable[[str], str]
"""Returns the text of a file by its path in the folder."""


def ordered(entries: list[str], read: Read, known: Mapping[str, Module] | None = None) -> dict[str, Module]:
    """Returns the modules that the entries need besides those that are known, each after all that it imports."""
    modules: dict[str, Module] = {}
    under: list[str] = []

    def visit(path: str) -> None:
        if path in modules or path.startswith(VENDOR) or (known and path in known):
            return
        if path in under:
            raise Invalid(f"{path}: imports itself: {' → '.join([*under[under.index(path) :], path])}")
        under.append(path)
        module = Module(path, read(path))
        for imported in module.imports:
            visit(imported)
        under.pop()
        modules[path] = module

    for entry in entries:
        visit(entry)
    return modules


def rooms_of(modules: Mapping[str, Module], read: Read) -> dict[str, Module]:
    """Returns the modules that are loaded later, with all that only they need; not those with files of their own."""
    rooms: dict[str, Module] = {}
    waiting = _named_by(modules, own=False)
    while waiting:
        rooms |= ordered(waiting, read, {**modules, **rooms})
        waiting = [room for room in _named_by(rooms, own=False) if room not in rooms and room not in modules]
    return rooms


def own_files_of(modules: Mapping[str, Module], read: Read) -> dict[str, dict[str, Module]]:
    """Returns the modules of the rooms that have files of their own, by the names of these, as `place.js`."""
    files: dict[str, dict[str, Module]] = {}
    for room in _named_by(modules, own=True):
        first = ordered([room], read, modules)
        files[f"{dirname(room).replace('/', '-')}.js"] = first | rooms_of({**modules, **first}, read)
    return files


def _named_by(modules: Mapping[str, Module], *, own: bool) -> list[str]:
    rooms = {room for module in modules.values() for room in module.rooms}
    return sorted(room for room in rooms if room.endswith(OWN_FILE) == own and room not in modules)


def joined(modules: Mapping[str, Module], name_of: Callable[[str], str], file_of: Callable[[str], str]) -> str:
    """Returns modules as one. `name_of`: of a file as it is served; `file_of`: the name of the file that has a module
    that is not among these.
    """
    libraries = sorted({path for module in modules.values() for path in module.imports if path.startswith(VENDOR)})
    lines = [f'import * as {_variable(path)} from "./{name_of(path)}";' for path in libraries]
    outside = {path for module in modules.values() for path in module.imports} - modules.keys() - set(libraries)
    bases = {file: f"$base{index or ''}" for index, file in enumerate(sorted({file_of(path) for path in outside}))}
    lines += [f'import {{ modules as {base} }} from "./{file}";' for file, base in bases.items()]
    lines += [f'const {_variable(path)} = {bases[file_of(path)]}["{path}"];' for path in sorted(outside)]
    lines += [_wrapped(module, name_of, file_of, modules) for module in modules.values()]
    table = ", ".join(f'"{path}": {_variable(path)}' for path in modules)
    return "\n".join([*lines, f"export const modules = {{ {table} }};", ""])


def standing(module: Module, name_of: Callable[[str], str]) -> str:
    """Returns a module that runs by itself (a worker): it imports libraries only."""

    def renamed(match: re.Match[str]) -> str:
        path = module.at(match[3])
        if not path.startswith(VENDOR):
            raise Invalid(f"{module.path}: a file that runs by itself imports libraries only, not {path}")
        return match[0].replace(match[3], f"./{name_of(path)}")

    return _IMPORT.sub(renamed, _without_comments(module.text))


def standing_of(modules: Mapping[str, Module]) -> list[str]:
    """Returns the paths of the scripts and style sheets that modules name as addresses."""
    return sorted({module.at(place) for module in modules.values() for place in _URL.findall(module.text)})


def _wrapped(
    module: Module, name_of: Callable[[str], str], file_of: Callable[[str], str], same: Mapping[str, Module]
) -> str:
    """Returns a module as a function that returns its exports."""

    def imported(match: re.Match[str]) -> str:
        names, whole, place = match.groups()
        names = f"{{{names.replace(' as ', ': ')}}}" if names else whole
        return f"const {names} = {_variable(module.at(place))};"

    def room(match: re.Match[str]) -> str:
        path = module.at(match[1])
        if path.startswith(VENDOR):
            return f'import("./{name_of(path)}")'
        if path in same:
            return f"Promise.resolve({_variable(path)})"
        return f'import("./{file_of(path)}").then((room) => room.modules["{path}"])'

    text = _IMPORT.sub(imported, _without_comments(module.text))
    text = _EXPORT.sub(r"\1 \2", text)
    for line in _problems(module.path, text):
        raise Invalid(line)
    text = _LAZY.sub(room, text)
    text = _URL.sub(lambda match: f'new URL("./{name_of(module.at(match[1]))}", import.meta.url)', text)
    exports = ", ".join(module.exports)
    name = _variable(module.path)
    return f"// {module.path}\nconst {name} = (() => {{\n{text.rstrip()}\nreturn {{ {exports} }};\n}})();"


def _problems(path: str, text: str) -> Iterator[str]:
    for match in _LEFT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{path}:{line}: this form of import or export is not joined: {match[0][:80]!r}"


def _without_comments(text: str) -> str:
    """Leaves lines that are only a comment blank: who debugs the page has the file."""
    return _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)


def _variable(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path.removesuffix(".js"))
