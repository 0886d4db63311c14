"""Rewrites a configuration file with the keys of today: those of DeerFlow by our names, those without effect removed.

The plain data is translated as at each start (`core.config.deerflow`), and the file is edited until it says the same.
So what stays is untouched: order, quotes and comments. Comments of an entry that goes stay where it was, below a line
that says where it went.
"""

from __future__ import annotations

import copy
import io
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark, MarkedYAMLError, YAMLError
from ruamel.yaml.tokens import CommentToken
from ruamel.yaml.util import load_yaml_guess_indent

from core.config import deerflow
from core.errors import Invalid

WIDTH = 1 << 16
"""Columns after which lines are broken; in effect never."""


class Upgrade(NamedTuple):
    """The new text of a file, and a line about each change; none if it is as it should be."""

    text: str
    changes: Sequence[str]


def upgrade(text: str, name: str) -> Upgrade:
    """Returns the file `name` with the keys of today. Raises `Invalid` where it is no configuration."""
    try:
        yaml = _yaml(text)
        tree = yaml.load(text)
    except MarkedYAMLError as error:
        raise Invalid(f"{name}: {error.problem}") from None
    except YAMLError as error:
        raise Invalid(f"{name}: {error}") from None
    if not isinstance(tree, CommentedMap):
        return Upgrade(text, ())
    target, changes = _modern(_plain(tree), name)
    if not changes:
        return Upgrade(text, ())
    _edit_section(tree, target, "", changes)
    written = io.StringIO()
    yaml.dump(tree, written)
    if _plain(_yaml(text).load(written.getvalue())) != target:
        lines = "\n  ".join(_lines(changes))
        raise Invalid(f"{name}: anchors (&, *, <<) keep it from being rewritten; change it by hand:\n  {lines}")
    return Upgrade(written.getvalue(), list(_lines(changes)))


def upgrade_file(path: Path, *, write: bool) -> tuple[Sequence[str], Path | None]:
    """Returns a line about each change of a file and, if it was written, where the old one is. Raises `Invalid`."""
    path = path.resolve()
    try:
        text = path.read_bytes().decode()
        new, changes = upgrade(text, path.name)
        if not (write and changes):
            return changes, None
        return changes, _replace(path, new)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _replace(path: Path, text: str) -> Path:
    """Writes a file in one step, with the mode it had, and returns where the old one is."""
    names = (path.with_name(f"{path.name}.old{number or ''}") for number in itertools.count())
    backup = next(name for name in names if not name.exists())
    shutil.copy2(path, backup)
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode())
            os.fsync(file.fileno())
        shutil.copymode(path, new)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
    return backup


def _yaml(text: str) -> YAML:
    """Returns a reader and writer that keeps what it can, with the indentation of a text."""
    _, indent, offset = load_yaml_guess_indent(text)
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = WIDTH
    yaml.indent(mapping=2, sequence=(offset or 0) + 2 if indent is None else indent, offset=offset or 0)
    return yaml


