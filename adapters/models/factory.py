"""Builds a chat model from an entry of `models:` in the configuration.

An entry names a class (`use: "module:Class"`) and its arguments; the keys in `_OURS` are about the model and are not
passed on. Equal entries return the same object, so there is one pool of HTTP connections per entry. Provider packages
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
from typing import Any, cast

import anyio
import structlog
from langchain_core.language_models import BaseChatModel
from pydantic import ValidationError

from adapters.models import probe, slots
from core.config.load import Secret, reveal
from core.errors import Invalid, place_of
from core.plugins import MODELS, configured_object, names

log = structlog.get_logger("sika.models")

CLOSE_SECONDS = 5.0
"""Limit of the time to close connections."""
DEFAULT_CLASS = "langchain_openai:ChatOpenAI"
_OPENAI = "adapters.models.openai_compatible:OpenAICompatible"
_CLASSES = {
    DEFAULT_CLASS: _OPENAI,
    "langchain_deepseek:ChatDeepSeek": "adapters.models.dialects:DeepSeek",
    "deerflow.models.patched_deepseek:PatchedChatDeepSeek": "adapters.models.dialects:DeepSeek",
    "deerflow.models.patched_openai:PatchedChatOpenAI": "adapters.models.dialects:Signed",
    "deerflow.models.vllm_provider:VllmChatModel": "adapters.models.dialects:VLLM",
}
"""Classes that are replaced by own ones: LangChain's, with fewer features, and DeerFlow's."""
DEEPSEEK_URL = "https://api.deepseek.com/v1"
_DIALECTS = "adapters.models.dialects"
_PLAIN: Mapping[str, tuple[str, str]] = {
    _OPENAI: ("", "OPENAI_API_KEY"),
    f"{_DIALECTS}:Signed": ("", "OPENAI_API_KEY"),
    f"{_DIALECTS}:VLLM": ("", "OPENAI_API_KEY"),
    f"{_DIALECTS}:DeepSeek": (DEEPSEEK_URL, "DEEPSEEK_API_KEY"),
}
"""Own classes that rely on private code of packages. Plain `ChatOpenAI` stands in for them, with this URL and this
variable of the key where an entry names none."""
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "claude": ("langchain_anthropic:ChatAnthropic", "anthropic"),
    "anthropic.": ("langchain_aws:ChatBedrockConverse", "bedrock"),
    "gemini": ("langchain_google_genai:ChatGoogleGenerativeAI", "google"),
}
"""Beginnings of names of models that OpenAI does not have, with the class and the extra of their provider."""
_URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Variables of the environment that name another address than OpenAI's."""
_BASE_URLS = ("base_url", "api_base", "openai_api_base", "anthropic_api_url", "endpoint_url")
_API_KEYS = ("api_key", "openai_api_key", "anthropic_api_key", "google_api_key")
"""Synonyms in configurations and classes; an argument is renamed to the name that its class has."""
_DISTRIBUTIONS = {"google": "google-genai", "vertexai": "google-cloud-aiplatform"}
"""Distributions whose name differs from the package's."""
_SECRET = re.compile(r"key|token|secret|password|authorization|cookie", re.IGNORECASE)
_HIDDEN = 4
"""Shorter values are no secrets."""
_OURS = frozenset(
    {"name", "display_name", "description", "use", "pricing", "context_window", "max_concurrency"}
    | {"supports_thinking", "supports_reasoning_effort", "supports_vision"}
    | {"thinking", "when_thinking_enabled", "when_thinking_disabled"}
)
_KEPT = 64
"""Limit of cached models: it matters only if the configuration changes very often."""

_built: dict[str, BaseChatModel] = {}


def build(entry: Mapping[str, Any], *, thinking: bool = True, reasoning_effort: str | None = None) -> BaseChatModel:
    """Returns the model of an entry for runs with or without thinking.

    Raises `Invalid`, naming the entry: the class cannot be imported (with the package to install), thinking is
    configured for a model without it, or the class refuses arguments. The text names the arguments but not their
    values, which may be secrets.
    """
    revealed = reveal(entry)
    name = str(revealed.get("name") or revealed.get("model") or "?")
    use = str(revealed.get("use") or DEFAULT_CLASS)
    use = _CLASSES.get(use, use)
    limit = revealed.get("max_concurrency")
    arguments = _arguments(revealed, name, thinking, reasoning_effort)
    _refuse_elsewhere(use, arguments, name)
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
    """Closes the connections to providers, also in a task that is cancelled, within `CLOSE_SECONDS`.

    They belong to the event loop that ends. The models stay usable in another loop: `langchain_openai` shares its HTTP
    clients, which could not be reopened, so only their transports are closed.
    """
    with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
        for model in _built.values():
            client = getattr(getattr(model, "root_async_client", None), "_client", None)
            if client is not None:
                for transport in {client._transport, *client._mounts.values()} - {None}:
                    with suppress(RuntimeError):  # of a loop that is closed, and its connections with it
                        await transport.aclose()


