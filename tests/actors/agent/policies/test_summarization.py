"""What is summarised and what stays, when, and what the model is asked; and the policy, without a log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from actors.agent.policies.context.summarization import Summarization
from actors.agent.summary import write as summaries
from actors.agent.summary.cut import Cut, Summary, compacted, due, plan
from actors.agent.summary.record import ADVICE, RECORD, SECTIONS, record_of, text_of_record
from actors.agent.summary.sizes import fitted, parts_of, tokens_of
from actors.agent.summary.write import LEAD_IN, TAG, entries_of, question, summary_models
from actors.agent.summary.write import Writer as Candidate
from core.config import load as configuration
from core.config.settings import ContextSize
from core.config.settings import Summarization as Settings
from core.config.windows import Window
from core.events import ContextCompacted, Json, Message
from core.thread.usage import Size, estimate, in_context, last_asked
from core.thread.values import REMOVE_ALL
from tests.actors.agent.fakes import Fake
from tests.actors.agent.turns import Asked, model_call, turn
from tests.support.records import ai, call, human

pytestmark = pytest.mark.anyio

ROOT = "/mnt/skills"
SUMMARY: Message = {"type": "human", "id": "summary-0", "name": "summary", "content": "Before."}


def settings(keep: int = 2, **more: Any) -> Settings:
    return Settings(enabled=True, keep=ContextSize(type="messages", value=keep), **more)


def size(kind: Any, value: float) -> ContextSize:
    return ContextSize(type=kind, value=value)


def tool(identity: str, text: str = "done", **more: Any) -> Message:
    return {"type": "tool", "id": f"t-{identity}", "tool_call_id": identity, "name": "bash", "content": text, **more}


def reads(identity: str, path: str, name: str = "read_file") -> Json:
    return call(identity, name, path=path)


def planned(messages: Sequence[Message], how: Settings | None = None, window: int = 10_000) -> Cut:
    cut = plan(messages, how or settings(), Window(window), ROOT)
    assert cut is not None
    return cut


def ids(messages: Sequence[Message]) -> list[str]:
    return [message["id"] for message in messages]


TALK = [human("h1"), ai("a1"), human("h2"), ai("a2"), human("h3")]

# ── when ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("triggers", "window", "now", "then", "expected"),
    [
        ([], None, Size(99, 102_399), Size(), False),
        ([], None, Size(99, 102_400), Size(), True),
        ([], 1000, Size(99, 800), Size(), True),
        ([size("messages", 500)], 1000, Size(99, 800), Size(), True),
        ([size("messages", 500)], 1_000_000, Size(99, 400_000), Size(), True),
        ([size("messages", 5)], None, Size(4, 0), Size(), False),
        ([size("messages", 5)], None, Size(5, 0), Size(), True),
        ([size("tokens", 100)], None, Size(1, 99), Size(), False),
        ([size("tokens", 100)], None, Size(1, 100), Size(1, 99), True),
        ([size("tokens", 100)], None, Size(9, 109), Size(8, 100), False),
        ([size("tokens", 100)], None, Size(9, 110), Size(8, 109), True),
        ([size("fraction", 0.5)], 200, Size(1, 100), Size(), True),
        ([size("fraction", 0.5)], 200, Size(1, 99), Size(), False),
        ([size("fraction", 0.5)], None, Size(1, 63_999), Size(), False),
        ([size("fraction", 0.5)], None, Size(1, 64_000), Size(), True),
        ([size("messages", 50), size("tokens", 100)], None, Size(1, 100), Size(), True),
        ([size("messages", 5), size("tokens", 100)], None, Size(5, 1), Size(), True),
    ],
)
def test_when_a_conversation_is_too_long(
    triggers: list[ContextSize], window: int | None, now: Size, then: Size, expected: bool
) -> None:
    known = Window(window) if window else Window()
    assert bool(due(settings(trigger=tuple(triggers)), known, now, then)) is expected


def test_the_reason_names_size_and_limit() -> None:
    assert due(settings(trigger=(size("tokens", 15564),)), Window(), Size(3, 15600), Size()) == (
        "15600 tokens; the limit is 15564"
    )


# ── where to cut ────────────────────────────────────────────────────────────────────────────────────────────────────

PAIRS = [
    human("h1"),
    ai("a1", calls=[call("c1"), call("c2")]),
    tool("c2"),
    tool("c1"),
    ai("a2"),
    human("h2"),
]


@pytest.mark.parametrize(
    ("messages", "keep", "kept"),
    [
        (TALK, size("messages", 2), ["a2", "h3"]),
        (TALK, size("messages", 0.4), ["h3"]),
        (TALK, size("tokens", 0.1), ["h3"]),
        (TALK, size("tokens", 8), ["a2", "h3"]),
        (TALK, size("fraction", 0.14), ["a2", "h3"]),
        (PAIRS, size("messages", 2), ["a2", "h2"]),
        (PAIRS, size("messages", 3), ["a1", "t-c2", "t-c1", "a2", "h2"]),
        (PAIRS, size("messages", 4), ["a1", "t-c2", "t-c1", "a2", "h2"]),
    ],
    ids=range(8),
)
def test_the_tail_that_is_kept(messages: list[Message], keep: ContextSize, kept: list[str]) -> None:
    cut = planned(messages, Settings(keep=keep), window=60)
    assert cut.kept == kept
    assert ids(cut.summarised) == [identity for identity in ids(messages) if identity not in kept]


@pytest.mark.parametrize(
    ("messages", "keep"),
    [
        ([], size("messages", 2)),
        ([human("h1")], size("messages", 1)),
        (TALK, size("messages", 5)),
        (TALK, size("messages", 99)),
        (TALK, size("tokens", 9999)),
        (TALK, size("fraction", 0.5)),
        ([SUMMARY, *TALK[-2:]], size("messages", 2)),
        (PAIRS[1:], size("messages", 4)),
    ],
    ids=range(8),
)
def test_nothing_to_summarise(messages: list[Message], keep: ContextSize) -> None:
    assert plan(messages, Settings(keep=keep), Window(), ROOT) is None


@pytest.mark.parametrize("window", [8_000, 24_000, 128_000])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.45])
@pytest.mark.parametrize("rounds", [0, 1, 12])
@pytest.mark.parametrize("room", [None, 0.25])
def test_the_newest_task_of_the_person_stays_whole_where_it_fits(
    window: int, share: float, rounds: int, room: float | None
) -> None:
    """Before it lie old turns, and after it long results of tools: those give way."""
    limit = Window(window).limit
    old = [each for n in range(30) for each in (human(f"h{n}"), ai(f"a{n}", "old " * (limit // 25)))]
    task = human("task", "word " * int(limit * share * 4 / 5))
    work = [
        each
        for n in range(rounds)
        for each in (ai(f"w{n}", calls=[call(f"c{n}")]), tool(f"c{n}", "line " * (limit // 6)))
    ]
    cut = plan([*old, task, *work], Settings(), Window(window), ROOT, room=room and limit * room)
    assert cut is not None
    assert "task" in cut.kept
    assert [message for message in cut.remaining if message["id"] == "task"] == [task]
    assert estimate(cut.remaining) < Window(window).tokens


def test_a_task_that_fits_no_window_is_shortened() -> None:
    task = human("task", "word " * 40_000)
    [shortened] = planned([*TALK, task], Settings(), window=24_000).changed
    assert "characters are left out" in shortened["content"]


def test_by_default_a_quarter_stays_and_as_it_is() -> None:
    talk = [*TALK, *({**message, "id": f"{message['id']}-{n}"} for n in range(4) for message in TALK)]
    long = {**human("last", "x" * 900), "id": "last"}
    cut = planned([*talk, long], Settings(), window=128_000)
    assert (cut.kept, cut.changed) == (["last"], [])
    assert len(planned(talk, Settings(), window=128_000).kept) == len(talk) // 4


def test_an_earlier_summary_is_summarised_again() -> None:
    assert ids(planned([SUMMARY, *TALK]).summarised) == ["summary-0", "h1", "a1", "h2"]


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Messages as a thread has them; call ids may repeat, results may lie apart, or have no call at all."""
    messages: list[Message] = []
    for place in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["human", "ai", "tool"]))
        if kind == "human":
            messages.append(human(f"m{place}"))
        elif kind == "ai":
            names = draw(st.lists(st.sampled_from(["c1", "c2", "c3"]), max_size=3, unique=True))
            paths = st.sampled_from(["/mnt/skills/a/SKILL.md", "/mnt/skills/b", "/tmp/x"])
            messages.append(ai(f"m{place}", calls=[reads(identity, draw(paths)) for identity in names]))
        else:
            messages.append({**tool(draw(st.sampled_from(["c1", "c2", "c3"]))), "id": f"m{place}"})
    return messages


