"""`sika config upgrade`: the keys of today, the same settings, and every comment where it was."""

from __future__ import annotations

import functools
import itertools
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.config import deerflow
from core.config.load import parse
from core.config.upgrade import upgrade, upgrade_file
from core.errors import Invalid
from tests.core.test_deerflow import values

HERE = Path(__file__).parent
KEYS: dict[str, Any] = yaml.safe_load((HERE / "deerflow_keys.yaml").read_text())
FILES = sorted((HERE.parent / "e2e" / "deerflow").glob("*.yaml"))


def settings(text: str) -> dict[str, str]:
    """Returns what a file sets, by place, without its version."""
    variables = {name: "https://x.example" for name in re.findall(r"\$(\w+)", text)}
    return {path: value for path, value in values(parse(text, environ=variables)) if path != "config_version"}


def commented(text: str) -> str:
    """Returns YAML in block style with comments beside and below lines, above each section, and around all."""
    number = itertools.count()
    lines = ["# head", ""]
    for line in text.splitlines():
        indent = re.match(r"[ -]*", line).group().replace("-", " ")  # type: ignore[union-attr]
        lines += [f"# above {line.partition(':')[0]}"] if line[0] not in " -" else []
        lines += [f"{line}  # beside {next(number)}", f"{indent}# below {next(number)}"]
    return "\n".join([*lines, "", "# end", ""])


def comments(text: str) -> list[str]:
    return re.findall(r"# (?:head|end|(?:beside|below) \d+|above \w+)$", text, re.MULTILINE)


def document(entries: dict[str, Any]) -> str:
    """Returns a file with these keys, and the models that they name."""
    raw: dict[str, Any] = {}
    for path, value in entries.items():
        *sections, key = path.split(".")
        functools.reduce(lambda inner, section: inner.setdefault(section, {}), sections, raw)[key] = value
    raw["models"] = [{"name": "m", "model": "m"}]
    return yaml.safe_dump(raw, sort_keys=False, width=10_000, allow_unicode=True)


USUAL = {path: value for path, (value, outcome) in KEYS.items() if outcome != "refused" and "[" not in path}


@pytest.mark.parametrize("path", [*USUAL, "all of them"])
@pytest.mark.parametrize("around", [{}, {"title.enabled": False, "zz": [1, {"b": 2}]}])
def test_a_file_says_the_same_with_the_keys_of_today(path: str, around: dict[str, Any]) -> None:
    text = commented(document({"config_version": 9, **around, **(USUAL if path not in USUAL else {path: USUAL[path]})}))
    new, changes = upgrade(text, "config.yaml")
    assert settings(new) == settings(text)
    assert sorted(comments(new)) == sorted(comments(text))
    assert (comments(new)[0], comments(new)[-1]) == ("# head", "# end")
    for section in yaml.safe_load(text).keys() & yaml.safe_load(new).keys():
        assert f"# above {section}\n{section}:" in new
    assert [warning for warning in parse(new).warnings if "unknown key" not in warning] == []
    assert upgrade(new, "config.yaml").changes == ()
    outcome = KEYS[path][1] if path in USUAL else "named"
    if outcome not in ("used", "named"):
        assert any(change.endswith(f"now {outcome}") for change in changes)
    if outcome == "named" and path in USUAL:
        assert any(path.startswith(change.partition(": ")[0]) for change in changes)
    if outcome == "used" and path != "config_version" and not changes:
        assert new == text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_configurations_of_deerflow_are_rewritten(file: Path) -> None:
    text = file.read_text()
    new, changes = upgrade(text, file.name)
    assert changes
    assert settings(new) == settings(text)
    assert text.splitlines()[0] == new.splitlines()[0]
    assert f"config_version: {deerflow.FORM}" in new
    assert upgrade(new, file.name).changes == ()


def test_names_order_and_quotes_stay() -> None:
    text = (
        "config_version: 9   # of DeerFlow\n"
        "# limits\n"
        "max_recursion_limit: 7  # deep\n"
        "uploads:\n"
        "    max_file_count: 3   # few\n"
        "    max_total_size: 9\n"
        "# the rest\n"
        "http: {host: '0.0.0.0', port: 0x50}\n"
    )
    assert upgrade(text, "c").text == (
        "config_version: 100 # of DeerFlow\n"
        "# limits\n"
        "# max_recursion_limit: now runs.max_recursion_limit\n"
        "# deep\n"
        "uploads:\n"
        "  max_files: 3          # few\n"
        "  max_total_size: 9\n"
        "# the rest\n"
        "http: {host: '0.0.0.0', port: 0x50}\n"
        "runs:\n"
        "  max_recursion_limit: 7\n"
    )


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "title: {enabled: false}  # mine\n", "config_version: 9\nlog_level: $L\n"]
)
def test_a_file_without_old_keys_stays_as_it_is(text: str) -> None:
    assert upgrade(text, "c") == (text, ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "c.yaml: "),
        ("authorization: {enabled: true}", "c.yaml: authorization.enabled: not in this version"),
        (
            "base: &base {max_file_count: 3}\nuploads:\n  <<: *base\n",
            "c.yaml: anchors (&, *, <<) keep it from being rewritten; change it by hand:\n"
            "  uploads.max_file_count: now uploads.max_files",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_rewritten_is_said(text: str, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        upgrade(text, "c.yaml")
    assert str(caught.value).startswith(problem)


def test_the_file_is_replaced_and_each_old_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for number, name in enumerate(("config.yaml.old", "config.yaml.old1")):
        text = f"max_recursion_limit: {number + 5}  # é\n"
        path.write_text(text)
        path.chmod(0o640)
        assert upgrade_file(path, write=False) == (["max_recursion_limit: now runs.max_recursion_limit"], None)
        assert path.read_text() == text
        _, backup = upgrade_file(path, write=True)
        assert backup == tmp_path / name
        assert backup.read_text() == text
        assert parse(path.read_text()).runs.max_recursion_limit == number + 5
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(backup.stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 3


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/config.yaml").write_text("max_recursion_limit: 5\n")
    link = tmp_path / "config.yaml"
    link.symlink_to("real/config.yaml")
    upgrade_file(link, write=True)
    assert link.is_symlink()
    assert "runs:" in (tmp_path / "real/config.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("config_version: 9\nmax_recursion_limit: 5", "9 is a form of DeerFlow's; `sika config upgrade` writes"),
        ("config_version: '9'\ndatabase: {backend: sqlite}", "9 is a form of DeerFlow's"),
        ("config_version: 9\ntitle: {enabled: false}", None),
        ("config_version: 100\nmax_recursion_limit: 5", None),
        ("max_recursion_limit: 5", None),
        ("config_version: 35", "keys of DeerFlow are known up to version 34"),
        ("config_version: 101", "101 is of a newer Sika: this one knows 100"),
    ],
)
def test_the_version_of_a_file_says_something(text: str, remark: str | None) -> None:
    remarks = [warning for warning in parse(text).warnings if warning.startswith("config_version: ")]
    assert len(remarks) == (remark is not None)
    assert remark is None or remarks[0].startswith(f"config_version: {remark}")
