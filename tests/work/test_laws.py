"""The laws of sessions: what they are there to find, they find."""

from __future__ import annotations

import pytest

from tests.work.session import Work


async def test_a_warning_ends_a_session(work: Work) -> None:
    session = await work.session("Do the same again and again.")

    async def circle() -> None:
        for _ in range(12):
            await session.bash("echo the same")

    with pytest.raises(AssertionError, match="the model is told") as failure:
        await circle()
    assert "bash" in str(failure.value), "the end of the transcript is shown"


async def test_a_run_that_ends_too_soon_ends_a_session(work: Work) -> None:
    session = await work.session("Do it in two steps.")
    ids = await session.begins(("bash", {"command": "sleep 600"}))
    await work.client.post(work.server, f"/threads/{session.thread}/runs/{session.run}/cancel")
    with pytest.raises(AssertionError, match="the model is not asked any more: interrupted"):
        await session.resumed(ids)


async def test_a_last_answer_without_tools_ends_a_session(work: Work) -> None:
    session = await work.session("Work without end.")
    session.tools.clear()
    session._look({"messages": [{"role": "user", "content": "Work without end."}]})
    with pytest.raises(AssertionError, match="it is offered no tools"):
        await session.answers("An answer.")