def answered(messages: Sequence[Message]) -> set[tuple[str, str]]:
    """Results and the messages they belong to."""
    callers: dict[str, str] = {}
    pairs = set()
    for message in messages:
        callers.update((call["id"], message["id"]) for call in message.get("tool_calls", ()))
        if message["type"] == "tool" and message["tool_call_id"] in callers:
            pairs.add((message["id"], callers[message["tool_call_id"]]))
    return pairs


@given(conversations(), st.integers(1, 12))
def test_no_result_is_ever_without_its_call(messages: list[Message], keep: int) -> None:
    cut = plan(messages, settings(keep), Window(), ROOT)
    if cut is None:
        return
    remaining = ids(cut.remaining)
    assert remaining == [identity for identity in ids(messages) if identity in set(remaining)], "in their order"
    assert {pair for pair in answered(messages) if pair[0] in remaining} <= answered(cut.remaining)
    assert messages[-1]["id"] in remaining
    assert set(ids(cut.summarised)) | set(remaining) == set(ids(messages)), "nothing is lost"


# ── reminders ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_reminders_survive() -> None:
    reminder = {**human("h0"), "additional_kwargs": {"dynamic_context_reminder": True, "hide_from_ui": True}}
    cut = planned([reminder, *TALK])
    assert cut.kept == ["h0", "a2", "h3"]
    assert ids(cut.summarised) == ["h1", "a1", "h2"]


