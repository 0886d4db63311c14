"""Addresses that the agent may read: those of public pages (`core.egress`), also in plain http."""

from __future__ import annotations

from aiohttp.abc import AbstractResolver
from yarl import URL

from adapters.web.settings import URL_CHARACTERS
from core.egress import may_be_public
from core.errors import Invalid


def parse(text: str, *, private: bool = False) -> URL:
    """Parses the URL of a page. Raises `Invalid`. `private` allows addresses inside the network, too.

    A name may still resolve to an address inside: that is checked when it is resolved.
    """
    text = text.strip()
    try:
        url = URL(text).with_fragment(None)
        host = url.raw_host
        odd = url.port == 0 or any(character.isspace() for character in text)
    except ValueError:
        raise Invalid("This is not a URL. Give one as it was found, such as https://example.com/page.") from None
    if url.scheme not in ("http", "https") or not host or odd or len(text) > URL_CHARACTERS:
        raise Invalid("This is not the URL of a page. Give one as it was found, with http:// or https:// before it.")
    if url.raw_user is not None or url.raw_password is not None:
        raise Invalid("The URL holds credentials. Give it without them.")
    if not private:
        _check_host(host)
    return url


async def check_name(url: URL, resolver: AbstractResolver) -> None:
    """Raises `Invalid` if the name has no public address now."""
    try:
        await resolver.resolve(url.raw_host or "", url.port or 0)
    except OSError:
        raise Invalid(f"{url.raw_host} has no public address. Look for another page.") from None
    finally:
        await resolver.close()


def _check_host(host: str) -> None:
    if not may_be_public(host):
        raise Invalid(f"{host} is not a public address. Only pages that everybody can reach may be read.")
