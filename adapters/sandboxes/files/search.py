"""Program that finds files and lines below open directories. It is killed if it takes too long.

Reads its request (JSON) on stdin, writes its answer (JSON) on stdout. It imports only the standard library, as it
starts with `python -I -S`.

The agent changes the tree while we walk it, so this program walks down from inherited descriptors, follows no link, and
opens each file itself. ripgrep then searches the open descriptors (`/dev/fd/…`): it never resolves a path, so that no
link that is swapped in can lead it out of the tree. It only says where matches are; the lines are read here, from the
same descriptors, and cut around the match. Without ripgrep, `re` does the same more slowly.

What is not searched is counted and named in the answer: nothing is left out without a word.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import resource
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple

MAX_DEPTH = 64
"""Limit of the depth; each level costs a descriptor."""
MAX_MEMORY = 2 << 30
BINARY_PROBE = 8192
"""Bytes in which a NUL marks a file as binary; git uses 8000."""
BATCH_FILES = 512
"""Files that one ripgrep searches; each costs a descriptor."""
MAX_MATCHES = 100_000
"""Matching lines that are counted; the search ends there."""
SHOWN_LINE = 400
"""Characters of a line that are shown, around the match."""
BEFORE_MATCH = 100
"""Characters before the match in a line that is cut."""
LINE_BLOCK = 64 << 10
"""Bytes in which the ends of a line, and its neighbours, are looked for."""
DECODED_BYTES = 64 << 20
"""Limit of a file that is decoded, or searched as a whole, here."""

SKIPPED = frozenset(
    [
        ".git",
        ".svn",
        ".hg",
        ".bzr",
        "CVS",
        "node_modules",
        "bower_components",
        "jspm_packages",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".ipynb_checkpoints",
        ".tox",
        ".nox",
        ".cache",
        ".parcel-cache",
        ".turbo",
        ".gradle",
        ".nyc_output",
        ".tool-results",
    ]
)
"""Directories that a walk does not enter, unless it starts in one: of version control, of dependencies, and caches."""
VIRTUAL_ENVIRONMENT = "pyvenv.cfg"
"""A directory with this file has Python's packages, and is not entered."""
_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]/]*\]|.", re.DOTALL)
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
MAX_ALTERNATIVES = 200
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class Failure(Exception):
    """The request cannot be answered, with the reason."""


class Entry(NamedTuple):
    """An entry of a walk: `name` in the open directory `directory`. `named`: the request names it."""

    directory: int
    name: str
    path: str
    info: os.stat_result
    named: bool = False


class Match(NamedTuple):
    """A matching line: its number, and where the line and the match in it begin, in bytes."""

    line: int
    start: int
    column: int


def printable(name: str) -> str:
    """Returns a file name as text: the kernel allows bytes that are no UTF-8, JSON does not."""
    return os.fsencode(name).decode("utf-8", "replace")


def skipped(name: str) -> bool:
    return name in SKIPPED


# ── patterns of names ───────────────────────────────────────────────────────────────────────────────────────────────


def alternatives(pattern: str) -> list[str]:
    """Expands braces: `*.{ts,tsx}` is two patterns."""
    pending, plain = [pattern], list[str]()
    while pending:
        if len(pending) + len(plain) > MAX_ALTERNATIVES:
            raise Failure(f"more than {MAX_ALTERNATIVES} alternatives in braces")
        each = pending.pop(0)
        if match := _BRACES.search(each):
            pending += [each[: match.start()] + part + each[match.end() :] for part in match[1].split(",")]
        else:
            plain.append(each)
    return plain


