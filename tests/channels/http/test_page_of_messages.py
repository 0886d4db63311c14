"""A page of a conversation is one request: messages, their alternatives, and a summary of each run; and it is small."""

from __future__ import annotations

import gzip
from typing import Any

import aiohttp
import msgspec
import pytest

from core.events import (
    Aggregate,
    Event,
    ModelCompleted,
    RunCompleted,
    RunFailed,
    RunRequested,
    StatePatched,
    ThreadCreated,
)
from core.files.workspace import KIND, FileChange, WorkspaceScanned
from core.runtime.system import System
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.gateway import PRICED, Changeable
from tests.channels.http.story import ai, human, started

pytestmark = pytest.mark.anyio


@pytest.fixture
def config() -> Changeable:
    return Changeable(sections={"models": (PRICED,)})


async def turn(api: Api, worker: Worker, thread: str, number: int, **body: Any) -> str:
    """A question and its answer: the run."""
    if not body:
        body = {"input": {"messages": [{"role": "user", "content": f"question {number}", "id": f"h{number}"}]}}
    run = (await api.ask("POST", f"/threads/{thread}/runs", body))["run_id"]
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    answer = ModelCompleted(message=ai(f"a-{run}", f"answer {number}", usage_metadata=usage))
    await worker.write(thread, run, started(), answer, RunCompleted())
    return str(run)


async def page(api: Api, thread: str, query: str = "") -> Any:
    return await api.ask("GET", f"/threads/{thread}/messages/page{query}")


def texts(shown: Any) -> list[str]:
    return [row["content"]["content"] for row in shown["data"]]


async def test_runs_in_short(api: Api, worker: Worker, system: System) -> None:
    thread = await api.thread()
    first = await turn(api, worker, thread, 1)
    ended = (await system.threads.load(thread)).runs[first].ended_seq
    files = [
        FileChange(path="/mnt/user-data/outputs/a", root="outputs", status="created", additions=12, deletions=3),
        FileChange(path="/mnt/user-data/outputs/b", root="outputs", status="modified", additions=1),
    ]
    scan = WorkspaceScanned(upto=ended or 0, changes=files)
    await system.log.append(Aggregate(KIND, thread), [scan], expected=0, actor="test", run=first)
    second = await api.run(thread)
    await worker.write(thread, second, started(), RunFailed(error="RateLimitError", text="The provider is busy."))
    third = await api.run(thread)
    await worker.start(thread, third)
    runs = (await page(api, thread))["runs"]
    assert runs.keys() == {first, second, third}
    one = runs[first]
    assert (one["status"], one["error"], one["model"]) == ("success", None, "m")
    assert one["changes"] == {"files": 2, "additions": 13, "deletions": 3, "undone": False}
    assert one["duration_ms"] >= 0
    assert one["ended_at"] > one["started_at"]
    cost = (100 * 2 + 10 * 10) / 1_000_000
    assert one["usage"] == {
        "input_tokens": 100, "output_tokens": 10, "total_tokens": 110, "cost": cost, "currency": "EUR",
    }  # fmt: skip
    assert (runs[second]["status"], runs[second]["error"]) == ("error", "The provider is busy.")
    assert (runs[third]["status"], runs[third]["ended_at"], runs[third]["duration_ms"]) == ("running", None, None)
    assert runs[third]["changes"] is None


REMOVE_ALL = {"type": "remove", "id": "__remove_all__"}


async def test_messages_that_were_all_removed_are_not_shown(api: Api, worker: Worker) -> None:
    """By a person or a program, and not by a summary; also where a page has none that is left."""
    thread = await api.thread()
    for number in range(1, 4):
        await turn(api, worker, thread, number)
    kept = {"type": "human", "id": "h1", "content": "question 1"}
    written = {"messages": [REMOVE_ALL, kept]}
    await api.ask("POST", f"/threads/{thread}/state", {"values": written})
    assert texts(await page(api, thread)) == ["question 1"]
    await turn(api, worker, thread, 4)
    shown = await page(api, thread, "?limit=2")
    assert (texts(shown), shown["has_more"]) == (["question 4", "answer 4"], True)
    rest = await page(api, thread, f"?limit=2&before_seq={shown['next_before_seq']}")
    assert (texts(rest), rest["has_more"], rest["next_before_seq"]) == (["question 1"], False, None)
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"messages": [REMOVE_ALL]}})
    empty = await page(api, thread)
    assert (texts(empty), empty["has_more"]) == ([], False)


async def test_a_page_whose_rows_were_all_removed_one_by_one_leads_on(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    runs = [await turn(api, worker, thread, number) for number in range(1, 4)]
    gone = [{"type": "remove", "id": name} for name in ("h3", f"a-{runs[2]}")]
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"messages": gone}})
    shown = await page(api, thread, "?limit=2")
    while not shown["data"]:
        assert shown["has_more"]
        shown = await page(api, thread, f"?limit=2&before_seq={shown['next_before_seq']}")
    assert texts(shown) == ["question 2", "answer 2"]


