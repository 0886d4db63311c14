"""Redaction: what is found, what stands for it, and that redacted events replay as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.debugging import rehearsal
from actors.wiring.compose import Options
from core.config.redaction import Redactor
from core.errors import Invalid
from core.events import (
    ApprovalRequested,
    Event,
    ModelCompleted,
    Origin,
    RunRequested,
    ThreadCreated,
    ToolCompleted,
)
from core.replay.exports.archive import Archive
from core.replay.exports.archives import Archives
from core.replay.exports.exporting import Scope, lines, write
from core.replay.exports.format import FORMAT, Header
from core.replay.exports.redact import Redaction
from core.thread.approvals import digest
from tests.golden.stories import configured, load
from tests.golden.test_golden import LOGS
from tests.property.test_export import Records
from tests.support.records import ai, call, human, record

pytestmark = pytest.mark.anyio

LOOKS = {
    "openai": "sk-proj-Ab3dEf6hIj9kLm2nOp5q",
    "anthropic": "sk-ant-api03-Ab3dEf6hIj9kLm2nOp5q",
    "google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "aws session": "ASIAIOSFODNN7EXAMPLE",
    "github": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "slack": "xoxb-1234567890-abcdefghij",
    "npm": "npm_Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z",
    "stripe": "rk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N",
    "sendgrid": "SG.ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf09kqeF8tAmbihY",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----",
    "e-mail": "ada.lovelace@example.org",
}
AROUND = {
    "bearer": ("Authorization: Bearer {}", "abcdef0123456789"),
    "query": ("https://example.org/x?token={}", "0f1e2d3c4b5a"),
    "password": ('{{"password": "{}"}}', "correct horse"),
    "url": ("postgres://ada:{}@db/x", "hunter2hunter2"),
}


def redacted(*events: Event, known: Redactor | None = None) -> list[Any]:
    records = [record(number, event) for number, event in enumerate(events, 1)]
    redaction = Redaction(known or Redactor())
    for one in records:
        redaction.scan(one.raw)
    return [msgspec.json.decode(redaction.event(one.raw)) for one in records]


def outcome(text: str) -> ToolCompleted:
    return ToolCompleted(call_id="c", message={"type": "tool", "id": "o", "content": text})


@pytest.mark.parametrize("secret", LOOKS.values(), ids=LOOKS)
def test_it_is_known_by_its_looks(secret: str) -> None:
    [event] = redacted(outcome(f"before {secret} after"))
    text = event["message"]["content"]
    assert secret not in text
    assert text.startswith("before ⟨")
    assert text.endswith("⟩ after")


@pytest.mark.parametrize(("text", "secret"), AROUND.values(), ids=AROUND)
def test_it_is_known_by_what_stands_around_it_and_found_elsewhere(text: str, secret: str) -> None:
    first, second = redacted(outcome(text.format(secret)), outcome(f"it is {secret}, is it?"))
    assert secret not in first["message"]["content"]
    assert secret not in second["message"]["content"]


def test_a_text_without_a_secret_stays() -> None:
    text = "max_tokens=500, tokens: 12; see https://example.org/a?b=c and commit 16C7e42F292c6912E7710c838347Ae17"
    assert redacted(outcome(text))[0]["message"]["content"] == text


def test_equal_values_get_equal_placeholders_in_every_field() -> None:
    known = Redactor()
    known.add("the-known-secret-1", "the-known-secret-2")
    events = redacted(
        ModelCompleted(message=ai("m", "x", [call("c", command="echo the-known-secret-1")]), request="abc"),
        outcome("the-known-secret-2 the-known-secret-1"),
        known=known,
    )
    assert events[0]["message"]["tool_calls"][0]["args"] == {"command": "echo ⟨secret:1⟩"}
    assert events[1]["message"]["content"] == "⟨secret:2⟩ ⟨secret:1⟩"
    assert "request" not in events[0], "the hash of another conversation"


def test_private_fields_are_replaced_by_their_annotation() -> None:
    run = RunRequested(
        input={"messages": [human("h", "hi")]}, webhook="https://x.org/hook", origin=Origin("slack", "C1")
    )
    created, requested = redacted(ThreadCreated(user="ada"), run)
    assert created["user"] == "redacted-user-1", "an id, which a replay uses as one"
    assert requested["webhook"] == "⟨address:1⟩"
    assert requested["origin"] == {"channel": "slack", "conversation": "⟨address:2⟩"}


def test_an_approval_is_still_one_of_its_arguments() -> None:
    args = {"command": "curl -H 'Authorization: Bearer abcdef0123456789'"}
    asked = ApprovalRequested(approval="a", call_id="c", tool="bash", args=args, digest=digest("bash", args))
    [event] = redacted(asked)
    assert event["digest"] == digest("bash", event["args"]) != asked.digest


def test_a_secret_in_an_id_is_refused() -> None:
    known = Redactor()
    known.add("test-secret-e1")
    body = record(1, ThreadCreated(user="ada")).raw.replace(b'"e1"', b'"test-secret-e1"')
    with pytest.raises(Invalid, match=r"thread\.created.*its ids hold a secret"):
        Redaction(known).event(body)


@pytest.mark.parametrize("name", LOGS)
async def test_a_redacted_file_of_every_earlier_version_replays(name: str, tmp_path: Path) -> None:
    records = load(name)
    header = Header(format=FORMAT, sika="1", thread=records[0].head.aggregate_id, redacted=True)
    path = tmp_path / "t.jsonl"
    await write(path, lines(Records(records), header, Scope(redaction=Redaction(Redactor()))))
    archive, archives = await Archive.open(path), Archives()
    archives.name(archive)
    options = Options(tmp_path, configured(name, tmp_path / "config.yaml"))
    report = await rehearsal.replay(archives, archive.root.id, None, options)
    archive.close()
    assert report.divergence is None
    assert report.runs == [record.type for record in records].count("run.started")
