"""`sika eval run work`: who does the tasks right passes all, and who only says so passes none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.agent.setup.prompt import build
from actors.debugging.work.prompt import EXAMPLE, valid_part, without
from actors.debugging.work.runner import Choice, Work, chosen_tasks
from actors.debugging.work.task import OUTPUTS, TASKS
from actors.wiring import compose
from channels.cli.look.eval import lines
from channels.terminal.text import Style
from core.errors import Invalid
from core.replay.evaluation.results import Evaluation
from tests.support import warm
from tests.support.model_server import ModelServer, ToolCall, Turn

pytestmark = pytest.mark.anyio

FACTS = {
    "I am Ines": "Works on the upload service of a shipyard",
    "favourite colour is violet": "The favourite colour is violet",
}
CLEAN = "name,email,born\\nAda,ada@x.org,1815-12-10\\nEve,eve@x.org,2001-03-04\\n"
SERVER = """import sys, json
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit
class H(BaseHTTPRequestHandler):
    def do_GET(self):
        parts = urlsplit(self.path)
        try:
            query = parse_qs(parts.query)
            code, text = 200, json.dumps({"sum": int(query["a"][0]) + int(query["b"][0])})
        except (KeyError, ValueError):
            code, text = 400, ""
        code = code if parts.path == "/add" else 404
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode() if code == 200 else b"")
HTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""
ROMAN = """P = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
     (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
def to_roman(n):
    if not 1 <= n <= 3999:
        raise ValueError(n)
    text = ""
    for value, name in P:
        text, n = text + name * (n // value), n % value
    return text
NUMBERS = {to_roman(n): n for n in range(1, 4000)}
def from_roman(text):
    if text not in NUMBERS:
        raise ValueError(text)
    return NUMBERS[text]
"""
STATS = """import sys, json, re
pairs = [m for line in sys.stdin if (m := re.fullmatch(r"(\\w+)=(-?\\d+)", line.strip()))]
values = {m[1]: int(m[2]) for m in pairs}
print(json.dumps({"count": len(pairs), "sum": sum(values.values()), "largest": max(values, key=values.get)}))
"""
FLATTEN = """import json
rows = ["path,value"]
def walk(value, path):
    if isinstance(value, dict):
        [walk(v, [*path, k]) for k, v in value.items()]
    elif isinstance(value, list):
        [walk(v, [*path, str(n)]) for n, v in enumerate(value)]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        rows.append(".".join(path) + f",{value}")
walk(json.load(open("tree.json")), [])
open("/mnt/user-data/outputs/leaves.csv", "w").write("\\n".join(rows) + "\\n")
"""
SUMS = """import csv, json
sums = {}
for row in csv.DictReader(open("sales.csv"), delimiter=";"):
    sums[row["region"]] = sums.get(row["region"], 0) + float(row["amount"].replace(",", "."))
json.dump({k: round(v, 2) for k, v in sums.items()}, open("/mnt/user-data/outputs/sums.json", "w"))
"""
LETTER = f"""import docx
d = docx.Document()
d.add_paragraph("Dear Mrs. Appleby, on 3 May we move to 12 Harbour Road.")
t = d.add_table(rows=2, cols=2)
for row, cells in zip(t.rows, (("kitchen", "1"), ("studio", "2"))):
    for cell, text in zip(row.cells, cells):
        cell.text = text
d.save("{OUTPUTS}/letter.docx")
"""
CHART = f"""import pandas, matplotlib.pyplot as plt
t = pandas.read_csv("points.csv")
plt.figure(figsize=(8, 5))
plt.plot(t["x"], t["y"])
plt.savefig("{OUTPUTS}/chart.png")
"""


def python(code: str) -> str:
    return f"python3 - <<'DONE'\n{code}\nDONE"


def file(name: str, text: str) -> str:
    return f"cat > {name} <<'DONE'\n{text}DONE"


