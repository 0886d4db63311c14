"""Redaction of exported events: equal secrets become equal placeholders, so that the events fold and replay as before.

What is replaced, by `⟨kind:number⟩` (users, whose names are ids, by `redacted-user-<number>`):
1. fields that are annotated as private (`core.events.Private`): users, machines, addresses
2. the secrets in force (`core.config.redaction`), in all forms in which text holds them
3. what looks like a secret, or like an e-mail address; and the same text wherever else it stands

So all events are read twice: `scan` collects what is found by its looks, `event` replaces. Texts are searched decoded,
not as lines of JSON. The hash of the conversation that was sent is removed from answers, as the conversation is another
one now; a replay compares it where it is there. What cannot be replaced (an id of the envelope) is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from typing import Any, get_args, get_type_hints

import msgspec

from core.config.redaction import HIDDEN, Redactor, redactor, telling
from core.errors import Invalid
from core.events import ENVELOPE, ApprovalRequested, Event, Json, ModelCompleted, Private, Record, catalogue
from core.thread.approvals import digest

PLACEHOLDER = re.compile(r"⟨\w+:\d+⟩|redacted-user-\d+")
MOST_PLAIN = 200_000
"""Limit of the texts that are remembered as plain: some 15 MB."""
EVERYWHERE = 8
"""Length from which a text that looks like a secret is replaced wherever it stands, as of secrets in force."""
_SECRETS = re.compile(
    r"""
    -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    | \b(?:npm_|pypi-|dop_v1_|ya29\.|SG\.)[\w.-]{16,}
    | \b(?:rk|pk|whsec)_(?:live_|test_)?\w{16,}
    | \bASIA[A-Z0-9]{16}
    | (?<=hooks\.slack\.com/services/)[\w/]+
    | (?<=api\.telegram\.org/bot)[\w:-]+
    """,
    re.VERBOSE | re.DOTALL,
)
"""Keys by their looks that the log keeps: what is written out of the installation is searched for more."""
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_telling = lru_cache(maxsize=4096)(telling)
Replace = Callable[[str, str], str]
"""Returns what stands for a text of a kind."""


class Redaction:
    """The placeholders of one export. Scan all events first, then redact them in the same order."""

    def __init__(self, known: Redactor = redactor) -> None:
        self._known = known
        self._found = Redactor()
        self._names = Redactor()
        """What is private and no secret: it may stand in an id."""
        self._texts: dict[str, str] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._plain: set[int] = set()
        """Hashes of texts in which nothing looks like a secret: they are searched by their looks once."""

    @property
    def counts(self) -> dict[str, int]:
        """Returns the number of distinct values by kind."""
        return {kind: len(values) for kind, values in sorted(self._numbers.items())}

    def scan(self, raw: bytes) -> None:
        """Collects what an event holds that is private, or looks like a secret."""
        self._replaced(raw, self._collect)

    def event(self, raw: bytes) -> bytes:
        """Returns an event without what is to be hidden. Raises `Invalid` if its envelope holds a secret."""
        clean = msgspec.json.encode(self._replaced(raw, self._placeholder))
        if self._known.data(clean) is not clean or self._found.data(clean) is not clean:
            head = Record(0, clean).head
            raise Invalid(f"event {head.id} ({head.type}): its ids hold a secret, which cannot be replaced there")
        return clean

    def text(self, text: str) -> str:
        """Returns a text without what is to be hidden."""
        return self._text(text, self._placeholder)

    def _collect(self, kind: str, text: str) -> str:
        for value in {text, text.rpartition(":")[2]}:  # the password of `user:password`, too
            if len(value) >= EVERYWHERE and value != HIDDEN and value not in self._texts:
                self._texts[value] = kind
                (self._found if kind == "secret" else self._names).add(value)
        return text

    def _placeholder(self, kind: str, text: str) -> str:
        if not text or text == HIDDEN or PLACEHOLDER.search(text):
            return text
        kind = self._texts.get(text, kind)
        numbers = self._numbers.setdefault(kind, {})
        number = numbers.setdefault(text, len(numbers) + 1)
        return f"redacted-user-{number}" if kind == "user" else f"⟨{kind}:{number}⟩"

    def _replaced(self, raw: bytes, replace: Replace) -> Json:
        event: Json = msgspec.json.decode(raw)
        kind = str(event["type"])
        private = private_fields(kind)
        clean = {key: value if key in ENVELOPE else self._value(value, replace) for key, value in event.items()}
        for path, field in private.items():
            _private(clean, path, field, replace)
        if kind == ModelCompleted.__struct_config__.tag:
            clean.pop("request", None)
        if kind == ApprovalRequested.__struct_config__.tag and clean.get("args") != event.get("args"):
            clean["digest"] = digest(clean["tool"], clean["args"])
        return clean

    def _value(self, value: Any, replace: Replace) -> Any:
        if isinstance(value, str):
            return self._text(value, replace)
        if isinstance(value, dict):
            return {self._text(key, replace): self._item(key, item, replace) for key, item in value.items()}
        return [self._value(item, replace) for item in value] if isinstance(value, list) else value

    def _item(self, key: str, item: Any, replace: Replace) -> Any:
        if isinstance(item, str) and _telling(key):
            return replace("secret", item)
        return self._value(item, replace)

    def _text(self, text: str, replace: Replace) -> str:
        key, secret = hash(text), partial(replace, "secret")
        if key in self._plain:
            return self._collected(text, secret)
        hits = 0

        def look(kind: str, value: str) -> str:
            nonlocal hits
            hits += 1
            return replace(kind, value)

        text = self._collected(self._known.replaced(text, partial(look, "secret")), secret)
        text = _SECRETS.sub(lambda match: look("secret", match[0]), text)
        text = _EMAIL.sub(lambda match: look("email", match[0]), text) if "@" in text else text
        if not hits and len(self._plain) < MOST_PLAIN:
            self._plain.add(key)
        return text

    def _collected(self, text: str, replace: Callable[[str], str]) -> str:
        """Returns a text without the values that were collected."""
        return self._names.substituted(self._found.substituted(text, replace), replace)


def _private(event: Json, path: tuple[str, ...], kind: str, replace: Replace) -> None:
    """Replaces the text of a private field, if it is there."""
    *outer, name = path
    for key in outer:
        event = event.get(key) or {}
    if isinstance(text := event.get(name), str):
        event[name] = replace(kind, text)


@cache
def private_fields(event: str) -> dict[tuple[str, ...], str]:
    """Returns the private fields of an event type by their paths, with the kinds of their placeholders."""
    cls = catalogue().get(event)
    return dict(_fields(cls)) if cls else {}


def _fields(cls: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    hints = get_type_hints(cls, include_extras=True)
    for field in msgspec.structs.fields(cls):
        place = (*path, field.encode_name)
        for part in _parts(hints[field.name]):
            if isinstance(part, Private):
                yield place, part.kind
            elif isinstance(part, type) and issubclass(part, msgspec.Struct) and not issubclass(part, Event):
                yield from _fields(part, place)


def _parts(hint: Any) -> Iterator[Any]:
    """Yields a type, its alternatives and their annotations."""
    yield hint
    for part in (*get_args(hint), *getattr(hint, "__metadata__", ())):
        yield from _parts(part)
