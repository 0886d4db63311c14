"""Preferences of a client, by the weights of its headers (RFC 9110 §12.4.2)."""

from __future__ import annotations

from core.phrases import LANGUAGES, Language


def weights(header: str) -> dict[str, float]:
    """Returns the weights of a header such as `Accept-Encoding`, by what they are for, in small letters."""
    parts = (part.partition(";") for part in header.split(","))
    return {name.strip().lower(): _weight(weight) for name, _, weight in parts}


def language_of(header: str) -> Language:
    """Returns our language that is accepted most by an `Accept-Language`; English where there is none."""
    accepted = weights(header)
    best: dict[Language, float] = {
        language: max((weight for tag, weight in accepted.items() if tag.split("-")[0] == language), default=0.0)
        for language in LANGUAGES
    }
    return max(LANGUAGES, key=best.__getitem__)


def _weight(text: str) -> float:
    name, _, value = text.replace(" ", "").partition("=")
    if name.lower() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
