"""Untrusted regular expressions, searched in time proportional to their length times the text's.

The engine is Rust's `regex`, which comes with pydantic: automata without backtracking, of 10 MB at the most. It knows
neither references nor looking around (https://docs.rs/regex/latest/regex/#syntax). As in ECMA-262, which JSON Schema
recommends, `\\w`, `\\d` and `\\b` are about ASCII only: a counted repeat of all of Unicode's letters is too large.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from core.errors import Invalid

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

LONGEST = 1_000
"""Limit of an expression, in characters."""
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_ASCII = {
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\b": r"(?-u:\b)",
    r"\B": r"(?-u:\B)",
}


class Pattern:
    """A compiled expression. Raises `Invalid` if the engine does not know it, or if it is too large."""

    def __init__(self, source: str, *, any_case: bool = False) -> None:
        if len(source) > LONGEST:
            raise Invalid(f"pattern: has more than {LONGEST} characters")
        self._text = _compiled(
            ("(?i)" if any_case else "") + _ESCAPE.sub(lambda one: _ASCII.get(one[0], one[0]), source)
        )

    def found_in(self, text: str) -> bool:
        return self._text.isinstance_python(text)


@lru_cache(100)
def _compiled(source: str) -> SchemaValidator:
    from pydantic_core import SchemaError, SchemaValidator, core_schema  # not loaded by commands that search nothing

    try:
        return SchemaValidator(core_schema.str_schema(strict=True, pattern=source, regex_engine="rust-regex"))
    except SchemaError as error:
        raise Invalid(f"pattern: {str(error).strip().splitlines()[-1].strip()}") from None
