"""Redaction: the secrets in force are replaced wherever foreign text becomes a fact, a stream, a line or an answer.

Theory of operation
-------------------
`redactor` is the process's one `Redactor`. It learns the secrets in force: those of each configuration that is read,
of the environment, and of the installation. One that is withdrawn (by another configuration, or as it was issued for a
time) is forgotten a day later, as it may still be echoed. A secret is searched as it is, and as JSON, HTML,
percent-encoding and base64 write it (`core.config.searching`). 4 kB of an event with 10 secrets cost about 2 µs.

`EventLog.append` redacts what it stores: nothing enters the log otherwise. What a model answers and what a tool returns
is redacted before anything is done with it (`Redactor.struct`), so that what is done agrees with what is recorded, also
in a resumed or replayed run. A tool call with a secret among its arguments is recorded with `***` in its place and an
`error`, and is not made: the model is told why. Whoever needs a secret gets it from the configuration or from a
variable of the sandbox, never by way of a conversation.

Not searched: values shorter than 8 characters, and plain words of less than 12 (`not-needed`, `changeme`), as both
occur in ordinary text; a variable of the sandbox's environment whose name does not sound like a secret. Not replaced:
numbers outside of text, identifiers of the envelope, files of people.
"""

from __future__ import annotations

import base64
import heapq
import html
import json
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

import msgspec

from core.config.searching import Texts
from core.config.settings import Secret

S = TypeVar("S", bound=msgspec.Struct)

HIDDEN = "***"
MIN_LENGTH = 8
GRACE_SECONDS = 24 * 3600.0
"""Time for which a secret that was withdrawn is still replaced: it may be echoed."""
FORGOTTEN = 4
"""Most values that are forgotten at once, as that takes time."""
WORD_LENGTH = 12
"""A plain word shorter than this is searched for nowhere."""
ENVELOPE = frozenset({"id", "type", "kind", "aggregate", "actor", "run", "cause", "at", "v"})
"""Fields of an event that are not foreign text."""

_SECRET_NAME = re.compile(
    r"key(?!word|board|note|frame)|token(?!s|iz)|secret(?!ar)|password|authorization|connection_string|(postgres|redis)_url",
    re.IGNORECASE,
)
_VARIABLE = re.compile(
    r"(?:^|_)(?:\w*key|token|secret|password|passwd|passphrase|credentials?|auth|pat|pass)\d*$", re.IGNORECASE
)
"""Names of environment variables that hold secrets."""
_WORD = re.compile(r"[A-Za-z]+(?:[ _.-][A-Za-z]+)*")
_PATH = re.compile(r"(?:~|\.{0,2})/|file:")
_SCHEME = re.compile(r"(?:bearer|basic|token|apikey)\s+", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)
_NAMES = frozenset({"keys"})
"""Names that look like those of secrets, and are none."""
_ALSO = re.compile(r"cookie$|signature$|^sig$|^auth$", re.IGNORECASE)
_TOKEN = re.compile(
    r"""
    (?P<scheme>\b(?i:bearer\s+))[\w.~+/=-]{6,}
    | (?P<basic>\b(?i:basic\s+))(?=[\w+/]*[A-Z0-9=])[\w+/]{8,}={0,2}
    | (?<=://)[^/\s"']+(?=@)
    | \bsk[-_][\w-]{8,}
    | \b(?:gsk|hf|xai|nvapi|tvly|lsv2|glpat|github_pat|gh[opsu]|xox[a-z])[-_](?=[\w-]*\d)[\w-]{8,}
    | \b(?:AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)
    """,
    re.VERBOSE,
)
"""Keys by their looks: authorization headers, credentials in URLs, providers' prefixes, JSON Web Tokens."""
_PAIR = re.compile(
    r"""
    (?P<before>[?&]?)(?<![\w.%-])(?P<name>[\w.%-]++)
    (?P<is>=|\\?["']\s*:\s*)
    (?P<value>
        b?"(?:[^"\\]|\\.)*"? | b?'(?:[^'\\]|\\.)*'? | \\".*?(?:\\"|$) | \\'.*?(?:\\'|$) | [^\s"'&#,;)}\]]+
    )
    """,
    re.VERBOSE | re.DOTALL,
)
"""`name=value` and `"name": value`, as in queries, forms, JSON and what Python prints."""
_QUOTED = re.compile(r"""((?:b?\\?["'])?)(.*?)((?:\\?["'])?)""", re.DOTALL)


