"""All methods of DeerFlow's embedded client, in the process and by address: each answers as the gateway does."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.client import Invalid, SikaClient
from tests.channels.client.stage import Subject
from tests.support.skills import archive, document

NAME = "otter-notes"
FACT = "Keeps otters"


def test_every_method_answers_as_the_gateway(subject: Subject, thread_id: str, tmp_path: Path) -> None:
    client, get = subject.client, subject.get
    file, skill = tmp_path / "a.txt", tmp_path / f"{NAME}.skill"
    file.write_text("a")
    skill.write_bytes(archive({f"{NAME}/SKILL.md": document(NAME)}))
    before = client.get_mcp_config()

    assert [event.type for event in client.stream("hi", thread_id=thread_id)][-1] == "end"
    assert client.chat("hi", thread_id=thread_id) == "Hello there, nice to meet you."
    client.reset_agent()
    assert thread_id in [thread["thread_id"] for thread in client.list_threads()["thread_list"]]
    assert client.get_thread(thread_id)["checkpoints"]
    assert client.list_models() == get("/api/models")
    assert client.get_model("hello") == get("/api/models/hello")

    assert client.update_mcp_config({"t": {"type": "http", "url": "http://127.0.0.1:9/mcp", "enabled": False}})
    assert client.get_mcp_config() == get("/api/mcp/config")
    assert list(client.get_mcp_config()["mcp_servers"]) == ["t"]
    assert client.update_mcp_config(before["mcp_servers"]) == before

    installed = client.install_skill(skill)
    assert (installed["success"], installed["skill_name"]) == (True, NAME)
    assert client.get_skill(NAME) == get(f"/api/skills/{NAME}")
    assert client.update_skill(NAME, enabled=False) == get(f"/api/skills/{NAME}")
    assert client.list_skills() == get("/api/skills")
    names = [skill["name"] for skill in client.list_skills(enabled_only=True)["skills"]]
    assert names
    assert NAME not in names
    subject.raw.delete(f"/api/skills/custom/{NAME}").raise_for_status()
    assert client.get_skill(NAME) is None
    assert len(get("/api/skills")["skills"]) == len(client.list_skills()["skills"])

    [fact] = client.create_memory_fact(FACT)["facts"]
    assert client.get_memory() == client.reload_memory() == client.export_memory() == get("/api/memory")
    assert client.update_memory_fact(fact["id"], "Keeps two otters")["facts"][0]["content"] == "Keeps two otters"
    exported = client.export_memory()
    assert client.delete_memory_fact(fact["id"])["facts"] == []
    assert [fact["content"] for fact in client.import_memory(exported)["facts"]] == ["Keeps two otters"]
    assert client.clear_memory()["facts"] == []
    assert client.get_memory_config() == get("/api/memory/config")
    assert client.get_memory_status() == get("/api/memory/status")

    [sent] = client.upload_files(thread_id, [file])["files"]
    assert client.list_uploads(thread_id) == get(f"/api/threads/{thread_id}/uploads/list")
    assert client.get_artifact(thread_id, sent["virtual_path"]) == (b"a", "text/plain")
    assert client.delete_upload(thread_id, "a.txt")["success"]


def test_a_skill_that_cannot_be_installed_leaves_no_thread(client: SikaClient, tmp_path: Path) -> None:
    before = client.list_threads(limit=100)["thread_list"]
    (tmp_path / "bad.skill").write_bytes(b"no archive")
    with pytest.raises(Invalid, match="archive"):
        client.install_skill(tmp_path / "bad.skill")
    assert client.list_threads(limit=100)["thread_list"] == before