def versions(page: Any) -> dict[str, tuple[int, int]]:
    """Which version of how many each message is that has several."""
    rows = [row for row in page["data"] if row.get("branches")]
    assert all(row["branches"]["count"] == len(row["branches"]["checkpoint_ids"]) for row in rows)
    return {row["content"]["content"]: (row["branches"]["index"], row["branches"]["count"]) for row in rows}


async def test_other_answers_are_versions_of_the_answer_and_other_words_of_the_question(
    api: Api, worker: Worker
) -> None:
    """Each stays, can be shown, and says which of how many it is."""
    thread = await api.thread()
    await turn(api, worker, thread, 1)
    second = await turn(api, worker, thread, 2)
    third = await turn(api, worker, thread, 3, regenerate={"message_id": f"a-{second}"})
    shown = await page(api, thread)
    assert texts(shown) == ["question 1", "answer 1", "question 2", "answer 3"]
    assert versions(shown) == {"answer 3": (1, 2)}
    older = await page(api, thread, f"?checkpoint_id={shown['data'][3]['branches']['checkpoint_ids'][0]}")
    assert texts(older) == ["question 1", "answer 1", "question 2", "answer 2"]
    assert versions(older) == {"answer 2": (0, 2)}
    await turn(api, worker, thread, 4, edit={"message_id": "h2", "text": "in other words"})
    newest = await page(api, thread)
    assert texts(newest) == ["question 1", "answer 1", "in other words", "answer 4"]
    assert versions(newest) == {"in other words": (1, 2)}
    await turn(api, worker, thread, 5, regenerate={"message_id": "a-" + newest["data"][3]["run_id"]})
    newest = await page(api, thread)
    assert versions(newest) == {"in other words": (1, 2), "answer 5": (1, 2)}
    back = await page(api, thread, f"?checkpoint_id={newest['data'][2]['branches']['checkpoint_ids'][0]}")
    assert versions(back) == {"question 2": (0, 2), "answer 3": (1, 2)}, "the newest answer to the other words"
    run = (await api.ask("GET", f"/threads/{thread}/runs/{third}"))["metadata"]
    assert run["regenerate_from_run_id"] == second, "as after the two steps"


async def test_the_first_question_and_its_answer_have_versions_too(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    first = await turn(api, worker, thread, 1)
    await turn(api, worker, thread, 2, regenerate={"message_id": f"a-{first}"})
    assert versions(await page(api, thread)) == {"answer 2": (1, 2)}
    await turn(api, worker, thread, 3, edit={"message_id": "h1", "text": "other"})
    shown = await page(api, thread)
    assert texts(shown) == ["other", "answer 3"], "what was asked at first is not there twice"
    assert versions(shown) == {"other": (1, 2)}
    back = await page(api, thread, f"?checkpoint_id={shown['data'][0]['branches']['checkpoint_ids'][0]}")
    assert texts(back) == ["question 1", "answer 2"]
    assert versions(back) == {"question 1": (0, 2), "answer 2": (1, 2)}


async def test_a_question_of_any_turn_is_asked_in_other_words(api: Api, worker: Worker) -> None:
    """Also one of a branch that is not the newest; the branches that were there stay."""
    thread = await api.thread()
    for number in (1, 2, 3):
        await turn(api, worker, thread, number)
    await turn(api, worker, thread, 4, edit={"message_id": "h2", "text": "other"})
    shown = await page(api, thread)
    assert texts(shown) == ["question 1", "answer 1", "other", "answer 4"]
    await turn(api, worker, thread, 5, edit={"message_id": "h3", "text": "third"})
    assert texts(await page(api, thread)) == ["question 1", "answer 1", "question 2", "answer 2", "third", "answer 5"]
    first = shown["data"][2]["branches"]["checkpoint_ids"][1]
    assert texts(await page(api, thread, f"?checkpoint_id={first}")) == texts(shown)


async def test_an_answer_of_any_turn_is_given_again(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    first = await turn(api, worker, thread, 1)
    await turn(api, worker, thread, 2)
    await turn(api, worker, thread, 3, regenerate={"message_id": f"a-{first}"})
    assert texts(await page(api, thread)) == ["question 1", "answer 3"]


async def test_a_run_goes_on_from_the_branch_that_is_shown(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    assert (await page(api, thread))["checkpoint_id"] is None
    await turn(api, worker, thread, 1)
    await turn(api, worker, thread, 2)
    shown = await page(api, thread)
    await turn(api, worker, thread, 3, edit={"message_id": "h1", "text": "other"})
    assert (await page(api, thread))["checkpoint_id"] != shown["checkpoint_id"]
    next_one = {"messages": [{"role": "user", "content": "and then?"}]}
    await turn(api, worker, thread, 4, input=next_one, checkpoint_id=shown["checkpoint_id"])
    assert texts(await page(api, thread)) == [*texts(shown), "and then?", "answer 4"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"regenerate": {"message_id": "none"}}, 404, "not found"),
        ({"regenerate": {"message_id": "h1"}}, 422, "expected ai"),
        ({"regenerate": {}}, 422, "message_id"),
        ({"regenerate": {"message_id": "a"}, "input": {}}, 422, "takes the place of input"),
        (
            {"regenerate": {"message_id": "a"}, "edit": {"message_id": "h1", "text": "x"}},
            422,
            "takes the place of edit",
        ),
        ({"edit": {"message_id": "h1", "text": "  "}}, 422, "empty"),
        ({"edit": {"message_id": "h1", "text": "x"}, "checkpoint_id": "1"}, 422, "takes the place of checkpoint_id"),
    ],
)
async def test_what_cannot_be_given_again(api: Api, worker: Worker, body: Any, status: int, word: str) -> None:
    thread = await api.thread()
    await turn(api, worker, thread, 1)
    answer = await api.ask("POST", f"/threads/{thread}/runs", body, status=status)
    assert word in answer["detail"]
    assert len(await api.ask("GET", f"/threads/{thread}/runs")) == 1