def _modern(raw: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the data that a file should have, and what becomes of the paths in it that change."""
    target = copy.deepcopy(raw)
    try:
        changes = {old: f"now {new}" for new, old in deerflow.modernise(target).items()}
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from None
    for path, remark in list(deerflow.obsolete(target)):
        deerflow.remove(target, path)
        changes[path] = remark
    changes |= {path: what for path, what in _differences(raw, target, "") if not _covered(path, changes)}
    if changes and target.get("config_version", deerflow.FORM) != deerflow.FORM:
        target["config_version"] = deerflow.FORM
        changes["config_version"] = f"now {deerflow.FORM}"
    return target, changes


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the paths of `old` whose values are not in `new`, and what became of them."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            yield from _differences(value, new.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, value in enumerate(old):
            yield from _differences(value, new[index], f"{path}[{index}]")
    elif old != new:
        yield path, "not needed any more" if new is None else "now in another form"


def _covered(path: str, changes: Mapping[str, str]) -> bool:
    return any(_in(path, change) or _in(change, path) for change in changes)


def _in(path: str, section: str) -> bool:
    return f"{path}.".startswith(f"{section}.")


def _lines(changes: Mapping[str, str]) -> Iterator[str]:
    return (f"{path}: {remark}" for path, remark in changes.items())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# ── edits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _edit(value: Any, target: Any, path: str, changes: Mapping[str, str]) -> Any:
    """Makes a value say what `target` does, in place where it can be. Returns it."""
    if isinstance(value, CommentedMap) and isinstance(target, dict):
        _edit_section(value, target, path, changes)
    elif isinstance(value, CommentedSeq) and isinstance(target, list) and len(value) == len(target):
        for index, item in enumerate(target):
            if value[index] != item:
                value[index] = _edit(value[index], item, f"{path}[{index}]", changes)
    else:
        return target
    return value


def _edit_section(section: CommentedMap, target: Mapping[Any, Any], path: str, changes: Mapping[str, str]) -> None:
    prefix = f"{path}." if path else ""
    for key in [key for key in section if key not in target]:
        renamed = changes.get(f"{prefix}{key}", "").removeprefix(f"now {prefix}")
        if renamed in target and renamed not in section:
            _rename(section, key, renamed)
    for key, item in target.items():
        if key not in section:
            _add(section, key, item)
        elif section[key] != item:
            section[key] = _edit(section[key], item, f"{prefix}{key}", changes)
    for key in [key for key in section if key not in target]:  # last: comments of these go to what is left
        gone = {path: remark for path, remark in changes.items() if _in(path, f"{prefix}{key}")}
        _remove(section, key, list(_lines(gone)))


def _rename(section: CommentedMap, old: str, new: str) -> None:
    position, comments = list(section).index(old), section.ca.items.pop(old, None)
    section.insert(position, new, section.pop(old))
    if comments:
        section.ca.items[new] = comments


def _remove(section: CommentedMap, key: str, notes: Sequence[str]) -> None:
    """Removes an entry. Its comments stay, below the notes."""
    indent = " " * section.lc.key(key)[1]
    tokens = {id(token): token for token in _tokens(section, key)}.values()  # those of flow values are there twice
    text = "".join(f"{indent}# {note}\n" for note in notes)
    for token in tokens:
        text += token.value.removeprefix("\n") if token.value.startswith("\n") else f"{indent}{token.value}"
    position = list(section).index(key)
    section.ca.items.pop(key, None)
    del section[key]
    keys = list(section)
    if position:
        _append(section, keys[position - 1], text)
    elif keys:
        comments = section.ca.items.setdefault(keys[0], [None, None, None, None])
        comments[1] = [_token(text.lstrip(" "), len(indent)), *(comments[1] or ())]


def _tokens(container: CommentedMap | CommentedSeq, key: Any) -> Iterator[CommentToken]:
    """Yields the comments of an entry: beside it, in it and below it."""
    yield from _flat(container.ca.items.get(key))
    value = container[key]
    if isinstance(value, CommentedMap | CommentedSeq):
        yield from _flat(value.ca.comment)
        for inner in value if isinstance(value, CommentedMap) else range(len(value)):
            yield from _tokens(value, inner)


def _flat(comments: Any) -> Iterator[CommentToken]:
    for comment in comments or ():
        if isinstance(comment, list):
            yield from _flat(comment)
        elif comment is not None:
            yield comment


def _add(section: CommentedMap, key: Any, item: Any) -> None:
    """Adds an entry at the end, above the comments that begin the section after this one."""
    last, column = next(reversed(section), None), min((at[1] for at in section.lc.data.values()), default=0)
    comments, slot = ([None], 0) if last is None else _below(section, last)
    section[key] = item
    if (token := comments[slot]) is not None:
        lines = token.value.splitlines(keepends=True)
        outer = next((at for at, line in enumerate(lines) if at and 0 <= line.find("#") < column), len(lines))
        while outer > 1 and not lines[outer - 1].strip():
            outer -= 1
        if below := "".join(lines[outer:]):
            token.value = "".join(lines[:outer])
            _append(section, key, below)


def _append(section: CommentedMap, key: Any, text: str) -> None:
    """Adds lines of comments below an entry."""
    comments, slot = _below(section, key)
    token = comments[slot] = comments[slot] or _token("\n")
    token.value = f"{token.value.rstrip(' ')}{text}"


def _below(container: CommentedMap | CommentedSeq, key: Any) -> tuple[list[CommentToken | None], int]:
    """Returns where the comment below an entry is kept: among those of the last one that is in it, in that slot."""
    value = container[key]
    if isinstance(value, CommentedMap | CommentedSeq) and value and not value.fa.flow_style():
        return _below(value, next(reversed(value)) if isinstance(value, CommentedMap) else len(value) - 1)
    slot = 2 if isinstance(container, CommentedMap) else 0
    return container.ca.items.setdefault(key, [None, None, None, None]), slot


def _token(text: str, column: int = 0) -> CommentToken:
    return CommentToken(text, CommentMark(column), None)
