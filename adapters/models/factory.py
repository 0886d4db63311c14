"""Builds a chat model from an entry of `models:` in the configuration.

An entry names a class (`use: "module:Class"`) and its arguments; the keys in `_OURS` are about the model and are not
passed on. Equal entries give the same object, so there is one pool of HTTP connections per entry. Provider packages
are imported when the first model needs them: `langchain_openai` alone takes half a second.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from pydantic import ValidationError

from core.errors import Invalid

DEFAULT_CLASS = "langchain_openai:ChatOpenAI"
_IMPROVED = {DEFAULT_CLASS: "adapters.models.openai_compatible:OpenAICompatible"}
"""Classes that have a subclass of ours, which does the same better."""
_OURS = frozenset(
    {"name", "display_name", "description", "use", "pricing", "context_window"}
    | {"supports_thinking", "supports_reasoning_effort", "supports_vision"}
    | {"thinking", "when_thinking_enabled", "when_thinking_disabled"}
)
_KEPT = 64
"""Models remembered; more only if the configuration is reloaded with changes very often."""

_built: dict[str, BaseChatModel] = {}


def build(entry: Mapping[str, Any], *, thinking: bool = True, reasoning_effort: str | None = None) -> BaseChatModel:
    """The model of an entry, as it is for runs with or without thinking.

    Raises `Invalid`, naming the entry, for a class that cannot be found (with the package to install if one is
    missing), for thinking settings on a model that does not support it, and for arguments that the class refuses.
    Then the text names the arguments but not their values, which may be secrets.
    """
    revealed = _reveal(dict(entry))
    name = str(revealed.get("name") or revealed.get("model") or "?")
    use = revealed.get("use") or DEFAULT_CLASS
    use = _IMPROVED.get(use, use)
    arguments = _arguments(revealed, name, thinking, reasoning_effort)
    key = _fingerprint(use, arguments)
    if key not in _built:
        model = _construct(_load(use, name), arguments, name)
        while len(_built) >= _KEPT:
            del _built[next(iter(_built))]
        _built[key] = model
    return _built[key]


async def close() -> None:
    """Close the connections to providers: they belong to the event loop that ends. The models stay usable in another
    one. (`langchain_openai` shares its HTTP clients, and a closed client could not be used again: so the transports.)
    """
    for model in _built.values():
        client = getattr(getattr(model, "root_async_client", None), "_client", None)
        if client is not None:
            await client._transport.aclose()


def _arguments(entry: dict[str, Any], name: str, thinking: bool, reasoning_effort: str | None) -> dict[str, Any]:
    """The constructor's arguments for a run with or without thinking."""
    arguments = {key: value for key, value in entry.items() if key not in _OURS and value is not None}
    if reasoning_effort is not None:
        arguments["reasoning_effort"] = reasoning_effort
    changes = _thinking_on(entry, name) if thinking else _thinking_off(entry)
    arguments = _merge(arguments, changes)
    if not entry.get("supports_reasoning_effort"):
        arguments.pop("reasoning_effort", None)
    return arguments


def _enabled(entry: dict[str, Any]) -> dict[str, Any]:
    """Settings that turn thinking on; `thinking` is a shortcut for the setting of the same name."""
    shortcut = {"thinking": entry["thinking"]} if entry.get("thinking") is not None else {}
    return _merge(entry.get("when_thinking_enabled") or {}, shortcut)


def _thinking_on(entry: dict[str, Any], name: str) -> dict[str, Any]:
    settings = _enabled(entry)
    if settings and not entry.get("supports_thinking"):
        raise Invalid(f"models[{name}] has settings for thinking but not `supports_thinking: true`")
    return settings


def _thinking_off(entry: dict[str, Any]) -> dict[str, Any]:
    """What was configured for this case, else the opposite of what turns thinking on, in the provider's dialect."""
    if entry.get("when_thinking_disabled") is not None:
        return dict(entry["when_thinking_disabled"])
    settings = _enabled(entry)
    extra = _mapping(settings.get("extra_body"))
    template = _mapping(extra.get("chat_template_kwargs"))
    if _mapping(extra.get("thinking")).get("type"):
        return {"extra_body": {"thinking": {"type": "disabled"}}, "reasoning_effort": "minimal"}
    if switches := [key for key in ("thinking", "enable_thinking") if key in template]:
        return {"extra_body": {"chat_template_kwargs": dict.fromkeys(switches, False)}}
    if _mapping(settings.get("thinking")).get("type"):
        return {"thinking": {"type": "disabled"}}
    return {}


def _load(use: Any, name: str) -> type[BaseChatModel]:
    place = f"models[{name}].use"
    module_name, _, class_name = str(use).partition(":")
    if not module_name or not class_name:
        raise Invalid(f'{place}: {use!r} is not of the form "module:Class"')
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ModuleNotFoundError as error:
        raise Invalid(f"{place}: {_missing(module_name, error.name or module_name)}") from error
    except ImportError as error:
        raise Invalid(f"{place}: cannot import {module_name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, BaseChatModel)):
        raise Invalid(f"{place}: {module_name} has no chat model class {class_name!r}")
    return found


def _missing(module: str, absent: str) -> str:
    """Whether a package is not installed, needs another one, or is installed and has no such module."""
    package = absent.partition(".")[0]
    if "." in absent and importlib.util.find_spec(package):
        return f"there is no module {absent!r}"
    distribution = package.replace("_", "-")
    return f"{module} needs the package {distribution!r}; install it with: uv pip install {distribution}"


def _construct(model_class: type[BaseChatModel], arguments: dict[str, Any], name: str) -> BaseChatModel:
    """Defaults: report token usage of streams; leave retries to the runtime, which records every attempt."""
    defaults = {"stream_usage": True, "max_retries": 0}
    given = {key: value for key, value in defaults.items() if key in model_class.model_fields} | arguments
    try:
        return model_class(**given)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_input=False))
        raise Invalid(f"models[{name}]: {problems}") from None
    except Exception as error:  # each provider has its own way to say that a key is missing
        raise Invalid(f"models[{name}]: {model_class.__name__}: {error}") from error


def _reveal(value: Any) -> Any:
    """The value with all secrets unwrapped, at any depth."""
    if callable(reveal := getattr(value, "reveal", None)):
        return reveal()
    if isinstance(value, Mapping):
        return {key: _reveal(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_reveal(item) for item in value]
    return value


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _fingerprint(use: str, arguments: dict[str, Any]) -> str:
    """A hash, so that no secret becomes part of a key."""
    return hashlib.sha256(json.dumps([use, arguments], sort_keys=True, default=repr).encode()).hexdigest()
