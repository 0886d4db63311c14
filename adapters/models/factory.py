"""Builds a chat model from an entry of `models:` in the configuration.

An entry names a class (`use: "module:Class"`) and its arguments; the keys in `_OURS` are about the model and are not
passed on. Equal entries give the same object, so there is one pool of HTTP connections per entry. Provider packages
are imported when the first model needs them: `langchain_openai` alone takes half a second.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from typing import Any

import structlog
from langchain_core.language_models import BaseChatModel
from pydantic import ValidationError

from adapters.models import probe, slots
from core.errors import Invalid

log = structlog.get_logger("sika.models")

DEFAULT_CLASS = "langchain_openai:ChatOpenAI"
_OPENAI = "adapters.models.openai_compatible:OpenAICompatible"
_CLASSES = {
    DEFAULT_CLASS: _OPENAI,
    "langchain_deepseek:ChatDeepSeek": "adapters.models.dialects:DeepSeek",
    "deerflow.models.patched_deepseek:PatchedChatDeepSeek": "adapters.models.dialects:DeepSeek",
    "deerflow.models.patched_openai:PatchedChatOpenAI": "adapters.models.dialects:Signed",
    "deerflow.models.vllm_provider:VllmChatModel": "adapters.models.dialects:VLLM",
}
"""Classes for which there is one of ours: LangChain's, which ours does better, and DeerFlow's."""
DEEPSEEK_URL = "https://api.deepseek.com/v1"
_DIALECTS = "adapters.models.dialects"
_PLAIN: Mapping[str, tuple[str, str]] = {
    _OPENAI: ("", "OPENAI_API_KEY"),
    f"{_DIALECTS}:Signed": ("", "OPENAI_API_KEY"),
    f"{_DIALECTS}:VLLM": ("", "OPENAI_API_KEY"),
    f"{_DIALECTS}:DeepSeek": (DEEPSEEK_URL, "DEEPSEEK_API_KEY"),
}
"""Classes of ours that rely on private code of packages: where plain `ChatOpenAI`, which stands in for them, finds the
address and the key that an entry does not name."""
_BASE_URLS = ("base_url", "api_base", "openai_api_base", "anthropic_api_url", "endpoint_url")
_API_KEYS = ("api_key", "openai_api_key", "anthropic_api_key", "google_api_key")
"""Names that configurations and classes have for the same; each entry is given the one that its class knows."""
_DISTRIBUTIONS = {"google": "google-genai", "vertexai": "google-cloud-aiplatform"}
"""Packages that are installed by another name than they are imported."""
_SECRET = re.compile(r"key|token|secret|password|authorization|cookie", re.IGNORECASE)
_HIDDEN = 4
"""Shorter values are no secrets."""
_OURS = frozenset(
    {"name", "display_name", "description", "use", "pricing", "context_window", "max_concurrency"}
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
    use = str(revealed.get("use") or DEFAULT_CLASS)
    use = _CLASSES.get(use, use)
    limit = revealed.get("max_concurrency")
    arguments = _arguments(revealed, name, thinking, reasoning_effort)
    if use in _PLAIN and (changed := probe.problem()):
        use, arguments = _plain(use, arguments, name, changed)
    key = _fingerprint(use, limit, arguments)
    if key not in _built:
        try:
            model = _limited(_load(use, name), use, arguments, name, limit)
        except Invalid as error:
            raise Invalid(_redacted(str(error), entry)) from None
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
            for transport in {client._transport, *client._mounts.values()} - {None}:
                with suppress(RuntimeError):  # of a loop that is closed, and its connections with it
                    await transport.aclose()


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


def _plain(use: str, arguments: dict[str, Any], name: str, changed: str) -> tuple[str, dict[str, Any]]:
    """The class that LangChain has for an endpoint, where ours does not fit to the installed packages."""
    log.warning("plain ChatOpenAI stands in, which drops reasoning", model=name, instead_of=use, changed=changed)
    url, variable = _PLAIN[use]
    if url and not any(key in arguments for key in _BASE_URLS):
        arguments = {**arguments, "base_url": url}
    if not any(key in arguments for key in _API_KEYS):
        if not (key := os.environ.get(variable)):
            raise Invalid(f"models[{name}]: the environment variable {variable} is not set, and there is no api_key")
        arguments = {**arguments, "api_key": key}
    return DEFAULT_CLASS, arguments


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


def _load(use: str, name: str) -> type[BaseChatModel]:
    place = f"models[{name}].use"
    module_name, _, class_name = use.partition(":")
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
    if package == "deerflow":
        return f"there is no counterpart of {module} here; name the provider's own class"
    if "." in absent and importlib.util.find_spec(package):
        return f"there is no module {absent!r}"
    distribution = _DISTRIBUTIONS.get(package, package.replace("_", "-"))
    return f"{module} needs the package {distribution!r}; install it with: pip install {distribution}"


def _limited(
    model_class: type[BaseChatModel], use: str, arguments: dict[str, Any], name: str, limit: int | None
) -> BaseChatModel:
    """The model; with a limit, one that waits for its place at the provider."""
    if limit is None:
        return _construct(model_class, arguments, name)
    model = _construct(slots.bounded(model_class), arguments, name)
    where = [next((arguments[key] for key in names if key in arguments), None) for names in (_BASE_URLS, _API_KEYS)]
    slots.set_bound(model, _fingerprint(use if where == [None, None] else "", *where), limit)
    return model


def _construct(model_class: type[BaseChatModel], arguments: dict[str, Any], name: str) -> BaseChatModel:
    """Defaults: report token usage of streams; leave retries to the runtime, which records every attempt."""
    defaults = {"stream_usage": True, "max_retries": 0}
    known = set(_names(model_class))
    given = {key: value for key, value in defaults.items() if key in known} | _renamed(arguments, known)
    given = _passed_on(model_class, given, known, name)
    try:
        return model_class(**given)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_input=False))
    except Exception as error:  # each provider has its own way to say that a key is missing
        problems = f"{model_class.__name__}: {error}"
    raise Invalid(f"models[{name}]: {problems}")


def _names(model_class: type[BaseChatModel]) -> Iterator[str]:
    """What the arguments of a class are called."""
    for key, field in model_class.model_fields.items():
        yield key
        for alias in (field.alias, *getattr(field.validation_alias, "choices", [field.validation_alias])):
            if isinstance(alias, str):
                yield alias


def _passed_on(model_class: type[BaseChatModel], given: dict[str, Any], known: Set[str], name: str) -> dict[str, Any]:
    """The arguments, those that the class does not know in `model_kwargs` if requests take them. Raises `Invalid` for
    what would make every request fail.
    """
    others = {key: value for key, value in given.items() if key not in known and key != "model"}
    if not others or model_class.model_config.get("extra") == "allow":
        return given
    taken = _of_requests(model_class)
    for key in others:
        if key not in taken:
            close = difflib.get_close_matches(key, [*known, *taken], n=1, cutoff=0.7)
            advice = f", did you mean {close[0]}?" if close else ""
            raise Invalid(f"models[{name}].{key}: {model_class.__name__} has no such argument{advice}")
    kept = {key: value for key, value in given.items() if key not in others}
    return {**kept, "model_kwargs": {**others, **_mapping(kept.get("model_kwargs"))}}


def _of_requests(model_class: type[BaseChatModel]) -> Set[str]:
    """What a request to an OpenAI-compatible endpoint may have besides; nothing is known about others."""
    if "model_kwargs" not in model_class.model_fields or "openai_api_base" not in model_class.model_fields:
        return frozenset()
    from openai.resources.chat import AsyncCompletions
    from openai.resources.responses import AsyncResponses

    methods = (AsyncCompletions.create, AsyncResponses.create)
    return {name for method in methods for name in inspect.signature(method).parameters} - {"self"}


def _renamed(arguments: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """The arguments by the names that the class knows."""
    renamed = dict(arguments)
    for names in (_BASE_URLS, _API_KEYS):
        given = next((key for key in names if key in renamed and key not in known), None)
        wanted = next((key for key in names if key in known), None)
        if given and wanted and wanted not in renamed:
            renamed[wanted] = renamed.pop(given)
    return renamed


def _redacted(text: str, entry: Mapping[str, Any]) -> str:
    for secret in sorted(_secrets(entry), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(value: Any, *, secret: bool = False) -> Iterator[str]:
    """What is marked as secret, and the texts under keys that sound like it, at any depth."""
    if callable(reveal := getattr(value, "reveal", None)):
        value, secret = reveal(), True
    match value:
        case Mapping():
            for key, item in value.items():
                yield from _secrets(item, secret=secret or _SECRET.search(str(key)) is not None)
        case list():
            for item in value:
                yield from _secrets(item, secret=secret)
        case str() if secret and len(value) >= _HIDDEN:
            yield value
        case _:
            pass


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


def _fingerprint(*parts: Any) -> str:
    """A hash, so that no secret becomes part of a key."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()
