"""A sign of life: at once, and until the answer stands there."""

from __future__ import annotations

from actors.contracts.seat import WithSigns
from actors.contracts.table import Table
from actors.contracts.talk import outcome


class Signs:
    """Platforms that show that the bot is at work."""

    async def test_the_sign_comes_before_the_window_for_more_is_over(self, here: Table[WithSigns]) -> None:
        with here.set(gather_seconds=10):
            event = await here.hears("sara", "hello")
            await here.until(lambda: "on" in here.seat.wire("sara"))
            assert await outcome(here, event) == "", "nothing is decided yet"

    async def test_the_sign_leaves_when_the_answer_stands_there(self, here: Table[WithSigns]) -> None:
        event = await here.hears("tess", "hello")
        await here.until(lambda: "on" in here.seat.wire("tess"))
        await here.answers(event, "Hello, Tess.")
        await here.shows("Hello, Tess.", "tess")
        wire = await here.until(lambda: [*here.seat.wire("tess")] if "off" in here.seat.wire("tess") else None)
        assert "text" in wire[: wire.index("off")]
        assert "text" not in wire[wire.index("off") :]

    async def test_nobody_who_may_not_talk_is_shown_a_sign(self, here: Table[WithSigns]) -> None:
        with here.set(allowed_users=["somebody-else"]):
            event = await here.hears("ulla", "hello")
            await here.routed(event)
        await here.answers(await here.hears("uwe", "hello"), "Hello, Uwe.")
        await here.shows("Hello, Uwe.", "uwe")
        assert "on" not in here.seat.wire("ulla")
