"""The configuration: defaults, references, secrets, mistakes and their places, hot reload."""

from __future__ import annotations

import os
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.config import load as config
from core.config.load import Config, ConfigSource, Secret, parse, restart_required, reveal
from core.config.reference import all_keys
from core.config.settings import Section
from core.errors import Invalid
from tests.support.nats import eventually


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory and no variable of the developer's."""
    monkeypatch.chdir(tmp_path)
    for name in ("SIKA_HOME", "DEER_FLOW_HOME", "SIKA_CONFIG", "DEER_FLOW_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)


def settings(text: str) -> Config:
    return msgspec.structs.replace(parse(text, environ={}), hash="")


def keys_of(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, Section):
        for name, hint in typing.get_type_hints(kind).items():
            if name not in ("extra", "hash", "warnings"):
                yield name
                yield from keys_of(hint)
    else:
        for argument in typing.get_args(kind):
            yield from keys_of(argument)


# --- defaults and the reference


def test_no_text_is_all_defaults() -> None:
    assert settings("") == Config()


def test_every_key_is_in_the_reference() -> None:
    in_place = {"platforms", "providers"}
    names = {key.path.rpartition(".")[2].removesuffix("[]") for key in all_keys()}
    assert set(keys_of(Config)) - in_place == names - {"*"}


# --- references and secrets


def test_references_are_resolved_also_to_numbers() -> None:
    found = parse("http: {port: $PORT}\nnats: {token: $T}", environ={"PORT": "99", "T": "t"})
    assert (found.http.port, found.nats.token) == (99, Secret("t"))


def test_braces_and_plain_dollars() -> None:
    found = parse("summarization: {summary_prompt: $$5}\nskills: {path: '${P}'}", environ={"P": "/p"})
    assert (found.summarization.summary_prompt, found.skills.path) == ("$5", "/p")


def test_missing_variable_is_named_with_its_place() -> None:
    with pytest.raises(Invalid, match=r"^config\.yaml: models\[0\]\.api_key: .* NO_SUCH_KEY is not set \(line 1\)$"):
        parse("models: [{name: a, model: b, api_key: $NO_SUCH_KEY}]", environ={})


def test_missing_variable_is_empty_for_sandboxes_and_acp_agents() -> None:
    found = parse(
        "sandbox: {environment: {A: $NOPE, B: 1}}\nacp_agents: {x: {command: x, env: {A: $NOPE}}}", environ={}
    )
    assert reveal(found.sandbox.environment) == {"A": "", "B": "1"}
    assert reveal(found.acp_agents["x"].env) == {"A": ""}


def test_secrets_do_not_print_and_can_be_revealed() -> None:
    found = parse(
        """
        nats: {token: hush1, password: hush2}
        models: [{name: a, model: b, api_key: hush3, max_tokens: 5, default_headers: {X-Auth-Token: hush4}}]
        tools: [{name: t, use: "m:f", api_key: hush5}]
        plugins: {slack: {bot_token: hush6, app: {signing_secret: hush7}}}
        database: {postgres_url: hush8}
        sandbox: {environment: {ANY: hush9}}
        unknown: {client_secrets: [hush10]}
        """
    )
    assert "hush" not in repr(found)
    assert "hush" not in str(found.models[0].extra)
    assert reveal(found.models[0].extra) == {
        "api_key": "hush3",
        "max_tokens": 5,
        "default_headers": {"X-Auth-Token": "hush4"},
    }
    assert reveal(found.extra) == {
        "plugins": {"slack": {"bot_token": "hush6", "app": {"signing_secret": "hush7"}}},
        "database": {"postgres_url": "hush8"},
        "unknown": {"client_secrets": ["hush10"]},
    }


def test_an_address_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(Invalid, match=r"^config\.yaml: nats: no credentials in the address") as caught:
        parse("nats: {url: 'nats://me:hush@host'}")
    assert "hush" not in str(caught.value)


def test_hash_follows_the_content_but_not_the_environment() -> None:
    one, two = (parse("nats: {token: $T}", environ={"T": value}) for value in "ab")
    assert one.hash == two.hash == parse("# said otherwise\nnats:\n  token: $T", environ={"T": "c"}).hash
    assert one.hash != parse("nats: {token: $U}", environ={"U": "a"}).hash


def test_dotenv_is_read_and_overrides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIKA_TEST_ONE", "environment")
    monkeypatch.setenv("SIKA_TEST_TWO", "")
    monkeypatch.delenv("SIKA_TEST_TWO")
    (tmp_path / ".env").write_text("SIKA_TEST_ONE=file\nexport SIKA_TEST_TWO='a $b'\n")
    (tmp_path / "config.yaml").write_text("plugins: {one: $SIKA_TEST_ONE, two: $SIKA_TEST_TWO}")
    try:
        assert config.load().extra["plugins"] == {"one": "environment", "two": "a $b"}
    finally:
        os.environ.pop("SIKA_TEST_TWO", None)


def test_dotenv_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIKA_TEST_KEY", "SIKA_TEST_OTHER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SIKA_TEST_REAL", "environment")
    (tmp_path / "config.yaml").write_text("http: {port: 1}")
    source = ConfigSource()
    (tmp_path / "config.yaml").write_text("plugins: {a: $SIKA_TEST_KEY, b: $SIKA_TEST_REAL}")
    missing = "config.yaml: plugins.a: the environment variable SIKA_TEST_KEY is not set (line 1)"
    assert str(source.problem) == missing
    (tmp_path / ".env").write_text("SIKA_TEST_KEY=one\nSIKA_TEST_REAL=file\nSIKA_TEST_OTHER=1\n")
    assert source.problem is None
    assert source.current().extra["plugins"] == {"a": "one", "b": "environment"}
    (tmp_path / ".env").write_text("SIKA_TEST_KEY=second\n")
    assert source.current().extra["plugins"] == {"a": "second", "b": "environment"}
    assert "SIKA_TEST_OTHER" not in os.environ
    (tmp_path / ".env").unlink()
    assert str(source.problem) == missing
    assert source.current().extra["plugins"] == {"a": "second", "b": "environment"}


# --- unknown keys


def test_unknown_keys_are_kept_where_they_stand() -> None:
    found = parse("zebra: {a: 1}\ntools: [{name: t, use: 'm:f', max_results: 3}]\nruns: {colour: red}")
    assert found.extra == {"zebra": {"a": 1}}
    assert found.tools[0].extra == {"max_results": 3}
    assert found.runs.extra == {"colour": "red"}
    assert found.warnings == ("zebra: unknown key (line 1)", "runs.colour: unknown key (line 3)")


def test_near_misses_are_advised() -> None:
    found = parse("http: {prot: 1}\nsandbx: {}\nsandbox: {mounts: [{host_path: a, container_path: b, readonly: true}]}")
    assert set(found.warnings) == {
        "http.prot: unknown key, did you mean port? (line 1)",
        "sandbx: unknown key, did you mean sandbox? (line 2)",
        "sandbox.mounts[0].readonly: unknown key, did you mean read_only? (line 3)",
    }


def test_a_key_that_stands_there_again_is_named() -> None:
    found = parse(
        "x: &x {a: 1}\ny: &y {b: 2}\nauth:\n  enabled: true\nz: {<<: *x, <<: *y, a: 3}\nauth:\n  enabled: false\n"
        "models:\n- {name: a, model: b, model: c}\n- {name: d, model: e}"
    )
    assert (found.auth.enabled, found.models[0].model) == (False, "c")
    assert {warning for warning in found.warnings if "already" in warning} == {
        "auth: stands in line 3 already; only the last one counts (line 6)",
        "models[0].model: stands in line 9 already; only the last one counts (line 9)",
    }


def test_what_contains_itself_is_refused() -> None:
    with pytest.raises(Invalid, match=r"config.yaml: something contains itself"):
        parse("a: &a [*a]")


def test_arguments_of_models_get_no_advice() -> None:
    assert parse("models: [{name: a, model: b, modell: c}]").warnings == ()


# --- mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: {lease_seconds: soon}", "config.yaml: runs.lease_seconds: expected int, got str"),
        ("runs: {lease_seconds: 1}", "config.yaml: runs.lease_seconds: expected int >= 2"),
        ("runs: {lease_seconds: 61}", "config.yaml: runs.lease_seconds: expected int <= 60"),
        ("http: 5", "config.yaml: http: expected object, got int"),
        ("models: [{name: a}]", "config.yaml: models[0]: missing required field model"),
        (
            "models:\n  - name: a\n    modell: b",
            "config.yaml: models[0].modell: unknown key, did you mean model? It is missing (line 3)",
        ),
        (
            "approvals:\n  - {tool: bash}\n  - {tol: ls}",
            "config.yaml: approvals[1].tol: unknown key, did you mean tool? It is missing (line 3)",
        ),
        ("nats: {token: [1]}", "config.yaml: nats.token: expected str, got list"),
        ("loop_detection: {hard_limit: 1}", "config.yaml: loop_detection: a hard limit must not be below its warning"),
        ("hello", "config.yaml: expected sections (key: value) at the top level"),
        ("http:\n  port: [1\nnats:", "config.yaml:3:5: "),
    ],
)
def test_mistakes_are_placed(text: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


def test_our_own_fields_cannot_be_set_from_a_file() -> None:
    found = parse("hash: mine\nwarnings: [none]\nextra: {a: 1}")
    assert found.hash != "mine"
    assert found.extra == {"hash": "mine", "warnings": ["none"], "extra": {"a": 1}}


# --- DeerFlow's spellings


def test_a_deerflow_file_is_accepted() -> None:
    found = parse(
        """
        config_version: 9
        log_level: INFO
        models:
          - {name: m, use: "langchain_openai:ChatOpenAI", model: x, request_timeout: 600.0, supports_thinking: true,
             when_thinking_enabled: {extra_body: {thinking: {type: enabled}}}}
        tool_groups: [{name: web}]
        tools: [{name: web_search, group: web, use: "deerflow.community.tavily:tool", max_results: 5}]
        uploads: {max_file_count: 3, max_single_file_size: 9, pdf_converter: auto}
        sandbox: {use: "deerflow.sandbox.local:LocalSandboxProvider", mounts:}
        summarization: {enabled: true, trigger: {type: tokens, value: 15564}, keep: {type: messages, value: 10},
                        trim_tokens_to_summarize: null}
        skills: {container_path: /mnt/skills}
        database: {backend: sqlite, sqlite_dir: .deer-flow/data}
        checkpointer:
        channels:
        tool_output: {max: 1}
        """
    )
    assert found.warnings == (
        "config_version: 9 is a form of DeerFlow's; `sika config upgrade` writes the keys of today",
        "database: has no effect: the log keeps everything",
        "uploads.pdf_converter: has no effect: the first converter that is installed is used",
        "tool_output.max: unknown key (line 17)",
    )
    assert found.sandbox.provider == "host"
    assert (found.uploads.max_files, found.uploads.max_file_size) == (3, 9)
    assert [(size.type, size.value) for size in found.summarization.trigger] == [("tokens", 15564)]
    assert found.summarization.trim_tokens_to_summarize is None
    assert found.models[0].extra == {"request_timeout": 600.0}


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("sandbox: {use: 'deerflow.sandbox.local:LocalSandboxProvider'}", "host"),
        ("sandbox: {use: 'x:LocalSandboxProvider', provider: bubblewrap}", "bubblewrap"),
        ("", "auto"),
    ],
)
def test_sandbox_provider(text: str, provider: str) -> None:
    assert parse(text).sandbox.provider == provider