async def test_without_a_thread_nothing_is_given_again(api: Api) -> None:
    answer = await api.ask("POST", "/runs", {"regenerate": {"message_id": "a"}}, status=400)
    assert "without a thread" in answer["detail"]


@pytest.mark.parametrize("name", ["x", "-1", "999999"])
async def test_no_page_of_a_checkpoint_that_is_none(api: Api, worker: Worker, name: str) -> None:
    thread = await api.thread()
    await turn(api, worker, thread, 1)
    answer = await api.ask("GET", f"/threads/{thread}/messages/page?checkpoint_id={name}", status=422)
    assert "checkpoint" in answer["detail"]


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def write(system: System, thread: str, *events: Event) -> None:
    await system.threads.decide(thread, lambda _: events, actor="test")


async def sent(api: Api, method: str, path: str, body: Any = None) -> tuple[int, int]:
    """Bytes of an answer as it is sent compressed, and as it is read."""
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.request(method, f"{api.url}/api{path}", json=body, headers={"Accept-Encoding": "gzip"}) as response,
    ):
        data = await response.read()
        assert response.status == 200
        compressed = response.headers.get("Content-Encoding") == "gzip"
        return len(data), len(gzip.decompress(data) if compressed else data)


async def test_a_list_of_50_threads_is_small(api: Api, system: System) -> None:
    for number in range(60):
        await api.ask(
            "POST", "/threads", {"metadata": {"pinned": number % 7 == 0}, "thread_id": f"thread-{number:036}"}
        )
        title = StatePatched(values={"title": f"A conversation about the subject number {number}"})
        await write(system, f"thread-{number:036}", title)
    select = ["thread_id", "status", "updated_at", "metadata"]
    body = {"limit": 50, "sort_by": "pinned", "select": select, "extract": {"title": "values.title"}}
    compressed, _ = await sent(api, "POST", "/threads/search", body)
    assert compressed <= 10_000, compressed


async def test_first_open_of_a_thread_of_2000_messages_is_small(api: Api, system: System) -> None:
    """As it is read, compressed or not; the whole values would be several times as much."""
    thread = "long"
    first = [human("h", "hi"), ai("a", "yes")]
    events = [ThreadCreated(user="default"), StatePatched(values={"messages": first})]
    await system.log.append(Aggregate("thread", thread), events, expected=0, actor="test")
    for start in range(0, 2000, 100):
        messages = [
            (human if number % 2 else ai)(f"m{number}", f"{number} " + "some words of a message " * 20)
            for number in range(start, start + 100)
        ]
        await write(system, thread, *(StatePatched(values={"messages": [message]}) for message in messages))
    run = RunRequested(input={"messages": [human("last", "and now?")]})
    await system.threads.decide(thread, lambda _: [run], actor="test", run="r")
    await system.threads.decide(thread, lambda _: [started()], actor="test", run="r")
    compressed, plain = await sent(api, "GET", f"/threads/{thread}/messages/page?limit=100")
    assert plain <= 300_000, plain
    assert compressed <= 30_000, compressed
    whole, _ = await sent(api, "GET", f"/threads/{thread}")
    assert whole > 0
    assert len(msgspec.json.encode(texts(await page(api, thread, "?limit=100")))) > 10_000
