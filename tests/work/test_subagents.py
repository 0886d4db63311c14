"""Sessions that give work to subagents."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from tests.work.session import OUTPUTS, WORKSPACE, Session, Work

pytestmark = pytest.mark.long(keep=3)

STEPS = 80
SHORT = STEPS if os.environ.get("SIKA_LONG") else 6
"""Steps of all but the first subagent."""


async def counts(subagent: Session, number: int, steps: int) -> None:
    """A subagent that counts in steps, and reports."""
    await subagent._asked()
    for step in range(steps):
        text = await subagent.bash(f"echo part {number} step {step} | tee -a part{number}.txt")
        assert f"part {number} step {step}" in text
    await subagent.answers(f"Part {number} has {steps} lines.")


async def test_twelve_subagents(work: Work) -> None:
    """Four rounds of three; the first one takes 80 steps."""
    session = await work.session("Count in twelve parts.", subagent_enabled=True)
    for first in range(0, 12, 3):
        calls, workers = [], []
        for number in range(first, first + 3):
            steps = STEPS if number == 0 else SHORT
            prompt = f"Count part no. {number} of twelve."
            calls.append(
                ("task", {"description": f"part {number}", "prompt": prompt, "subagent_type": "general-purpose"})
            )
            workers.append(counts(work.subagent(session, prompt), number, steps))
        ids = await session.begins(*calls)
        await asyncio.gather(*workers)
        for number, text in enumerate(await session.resumed(ids), first):
            assert f"Part {number} has {STEPS if number == 0 else SHORT} lines." in text
    text = await session.bash("cat part*.txt | sort | uniq -d | wc -l; cat part*.txt | wc -l")
    assert text.split()[:2] == ["0", str(STEPS + 11 * SHORT)]
    await session.answers("All parts are counted.")


async def test_what_a_subagent_writes_is_there(work: Work) -> None:
    session = await work.session("Have somebody write the glossary.", subagent_enabled=True)
    prompt = "Write the glossary of 3 words to outputs/glossary.md."
    ids = await session.begins(
        ("task", {"description": "glossary", "prompt": prompt, "subagent_type": "general-purpose"})
    )
    writer = work.subagent(session, prompt)
    await writer._asked()
    await writer.write(f"{OUTPUTS}/glossary.md", "# Glossary\n\n- apple\n- pear\n- plum\n")
    assert "plum" in await writer.read(f"{OUTPUTS}/glossary.md")
    await writer.answers("The glossary has 3 words; it is in outputs/glossary.md.")
    [report] = await session.resumed(ids)
    assert "The glossary has 3 words" in report
    assert "- plum" in await session.read(f"{OUTPUTS}/glossary.md")
    await session.call("present_files", filepaths=[f"{OUTPUTS}/glossary.md"])
    await session.answers("It is written.")


async def test_a_batch_over_forty_rows(work: Work) -> None:
    session = await work.session("Classify the forty rows of rows.csv.", subagent_enabled=True)
    session.puts("workspace/rows.csv", "id,word\n" + "".join(f"{n},word{n}\n" for n in range(40)))

    async def classifies(subagent: Session, number: int) -> None:
        await subagent._asked()
        await subagent.answers(f"word{number} is {'even' if number % 2 == 0 else 'odd'}")

    workers = [
        asyncio.ensure_future(classifies(work.subagent(session, f"Is <word{n}> of row {n}. even or odd?"), n))
        for n in range(40)
    ]
    batch = {
        "description": "classify",
        "subagent_type": "general-purpose",
        "template": "Is <{word}> of row {id}. even or odd?",
        "input": f"{WORKSPACE}/rows.csv",
        "over": "rows",
    }
    text = await session.call("tasks", **batch)
    await asyncio.gather(*workers)
    path = next(word.strip("`.,'\"()") for word in text.split() if ".jsonl" in word)
    rows = [json.loads(line) for line in (await session.bash(f"cat {path}")).splitlines() if line.startswith("{")]
    assert len(rows) == 40
    assert all(f"word{n} is {'even' if n % 2 == 0 else 'odd'}" in json.dumps(row) for n, row in enumerate(rows))
    await session.answers("20 are even.")
