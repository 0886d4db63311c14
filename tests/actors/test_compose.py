"""What a configuration names is loaded at the start, and what cannot be loaded is named."""

from __future__ import annotations

import pytest

from actors import compose
from core.actor import Actor
from core.config import parse
from core.errors import Invalid
from core.events import RunCompleted

HERE = "tests.actors.test_compose"


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
        compose.actor_classes([f"{HERE}:{name}" for name in named])


def test_one_actor_named_twice_is_one() -> None:
    assert compose.actor_classes([f"{HERE}:One", f"{HERE}:One"])["test_compose"] is One