# --- which file


def test_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.yaml", "alias.yaml", "variable.yaml", "argument.yaml"):
        (tmp_path / name).write_text(f"plugins: {{from: {name}}}")
    assert config.load().extra["plugins"] == {"from": "config.yaml"}
    monkeypatch.setenv("DEER_FLOW_CONFIG_PATH", "alias.yaml")
    assert config.load().extra["plugins"] == {"from": "alias.yaml"}
    monkeypatch.setenv("SIKA_CONFIG", str(tmp_path / "variable.yaml"))
    assert config.load().extra["plugins"] == {"from": "variable.yaml"}
    assert config.load("argument.yaml").extra["plugins"] == {"from": "argument.yaml"}


def test_no_file_is_all_defaults_but_a_named_one_must_exist() -> None:
    assert msgspec.structs.replace(config.load(), hash="") == Config()
    with pytest.raises(Invalid, match=r"gone\.yaml: no such configuration file"):
        config.load("gone.yaml")


def test_a_directory_or_bytes_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="Is a directory"):
        config.load(tmp_path)
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Invalid, match="utf-8"):
        config.load()


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.home() == tmp_path / ".sika"
    monkeypatch.setenv("DEER_FLOW_HOME", "deer")
    assert config.home() == tmp_path / "deer"
    monkeypatch.setenv("SIKA_HOME", "sika")
    assert config.home() == tmp_path / "sika"
    assert config.home("here") == tmp_path / "here"