SOLUTIONS: Mapping[str, Sequence[tuple[str, str]]] = {
    "mend_a_module": [
        (
            "sed -i 's/sum(prices) - discount/sum(prices) * (100 - discount) \\/ 100/; s/min(items, key=lambda item: "
            "item\\[0\\])\\[0\\]/min(items, key=lambda item: item[1])[0] if items else None/; s/items\\[number \\* "
            "size : number \\* size + size\\]/items[(number - 1) * size : number * size]/' cart.py",
            "Mended.",
        )
    ],
    "write_a_module": [(file("roman.py", ROMAN), "Written.")],
    "rename_a_function": [(r"sed -i -E 's/\bload(\(|$)/load_table\1/g' app/*.py", "Renamed.")],
    "find_the_change": [("true", "It was change 37.")],
    "write_a_filter": [(file("stats.py", STATS), "Written.")],
    "follow_the_rules_of_a_repository": [
        (
            'printf \'def area(width, height):\\n    """Returns the area."""\\n    if min(width, height) < 0:\\n'
            "        raise ValueError\\n    return width * height\\n' >> shapes.py; "
            "printf 'def test_area():\\n    assert shapes.area(2, 2) == 4\\n' >> test_shapes.py",
            "Added.",
        )
    ],
    "mend_a_cause": [
        (
            "sed -i \"s/pairs = .*/pairs = dict(p.split('=', 1) for p in text.split(';') if '=' in p)/; "
            "s/pairs\\['team'\\]/pairs.get('team') or 'nobody'/\" settings.py",
            "Mended.",
        )
    ],
    "sum_by_groups": [(python(SUMS), "Summed.")],
    "clean_a_table": [(f"printf '{CLEAN}' > {OUTPUTS}/people.csv", "Cleaned.")],
    "join_two_sources": [("true", "Nepal, with 135,150.")],
    "flatten_a_tree": [(python(FLATTEN), "Flattened.")],
    "read_a_workbook": [("true", "4,711 tons.")],
    "read_a_pdf": [("true", "It is marmalade.")],
    "write_a_letter": [(python(LETTER), "Written.")],
    "draw_a_chart": [(python(CHART), "Drawn.")],
    "write_a_server": [(file("app.py", SERVER), "It works.")],
    "find_in_a_long_log": [("true", "r153375.")],
    "mend_a_build": [
        (
            "sed -i 's/^    \\$(CC)/\\t$(CC)/' Makefile; sed -i '/int unused/d' main.c; "
            "sed -i 's/n <= count/n < count/; s/int total;/int total = 0;/' list.c",
            "Built.",
        )
    ],
    "measure_a_tree": [("true", "60 files of 20 130 bytes.")],
    "wait_for_a_job": [(f"echo 462 > {OUTPUTS}/code.txt", "462.")],
    "remember_a_person": [("", "Hello!"), ("", "At a shipyard, on the upload service.")],
    "take_a_correction": [("", "Green."), ("", "Violet."), ("", "Violet.")],
    "serve_two_people": [
        (f"echo north > {OUTPUTS}/ada.txt", "Done."),
        (f"echo south > {OUTPUTS}/bob.txt", "Done."),
        ("", "Ada north, Bob south."),
    ],
    "keep_a_long_conversation": [("", "OK")] * 12 + [("", "walnut, copper, saffron, indigo, marble, amber")],
    "work_over_several_messages": [
        (f"printf 'Ann\\nBea\\nCem\\n' > {OUTPUTS}/guests.txt", "Done."),
        (f"printf 'Ann\\nCem\\nDov\\n' > {OUTPUTS}/guests.txt", "Done."),
        (f"printf 'Dov\\nCem\\nAnn\\n' > {OUTPUTS}/guests.txt", "Done."),
        ("", "Three."),
    ],
}