def _refuse_elsewhere(use: str, arguments: Mapping[str, Any], name: str) -> None:
    """Raises `Invalid` for a model of another provider that would be asked for at OpenAI's address, with its key."""
    if use != _OPENAI or any(arguments.get(key) for key in _BASE_URLS) or any(map(os.environ.get, _URL_VARIABLES)):
        return
    model = str(arguments.get("model") or "")
    for prefix, (own, extra) in _ELSEWHERE.items():
        if model.lower().startswith(prefix):
            raise Invalid(
                f"models[{name}].model: {model!r} is not one of OpenAI's, where this entry would send its key; add the "
                f'line "use: {own}" (pip install "sika[{extra}]"), or the base_url of an OpenAI-compatible endpoint'
            )


def _arguments(entry: dict[str, Any], name: str, thinking: bool, reasoning_effort: str | None) -> dict[str, Any]:
    """Returns the constructor's arguments for a run with or without thinking."""
    arguments = {key: value for key, value in entry.items() if key not in _OURS and value is not None}
    if reasoning_effort is not None:
        arguments["reasoning_effort"] = reasoning_effort
    changes = _thinking_on(entry, name) if thinking else _thinking_off(entry)
    arguments = _merge(arguments, changes)
    if not entry.get("supports_reasoning_effort"):
        arguments.pop("reasoning_effort", None)
    return arguments


def _thinking_settings(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that turn thinking on; `thinking` is a shortcut for the setting of the same name."""
    shortcut = {"thinking": entry["thinking"]} if entry.get("thinking") is not None else {}
    return _merge(entry.get("when_thinking_enabled") or {}, shortcut)


def _plain(use: str, arguments: dict[str, Any], name: str, changed: str) -> tuple[str, dict[str, Any]]:
    """Returns LangChain's class for an endpoint and its arguments, for use with incompatible packages."""
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
    settings = _thinking_settings(entry)
    if settings and not entry.get("supports_thinking"):
        raise Invalid(f"models[{name}] has settings for thinking but not `supports_thinking: true`")
    return settings


def _thinking_off(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the configured settings, else the opposite of those that turn thinking on, in the provider's dialect."""
    if entry.get("when_thinking_disabled") is not None:
        return dict(entry["when_thinking_disabled"])
    settings = _thinking_settings(entry)
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
    if installed := configured_object(MODELS, use):
        describe(installed)
        return cast("type[BaseChatModel]", installed)
    module_name, _, class_name = use.partition(":")
    if not module_name or not class_name:
        there = f", nor an installed model: {', '.join(names(MODELS))}" if names(MODELS) else ""
        raise Invalid(f'{place}: {use!r} is not of the form "module:Class"{there}')
    try:
        model_class = getattr(importlib.import_module(module_name), class_name, None)
    except ModuleNotFoundError as error:
        raise Invalid(f"{place}: {_missing(module_name, error.name or module_name)}") from error
    except ImportError as error:
        raise Invalid(f"{place}: cannot import {module_name}: {error}") from error
    if not (isinstance(model_class, type) and issubclass(model_class, BaseChatModel)):
        raise Invalid(f"{place}: {module_name} has no chat model class {class_name!r}")
    return model_class


def describe(model_class: object) -> str:
    """Returns what a class of an installed package gives. Raises `Invalid` if it is no chat model."""
    if not (isinstance(model_class, type) and issubclass(model_class, BaseChatModel)):
        raise Invalid("not a langchain_core.language_models.BaseChatModel class")
    return f"models[].use: {model_class.__module__}:{model_class.__qualname__}"


def _missing(module: str, absent: str) -> str:
    """Returns the reason of a failed import: a package is missing, or lacks the module."""
    package = absent.partition(".")[0]
    if package == "deerflow":
        return f"there is no counterpart of {module} here; name the provider's own class"
    if "." in absent and importlib.util.find_spec(package):
        return f"there is no module {absent!r}"
    for use, extra in _ELSEWHERE.values():
        if use.startswith(f"{package}:"):
            return f'{module} comes with an extra of this package; install it with: pip install "sika[{extra}]"'
    distribution = _DISTRIBUTIONS.get(package, package.replace("_", "-"))
    return f"{module} needs the package {distribution!r}; install it with: pip install {distribution}"


def _limited(
    model_class: type[BaseChatModel], use: str, arguments: dict[str, Any], name: str, limit: int | None
) -> BaseChatModel:
    """Returns the model; with a limit, its requests wait for a slot at the provider."""
    if limit is None:
        return _construct(model_class, arguments, name)
    model = _construct(slots.bounded(model_class), arguments, name)
    where = [next((arguments[key] for key in names if key in arguments), None) for names in (_BASE_URLS, _API_KEYS)]
    slots.set_bound(model, _fingerprint(use if where == [None, None] else "", *where), limit)
    return model


def _construct(model_class: type[BaseChatModel], arguments: dict[str, Any], name: str) -> BaseChatModel:
    """Constructs a model. Defaults: report token usage of streams; leave retries to the runtime, which records them."""
    defaults = {"stream_usage": True, "max_retries": 0}
    names = set(_names(model_class))
    accepted = {key: value for key, value in defaults.items() if key in names} | _renamed(arguments, names)
    accepted = _passed_on(model_class, accepted, names, name)
    try:
        return model_class(**accepted)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_input=False))
    except Exception as error:  # each provider has its own way to say that a key is missing
        problems = f"{model_class.__name__}: {error}{place_of(error)}"
    raise Invalid(f"models[{name}]: {problems}")


