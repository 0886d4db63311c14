"""The user's memory through a client: its document, its facts, import and export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from channels.client import Invalid, NotFound, SikaClient


@pytest.fixture(name="client")
def forgetful(client: SikaClient) -> Iterator[SikaClient]:
    yield client
    client.clear_memory()


def facts(document: dict[str, Any]) -> list[tuple[str, str, float]]:
    return [(fact["content"], fact["category"], fact["confidence"]) for fact in document["facts"]]


def test_facts_are_added_changed_and_forgotten(client: SikaClient) -> None:
    client.create_memory_fact("Keeps otters")
    document = client.create_memory_fact("Likes tea", "preference", 0.9)
    assert sorted(facts(document)) == [("Keeps otters", "context", 0.5), ("Likes tea", "preference", 0.9)]
    tea = next(fact["id"] for fact in document["facts"] if fact["content"] == "Likes tea")
    changed = client.update_memory_fact(tea, "Likes green tea", confidence=0.8)
    assert ("Likes green tea", "preference", 0.8) in facts(changed)
    assert client.get_memory_source(tea)["source"] == "manual"
    assert facts(client.delete_memory_fact(tea)) == [("Keeps otters", "context", 0.5)]
    for missing in (client.delete_memory_fact, client.update_memory_fact, client.get_memory_source):
        with pytest.raises(NotFound):
            missing(tea)
    with pytest.raises(Invalid):
        client.create_memory_fact("")


def test_a_memory_goes_out_and_in(client: SikaClient) -> None:
    client.create_memory_fact("Keeps otters")
    exported = client.export_memory()
    assert facts(exported) == facts(client.get_memory()) == facts(client.reload_memory())
    assert facts(client.clear_memory()) == []
    assert facts(client.import_memory(exported)) == facts(exported)
    status = client.get_memory_status()
    assert status["config"] == client.get_memory_config()
    assert facts(status["data"]) == facts(exported)


def test_a_memory_is_let_into_groups(client: SikaClient) -> None:
    assert client.get_memory_settings() == {"in_groups": False}
    assert client.set_memory_settings(in_groups=True) == client.get_memory_settings() == {"in_groups": True}


def test_an_agent_has_a_memory_of_its_own(client: SikaClient) -> None:
    client.create_memory_fact("Keeps bees", agent="Nurse")
    assert facts(client.get_memory()) == []
    assert facts(client.get_memory("nurse")) == [("Keeps bees", "context", 0.5)]
    assert facts(client.clear_memory("nurse")) == []
