"""Whatever becomes of the previews of a run and of its subagents, the moments tell every answer, exactly and once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core.events import ModelCompleted, Record, SubagentProgressed
from core.runs.moments import Finished, GivenUp, Grown, Moment, Moments
from core.runs.previews import Preview, line_of
from core.thread.fold import Folding
from core.thread.state import ThreadState
from tests.golden.streams.scripts import SCRIPTS, Item
from tests.support.laws import EXAMPLES


def line(event: ModelCompleted | SubagentProgressed) -> str:
    whole = event if isinstance(event, ModelCompleted) else ModelCompleted(message=event.message)
    return "".join(piece.text for piece in line_of(whole.message, whole.call_texts, whole.order))


def told(translator: Moments, folding: Folding, item: Item, logs: dict[str, list[dict[str, object]]]) -> list[Moment]:
    if (subagent := translator.needs(item)) is not None:
        translator.learn(subagent, logs.get(subagent, []))
    if isinstance(item, Record):
        folding.apply(item)
        return [*translator.fact(item), *translator.waiting()]
    return list(translator.preview(item.run, item.preview)) if isinstance(item.preview, Preview) else []


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(SCRIPTS)))
def test_every_answer_is_told_once(data: st.DataObject, name: str) -> None:
    script = SCRIPTS[name]()
    folding = Folding(ThreadState())
    translator = Moments(folding)
    texts: dict[tuple[str, str], str] = {}
    finished: list[tuple[str, str]] = []
    for item in script.items:
        copies = 1 if isinstance(item, Record) else data.draw(st.integers(0, 2), label="copies")
        for moment in (moment for _ in range(copies) for moment in told(translator, folding, item, script.logs)):
            match moment:
                case Grown(speaker, message, piece, end):
                    texts[speaker, message] = texts.get((speaker, message), "") + piece.text
                    assert len(texts[speaker, message]) == end
                case GivenUp(speaker, reader):
                    del texts[speaker, str(reader.message)]
                case Finished(speaker, event):
                    key = speaker, str(event.message["id"])
                    assert texts.pop(key, "") == line(event)
                    finished.append(key)
    events = [item.event for item in script.items if isinstance(item, Record)]
    answers = [one.message["id"] for one in events if isinstance(one, ModelCompleted | SubagentProgressed)]
    assert [message for _, message in finished] == answers
