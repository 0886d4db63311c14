"""What a configuration names is loaded at the start, and what cannot be loaded is named."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
import structlog.testing

from actors.wiring import compose, discovery, parts, sandboxes
from adapters.sandboxes.bubblewrap import Bubblewrap
from core.actor import Actor
from core.config.load import parse
from core.errors import Invalid, Unavailable
from core.events import RunCompleted
from core.ports.sandbox import ShellCommand
from tests.support.nats import eventually, own

HERE = "tests.actors.wiring.test_compose"


class Hooks(Actor[RunCompleted]):
    """A stranger's, called like one of ours."""

    name = "webhooks"


class One(Actor[RunCompleted]):
    """The names of these two are those of their module."""


class Two(Actor[RunCompleted]):
    pass


class Wiry(Actor[RunCompleted]):
    name = "wiry"

    def __init__(self, wires: object) -> None:
        self.wires = wires


BROKEN = f"""
http: {{host: 0.0.0.0}}
sandbox: {{provider: magic}}
tools:
  - {{name: ls, use: "adapters.tools.ls:ls"}}
  - {{name: x, use: "my_company.tools:thing"}}
  - {{name: y, use: "adapters.tools.ls:nothing"}}
actors: ["{HERE}:Nobody"]
guardrails: {{enabled: true, provider: {{use: "my_company.guard:Prov"}}}}
middlewares: [{{use: "nope:X"}}]
models:
  - {{name: good, model: m, api_key: k, base_url: "http://127.0.0.1:9/v1"}}
  - {{name: absent, model: m, use: "langchain_nowhere:ChatNowhere"}}
  - {{name: keyless, model: m, use: "langchain_core.language_models:FakeListChatModel"}}
tracing: {{langsmith: {{enabled: true}}}}
"""


def test_all_that_cannot_be_loaded_is_named_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANGSMITH_API_KEY", "LANGCHAIN_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    keys = [problem.partition(": ")[0] for problem in compose.problems(parse(BROKEN))]
    assert keys == [
        "http.host",
        "sandbox.provider",
        "tools[1].use",
        "tools[2].use",
        "actors[0]",
        "guardrails.provider.use",
        "middlewares[0].use",
        "models[absent].use",
        "models[keyless]",
        "tracing.langsmith",
    ]
    assert compose.problems(parse("")) == []


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        (["Hooks"], rf"^actors: actors\.webhooks:Webhooks and {HERE}:Hooks are both called 'webhooks'; set `name`"),
        (["One", "Two"], rf"^actors: {HERE}:One and {HERE}:Two are both called 'test_compose'"),
        (["Wiry"], r"^actor wiry: cannot be given wires; there is: "),
    ],
)
def test_an_actor_that_cannot_be_is_a_problem(named: list[str], problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        discovery.actor_classes([f"{HERE}:{name}" for name in named], parts.Parts.__annotations__)


def test_one_actor_named_twice_is_one() -> None:
    assert discovery.actor_classes([f"{HERE}:One", f"{HERE}:One"], parts.Parts.__annotations__)["test_compose"] is One


# --- a NATS of others that is not there yet


async def test_a_server_waits_for_its_nats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so; other commands do not wait."""
    monkeypatch.setattr("core.bus.connection.CONNECT_SECONDS", 0.2)
    monkeypatch.setattr("core.bus.connection.REPORT_SECONDS", 0.0)

    async def heal() -> None:
        await eventually(said)
        await nats.restart()

    async def said() -> bool:
        return any(line["event"] == "NATS is waited for" for line in logs)

    async with own(tmp_path / "nats") as nats:
        options = compose.Options(tmp_path / "home", tmp_path / "config.yaml", port=0)
        (tmp_path / "config.yaml").write_text(json.dumps({"nats": {"url": nats.url}}))
        await nats.kill()
        with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
            async with compose.attach(options):
                pass
        with structlog.testing.capture_logs() as logs, anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(heal)
                async with compose.serve(options) as url:
                    assert url.startswith("http://127.0.0.1:")


# ── the sandbox ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_auto_takes_the_strongest_sandbox_that_works_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Bubblewrap) -> str:
        return "no user namespaces"

    monkeypatch.setattr(sandboxes, "BY_STRENGTH", ("bubblewrap",))
    monkeypatch.setattr(Bubblewrap, "check", broken)
    with structlog.testing.capture_logs() as logs:
        provider = await sandboxes.provider_for(tmp_path, parse(""))
    assert provider.name == "host"
    [line] = logs
    assert (line["log_level"], line["provider"]) == ("warning", "host")
    assert "no user namespaces" in line["because"]["bubblewrap"]
    sandbox = await provider.acquire("ada", "t1")
    with pytest.raises(Invalid, match=r"bash: is off"):
        await sandbox.exec("c1", ShellCommand("true", 5), print)


async def test_a_named_sandbox_that_does_not_work_is_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Bubblewrap) -> str:
        return "no user namespaces"

    monkeypatch.setattr(Bubblewrap, "check", broken)
    with pytest.raises(Unavailable, match="bubblewrap does not work here: no user namespaces"):
        await sandboxes.provider_for(tmp_path, parse("sandbox: {provider: bubblewrap}"))
