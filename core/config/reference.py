"""The configuration reference: every key with its type, its default and its text, read from the sections themselves.

The text of a key is the string below its field, which the language does not keep: it is read from the source.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise

import msgspec
from msgspec import inspect as types

from core.config.channels import ChannelConnections, Channels
from core.config.load import DERIVED, NEEDS_RESTART
from core.config.settings import Config, Section

NOT_SET = "not set"
REQUIRED = "required"
_IN_PLACE = ((Channels, "platforms"), (ChannelConnections, "providers"))
"""Fields whose entries stand beside the other keys of their section (`core.config.channels.gather`)."""


class Key(msgspec.Struct, frozen=True):
    """A key of the configuration. `path` has `[]` after lists: `models[].name`."""

    path: str
    type: str
    default: str
    text: str
    restart: bool
    """True if a change takes effect at the next start."""
    section: bool
    """True if the key has keys of its own."""


@functools.cache
def all_keys() -> tuple[Key, ...]:
    """All keys, in the order of the configuration; a section comes before its keys."""
    return tuple(_keys(Config, ""))


def matching(name: str) -> list[Key]:
    """Returns the key of that path and the keys in it; else the keys whose path contains the name."""
    prefix = f"{_plain(name)}."
    inside = [key for key in all_keys() if f"{_plain(key.path)}.".startswith(prefix)]
    return inside or [key for key in all_keys() if name in _plain(key.path)]


def _plain(path: str) -> str:
    return path.replace("[]", "")


def _keys(kind: type[msgspec.Struct], prefix: str) -> Iterator[Key]:
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    texts = _texts(kind)
    for field in info.fields:
        if field.name in DERIVED:
            continue
        path = prefix + ("*" if (kind, field.name) in _IN_PLACE else field.encode_name)
        inner, brackets = _section(field.type)
        text = texts.get(field.name) or (_paragraph(inner.__doc__) if inner else "")
        yield Key(path, _type(field.type), _default(field), text, _needs_restart(path), inner is not None)
        if inner is not None:
            yield from _keys(inner, f"{path}." if path.endswith("*") else f"{path}{brackets}.")


def _needs_restart(path: str) -> bool:
    return any(f"{path}.".startswith(f"{key}.") for key in NEEDS_RESTART)


@functools.cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Returns the classes of a module as they are written."""
    written = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: node for node in written if isinstance(node, ast.ClassDef)}


@functools.cache
def _texts(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """The strings below the fields of a class, by field."""
    [base] = kind.__bases__
    texts = dict(_texts(base)) if issubclass(base, Section) else {}
    for field, below in pairwise(_classes(kind.__module__)[kind.__name__].body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = _paragraph(text)
    return texts


def _paragraph(text: str | None) -> str:
    """A docstring with its line breaks inside paragraphs removed."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _section(kind: types.Type) -> tuple[type[msgspec.Struct] | None, str]:
    """The section that is a field's type, or the items of its list; and what stands for the list in a path."""
    match kind:
        case types.StructType(cls=cls):
            return cls, ""
        case types.VarTupleType(item_type=types.StructType(cls=cls)):
            return cls, "[]"
        case types.DictType(value_type=types.StructType(cls=cls)):
            return cls, ".*"
        case types.UnionType(types=arms):
            return next((section for section in map(_section, arms) if section[0]), (None, ""))
    return None, ""


def _type(kind: types.Type) -> str:
    """A type in words."""
    match kind:
        case types.StructType():
            return "section"
        case types.BoolType():
            return "true or false"
        case types.IntType() | types.FloatType():
            return _number(kind)
        case types.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case types.VarTupleType(item_type=item):
            return f"list of {'sections' if isinstance(item, types.StructType) else _type(item)}"
        case types.DictType(value_type=types.AnyType()):
            return "mapping"
        case types.DictType(value_type=value):
            return f"mapping of names to {'sections' if isinstance(value, types.StructType) else _type(value)}"
        case types.UnionType(types=arms):
            return ", or ".join(_type(arm) for arm in arms if not isinstance(arm, types.NoneType))
        case types.CustomType():
            return "secret text"
    return "text"


def _number(kind: types.IntType | types.FloatType) -> str:
    name = "integer" if isinstance(kind, types.IntType) else "number"
    limits = (("≥", kind.ge), (">", kind.gt), ("≤", kind.le), ("<", kind.lt))
    bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
    return f"{name} {bounds}".rstrip()


def _default(field: types.Field) -> str:
    if field.required:
        return REQUIRED
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None:
        return NOT_SET
    if isinstance(value, Section):  # the keys in it have defaults of their own, except for required ones
        chosen = [inner.name for inner in msgspec.structs.fields(value) if inner.required]
        return json.dumps({name: getattr(value, name) for name in chosen}) if chosen else ""
    return json.dumps(msgspec.to_builtins(value))