def path_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern: `*` and `?` stay within a name, `**/` spans directories, `{a,b}` are alternatives. Without
    `/` it matches names at any depth.
    """
    return re.compile("|".join(f"(?:{_regex(each)})" for each in alternatives(pattern)), re.DOTALL)


def _regex(pattern: str) -> str:
    pattern = pattern.removeprefix("./")
    pattern = pattern if "/" in pattern else f"**/{pattern}"
    pieces = []
    for token in _TOKENS.findall(pattern):
        if token == "**/":
            pieces.append("(?:.*/)?")
        elif token[0] == "[" and len(token) > 1:
            pieces.append("[" + token[1:-1].replace("\\", "\\\\").replace("!", "^", token[1] == "!") + "]")
        else:
            pieces.append({"**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token, re.escape(token)))
    return "".join(pieces) + r"\Z"


# ── the walk ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Walk:
    """All entries below the targets, sorted. What is passed over is counted by its kind."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._targets, self._everything = request["targets"], request["everything"]
        self._hidden = frozenset(request["hidden"])
        self.start = len(request["base"].rstrip("/")) + 1
        self.directories: list[str] = []
        """Paths of directories that were not entered."""
        self.passed: Counter[str] = Counter()

    def entries(self) -> Iterator[Entry]:
        for fd, name, path in self._targets:
            if name == ".":
                yield from self._below(fd, path, 0)
            else:
                yield Entry(fd, name, path, os.stat(name, dir_fd=fd, follow_symlinks=False), named=True)

    def relative(self, entry: Entry) -> str:
        return entry.path[self.start :] or entry.name

    def _below(self, directory: int, prefix: str, depth: int) -> Iterator[Entry]:
        for name in sorted(os.listdir(directory)):
            path = f"{prefix}/{name}"
            if path in self._hidden:
                self.passed["hidden because of secrets"] += 1
                continue
            try:
                info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except OSError:
                continue  # deleted since
            if stat.S_ISLNK(info.st_mode):
                self.passed["links (not followed)"] += 1
                continue
            yield Entry(directory, name, path, info)
            if stat.S_ISDIR(info.st_mode):
                yield from self._into(directory, name, path, depth)

    def _into(self, directory: int, name: str, path: str, depth: int) -> Iterator[Entry]:
        if not self._everything and skipped(name):
            self.directories.append(path)
            return
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        except OSError:
            self.passed["that cannot be read"] += 1
            return
        try:
            if depth + 1 >= MAX_DEPTH or (not self._everything and _has(below, VIRTUAL_ENVIRONMENT)):
                self.directories.append(path)
            else:
                yield from self._below(below, path, depth + 1)
        finally:
            os.close(below)


