"""DeerFlow's configuration: what is translated, what is named because it has no effect, what is refused."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import yaml

from adapters.models import factory
from core.config import deerflow
from core.config.load import ConfigSource, find, parse
from core.config.settings import Config, Section
from core.errors import Invalid

ROOT = Path(__file__).parents[2]
ABSENT = ": not in this version"
EVERYTHING = """
acp_agents: {codex: {command: npx}}
agent_storage: {backend: file}
auth: {oidc: {enabled: false, providers: {}}, local: {allow_registration: false}}
authorization: {enabled: false}
channels: {slack: {enabled: false}, langgraph_url: "http://localhost:8001/api", wecom: {enabled: true}}
database: {backend: sqlite, checkpoint_cache: {max_entries: 1}}
extensions: {middlewares: ["a:B"]}
llm_call: {max_concurrent_calls: 4, retry_max_attempts: 5}
logging: {enhance: {enabled: false}}
loop_detection: {max_tracked_threads: 7}
max_recursion_limit: 5
mcp_tasks: {enabled: false}
memory: {enabled: true, backend_config: {storage_path: ""}}
models: [{name: m, model: x, pricing: {input_per_million: 1, input_cache_hit_per_million: 0.5}}]
plugins: {a: 1}
run_ownership: {lease_seconds: 30}
sandbox: {use: "deerflow.sandbox.local:LocalSandboxProvider", bash_command_timeout: 7, image: x}
scheduler: {enabled: true}
skill_scan: {enabled: true}
skills: {container_path: /mnt/skills, deferred_discovery: true}
title: {enabled: true, model_name: null, max_words: 6, prompt_template: null}
token_budget: {max_input_tokens: null, max_output_tokens: 9}
tool_output: {tool_overrides: {bash: 9}}
tool_progress: {enabled: true}
tool_search: {enabled: false, auto_promote_top_k: 3}
"""
NAMED = (
    "agent_storage", "channels.langgraph_url", "channels.wecom", "database", "llm_call.max_concurrent_calls",
    "logging", "loop_detection.max_tracked_threads", "memory.backend_config.storage_path", "plugins", "run_ownership",
    "sandbox.image", "scheduler", "skills.deferred_discovery", "token_budget.max_output_tokens", "tool_progress",
    "tool_search.auto_promote_top_k",
)  # fmt: skip


def test_each_key_without_effect_is_named_once() -> None:
    warnings = parse(EVERYTHING).warnings
    assert tuple(warning.partition(": ")[0] for warning in warnings) == NAMED
    assert "plugins: not in this version" in warnings
    assert not any(warning.startswith("title") for warning in warnings)


def test_what_is_called_otherwise_is_translated() -> None:
    found = parse(EVERYTHING)
    assert (found.auth.registration, found.auth.oidc) == (False, ())
    assert (found.runs.max_recursion_limit, found.runs.max_model_attempts) == (5, 5)
    assert (found.sandbox.provider, found.sandbox.timeout_seconds) == ("host", 7)
    assert [entry.use for entry in found.middlewares] == ["a:B"]
    assert found.models[0].pricing is not None
    assert found.models[0].pricing.cache_read_per_million == 0.5
    assert found.tool_output.overrides == {"bash": 9}


def test_a_file_says_nothing_about_what_it_does_not_set() -> None:
    assert parse("memory: {enabled: false}\ntitle:\nchannels: {}\ntool_search: {enabled: true}").warnings == ()
    assert parse("").warnings == ()


def test_what_has_no_effect_is_no_setting() -> None:
    settings = set(paths(Config))
    assert not settings & deerflow.WITHOUT_EFFECT.keys()


def test_every_setting_is_read() -> None:
    code = "\n".join(
        file.read_text()
        for folder in ("core", "actors", "adapters", "channels")
        for file in (ROOT / folder).rglob("*.py")
        if file.name not in ("settings.py", "deerflow.py")
    )
    names = {path.rpartition(".")[2] for path in paths(Config)} - {"config_version", "use_responses_api"}
    assert {name for name in names if not re.search(rf"[.\"]{name}\b", code)} == set()


def paths(kind: Any, prefix: str = "") -> Iterator[str]:
    """The keys of a section and of those in it, in full; keys of lists and tables without an index."""
    if isinstance(kind, type) and issubclass(kind, Section):
        for name, hint in get_type_hints(kind).items():
            if name not in ("extra", "hash", "warnings"):
                yield f"{prefix}{name}"
                yield from paths(hint, f"{prefix}{name}.")
    for argument in get_args(kind):
        yield from paths(argument, prefix)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("authorization: {enabled: true}", "authorization.enabled: not in this version: nothing would be enforced"),
        ("guardrails: {enabled: true}", "guardrails: enabled, but no provider decides: name one"),
        ("sandbox: {use: 'my.pkg:Provider'}", "sandbox.use: my.pkg:Provider: not in this version; instead of it, say"),
        (
            "sandbox:\n  use: deerflow.community.e2b_sandbox:E2BSandboxProvider",
            "sandbox.use: deerflow.community.e2b_sandbox:E2BSandboxProvider: not in this version; instead of it, "
            "say provider: auto, bubblewrap, docker, aio, provisioner or host (DeerFlow's LocalSandboxProvider is "
            "host, its AioSandboxProvider docker) (line 2)",
        ),
        ("auth: {oidc: {enabled: true, providers: {}}}", "auth.oidc: enabled, but there are no providers"),
        ("auth: {oidc: {enabled: true, providers: [a]}}", "auth.oidc.providers: expected providers by name"),
        (
            "auth: {oidc: {enabled: true, providers: {a: {issuer: 'https://a.example'}}}}",
            "auth.oidc[0]: missing required field client_id",
        ),
        ("max_recursion_limit: many", "max_recursion_limit: expected int, got str (line 1)"),
        (
            "model_roles: {leed: []}",
            "model_roles.leed: no such role; there are: lead, summarization, title, goal, suggestions",
        ),
        (
            "models: [{name: a, model: a}]\nmodel_roles: {lead: [a, nope]}",
            "model_roles.lead[1]: nope is none of the models; there are: a (line 2)",
        ),
        ("summarization: {model_name: nope}", "summarization.model_name: nope is none of the models; there are: none"),
        (
            "models:\n  - {name: a, model: a}\n  - {name: a, model: b}",
            "models[1].name: a is already models[0] (line 3)",
        ),
        ("tools: [{name: a, use: 'a:b'}, {name: a, use: 'a:c'}]", "tools[1].name: a is already tools[0]"),
        ("tool_groups: [{name: a}, {name: b}, {name: a}]", "tool_groups[2].name: a is already tool_groups[0]"),
        ("approvals: [{tool: a}, {tool: a, text: b}]", "approvals[1].tool: "),
    ],
)
def test_what_would_silently_not_be_in_force_is_refused(text: str, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(text)
    assert str(caught.value).startswith(f"config.yaml: {problem}")


def test_an_explicit_provider_counts_more_than_another_product_s() -> None:
    assert parse("sandbox: {use: 'x:AioSandboxProvider', provider: bubblewrap}").sandbox.provider == "bubblewrap"


AIO = "deerflow.community.aio_sandbox:AioSandboxProvider"
OIDC = "{issuer: 'https://a.example', client_id: c, client_secret: s-1, allowed_email_domains: [a.example]}"
MACHINES = "has no effect: the server names its machines itself, and reaches them by the engine"


@pytest.mark.parametrize(
    ("text", "settings", "warnings"),
    [
        (f"sandbox: {{use: '{AIO}'}}", {"sandbox.provider": "docker", "sandbox.docker.image": "sika-sandbox"}, []),
        (
            f"sandbox: {{use: '{AIO}', image: all-in-one, container_prefix: p, replicas: 5, idle_timeout: 9}}",
            {
                "sandbox.provider": "docker",
                "sandbox.docker.image": "all-in-one",
                "sandbox.replicas": 5,
                "sandbox.idle_seconds": 9,
            },
            [f"sandbox.container_prefix: {MACHINES}"],
        ),
        (
            f"sandbox: {{use: '{AIO}', provisioner_url: 'http://p:8002', provisioner_api_key: k-12345678}}",
            {"sandbox.provider": "provisioner", "sandbox.provisioner.url": "http://p:8002"},
            [],
        ),
        ("sandbox: {provider: docker, image: i}", {"sandbox.docker.image": "i"}, []),
        ("sandbox: {provider: docker, image: i, docker: {image: j}}", {"sandbox.docker.image": "j"}, []),
        (
            "sandbox: {image: i, overflow_policy: wait, acquire_timeout: 3}",
            {"sandbox.provider": "auto"},
            ["sandbox.acquire_timeout: has no effect; see sandbox.replicas and sandbox.idle_seconds"],
        ),
        (
            "memory: {backend_config: {debounce_seconds: 7, max_facts: 50, fact_confidence_threshold: 0.9, "
            "max_injection_tokens: 500}}",
            {
                "memory.debounce_seconds": 7,
                "memory.max_facts": 50,
                "memory.fact_confidence_threshold": 0.9,
                "memory.max_injection_tokens": 500,
            },
            [],
        ),
        (
            "memory: {max_facts: 60, backend_config: {max_facts: 50, storage_path: x}}",
            {"memory.max_facts": 60},
            ["memory.backend_config.storage_path: not in this version"],
        ),
        (f"auth: {{oidc: {{enabled: false, providers: {{a: {OIDC}}}}}}}", {"auth.oidc": ()}, []),
        ("config_version: 9", {"config_version": 9}, []),
        (
            "config_version: 99",
            {"config_version": 99},
            ["config_version: keys of DeerFlow are known up to version 34; others are named as unknown"],
        ),
        (
            "channel_connections: {enabled: true, wecom: {enabled: true}, wechat: {enabled: true}}",
            {"channel_connections.enabled": True},
            ["channel_connections.wechat: not in this version"],
        ),
        (
            "subagents: {enabled: true, token_budget: {hard_stop_threshold: 1.0}}",
            {},
            ["subagents.enabled: has no effect; see subagent_enabled of a run"],
        ),
        (
            "subagents: {agents: {bash: {token_budget: {max_tokens: 5}}}}",
            {},
            [
                "subagents.agents.bash.token_budget: has no effect; see subagents.token_budget, which is for all "
                "types (line 1)"
            ],
        ),
        (
            "mcp: {servers: {a.b: {command: x, tool_name_prefix: false, routing: {}, tools: {}, zebra: 1}}}",
            {},
            [
                "mcp.servers.a.b.tool_name_prefix: has no effect: the names of tools always begin with the server's "
                "(line 1)",
                "mcp.servers.a.b.routing: has no effect; see mcp.direct_tools: with many tools the model searches for "
                "them (line 1)",
                "mcp.servers.a.b.tools: not in this version (line 1)",
                "mcp.servers.a.b.zebra: unknown key (line 1)",
            ],
        ),
        (
            "skill_evolution: {security_fail_closed: true}",
            {},
            ["skill_evolution.security_fail_closed: has no effect: a skill without a verdict is always refused"],
        ),
        (
            "models: [{name: q, model: q, use: 'deerflow.models.vllm_provider:VllmChatModel', api_key: k, "
            "base_url: 'http://v/v1', cumulative_stream_usage: true}]",
            {},
            [],
        ),
    ],
)
def test_settings_of_deerflow_are_in_force_or_named(text: str, settings: dict[str, Any], warnings: list[str]) -> None:
    config = parse(text)
    assert {path: operator.attrgetter(path)(config) for path in settings} == settings
    assert list(config.warnings[: len(warnings) or None]) == warnings
    for model in config.models:
        entry = {**msgspec.structs.asdict(model), **model.extra}
        assert factory.build({key: value for key, value in entry.items() if key != "extra"})


FILES = ("deerflow_keys.yaml", "deerflow_commented_keys.yaml")
KEYS: dict[str, Any] = {
    key: row for file in FILES for key, row in yaml.safe_load(Path(__file__).with_name(file).read_text()).items()
}


@pytest.mark.parametrize("path", KEYS)
def test_every_key_of_deerflow_s_examples_is_used_translated_or_named(path: str) -> None:
    value, outcome = KEYS[path]
    raw = functools.reduce(lambda inner, key: {key: inner}, reversed(path.split(".")), value)
    models = [{"name": value, "model": "m"}] if path.endswith("model_name") else []
    text = yaml.safe_dump({**raw, "models": models} if models else raw)
    if outcome == "refused":
        with pytest.raises(Invalid, match=re.escape(path)):
            parse(text)
        return
    config = parse(text)
    before = dict(values(parse("")))
    changed = {place for place, setting in values(config) if before.get(place) != setting}
    named = [warning for warning in config.warnings if f"{path}.".startswith(f"{warning.partition(': ')[0]}.")]
    assert bool(named) == (outcome == "named"), config.warnings
    setting = path if outcome == "used" else outcome
    assert outcome == "named" or any(f"{place}.".startswith(f"{setting}.") for place in changed), changed


def values(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the values of a configuration by their places."""
    if isinstance(part, msgspec.Struct):
        part = {
            name: getattr(part, name) for name in part.__struct_fields__ if name not in ("extra", "hash", "warnings")
        }
    if isinstance(part, dict) and part:
        for key, inner in part.items():
            yield from values(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(part)


def test_identity_providers_by_name_are_a_list() -> None:
    [provider] = parse(
        f"auth: {{oidc: {{enabled: true, providers: {{kc: {OIDC}, off: {{enabled: false}}}}}}}}"
    ).auth.oidc
    assert (provider.name, provider.issuer, provider.client_id) == ("kc", "https://a.example", "c")
    assert provider.client_secret is not None
    assert (provider.client_secret.reveal(), provider.allowed_domains) == ("s-1", ("a.example",))


@pytest.mark.parametrize(("folder", "found"), [("backend", True), ("other", False)])
def test_the_configuration_above_deerflow_s_backend(
    folder: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / "config.yaml").write_text("title: {enabled: false}")
    monkeypatch.chdir(tmp_path / folder)
    for name in ("SIKA_CONFIG", "DEER_FLOW_CONFIG_PATH", "DEER_FLOW_PROJECT_ROOT"):
        monkeypatch.delenv(name, raising=False)
    assert (find() is not None) == found
    assert ConfigSource().current().title.enabled != found
    (tmp_path / folder / "config.yaml").write_text("")
    assert ConfigSource().current().title.enabled


# --- the environment


def test_variables_of_deerflow_s_deployments() -> None:
    environ = {
        "GATEWAY_ENABLE_DOCS": "False",
        "GATEWAY_CORS_ORIGINS": "https://a.example, *, http://b:1/",
        "AUTH_TRUSTED_PROXIES": "10.0.0.0/8,::1",
        "DEER_FLOW_SKILLS_PATH": "/srv/skills",
    }
    found = parse("", environ=environ)
    assert found.http.docs is False
    assert found.http.cors_origins == ("https://a.example", "http://b:1")
    assert found.http.trusted_proxies == ("10.0.0.0/8", "::1")
    assert found.skills.path == "/srv/skills"
    assert parse("http: {docs: true, cors_origins: [http://c]}", environ=environ).http.cors_origins == ("http://c",)


@pytest.mark.parametrize(
    ("name", "value"), [("GATEWAY_ENABLE_DOCS", "perhaps"), ("AUTH_TRUSTED_PROXIES", "10.0.0.0/8,nginx")]
)
def test_a_variable_that_cannot_be_is_named(name: str, value: str) -> None:
    with pytest.raises(Invalid, match=f"{name}: .* expected, got '{value.rpartition(',')[2]}'"):
        parse("", environ={name: value})


def test_the_root_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIKA_CONFIG", "DEER_FLOW_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEER_FLOW_PROJECT_ROOT", str(tmp_path))
    (tmp_path / "config.yaml").write_text("http: {port: 9}")
    assert ConfigSource().current().http.port == 9


FILE = """{"mcpServers": {
    "git": {"command": "uvx", "args": ["mcp-server-git"], "env": {"TOKEN": "$GIT_TOKEN", "NONE": "$NOT_SET"}, "x": 1},
    "web": {"type": "streamable_http", "url": "http://localhost/mcp", "enabled": false, "description": null}
}, "mcpInterceptors": "mine:build", "middlewares": ["a:B"], "skills": {}, "zebra": 1}"""


@pytest.mark.parametrize("name", ["extensions_config.json", "mcp_config.json", "elsewhere.json"])
def test_the_file_of_extensions_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("GIT_TOKEN", "hush hush")
    if name == "elsewhere.json":
        monkeypatch.setenv("DEER_FLOW_EXTENSIONS_CONFIG_PATH", str(tmp_path / name))
    (tmp_path / "config.yaml").write_text(
        "{middlewares: ['c:D'], mcp: {servers: {own: {command: x}}, idle_seconds: 5}}"
    )
    (tmp_path / name).write_text(FILE)
    source = ConfigSource(tmp_path / "config.yaml")
    mcp = source.current().mcp
    assert sorted(mcp.servers) == ["git", "own", "web"]
    assert [entry.use for entry in source.current().middlewares] == ["c:D", "a:B"]
    assert source.current().warnings == (
        "extensions_config.json: zebra: unknown key",
        "mcp.servers.git.x: unknown key",
    )
    assert (mcp.servers["git"].env["TOKEN"].reveal(), mcp.servers["git"].env["NONE"].reveal()) == ("hush hush", "")
    assert mcp.servers["git"].extra == {"x": 1}
    assert (mcp.servers["web"].transport, mcp.servers["web"].enabled) == ("http", False)
    assert (mcp.interceptors, mcp.idle_seconds) == (("mine:build",), 5)
    (tmp_path / name).write_text("not json")
    assert source.current().mcp is mcp
    assert "extensions_config.json: Expecting value" in (source.problem or "")
    (tmp_path / name).write_text("{}")
    assert sorted(source.current().mcp.servers) == ["own"]


def test_settings_can_be_compared_after_a_change() -> None:
    assert msgspec.structs.replace(parse(""), hash="") == Config()
