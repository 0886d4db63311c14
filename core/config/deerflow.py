"""DeerFlow configurations: translates other names of settings, and names settings without effect."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from core.config import channels
from core.errors import Invalid

ABSENT = "not in this version"
_STORES = "has no effect: the log keeps everything"
_MACHINES = "has no effect: the server names its machines itself, and reaches them by the engine"
_CAPACITY = "has no effect; see sandbox.replicas and sandbox.idle_seconds"
_BUS = "has no effect: accounts talk to the bus, not to an address"
_QUEUE = "has no effect: messages wait in the log; see runs.max_concurrent"
_LLM = "has no effect; see models[].max_concurrency and runs.max_model_attempts"
WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(("extensions", "logging", "mcp_tasks", "plugins"), ABSENT),
    **dict.fromkeys([f"channels.{platform}" for platform in ("wecom", "wechat", "github", "buzz")], ABSENT),
    **dict.fromkeys(("channels.langgraph_url", "channels.gateway_url"), _BUS),
    **dict.fromkeys(("channels.inbound_queue_maxsize", "channels.max_concurrency"), _QUEUE),
    "channels.shutdown_grace_period_seconds": "has no effect: messages wait in the log also while nobody serves",
    **dict.fromkeys(("tool_progress", "safety_finish_reason.detectors"), ABSENT),
    **dict.fromkeys(("skills.use", "tool_search.auto_promote_top_k"), ABSENT),
    "skills.deferred_discovery": "has no effect; see skills.list_limit",
    **dict.fromkeys(("database", "checkpointer", "run_events", "stream_bridge"), _STORES),
    **dict.fromkeys(("agent_storage", "dedupe_storage"), _STORES),
    **dict.fromkeys(("memory.storage_path", "memory.storage_class"), _STORES),
    **dict.fromkeys(("memory.manager_class", "memory.mode", "memory.backend_config"), ABSENT),
    "memory.shutdown_flush_timeout_seconds": "has no effect: what is to be read is in the log",
    "skill_evolution.security_fail_closed": "has no effect: a skill without a verdict is always refused",
    "subagents.enabled": "has no effect; see subagent_enabled of a run",
    **dict.fromkeys([f"channel_connections.{platform}" for platform in ("wecom", "wechat", "github", "buzz")], ABSENT),
    "run_ownership": "has no effect; see runs.lease_seconds",
    "scheduler": "has no effect: schedules are always on",
    **dict.fromkeys([f"sandbox.{key}" for key in ("port", "container_prefix", "ownership")], _MACHINES),
    "sandbox.thread_data_mounts": _MACHINES,
    "sandbox.image": "has no effect but with the provider docker; see sandbox.docker.image",
    **dict.fromkeys([f"sandbox.{key}" for key in ("overflow_policy", "acquire_timeout", "burst_limit")], _CAPACITY),
    "sandbox.health_check_skip_seconds": _CAPACITY,
    **dict.fromkeys([f"llm_call.{key}" for key in ("max_concurrent_calls", "retry_base_delay_ms")], _LLM),
    **dict.fromkeys([f"llm_call.{key}" for key in ("retry_cap_delay_ms", "burst_retry_base_delay_ms")], _LLM),
    **dict.fromkeys(
        [f"{at}token_budget.max_{which}_tokens" for at in ("", "subagents.") for which in ("input", "output")],
        f"{ABSENT}: max_tokens counts input and output",
    ),
    "subagents.token_budget.hard_stop_threshold": "has no effect: the limit is where a subagent ends",
    "tool_output.storage_subdir": "has no effect: it is always .tool-results",
    "loop_detection.max_tracked_threads": "has no effect: nothing is tracked in memory",
    "uploads.pdf_converter": "has no effect: the first converter that is installed is used",
}
"""Keys that are known and are no settings of ours. A line of a section stands for all that is below it."""
BY_NAME: Mapping[str, str] = {
    "subagents.agents.*.token_budget": "has no effect; see subagents.token_budget, which is for all types",
    "subagents.custom_agents.*.token_budget": "has no effect; see subagents.token_budget, which is for all types",
    "mcp.servers.*.tool_name_prefix": "has no effect: the names of tools always begin with the server's",
    "mcp.servers.*.routing": "has no effect; see mcp.direct_tools: with many tools the model searches for them",
    **dict.fromkeys(("mcp.servers.*.tools", "mcp.servers.*.task_toolsets"), ABSENT),
}
"""The same, in sections that people name."""
_OFF_ONLY = ("authorization",)
"""Known sections that promise protection: they may be there, but not on."""
RENAMED: Mapping[str, str] = {
    "uploads.max_file_count": "uploads.max_files",
    "uploads.max_single_file_size": "uploads.max_file_size",
    "sandbox.bash_command_timeout": "sandbox.timeout_seconds",
    "sandbox.idle_timeout": "sandbox.idle_seconds",
    "sandbox.provisioner_url": "sandbox.provisioner.url",
    "sandbox.provisioner_api_key": "sandbox.provisioner.api_key",
    "tool_output.tool_overrides": "tool_output.overrides",
    "llm_call.retry_max_attempts": "runs.max_model_attempts",
    "max_recursion_limit": "runs.max_recursion_limit",
    "auth.local.allow_registration": "auth.registration",
    "channels.platforms.discord.allowed_channels": "channels.platforms.discord.allowed_chats",
    "channels.platforms.discord.mention_only": "channels.platforms.discord.require_mention",
    **{f"memory.backend_config.{key}": f"memory.{key}" for key in ("debounce_seconds", "max_facts", "model_name")},
    "memory.backend_config.fact_confidence_threshold": "memory.fact_confidence_threshold",
    "memory.backend_config.max_injection_tokens": "memory.max_injection_tokens",
}
"""DeerFlow's keys that are ours by another name."""
_PROVIDERS = {
    "LocalSandboxProvider": "host", "Host": "host", "Bubblewrap": "bubblewrap", "AioSandboxProvider": "docker",
}  # fmt: skip
"""Classes of sandboxes. DeerFlow's all-in-one containers are ours of `docker`, or of the provisioner that is named."""
NEWEST = 34
"""The newest `config_version` of DeerFlow whose keys are known."""
FORM = 100
"""The `config_version` of files with the keys of today. DeerFlow's count from 1."""
_OIDC = {"allowed_email_domains": "allowed_domains"}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def known(path: str) -> bool:
    """Tells whether a key is one of DeerFlow's: itself, a section that it belongs to, or something in it."""
    keys = *WITHOUT_EFFECT, *_OFF_ONLY
    return any(f"{path}.".startswith(f"{key}.") or key.startswith(f"{path}.") for key in keys)


