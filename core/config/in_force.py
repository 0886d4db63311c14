"""The configuration as it is in force, for people: each key with its value, where that comes from, and its text.

Secrets are masked: what is configured as one (`Secret`), what stands under a name that tells of one, variables and
headers for other programs, and any value of which the redactor knows that it is one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from core.config.channels import ChannelConnections, Channels
from core.config.load import DERIVED, Written
from core.config.redaction import is_secret, redactor, telling
from core.config.reference import Key, all_keys
from core.config.sections import Secret, Section
from core.config.settings import Config

MASK = "***"
FOR_OTHERS = re.compile(r"(^|\.)(env|environment|\w*headers)\.[^.]+$")
"""Keys whose values are for other programs: people put secrets there under any name."""
_IN_PLACE = {(Channels, "platforms"), (ChannelConnections, "providers")}

Source = Literal["file", "env", "default", "event"]


class KeyInForce(msgspec.Struct, frozen=True):
    """A key of the configuration. `path`: as in the file, `models[0].name`. `value` and `default`: as JSON, a secret is
    `***`. `source`: `file` (with its `line`), `env` (with the `variable`, if the file names it), `default`, or
    `event`: people added it beside the file.
    `type`, `text`: of the configuration reference; empty for keys that belong to other programs. `restart`: a change
    takes effect at the next start.
    """

    path: str
    value: str
    source: Source
    default: str
    type: str
    text: str
    restart: bool
    line: int | None = None
    variable: str = ""


def keys_in_force(config: Config, written: Mapping[str, Written], added: Collection[str] = ()) -> list[KeyInForce]:
    """Returns all keys of the sections, and those of their entries that are set. `written`: the keys of the file;
    `added`: the names of models beside it.
    """
    beside = tuple(f"models[{index}]." for index, model in enumerate(config.models) if model.name in added)
    return [_entry(path, value, default, written, beside) for path, value, default in _leaves(config, Config(), "")]


def keys_set(config: Config, written: Mapping[str, Written]) -> Iterator[tuple[str, str]]:
    """Yields the path and the value of the keys that are not left at their default, as `keys_in_force` shows them.
    Reads no configuration reference: that takes 50 ms.
    """
    for path, value, default in _leaves(config, Config(), ""):
        if _source(path, value, default, written, ()) != "default":
            yield path, _masked(path, value)


def _entry(path: str, value: Any, default: Any, written: Mapping[str, Written], beside: tuple[str, ...]) -> KeyInForce:
    key, place = _reference().get(_general(path)), written.get(path)
    source = _source(path, value, default, written, beside)
    shown = _masked(path, value)
    about = (key.default, key.type, key.text, key.restart) if key else ("", "", "", False)
    return KeyInForce(path, shown, source, *about, *((place.line, place.variable) if place else ()))


def _source(path: str, value: Any, default: Any, written: Mapping[str, Written], beside: tuple[str, ...]) -> Source:
    place = written.get(path)
    source: Source = "default" if value == default and place is None else "file"
    if place is None and (path.startswith(beside) or (source == "file" and path == "model_roles")):
        return "event"
    if place.variable if place else source == "file" and not path.startswith(("mcp.", "middlewares")):
        return "env"  # of DeerFlow, if the file does not name it
    return source


@functools.cache
def _reference() -> Mapping[str, Key]:
    return {key.path: key for key in all_keys()}


def _general(path: str) -> str:
    """Returns the path of a key as the reference has it."""
    path = re.sub(r"\[\d+\]", "[]", path)
    if path in _reference():
        return path
    parts = path.split(".")
    starred = (".".join([*parts[:place], "*", *parts[place + 1 :]]) for place in range(1, len(parts)))
    return next((name for name in starred if name in _reference()), path)


def _leaves(section: Section, defaults: Section | None, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields path, value and default of the keys in a section. Without `defaults` it is an entry of a list or mapping:
    then only what is set.
    """
    for field in msgspec.structs.fields(section):
        if field.name in DERIVED:
            continue
        value = getattr(section, field.name)
        default = _default(field) if defaults is None else getattr(defaults, field.name)
        place = path.rstrip(".") if (type(section), field.name) in _IN_PLACE else path + field.encode_name
        inner = list(_inner(place, value))
        if isinstance(value, Section):
            yield from _leaves(value, default if isinstance(default, Section) else None, f"{place}.")
        elif inner:
            for name, item in inner:
                yield from _leaves(item, None, f"{name}.")
        elif defaults is not None or value != default:
            yield place, value, default
    for name, value in section.extra.items():
        yield path + name, value, None


def _inner(place: str, value: Any) -> Iterator[tuple[str, Section]]:
    """Yields the sections in a list or mapping."""
    if isinstance(value, Mapping):
        yield from ((f"{place}.{name}", item) for name, item in value.items() if isinstance(item, Section))
    elif isinstance(value, Sequence):
        yield from ((f"{place}[{index}]", item) for index, item in enumerate(value) if isinstance(item, Section))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _masked(path: str, value: Any) -> str:
    hidden = FOR_OTHERS.search(path) is not None or is_secret(path.rpartition(".")[2])
    return json.dumps(redactor.value(_plain(path, value, hidden)), ensure_ascii=False)


def _plain(path: str, value: Any, hidden: bool) -> Any:
    """Returns a value as JSON, without secrets."""
    if isinstance(value, Secret):
        return MASK if value else ""
    if isinstance(value, Mapping):
        return {key: _plain(f"{path}.{key}", item, hidden or _hides(path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(_words(path, value, hidden))
    if isinstance(value, Section):
        return {
            name: _plain(name, item, hidden or is_secret(name)) for name, item in msgspec.structs.asdict(value).items()
        }
    return MASK if hidden and isinstance(value, str) and value else value


def _hides(path: str, key: str) -> bool:
    return is_secret(key) or FOR_OTHERS.search(f"{path}.{key}") is not None


def _words(path: str, values: Sequence[Any], hidden: bool) -> Iterator[Any]:
    """Yields the items of a list; what follows an option like `--api-key` is a secret."""
    option = ""
    for value in values:
        is_option = isinstance(value, str) and value.startswith("-")
        yield MASK if telling(option) and not is_option else _plain(path, value, hidden)
        option = value.lstrip("-") if is_option else ""