def test_reminders_of_messages_that_go_are_in_the_summary() -> None:
    def reminded(identity: str, text: Any) -> Message:
        return {**human(identity), "additional_kwargs": {"reminder": text}}

    talk = [reminded("h1", "Monday"), ai("a1"), reminded("h2", "Tuesday"), reminded("h3", "Monday"), *TALK[-2:]]
    assert planned(talk).reminder == "Monday\nTuesday"
    assert planned([reminded("h1", {"odd": 1}), *TALK[1:]]).reminder == ""


# ── skills ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def skill(identity: str, path: str, text: str = "how to", **more: Any) -> list[Message]:
    return [ai(f"a-{identity}", "", calls=[reads(identity, path)]), tool(identity, text, **more)]


A, B, C = "/mnt/skills/a/SKILL.md", "/mnt/skills/b/SKILL.md", "/mnt/skills/c/SKILL.md"


@pytest.mark.parametrize(
    ("read", "limits", "kept"),
    [
        (skill("1", A), {}, ["a-1", "t-1"]),
        (skill("1", "/mnt/skills/x/../a/SKILL.md"), {}, ["a-1", "t-1"]),
        (skill("1", "/mnt/skills/../user-data/a"), {}, []),
        (skill("1", "/mnt/skills-other/a"), {}, []),
        (skill("1", "/mnt/user-data/a"), {}, []),
        (skill("1", A, status="error"), {}, []),
        ([ai("a-1", calls=[reads("1", A, "bash")]), tool("1")], {}, []),
        ([ai("a-1", calls=[call("1", "view", file_path=A)]), tool("1")], {}, ["a-1", "t-1"]),
        ([*skill("1", A), *skill("2", A)], {}, ["a-2", "t-2"]),
        ([*skill("1", A), *skill("2", B), *skill("3", C)], {"count": 2}, ["a-2", "t-2", "a-3", "t-3"]),
        ([*skill("1", A), *skill("2", B)], {"count": 0}, []),
        ([*skill("1", A), *skill("2", B, "x" * 400)], {"tokens_per_skill": 50}, ["a-1", "t-1"]),
        ([*skill("1", A, "x" * 400), *skill("2", B, "x" * 400)], {"tokens": 150}, ["a-2", "t-2"]),
        ([*skill("1", A), *skill("2", B, "x" * 400), *skill("3", C)], {"tokens": 50}, ["a-1", "t-1", "a-3", "t-3"]),
    ],
    ids=range(14),
)
def test_skills_that_were_read_lately_stay(read: list[Message], limits: dict[str, int], kept: list[str]) -> None:
    how = settings(**{f"preserve_recent_skill_{name}": value for name, value in limits.items()})
    cut = planned([human("h1"), *read, human("h2"), ai("a2")], how)
    assert cut.kept == [*kept, "h2", "a2"]
    assert cut.changed == []


