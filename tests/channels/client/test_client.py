"""What a client does, on a server in this process and on one elsewhere: the same."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any, assert_type

import pytest

from channels.client import (
    AsyncSikaClient,
    DeerFlowClient,
    Invalid,
    NotFound,
    Refused,
    RunFailed,
    SikaClient,
    StreamEvent,
    TooLarge,
)
from core.ids import uuid7
from tests.channels.client.stage import MOST_BYTES, OUTPUT, Models, Subject, shape, text_of, told
from tests.support.documents import docx

HELLO = "Hello there, nice to meet you."


# ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chat_goes_on_where_it_was(client: SikaClient, models: Models, thread_id: str) -> None:
    assert client.chat("My name is Ada", thread_id=thread_id, model_name="hello") == HELLO
    assert client.chat("Who am I?", thread_id=thread_id, model_name="hello") == HELLO
    said = [message["content"] for message in models.bodies("hello")[-1]["messages"] if message["role"] != "system"]
    assert [text for text in said if not text.startswith("<system-reminder>")] == ["My name is Ada", HELLO, "Who am I?"]


def test_a_stream_tells_everything_once_and_in_order(client: SikaClient, thread_id: str) -> None:
    events = list(client.stream("Hi", thread_id=thread_id, model_name="hello"))
    assert told(events) == ["values", "text", "usage", "values", "end"]
    assert text_of(events) == HELLO
    assert {event.thread_id for event in events} == {thread_id}
    assert len({event.run_id for event in events}) == 1
    first, *_, last, end = events
    assert [message["type"] for message in first.data["messages"]] == ["human"]
    assert [message["content"] for message in last.data["messages"]] == ["Hi", HELLO]
    assert last.data.keys() == {"title", "messages", "artifacts"}
    (usage,) = [event.data["usage_metadata"] for event in events if "usage_metadata" in event.data]
    assert end.data["usage"] == {key: usage[key] for key in ("input_tokens", "output_tokens", "total_tokens")}
    assert end.data["usage"]["total_tokens"] > 0


def test_without_a_thread_a_new_one_is_made_and_named(client: SikaClient) -> None:
    one, other = (list(client.stream("Hi", model_name="hello"))[-1].thread_id for _ in range(2))
    assert one != other
    assert client.get_thread(one)["thread_id"] == one


def test_tool_calls_and_their_results(client: SikaClient, thread_id: str) -> None:
    events = list(client.stream("Note it", thread_id=thread_id, model_name="noting"))
    whole = ["values", "text", "usage", "calls", "values", "result", "values", "text", "usage", "values", "end"]
    assert told(events) == whole
    (calls,) = [event.data for event in events if "tool_calls" in event.data]
    ((name, path, call_id),) = [(c["name"], c["args"]["path"], c["id"]) for c in calls["tool_calls"]]
    assert (name, path, calls["content"]) == ("write_file", OUTPUT, "")
    (result,) = [event.data for event in events if event.data.get("type") == "tool"]
    assert (result["name"], result["tool_call_id"]) == ("write_file", call_id)
    assert result.keys() == {"type", "content", "name", "tool_call_id", "id"}
    used = [event.data["usage_metadata"] for event in events if "usage_metadata" in event.data]
    assert len(used) == 2
    assert events[-1].data["usage"]["total_tokens"] == sum(usage["total_tokens"] for usage in used)
    assert client.get_artifact(thread_id, OUTPUT) == (b"# Found\n", "text/markdown")


def test_thinking_is_told_beside_the_text(client: SikaClient) -> None:
    pieces = [event.data for event in client.stream("Hm?", model_name="thinking") if event.type == "messages-tuple"]
    thoughts = [piece.get("additional_kwargs", {}).get("reasoning_content", "") for piece in pieces]
    assert "".join(thoughts) == "Let me think this over."
    assert "".join(piece["content"] for piece in pieces) == "Yes, that is so."


def test_an_answer_that_broke_off_is_asked_again(client: SikaClient, models: Models) -> None:
    events = list(client.stream("Hi", model_name=models.flaky()))
    assert [event.data["type"] for event in events if event.type == "custom"] == ["llm_retry"]
    assert events[-2].data["messages"][-1]["content"] == "Now it worked."
    assert client.chat("Hi", model_name=models.flaky()) == "Now it worked."


def test_a_failed_run_is_an_error_and_the_thread_goes_on(client: SikaClient, thread_id: str) -> None:
    seen: list[StreamEvent] = []
    with pytest.raises(RunFailed, match="no luck today") as failed:
        seen.extend(client.stream("Hi", thread_id=thread_id, model_name="failing"))
    assert failed.value.thread_id == thread_id
    assert failed.value.code.endswith("Error")
    assert failed.value.usage == {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    assert client.chat("Again", thread_id=thread_id, model_name="hello") == HELLO


def test_options_of_a_run_reach_its_model(client: SikaClient, models: Models) -> None:
    client.chat("Hi", model_name="switch")
    client.chat("Hi", model_name="switch", thinking_enabled=False, plan_mode=False)
    planned, plain = models.bodies("switched")[-2:]
    assert (planned["thinking"], plain["thinking"]) == ({"type": "enabled"}, {"type": "disabled"})
    tools = [[tool["function"]["name"] for tool in body["tools"]] for body in (planned, plain)]
    assert ("write_todos" in tools[0], "write_todos" in tools[1]) == (True, False)


def test_options_are_kept_with_the_run(subject: Subject, thread_id: str) -> None:
    client = subject.client
    client.chat(
        "Look around",
        thread_id=thread_id,
        model_name="looping",
        recursion_limit=4,
        subagent_enabled=True,
        available_skills={"pdf", "documents"},
        environment="staging",
        metadata={"ticket": 7},
    )
    [run] = subject.get(f"/api/threads/{thread_id}/runs")
    assert (run["status"], run["stop_reason"]) == ("success", "turn_capped")
    assert "made 4 model calls, the limit of this run (`config.recursion_limit of the request`)" in run["stopped"]
    assert (run["metadata"]["environment"], run["metadata"]["ticket"]) == ("staging", 7)
    context = run["kwargs"]["context"]
    assert (context["subagent_enabled"], context["available_skills"]) == (True, ["documents", "pdf"])


def test_a_question_is_answered(client: SikaClient, thread_id: str) -> None:
    asked = list(client.stream("Choose", thread_id=thread_id, model_name="asking"))[-2]
    assert [one["value"] for one in asked.data["interrupts"]] == [{"question": "Which one?"}]
    assert any(
        {"question": "Which one?"} in [one["value"] for write in checkpoint["pending_writes"] for one in write["value"]]
        for checkpoint in client.get_thread(thread_id)["checkpoints"]
    )
    events = list(client.resume(thread_id, "the red one", model_name="asking"))
    assert [event.data["content"] for event in events if event.data.get("type") == "tool"] == ["They said: the red one"]
    assert text_of(events) == "Thank you."


# ── runs at work ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("on_disconnect", "status"), [("cancel", "interrupted"), ("continue", "success")])
def test_closing_a_stream(subject: Subject, models: Models, thread_id: str, on_disconnect: Any, status: str) -> None:
    gate = models.gated()
    events = subject.client.stream("Hi", thread_id=thread_id, model_name=gate, on_disconnect=on_disconnect)
    run_id = next(event.run_id for event in events if event.type == "messages-tuple")
    events.close()
    assert subject.status(thread_id, run_id) == {"cancel": status}.get(on_disconnect, "running")
    models.release(gate)
    subject.get(f"/api/threads/{thread_id}/runs/{run_id}/join")
    assert subject.status(thread_id, run_id) == status
    assert subject.client.chat("And now?", thread_id=thread_id, model_name="hello") == HELLO


async def test_a_stream_that_is_forgotten_is_closed_by_whoever_collects_it(
    subject: Subject, models: Models, thread_id: str
) -> None:
    gate = models.gated()
    events = subject.client.stream("Hi", thread_id=thread_id, model_name=gate)
    run_id = next(event.run_id for event in events if event.type == "messages-tuple")
    del events  # here an event loop runs, as it does where a server's memory is collected: nobody may wait
    gc.collect()
    subject.get(f"/api/threads/{thread_id}/runs/{run_id}/join")
    assert subject.status(thread_id, run_id) == "interrupted"


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT interrupts, also if whoever started the tests ignores it, as a shell does for what runs behind it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_cancels_the_run(subject: Subject, models: Models, thread_id: str) -> None:
    gate = models.gated()

    def interrupt() -> None:
        models.reached(gate)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    hand = threading.Thread(target=interrupt)
    hand.start()
    with pytest.raises(KeyboardInterrupt):
        subject.client.chat("Hi", thread_id=thread_id, model_name=gate)
    hand.join()
    (run,) = subject.get(f"/api/threads/{thread_id}/runs")
    subject.get(f"/api/threads/{thread_id}/runs/{run['run_id']}/join")
    assert subject.status(thread_id, run["run_id"]) == "interrupted"


def test_a_run_is_joined_from_its_beginning(subject: Subject, models: Models, thread_id: str) -> None:
    client, gate = subject.client, models.gated()
    events = client.stream("Hi", thread_id=thread_id, model_name=gate)
    run_id = next(event.run_id for event in events if event.type == "messages-tuple")
    joined = client.join(thread_id, run_id)
    next(joined)
    joined.close()
    assert subject.status(thread_id, run_id) == "running"
    models.release(gate)
    assert text_of(list(client.join(thread_id, run_id))) == "One two three four five six."
    assert [event.type for event in events][-1] == "end"
    assert client.get_run(thread_id, run_id)["status"] == "success"
    assert [run["run_id"] for run in client.list_runs(thread_id)] == [run_id]
    assert client.describe_thread(thread_id)["status"] == "idle"


def test_another_thread_steers_and_cancels(client: SikaClient, models: Models, thread_id: str) -> None:
    gate = models.gated()
    events = client.stream("Hi", thread_id=thread_id, model_name=gate)
    run_id = next(event.run_id for event in events if event.type == "messages-tuple")
    with ThreadPoolExecutor() as pool:
        steered = pool.submit(client.steer, thread_id, run_id, "Faster!").result()
        assert steered["run_id"] == run_id
        with pytest.raises(Refused):
            pool.submit(client.chat, "Me too", thread_id=thread_id, model_name="hello").result()
        pool.submit(client.cancel, thread_id, run_id).result()
    assert [event.type for event in events][-1] == "end"


def test_many_threads_use_one_client(client: SikaClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda _: client.chat("Hi", model_name="hello"), range(16))
        assert list(answers) == [HELLO] * 16


# ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_threads_and_their_checkpoints(subject: Subject, thread_id: str) -> None:
    client = subject.client
    for text in ("One", "Two"):
        client.chat(text, thread_id=thread_id, model_name="hello")
    subject.raw.post(f"/api/threads/{thread_id}/state", json={"values": {"title": "Counting"}}).raise_for_status()
    (row,) = client.list_threads(limit=1)["thread_list"]
    checkpoints = client.get_thread(thread_id)["checkpoints"]
    assert row.keys() == {"thread_id", "created_at", "updated_at", "latest_checkpoint_id", "title"}
    assert (row["thread_id"], row["title"]) == (thread_id, "Counting")
    assert row["latest_checkpoint_id"] == checkpoints[-1]["checkpoint_id"]
    assert checkpoints[0]["parent_checkpoint_id"] is None
    assert [c["parent_checkpoint_id"] for c in checkpoints[1:]] == [c["checkpoint_id"] for c in checkpoints[:-1]]
    assert [len(c["values"].get("messages", [])) for c in checkpoints] == sorted(
        len(c["values"].get("messages", [])) for c in checkpoints
    )
    keys = {"checkpoint_id", "parent_checkpoint_id", "ts", "metadata", "values", "pending_writes"}
    assert all(c.keys() == keys for c in checkpoints)
    assert len(client.list_threads(limit=2)["thread_list"]) == 2


def test_a_long_history_is_read_in_pages(subject: Subject, thread_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("One", "Two", "Three"):
        subject.client.chat(text, thread_id=thread_id, model_name="hello")
    whole = subject.client.get_thread(thread_id)
    monkeypatch.setattr("channels.client.aio.PAGE", 2)
    assert subject.client.get_thread(thread_id) == whole
    assert len(whole["checkpoints"]) > 4


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_uploads_are_sent_listed_and_removed(client: SikaClient, thread_id: str, tmp_path: Path) -> None:
    big, letter = tmp_path / "big.bin", tmp_path / "letter.docx"
    big.write_bytes(bytes(range(256)) * 4096)
    letter.write_bytes(docx("Dear reader", "Yours"))
    client.chat("Hi", thread_id=thread_id, model_name="hello")
    sent = client.upload_files(thread_id, [str(big), letter])
    assert sent["success"]
    assert [file["filename"] for file in sent["files"]] == ["big.bin", "letter.docx"]
    assert client.get_artifact(thread_id, sent["files"][0]["virtual_path"])[0] == big.read_bytes()
    text, kind = client.get_artifact(thread_id, sent["files"][1]["markdown_virtual_path"])
    assert (b"Dear reader" in text, kind) == (True, "text/markdown")
    assert client.list_uploads(thread_id)["count"] == 3
    assert client.delete_upload(thread_id, "letter.docx")["success"]
    assert [file["filename"] for file in client.list_uploads(thread_id)["files"]] == ["big.bin"]


def test_nothing_is_sent_if_one_is_no_file(client: SikaClient, thread_id: str, tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "folder").mkdir()
    for wrong, error in (("folder", Invalid), ("missing.txt", FileNotFoundError)):
        with pytest.raises(error, match=wrong):
            client.upload_files(thread_id, [tmp_path / "good.txt", tmp_path / wrong])
    with pytest.raises(Invalid, match="none are named"):
        client.upload_files(thread_id, [])
    assert client.list_uploads(thread_id)["count"] == 0


def test_too_much_is_refused(client: SikaClient, thread_id: str, tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(2 * MOST_BYTES))
    with pytest.raises(TooLarge, match=r"large\.bin"):
        client.upload_files(thread_id, [tmp_path / "large.bin"])
    assert client.list_uploads(thread_id)["count"] == 0


def test_names_of_files_are_sent_as_they_are(client: SikaClient, thread_id: str, tmp_path: Path) -> None:
    file = tmp_path / "Grüße 'quoted' 1%2F?#.html"
    file.write_text("<h1>Hi</h1>")
    (sent,) = client.upload_files(thread_id, [file])["files"]
    assert sent["filename"] == file.name
    assert client.get_artifact(thread_id, sent["virtual_path"]) == (b"<h1>Hi</h1>", "text/html")


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ask", "path"),
    [
        (lambda client, _: client.list_models(), "/api/models"),
        (lambda client, _: client.get_model("hello"), "/api/models/hello"),
        (lambda client, _: client.list_skills(), "/api/skills"),
        (lambda client, thread_id: client.list_uploads(thread_id), "/api/threads/{}/uploads/list"),
    ],
)
def test_answers_are_those_of_the_gateway(
    subject: Subject, thread_id: str, tmp_path: Path, ask: Callable[[SikaClient, str], Any], path: str
) -> None:
    (tmp_path / "a.txt").write_text("a")
    subject.client.upload_files(thread_id, [tmp_path / "a.txt"])
    assert ask(subject.client, thread_id) == subject.get(path.format(thread_id))


def test_an_upload_is_answered_as_the_gateway_answers(subject: Subject, thread_id: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    sent = subject.client.upload_files(thread_id, [tmp_path / "a.txt"])
    raw = subject.raw.post(f"/api/threads/{thread_id}/uploads", files={"files": ("b.txt", b"b")}).json()
    assert shape(sent) == shape(raw)


# ── what is not there ───────────────────────────────────────────────────────────────────────────────────────────────

UNKNOWN: list[Callable[[SikaClient, str], Any]] = [
    lambda client, thread_id: client.get_thread(thread_id),
    lambda client, thread_id: client.get_artifact(thread_id, OUTPUT),
    lambda client, thread_id: client.delete_upload(thread_id, "a.txt"),
    lambda client, thread_id: client.cancel(thread_id, uuid7()),
    lambda client, thread_id: client.steer(thread_id, uuid7(), "Hi"),
    lambda client, thread_id: list(client.resume(thread_id, "yes")),
    lambda client, thread_id: list(client.join(thread_id, uuid7())),
    lambda client, thread_id: client.describe_thread(thread_id),
    lambda client, thread_id: client.decide(thread_id, uuid7(), {"decision": "approve"}),
]


@pytest.mark.parametrize("ask", UNKNOWN)
def test_what_does_not_exist_is_not_found(
    client: SikaClient, thread_id: str, ask: Callable[[SikaClient, str], Any]
) -> None:
    with pytest.raises(NotFound) as missing:
        ask(client, thread_id)
    assert missing.value.status == 404


def test_other_mistakes(client: SikaClient) -> None:
    assert client.get_model("nobody/else") is None
    with pytest.raises(Invalid):
        client.chat("Hi", thread_id="no/such id")
    with pytest.raises(Invalid, match=r"metadata\.deliver: expected object"):
        client.chat("Hi", metadata={"deliver": "C1"})
    with pytest.raises(TypeError, match="modell_name"):
        client.chat("Hi", modell_name="hello")  # type: ignore[call-arg]
    client.reset_agent()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpointer": object()}, "log is the checkpointer"),
        ({"middlewares": [object()]}, "middlewares: must be None"),
        ({"url": "http://127.0.0.1:1", "home": "x"}, "url:"),
        ({"url": "http://127.0.0.1:1", "user": "ada"}, "url:"),
        ({"api_key": "x"}, "api_key:"),
    ],
)
def test_clients_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        SikaClient(**options)


def test_both_clients_have_the_same_methods(client: SikaClient) -> None:
    assert_type(client.chat("Hi", model_name="hello"), str)
    assert_type(client.stream("Hi"), Generator[StreamEvent, None, None])
    assert_type(client.get_model("hello"), dict[str, Any] | None)
    assert signature(SikaClient) == signature(AsyncSikaClient)
    assert SikaClient.list_threads.__doc__ == AsyncSikaClient.list_threads.__doc__
    assert DeerFlowClient is SikaClient
    names = {name for name in dir(AsyncSikaClient) if not name.startswith("_")}
    assert {name for name in dir(SikaClient) if not name.startswith("_")} == names