class Redactor:
    """Replaces the secrets that it knows. Without one, it costs nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changing = threading.RLock()
        self._texts = Texts()
        self._uses: Counter[bytes] = Counter()
        """The number of the values that are written in a form."""
        self._until: dict[str, float] = {}
        """The values, and until when each is in force."""
        self._owned: dict[str, frozenset[str]] = {}
        """The values of configurations, by their place."""
        self._ends: list[tuple[float, str]] = []
        """Ends of values, the next one first; an end that was put off comes again."""

    # ── what is secret ──────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, *values: str, seconds: float = math.inf) -> None:
        """Replaces these values from now on, in all their forms; for at least so many seconds."""
        until = self._clock() + seconds
        with self._changing:
            self._texts.add([form for value in values for form in self._added(value, until)])
            self._forget()

    def _added(self, value: str, until: float) -> Sequence[bytes]:
        """Takes a value in, or puts its end off. Returns the forms that it is the first to have."""
        known = self._until.get(value)
        if known is not None and known >= until:
            return ()
        self._until[value] = until
        if until < math.inf:
            heapq.heappush(self._ends, (until, value))
        if known is not None:
            return ()
        self._uses.update(forms := _encoded(value))
        return [form for form in forms if self._uses[form] == 1]

    def learn(self, config: Any, owner: str = "") -> None:
        """Replaces the secrets of a configuration: every `Secret`, and the credentials inside URLs. Those of the one
        that the same `owner` had before are forgotten after `GRACE_SECONDS`.
        """
        values = frozenset(_secrets(config))
        self.add(*values)
        if owner:
            with self._changing:
                before, self._owned[owner] = self._owned.get(owner, frozenset()), values
                self._withdraw(before.difference(*self._owned.values()))

    def _withdraw(self, values: Iterable[str]) -> None:
        until = self._clock() + GRACE_SECONDS
        for value in values:
            self._until[value] = until
            heapq.heappush(self._ends, (until, value))

    def _forget(self) -> None:
        """Forgets values whose time is over, a few at a time."""
        now, unused = self._clock(), list[bytes]()
        for _ in range(FORGOTTEN):
            if not self._ends or self._ends[0][0] > now:
                break
            _, value = heapq.heappop(self._ends)
            if self._until.get(value, math.inf) <= now:
                del self._until[value]
                self._uses.subtract(forms := _encoded(value))
                unused += (form for form in forms if not self._uses[form])
        for form in unused:
            del self._uses[form]
        self._texts.remove(unused)

    def learn_environment(self, environ: Mapping[str, str] = os.environ) -> None:
        """Replace what variables with telling names hold, and the credentials inside URLs."""
        self.add(*_of_environment(environ))

    # ── replacing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def known(self, text: str) -> str:
        """A text without the secrets in force."""
        if not self._texts:
            return text
        raw = text.encode("utf-8", "surrogatepass")
        clean = self.data(raw)
        return text if clean is raw else clean.decode("utf-8", "surrogatepass")

    def text(self, text: str) -> str:
        """A text without the secrets in force, and without what looks like one. For foreign errors and for lines."""
        return _PAIR.sub(_pair, _TOKEN.sub(_token, self.known(text)))

    def replaced(self, text: str, by: Callable[[str], str]) -> str:
        """A text in which `by` says what stands for each secret in force, and for what looks like one."""
        return _PAIR.sub(
            lambda match: _value(match, by), _TOKEN.sub(lambda match: _key(match, by), self.substituted(text, by))
        )

    def substituted(self, text: str, by: Callable[[str], str]) -> str:
        """A text in which `by` says what stands for each secret in force."""
        raw = text.encode("utf-8", "surrogatepass")
        parts, at = [], 0
        for start, end in self._texts.matches(raw):
            secret = raw[start:end].decode("utf-8", "surrogatepass")
            parts += [raw[at:start], by(secret).encode("utf-8", "surrogatepass")]
            at = end
        return b"".join([*parts, raw[at:]]).decode("utf-8", "surrogatepass") if parts else text

    def json(self, body: bytes, spare: frozenset[str] = frozenset()) -> bytes:
        """A JSON document without the secrets in force; the same object if it has none. What stands at the top under a
        key of `spare` stays.
        """
        if not self._texts.matches(body):
            return body
        document = msgspec.json.decode(body)
        if spare and isinstance(document, dict):
            return msgspec.json.encode({k: v if k in spare else self.value(v) for k, v in document.items()})
        return msgspec.json.encode(self.value(document))

    def event(self, body: bytes) -> bytes:
        """The body of an event without the secrets in force. Its envelope stays."""
        return self.json(body, ENVELOPE)

    def struct(self, value: S) -> S:
        """The same struct without the secrets in force."""
        if not self._texts:
            return value
        body = msgspec.json.encode(value)
        clean = self.json(body)
        return value if clean is body else msgspec.json.decode(clean, type=type(value))

    def value(self, value: Any) -> Any:
        """Returns a JSON value without the secrets in force. Other objects in it stay."""
        if isinstance(value, str):
            return self.known(value)
        if isinstance(value, dict):  # by `map`: a comprehension is a second call for each level before Python 3.12
            keys = [self.known(key) if isinstance(key, str) else key for key in value]
            return dict(zip(keys, map(self.value, value.values()), strict=True))
        return list(map(self.value, value)) if isinstance(value, list | tuple) else value

    def data(self, raw: bytes) -> bytes:
        """Text in UTF-8 without the secrets in force; the same object if it has none."""
        matches = self._texts.matches(raw)
        if not matches:
            return raw
        parts, at = [], 0
        for start, end in matches:
            parts += [raw[at:start], HIDDEN.encode()]
            at = end
        return b"".join([*parts, raw[at:]])

    def split(self, text: str) -> tuple[str, str]:
        """A text that goes on, in two parts: the first without the secrets in force, the second as it is, as a secret
        may begin with it.
        """
        if not self._texts:
            return text, ""
        raw = text.encode("utf-8", "surrogatepass")
        cut, at, parts = self._texts.open(raw, 0), 0, []
        for start, end in self._texts.matches(raw):
            if start >= cut:
                break
            parts += [raw[at:start], HIDDEN.encode()]
            at = end
            if end > cut:
                cut = self._texts.open(raw, end)
        parts.append(raw[at:cut])
        return b"".join(parts).decode("utf-8", "surrogatepass"), raw[cut:].decode("utf-8", "surrogatepass")


class Stream:
    """A text that comes in pieces. A secret that is cut by their ends is found all the same: what one may begin with is
    held back until it is known, so at most the length of the longest secret.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = ""

    def feed(self, text: str) -> str:
        """Returns the text that can be shown after the next chunk."""
        shown, self._pending = self._redactor.split(self._pending + text)
        return shown

    def end(self) -> str:
        """Returns the text that was held back, when nothing follows."""
        pending, self._pending = self._pending, ""
        return self._redactor.known(pending)

    def __bool__(self) -> bool:
        return bool(self._pending)