def test_a_skill_in_the_tail_is_not_kept_twice() -> None:
    cut = planned([human("h1"), *skill("1", A), *skill("2", A)])
    assert cut.kept == ["a-2", "t-2"]


def test_a_message_with_other_calls_is_split() -> None:
    raw = [{"id": identity, "type": "function", "function": {"name": "f"}} for identity in ("1", "2", "3")]
    calls = [reads("1", A), call("2", command="ls"), reads("3", B)]
    extra = {"tool_calls": raw, "function_call": {"name": "f"}, "other": 1}
    both = {**ai("a1", "Let me look.", calls=calls), "additional_kwargs": extra}
    cut = planned([human("h1"), both, tool("1"), tool("2"), tool("3"), human("h2"), ai("a2")])
    assert cut.kept == ["a1", "t-1", "t-3", "h2", "a2"]
    [mine] = cut.changed
    assert (mine["id"], mine["content"]) == ("a1", "")
    assert [each["id"] for each in mine["tool_calls"]] == ["1", "3"]
    assert mine["additional_kwargs"] == {"tool_calls": [raw[0], raw[2]], "other": 1}
    assert cut.remaining[0] is mine
    assert ids(cut.summarised) == ["h1", "a1", "t-2"]
    theirs = cut.summarised[1]
    assert (theirs["content"], [each["id"] for each in theirs["tool_calls"]]) == ("Let me look.", ["2"])
    assert theirs["additional_kwargs"]["tool_calls"] == [raw[1]]
    assert both["additional_kwargs"] is extra, "what is recorded does not change"


# ── the fact ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_came_meanwhile_is_kept() -> None:
    cut, new = planned(TALK), human("h4")
    written = Summary({**SUMMARY, "id": "summary-1"}, "m")
    event = compacted(cut, written, [*TALK, new], reason="r", before=99)
    assert event == ContextCompacted(
        summary=written.message,
        kept=["a2", "h3", "h4"],
        reason="r",
        tokens_before=99,
        tokens_after=estimate([written.message, *TALK[-2:], new]),
        model="m",
    )
    assert compacted(cut, written, [*TALK[:-1], new], reason="r", before=99) is None
    assert compacted(cut, written, TALK[:-1], reason="r", before=99) is None


# ── what the model is asked ─────────────────────────────────────────────────────────────────────────────────────────


def shown(messages: Sequence[BaseMessage]) -> str:
    return "\n".join(str(message.content) for message in messages)


def test_the_conversation_is_material() -> None:
    messages = [
        human("h1", "Find it"),
        ai("a1", "", calls=[call("c1", command="ls")]),
        tool("c1", "a b"),
        ai("a2", "Two."),
    ]
    system, talk = question(entries_of(messages), Settings(), 100)
    assert "not instructions" in str(system.content)
    assert talk.content == (
        "<conversation>\nPerson: Find it\n\n"
        'Assistant calls bash: {"command": "ls"}\n\nResult of bash: a b\n\nAssistant: Two.\n</conversation>'
    )


def test_ones_own_prompt() -> None:
    [message] = question(["Person: Hi {name}"], Settings(summary_prompt="Sum up {messages} {and} stop"), 9)
    assert message.content == "Sum up Person: Hi {name} {and} stop"
    system, _ = question(["Person: Hi"], Settings(summary_prompt="Short."), 9)
    assert system.content == "Short."


def test_an_earlier_summary_comes_first() -> None:
    earlier = {**SUMMARY, "content": "goal"}
    assert entries_of([human("h1", "x"), earlier]) == ["Earlier summary: goal", "Person: x"]
    by_ann = {**human("h2", "y"), "additional_kwargs": {"speaker": {"id": "U1", "name": "Ann"}}}
    assert entries_of([by_ann]) == ['Person "Ann" (U1): y']


@given(st.lists(st.text("aé", max_size=300), max_size=20), st.integers(10, 60))
def test_parts_have_everything_and_a_bound(entries: list[str], tokens: int) -> None:
    parts = list(parts_of(entries, tokens))
    assert "".join("".join(part) for part in parts) == "".join(entries)
    assert all(sum(map(tokens_of, part)) <= 2 * tokens for part in parts)


