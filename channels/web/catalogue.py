"""The phrases of event types (`core.phrases`) as a module of the page, in the place of `timeline/catalogue.js`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect

from core.catalogue import installed
from core.events import ENVELOPE, Event
from core.phrases import LANGUAGES, paths

PATH = "timeline/catalogue.js"


def module() -> str:
    """Returns the module. Imports the event types of installed packages."""
    types = [[name, entry(cls)] for name, cls in installed().items() if cls.phrase]
    return (
        f"export const PHRASES = new Map({json.dumps(types, ensure_ascii=False)});\n"
        f"export const ENVELOPE = {json.dumps(sorted(ENVELOPE))};\n"
    )


def entry(cls: type[Event]) -> dict[str, Any]:
    """Returns the words of an event type by language, and what its stored events leave out: the `defaults` of fields
    that its templates read, and `within` the same of the objects in them. `patches`: it changes the state of its thread
    as a package's code says.
    """
    assert cls.phrase is not None
    words = {language: [cls.phrase.name(language), cls.phrase.template(language)] for language in LANGUAGES}
    read = {path for _, template in words.values() for path in paths(template)}
    patches = {"patches": True} if cls.patch is not Event.patch else {}
    return words | patches | _left_out(inspect.type_info(cls), read)


def _left_out(info: inspect.Type, read: Iterable[str]) -> dict[str, Any]:
    """Returns the `defaults` and what is `within` an object, or each object of a list; neither if it is none."""
    match info:
        case inspect.UnionType():
            return next(filter(None, (_left_out(one, read) for one in info.types)), {})
        case inspect.Metadata():
            return _left_out(info.type, read)
        case inspect.ListType() | inspect.VarTupleType():
            return _left_out(info.item_type, read)
        case inspect.StructType():
            fields = [field for field in info.fields if field.name in {path.partition(".")[0] for path in read}]
            defaults = {field.name: _default(field) for field in fields}
            inner = {field.name: _left_out(field.type, _after(field.name, read)) for field in fields}
            parts = {
                "defaults": {
                    name: value
                    for name, value in defaults.items()
                    if value not in ("", None, [], (), {}) and value is not False
                },
                "within": {name: part for name, part in inner.items() if part},
            }
            return {name: part for name, part in parts.items() if part}
    return {}


def _after(name: str, read: Iterable[str]) -> list[str]:
    return [path.removeprefix(f"{name}.") for path in read if path.startswith(f"{name}.")]


def _default(field: inspect.Field) -> Any:
    """Returns the default of a field as it would be stored; None if it has none."""
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default_factory())
    return None if field.default is msgspec.NODEFAULT else msgspec.to_builtins(field.default)
