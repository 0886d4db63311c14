"""Tests of what a stranger tried: texts arrive whole and once, whatever the platform does."""

from __future__ import annotations

import re

from actors.chat.answers import FAILED
from actors.contracts.seat import Duplicating, Failing, Seat
from actors.contracts.table import Table
from core.control import UNSEEN
from core.events import RunFailed

MARKDOWN = """# Headings alpha

| table beta | right |
|---|---:|
| gamma | 1 |

1. nested delta
   - item
     ```python
     code = "epsilon"
     ```
- [x] task zeta

> quoted eta

**重要：**theta שלום iota 👩‍👩‍👧‍👦 <!channel> <at id=all></at> @everyone [kappa [b]](https://e.com/a_(b)) **lambda**"""
WORDS = re.compile(r"[a-z]{4,}|重要|שלום|👩‍👩‍👧‍👦")
GIANT = "w" * 9_000
CODE = """Inline `a<b && c>d`, `<!-- x -->`, `std::vector<int>`:

```c
#include <stdio.h>
if (a<b && c>d) puts("&amp;"); // 2>&1 ?a=1&b=2 *x* _y_
```
"""


class Held:
    """Texts of all kinds."""

    async def test_an_answer_of_all_kinds_of_text_arrives_whole(self, here: Table[Seat]) -> None:
        await here.answers(await here.hears("vera", "all kinds"), MARKDOWN)
        await here.shows("lambda", "vera")
        shown = "\n".join(here.seat.shown("vera"))
        assert set(WORDS.findall(MARKDOWN)) - set(WORDS.findall(shown)) <= {"https", "python", "channel", "everyone"}

    async def test_a_giant_word_arrives_whole(self, here: Table[Seat]) -> None:
        event = await here.hears("vito", "a giant word")
        routed = await here.answers(event, f"{GIANT} end")
        plan = await here.delivered(event, routed.run_id)
        assert (plan.failed, len(plan.messages)) == ("", plan.parts)
        assert sum(text.count("w") for text in here.seat.shown("vito")) == len(GIANT)

    async def test_the_failure_of_a_run_is_said_without_its_details(self, here: Table[Seat]) -> None:
        routed = await here.works(await here.hears("vroni", "fail"))
        await here.does(routed, RunFailed(error="KeyError", text="secret detail"))
        assert await here.shows(FAILED.partition(".")[0], "vroni")
        assert not [text for text in here.seat.shown("vroni") if "secret detail" in text]


class Code:
    """Any platform, also one that shows code as text."""

    async def test_code_arrives_without_unseen_characters(self, here: Table[Seat]) -> None:
        """So what people copy compiles. Only what would mention people in it may be broken by one."""
        await here.answers(await here.hears("vlad", "some code"), CODE)
        shown = await here.shows("stdio.h", "vlad")
        assert not re.search(f"[{UNSEEN}]", shown.strip()), ascii(shown)


class Repeated:
    """Platforms that deliver again what they do not know to have arrived."""

    async def test_a_message_that_comes_again_is_answered_once(self, here: Table[Duplicating]) -> None:
        here.seat.duplicates(True)
        try:
            event = await here.hears("wanda", "hello")
            await here.answers(event, "Hello, Wanda.")
            await here.shows("Hello, Wanda.", "wanda")
            await here.answers(await here.hears("wanda", "and now?"), "Now, too.")
            await here.shows("Now, too.", "wanda")
        finally:
            here.seat.duplicates(False)
        assert [text.strip() for text in here.seat.shown("wanda")] == ["Hello, Wanda.", "Now, too."]


class Faults:
    """Calls that fail, most of which were certainly not done."""

    async def test_a_bad_gateway_loses_no_answer(self, here: Table[Failing]) -> None:
        await self._answered(here, "xena", "gateway")

    async def test_a_connection_that_ends_loses_no_answer(self, here: Table[Failing]) -> None:
        await self._answered(here, "xaver", "reset")

    async def test_a_refusal_for_the_rate_loses_no_answer(self, here: Table[Failing]) -> None:
        await self._answered(here, "yara", "limited")

    async def test_an_answer_whose_format_is_refused_is_said_plainly(self, here: Table[Failing]) -> None:
        await self._answered(here, "yves", "refused")

    async def test_a_draft_of_which_nobody_knows_whether_it_is_there_becomes_the_answer(
        self, here: Table[Failing]
    ) -> None:
        await self._drafted(here, "yuri")

    async def test_such_a_draft_in_a_group_becomes_the_answer(self, here: Table[Failing]) -> None:
        await self._drafted(here, "yoko", "drafts")

    async def _drafted(self, here: Table[Failing], person: str, group: str = "") -> None:
        """The draft becomes the answer, or the answer says that it may be there for the second time."""
        event = await here.hears(person, "hello", group)
        here.seat.fails("lost")
        try:
            routed = await here.works(event)
            await here.says(routed, "The beginning of a long run.")
            await here.ends(routed, "The answer of a long run.")
            plan = await here.delivered(event, routed.run_id)
        finally:
            here.seat.fails("")
        assert (plan.failed, len(plan.messages)) == ("", 1)
        shown = [text for text in here.seat.shown(person, group) if "of a long run" in text]
        assert "The answer" in shown[-1]
        assert len(shown) == 1 or "Perhaps for the second time" in shown[-1], shown

    async def _answered(self, here: Table[Failing], person: str, how: str) -> None:
        event = await here.hears(person, "hello")
        routed = await here.works(event)
        here.seat.fails(how)
        try:
            await here.ends(routed, "The **answer** of a long run.")
            plan = await here.delivered(event, routed.run_id)
        finally:
            here.seat.fails("")
        assert (plan.failed, len(plan.messages)) == ("", 1)
        shown = [text for text in here.seat.shown(person) if "of a long run" in text]
        assert len(shown) in (1, 2)
        assert len(shown) == 1 or "Perhaps for the second time" in shown[-1], shown
