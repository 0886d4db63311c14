"""Settings of a web tool in an entry of `tools:`, besides its name, use and group."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from core.config.settings import Secret
from core.errors import Invalid

P = TypeVar("P")
DUCKDUCKGO, DDGS = "duckduckgo", "ddgs"
"""The provider, and the package that it needs."""
DEFAULTS = {"web_search": DUCKDUCKGO, "image_search": DUCKDUCKGO, "web_fetch": "direct"}
"""The provider of each web tool that names none."""
URL_CHARACTERS = 4096
"""Limit of a URL."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all providers; each uses those it supports. `timeout` is in seconds, per call."""

    provider: str | None = None
    api_key: Secret | None = None
    base_url: str | None = None
    max_results: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    timeout: Annotated[float, msgspec.Meta(gt=0, le=300)] = 10
    allow_private_addresses: bool = False
    region: str = "us-en"
    safesearch: Literal["on", "moderate", "off"] = "moderate"
    backend: str = "auto"
    search_type: str = "auto"
    contents_max_characters: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000


def read(settings: Mapping[str, Any]) -> Settings:
    """Parses the settings. Raises `Invalid`, naming the key but not its value."""
    try:
        options = msgspec.convert(dict(settings), Settings, strict=False, dec_hook=_to_secret)
    except msgspec.ValidationError as error:
        text, _, place = str(error).replace("`", "").partition(" - at $.")
        raise Invalid(f"{place}: {text[:1].lower()}{text[1:]}" if place else text) from None
    if options.base_url is not None and not options.base_url.startswith(("http://", "https://")):
        raise Invalid("base_url: expected an address that begins with http:// or https://")
    return options


def unknown(settings: Mapping[str, Any]) -> list[str]:
    """Returns the keys that have no effect."""
    return [key for key in settings if key not in Settings.__struct_fields__]


def missing_package(settings: Mapping[str, Any], tool: str) -> str:
    """Returns what to install for the provider of a web tool; "" for nothing."""
    provider = settings.get("provider") or DEFAULTS[tool]
    if provider != DUCKDUCKGO or importlib.util.find_spec(DDGS) is not None:
        return ""
    return f"DuckDuckGo needs the package {DDGS}; pip install {DDGS}"


def provider_of(settings: Settings, providers: Mapping[str, Callable[[Settings], P]], default: str) -> P:
    """Returns the provider that the settings name, else the default. Raises `Invalid` for an unknown name."""
    name = settings.provider or default
    if name not in providers:
        raise Invalid(f"provider: {name} unknown; there are: {', '.join(providers)}")
    return providers[name](settings)


def api_key(settings: Settings, provider: str, variable: str, *, needed: bool = True) -> str:
    """Returns the configured key, else that of the variable that the provider's own tools read. Raises `Invalid` if
    there is none, unless none is needed.
    """
    key = settings.api_key.reveal() if settings.api_key else os.environ.get(variable, "")
    if not key.strip() and needed:
        raise Invalid(f"{provider} needs an API key: set api_key: ${variable}, and {variable} in the environment")
    return key.strip()


def _to_secret(kind: type[Any], value: Any) -> Any:
    if kind is Secret and isinstance(value, Secret | str | int):
        return value if isinstance(value, Secret) else Secret(str(value))
    raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