# --- hot reload


def test_reload_by_content(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("http: {port: 1}")
    source = ConfigSource()
    first = source.current()
    os.utime(file, (1, 1))
    assert source.current() is first
    file.write_text("http: {port: 2}")
    assert source.current().http.port == 2
    assert source.problem is None


def test_a_broken_file_changes_nothing_until_it_is_mended(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("http: {port: 1}")
    source = ConfigSource()
    good = source.current()
    file.write_text("http: {port: many}")
    assert source.current() is good
    assert source.problem == "config.yaml: http.port: expected int, got str (line 1)"
    os.utime(file, (1, 1))
    assert source.current() is good
    assert source.problem is not None
    file.write_text("http: {port: 1}")
    assert source.current() == good
    assert source.problem is None


def test_a_change_that_a_check_refuses_changes_nothing(tmp_path: Path) -> None:
    def check(changed: Config) -> None:
        if changed.http.port == 2:
            raise Invalid("http.port: not this one")

    file = tmp_path / "config.yaml"
    file.write_text("http: {port: 1}")
    source = ConfigSource()
    source.require(check)
    file.write_text("http: {port: 2}")
    assert (source.problem, source.current().http.port) == ("http.port: not this one", 1)
    file.write_text("http: {port: 3}")
    assert (source.problem, source.current().http.port) == (None, 3)


async def test_a_change_is_checked_in_a_thread(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    def check(changed: Config) -> None:
        begun.set()
        if not go.wait(60):
            raise Invalid("the event loop waits for this")
        if changed.http.port == 3:
            raise ZeroDivisionError("a fault of the check")

    async def has_begun() -> bool:
        return begun.is_set()

    async def port(number: int) -> bool:
        return source.current().http.port == number

    async def problem() -> bool:
        return source.problem is not None

    file = tmp_path / "config.yaml"
    file.write_text("http: {port: 1}")
    source = ConfigSource()
    source.require(check)
    async with source.watched():
        file.write_text("http: {port: 2}")
        await eventually(has_begun)
        assert (source.problem, source.current().http.port) == (None, 1)
        go.set()
        await eventually(lambda: port(2))
        file.write_text("http: {port: 3}")
        await eventually(problem)
        assert source.problem == "it could not be checked: ZeroDivisionError: a fault of the check"
        (tmp_path / ".env").write_text("SIKA_TEST_KEY=4")
        file.write_text("http: {port: $SIKA_TEST_KEY}")
        await eventually(lambda: port(4))
    file.write_text("http: {port: 5}")
    assert source.current().http.port == 5


def test_a_vanished_file_is_a_problem_not_a_reset(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("http: {port: 1}")
    source = ConfigSource()
    file.unlink()
    assert source.current().http.port == 1
    assert source.problem == "config.yaml: No such file or directory"
    file.write_text("http: {port: 1}")
    assert source.current().http.port == 1
    assert source.problem is None


def test_a_file_that_appears_is_read(tmp_path: Path) -> None:
    source = ConfigSource()
    assert source.current().http.port == 2026
    (tmp_path / "config.yaml").write_text("http: {port: 3}")
    assert source.current().http.port == 3


def test_a_broken_file_at_the_start_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("http: 1")
    with pytest.raises(Invalid):
        ConfigSource()


def test_restart_required() -> None:
    old = parse("")
    assert restart_required(old, parse("suggestions: {enabled: false}\nhttp: {cors_origins: [a]}")) == []
    changed = parse(
        "http: {port: 1}\nnats: {prefix: p}\nruns: {max_concurrent: 1}\nsandbox: {provider: host}\nlog_level: debug\n"
        "actors: ['a:B']"
    )
    assert set(restart_required(old, changed)) == {
        *("http.port", "nats", "runs.max_concurrent", "sandbox", "log_level", "actors"),
    }
