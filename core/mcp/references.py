"""Resources and prompts of MCP servers that a message names: `@server:resource`, and `/server:prompt arguments` at its
beginning. Their content is recorded with the message, so that a replay tells the model the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from core.control import neutralised
from core.events import Json
from core.ports.mcp_frames import Listing, Offer

MOST, MOST_CHARACTERS = 10, 32_000
"""Limits of what a message may name: number, and characters of each content."""
_RESOURCE = re.compile(r"(?<!\S)@([\w.-]{1,64}):(\S+)")
_PROMPT = re.compile(r"/([\w.-]{1,64}):(\S+)(?:\s+(.*))?", re.DOTALL)
_AFTER = ".,;:!?)]}'\""
"""Characters that end a sentence rather than the address before them."""


class Reference(NamedTuple):
    """A resource or a prompt that a message names. `request` is what the actor `mcp` is asked, without the person."""

    name: str
    request: Json


def named(text: str, listings: Mapping[str, Listing]) -> list[Reference]:
    """Returns what a message names, in its order, each once. Names of other servers are just text."""
    references = [_prompt(match, listings) for match in [_PROMPT.match(text)] if match and match[1] in listings]
    references += [_resource(m[1], m[2], listings) for m in _RESOURCE.finditer(text) if m[1] in listings]
    return list({reference.name: reference for reference in references}.values())[:MOST]


def recorded(reference: Reference, answer: Mapping[str, Any]) -> Json:
    """Returns what the message records of a reference, from the actor's answer."""
    text = str(answer.get("text", ""))
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}\n[only {MOST_CHARACTERS} of {len(text)} characters]"
    return {"name": reference.name, "text": text, **({"failed": True} if answer.get("failed") else {})}


def block(records: object) -> str:
    """Returns the text for the model of what a message records, "" for anything else."""
    entries = [entry for entry in records if isinstance(entry, dict)] if isinstance(records, list) else []
    return "\n".join(_block(entry) for entry in entries if isinstance(entry.get("text"), str))


def _block(entry: Json) -> str:
    name, text = neutralised(str(entry.get("name", ""))), neutralised(entry["text"])
    if entry.get("failed"):
        return f"The next message names {name}, which could not be read: {text}"
    return f'The next message names {name}. Its content:\n<reference name="{name}">\n{text}\n</reference>'


def _resource(server: str, words: str, listings: Mapping[str, Listing]) -> Reference:
    offers = listings[server].resources
    offer = _offer(words, offers) or _offer(words.rstrip(_AFTER), offers)
    uri = offer.uri if offer else words.rstrip(_AFTER)
    return Reference(f"@{server}:{uri}", {"op": "read", "server": server, "uri": uri})


def _offer(words: str, offers: Sequence[Offer]) -> Offer | None:
    return next((offer for offer in offers if words in (offer.uri, offer.name)), None)


def _prompt(match: re.Match[str], listings: Mapping[str, Listing]) -> Reference:
    server, name, rest = match[1], match[2], match[3] or ""
    offer = next((offer for offer in listings[server].prompts if offer.name == name), None)
    arguments = _arguments(rest, list(offer.schema) if offer else [])
    return Reference(f"/{server}:{name}", {"op": "prompt", "server": server, "name": name, "arguments": arguments})


def _arguments(text: str, names: Sequence[str]) -> dict[str, str]:
    """Returns arguments of the form `name=value`. Others fill the names that are left, the last one with the rest."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    pairs = [word.partition("=") for word in words]
    arguments = {name: value for name, equals, value in pairs if equals and name in names}
    others = [word for word, (name, equals, _) in zip(words, pairs, strict=True) if not equals or name not in names]
    free = [name for name in names if name not in arguments]
    if others and free:
        arguments |= dict(zip(free[:-1], others, strict=False))
        if rest := others[len(free) - 1 :]:
            arguments[free[-1]] = " ".join(rest)
    return arguments
