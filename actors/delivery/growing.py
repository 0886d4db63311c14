"""The newest answer of a run while it is being made, from facts and previews."""

from __future__ import annotations

from collections.abc import Iterable

from core.events import Record
from core.runs.follow import Batch
from core.runs.moments import Finished, Grown, Moment, Moments
from core.runs.previews import Preview, RunPreview
from core.thread.fold import Folding
from core.thread.messages import text_of
from core.thread.state import Run, ThreadState


class Growing:
    """The text of one run's newest answer while it is being made."""

    def __init__(self, run_id: str, state: ThreadState) -> None:
        self.text = ""
        self._id = run_id
        self._folding = Folding(state)
        self._moments = Moments(self._folding, with_subagents=False)
        self._message = ""
        """The message that the text is of."""

    @property
    def run(self) -> Run:
        return self._folding.state.runs[self._id]

    def is_whole(self) -> bool:
        """Tells whether the run has ended, or is not there any more."""
        run = self._folding.state.runs.get(self._id)
        return run is None or not run.open

    def take(self, batch: Batch) -> None:
        """Takes in facts of the thread, and previews of the run."""
        for item in batch:
            if isinstance(item, Record):
                self._folding.apply(item)
                self._show(self._moments.fact(item) if item.run == self._id else ())
                self._show(self._moments.waiting())
            elif isinstance(item, RunPreview) and isinstance(item.preview, Preview):
                self._show(self._moments.preview(self._id, item.preview))

    def _show(self, moments: Iterable[Moment]) -> None:
        for moment in moments:
            match moment:
                case Grown(_, message, piece) if piece.part == "text":
                    self.text = (self.text if message == self._message else "") + piece.text
                    self._message = message
                case Finished(_, event):
                    self.text = text_of(event.message.get("content", "")) or self.text