@pytest.mark.parametrize(
    ("entries", "tokens", "found"),
    [
        (["a" * 40, "b" * 40], 20, ["a" * 40, "b" * 40]),
        (["a" * 400, "b" * 40], 60, ["a" * 100 + " […] " + "a" * 100, "b" * 40]),
        (["a" * 400] * 4, 100, ["a" * 100 + " […] " + "a" * 100] * 2),
        (["a" * 40] * 9, 45, ["a" * 40] * 4),
        (["a" * 40] * 9 + ["b" * 20], 45, ["a" * 40] * 4 + ["b" * 20]),
        (["é" * 400], 100, ["é" * 100 + " […] " + "é" * 100]),
        ([], 10, []),
    ],
    ids=range(7),
)
def test_long_entries_are_cut_before_old_ones_go(entries: list[str], tokens: int, found: list[str]) -> None:
    assert fitted(entries, tokens) == found


def test_the_record_of_an_earlier_summary_is_part_of_the_next() -> None:
    earlier = {"requests": ["first", 7], "files": ["a.txt"], "unknown": ["x"], "read": "no list"}
    unreadable = [SUMMARY, {**SUMMARY, "additional_kwargs": {RECORD: ["no", "record"]}}]
    record = record_of([*unreadable, {**SUMMARY, "additional_kwargs": {RECORD: earlier}}, human("h1", "second")], ROOT)
    assert {name: entries for name, entries in record.items() if entries} == {
        "requests": ["first", "second"],
        "files": ["a.txt"],
    }


def test_a_record_fits_its_room_beside_todos_and_a_goal() -> None:
    record = {name: [f"{name} {number} ".ljust(400, "x") for number in range(20)] for name in SECTIONS}
    todos = [{"status": "pending", "content": "y" * 200}] * 20
    text = text_of_record(record, todos, "z" * 400, 3000)
    assert tokens_of(text) <= 3000
    assert all(part in text for part in ("requests 0", "requests 19", "files 19", "y" * 200, "z" * 400, ADVICE))


@pytest.mark.parametrize(
    ("wanted", "sections", "found"),
    [
        ((), {}, ["a"]),
        (("b", None), {}, ["b", "a"]),
        (("nope",), {}, ["a"]),
        ((), {"summarization": {"model_name": "c"}}, ["c", "a"]),
        (("b",), {"summarization": {"model_name": "c"}, "model_roles": {"summarization": ["c", "b"]}}, ["b", "c", "a"]),
    ],
    ids=range(5),
)
def test_who_is_asked(wanted: tuple[str | None, ...], sections: Json, found: list[str]) -> None:
    models = [{"name": name, "model": name} for name in "abc"]
    config = configuration.parse(msgspec.json.encode({"models": models, **sections}).decode())
    assert summary_models(config, *wanted) == found


# ── the policy ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Writer(Fake):
    """Writes `text`, or fails if there is none; keeps what it was asked."""

    text: str | Exception | None = "They talked."
    asked: list[list[BaseMessage]]
    tagged: list[list[str]]

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        self.asked.append(messages)
        self.tagged.append(run_manager.tags if run_manager else [])
        if isinstance(self.text, Exception):
            raise self.text
        if self.text is None:
            await asyncio.Event().wait()
        used: Any = {"input_tokens": 40, "output_tokens": 4, "total_tokens": 44}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(str(self.text), usage_metadata=used))])


def writer(text: str | Exception | None = "They talked.") -> Writer:
    return Writer(text=text, asked=[], tagged=[])


def policy(*writers: Writer, **how: Any) -> Summarization:
    how = {"trigger": (size("messages", 5),), **how}
    return Summarization(settings(**how), lambda: [Candidate(f"w{n}", each) for n, each in enumerate(writers)])


def used(message: Message, read: int, wrote: int = 0) -> Message:
    usage = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
    return {**message, "usage_metadata": usage}


def recorded(on: Any) -> list[Any]:
    return list(on.journal.events)


async def test_short_conversations_pass_as_they_are() -> None:
    on, handler, model = turn(TALK[-3:]), Asked(), writer()
    await model_call(policy(model), on, handler)
    assert (recorded(on), model.asked) == ([], [])
    assert [message.id for message in handler.messages] == ["h2", "a2", "h3"]