def _has(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return True


def glob(request: dict[str, Any], walk: Walk, deadline: float) -> dict[str, Any]:
    pattern, total, paths, stopped = path_pattern(request["pattern"]), 0, list[str](), ""
    for entry in walk.entries():
        directory = stat.S_ISDIR(entry.info.st_mode)
        if (request["dirs"] or not directory) and pattern.match(walk.relative(entry)):
            total += 1
            if len(paths) < request["limit"]:
                paths.append(printable(entry.path) + ("/" if directory else ""))
        if time.monotonic() > deadline:
            stopped = "time"
            break
    return {"found": paths, "total": total, "stopped": stopped}


# ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Source(NamedTuple):
    """A file that is searched. `fd` has its text, in UTF-8 or as it is. `mark`: bytes of its byte order mark."""

    entry: Entry
    fd: int
    mark: int


class Grep:
    """The search for lines in the files of a walk."""

    def __init__(self, request: dict[str, Any], walk: Walk, deadline: float) -> None:
        self._request, self._walk, self._deadline = request, walk, deadline
        self._names, self._not = None, False
        if request["glob"]:
            self._not = request["glob"].startswith("!")
            self._names = path_pattern(request["glob"].removeprefix("!"))
        self._types = _types(request["rg"], request["type"]) if request["type"] else None
        self._pattern = None if request["rg"] else _compiled(request)
        self.found: list[str] = []
        self.searched = self.files = self.total = 0
        self._lines, self._stopped = 0, ""

    def run(self) -> dict[str, Any]:
        batch: list[Source] = []
        try:
            for entry in self._walk.entries():
                if self._is_searched(entry) and (source := self._opened(entry)) is not None:
                    batch.append(source)
                if len(batch) >= BATCH_FILES:
                    self._search(batch)
                    batch = self._closed(batch)
                if time.monotonic() > self._deadline:
                    self._stopped = "time"
                if self._stopped:
                    break
            self._search(batch)
        finally:
            self._closed(batch)
        return {
            "found": self.found,
            "total": self.total,
            "files": self.files,
            "searched": self.searched,
            "stopped": self._stopped,
        }

    def _closed(self, batch: list[Source]) -> list[Source]:
        for source in batch:
            os.close(source.fd)
        return []

    def _is_searched(self, entry: Entry) -> bool:
        if stat.S_ISDIR(entry.info.st_mode):
            return False
        if entry.named:
            return True
        relative = self._walk.relative(entry)
        if self._names is not None and bool(self._names.match(relative)) == self._not:
            return False
        return self._types is None or any(each.match(relative) for each in self._types)

    def _opened(self, entry: Entry) -> Source | None:
        """Opens a file of text, or a file that the request names. Others are counted."""
        if not stat.S_ISREG(entry.info.st_mode):
            self._walk.passed["special files"] += 1
            return None
        fd = -1
        try:
            fd = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=entry.directory)
            head = os.pread(fd, BINARY_PROBE, 0)
        except OSError:
            if fd >= 0:
                os.close(fd)
            self._walk.passed["that cannot be read"] += 1
            return None
        return self._source(entry, fd, head)

    def _source(self, entry: Entry, fd: int, head: bytes) -> Source | None:
        mark, encoding = next(((mark, name) for mark, name in _BOMS if head.startswith(mark)), (b"", "utf-8"))
        if encoding == "utf-16" and entry.info.st_size <= DECODED_BYTES:
            return Source(entry, _as_utf8(fd), 0)
        if b"\0" in head and not entry.named:
            os.close(fd)
            self._walk.passed["binary files"] += 1
            return None
        if not self._request["pattern"].isascii() and not _is_utf8(head):
            self._walk.passed["files that are not UTF-8 (there only ASCII was compared)"] += 1
        return Source(entry, fd, len(mark) if encoding == "utf-8" else 0)

    def _search(self, batch: list[Source]) -> None:
        if not batch:
            return
        matches, stopped = self._matches(batch)
        if stopped == "memory" and len(batch) > 1:  # that of one file
            self._search(batch[: len(batch) // 2])
            self._search(batch[len(batch) // 2 :])
            return
        if stopped == "memory":
            self._walk.passed["files with too long lines"] += 1
            return
        self._stopped = self._stopped or stopped
        self.searched += len(batch)
        for number, source in enumerate(batch):
            if own := matches.get(number):
                self._note(source, own)

    def _matches(self, batch: list[Source]) -> tuple[dict[int, list[Match]], str]:
        if self._request["rg"]:
            return _by_ripgrep(self._request, batch, self._deadline - time.monotonic())
        return _by_re(self._pattern, batch), ""

    def _note(self, source: Source, matches: list[Match]) -> None:
        request, path = self._request, printable(source.entry.path)
        self.files += 1
        self.total += len(matches)
        if self.total > MAX_MATCHES:
            self._stopped = self._stopped or "matches"
        if request["shows"] == "lines":
            part = matches[: max(0, request["limit"] - self._lines)]
            self._lines += len(part)
            self.found += _excerpts(source, path, part, request["before"], request["after"])
        elif len(self.found) < request["limit"]:
            self.found.append(path if request["shows"] == "files" else f"{path}: {len(matches)}")


def _types(rg: str | None, name: str) -> list[re.Pattern[str]]:
    """Returns the patterns of a type of files, as ripgrep knows it."""
    if rg is None:
        return [path_pattern(f"*.{name}")]
    listing = subprocess.run([rg, "--no-config", "--type-list"], capture_output=True, text=True, check=True).stdout
    types = dict(line.split(": ", 1) for line in listing.splitlines() if ": " in line)
    if name not in types:
        near = [each for each in types if each.startswith(name[:2])]
        raise Failure(f"type: {name!r} is unknown; similar: {', '.join(near) or 'none'}; or use glob")
    return [path_pattern(each) for each in types[name].split(", ")]


def _as_utf8(fd: int) -> int:
    """Returns a descriptor of the text in UTF-8, and closes that of the file in UTF-16."""
    with open(fd, "rb") as file, tempfile.TemporaryFile() as copy:
        copy.write(file.read(DECODED_BYTES).decode("utf-16", "replace").encode("utf-8", "replace"))
        copy.flush()
        copy.seek(0)
        return os.dup(copy.fileno())


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _by_ripgrep(
    request: dict[str, Any], batch: list[Source], seconds: float
) -> tuple[dict[int, list[Match]], Literal["", "time", "matches", "memory"]]:
    """Returns the matches by the numbers of the files, and why there may be more."""
    words = [request["rg"], "--no-config", "--no-heading", "--with-filename", "--null", "--line-number", "--column"]
    words += ["--byte-offset", "--max-columns", "1", "--text", "--no-mmap", "--crlf", "--color", "never"]
    words += ["--threads", "1"]  # a search that ends early has the first files in full: several end in any order
    words += ["--max-count", str(MAX_MATCHES + 1), "--no-messages"]
    words += ["--fixed-strings"] if request["literal"] else ["--engine", "auto"]
    words += [] if request["case_sensitive"] else ["--ignore-case"]
    words += ["--multiline"] if request["multiline"] else []
    words += [f"--regexp={request['pattern']}", "--", *(f"/dev/fd/{source.fd}" for source in batch)]
    numbers = {f"/dev/fd/{source.fd}".encode(): number for number, source in enumerate(batch)}
    matches: dict[int, list[Match]] = {}
    late, total = threading.Event(), 0

    def end() -> None:
        late.set()
        process.kill()

    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, pass_fds=[each.fd for each in batch])
        timer = threading.Timer(max(0.5, seconds), end)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            name, _, rest = line.partition(b"\0")
            parts = rest.split(b":", 3)
            if (number := numbers.get(name)) is None or len(parts) < 4:
                continue
            start = int(parts[2]) + batch[number].mark
            matches.setdefault(number, []).append(Match(int(parts[0]), start, int(parts[1]) - 1))
            if (total := total + 1) > MAX_MATCHES:
                process.kill()
                break
        code = process.wait()
        timer.cancel()
        errors.seek(0)
        problem = errors.read(4096).decode("utf-8", "replace").strip()
    if late.is_set() or total > MAX_MATCHES:
        return matches, "time" if late.is_set() else "matches"
    if code < 0 or "memory" in problem:
        return {}, "memory"
    if code == 2 and not matches and problem:
        raise Failure(problem.removeprefix("rg: "))
    return matches, ""


def _compiled(request: dict[str, Any]) -> re.Pattern[str]:
    source = re.escape(request["pattern"]) if request["literal"] else request["pattern"]
    flags = 0 if request["case_sensitive"] else re.IGNORECASE
    return re.compile(source, flags | (re.MULTILINE if request["multiline"] else 0))


def _by_re(pattern: re.Pattern[str] | None, batch: list[Source]) -> dict[int, list[Match]]:
    assert pattern is not None
    matches, room = dict[int, list[Match]](), MAX_MATCHES + 1
    for number, source in enumerate(batch):
        lines = _spanning(pattern, source) if pattern.flags & re.MULTILINE else _line_by_line(pattern, source)
        if room and (own := list(islice(lines, room))):
            matches[number] = own
            room -= len(own)
    return matches


def _line_by_line(pattern: re.Pattern[str], source: Source) -> Iterator[Match]:
    offset = source.mark
    os.lseek(source.fd, offset, os.SEEK_SET)
    with open(os.dup(source.fd), "rb") as file:
        for number, line in enumerate(file, 1):
            text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
            if match := pattern.search(text):
                yield Match(number, offset, len(text[: match.start()].encode("utf-8", "surrogateescape")))
            offset += len(line)


def _spanning(pattern: re.Pattern[str], source: Source) -> Iterator[Match]:
    """Yields each line of matches that span lines."""
    text = os.pread(source.fd, DECODED_BYTES, source.mark).decode("utf-8", "surrogateescape")
    last, starts = 0, [0, *(match.end() for match in re.finditer("\n", text))]
    numbers: dict[int, int] = {}
    for match in pattern.finditer(text):
        first = text.count("\n", 0, match.start()) + 1
        end = first + text.count("\n", match.start(), max(match.start(), match.end() - 1))
        for number in range(max(first, last + 1), end + 1):
            numbers[number] = max(0, match.start() - starts[number - 1])
            last = number
    for number, column in numbers.items():
        start = len(text[: starts[number - 1]].encode("utf-8", "surrogateescape")) + source.mark
        yield Match(number, start, column)


# ── excerpts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _excerpts(source: Source, path: str, matches: list[Match], before: int, after: int) -> list[str]:
    """Returns the lines of matches with their context: `path:12: text`, `path-13- text`, `--` between groups."""
    lines: dict[int, str] = {}
    for match in matches:
        for number, text in _around(source, match, before, after):
            lines.setdefault(number, f"{path}-{number}- {text}")
    for match in matches:
        lines[match.line] = f"{path}:{match.line}: {_line(source.fd, match.start, match.column)}"
    excerpts, last = list[str](), 0
    for number in sorted(lines):
        excerpts += ["--"] if (before or after) and last and number > last + 1 else []
        excerpts.append(lines[number])
        last = number
    return excerpts


def _around(source: Source, match: Match, before: int, after: int) -> Iterator[tuple[int, str]]:
    if before and match.line > 1:
        begin = max(source.mark, match.start - LINE_BLOCK)
        earlier = os.pread(source.fd, match.start - begin, begin).split(b"\n")[:-1]
        for distance, line in enumerate(reversed(earlier[-before:]), 1):
            whole = len(earlier) > distance or begin == source.mark
            yield match.line - distance, _cut(line, 0) if whole else f"… {_cut(line, 0)}"
    if after:
        later = os.pread(source.fd, LINE_BLOCK, match.start).split(b"\n")[1:]
        later = later[:-1] if later and not later[-1] else later
        for distance, line in enumerate(later[:after], 1):
            yield match.line + distance, _cut(line, 0)


def _line(fd: int, start: int, column: int) -> str:
    """Returns a line, or its part around the match, which names what is left out."""
    begin = 0 if column < LINE_BLOCK // 2 else column - BEFORE_MATCH
    part = os.pread(fd, LINE_BLOCK, start + begin)
    line, ended, _ = part.partition(b"\n")
    text = _cut(line, column - begin)
    if begin and not text.startswith("… "):
        text = f"… {text}"
    return text if ended or len(part) < LINE_BLOCK or text.endswith(" …") else f"{text} …"


def _cut(line: bytes, column: int) -> str:
    text = line.removesuffix(b"\r").decode("utf-8", "replace")
    if len(text) <= SHOWN_LINE:
        return text
    place = len(line[:column].decode("utf-8", "replace"))
    first = max(0, min(place - BEFORE_MATCH, len(text) - SHOWN_LINE))
    last = first + SHOWN_LINE
    return f"{'… ' if first else ''}{text[first:last]}{' …' if last < len(text) else ''}"


def answer(request: dict[str, Any]) -> dict[str, Any]:
    walk, deadline = Walk(request), time.monotonic() + request["seconds"]
    result = glob(request, walk, deadline) if request["op"] == "glob" else Grep(request, walk, deadline).run()
    return {**result, "directories": [printable(each) for each in walk.directories[:1000]], "passed": walk.passed}


def main() -> None:
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    request = json.load(sys.stdin)
    try:
        result: dict[str, Any] = answer(request)
    except Failure as failure:
        result = {"error": str(failure)}
    except (re.error, RecursionError, OverflowError) as error:
        result = {"error": str(error)}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
