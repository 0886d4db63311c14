"""Puts the fragments of an answer's tool calls together, as providers number and name them.

Which call a fragment belongs to, first row that fits:

| the fragment has | belongs to |
|---|---|
| the id and the number of a call | that call |
| the id of a call | that call, unless it begins another (below), or has a name and a number that is new |
| the number of a call | that call, unless it begins another |
| a number that is new, and a name or an id | a new call |
| no number, no known id, and a name | a new call, unless it goes on with the last one |
| neither name, id nor a known number | the last call; a new one if the last is whole |

A fragment with a name begins another call if the one it belongs to is whole and is not just sent again, or if it has
another id and the one it belongs to has no arguments yet.
A name that comes again is the same name, and one in parts is put together, as long as there are no arguments.

What the arguments are:

| text | arguments |
|---|---|
| a JSON object | it |
| nothing | `{}` |
| a JSON text that is an object | the object: they were encoded twice |
| the same object several times; each time more of it | the object |
| anything else | none: the call gets an `error` and is not made |

A call without a name has fragments that belong to others. So may arguments that are none, where numbers did not agree:
then no call of the answer is made. Where calls share an id or a number, and one is broken, only
those in one piece are made.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from core.bus.rpc import sendable_value
from core.events import Json
from core.ports.models import CallPiece

UNREADABLE = "the arguments of this call were cut off or are not a JSON object; nothing was done."
MIXED = "the calls of this answer came mixed up; nothing was done."
_SPECIAL = re.compile(r"<\|.*", re.DOTALL)
"""Tokens of a chat template that a server left in a name."""
_NAMESPACE = re.compile(r"(?:functions?|tools?|default_api)[.:/]", re.IGNORECASE)


@dataclass
class Call:
    """A call while it comes."""

    number: int | None
    id: str
    name: str = ""
    fragments: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.fragments)

    def is_whole(self) -> bool:
        """Tells whether there are arguments, and they are complete."""
        return bool(self.text.strip()) and arguments_of(self.fragments) is not None

    def is_empty(self) -> bool:
        return not any(fragment.strip() for fragment in self.fragments)


class Calls:
    """The calls of one answer, in the order they began."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._irregular = False
        """Whether a fragment has another number than its call."""

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, piece: CallPiece) -> tuple[int, str, str]:
        """Adds a fragment. Returns the place of its call, and what is new of the call's id and name."""
        place = self._place(piece)
        if place is None:
            self._calls.append(Call(piece.number, ""))
            place = len(self._calls) - 1
        call = self._calls[place]
        self._irregular = self._irregular or piece.number != call.number
        new_id = "" if call.id else piece.id
        new_name = piece.name if piece.name != call.name and call.is_empty() else ""
        call.id = call.id or piece.id
        call.name += new_name
        if piece.arguments:
            call.fragments.append(piece.arguments)
        return place, new_id, new_name

    def _place(self, piece: CallPiece) -> int | None:
        """Returns the place of the call that a fragment belongs to; None if it begins one."""
        last = len(self._calls) - 1
        own = self._newest(lambda call: bool(piece.id) and call.id == piece.id and call.number == piece.number)
        named = self._newest(lambda call: bool(piece.id) and call.id == piece.id) if own is None else own
        numbered = None if piece.number is None else self._newest(lambda call: call.number == piece.number)
        if named is not None and (
            own is not None or not (piece.name and numbered is None and piece.number is not None)
        ):
            return None if self._begins(piece, self._calls[named]) else named
        if numbered is not None:
            return None if self._begins(piece, self._calls[numbered]) else numbered
        if last < 0 or (piece.number is not None and (piece.name or piece.id)):
            return None
        if piece.name:
            return last if self._goes_on(piece, self._calls[last]) else None
        more = piece.arguments.strip() not in ("", self._calls[last].text.strip())
        return None if more and self._calls[last].is_whole() else last

    def _newest(self, fits: Callable[[Call], bool]) -> int | None:
        places = range(len(self._calls) - 1, -1, -1)
        return next((place for place in places if fits(self._calls[place])), None)

    def _begins(self, piece: CallPiece, call: Call) -> bool:
        """Tells whether a fragment with a name is not more of this call, nor the same again."""
        if not piece.name:
            return False
        if piece.id and call.id and piece.id != call.id:
            return call.is_empty() or call.is_whole()
        if piece.id and piece.id == call.id and piece.number is not None and piece.number == call.number:
            return False
        again = piece.name == call.name and piece.arguments in ("", call.text)
        return call.is_whole() and not again

    def _goes_on(self, piece: CallPiece, call: Call) -> bool:
        """Tells whether a fragment with a name, and nothing else to tell by, is more of the last call."""
        return piece.name == call.name and not call.is_empty() and not call.is_whole()

    def finished(self, identity: str, tools: Collection[str] = ()) -> tuple[list[Json], dict[str, str]]:
        """Returns the calls as they are recorded, with unique ids, and the texts of their arguments.

        A call that is not to be made gets an `error`, which becomes its result: the model can try again.
        """
        calls: list[Json] = []
        texts: dict[str, str] = {}
        broken = any(arguments_of(call.fragments) is None for call in self._calls)
        mixed = (broken and self._irregular) or any(not call.name.strip() for call in self._calls)
        marks = Counter(mark for call in self._calls for mark in {call.id, call.number} - {"", None})
        for place, call in enumerate(self._calls):
            call_id = call.id
            if not call_id or call_id in texts:
                call_id = f"call_{identity[-12:]}_{place}"
            args, name = arguments_of(call.fragments), tool_name(call.name, tools)
            alone = len(call.fragments) == 1 and not call.is_empty()
            shared = broken and not alone and max(marks[call.id], marks[call.number]) > 1
            error = MIXED if mixed or (shared and args is not None) else UNREADABLE if args is None else None
            calls.append({"name": name, "args": args or {}, "id": call_id, **({"error": error} if error else {})})
            texts[call_id] = call.text
        return calls, texts


def arguments_of(fragments: Sequence[str]) -> Json | None:
    """Returns the arguments that fragments make; None if they make none."""
    text = "".join(fragments)
    if not text.strip():
        return {}
    value = _value(text)
    if isinstance(value, str):
        value = _value(value)
    if value is None and _repeats(fragments):
        value = _value(fragments[-1])
    return value if isinstance(value, dict) else None


def _repeats(fragments: Sequence[str]) -> bool:
    """Tells whether the last fragment is all of the arguments again, or each one all so far."""
    *before, last = fragments
    return bool(before) and ("".join(before) == last or all(b.startswith(a) for a, b in pairwise(fragments)))


def _value(text: str) -> object:
    try:
        return sendable_value(json.loads(text, strict=False))
    except (ValueError, RecursionError):
        return None


def tool_name(name: str, tools: Collection[str]) -> str:
    """Returns the name of a tool without what servers add to it, in the spelling of the tool if only that differs."""
    name = name.strip()
    if name in tools:
        return name
    name = _SPECIAL.sub("", name).strip()
    for candidate in (name, _NAMESPACE.sub("", name, count=1)):
        if candidate in tools:
            return candidate
        if match := [tool for tool in tools if tool.lower() == candidate.lower()]:
            return match[0]
    return name