redactor = Redactor()
"""The redactor of this process."""


def is_secret(key: str) -> bool:
    """Tells whether the values of a key are secret."""
    return bool(_SECRET_NAME.search(key))


def is_secret_variable(name: str) -> bool:
    """Tells whether the values of an environment variable are secret."""
    return is_secret(name) or bool(_VARIABLE.search(name))


def is_word(value: str) -> bool:
    """Tells whether a value is a plain word, as `not-needed`, which is searched for nowhere."""
    return len(value) < WORD_LENGTH and bool(_WORD.fullmatch(value))


def telling(name: str) -> bool:
    """Like `is_secret`, and names of headers and of parameters of URLs."""
    return name not in _NAMES and (is_secret(name) or bool(_ALSO.search(name)))


def _token(match: re.Match[str]) -> str:
    return (match["scheme"] or match["basic"] or "") + HIDDEN


def _pair(match: re.Match[str]) -> str:
    return match["before"] + match["name"] + match["is"] + HIDDEN if _is_telling(match) else match[0]


def _is_telling(match: re.Match[str]) -> bool:
    return telling(match["name"]) or bool(match["before"] and match["name"] == "code")


def _key(match: re.Match[str], by: Callable[[str], str]) -> str:
    scheme = match["scheme"] or match["basic"] or ""
    return scheme + by(match[0].removeprefix(scheme))