def able(messages: Sequence[dict[str, Any]]) -> Turn:
    """Does the tasks by their solutions; what it has to remember must be in what it is shown."""
    texts = [text_of(message) for message in messages]
    if any("newFacts" in text for text in texts):
        facts = [fact for words, fact in FACTS.items() if any(words in text for text in texts)]
        new = [{"content": fact, "category": "context", "confidence": 0.9, "turn": 1} for fact in facts]
        return Turn(text=json.dumps({"newFacts": new}))
    notes = (n for n, text in enumerate(texts) if "showed none to the person" not in text)
    last = max(n for n in notes if messages[n]["role"] == "user")
    name, number = asked(texts[last])
    command, answer = SOLUTIONS[name][number]
    results = sum(message["role"] == "tool" for message in messages[last:])
    if command and results == 0:
        return Turn(tool_calls=(ToolCall("bash", {"description": "do it", "command": command}),))
    if name == "draw_a_chart" and results == 1:
        return Turn(tool_calls=(ToolCall("present_files", {"filepaths": [f"{OUTPUTS}/chart.png"]}),))
    if name in ("remember_a_person", "take_a_correction") and number == len(SOLUTIONS[name]) - 1:
        known = any(fact in text for fact in FACTS.values() for text in texts)
        return Turn(text=answer if known else "I do not know.")
    return Turn(text=answer)


def asked(text: str) -> tuple[str, int]:
    """Returns the task and the turn of a message."""
    turns = ((task.name, n, turn.text) for task in TASKS.values() for n, turn in enumerate(task.turns))
    return next((name, number) for name, number, words in turns if words in text)


def lazy(messages: Sequence[dict[str, Any]]) -> Turn:
    return Turn(text="Done.")


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def config_of(path: Path, models: ModelServer) -> Path:
    prices = {"input_per_million": 1.0, "output_per_million": 2.0, "currency": "USD"}
    common = {"base_url": models.url, "api_key": "none", "pricing": prices}
    path.write_text(json.dumps({"models": [{"name": name, "model": name, **common} for name in models.scripts]}))
    return path


async def evaluated(home: Path, choice: Choice) -> tuple[Evaluation, ModelServer]:
    async with ModelServer({"able": able, "lazy": lazy}) as models:
        options = compose.Options(home=home / "home", config=config_of(home / "config.yaml", models))
        async with compose.attach(options) as system:
            return await Work(options, system.log, choice).run(lambda sample: None), models


@pytest.mark.long
async def test_solutions_pass_and_words_do_not(tmp_path: Path) -> None:
    assert set(SOLUTIONS) == set(TASKS)
    evaluation, _ = await evaluated(tmp_path, Choice(models=["able", "lazy"], at_once=8))
    expected = {"able": "passed", "lazy": "failed"}
    wrong = [(s.case, s.model, s.error, s.checks) for s in evaluation.samples if s.outcome != expected[s.model]]
    assert wrong == []
    able_row, lazy_row = evaluation.rows
    assert (able_row.cell, able_row.passed, able_row.measured) == ("able/now", len(TASKS), len(TASKS))
    assert (lazy_row.cell, lazy_row.passed, lazy_row.comparison) == ("lazy/now", 0, "worse")
    chart = next(s for s in evaluation.samples if s.case == "draw_a_chart" and s.model == "able")
    assert (chart.steps, chart.refusals, chart.end) == (3, 0, "run.completed")
    assert chart.tokens > 0
    assert chart.cost == pytest.approx(chart.tokens / 1e6, rel=1)
    rows = [line.split() for line in lines(evaluation, Style())]
    [row] = [row for row in rows if row[:2] == ["draw_a_chart", "able/now"]]
    assert row[2:4] == ["passed", str(chart.tokens)]
    assert row[-2:] == ["3", "0"]


async def test_prompts_are_compared(tmp_path: Path) -> None:
    prompt = tmp_path / "short.md"
    prompt.write_text("You are short.")
    choice = Choice(models=["able"], prompts=[prompt], tasks=["find_the_*"])
    evaluation, models = await evaluated(tmp_path, choice)
    assert [(s.prompt, s.outcome) for s in evaluation.samples] == [("now", "passed"), ("short.md", "passed")]
    systems = [r.body["messages"][0]["content"] for r in models.requests if r.body["messages"][0]["role"] == "system"]
    assert [text == "You are short." for text in systems] == [False, False, True, True]


