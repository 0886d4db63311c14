"""Secrets of the configuration that are too short to be hidden.

Whoever may write text that comes back learns by a `***` that it holds a secret: a million guesses take a second. Keys
of providers are far too long for that; PINs and passwords that people chose are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from core.config.redaction import MIN_LENGTH, is_word, telling
from core.config.sections import Secret

LEAST_BITS = 48
"""At a million guesses a second, nine years."""
_CLASSES = ((str.isdigit, 10), (str.islower, 26), (str.isupper, 26))
_OTHERS = 32


def weak_secrets(config: Any, path: str = "") -> Iterator[str]:
    """Yields a sentence for each secret that is too short, with its place."""
    if isinstance(config, Secret):
        value = config.reveal()
        named = telling(path.rpartition(".")[2]) or path.startswith("skills.secrets.")
        if named and value and not is_word(value) and bits(value) < LEAST_BITS:
            fate = "is not hidden in texts" if len(value) < MIN_LENGTH else "can be found out by trying"
            yield f"{path}: this secret is so short that it {fate}; use a longer one"
    elif isinstance(config, msgspec.Struct):
        for field in config.__struct_fields__:
            inner = path if field == "extra" else f"{path}.{field}".lstrip(".")  # fields that have no name of ours
            yield from weak_secrets(getattr(config, field), inner)
    elif isinstance(config, Mapping):
        for key, item in config.items():
            yield from weak_secrets(item, f"{path}.{key}")
    elif isinstance(config, list | tuple):
        for number, item in enumerate(config):
            yield from weak_secrets(item, f"{path}[{number}]")


def bits(value: str) -> float:
    """Returns the bits of a text of random characters of the same classes: more than a person's choice has."""
    alphabet = sum(size for of_class, size in _CLASSES if any(map(of_class, value)))
    alphabet += _OTHERS if any(not character.isalnum() for character in value) else 0
    return len(value) * math.log2(max(alphabet, 2))