def remark_of(path: str) -> str | None:
    """Returns why a key in a section that people name has no effect; None for other keys."""
    return next((remark for pattern, remark in BY_NAME.items() if fnmatchcase(path, pattern)), None)


def without_effect(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys that are set and that nothing reads, each with a remark. What is empty or off is not set. Of a section
    whose other keys are translated, each key is named.
    """
    named: set[str] = set()
    for path, remark in sorted(WITHOUT_EFFECT.items()):
        value = _value(raw, path)
        if path.partition(".")[0] in named or not _is_set(value):
            continue
        named.add(path)
        if isinstance(value, Mapping) and any(key.startswith(f"{path}.") for key in RENAMED):
            yield from ((f"{path}.{key}", remark) for key in value)
        else:
            yield path, remark


def remark_on_version(raw: Mapping[str, Any], outdated: bool) -> Iterator[str]:
    """Yields what `config_version` says of a file. `outdated`: it has keys that are called otherwise, or do nothing."""
    text = str(raw.get("config_version"))
    version = int(text) if text.isdecimal() and len(text) < 10 else FORM
    if version > FORM:
        yield f"config_version: {version} is of a newer Sika: this one knows {FORM}, and names other keys as unknown"
    elif NEWEST < version < FORM:
        yield f"config_version: keys of DeerFlow are known up to version {NEWEST}; others are named as unknown"
    elif version < FORM and outdated:
        yield f"config_version: {version} is a form of DeerFlow's; `sika config upgrade` writes the keys of today"


def complete(raw: dict[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Brings the platforms together, and applies DeerFlow's variables. Returns what our keys are called in the file."""
    renamed = dict(_channels(raw))
    _variables(raw, environ)
    return renamed


def obsolete(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the keys that are there and that nothing reads, each with a remark."""
    for path, remark in (*WITHOUT_EFFECT.items(), *((section, ABSENT) for section in _OFF_ONLY)):
        section, _, key = path.rpartition(".")
        inside = _value(raw, section) if section else raw
        if isinstance(inside, Mapping) and key in inside:
            yield path, remark


def modernise(raw: dict[str, Any]) -> dict[str, str]:
    """Gives the keys of a file the names and forms of today. Returns what they were called, by what they are called.

    Raises `Invalid` for what would not be in force and must not be silently so.
    """
    renamed = {}
    for old, new in RENAMED.items():
        if (value := _pop(raw, old)) is not None and _value(raw, new) is None:
            _put(raw, new, value)
            renamed[new] = old
    if isinstance(level := raw.get("log_level"), str) and not level.startswith("$"):
        raw["log_level"] = level.lower()
    summarization = raw.get("summarization")
    if isinstance(summarization, dict) and isinstance(summarization.get("trigger"), dict):
        summarization["trigger"] = [summarization["trigger"]]
    models = raw.get("models")
    for model in models if isinstance(models, list) else ():
        if (price := _pop(model, "pricing.input_cache_hit_per_million")) is not None:
            model["pricing"].setdefault("cache_read_per_million", price)
        if str(model.get("use") if isinstance(model, dict) else "").startswith("deerflow.models.vllm_provider:"):
            _pop(model, "cumulative_stream_usage")  # counts that grow are always counted once
    _middlewares(raw)
    renamed |= dict(_sandbox(raw.get("sandbox")))
    _oidc(raw.get("auth"))
    for section in _OFF_ONLY:
        if isinstance(value := raw.get(section), Mapping) and value.get("enabled"):
            raise Invalid(f"{section}.enabled: {ABSENT}: nothing would be enforced; remove it or set it to false")
    return renamed


def _middlewares(raw: dict[str, Any]) -> None:
    theirs = _pop(raw, "extensions.middlewares")
    if isinstance(theirs, list) and isinstance(raw.get("middlewares") or [], list):
        raw["middlewares"] = [*(raw.get("middlewares") or []), *theirs]
    if isinstance(entries := raw.get("middlewares"), list):
        raw["middlewares"] = [{"use": entry} if isinstance(entry, str) else entry for entry in entries]


def _channels(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Brings the sections of platforms together; what is absent stays where it is."""
    absent = [path.partition(".")[2] for path in WITHOUT_EFFECT if path.startswith("channels.")]
    for section, own, into in (
        ("channels", ("processes", "session", *absent), "platforms"),
        ("channel_connections", ("enabled", "require_bound_identity", *absent), "providers"),
    ):
        try:
            for new, old in channels.gather(raw.get(section), own, into):
                yield f"{section}.{new}", f"{section}.{old}"
        except Invalid as error:
            raise Invalid(f"{section}.{error}") from None


def _sandbox(sandbox: Any) -> Iterator[tuple[str, str]]:
    use = _pop(sandbox, "use")
    if isinstance(use, str) and "provider" not in sandbox:
        provider = _PROVIDERS.get(use.rpartition(":")[2])
        if provider is None:
            raise Invalid(
                f"sandbox.use: {use}: {ABSENT}; instead of it, say provider: auto, bubblewrap, docker, aio, "
                "provisioner or host (DeerFlow's LocalSandboxProvider is host, its AioSandboxProvider docker)"
            )
        sandbox["provider"] = "provisioner" if provider == "docker" and _value(sandbox, "provisioner.url") else provider
        yield "sandbox.provider", "sandbox.use"
    image = _pop(sandbox, "image") if _value(sandbox, "provider") == "docker" else None
    if image is not None and _value(sandbox, "docker.image") is None:
        _put(sandbox, "docker.image", image)
        yield "sandbox.docker.image", "sandbox.image"


def _oidc(auth: Any) -> None:
    """Makes a list of DeerFlow's identity providers by name. Those that are off do not count."""
    if not isinstance(auth, dict) or not isinstance(oidc := auth.get("oidc"), dict):
        return
    providers = oidc.get("providers") or {}
    if not isinstance(providers, Mapping) or not all(isinstance(entry, Mapping) for entry in providers.values()):
        raise Invalid("auth.oidc.providers: expected providers by name: name: {issuer, client_id, client_secret}")
    del auth["oidc"]
    if oidc.get("enabled"):
        if not providers:
            raise Invalid("auth.oidc: enabled, but there are no providers: nobody could sign in by them")
        auth["oidc"] = [
            {"name": name, **{_OIDC.get(key, key): value for key, value in entry.items() if key != "enabled"}}
            for name, entry in providers.items()
            if entry.get("enabled", True)
        ]


def _variables(raw: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Applies the environment variables of DeerFlow's deployments; the file takes precedence."""
    docs, origins = environ.get("GATEWAY_ENABLE_DOCS", "").lower(), environ.get("GATEWAY_CORS_ORIGINS", "")
    if docs and docs not in _YES + _NO:
        raise Invalid(f"GATEWAY_ENABLE_DOCS: true or false is expected, got {docs!r}")
    proxies = _parts_of(environ.get("AUTH_TRUSTED_PROXIES", ""))
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy, strict=False)
        except ValueError:
            raise Invalid(f"AUTH_TRUSTED_PROXIES: an address or a network is expected, got {proxy!r}") from None
    for path, value in (
        ("http.docs", docs in _YES if docs else None),
        ("http.cors_origins", [origin.rstrip("/") for origin in _parts_of(origins) if origin != "*"]),
        ("http.trusted_proxies", proxies),
        ("skills.path", environ.get("DEER_FLOW_SKILLS_PATH")),
    ):
        if value not in (None, [], "") and _value(raw, path) is None:
            _put(raw, path, value)


def _parts_of(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_set(value: Any) -> bool:
    return bool(value) and not (isinstance(value, Mapping) and value.get("enabled") is False)


def _value(raw: Any, path: str) -> Any:
    for key in path.split("."):
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw


def remove(raw: dict[str, Any], path: str) -> None:
    """Removes a key, and the sections that are empty without it."""
    section, _, key = path.rpartition(".")
    inside = _value(raw, section) if section else raw
    inside[key] = 0  # also where it has no value
    _pop(raw, path)


def _pop(raw: Any, path: str) -> Any:
    """Takes a value out, and the sections that are empty without it."""
    key, _, rest = path.partition(".")
    if not isinstance(raw, dict) or key not in raw:
        return None
    if not rest:
        return raw.pop(key)
    value = _pop(raw[key], rest)
    if value is not None and raw[key] == {}:
        del raw[key]
    return value


def _put(raw: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        inner = raw.get(section) or {}
        raw[section] = raw = inner if isinstance(inner, dict) else {}
    raw[key] = value
