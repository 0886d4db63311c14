"""The files of the page: libraries as the manifest says, words without holes, modules that are joined as they are."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from channels.web import assets, join
from core.errors import Invalid, NotFound

PAGE = Path(assets.__file__).parent
OWN = sorted(file for file in PAGE.rglob("*.js") if "vendor" not in file.relative_to(PAGE).parts)
EAGER_BYTES = 75_000


def test_libraries_are_those_of_the_manifest() -> None:
    manifest = json.loads((PAGE / "vendor/manifest.json").read_text())
    assert set(manifest) == {file.name for file in (PAGE / "vendor").glob("*.js")}
    pinned = json.loads((PAGE / "vendor/source/package.json").read_text())["dependencies"]
    packages = {}
    for name, entry in manifest.items():
        text = (PAGE / "vendor" / name).read_bytes()
        assert hashlib.sha256(text).hexdigest() == entry["sha256"], f"{name}: run `make vendor`"
        for package in entry["packages"]:
            packages[package["name"]] = package["version"]
            assert package["licence"], package
            assert package["version"].encode() in text.splitlines()[0]
    assert packages == pinned
    licences = (PAGE / "vendor/LICENCES.txt").read_text()
    assert all(f"{name} {version}\n" in licences for name, version in packages.items())


def test_the_lock_names_no_place() -> None:
    assert '"resolved"' not in (PAGE / "vendor/source/package-lock.json").read_text()


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def catalogue(language: str) -> dict[str, str]:
    """The texts of the page, and of rooms that bring their own."""
    text = "\n".join(file.read_text() for file in sorted(PAGE.rglob(f"words/{language}.js")))
    return dict(json.loads(f"[{key}, {value}]") for key, value in re.findall(r'^  ("[^"]+"): (".*"),$', text, re.M))


@pytest.mark.parametrize("language", ["zh"])
def test_every_language_has_every_text_with_its_places(language: str) -> None:
    english, other = catalogue("en"), catalogue(language)
    assert len(english) > 100
    assert set(english) == set(other)
    for key, text in english.items():
        assert text.strip(), key
        assert other[key].strip(), key
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", other[key])), key


def test_every_text_that_is_used_is_there_and_every_other_is_gone() -> None:
    english = catalogue("en")
    used, starts = set(), set()
    for file in OWN:
        text = file.read_text()
        used |= set(re.findall(r'"([a-z][\w]*(?:\.[\w]+)*)"', text))
        starts |= set(re.findall(r"\bt\(`([\w.]+)\$\{", text))
        for key in re.findall(r'\bt\("([^"]+)"', text):
            assert key in english or f"{key}.other" in english, f"{file.name}: {key}"
    ends = ("", ".one", ".other", ".now", ".done", ".failed", ".hint", ".text")
    for key in english:
        known = any(key.removesuffix(end) in used for end in ends if key.endswith(end))
        assert known or key.startswith(tuple(starts)), f"{key}: nothing says it"


# ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def reading(files: Mapping[str, str]) -> join.Read:
    return lambda path: files[path]


def test_modules_keep_their_lines_and_lose_only_their_comments() -> None:
    files = {
        "main.js": '// A\nimport { a, b as c } from "./x/a.js";\n/**\n * Text.\n */\nexport const d = a + c;\n',
        "x/a.js": "export const a = 1;\n/** One */ export_(2);\nexport function b() {}\n",
    }
    modules = join.ordered(["main.js"], reading(files))
    text = join.joined(modules, lambda path: path, lambda _: "rooms.js")
    assert list(modules) == ["x/a.js", "main.js"]
    assert "\n\nconst {a, b: c}" not in text
    assert "const { a, b: c } = $x_a;\n\n\n\nconst d = a + c;\nreturn { d };" in text
    assert "/** One */ export_(2);" in text
    assert 'export const modules = { "x/a.js": $x_a, "main.js": $main };' in text


def test_rooms_share_the_modules_of_the_page() -> None:
    files = {
        "main.js": 'import { k } from "./kit.js";\nconst load = () => import("./room/view.js");\n',
        "kit.js": "export const k = 1;\n",
        "room/view.js": 'import { k } from "../kit.js";\nimport { p } from "./part.js";\nexport const v = k + p;\n',
        "room/part.js": "export const p = 2;\n",
    }
    eager = join.ordered(["main.js"], reading(files))
    rooms = join.rooms_of(eager, reading(files))
    assert list(rooms) == ["room/part.js", "room/view.js"]
    main = join.joined(eager, lambda path: path, lambda _: "rooms-1.js")
    assert 'import("./rooms-1.js").then((room) => room.modules["room/view.js"])' in main
    text = join.joined(rooms, lambda path: path, lambda _: "main-1.js")
    assert 'import { modules as $base } from "./main-1.js";' in text
    assert 'const $kit = $base["kit.js"];' in text
    assert "const k = 1" not in text


def test_a_room_may_have_a_file_of_its_own_that_uses_the_other_two() -> None:
    files = {
        "main.js": 'import { k } from "./kit.js";\nconst a = () => import("./a/view.js");\nimport("./b/room.js");\n',
        "kit.js": "export const k = 1;\n",
        "a/view.js": 'import { p } from "./part.js";\nexport const v = p;\n',
        "a/part.js": "export const p = 2;\n",
        "b/room.js": 'import { k } from "../kit.js";\nimport { p } from "../a/part.js";\nimport { w } from "./w.js";\n'
        'export const v = k + p + w;\nconst later = () => import("./later.js");\n',
        "b/w.js": "export const w = 3;\n",
        "b/later.js": "export const l = 4;\n",
    }
    eager = join.ordered(["main.js"], reading(files))
    rooms = join.rooms_of(eager, reading(files))
    assert list(rooms) == ["a/part.js", "a/view.js"]
    own = join.own_files_of({**eager, **rooms}, reading(files))
    assert {name: list(modules) for name, modules in own.items()} == {"b.js": ["b/w.js", "b/room.js", "b/later.js"]}
    served = {path: name for name, modules in {"main.js": eager, "rooms.js": rooms, **own}.items() for path in modules}
    main = join.joined(eager, lambda path: path, served.__getitem__)
    assert 'import("./rooms.js").then((room) => room.modules["a/view.js"])' in main
    assert 'import("./b.js").then((room) => room.modules["b/room.js"])' in main
    text = join.joined(own["b.js"], lambda path: path, served.__getitem__)
    assert 'import { modules as $base } from "./main.js";\nimport { modules as $base1 } from "./rooms.js";' in text
    assert 'const $a_part = $base1["a/part.js"];\nconst $kit = $base["kit.js"];' in text
    assert "Promise.resolve($b_later)" in text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('import x from "./b.js";\n', "main.js:1: this form"),
        ("const a = 1;\nexport { a };\n", "main.js:2: this form"),
        ("export let a = 1;\n", "main.js:1: this form"),
        ("export default 1;\n", "main.js:1: this form"),
        ('import { a } from "./main.js";\n', "main.js: imports itself"),
    ],
)
def test_what_cannot_be_joined_is_named(text: str, problem: str) -> None:
    with pytest.raises(Invalid, match=re.escape(problem)):
        join.joined(
            join.ordered(["main.js"], reading({"main.js": text, "b.js": ""})), lambda path: path, lambda path: path
        )


def test_everything_is_served_under_the_names_that_it_is_called_by() -> None:
    texts = [assets.document().body.decode()]
    seen: set[str] = set()
    while texts:
        for name in re.findall(r'(?:page/|"\./|src=")([\w-]+-[0-9a-f]{12}\.\w+)', texts.pop()):
            if name not in seen:
                seen.add(name)
                texts.append(assets.asset(name).body.decode())
    kinds = {re.sub(r"-[0-9a-f]{12}", "", name) for name in seen}
    vendor = {file.name for file in (PAGE / "vendor").glob("*.js")}
    own = {"main.js", "rooms.js", "style.css", "frame.html", "frame.js", "highlight-worker.js"}
    rooms = {f"{room}.{kind}" for room in ("settings", "operate", "timeline") for kind in ("js", "css")}
    assert kinds == vendor | own | rooms | {"sections.css"}
    with pytest.raises(NotFound):
        assets.asset("main.js")


def test_settings_load_when_they_are_entered() -> None:
    """The first visit loads neither their script nor their style."""
    for name in ("main.js", "rooms.js", "style.css"):
        text = assets.asset(assets.name_of(name)).body.decode()
        assert "model-settings" not in text, name
        assert ".settings-section" not in text, name
    assert "model-settings" in assets.asset(assets.name_of("settings.js")).body.decode()


def test_the_words_of_events_load_with_the_timeline() -> None:
    """Those of the server's types, in both languages."""
    for name, there in (("main.js", False), ("rooms.js", False), ("timeline.js", True)):
        text = assets.asset(assets.name_of(name)).body.decode()
        assert ("run.rolled_back" in text and "已撤销" in text and "{decisions:decisions}" in text) is there, name


def test_the_first_files_are_small() -> None:
    """Before lazy parts, compressed."""
    first = [assets.name_of(path) for path in ("main.js", "style.css", *assets.PRELOADED)]
    files = [assets.document(), *map(assets.asset, first)]
    assert sum(len(file.compressed or file.body) for file in files) <= EAGER_BYTES
    for file in files:
        assert file.compressed is None or gzip.decompress(file.compressed) == file.body
