"""Which folders a thread may work on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.errors import Invalid, Refused
from core.events import FolderAttached
from core.sandbox.folders import Installation


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of a person."""
    person = tmp_path / "people/ada"
    (person / "projects/app/src").mkdir(parents=True)
    for name in (".config/x", ".ssh", "keys/.aws", "sika/.sika/users", "Library/x"):
        (person / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(person))
    return person


def installation(person: Path, **more: object) -> Installation:
    return Installation(person / "sika/.sika", reads=[person / "sika"], **more)  # type: ignore[arg-type]


REFUSED = {
    "/": "the whole machine",
    "/etc": "of the system",
    "/usr/share": "of the system",
    "/proc/self/cwd/../../../../proc": "of the system",
    "/var/lib": "of the system",
    "/home": "of everybody",
    "/tmp": "of everybody",
    "~": "your home directory",
    "~/..": "your home directory",
    "~/.config/x": "settings of programs",
    "~/.ssh": "settings of programs",
    "~/Library/x": "settings of programs",
    "~/keys/.aws": "secrets",
    "~/sika/.sika": "data directory",
    "~/sika/.sika/users": "data directory",
    "~/sika": "started in it",
    "~/link-to-etc": "of the system",
    "~/projects/link-home": "your home directory",
    "~/projects/link-data": "data directory",
}
WRONG = {"work": "absolute", "": "absolute", "~/none": "No such file", "~/file": "not a directory", "/x\0y": "absolute"}


@pytest.mark.parametrize(("path", "reason"), REFUSED.items())
def test_a_folder_is_refused(person: Path, path: str, reason: str) -> None:
    (person / "link-to-etc").symlink_to("/etc")
    (person / "projects/link-home").symlink_to(person)
    (person / "projects/link-data").symlink_to(person / "sika/.sika")
    with pytest.raises(Refused, match=reason):
        installation(person).folder(path.replace("~", str(person)), writable=True, anywhere=True)


@pytest.mark.parametrize(("path", "reason"), WRONG.items())
def test_a_wrong_path_is_named(person: Path, path: str, reason: str) -> None:
    (person / "file").write_text("")
    with pytest.raises(Invalid, match=reason):
        installation(person).folder(path.replace("~", str(person)), writable=True, anywhere=True)


def test_a_folder_of_ones_own_is_taken_without_its_links(person: Path) -> None:
    (person / "link").symlink_to("projects/app")
    for path in ("projects/app", "link", "projects/app/src/.."):
        assert installation(person).folder(f"{person}/{path}", writable=True, anywhere=True) == person / "projects/app"
    assert installation(person).folder(f"{person}/sika", writable=False, anywhere=True) == person / "sika"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_a_folder_of_somebody_else_must_be_configured(person: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with pytest.raises(Refused, match="another user"):
        installation(person).folder(str(theirs), writable=True, anywhere=True)
    rooted = installation(person, roots=[str(theirs)])
    assert rooted.folder(str(theirs), writable=True, anywhere=False) == theirs


def test_who_may_not_choose_gets_only_what_is_open(person: Path) -> None:
    rooted = installation(person, roots=["~/projects", "/"])
    assert rooted.folder(f"{person}/projects/app", writable=True, anywhere=False) == person / "projects/app"
    only = installation(person, roots=["~/projects"])
    (person / "projects/out").symlink_to(person / "keys")
    for path in ("keys", "projects/out", "projects/../keys"):
        with pytest.raises(Refused, match="open to you"):
            only.folder(f"{person}/{path}", writable=True, anywhere=False)
    for path in ("/", f"{person}/sika/.sika", f"{person}/sika"):
        with pytest.raises(Refused):
            rooted.folder(path, writable=True, anywhere=False)


def test_a_folder_that_is_another_one_later_is_not_opened(person: Path) -> None:
    folder = FolderAttached(path=str(person / "projects/app"), access="read-write", by="ada")
    assert installation(person).mount(folder).writable
    (person / "projects/app").rename(person / "projects/old")
    with pytest.raises(Invalid, match="not there any more"):
        installation(person).mount(folder)
    (person / "projects/app").symlink_to("/etc")
    with pytest.raises(Invalid, match="not there any more"):
        installation(person).mount(folder)


def test_what_belongs_to_the_installation_is_hidden(person: Path) -> None:
    folder = FolderAttached(path=str(person / "sika"), access="read-only", by="ada", shown=("*",))
    rules = installation(person, files=[person / "sika/config.yaml"]).mount(folder).rules
    assert rules is not None
    assert rules.hidden((".sika", "x"))
    assert rules.hidden(("config.yaml",))
    assert not rules.hidden((".env",))
