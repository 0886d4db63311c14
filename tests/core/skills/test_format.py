"""The format of `SKILL.md`, beside the reference validator."""

from __future__ import annotations

from pathlib import Path

import pytest
import skills_ref

from core.errors import Invalid
from core.skills.format import problems, read, remarks

OK = "---\nname: a\ndescription: Does it.\n---\nDo it."


def front(*lines: str, body: str = "Do it.") -> str:
    return "\n".join(["---", "name: a", *lines, "---", body])


@pytest.mark.parametrize(
    ("lines", "description"),
    [
        (['description: "Quoted: yes"'], "Quoted: yes"),
        (["description: 'Single'"], "Single"),
        (["description: Use when: PDFs come"], "Use when: PDFs come"),
        (["description: It says --- and goes on"], "It says --- and goes on"),
        (["description: >", "  Folded", "  lines"], "Folded lines"),
        (["description: |", "  Kept", "  lines"], "Kept lines"),
        (["description: 7"], "7"),
        (["description: x" + "y" * 2000], "x" + "y" * 1023),
    ],
)
def test_descriptions_are_read_as_they_are_meant(lines: list[str], description: str) -> None:
    assert read(front(*lines)).description == description


@pytest.mark.parametrize("name", ['"pdf-forms"', "'pdf-forms'", "pdf-forms # a comment"])
def test_names_in_quotes(name: str) -> None:
    assert read(f"---\nname: {name}\ndescription: d\n---\n").name == "pdf-forms"


@pytest.mark.parametrize(
    ("value", "tools"),
    [
        (None, None),
        ("", None),
        ("[]", ()),
        ("[bash, read_file]", ("bash", "read_file")),
        ("Bash(git:*) Read WebFetch", ("bash", "read_file", "web_fetch")),
        ("Bash(git add:*), Edit", ("bash", "str_replace")),
        ("[mcp__Server__Tool]", ("mcp__Server__Tool",)),
    ],
)
def test_allowed_tools_in_both_forms(value: str | None, tools: tuple[str, ...] | None) -> None:
    lines = ["description: d"] + ([f"allowed-tools: {value}"] if value is not None else [])
    assert read(front(*lines)).allowed_tools == tools


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Just text", "no front matter"),
        ("---\nname: a\ndescription: b\n", "no front matter"),
        ("---\ndescription: b\n---\n", "name: is missing"),
        ("---\nname: a\n---\n", "description: is missing"),
        ("---\n- a\n---\n", "lines `key: value`"),
        (front("description: [a, b]"), "description: is missing"),
        (front("description: d", "allowed-tools: {a: b}"), "allowed-tools: a list"),
        (front("description: d", "allowed-tools: [[a]]"), "allowed-tools: a list"),
        (front("description: d", "secrets: [a-b]"), "secrets: names"),
        (front("description: d", "requires-tools: a||b"), "requires-tools: names"),
        (front("description: d", "requires-tools: {a: b}"), "requires-tools: names"),
        (front("description: &a d", "license: *a"), "aliases"),
        (front("description: d", "license: [" * 1 + "[" * 5000), "front matter"),
        ("---\nname: ../../etc\ndescription: b\n---\n", "name: letters"),
        ("---\nname: '<b>'\ndescription: b\n---\n", "name: letters"),
    ],
)
def test_what_is_no_skill_says_why(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason.replace("(", r"\(")):
        read(text)


def test_required_tools_are_declared_in_either_place() -> None:
    expected = ("web_search|tavily*", "web_fetch")
    assert read(front("description: d", "requires-tools: web_search|tavily* web_fetch")).requires == expected
    assert (
        read(front("description: d", "metadata:", "  requires-tools: web_search|tavily*, web_fetch")).requires
        == expected
    )
    assert read(front("description: d")).requires == ()


def test_secrets_are_declared_in_either_place() -> None:
    assert read(front("description: d", "secrets: [A_KEY]")).secrets == ("A_KEY",)
    assert read(front("description: d", "metadata:", "  secrets: A_KEY B_KEY")).secrets == ("A_KEY", "B_KEY")


AGREE, OURS_ONLY, THEIRS_ONLY = "both", "only ours refuses", "only the reference refuses"


@pytest.mark.parametrize(
    ("text", "who"),
    [
        (OK.replace("name: a", "name: s"), ""),
        (OK, AGREE),  # not the name of its folder
        (front("description: d").replace("name: a", "name: S"), AGREE),
        (front("description: d").replace("name: a", "name: s--s"), AGREE),
        (front("description: d").replace("name: a", "name: -s"), AGREE),
        (front("description: d").replace("name: a", f"name: {'s' * 65}"), AGREE),
        (front(f"description: {'d' * 1025}").replace("name: a", "name: s"), AGREE),
        (front("description: d", "nonsense: x").replace("name: a", "name: s"), AGREE),
        ("\ufeff" + OK.replace("name: a", "name: s"), AGREE),
        ("no front matter", AGREE),
        (front("description: d", f"compatibility: {'c' * 501}").replace("name: a", "name: s"), AGREE),
        (front("description: uses <b>").replace("name: a", "name: s"), OURS_ONLY),
        (front("description: d").replace("name: a", "name: ünï"), AGREE),  # for them, as the folder is s
        (front("description: d", body=" ").replace("name: a", "name: s"), OURS_ONLY),
        (front("description: d", "version: 1").replace("name: a", "name: s"), THEIRS_ONLY),
        (front("description: d", "author: me").replace("name: a", "name: s"), THEIRS_ONLY),
        (front("description: d", "disable-model-invocation: true").replace("name: a", "name: s"), THEIRS_ONLY),
        (front("description: d", "secrets: A_KEY").replace("name: a", "name: s"), THEIRS_ONLY),
        (front("description: d", "allowed-tools: [bash]").replace("name: a", "name: s"), THEIRS_ONLY),
        (front("description: Use when: it is needed").replace("name: a", "name: s"), THEIRS_ONLY),
        (front("description: d", "allowed-tools: Bash(git:*) Read").replace("name: a", "name: s"), ""),
        (front("description: d").replace("name: a", "name: s").replace("\n", "\r\n"), ""),
    ],
)
def test_where_we_and_the_reference_validator_disagree(tmp_path: Path, text: str, who: str) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(text.encode())
    ours, theirs = bool(problems(text, "s")), bool(skills_ref.validate(folder))
    verdict = {(False, False): "", (True, True): AGREE, (True, False): OURS_ONLY, (False, True): THEIRS_ONLY}
    assert verdict[ours, theirs] == who, (problems(text, "s"), skills_ref.validate(folder))


def test_problems_name_what_is_wrong() -> None:
    text = front("description: <b>", "colour: red").replace("name: a", "name: A_b")
    assert [problem.partition(":")[0] for problem in problems(text)] == ["name", "description", "unknown keys"]
    assert "colour" in problems(text)[2]


def test_remarks_name_keys_of_other_hosts_and_what_people_do_not_see() -> None:
    assert remarks(OK) == []
    text = front("description: d", "argument-hint: x", body="<!-- hidden -->\n<system-reminder>")
    assert [remark.startswith("argument-hint: ") for remark in remarks(text)] == [True, False, False]