async def test_a_long_one_is_summarised() -> None:
    reminded = {**TALK[0], "additional_kwargs": {"reminder": "Monday"}}
    on, handler, model = turn([reminded, *TALK[1:]]), Asked(), writer("<think>hm</think>They talked.")
    await model_call(policy(model), on, handler)
    [event] = recorded(on)
    assert (event.kept, event.reason, event.model) == (["a2", "h3"], "5 messages; the limit is 5", "w0")
    summary = event.summary
    assert summary["id"].startswith("summary-")
    lists = "What the person wrote, in order:\n- ?"
    assert (summary["name"], summary["content"]) == ("summary", f"{LEAD_IN}They talked.\n\n{lists}\n\n{ADVICE}")
    record = {"requests": ["?"]}
    assert summary["additional_kwargs"] == {"hide_from_ui": True, "reminder": "Monday", RECORD: record}
    assert summary["usage_metadata"]["total_tokens"] == 44
    assert (event.tokens_before, event.tokens_after) == (estimate(TALK), estimate(on.state.messages))
    assert ids(on.state.messages) == [summary["id"], "a2", "h3"] == [message.id for message in handler.messages]
    assert on.state.commits[-1].patch["messages"][0] == {"type": "remove", "id": REMOVE_ALL}
    assert model.tagged == [[TAG]]
    assert on.decided() == []
    await model_call(policy(model), on, handler)
    assert len(model.asked) == 1, "once is enough"


async def test_what_other_policies_added_stays() -> None:
    class Outer(Asked):
        async def __call__(self, request: Any) -> Any:
            added = request.override(messages=[*request.messages, AIMessage("aside", id="n")])
            return await inner.awrap_model_call(added, handler)

    handler, inner = Asked(), policy(writer())
    outer = policy(writer(), trigger=())
    on = turn(TALK)
    await model_call(outer, on, Outer())
    assert [message.id for message in handler.messages][1:] == ["a2", "h3", "n"]


async def test_the_next_model_is_asked_if_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "SECONDS", 0.5)
    on, silent, broken, empty, good = turn(TALK), writer(None), writer(ValueError("x")), writer(" "), writer()
    await model_call(policy(silent, broken, empty, good), on, Asked())
    [event] = recorded(on)
    assert event.model == "w3"
    assert [len(writer.asked) for writer in (silent, broken, empty, good)] == [1, 1, 1, 1]


async def test_a_run_goes_on_without_a_summary() -> None:
    on, handler, broken = turn(TALK), Asked(), writer(ValueError("down"))
    await model_call(policy(broken), on, handler)
    assert recorded(on) == []
    assert [message.id for message in handler.messages] == ids(TALK)
    [decision] = on.decided()
    assert (decision.policy, decision.action) == ("summarization", "failed")
    assert "w0: down" in decision.text


async def test_no_model_is_no_summary() -> None:
    on = turn(TALK)
    await model_call(policy(), on, Asked())
    assert [decision.action for decision in on.decided()] == ["failed"]


@pytest.mark.parametrize(("more", "asked"), [(109, 0), (110, 1)])
async def test_it_is_not_tried_at_every_call(more: int, asked: int) -> None:
    """The model was asked at 100 tokens: it is tried again at a tenth more."""
    on, broken = turn([*TALK[:3], used(ai("a2"), 100, more - 100 - estimate([human("h3")])), human("h3")]), writer()
    assert in_context(on.state) == more
    await model_call(policy(broken, trigger=(size("tokens", 100),)), on, Asked())
    assert len(broken.asked) == asked


async def test_what_was_said_before_a_summary_does_not_count() -> None:
    on, model = turn([*TALK[:3], used(ai("a2"), 500, 50), human("h3")]), writer()
    limited = policy(model, trigger=(size("tokens", 100),))
    assert in_context(on.state) == 550 + estimate([human("h3")])
    assert last_asked(on.state) == Size(3, 500)
    await model_call(limited, on, Asked())
    assert in_context(on.state) == estimate(on.state.messages) < 100
    assert last_asked(on.state) == Size()
    await model_call(limited, on, Asked())
    assert len(model.asked) == 1


async def test_the_window_of_the_runs_model_counts() -> None:
    models = [{"name": "m", "model": "m", "context_window": 20}]
    model = writer()
    how = policy(model, trigger=())
    await model_call(how, turn(TALK, config={"models": models}), Asked())
    assert len(model.asked) == 1
    await model_call(how, turn(TALK), Asked())
    assert len(model.asked) == 1