def _names(model_class: type[BaseChatModel]) -> Iterator[str]:
    """Yields the names of a class's arguments, with their aliases."""
    for key, field in model_class.model_fields.items():
        yield key
        for alias in (field.alias, *getattr(field.validation_alias, "choices", [field.validation_alias])):
            if isinstance(alias, str):
                yield alias


def _passed_on(
    model_class: type[BaseChatModel], arguments: dict[str, Any], names: Set[str], name: str
) -> dict[str, Any]:
    """Moves arguments that the class lacks, but requests have, to `model_kwargs`. Raises `Invalid` for those that would
    make every request fail.
    """
    others = {key: value for key, value in arguments.items() if key not in names and key != "model"}
    if not others or model_class.model_config.get("extra") == "allow":
        return arguments
    request_names = _of_requests(model_class)
    for key in others:
        if key not in request_names:
            close = difflib.get_close_matches(key, [*names, *request_names], n=1, cutoff=0.7)
            advice = f", did you mean {close[0]}?" if close else ""
            raise Invalid(f"models[{name}].{key}: {model_class.__name__} has no such argument{advice}")
    passed = {key: value for key, value in arguments.items() if key not in others}
    return {**passed, "model_kwargs": {**others, **_mapping(passed.get("model_kwargs"))}}


def _of_requests(model_class: type[BaseChatModel]) -> Set[str]:
    """Returns the parameters of requests to an OpenAI-compatible endpoint; none for other classes."""
    if "model_kwargs" not in model_class.model_fields or "openai_api_base" not in model_class.model_fields:
        return frozenset()
    from openai.resources.chat import AsyncCompletions
    from openai.resources.responses import AsyncResponses

    methods = (AsyncCompletions.create, AsyncResponses.create)
    return {name for method in methods for name in inspect.signature(method).parameters} - {"self"}


def _renamed(arguments: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """Returns the arguments under the names that the class has."""
    renamed = dict(arguments)
    for synonyms in (_BASE_URLS, _API_KEYS):
        old = next((key for key in synonyms if key in renamed and key not in names), None)
        new = next((key for key in synonyms if key in names), None)
        if old and new and new not in renamed:
            renamed[new] = renamed.pop(old)
    return renamed


def _redacted(text: str, entry: Mapping[str, Any]) -> str:
    for secret in sorted(_secrets(entry), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(value: Any, *, secret: bool = False) -> Iterator[str]:
    """Yields values marked as secret, and texts under keys that match `_SECRET`, at any depth."""
    if isinstance(value, Secret):
        value, secret = value.reveal(), True
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


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merges mappings at any depth; other values are replaced."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _fingerprint(*parts: Any) -> str:
    """Returns a hash, so that no secret becomes part of a key."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()
