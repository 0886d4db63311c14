"""Settings of the access tokens for an MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from core.config.sections import Secret, Section

GrantType = Literal["client_credentials", "refresh_token", "authorization_code"]
SkewSeconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class OAuth(Section, frozen=True, kw_only=True):
    """Access tokens for the server. Without this section people can still log in, if the server describes its login."""

    enabled: bool = True
    """False turns it off."""
    grant_type: GrantType = "client_credentials"
    """`client_credentials` and `refresh_token`: one account for all. `authorization_code`: people log in, each with an
    account of their own (`sika mcp login`)."""
    token_url: str | None = None
    """Address of the token endpoint. `authorization_code` learns it from the server."""
    client_id: str | None = None
    """The client that the authorisation server knows. `authorization_code` registers one without it."""
    client_secret: Secret | None = None
    """Its secret."""
    refresh_token: Secret | None = None
    """The first token of `refresh_token`; rotated ones are kept, sealed, in the log."""
    scope: str | None = None
    """Scopes, separated by spaces. `authorization_code`: those that the server names, by default."""
    audience: str | None = None
    """Parameter of the token request."""
    token_field: str = "access_token"
    """Field of the response with the token."""
    token_type_field: str = "token_type"
    """Field of the response with its type."""
    expires_in_field: str = "expires_in"
    """Field of the response with its lifetime in seconds; 3600 without it."""
    default_token_type: str = "Bearer"
    """The type of tokens of which the response does not tell it."""
    refresh_skew_seconds: SkewSeconds = 60
    """Seconds before its end at which a token is renewed."""
    extra_token_params: Mapping[str, str] = {}
    """Further parameters of the token request."""
    allow_private: bool = False
    """True if the authorisation server may have an address inside the network. It may if the MCP server has one."""

    def __post_init__(self) -> None:
        if not self.enabled or self.grant_type == "authorization_code":
            return
        needed = ["token_url", "refresh_token"]
        if self.grant_type == "client_credentials":
            needed = ["token_url", "client_id", "client_secret"]
        if missing := [name for name in needed if not getattr(self, name)]:
            raise ValueError(f"{missing[0]}: needed for grant_type {self.grant_type}")
