"""Events in people's words: each type has a phrase in both languages, and its templates say what the fields hold."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import pytest

import core.catalogue  # noqa: F401 - declares every type
from core.errors import Invalid
from core.events import Event, catalogue
from core.phrases import LONGEST, QUOTED, UNCUT, Language, Phrase, counted, detail, paths
from core.wording import text_of_event
from tests.golden.test_golden import ours
from tests.support.phrases import examples

LANGUAGES: tuple[Language, ...] = get_args(Language)
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.mark.parametrize("name", sorted(ours()))
def test_every_event_of_the_product_has_words_in_both_languages(name: str) -> None:
    cls = ours()[name]
    phrase = cls.phrase
    assert isinstance(phrase, Phrase), f"{cls.__module__}.{cls.__name__} has no `phrase`"
    assert phrase.en
    assert not CHINESE.search(phrase.en + phrase.detail)
    assert CHINESE.search(phrase.zh)
    fields = {field.name for field in msgspec.structs.fields(cls)}
    read = [paths(phrase.template(language)) for language in LANGUAGES]
    assert {path.split(".")[0] for path in read[0]} <= fields
    assert read[0] == read[1] or phrase.detail_zh, "a template in Chinese reads the same fields"


def test_the_words_of_a_language_are_not_in_the_other() -> None:
    """A template in Chinese that was left out is the English one: it has no words then."""
    for cls in ours().values():
        assert cls.phrase is not None
        words = re.sub(r"\{[^}]*\}|<[^<>?{}\s]+\?", "", cls.phrase.template("zh"))
        assert not re.findall(r"[a-z]{3,}", words), cls


def test_the_catalogue_imports_every_event_type() -> None:
    code = "import core.catalogue; from core.events import catalogue; print(*catalogue())"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert sorted(names.split()) == sorted(ours())
    assert catalogue().keys() >= ours().keys()


class Plan(msgspec.Struct):
    at: str = ""
    cron: str = ""


class BellRung(Event, frozen=True):
    """Somebody rang."""

    tower: str = ""
    times: int | None = None
    loud: bool = False
    names: tuple[Any, ...] = ()
    plan: Plan = msgspec.field(default_factory=Plan)
    message: Mapping[str, Any] = msgspec.field(default_factory=dict)
    share: float = 0


AI = {"type": "ai", "content": [{"text": "I ring"}], "tool_calls": [{"name": "bash", "args": {"command": "ls"}}]}
APPROVAL = {"value": {"type": "approval", "action_requests": [{"name": "bash", "args": {"command": "rm x"}}]}}
CASES: list[tuple[str, Event, str]] = [
    ("plain", BellRung(), "plain"),
    ("{tower}, {times}", BellRung(tower="a", times=0), "a, 0"),
    ("at {tower}< by {times}>", BellRung(), "at"),
    ("<at {tower}><!tower?nowhere>", BellRung(), "nowhere"),
    ("<at {tower}><!tower?nowhere>", BellRung(tower="a"), "at a"),
    ("<loud?!><!loud?…>", BellRung(loud=True), "!"),
    ("<times=2?twice><times!=2?{times} times>", BellRung(times=2), "twice"),
    ("<times=2?twice><times!=2?{times} times>", BellRung(times=3), "3 times"),
    ("<times=2?twice><times!=2?{times} times>", BellRung(), ""),
    ("<tower&!times?silent>", BellRung(tower="a"), "silent"),
    ("<tower&!times?silent>", BellRung(tower="a", times=1), ""),
    ("{plan.at}{plan.cron.x}", BellRung(plan=Plan(at="noon", cron="x")), "noon"),
    ("{names}", BellRung(names=("a", "", 2, None)), "a, 2"),
    (
        "{names.name} <{names.error}>",
        BellRung(
            names=(
                {"name": "a"},
                {"name": "b", "error": "no"},
            )
        ),
        "a, b no",
    ),
    ("{message}", BellRung(message={"b": 1, "a": 2}), "b, a"),
    ("{message:json}", BellRung(message={"b": 1, "a": [2]}), '{"b":1,"a":[2]}'),
    ("{share} {times}", BellRung(share=30.0, times=1), "30 1"),
    ("{share}", BellRung(share=0.25), "0.25"),
    ("{names:count} {message:count}", BellRung(names=(1, 2)), "2 0"),
    ("{names:count} bell<names:count!=1?s>", BellRung(names=(1,)), "1 bell"),
    ("{names:count} bell<names:count!=1?s>", BellRung(names=(1, 2)), "2 bells"),
    ("{tower:quote}", BellRung(tower="  "), ""),
    ("{tower:quote}", BellRung(tower="a\n b"), "“a b”"),
    ("{tower:short}", BellRung(tower="a" * 100), "a" * 59 + "…"),
    ("{tower:quote}", BellRung(tower="a" * 100), "“" + "a" * (QUOTED - 1) + "…”"),
    ("{message:quote} {message:calls}", BellRung(message=AI), "“I ring” → bash(ls)"),
    ("{names:quote}", BellRung(names=("a", "", "b")), "“a”; “b”"),
    ("{names:last}", BellRung(names=("a", "b", "c")), "“b”; “c”"),
    ("{times:seconds}", BellRung(times=999), "999 ms"),
    ("{times:seconds}", BellRung(times=2_340), "2.3 s"),
    ("{times:next} {times:signed}", BellRung(times=1), "2 +1"),
    ("{times:signed}", BellRung(times=-1), "-1"),
    ("{times:seconds}", BellRung(times=2_250), "2.3 s"),
    ("{times:seconds}{times:signed}{times:next}", BellRung(), ""),
    ("{tower:seconds} {tower:signed}", BellRung(tower="high"), "high high"),
    ("{tower:quote}", BellRung(tower="𝄞" * 100), "“" + "𝄞" * (QUOTED - 1) + "…”"),
    ("{tower:count}", BellRung(tower="𝄞𝄞"), "2"),
    ("{message.a.b}", BellRung(message={"a": {"b": True}}), "true"),
    ("{message.constructor}{message.length}", BellRung(message={"a": 1}), ""),
    ("{message:subject}", BellRung(message={"command": "ls", "description": "look"}), "look"),
    ("{message:arguments}", BellRung(message={"command": "ls", "description": "look"}), "ls"),
    ("{message:subject}", BellRung(message={"n": 1}), '{"n":1}'),
    ("{message:subject}", BellRung(message={"todos": [{"status": "completed"}, {"status": "x"}]}), "☑ 1/2"),
    ("{message:subject}", BellRung(message={"filepaths": ["a", "b"]}), "a, b"),
    ("{names:decisions}", BellRung(names=({"policy": "p", "action": "stopped", "text": "why"},)), "⟨p stopped: why⟩"),
    ("{names:hosts}", BellRung(names=({"host": "h", "port": 1, "connections": 2, "sent": 3},)), "h:1 ×2 (↑ 3 B ↓ 0 B)"),
    ("{names:hosts}", BellRung(names=({"host": "h", "port": 1, "connections": 2, "refused": "no"},)), "h:1 ×2 (✗ no)"),
    ("{names:approvals}|{names:questions}", BellRung(names=(APPROVAL, {"value": "Who?"})), "bash rm x|“Who?”"),
    ("{names:questions}", BellRung(names=({"value": {"n": 1}},)), '{"n":1}'),
    ("{message:calls}", BellRung(message={"tool_calls": ["x", {"name": "a", "args": "y"}, {}]}), "→ a() → ?()"),
    # texts of strangers are no templates, and command nothing
    ("{tower}", BellRung(tower="{names} <!names?x>"), "{names} <!names?x>"),
    ("{tower}", BellRung(tower="a\x1b[2J\u202eb\x00c\n"), "abc"),
    ("{tower}", BellRung(tower="a" * 3 * LONGEST), "a" * (LONGEST - 1) + "…"),
]


@pytest.mark.parametrize(("template", "event", "text"), CASES)
def test_a_template_says_what_fields_hold(template: str, event: Event, text: str) -> None:
    assert paths(template) or template == "plain"
    assert detail(template, event) == text
    stored = msgspec.json.decode(msgspec.json.encode(event))
    if "0" not in text:
        assert detail(template, stored) == text, "as of the stored event"


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "run", "0 runs"),
        (1, "run", "1 run"),
        (2, "failed run", "2 failed runs"),
        (1, "entry", "1 entry"),
        (3, "entry", "3 entries"),
        (2, "reply", "2 replies"),
        (2, "day", "2 days"),
    ],
)
def test_counts_have_their_nouns(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_no_event_says_one_things() -> None:
    """In the examples each list has one item, and each number is 1."""
    texts = [f"{type(event).__name__}: {text_of_event(event)}" for event in examples()]
    assert [text for text in texts if re.search(r"(?<![+→] )\b1 (?!tokens|is\b|ms\b)[a-z]+s\b", text)] == []


def test_texts_in_a_pipe_are_whole() -> None:
    long = BellRung(tower="a" * 3 * LONGEST)
    assert detail("{tower:quote}", long, UNCUT) == f"“{long.tower}”"


@pytest.mark.parametrize("template", ["{tower:loudly}", "<{tower}", "{tower", "a > b", "<a<b>>"])
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="not a template"):
        paths(template)


def test_chinese_takes_its_punctuation() -> None:
    phrase = Phrase("Bell rung", "钟声响起", "{tower}: {times}, {loud}")
    assert phrase.template("zh") == "{tower}：{times}，{loud}"
    assert (phrase.name(), phrase.name("zh")) == ("Bell rung", "钟声响起")


@pytest.mark.parametrize(
    "words", [("Bell rung", "钟声响起", "<{tower"), ("Bell rung", "钟声响起", "{tower:loudly}"), 7]
)
def test_an_event_type_with_words_that_cannot_be_shown_is_not_declared(words: Any) -> None:
    with pytest.raises(Invalid, match="phrase: "):
        type("LampLit", (Event,), {"phrase": Phrase(*words) if isinstance(words, tuple) else words}, frozen=True)
