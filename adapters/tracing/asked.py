"""Targets of tracing: by the configuration, else by the variables that DeerFlow reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from core.config.settings import Langfuse, LangSmith, Tracing
from core.errors import Invalid

LANGSMITH_SWITCHES = ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "LANGCHAIN_TRACING")
"""Variables that switch it; the first that is set decides."""
LANGFUSE_SWITCHES = ("LANGFUSE_TRACING",)
PROJECT = "deer-flow"
LANGSMITH_ENDPOINT = "https://api.smith.langchain.com"
LANGFUSE_URL = "https://cloud.langfuse.com"
_TRUE = frozenset({"1", "true", "yes", "on"})


class LangSmithTarget(NamedTuple):
    api_key: str
    project: str
    endpoint: str


class LangfuseTarget(NamedTuple):
    public_key: str
    secret_key: str
    base_url: str


def langsmith(settings: LangSmith, environ: Mapping[str, str] = os.environ) -> LangSmithTarget | None:
    """Returns the target of traces; None if it is off. Raises `Invalid` if it is on and incomplete."""
    if not _on(settings.enabled, LANGSMITH_SWITCHES, environ):
        return None
    key = settings.api_key.reveal() if settings.api_key else _first(environ, "LANGSMITH_API_KEY", "LANGCHAIN_API_KEY")
    if not key:
        raise Invalid("tracing.langsmith: it is on and has no key; set api_key, or LANGSMITH_API_KEY")
    project = settings.project or _first(environ, "LANGSMITH_PROJECT", "LANGCHAIN_PROJECT") or PROJECT
    endpoint = settings.endpoint or _first(environ, "LANGSMITH_ENDPOINT", "LANGCHAIN_ENDPOINT") or LANGSMITH_ENDPOINT
    return LangSmithTarget(key, project, endpoint)


def langfuse(settings: Langfuse, environ: Mapping[str, str] = os.environ) -> LangfuseTarget | None:
    """Returns the target of traces; None if it is off. Raises `Invalid` if it is on and incomplete."""
    if not _on(settings.enabled, LANGFUSE_SWITCHES, environ):
        return None
    public = settings.public_key or _first(environ, "LANGFUSE_PUBLIC_KEY")
    secret = settings.secret_key.reveal() if settings.secret_key else _first(environ, "LANGFUSE_SECRET_KEY")
    keys = {"public_key": public, "secret_key": secret}
    missing = [f"{name} (LANGFUSE_{name.upper()})" for name, value in keys.items() if not value]
    if missing:
        raise Invalid(f"tracing.langfuse: it is on and has no {' and no '.join(missing)}")
    url = settings.base_url or _first(environ, "LANGFUSE_BASE_URL", "LANGFUSE_HOST") or LANGFUSE_URL
    return LangfuseTarget(public, secret, url)


def environment(settings: Tracing, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the deployment environment: `production`, `staging` …"""
    return settings.environment or _first(environ, "DEER_FLOW_ENV", "ENVIRONMENT") or None


def decided(settings: LangSmith, environ: Mapping[str, str] = os.environ) -> bool:
    """True if LangSmith is switched on or off by configuration or environment. Else LangChain is not configured."""
    return settings.enabled is not None or any(environ.get(name) for name in LANGSMITH_SWITCHES)


def _on(enabled: bool | None, switches: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    return _first(environ, *switches).lower() in _TRUE if enabled is None else enabled


def _first(environ: Mapping[str, str], *names: str) -> str:
    """Returns the first of these variables that is not empty."""
    return next((value for name in names if (value := environ.get(name, "").strip())), "")