@pytest.mark.long
async def test_the_prompt_is_compared_with_itself_without_a_part(tmp_path: Path) -> None:
    parts = ["work_rules", "Make the smallest change", "Decide, and state in it"]
    evaluation, models = await evaluated(tmp_path, Choice(models=["able"], without=parts, tasks=["find_the_*"]))
    names = ["now", *(f"without {part}" for part in parts)]
    assert [(s.prompt, s.outcome) for s in evaluation.samples] == [(name, "passed") for name in names]
    assert [row.cell for row in evaluation.rows] == [f"able/{name}" for name in names]
    systems = [r.body["messages"][0]["content"] for r in models.requests if r.body["messages"][0]["role"] == "system"]
    whole, rules, rule, sentence = (text for text, again in zip(systems[::2], systems[1::2], strict=True) if again)
    assert set(whole.splitlines()) - set(rules.splitlines()) > {"<work_rules>", "</work_rules>"}
    [line] = set(whole.splitlines()) - set(rule.splitlines())
    assert line.startswith("- Make the smallest change")
    assert len(whole) - len(sentence) == len("Decide, and state in it what you assumed. ")
    assert "your last answer is all that is read. A step that" in sentence


@pytest.mark.parametrize("part", ["", " ", "no_such_section", "Eat more vegetables", "clarification", "ook before you"])
def test_a_part_that_the_prompt_does_not_have_is_refused(part: str) -> None:
    with pytest.raises(Invalid, match=r"part .*name a section \(work_rules, "):
        valid_part(part)


def test_every_section_rule_and_sentence_can_be_left_out() -> None:
    prompt = build(EXAMPLE)
    sections = re.findall(r"^<(\w+)>$", prompt, re.MULTILINE)
    rules = re.findall(r"^- ([A-Z][^\n]{12})", prompt, re.MULTILINE)
    assert len(sections) > 6
    assert len(rules) > 15
    for part in (*sections, *rules):
        less = without(prompt, part)
        assert len(less) < len(prompt)
        assert without(less, part) == less, "once"
    for section in sections:
        assert not {f"<{section}>", f"</{section}>"} & set(without(prompt, section).splitlines())


async def test_a_model_that_cannot_be_reached_is_no_failure(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    entry = {"name": "gone", "model": "gone", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}
    config.write_text(json.dumps({"models": [entry], "runs": {"max_model_attempts": 1}}))
    options = compose.Options(home=tmp_path / "home", config=config)
    async with compose.attach(options) as system:
        evaluation = await Work(options, system.log, Choice(tasks=["measure_a_tree"])).run(lambda sample: None)
    [sample] = evaluation.samples
    assert sample.outcome == "error"
    assert evaluation.completed is not None
    assert evaluation.completed.outcome == "incomplete"


async def test_what_is_named_wrongly_is_said_before_a_model_is_asked(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="task 'cooking': there are the kinds code, data, documents, shell, memory"):
        chosen_tasks(["cooking"])
    assert {task.kind for task in chosen_tasks(["shell"])} == {"shell"}
    for choice, words in ((Choice(models=["other"]), "model 'other'"), (Choice(prompts=[Path("no.md")]), "no.md")):
        with pytest.raises(Invalid, match=words):
            await evaluated(tmp_path, choice)


@pytest.mark.long
def test_the_demo_model_scores_what_it_scores(tmp_path: Path) -> None:
    """By the command line, with no model configured."""
    arguments = ("eval", "run", "work", "--task", "measure_a_tree", "--json", "--home", str(tmp_path / "home"))
    done = warm.run("channels.cli", *arguments, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    evaluation = json.loads(done.stdout)
    assert [(s["case"], s["model"], s["outcome"]) for s in evaluation["samples"]] == [
        ("measure_a_tree", "demo", "failed")
    ]
    assert evaluation["rows"][0]["measured"] == 1