def _value(match: re.Match[str], by: Callable[[str], str]) -> str:
    """Returns a pair with another value between its quotes."""
    if not _is_telling(match):
        return match[0]
    value = _QUOTED.fullmatch(match["value"])
    assert value
    return match["before"] + match["name"] + match["is"] + value[1] + by(value[2]) + value[3]


# ── values and their forms ───────────────────────────────────────────────────────────────────────────────────────────


def _lines(value: str) -> set[str]:
    """A value, and each of its lines: a key of several lines is seldom printed as a whole."""
    return {text for text in (value, value.strip(), *value.splitlines()) if _is_searched(text)}


def _encoded(value: str) -> list[bytes]:
    """Returns the forms of a value that are searched, each once."""
    forms = {form for line in _lines(value) for form in _forms(line)}
    return [form.encode("utf-8", "surrogatepass") for form in forms]


def _is_searched(value: str) -> bool:
    return len(value) >= MIN_LENGTH and not is_word(value)


def _forms(value: str) -> Iterator[str]:
    """A value as others write it."""
    quoted = json.dumps(value)[1:-1]
    texts = {value, quoted, msgspec.json.encode(value).decode()[1:-1], json.dumps(quoted)[1:-1], html.escape(value)}
    texts |= {value.replace("/", "\\/"), quote(value, safe=""), quote(value), quote_plus(value)}
    yield from texts
    yield from (re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text) for text in texts)
    raw = value.encode("utf-8", "surrogatepass")
    for before in range(3):  # how many bytes stand before it in its group of three
        code = base64.b64encode(bytes(before) + raw).decode()
        end = len(code) - (0, 4, 4)[(before + len(raw)) % 3]  # a last group that is not full depends on what follows
        form = code[(0, 2, 3)[before] : end]
        if len(form) >= MIN_LENGTH:
            yield from (form, form.replace("+", "-").replace("/", "_"))


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    """The secrets of a part of the configuration."""
    if isinstance(value, Secret):
        text = value.reveal()
        yield from (text, _SCHEME.sub("", text, count=1), *_of_urls(text))
    elif isinstance(value, str):
        yield from _of_urls(value)
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _secrets(getattr(value, field), field)
    elif isinstance(value, Mapping):
        if name == "environment":  # of the sandbox: each a `Secret`, whatever it is
            yield from _of_environment({key: item.reveal() for key, item in value.items()})
        else:
            for key, item in value.items():
                yield from _secrets(item, str(key))
    elif isinstance(value, list | tuple):
        yield from _of_arguments(value)
        for item in value:
            yield from _secrets(item)


def _of_arguments(words: Sequence[Any]) -> Iterator[str]:
    """The secrets among the arguments of a program: values of options with telling names, but for paths."""
    option = ""
    for word in words:
        name, is_, value = word.partition("=") if isinstance(word, str) else ("", "", "")
        secret = value if is_ else name
        if telling(name.lstrip("-") if is_ else option) and not secret.startswith("-") and not _PATH.match(secret):
            yield secret
        option = name.lstrip("-") if name.startswith("-") and not is_ else ""


def _of_environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if not _PATH.match(value) and (_VARIABLE.search(name) or (_TOKEN.fullmatch(value) and "://" not in value)):
            yield from (value, _SCHEME.sub("", value, count=1))
        yield from _of_urls(value)


def _of_urls(text: str) -> Iterator[str]:
    """The credentials inside the URLs of a text: user information, and parameters with telling names."""
    for url in _URL.findall(text):
        try:
            parts = urlsplit(url)
        except ValueError:
            continue
        if "@" in parts.netloc:
            user, _, password = parts.netloc.rpartition("@")[0].partition(":")
            yield from (password or user, unquote(password or user))
        for query in (parts.query, parts.fragment):
            yield from (value for key, value in parse_qsl(query) if telling(key))
